//! `muster-control-sim --seed N --seeds M [--servers K] [--long] [--trace] [--rows] [--bug NAME]`: runs seeds
//! N to N+M-1, and stops at the first seed that finds a fault. A single seed prints its trace. `--rows` adds the
//! changed rows to the trace.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: it prints for a living"
)]

use std::process::ExitCode;

use muster_control_sim::{Bug, InterruptedCollections, Report, Rollouts, SimConfig, limits, run};
use muster_domain::text_enum::TextEnum as _;

#[derive(Debug)]
struct Args {
    seed: u64,
    seeds: u64,
    servers: Option<usize>,
    long: bool,
    trace: bool,
    rows: bool,
    bug: Option<Bug>,
}

impl Args {
    fn config(&self, seed: u64) -> SimConfig {
        let mut config = if self.long {
            SimConfig::long(seed)
        } else {
            SimConfig::new(seed)
        };
        config.servers = self.servers.unwrap_or(config.servers);
        config.bug = self.bug;
        config.has_rows = self.rows;
        config
    }
}

/// Totals over the runs of many seeds.
#[derive(Debug, Default)]
struct RunTotals {
    seeds: u64,
    entries: u64,
    placed: u64,
    collected: u64,
    forced: u64,
    slices: u64,
    cut_short: InterruptedCollections,
    rollouts: Rollouts,
    one_offs: usize,
    placed_at_once: u64,
    called: u64,
    terms: usize,
    acknowledged_writes: usize,
    reads: u64,
    events: u64,
    longest_calm: std::time::Duration,
}

impl RunTotals {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.entries += report.entries;
        self.placed += report.placed;
        self.collected += report.collected;
        self.forced += report.forced;
        self.slices += report.slices;
        self.cut_short.lost_leadership += report.cut_short.lost_leadership;
        self.cut_short.died += report.cut_short.died;
        self.cut_short.died_alone += report.cut_short.died_alone;
        self.rollouts.begun += report.rollouts.begun;
        self.rollouts.promoted += report.rollouts.promoted;
        self.rollouts.successful += report.rollouts.successful;
        self.rollouts.failed += report.rollouts.failed;
        self.rollouts.reverted += report.rollouts.reverted;
        self.rollouts.cancelled += report.rollouts.cancelled;
        self.one_offs += report.one_offs;
        self.placed_at_once += report.placed_at_once;
        self.called += report.called;
        self.terms += report.terms;
        self.acknowledged_writes += report.acknowledged_writes;
        self.reads += report.reads;
        self.events += report.events;
        self.longest_calm = self.longest_calm.max(report.calm);
    }
}

fn number(word: &str, text: Option<String>) -> Result<u64, String> {
    let text = text.ok_or_else(|| format!("{word} needs a number"))?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{word}: `{text}`: {error}"))
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        seed: 1,
        seeds: 1,
        servers: None,
        long: false,
        trace: false,
        rows: false,
        bug: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => args.seed = number(&word, words.next())?,
            "--seeds" => args.seeds = number(&word, words.next())?,
            "--servers" => args.servers = Some(servers(number(&word, words.next())?)?),
            "--long" => args.long = true,
            "--trace" => args.trace = true,
            "--rows" => args.rows = true,
            "--bug" => args.bug = Some(bug(&words.next().unwrap_or_default())?),
            other => {
                return Err(format!(
                    "`{other}` is unknown: use --seed N, --seeds M, --servers 1|3|5, --long, --trace, --rows, --bug NAME"
                ));
            }
        }
    }
    Ok(args)
}

fn servers(count: u64) -> Result<usize, String> {
    match count {
        1 => Ok(1),
        3 => Ok(3),
        5 => Ok(5),
        other => Err(format!("--servers: `{other}`: use 1, 3 or 5")),
    }
}

fn bug(name: &str) -> Result<Bug, String> {
    Bug::from_name(name).ok_or_else(|| format!("--bug: {}", Bug::unknown(name)))
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut sum = RunTotals::default();
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        // The seed is printed before the run, so that it is visible if the run panics.
        eprint!("\rseed {seed}    ");
        let report = run(args.config(seed));
        sum.add(&report);
        if args.trace || args.seeds == 1 {
            print!("{}", report.trace);
        }
        if !report.faults.is_empty() {
            print_faults(&args, seed, &report);
            return ExitCode::FAILURE;
        }
    }
    eprintln!();
    println!(
        "{} seeds: {} events, {} entries, {} elections, {} instances placed, {} deployments begun ({} with canaries promoted), {} successful, {} failed, {} jobs gone back, {} cancelled, {} one-off tasks begun, {} placed as they were made, {} callbacks, {} objects collected, {} collections asked for and made, {} slices after others, {} collections cut short by an election and {} by a crash, {} of the only server, {} writes and {} reads of users; at rest within {} s of virtual time",
        sum.seeds,
        sum.events,
        sum.entries,
        sum.terms,
        sum.placed,
        sum.rollouts.begun,
        sum.rollouts.promoted,
        sum.rollouts.successful,
        sum.rollouts.failed,
        sum.rollouts.reverted,
        sum.rollouts.cancelled,
        sum.one_offs,
        sum.placed_at_once,
        sum.called,
        sum.collected,
        sum.forced,
        sum.slices,
        sum.cut_short.lost_leadership,
        sum.cut_short.died + sum.cut_short.died_alone,
        sum.cut_short.died_alone,
        sum.acknowledged_writes,
        sum.reads,
        sum.longest_calm.as_secs()
    );
    ExitCode::SUCCESS
}

fn print_faults(args: &Args, seed: u64, report: &Report) {
    println!();
    let lines: Vec<&str> = report.trace.lines().collect();
    let shown = if args.seeds == 1 {
        lines.len()
    } else {
        lines.len().saturating_sub(limits::TRACE_TAIL)
    };
    for line in &lines[shown..] {
        println!("  | {line}");
    }
    for fault in &report.faults {
        println!("  FAULT {fault}");
    }
    let servers = args.config(seed).servers;
    let long = if args.long { " --long" } else { "" };
    let bug = args
        .bug
        .map_or(String::new(), |bug| format!(" -- --bug {}", bug.as_str()));
    println!("again: cargo xtask sim --seed {seed} --servers {servers}{long}{bug}");
}
