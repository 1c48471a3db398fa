//! Constraints: the node has the attributes the job asks for.
//!
//! The meaning, including the oddities, is Nomad's, checked against its recorded decisions. A missing attribute reads
//! as empty text but does not count as found. An unknown reference has no value at all. The order differs from the
//! recorded decisions of Nomad 1.1.2, which compares texts: see [`order`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use muster_domain::job::{Constraint, Operand};
use muster_domain::node::{DeviceGroup, NodeSpec};
use muster_domain::pattern::Pattern;
use muster_domain::version;

use super::check::{FeasibilityCheck, FeasibilityRule};

pub(super) const RULE: FeasibilityRule = FeasibilityRule { refuses };

fn refuses(needs: &FeasibilityCheck, node: &NodeSpec) -> Option<String> {
    needs
        .conditions
        .iter()
        .find(|condition| !condition.holds(node))
        .map(Condition::to_string)
}

/// A condition with its right side prepared.
#[derive(Debug)]
pub(in crate::scheduler) struct Condition<'a> {
    left: Cow<'a, str>,
    operand: Operand,
    right: Cow<'a, str>,
    /// The right side, if it is a literal; otherwise it is prepared for each node.
    prepared: Option<RightOperand>,
}

/// A right side, ready to compare.
#[derive(Debug)]
enum RightOperand {
    Pattern(Pattern),
    Version(version::Conditions),
    Set(BTreeSet<String>),
    /// A value that the operand does not accept; no value compares with it.
    Invalid,
}

impl RightOperand {
    fn of(operand: Operand, text: &str) -> Option<Self> {
        match operand {
            Operand::Regexp => Some(Pattern::new(text).map_or(Self::Invalid, Self::Pattern)),
            Operand::Version => Some(Self::conditions(text, version::VersionRules::Version)),
            Operand::Semver => Some(Self::conditions(text, version::VersionRules::Semver)),
            Operand::SetContainsAll | Operand::SetContainsAny => {
                Some(Self::Set(items(text).map(str::to_owned).collect()))
            }
            Operand::Equal
            | Operand::NotEqual
            | Operand::Less
            | Operand::LessOrEqual
            | Operand::Greater
            | Operand::GreaterOrEqual
            | Operand::IsSet
            | Operand::IsNotSet
            | Operand::DistinctHosts
            | Operand::DistinctProperty => None,
        }
    }

    fn conditions(text: &str, rules: version::VersionRules) -> Self {
        version::Conditions::parse(text, rules).map_or(Self::Invalid, Self::Version)
    }

    fn accepts(&self, operand: Operand, left: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.is_match(left),
            Self::Version(conditions) => conditions.accept(left),
            Self::Set(wanted) => {
                let have: BTreeSet<&str> = items(left).collect();
                let has = |item: &String| have.contains(item.as_str());
                if operand == Operand::SetContainsAny {
                    wanted.iter().any(has)
                } else {
                    wanted.iter().all(has)
                }
            }
            Self::Invalid => false,
        }
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// The value of one side of a constraint on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OperandValue<'a> {
    /// The text. `None`: there is no value.
    text: Option<Cow<'a, str>>,
    found: bool,
}

impl<'a> Condition<'a> {
    pub(in crate::scheduler) fn new(left: &'a str, operand: Operand, right: &'a str) -> Self {
        Self::with(Cow::Borrowed(left), operand, Cow::Borrowed(right))
    }

    fn with(left: Cow<'a, str>, operand: Operand, right: Cow<'a, str>) -> Self {
        let prepared = if is_reference(&right) {
            None
        } else {
            RightOperand::of(operand, &right)
        };
        Self {
            left,
            operand,
            right,
            prepared,
        }
    }

