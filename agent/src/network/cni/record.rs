//! Records of CNI networks of allocations: a file for each, in the directory of their namespaces' files.
//!
//! A record is on disk before the first plugin runs. So the next agent undoes the half that a killed agent left.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use muster_domain::id::AllocId;
use muster_link::private;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits::CNI_RECORD_BYTES_MAX;

/// Format of the files. A file of another format is left alone.
const FORMAT: u32 = 1;

/// A network that plugins set up, or are setting up, for an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CniRecord {
    format: u32,
    pub(super) path: Vec<PathBuf>,
    /// Text of the configuration with which ADD ran.
    pub(super) config: String,
    /// The variable `CNI_ARGS`.
    pub(super) args: String,
    /// Values passed to plugins with capabilities.
    pub(super) runtime: BTreeMap<String, Value>,
    /// The namespace of a driver; `None` if the agent made one.
    pub(super) driver_namespace: Option<String>,
    /// The result of the last plugin; `None` until ADD is complete.
    pub(super) result: Option<Value>,
    /// Plugins whose ADD is complete, as far as this agent knows.
    #[serde(skip)]
    pub(super) added: usize,
    /// Removals that failed, since this agent began.
    #[serde(skip)]
    pub(super) failures: u32,
}

impl CniRecord {
    pub(super) fn new(config: String, args: String, runtime: BTreeMap<String, Value>) -> Self {
        Self {
            format: FORMAT,
            path: Vec::new(),
            config,
            args,
            runtime,
            driver_namespace: None,
            result: None,
            added: 0,
            failures: 0,
        }
    }
}

/// The directory of records and namespaces.
#[derive(Clone, Debug)]
pub(super) struct RecordDir(PathBuf);

impl RecordDir {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join("cni"))
    }

    /// Makes the directory. Nodes without CNI networks have none.
    pub(super) fn prepare(&self) -> io::Result<()> {
        private::create_dir(&self.0)
    }

    /// The file that the namespace of an allocation is mounted on.
    pub(super) fn namespace(&self, alloc_id: AllocId) -> PathBuf {
        self.0.join(format!("{alloc_id}.netns"))
    }

    fn record(&self, alloc_id: AllocId) -> PathBuf {
        self.0.join(format!("{alloc_id}.json"))
    }

    pub(super) fn write(&self, alloc_id: AllocId, record: &CniRecord) -> io::Result<()> {
        let path = self.record(alloc_id);
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        if text.len() > CNI_RECORD_BYTES_MAX {
            return Err(io::Error::other(format!(
                "the record is larger than {CNI_RECORD_BYTES_MAX} bytes"
            )));
        }
        let new = path.with_extension("json.new");
        let mut file = fs::File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        fs::File::open(&self.0)?.sync_all()
    }

    pub(super) fn remove(&self, alloc_id: AllocId) -> io::Result<()> {
        match fs::remove_file(self.record(alloc_id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Every record that can be read; others are logged and left.
    pub(super) fn read_all(&self) -> BTreeMap<AllocId, CniRecord> {
        let mut records = BTreeMap::new();
        for (alloc_id, path) in self.files("json") {
            match read(&path) {
                Ok(record) => drop(records.insert(alloc_id, record)),
                Err(error) => tracing::error!(
                    %alloc_id, %error, path = %path.display(),
                    "the record of a CNI network cannot be read: its plugins are not asked to remove it"
                ),
            }
        }
        records
    }

    /// Allocations that have a namespace here.
    pub(super) fn namespaces(&self) -> Vec<AllocId> {
        let files = self.files("netns").into_iter();
        files.map(|(alloc_id, _)| alloc_id).collect()
    }

    fn files(&self, extension: &str) -> Vec<(AllocId, PathBuf)> {
        let Ok(entries) = fs::read_dir(&self.0) else {
            return Vec::new();
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let of = |path: PathBuf| {
            let is_one = path.extension().is_some_and(|it| it == extension);
            let alloc_id = path.file_stem()?.to_str()?.parse().ok()?;
            is_one.then_some((alloc_id, path))
        };
        paths.filter_map(of).collect()
    }
}

fn read(path: &Path) -> io::Result<CniRecord> {
    let record: CniRecord = serde_json::from_slice(&fs::read(path)?)?;
    if record.format != FORMAT {
        let format = record.format;
        return Err(io::Error::other(format!("format {format} is not known")));
    }
    Ok(record)
}
