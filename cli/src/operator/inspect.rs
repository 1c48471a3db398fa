//! The contents of a snapshot file. Only this part of the client commands reads files of servers, because it must work
//! without a running server.

use std::fs::File;
use std::path::Path;

use muster_control::snapshot::{self, SnapshotInfo, TableInfo};
use serde_json::{Value, json};

use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Shows the contents of the file at `path`.
///
/// # Errors
///
/// [`CliError`] if the file does not exist or is not complete.
pub(super) fn run(json: bool, path: &Path) -> CliResult {
    let info = read_snapshot_info(path)?;
    if json {
        output::print_json(&snapshot_json(&info))?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "{}: whole, {}, format {}\nindex {}, term {}\n",
        path.display(),
        output::bytes(info.bytes),
        info.format,
        info.index.0,
        info.term
    ))?;
    for (id, name, votes) in &info.members {
        let membership = if *votes { "votes" } else { "learns" };
        output::print(&format!("server {name} ({id}) {membership}\n"))?;
    }
    let mut table = output::table(&["TABLE", "VERSION", "ROWS", "BYTES"]);
    for part in &info.tables {
        table.add_row([
            part.name.clone(),
            part.version.to_string(),
            part.rows.to_string(),
            output::bytes(part.bytes),
        ]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

/// The contents of the file, as JSON.
pub(super) fn snapshot_json(info: &SnapshotInfo) -> Value {
    let table = |part: &TableInfo| json!({"Name": part.name, "Version": part.version, "Rows": part.rows, "Bytes": part.bytes});
    let server = |(id, name, votes): &(u64, String, bool)| json!({"ID": id.to_string(), "Name": name, "Voter": votes});
    json!({
        "Index": info.index.0,
        "Term": info.term,
        "Version": info.format,
        "Size": info.bytes,
        "Servers": info.members.iter().map(server).collect::<Vec<_>>(),
        "Tables": info.tables.iter().map(table).collect::<Vec<_>>(),
    })
}

/// Opens the file at `path`.
///
/// # Errors
///
/// [`CliError`] if the file cannot be read.
pub(super) fn open(path: &Path) -> Result<File, CliError> {
    File::open(path).map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        CliError::new(exit, format!("{}: {error}", path.display()))
    })
}

/// Reads and checks the file at `path`.
///
/// # Errors
///
/// [`CliError`] if the file does not exist or is not complete.
pub(super) fn read_snapshot_info(path: &Path) -> Result<SnapshotInfo, CliError> {
    drop(open(path)?);
    snapshot::inspect(path).map_err(|error| CliError::from_chain(Exit::Failed, &error))
}
