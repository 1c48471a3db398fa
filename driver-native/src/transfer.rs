//! Downloads files for tasks and uploads files of tasks, from the host's side.
//!
//! The driver makes the transfers, because a task may have no network; Diego's cells do the same. A downloaded file
//! has no name until it is complete and its checksum is right. Then a porter unpacks it with the task's own rights. A
//! porter also reads the files that are uploaded. This module opens nothing that a task could have put in place.
//! `address` checks the addresses, `http` implements HTTP, `archive` reads archives, `pipe` connects to the porter,
//! `digest` computes checksums.
//!
//! No data is kept from one transfer for another.

mod address;
mod archive;
mod digest;
mod http;
mod pipe;

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use md5::Md5;
use muster_domain::one_off::{Download, go_duration};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::limits;
use crate::paths::{self, PathError};
use crate::policy::Policy;
use crate::transfer_helper::Name;

pub(crate) use archive::{ArchiveLimits, UnpackError, unpack};
use digest::{ExpectedDigest, SumError};
use http::{Client, HttpError};
pub(crate) use pipe::{DeadlinePipe, pipe};

/// The reason why a transfer failed.
#[derive(Debug, Error)]
pub(crate) enum TransferError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("its URL is not an http, https or file URL")]
    Scheme,
    #[error("write it into the node's directory")]
    Put(#[source] io::Error),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("it took longer than {}", go_duration(limits::TRANSFER_DEADLINE))]
    Deadline,
}

/// The reason why received bytes are not kept.
#[derive(Debug, Error)]
pub(crate) enum SinkError {
    #[error("it has more than {max} bytes, which is all that it may")]
    Bytes { max: u64 },
    #[error(transparent)]
    Sum(#[from] SumError),
    #[error("keep it until it is complete")]
    Io(#[source] io::Error),
}

impl TransferError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Http(error) => error.is_transient(),
            Self::Deadline => true,
            Self::Path(_) | Self::Scheme | Self::Put(_) | Self::Sink(_) => false,
        }
    }
}

/// A downloaded file.
#[derive(Debug)]
pub(crate) struct FetchedFile {
    /// The file, without a name and positioned at its beginning.
    pub(crate) file: File,
    pub(crate) bytes: u64,
    /// The name of a file that is not an archive.
    pub(crate) name: Option<Name>,
}

/// Downloads the file that `download` names, at most `max` bytes, into a file in `dir`. Dropping the future ends the
/// transfer.
pub(crate) async fn fetch(
    download: &Download,
    policy: &Policy,
    dir: &Path,
    max: u64,
) -> Result<FetchedFile, TransferError> {
    let attempt = || async {
        let sum = ExpectedDigest::read(&download.checksum_algorithm, &download.checksum_value);
        let file = paths::create_unnamed_file(dir).map_err(SinkError::Io)?;
        let mut sink = Sink {
            file: file.into(),
            sum: sum.map_err(SinkError::Sum)?,
            bytes: 0,
            max,
        };
        if let Some(path) = download.from.strip_prefix("file://") {
            copy_from_host(path, policy, &mut sink).await?;
        } else {
            client(policy).get(&download.from, &mut sink).await?;
        }
        Ok(FetchedFile {
            bytes: sink.bytes,
            file: sink.file.into_std().await,
            name: file_name_of_url(&download.from),
        })
    };
    retry(attempt).await
}

/// Sends a file to an `http` or `https` URL, or writes it to the path of a `file` URL. Dropping the future ends the
/// transfer.
pub(crate) async fn send(
    to: &str,
    outgoing: &UploadFile,
    policy: &Policy,
) -> Result<(), TransferError> {
    if let Some(path) = to.strip_prefix("file://") {
        return copy_to_host(path, outgoing, policy).await;
    }
    let client = client(policy);
    retry(|| async { Ok(client.post(to, outgoing).await?) }).await
}

fn client(policy: &Policy) -> Client {
    Client {
        allow_local: policy.allow_local_transfers,
        ca_file: policy.ca_file.clone(),
    }
}

