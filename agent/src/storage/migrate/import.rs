//! Where data from another node are while they come, and how they get to where they belong.
//!
//! They are unpacked into [`INCOMING`] below the allocation's directory, so that they count for its disk and renames
//! move them. Whole, that becomes [`ARRIVED`], and what is in it is moved to its places; empty, it stays, and says that
//! there is nothing more to bring. So an agent that dies at any moment finds either all of it or begins anew. Tasks can
//! neither read nor write there.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use muster_domain::id::AllocId;
use muster_wire::rpc::DiskDir;

use super::pack::place_path;
use super::unpack::staged_name;
use crate::storage::allocdir::{DataDir, DirError, move_in};

/// Where both are. No task is called so.
const TMP: &str = "tmp";
/// The directory of data that are on their way.
const INCOMING: &str = "tmp/incoming";
/// The directory of data that have come, whole.
const ARRIVED: &str = "tmp/arrived";

/// Whether everything that is to be brought has come.
pub(super) fn has_arrived(alloc: &Path) -> bool {
    alloc.join(ARRIVED).is_dir()
}

/// An empty directory to unpack into.
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

/// Removes what was unpacked in part.
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

/// Moves what has come to its places, which are there and empty. What has been moved before stays; returns whether
/// anything has come at all.
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
        move_in(&from, &alloc.join(place_path(&place)))?;
    }
    Ok(true)
}
