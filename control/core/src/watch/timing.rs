//! Times at which deployments and drains are looked at: soon after a change, and when something is due.
//!
//! The caller proposes the commands of a look, in order, and reports when all of them are written. Until then there is
//! no look, because it would find the same work again.

use muster_domain::id::Timestamp;

use super::{DueCommands, due, is_needed};

use crate::fsm::Entry;
use crate::limits;
use crate::state::State;

/// Decides when to look at deployments and drains.
#[derive(Debug)]
pub struct Watcher {
    /// The earliest time of the next look. `None`: when something changes.
    look_at: Option<Timestamp>,
    /// Time of the last look.
    looked_at: Timestamp,
    /// The commands of the last look are not written yet.
    under_way: bool,
}

impl Watcher {
    /// Returns a watcher that looks at once.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            look_at: Some(now),
            looked_at: Timestamp(0),
            under_way: false,
        }
    }

    /// Handles a change: the next look is soon, but there is not one look for each of many changes.
    pub fn handle_change(&mut self) {
        let soon = self.looked_at.plus(limits::WATCH_INTERVAL);
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// Handles that the commands of the last look are written.
    pub fn handle_written(&mut self) {
        self.under_way = false;
        self.handle_change();
    }

    /// Handles that the commands of the last look could not be written, or not all of them.
    pub fn handle_failure(&mut self, now: Timestamp) {
        self.under_way = false;
        self.look_at = Some(now.plus(limits::WATCH_RETRY_PAUSE));
    }

    /// Looks, if it is time, and returns the commands to propose. `now` is the clock of deadlines and decides when to
    /// look. `at` is the clock of rows and decides which commands are due.
    pub fn handle_timeout(&mut self, state: &State, now: Timestamp, at: Timestamp) -> Vec<Entry> {
        let is_time = self.look_at.is_some_and(|look_at| look_at <= now);
        if !is_time || self.under_way {
            return Vec::new();
        }
        self.looked_at = now;
        self.look_at = None;
        if !is_needed(state) {
            return Vec::new();
        }
        let DueCommands { commands, next } = due(state, at);
        let pause = next.map(|next| next.since(at));
        self.look_at = pause.map(|pause| now.plus(pause.max(limits::WATCH_INTERVAL)));
        if state.nodes().draining().next().is_some() {
            let again = now.plus(limits::DRAIN_INTERVAL);
            self.look_at = Some(self.look_at.map_or(again, |at| at.min(again)));
        }
        self.under_way = !commands.is_empty();
        commands
    }

    /// Returns the time of the next look, unless something changes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        let at = self.look_at.filter(|_| !self.under_way)?;
        Some((at, "deployments and drains"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_domain::fixture::{job, node};
    use muster_domain::job::UpdateStrategy;

    use super::*;
    use crate::fixture::Cluster;
    use crate::fsm::{Command, DeploymentCommand};

    const DEADLINE: Duration = Duration::from_mins(1);

    fn begun_deployment() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.node(node("n1").build());
        let mut spec = job("web").build();
        spec.groups[0].update = Some(UpdateStrategy {
            progress_deadline: DEADLINE,
            ..UpdateStrategy::default()
        });
        cluster.run(spec);
        cluster
    }

    fn next(watcher: &Watcher) -> Option<Timestamp> {
        watcher.poll_timeout().map(|(at, _)| at)
    }

    #[test]
    fn deadline_is_checked_regardless_of_row_clock() {
        let cluster = begun_deployment();
        let (begun, at) = (Timestamp(1_000_000_000), cluster.now);
        let mut watcher = Watcher::new(begun);

        assert_eq!(watcher.handle_timeout(&cluster.state, begun, at), []);
        assert_eq!(next(&watcher), Some(begun.plus(DEADLINE)));
        let (now, at) = (begun.plus(DEADLINE), at.plus(DEADLINE));
        let found = watcher.handle_timeout(&cluster.state, now, at);
        assert!(
            matches!(
                found[..],
                [Entry {
                    command: Command::Deployment(DeploymentCommand::Change { .. }),
                    ..
                }]
            ),
            "{found:?}"
        );
    }

    #[test]
    fn watcher_waits_while_a_change_is_written() {
        let cluster = begun_deployment();
        let begun = Timestamp(1_000_000_000);
        let late = cluster.now.plus(DEADLINE);
        let mut watcher = Watcher::new(begun);
        let found = watcher.handle_timeout(&cluster.state, begun, late);
        assert_eq!(found.len(), 1);

        watcher.handle_change();
        assert_eq!(next(&watcher), None);
        let later = begun.plus(DEADLINE);
        assert_eq!(watcher.handle_timeout(&cluster.state, later, late), []);
        watcher.handle_written();
        assert_eq!(next(&watcher), Some(begun.plus(limits::WATCH_INTERVAL)));
        assert_eq!(
            watcher.handle_timeout(&cluster.state, later, late).len(),
            1,
            "it was not written after all"
        );
        watcher.handle_failure(later);
        assert_eq!(next(&watcher), Some(later.plus(limits::WATCH_RETRY_PAUSE)));
    }

    #[test]
    fn many_changes_bring_one_look_in_an_interval() {
        let cluster = begun_deployment();
        let begun = Timestamp(1_000_000_000);
        let mut watcher = Watcher::new(begun);
        watcher.handle_timeout(&cluster.state, begun, cluster.now);

        watcher.handle_change();
        watcher.handle_change();

        assert_eq!(next(&watcher), Some(begun.plus(limits::WATCH_INTERVAL)));
    }

    #[test]
    fn without_deployments_and_drains_nothing_is_looked_for() {
        let mut watcher = Watcher::new(Timestamp(5));

        let found = watcher.handle_timeout(&State::default(), Timestamp(5), Timestamp(9));

        assert_eq!((found, next(&watcher)), (Vec::new(), None));
    }
}