/// Repeats `attempt` until it succeeds, fails permanently, or has used all attempts.
async fn retry<T, F: Future<Output = Result<T, TransferError>>>(
    attempt: impl Fn() -> F,
) -> Result<T, TransferError> {
    let mut pause = limits::TRANSFER_PAUSE;
    let mut left = limits::TRANSFER_ATTEMPTS_MAX;
    loop {
        left -= 1;
        let ended = tokio::time::timeout(limits::TRANSFER_DEADLINE, attempt()).await;
        match ended.unwrap_or(Err(TransferError::Deadline)) {
            Err(error) if left > 0 && error.is_transient() => {
                tracing::debug!(%error, left, "a transfer is attempted again");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            ended => return ended,
        }
    }
}

/// Copies a file of the host that tasks may download. The file may change during the copy; only the copy counts.
async fn copy_from_host(path: &str, policy: &Policy, sink: &mut Sink) -> Result<(), TransferError> {
    let file = paths::open_download(&host_path(path)?, policy)?;
    let mut file = tokio::fs::File::from_std(file);
    let mut chunk = vec![0; limits::TRANSFER_CHUNK_BYTES];
    loop {
        let read = file.read(&mut chunk).await.map_err(SinkError::Io)?;
        if read == 0 {
            return Ok(sink.finish().await?);
        }
        sink.write(&chunk[..read]).await?;
    }
}

/// Writes a file into a directory of the host that tasks may upload into. The file gets its name when it is completely
/// on the disk.
async fn copy_to_host(
    path: &str,
    outgoing: &UploadFile,
    policy: &Policy,
) -> Result<(), TransferError> {
    let (new, file) = paths::create_upload(&host_path(path)?, policy)?;
    let copying = async {
        let mut from = outgoing.reader().map_err(TransferError::Put)?;
        let mut file = tokio::fs::File::from_std(file);
        let copied = tokio::io::copy(&mut from, &mut file).await;
        copied.map_err(TransferError::Put)?;
        file.sync_all().await.map_err(TransferError::Put)
    };
    let copied = tokio::time::timeout(limits::TRANSFER_DEADLINE, copying).await;
    copied.unwrap_or(Err(TransferError::Deadline))?;
    Ok(new.persist()?)
}

/// Returns the path of `file:///a` and `file://localhost/a`, given without the scheme.
fn host_path(path: &str) -> Result<String, TransferError> {
    let path = path.strip_prefix("localhost").unwrap_or(path);
    String::from_utf8(percent_decode(path)).map_err(|_invalid| TransferError::Scheme)
}

/// The destination of bytes until they are complete.
pub(crate) struct Sink {
    file: tokio::fs::File,
    sum: Option<ExpectedDigest>,
    bytes: u64,
    max: u64,
}

impl Sink {
    /// Checks that a total of `bytes` is within the bound.
    fn check_size(&self, bytes: u64) -> Result<(), SinkError> {
        if bytes > self.max {
            return Err(SinkError::Bytes { max: self.max });
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.check_size(self.bytes.saturating_add(bytes.len() as u64))?;
        self.bytes += bytes.len() as u64;
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.file.write_all(bytes).await.map_err(SinkError::Io)
    }

    /// Checks the checksum, and seeks to the beginning.
    async fn finish(&mut self) -> Result<(), SinkError> {
        if let Some(sum) = self.sum.take() {
            sum.check()?;
        }
        self.file.flush().await.map_err(SinkError::Io)?;
        self.file.rewind().await.map_err(SinkError::Io)?;
        Ok(())
    }
}

/// A file to send, with its checksums.
#[derive(Debug)]
pub(crate) struct UploadFile {
    file: File,
    pub(crate) bytes: u64,
    md5: Vec<u8>,
    sha256: Vec<u8>,
}

/// The reason why a file of a task was not read.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("nothing of it came for {}", go_duration(*after))]
    Silent { after: Duration },
}

impl UploadFile {
    /// Reads all bytes from a porter, at most `max`, into a file in `dir`.
    pub(crate) async fn read(
        mut from: impl tokio::io::AsyncRead + Unpin,
        dir: &Path,
        max: u64,
    ) -> Result<Self, ReadError> {
        let file = paths::create_unnamed_file(dir).map_err(SinkError::Io)?;
        let mut sink = Sink {
            file: file.into(),
            sum: None,
            bytes: 0,
            max,
        };
        let (mut md5, mut sha256) = (Md5::new(), Sha256::new());
        let mut chunk = vec![0; limits::TRANSFER_CHUNK_BYTES];
        let after = limits::TRANSFER_IDLE_DEADLINE;
        loop {
            let read = tokio::time::timeout(after, from.read(&mut chunk)).await;
            let read = read.map_err(|_elapsed| ReadError::Silent { after })?;
            let read = read.map_err(SinkError::Io)?;
            if read == 0 {
                break;
            }
            md5.update(&chunk[..read]);
            sha256.update(&chunk[..read]);
            sink.write(&chunk[..read]).await?;
        }
        sink.finish().await?;
        Ok(Self {
            bytes: sink.bytes,
            file: sink.file.into_std().await,
            md5: md5.finalize().to_vec(),
            sha256: sha256.finalize().to_vec(),
        })
    }

    /// Returns the file at its beginning, for one attempt. Earlier attempts have ended.
    fn reader(&self) -> io::Result<tokio::fs::File> {
        use std::io::Seek as _;
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        Ok(file.into())
    }
}

/// Formats a number of bytes as in Diego's log lines: `12.3M`.
pub(crate) fn format_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (1 << 60, "E"),
        (1 << 50, "P"),
        (1 << 40, "T"),
        (1 << 30, "G"),
        (1 << 20, "M"),
        (1 << 10, "K"),
    ];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => {
            let value = format!("{:.1}", bytes as f64 / unit as f64);
            format!("{}{name}", value.strip_suffix(".0").unwrap_or(&value))
        }
        None => format!("{bytes}B"),
    }
}

/// Returns the last part of a URL's path, if it is a valid file name.
fn file_name_of_url(url: &str) -> Option<Name> {
    let path = url.split(['?', '#']).next()?;
    let (_, path) = path.split_once("://")?;
    let (_, last) = path.rsplit_once('/')?;
    let last = percent_decode(last);
    let name = Name::read(&last).filter(|name| !name.is_empty())?;
    (!last.contains(&b'/')).then_some(name)
}

/// Decodes the percent escapes of a part of a URL.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits
            .filter(|digits| *first == b'%' && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[2..] } else { more };
    }
    bytes
}

#[cfg(test)]
mod tests;
