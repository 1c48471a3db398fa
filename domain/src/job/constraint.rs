//! Constraints and affinities: conditions a node must meet, or had better meet.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::job_block;

/// How two sides compare. Words and meaning are Nomad's.
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
    /// `semver`: the same by the rules of Semantic Versioning.
    Semver,
    /// `is_set`: the left side exists.
    IsSet,
    /// `is_not_set`: the left side does not exist.
    IsNotSet,
    /// `set_contains`, `set_contains_all`: the list on the left has every item of the one on the right.
    SetContainsAll,
    /// `set_contains_any`: the list on the left has one item of the one on the right.
    SetContainsAny,
    /// `distinct_hosts`: no two instances on one node. About all instances, so not of one node alone.
    DistinctHosts,
    /// `distinct_property`: at most so many instances for each value of the left side.
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
    /// A condition that a node had better meet, or had better not.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Affinity {
        /// Left side, usually a reference.
        pub left: String = String::new();
        /// The comparison; not one of the `distinct_` ones.
        pub operand: Operand = Operand::Equal;
        /// Right side, usually a literal.
        pub right: String = String::new();
        /// -100 to 100, not 0: below 0 the node had better not meet it. 50 unless said.
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
    /// How instances are spread over the values of an attribute.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Spread {
        /// The attribute: a reference.
        pub attribute: String = String::new();
        /// 1 to 100, against the other spreads; 50 unless said.
        pub weight: u8 = 50;
        /// How many instances each value should have; empty means the same number for all values. What the
        /// targets leave of 100 percent is for all other values together.
        pub targets: Vec<SpreadTarget> = Vec::new();
    }
}

/// The part of the instances that one value should have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpreadTarget {
    pub value: String,
    /// 0 to 100.
    pub percent: u8,
}
