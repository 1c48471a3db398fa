//! Groups with a network of their own, on a machine that is a network namespace of the test's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::dev::dev_with;
use crate::support::{
    Leftovers, agent, ask, job_file, muster, poll_until, server, skipped, stderr, stdout,
};

/// The machine's address on its only link.
const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The host at the other end.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The silence after which no more data are expected.
const SILENCE: Duration = Duration::from_secs(2);

/// The machine's address as bridged tasks reach it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Two instances, each with a declared and an undeclared port. The request `call` makes an instance connect by TCP, and
/// `send` makes it send a datagram.
const JOB: &str = r#"
job "web" {
  update { min_healthy_time = "0s" }
  group "g" {
    count = 2
    network {
      mode = "bridge"
      port "http" { to = 80 }
      dns {
        servers = ["192.0.2.53"]
        options = ["ndots:3"]
      }
    }
    task "t" {
      driver = "native"
      config {
        command = "/usr/bin/perl"
        args = ["-MIO::Socket::INET", "-MIO::Select", "-e", <<-PERL
          $SIG{CHLD} = "IGNORE"; $| = 1;
          my @tcp = map { IO::Socket::INET->new(LocalPort => $_, Listen => 9, ReuseAddr => 1) or die "$_ $!" } 80, 81;
          my $udp = IO::Socket::INET->new(LocalPort => 80, Proto => "udp") or die;
          my $all = IO::Select->new(@tcp, $udp);
          open my $hosts, "<", "/etc/hosts"; print grep { !/localhost/ } <$hosts>;
          open my $names, "<", "/etc/resolv.conf"; print grep { /^(nameserver|options)/ } <$names>;
          print "ready\n";
          while (1) { for my $one ($all->can_read) {
            if ($one == $udp) {
              my $from = recv $udp, my $said, 1500, 0;
              my ($port, $ip) = sockaddr_in $from;
              send $udp, "udp " . inet_ntoa($ip), 0, $from;
              next;
            }
            my $in = $one->accept or next;
            next if fork;
            my $line = <$in>;
            if ($line =~ /^call (\S+) (\d+)/) {
              my $out = IO::Socket::INET->new(PeerAddr => $1, PeerPort => $2, Timeout => 2);
              print $out "hello\n" if $out;
              print $in $out ? "called: " . <$out> : "silence\n";
            } elsif ($line =~ /^send (\S+) (\d+)/) {
              my ($ip, $port) = ($1, $2);
              my $to = sockaddr_in($port, inet_aton($ip));
              my $out = IO::Socket::INET->new(Proto => "udp", Broadcast => 1) or die;
              send $out, "hello", 0, $to;
              my $said;
              recv $out, $said, 1500, 0 if IO::Select->new($out)->can_read(2);
              print $in $said ? "answered: $said\n" : "silence\n";
            } else { print $in "tcp ", $in->peerhost, "\n" }
            exit;
          } }
        PERL
        ]
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
"#;

/// Runs `body` in a thread whose machine has one link, to the given namespace.
fn with_machine(name: &str, body: impl FnOnce(&File) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "namespaces need root");
        return;
    }
    for (tool, argument) in [("ip", "-V"), ("nft", "-v"), ("tc", "-V")] {
        if Command::new(tool).arg(argument).output().is_err() {
            skipped(name, "`ip`, `tc` and `nft` are needed: cargo xtask setup");
            return;
        }
    }
    let run = std::thread::spawn(move || {
        let client = std::thread::spawn(create_namespace).join().unwrap();
        drop(create_namespace());
        run(
            "ip",
            &[
                "link", "add", "name", "up0", "type", "veth", "peer", "name", "cl0",
            ],
        );
        let place = format!("/proc/{}/fd/{}", std::process::id(), client.as_raw_fd());
        run("ip", &["link", "set", "cl0", "netns", &place]);
        configure_device("up0", MACHINE);
        in_namespace(&client, || configure_device("cl0", CLIENT));
        body(&client);
    });
    if let Err(panic) = run.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Moves the calling thread to a new namespace.
fn create_namespace() -> File {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    run("ip", &["link", "set", "lo", "up"]);
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn configure_device(device: &str, address: Ipv4Addr) {
    run(
        "ip",
        &["addr", "add", &format!("{address}/24"), "dev", device],
    );
    run("ip", &["link", "set", device, "up"]);
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        stderr(&output)
    );
    stdout(&output)
}

/// Runs `work` at the other end of the link.
fn in_namespace<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        there.join().unwrap()
    })
}

