//! A node whose tasks want all of it.

use std::time::Duration;

use muster_domain::alloc::ClientStatus;
use muster_domain::resources::CpuMhz;

use crate::limits::stats;
use crate::support::{Machine, eventually, privileged, service};

/// Tasks that weigh as much as the node has, with four processes a core that want all of it: the agent goes on being heard.
/// A server waits for longer than three seconds before it takes a node for lost; other tests want the machine too.
#[tokio::test(flavor = "multi_thread")]
async fn cpu_saturation_does_not_starve_agent_heartbeats() {
    let name = "cpu_saturation_does_not_starve_agent_heartbeats";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    let (tasks, processes) = (4, node.resources.cores);
    let share = u32::try_from(node.resources.total.cpu_mhz / tasks).unwrap();
    let script = format!(
        "i=0; while [ $i -lt {processes} ]; do while :; do :; done & i=$((i+1)); done; wait"
    );
    let mut placed = Vec::new();
    for number in 1..=u32::try_from(tasks).unwrap() {
        let burns = service(number, &script).with(|spec, _| {
            spec.groups[0].tasks[0].resources.cpu = CpuMhz(share);
        });
        placed.push(server.place(burns.build()).await);
    }
    for &alloc_id in &placed {
        server.status(alloc_id, ClientStatus::Running).await;
    }
    for &alloc_id in &placed {
        eventually("the task to burn", async || {
            (stats(&server, alloc_id).await.cpu > Some(Duration::from_millis(100))).then_some(())
        })
        .await;
    }

    server.longest_silence();
    let before = server.heartbeats();
    eventually("fifteen heartbeats", async || {
        (server.heartbeats() >= before + 15).then_some(())
    })
    .await;
    let silence = server.longest_silence();

    eprintln!("{silence:?} without a heartbeat");
    assert!(silence < Duration::from_secs(3), "{silence:?}");
    for alloc_id in placed {
        server.stop(alloc_id).await;
    }
    agent.end().await;
}
