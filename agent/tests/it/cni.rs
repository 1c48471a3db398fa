//! Allocations in networks that CNI plugins set up.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use muster_agent::node::{Agent, ShutdownPolicy};
use muster_domain::alloc::{ClientStatus, TaskEventKind};
use muster_domain::job::{
    CniNetwork, DirectionPolicy, GroupNetwork, NetworkMode, NetworkPolicy, PolicyAction,
};
use muster_driver::fixture::write_program;
use muster_wire::rpc::LogStream;
use serde_json::json;

use crate::rules::refused_by;
use crate::support::{
    AllocBuilder, Machine, batch, eventually, kill, privileged, service, skipped,
};

fn in_network(alloc: AllocBuilder, policy: Option<NetworkPolicy>) -> AllocBuilder {
    alloc.with(|spec, _| {
        spec.groups[0].network = Some(GroupNetwork {
            mode: NetworkMode::Cni(CniNetwork {
                name: "net".to_owned(),
                args: BTreeMap::new(),
            }),
            ports: Vec::new(),
            policy,
            dns: None,
            hostname: String::new(),
        });
    })
}

/// The network `net` by Debian's `ptp`, if that is there: `10.222.NUMBER.0/24`, since tests run beside each other.
fn with_ptp(test: &str, machine: &Machine, number: u8) -> bool {
    if !privileged(test) {
        return false;
    }
    if !Path::new("/usr/lib/cni/ptp").exists() {
        skipped(
            test,
            "no CNI plugin ptp; run: apt-get install containernetworking-plugins",
        );
        return false;
    }
    let network = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{
        "type": "ptp",
        "dns": {"nameservers": [format!("10.222.{number}.1")], "search": ["lab"]},
        "ipam": {
            "type": "host-local",
            "dataDir": machine.cni().join("ipam"),
            "ranges": [[{"subnet": format!("10.222.{number}.0/24")}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }]});
    fs::write(machine.cni().join("net.conflist"), network.to_string()).unwrap();
    true
}

/// Addresses that are taken.
fn taken(machine: &Machine) -> Vec<String> {
    let entries = fs::read_dir(machine.cni().join("ipam/net"))
        .into_iter()
        .flatten();
    let names = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter(|name| name.starts_with("10.")).collect()
}

/// A task goes on in its network after its agent was killed, and the next agent removes it at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_cni_network_outlives_its_agent() {
    let machine = Machine::new();
    if !with_ptp("a_cni_network_outlives_its_agent", &machine, 8) {
        return;
    }
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let script = "echo $NOMAD_ALLOC_IP_http $NOMAD_ALLOC_ADDR_http $NOMAD_ALLOC_INTERFACE_http
        grep -h -e lab -e nameserver /etc/resolv.conf; ls /sys/class/net; echo end; exec sleep 1000";
    let alloc = in_network(service(1, script), None).port("http", 28_081);
    let alloc_id = server.place(alloc.build()).await;
    let printed = eventually("what the task sees", async || {
        let printed = server.log(alloc_id, LogStream::Stdout).await;
        printed.contains("end\n").then_some(printed)
    })
    .await;
    let held = taken(&machine);
    let namespace = machine.data().join(format!("cni/{alloc_id}.netns"));
    let was_there = namespace.exists();

    agent.kill();
    let next = machine.killable_agent(&server);
    server
        .reported(alloc_id, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.kind == TaskEventKind::Recovered)
        })
        .await;
    let still = taken(&machine);
    server.stop(alloc_id).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    eventually("the address is given back", async || {
        (taken(&machine).is_empty() && !namespace.exists()).then_some(())
    })
    .await;
    next.kill();

    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "10.222.8.2 10.222.8.2:28081 eth0", "{printed}");
    assert!(
        printed.contains("search lab\nnameserver 10.222.8.1\n"),
        "{printed}"
    );
    assert_eq!(held, ["10.222.8.2"]);
    assert_eq!(still, held);
    assert!(was_there);
}

