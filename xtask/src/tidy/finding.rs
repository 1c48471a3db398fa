//! A violation of a rule, as every rule of `tidy` returns it.

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The path of the file, relative to the workspace's folder.
    pub(crate) path: String,
    /// The line, from 1; 0 when the rule is about the file as a whole.
    pub(crate) line: usize,
    /// The rule's name, as in the list of exceptions.
    pub(crate) rule: &'static str,
    /// The fault, and the remedy.
    pub(crate) message: String,
}
