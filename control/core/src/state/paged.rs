//! Rows by number, in pages that are copied when they are written while a snapshot shares them.
//!
//! Numbers may be sparse and far apart: a page holds only the existing rows, and an empty page is removed. A write
//! after a snapshot copies one page and the path to it; a write without a snapshot copies nothing.

use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::number;

/// Rows of one page. Each write after a snapshot copies a page, so the bound is not double. Each page costs about 60
/// bytes in addition to its rows, so it is not half.
const PAGE_ROWS: u64 = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Page<T> {
    /// A bit for each existing row, lowest first.
    present: u32,
    rows: Vec<T>,
}

impl<T> Page<T> {
    fn position(&self, bit: u32) -> usize {
        (self.present & ((1 << bit) - 1)).count_ones() as usize
    }

    fn has(&self, bit: u32) -> bool {
        self.present & (1 << bit) != 0
    }

    fn get(&self, bit: u32) -> Option<&T> {
        if !self.has(bit) {
            return None;
        }
        self.rows.get(self.position(bit))
    }

    fn insert(&mut self, bit: u32, row: T) -> Option<T> {
        let at = self.position(bit);
        if self.has(bit) {
            return Some(std::mem::replace(&mut self.rows[at], row));
        }
        if self.rows.len() == self.rows.capacity() {
            // Capacities are powers of two: a page of one row has room for one, and a full page for no more than it
            // has.
            self.rows.reserve_exact(self.rows.len().max(1));
        }
        self.rows.insert(at, row);
        self.present |= 1 << bit;
        None
    }

    fn insert_all(&mut self, first: u32, rows: impl Iterator<Item = T>) {
        for (bit, row) in (first..).zip(rows) {
            self.insert(bit, row);
        }
    }

    fn remove(&mut self, bit: u32) -> Option<T> {
        if !self.has(bit) {
            return None;
        }
        let at = self.position(bit);
        self.present &= !(1 << bit);
        Some(self.rows.remove(at))
    }

    /// Returns the rows of `bits`, each with its bit, lowest first.
    fn iter_of(&self, bits: u32) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
            .filter(move |(bit, _)| bits & (1 << bit) != 0)
    }

    /// Removes the rows of `bits`.
    fn remove_all(&mut self, bits: u32) {
        let mut left = self.present;
        self.rows.retain(|_| {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            bits & bit == 0
        });
        self.present &= !bits;
        self.rows.shrink_to(self.rows.len().next_power_of_two());
    }

    /// Returns rows with their bit, from the given bit on.
    fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        let skipped = self.position(from);
        let mut left = self.present & (u32::MAX << from);
        self.rows[skipped..].iter().map(move |row| {
            let bit = left.trailing_zeros();
            left &= left - 1;
            (bit, row)
        })
    }
}

/// Rows by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paged<T: Clone> {
    pages: OrdMap<u64, Arc<Page<T>>>,
    len: usize,
}

impl<T: Clone> Default for Paged<T> {
    fn default() -> Self {
        Self {
            pages: OrdMap::new(),
            len: 0,
        }
    }
}

fn split(number: u64) -> (u64, u32) {
    let bit = u32::try_from(number % PAGE_ROWS).unwrap_or_default();
    (number / PAGE_ROWS, bit)
}

/// Looks up rows one after the other: a page is looked up once for consecutive rows on it.
#[derive(Debug)]
pub(crate) struct PageCursor<'a, T: Clone> {
    pages: &'a Paged<T>,
    last: Option<(u64, &'a Page<T>)>,
}

impl<'a, T: Clone> PageCursor<'a, T> {
    pub(crate) fn get(&mut self, number: u64) -> Option<&'a T> {
        let (at, bit) = split(number);
        let page = match self.last {
            Some((last, page)) if last == at => page,
            Some(_) | None => {
                let page = &**self.pages.pages.get(&at)?;
                self.last = Some((at, page));
                page
            }
        };
        page.get(bit)
    }
}

