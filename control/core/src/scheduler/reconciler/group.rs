//! The comparison of one group, step by step.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::DeploymentGroup;
use muster_domain::id::{AllocId, Timestamp};
use muster_domain::job::ReconcileStrategy;
use muster_domain::number::count;
use muster_domain::saturating;

use super::names::NameIndex;
use super::reschedule::{self, BATCH_WINDOW, WINDOW};
use super::{
    ById, Deployments, FollowUp, GroupInput, GroupSpec, GroupWork, Input, Instance, LOST,
    MIGRATING, NOT_NEEDED, NewDeployment, Placement, RECONNECTED, RESCHEDULED, Stop, Taint,
};
use crate::scheduler::update::Change;

/// Instances by the fault of their node and by their transition.
#[derive(Debug, Default)]
struct InstancesByTaint<'a> {
    untainted: ById<'a>,
    migrate: ById<'a>,
    lost: ById<'a>,
    /// Instances that are out of reach and may come back.
    disconnected: ById<'a>,
}

/// Sorts instances by fault. `may_reconnect` returns whether an instance on a node that is out of reach may still come
/// back.
fn by_taint<'a>(
    instances: &ById<'a>,
    may_reconnect: impl Fn(&Instance) -> bool,
) -> InstancesByTaint<'a> {
    let mut tainted = InstancesByTaint::default();
    for (id, instance) in instances {
        let is_out =
            instance.taint == Taint::OutOfReach || instance.client == ClientStatus::Unknown;
        let set = if instance.is_terminal() {
            &mut tainted.untainted
        } else if is_out && may_reconnect(instance) {
            &mut tainted.disconnected
        } else if instance.transition.migrate && !is_out {
            &mut tainted.migrate
        } else if instance.taint == Taint::Down || is_out {
            &mut tainted.lost
        } else {
            &mut tainted.untainted
        };
        set.insert(*id, instance);
    }
    tainted
}

/// Stops every instance. `only_live`: instances that have ended are left out.
pub(super) fn stop_all(instances: &[Instance], only_live: bool) -> GroupWork {
    let all: ById<'_> = instances
        .iter()
        .filter(|instance| !only_live || !instance.is_terminal())
        .map(|instance| (instance.id, instance))
        .collect();
    let mut work = GroupWork {
        actions_left: Some(0),
        ..GroupWork::default()
    };
    stop_each(&all, &mut work);
    work
}

/// Stops `instances`, which are not wanted any more.
fn stop_each(instances: &ById<'_>, work: &mut GroupWork) {
    let InstancesByTaint {
        untainted,
        migrate,
        lost,
        disconnected: _,
    } = by_taint(instances, |_| false);
    let well = untainted.keys().chain(migrate.keys());
    work.stop.extend(well.map(|id| stop(*id, NOT_NEEDED)));
    work.stop.extend(lost.keys().map(|id| stop_lost(*id, None)));
    work.counts.stop += count(instances.len());
}

fn stop(alloc_id: AllocId, why: &'static str) -> Stop {
    Stop {
        alloc_id,
        client_status: None,
        why,
        follow_up: None,
    }
}

fn stop_lost(alloc_id: AllocId, follow_up: Option<usize>) -> Stop {
    Stop {
        alloc_id,
        client_status: Some(ClientStatus::Lost),
        why: LOST,
        follow_up,
    }
}

/// Returns instances in the order of names, older ones first among equals.
fn by_name<'a>(instances: &ById<'a>) -> Vec<&'a Instance> {
    let mut list: Vec<&Instance> = instances.values().copied().collect();
    list.sort_by_key(|instance| (instance.name_index, instance.id));
    list
}

/// The comparison of one group.
#[derive(Debug)]
pub(super) struct Reconciler<'a, 'd, 'i> {
    input: &'a Input<'i>,
    group: &'a GroupInput<'i>,
    spec: GroupSpec<'i>,
    deployments: &'d mut Deployments<'i>,
    /// The group within the deployment, or as a new deployment would have it.
    state: DeploymentGroup,
    has_deployment: bool,
    /// Number of instances that this plan may place.
    slice: u32,
    work: GroupWork,
}