/// The server's answer to `word`; `None` if there is none.
fn tcp(address: Ipv4Addr, port: u16, word: &str) -> Option<String> {
    let to = SocketAddr::V4(SocketAddrV4::new(address, port));
    let mut stream = TcpStream::connect_timeout(&to, SILENCE).ok()?;
    stream.set_read_timeout(Some(SILENCE * 4)).unwrap();
    writeln!(stream, "{word}").ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn udp(address: Ipv4Addr, port: u16) -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.send_to(b"hello", (address, port)).ok()?;
    let mut answer = [0; 64];
    let count = socket.recv(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..count]).into_owned())
}

fn json(address: &str, args: &[&str]) -> Value {
    let answer = ask(address, &[&["--json"], args].concat());
    assert_eq!(
        answer.status.code(),
        Some(0),
        "{args:?}: {}",
        stderr(&answer)
    );
    serde_json::from_slice(&answer.stdout).unwrap()
}

/// An instance: its id, its address, and the machine's port that is forwarded to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instance {
    id: String,
    inside: Ipv4Addr,
    port: u16,
}

fn instances(address: &str) -> Vec<Instance> {
    let networks = poll_until("the networks", || {
        let answer = ask(address, &["--json", "net", "web"]);
        let networks: Vec<Value> = serde_json::from_slice(&answer.stdout).ok()?;
        let known = networks
            .iter()
            .filter(|one| one["Network"]["Address"].is_string());
        (known.count() == 2).then_some(networks)
    });
    let instance = |network: &Value| {
        let id = network["AllocID"].as_str().unwrap().to_owned();
        let inside = network["Network"]["Address"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let alloc = json(address, &["alloc", "status", &id]);
        let port = find_port(&alloc).unwrap_or_else(|| panic!("{alloc}"));
        Instance { id, inside, port }
    };
    networks.iter().map(instance).collect()
}

/// The first object with a label `http`, wherever it is.
fn find_port(value: &Value) -> Option<u16> {
    match value {
        Value::Object(fields) if fields.get("Label").and_then(Value::as_str) == Some("http") => {
            fields.get("Value")?.as_u64()?.try_into().ok()
        }
        Value::Object(fields) => fields.values().find_map(find_port),
        Value::Array(items) => items.iter().find_map(find_port),
        _ => None,
    }
}

fn start(dir: &Path) -> (crate::support::Process, String) {
    dev_with(dir, &["--quic", &format!("{MACHINE}:0")])
}

fn run_job(dir: &Path, address: &str) -> Vec<Instance> {
    run_as(dir, address, JOB)
}

/// Runs `job`, which is [`JOB`] with other settings.
fn run_as(dir: &Path, address: &str, job: &str) -> Vec<Instance> {
    let file = job_file(dir, job);
    let ran = ask(address, &["job", "run", file.to_str().unwrap()]);
    assert_eq!(
        ran.status.code(),
        Some(0),
        "{}{}",
        stdout(&ran),
        stderr(&ran)
    );
    let instances = instances(address);
    for instance in &instances {
        poll_until("the server in the task", || {
            let logs = stdout(&ask(address, &["alloc", "logs", &instance.id]));
            logs.contains("ready").then_some(logs)
        });
    }
    instances
}

fn host_veths() -> usize {
    run("ip", &["-o", "link"]).matches(": mu-").count()
}

#[test]
fn published_ports_lead_in_and_nothing_else_does() {
    let name = "published_ports_lead_in_and_nothing_else_does";
    with_machine(name, |client| {
        let dir = tempfile::tempdir().unwrap();
        let (_process, address) = start(dir.path());
        let [first, second] = &run_job(dir.path(), &address)[..] else {
            panic!("two instances");
        };

        // The client is another machine, and the task sees its real address.
        let from_client = format!("tcp {CLIENT}");
        for instance in [first, second] {
            let answer = in_namespace(client, || tcp(MACHINE, instance.port, "hello"));
            assert_eq!(answer.as_ref(), Some(&from_client), "{instance:?}");
            let answer = in_namespace(client, || udp(MACHINE, instance.port));
            assert_eq!(answer, Some(format!("udp {CLIENT}")), "{instance:?}");
        }
        // The connection comes from the machine itself.
        let answer = tcp(MACHINE, first.port, "hello");
        assert_eq!(answer, Some(format!("tcp {MACHINE}")));
        assert_eq!(udp(MACHINE, first.port), Some(format!("udp {MACHINE}")));
        assert!(tcp(first.inside, 80, "hello").is_some());
        assert_eq!(tcp(first.inside, 81, "hello"), None, "it is not declared");

        // The connection goes from one allocation to the other, and to itself.
        let call = |to: Ipv4Addr, port| tcp(MACHINE, first.port, &format!("call {to} {port}"));
        let by_first = Some(format!("called: tcp {}", first.inside));
        assert_eq!(call(MACHINE, second.port), by_first);
        assert_eq!(call(second.inside, 80), by_first);
        assert_eq!(call(second.inside, 81), Some("silence".to_owned()));
        let by_gateway = Some("called: tcp 169.254.1.1".to_owned());
        assert_eq!(call(MACHINE, first.port), by_gateway);

        // The listener is on another machine and sees the address of this one.
        let listener = in_namespace(client, || TcpListener::bind((CLIENT, 0)).unwrap());
        let port = listener.local_addr().unwrap().port();
        let accepted = std::thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            writeln!(stream, "welcome").unwrap();
            peer
        });
        assert_eq!(call(CLIENT, port), Some("called: welcome".to_owned()));
        assert_eq!(accepted.join().unwrap().ip(), MACHINE);

        let logs = stdout(&ask(&address, &["alloc", "logs", &first.id]));
        assert!(logs.starts_with(&format!("{} g-", first.inside)), "{logs}");
        let asked = "nameserver 192.0.2.53\noptions ndots:3\nready";
        assert!(logs.contains(asked), "{logs}");
        assert_eq!(host_veths(), 2);
    });
}

