//! Cores and their frequency.

use std::path::Path;

use muster_domain::number;

use super::facts::{Facts, read};
use crate::limits::CORE_MHZ_UNKNOWN;

pub(super) fn add(facts: &mut Facts) {
    let info = read("/proc/cpuinfo");
    let cores = cores(&info);
    let mhz = core_mhz(&info);
    facts.cores = cores;
    facts.total.cpu_mhz = mhz * u64::from(cores);
    facts.attribute("cpu.arch", arch());
    facts.attribute("cpu.numcores", cores);
    facts.attribute("cpu.frequency", mhz);
    facts.attribute("cpu.totalcompute", facts.total.cpu_mhz);
    facts.attribute("cpu.usablecompute", facts.total.cpu_mhz);
    if let Some(model) = field(&info, "model name") {
        facts.attribute("cpu.modelname", model);
    }
}

/// Returns the MHz that one core counts for; all cores count the same.
pub(super) fn core_mhz(info: &str) -> u64 {
    max_frequency_mhz(cores(info))
        .or_else(|| info_mhz(info))
        .unwrap_or(u64::from(CORE_MHZ_UNKNOWN))
}

/// The architecture by its Go name, which Nomad's job files use.
fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn cores(info: &str) -> u32 {
    let listed = info
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    number::count(listed.max(1))
}

/// The highest frequency of any core. On a hybrid processor, slower cores count as fast ones.
fn max_frequency_mhz(cores: u32) -> Option<u64> {
    (0..cores)
        .filter_map(|core| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq");
            let text = std::fs::read_to_string(Path::new(&path)).ok()?;
            Some(text.trim().parse::<u64>().ok()? / 1_000)
        })
        .max()
}

pub(super) fn info_mhz(info: &str) -> Option<u64> {
    let mhz: f64 = field(info, "cpu MHz")?.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates; frequencies are small"
    )]
    #[expect(
        clippy::cast_sign_loss,
        reason = "`as` saturates; frequencies are positive"
    )]
    let mhz = mhz.round() as u64;
    (mhz > 0).then_some(mhz)
}

/// The first value of `name` in `/proc/cpuinfo`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}