    /// Returns a condition that owns its data.
    pub(super) fn owned(constraint: &Constraint) -> Condition<'static> {
        let Constraint {
            left,
            operand,
            right,
        } = constraint.clone();
        Condition::with(Cow::Owned(left), operand, Cow::Owned(right))
    }

    pub(super) fn of(constraint: &'a Constraint) -> Self {
        Self::new(&constraint.left, constraint.operand, &constraint.right)
    }

    /// Returns whether the result can differ within a class of nodes.
    pub(in crate::scheduler) fn names_one_node(&self) -> bool {
        names_one_node(&self.left) || names_one_node(&self.right)
    }

    /// Returns whether `node` meets the condition. Conditions about all instances are judged elsewhere and count as met
    /// here.
    pub(in crate::scheduler) fn holds(&self, node: &NodeSpec) -> bool {
        let left = resolve(&self.left, node);
        let right = resolve(&self.right, node);
        self.compares(&left, &right)
    }

    /// Returns the values of both sides on `node`.
    pub(super) fn sides(&self, node: &NodeSpec) -> (Option<String>, Option<String>) {
        let read = |target: &str| {
            let OperandValue { text, found } = resolve(target, node);
            text.filter(|_| found).map(Cow::into_owned)
        };
        (read(&self.left), read(&self.right))
    }

    /// Returns whether `device` meets the condition.
    pub(in crate::scheduler) fn holds_on(&self, device: &DeviceGroup) -> bool {
        let left = resolve_device(&self.left, device);
        let right = resolve_device(&self.right, device);
        if let (Some(left), Some(right)) = (
            left.text.as_deref().and_then(quantity),
            right.text.as_deref().and_then(quantity),
        ) {
            let both = |holds: bool| holds && left.1 == right.1;
            match self.operand {
                Operand::Equal => return both(left.0.total_cmp(&right.0).is_eq()),
                Operand::Less => return both(left.0 < right.0),
                Operand::LessOrEqual => return both(left.0 <= right.0),
                Operand::Greater => return both(left.0 > right.0),
                Operand::GreaterOrEqual => return both(left.0 >= right.0),
                Operand::NotEqual
                | Operand::Regexp
                | Operand::Version
                | Operand::Semver
                | Operand::IsSet
                | Operand::IsNotSet
                | Operand::SetContainsAll
                | Operand::SetContainsAny
                | Operand::DistinctHosts
                | Operand::DistinctProperty => {}
            }
        }
        self.compares(&left, &right)
    }

    fn compares(&self, left: &OperandValue<'_>, right: &OperandValue<'_>) -> bool {
        let both = left.found && right.found;
        match self.operand {
            Operand::Equal => both && left.text == right.text,
            Operand::NotEqual => left.text != right.text,
            Operand::Less => both && order(left, right).is_some_and(Ordering::is_lt),
            Operand::LessOrEqual => both && order(left, right).is_some_and(Ordering::is_le),
            Operand::Greater => both && order(left, right).is_some_and(Ordering::is_gt),
            Operand::GreaterOrEqual => both && order(left, right).is_some_and(Ordering::is_ge),
            Operand::IsSet => left.found,
            Operand::IsNotSet => !left.found,
            Operand::DistinctHosts | Operand::DistinctProperty => true,
            Operand::Regexp
            | Operand::Version
            | Operand::Semver
            | Operand::SetContainsAll
            | Operand::SetContainsAny => {
                let (Some(left), Some(right), true) = (&left.text, &right.text, both) else {
                    return false;
                };
                match &self.prepared {
                    Some(prepared) => prepared.accepts(self.operand, left),
                    None => RightOperand::of(self.operand, right)
                        .is_some_and(|right| right.accepts(self.operand, left)),
                }
            }
        }
    }
}

/// Compares two sides: as integers, else as numbers, else as texts, as in Nomad since 1.4. Returns `None` if a side is
/// missing or is a number that cannot be compared.
fn order(left: &OperandValue<'_>, right: &OperandValue<'_>) -> Option<Ordering> {
    let (left, right) = (left.text.as_deref()?, right.text.as_deref()?);
    if let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) {
        return Some(left.cmp(&right));
    }
    if let (Ok(left), Ok(right)) = (left.parse::<f64>(), right.parse::<f64>()) {
        return left.partial_cmp(&right);
    }
    Some(left.cmp(right))
}

impl fmt::Display for Condition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.operand, self.right)
    }
}

fn is_reference(target: &str) -> bool {
    target.starts_with("${")
}