/// No task of a machine reaches the machine's server, at any advertised address, if the server listens at every
/// address.
#[test]
fn tasks_cannot_reach_api_of_local_server() {
    let name = "tasks_cannot_reach_api_of_local_server";
    with_machine(name, |_| {
        let dir = tempfile::tempdir().unwrap();
        let args = ["--http", "0.0.0.0:0", "--quic", &format!("{MACHINE}:0")];
        let (_process, address) = dev_with(dir.path(), &args);
        let (_, api) = address.rsplit_once(':').unwrap();
        let api: u16 = api.parse().unwrap();
        let address = format!("http://127.0.0.1:{api}");
        let [first, _] = &run_job(dir.path(), &address)[..] else {
            panic!("two instances");
        };
        let call = |to: Ipv4Addr| tcp(MACHINE, first.port, &format!("call {to} {api}"));

        for to in [GATEWAY, MACHINE] {
            assert_eq!(call(to), Some("silence".to_owned()), "{to}");
        }
        assert!(
            tcp(MACHINE, api, "hello").is_some(),
            "the API answers others"
        );
    });
}

/// Listeners of the machine itself. They answer all callers and end with the test's process.
struct HostListeners {
    tcp: u16,
    udp: u16,
    /// The number of received datagrams. An answer may be lost, because the kernel chooses its source address.
    datagrams: Arc<AtomicU64>,
}

