//! The columns of one state, to keep and to write to without anybody noticing.

use std::sync::Arc;

use imbl::Vector;

use super::{Column, ColumnPage, PAGE_COLUMNS};

/// All columns by number. A copy costs a few pointers and shares its pages; a write copies one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pages: Vector<Arc<ColumnPage>>,
    len: usize,
}

impl Columns {
    pub(super) fn new(pages: Vector<Arc<ColumnPage>>, len: usize) -> Self {
        Self { pages, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Column> {
        if at >= self.len {
            return None;
        }
        self.pages.get(at / PAGE_COLUMNS)?.get(at % PAGE_COLUMNS)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Column> {
        if at >= self.len {
            return None;
        }
        let page = self.pages.get_mut(at / PAGE_COLUMNS)?;
        Arc::make_mut(page).get_mut(at % PAGE_COLUMNS)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Column> {
        let columns = self.pages.iter().flat_map(|page| page.iter());
        columns.take(self.len)
    }

    /// Numbers whose column is another one than in `older`, ascending, up to the longer of both. Pages are
    /// compared by address first.
    pub(crate) fn changed_since(&self, older: &Self) -> Vec<usize> {
        let mut changed = Vec::new();
        if self.len == older.len && self.pages.ptr_eq(&older.pages) {
            return changed;
        }
        let pages = self.pages.len().max(older.pages.len());
        let (mut new, mut old) = (self.pages.iter(), older.pages.iter());
        for page in 0..pages {
            let (new, old) = (new.next(), old.next());
            let is_same = new.zip(old).is_some_and(|(new, old)| Arc::ptr_eq(new, old));
            // The last page of each may end elsewhere.
            let is_last = (page + 1) * PAGE_COLUMNS > self.len.min(older.len);
            if is_same && !is_last {
                continue;
            }
            let numbers = page * PAGE_COLUMNS..(page + 1) * PAGE_COLUMNS;
            changed.extend(numbers.filter(|at| self.get(*at) != older.get(*at)));
        }
        changed
    }
}
