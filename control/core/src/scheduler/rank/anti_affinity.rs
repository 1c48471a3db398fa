//! Job anti-affinity: instances of one group keep apart.

/// The score of a node on which `collisions` instances of the group are already, of `count` wanted.
/// `None` where there is none: the component is then left out of the mean.
pub(super) fn score(collisions: u32, count: u32) -> Option<f64> {
    (collisions > 0).then(|| -(f64::from(collisions) + 1.0) / f64::from(count.max(1)))
}
