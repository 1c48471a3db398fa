//! Attributes and amounts of the machine.

use std::collections::BTreeMap;

use muster_domain::resources::Amount;

/// Facts of the machine that need nothing but reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) attributes: BTreeMap<String, String>,
    /// The total amount of the machine.
    pub(crate) total: Amount,
    pub(crate) cores: u32,
}

impl Facts {
    pub(super) fn attribute(&mut self, name: &str, value: impl ToString) {
        self.attributes.insert(name.to_owned(), value.to_string());
    }
}

/// The text of a file; empty if it cannot be read.
pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
