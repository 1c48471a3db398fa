//! What a job has against what it should have.
//!
//! A function of the job, its allocations and the time. First cut: a change that its instances must be
//! replaced for replaces all of them in one plan; there are no deployments yet.

use std::collections::BTreeMap;

use muster_domain::alloc::ClientStatus;
use muster_domain::id::{NodeId, Timestamp};
use muster_domain::job::{Job, JobType, TaskGroup};
use muster_domain::node::NodeStatus;
use muster_domain::plan::PlannedStop;

use super::feasible::{self, Needs, Verdict};
use super::names::Names;
use super::reschedule::{self, Due};
use super::update::{self, Change};
use crate::state::{AllocView, State};

/// An instance to place.
#[derive(Debug)]
pub(super) struct Want<'a> {
    /// Its number.
    pub(super) name_index: u32,
    /// The allocation it replaces, which has ended.
    pub(super) previous: Option<AllocView<'a>>,
}

/// An instance to stop only if another can take its place.
#[derive(Debug)]
pub(super) struct Replacement<'a> {
    /// The instance.
    pub(super) old: AllocView<'a>,
    /// How it would be stopped.
    pub(super) stop: PlannedStop,
}

/// What to do for one group.
#[derive(Debug)]
pub(super) struct GroupWork<'a> {
    /// Position of the group in the job.
    pub(super) group_at: u16,
    /// Instances that stay.
    pub(super) keep: Vec<AllocView<'a>>,
    /// Some that stay go over to the current version.
    pub(super) in_place: bool,
    /// Instances to replace.
    pub(super) replace: Vec<Replacement<'a>>,
    /// Instances to place.
    pub(super) place: Vec<Want<'a>>,
}

/// What to do for a job.
#[derive(Debug, Default)]
pub(super) struct Work<'a> {
    /// Allocations to stop, whatever else happens.
    pub(super) stops: Vec<PlannedStop>,
    /// Per group that has something to do.
    pub(super) groups: Vec<GroupWork<'a>>,
}

/// Compares. `job` is `None` if it is gone.
pub(super) fn reconcile<'a>(
    state: &'a State,
    job: Option<&'a Job>,
    allocs: impl Iterator<Item = AllocView<'a>>,
    now: Timestamp,
) -> Work<'a> {
    let mut work = Work::default();
    let mut by_group: BTreeMap<&str, Vec<AllocView<'a>>> = BTreeMap::new();
    for alloc in allocs {
        by_group.entry(&alloc.group().name).or_default().push(alloc);
    }
    let groups: &[TaskGroup] = match job {
        Some(job) if !job.stop => &job.current.spec.groups,
        Some(_) | None => &[],
    };
    for (group_at, group) in groups.iter().enumerate() {
        let allocs = by_group.remove(group.name.as_str()).unwrap_or_default();
        let group_at = u16::try_from(group_at).expect("validation bounds the groups of a job");
        if let Some(job) = job {
            let group_work = Reconciler {
                state,
                job,
                group,
                now,
                stops: &mut work.stops,
            };
            work.groups.push(group_work.run(group_at, &allocs));
        }
    }
    let why = if groups.is_empty() {
        "the job is stopped"
    } else {
        "the job no longer has its group"
    };
    for alloc in by_group
        .into_values()
        .flatten()
        .filter(|alloc| !alloc.is_terminal())
    {
        work.stops.push(stop(alloc, why));
    }
    work
}

fn stop(alloc: AllocView<'_>, why: &str) -> PlannedStop {
    PlannedStop {
        alloc_id: alloc.id(),
        description: why.to_owned(),
        client_status: None,
    }
}

/// One group's share of the comparison.
struct Reconciler<'a, 's> {
    state: &'a State,
    job: &'a Job,
    group: &'a TaskGroup,
    now: Timestamp,
    stops: &'s mut Vec<PlannedStop>,
}

