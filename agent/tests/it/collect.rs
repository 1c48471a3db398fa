//! Removal of what has finished, and of everything.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_agent::bpf::{Bpf, BpfConfig, ensure_bpffs};
use muster_agent::node::{Agent, ShutdownPolicy};
use muster_agent::{GcOutcome, GcReason, KeptReason};
use muster_domain::alloc::ClientStatus;
use muster_domain::id::AllocId;
use muster_domain::job::{BitRate, GroupNetwork, NetworkMode, NetworkPolicy, PolicyAction};
use muster_driver::mock::{MockDriver, MockHost, MockTask};
use muster_wire::codec;
use muster_wire::rpc::{NodeReply, NodeRequest};

use crate::support::{FakeServer, Machine, batch, ended, eventually, privileged, service, skipped};

/// An agent whose tasks are no processes, and which keeps `allocs_max` allocations.
async fn agent_with(
    machine: &Machine,
    server: &FakeServer,
    host: &MockHost,
    allocs_max: usize,
) -> Agent {
    let mut config = machine.config(server);
    config.driver_command.clear();
    config.drivers = vec![("mock".to_owned(), Arc::new(MockDriver::on(host.clone())))];
    config.gc.limits.allocs_max = allocs_max;
    Agent::start(config).await.unwrap()
}