impl HostListeners {
    /// Listens at every address of the machine, by TCP and UDP.
    fn start() -> Self {
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        Self {
            tcp: answer_calls(TcpListener::bind("0.0.0.0:0").unwrap()),
            udp: udp.local_addr().unwrap().port(),
            datagrams: answer_datagrams(udp),
        }
    }

    fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }
}

/// Destinations in bridged tasks' networks that lead to the machine.
const LEAD_TO_MACHINE: [Ipv4Addr; 4] = [
    MACHINE,
    GATEWAY,
    Ipv4Addr::new(10, 9, 0, 255),
    Ipv4Addr::BROADCAST,
];

/// Answers `host` to every caller. Returns the port.
fn answer_calls(listener: TcpListener) -> u16 {
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // An error of a caller that has left is irrelevant. Unread data would turn the close into a reset.
            let read = BufReader::new(&stream).read_line(&mut String::new());
            drop(read.and_then(|_| writeln!(stream, "host")));
        }
    });
    port
}

/// Answers `host` to every sender, and counts datagrams.
fn answer_datagrams(socket: UdpSocket) -> Arc<AtomicU64> {
    let datagrams = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&datagrams);
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(socket.send_to(b"host", from));
        }
    });
    datagrams
}

/// A task in the machine's network that serves the port 7070.
const SERVED: &str = r#"
job "served" {
  update { min_healthy_time = "0s" }
  group "g" {
    network {
      mode = "host"
      port "http" { static = 7070 }
    }
    task "t" {
      driver = "native"
      config {
        command = "/usr/bin/perl"
        args = ["-MIO::Socket::INET", "-e", <<-PERL
          my $in = IO::Socket::INET->new(LocalPort => 7070, Listen => 9, ReuseAddr => 1) or die;
          while (my $one = $in->accept) { my $said = <$one>; print $one "task\n" }
        PERL
        ]
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
"#;
/// The port of [`SERVED`].
const SERVED_PORT: u16 = 7_070;

/// The cluster's policy that opens one port of the machine.
fn open_port(dir: &Path, address: &str, port: u16) {
    let file = dir.join("policy.hcl");
    let text = format!(
        r#"policy {{
          egress {{
            rule "open" {{
              action   = "allow"
              protocol = "tcp"
              peers    = ["{MACHINE}"]
              ports    = ["{port}"]
            }}
          }}
        }}"#
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let set = ask(address, &["operator", "network", "set-policy", file]);
    assert_eq!(set.status.code(), Some(0), "{}", stderr(&set));
}

#[test]
fn bridged_tasks_reach_only_held_host_ports() {
    let name = "bridged_tasks_reach_only_held_host_ports";
    with_machine(name, |client| {
        let dir = tempfile::tempdir().unwrap();
        let (_process, address) = start(dir.path());
        let host = HostListeners::start();
        let resolver = UdpSocket::bind((MACHINE, 53)).unwrap();
        answer_datagrams(resolver);
        let job = JOB.replace("192.0.2.53", &MACHINE.to_string());
        let [first, second] = &run_as(dir.path(), &address, &job)[..] else {
            panic!("two instances");
        };
        let call = |to: Ipv4Addr, port| tcp(MACHINE, first.port, &format!("call {to} {port}"));
        let send = |to: Ipv4Addr, port| tcp(MACHINE, first.port, &format!("send {to} {port}"));
        let silence = Some("silence".to_owned());

        for to in [MACHINE, GATEWAY] {
            assert_eq!(call(to, host.tcp), silence, "{to}");
        }
        for to in LEAD_TO_MACHINE {
            assert_eq!(send(to, host.udp), silence, "{to}");
        }
        assert_eq!(host.datagrams(), 0);
        let others = in_namespace(client, || tcp(MACHINE, host.tcp, "hello"));
        assert_eq!(
            others,
            Some("host".to_owned()),
            "the listener answers others"
        );
        let denied = stdout(&ask(&address, &["net", "web", "--denied"]));
        assert!(denied.contains("built-in/host"), "{denied}");

        let answered = Some("answered: host".to_owned());
        assert_eq!(send(MACHINE, 53), answered, "the task's resolver");
        let by_first = Some(format!("called: tcp {}", first.inside));
        assert_eq!(call(MACHINE, second.port), by_first, "a published port");
        let file = job_file(dir.path(), SERVED);
        let ran = ask(&address, &["job", "run", file.to_str().unwrap()]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
        let by_task = "called: task".to_owned();
        for to in [MACHINE, GATEWAY] {
            poll_until("the task on the host", || {
                call(to, SERVED_PORT).filter(|answer| *answer == by_task)
            });
        }
        let stopped = ask(&address, &["job", "stop", "served"]);
        assert_eq!(stopped.status.code(), Some(0), "{}", stderr(&stopped));
        let listener = poll_until("the port of the task", || {
            TcpListener::bind(("0.0.0.0", SERVED_PORT)).ok()
        });
        answer_calls(listener);
        poll_until("the port to be closed", || {
            (call(MACHINE, SERVED_PORT) == silence).then_some(())
        });

        open_port(dir.path(), &address, host.tcp);
        poll_until("the cluster's policy", || {
            call(MACHINE, host.tcp).filter(|answer| answer == "called: host")
        });
        assert_eq!(call(GATEWAY, host.tcp), silence);
    });
}

#[test]
fn operator_leaves_host_open_to_bridged_tasks() {
    let name = "operator_leaves_host_open_to_bridged_tasks";
    with_machine(name, |_client| {
        let dir = tempfile::tempdir().unwrap();
        let (_server, address) = server(dir.path());
        let config = dir.path().join("agent.hcl");
        std::fs::write(&config, "client {\n  allow_host_from_bridge = true\n}\n").unwrap();
        let args = [OsStr::new("--config"), config.as_os_str()];
        let mut agent = agent(dir.path(), &address, ("n", "native"), &args);
        let left = Leftovers(dir.path().join("n"));
        let host = HostListeners::start();
        let [first, _] = &run_job(dir.path(), &address)[..] else {
            panic!("two instances");
        };

        let call = |to: Ipv4Addr| tcp(first.inside, 80, &format!("call {to} {}", host.tcp));
        let send = |to: Ipv4Addr| tcp(first.inside, 80, &format!("send {to} {}", host.udp));

        for to in [MACHINE, GATEWAY] {
            assert_eq!(call(to), Some("called: host".to_owned()), "{to}");
        }
        for to in LEAD_TO_MACHINE {
            assert!(send(to).is_some(), "{to}");
        }
        assert_eq!(host.datagrams(), LEAD_TO_MACHINE.len() as u64);
        agent.end(Signal::SIGTERM);
        drop(left);
    });
}

#[test]
fn networks_survive_agent_restart_and_end_with_allocs() {
    let name = "networks_survive_agent_restart_and_end_with_allocs";
    with_machine(name, |client| {
        let dir = tempfile::tempdir().unwrap();
        let left = Leftovers(dir.path().join("data/agent"));
        let (mut process, address) = start(dir.path());
        let before = run_job(dir.path(), &address);
        let hello =
            |instance: &Instance| in_namespace(client, || tcp(MACHINE, instance.port, "hello"));

        process.end(Signal::SIGKILL);
        for instance in &before {
            assert!(
                hello(instance).is_some(),
                "nobody runs but the tasks: {instance:?}"
            );
        }
        let (mut process, address) = start(dir.path());
        assert_eq!(instances(&address), before);
        for instance in &before {
            assert!(hello(instance).is_some(), "{instance:?}");
        }

        let stopped = ask(&address, &["job", "stop", "web"]);
        assert_eq!(stopped.status.code(), Some(0), "{}", stderr(&stopped));
        poll_until("the host veths to go", || (host_veths() == 0).then_some(()));
        assert_eq!(hello(&before[0]), None);
        // The next instances get other addresses.
        let after = run_job(dir.path(), &address);
        let again = after
            .iter()
            .filter(|after| before.iter().any(|one| one.inside == after.inside));
        assert_eq!(again.count(), 0, "{before:?} {after:?}");

        assert!(
            process.end(Signal::SIGTERM).success(),
            "{}",
            process.output()
        );
        assert_eq!(host_veths(), 0);
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        for device in ["lo", "up0"] {
            let programs = run("tc", &["filter", "show", "dev", device, "egress"]);
            assert_eq!(programs, "", "{device}");
        }
        drop(left);
    });
}

/// The agent uses unusual addresses. It recognizes its own resources on the machine by its node id, which is in its
/// data directory, and not by configuration.
#[test]
fn networks_left_by_killed_agent_are_removed() {
    let name = "networks_left_by_killed_agent_are_removed";
    with_machine(name, |_client| {
        let dir = tempfile::tempdir().unwrap();
        let (_server, address) = server(dir.path());
        let config = dir.path().join("agent.hcl");
        let text = "client {\n  bridge_network_subnet = \"10.77.0.0/24\"\n}\n";
        std::fs::write(&config, text).unwrap();
        let data = dir.path().join("n");
        let args = [OsStr::new("--config"), config.as_os_str()];
        let mut process = agent(dir.path(), &address, ("n", "native"), &args);
        let left = Leftovers(data.clone());
        let instances = run_job(dir.path(), &address);
        let node = json(&address, &["node", "status", "n"]);
        let node_id = node["Node"]["ID"].as_str().unwrap();
        let clean = |args: &[&str]| {
            let mut clean = muster();
            clean.args(["agent", "clean", "--data-dir"]).arg(&data);
            clean.args(args).output().unwrap()
        };

        process.end(Signal::SIGKILL);
        let refused = clean(&[]);
        let before = traces(node_id, &data);
        let cleaned = clean(&["--force"]);

        assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
        let message = stderr(&refused);
        assert!(message.contains("2 tasks run"), "{message}");
        let kinds: Vec<_> = before.keys().copied().collect();
        assert_eq!(kinds, TRACES, "{before:?}");
        for instance in &instances {
            let route = before["routes"].iter();
            let is_its = |route: &&String| route.starts_with(&instance.inside.to_string());
            assert_eq!(route.filter(is_its).count(), 1, "{before:?}");
        }
        assert_eq!(cleaned.status.code(), Some(0), "{}", stderr(&cleaned));
        // The kernel removes namespaces asynchronously.
        let after = traces(node_id, &data);
        let is_late = |kind: &&str| ["host veths", "routes"].contains(kind);
        assert!(after.keys().all(is_late), "{after:?}");
        poll_until("the host veths to go", || {
            traces(node_id, &data).is_empty().then_some(())
        });
        assert_eq!(stdout(&clean(&[])), "nothing was left\n");
        drop(left);
    });
}

/// Kinds of resources that an agent leaves on a machine where it had networks for allocations.
const TRACES: [&str; 8] = [
    "cgroups",
    "files",
    "host veths",
    "pins",
    "processes",
    "programs",
    "routes",
    "rules",
];

/// The remaining resources of a node whose agent had its data in `data`. An open namespace would keep its end of a veth
/// pair. So the host veth would stay as well.
fn traces(node_id: &str, data: &Path) -> BTreeMap<&'static str, Vec<String>> {
    let tree = format!("muster-{}", &node_id[..8]);
    let find = |dir: &Path, args: &[&str]| {
        // Other processes create and remove directories meanwhile, so `find` may print errors.
        let found = Command::new("find").arg(dir).args(args).output().unwrap();
        stdout(&found)
    };
    let programs = ["lo", "up0"].map(|device| {
        let list_filters = |place| run("tc", &["filter", "show", "dev", device, place]);
        list_filters("ingress") + &list_filters("egress")
    });
    let pins =
        [Path::new("/sys/fs/bpf"), &data.join("bpf")].map(|mount| find(mount, &["-name", node_id]));
    let devices = run("ip", &["-o", "link"]);
    let host_veths = devices.lines().filter(|line| line.contains(": mu-"));
    let routes = run("ip", &["route"]);
    let routes = routes.lines().filter(|line| line.contains(" dev mu-"));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let hierarchies = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup").then_some(Path::new(place))
    });
    let group = ["-type", "d", "-name", &tree];
    let cgroups: Vec<_> = hierarchies.map(|place| find(place, &group)).collect();
    let special = ["-type", "p", "-o", "-type", "s"];
    let all = [
        ("cgroups", cgroups.concat()),
        ("host veths", host_veths.collect::<Vec<_>>().join("\n")),
        ("files", find(data, &special)),
        ("pins", pins.concat()),
        ("processes", processes(&tree)),
        ("programs", programs.concat()),
        ("routes", routes.collect::<Vec<_>>().join("\n")),
        ("rules", run("nft", &["list", "ruleset"])),
    ];
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let all = all.into_iter().map(|(kind, text)| (kind, lines(text)));
    all.filter(|(_, found)| !found.is_empty()).collect()
}

/// The command lines of processes in a tree of cgroups. A zombie process has none.
fn processes(tree: &str) -> String {
    let mut found = String::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |file| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let command = read("cmdline").replace(['\0', '\n'], " ");
        if !command.is_empty() && read("cgroup").contains(&format!("/{tree}/")) {
            found.push_str(&command);
            found.push('\n');
        }
    }
    found
}

