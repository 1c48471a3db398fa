//! Data directories as an earlier agent would have left them, for tests and measurements.

use std::collections::BTreeSet;
use std::path::Path;

use muster_agent_core::alloc::{AllocRunner, Event};
use muster_agent_core::policy::{NodePolicy, compile};
use muster_domain::alloc::DesiredAlloc;
use muster_domain::fixture;
use muster_domain::id::Timestamp;
use muster_domain::job::{BitRate, NetworkPolicy};

use crate::bpf::Bpf;
use crate::monitoring::conditions::Conditions;
pub use crate::network::bridge::fixture::Networks;
use crate::storage::allocdir::{self, DataDir};
use crate::storage::store::{self, Write};

/// Allocations that are recorded in one transaction.
const BATCH: usize = 1_000;

/// Asks the file system to lay directories in `dir` apart from each other, as an agent asks for those of allocations.
pub fn spread(dir: &Path) {
    allocdir::spread(dir);
}

/// Makes the data directory of an agent whose allocations `allocs` were all stopped: records and directories.
///
/// # Errors
///
/// The error of a write.
///
/// # Panics
///
/// If the result differs from the requested one.
pub async fn finished(
    data_dir: &Path,
    allocs: &[DesiredAlloc],
) -> Result<(), Box<dyn std::error::Error>> {
    let data = DataDir::new(data_dir)?;
    data.prepare()?;
    let (store, _) = store::open(data_dir, Conditions::default())?;
    for some in allocs.chunks(BATCH) {
        let mut writes = Vec::new();
        for desired in some {
            data.make_alloc(desired.alloc_id, &[("main".to_owned(), None)])?;
            let mut runner = AllocRunner::new(desired, Timestamp::from_millis(1))?;
            runner.handle_event(Event::Prepared, Timestamp::from_millis(2));
            let stop = Event::DesiredChanged(muster_domain::alloc::DesiredStatus::Stop);
            runner.handle_event(stop, Timestamp::from_millis(3));
            let task = Event::Task {
                task_at: 0,
                input: muster_agent_core::task::TaskInput::Exited {
                    exit: muster_domain::alloc::Exit::default(),
                    detail: String::new(),
                    end: None,
                },
            };
            runner.handle_event(task, Timestamp::from_millis(4));
            assert!(runner.is_terminal(), "the allocation has finished");
            writes.push(Write::Desired(Box::new(desired.clone())));
            writes.push(Write::Snapshot(
                desired.alloc_id,
                Box::new(runner.snapshot()),
            ));
        }
        store.write(writes).await?;
    }
    store.close();
    Ok(())
}

/// Attaches the default policy to the task with this cgroup. `egress_rate` is its only setting.
///
/// # Errors
///
/// If there is no room.
pub fn attach_plain_policy(
    bpf: &Bpf,
    task: u64,
    egress_rate: Option<BitRate>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut group = fixture::group("g");
    let mut policy = NetworkPolicy::default();
    policy.egress.rate = egress_rate;
    group.tasks[0].policy = Some(policy);
    let policies = compile(&group, &group.tasks[0].name, &NodePolicy::default(), &[])?;
    Ok(bpf.attach_policy(task, &policies, &BTreeSet::new())?)
}