/// Returns when the server has committed every report: what it does not know of is not collected.
async fn reports_committed(agent: &Agent) {
    eventually("reports are committed", async || {
        let outlook = agent.collect_now(true).await.unwrap();
        let has_unreported = outlook
            .kept
            .iter()
            .any(|(why, _)| *why == KeptReason::Unreported);
        (!has_unreported).then_some(())
    })
    .await;
}

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Thirty thousand files and a few megabytes: when the answer comes, they are deleted and counted.
#[tokio::test(flavor = "multi_thread")]
async fn forced_gc_returns_after_space_is_freed() {
    if !privileged("forced_gc_returns_after_space_is_freed") {
        return;
    }
    const FILES: u64 = 30_000;
    const LARGE: usize = 4 << 20;
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    let alloc = batch(1, "").driver("mock", &config).build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    reports_committed(&agent).await;
    let data = machine.alloc_dir(alloc_id).join("alloc/data");
    for name in 0..FILES {
        std::fs::File::create(data.join(name.to_string())).unwrap();
    }
    std::fs::write(data.join("large"), vec![1; LARGE]).unwrap();

    let would = agent.collect_now(true).await.unwrap();
    let collected = agent.collect_now(false).await.unwrap();

    assert_eq!(count(&machine.data().join("trash")), 0);
    assert_eq!((would.freed, would.inodes, would.bytes), (1, 0, 0));
    assert_eq!((collected.freed, collected.kept), (1, Vec::new()));
    assert!(collected.inodes > FILES, "{}", collected.inodes);
    assert!(collected.bytes >= LARGE as u64, "{}", collected.bytes);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// A client that waits for a collection hears that the node is alive, even if a driver is silent about a destroy.
#[tokio::test(flavor = "multi_thread")]
async fn gc_waiter_receives_node_keepalives() {
    if !privileged("gc_waiter_receives_node_keepalives") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    host.refuse_destroys(true);
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    let alloc = batch(1, "").driver("mock", &config).build();
    let alloc_id = server.place(alloc).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    reports_committed(&agent).await;
    host.refuse_destroys(false);
    host.hold_destroys(true);

    let replies = server
        .ask(NodeRequest::CollectGarbage { dry_run: false }, |replies| {
            if replies.len() == 2 {
                host.hold_destroys(false);
            }
            matches!(replies.last(), Some(NodeReply::Collected { .. }))
        })
        .await;

    assert_eq!(replies[..2], [NodeReply::Idle, NodeReply::Idle]);
    let Some(NodeReply::Collected { freed, kept, .. }) = replies.last() else {
        panic!("{replies:?}");
    };
    assert_eq!((*freed, kept.len()), (1, 0));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_maximum_stays() {
    if !privileged("exactly_the_maximum_stays") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 5).await;
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();

    let mut allocs = Vec::new();
    for name in 0..20 {
        let alloc = batch(name, "").driver("mock", &config).build();
        allocs.push(server.place(alloc).await);
        server
            .status(allocs[name as usize], ClientStatus::Complete)
            .await;
    }
    let mut collection = agent.collection();
    let done = collection.wait_for(|state| {
        state.destroyed.get(&GcReason::Allocs) == Some(&15) && state.under_way == 0
    });
    drop(done.await.unwrap());

    // The newest stay, and forced collection says of each whether it is freed or kept.
    for (at, alloc_id) in allocs.iter().enumerate() {
        assert_eq!(machine.alloc_dir(*alloc_id).exists(), at >= 15, "{at}");
    }
    reports_committed(&agent).await;
    let outlook = agent.collect_now(true).await.unwrap();
    assert_eq!((outlook.freed, outlook.kept), (5, Vec::new()));
    let running = MockTask::forever().to_config();
    let running = server
        .place(service(99, "").driver("mock", &running).build())
        .await;
    server.status(running, ClientStatus::Running).await;
    let collected = agent.collect_now(false).await.unwrap();
    // The new one has sent the oldest away.
    assert_eq!(
        (collected.freed, collected.kept),
        (4, vec![(KeptReason::Running, 1)])
    );
    assert_eq!(count(&machine.data().join("alloc")), 1);
    assert_eq!(host.tasks(), 1);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The driver is asked again before the directories go, after each start; meanwhile others are collected.
#[tokio::test(flavor = "multi_thread")]
async fn refused_driver_destroy_is_retried_without_blocking_others() {
    if !privileged("refused_driver_destroy_is_retried_without_blocking_others") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    host.refuse_destroys(true);
    let config = MockTask::exits(Duration::from_millis(1), 1).to_config();
    let twice = batch(1, "").driver("mock", &config).restarts(1).build();
    let refused = server.place(twice).await;
    server.status(refused, ClientStatus::Failed).await;
    assert_eq!(host.tasks(), 2, "the driver destroyed something");
    host.refuse_destroys(false);
    let other = batch(2, "").driver("mock", &config).build();
    let other = server.place(other).await;
    server.status(other, ClientStatus::Failed).await;
    host.refuse_destroys(true);
    reports_committed(&agent).await;

    let collected = agent.collect_now(false).await.unwrap();

    assert_eq!(
        (collected.freed, collected.kept),
        (1, vec![(KeptReason::Refused, 1)])
    );
    assert!(machine.alloc_dir(refused).exists() && !machine.alloc_dir(other).exists());
    assert_eq!(agent.collection().borrow().refusals, 1);
    host.refuse_destroys(false);
    let collected = agent.collect_now(false).await.unwrap();
    assert_eq!((collected.freed, collected.kept), (1, Vec::new()));
    assert_eq!(host.tasks(), 0);
    assert!(!machine.alloc_dir(refused).exists());
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Two of three are destroyed, and the driver keeps the third.
#[tokio::test(flavor = "multi_thread")]
async fn server_receives_gc_result() {
    if !privileged("server_receives_gc_result") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    for name in 1..=3 {
        host.refuse_destroys(name == 1);
        let alloc = server
            .place(batch(name, "").driver("mock", &config).build())
            .await;
        server.status(alloc, ClientStatus::Complete).await;
    }
    host.refuse_destroys(true);
    reports_committed(&agent).await;
    assert_eq!(server.collected(), []);

    agent.collect_now(false).await.unwrap();

    let collection = eventually("the server is told", async || server.collected().pop()).await;
    assert_eq!(
        collection.destroyed,
        BTreeMap::from([(GcReason::Forced, 2)])
    );
    assert_eq!(collection.kept, BTreeMap::from([(KeptReason::Refused, 1)]));
    assert!(
        collection.refusals > 0 && collection.inodes > 0,
        "{collection:?}"
    );
    assert!(collection.began_at < collection.ended_at, "{collection:?}");
    assert_eq!(collection.thresholds.allocs_max, 50);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The next agent knows a task that a driver did not destroy. An allocation that the server forgets goes without the
/// driver, and the refusal is counted.
#[tokio::test(flavor = "multi_thread")]
async fn refused_collections_outlive_the_agent() {
    if !privileged("refused_collections_outlive_the_agent") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    host.refuse_destroys(true);
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    let alloc_id = server
        .place(batch(1, "").driver("mock", &config).build())
        .await;
    server.status(alloc_id, ClientStatus::Complete).await;
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let mut config = machine.config(&server);
    config.driver_command.clear();
    // The next agent has another driver in its place.
    config.drivers = vec![("other".to_owned(), Arc::new(MockDriver::on(host.clone())))];
    let agent = Agent::start(config).await.unwrap();
    eventually("a session", async || server.is_connected().then_some(())).await;

    server.forget(alloc_id).await;
    eventually("its directories go", async || {
        (!machine.alloc_dir(alloc_id).exists()).then_some(())
    })
    .await;

    // The driver that is gone did not let go of it.
    eventually("it is counted", async || {
        (agent.collection().borrow().refusals == 1).then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Of what had ended only that is said again of which the servers know nothing; both can be collected then.
#[tokio::test(flavor = "multi_thread")]
async fn ends_known_to_servers_are_not_resent() {
    if !privileged("ends_known_to_servers_are_not_resent") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    let mut ended = Vec::new();
    for name in [1, 2] {
        let alloc = batch(name, "").driver("mock", &config).build();
        let alloc_id = server.place(alloc).await;
        server.status(alloc_id, ClientStatus::Complete).await;
        ended.push(alloc_id);
    }
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    server.know(ended[0], ClientStatus::Complete);
    server.know(ended[1], ClientStatus::Running);
    let before = server.messages().len();

    let agent = agent_with(&machine, &server, &host, 50).await;
    reports_committed(&agent).await;
    let collected = agent.collect_now(false).await.unwrap();

    let messages = server.messages().split_off(before);
    let reported: Vec<AllocId> = messages.into_iter().flat_map(|(_, ids)| ids).collect();
    assert_eq!(reported, ended[1..]);
    assert_eq!((collected.freed, collected.kept), (2, Vec::new()));
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// An agent may die after each step of a destruction: everything is moved, half of it is deleted, the record is gone
/// and a directory is not. The next one leaves nothing of it, and nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn crash_after_any_gc_step_is_recovered() {
    if !privileged("crash_after_any_gc_step_is_recovered") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    let mut ended = Vec::new();
    for name in 0..4 {
        let alloc = batch(name, "").driver("mock", &config).build();
        let alloc_id = server.place(alloc).await;
        server.status(alloc_id, ClientStatus::Complete).await;
        ended.push(alloc_id);
    }
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let trash = machine.data().join("trash");
    let moved = |from: PathBuf, name: String| std::fs::rename(from, trash.join(name)).unwrap();
    // The first lost its directories, not its logs; the second both; the third a part of what was moved; all have
    // their records.
    for (at, alloc_id) in ended.iter().take(3).enumerate() {
        moved(machine.alloc_dir(*alloc_id), format!("{alloc_id}.alloc"));
        if at > 0 && machine.log_dir(*alloc_id).exists() {
            moved(machine.log_dir(*alloc_id), format!("{alloc_id}.logs"));
        }
    }
    std::fs::remove_dir_all(trash.join(format!("{}.alloc/alloc", ended[2]))).unwrap();
    std::fs::create_dir_all(trash.join("deep-0/a/b")).unwrap();
    // Of one that is in no record any more, its directory.
    let stray = machine.alloc_dir(AllocId([7; 16]));
    std::fs::create_dir_all(stray.join("alloc/data")).unwrap();

    let agent = agent_with(&machine, &server, &host, 50).await;
    reports_committed(&agent).await;
    let collected = agent.collect_now(false).await.unwrap();
    eventually("nothing is left", async || {
        let left = [
            machine.data().join("alloc"),
            machine.data().join("logs"),
            trash.clone(),
        ];
        (left.iter().all(|dir| count(dir) == 0) && !stray.exists()).then_some(())
    })
    .await;

    assert_eq!((collected.freed, collected.kept), (4, Vec::new()));
    // It is told after the answer.
    eventually("nothing is kept", async || {
        (agent.collection().borrow().finished == 0).then_some(())
    })
    .await;
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Everything that had finished waits for a driver that refuses to let go, beyond the maximum: who is new starts all
/// the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_allocation_waits_for_no_collection() {
    if !privileged("a_new_allocation_waits_for_no_collection") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 2).await;
    host.refuse_destroys(true);
    let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
    for name in 0..4 {
        let alloc = batch(name, "").driver("mock", &config).build();
        let alloc_id = server.place(alloc).await;
        server.status(alloc_id, ClientStatus::Complete).await;
    }
    reports_committed(&agent).await;

    let running = MockTask::forever().to_config();
    let new = service(99, "").driver("mock", &running).build();
    let new = server.place(new).await;
    server.status(new, ClientStatus::Running).await;

    eventually("the driver was asked", async || {
        (agent.collection().borrow().refusals > 0).then_some(())
    })
    .await;
    assert_eq!(count(&machine.data().join("alloc")), 5);
    host.refuse_destroys(false);
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// Allocations that begin while unknown ones are removed one after the other are not taken for unknown.
#[tokio::test(flavor = "multi_thread")]
async fn allocs_begun_during_the_sweep_stay() {
    const STRAYS: u8 = 100;
    if !privileged("allocs_begun_during_the_sweep_stay") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;
    agent.shutdown(ShutdownPolicy::KeepTasks).await;
    let strays = (100..100 + STRAYS).map(|byte| AllocId([byte; 16]));
    let groups: Vec<PathBuf> = strays.map(|stray| make_groups(&machine, stray)).collect();
    let strays = (100..100 + STRAYS).map(|byte| machine.alloc_dir(AllocId([byte; 16])));
    let dirs: Vec<PathBuf> = strays.collect();
    for dir in &dirs {
        std::fs::create_dir(dir).unwrap();
    }

    let agent = agent_with(&machine, &server, &host, 50).await;
    eventually("the sweep has begun", async || {
        groups.iter().any(|group| !group.exists()).then_some(())
    })
    .await;
    let begun = groups.iter().filter(|group| group.exists()).count();
    let mut new = Vec::new();
    for name in 0..5 {
        let running = MockTask::forever().to_config();
        let alloc = service(name, "").driver("mock", &running).build();
        new.push(server.place(alloc).await);
    }
    for alloc_id in &new {
        server.status(*alloc_id, ClientStatus::Running).await;
    }
    eventually("what nobody knows is gone", async || {
        let mut left = groups.iter().chain(&dirs);
        (!left.any(|path| path.exists())).then_some(())
    })
    .await;

    for alloc_id in new {
        let dirs = [machine.alloc_dir(alloc_id), machine.log_dir(alloc_id)];
        assert!(dirs.iter().all(|dir| dir.exists()), "{begun} were left");
    }
    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The id of the cgroup of what was started before a reboot may be another task's.
#[tokio::test(flavor = "multi_thread")]
async fn pre_reboot_alloc_gc_keeps_reused_cgroup_id() {
    if !privileged("pre_reboot_alloc_gc_keeps_reused_cgroup_id") {
        return;
    }
    let this_boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (boot_id, stays) in [("another boot", true), (this_boot.trim(), false)] {
        let (machine, host) = (Machine::new(), MockHost::new());
        let server = machine.server();
        let agent = agent_with(&machine, &server, &host, 50).await;
        host.refuse_destroys(true);
        let config = MockTask::exits(Duration::from_millis(1), 0).to_config();
        let alloc = batch(1, "").driver("mock", &config).build();
        let alloc_id = server.place(alloc).await;
        server.status(alloc_id, ClientStatus::Complete).await;
        agent.shutdown(ShutdownPolicy::KeepTasks).await;
        host.refuse_destroys(false);
        let group = make_groups(&machine, alloc_id);
        rewrite_leftover(&machine, group.metadata().unwrap().ino(), boot_id);
        let stray = machine.alloc_dir(AllocId([7; 16]));
        std::fs::create_dir(&stray).unwrap();
        let agent = agent_with(&machine, &server, &host, 50).await;
        eventually("what nobody knows is swept", async || {
            (!stray.exists()).then_some(())
        })
        .await;
        reports_committed(&agent).await;

        let collected = agent.collect_now(false).await.unwrap();

        assert_eq!((collected.freed, group.exists()), (1, stays), "{boot_id}");
        agent.shutdown(ShutdownPolicy::StopTasks).await;
    }
}

/// Makes the groups of the allocation's task `main` in every hierarchy, and says where that of the second version
/// is.
fn make_groups(machine: &Machine, alloc_id: AllocId) -> PathBuf {
    let record = std::fs::read(machine.data().join("cgroup-tree.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let bound = record["bound"].as_object().unwrap().values();
    for root in bound.map(|bound| bound["root"].as_str().unwrap()) {
        let group = Path::new(root).join(alloc_id.to_string()).join("main");
        std::fs::create_dir_all(group).unwrap();
    }
    let group = machine.tree().join(alloc_id.to_string()).join("main");
    std::fs::create_dir_all(&group).unwrap();
    group
}

/// Has the one leftover in the store be of another cgroup and boot.
fn rewrite_leftover(machine: &Machine, cgroup_id: u64, boot_id: &str) {
    let leftovers = redb::TableDefinition::<&[u8], &[u8]>::new("leftovers");
    let database = redb::Database::open(machine.data().join("agent.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut table = transaction.open_table(leftovers).unwrap();
        let (key, row) = table.pop_first().unwrap().map(owned).unwrap();
        type Row = (String, String, String, u64, String, Option<u64>);
        let (driver, task_id, task, _, _, left_at): Row = codec::decode(&row).unwrap();
        let row = codec::encode(&(driver, task_id, task, cgroup_id, boot_id, left_at)).unwrap();
        table.insert(key.as_slice(), row.as_slice()).unwrap();
    }
    transaction.commit().unwrap();
}

type Bytes<'a> = redb::AccessGuard<'a, &'static [u8]>;

fn owned((key, row): (Bytes<'_>, Bytes<'_>)) -> (Vec<u8>, Vec<u8>) {
    (key.value().to_vec(), row.value().to_vec())
}

/// Killed while it deletes, with the rest in the trash: the next agent empties it, and nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn killed_agent_deletion_is_finished_by_next_agent() {
    if !privileged("killed_agent_deletion_is_finished_by_next_agent") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let alloc_id = server.place(batch(1, "exit 0").build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;
    let many = machine.alloc_dir(alloc_id).join("alloc/data");
    for name in 0..30_000 {
        std::fs::File::create(many.join(name.to_string())).unwrap();
    }
    let trash = machine.data().join("trash");

    server.forget(alloc_id).await;
    eventually("its directories are in the trash", async || {
        (count(&trash) > 0 && !machine.alloc_dir(alloc_id).exists()).then_some(())
    })
    .await;
    agent.kill();
    assert!(count(&trash) > 0, "everything was deleted before the end");
    let agent = machine.agent(&server).await;
    let next = server.place(batch(2, "exit 0").build()).await;
    server.status(next, ClientStatus::Complete).await;

    eventually("the trash is emptied", async || {
        (count(&trash) == 0).then_some(())
    })
    .await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_without_anything_is_over_at_once() {
    if !privileged("a_collection_without_anything_is_over_at_once") {
        return;
    }
    let (machine, host) = (Machine::new(), MockHost::new());
    let server = machine.server();
    let agent = agent_with(&machine, &server, &host, 50).await;

    assert_eq!(agent.collect_now(false).await, Some(GcOutcome::default()));

    agent.shutdown(ShutdownPolicy::StopTasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_allocation_leaves_nothing() {
    if !privileged("a_forgotten_allocation_leaves_nothing") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "echo up; sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;

    server.forget(alloc_id).await;
    eventually("its directories go", async || {
        let left = machine.alloc_dir(alloc_id).exists() || machine.log_dir(alloc_id).exists();
        (!left).then_some(())
    })
    .await;

    assert!(ended(pid));
    assert!(!machine.tree().join(alloc_id.to_string()).exists());
    eventually("the trash is emptied", async || {
        let trash = std::fs::read_dir(machine.data().join("trash"))
            .unwrap()
            .count();
        (trash == 0).then_some(())
    })
    .await;
    agent.end().await;
}

/// How deep a cgroup lies: the root has no events.
fn level(cgroup: &Path) -> u32 {
    let above = cgroup.ancestors();
    let inside = above.take_while(|dir| dir.join("cgroup.events").exists());
    u32::try_from(inside.count()).unwrap()
}

/// Whether a file or directory of that name, or the like, is anywhere below `dir`.
fn is_named_below(dir: &Path, name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let is_named = entry.file_name().to_string_lossy().contains(name);
        is_named || (is_dir && is_named_below(&entry.path(), name))
    })
}

/// A collected allocation leaves nothing in the eBPF programs: neither counters, its main process, how it ended, nor
/// its policy. Its FIFOs, mounts and logs go as well, under any name.
#[tokio::test(flavor = "multi_thread")]
async fn collected_alloc_leaves_no_ebpf_state_or_files() {
    let name = "collected_alloc_leaves_no_ebpf_state_or_files";
    if !privileged(name) {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let node = server.node(|node| node.has_driver("native")).await;
    let object = node.attributes.get("ebpf.object");
    if object.is_none_or(|object| object == "absent") {
        skipped(name, "no eBPF programs; run: cargo xtask build-ebpf");
        return;
    }
    let with_policy = service(1, "echo up; sleep 600").with(|spec, _| {
        let mut policy = NetworkPolicy::default();
        policy.egress.default = Some(PolicyAction::Deny);
        policy.egress.rate = Some(BitRate(1_000_000));
        spec.groups[0].network = Some(GroupNetwork {
            mode: NetworkMode::Host,
            ports: Vec::new(),
            policy: Some(policy),
            dns: None,
            hostname: String::new(),
        });
    });
    let alloc_id = server.place(with_policy.build()).await;
    let pid = server.pid(alloc_id).await;
    let cgroup = machine.tree().join(alloc_id.to_string()).join("main");
    let task = std::fs::metadata(&cgroup).unwrap().ino();
    let bpf = Bpf::open(&BpfConfig {
        pin_dir: ensure_bpffs(&machine.data())
            .unwrap()
            .join("muster")
            .join(node.id.to_string()),
        cgroup_dir: machine.tree(),
        task_level: level(&cgroup),
    })
    .unwrap();
    let known = || {
        [
            bpf.counters_of(task).unwrap().is_some(),
            bpf.main_of(task).unwrap().is_some(),
            bpf.exit_of(task).unwrap().is_some(),
        ]
    };
    assert_eq!(known(), [true, true, false]);
    let of_policies = || BTreeMap::from(bpf.policy_entries().unwrap());
    let with_policy = of_policies();
    for table in ["TASK_POLICY", "RATES", "LEAVES4", "LEAVES6", "NAMES"] {
        assert!(with_policy[table] > 0, "{table}: {with_policy:?}");
    }
    let named = alloc_id.to_string();
    assert!(is_named_below(&machine.data(), &named));

    server.forget(alloc_id).await;
    eventually("everything of it is gone", async || {
        let is_left = known() != [false; 3] || is_named_below(&machine.data(), &named);
        let is_left = is_left || of_policies().values().any(|entries| *entries > 0);
        (!is_left && !cgroup.exists()).then_some(())
    })
    .await;

    assert!(ended(pid));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&named), "{mounts}");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_collection_takes_finished_allocations() {
    if !privileged("forced_collection_takes_finished_allocations") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let done = server.place(batch(1, "exit 0").build()).await;
    let running = server.place(service(2, "sleep 600").build()).await;
    server.status(done, ClientStatus::Complete).await;
    server.status(running, ClientStatus::Running).await;
    assert!(machine.alloc_dir(done).exists());

    server.collect_garbage().await;
    eventually("the finished one goes", async || {
        (!machine.alloc_dir(done).exists()).then_some(())
    })
    .await;

    assert!(machine.alloc_dir(running).exists());
    // It stays away when the server names it again.
    server.disconnect();
    eventually("a session", async || (server.sessions() >= 2).then_some(())).await;
    assert!(!machine.alloc_dir(done).exists());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_refuses_while_tasks_run() {
    if !privileged("clean_refuses_while_tasks_run") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;
    let tree = machine.tree();
    agent.leave().await;

    let refused = muster_agent::clean::run(&machine.data(), false)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains(&format!("{alloc_id}/main")) && !ended(pid),
        "{refused}"
    );

    let (driver, _) = machine.driver().await;
    muster_agent::clean::run(&machine.data(), true).unwrap();
    assert!(ended(pid) && ended(driver) && !tree.exists());
    assert!(!machine.data().join("bpf").exists());
    let again = muster_agent::clean::run(&machine.data(), false).unwrap();
    assert_eq!(again, Vec::<String>::new());
}

/// Groups of the node in every hierarchy of this machine.
fn groups_called(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let cgroups = mounts.filter(|fields| matches!(fields[2], "cgroup" | "cgroup2"));
    let mut level: Vec<PathBuf> = cgroups.map(|fields| PathBuf::from(fields[1])).collect();
    while let Some(dir) = level.pop() {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for dir in dirs.map(|entry| entry.path()) {
            if dir.file_name().is_some_and(|last| last == name) {
                found.push(dir);
            } else {
                level.push(dir);
            }
        }
    }
    found
}

/// A cleaning may break off after the first hierarchy, and the record of the tree may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn clean_finds_groups_without_a_record() {
    if !privileged("clean_finds_groups_without_a_record") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "sleep 600").build()).await;
    let pid = server.pid(alloc_id).await;
    let tree = machine.tree();
    let name = tree.file_name().unwrap().to_str().unwrap().to_owned();
    agent.leave().await;
    let (driver, _) = machine.driver().await;
    std::fs::remove_file(machine.data().join("cgroup-tree.json")).unwrap();
    std::fs::remove_file(machine.data().join("drivers/native.json")).unwrap();
    assert!(!groups_called(&name).is_empty());

    let refused = muster_agent::clean::run(&machine.data(), false).unwrap_err();
    assert!(refused.to_string().contains("process"), "{refused}");
    assert!(!ended(pid) && !ended(driver));

    muster_agent::clean::run(&machine.data(), true).unwrap();

    assert!(ended(pid) && ended(driver));
    assert_eq!(groups_called(&name), Vec::<PathBuf>::new());
}
