//! Which value of a task comes from where, so that each that cannot be had says why.

use std::collections::BTreeMap;

use muster_wire::rpc::TaskStats;

use crate::resources::cgroup::Controller;

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Files of this controller's group.
    Cgroup(Controller),
    /// The programs, and which part of them if it may be absent alone ([`crate::bpf::Bpf::absent`]).
    Ebpf(Option<&'static str>),
    /// Pressure files of the group.
    Pressure,
}

/// A value's name, where it comes from, and whether it is there.
type Value = (&'static str, Source, bool);

/// Every value that may be absent.
#[expect(clippy::too_many_lines, reason = "a table, a row a value")]
fn values(stats: &TaskStats) -> [Value; 39] {
    let TaskStats {
        cpu,
        context_switches,
        run_delay,
        throttled_periods,
        throttled,
        memory_bytes,
        memory_peak_bytes,
        memory_limit_bytes,
        memory_anon_bytes,
        memory_file_bytes,
        memory_shmem_bytes,
        memory_swap_bytes,
        memory_kernel_bytes,
        memory_high_events,
        memory_max_events,
        major_faults,
        pressure_cpu,
        pressure_memory,
        pressure_io,
        pids,
        forks,
        execs,
        oom_kills,
        net_rx_bytes,
        net_rx_packets,
        net_tx_bytes,
        net_tx_packets,
        net_rx_denied,
        net_tx_denied,
        net_rx_limited,
        net_tx_limited,
        tcp_opened,
        tcp_accepted,
        tcp_retransmits,
        block_read_bytes,
        block_reads,
        block_write_bytes,
        block_writes,
        block_latency,
        absent: _,
        pid: _,
        log_bytes: _,
        log_dropped_bytes: _,
        log_limited: _,
        network: _,
    } = stats;
    [
        ("cpu", Source::Cgroup(Controller::Cpu), cpu.is_some()),
        (
            "context_switches",
            Source::Ebpf(None),
            context_switches.is_some(),
        ),
        (
            "run_delay",
            Source::Ebpf(Some("run_delay")),
            run_delay.is_some(),
        ),
        (
            "throttled_periods",
            Source::Cgroup(Controller::Cpu),
            throttled_periods.is_some(),
        ),
        (
            "throttled",
            Source::Cgroup(Controller::Cpu),
            throttled.is_some(),
        ),
        (
            "memory_bytes",
            Source::Cgroup(Controller::Memory),
            memory_bytes.is_some(),
        ),
        (
            "memory_peak_bytes",
            Source::Cgroup(Controller::Memory),
            memory_peak_bytes.is_some(),
        ),
        (
            "memory_limit_bytes",
            Source::Cgroup(Controller::Memory),
            memory_limit_bytes.is_some(),
        ),
        (
            "memory_anon_bytes",
            Source::Cgroup(Controller::Memory),
            memory_anon_bytes.is_some(),
        ),
        (
            "memory_file_bytes",
            Source::Cgroup(Controller::Memory),
            memory_file_bytes.is_some(),
        ),
        (
            "memory_shmem_bytes",
            Source::Cgroup(Controller::Memory),
            memory_shmem_bytes.is_some(),
        ),
        (
            "memory_swap_bytes",
            Source::Cgroup(Controller::Memory),
            memory_swap_bytes.is_some(),
        ),
        (
            "memory_kernel_bytes",
            Source::Cgroup(Controller::Memory),
            memory_kernel_bytes.is_some(),
        ),
        (
            "memory_high_events",
            Source::Cgroup(Controller::Memory),
            memory_high_events.is_some(),
        ),
        (
            "memory_max_events",
            Source::Cgroup(Controller::Memory),
            memory_max_events.is_some(),
        ),
        (
            "major_faults",
            Source::Cgroup(Controller::Memory),
            major_faults.is_some(),
        ),
        ("pressure_cpu", Source::Pressure, pressure_cpu.is_some()),
        (
            "pressure_memory",
            Source::Pressure,
            pressure_memory.is_some(),
        ),
        ("pressure_io", Source::Pressure, pressure_io.is_some()),
        ("pids", Source::Cgroup(Controller::Pids), pids.is_some()),
        ("forks", Source::Ebpf(None), forks.is_some()),
        ("execs", Source::Ebpf(None), execs.is_some()),
        (
            "oom_kills",
            Source::Cgroup(Controller::Memory),
            oom_kills.is_some(),
        ),
        ("net_rx_bytes", Source::Ebpf(None), net_rx_bytes.is_some()),
        (
            "net_rx_packets",
            Source::Ebpf(None),
            net_rx_packets.is_some(),
        ),
        ("net_tx_bytes", Source::Ebpf(None), net_tx_bytes.is_some()),
        (
            "net_tx_packets",
            Source::Ebpf(None),
            net_tx_packets.is_some(),
        ),
        ("net_rx_denied", Source::Ebpf(None), net_rx_denied.is_some()),
        ("net_tx_denied", Source::Ebpf(None), net_tx_denied.is_some()),
        (
            "net_rx_limited",
            Source::Ebpf(None),
            net_rx_limited.is_some(),
        ),
        (
            "net_tx_limited",
            Source::Ebpf(None),
            net_tx_limited.is_some(),
        ),
        (
            "tcp_opened",
            Source::Ebpf(Some("connections")),
            tcp_opened.is_some(),
        ),
        (
            "tcp_accepted",
            Source::Ebpf(Some("connections")),
            tcp_accepted.is_some(),
        ),
        (
            "tcp_retransmits",
            Source::Ebpf(Some("tcp_retransmits")),
            tcp_retransmits.is_some(),
        ),
        (
            "block_read_bytes",
            Source::Ebpf(Some("block")),
            block_read_bytes.is_some(),
        ),
        (
            "block_reads",
            Source::Ebpf(Some("block")),
            block_reads.is_some(),
        ),
        (
            "block_write_bytes",
            Source::Ebpf(Some("block")),
            block_write_bytes.is_some(),
        ),
        (
            "block_writes",
            Source::Ebpf(Some("block")),
            block_writes.is_some(),
        ),
        (
            "block_latency",
            Source::Ebpf(Some("block")),
            block_latency.is_some(),
        ),
    ]
}

/// Says why each value that is absent is so: what was said of it already, or else `why`.
pub(super) fn explain(stats: &mut TaskStats, why: impl Fn(Source) -> String) {
    for (value, source, has) in values(stats) {
        if !has {
            let reason = || why(source);
            stats.absent.entry(value.to_owned()).or_insert_with(reason);
        }
    }
}

/// The reason of a part of the programs that counts nothing on this machine.
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

    /// A field that is forgotten here does not compile.
    #[test]
    fn every_value_that_is_absent_says_why() {
        let mut stats = TaskStats {
            pids: Some(1),
            ..TaskStats::default()
        };
        let said = "said before".to_owned();
        stats.absent.insert("cpu".to_owned(), said.clone());

        explain(&mut stats, |source| format!("{source:?}"));

        for (value, source, has) in values(&stats) {
            let reason = stats.absent.get(value);
            let expected = match value {
                "pids" => None,
                "cpu" => Some(said.clone()),
                _ => Some(format!("{source:?}")),
            };
            assert_eq!(
                (reason, has),
                (expected.as_ref(), value == "pids"),
                "{value}"
            );
        }
        let names: std::collections::BTreeSet<_> = values(&stats).map(|(name, ..)| name).into();
        assert_eq!(names.len(), values(&stats).len());
    }

    #[test]
    fn a_part_says_why_it_counts_nothing() {
        let absent = BTreeMap::from([("block", "no requests".to_owned())]);

        assert_eq!(of_part(&absent, Some("block")), "no requests");
        assert!(of_part(&absent, None).contains("do not tell"));
    }
}
