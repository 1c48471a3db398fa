//! Faults: crashes, partitions, bad links, bad disks, wrong clocks, and the end of faults.

use super::World;
use crate::env::Event;
use crate::message::Endpoint;

impl World {
    /// Injects a random fault or repairs one.
    pub(super) fn inject_fault(&mut self) {
        if self.env.is_calm {
            return;
        }
        self.heal_some();
        match self.env.rng.below(20) {
            0..=3 => self.crash_server(),
            4..=5 => self.pause_server(),
            6..=8 => self.partition_servers(),
            9..=10 => self.cut_agent_off(),
            11..=12 => self.change_fault_rates(),
            13..=14 => self.change_disk(),
            15 => self.change_clock(),
            16..=17 => self.crash_agent(),
            18 => self.reboot_machine(),
            _ => self.heal_all(),
        }
        self.env.after(300, 7_000, Event::Fault);
    }

    /// Repairs some faults, so that no fault lasts for ever.
    fn heal_some(&mut self) {
        if self.env.rng.chance(35) {
            self.env.trace_line(format_args!("the network is joined"));
            self.env.network.join();
        }
        for at in 0..self.servers.len() {
            if self.env.rng.chance(40) {
                self.heal_disk(at);
            }
        }
    }

    fn heal_disk(&mut self, at: usize) {
        let server = &mut self.servers[at];
        server.raft.disk.full = false;
        server.raft.disk.slow = false;
        if server.up {
            server.raft.sync(&mut self.env);
        }
    }

    /// Ends all faults.
    pub(super) fn end_faults(&mut self) {
        self.env.trace_line(format_args!("calm"));
        self.env.is_calm = true;
        self.heal_all();
        for at in 0..self.servers.len() {
            if !self.servers[at].up {
                self.start_server(at);
            }
            self.advance_server(at);
        }
        for at in 0..self.hosts.len() {
            self.start_agent(at);
        }
    }

    /// Repairs the network and the disks.
    fn heal_all(&mut self) {
        self.env
            .trace_line(format_args!("network and disks are well"));
        self.env.network.heal();
        for at in 0..self.servers.len() {
            self.heal_disk(at);
        }
    }

    fn random_server(&mut self) -> usize {
        // Faults of the leader are more interesting than those of followers.
        let leader = self
            .servers
            .iter()
            .position(|server| server.up && server.raft.leads());
        match leader {
            Some(leader) if self.env.rng.chance(40) => leader,
            Some(_) | None => self.env.rng.below(self.servers.len()),
        }
    }

    fn crash_server(&mut self) {
        let at = self.random_server();
        // Sometimes all servers crash together, as when a rack loses its power.
        let all = self.env.rng.chance(5);
        for at in if all {
            0..self.servers.len()
        } else {
            at..at + 1
        } {
            self.crash(at);
        }
    }

    pub(super) fn crash(&mut self, at: usize) {
        if self.servers[at].up {
            self.env.trace_line(format_args!("server {at} crashes"));
            self.servers[at].crash(&mut self.env);
            self.env.after(100, 15_000, Event::ServerStarts(at));
        }
    }

    pub(super) fn start_server(&mut self, at: usize) {
        if !self.servers[at].up {
            self.env.trace_line(format_args!("server {at} starts"));
            self.servers[at].restart(&mut self.env);
            self.advance_server(at);
        }
    }

    fn pause_server(&mut self) {
        let at = self.random_server();
        let pause = self.env.rng.millis(500, 12_000);
        let server = &mut self.servers[at];
        if server.paused_until > self.env.now {
            // Waiting messages are scheduled for the end of the pause. If the pause grew, later messages would
            // overtake them.
            return;
        }
        server.paused_until = self.env.now.plus(pause);
        self.env
            .trace_line(format_args!("server {at} stands still for {pause:?}"));
    }

    fn partition_servers(&mut self) {
        let servers = self.servers.len();
        if servers == 1 {
            return;
        }
        let one = self.random_server();
        let kind = self.env.rng.below(5);
        let side: Vec<bool> = (0..servers).map(|_| self.env.rng.chance(50)).collect();
        let name = ["isolated", "mute", "deaf", "a bridge", "on one side"][kind];
        self.env.trace_line(format_args!("server {one} is {name}"));
        for from in 0..servers {
            for to in 0..servers {
                let cut = match kind {
                    0 => from == one || to == one,
                    1 => from == one,
                    2 => to == one,
                    3 => side[from] != side[to] && from != one && to != one,
                    _ => side[from] != side[to],
                };
                if cut && from != to {
                    self.env
                        .network
                        .cut(Endpoint::Server(from), Endpoint::Server(to));
                }
            }
        }
    }

    fn cut_agent_off(&mut self) {
        let host = self.env.rng.below(self.hosts.len());
        let (out, back) = [(true, true), (true, false), (false, true)][self.env.rng.below(3)];
        let all = self.env.rng.chance(50);
        for server in 0..self.servers.len() {
            if all || self.env.rng.chance(50) {
                let (host, server) = (Endpoint::Host(host), Endpoint::Server(server));
                self.env.trace_line(format_args!(
                    "{host:?} and {server:?}: out {out}, back {back}"
                ));
                if out {
                    self.env.network.cut(host, server);
                }
                if back {
                    self.env.network.cut(server, host);
                }
            }
        }
    }

    fn change_fault_rates(&mut self) {
        let env = &mut self.env;
        env.network.change_fault_rates(&mut env.rng);
        let network = &env.network;
        let line = format!(
            "fault rates: {} % lost, {} % doubled, {} % late by {} ms",
            network.loss, network.duplicated, network.late, network.late_ms
        );
        env.trace_line(format_args!("{line}"));
    }

    fn change_disk(&mut self) {
        let at = self.random_server();
        let disk = &mut self.servers[at].raft.disk;
        if self.env.rng.chance(50) {
            disk.full = true;
            self.env
                .trace_line(format_args!("the disk of server {at} is full"));
        } else {
            disk.slow = true;
            self.env
                .trace_line(format_args!("the disk of server {at} is slow"));
        }
    }

    fn change_clock(&mut self) {
        let at = self.random_server();
        let off = i64::from(self.env.rng.between(0, 8_000)) - 4_000;
        self.env
            .trace_line(format_args!("the clock of server {at} is off by {off} ms"));
        self.servers[at].clock_off_ms = off;
    }

    fn crash_agent(&mut self) {
        let at = self.env.rng.below(self.hosts.len());
        if self.hosts[at].agent.is_none() {
            return;
        }
        self.hosts[at].kill_agent();
        self.host_at[at] = None;
        let lost = self.env.rng.chance(10);
        if lost {
            self.hosts[at].lose_store();
        }
        self.env
            .trace_line(format_args!("agent {at} dies, its store is lost: {lost}"));
        self.env.after(50, 20_000, Event::AgentStarts(at));
    }

    fn reboot_machine(&mut self) {
        let at = self.env.rng.below(self.hosts.len());
        self.env.trace_line(format_args!("machine {at} restarts"));
        self.hosts[at].reboot();
        self.host_at[at] = None;
        self.env.after(2_000, 30_000, Event::AgentStarts(at));
    }

    pub(super) fn start_agent(&mut self, at: usize) {
        if self.hosts[at].agent.is_none() {
            self.env.trace_line(format_args!("agent {at} starts"));
            self.hosts[at].start_agent(&mut self.env);
            self.host_at[at] = self.hosts[at].poll_timeout();
        }
    }
}
