//! The cost of the node's programs, as the kernel measures it.

use std::{collections::BTreeMap, fs, io, os::fd::AsRawFd as _, time::Duration};

use aya::{
    programs::{ProgramInfo, loaded_programs},
    sys::{Stats, enable_stats},
};

use crate::bpf::{empty, load};

/// The cost of one program while it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    pub name: String,
    /// The number of runs.
    pub runs: u64,
    /// The total time of the runs.
    pub time: Duration,
}

impl ProgramCost {
    /// Nanoseconds per run.
    #[must_use]
    pub fn nanos(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / self.runs as f64
    }
}

/// The reason why the cost could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureCostError {
    /// The kernel does not measure the programs.
    #[error(
        "what eBPF programs cost cannot be measured: run this as root with CAP_SYS_ADMIN, on Linux 5.8 or newer"
    )]
    Enable(#[source] io::Error),
    /// The measured values could not be read.
    #[error("what the kernel measured of eBPF programs cannot be read")]
    Read(#[source] io::Error),
}

/// Measures the programs of every agent on this machine for `time`, by the names of Muster's programs. Each run's time
/// includes the measuring ([`EmptyPrograms`](empty::EmptyPrograms) show how much). The measuring ends with this call.
///
/// # Errors
///
/// [`MeasureCostError`].
pub fn measure_cost(time: Duration) -> Result<Vec<ProgramCost>, MeasureCostError> {
    let mut costs: BTreeMap<String, ProgramCost> = BTreeMap::new();
    for one in measure_each(time)?.into_values() {
        let cost = costs
            .entry(one.name.clone())
            .or_insert_with(|| ProgramCost {
                name: one.name,
                runs: 0,
                time: Duration::ZERO,
            });
        cost.runs += one.runs;
        cost.time += one.time;
    }
    Ok(costs.into_values().collect())
}

/// Measures by the programs' ids, because each agent has its own programs.
fn measure_each(time: Duration) -> Result<BTreeMap<u32, ProgramCost>, MeasureCostError> {
    let measuring =
        enable_stats(Stats::RunTime).map_err(|error| MeasureCostError::Enable(error.io_error))?;
    let before = totals().map_err(MeasureCostError::Read)?;
    std::thread::sleep(time);
    let after = totals().map_err(MeasureCostError::Read)?;
    drop(measuring);
    let costs = after.into_iter().map(|(id, (name, runs, nanos))| {
        // A program that was loaded meanwhile began at zero.
        let (ran, took) = before
            .get(&id)
            .map_or((0, 0), |(_, runs, nanos)| (*runs, *nanos));
        let cost = ProgramCost {
            name,
            runs: runs.saturating_sub(ran),
            time: Duration::from_nanos(nanos.saturating_sub(took)),
        };
        (id, cost)
    });
    Ok(costs.collect())
}

/// Name, runs and nanoseconds of each of Muster's programs since measuring began, by id.
fn totals() -> io::Result<BTreeMap<u32, (String, u64, u64)>> {
    let mut totals = BTreeMap::new();
    for program in loaded_programs() {
        // A program that was unloaded while the list was made causes no error.
        let Ok(program) = program else { continue };
        let Some(name) = muster_program_name(&program) else {
            continue;
        };
        let Ok(fd) = program.fd() else { continue };
        let raw = std::os::fd::AsFd::as_fd(&fd).as_raw_fd();
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{raw}"))?;
        let (runs, nanos) = run_stats(&text);
        totals.insert(program.id(), (name.to_owned(), runs, nanos));
    }
    Ok(totals)
}

/// Muster's name for the program.
fn muster_program_name(program: &ProgramInfo) -> Option<&'static str> {
    let found = program.name_as_str()?;
    names().find(|name| kernel_name(name) == found)
}

fn names() -> impl Iterator<Item = &'static str> {
    load::pin_names().chain(empty::NAMES)
}