/// The rate at which a task may send, in bits a second.
const SENT: u64 = 8_000_000;
/// The rate at which a task may receive, in bits a second.
const RECEIVED: u64 = SENT / 2;
/// Bytes of a datagram's headers, which count.
const HEADERS: u64 = 28;

/// A task that sends four datagrams of a kilobyte every millisecond to `CLIENT`, and receives datagrams on its port.
fn flood_task(port: u16) -> String {
    format!(
        r#"
        job "talkative" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            network {{
              mode = "bridge"
              port "http" {{ to = 80 }}
            }}
            task "t" {{
              driver = "native"
              config {{
                command = "/usr/bin/perl"
                args = ["-MIO::Socket::INET", "-e", <<-PERL
                  my $in = IO::Socket::INET->new(LocalPort => 80, Proto => "udp") or die;
                  if (fork) {{ recv $in, my $said, 1500, 0 while 1 }}
                  my $out = IO::Socket::INET->new(Proto => "udp", PeerAddr => "{CLIENT}:{port}");
                  while (1) {{
                    $out->send("x" x 1000) for 1 .. 8;
                    select undef, undef, undef, 0.002;
                  }}
                PERL
                ]
              }}
              policy {{
                egress {{ rate = "{}kbit" }}
                ingress {{ rate = "{}kbit" }}
              }}
              resources {{
                cpu    = 100
                memory = 64
              }}
            }}
          }}
        }}
        "#,
        SENT / 1_000,
        RECEIVED / 1_000
    )
}