/// Returns whether nodes of one class may differ in meeting the constraint.
pub(super) fn is_about_one_node(constraint: &Constraint) -> bool {
    names_one_node(&constraint.left) || names_one_node(&constraint.right)
}

/// Returns whether nodes of one class may differ in the value of the target.
pub(in crate::scheduler) fn names_one_node(target: &str) -> bool {
    ["${node.unique.", "${attr.unique.", "${meta.unique."]
        .iter()
        .any(|prefix| target.starts_with(prefix))
}

/// Returns the value of the reference `target` on `node`; `None` if there is none.
pub(in crate::scheduler) fn value_of<'a>(
    target: &'a str,
    node: &'a NodeSpec,
) -> Option<Cow<'a, str>> {
    let OperandValue { text, found } = resolve(target, node);
    text.filter(|_| found)
}

fn resolve<'a>(target: &'a str, node: &'a NodeSpec) -> OperandValue<'a> {
    if !is_reference(target) {
        return OperandValue {
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
    OperandValue {
        text: Some(Cow::Borrowed(text.map_or("", String::as_str))),
        found: text.is_some(),
    }
}

/// Returns the value of a target on a device.
fn resolve_device<'a>(target: &'a str, device: &'a DeviceGroup) -> OperandValue<'a> {
    if !is_reference(target) {
        return OperandValue {
            text: Some(Cow::Borrowed(target)),
            found: true,
        };
    }
    let key = target.trim_start_matches("${").trim_end_matches('}');
    let text = match key {
        "device.model" => Some(Cow::Borrowed(device.name.as_str())),
        "device.vendor" => Some(Cow::Borrowed(device.vendor.as_str())),
        "device.type" => Some(Cow::Borrowed(device.kind.as_str())),
        "device.ids" => {
            let ids: Vec<&str> = device.instances.iter().map(|one| one.id.as_str()).collect();
            Some(Cow::Owned(ids.join(",")))
        }
        key => key
            .strip_prefix("device.attr.")
            .and_then(|key| device.attributes.get(key))
            .map(|text| Cow::Borrowed(text.as_str())),
    };
    let found = text.is_some();
    OperandValue { text, found }
}

/// Prefixes of units of bytes, hertz, watts and rates, by the factor to the base unit.
const UNITS: &[(&str, f64, &str)] = &[
    ("KiB", 1024.0, "B"),
    ("MiB", 1_048_576.0, "B"),
    ("GiB", 1_073_741_824.0, "B"),
    ("TiB", 1_099_511_627_776.0, "B"),
    ("kB", 1e3, "B"),
    ("KB", 1e3, "B"),
    ("MB", 1e6, "B"),
    ("GB", 1e9, "B"),
    ("TB", 1e12, "B"),
    ("MHz", 1e6, "Hz"),
    ("GHz", 1e9, "Hz"),
    ("mW", 1e-3, "W"),
    ("kW", 1e3, "W"),
    ("MB/s", 1e6, "B/s"),
    ("GB/s", 1e9, "B/s"),
    ("MiB/s", 1_048_576.0, "B/s"),
    ("GiB/s", 1_073_741_824.0, "B/s"),
];

/// Returns a number with its base unit, from a text such as `11 GiB`.
fn quantity(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | '-' | '+')))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = text[end..].trim();
    match UNITS.iter().find(|(name, ..)| *name == unit) {
        Some((_, factor, base)) => Some((number * factor, base)),
        None => Some((number, unit)),
    }
}

fn named<'a>(target: &str, node: &'a NodeSpec) -> OperandValue<'a> {
    let text = match target {
        "${node.class}" => Some(Cow::Borrowed(node.class.as_str())),
        "${node.datacenter}" => Some(Cow::Borrowed(node.datacenter.as_str())),
        "${node.pool}" => Some(Cow::Borrowed(node.pool.as_str())),
        "${node.region}" => Some(Cow::Borrowed(muster_domain::region::name())),
        "${node.unique.id}" => Some(Cow::Owned(node.id.to_string())),
        "${node.unique.name}" => Some(Cow::Borrowed(node.name.as_str())),
        _ => None,
    };
    let found = text.is_some();
    OperandValue { text, found }
}

#[cfg(test)]
mod tests;
