//! Downloads and uploads: their log lines, their order and their ends, and the porter's process.
//!
//! `crate::transfer` handles the network side, on the host. The porter handles the file side, in the task. A stop ends
//! both immediately; neither is asked to end first.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use muster_domain::error_chain::chain;
use muster_domain::one_off::{Download, Upload, go_duration};
use tokio::net::unix::pipe::Receiver;
use tokio_util::sync::CancellationToken;

use super::executor::NativeActionExecutor;
use super::failure::{Failure, OUT_OF_MEMORY};
use super::progress::ActionProgress;
use super::tree::{ActionExecutor, ActionStep, Output};
use super::{ActionProcess, KILLED};
use crate::command::Streams;
use crate::isolation::task_dir;
use crate::transfer::{self, ArchiveLimits, DeadlinePipe, FetchedFile, UnpackError, UploadFile};
use crate::transfer_helper::{self, Direction};
use crate::{limits, paths};

impl NativeActionExecutor {
    /// Downloads the file that `download` names and unpacks it in the task.
    pub(super) async fn carry_in(
        &self,
        download: &Download,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let at = step.at.as_str();
        let what = &download.artifact;
        let words = |doing: &str, what_then: &str| {
            let space = if what.is_empty() { "" } else { " " };
            format!("{doing}{space}{what} {what_then}")
        };
        let transfers = &self.work.node.transfers;
        let _turn = self.unless_over(transfers.acquire(), at, stop).await?;
        self.record_begun(at)?;
        self.log_artifact(what, &format!("Downloading {what}..."))
            .await;
        let policy = self.work.node.policy();
        let dir = self.dir();
        let fetching = transfer::fetch(download, &policy, &dir, self.bytes_max());
        let fetched = match self.unless_over(fetching, at, stop).await? {
            Ok(fetched) => fetched,
            Err(error) => {
                // Diego's text comes first, because its clients compare the beginning.
                let text = words("Downloading", &format!("failed: {}", chain(&error)));
                self.write_line(Output::Stderr, &text).await;
                return Err(Failure::shown(at, text));
            }
        };
        let size = transfer::size(fetched.bytes);
        self.log_artifact(what, &format!("Downloaded {what} ({size})"))
            .await;
        let unpacking = self.unpack(download, fetched, stop);
        let unpacked = self.unless_over(unpacking, at, stop).await?;
        if let Err(reason) = unpacked {
            let text = words("Copying", &format!("into the container failed: {reason}"));
            self.write_line(Output::Stderr, &text).await;
            return Err(Failure::shown(at, text));
        }
        self.work.record(at, ActionProgress::Ended(0));
        Ok(())
    }

    /// Records the start of a transfer. Without the record, the transfer would start twice after the driver's death.
    fn record_begun(&self, at: &str) -> Result<(), Failure> {
        let begun = self.work.progress.write(at, ActionProgress::Begun);
        begun
            .map_err(|error| Failure::plain(at, format!("record the start of the action: {error}")))
    }

    /// Reads a file of the task through a porter and uploads it.
    pub(super) async fn carry_out(
        &self,
        upload: &Upload,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let at = step.at.as_str();
        let what = &upload.artifact;
        let transfers = &self.work.node.transfers;
        let _turn = self.unless_over(transfers.acquire(), at, stop).await?;
        self.record_begun(at)?;
        self.log_artifact(what, &format!("Uploading {what}..."))
            .await;
        let policy = self.work.node.policy();
        let sending = async {
            let outgoing = self.collect(upload, stop).await?;
            let sent = transfer::send(&upload.to, &outgoing, &policy).await;
            sent.map_err(|error| chain(&error))?;
            Ok::<_, String>(outgoing.bytes)
        };
        match self.unless_over(sending, at, stop).await? {
            Ok(bytes) => {
                let size = transfer::size(bytes);
                self.work.record(at, ActionProgress::Ended(0));
                self.log_artifact(what, &format!("Uploaded {what} ({size})"))
                    .await;
                Ok(())
            }
            Err(reason) => {
                let space = if what.is_empty() { "" } else { " " };
                let text = format!("Uploading{space}{what} failed: {reason}");
                self.write_line(Output::Stderr, &text).await;
                Err(Failure::shown(at, text))
            }
        }
    }

