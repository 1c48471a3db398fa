//! What a task uses, as people read it. What cannot be had is `–`, never zero.

use std::time::Duration;

use muster_wire::api::stats::TaskCounters;

use crate::output;

/// One line a value: its label and text.
#[must_use]
pub fn lines(counters: &TaskCounters) -> Vec<(&'static str, String)> {
    let TaskCounters {
        cpu_nanos,
        context_switches,
        throttled_periods,
        throttled_nanos,
        memory_bytes,
        memory_peak_bytes,
        memory_limit_bytes,
        pids,
        forks,
        execs,
        oom_kills,
        net_rx_bytes,
        net_rx_packets,
        net_tx_bytes,
        net_tx_packets,
        pid,
        log_bytes,
        log_dropped_bytes,
        absent: _,
    } = counters;
    let why = |name: &str| missing(counters, name);
    let bytes = |value: &Option<u64>, name| value.map_or_else(|| why(name), output::bytes);
    let count = |value: &Option<u64>, name| value.map_or_else(|| why(name), |n| n.to_string());
    let time = |value: &Option<u64>, name| {
        value.map_or_else(
            || why(name),
            |nanos| output::span(Duration::from_nanos(nanos)),
        )
    };
    vec![
        (
            "process",
            if *pid == 0 {
                "–".to_owned()
            } else {
                pid.to_string()
            },
        ),
        ("cpu time", time(cpu_nanos, "cpu")),
        (
            "context switches",
            count(context_switches, "context_switches"),
        ),
        (
            "throttled periods",
            count(throttled_periods, "throttled_periods"),
        ),
        ("throttled time", time(throttled_nanos, "throttled")),
        ("memory", bytes(memory_bytes, "memory_bytes")),
        ("memory peak", bytes(memory_peak_bytes, "memory_peak_bytes")),
        (
            "memory limit",
            bytes(memory_limit_bytes, "memory_limit_bytes"),
        ),
        ("out-of-memory kills", count(oom_kills, "oom_kills")),
        ("processes", count(pids, "pids")),
        ("forks", count(forks, "forks")),
        ("execs", count(execs, "execs")),
        (
            "network received",
            format!(
                "{}, {} packets",
                bytes(net_rx_bytes, "net_rx_bytes"),
                count(net_rx_packets, "net_rx_packets")
            ),
        ),
        (
            "network sent",
            format!(
                "{}, {} packets",
                bytes(net_tx_bytes, "net_tx_bytes"),
                count(net_tx_packets, "net_tx_packets")
            ),
        ),
        ("log taken", output::bytes(*log_bytes)),
        ("log dropped", output::bytes(*log_dropped_bytes)),
    ]
}

fn missing(counters: &TaskCounters, name: &str) -> String {
    match counters.absent.get(name) {
        Some(reason) => format!("– ({})", output::clean(reason)),
        None => "–".to_owned(),
    }
}
