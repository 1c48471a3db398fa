//! The tasks' side: a process that holds every FIFO open read-write and writes to them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::delay::WriteTimes;
use super::lines::{self, LOGS};
use super::load::WriterLoad;
use crate::subject::child::child_command;

/// The word that makes a child of this program run [`child`].
pub(crate) const CHILD: &str = "log-writer";

/// Lines in one write at full speed: 4 KiB.
const LINES_PER_WRITE: u64 = 32;
/// Threads that write, each to its own share of the FIFOs.
const THREADS: usize = 4;

/// The writing process, which waits for the start signal.
#[derive(Debug)]
pub(super) struct Writer {
    load: WriterLoad,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
}

impl Writer {
    /// Starts the process and waits until it has opened every FIFO of `dir`.
    pub(super) fn start(dir: &Path, load: WriterLoad) -> anyhow::Result<Self> {
        let numbers = [
            load.fifos,
            load.lines,
            u64::try_from(load.pace.as_micros())?,
            load.warm_up,
        ];
        let numbers = numbers.map(|number| OsString::from(number.to_string()));
        let args = [dir.as_os_str()]
            .into_iter()
            .chain(numbers.iter().map(OsString::as_os_str));
        let mut child = child_command(CHILD, args)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut writer = Self {
            load,
            child,
            stdin,
            stdout,
        };
        let mut ready = [0];
        writer
            .stdout
            .as_mut()
            .context("its output is piped")?
            .read_exact(&mut ready)
            .context("the writer is ready")?;
        Ok(writer)
    }

    /// Lets the process write all lines and waits until it has. Returns the 99th percentile of the delay of paced
    /// lines. If some first lines do not count, calls `begin` after they are written.
    pub(super) fn run(
        mut self,
        begin: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Duration>> {
        self.stdin
            .take()
            .context("its input is piped")?
            .write_all(b"g")?;
        let mut printed = String::new();
        let mut stdout = self.stdout.take().context("its output is piped")?;
        if self.load.warm_up > 0 {
            stdout.read_exact(&mut [0]).context("the writer is warm")?;
            begin()?;
        }
        stdout.read_to_string(&mut printed)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the writer ended with {status}");
        if printed.is_empty() {
            return Ok(None);
        }
        Ok(Some(Duration::from_micros(printed.parse()?)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The process has ended already, unless a step before its run failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs the writing process.
pub(crate) fn child(args: &[OsString]) -> anyhow::Result<()> {
    let [dir, numbers @ ..] = args else {
        anyhow::bail!("no directory")
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|number| Ok(number.to_str().context("a number is text")?.parse()?))
        .collect::<anyhow::Result<_>>()?;
    let [fifos, lines, pace_us, warm_up] = numbers[..] else {
        anyhow::bail!("four numbers")
    };
    let load = WriterLoad {
        fifos,
        lines,
        pace: Duration::from_micros(pace_us),
        warm_up,
    };
    let mut files = Vec::new();
    for number in 0..fifos {
        let path = Path::new(OsStr::new(dir)).join(lines::stream_name(number));
        files.push(OpenOptions::new().read(true).write(true).open(path)?);
    }
    std::io::stdout().write_all(b"r")?;
    std::io::stdout().flush()?;
    std::io::stdin().read_exact(&mut [0])?;
    if !load.pace.is_zero() {
        return write_paced(&mut files, load, Path::new(OsStr::new(dir)));
    }
    let share = files.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = files
            .chunks_mut(share)
            .map(|files| scope.spawn(|| write_all(files, load)))
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_panic| anyhow::anyhow!("a writing thread panicked"))??;
        }
        Ok(())
    })
}

/// Writes as fast as the FIFOs are drained, 4 KiB to each FIFO in turn.
fn write_all(files: &mut [File], load: WriterLoad) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    let mut number = 0;
    while number < load.lines {
        buffer.clear();
        let until = (number + LINES_PER_WRITE).min(load.lines);
        for line in number..until {
            lines::append(&mut buffer, line);
        }
        for file in &mut *files {
            file.write_all(&buffer)?;
        }
        number = until;
    }
    Ok(())
}

/// Writes a line to each FIFO in turn, and then pauses until the next lines are due. Meanwhile another thread watches
/// for the lines in the files, which are beside the FIFOs. Prints the delay in microseconds.
fn write_paced(files: &mut [File], load: WriterLoad, fifos: &Path) -> anyhow::Result<()> {
    let logs = fifos.with_file_name(LOGS);
    let written = WriteTimes::new(load);
    let delays = std::thread::scope(|scope| {
        let watch = scope.spawn(|| written.watch(&logs));
        write_in_turn(files, load, &written)?;
        watch
            .join()
            .map_err(|_panic| anyhow::anyhow!("the watching thread panicked"))?
    })?;
    write!(std::io::stdout(), "{:.0}", delays.micros(0.99))?;
    Ok(())
}

fn write_in_turn(files: &mut [File], load: WriterLoad, written: &WriteTimes) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut due = Duration::ZERO;
    let mut buffer = Vec::new();
    for line in 0..load.lines {
        if line == load.warm_up && line > 0 {
            std::io::stdout().write_all(b"w")?;
            std::io::stdout().flush()?;
        }
        buffer.clear();
        lines::append(&mut buffer, line);
        for (stream, file) in (0..).zip(&mut *files) {
            written.note(stream, line);
            file.write_all(&buffer)?;
        }
        due += load.pace;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(())
}