/// The counters of a task at a time.
#[derive(Clone, Copy, Debug)]
struct TrafficSample {
    at_ns: u64,
    sent: u64,
    received: u64,
}

impl TrafficSample {
    /// The values once packets in both directions exceeded their rates. The initial bursts are used up then.
    fn of(address: &str, id: &str) -> Option<Self> {
        let status = json(address, &["alloc", "status", id]);
        let task = &status["Stats"]["Tasks"]["t"];
        let count = |name: &str| task["Muster"][name].as_u64();
        let above = |name| count(name).filter(|packets| *packets > 0);
        above("NetTxLimited").and(above("NetRxLimited"))?;
        Some(Self {
            at_ns: task["Timestamp"].as_u64()?,
            sent: count("NetTxBytes")?,
            received: count("NetRxBytes")?,
        })
    }
}

/// In bits a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64()
}

/// A host at the other end of the link. It receives, and sends to a port of the machine faster than its task may
/// receive.
struct Peer {
    stop: Arc<AtomicBool>,
    /// Received bytes, with their headers.
    arrived_bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Peer {
    fn start(socket: UdpSocket, port: u16) -> Self {
        let (stop, arrived_bytes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&arrived_bytes));
        let receiving_socket = socket.try_clone().unwrap();
        let listen = move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(bytes) = receiving_socket.recv(&mut [0; 1_500]) {
                    counted.fetch_add(bytes as u64 + HEADERS, Ordering::Relaxed);
                }
            }
        };
        let stopped = Arc::clone(&stop);
        let send = move || {
            while !stopped.load(Ordering::Relaxed) {
                // Each datagram is counted, so send errors are ignored.
                drop(socket.send_to(&[0; 1_000], (MACHINE, port)));
                std::thread::sleep(Duration::from_micros(500));
            }
        };
        Self {
            stop,
            arrived_bytes,
            threads: vec![std::thread::spawn(listen), std::thread::spawn(send)],
        }
    }

    fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Traffic far above the rate is limited to the rate, within a twentieth, as in mode `host`
