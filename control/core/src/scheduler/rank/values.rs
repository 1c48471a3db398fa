//! Values that nodes have for an attribute, numbered.

use std::collections::BTreeMap;

use muster_domain::node::NodeSpec;

use crate::scheduler::feasible::value_of;

/// The value of each candidate.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// By number.
    pub(super) names: Vec<String>,
    /// The number of each candidate's value; `None`: it has none.
    pub(super) of: Vec<Option<u32>>,
    numbers: BTreeMap<String, u32>,
}

impl Values {
    /// Takes the next candidate.
    pub(super) fn push(&mut self, attribute: &str, node: &NodeSpec) {
        let value = value_of(attribute, node);
        let number = value.map(|value| match self.numbers.get(&*value) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
                self.names.push(value.clone().into_owned());
                self.numbers.insert(value.into_owned(), number);
                number
            }
        });
        self.of.push(number);
    }

    /// The number of a value, if a candidate has it.
    pub(super) fn number(&self, value: &str) -> Option<u32> {
        self.numbers.get(value).copied()
    }
}
