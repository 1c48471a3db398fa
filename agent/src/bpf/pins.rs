//! The node's pins and their paths.
//!
//! ```text
//! <pin dir>/maps-<layout>/<MAP>                 one set, adopted by every load of the programs
//! <pin dir>/programs-<generation>/<PROGRAM>     links, and the programs that are attached to devices or only run
//! ```
//!
//! A directory of programs is complete when it contains every name. An agent that dies while it fills a directory
//! leaves an incomplete one, which the next agent removes. The kernel keeps a program attached exactly as long as its
//! link is pinned or held open. This module holds no link open.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::bpf::load;

/// The pins of one node.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    layout: u32,
}

impl Pins {
    /// Returns the pins below `root`, which is created, with maps of this layout.
    pub(super) fn below(root: &Path, layout: u32) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        Ok(Self {
            root: root.to_owned(),
            layout,
        })
    }

    /// The directory of maps.
    pub(super) fn maps(&self) -> PathBuf {
        self.root.join(format!("maps-{}", self.layout))
    }

    /// The directory of one load of the programs.
    pub(super) fn programs(&self, generation: u64) -> PathBuf {
        self.root.join(format!("programs-{generation:016x}"))
    }

    /// Whether every program of `generation` is pinned.
    pub(super) fn is_complete(&self, generation: u64) -> bool {
        let directory = self.programs(generation);
        // A program that could not be loaded is replaced by a dangling symbolic link whose target is the reason.
        load::pin_names().all(|name| directory.join(name).symlink_metadata().is_ok())
    }

    /// Removes every other load of the programs, and maps of other layouts.
    pub(super) fn remove_all_but(&self, generation: u64) -> io::Result<()> {
        let keep = [self.maps(), self.programs(generation)];
        for entry in fs::read_dir(&self.root)? {
            let path = entry?.path();
            if !keep.contains(&path) {
                fs::remove_dir_all(&path)?;
            }
        }
        Ok(())
    }

    /// Removes one load of the programs, if it is there.
    pub(super) fn remove_programs(&self, generation: u64) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(self.programs(generation)))
    }
}

/// Removes all pins below `pin_dir`, and so detaches the programs.
///
/// # Errors
///
/// The error of the kernel for a pin that cannot be removed. A `pin_dir` that is not there causes none.
pub fn remove_pins(pin_dir: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(pin_dir))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