impl<T: Clone> Paged<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let (page, bit) = split(number);
        self.pages.get(&page)?.get(bit)
    }

    /// Returns a cursor for looking up rows one after the other.
    pub(crate) fn finder(&self) -> PageCursor<'_, T> {
        PageCursor {
            pages: self,
            last: None,
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let (page, bit) = split(number);
        // The page is read first, so that a missing row causes no copy.
        if !self.pages.get(&page)?.has(bit) {
            return None;
        }
        let page = Arc::make_mut(self.pages.get_mut(&page)?);
        let at = page.position(bit);
        page.rows.get_mut(at)
    }

    pub(crate) fn insert(&mut self, number: u64, row: T) -> Option<T> {
        let (page, bit) = split(number);
        let old = match self.pages.get_mut(&page) {
            Some(page) => Arc::make_mut(page).insert(bit, row),
            None => {
                let one = Page {
                    present: 1 << bit,
                    rows: vec![row],
                };
                self.pages.insert(page, Arc::new(one));
                None
            }
        };
        self.len += usize::from(old.is_none());
        old
    }

    /// Inserts rows at the numbers from `first` on, all of which are free. A page is looked up once.
    pub(crate) fn insert_all(&mut self, first: u64, rows: Vec<T>) {
        let mut number = first;
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let (at, bit) = split(number);
            let room = number::index(PAGE_ROWS) - bit as usize;
            let count = room.min(rows.len());
            let fitting = rows.by_ref().take(count);
            if let Some(page) = self.pages.get_mut(&at) {
                Arc::make_mut(page).insert_all(bit, fitting);
            } else {
                let mut page = Page {
                    present: 0,
                    rows: Vec::with_capacity(count),
                };
                page.insert_all(bit, fitting);
                self.pages.insert(at, Arc::new(page));
            }
            self.len += count;
            number += count as u64;
        }
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (at, bit) = split(number);
        if !self.pages.get(&at)?.has(bit) {
            return None;
        }
        let page = Arc::make_mut(self.pages.get_mut(&at)?);
        let row = page.remove(bit);
        if page.rows.is_empty() {
            self.pages.remove(&at);
        }
        self.len -= usize::from(row.is_some());
        row
    }

    /// Removes the rows of `numbers`, which ascend, and passes each to `each` before that. A page that is removed whole
    /// is not copied, even if it is shared.
    pub(crate) fn remove_all(&mut self, numbers: &[u64], mut each: impl FnMut(u64, &T)) {
        for numbers in numbers.chunk_by(|one, next| split(*one).0 == split(*next).0) {
            let Some((at, _)) = numbers.first().map(|number| split(*number)) else {
                continue;
            };
            let Some(page) = self.pages.get(&at) else {
                continue;
            };
            let wanted = numbers.iter().map(|number| 1 << split(*number).1);
            let gone = page.present & wanted.fold(0, |bits: u32, bit: u32| bits | bit);
            for (bit, row) in page.iter_of(gone) {
                each(at * PAGE_ROWS + u64::from(bit), row);
            }
            if gone == page.present {
                self.pages.remove(&at);
            } else if gone != 0
                && let Some(page) = self.pages.get_mut(&at)
            {
                Arc::make_mut(page).remove_all(gone);
            }
            self.len -= gone.count_ones() as usize;
        }
    }

    /// Returns all rows, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.from(0)
    }

    /// Returns the rows from a number on, by number.
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &T)> {
        let (first_page, first_bit) = split(first);
        self.pages.range(first_page..).flat_map(move |(at, page)| {
            let bit = if *at == first_page { first_bit } else { 0 };
            let base = *at * PAGE_ROWS;
            page.iter_from(bit)
                .map(move |(bit, row)| (base + u64::from(bit), row))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a plain map, with snapshots in between that must not change.
        #[test]
        fn it_behaves_as_a_map_and_snapshots_stay(
            steps in proptest::collection::vec((0_u64..200, 0_u8..6, any::<u16>()), 1..200)
        ) {
            let (mut paged, mut model) = (Paged::default(), BTreeMap::new());
            let mut snapshots = Vec::new();
            for (number, step, value) in steps {
                match step {
                    0 | 1 => prop_assert_eq!(paged.insert(number, value), model.insert(number, value)),
                    2 => prop_assert_eq!(paged.remove(number), model.remove(&number)),
                    3 => {
                        let every = u64::from(value % 3) + 1;
                        let numbers: Vec<u64> = (number..200).filter(|at| at % every == 0).collect();
                        let mut shown = Vec::new();
                        paged.remove_all(&numbers, |at, row| shown.push((at, *row)));
                        let gone = numbers.iter().filter_map(|at| Some((*at, model.remove(at)?)));
                        prop_assert_eq!(shown, gone.collect::<Vec<_>>());
                    }
                    4 => {
                        // The range ends at the first taken number, after a few pages at most.
                        let free = (number..number + 100).take_while(|at| !model.contains_key(at));
                        let rows: Vec<(u64, u16)> = free.map(|at| (at, value)).collect();
                        paged.insert_all(number, rows.iter().map(|(_, row)| *row).collect());
                        model.extend(rows);
                    }
                    _ => {
                        if let Some(row) = paged.get_mut(number) {
                            *row = value;
                        }
                        model.entry(number).and_modify(|row| *row = value);
                        snapshots.push((paged.clone(), model.clone()));
                    }
                }
                prop_assert_eq!(paged.get(number), model.get(&number));
                prop_assert_eq!(paged.len(), model.len());
            }
            snapshots.push((paged, model));
            for (paged, model) in snapshots {
                let rows: Vec<(u64, u16)> = paged.iter().map(|(at, row)| (at, *row)).collect();
                prop_assert_eq!(&rows, &model.clone().into_iter().collect::<Vec<_>>());
                let later: Vec<u64> = paged.from(70).map(|(at, _)| at).collect();
                prop_assert_eq!(later, model.range(70..).map(|(at, _)| *at).collect::<Vec<_>>());
                let mut finder = paged.finder();
                let up_and_down = (0..310).chain((0..310).rev().step_by(7));
                prop_assert!(up_and_down.into_iter().all(|at| finder.get(at) == model.get(&at)));
            }
        }
    }

    #[test]
    fn a_page_without_rows_goes() {
        let mut paged = Paged::default();
        for number in 0..1_000 {
            paged.insert(number, ());
        }
        for number in 0..500 {
            paged.remove(number);
        }
        let others: Vec<u64> = (500..1_000).collect();
        paged.remove_all(&others, |_, ()| {});

        assert!(paged.is_empty());
        assert_eq!(paged.pages.len(), 0);
    }

    #[test]
    fn mostly_emptied_page_shrinks_its_capacity() {
        let mut paged = Paged::default();
        for number in 0..PAGE_ROWS {
            paged.insert(number, number);
        }
        let most: Vec<u64> = (3..PAGE_ROWS).collect();

        paged.remove_all(&most, |_, _| {});

        assert_eq!(paged.iter().count(), 3);
        assert_eq!(paged.pages[&0].rows.capacity(), 4);
    }
}
