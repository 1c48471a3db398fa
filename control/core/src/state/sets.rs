//! Indexes of sets by a name, without empty sets: so equal rows have equal indexes, whatever their history.

use std::borrow::Borrow;

use imbl::{OrdMap, OrdSet};

/// Removes `item` from the set called `name`, and removes the set with its last item.
pub(super) fn remove_from_set<K, Q, T, R>(sets: &mut OrdMap<K, OrdSet<T>>, name: &Q, item: &R)
where
    K: Ord + Clone + Borrow<Q>,
    Q: Ord + ?Sized,
    T: Ord + Clone + Borrow<R>,
    R: Ord + ?Sized,
{
    let is_last = sets.get_mut(name).is_some_and(|set| {
        set.remove(item);
        set.is_empty()
    });
    if is_last {
        sets.remove(name);
    }
}