/// (`agent/tests/vm/rates.rs`).
#[test]
fn bridged_alloc_stays_within_rate_limits() {
    let name = "bridged_alloc_stays_within_rate_limits";
    with_machine(name, |client| {
        let dir = tempfile::tempdir().unwrap();
        let (_process, address) = start(dir.path());
        let socket = in_namespace(client, || UdpSocket::bind((CLIENT, 0)).unwrap());
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        let file = job_file(dir.path(), &flood_task(socket.local_addr().unwrap().port()));
        let ran = ask(&address, &["job", "run", file.to_str().unwrap()]);
        assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
        let (id, port) = poll_until("the published port", || {
            let answer = ask(&address, &["--json", "net", "talkative"]);
            let networks: Value = serde_json::from_slice(&answer.stdout).ok()?;
            let id = networks[0]["AllocID"].as_str()?.to_owned();
            let port = find_port(&json(&address, &["alloc", "status", &id]))?;
            Some((id, port))
        });
        let peer = Peer::start(socket, port);

        let first = poll_until("packets above the rates", || {
            TrafficSample::of(&address, &id)
        });
        let (arrived_bytes, begun) = (peer.arrived_bytes(), Instant::now());
        let last = poll_until("two seconds' worth", || {
            let now = TrafficSample::of(&address, &id)?;
            (now.received - first.received >= RECEIVED / 8 * 2).then_some(now)
        });
        let arrived = rate(peer.arrived_bytes() - arrived_bytes, begun.elapsed());

        let time = Duration::from_nanos(last.at_ns - first.at_ns);
        let sent = rate(last.sent - first.sent, time);
        let received = rate(last.received - first.received, time);
        let is_near = |rate: f64, limit: u64| (rate / limit as f64 - 1.0).abs() < 0.05;
        assert!(is_near(sent, SENT), "{sent} bits a second are sent");
        assert!(
            is_near(received, RECEIVED),
            "{received} bits a second are received"
        );
        // A receiver that is short of CPU time may receive less.
        assert!(
            arrived < 1.05 * SENT as f64,
            "{arrived} bits a second arrive"
        );
        assert!(
            arrived > 0.5 * SENT as f64,
            "{arrived} bits a second arrive"
        );
        drop(peer);
    });
}
