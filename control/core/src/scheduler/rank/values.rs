//! Values that nodes have for an attribute, numbered.

use std::collections::BTreeMap;

use muster_domain::node::NodeSpec;

use crate::scheduler::feasible::{names_one_node, value_of};

/// The value of each candidate.
#[derive(Debug)]
pub(super) struct Values {
    /// By number.
    pub(super) names: Vec<String>,
    /// The number of each candidate's value; `None`: it has none.
    pub(super) of: Vec<Option<u32>>,
    numbers: BTreeMap<String, u32>,
    /// The number of each class's value, where that is known.
    by_class: Vec<Option<Option<u32>>>,
    /// Nodes of one class may have different ones.
    by_node: bool,
}

impl Values {
    /// Of nobody so far.
    pub(super) fn of(attribute: &str) -> Self {
        Self {
            names: Vec::new(),
            of: Vec::new(),
            numbers: BTreeMap::new(),
            by_class: Vec::new(),
            by_node: names_one_node(attribute),
        }
    }

    /// Takes the next candidate, which is of the class with this number.
    pub(super) fn push<'n>(
        &mut self,
        attribute: &str,
        class: usize,
        node: impl FnOnce() -> Option<&'n NodeSpec>,
    ) {
        if self.by_class.len() <= class {
            self.by_class.resize(class + 1, None);
        }
        let number = match self.by_class[class].filter(|_| !self.by_node) {
            Some(number) => number,
            None => node().and_then(|node| self.find(attribute, node)),
        };
        self.by_class[class] = Some(number);
        self.of.push(number);
    }

    fn find(&mut self, attribute: &str, node: &NodeSpec) -> Option<u32> {
        let value = value_of(attribute, node)?;
        if let Some(number) = self.numbers.get(&*value) {
            return Some(*number);
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(value.clone().into_owned());
        self.numbers.insert(value.into_owned(), number);
        Some(number)
    }

    /// The number of a value, if a candidate has it.
    pub(super) fn number(&self, value: &str) -> Option<u32> {
        self.numbers.get(value).copied()
    }
}
