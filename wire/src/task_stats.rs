//! Usage of a task: one table of its values.
//!
//! ```text
//! field: Type => json_field, "JsonName";
//! ```
//!
//! `field: Type` is the value in the agent's message, and `json_field` the same in the API's answer.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::alloc;
use muster_domain::saturating::nanos;
use serde::{Deserialize, Serialize};

use crate::api::stats as api;
use crate::rpc::{Histogram, Pressure};

/// A type of values.
pub trait Value {
    /// Its form in the API.
    type Json;

    /// The value as the API answers it.
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
        $field:ident: $type:ty => $json_field:ident, $json:literal;
    )+) => {
        /// Resource usage of a task. A value that cannot be had is absent, never zero. For a task in none of the agent's
        /// cgroups, the values are those of its driver. Its CPU time counts from the agent's first question.
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
            /// Bytes of stdout and stderr taken so far.
            pub log_bytes: u64,
            /// Bytes of stdout and stderr dropped, because the disk was full or they were more than the task's rate,
            /// since the agent takes them.
            pub log_dropped_bytes: u64,
            /// Time in which there was more of stdout and of stderr than the task's rate, since the agent takes them.
            pub log_limited: Duration,
            /// Where its driver says that it is reached, if that put it on a network of its own.
            pub network: Option<alloc::TaskNetwork>,
        }

        /// Counters of a task. What is absent is `null`, and `absent` says why.
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
            /// Name of the value and why it is absent.
            pub absent: BTreeMap<String, String>,
            /// Where its driver put it, if that was on a network of its own.
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
    cpu: Duration => cpu_nanos, "CPUNanos";
    /// Context switches, from eBPF.
    context_switches: u64 => context_switches, "ContextSwitches";
    /// How long threads that could run waited for a CPU, each time they got one; from eBPF.
    run_delay: Histogram => run_delay, "RunDelay";
    /// Times the kernel stopped the task for its CPU quota, from the cgroup.
    throttled_periods: u64 => throttled_periods, "ThrottledPeriods";
    /// Time for which it was stopped, from the cgroup.
    throttled: Duration => throttled_nanos, "ThrottledNanos";
    /// Bytes of memory charged, from the cgroup.
    memory_bytes: u64 => memory_bytes, "MemoryBytes";
    /// The most bytes of memory charged so far, from the cgroup.
    memory_peak_bytes: u64 => memory_peak_bytes, "MemoryPeakBytes";
    /// The limit in force, read back from the cgroup.
    memory_limit_bytes: u64 => memory_limit_bytes, "MemoryLimitBytes";
    /// Bytes of anonymous memory, from the cgroup.
    memory_anon_bytes: u64 => memory_anon_bytes, "MemoryAnonBytes";
    /// Bytes of page cache, those of `memory_shmem_bytes` included; from the cgroup.
    memory_file_bytes: u64 => memory_file_bytes, "MemoryFileBytes";
    /// Bytes of page cache that no disk has, as in tmpfs; from the cgroup.
    memory_shmem_bytes: u64 => memory_shmem_bytes, "MemoryShmemBytes";
    /// Bytes swapped out, from the cgroup.
    memory_swap_bytes: u64 => memory_swap_bytes, "MemorySwapBytes";
    /// Bytes the kernel needs for the task, from the cgroup.
    memory_kernel_bytes: u64 => memory_kernel_bytes, "MemoryKernelBytes";
    /// Times it was held back above `memory.high`, from the cgroup.
    memory_high_events: u64 => memory_high_events, "MemoryHighEvents";
    /// Times it was about to go above its limit, from the cgroup.
    memory_max_events: u64 => memory_max_events, "MemoryMaxEvents";
    /// Page faults that went to disk, from the cgroup.
    major_faults: u64 => major_faults, "MajorFaults";
    /// Time in which processes waited for a CPU, from the cgroup.
    pressure_cpu: Pressure => pressure_cpu, "PressureCPU";
    /// Time in which processes waited for memory, from the cgroup.
    pressure_memory: Pressure => pressure_memory, "PressureMemory";
    /// Time in which processes waited for I/O, from the cgroup.
    pressure_io: Pressure => pressure_io, "PressureIO";
    /// Processes and threads, from the cgroup.
    pids: u64 => pids, "Pids";
    /// Processes forked, from eBPF.
    forks: u64 => forks, "Forks";
    /// Programs executed, from eBPF.
    execs: u64 => execs, "Execs";
    /// OOM kills, from the cgroup.
    oom_kills: u64 => oom_kills, "OomKills";
    /// Bytes received, from eBPF.
    net_rx_bytes: u64 => net_rx_bytes, "NetRxBytes";
    /// Packets received, from eBPF.
    net_rx_packets: u64 => net_rx_packets, "NetRxPackets";
    /// Bytes sent, from eBPF.
    net_tx_bytes: u64 => net_tx_bytes, "NetTxBytes";
    /// Packets sent, from eBPF.
    net_tx_packets: u64 => net_tx_packets, "NetTxPackets";
    /// Packets to the task that its network policy refused, from eBPF; not among those received.
    net_rx_denied: u64 => net_rx_denied, "NetRxDenied";
    /// Packets of the task that its network policy refused, from eBPF; not among those sent.
    net_tx_denied: u64 => net_tx_denied, "NetTxDenied";
    /// Packets to the task that came faster than it may receive, from eBPF; not among those received.
    net_rx_limited: u64 => net_rx_limited, "NetRxLimited";
    /// Packets of the task that it sent faster than it may, from eBPF; not among those sent.
    net_tx_limited: u64 => net_tx_limited, "NetTxLimited";
    /// TCP connections that the task opened, and that came about; from eBPF.
    tcp_opened: u64 => tcp_opened, "TCPOpened";
    /// TCP connections to the task that came about, from eBPF.
    tcp_accepted: u64 => tcp_accepted, "TCPAccepted";
    /// TCP segments sent once more because no answer came, from eBPF.
    tcp_retransmits: u64 => tcp_retransmits, "TCPRetransmits";
    /// Bytes read from block devices, from eBPF.
    block_read_bytes: u64 => block_read_bytes, "BlockReadBytes";
    /// Requests that read, from eBPF.
    block_reads: u64 => block_reads, "BlockReads";
    /// Bytes written to block devices, from eBPF. Without the `io` controller in v2, later writes by the kernel are not
    /// included.
    block_write_bytes: u64 => block_write_bytes, "BlockWriteBytes";
    /// Requests that wrote, from eBPF.
    block_writes: u64 => block_writes, "BlockWrites";
    /// From when a device was given a request until it was done with it, from eBPF.
    block_latency: Histogram => block_latency, "BlockLatency";
}
