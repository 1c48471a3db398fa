//! The reason why no node has room for a task, in Diego's words.

use muster_domain::alloc::PlacementMetrics;
use muster_domain::one_off;

/// Returns the reason to show to the task's client; `tags` are those that its nodes must have.
pub(super) fn reason(metrics: &PlacementMetrics, tags: &[String]) -> String {
    let exhausted = metrics.dimension_exhausted.iter();
    let short: Vec<&str> = exhausted.map(|(dimension, _)| dimension.as_str()).collect();
    if !short.is_empty() {
        return one_off::reason(&format!("insufficient resources: {}", short.join(", ")));
    }
    let filtered = &metrics.constraint_filtered;
    let fails = |part: &str| filtered.iter().any(|(check, _)| check.contains(part));
    let text = if fails("meta.rootfs.") {
        "found no compatible cell for required rootfs".to_owned()
    } else if fails("meta.placement_tags") {
        let quoted: Vec<String> = tags.iter().map(|tag| format!("\"{tag}\"")).collect();
        if quoted.is_empty() {
            "found no compatible cell with no placement tags".to_owned()
        } else {
            let tags = quoted.join(", ");
            format!("found no compatible cell with placement tag(s) {tags}")
        }
    } else if filtered.is_empty() {
        "unable to communicate to compatible cells".to_owned()
    } else {
        let checks: Vec<&str> = filtered.iter().map(|(check, _)| check.as_str()).collect();
        format!("found no compatible cell: {}", checks.join(", "))
    };
    one_off::reason(&text)
}
