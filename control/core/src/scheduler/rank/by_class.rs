//! Answers that the nodes of one class share, found once for each class.

/// Answers by the number of the class.
#[derive(Debug)]
pub(super) struct ByClass<T> {
    known: Vec<Option<T>>,
    /// Nodes of one class may have different ones.
    by_node: bool,
}

impl<T: Copy> ByClass<T> {
    pub(super) fn new(by_node: bool) -> Self {
        Self {
            known: Vec::new(),
            by_node,
        }
    }

    /// The answer for a node of the class with this number.
    pub(super) fn get(&mut self, class: usize, find: impl FnOnce() -> T) -> T {
        if self.by_node {
            return find();
        }
        if self.known.len() <= class {
            self.known.resize(class + 1, None);
        }
        *self.known[class].get_or_insert_with(find)
    }
}
