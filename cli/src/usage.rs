//! Usage of a task in human-readable form. An unavailable value is `–`, never zero, and each reason follows once.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_wire::api::stats::{EphemeralDisk, Histogram, Pressure, TaskCounters, TaskNetwork};
use muster_wire::task_stats::DisplayValue;

use crate::output;

/// One line per value: its label and text. Reasons for absent values come last, each once.
#[must_use]
pub fn lines(counters: &TaskCounters) -> Vec<(&'static str, String)> {
    let process = u64::from(counters.pid);
    let process = (process != 0).then_some(process);
    let mut lines = vec![("process", count(process))];
    let values = counters.lines().into_iter();
    lines.extend(values.map(|(label, value)| (label, text(value))));
    lines.extend([
        ("log taken", output::bytes(counters.log_bytes)),
        ("log dropped", output::bytes(counters.log_dropped_bytes)),
        ("log above rate", time(Some(counters.log_limited_nanos))),
    ]);
    lines.extend(
        counters
            .network
            .as_ref()
            .map(|network| ("reached at", reached_at(network))),
    );
    lines.extend(reasons(&counters.absent).map(|reason| ("–", reason)));
    lines
}

/// One line per value of an allocation's ephemeral disk.
#[must_use]
pub fn disk_lines(disk: &EphemeralDisk) -> Vec<(&'static str, String)> {
    let EphemeralDisk {
        enforcement,
        reason,
        limit_bytes,
        limit_inodes,
        used_bytes,
        used_inodes,
        measured_at: _,
    } = disk;
    let limit = output::bytes(*limit_bytes);
    let mut lines = vec![
        ("disk", format!("{} of {limit}", bytes(*used_bytes))),
        (
            "inodes",
            format!("{} of {limit_inodes}", count(*used_inodes)),
        ),
        ("limit held by", enforcement.clone()),
    ];
    if !reason.is_empty() {
        lines.push(("–", reason.clone()));
    }
    lines
}

const DASH: &str = "–";

fn text(value: DisplayValue<'_>) -> String {
    match value {
        DisplayValue::Count(value) => count(value.copied()),
        DisplayValue::Bytes(value) => bytes(value.copied()),
        DisplayValue::Nanos(value) => time(value.copied()),
        DisplayValue::Pressure(value) => pressure(value.copied()),
        DisplayValue::Histogram(value) => histogram(value),
        DisplayValue::Traffic(amount, packets) => traffic(amount.copied(), packets.copied()),
        DisplayValue::PacketsInOut(received, sent) => denied(received.copied(), sent.copied()),
        DisplayValue::Connections(opened, accepted) => {
            connections(opened.copied(), accepted.copied())
        }
        DisplayValue::Requests(amount, count) => requests(amount.copied(), count.copied()),
    }
}

fn count(value: Option<u64>) -> String {
    value.map_or_else(|| DASH.to_owned(), |value| value.to_string())
}

fn bytes(value: Option<u64>) -> String {
    value.map_or_else(|| DASH.to_owned(), output::bytes)
}

fn time(nanos: Option<u64>) -> String {
    let show = |nanos| output::span(Duration::from_nanos(nanos));
    nanos.map_or_else(|| DASH.to_owned(), show)
}

/// Time in which some processes waited, and time in which all waited.
fn pressure(value: Option<Pressure>) -> String {
    let Some(Pressure {
        some_nanos,
        full_nanos,
    }) = value
    else {
        return DASH.to_owned();
    };
    let full = full_nanos.map_or_else(|| DASH.to_owned(), short);
    format!("some {}, all {full}", short(some_nanos))
}

/// A time that may be far below a millisecond.
fn short(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        1_000_000_000.. => output::span(Duration::from_nanos(nanos)),
    }
}

