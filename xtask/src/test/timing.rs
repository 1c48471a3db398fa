//! The durations of a run: steps, test binaries, tests, crates.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::shell::{self, usage};

/// Rows in each list of the slowest.
const ROWS: usize = 10;

/// A step of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StepTime {
    name: String,
    /// The begin of the step, from the start of the run.
    begun: Duration,
    wall: Duration,
    /// Processor time, user and system, of the programs that the step waited for.
    cpu: Duration,
}

/// The time of one test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BinaryTime {
    pub(crate) name: String,
    pub(crate) wall: Duration,
    /// Processor time, user and system. It is `None` in a guest, which does not report it.
    pub(crate) cpu: Option<Duration>,
}

/// A crate that was compiled, as `cargo build --timings` reports it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CrateTime {
    pub(crate) name: String,
    pub(crate) wall: Duration,
}

/// All times of a run.
#[derive(Debug)]
pub(crate) struct Timing {
    begun: Instant,
    steps: Vec<StepTime>,
    binaries: Vec<BinaryTime>,
    tests: Vec<(String, Duration)>,
    crates: Vec<CrateTime>,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            steps: Vec::new(),
            binaries: Vec::new(),
            tests: Vec::new(),
            crates: Vec::new(),
        }
    }
}

/// A running step of this thread.
#[derive(Debug)]
pub(crate) struct StepTimer {
    name: String,
    at: Instant,
    cpu: Duration,
}

impl StepTimer {
    /// Begins the step `name`, and prints its name.
    pub(crate) fn new(name: &str) -> Self {
        println!("── {name}");
        Self {
            name: name.to_owned(),
            at: Instant::now(),
            cpu: usage::cpu_time(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

impl Timing {
    /// Records the end of a step. The caller must be the thread that began it.
    pub(crate) fn end(&mut self, step: StepTimer) {
        let wall = step.elapsed();
        println!("── {} ended after {}", step.name, shell::seconds(wall));
        self.steps.push(StepTime {
            name: step.name,
            begun: step.at.saturating_duration_since(self.begun),
            wall,
            cpu: usage::cpu_time().saturating_sub(step.cpu),
        });
    }

    pub(crate) fn add_binary(&mut self, binary: BinaryTime) {
        self.binaries.push(binary);
    }

    pub(crate) fn add_tests(
        &mut self,
        binary: &str,
        tests: impl IntoIterator<Item = (String, Duration)>,
    ) {
        let named = tests
            .into_iter()
            .map(|(test, time)| (format!("{binary} {test}"), time));
        self.tests.extend(named);
    }

    pub(crate) fn add_crates(&mut self, crates: Vec<CrateTime>) {
        self.crates.extend(crates);
    }

    /// Returns the tables as text.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        let mut steps: Vec<&StepTime> = self.steps.iter().collect();
        steps.sort_by_key(|step| step.begun);
        heading(&mut text, "steps (begin, wall time, CPU time)");
        for step in steps {
            let begun = shell::seconds(step.begun);
            let (wall, cpu) = (shell::seconds(step.wall), shell::seconds(step.cpu));
            row(
                &mut text,
                &format!("{:38} {begun:>10} {wall:>10} {cpu:>10}", step.name),
            );
        }
        let whole = shell::seconds(self.begun.elapsed());
        row(&mut text, &format!("{:38} {:>10} {whole:>10}", "all", ""));

        heading(&mut text, "slowest test binaries (wall time, CPU time)");
        for binary in slowest(&self.binaries, |binary| binary.wall) {
            let wall = shell::seconds(binary.wall);
            let cpu = binary.cpu.map_or_else(|| "-".to_owned(), shell::seconds);
            row(
                &mut text,
                &format!("{:49} {wall:>10} {cpu:>10}", binary.name),
            );
        }
        heading(&mut text, "slowest tests (wall time)");
        for (test, time) in slowest(&self.tests, |(_, time)| *time) {
            row(&mut text, &format!("{:>10}  {test}", shell::seconds(*time)));
        }
        heading(&mut text, "slowest crates to compile (wall time)");
        for one in slowest(&self.crates, |one| one.wall) {
            row(
                &mut text,
                &format!("{:>10}  {}", shell::seconds(one.wall), one.name),
            );
        }
        text
    }

    /// Writes the tables to `folder`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join("timing.txt");
        std::fs::write(&file, self.tables())
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

fn slowest<T>(all: &[T], time: impl Fn(&T) -> Duration) -> Vec<&T> {
    let mut sorted: Vec<&T> = all.iter().collect();
    sorted.sort_by_key(|one| Reverse(time(one)));
    sorted.truncate(ROWS);
    sorted
}

fn heading(text: &mut String, title: &str) {
    writeln!(text, "\n  {title}").expect("a string takes any text");
}

fn row(text: &mut String, line: &str) {
    writeln!(text, "    {line}").expect("a string takes any text");
}

/// Returns the slowest units in the newest report of `cargo build --timings` below `target`.
pub(crate) fn crates_of_last_build(target: &Path) -> Vec<CrateTime> {
    let report = target.join("cargo-timings/cargo-timing.html");
    let page = std::fs::read_to_string(report).unwrap_or_default();
    parse_units(&page)
}

/// Parses the units in the page's script: `const UNIT_DATA = [...];`.
fn parse_units(page: &str) -> Vec<CrateTime> {
    #[derive(serde::Deserialize)]
    struct Unit {
        name: String,
        #[serde(default)]
        target: String,
        duration: f64,
    }
    let Some((_, data)) = page.split_once("UNIT_DATA = ") else {
        return Vec::new();
    };
    let mut stream = serde_json::Deserializer::from_str(data).into_iter::<Vec<Unit>>();
    let units = stream.next().and_then(Result::ok).unwrap_or_default();
    units
        .into_iter()
        .map(|unit| CrateTime {
            name: format!("{}{}", unit.name, unit.target),
            wall: Duration::try_from_secs_f64(unit.duration).unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_from_cargos_page() {
        let page = "<script>\nconst UNIT_DATA = [{\"i\":0,\"name\":\"syn\",\"target\":\" build script\",\
                    \"duration\":1.5,\"start\":0}];\nconst CONCURRENCY_DATA = [];\n";

        let units = parse_units(page);

        assert_eq!(units.len(), 1);
        assert_eq!(units[0].name, "syn build script");
        assert_eq!(units[0].wall, Duration::from_millis(1_500));
        assert_eq!(parse_units("no data"), []);
    }

    #[test]
    fn tables_name_the_slowest_first() {
        let mut timing = Timing::default();
        timing.add_tests(
            "-p x --lib",
            [
                ("quick".to_owned(), Duration::from_secs(1)),
                ("slow".to_owned(), Duration::from_secs(70)),
            ],
        );

        let text = timing.tables();

        let (slow, quick) = (text.find("slow").unwrap(), text.find("quick").unwrap());
        assert!(text[slow..].contains("x --lib quick"), "{text}");
        assert!(text.contains("1 m 10 s  -p x --lib slow"), "{text}");
        assert!(slow < quick + text.len());
    }
}
