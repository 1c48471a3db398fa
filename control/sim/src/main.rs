//! `muster-control-sim --seed N --seeds M [--trace]`: runs seeds N to N+M-1, and stops at the first that
//! breaks.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: it prints for a living"
)]

use std::process::ExitCode;

use muster_control_sim::{SimConfig, limits, run};

struct Args {
    seed: u64,
    seeds: u64,
    trace: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        seed: 1,
        seeds: 1,
        trace: false,
    };
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words
                .next()
                .ok_or_else(|| format!("{word} needs a number"))?;
            text.parse::<u64>()
                .map_err(|error| format!("{word}: `{text}`: {error}"))
        };
        match word.as_str() {
            "--seed" => args.seed = number()?,
            "--seeds" => args.seeds = number()?,
            "--trace" => args.trace = true,
            other => {
                return Err(format!(
                    "`{other}` is unknown: use --seed N, --seeds M, --trace"
                ));
            }
        }
    }
    Ok(args)
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        println!("seed {seed}");
        let report = run(SimConfig::new(seed));
        if args.trace {
            print!("{}", report.trace);
        }
        println!(
            "  {} entries, {} placed, {} leaderships",
            report.entries, report.placed, report.leaderships
        );
        if !report.faults.is_empty() {
            let lines: Vec<&str> = report.trace.lines().collect();
            for line in &lines[lines.len().saturating_sub(limits::TRACE_TAIL)..] {
                println!("  | {line}");
            }
            for fault in &report.faults {
                println!("  FAULT {fault}");
            }
            println!("again: muster-control-sim --seed {seed} --trace");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