/// An agent that was killed finds that its task has ended meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn cni_network_of_killed_agent_is_removed() {
    let machine = Machine::new();
    if !with_ptp("cni_network_of_killed_agent_is_removed", &machine, 9) {
        return;
    }
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server
        .place(in_network(service(1, "exec sleep 1000"), None).build())
        .await;
    let pid = server.pid(alloc_id).await;
    let held = taken(&machine);
    agent.kill();
    kill(pid);

    let next = machine.killable_agent(&server);
    server.status(alloc_id, ClientStatus::Failed).await;
    let namespace = machine.data().join(format!("cni/{alloc_id}.netns"));
    eventually("the address is given back", async || {
        (taken(&machine).is_empty() && !namespace.exists()).then_some(())
    })
    .await;
    next.kill();

    assert_eq!(held, ["10.222.9.2"]);
}

/// Policies hold in these networks, and what is sent is counted.
#[tokio::test(flavor = "multi_thread")]
async fn policies_and_counts_hold_in_cni_networks() {
    let test = "policies_and_counts_hold_in_cni_networks";
    let machine = Machine::new();
    if !with_ptp(test, &machine, 10) {
        return;
    }
    if muster_agent::bpf::Bpf::object().is_err() {
        skipped(test, "no eBPF programs; run: cargo xtask build-ebpf");
        return;
    }
    let server = machine.server();
    let mut config = machine.config(&server);
    // The tasks call a listener of the host.
    config.allow_host_from_bridge = true;
    let agent = Agent::start(config).await.unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "if exec 3<>/dev/tcp/10.222.10.1/{port}; then echo passes; else echo refused; fi; exec sleep 1000"
    );
    let config = json!({"command": "/bin/bash", "args": ["-c", script]});
    let closed = NetworkPolicy {
        egress: DirectionPolicy {
            default: Some(PolicyAction::Deny),
            ..DirectionPolicy::default()
        },
        ..NetworkPolicy::default()
    };
    let task = |name, policy| {
        let alloc = service(name, "").driver("native", &config);
        in_network(alloc, policy).build()
    };

    let open = server.place(task(1, None)).await;
    let passes = eventually("a word of the task", async || {
        let printed = server.log(open, LogStream::Stdout).await;
        printed.ends_with('\n').then_some(printed)
    })
    .await;
    server
        .usage(open, "counted packets", |stats| {
            stats.net_tx_packets > Some(0) && stats.tcp_opened == Some(1)
        })
        .await;
    let with_policy = server.place(task(2, Some(closed))).await;
    let refused = eventually("a word of the task", async || {
        let printed = server.log(with_policy, LogStream::Stdout).await;
        printed.ends_with('\n').then_some(printed)
    })
    .await;
    eventually("the refusal is counted", async || {
        (refused_by(&server, with_policy, "default").await > 0).then_some(())
    })
    .await;
    for alloc_id in [open, with_policy] {
        server.stop(alloc_id).await;
        server.status(alloc_id, ClientStatus::Complete).await;
    }
    eventually("the addresses are given back", async || {
        taken(&machine).is_empty().then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;

    assert_eq!(
        (passes.as_str(), refused.as_str()),
        ("passes\n", "refused\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cni_plugin_failure_becomes_task_event() {
    if !privileged("cni_plugin_failure_becomes_task_event") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let script = r#"[ "$CNI_COMMAND" = ADD ] || exit 0; echo '{"code":7,"msg":"no luck"}'; exit 1"#;
    let plugin = machine.cni().join("broken");
    write_program(&plugin, &format!("#!/bin/sh\n{script}\n"));
    for (name, words) in [
        (1, "unknown CNI network `net`"),
        (2, "CNI plugin broken failed: code 7: no luck"),
    ] {
        let alloc_id = server
            .place(in_network(batch(name, "true"), None).build())
            .await;
        let task = server.status(alloc_id, ClientStatus::Failed).await;
        let mut events = task.events.iter();
        assert!(
            events.any(|event| event.message.contains(words)),
            "{task:?}"
        );
        let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "broken"});
        fs::write(machine.cni().join("net.conf"), network.to_string()).unwrap();
    }
    agent.end().await;
}

/// The node says which networks and plugins it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_names_its_cni_networks() {
    let machine = Machine::new();
    if !with_ptp("a_node_names_its_cni_networks", &machine, 11) {
        return;
    }
    let server = machine.server();
    let agent = machine.agent(&server).await;

    let node = server.node(|_| true).await;

    assert_eq!(node.attributes["network.cni.net"], "1.0.0");
    assert!(node.attributes.contains_key("plugins.cni.version.ptp"));
    agent.end().await;
}
