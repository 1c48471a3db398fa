//! Usage of a task: the table of values, and the table of their display.
//!
//! ```text
//! field: Type => json_field, "JsonName", SOURCE;
//! ```
//!
//! `field: Type` is the value in the agent's message, and `json_field` is the value in the API's response. The agent
//! uses the source to report the reason for an absent value. The order of these rows is the order of the message's
//! bytes.
//!
//! ```text
//! field: Kind("metric_name", "Help.") => "label", Value(json_field);
//! ```
//!
//! A row of the second table has the metrics of a field and the command line's line that begins or ends with it. The
//! order of these rows is the order in both outputs. A field without a metric or without a line does not compile.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc;
use muster_domain::saturating::nanos;
use serde::{Deserialize, Serialize};

use crate::api::stats as api;
use crate::rpc::{Histogram, Pressure};

/// A controller of the cgroup of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupController {
    Cpu,
    Memory,
    Pids,
}

/// The source from which an agent reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files of the task's cgroup that this controller provides.
    Cgroup(CgroupController),
    /// The eBPF programs, and the part of them that may be absent on its own.
    Ebpf(Option<&'static str>),
    /// Pressure files of the task's cgroup.
    Pressure,
}

const CPU: Source = Source::Cgroup(CgroupController::Cpu);
const MEMORY: Source = Source::Cgroup(CgroupController::Memory);
const PIDS: Source = Source::Cgroup(CgroupController::Pids);
const PRESSURE: Source = Source::Pressure;
const EBPF: Source = Source::Ebpf(None);

/// A part of the eBPF programs that may be absent alone.
const fn part(name: &'static str) -> Source {
    Source::Ebpf(Some(name))
}

/// A value of [`TaskStats`]: its name, its source, and whether it is present.
pub type SourcedValue = (&'static str, Source, bool);

/// A type of values.
pub trait Value {
    /// The form of the value in the API.
    type Json;

    /// Converts the value for the API.
    fn json(&self) -> Self::Json;
}

impl Value for u64 {
    type Json = Self;

    fn json(&self) -> Self {
        *self
    }
}

impl Value for Duration {
    type Json = u64;

    fn json(&self) -> u64 {
        nanos(*self)
    }
}

impl Value for Histogram {
    type Json = api::Histogram;

    fn json(&self) -> api::Histogram {
        self.into()
    }
}

impl Value for Pressure {
    type Json = api::Pressure;

    fn json(&self) -> api::Pressure {
        (*self).into()
    }
}

/// Makes the message's struct, the API's struct and the conversion.
macro_rules! task_values {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident: $type:ty => $json_field:ident, $json:literal, $source:expr;
    )+) => {
        /// Resource usage of a task. An unavailable value is absent, never zero. For a task outside the agent's
        /// cgroups, the driver supplies the values. Its CPU time then counts from the agent's first request.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct TaskStats {
            $(
                $(#[doc = $doc])+
                pub $field: Option<$type>,
            )+
            /// Reasons for absent values: name of the value and the reason.
            pub absent: BTreeMap<String, String>,
            /// The first process of the task; 0 if none runs.
            pub pid: u32,
            /// Bytes of stdout and stderr collected so far.
            pub log_bytes: u64,
            /// Bytes of stdout and stderr dropped since collection began. The disk was full, or the output exceeded the
            /// task's rate.
            pub log_dropped_bytes: u64,
            /// Time in which stdout and stderr exceeded the task's rate, since collection began.
            pub log_limited: Duration,
            /// The address of the task as its driver reports it, if the driver put it on a network of its own.
            pub network: Option<alloc::TaskNetwork>,
        }

        impl TaskStats {
            /// Every value that may be absent.
            #[must_use]
            pub fn values(&self) -> [SourcedValue; [$(stringify!($field)),+].len()] {
                [$((stringify!($field), $source, self.$field.is_some())),+]
            }
        }

        /// Counters of a task. An absent value is `null`, and `absent` has the reason.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        pub struct TaskCounters {
            $(
                $(#[doc = $doc])+
                #[serde(rename = $json)]
                pub $json_field: Option<<$type as Value>::Json>,
            )+
            /// The first process; 0 if none runs.
            pub pid: u32,
            pub log_bytes: u64,
            pub log_dropped_bytes: u64,
            /// Time in which there was more of the output than the task's rate.
            pub log_limited_nanos: u64,
            /// Names of absent values, with the reasons.
            pub absent: BTreeMap<String, String>,
            /// The address of the task, if its driver put it on a network of its own.
            pub network: Option<api::TaskNetwork>,
        }

        impl From<&TaskStats> for TaskCounters {
            fn from(stats: &TaskStats) -> Self {
                Self {
                    $($json_field: stats.$field.as_ref().map(Value::json),)+
                    pid: stats.pid,
                    log_bytes: stats.log_bytes,
                    log_dropped_bytes: stats.log_dropped_bytes,
                    log_limited_nanos: nanos(stats.log_limited),
                    absent: stats.absent.clone(),
                    network: stats.network.as_ref().map(api::TaskNetwork::from),
                }
            }
        }
    };
}