impl<'a> Reconciler<'a, '_> {
    fn run(mut self, group_at: u16, allocs: &[AllocView<'a>]) -> GroupWork<'a> {
        let mut names = Names::default();
        let live = self.live(allocs, &mut names);
        let ended = self.ended(allocs, &mut names);
        let (keep, replace, in_place) = self.by_version(live);
        let missing = self.group.count.saturating_sub(names.len());
        let place = names
            .free()
            .take(missing as usize)
            .map(|name_index| Want {
                name_index,
                previous: ended.get(&name_index).copied(),
            })
            .collect();
        GroupWork {
            group_at,
            keep,
            in_place,
            replace,
            place,
        }
    }

    /// Live instances that are not too many; their names are taken. Of one name the oldest stays; of
    /// names the lowest stay.
    fn live(&mut self, allocs: &[AllocView<'a>], names: &mut Names) -> Vec<AllocView<'a>> {
        let mut live: Vec<AllocView<'a>> = allocs
            .iter()
            .copied()
            .filter(|alloc| !alloc.is_terminal())
            .collect();
        live.sort_by_key(|alloc| (alloc.name_index(), alloc.key()));
        live.retain(|alloc| {
            let lost = self.is_lost(&alloc.node_id());
            if lost {
                self.stops.push(PlannedStop {
                    client_status: Some(ClientStatus::Lost),
                    ..stop(*alloc, "its node is gone")
                });
            }
            !lost
        });
        live.retain(|alloc| {
            let stays = alloc.name_index() < self.group.count && names.take(alloc.name_index());
            if !stays {
                self.stops
                    .push(stop(*alloc, "the job asks for fewer instances"));
            }
            stays
        });
        live
    }

    fn is_lost(&self, node_id: &NodeId) -> bool {
        match self.state.nodes().get(node_id).map(|node| node.status) {
            Some(NodeStatus::Initializing | NodeStatus::Ready) => false,
            Some(NodeStatus::Down | NodeStatus::Disconnected) | None => true,
        }
    }

    /// Instances that ended and were not told to: those that are done, failed for good or wait for their
    /// time keep their names; of the others the newest of each name is what its replacement refers to.
    fn ended(&self, allocs: &[AllocView<'a>], names: &mut Names) -> BTreeMap<u32, AllocView<'a>> {
        let mut replaceable: BTreeMap<u32, AllocView<'a>> = BTreeMap::new();
        let ended = allocs.iter().copied().filter(|alloc| {
            alloc.client_status().is_terminal() && alloc.next().is_none() && self.counts(*alloc)
        });
        for alloc in ended {
            match reschedule::due(alloc) {
                // Lost allocations were told to stop when their node went down.
                Due::Now => newest(&mut replaceable, alloc),
                Due::At(_) | Due::Never if alloc.server_terminal() => {}
                Due::At(at) if at <= self.now => newest(&mut replaceable, alloc),
                Due::At(_) | Due::Never => {
                    if alloc.name_index() < self.group.count {
                        names.take(alloc.name_index());
                    }
                }
            }
        }
        replaceable
    }

    /// Whether what it did counts: for a batch job only under the current version, for a service as long
    /// as its group needs no replacing.
    fn counts(&self, alloc: AllocView<'_>) -> bool {
        let current = &self.job.current;
        let is_service = match current.spec.job_type {
            JobType::Service | JobType::System => true,
            JobType::Batch | JobType::SysBatch => false,
        };
        alloc.job().create_index == current.create_index
            && (alloc.job().version == current.version
                || (is_service && self.change(alloc) == Change::InPlace))
    }

    fn change(&self, alloc: AllocView<'_>) -> Change {
        update::change(
            (&alloc.job().spec, alloc.group()),
            (&self.job.current.spec, self.group),
        )
    }

    /// Parts instances into those that stay and those to replace, and says whether some that stay are of
    /// an older version.
    fn by_version(
        &self,
        live: Vec<AllocView<'a>>,
    ) -> (Vec<AllocView<'a>>, Vec<Replacement<'a>>, bool) {
        let current = &self.job.current;
        let needs = Needs::new(&current.spec, self.group);
        let (mut keep, mut replace, mut in_place) = (Vec::new(), Vec::new(), false);
        for alloc in live {
            let same = alloc.job().version == current.version
                && alloc.job().create_index == current.create_index;
            if same {
                keep.push(alloc);
            } else if self.change(alloc) == Change::InPlace
                && self.may_stay(&needs, &alloc.node_id())
            {
                in_place = true;
                keep.push(alloc);
            } else {
                let stop = stop(alloc, "the job was updated");
                replace.push(Replacement { old: alloc, stop });
            }
        }
        (keep, replace, in_place)
    }

    /// Whether the node meets the constraints of the current version.
    fn may_stay(&self, needs: &Needs<'_>, node_id: &NodeId) -> bool {
        self.state
            .nodes()
            .get(node_id)
            .is_some_and(|node| feasible::judge(needs, &node.spec) == Verdict::Feasible)
    }
}

fn newest<'a>(by_name: &mut BTreeMap<u32, AllocView<'a>>, alloc: AllocView<'a>) {
    let one = by_name.entry(alloc.name_index()).or_insert(alloc);
    if one.key() < alloc.key() {
        *one = alloc;
    }
}
