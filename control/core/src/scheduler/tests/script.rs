//! A small language for clusters.
//!
//! `node NAME [cpu=] [mem=] [disk=] [dc=] [pool=] [class=] [attr.K=V] [meta.K=V] [drain]`,
//! `job NAME [count=] [cpu=] [mem=] [type=] [priority=] [dc=] [pool=] [driver=] [port=N|any]
//! [where=LEFT,OPERAND,RIGHT] [sticky]`, `stop JOB`, `down NODE`, `up NODE`, `fail|complete|run JOB[I]`,
//! `after SECONDS`. Every line but `node` answers with the plans it led to.

use std::fmt::Write as _;
use std::time::Duration;

use muster_domain::alloc::{Allocation, ClientStatus};
use muster_domain::eval::EvalStatus;
use muster_domain::fixture;
use muster_domain::id::{JobKey, NodeId};
use muster_domain::job::{Constraint, GroupNetwork, JobSpec, JobType, NetworkMode, Operand};
use muster_domain::node::{Eligibility, NodeSpec, NodeStatus, limits_in_place};
use muster_domain::plan::Plan;
use muster_domain::resources::CpuMhz;

use crate::fixture::Cluster;
use crate::fsm::NodeCommand;

pub(super) fn run(script: &str) -> String {
    let mut cluster = Cluster::new();
    let mut out = String::new();
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let before = cluster.state.clone();
        let plans = step(&mut cluster, line);
        for plan in &plans {
            write_plan(&mut out, &cluster, plan);
        }
        for eval in cluster.state.evals().iter() {
            let old = before.evals().get(&eval.id);
            if eval.status == EvalStatus::Blocked && old != Some(eval) {
                write_blocked(&mut out, eval);
            }
        }
    }
    out.trim_end().to_owned()
}

fn step(cluster: &mut Cluster, line: &str) -> Vec<Plan> {
    let mut words = line.split_whitespace();
    let (verb, name) = (words.next().unwrap(), words.next().unwrap());
    let words: Vec<&str> = words.collect();
    match verb {
        "node" => {
            let node_id = cluster.node(node(name, &words));
            if words.contains(&"drain") {
                let (eligibility, at) = (Eligibility::Ineligible, cluster.now);
                cluster.apply(
                    NodeCommand::SetEligibility {
                        node_id,
                        eligibility,
                    }
                    .at(at),
                );
            }
            cluster.settle()
        }
        "job" => cluster.run(job(name, &words)),
        "stop" => cluster.stop(name),
        "down" | "up" => {
            let status = if verb == "up" {
                NodeStatus::Ready
            } else {
                NodeStatus::Down
            };
            cluster.node_status(node_id(cluster, name), status);
            cluster.settle()
        }
        "fail" | "complete" | "run" => {
            let status = match verb {
                "fail" => ClientStatus::Failed,
                "complete" => ClientStatus::Complete,
                _ => ClientStatus::Running,
            };
            let (job_id, index) = name.trim_end_matches(']').split_once('[').unwrap();
            let index: u32 = index.parse().unwrap();
            let alloc = cluster
                .live(job_id)
                .into_iter()
                .find(|alloc| alloc.name_index == index);
            cluster.report(alloc.unwrap().id, status);
            cluster.settle()
        }
        "after" => {
            cluster.advance(Duration::from_secs(name.parse().unwrap()));
            cluster.settle()
        }
        _ => panic!("no such verb: {verb}"),
    }
}

fn node_id(cluster: &Cluster, name: &str) -> NodeId {
    cluster.state.nodes().named(name)[0].spec.id
}

fn node(name: &str, words: &[&str]) -> NodeSpec {
    let mut spec = fixture::node(name)
        .attribute(&limits_in_place("native"), "1")
        .build();
    for (key, value) in words.iter().filter_map(|word| word.split_once('=')) {
        let total = &mut spec.resources.total;
        match key {
            "cpu" => total.cpu_mhz = value.parse().unwrap(),
            "mem" => total.memory_mb = value.parse().unwrap(),
            "disk" => total.disk_mb = value.parse().unwrap(),
            "allocs" => spec.resources.max_allocs = value.parse().unwrap(),
            "dc" => value.clone_into(&mut spec.datacenter),
            "pool" => value.clone_into(&mut spec.pool),
            "class" => value.clone_into(&mut spec.class),
            _ => {
                let (map, key) = match key.split_once('.').unwrap() {
                    ("attr", key) => (&mut spec.attributes, key),
                    (_, key) => (&mut spec.meta, key),
                };
                map.insert(key.to_owned(), value.to_owned());
            }
        }
    }
    spec
}

