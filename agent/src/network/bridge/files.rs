//! The files in which programs of an allocation with its own network look up names: `/etc/hosts`, `/etc/resolv.conf`.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use muster_domain::job::{DnsConfig, is_resolver_text};
use muster_driver::Dns;
use muster_link::private;

use super::failing;
use crate::tasks::task_env::TaskEnv;

/// The file in which systemd's resolver lists its upstream servers, for programs that cannot use the resolver
/// itself.
const BEHIND_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
/// The configuration of the machine's own resolver.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The name of the resolver configuration for tasks.
const RESOLV_FILE: &str = "resolv.conf";
/// Bytes of a configuration that are read.
const CONFIG_BYTES_MAX: u64 = 64 * 1_024;

/// Writes the files into `dir` and returns each one's path on the host and in a task.
pub(crate) fn write(
    dir: &Path,
    address: IpAddr,
    names: &[&str],
    dns: Option<&DnsConfig>,
    env: &TaskEnv,
) -> io::Result<Vec<(PathBuf, &'static str)>> {
    failing::step()?;
    private::create_dir(dir)?;
    let mut files = vec![(dir.join("hosts"), "/etc/hosts", hosts(address, names))];
    let own = resolv_conf();
    let resolv = match dns {
        Some(dns) => Some(dns_config(dns, env).over(own.as_deref().unwrap_or(""))),
        None => own,
    };
    if let Some(resolv) = resolv {
        files.push((dir.join(RESOLV_FILE), "/etc/resolv.conf", resolv));
    }
    let mut shown = Vec::new();
    for (path, target, content) in files {
        // Tasks have the existing file mounted, so a rename would leave them the old one.
        failing::step()?;
        std::fs::write(&path, content)?;
        shown.push((path, target));
    }
    Ok(shown)
}

/// Removes the files that [`write()`] made, also after an incomplete call.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn hosts(address: IpAddr, names: &[&str]) -> String {
    let names = names.join(" ");
    format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {names}\n")
}

/// The machine's configuration without servers that only the machine itself can reach; `None` without a
/// configuration.
fn resolv_conf() -> Option<String> {
    let own = read(Path::new(RESOLV_CONF))?;
    let reachable = without_loopback(&own);
    if reachable.lines().any(|line| server(line).is_some()) {
        return Some(reachable);
    }
    let behind = read(Path::new(BEHIND_RESOLVED)).map(|text| without_loopback(&text));
    // Without a server, look-ups fail at once. Programs report that better than a timeout at an unreachable server.
    Some(behind.unwrap_or(reachable))
}

/// The servers in the resolver configuration that was written into `dir`; empty if there are none.
pub(crate) fn resolvers(dir: &Path) -> Vec<IpAddr> {
    let text = read(&dir.join(RESOLV_FILE)).unwrap_or_default();
    text.lines().filter_map(server).collect()
}

/// The group's DNS settings as drivers take them, with references filled in from `env`.
pub(crate) fn dns_config(dns: &DnsConfig, env: &TaskEnv) -> Dns {
    let DnsConfig {
        servers,
        searches,
        options,
    } = dns;
    Dns {
        servers: interpolate_words(servers, env),
        searches: interpolate_words(searches, env),
        options: interpolate_words(options, env),
    }
}

/// `words` with references filled in. A value that is not one word would break the resolver's configuration.
fn interpolate_words(words: &[String], env: &TaskEnv) -> Vec<String> {
    let words = words.iter().map(|word| env.interpolate(word));
    words.filter(|word| is_resolver_text(word)).collect()
}

fn read(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(CONFIG_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn without_loopback(text: &str) -> String {
    let kept = text
        .lines()
        .filter(|line| server(line).is_none_or(|address| !address.is_loopback()));
    kept.flat_map(|line| [line, "\n"]).collect()
}

/// The server that a line names.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let is_server = words.next() == Some("nameserver");
    words.next().filter(|_| is_server)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn servers_of_the_machine_alone_are_left_out() {
        let text = "search lab\nnameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver ::1\noptions edns0\n";

        let kept = without_loopback(text);

        assert_eq!(kept, "search lab\nnameserver 10.0.0.2\noptions edns0\n");
    }

    #[test]
    fn job_dns_config_overrides_host_resolv_conf() {
        let own = "# of the lab\nsearch lab\nnameserver 10.0.0.2\noptions edns0\n";
        let dns = DnsConfig {
            servers: vec!["10.9.0.53".to_owned()],
            searches: Vec::new(),
            options: vec!["ndots:2".to_owned(), "rotate".to_owned()],
        };

        let env = TaskEnv::default();
        let written = dns_config(&dns, &env).over(own);

        let expected = "# of the lab\nsearch lab\nnameserver 10.9.0.53\noptions ndots:2 rotate\n";
        assert_eq!(written, expected);
        assert_eq!(dns_config(&DnsConfig::default(), &env).over(own), own);
    }

    #[test]
    fn resolvers_are_read_from_the_written_file() {
        let dir = tempfile::tempdir().unwrap();
        let dns = DnsConfig {
            servers: vec!["192.0.2.53".to_owned(), "169.254.1.1".to_owned()],
            searches: Vec::new(),
            options: Vec::new(),
        };
        let env = TaskEnv::default();
        let address = Ipv4Addr::new(10, 0, 0, 2).into();
        write(
            &dir.path().join("names"),
            address,
            &["web"],
            Some(&dns),
            &env,
        )
        .unwrap();

        let found = resolvers(&dir.path().join("names"));

        let expected: Vec<IpAddr> = vec![[192, 0, 2, 53].into(), [169, 254, 1, 1].into()];
        assert_eq!(found, expected);
        assert_eq!(resolvers(dir.path()), Vec::<IpAddr>::new());
    }

    #[test]
    fn an_allocation_finds_itself() {
        let hosts = hosts(Ipv4Addr::new(10, 0, 0, 2).into(), &["web", "web-1"]);

        assert!(hosts.ends_with("10.0.0.2 web web-1\n"), "{hosts}");
        assert!(hosts.starts_with("127.0.0.1 localhost\n"));
    }
}
