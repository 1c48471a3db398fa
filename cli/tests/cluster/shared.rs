//! A few clusters for all faults that they survive, because starting and stopping a cluster takes longer than most
//! faults.
//!
//! A test that fails stops its cluster. A later test starts another if none is idle. Faults that need other links or
//! disks have a cluster of their own.

use std::collections::BTreeSet;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use muster_driver::fixture::skipped;

use crate::cluster::{Cluster, ClusterOptions};
use crate::kill::start_steady_job;
use crate::network::Network;

/// Tests that use a cluster at once. A test uses less than half of two processors. Idle shared clusters run in
/// addition.
const TESTS_MAX: usize = 2;

static POOL: Pool = Pool {
    state: Mutex::new(PoolState {
        idle: Vec::new(),
        tests_running: 0,
        remaining: None,
    }),
    test_ended: Condvar::new(),
};

/// The shared clusters, and the tests that have not ended.
#[derive(Debug)]
struct Pool {
    state: Mutex<PoolState>,
    test_ended: Condvar,
}

#[derive(Debug)]
struct PoolState {
    /// Shared clusters that no test uses.
    idle: Vec<Cluster>,
    /// The number of tests that have a cluster.
    tests_running: usize,
    /// `None` before the first test.
    remaining: Option<BTreeSet<String>>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the test may use a cluster.
    fn acquire(&self) {
        let mut state = self.lock();
        state.remaining.get_or_insert_with(selected_tests);
        while state.tests_running == TESTS_MAX {
            let waited = self.test_ended.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.tests_running += 1;
    }

    /// Ends the use of a cluster by `test`, and takes back a shared cluster. The last test stops the shared clusters.
    fn release(&self, test: &str, shared: Option<Cluster>) {
        let mut state = self.lock();
        state.tests_running -= 1;
        state.idle.extend(shared);
        if let Some(remaining) = &mut state.remaining {
            remaining.remove(test);
        }
        let is_last = state.remaining.as_ref().is_none_or(BTreeSet::is_empty);
        let stopped = if is_last {
            mem::take(&mut state.idle)
        } else {
            Vec::new()
        };
        drop(state);
        self.test_ended.notify_one();
        drop(stopped);
    }
}

/// A cluster during one test.
#[derive(Debug)]
pub(crate) struct TestCluster {
    test: &'static str,
    /// `None` before the start and after the end of the test.
    cluster: Option<Cluster>,
    is_shared: bool,
}

impl TestCluster {
    /// A shared cluster: plain, with two agents and the steady job. `None` if this machine cannot run one; the
    /// reason is reported.
    pub(crate) fn shared(test: &'static str) -> Option<Self> {
        let mut this = Self::acquire(test, true)?;
        let idle = POOL.lock().idle.pop();
        if let Some(mut cluster) = idle {
            cluster.take_over();
            this.cluster = Some(cluster);
        } else {
            let make = ClusterOptions {
                agents: true,
                ..ClusterOptions::default()
            };
            let (cluster, ()) = Cluster::start(make, || ());
            start_steady_job(this.cluster.insert(cluster));
        }
        Some(this)
    }

    /// A cluster for one test. `before_servers` runs once its addresses exist.
    pub(crate) fn own<T>(
        test: &'static str,
        make: ClusterOptions,
        before_servers: impl FnOnce() -> T,
    ) -> Option<(Self, T)> {
        let mut this = Self::acquire(test, false)?;
        let (cluster, started) = Cluster::start(make, before_servers);
        this.cluster = Some(cluster);
        Some((this, started))
    }

    fn acquire(test: &'static str, is_shared: bool) -> Option<Self> {
        if let Some(reason) = Network::missing() {
            skipped(test, reason);
            return None;
        }
        POOL.acquire();
        Some(Self {
            test,
            cluster: None,
            is_shared,
        })
    }
}

impl Deref for TestCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("the test has a cluster")
    }
}

impl DerefMut for TestCluster {
    fn deref_mut(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("the test has a cluster")
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        let cluster = self.cluster.take();
        let (stopped, shared) = if std::thread::panicking() || !self.is_shared {
            (cluster, None)
        } else {
            (None, cluster)
        };
        // The cluster stops before another test begins. If its end is a failure, other tests still get clusters.
        let result = catch_unwind(AssertUnwindSafe(|| drop(stopped)));
        POOL.release(self.test, shared);
        if let Err(failure) = result {
            resume_unwind(failure);
        }
    }
}

/// The names of the cluster tests that libtest selects in this process, without their modules. The last of them stops
/// the shared clusters, because statics are not dropped.
fn selected_tests() -> BTreeSet<String> {
    let program = std::env::current_exe().unwrap();
    let listed = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--list", "--format", "terse"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    tests
        .filter(|test| !test.contains("::tests::"))
        .filter_map(|test| Some(test.rsplit_once("::")?.1.to_owned()))
        .collect()
}
