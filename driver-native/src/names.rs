//! The `resolv.conf` of a task whose host sets the name resolution.
//!
//! The file is the machine's with the host's values in place of the machine's. It is in the task's directory, where
//! the task cannot see it, and is mounted read-only into the task. Tasks in the host's file system (`raw`) use the
//! machine's file.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use muster_driver::Dns;
use thiserror::Error;

use crate::limits;
use crate::paths::{self, PathError, Source};

/// The path that programs read.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The name of the file in the task's directory.
const FILE: &str = ".resolv.conf";

/// Invalid values for a task's name resolution.
#[derive(Debug, Error)]
pub(crate) enum NamesError {
    #[error("`dns.{field}`: {value:?} {reason}")]
    Word {
        field: &'static str,
        value: String,
        reason: &'static str,
    },
    #[error(
        "`dns`: {bytes} bytes of resolv.conf are too many, it may have {max}; name fewer",
        max = limits::RESOLV_CONF_BYTES_MAX
    )]
    TooLong { bytes: usize },
    #[error("read {RESOLV_CONF} of the node, which a task with `dns` gets in part")]
    Read(#[source] io::Error),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Writes the file of a task with the directory `task_dir`. The file is mounted at [`RESOLV_CONF`].
pub(crate) fn write(task_dir: &Path, dns: &Dns) -> Result<Source, NamesError> {
    check(dns)?;
    let own = paths::read_host_file(RESOLV_CONF, limits::RESOLV_CONF_BYTES_MAX as u64);
    let own = match own {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        own => own.map_err(NamesError::Read)?,
    };
    let content = dns.over(&own);
    let bytes = content.len();
    if bytes > limits::RESOLV_CONF_BYTES_MAX {
        return Err(NamesError::TooLong { bytes });
    }
    Ok(paths::create_public_file(
        task_dir,
        FILE,
        content.as_bytes(),
    )?)
}

/// Checks the words. Words share a line, so a word must contain neither white space nor a line break.
fn check(dns: &Dns) -> Result<(), NamesError> {
    let Dns {
        servers,
        searches,
        options,
    } = dns;
    let refused = |field, value: &String, reason| NamesError::Word {
        field,
        value: value.clone(),
        reason,
    };
    // A link-local address may have the name of its device.
    let is_address = |server: &String| {
        let (address, zone) = server.split_once('%').unwrap_or((server, "lo"));
        address.parse::<IpAddr>().is_ok() && is_word(zone)
    };
    if let Some(server) = servers.iter().find(|server| !is_address(server)) {
        return Err(refused("servers", server, "is not an IP address"));
    }
    for (field, words) in [("searches", searches), ("options", options)] {
        if let Some(word) = words.iter().find(|word| !is_word(word)) {
            return Err(refused(field, word, "is not one word of visible letters"));
        }
    }
    Ok(())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dns(servers: &[&str], searches: &[&str], options: &[&str]) -> Dns {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Dns {
            servers: owned(servers),
            searches: owned(searches),
            options: owned(options),
        }
    }

    #[test]
    fn invalid_dns_entries_are_rejected_by_field() {
        let refused = [
            (dns(&["ns.lab"], &[], &[]), "dns.servers"),
            (dns(&["10.0.0.2\noptions x"], &[], &[]), "dns.servers"),
            (dns(&["fe80::1%"], &[], &[]), "dns.servers"),
            (dns(&[], &["lab\nnameserver 6.6.6.6"], &[]), "dns.searches"),
            (dns(&[], &[""], &[]), "dns.searches"),
            (dns(&[], &[], &["ndots:2 rotate"]), "dns.options"),
        ];
        for (dns, field) in refused {
            let error = check(&dns).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
        let taken = dns(&["10.0.0.2", "fe80::1%eth0"], &["lab."], &["ndots:2"]);
        assert!(check(&taken).is_ok());
    }

    /// An existing file may belong to another owner, so nothing is written through it.
    #[test]
    fn resolv_conf_is_recreated_over_existing_file() {
        let temp = tempfile::tempdir().unwrap();
        let other = temp.path().join("other");
        std::fs::write(&other, "kept").unwrap();
        std::fs::hard_link(&other, temp.path().join(FILE)).unwrap();

        let shown = write(temp.path(), &dns(&["10.9.0.53"], &["lab"], &["rotate"])).unwrap();

        assert!(!shown.is_dir);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        let text = std::fs::read_to_string(temp.path().join(FILE)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for line in ["search lab", "nameserver 10.9.0.53", "options rotate"] {
            assert!(lines.contains(&line), "{text}");
        }
        let servers = lines.iter().filter(|line| line.starts_with("nameserver"));
        assert_eq!(servers.count(), 1, "{text}");
    }
}