impl<'a, 'd, 'i> Reconciler<'a, 'd, 'i> {
    pub(super) fn new(
        input: &'a Input<'i>,
        group: &'a GroupInput<'i>,
        spec: GroupSpec<'i>,
        deployments: &'d mut Deployments<'i>,
        slice: u32,
    ) -> Self {
        let known = deployments
            .current
            .and_then(|deployment| deployment.group(group.name));
        let fresh = || DeploymentGroup {
            name: group.name.to_owned(),
            auto_revert: spec.update.is_some_and(|update| update.auto_revert),
            auto_promote: spec.update.is_some_and(|update| update.auto_promote),
            progress_deadline_ns: spec
                .update
                .map_or(0, |update| saturating::nanos(update.progress_deadline)),
            ..DeploymentGroup::default()
        };
        Self {
            input,
            group,
            spec,
            state: known.cloned().unwrap_or_else(fresh),
            has_deployment: known.is_some(),
            deployments,
            slice,
            work: GroupWork::default(),
        }
    }

    /// Returns whether the group has an update strategy: `max_parallel = 0` means none.
    fn has_strategy(&self) -> bool {
        self.spec
            .update
            .is_some_and(|update| update.max_parallel > 0)
    }

    fn waits_for_canaries(&self) -> bool {
        self.state.desired_canaries != 0 && !self.state.promoted
    }

    /// Returns the work for the group.
    pub(super) fn run(self) -> GroupWork {
        if self.group.instances.is_empty() && self.deployments.current.is_none() {
            self.begin()
        } else {
            self.compare()
        }
    }

    /// Places all instances of a group without instances and without a deployment. [`Self::compare`] would find the
    /// same at many times the cost.
    fn begin(mut self) -> GroupWork {
        let wanted = self.spec.count;
        let now = wanted.min(self.slice);
        self.work.place = (0..now).map(fresh).collect();
        self.work.left = wanted - now;
        self.work.counts.place = wanted;
        self.state.desired_total = wanted;
        self.begin_deployment(&ById::new(), &ById::new());
        self.work.actions_left = self.is_healthy().then_some(wanted as usize);
        self.work
    }

    fn compare(mut self) -> GroupWork {
        let all = self.without_old_batch();
        let all = self.without_other_types(all);
        let (canaries, all) = self.canaries(all);
        let InstancesByTaint {
            mut untainted,
            mut migrate,
            lost,
            disconnected,
        } = by_taint(&all, |instance| self.may_reconnect(instance));
        self.mark_unreachable(&disconnected);
        self.choose_after_reconnect(&mut untainted);
        let (mut untainted, now, later) = self.rescheduleable(untainted);
        let lost_later = self.delay_lost(&lost);
        self.delay_reschedules(&later);

        let taken = [&untainted, &migrate, &now, &lost, &disconnected]
            .into_iter()
            .flat_map(BTreeMap::values);
        let mut names = NameIndex::new(self.spec.count, taken.map(|instance| instance.name_index));
        let stopped = self.stop_surplus(
            &mut names,
            &untainted,
            &mut migrate,
            &lost,
            &canaries,
            &lost_later,
        );
        untainted.retain(|id, _| !stopped.contains(id));

        let (in_place, destructive) = self.updates(&untainted);
        if self.waits_for_canaries() {
            untainted.retain(|id, _| !canaries.contains_key(id));
        }
        // All instances of the older version are gone, for example with their node. The deployment goes on with its
        // canaries.
        let is_empty = [&untainted, &migrate, &now, &lost, &disconnected]
            .iter()
            .all(|part| part.is_empty())
            && later.is_empty();
        let replaces = !destructive.is_empty() || (is_empty && self.waits_for_canaries());
        let needs_canaries = replaces && self.place_canaries(&mut names, &canaries, &destructive);
        let limit = self.limit(&untainted, &destructive, &migrate);
        let (place, left) = if lost_later.is_empty() {
            let (place, left) =
                self.placements(&mut names, &untainted, &migrate, &now, &lost, &disconnected);
            if !self.has_deployment {
                self.state.desired_total += count(place.len()) + left;
            }
            (place, left)
        } else {
            (Vec::new(), 0)
        };
        let placed = place.len() + left as usize;
        self.carry_out((place, left), &now, &lost, &destructive, limit);
        self.migrate(&migrate);
        self.begin_deployment(&all, &destructive);

        let busy = destructive.len() + in_place + placed + migrate.len() + now.len() + later.len();
        let is_healthy = !needs_canaries && self.is_healthy();
        self.work.actions_left = is_healthy.then_some(busy);
        self.work
    }

