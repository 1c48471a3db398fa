//! The limits of a process by name.

use std::collections::BTreeMap;

use thiserror::Error;

/// One limit: `struct rlimit64` of prlimit(2), and its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) resource: u32,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// A limit that cannot be parsed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum LimitError {
    #[error("no limit is called {name:?}; there are {}", known())]
    Name { name: String },
    #[error(
        "{name} = {value:?} is not a limit; write \"1024\", \"1024:4096\" (soft and hard) or \"unlimited\""
    )]
    Value { name: String, value: String },
}

impl LimitError {
    /// Returns the name of the limit.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Name { name } | Self::Value { name, .. } => name,
        }
    }
}

/// The names, as in `ulimit` and limits.conf.
const NAMES: [(&str, u32); 16] = [
    ("as", libc::RLIMIT_AS),
    ("core", libc::RLIMIT_CORE),
    ("cpu", libc::RLIMIT_CPU),
    ("data", libc::RLIMIT_DATA),
    ("fsize", libc::RLIMIT_FSIZE),
    ("locks", libc::RLIMIT_LOCKS),
    ("memlock", libc::RLIMIT_MEMLOCK),
    ("msgqueue", libc::RLIMIT_MSGQUEUE),
    ("nice", libc::RLIMIT_NICE),
    ("nofile", libc::RLIMIT_NOFILE),
    ("nproc", libc::RLIMIT_NPROC),
    ("rss", libc::RLIMIT_RSS),
    ("rtprio", libc::RLIMIT_RTPRIO),
    ("rttime", libc::RLIMIT_RTTIME),
    ("sigpending", libc::RLIMIT_SIGPENDING),
    ("stack", libc::RLIMIT_STACK),
];

/// Disables core files, which may contain secrets. It is the limit of every contained task that does not set another.
pub(crate) const NO_CORE: Limit = Limit {
    name: "core",
    resource: libc::RLIMIT_CORE,
    soft: 0,
    hard: 0,
};

impl Limit {
    /// Returns the limit of open files.
    pub(crate) fn open_files(soft: u64, hard: u64) -> Self {
        Self {
            name: "nofile",
            resource: libc::RLIMIT_NOFILE,
            soft,
            hard,
        }
    }

    /// Returns the bytes that the kernel reads.
    pub(crate) fn bytes(self) -> Vec<u8> {
        [self.soft.to_ne_bytes(), self.hard.to_ne_bytes()].concat()
    }
}

/// Reads `name → "soft"` or `"soft:hard"`.
pub(crate) fn read(given: &BTreeMap<String, String>) -> Result<Vec<Limit>, LimitError> {
    given
        .iter()
        .map(|(name, value)| {
            let (name, resource) = NAMES
                .into_iter()
                .find(|(known, _)| known == name)
                .ok_or_else(|| LimitError::Name { name: name.clone() })?;
            let wrong = || LimitError::Value {
                name: name.to_owned(),
                value: value.clone(),
            };
            let (soft, hard) = value.split_once(':').unwrap_or((value, value));
            let soft = number(soft).ok_or_else(wrong)?;
            let hard = number(hard).ok_or_else(wrong)?;
            if soft > hard {
                return Err(wrong());
            }
            Ok(Limit {
                name,
                resource,
                soft,
                hard,
            })
        })
        .collect()
}

fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "unlimited" | "-1" => Some(u64::MAX),
        digits => digits.parse().ok(),
    }
}

fn known() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Result<(u64, u64), LimitError> {
        let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        read(&given).map(|limits| (limits[0].soft, limits[0].hard))
    }

    #[test]
    fn one_number_is_both() {
        assert_eq!(one("nofile", "64"), Ok((64, 64)));
        assert_eq!(one("nofile", "64:128"), Ok((64, 128)));
        assert_eq!(one("core", "0:unlimited"), Ok((0, u64::MAX)));
    }

    #[test]
    fn invalid_limits_are_refused() {
        for value in ["", "x", "5:4", "1:2:3"] {
            let error = one("nofile", value).unwrap_err();
            assert!(matches!(error, LimitError::Value { .. }), "{value}");
        }
        assert!(
            one("nofiles", "1")
                .unwrap_err()
                .to_string()
                .contains("nproc")
        );
    }
}
