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
    pub(super) async fn run_download(
        &self,
        download: &Download,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let action_path = step.action_path.as_str();
        let what = &download.artifact;
        let failure_text = |doing: &str, what_then: &str| {
            let space = if what.is_empty() { "" } else { " " };
            format!("{doing}{space}{what} {what_then}")
        };
        let permits = &self.context.node.transfer_permits;
        let _permit = self
            .run_until_stopped(permits.acquire(), action_path, stop)
            .await?;
        self.record_begun(action_path)?;
        self.log_artifact(what, &format!("Downloading {what}..."))
            .await;
        let policy = self.context.node.policy();
        let dir = self.dir();
        let fetching = transfer::fetch(download, &policy, &dir, self.bytes_max());
        let fetched = match self.run_until_stopped(fetching, action_path, stop).await? {
            Ok(fetched) => fetched,
            Err(error) => {
                // Diego's text comes first, because its clients compare the beginning.
                let text = failure_text("Downloading", &format!("failed: {}", chain(&error)));
                self.write_line(Output::Stderr, &text).await;
                return Err(Failure::shown(action_path, text));
            }
        };
        let size = transfer::format_size(fetched.bytes);
        self.log_artifact(what, &format!("Downloaded {what} ({size})"))
            .await;
        let unpacking = self.unpack(download, fetched, stop);
        let unpacked = self.run_until_stopped(unpacking, action_path, stop).await?;
        if let Err(reason) = unpacked {
            let text = failure_text("Copying", &format!("into the container failed: {reason}"));
            self.write_line(Output::Stderr, &text).await;
            return Err(Failure::shown(action_path, text));
        }
        self.context.record(action_path, ActionProgress::Ended(0));
        Ok(())
    }

    /// Records the start of a transfer. Without the record, the transfer would start twice after the driver's death.
    fn record_begun(&self, action_path: &str) -> Result<(), Failure> {
        let begun = self
            .context
            .progress
            .write(action_path, ActionProgress::Begun);
        begun.map_err(|error| {
            Failure::plain(
                action_path,
                format!("record the start of the action: {error}"),
            )
        })
    }

    /// Reads a file of the task through a porter and uploads it.
    pub(super) async fn run_upload(
        &self,
        upload: &Upload,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let action_path = step.action_path.as_str();
        let what = &upload.artifact;
        let permits = &self.context.node.transfer_permits;
        let _permit = self
            .run_until_stopped(permits.acquire(), action_path, stop)
            .await?;
        self.record_begun(action_path)?;
        self.log_artifact(what, &format!("Uploading {what}..."))
            .await;
        let policy = self.context.node.policy();
        let sending = async {
            let outgoing = self.collect(upload, stop).await?;
            let sent = transfer::send(&upload.to, &outgoing, &policy).await;
            sent.map_err(|error| chain(&error))?;
            Ok::<_, String>(outgoing.bytes)
        };
        match self.run_until_stopped(sending, action_path, stop).await? {
            Ok(bytes) => {
                let size = transfer::format_size(bytes);
                self.context.record(action_path, ActionProgress::Ended(0));
                self.log_artifact(what, &format!("Uploaded {what} ({size})"))
                    .await;
                Ok(())
            }
            Err(reason) => {
                let space = if what.is_empty() { "" } else { " " };
                let text = format!("Uploading{space}{what} failed: {reason}");
                self.write_line(Output::Stderr, &text).await;
                Err(Failure::shown(action_path, text))
            }
        }
    }

    /// Runs `work` to its end and returns its result, unless the action is stopped or the task ends first.
    async fn run_until_stopped<T>(
        &self,
        work: impl Future<Output = T>,
        action_path: &str,
        stop: &CancellationToken,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Failure::cancelled(action_path)),
            () = self.context.tree.first_ended.cancelled() => {
                Err(Failure::plain(action_path, KILLED))
            }
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
        task_dir(&self.context.config).unwrap_or_else(std::env::temp_dir)
    }

    /// Returns the bytes of the task's disk that one transfer may use.
    fn disk_bytes(&self) -> u64 {
        let disk = self.context.native.disk_mb;
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
            .start_porter(
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
            let carried = porter.wait(self).await;
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
            .start_porter(
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
            porter.wait(self).await?;
            Ok(outgoing)
        };
        within_time(work).await
    }

    /// Starts a porter with these files as its input and output.
    async fn start_porter(
        &self,
        user: &str,
        direction: Direction,
        path: &str,
        (stdin, stdout): (OwnedFd, OwnedFd),
        stop: &CancellationToken,
    ) -> Result<TransferHelper, String> {
        let (report, stderr) = transfer::pipe().map_err(text)?;
        rustix::io::ioctl_fionbio(&report, true).map_err(text)?;
        let (user, path) = (user.to_owned(), path.to_owned());
        let begun = self.start_process(stop, move |context| {
            let streams = Streams {
                stdin,
                stdout,
                stderr,
            };
            context.start_transfer_helper(&user, direction, &path, &streams)
        });
        let running = begun.await?.ok_or_else(|| KILLED.to_owned())?;
        Ok(TransferHelper {
            process: Some(running),
            report,
        })
    }
}

/// A running porter. Dropping this value kills it.
struct TransferHelper {
    process: Option<ActionProcess>,
    report: OwnedFd,
}

impl TransferHelper {
    /// Waits for the porter's end. The error is a message for a human reader.
    async fn wait(&mut self, executor: &NativeActionExecutor) -> Result<(), String> {
        let Some(running) = self.process.take() else {
            return Err("the driver failed".to_owned());
        };
        let result = running.wait().await.map_err(text)?;
        running.reap();
        if result.signal == 0 && result.exit_code == 0 {
            return Ok(());
        }
        let reason = transfer_helper::report(&self.read_report());
        let reason = reason.unwrap_or_else(|| "what writes and reads for it was killed".to_owned());
        let memory = if executor.context.out_of_memory() {
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
