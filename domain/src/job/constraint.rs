//! Constraints: conditions a node must meet.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a constraint compares. Words and meaning are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operand {
    /// `=`, `==`, `is`: equal as text.
    Equal,
    /// `!=`, `not`: not equal as text.
    NotEqual,
    /// `regexp`: the left side matches the regular expression on the right.
    Regexp,
}

impl Operand {
    /// Operands of Nomad that this version refuses by name rather than ignores.
    pub const UNSUPPORTED: [&'static str; 13] = [
        "<",
        "<=",
        ">",
        ">=",
        "version",
        "semver",
        "is_set",
        "is_not_set",
        "set_contains",
        "set_contains_all",
        "set_contains_any",
        "distinct_hosts",
        "distinct_property",
    ];

    /// The canonical word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Regexp => "regexp",
        }
    }

    /// The operand that `word` names.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "=" | "==" | "is" | "" => Some(Self::Equal),
            "!=" | "not" => Some(Self::NotEqual),
            "regexp" => Some(Self::Regexp),
            _ => None,
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A condition on a node.
///
/// Targets are literals or references: `${attr.NAME}`, `${meta.NAME}`, `${node.class}`,
/// `${node.datacenter}`, `${node.pool}`, `${node.unique.id}`, `${node.unique.name}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Constraint {
    /// Left side, usually a reference.
    pub left: String,
    /// The comparison.
    pub operand: Operand,
    /// Right side, usually a literal.
    pub right: String,
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.operand, self.right)
    }
}
