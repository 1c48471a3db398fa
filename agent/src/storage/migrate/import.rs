//! The directories for data from another node during the transfer, and their move to their final places.
//!
//! Data are unpacked into [`INCOMING`] below the allocation's directory, so that they count for its disk and renames
//! can move them. When the data are complete, the directory becomes [`ARRIVED`], and its content is moved to its
//! places. The empty directory stays, as a mark that no data are to be fetched. So an agent that dies at any moment
//! either finds all of the data or begins anew. Tasks can neither read nor write there.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use muster_domain::id::AllocId;
use muster_wire::rpc::DiskDir;

use super::pack::place_path;
use super::unpack::staged_name;
use crate::storage::allocdir::{DataDir, DirError, move_within_alloc};

/// The parent of both directories. No task has this name.
const TMP: &str = "tmp";
/// The directory for data that are being received.
const INCOMING: &str = "tmp/incoming";
/// The directory for data that have been received completely.
const ARRIVED: &str = "tmp/arrived";

/// Whether all data have been received.
pub(super) fn has_arrived(alloc: &Path) -> bool {
    alloc.join(ARRIVED).is_dir()
}

/// Makes an empty directory to unpack into.
pub(super) fn make_incoming(alloc: &Path) -> io::Result<PathBuf> {
    clear(alloc)?;
    let mut private = fs::DirBuilder::new();
    private.mode(0o700);
    private.recursive(true).create(alloc.join(TMP))?;
    let incoming = alloc.join(INCOMING);
    private.recursive(false).create(&incoming)?;
    Ok(incoming)
}

/// Marks the content of the incoming directory as whole.
pub(super) fn complete(alloc: &Path) -> io::Result<()> {
    fs::rename(alloc.join(INCOMING), alloc.join(ARRIVED))
}

/// Removes incompletely unpacked data.
pub(crate) fn discard(data: &DataDir, alloc_id: AllocId) {
    let alloc = data.alloc(alloc_id).alloc;
    if let Err(error) = clear(&alloc) {
        tracing::warn!(%alloc_id, %error, "a part of the data of another allocation is left in its directory");
    }
}

fn clear(alloc: &Path) -> io::Result<()> {
    match fs::remove_dir_all(alloc.join(INCOMING)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        cleared => cleared,
    }
}

/// Moves the received data to their places, which exist and are empty. Data that were moved before stay. Returns
/// whether any data were received.
pub(crate) fn settle(
    data: &DataDir,
    alloc_id: AllocId,
    tasks: impl IntoIterator<Item = String>,
) -> Result<bool, DirError> {
    let alloc = data.alloc(alloc_id).alloc;
    if !has_arrived(&alloc) {
        return Ok(false);
    }
    let locals = tasks.into_iter().map(DiskDir::Local);
    for place in std::iter::once(DiskDir::Shared).chain(locals) {
        let from = alloc.join(ARRIVED).join(staged_name(&place));
        move_within_alloc(&from, &alloc.join(place_path(&place)))?;
    }
    Ok(true)
}