    /// Returns whether an instance whose node is out of reach may still come back.
    fn may_reconnect(&self, instance: &Instance) -> bool {
        let now = self.input.now;
        let since = instance.lost_at.unwrap_or(now);
        let disconnect = self.spec.disconnect;
        disconnect.is_some_and(|it| !it.is_lost(since, now))
    }

    /// Marks instances whose node went out of reach. An evaluation is added for the time when the first of them counts
    /// as lost. A newer version of the job may have changed that time.
    fn mark_unreachable(&mut self, disconnected: &ById<'a>) {
        let now = self.input.now;
        if let Some(lost_after) = self.spec.disconnect.and_then(|it| it.lost_after) {
            let times = disconnected.values().map(|it| it.lost_at.unwrap_or(now));
            let first = times.min().map(|since| since.plus(lost_after));
            let is_late = |at: &Timestamp| self.input.next_look.is_none_or(|next| next > *at);
            let timeouts = first.filter(is_late).map(|wait_until| FollowUp {
                wait_until,
                is_timeout: true,
                allocs: Vec::new(),
            });
            self.work.follow_ups.extend(timeouts);
        }
        let new = disconnected
            .values()
            .filter(|instance| instance.client != ClientStatus::Unknown);
        self.work.unreachable.extend(new.map(|it| it.id));
    }

    /// Keeps either an instance that came back or its replacement.
    fn choose_after_reconnect(&mut self, untainted: &mut ById<'a>) {
        let back: Vec<&Instance> = untainted
            .values()
            .copied()
            .filter(|instance| instance.has_next && !instance.is_terminal())
            .collect();
        for original in back {
            let Some(replacement) = live_successor(untainted, original) else {
                continue;
            };
            let strategy = self
                .spec
                .disconnect
                .map_or(ReconcileStrategy::BestScore, |it| it.reconcile);
            let loser = if keeps_original(strategy, original, replacement) {
                replacement
            } else {
                original
            };
            self.work.stop.push(stop(loser.id, RECONNECTED));
            self.work.counts.stop += 1;
            untainted.remove(&loser.id);
        }
    }

