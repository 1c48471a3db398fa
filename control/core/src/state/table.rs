//! A table: rows by key, indexes over them, their hash, and the last entry that changed them.
//!
//! A new table is a type that implements [`Indexes`]. It defines how a row is read and, in one line each, the position
//! of a row in each index. `deployments.rs` is an example. Reading, hashing, waiting for a change, and rebuilding in a
//! check come from here.
//!
//! The rows of most tables lie in a map. [`Table`] itself only counts and hashes, so that the allocations can keep
//! theirs in pages.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::Bound;

use imbl::{OrdMap, OrdSet};
use muster_domain::id::LogIndex;

use super::digest::Digest;
use super::prefix::{self, PrefixId};
use super::sets::remove_from_set;

/// Rows `S`, with indexes `I` over them.
#[derive(Clone, Debug, Default)]
pub struct Table<S, I> {
    pub(super) rows: S,
    pub(super) indexes: I,
    index: LogIndex,
    /// The sum over the rows, and over the values that a table keeps in addition to them.
    hash: u64,
}

/// A table whose rows lie in a map.
pub(super) type MapTable<I> = Table<RowMap<I>, I>;

/// Rows by key, each with its hash.
pub(super) type RowMap<I> = OrdMap<<I as Indexes>::Key, Hashed<<I as Indexes>::Row>>;

/// A row and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashed<R> {
    row: R,
    hash: u64,
}

/// A collection of rows.
pub trait Storage {
    /// The number of rows.
    fn count(&self) -> usize;
}

impl<K, R> Storage for OrdMap<K, R> {
    fn count(&self) -> usize {
        self.len()
    }
}

/// The indexes of a table, and the way its rows are read.
pub trait Indexes: Clone + Debug + Default + Eq {
    type Key: Ord + Clone + Debug + Borrow<Self::Query>;
    /// The type by which a row is looked up.
    type Query: Ord + ?Sized;
    type Row: Clone + Debug + Eq;
    /// The part of a row that readers get.
    type Shown;
    /// A fact of other tables on which an index depends; `()` for none.
    type Fact: Copy + Default;

    /// Whether several rows or indexes share a key by pointer. A rewritten row then keeps its key.
    const SHARES_KEYS: bool = false;

    fn key(row: &Self::Row) -> Self::Key;

    fn shown(row: &Self::Row) -> &Self::Shown;

    fn hash(row: &Self::Row) -> u64;

    /// Returns the last entry that changed the row.
    fn modify_index(row: &Self::Row) -> LogIndex;

    /// Updates every index for a row. `fact` is of the new row, or of the removal.
    fn follow(&mut self, key: &Self::Key, change: RowChange<'_, Self::Row>, fact: Self::Fact);
}

/// A row before and after a write. `None`: it did not exist, or it is removed.
#[derive(Debug)]
pub struct RowChange<'a, R> {
    pub(super) old: Option<&'a R>,
    pub(super) new: Option<&'a R>,
}

impl<'a, R> RowChange<'a, R> {
    /// Updates the row in a set. `position` returns the row's item, if it belongs there.
    pub(super) fn set<T: Ord + Clone>(
        &self,
        set: &mut OrdSet<T>,
        position: impl Fn(&'a R) -> Option<T>,
    ) {
        let (old, new) = self.positions(position);
        if old == new {
            return;
        }
        if let Some(old) = old {
            set.remove(&old);
        }
        set.extend(new);
    }

    /// Updates the row in sets by name. `position` returns the name and the row's item, if it belongs in any.
    pub(super) fn group<K, T>(
        &self,
        sets: &mut OrdMap<K, OrdSet<T>>,
        position: impl Fn(&'a R) -> Option<(K, T)>,
    ) where
        K: Ord + Clone,
        T: Ord + Clone,
    {
        let (old, new) = self.positions(position);
        if old == new {
            return;
        }
        if let Some((name, entry)) = old {
            remove_from_set(sets, &name, &entry);
        }
        if let Some((name, entry)) = new {
            sets.entry(name).or_default().insert(entry);
        }
    }

    /// Updates the row in sums by name. `amount` returns the name and the row's share, if it has any. A name with a sum
    /// of 0 is removed.
    pub(super) fn sum<K: Ord + Clone>(
        &self,
        sums: &mut OrdMap<K, u64>,
        amount: impl Fn(&'a R) -> Option<(K, u64)>,
    ) {
        let (old, new) = self.positions(amount);
        if old == new {
            return;
        }
        if let Some((name, share)) = new {
            *sums.entry(name).or_default() += share;
        }
        if let Some((name, share)) = old
            && let Some(sum) = sums.get_mut(&name)
        {
            *sum -= share;
            if *sum == 0 {
                sums.remove(&name);
            }
        }
    }

    fn positions<T>(&self, position: impl Fn(&'a R) -> Option<T>) -> (Option<T>, Option<T>) {
        (self.old.and_then(&position), self.new.and_then(&position))
    }
}

impl<S: Storage, I> Table<S, I> {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.count()
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the last entry that changed the table.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }

    /// Raises [`Self::index`] to that of a row.
    pub(super) fn touch(&mut self, modify_index: LogIndex) {
        self.index = self.index.max(modify_index);
    }

    /// Returns the hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Returns the hash of its rows without the index.
    pub(super) fn row_hash(&self) -> u64 {
        self.hash
    }

    /// Replaces the part of a row, or of a value in addition to the rows, in the hash; 0 for a part that does not
    /// exist.
    pub(super) fn rehash(&mut self, old: u64, new: u64) {
        self.hash = self.hash.wrapping_sub(old).wrapping_add(new);
    }
}

impl<I: Indexes> PartialEq for MapTable<I> {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            rows,
            indexes,
            index,
            hash,
        } = self;
        *rows == other.rows
            && *indexes == other.indexes
            && *index == other.index
            && *hash == other.hash
    }
}

impl<I: Indexes> Eq for MapTable<I> {}

impl<I: Indexes> MapTable<I> {
    /// Looks a row up.
    #[must_use]
    pub fn get(&self, key: &I::Query) -> Option<&I::Shown> {
        self.row(key).map(I::shown)
    }

