//! Sets of capabilities.

use std::fmt;
use std::fs;
use std::sync::LazyLock;

use thiserror::Error;

/// A set of capabilities, as the kernel's mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities(u64);

/// The error of a name that is not a capability.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name:?} is not a capability; write it like NET_BIND_SERVICE")]
pub(crate) struct UnknownCapability {
    name: String,
}

/// The names in the order of the kernel's numbers (linux/capability.h).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The capabilities that root keeps in a contained task by default: Docker's set less `NET_RAW`.
const DEFAULT: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The capabilities that a contained task never has, whatever its node allows. Each of them gives control of the
/// machine or access to the driver's memory. A task that needs one runs `raw`.
const NEVER: [&str; 13] = [
    "AUDIT_CONTROL",
    "BPF",
    "CHECKPOINT_RESTORE",
    "DAC_READ_SEARCH",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "PERFMON",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYSLOG",
];

impl Capabilities {
    /// The empty set.
    pub(crate) const EMPTY: Self = Self(0);

    /// Returns the capabilities that root keeps by default.
    pub(crate) fn default_of_root() -> Self {
        Self::of(&DEFAULT)
    }

    /// Returns the capability that gives capabilities to files.
    pub(crate) fn of_files() -> Self {
        Self::of(&["SETFCAP"])
    }

    /// Returns the capabilities that no node can allow.
    pub(crate) fn forbidden() -> Self {
        Self::of(&NEVER)
    }

    /// Returns the set of all capabilities.
    pub(crate) fn all() -> Self {
        Self::of(&NAMES)
    }

    /// Parses names, with or without `CAP_`, in upper or lower case.
    pub(crate) fn parse<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, UnknownCapability> {
        let mut set = Self::EMPTY;
        for name in names {
            set = set.union(Self::named(name).ok_or_else(|| UnknownCapability {
                name: name.to_owned(),
            })?);
        }
        Ok(set)
    }

    /// Returns the capabilities that this process may use. The process never changes them, so they are read once.
    pub(crate) fn own() -> Self {
        static OWN: LazyLock<Capabilities> =
            LazyLock::new(|| Capabilities::read("/proc/self/status", "CapPrm:"));
        *OWN
    }

    /// Returns the bounding set of the process `pid`; the set is empty when the process has ended.
    pub(crate) fn bounding_of(pid: i32) -> Self {
        Self::read(&format!("/proc/{pid}/status"), "CapBnd:")
    }

    fn read(path: &str, field: &str) -> Self {
        let status = fs::read_to_string(path).unwrap_or_default();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self(mask.unwrap_or_default())
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the kernel's mask.
    pub(crate) fn mask(self) -> u64 {
        self.0
    }

    /// Returns the numbers of all capabilities, and whether each is in the set.
    pub(crate) fn numbers(self) -> impl Iterator<Item = (u32, bool)> {
        (0_u32..)
            .take(NAMES.len())
            .map(move |number| (number, self.0 & (1 << number) != 0))
    }

    fn named(name: &str) -> Option<Self> {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let number = NAMES.iter().position(|known| *known == short)?;
        Some(Self(1 << number))
    }

    fn of(names: &[&str]) -> Self {
        let masks = names.iter().filter_map(|name| Self::named(name));
        masks.fold(Self::EMPTY, Self::union)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self
            .numbers()
            .zip(NAMES)
            .filter_map(|((_, held), name)| held.then_some(name))
            .collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_people_write_them() {
        for name in ["NET_ADMIN", "cap_net_admin", "CAP_NET_ADMIN"] {
            assert_eq!(Capabilities::parse([name]).unwrap().mask(), 1 << 12);
        }
        assert!(Capabilities::parse(["NET_ADMINS"]).is_err());
    }

    #[test]
    fn every_listed_name_is_known() {
        assert_eq!(Capabilities::default_of_root().mask().count_ones(), 13);
        assert_eq!(Capabilities::forbidden().mask().count_ones(), 13);
        let both = Capabilities::default_of_root().intersection(Capabilities::forbidden());
        assert!(both.is_empty());
    }

    /// The mask of Docker's containers, without bit 13.
    #[test]
    fn default_is_dockers_less_raw_sockets() {
        assert_eq!(
            Capabilities::default_of_root().mask(),
            0xA804_25FB & !(1 << 13)
        );
    }
}
