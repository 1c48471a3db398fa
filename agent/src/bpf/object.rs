//! The eBPF object: finding it, checking it, and telling versions apart.
//!
//! A packaged binary embeds the object. A developer's binary reads the file that `cargo xtask build-ebpf` leaves in
//! cargo's target directory, so the object is not an input of the build.

use std::{
    env,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use nix::{libc::O_NONBLOCK, unistd::geteuid};
use thiserror::Error;

use crate::bpf::limits::{OBJECT_ALIGNMENT, OBJECT_BYTES_MAX, TARGET_DIR_ANCESTORS_MAX};

/// The object that `build.rs` embedded; empty without `MUSTER_EBPF_EMBED`.
static EMBEDDED: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/muster-ebpf.o"));

/// The environment variable that names the object's file.
const OBJECT_VAR: &str = "MUSTER_EBPF_OBJECT";

/// The object's file name.
pub const OBJECT_FILE: &str = "muster-ebpf.o";

/// Where `cargo xtask build-ebpf` puts the file, below cargo's target directory.
const TARGET_SUBDIR: &str = "ebpf";

/// Files that cargo writes at the top of its target directory. The first is absent if another program made the
/// directory, the second if cargo's cache of compiler versions is off.
const TARGET_DIR_MARKS: [&str; 2] = ["CACHEDIR.TAG", ".rustc_info.json"];

/// Start of an ELF file, and the machine `EM_BPF` in its bytes 18 and 19.
const ELF_MAGIC: &[u8] = b"\x7fELF";
const EM_BPF: [u8; 2] = [247, 0];

/// Permission to write for the group and for others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The origin of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    Embedded,
    File(PathBuf),
}

impl std::fmt::Display for ObjectSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded in this binary"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// The reason why no object was found or accepted.
#[derive(Debug, Error)]
pub enum FindObjectError {
    /// Neither the binary nor any of these files holds an object.
    #[error("no eBPF object: none is embedded in this binary, and none is at {}", join(.searched))]
    NotFound {
        /// The paths that were tried.
        searched: Vec<PathBuf>,
    },
    /// The path of this program could not be read.
    #[error("no eBPF object: cannot learn where this program is: {source}")]
    NoProgram {
        /// The error of the kernel.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("cannot read eBPF object {path}: {source}")]
    Read {
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The path names something other than a regular file.
    #[error("eBPF object {path} is not a regular file")]
    NotFile { path: PathBuf },
    /// Another user owns the file or may write it.
    #[error(
        "eBPF object {path} is not trusted: user {uid} owns it, its mode is {mode:04o}, and the agent loads it as root"
    )]
    Untrusted { path: PathBuf, uid: u32, mode: u32 },
    /// The file is larger than any object of Muster.
    #[error("eBPF object {path} is larger than {OBJECT_BYTES_MAX} bytes")]
    TooLarge { path: PathBuf },
    /// The file is not an ELF file for eBPF.
    #[error("{path} is not an eBPF object: it is not an ELF file for the machine BPF")]
    NotBpf { path: PathBuf },
}

impl FindObjectError {
    /// The next step for the operator.
    pub fn fix(&self) -> String {
        match self {
            Self::NotFound { .. } => {
                format!(
                    "run `cargo xtask build-ebpf`, or set {OBJECT_VAR} to the path of {OBJECT_FILE}"
                )
            }
            Self::NoProgram { .. } => {
                format!("mount /proc, or set {OBJECT_VAR} to the path of {OBJECT_FILE}")
            }
            Self::Untrusted { path, .. } => {
                let path = path.display();
                format!("run `chown root {path} && chmod go-w {path}` if its content is yours")
            }
            Self::Read { .. }
            | Self::NotFile { .. }
            | Self::TooLarge { .. }
            | Self::NotBpf { .. } => {
                format!("run `cargo xtask build-ebpf` again, or set {OBJECT_VAR} to another file")
            }
        }
    }
}

fn join(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" or ")
}

/// An object that was found and checked.
#[derive(Debug)]
pub struct Object {
    content: ObjectBytes,
    hash: u64,
    source: ObjectSource,
}

impl Object {
    /// The hash that identifies the object's programs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The origin of the object.
    pub fn source(&self) -> &ObjectSource {
        &self.source
    }

    /// The bytes of the object, aligned to [`OBJECT_ALIGNMENT`].
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            ObjectBytes::Embedded(bytes) => bytes,
            ObjectBytes::Read { buffer, start } => &buffer[*start..],
        }
    }

    fn new(content: ObjectBytes, source: ObjectSource) -> Self {
        let mut object = Self {
            content,
            hash: 0,
            source,
        };
        object.hash = hash([object.bytes()]);
        object
    }
}

