//! Network configurations of CNI: lists of plugins in the files of a directory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::limits::{CNI_CONFIG_BYTES_MAX, CNI_FILES_MAX, CNI_PLUGINS_MAX};

/// A version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CniVersion(u8, u8, u8);

/// Versions whose configurations and results are read. The results of all have one form.
const VERSIONS: [CniVersion; 5] = [
    CniVersion(0, 3, 0),
    CniVersion(0, 3, 1),
    CniVersion(0, 4, 0),
    CniVersion(1, 0, 0),
    CniVersion(1, 1, 0),
];
/// The first version with CHECK and with a previous result for DEL.
pub(super) const WITH_CHECK: CniVersion = CniVersion(0, 4, 0);
/// The first version with GC.
pub(super) const WITH_GC: CniVersion = CniVersion(1, 1, 0);

impl CniVersion {
    /// The version that `text` names, if it is read here.
    pub(super) fn parse(text: &str) -> Option<Self> {
        VERSIONS
            .into_iter()
            .find(|version| version.to_string() == text)
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A network: plugins that are run one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NetworkList {
    pub(super) name: String,
    pub(super) version: CniVersion,
    pub(super) disable_check: bool,
    pub(super) disable_gc: bool,
    pub(super) plugins: Vec<Plugin>,
}

/// A plugin of a network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plugin {
    /// Name of the program.
    pub(super) kind: String,
    /// The configuration as written in the file.
    pub(super) config: Map<String, Value>,
}

impl Plugin {
    /// Whether the plugin wants the runtime to pass `capability`.
    pub(super) fn has_capability(&self, capability: &str) -> bool {
        let capabilities = self.config.get("capabilities");
        capabilities.and_then(|all| all.get(capability)) == Some(&Value::Bool(true))
    }
}

impl NetworkList {
    /// Reads a list of plugins, or a single plugin.
    ///
    /// # Errors
    ///
    /// A description of the fault.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
        let Value::Object(fields) = value else {
            return Err("the file is not a JSON object".to_owned());
        };
        let name = match fields.get("name") {
            Some(Value::String(name)) if is_name(name) => name.clone(),
            Some(Value::String(name)) => {
                return Err(format!(
                    "invalid network name {name:?}: use a letter or digit and then letters, digits, `_`, `.` or `-`"
                ));
            }
            Some(_) | None => return Err("missing field `name`: give a text".to_owned()),
        };
        let plugins = match fields.get("plugins") {
            Some(Value::Array(plugins)) => {
                plugins.iter().map(plugin).collect::<Result<Vec<_>, _>>()?
            }
            Some(_) => return Err("invalid field `plugins`: give a list of plugins".to_owned()),
            None => vec![plugin(&Value::Object(fields.clone()))?],
        };
        if plugins.is_empty() || plugins.len() > CNI_PLUGINS_MAX {
            let count = plugins.len();
            return Err(format!("{count} plugins: use 1 to {CNI_PLUGINS_MAX}"));
        }
        Ok(Self {
            name,
            version: version(&fields)?,
            disable_check: is_set(&fields, "disableCheck")?,
            disable_gc: is_set(&fields, "disableGC")?,
            plugins,
        })
    }
}

fn plugin(value: &Value) -> Result<Plugin, String> {
    let config = value
        .as_object()
        .ok_or("invalid field `plugins`: each plugin is a JSON object")?;
    let kind = config
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    // The name is a file below the directories of plugins.
    if kind.is_empty() || kind.contains(['/', '\0']) || kind == "." || kind == ".." {
        return Err(format!(
            "invalid plugin type {kind:?}: use the name of a program in cni_path"
        ));
    }
    Ok(Plugin {
        kind: kind.to_owned(),
        config: config.clone(),
    })
}

/// The newest version that the configuration names and that is read here.
fn version(fields: &Map<String, Value>) -> Result<CniVersion, String> {
    let texts = |field: &str| match fields.get(field) {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => Vec::new(),
    };
    let named = [texts("cniVersion"), texts("cniVersions")].concat();
    let newest = named
        .iter()
        .filter_map(|text| CniVersion::parse(text))
        .max();
    newest.ok_or_else(|| {
        let known = VERSIONS.map(|version| version.to_string()).join(", ");
        match named.as_slice() {
            [] => format!("missing field `cniVersion`: use one of {known}"),
            named => format!(
                "unsupported cniVersion {}: use one of {known}",
                named.join(", ")
            ),
        }
    })
}

/// A switch. Version 1.1 allows texts too.
fn is_set(fields: &Map<String, Value>, field: &str) -> Result<bool, String> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(format!("invalid field `{field}`: use true or false")),
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(plain)
}

/// The content of a directory of configurations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NetworkDir {
    /// Networks with the text of their files, sorted by file.
    pub(super) networks: Vec<(NetworkList, String)>,
    /// Files that are not used, and why.
    pub(super) faults: Vec<(PathBuf, String)>,
}

/// Reads the files `.conflist`, `.conf` and `.json` of `dir`. A missing directory has none.
pub(super) fn read_dir(dir: &Path) -> NetworkDir {
    let mut read = NetworkDir::default();
    let mut paths = match paths(dir) {
        Ok(paths) => paths,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            read.faults.push((dir.to_owned(), error.to_string()));
            Vec::new()
        }
    };
    if paths.len() > CNI_FILES_MAX {
        let reason = format!("more than {CNI_FILES_MAX} files: the others are not read");
        read.faults.push((dir.to_owned(), reason));
        paths.truncate(CNI_FILES_MAX);
    }
    for path in paths {
        let parsed = read_file(&path).and_then(|text| Ok((NetworkList::parse(&text)?, text)));
        match parsed {
            Ok((list, _))
                if read
                    .networks
                    .iter()
                    .any(|(other, _)| other.name == list.name) =>
            {
                let reason = format!("network {:?} is in an earlier file too", list.name);
                read.faults.push((path, reason));
            }
            Ok(network) => read.networks.push(network),
            Err(reason) => read.faults.push((path, reason)),
        }
    }
    read
}

fn paths(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|it| it.to_str());
        if matches!(extension, Some("conflist" | "conf" | "json")) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn read_file(path: &Path) -> Result<String, String> {
    let reason = |error: io::Error| error.to_string();
    // A read of a FIFO would block for ever.
    if !std::fs::metadata(path).map_err(reason)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(reason)?;
    let count = file
        .take(CNI_CONFIG_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(reason)?;
    if u64::try_from(count).is_ok_and(|count| count > CNI_CONFIG_BYTES_MAX) {
        return Err(format!("larger than {CNI_CONFIG_BYTES_MAX} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