task_values! {
    /// CPU time, from eBPF `sched_switch`; from the cgroup where there is no program.
    cpu: Duration => cpu_nanos, "CPUNanos", CPU;
    /// Context switches, from eBPF.
    context_switches: u64 => context_switches, "ContextSwitches", EBPF;
    /// Waiting times of runnable threads for a CPU, one for each time they got one; from eBPF.
    run_delay: Histogram => run_delay, "RunDelay", part("run_delay");
    /// Times the kernel throttled the task for its CPU quota, from the cgroup.
    throttled_periods: u64 => throttled_periods, "ThrottledPeriods", CPU;
    /// Time for which the task was throttled, from the cgroup.
    throttled: Duration => throttled_nanos, "ThrottledNanos", CPU;
    /// Bytes of memory charged, from the cgroup.
    memory_bytes: u64 => memory_bytes, "MemoryBytes", MEMORY;
    /// The most bytes of memory charged so far, from the cgroup.
    memory_peak_bytes: u64 => memory_peak_bytes, "MemoryPeakBytes", MEMORY;
    /// The limit in force, read back from the cgroup.
    memory_limit_bytes: u64 => memory_limit_bytes, "MemoryLimitBytes", MEMORY;
    /// Bytes of anonymous memory, from the cgroup.
    memory_anon_bytes: u64 => memory_anon_bytes, "MemoryAnonBytes", MEMORY;
    /// Bytes of page cache, including `memory_shmem_bytes`; from the cgroup.
    memory_file_bytes: u64 => memory_file_bytes, "MemoryFileBytes", MEMORY;
    /// Bytes of page cache that no disk has, as in tmpfs; from the cgroup.
    memory_shmem_bytes: u64 => memory_shmem_bytes, "MemoryShmemBytes", MEMORY;
    /// Bytes swapped out, from the cgroup.
    memory_swap_bytes: u64 => memory_swap_bytes, "MemorySwapBytes", MEMORY;
    /// Bytes the kernel needs for the task, from the cgroup.
    memory_kernel_bytes: u64 => memory_kernel_bytes, "MemoryKernelBytes", MEMORY;
    /// Times the task was throttled above `memory.high`, from the cgroup.
    memory_high_events: u64 => memory_high_events, "MemoryHighEvents", MEMORY;
    /// Times the task was about to exceed its limit, from the cgroup.
    memory_max_events: u64 => memory_max_events, "MemoryMaxEvents", MEMORY;
    /// Page faults that went to disk, from the cgroup.
    major_faults: u64 => major_faults, "MajorFaults", MEMORY;
    /// Time in which processes waited for a CPU, from the cgroup.
    pressure_cpu: Pressure => pressure_cpu, "PressureCPU", PRESSURE;
    /// Time in which processes waited for memory, from the cgroup.
    pressure_memory: Pressure => pressure_memory, "PressureMemory", PRESSURE;
    /// Time in which processes waited for I/O, from the cgroup.
    pressure_io: Pressure => pressure_io, "PressureIO", PRESSURE;
    /// Processes and threads, from the cgroup.
    pids: u64 => pids, "Pids", PIDS;
    /// Processes forked, from eBPF.
    forks: u64 => forks, "Forks", EBPF;
    /// Programs executed, from eBPF.
    execs: u64 => execs, "Execs", EBPF;
    /// OOM kills, from the cgroup.
    oom_kills: u64 => oom_kills, "OomKills", MEMORY;
    /// Bytes received, from eBPF.
    net_rx_bytes: u64 => net_rx_bytes, "NetRxBytes", EBPF;
    /// Packets received, from eBPF.
    net_rx_packets: u64 => net_rx_packets, "NetRxPackets", EBPF;
    /// Bytes sent, from eBPF.
    net_tx_bytes: u64 => net_tx_bytes, "NetTxBytes", EBPF;
    /// Packets sent, from eBPF.
    net_tx_packets: u64 => net_tx_packets, "NetTxPackets", EBPF;
    /// Packets to the task that its network policy denied, from eBPF; not counted as received.
    net_rx_denied: u64 => net_rx_denied, "NetRxDenied", EBPF;
    /// Packets of the task that its network policy denied, from eBPF; not counted as sent.
    net_tx_denied: u64 => net_tx_denied, "NetTxDenied", EBPF;
    /// Packets to the task above its receive rate, from eBPF; not counted as received.
    net_rx_limited: u64 => net_rx_limited, "NetRxLimited", EBPF;
    /// Packets of the task above its send rate, from eBPF; not counted as sent.
    net_tx_limited: u64 => net_tx_limited, "NetTxLimited", EBPF;
    /// TCP connections that the task opened and that were established; from eBPF.
    tcp_opened: u64 => tcp_opened, "TCPOpened", part("connections");
    /// TCP connections to the task that were established, from eBPF.
    tcp_accepted: u64 => tcp_accepted, "TCPAccepted", part("connections");
    /// Retransmitted TCP segments, from eBPF.
    tcp_retransmits: u64 => tcp_retransmits, "TCPRetransmits", part("tcp_retransmits");
    /// Bytes read from block devices, from eBPF.
    block_read_bytes: u64 => block_read_bytes, "BlockReadBytes", part("block");
    /// Requests that read, from eBPF.
    block_reads: u64 => block_reads, "BlockReads", part("block");
    /// Bytes written to block devices, from eBPF. Without the `io` controller in v2, later writes by the kernel are not
    /// included.
    block_write_bytes: u64 => block_write_bytes, "BlockWriteBytes", part("block");
    /// Requests that wrote, from eBPF.
    block_writes: u64 => block_writes, "BlockWrites", part("block");
    /// Time from the start of a request by a device to its completion, from eBPF.
    block_latency: Histogram => block_latency, "BlockLatency", part("block");
}

