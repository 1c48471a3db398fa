//! Usage of an allocation's tasks in the last minutes: a table for each, with rates within each span.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_wire::api::history::{AllocHistory, Gap, Point, TaskHistory};
use muster_wire::api::time;

use crate::client::Client;
use crate::exit::CliError;
use crate::output;

const HEADER: [&str; 15] = [
    "UNTIL",
    "SPAN",
    "CPU",
    "WAITED",
    "SWITCHES",
    "THROTTLED",
    "CPU STALLED",
    "MEM STALLED",
    "DISK STALLED",
    "MEMORY",
    "NET IN",
    "NET OUT",
    "RETRANSMITS",
    "DISK READ",
    "DISK WRITTEN",
];
const ABSENT: &str = "–";

/// The history of the allocation `id`, or why there is none.
pub(super) fn ask(client: &Client, id: &str) -> Result<AllocHistory, String> {
    let path = format!("/v1/client/allocation/{id}/history");
    client.get(&path).map_err(|error| error.message)
}

pub(super) fn show(history: &AllocHistory) -> Result<(), CliError> {
    for (name, task) in &history.tasks {
        output::print(&format!("\nhistory of {}\n", output::clean(name)))?;
        if !task.points.is_empty() {
            let mut table = output::table(&HEADER);
            for row in rows(task) {
                table.add_row(row);
            }
            output::print_table(&table)?;
        }
        for line in reasons(&task.absent) {
            output::print(&format!("  {}\n", output::clean(&line)))?;
        }
    }
    Ok(())
}

/// One row per point, and one per gap before the next point.
fn rows(task: &TaskHistory) -> Vec<Vec<String>> {
    let mut gaps = task.gaps.iter().peekable();
    let mut rows = Vec::new();
    for point in &task.points {
        while let Some(gap) = gaps.next_if(|gap| gap.from < point.at) {
            rows.push(gap_row(*gap));
        }
        rows.push(row(point));
    }
    rows
}

fn gap_row(gap: Gap) -> Vec<String> {
    let length = Duration::from_nanos(gap.to.saturating_sub(gap.from));
    let mut row = vec![
        time::millis(gap.to),
        output::span(length),
        "not known".to_owned(),
    ];
    row.resize(HEADER.len(), ABSENT.to_owned());
    row
}

fn row(point: &Point) -> Vec<String> {
    let Point {
        at,
        span_nanos,
        cpu_nanos,
        run_delay_nanos,
        context_switches,
        throttled_nanos,
        memory_bytes,
        net_rx_bytes,
        net_tx_bytes,
        tcp_retransmits,
        block_read_bytes,
        block_write_bytes,
        pressure_cpu_nanos,
        pressure_memory_nanos,
        pressure_io_nanos,
    } = *point;
    let seconds = Duration::from_nanos(span_nanos).as_secs_f64().max(1e-9);
    let share = |nanos: u64| format!("{:.1} %", nanos as f64 / 1e7 / seconds);
    let each = |count: u64| format!("{:.1}/s", count as f64 / seconds);
    let rate = |bytes: u64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes in a second are a number as large as bytes"
        )]
        let each = (bytes as f64 / seconds).round() as u64;
        format!("{}/s", output::bytes(each))
    };
    let or_absent = |text: Option<String>| text.unwrap_or_else(|| ABSENT.to_owned());
    vec![
        time::millis(at),
        output::span(Duration::from_nanos(span_nanos)),
        or_absent(cpu_nanos.map(share)),
        or_absent(run_delay_nanos.map(share)),
        or_absent(context_switches.map(each)),
        or_absent(throttled_nanos.map(share)),
        or_absent(pressure_cpu_nanos.map(share)),
        or_absent(pressure_memory_nanos.map(share)),
        or_absent(pressure_io_nanos.map(share)),
        or_absent(memory_bytes.map(output::bytes)),
        or_absent(net_rx_bytes.map(rate)),
        or_absent(net_tx_bytes.map(rate)),
        or_absent(tcp_retransmits.map(each)),
        or_absent(block_read_bytes.map(rate)),
        or_absent(block_write_bytes.map(rate)),
    ]
}

/// Each reason once, with the names of its values.
fn reasons(absent: &BTreeMap<String, String>) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (value, reason) in absent {
        by_reason.entry(reason).or_default().push(value);
    }
    let lines = by_reason.iter();
    lines
        .map(|(reason, values)| format!("{ABSENT} {}: {reason}", values.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A quarter of a core, and a tenth of a second waited in each; 20 KiB in ten seconds.
    #[test]
    fn rates_are_those_of_the_span() {
        let point = Point {
            at: 1_700_000_000 * S,
            span_nanos: 10 * S,
            cpu_nanos: Some(5 * S / 2),
            run_delay_nanos: Some(S),
            context_switches: Some(25),
            throttled_nanos: Some(2 * S),
            tcp_retransmits: Some(0),
            pressure_io_nanos: Some(4 * S),
            memory_bytes: Some(3 << 20),
            net_tx_bytes: Some(20 << 10),
            ..Point::default()
        };

        let row = row(&point);

        assert_eq!(row[1..6], ["10.0 s", "25.0 %", "10.0 %", "2.5/s", "20.0 %"]);
        assert_eq!(row[6..10], ["–", "–", "40.0 %", "3.0 MiB"]);
        assert_eq!(row[10..], ["–", "2.0 KiB/s", "0.0/s", "–", "–"]);
    }

    #[test]
    fn a_gap_stands_between_its_points() {
        let point = |at_s: u64| Point {
            at: at_s * S,
            span_nanos: 10 * S,
            ..Point::default()
        };
        let task = TaskHistory {
            points: vec![point(100), point(170), point(180)],
            gaps: vec![Gap {
                from: 100 * S,
                to: 160 * S,
            }],
            ..TaskHistory::default()
        };

        let rows = rows(&task);

        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1][1..3], ["1 m 00 s", "not known"]);
        assert!(rows.iter().all(|row| row.len() == HEADER.len()));
    }

    #[test]
    fn equal_reasons_are_listed_once() {
        let absent = [
            ("net_rx_bytes", "no eBPF"),
            ("cpu", "no eBPF"),
            ("memory_bytes", "gone"),
        ];
        let absent = absent.map(|(value, reason)| (value.to_owned(), reason.to_owned()));

        let lines = reasons(&BTreeMap::from(absent));

        assert_eq!(
            lines,
            ["– memory_bytes: gone", "– cpu, net_rx_bytes: no eBPF"]
        );
    }
}
