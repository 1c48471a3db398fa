//! Job anti-affinity: instances of one group keep apart.

/// Returns the score of a node that already has `collisions` instances of the group, of which `count` are wanted.
/// `None` if it has none: the component is then left out of the mean.
pub(super) fn score(collisions: u32, count: u32) -> Option<f64> {
    (collisions > 0).then(|| -(f64::from(collisions) + 1.0) / f64::from(count.max(1)))
}
