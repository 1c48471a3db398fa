//! Values that nodes have for an attribute, numbered.

use std::collections::BTreeMap;

use muster_domain::node::NodeSpec;
use muster_domain::number;

use super::by_class::ByClass;
use crate::scheduler::feasible::{names_one_node, value_of};

/// The value of each candidate.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) names: Vec<String>,
    /// The number of each candidate's value; `None`: the candidate has no value.
    pub(super) of: Vec<Option<u32>>,
    numbers: ValueNumbers,
    by_class: ByClass<Option<u32>>,
}

type ValueNumbers = BTreeMap<String, u32>;

impl Values {
    /// Returns the values of an attribute, without candidates so far.
    pub(super) fn of(attribute: &str) -> Self {
        Self {
            names: Vec::new(),
            of: Vec::new(),
            numbers: ValueNumbers::new(),
            by_class: ByClass::new(names_one_node(attribute)),
        }
    }

    /// Takes the next candidate, which is of the class with this number.
    pub(super) fn push<'n>(
        &mut self,
        attribute: &str,
        class: usize,
        node: impl FnOnce() -> Option<&'n NodeSpec>,
    ) {
        let Self {
            names,
            of,
            numbers,
            by_class,
        } = self;
        of.push(by_class.get(class, || number_of(attribute, node()?, names, numbers)));
    }

    /// The number of a value, if a candidate has it.
    pub(super) fn number(&self, value: &str) -> Option<u32> {
        self.numbers.get(value).copied()
    }
}

/// Returns the number of the value of `node`, if there is one. A new value gets the next number.
fn number_of(
    attribute: &str,
    node: &NodeSpec,
    names: &mut Vec<String>,
    numbers: &mut ValueNumbers,
) -> Option<u32> {
    let value = value_of(attribute, node)?;
    if let Some(number) = numbers.get(&*value) {
        return Some(*number);
    }
    let number = number::count(names.len());
    names.push(value.clone().into_owned());
    numbers.insert(value.into_owned(), number);
    Some(number)
}
