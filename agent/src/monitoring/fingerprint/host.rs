//! Kernel, operating system, names.

use super::facts::{Facts, read};

pub(super) fn add(facts: &mut Facts) {
    facts.attribute("kernel.name", "linux");
    facts.attribute("kernel.version", kernel_release());
    facts.attribute("unique.hostname", hostname());
    let release = read("/etc/os-release");
    if let Some(id) = os_field(&release, "ID") {
        facts.attribute("os.name", id);
    }
    if let Some(version) = os_field(&release, "VERSION_ID") {
        facts.attribute("os.version", version);
    }
    // Jobs that name a `kill_signal` get a constraint on it from Nomad.
    let signals: Vec<&str> = nix::sys::signal::Signal::iterator()
        .map(nix::sys::signal::Signal::as_str)
        .collect();
    facts.attribute("os.signals", signals.join(","));
    facts.attribute("muster.version", env!("CARGO_PKG_VERSION"));
    if let Some(setting) = io_uring_setting() {
        facts.attribute("muster.io_uring_disabled", setting);
    }
}

/// `uname -r`.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// `uname -n`.
pub(crate) fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Names this run of the kernel.
pub(crate) fn boot_id() -> String {
    read("/proc/sys/kernel/random/boot_id").trim().to_owned()
}

/// `kernel.io_uring_disabled`, where the kernel has it and it is not 0.
fn io_uring_setting() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    let setting = text.trim();
    (setting != "0").then(|| setting.to_owned())
}

/// A field of `os-release(5)`, without its quotes.
pub(super) fn os_field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    })
}
