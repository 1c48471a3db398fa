//! Constraints and affinities: required and preferred conditions on a node.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::job_block;

/// The comparison of two sides. Names and meaning are Nomad's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operand {
    /// `=`, `==`, `is`: equal as text.
    Equal,
    /// `!=`, `not`: not equal as text.
    NotEqual,
    /// `<`: lower. Two integers compare as such, else two floats, else texts byte by byte.
    Less,
    /// `<=`: lower or equal.
    LessOrEqual,
    /// `>`: higher.
    Greater,
    /// `>=`: higher or equal.
    GreaterOrEqual,
    /// `regexp`: the left side matches the regular expression on the right.
    Regexp,
    /// `version`: the left side is a version that meets the list of conditions on the right.
    Version,
    /// `semver`: as `version`, by the rules of Semantic Versioning.
    Semver,
    /// `is_set`: the left side exists.
    IsSet,
    /// `is_not_set`: the left side does not exist.
    IsNotSet,
    /// `set_contains`, `set_contains_all`: the list on the left has every item of the one on the right.
    SetContainsAll,
    /// `set_contains_any`: the list on the left has one item of the one on the right.
    SetContainsAny,
    /// `distinct_hosts`: no two instances on one node. It concerns all instances, not one node alone.
    DistinctHosts,
    /// `distinct_property`: a bounded number of instances for each value of the left side.
    DistinctProperty,
}

crate::text_enum!(pub Operand: "operand" {
    Equal => "=" | "==" | "is" | "",
    NotEqual => "!=" | "not",
    Less => "<",
    LessOrEqual => "<=",
    Greater => ">",
    GreaterOrEqual => ">=",
    Regexp => "regexp",
    Version => "version",
    Semver => "semver",
    IsSet => "is_set",
    IsNotSet => "is_not_set",
    SetContainsAll => "set_contains" | "set_contains_all",
    SetContainsAny => "set_contains_any",
    DistinctHosts => "distinct_hosts",
    DistinctProperty => "distinct_property",
});

job_block! {
    /// A condition on a node.
    ///
    /// Targets are literals or references: `${attr.NAME}`, `${meta.NAME}`, `${node.class}`,
    /// `${node.datacenter}`, `${node.pool}`, `${node.unique.id}`, `${node.unique.name}`.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Constraint {
        /// Left side, usually a reference.
        pub left: String = String::new();
        pub operand: Operand = Operand::Equal;
        /// Right side, usually a literal.
        pub right: String = String::new();
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.operand, self.right)
    }
}

job_block! {
    /// A preference for or against nodes that meet a condition.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Affinity {
        /// Left side, usually a reference.
        pub left: String = String::new();
        /// The comparison; not one of the `distinct_` ones.
        pub operand: Operand = Operand::Equal;
        /// Right side, usually a literal.
        pub right: String = String::new();
        /// -100 to 100, not 0. A negative weight prefers nodes that do not meet the condition. Default 50.
        pub weight: i8 = 50;
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} (weight {})",
            self.left, self.operand, self.right, self.weight
        )
    }
}

job_block! {
    /// The distribution of instances over the values of an attribute.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Spread {
        /// The attribute: a reference.
        pub attribute: String = String::new();
        /// 1 to 100, relative to the other spreads; default 50.
        pub weight: u8 = 50;
        /// The percentages of single values; empty means the same number for all values. The rest of 100 percent is for
        /// all other values together.
        pub targets: Vec<SpreadTarget> = Vec::new();
    }
}

/// The percentage of instances for one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpreadTarget {
    pub value: String,
    /// 0 to 100.
    pub percent: u8,
}
