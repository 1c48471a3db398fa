//! A copy of the columns of one state. Writes to the copy do not change the state.

use std::sync::Arc;

use imbl::Vector;

use super::{Column, ColumnPage, PAGE_COLUMNS};

/// All columns by number. A copy costs a few pointers and shares its pages; a write copies one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    /// The pages as in the state.
    pages: Vector<Arc<ColumnPage>>,
    written: WrittenPages,
    len: usize,
}

impl Columns {
    pub(super) fn new(pages: Vector<Arc<ColumnPage>>, len: usize) -> Self {
        Self {
            pages,
            written: WrittenPages::default(),
            len,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Column> {
        if at >= self.len {
            return None;
        }
        self.page(at / PAGE_COLUMNS)?.get(at % PAGE_COLUMNS)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Column> {
        if at >= self.len {
            return None;
        }
        let page = self.written.page_mut(at / PAGE_COLUMNS, &self.pages)?;
        Arc::make_mut(page).get_mut(at % PAGE_COLUMNS)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Column> {
        let pages = self.pages.leaves().flatten().enumerate();
        let pages = pages.map(|(at, page)| self.written.page(at).unwrap_or(page));
        pages.flat_map(|page| page.iter()).take(self.len)
    }

    fn page(&self, at: usize) -> Option<&Arc<ColumnPage>> {
        self.written.page(at).or_else(|| self.pages.get(at))
    }

    /// Returns the numbers whose column differs from the one in `older`, ascending, up to the longer of both. Pages are
    /// compared by address first.
    pub(crate) fn changed_since(&self, older: &Self) -> Vec<usize> {
        // First the numbers that both have, then the numbers that only one has.
        let both = self.len.min(older.len);
        let mut pages = differing(&self.pages, &older.pages);
        let in_order = pages.len();
        pages.extend(self.written.numbers().chain(older.written.numbers()));
        if pages.len() > in_order {
            pages.sort_unstable();
            pages.dedup();
        }
        let mut changed = Vec::with_capacity(pages.len());
        for at in pages {
            let (Some(new), Some(old)) = (self.page(at), older.page(at)) else {
                continue;
            };
            if Arc::ptr_eq(new, old) {
                continue;
            }
            let columns = new.iter().zip(old.iter()).enumerate();
            let numbers = columns.filter(|(_, (new, old))| new != old);
            let numbers = numbers.map(|(column_at, _)| at * PAGE_COLUMNS + column_at);
            changed.extend(numbers.filter(|number| *number < both));
        }
        changed.extend(both..self.len.max(older.len));
        changed
    }
}

/// Pages that were written to since the copy was made, by number.
///
/// A small plan writes to few pages, which are searched one by one. With more pages, each page has an entry of its own.
#[derive(Clone, Debug, Default)]
struct WrittenPages {
    few: Vec<(usize, Arc<ColumnPage>)>,
    /// All written pages, once there are more than [`FEW`].
    many: Vec<Option<Arc<ColumnPage>>>,
}

const FEW: usize = 8;

impl WrittenPages {
    fn page(&self, at: usize) -> Option<&Arc<ColumnPage>> {
        if self.many.is_empty() {
            let mut pages = self.few.iter();
            pages.find_map(|(other, page)| (*other == at).then_some(page))
        } else {
            self.many.get(at)?.as_ref()
        }
    }

    /// Returns the page to write to; before the first write it is a copy of that in `pages`.
    fn page_mut(
        &mut self,
        at: usize,
        pages: &Vector<Arc<ColumnPage>>,
    ) -> Option<&mut Arc<ColumnPage>> {
        if self.many.is_empty() {
            let known = self.few.iter().position(|(other, _)| *other == at);
            if known.is_some() || self.few.len() < FEW {
                let place = known.unwrap_or(self.few.len());
                if known.is_none() {
                    self.few.push((at, Arc::clone(pages.get(at)?)));
                }
                return self.few.get_mut(place).map(|(_, page)| page);
            }
            self.many.resize(pages.len(), None);
            for (other, page) in self.few.drain(..) {
                self.many[other] = Some(page);
            }
        }
        match self.many.get_mut(at)? {
            Some(page) => Some(page),
            vacant => Some(vacant.insert(Arc::clone(pages.get(at)?))),
        }
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        let few = self.few.iter().map(|(at, _)| *at);
        let many = self.many.iter().enumerate();
        few.chain(many.filter_map(|(at, page)| page.is_some().then_some(at)))
    }
}

/// Returns the numbers of pages that are in both but are not the same page. Leaves are compared by address first.
fn differing(new: &Vector<Arc<ColumnPage>>, old: &Vector<Arc<ColumnPage>>) -> Vec<usize> {
    let mut differing = Vec::new();
    if new.ptr_eq(old) {
        return differing;
    }
    let (mut new_leaves, mut old_leaves) = (new.leaves(), old.leaves());
    let (mut new, mut old): (&[_], &[_]) = (&[], &[]);
    let mut first = 0;
    loop {
        if new.is_empty() {
            new = new_leaves.next().unwrap_or_default();
        }
        if old.is_empty() {
            old = old_leaves.next().unwrap_or_default();
        }
        let len = new.len().min(old.len());
        if len == 0 {
            return differing;
        }
        if !std::ptr::eq(&raw const new[0], &raw const old[0]) {
            let pages = new.iter().zip(old).enumerate();
            let pages = pages.filter(|(_, (new, old))| !Arc::ptr_eq(new, old));
            differing.extend(pages.map(|(at, _)| first + at));
        }
        (new, old) = (&new[len..], &old[len..]);
        first += len;
    }
}