    /// Leaves out instances of a batch job that ended under an older version: their result stays.
    fn without_old_batch(&mut self) -> ById<'a> {
        let mut all = ById::new();
        for instance in &self.group.instances {
            if self.input.batch && instance.is_older && instance.is_terminal() {
                self.work.counts.ignore += 1;
            } else {
                all.insert(instance.id, instance);
            }
        }
        all
    }

    /// Leaves out instances of an earlier job of another type: none of them continues.
    fn without_other_types(&mut self, all: ById<'a>) -> ById<'a> {
        let is_other = |(_, instance): &(AllocId, &Instance)| instance.is_of_other_type;
        let (others, all) = all.into_iter().partition(is_other);
        stop_each(&others, &mut self.work);
        all
    }

    /// Returns the canaries of the active deployment, and all other instances. Canaries of an older or failed
    /// deployment are stopped.
    fn canaries(&mut self, mut all: ById<'a>) -> (ById<'a>, ById<'a>) {
        let failed = self
            .deployments
            .current
            .filter(|_| self.deployments.has_failed);
        let unwanted = self
            .deployments
            .old
            .into_iter()
            .chain(failed)
            .flat_map(|deployment| &deployment.groups)
            .filter(|group| !group.promoted)
            .flat_map(|group| &group.placed_canaries);
        for id in unwanted {
            if all.remove(id).is_some() {
                self.work.stop.push(stop(*id, NOT_NEEDED));
                self.work.counts.stop += 1;
            }
        }
        let ids = self
            .deployments
            .current
            .into_iter()
            .flat_map(|deployment| &deployment.groups)
            .flat_map(|group| &group.placed_canaries);
        let canaries: ById<'a> = ids
            .filter_map(|id| all.get(id).map(|instance| (*id, *instance)))
            .collect();
        let InstancesByTaint {
            untainted,
            migrate,
            lost,
            disconnected: _,
        } = by_taint(&canaries, |_| false);
        for id in migrate.keys() {
            self.work.stop.push(stop(*id, MIGRATING));
            all.remove(id);
        }
        for id in lost.keys() {
            self.work.stop.push(stop_lost(*id, None));
            all.remove(id);
        }
        (untainted, all)
    }

    /// Divides instances into those that count, those to replace now and those to replace later.
    fn rescheduleable(
        &self,
        instances: ById<'a>,
    ) -> (ById<'a>, ById<'a>, Vec<(&'a Instance, Timestamp)>) {
        let (mut untainted, mut now) = (ById::new(), ById::new());
        let mut later = Vec::new();
        for (id, instance) in instances {
            if instance.has_next && instance.is_terminal() {
                continue;
            }
            match self.standing(instance) {
                InstanceRole::Counts => {
                    untainted.insert(id, instance);
                }
                InstanceRole::Ignored => {}
                InstanceRole::Due => {
                    now.insert(id, instance);
                }
                InstanceRole::DueLater(at) => {
                    untainted.insert(id, instance);
                    later.push((instance, at));
                }
            }
        }
        (untainted, now, later)
    }

    fn standing(&self, instance: &Instance) -> InstanceRole {
        let stopped = instance.desired != DesiredStatus::Run;
        if self.input.batch {
            if stopped {
                return if instance.ran_successfully {
                    InstanceRole::Counts
                } else {
                    InstanceRole::Ignored
                };
            }
            if instance.client != ClientStatus::Failed {
                return InstanceRole::Counts;
            }
        } else if stopped || matches!(instance.client, ClientStatus::Complete | ClientStatus::Lost)
        {
            return InstanceRole::Ignored;
        }
        // In an active deployment, only instances that its watcher allows are replaced.
        let is_deploying = self.deployments.current.is_some_and(|deployment| {
            instance.deployment == Some(deployment.id) && deployment.status.is_active()
        });
        if is_deploying && !instance.transition.reschedule {
            return InstanceRole::Counts;
        }
        let at = reschedule::next_time(instance, self.spec.reschedule);
        let is_due = at.is_some_and(|at| {
            instance.follow_up == Some(self.input.eval_id) || at.since(self.input.now) <= WINDOW
        });
        match at {
            _ if is_due || instance.transition.force_reschedule => InstanceRole::Due,
            Some(at) if instance.follow_up.is_none() => InstanceRole::DueLater(at),
            Some(_) | None => InstanceRole::Counts,
        }
    }

    /// Delays the replacement of lost instances that their agent may still be stopping.
    fn delay_lost(&mut self, lost: &ById<'a>) -> BTreeMap<AllocId, usize> {
        let mut later: Vec<(&Instance, Timestamp)> = Vec::new();
        for instance in lost.values() {
            if let Some(after) = self.spec.stop_after {
                let at = instance.lost_at.unwrap_or(self.input.now).plus(after);
                if at > self.input.now {
                    later.push((instance, at));
                }
            }
        }
        self.follow_up(&later)
    }

    fn delay_reschedules(&mut self, later: &[(&'a Instance, Timestamp)]) {
        self.follow_up(later);
    }

    /// Adds evaluations for delayed instances; those that are due close together share one. Returns the evaluation of
    /// each instance.
    fn follow_up(&mut self, later: &[(&'a Instance, Timestamp)]) -> BTreeMap<AllocId, usize> {
        let mut later: Vec<_> = later.to_vec();
        later.sort_by_key(|(instance, at)| (*at, instance.id));
        let mut positions = BTreeMap::new();
        let mut first: Option<Timestamp> = None;
        for (instance, at) in later {
            if first.is_none_or(|first| at.since(first) >= BATCH_WINDOW) {
                first = Some(at);
                self.work.follow_ups.push(FollowUp {
                    wait_until: at,
                    is_timeout: false,
                    allocs: Vec::new(),
                });
            }
            let position = self.work.follow_ups.len() - 1;
            self.work.follow_ups[position].allocs.push(instance.id);
            positions.insert(instance.id, position);
        }
        positions
    }

    /// Stops lost and surplus instances. Returns the stopped instances.
    fn stop_surplus(
        &mut self,
        names: &mut NameIndex,
        untainted: &ById<'a>,
        migrate: &mut ById<'a>,
        lost: &ById<'a>,
        canaries: &ById<'a>,
        lost_later: &BTreeMap<AllocId, usize>,
    ) -> BTreeSet<AllocId> {
        let mut stopped: BTreeSet<AllocId> = lost.keys().copied().collect();
        for id in lost.keys() {
            let follow_up = lost_later.get(id).copied();
            self.work.stop.push(stop_lost(*id, follow_up));
        }
        let waiting = self.waits_for_canaries();
        let mut rest: Vec<&Instance> = by_name(untainted)
            .into_iter()
            .filter(|instance| !(waiting && canaries.contains_key(&instance.id)))
            .collect();
        let mut surplus = (rest.len() + migrate.len()).saturating_sub(self.spec.count as usize);
        if surplus == 0 {
            self.work.counts.stop += count(stopped.len());
            return stopped;
        }
        rest.retain(|instance| !instance.is_terminal());
        let work = &mut self.work;
        let mut take = |instance: &Instance, surplus: &mut usize| {
            if *surplus == 0 {
                return false;
            }
            *surplus -= 1;
            stopped.insert(instance.id);
            work.stop.push(stop(instance.id, NOT_NEEDED));
            true
        };
        // A promoted canary takes the place of the instance with the same name.
        if !waiting && !canaries.is_empty() {
            let canary_names: BTreeSet<u32> =
                canaries.values().map(|canary| canary.name_index).collect();
            rest.retain(|instance| {
                let replaced = !canaries.contains_key(&instance.id)
                    && canary_names.contains(&instance.name_index);
                !(replaced && take(instance, &mut surplus))
            });
        }
        // Instances that would migrate anyway are stopped before instances that could stay.
        if surplus > 0 && !migrate.is_empty() {
            let numbers = migrate.values().map(|instance| instance.name_index);
            let highest = NameIndex::new(self.spec.count, numbers).highest(surplus);
            for instance in by_name(migrate) {
                if highest.contains(&instance.name_index) && take(instance, &mut surplus) {
                    migrate.remove(&instance.id);
                    names.free(instance.name_index);
                }
            }
        }
        if surplus > 0 {
            let highest = names.highest(surplus);
            rest.retain(|instance| {
                !(highest.contains(&instance.name_index) && take(instance, &mut surplus))
            });
        }
        // Several instances may have one name.
        for instance in rest.iter().rev() {
            take(instance, &mut surplus);
        }
        self.work.counts.stop += count(stopped.len());
        // An ended instance is not stopped, but a deployment must not wait for its successor.
        let ended = by_name(untainted).into_iter().rev();
        let ended = ended.filter(|instance| instance.is_terminal() && !self.input.batch);
        let ended: Vec<AllocId> = ended.take(surplus).map(|instance| instance.id).collect();
        self.work.counts.ignore += count(ended.len());
        stopped.extend(ended);
        stopped
    }

    /// Separates instances that are updated in place from those to replace.
    fn updates(&mut self, untainted: &ById<'a>) -> (usize, ById<'a>) {
        let mut destructive = ById::new();
        let mut in_place = 0;
        for (id, instance) in untainted {
            match instance.change {
                Change::None => self.work.counts.ignore += 1,
                Change::InPlace => {
                    in_place += 1;
                    self.work.in_place.push(*id);
                }
                Change::Destructive => {
                    destructive.insert(*id, *instance);
                }
            }
        }
        self.work.counts.in_place += count(in_place);
        if !self.has_deployment {
            self.state.desired_total += count(destructive.len() + in_place);
        }
        (in_place, destructive)
    }

    /// Places missing canaries. Returns whether canaries were missing.
    fn place_canaries(
        &mut self,
        names: &mut NameIndex,
        canaries: &ById<'a>,
        destructive: &ById<'a>,
    ) -> bool {
        let wanted = self.spec.update.map_or(0, |update| update.canary);
        let have = count(canaries.len());
        if have >= wanted || self.state.promoted {
            return false;
        }
        self.state.desired_canaries = wanted;
        if self.deployments.is_paused || self.deployments.has_failed {
            return true;
        }
        let number = wanted - have;
        self.work.counts.canary += number;
        let numbers = |of: &ById<'_>| {
            of.values()
                .map(|it| it.name_index)
                .collect::<BTreeSet<u32>>()
        };
        for name_index in names.next_canaries(number, &numbers(canaries), &numbers(destructive)) {
            self.work.place.push(Placement {
                canary: true,
                ..fresh(name_index)
            });
        }
        true
    }

    /// Returns the number of instances that may be replaced now.
    fn limit(&self, untainted: &ById<'a>, destructive: &ById<'a>, migrate: &ById<'a>) -> u32 {
        let Some(update) = self.spec.update.filter(|_| self.has_strategy()) else {
            return self.spec.count;
        };
        if destructive.is_empty() && migrate.is_empty() {
            return self.spec.count;
        }
        if self.deployments.is_paused || self.deployments.has_failed || self.waits_for_canaries() {
            return 0;
        }
        let mut limit = update.max_parallel;
        let deployed = untainted.values().filter(|instance| {
            self.deployments
                .current
                .is_some_and(|deployment| instance.deployment == Some(deployment.id))
        });
        for instance in deployed {
            match instance.healthy {
                Some(true) => {}
                Some(false) => return 0,
                None => limit = limit.saturating_sub(1),
            }
        }
        limit
    }

    /// Lists the instances that this plan places, and counts those left for the next.
    fn placements(
        &self,
        names: &mut NameIndex,
        untainted: &ById<'a>,
        migrate: &ById<'a>,
        now: &ById<'a>,
        lost: &ById<'a>,
        disconnected: &ById<'a>,
    ) -> (Vec<Placement>, u32) {
        let waiting = self.waits_for_canaries();
        let after = |instance: &Instance| Placement {
            canary: instance.canary,
            previous: Some(instance.id),
            last_stable: waiting && !instance.canary,
            version_min: instance.version,
            ..fresh(instance.name_index)
        };
        let mut place: Vec<Placement> = by_name(now)
            .into_iter()
            .map(|instance| Placement {
                reschedule: true,
                ..after(instance)
            })
            .collect();
        let is_replaced = self.spec.disconnect.is_none_or(|it| it.replace);
        let waited_for = if is_replaced { 0 } else { disconnected.len() };
        let existing = untainted.len() + migrate.len() + now.len() + waited_for;
        let mut missing = (self.spec.count as usize).saturating_sub(existing);
        // An instance that was replaced while it was out of reach is not replaced again when it counts as lost.
        let replaced =
            |instance: &&Instance| instance.client == ClientStatus::Unknown && instance.has_next;
        let unreplaced = by_name(lost).into_iter().filter(|it| !replaced(it));
        for instance in unreplaced.take(missing) {
            missing -= 1;
            place.push(Placement {
                lost: true,
                ..after(instance)
            });
        }
        let unreplaced = by_name(disconnected)
            .into_iter()
            .filter(|instance| is_replaced && !instance.has_next);
        for instance in unreplaced.take(missing) {
            missing -= 1;
            place.push(Placement {
                keeps_previous: true,
                ..after(instance)
            });
        }
        let missing = count(missing);
        let now = missing.min(self.slice.saturating_sub(count(place.len())));
        place.extend(names.next(now).into_iter().map(|name_index| Placement {
            last_stable: waiting,
            ..fresh(name_index)
        }));
        (place, missing - now)
    }

    fn carry_out(
        &mut self,
        (place, left): (Vec<Placement>, u32),
        now: &ById<'a>,
        lost: &ById<'a>,
        destructive: &ById<'a>,
        limit: u32,
    ) {
        let ready = !self.deployments.is_paused
            && !self.deployments.has_failed
            && !self.waits_for_canaries();
        if !ready {
            self.replace_lost_and_failed(&place, now, lost);
            self.work.counts.ignore += count(destructive.len());
            return;
        }
        let placed = count(place.len());
        self.work.counts.place += placed + left;
        if self.work.place.is_empty() {
            self.work.place = place;
        } else {
            self.work.place.extend(place);
        }
        self.work
            .stop
            .extend(now.keys().map(|id| stop(*id, RESCHEDULED)));
        self.work.counts.stop += count(now.len());
        let placed = placed.saturating_add(left);
        let replaced = limit.saturating_sub(placed).min(count(destructive.len()));
        let replaced_now = replaced.min(self.slice.saturating_sub(placed));
        self.work.left = left + (replaced - replaced_now);
        let mut destructive = by_name(destructive).into_iter().map(|instance| instance.id);
        self.work
            .destructive
            .extend(destructive.by_ref().take(replaced_now as usize));
        self.work.held_back.extend(destructive);
        self.work.placed_over_limit = placed.saturating_sub(limit);
        self.work.counts.destructive += count(self.work.destructive.len());
        self.work.counts.ignore += count(self.work.held_back.len());
    }

    /// Replaces instances that were lost or have failed although the deployment does not progress.
    fn replace_lost_and_failed(&mut self, place: &[Placement], now: &ById<'a>, lost: &ById<'a>) {
        let allowed = place.len().min(lost.len());
        self.work.counts.place += count(allowed);
        self.work.place.extend(&place[..allowed]);
        for placement in place.iter().filter(|placement| placement.reschedule) {
            let Some(previous) = placement.previous.and_then(|id| now.get(&id)) else {
                continue;
            };
            // Instances that failed by the failed deployment itself are not replaced.
            let is_its_fault = self.deployments.has_failed
                && self
                    .deployments
                    .current
                    .is_some_and(|deployment| previous.deployment == Some(deployment.id));
            if is_its_fault {
                continue;
            }
            self.work.place.push(*placement);
            self.work.counts.place += 1;
            self.work.stop.push(stop(previous.id, RESCHEDULED));
            self.work.counts.stop += 1;
        }
    }

    fn migrate(&mut self, migrate: &ById<'a>) {
        let waiting = self.waits_for_canaries();
        self.work.counts.migrate += count(migrate.len());
        for instance in by_name(migrate) {
            self.work.stop.push(stop(instance.id, MIGRATING));
            self.work.place.push(Placement {
                canary: instance.canary,
                previous: Some(instance.id),
                last_stable: waiting && !instance.canary,
                version_min: instance.version,
                ..fresh(instance.name_index)
            });
        }
    }

    /// Begins a deployment if the version changes instances, or is new.
    fn begin_deployment(&mut self, all: &ById<'a>, destructive: &ById<'a>) {
        let is_updating = !destructive.is_empty() || !self.work.in_place.is_empty();
        let had_running = all.values().any(|instance| instance.is_current);
        if !self.has_deployment
            && self.has_strategy()
            && self.state.desired_total != 0
            && (!had_running || is_updating)
        {
            self.deployments
                .new
                .get_or_insert_with(NewDeployment::default)
                .groups
                .push(self.state.clone());
        }
    }

    /// Returns whether the group within the deployment is healthy and its canaries are promoted.
    fn is_healthy(&self) -> bool {
        let begun = self
            .deployments
            .new
            .as_ref()
            .is_some_and(|new| new.groups.iter().any(|group| group.name == self.group.name));
        if !self.has_deployment && !begun {
            return true;
        }
        let state = &self.state;
        state.healthy >= state.desired_total.max(state.desired_canaries)
            && (state.desired_canaries == 0 || state.promoted)
    }
}

/// Returns the live instance that continues in the place of `original`, if there is one.
fn live_successor<'a>(instances: &ById<'a>, original: &Instance) -> Option<&'a Instance> {
    let mut next = original.reconnect_facts.next;
    // A chain has no more links than there are instances.
    for _ in 0..instances.len() {
        let instance = instances.get(&next?)?;
        if !instance.is_terminal() {
            return Some(instance);
        }
        next = instance.reconnect_facts.next;
    }
    None
}

fn keeps_original(
    strategy: ReconcileStrategy,
    original: &Instance,
    replacement: &Instance,
) -> bool {
    if original.is_older && !replacement.is_older {
        return false;
    }
    let (ours, theirs) = (original.reconnect_facts, replacement.reconnect_facts);
    match strategy {
        ReconcileStrategy::BestScore => ours.score >= theirs.score,
        ReconcileStrategy::LongestRunning => match (ours.started_at, theirs.started_at) {
            (Some(ours), Some(theirs)) => ours <= theirs,
            (ours, _) => ours.is_some(),
        },
        ReconcileStrategy::KeepOriginal => true,
        ReconcileStrategy::KeepReplacement => false,
    }
}

/// The role of an instance on a healthy node in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceRole {
    /// It is one of the wanted instances.
    Counts,
    /// It has ended and does not count.
    Ignored,
    /// It failed, and is replaced now.
    Due,
    /// It failed, and is replaced at the given time.
    DueLater(Timestamp),
}

/// Returns the placement of a new instance of the current version.
fn fresh(name_index: u32) -> Placement {
    Placement {
        name_index,
        canary: false,
        previous: None,
        reschedule: false,
        lost: false,
        keeps_previous: false,
        last_stable: false,
        version_min: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_domain::id::EvalId;
    use muster_domain::job::UpdateStrategy;

    use super::*;

    #[test]
    fn first_diff_equals_comparison_with_nothing() {
        let strategy = |max_parallel, canary| UpdateStrategy {
            max_parallel,
            canary,
            auto_revert: true,
            progress_deadline: Duration::from_secs(7),
            ..UpdateStrategy::default()
        };
        for count in [0, 1, 5] {
            for update in [None, Some(strategy(0, 0)), Some(strategy(2, 1))] {
                let group = GroupInput {
                    name: "web",
                    spec: None,
                    instances: Vec::new(),
                };
                let spec = GroupSpec {
                    count,
                    update: update.as_ref(),
                    reschedule: None,
                    stop_after: None,
                    disconnect: None,
                };
                let input = Input {
                    batch: false,
                    stopped: false,
                    deployment: None,
                    deployment_is_current: false,
                    groups: Vec::new(),
                    eval_id: EvalId([1; 16]),
                    next_look: None,
                    now: Timestamp(9),
                };
                let outcome = |is_short: bool| {
                    let mut deployments = Deployments::default();
                    let reconciler = Reconciler::new(&input, &group, spec, &mut deployments, 100);
                    let work = if is_short {
                        reconciler.begin()
                    } else {
                        reconciler.compare()
                    };
                    format!("{work:?} {deployments:?}")
                };
                assert_eq!(outcome(true), outcome(false), "{count} with {update:?}");
            }
        }
    }
}
