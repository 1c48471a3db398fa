//! Conditions on nodes.

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

/// A condition on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Constraint {
    #[serde(rename = "LTarget")]
    pub left: String,
    #[serde(rename = "RTarget")]
    pub right: String,
    pub operand: String,
}

impl From<&domain::Constraint> for Constraint {
    fn from(constraint: &domain::Constraint) -> Self {
        Self {
            left: constraint.left.clone(),
            right: constraint.right.clone(),
            operand: constraint.operand.as_str().to_owned(),
        }
    }
}