/// A kind of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A value that can go up and down.
    Gauge,
    Histogram,
}

muster_domain::text_enum!(pub MetricKind {
    Counter => "counter",
    Gauge => "gauge",
    Histogram => "histogram",
});

/// A metric of a task, for Prometheus.
#[derive(Clone, Copy, Debug)]
pub struct TaskMetric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub help: &'static str,
    /// The sample; `None` if the value is absent.
    pub sample: fn(&TaskStats) -> Option<Sample<'_>>,
}

/// A sample of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample<'a> {
    Number(f64),
    Histogram(&'a Histogram),
}

impl From<&u64> for Sample<'_> {
    fn from(value: &u64) -> Self {
        Self::Number(*value as f64)
    }
}

/// Seconds, as Prometheus counts time.
impl From<&Duration> for Sample<'_> {
    fn from(value: &Duration) -> Self {
        Self::Number(value.as_secs_f64())
    }
}

impl<'a> From<&'a Histogram> for Sample<'a> {
    fn from(value: &'a Histogram) -> Self {
        Self::Histogram(value)
    }
}

/// Values in one line of the command line, with their unit. `None` is an absent value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DisplayValue<'a> {
    Count(Option<&'a u64>),
    Bytes(Option<&'a u64>),
    Nanos(Option<&'a u64>),
    Pressure(Option<&'a api::Pressure>),
    Histogram(Option<&'a api::Histogram>),
    /// Bytes and packets.
    Traffic(Option<&'a u64>, Option<&'a u64>),
    /// Packets received and sent.
    PacketsInOut(Option<&'a u64>, Option<&'a u64>),
    /// Connections opened and accepted.
    Connections(Option<&'a u64>, Option<&'a u64>),
    /// Bytes and requests.
    Requests(Option<&'a u64>, Option<&'a u64>),
}

/// Makes the metrics and the lines, and checks that no field is left out.
macro_rules! task_display {
    ($(
        $field:ident: $($kind:ident($name:literal, $help:literal $(, $part:ident)?)),+
        $(=> $label:literal, $value:ident($($json_field:ident),+))?;
    )+) => {
        /// Metrics of a task, in the order of the text. Histograms follow the others there.
        pub const TASK_METRICS: &[TaskMetric] = &[
            $($(
                TaskMetric {
                    name: $name,
                    kind: MetricKind::$kind,
                    help: $help,
                    sample: |stats| {
                        let value = stats.$field.as_ref();
                        $(let value = value.and_then(|it| Option::<&Duration>::from(&it.$part));)?
                        value.map(Sample::from)
                    },
                },
            )+)+
            TaskMetric {
                name: "muster_task_log_bytes_total",
                kind: MetricKind::Counter,
                help: "Bytes of output read from the task.",
                sample: |stats| Some(Sample::from(&stats.log_bytes)),
            },
            TaskMetric {
                name: "muster_task_log_dropped_bytes_total",
                kind: MetricKind::Counter,
                help: "Bytes of output dropped, because the disk was full or the task exceeded its output rate.",
                sample: |stats| Some(Sample::from(&stats.log_dropped_bytes)),
            },
            TaskMetric {
                name: "muster_task_log_limited_seconds_total",
                kind: MetricKind::Counter,
                help: "Time in which the task's output exceeded its rate.",
                sample: |stats| Some(Sample::from(&stats.log_limited)),
            },
        ];

        const _: fn(TaskStats) = |stats| {
            let TaskStats {
                $($field: _,)+
                absent: _,
                pid: _,
                log_bytes: _,
                log_dropped_bytes: _,
                log_limited: _,
                network: _,
            } = stats;
        };

        impl TaskCounters {
            /// Lines of the command line, in order: label and values.
            #[must_use]
            pub fn lines(&self) -> Vec<(&'static str, DisplayValue<'_>)> {
                let Self {
                    $($($($json_field,)+)?)+
                    pid: _,
                    log_bytes: _,
                    log_dropped_bytes: _,
                    log_limited_nanos: _,
                    absent: _,
                    network: _,
                } = self;
                vec![$($(($label, DisplayValue::$value($($json_field.as_ref()),+)),)?)+]
            }
        }
    };
}

task_display! {
    cpu: Counter("muster_task_cpu_seconds_total", "CPU time.")
        => "cpu time", Nanos(cpu_nanos);
    context_switches: Counter("muster_task_context_switches_total", "Context switches away from a thread.")
        => "context switches", Count(context_switches);
    run_delay: Histogram("muster_task_run_delay_seconds", "How long threads that could run waited for a CPU.")
        => "waited for a CPU", Histogram(run_delay);
    throttled_periods:
        Counter("muster_task_throttled_periods_total", "Periods in which the CPU quota ran out.")
        => "throttled periods", Count(throttled_periods);
    throttled:
        Counter("muster_task_throttled_seconds_total", "Time in which the task was throttled by its CPU quota.")
        => "throttled time", Nanos(throttled_nanos);
    memory_bytes: Gauge("muster_task_memory_bytes", "Memory charged.")
        => "memory", Bytes(memory_bytes);
    memory_peak_bytes: Gauge("muster_task_memory_peak_bytes", "Highest memory charged so far.")
        => "memory peak", Bytes(memory_peak_bytes);
    memory_limit_bytes: Gauge("muster_task_memory_limit_bytes", "Memory limit in force.")
        => "memory limit", Bytes(memory_limit_bytes);
    memory_anon_bytes: Gauge("muster_task_memory_anon_bytes", "Anonymous memory.")
        => "memory anonymous", Bytes(memory_anon_bytes);
    memory_file_bytes: Gauge("muster_task_memory_file_bytes", "Page cache.")
        => "memory of files", Bytes(memory_file_bytes);
    memory_shmem_bytes:
        Gauge("muster_task_memory_shmem_bytes", "Page cache without a disk behind it, as of tmpfs.")
        => "of it on no disk", Bytes(memory_shmem_bytes);
    memory_swap_bytes: Gauge("muster_task_memory_swap_bytes", "Memory in swap.")
        => "memory swapped", Bytes(memory_swap_bytes);
    memory_kernel_bytes: Gauge("muster_task_memory_kernel_bytes", "Memory that the kernel uses for the task.")
        => "memory of the kernel", Bytes(memory_kernel_bytes);
    memory_high_events:
        Counter("muster_task_memory_high_total", "Times that the task was throttled above memory.high.")
        => "times above memory.high", Count(memory_high_events);
    memory_max_events:
        Counter("muster_task_memory_max_total", "Times that memory was about to exceed the limit.")
        => "times at the limit", Count(memory_max_events);
    major_faults: Counter("muster_task_major_faults_total", "Page faults that read from a disk.")
        => "major faults", Count(major_faults);
    pressure_cpu:
        Counter("muster_task_pressure_cpu_some_seconds_total", "Time in which at least one process waited for a CPU (PSI some).", some),
        Counter("muster_task_pressure_cpu_full_seconds_total", "Time in which all processes waited for a CPU (PSI full).", full)
        => "stalled for CPU", Pressure(pressure_cpu);
    pressure_memory:
        Counter("muster_task_pressure_memory_some_seconds_total", "Time in which at least one process waited for memory (PSI some).", some),
        Counter("muster_task_pressure_memory_full_seconds_total", "Time in which all processes waited for memory (PSI full).", full)
        => "stalled for memory", Pressure(pressure_memory);
    pressure_io:
        Counter("muster_task_pressure_io_some_seconds_total", "Time in which at least one process waited for I/O (PSI some).", some),
        Counter("muster_task_pressure_io_full_seconds_total", "Time in which all processes waited for I/O (PSI full).", full)
        => "stalled for I/O", Pressure(pressure_io);
    oom_kills: Counter("muster_task_oom_kills_total", "Processes that the out-of-memory killer ended.")
        => "out-of-memory kills", Count(oom_kills);
    pids: Gauge("muster_task_processes", "Processes and threads.")
        => "processes", Count(pids);
    forks: Counter("muster_task_forks_total", "Processes forked.")
        => "forks", Count(forks);
    execs: Counter("muster_task_execs_total", "Programs executed.")
        => "execs", Count(execs);
    net_rx_bytes: Counter("muster_task_network_received_bytes_total", "Bytes of IP packets received.")
        => "network received", Traffic(net_rx_bytes, net_rx_packets);
    net_rx_packets: Counter("muster_task_network_received_packets_total", "IP packets received.");
    net_rx_denied:
        Counter("muster_task_network_received_denied_packets_total", "IP packets to the task that its network policy refused.");
    net_tx_bytes: Counter("muster_task_network_sent_bytes_total", "Bytes of IP packets sent.")
        => "network sent", Traffic(net_tx_bytes, net_tx_packets);
    net_tx_packets: Counter("muster_task_network_sent_packets_total", "IP packets sent.");
    net_tx_denied:
        Counter("muster_task_network_sent_denied_packets_total", "IP packets of the task that its network policy refused.")
        => "network denied", PacketsInOut(net_rx_denied, net_tx_denied);
    net_rx_limited:
        Counter("muster_task_network_received_limited_packets_total", "IP packets to the task that exceeded the ingress rate of its network policy.");
    net_tx_limited:
        Counter("muster_task_network_sent_limited_packets_total", "IP packets of the task that exceeded the egress rate of its network policy.")
        => "network above rate", PacketsInOut(net_rx_limited, net_tx_limited);
    tcp_opened: Counter("muster_task_tcp_opened_total", "TCP connections opened.");
    tcp_accepted: Counter("muster_task_tcp_accepted_total", "TCP connections accepted.")
        => "connections", Connections(tcp_opened, tcp_accepted);
    tcp_retransmits: Counter("muster_task_tcp_retransmits_total", "Retransmitted TCP segments.")
        => "TCP retransmits", Count(tcp_retransmits);
    block_read_bytes: Counter("muster_task_block_read_bytes_total", "Bytes read from block devices.");
    block_reads: Counter("muster_task_block_reads_total", "Read requests to block devices.")
        => "read from disk", Requests(block_read_bytes, block_reads);
    block_write_bytes: Counter("muster_task_block_written_bytes_total", "Bytes written to block devices.");
    block_writes: Counter("muster_task_block_writes_total", "Write requests to block devices.")
        => "written to disk", Requests(block_write_bytes, block_writes);
    block_latency:
        Histogram("muster_task_block_latency_seconds", "From when a block device was given a request until it was done with it.")
        => "disk latency", Histogram(block_latency);
}
