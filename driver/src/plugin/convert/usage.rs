//! Usage of tasks, to and from the protocol.

use std::time::SystemTime;

use crate::error::DriverError;
use crate::plugin::convert::{protocol, time_from_proto, time_to_proto};
use crate::plugin::proto::drivers;
use crate::stats::{CpuField, CpuUsage, MemoryField, MemoryUsage, TaskStats, TaskUsage};

/// Hosts refuse statistics without a time, so the time is always set.
pub(crate) fn stats_to_proto(stats: &TaskStats) -> drivers::TaskStats {
    let TaskStats {
        task_id,
        at,
        usage,
        by_pid,
    } = stats;
    drivers::TaskStats {
        id: task_id.clone(),
        timestamp: Some(time_to_proto(*at)),
        agg_resource_usage: Some(usage_to_proto(usage)),
        resource_usage_by_pid: by_pid
            .iter()
            .map(|(pid, usage)| (pid.clone(), usage_to_proto(usage)))
            .collect(),
    }
}

pub(crate) fn stats_from_proto(message: drivers::TaskStats) -> Result<TaskStats, DriverError> {
    let usage = message
        .agg_resource_usage
        .ok_or_else(|| protocol("statistics of a task have no usage"))?;
    Ok(TaskStats {
        task_id: message.id,
        at: message
            .timestamp
            .and_then(time_from_proto)
            .unwrap_or(SystemTime::UNIX_EPOCH),
        usage: usage_from_proto(usage),
        by_pid: message
            .resource_usage_by_pid
            .into_iter()
            .map(|(pid, usage)| (pid, usage_from_proto(usage)))
            .collect(),
    })
}

fn usage_to_proto(usage: &TaskUsage) -> drivers::TaskResourceUsage {
    drivers::TaskResourceUsage {
        cpu: Some(cpu_to_proto(&usage.cpu)),
        memory: Some(memory_to_proto(&usage.memory)),
    }
}

fn usage_from_proto(message: drivers::TaskResourceUsage) -> TaskUsage {
    TaskUsage {
        cpu: cpu_from_proto(message.cpu.unwrap_or_default()),
        memory: memory_from_proto(message.memory.unwrap_or_default()),
    }
}

fn cpu_to_proto(cpu: &CpuUsage) -> drivers::CpuUsage {
    use drivers::cpu_usage::Fields;
    drivers::CpuUsage {
        system_mode: cpu.system_mode,
        user_mode: cpu.user_mode,
        total_ticks: cpu.total_ticks,
        throttled_periods: cpu.throttled_periods,
        throttled_time: cpu.throttled_time,
        percent: cpu.percent,
        measured_fields: cpu
            .measured
            .iter()
            .map(|field| {
                match field {
                    CpuField::SystemMode => Fields::SystemMode,
                    CpuField::UserMode => Fields::UserMode,
                    CpuField::TotalTicks => Fields::TotalTicks,
                    CpuField::ThrottledPeriods => Fields::ThrottledPeriods,
                    CpuField::ThrottledTime => Fields::ThrottledTime,
                    CpuField::Percent => Fields::Percent,
                }
                .into()
            })
            .collect(),
    }
}

/// Measured fields that only a newer peer defines are left out.
fn cpu_from_proto(message: drivers::CpuUsage) -> CpuUsage {
    use drivers::cpu_usage::Fields;
    CpuUsage {
        system_mode: message.system_mode,
        user_mode: message.user_mode,
        total_ticks: message.total_ticks,
        throttled_periods: message.throttled_periods,
        throttled_time: message.throttled_time,
        percent: message.percent,
        measured: message
            .measured_fields
            .into_iter()
            .filter_map(|field| Fields::try_from(field).ok())
            .map(|field| match field {
                Fields::SystemMode => CpuField::SystemMode,
                Fields::UserMode => CpuField::UserMode,
                Fields::TotalTicks => CpuField::TotalTicks,
                Fields::ThrottledPeriods => CpuField::ThrottledPeriods,
                Fields::ThrottledTime => CpuField::ThrottledTime,
                Fields::Percent => CpuField::Percent,
            })
            .collect(),
    }
}

fn memory_to_proto(memory: &MemoryUsage) -> drivers::MemoryUsage {
    use drivers::memory_usage::Fields;
    drivers::MemoryUsage {
        rss: memory.rss,
        cache: memory.cache,
        max_usage: memory.max_usage,
        kernel_usage: memory.kernel_usage,
        kernel_max_usage: memory.kernel_max_usage,
        usage: memory.usage,
        swap: memory.swap,
        measured_fields: memory
            .measured
            .iter()
            .map(|field| {
                match field {
                    MemoryField::Rss => Fields::Rss,
                    MemoryField::Cache => Fields::Cache,
                    MemoryField::MaxUsage => Fields::MaxUsage,
                    MemoryField::KernelUsage => Fields::KernelUsage,
                    MemoryField::KernelMaxUsage => Fields::KernelMaxUsage,
                    MemoryField::Usage => Fields::Usage,
                    MemoryField::Swap => Fields::Swap,
                }
                .into()
            })
            .collect(),
    }
}

fn memory_from_proto(message: drivers::MemoryUsage) -> MemoryUsage {
    use drivers::memory_usage::Fields;
    MemoryUsage {
        rss: message.rss,
        cache: message.cache,
        swap: message.swap,
        usage: message.usage,
        max_usage: message.max_usage,
        kernel_usage: message.kernel_usage,
        kernel_max_usage: message.kernel_max_usage,
        measured: message
            .measured_fields
            .into_iter()
            .filter_map(|field| Fields::try_from(field).ok())
            .map(|field| match field {
                Fields::Rss => MemoryField::Rss,
                Fields::Cache => MemoryField::Cache,
                Fields::MaxUsage => MemoryField::MaxUsage,
                Fields::KernelUsage => MemoryField::KernelUsage,
                Fields::KernelMaxUsage => MemoryField::KernelMaxUsage,
                Fields::Usage => MemoryField::Usage,
                Fields::Swap => MemoryField::Swap,
            })
            .collect(),
    }
}