    /// Runs `work` to its end and returns its result, unless the action is stopped or the task ends first.
    async fn unless_over<T>(
        &self,
        work: impl Future<Output = T>,
        at: &str,
        stop: &CancellationToken,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Failure::cancelled(at)),
            () = self.work.tree.gone.cancelled() => Err(Failure::plain(at, KILLED)),
            done = work => Ok(done),
        }
    }

    /// Writes `line` if the artifact has a name.
    async fn log_artifact(&self, artifact: &str, line: &str) {
        if !artifact.is_empty() {
            self.write_line(Output::Stdout, line).await;
        }
    }

    /// Returns the directory for files in transfer.
    fn dir(&self) -> PathBuf {
        task_dir(&self.work.config).unwrap_or_else(std::env::temp_dir)
    }

    /// Returns the bytes of the task's disk that one transfer may use.
    fn disk_bytes(&self) -> u64 {
        let disk = self.work.native.disk_mb;
        disk.map_or(u64::MAX, |mb| mb.saturating_mul(1 << 20))
    }

    fn bytes_max(&self) -> u64 {
        self.disk_bytes().min(limits::TRANSFER_BYTES_MAX)
    }

    /// Unpacks a fetched archive with a porter. The error is a message for a human reader.
    async fn unpack(
        &self,
        download: &Download,
        fetched: FetchedFile,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let (from_driver, to_porter) = transfer::pipe().map_err(text)?;
        let stdout = paths::open_null().map_err(text)?;
        let mut porter = self
            .porter(
                &download.user,
                Direction::In,
                &download.to,
                (from_driver, stdout),
                stop,
            )
            .await?;
        let bounds = ArchiveLimits {
            entries: limits::UNPACKED_ENTRIES_MAX,
            bytes: self.disk_bytes().min(limits::UNPACKED_BYTES_MAX),
        };
        // The thread ends soon after the future that waits for it is dropped.
        let stop_packing = CancellationToken::new();
        let _guard = stop_packing.clone().drop_guard();
        let to_porter = DeadlinePipe::new(to_porter, stop_packing.clone()).map_err(text)?;
        let FetchedFile { file, name, .. } = fetched;
        let packing = tokio::task::spawn_blocking(move || {
            transfer::unpack(file, name.as_ref(), bounds, &stop_packing, to_porter)
        });
        let work = async {
            let packed = packing
                .await
                .map_err(|_panic| "the driver failed".to_owned())?;
            let carried = porter.end(self).await;
            match packed {
                // The porter has the reason why it accepted no more bytes.
                Err(UnpackError::Hand(error)) => Err(carried.err().unwrap_or_else(|| text(error))),
                Err(error) => Err(chain(&error)),
                Ok(()) => carried,
            }
        };
        within_time(work).await
    }

    /// Reads the file through a porter. The error is a message for a human reader.
    async fn collect(
        &self,
        upload: &Upload,
        stop: &CancellationToken,
    ) -> Result<UploadFile, String> {
        let (from_porter, to_driver) = transfer::pipe().map_err(text)?;
        let stdin = paths::open_null().map_err(text)?;
        let mut porter = self
            .porter(
                &upload.user,
                Direction::Out,
                &upload.from,
                (stdin, to_driver),
                stop,
            )
            .await?;
        let from_porter = Receiver::from_owned_fd(from_porter).map_err(text)?;
        let work = async {
            let read = UploadFile::read(from_porter, &self.dir(), self.bytes_max()).await;
            let outgoing = read.map_err(|error| chain(&error))?;
            porter.end(self).await?;
            Ok(outgoing)
        };
        within_time(work).await
    }

    /// Starts a porter with these files as its input and output.
    async fn porter(
        &self,
        user: &str,
        way: Direction,
        path: &str,
        (stdin, stdout): (OwnedFd, OwnedFd),
        stop: &CancellationToken,
    ) -> Result<TransferHelper, String> {
        let (report, stderr) = transfer::pipe().map_err(text)?;
        rustix::io::ioctl_fionbio(&report, true).map_err(text)?;
        let (user, path) = (user.to_owned(), path.to_owned());
        let begun = self.begun(stop, move |work| {
            let streams = Streams {
                stdin,
                stdout,
                stderr,
            };
            work.start_transfer_helper(&user, way, &path, &streams)
        });
        let entered = begun.await?.ok_or_else(|| KILLED.to_owned())?;
        Ok(TransferHelper {
            entered: Some(entered),
            report,
        })
    }
}

/// A running porter. Dropping this value kills it.
struct TransferHelper {
    entered: Option<ActionProcess>,
    report: OwnedFd,
}

impl TransferHelper {
    /// Waits for the porter's end. The error is a message for a human reader.
    async fn end(&mut self, executor: &NativeActionExecutor) -> Result<(), String> {
        let Some(entered) = self.entered.take() else {
            return Err("the driver failed".to_owned());
        };
        let result = entered.wait().await.map_err(text)?;
        entered.done();
        if result.signal == 0 && result.exit_code == 0 {
            return Ok(());
        }
        let reason = transfer_helper::report(&self.read_report());
        let reason = reason.unwrap_or_else(|| "what writes and reads for it was killed".to_owned());
        let memory = if executor.work.out_of_memory() {
            OUT_OF_MEMORY
        } else {
            ""
        };
        Err(format!("{reason}{memory}"))
    }

    /// Reads the bytes in the pipe, but not to its end: a process of the task may hold the pipe open.
    fn read_report(&self) -> Vec<u8> {
        let mut report = vec![0; transfer_helper::REPORT_BYTES_MAX];
        let mut bytes = 0;
        while bytes < report.len() {
            match rustix::io::read(&self.report, &mut report[bytes..]) {
                Ok(0) | Err(_) => break,
                Ok(read) => bytes += read,
            }
        }
        report.truncate(bytes);
        report
    }
}

async fn within_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let ended = tokio::time::timeout(limits::TRANSFER_DEADLINE, work).await;
    ended.unwrap_or_else(|_elapsed| {
        Err(format!(
            "it took longer than {}",
            go_duration(limits::TRANSFER_DEADLINE)
        ))
    })
}

fn text(error: impl std::error::Error) -> String {
    chain(&error)
}
