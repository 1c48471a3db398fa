//! Reasons why values of a task are absent, by the source of the value.

use std::collections::BTreeMap;

use muster_wire::rpc::TaskStats;
use muster_wire::task_stats::{CgroupController, Source};

use crate::resources::cgroup::Controller;

impl From<CgroupController> for Controller {
    fn from(controller: CgroupController) -> Self {
        match controller {
            CgroupController::Cpu => Self::Cpu,
            CgroupController::Memory => Self::Memory,
            CgroupController::Pids => Self::Pids,
        }
    }
}

/// Sets a reason for each absent value: a known reason of that value, or else `why`.
pub(super) fn explain(stats: &mut TaskStats, why: impl Fn(Source) -> String) {
    for (value, source, has) in stats.values() {
        if !has {
            let reason = || why(source);
            stats.absent.entry(value.to_owned()).or_insert_with(reason);
        }
    }
}

/// The reason of a part of the programs that does not count on this machine.
pub(super) fn of_part(absent: &BTreeMap<&'static str, String>, part: Option<&str>) -> String {
    let reason = part.and_then(|part| absent.get(part));
    reason.map_or_else(
        || "the eBPF programs do not tell it".to_owned(),
        String::clone,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_absent_value_has_a_reason() {
        let mut stats = TaskStats {
            pids: Some(1),
            ..TaskStats::default()
        };
        let earlier = "said before".to_owned();
        stats.absent.insert("cpu".to_owned(), earlier.clone());

        explain(&mut stats, |source| format!("{source:?}"));

        for (value, source, has) in stats.values() {
            let reason = stats.absent.get(value);
            let expected = match value {
                "pids" => None,
                "cpu" => Some(earlier.clone()),
                _ => Some(format!("{source:?}")),
            };
            assert_eq!(
                (reason, has),
                (expected.as_ref(), value == "pids"),
                "{value}"
            );
        }
        let names: std::collections::BTreeSet<_> = stats.values().map(|(name, ..)| name).into();
        assert_eq!(names.len(), stats.values().len());
    }

    #[test]
    fn absent_part_has_a_reason() {
        let absent = BTreeMap::from([("block", "no requests".to_owned())]);

        assert_eq!(of_part(&absent, Some("block")), "no requests");
        assert!(of_part(&absent, None).contains("do not tell"));
    }
}
