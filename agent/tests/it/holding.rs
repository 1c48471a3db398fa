//! Resources of a node that an allocation has for itself: cores and host volumes.

use muster_agent::node::Agent;
use muster_domain::alloc::ClientStatus;
use muster_domain::job::{Propagation, VolumeAsk, VolumeMount};
use muster_domain::node::HostVolume;
use muster_domain::resources::HeldCores;
use muster_wire::rpc::LogStream;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use tempfile::TempDir;

use crate::support::{
    AllocBuilder, FakeServer, Machine, batch, eventually, privileged, service, skipped,
};

async fn agent_with_volume(machine: &Machine, server: &FakeServer, path: &str) -> Agent {
    let mut config = machine.config(server);
    let volume = HostVolume {
        path: path.to_owned(),
        read_only: true,
    };
    config.host_volumes.insert("words".to_owned(), volume);
    Agent::start(config).await.unwrap()
}

fn with_volume(alloc: AllocBuilder) -> AllocBuilder {
    alloc.with(|spec, _| {
        let ask = VolumeAsk {
            source: "words".to_owned(),
            read_only: true,
        };
        spec.groups[0].volumes.insert("data".to_owned(), ask);
        spec.groups[0].tasks[0].volume_mounts.push(VolumeMount {
            volume: "data".to_owned(),
            destination: "/srv/words".to_owned(),
            read_only: false,
            propagation: Propagation::Private,
            selinux_label: String::new(),
        });
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_sees_its_volume() {
    if !privileged("a_task_sees_its_volume") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let volume = tempfile::tempdir().unwrap();
    std::fs::write(volume.path().join("word"), "seen\n").unwrap();
    let path = volume.path().to_str().unwrap();
    let agent = agent_with_volume(&machine, &server, path).await;
    server.node(|node| node.volumes.contains_key("words")).await;

    let script = "cat /srv/words/word; touch /srv/words/x || echo read-only";
    let seen = server.place(with_volume(batch(1, script)).build()).await;
    let raw = server
        .place(with_volume(batch(2, "true")).raw().build())
        .await;
    server.status(seen, ClientStatus::Complete).await;
    server.status(raw, ClientStatus::Failed).await;

    let log = server.log(seen, LogStream::Stdout).await;
    assert_eq!(log, "seen\nread-only\n");
    let why = server.report(raw).unwrap().task_states.remove(0).events;
    let why: String = why.into_iter().map(|event| event.message).collect();
    assert!(why.contains("need isolation \"contained\""), "{why}");
    agent
        .shutdown(muster_agent::node::ShutdownPolicy::StopTasks)
        .await;
}

/// A shared mount at a directory of its own. It ends with the value, and the mounts below it as well.
struct SharedMount(TempDir);

impl SharedMount {
    fn new() -> rustix::io::Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, None)?;
        let shared = Self(dir);
        rustix::mount::mount_change(shared.0.path(), MountPropagationFlags::SHARED)?;
        Ok(shared)
    }

    /// Mounts another file system below it, with a file.
    fn mount_below(&self, name: &str) {
        let dir = self.0.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        rustix::mount::mount("tmpfs", &dir, "tmpfs", MountFlags::NOSUID, None).unwrap();
        std::fs::write(dir.join("word"), format!("{name}\n")).unwrap();
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        let flags = UnmountFlags::DETACH;
        let _gone = rustix::mount::unmount(self.0.path(), flags);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_receives_mounts_of_host() {
    let name = "volume_receives_mounts_of_host";
    if !privileged(name) {
        return;
    }
    let Ok(volume) = SharedMount::new() else {
        return skipped(name, "mounting is refused here; run: cargo xtask vm");
    };
    volume.mount_below("before");
    let machine = Machine::new();
    let server = machine.server();
    let path = volume.0.path().to_str().unwrap();
    let agent = agent_with_volume(&machine, &server, path).await;
    server.node(|node| node.volumes.contains_key("words")).await;
    let script = "echo up; until test -e /srv/words/go; do sleep 0.05; done; cat /srv/words/*/word";
    let start = |id, propagation| {
        let alloc = with_volume(batch(id, script));
        server.place(with_propagation(alloc, propagation).build())
    };

    let slave = start(1, Propagation::HostToTask).await;
    let private = start(2, Propagation::Private).await;
    for alloc_id in [slave, private] {
        eventually("the task runs", async || {
            (server.log(alloc_id, LogStream::Stdout).await == "up\n").then_some(())
        })
        .await;
    }
    volume.mount_below("later");
    std::fs::write(volume.0.path().join("go"), "").unwrap();
    server.status(slave, ClientStatus::Complete).await;
    server.status(private, ClientStatus::Failed).await;

    let log = server.log(slave, LogStream::Stdout).await;
    assert_eq!(log, "up\nbefore\nlater\n");
    assert_eq!(server.log(private, LogStream::Stdout).await, "up\n");
    agent
        .shutdown(muster_agent::node::ShutdownPolicy::StopTasks)
        .await;
}

fn with_propagation(alloc: AllocBuilder, propagation: Propagation) -> AllocBuilder {
    alloc.with(|spec, _| {
        spec.groups[0].tasks[0].volume_mounts[0].propagation = propagation;
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_on_its_cores() {
    if !privileged("a_task_runs_on_its_cores") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|_| true).await;
    let Some(&core) = node.resources.core_ids.last() else {
        skipped(
            "a_task_runs_on_its_cores",
            "the cpuset controller is missing",
        );
        agent.end().await;
        return;
    };

    let script = "grep Cpus_allowed_list /proc/self/status; echo $NOMAD_CPU_CORES";
    let alloc = batch(1, script).with(|_, holding| {
        let ids = vec![core];
        let mhz = 1_000;
        holding.cores.push(HeldCores {
            task_at: 0,
            ids,
            mhz,
        });
    });
    let alloc_id = server.place(alloc.build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    let log = server.log(alloc_id, LogStream::Stdout).await;
    assert_eq!(log, format!("Cpus_allowed_list:\t{core}\n{core}\n"));
    agent.end().await;
}

fn cores_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_cores_exclude_other_tasks() {
    const NAME: &str = "exclusive_cores_exclude_other_tasks";
    if !privileged(NAME) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|_| true).await;
    let [0, core] = node.resources.core_ids[..] else {
        skipped(NAME, "written for two cores and a cpuset controller");
        agent.end().await;
        return;
    };
    let before = server.place(service(1, "sleep 600").build()).await;
    server.status(before, ClientStatus::Running).await;
    let pid = server.pid(before).await;

    let holder = service(2, "sleep 600").with(|_, holding| {
        let ids = vec![core];
        let mhz = 1_000;
        holding.cores.push(HeldCores {
            task_at: 0,
            ids,
            mhz,
        });
    });
    let holder = server.place(holder.build()).await;
    server.status(holder, ClientStatus::Running).await;
    let meanwhile = batch(3, "grep Cpus_allowed_list /proc/self/status").build();
    let meanwhile = server.place(meanwhile).await;
    server.status(meanwhile, ClientStatus::Complete).await;

    assert_eq!(cores_of(server.pid(holder).await), core.to_string());
    assert_eq!(cores_of(pid), "0");
    let log = server.log(meanwhile, LogStream::Stdout).await;
    assert_eq!(log, "Cpus_allowed_list:\t0\n");

    agent.leave().await;
    let agent = machine.agent(&server).await;
    server.stop(holder).await;
    server.status(holder, ClientStatus::Complete).await;
    assert_eq!(cores_of(pid), format!("0-{core}"));
    agent.end().await;
}
