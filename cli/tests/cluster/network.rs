//! Network namespaces: a central one with a bridge, for the test and its clients, and one for each server and agent.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces and the links between them; removed when dropped.
#[derive(Debug)]
pub(crate) struct Network {
    prefix: String,
    places: Vec<String>,
}

impl Network {
    /// The reason why a network cannot be created here; `None` if it can.
    pub(crate) fn missing() -> Option<&'static str> {
        if !nix::unistd::geteuid().is_root() {
            return Some("namespaces need root");
        }
        for (tool, argument) in [("ip", "-V"), ("nft", "-v"), ("nsenter", "-V")] {
            if Command::new(tool).arg(argument).output().is_err() {
                return Some("`ip`, `nft` and `nsenter` are needed: cargo xtask setup");
            }
        }
        None
    }

    /// Creates the central namespace and moves this thread to it. Threads and processes that the thread starts are also
    /// in it.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("mst{:x}-{count}-", std::process::id());
        let network = Self {
            prefix,
            places: Vec::new(),
        };
        let hub = network.name("h");
        ip(&["netns", "add", &hub]);
        network.enter();
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "add", "br0", "type", "bridge"]);
        ip(&["addr", "add", "10.77.0.254/16", "dev", "br0"]);
        ip(&["link", "set", "br0", "up"]);
        network
    }

    /// Moves this thread into the namespace in the middle.
    pub(crate) fn enter(&self) {
        let file = File::open(self.path("h")).unwrap();
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Adds a namespace with `address`.
    pub(crate) fn add(&mut self, place: &str, address: Ipv4Addr) {
        let name = self.name(place);
        ip(&["netns", "add", &name]);
        self.places.push(place.to_owned());
        let wire = format!("v{place}");
        ip(&[
            "link", "add", &wire, "type", "veth", "peer", "name", "eth0", "netns", &name,
        ]);
        ip(&["link", "set", &wire, "master", "br0"]);
        ip(&["link", "set", &wire, "up"]);
        let address = format!("{address}/16");
        self.inside(place, &["ip", "addr", "add", &address, "dev", "eth0"]);
        self.inside(place, &["ip", "link", "set", "eth0", "up"]);
        self.inside(place, &["ip", "link", "set", "lo", "up"]);
        self.inside(place, &["nft", "add", "table", "inet", "cut"]);
        for (chain, hook) in [("in", "input"), ("out", "output")] {
            let body = format!("{{ type filter hook {hook} priority 0; }}");
            self.inside(place, &["nft", "add", "chain", "inet", "cut", chain, &body]);
        }
    }

    /// Drops all packets between the server at `place` and `other` in this direction from here on.
    pub(crate) fn cut(&self, place: &str, direction: Direction, other: Ipv4Addr) {
        let (chain, end) = match direction {
            Direction::Incoming => ("in", "saddr"),
            Direction::Outgoing => ("out", "daddr"),
        };
        let other = other.to_string();
        self.inside(
            place,
            &[
                "nft", "add", "rule", "inet", "cut", chain, "ip", end, &other, "drop",
            ],
        );
    }

    /// Heals all links.
    pub(crate) fn heal(&self) {
        for place in &self.places {
            for chain in ["in", "out"] {
                self.inside(place, &["nft", "flush", "chain", "inet", "cut", chain]);
            }
        }
    }

    /// A command that runs in `place`, with `program` as its process.
    pub(crate) fn command(&self, place: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path(place).display()));
        command.arg("--").arg(program);
        command
    }

    fn inside(&self, place: &str, command: &[&str]) {
        let output = self
            .command(place, command[0])
            .args(&command[1..])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{command:?} in {place}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn name(&self, place: &str) -> String {
        format!("{}{place}", self.prefix)
    }

    fn path(&self, place: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(self.name(place))
    }
}

/// Adds an address to the middle.
pub(crate) fn listen(address: Ipv4Addr) {
    ip(&["addr", "add", &format!("{address}/32"), "dev", "br0"]);
}

/// A direction of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Incoming,
    Outgoing,
}

impl Drop for Network {
    fn drop(&mut self) {
        for place in self.places.iter().map(String::as_str).chain(["h"]) {
            // A leftover namespace is visible in `ip netns`, by a name that begins with `mst`.
            drop(
                Command::new("ip")
                    .args(["netns", "del", &self.name(place)])
                    .status(),
            );
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