fn job(name: &str, words: &[&str]) -> JobSpec {
    let kind = words.iter().find_map(|word| word.strip_prefix("type="));
    let kind = kind.map_or(JobType::Service, |kind| JobType::from_name(kind).unwrap());
    let mut job = fixture::job(name).job_type(kind);
    for (key, value) in words.iter().filter_map(|word| word.split_once('=')) {
        job = match (key, value) {
            ("count", count) => job.count(count.parse().unwrap()),
            ("cpu", mhz) => job.cpu_mhz(mhz.parse().unwrap()),
            ("mem", mb) => job.memory_mb(mb.parse().unwrap()),
            ("priority", priority) => job.priority(priority.parse().unwrap()),
            ("port", "any") => job.dynamic_port("http"),
            ("port", port) => job.port("http", port.parse().unwrap()),
            _ => job,
        };
    }
    let mut spec = job.build();
    for (key, value) in words.iter().filter_map(|word| word.split_once('=')) {
        match key {
            "dc" => spec.datacenters = vec![value.to_owned()],
            "pool" => value.clone_into(&mut spec.node_pool),
            "driver" => value.clone_into(&mut spec.groups[0].tasks[0].driver),
            "net" => {
                spec.groups[0].network = Some(GroupNetwork {
                    mode: NetworkMode::from_name(value).unwrap(),
                    ports: Vec::new(),
                    policy: None,
                    dns: None,
                    hostname: String::new(),
                });
            }
            "where" => spec.constraints.push(constraint(value)),
            _ => {}
        }
    }
    spec.groups[0].ephemeral_disk.sticky = words.contains(&"sticky");
    if words.contains(&"cpu=0") {
        spec.groups[0].tasks[0].resources.cpu = CpuMhz(0);
    }
    spec
}

fn constraint(text: &str) -> Constraint {
    let mut parts = text.splitn(3, ',').map(str::to_owned);
    let left = parts.next().unwrap();
    let operand = Operand::from_name(&parts.next().unwrap()).unwrap();
    Constraint {
        left,
        operand,
        right: parts.next().unwrap(),
    }
}

fn write_plan(out: &mut String, cluster: &Cluster, plan: &Plan) {
    for stop in &plan.stops {
        let alloc = cluster.state.allocs().get(&stop.alloc_id).unwrap();
        let (name, node) = (short(&alloc.unpack()), node_name(cluster, &alloc.node_id()));
        writeln!(out, "stop {name} on {node}: {}", stop.description).unwrap();
    }
    for group in &plan.groups {
        if group.in_place {
            writeln!(
                out,
                "move {} to version {}",
                plan.job.job_id, plan.job_version
            )
            .unwrap();
        }
        for run in &group.placements {
            let (first, last) = (run.first_index, run.first_index + run.count - 1);
            let span = if first == last {
                first.to_string()
            } else {
                format!("{first}..={last}")
            };
            let column = cluster.state.nodes().column_at(run.node).unwrap();
            let node = node_name(cluster, &column.node_id);
            write!(
                out,
                "place {}[{span}] {node} score {:.3}",
                plan.job.job_id,
                run.score.value()
            )
            .unwrap();
            let ports = run.holding().map_or(&[][..], |holding| &holding.ports);
            for port in ports {
                let value = if port.value >= 20_000 {
                    "dynamic".to_owned()
                } else {
                    port.value.to_string()
                };
                write!(out, " {}:{value}", port.label).unwrap();
            }
            if let Some(previous) = run.previous() {
                let previous = cluster.state.allocs().get(&previous).unwrap();
                write!(out, " after {}", node_name(cluster, &previous.node_id())).unwrap();
            }
            writeln!(out).unwrap();
        }
    }
}

fn write_blocked(out: &mut String, eval: &muster_domain::eval::Evaluation) {
    for failed in &eval.failed_groups {
        let JobKey { job_id, .. } = &eval.job;
        let metrics = &failed.metrics;
        let mut why: Vec<String> = Vec::new();
        for (reason, nodes) in metrics
            .constraint_filtered
            .iter()
            .chain(&metrics.dimension_exhausted)
        {
            why.push(format!("{reason} on {nodes}"));
        }
        if why.is_empty() {
            why.push(format!("{} nodes looked at", metrics.nodes_evaluated));
        }
        writeln!(out, "wait {job_id} x{}: {}", failed.count, why.join(", ")).unwrap();
    }
}

fn node_name(cluster: &Cluster, node_id: &NodeId) -> String {
    cluster
        .state
        .nodes()
        .get(node_id)
        .unwrap()
        .spec
        .name
        .clone()
}

fn short(alloc: &Allocation) -> String {
    format!("{}[{}]", alloc.job.spec.id, alloc.name_index)
}
