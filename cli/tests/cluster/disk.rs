//! Disks that are slow, and disks that are full.

use std::cell::Cell;
use std::fs;
use std::process::{Child, Command, Stdio};

use muster_driver::fixture::skipped;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::client::{Clients, Http};
use crate::cluster::{self, ClusterOptions, SERVERS, fill, http, poll_until};
use crate::limits;
use crate::partition::others;
use crate::shared::TestCluster;

/// An strace process that tampers with every `fdatasync` of a process; it detaches when dropped.
struct FsyncTracer(Child);

impl FsyncTracer {
    /// `None` if processes cannot be traced here.
    fn start(pid: Pid, what: &str) -> Option<Self> {
        let inject = format!("inject=fdatasync:{what}");
        let mut child = Command::new("strace")
            .args([
                "-f",
                "-qq",
                "-e",
                "trace=fdatasync",
                "-e",
                &inject,
                "-p",
                &pid.to_string(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let ended = poll_until("strace to trace every thread", || match child.try_wait() {
            Ok(None) => is_traced(pid).then_some(None),
            Ok(status) => Some(status),
            Err(error) => panic!("cannot wait for strace: {error}"),
        });
        match ended {
            Some(status) if !status.success() => None,
            // The traced process has ended already.
            Some(_) | None => Some(Self(child)),
        }
    }
}

/// Whether every thread of the process has a tracer.
fn is_traced(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status"));
        // A thread that has ended needs none.
        !status.is_ok_and(|status| status.contains("\nTracerPid:\t0\n"))
    })
}

impl Drop for FsyncTracer {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(0));
        // strace detaches on SIGINT. A kill would leave the traced process stopped.
        kill(pid, Signal::SIGINT).ok();
        drop(self.0.wait());
    }
}

/// Starts a tracer that applies `what` to every `fdatasync` of the process. Without strace the test `name` is skipped.
fn traced(name: &str, pid: Pid, what: &str) -> Option<FsyncTracer> {
    let tracer = FsyncTracer::start(pid, what);
    if tracer.is_none() {
        skipped(name, "strace cannot trace here: cargo xtask setup");
    }
    tracer
}

/// A leader whose syncs take 300 ms each still answers correctly. Later its disk is fast again.
#[test]
fn a_slow_disk_only_makes_it_slower() {
    let Some(cluster) = TestCluster::shared("a_slow_disk_only_makes_it_slower") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let leader = cluster.leader();

    let Some(tracer) = traced(
        "a_slow_disk_only_makes_it_slower",
        cluster.pid(leader),
        "delay_enter=300000",
    ) else {
        clients.finish();
        return;
    };
    clients.wait_for_writes(30);
    drop(tracer);
    clients.wait_for_writes(30);

    clients.finish();
    cluster.assert_healthy(&[]);
}

/// A follower whose disk hangs acknowledges nothing. One event reports it, and a later event reports the recovery.
#[test]
fn hung_disk_of_a_follower_becomes_an_event() {
    let Some(cluster) = TestCluster::shared("hung_disk_of_a_follower_becomes_an_event") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let leader = cluster.leader();
    let follower = (leader + 1) % SERVERS.len();
    let server = Http::with_timeout(cluster::address(leader), limits::PATIENCE);
    // Earlier tests of this cluster left events of the same server.
    let before = server.index().expect("the leader's index");

    let Some(tracer) = traced(
        "hung_disk_of_a_follower_becomes_an_event",
        cluster.pid(follower),
        "delay_enter=60000000",
    ) else {
        clients.finish();
        return;
    };
    let name = format!("\"Name\":\"{}\"", SERVERS[follower]);
    let is_fault = |line: &str| line.contains(&name) && line.contains("has not heard from it");
    let fault = server.event_from(before + 1, "Server", is_fault);
    drop(tracer);
    let has_failed = Cell::new(false);
    let healthy = server.event_from(before + 1, "Server", |line| {
        has_failed.set(has_failed.get() || is_fault(line));
        has_failed.get() && line.contains(&name) && line.contains("\"Healthy\":true")
    });

    let fault = fault.expect("no event of the hung disk");
    assert!(fault.contains("\"Healthy\":false"), "{fault}");
    assert!(healthy.is_some(), "no event of a healthy follower");
    clients.finish();
    cluster.assert_healthy(&[]);
}

/// When the disk of the leader is full, the leader reports it, another server leads, and writes continue. With free
/// space, the former leader is a member again without a restart.
#[test]
fn a_full_disk_hands_over_and_comes_back() {
    let make = ClusterOptions {
        small_disks: true,
        ..ClusterOptions::default()
    };
    let Some((cluster, ())) =
        TestCluster::own("a_full_disk_hands_over_and_comes_back", make, || ())
    else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let full = cluster.leader();
    let filler_file = cluster.data(full).join("somebody-elses");
    fill(&filler_file);
    let large = crate::restart::LargeJobs::new();

    let others = others(full);
    let leader = poll_until("another leader", || {
        large.write();
        cluster.leader_among(&others)
    });
    clients.wait_for_writes(20);
    let health = http(full).get("/v1/agent/health").expect("an answer");
    assert!(health.text.contains("is full"), "{}", health.text);
    assert_ne!(leader, full);
    assert!(
        cluster.log(full).contains("the disk under the log is full"),
        "{}",
        cluster.log(full)
    );
    let server = Http::with_timeout(cluster::address(leader), limits::PATIENCE);
    let event = server.event("Server", |line| line.contains("is full"));
    assert!(
        event.is_some_and(|line| line.contains("\"Healthy\":false")),
        "no event of a full disk"
    );
    let pid = cluster.pid(full);
    fs::remove_file(&filler_file).unwrap();
    poll_until("room", || {
        cluster
            .log(full)
            .contains("there is room on the disk again")
            .then_some(())
    });

    clients.wait_for_writes(20);
    clients.finish();
    cluster.assert_healthy(&["is full", "no room for a snapshot"]);
    assert_eq!(cluster.pid(full), pid);
}

/// A server does not retry a failed disk: it ends with the reason. After a restart it is a member again.
#[test]
fn a_failing_disk_ends_its_server() {
    let Some(mut cluster) = TestCluster::shared("a_failing_disk_ends_its_server") else {
        return;
    };
    let clients = Clients::at_work();
    clients.wait_for_writes(20);
    let leader = cluster.leader();

    let Some(tracer) = traced(
        "a_failing_disk_ends_its_server",
        cluster.pid(leader),
        "error=EIO:when=5+",
    ) else {
        clients.finish();
        return;
    };
    let status = cluster.ended(leader);
    drop(tracer);
    clients.wait_for_writes(20);
    cluster.begin(leader);

    assert!(!status.success(), "{status}");
    assert!(
        cluster.log(leader).contains("cannot be synced"),
        "{}",
        cluster.log(leader)
    );
    clients.wait_for_writes(20);
    clients.finish();
    // Only the end of the server may be logged as an error.
    cluster.assert_healthy(&[
        "cannot be synced",
        "Input/output error",
        "raft has stopped",
        "RaftCore",
    ]);
}
