//! Faults: leaders lost, agents silent, machines rebooted. And the calm after them.

use muster_control_core::fsm::Command;
use muster_domain::id::Timestamp;
use muster_domain::node::Eligibility;

use super::{Event, World};

impl World {
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        self.after(2_000, 40_000, Event::Fault);
        let node = self.dice.below(self.agents.len());
        match self.dice.below(4) {
            0 => self.lose_leadership(),
            1 => {
                self.say(format_args!("node-{node} falls silent"));
                self.disconnect(node, 90_000);
            }
            2 => {
                self.say(format_args!("node-{node} reconnects"));
                self.disconnect(node, 3_000);
            }
            _ => {
                self.say(format_args!("node-{node} reboots"));
                self.agents[node].reboot();
                self.disconnect(node, 60_000);
            }
        }
    }

    fn disconnect(&mut self, node: usize, longest_ms: u64) {
        if self.agents[node].connected {
            self.agents[node].connected = false;
            self.after(100, longest_ms, Event::Connect { node });
        }
    }

    /// Of the proposals on their way, the first few are committed, the others are lost.
    fn lose_leadership(&mut self) {
        let on_the_way: Vec<(Timestamp, u64)> = self
            .queue
            .iter()
            .filter(|(_, event)| matches!(event, Event::Commit(..)))
            .map(|(at, _)| *at)
            .collect();
        let committed = self.dice.below(on_the_way.len() + 1);
        self.say(format_args!(
            "leader is lost with {committed} of {} entries",
            on_the_way.len()
        ));
        for (place, at) in on_the_way.into_iter().enumerate() {
            if let Some(Event::Commit(_, proposal)) = self.queue.remove(&at)
                && place < committed
            {
                // Its effects are lost with the leader.
                self.commit(u64::MAX, proposal);
            }
        }
        if let Err(fault) = self.server.lead(self.now) {
            self.faults.push(fault);
        }
        for node in 0..self.agents.len() {
            self.disconnect(node, 4_000);
        }
    }

    /// Faults and users stop; every node takes work again.
    pub(super) fn be_calm(&mut self) {
        self.say(format_args!("calm"));
        self.calm = true;
        for node in 0..self.agents.len() {
            let (node_id, at) = (self.agents[node].spec.id, self.now);
            let eligibility = Eligibility::Eligible;
            self.propose(Command::SetEligibility {
                node_id,
                eligibility,
                at,
            });
        }
    }
}
