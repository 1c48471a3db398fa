//! Opening of pinned maps, and the reasons why the programs cannot be brought up.

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::maps::MapData;
use thiserror::Error;

use crate::bpf::{btf::ReadTypesError, load::LoadProgramsError, object::FindObjectError};

/// The reason why the programs could not be loaded or adopted.
#[derive(Debug, Error)]
pub enum OpenBpfError {
    /// There is no eBPF object, or it was refused.
    #[error("find the eBPF object")]
    NoObject(#[from] &'static FindObjectError),
    /// The process lacks the right to load programs.
    #[error("load eBPF programs: run the agent as root")]
    NotRoot,
    /// `pin_dir` is not in a bpffs.
    #[error(
        "pin eBPF programs at {path}: it is not in a bpffs; mount one with \
         `mount -t bpf bpf <directory>`"
    )]
    NotBpffs { path: PathBuf },
    /// `cgroup_dir` cannot be opened.
    #[error("open cgroup directory {path}")]
    OpenCgroup {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// `cgroup_dir` is not in the v2 hierarchy.
    #[error("attach eBPF programs to {path}: it is not a cgroup v2 directory")]
    NotCgroupV2 { path: PathBuf },
    /// The kernel does not provide its type information, or it lacks types that the programs read.
    #[error("learn where this kernel keeps what the eBPF programs read")]
    Types(#[from] ReadTypesError),
    /// The programs could not be loaded, attached or pinned.
    #[error("bring up the eBPF programs")]
    Load(#[from] LoadProgramsError),
    /// A pinned map could not be opened.
    #[error("open the eBPF map pinned at {path}: remove the node's pins with `muster agent clean`")]
    OpenMap {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: aya::maps::MapError,
    },
    /// Pins could not be made, read or removed.
    #[error("arrange the eBPF pins below {path}")]
    Pins {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

pub(super) fn open_map(maps: &Path, name: &str) -> Result<MapData, OpenBpfError> {
    let path = maps.join(name);
    MapData::from_pin(&path).map_err(|source| OpenBpfError::OpenMap { path, source })
}
