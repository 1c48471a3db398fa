//! One cluster for all faults that it survives, because starting and stopping a cluster takes longer than most faults.
//!
//! A test that fails stops the cluster, so the next test gets a new one. Faults that need other links or disks have a
//! cluster of their own.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_driver::fixture::skipped;

use crate::cluster::{Cluster, ClusterOptions};
use crate::kill::start_steady_job;
use crate::network::Network;

/// The shared cluster, and the tests that have not ended. Its lock runs tests of clusters one after the other. In
/// parallel they would be slower.
static SHARED: Mutex<SharedCluster> = Mutex::new(SharedCluster {
    cluster: None,
    remaining: None,
});

#[derive(Debug)]
struct SharedCluster {
    cluster: Option<Cluster>,
    /// `None` before the first test.
    remaining: Option<BTreeSet<String>>,
}

/// A cluster during one test.
#[derive(Debug)]
pub(crate) struct TestCluster {
    test: &'static str,
    shared: MutexGuard<'static, SharedCluster>,
    /// In place of the shared one.
    own: Option<Cluster>,
}

impl TestCluster {
    /// The shared cluster: plain, with two agents and the steady job. `None` if there can be none here; the reason is
    /// reported.
    pub(crate) fn shared(test: &'static str) -> Option<Self> {
        let mut this = Self::claim(test)?;
        if let Some(cluster) = &mut this.shared.cluster {
            cluster.take_over();
        } else {
            let make = ClusterOptions {
                agents: true,
                ..ClusterOptions::default()
            };
            let (cluster, ()) = Cluster::start(make, || ());
            start_steady_job(this.shared.cluster.insert(cluster));
        }
        Some(this)
    }

    /// A cluster for one test. `before_servers` runs once its addresses exist.
    pub(crate) fn own<T>(
        test: &'static str,
        make: ClusterOptions,
        before_servers: impl FnOnce() -> T,
    ) -> Option<(Self, T)> {
        let mut this = Self::claim(test)?;
        let (cluster, started) = Cluster::start(make, before_servers);
        this.own = Some(cluster);
        Some((this, started))
    }

    fn claim(test: &'static str) -> Option<Self> {
        if let Some(reason) = Network::missing() {
            skipped(test, reason);
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.remaining.get_or_insert_with(selected_tests);
        Some(Self {
            test,
            shared,
            own: None,
        })
    }
}

impl Deref for TestCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        let cluster = self.own.as_ref().or(self.shared.cluster.as_ref());
        cluster.expect("the test has a cluster")
    }
}

impl DerefMut for TestCluster {
    fn deref_mut(&mut self) -> &mut Cluster {
        let cluster = self.own.as_mut().or(self.shared.cluster.as_mut());
        cluster.expect("the test has a cluster")
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        let is_last = self.shared.remaining.as_mut().is_none_or(|remaining| {
            remaining.remove(self.test);
            remaining.is_empty()
        });
        let has_failed = std::thread::panicking();
        if let Some(own) = self.own.take() {
            drop(own);
            if !is_last {
                return;
            }
        }
        if has_failed || is_last {
            drop(self.shared.cluster.take());
        }
    }
}

/// The names of the cluster tests that libtest selects in this process, without their modules. The last of them stops
/// the shared cluster, because statics are not dropped.
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