    /// Returns all rows, by key.
    pub fn iter(&self) -> impl Iterator<Item = &I::Shown> {
        self.rows.values().map(|hashed| I::shown(&hashed.row))
    }

    /// Returns rows by key, from the given one on.
    pub(super) fn from(
        &self,
        key: &I::Query,
    ) -> impl Iterator<Item = (&I::Query, &I::Shown)> + use<'_, I> {
        let rows = self
            .rows
            .range::<_, I::Query>((Bound::Included(key), Bound::Unbounded));
        rows.map(|(key, hashed)| (key.borrow(), I::shown(&hashed.row)))
    }

    /// Returns the rows whose id begins with `text`.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<&I::Shown>
    where
        I::Key: PrefixId,
    {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        let ids = I::Key::of_bytes(low)..=I::Key::of_bytes(high);
        let rows = self.rows.range(ids);
        rows.map(|(_, hashed)| I::shown(&hashed.row)).collect()
    }

    pub(crate) fn row(&self, key: &I::Query) -> Option<&I::Row> {
        self.rows.get(key).map(|hashed| &hashed.row)
    }

    /// Returns all rows by key, in their stored form.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&I::Query, &I::Row)> {
        let rows = self.rows.iter();
        rows.map(|(key, hashed)| (key.borrow(), &hashed.row))
    }

    /// Writes a row.
    pub(super) fn write(&mut self, row: I::Row, fact: I::Fact) {
        self.touch(I::modify_index(&row));
        let mut key = I::key(&row);
        if I::SHARES_KEYS
            && let Some((known, _)) = self.rows.get_key_value(key.borrow())
        {
            key = known.clone();
        }
        let hash = I::hash(&row);
        let new = row.clone();
        let old = self.rows.insert(key.clone(), Hashed { row, hash });
        self.rehash(old.as_ref().map_or(0, |old| old.hash), hash);
        let change = RowChange {
            old: old.as_ref().map(|old| &old.row),
            new: Some(&new),
        };
        self.indexes.follow(&key, change, fact);
    }

    /// Removes a row. `index` is the entry that does so.
    pub(super) fn delete(
        &mut self,
        key: &I::Query,
        fact: I::Fact,
        index: LogIndex,
    ) -> Option<I::Row> {
        let (key, Hashed { row, hash }) = self.rows.remove_with_key(key)?;
        self.rehash(hash, 0);
        self.index = index;
        let change = RowChange {
            old: Some(&row),
            new: None,
        };
        self.indexes.follow(&key, change, fact);
        Some(row)
    }

    /// Changes a row in a way that affects no index and for which readers do not wait.
    pub(super) fn amend(&mut self, key: &I::Query, change: impl FnOnce(&mut I::Row)) {
        let Some(Hashed { row, hash }) = self.rows.get_mut(key) else {
            return;
        };
        change(row);
        let old = std::mem::replace(hash, I::hash(row));
        let new = *hash;
        self.rehash(old, new);
    }

    /// Returns the table rebuilt from its rows, for a check of its indexes. `fact` returns the fact of a row.
    pub(super) fn rebuilt(&self, fact: impl Fn(&I::Shown) -> I::Fact) -> Self {
        let mut anew = Self::default();
        for (_, row) in self.rows() {
            anew.write(row.clone(), fact(I::shown(row)));
        }
        anew.index = self.index;
        anew
    }
}

impl<I: Indexes<Fact = ()>> MapTable<I> {
    /// Writes a row.
    pub(crate) fn put(&mut self, row: impl Into<I::Row>) {
        self.write(row.into(), ());
    }

    /// Removes a row.
    pub(crate) fn remove(&mut self, key: &I::Query, index: LogIndex) -> Option<I::Row> {
        self.delete(key, (), index)
    }
}