/// The part of a program's name that the kernel keeps (`BPF_OBJ_NAME_LEN`, including the terminating zero).
fn kernel_name(name: &str) -> &str {
    name.get(..15).unwrap_or(name)
}

/// Reads runs and nanoseconds from a program's `/proc/self/fdinfo`.
fn run_stats(text: &str) -> (u64, u64) {
    let field = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    };
    (field("run_cnt:"), field("run_time_ns:"))
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::fd::AsFd as _,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use muster_driver::fixture::skipped;

    use super::*;
    use crate::bpf::{
        Bpf,
        map::run_on_cpu,
        tests::node::{CHILD_VAR, Node, poll},
    };

    /// The kernel's `fdinfo` of the program that the agent runs itself.
    fn fdinfo(bpf: &Bpf) -> String {
        let fd = bpf.charge_running.as_raw_fd();
        fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap()
    }

    /// Runs that program, as a collection does.
    fn run(bpf: &Bpf) {
        run_on_cpu(bpf.charge_running.as_fd(), bpf.cpus[0]).unwrap();
    }

    /// Whether the kernel measures.
    fn is_measured(bpf: &Bpf) -> bool {
        let (before, _) = run_stats(&fdinfo(bpf));
        run(bpf);
        run_stats(&fdinfo(bpf)).0 > before
    }

    /// Returns `None` and reports `test` as skipped if another process already measures.
    fn unmeasured(test: &str) -> Option<(Node, Bpf)> {
        let node = Node::set_up(test)?;
        let bpf = node.open();
        if is_measured(&bpf) {
            let reason = "another process already has the kernel measure eBPF programs";
            skipped(test, reason);
            return None;
        }
        Some((node, bpf))
    }

    /// Both checks are in one test, because measuring by one would also measure the programs of the other.
    #[test]
    fn cost_is_the_kernels_and_measuring_ends() {
        let Some((mut node, bpf)) = unmeasured("cost_is_the_kernels_and_measuring_ends") else {
            return;
        };
        let (ran, took) = run_stats(&fdinfo(&bpf));
        let is_over = AtomicBool::new(false);

        let costs = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    run(&bpf);
                }
            });
            let costs = measure_each(Duration::from_millis(100));
            is_over.store(true, Ordering::Relaxed);
            costs.unwrap()
        });

        let text = fdinfo(&bpf);
        let id = text
            .lines()
            .find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
        let cost = &costs[&id.unwrap()];
        let (runs, nanos) = run_stats(&text);
        assert_eq!(cost.name, load::CHARGE_RUNNING);
        assert!(cost.runs > 0 && cost.runs <= runs - ran, "{cost:?}: {text}");
        let all = Duration::from_nanos(nanos - took);
        assert!(
            cost.time > Duration::ZERO && cost.time <= all,
            "{cost:?}: {text}"
        );
        assert!(!is_measured(&bpf));

        // The measuring belongs to a descriptor of the process that requested it.
        node.start_as("bpf::cost::tests::measures_for_an_hour", "measure");
        poll("measuring", || is_measured(&bpf).then_some(()));
        node.kill();
        assert!(!is_measured(&bpf));
    }

    /// Not a test: a process's command line names this function.
    #[test]
    #[ignore = "run by the other test as its child process"]
    fn measures_for_an_hour() {
        if env::var(CHILD_VAR).as_deref() == Ok("measure") {
            measure_cost(Duration::from_hours(1)).unwrap();
        }
    }

    #[test]
    fn truncated_program_names_stay_unique() {
        let mut seen = std::collections::BTreeSet::new();

        for name in names() {
            assert!(seen.insert(kernel_name(name)), "{name}");
        }
    }

    #[test]
    fn runs_and_time_are_read() {
        let text =
            "pos:\t0\nprog_type:\t8\nrun_time_ns:\t1234\nrun_cnt:\t56\nrecursion_misses:\t0\n";

        assert_eq!(run_stats(text), (56, 1_234));
        assert_eq!(run_stats("pos:\t0\n"), (0, 0));
    }
}
