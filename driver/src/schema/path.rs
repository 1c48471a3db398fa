//! The place of a value in a configuration.

use std::fmt;

use super::ConfigFault;

/// A path from the outside in: `config.mount[1].source`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'a> {
    Root(&'a str),
    /// An entry of an object, or an attribute of a block.
    Field(&'a Path<'a>, &'a str),
    /// An item of a list, or one of several blocks.
    Item(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub(super) fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    pub(super) fn item(&'a self, at: usize) -> Self {
        Self::Item(self, at)
    }

    pub(super) fn fault(&self, message: String) -> ConfigFault {
        ConfigFault {
            field: self.to_string(),
            message,
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}
