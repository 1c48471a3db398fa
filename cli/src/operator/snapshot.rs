//! `muster operator snapshot`: the state as a file, for backups.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use muster_link::private;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::inspect;
use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Commands about snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Save the state of the cluster to a file.
    ///
    /// Example: muster operator snapshot save backup.snap
    Save {
        /// The file. It must not exist.
        file: PathBuf,
    },
    /// Replace the cluster's state by the state in a file.
    Restore {
        /// The file.
        file: PathBuf,
    },
    /// Show the content of a file and whether it is complete. Asks no server.
    Inspect {
        /// The file.
        file: PathBuf,
    },
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, command: &SnapshotCommand) -> CliResult {
    match command {
        SnapshotCommand::Save { file } => save(client, json, file),
        SnapshotCommand::Restore { file } => restore(client, json, file),
        SnapshotCommand::Inspect { file } => inspect::run(json, file),
    }
}

fn save(client: &Client, json: bool, path: &Path) -> CliResult {
    if path.symlink_metadata().is_ok() {
        return Err(CliError::new(
            Exit::Refused,
            format!(
                "{} is there already and is not written over",
                path.display()
            ),
        )
        .help("give another name"));
    }
    let (headers, body) = client.download("/v1/operator/snapshot")?;
    let digest = headers
        .get("digest")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.strip_prefix("sha-256="))
        .map(str::to_owned);
    let partial = path.with_extension("partial");
    let written = receive(body, &partial, digest.as_deref())
        .and_then(|bytes| Ok((bytes, std::fs::rename(&partial, path)?)));
    let (bytes, ()) = written.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
    let info = inspect::read_snapshot_info(path)?;
    if json {
        output::print_json(&inspect::snapshot_json(&info))?;
    } else {
        output::print(&format!(
            "The state at index {} is in {}: {}.\n",
            info.index.0,
            path.display(),
            output::bytes(bytes)
        ))?;
    }
    Ok(Exit::Done)
}

/// Writes `body` to `path`. Returns its length.
fn receive(mut body: impl Read, path: &Path, digest: Option<&str>) -> Result<u64, CliError> {
    let mut file = private::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!("{} cannot be written: {error}", path.display()),
            )
        })?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let count = body.read(&mut buffer).map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!(
                    "the snapshot broke off after {}: {error}",
                    output::bytes(bytes)
                ),
            )
        })?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        file.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
    file.sync_all()?;
    match digest {
        Some(digest) if digest != STANDARD.encode(hash.finalize()) => Err(CliError::new(
            Exit::Failed,
            "the snapshot was damaged on its way: its digest is not the server's",
        )),
        Some(_) => Ok(bytes),
        None => Err(CliError::new(
            Exit::Failed,
            "the server did not say which digest the snapshot has",
        )),
    }
}

fn restore(client: &Client, json: bool, path: &Path) -> CliResult {
    // A damaged file is refused before it is sent.
    let info = inspect::read_snapshot_info(path)?;
    let file = inspect::open(path)?;
    let answer: Value = client.upload("/v1/operator/snapshot", &file)?;
    if json {
        output::print_json(&answer)?;
    } else {
        output::print(&format!(
            "The cluster has the state of index {} from {}.\n",
            info.index.0,
            path.display()
        ))?;
    }
    Ok(Exit::Done)
}
