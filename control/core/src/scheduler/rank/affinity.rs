//! Node affinity: what a node had better be.

/// The score of a node, from the weight of each affinity and whether the node meets it: the sum of the
/// weights met, relative to the sum of all without their signs. `None` where the weights met add up to
/// nothing: the component is then left out of the mean.
pub(in crate::scheduler) fn score(met: impl Iterator<Item = (i8, bool)>) -> Option<f64> {
    let (mut sum, mut all) = (0.0, 0.0);
    for (weight, is_met) in met {
        all += f64::from(weight).abs();
        if is_met {
            sum += f64::from(weight);
        }
    }
    (sum != 0.0).then(|| sum / all)
}
