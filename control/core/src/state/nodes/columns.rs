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
        // Those that both have, and then those that only one has.
        let both = self.len.min(older.len);
        let pages = self.pages.iter().zip(older.pages.iter());
        for (page, (new, old)) in pages.enumerate() {
            if Arc::ptr_eq(new, old) {
                continue;
            }
            let columns = new.iter().zip(old.iter()).enumerate();
            let numbers = columns.filter(|(_, (new, old))| new != old);
            let numbers = numbers.map(|(at, _)| page * PAGE_COLUMNS + at);
            changed.extend(numbers.filter(|number| *number < both));
        }
        changed.extend(both..self.len.max(older.len));
        changed
    }
}
