//! Results that the nodes of one class share, computed once for each class.

/// Results by the number of the class.
#[derive(Debug)]
pub(super) struct ByClass<T> {
    known: Vec<Option<T>>,
    /// Whether nodes of one class may have different results.
    by_node: bool,
}

impl<T: Copy> ByClass<T> {
    pub(super) fn new(by_node: bool) -> Self {
        Self {
            known: Vec::new(),
            by_node,
        }
    }

    /// Returns the result for a node of the class with this number.
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
