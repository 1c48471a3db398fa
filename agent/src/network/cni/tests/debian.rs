//! Debian's plugins, in a network namespace that is the machine's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command as Program;

use nix::sched::{CloneFlags, setns, unshare};

use super::*;
use crate::network::bridge::netlink::{LOOPBACK, Netlink};

/// Runs `body` with a runtime in a fresh network namespace, if the plugins are there.
fn on_a_machine(test: &'static str, plugins: &[&str], body: impl AsyncFnOnce(TestPlugins) + Send) {
    if !is_root(test) {
        return;
    }
    let mut all = plugins.iter();
    if let Some(missing) = all.find(|name| !Path::new("/usr/lib/cni").join(name).exists()) {
        skipped(
            test,
            &format!("no CNI plugin {missing}; run: apt-get install containernetworking-plugins"),
        );
        return;
    }
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Netlink::open().unwrap().set_link_up(LOOPBACK).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(body(TestPlugins::new()));
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Address management in the place's own directory.
fn ipam(place: &TestPlugins) -> Value {
    json!({
        "type": "host-local",
        "dataDir": place.dir.path().join("ipam"),
        "ranges": [[{"subnet": "10.222.7.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    })
}

/// The addresses in use.
fn taken(place: &TestPlugins) -> Vec<String> {
    let entries = fs::read_dir(place.dir.path().join("ipam/net"))
        .unwrap()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("10.")).collect()
}

fn devices() -> Vec<String> {
    let printed = Program::new("ip").args(["-o", "link"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    printed
        .lines()
        .filter_map(|line| Some(line.split(": ").nth(1)?.to_owned()))
        .collect()
}

/// Answers one connection at `port` in the namespace.
fn serve(namespace: &OwnedFd, port: u16) -> std::thread::JoinHandle<()> {
    let namespace = namespace.try_clone().unwrap();
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let server = std::thread::spawn(move || {
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
        ready.send(()).unwrap();
        listener.accept().unwrap().0.write_all(b"inside").unwrap();
    });
    is_ready.recv().unwrap();
    server
}

fn read_from(address: &str) -> String {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn rules() -> String {
    let printed = Program::new("iptables")
        .args(["-t", "nat", "-S"])
        .output()
        .unwrap();
    String::from_utf8(printed.stdout).unwrap()
}

#[test]
fn a_bridge_publishes_ports() {
    let plugins = ["bridge", "host-local", "portmap"];
    on_a_machine("a_bridge_publishes_ports", &plugins, async |place| {
        place.network(
            "net",
            &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
                {"type": "bridge", "bridge": "mst0", "isGateway": true, "ipMasq": true, "ipam": ipam(&place)},
                {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
            ]}),
        );
        let networks = place.open();

        let (namespace, result) = set_up(&networks, &desired(&[])).await.unwrap();
        let address = result.address().unwrap();
        let server = serve(&namespace, 80);
        let direct = read_from(&format!("{address}:80"));
        server.join().unwrap();
        let server = serve(&namespace, 80);
        let published = read_from("127.0.0.1:28080");
        server.join().unwrap();
        let held = taken(&place);
        // The next agent removes it.
        drop(networks);
        let next = place.open();
        next.recover(next.orphans(&BTreeSet::new())).await;

        assert_eq!((direct.as_str(), published.as_str()), ("inside", "inside"));
        assert_eq!(held, [address.to_string()]);
        assert_eq!(taken(&place), Vec::<String>::new());
        assert_eq!(devices(), ["lo", "mst0"]);
        let rules = rules();
        assert!(
            !rules.contains("28080") && !rules.contains(&alloc_id().to_string()),
            "{rules}"
        );
        assert!(!place.namespace().exists());
    });
}

/// The second plugin refuses the port mapping. The address and devices of the first one are released.
#[test]
fn a_half_made_bridge_is_undone() {
    let plugins = ["bridge", "host-local", "portmap"];
    on_a_machine("a_half_made_bridge_is_undone", &plugins, async |place| {
        place.network(
            "net",
            &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
                {"type": "bridge", "bridge": "mst0", "isGateway": true, "ipam": ipam(&place)},
                {"type": "portmap", "capabilities": {"portMappings": true}, "markMasqBit": 99},
            ]}),
        );
        let networks = place.open();

        let error = set_up(&networks, &desired(&[])).await.unwrap_err();

        let message = chain(&error);
        assert!(
            message.starts_with("CNI plugin portmap failed: code "),
            "{message}"
        );
        assert!(message.contains("MasqMarkBit"), "{message}");
        assert_eq!(taken(&place), Vec::<String>::new());
        assert_eq!(devices(), ["lo", "mst0"]);
    });
}

#[test]
fn ptp_connects_an_allocation() {
    on_a_machine(
        "ptp_connects_an_allocation",
        &["ptp", "host-local"],
        async |place| {
            place.network(
            "net",
            &json!({"cniVersion": "0.4.0", "name": "net", "type": "ptp", "ipMasq": true, "ipam": ipam(&place),
                "dns": {"nameservers": ["10.222.7.1"], "search": ["lab"]}}),
        );
            let networks = place.open();

            let (namespace, result) = set_up(&networks, &desired(&[])).await.unwrap();
            let server = serve(&namespace, 8_080);
            let direct = read_from(&format!("{}:8080", result.address().unwrap()));
            server.join().unwrap();
            let record = locked(&networks.records)[&alloc_id()].clone();
            networks.check(alloc_id(), &record).await.unwrap();
            networks.release(alloc_id()).await.unwrap();

            assert_eq!(direct, "inside");
            let dns = result.dns().unwrap();
            assert_eq!(
                (dns.servers.len(), dns.searches),
                (1, vec!["lab".to_owned()])
            );
            assert_eq!(taken(&place), Vec::<String>::new());
            assert_eq!(devices(), ["lo"]);
        },
    );
}

/// The device leads nowhere: `dummy` where the kernel has it, else one end of a pair.
#[test]
fn macvlan_connects_two_allocations_worth() {
    on_a_machine(
        "macvlan_connects_two_allocations_worth",
        &["macvlan", "host-local"],
        async |place| {
            let ip = |words: &str| {
                let done = Program::new("ip").args(words.split(' ')).output().unwrap();
                done.status.success()
            };
            assert!(ip("link add mst1 type dummy") || ip("link add mst1 type veth peer name mst2"));
            assert!(ip("link set mst1 up"));
            place.network(
                "net",
                &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
                    {"type": "macvlan", "master": "mst1", "mode": "bridge", "ipam": ipam(&place)},
                ]}),
            );
            let networks = place.open();

            let (namespace, result) = set_up(&networks, &desired(&[])).await.unwrap();
            let address = result.address().unwrap();
            // The machine itself does not reach a macvlan device: the allocation does.
            let server = serve(&namespace, 80);
            let inside = std::thread::spawn(move || {
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
                read_from(&format!("{address}:80"))
            });
            let read = inside.join().unwrap();
            server.join().unwrap();
            networks.release(alloc_id()).await.unwrap();

            assert_eq!(read, "inside");
            assert_eq!(taken(&place), Vec::<String>::new());
        },
    );
}
