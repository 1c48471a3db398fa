//! A description of this machine, which is printed with every result.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::time::Instant;

use serde::Serialize;

use crate::harness::{Context, quantile};

/// The conditions of the machine on which a measured number depends.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    filesystem: String,
    memory_mib: u64,
    fsync_us_p50: f64,
    fsync_us_p99: f64,
    /// The load average of the last minute: processes that wanted a core.
    load: f64,
    profile: &'static str,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cpu         {} × {}", self.cores, self.cpu)?;
        writeln!(f, "memory      {} MiB", self.memory_mib)?;
        writeln!(f, "kernel      {}", self.kernel)?;
        writeln!(f, "filesystem  {}", self.filesystem)?;
        writeln!(
            f,
            "fdatasync   p50 {:.0} µs, p99 {:.0} µs (4 KiB appended)",
            self.fsync_us_p50, self.fsync_us_p99
        )?;
        let busy = if self.load > 0.5 * self.cores as f64 {
            "; others are at work, so that only ratios and CPU times mean something"
        } else {
            ""
        };
        writeln!(f, "load        {:.1}{busy}", self.load)?;
        write!(f, "build       {}", self.profile)
    }
}

/// Returns the facts of this machine, including the file system of the context's directory.
pub(crate) fn facts(context: &Context) -> anyhow::Result<Machine> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = field(&cpuinfo, "model name")
        .unwrap_or("unknown")
        .to_owned();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib: u64 = field(&meminfo, "MemTotal")
        .and_then(|text| text.split_whitespace().next())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = loadavg
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0);
    let (p50, p99) = fsync_latency(context)?;
    Ok(Machine {
        cpu,
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        filesystem: filesystem(context),
        memory_mib: memory_kib / 1024,
        fsync_us_p50: p50,
        fsync_us_p99: p99,
        load,
        profile: if cfg!(debug_assertions) {
            "debug: numbers mean nothing"
        } else {
            "release"
        },
    })
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns the file system type of the longest mount point that contains the directory.
fn filesystem(context: &Context) -> String {
    let dir = fs::canonicalize(&context.dir).unwrap_or_else(|_| context.dir.clone());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_device, point, kind) = (words.next()?, words.next()?, words.next()?);
            dir.starts_with(point)
                .then(|| (point.len(), kind.to_owned()))
        })
        .max()
        .map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}

fn fsync_latency(context: &Context) -> anyhow::Result<(f64, f64)> {
    let path = context.dir.join("fsync");
    let mut file = fs::File::create(&path)?;
    let block = [7_u8; 4096];
    let mut micros = Vec::new();
    for _ in 0..context.pick(300, 60) {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(&path)?;
    micros.sort_by(f64::total_cmp);
    Ok((quantile(&micros, 0.5), quantile(&micros, 0.99)))
}