#[derive(Debug)]
enum ObjectBytes {
    Embedded(&'static [u8]),
    /// The object occupies the buffer from `start` to its end, where its address is aligned.
    Read {
        buffer: Vec<u8>,
        start: usize,
    },
}

/// The object of this process. The search runs once, so that every load of this process uses the same programs.
pub(super) fn find() -> Result<&'static Object, &'static FindObjectError> {
    static OBJECT: OnceLock<Result<Object, FindObjectError>> = OnceLock::new();
    OBJECT
        .get_or_init(|| {
            let named = env::var_os(OBJECT_VAR).filter(|path| !path.is_empty());
            let program = env::current_exe();
            find_for(
                named.map(PathBuf::from),
                EMBEDDED,
                program,
                &trusted_users(),
            )
        })
        .as_ref()
}

/// The users whose files are trusted: root, the user of this process, and the owner of this program, who could change
/// the program too.
fn trusted_users() -> Vec<u32> {
    let owner = fs::metadata("/proc/self/exe").map(|program| program.uid());
    [0, geteuid().as_raw()].into_iter().chain(owner).collect()
}

/// Returns the first object found. The order is: the file named by the environment, the embedded object, the file in
/// the program's directory, the file in the cargo target directory that contains the program.
fn find_for(
    named: Option<PathBuf>,
    embedded: &'static [u8],
    program: io::Result<PathBuf>,
    trusted: &[u32],
) -> Result<Object, FindObjectError> {
    if let Some(path) = named {
        return read(&path, trusted)?.ok_or_else(|| FindObjectError::Read {
            path,
            source: io::ErrorKind::NotFound.into(),
        });
    }
    if !embedded.is_empty() {
        return Ok(Object::new(
            ObjectBytes::Embedded(embedded),
            ObjectSource::Embedded,
        ));
    }
    let program = program.map_err(|source| FindObjectError::NoProgram { source })?;
    let searched = candidates(&program);
    for path in &searched {
        if let Some(object) = read(path, trusted)? {
            return Ok(object);
        }
    }
    Err(FindObjectError::NotFound { searched })
}

fn candidates(program: &Path) -> Vec<PathBuf> {
    let beside = program.parent().map(|dir| dir.join(OBJECT_FILE));
    let in_target_dir = program
        .ancestors()
        .skip(1)
        .take(TARGET_DIR_ANCESTORS_MAX)
        .find(|dir| TARGET_DIR_MARKS.iter().any(|mark| dir.join(mark).is_file()))
        .map(|dir| dir.join(TARGET_SUBDIR).join(OBJECT_FILE));
    beside.into_iter().chain(in_target_dir).collect()
}

/// Reads the object in the file at `path`; `None` if there is no file.
fn read(path: &Path, trusted: &[u32]) -> Result<Option<Object>, FindObjectError> {
    let failed = |source| FindObjectError::Read {
        path: path.to_owned(),
        source,
    };
    // Without the flag, a FIFO would block the open.
    let opened = File::options()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FindObjectError::NotFile {
            path: path.to_owned(),
        });
    }
    check_trust(path, metadata.uid(), metadata.mode(), trusted)?;

    let mut bytes = Vec::new();
    file.take(OBJECT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > OBJECT_BYTES_MAX {
        return Err(FindObjectError::TooLarge {
            path: path.to_owned(),
        });
    }
    if !bytes.starts_with(ELF_MAGIC) || bytes.get(18..20) != Some(EM_BPF.as_slice()) {
        return Err(FindObjectError::NotBpf {
            path: path.to_owned(),
        });
    }
    let source = ObjectSource::File(path.to_owned());
    Ok(Some(Object::new(aligned(&bytes), source)))
}

fn check_trust(path: &Path, uid: u32, mode: u32, trusted: &[u32]) -> Result<(), FindObjectError> {
    if trusted.contains(&uid) && mode & WRITABLE_BY_OTHERS == 0 {
        return Ok(());
    }
    Err(FindObjectError::Untrusted {
        path: path.to_owned(),
        uid,
        mode: mode & 0o7777,
    })
}

/// A copy of `bytes` that begins at a multiple of [`OBJECT_ALIGNMENT`], where the ELF parser can read its structures.
fn aligned(bytes: &[u8]) -> ObjectBytes {
    // The reserved capacity holds everything, so the buffer does not move.
    let mut buffer: Vec<u8> = Vec::with_capacity(bytes.len() + OBJECT_ALIGNMENT);
    let address = buffer.as_ptr().addr();
    let start = address.next_multiple_of(OBJECT_ALIGNMENT) - address;
    buffer.resize(start, 0);
    buffer.extend_from_slice(bytes);
    ObjectBytes::Read { buffer, start }
}

/// A 64-bit FNV-1a hash over `parts`.
///
/// The hash distinguishes versions of the programs, nodes and allocations. A forged collision would give no advantage.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    parts.into_iter().flatten().fold(BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests;
