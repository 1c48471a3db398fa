//! Constraints: the node has the attributes the job asks for.
//!
//! Meaning and oddities are Nomad's, held to its recorded decisions: a missing attribute reads as empty
//! text but does not count as found; an unknown reference reads as nothing at all.

mod re2;

use std::borrow::Cow;

use muster_domain::job::{Constraint, Operand};
use muster_domain::node::NodeSpec;
use regex_lite::Regex;

use super::{Needs, Rule};

pub(super) const RULE: Rule = Rule { refuses };

fn refuses(needs: &Needs<'_>, node: &NodeSpec) -> Option<String> {
    needs
        .conditions
        .iter()
        .find(|condition| !condition.holds(node))
        .map(|condition| condition.constraint.to_string())
}

/// A constraint with its regular expression compiled.
#[derive(Debug)]
pub(in crate::scheduler) struct Condition<'a> {
    constraint: &'a Constraint,
    /// Compiled where it is a literal; `None` where it must be resolved first, or is none.
    pattern: Option<Regex>,
}

/// What one side of a constraint reads as on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Side<'a> {
    /// `None`: nothing at all.
    text: Option<Cow<'a, str>>,
    found: bool,
}

impl<'a> Condition<'a> {
    pub(super) fn new(constraint: &'a Constraint) -> Self {
        let literal = constraint.operand == Operand::Regexp && !is_reference(&constraint.right);
        let pattern = literal.then(|| re2::compile(&constraint.right)).flatten();
        Self {
            constraint,
            pattern,
        }
    }

    /// Whether its answer can differ within a class of nodes.
    pub(super) fn names_one_node(&self) -> bool {
        names_one_node(&self.constraint.left) || names_one_node(&self.constraint.right)
    }

    fn holds(&self, node: &NodeSpec) -> bool {
        let left = resolve(&self.constraint.left, node);
        let right = resolve(&self.constraint.right, node);
        match self.constraint.operand {
            Operand::Equal => left.found && right.found && left.text == right.text,
            Operand::NotEqual => left.text != right.text,
            Operand::Regexp => {
                left.found
                    && right.found
                    && self.matches(left.text.as_deref(), right.text.as_deref())
            }
        }
    }

    fn matches(&self, left: Option<&str>, right: Option<&str>) -> bool {
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        match &self.pattern {
            Some(pattern) => pattern.is_match(left),
            // An invalid pattern matches nothing.
            None => re2::compile(right).is_some_and(|pattern| pattern.is_match(left)),
        }
    }
}

fn is_reference(target: &str) -> bool {
    target.starts_with("${")
}

fn names_one_node(target: &str) -> bool {
    ["${node.unique.", "${attr.unique.", "${meta.unique."]
        .iter()
        .any(|prefix| target.starts_with(prefix))
}

fn resolve<'a>(target: &'a str, node: &'a NodeSpec) -> Side<'a> {
    if !is_reference(target) {
        return Side {
            text: Some(Cow::Borrowed(target)),
            found: true,
        };
    }
    // The last brace may be missing.
    let key_after = |prefix| {
        target
            .strip_prefix(prefix)
            .map(|rest: &str| rest.strip_suffix('}').unwrap_or(rest))
    };
    let text = if let Some(key) = key_after("${attr.") {
        node.attributes.get(key)
    } else if let Some(key) = key_after("${meta.") {
        node.meta.get(key)
    } else {
        return named(target, node);
    };
    Side {
        text: Some(Cow::Borrowed(text.map_or("", String::as_str))),
        found: text.is_some(),
    }
}

fn named<'a>(target: &str, node: &'a NodeSpec) -> Side<'a> {
    let text = match target {
        "${node.class}" => Some(Cow::Borrowed(node.class.as_str())),
        "${node.datacenter}" => Some(Cow::Borrowed(node.datacenter.as_str())),
        "${node.pool}" => Some(Cow::Borrowed(node.pool.as_str())),
        "${node.unique.id}" => Some(Cow::Owned(node.id.to_string())),
        "${node.unique.name}" => Some(Cow::Borrowed(node.name.as_str())),
        _ => None,
    };
    let found = text.is_some();
    Side { text, found }
}

#[cfg(test)]
mod tests;