/// The count, the sum, the median and the 99th percentile.
fn histogram(value: Option<&Histogram>) -> String {
    let Some(histogram) = value else {
        return DASH.to_owned();
    };
    let below = |share| match histogram.below_nanos(share) {
        Some(nanos) => format!("below {}", short(nanos)),
        None => "longer than any bucket".to_owned(),
    };
    match histogram.count {
        0 => "0 times".to_owned(),
        times => format!(
            "{}, {} in all, half of them {}, 99 % {}",
            output::count_with_noun(times, "time"),
            short(histogram.sum_nanos),
            below(0.5),
            below(0.99)
        ),
    }
}

fn traffic(amount: Option<u64>, packets: Option<u64>) -> String {
    match (amount, packets) {
        (None, None) => DASH.to_owned(),
        (_, _) => format!("{}, {} packets", bytes(amount), count(packets)),
    }
}

fn denied(received: Option<u64>, sent: Option<u64>) -> String {
    match (received, sent) {
        (None, None) => DASH.to_owned(),
        (_, _) => format!("{} packets in, {} out", count(received), count(sent)),
    }
}

fn requests(amount: Option<u64>, requests: Option<u64>) -> String {
    match (amount, requests) {
        (None, None) => DASH.to_owned(),
        (_, _) => format!("{}, {} requests", bytes(amount), count(requests)),
    }
}

fn connections(opened: Option<u64>, accepted: Option<u64>) -> String {
    match (opened, accepted) {
        (None, None) => DASH.to_owned(),
        (_, _) => format!("{} opened, {} accepted", count(opened), count(accepted)),
    }
}

/// Each reason once, in the order of its values' names.
fn reasons(absent: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    let mut seen: Vec<String> = Vec::new();
    for reason in absent.values() {
        let reason = output::clean(reason);
        if !seen.contains(&reason) {
            seen.push(reason);
        }
    }
    seen.into_iter()
}

/// The address of the task on its driver's network, such as `10.88.0.3, http 80`.
pub(crate) fn reached_at(network: &TaskNetwork) -> String {
    let TaskNetwork {
        address,
        ports,
        auto_advertise: _,
    } = network;
    let ports = ports
        .iter()
        .map(|(label, port)| format!(", {} {port}", output::clean(label)));
    output::clean(address) + &ports.collect::<String>()
}

#[cfg(test)]
mod tests {
    use muster_wire::api::stats::Bucket;

    use super::*;

    #[test]
    fn histogram_is_shown_by_its_bounds() {
        let bucket = |below_nanos, count| Bucket { below_nanos, count };
        let value = Histogram {
            count: 200,
            sum_nanos: 7_000_000,
            buckets: vec![
                bucket(Some(1_024), 150),
                bucket(Some(1_048_576), 49),
                bucket(None, 1),
            ],
        };

        assert_eq!(
            histogram(Some(&value)),
            "200 times, 7.0 ms in all, half of them below 1.0 µs, 99 % below 1.0 ms"
        );
        assert_eq!(histogram(Some(&Histogram::default())), "0 times");
    }

    #[test]
    fn driver_network_is_shown() {
        let ports = [("admin".to_owned(), 8080), ("http".to_owned(), 80)];
        let counters = TaskCounters {
            network: Some(TaskNetwork {
                address: "10.88.0.3".to_owned(),
                ports: ports.into(),
                auto_advertise: true,
            }),
            ..TaskCounters::default()
        };

        let expected = ("reached at", "10.88.0.3, admin 8080, http 80".to_owned());
        assert!(lines(&counters).contains(&expected));
        let without = lines(&TaskCounters::default());
        assert!(without.iter().all(|(label, _)| *label != "reached at"));
    }

    #[test]
    fn a_reason_is_given_once() {
        let absent = ["forks", "execs"].map(|name| (name.to_owned(), "no object".to_owned()));
        let counters = TaskCounters {
            cpu_nanos: Some(0),
            absent: absent.into(),
            ..TaskCounters::default()
        };

        let lines = lines(&counters);

        assert!(lines.contains(&("cpu time", "0 s".to_owned())));
        assert!(lines.contains(&("forks", "–".to_owned())));
        assert!(lines.contains(&("waited for a CPU", "–".to_owned())));
        let given = lines.iter().filter(|(_, text)| text == "no object");
        assert_eq!(given.count(), 1);
    }
}
