//! Attributes of a node that has CNI plugins and networks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use muster_domain::node::cni_network_attribute;
use serde::Deserialize;

use super::exec::{Output, PluginInvocation};
use super::request::is_executable;
use super::{CniSettings, blocking, config, locked};
use crate::limits::{CNI_PROGRAMS_MAX, CNI_VERSION_DEADLINE};

/// The facts of a program: its change time and size, which distinguish it from another file, and its version if it
/// reported one.
type ProgramFacts = (SystemTime, u64, Option<String>);

/// Versions of plugins, asked for again when their programs change.
#[derive(Debug, Default)]
pub(super) struct Fingerprint {
    versions: Mutex<BTreeMap<PathBuf, ProgramFacts>>,
    /// Faults that are logged already.
    logged: Mutex<Vec<(PathBuf, String)>>,
}

impl Fingerprint {
    pub(super) async fn attributes(&self, settings: &CniSettings) -> BTreeMap<String, String> {
        let mut attributes = BTreeMap::new();
        let dir = settings.config_dir.clone();
        let read = blocking(move || Ok(config::read_dir(&dir))).await;
        let config::NetworkDir { networks, faults } = read.unwrap_or_default();
        for (list, _) in networks {
            let attribute = cni_network_attribute(&list.name);
            attributes.insert(attribute, list.version.to_string());
        }
        self.log_new_faults(faults);

        let path = settings.path.clone();
        let programs = blocking(move || Ok(programs(&path))).await;
        let versions = programs.unwrap_or_default().into_iter().map(async |found| {
            let (name, program, changed, bytes) = found;
            let before = locked(&self.versions).get(&program).cloned();
            let version = match before {
                Some((at, size, version)) if (at, size) == (changed, bytes) => version,
                Some(_) | None => version(&name, &program).await,
            };
            (name, program, (changed, bytes, version))
        });
        let versions = futures::future::join_all(versions).await;
        for (name, _, (_, _, version)) in &versions {
            if let Some(version) = version {
                attributes.insert(format!("plugins.cni.version.{name}"), version.clone());
            }
        }
        let versions = versions.into_iter();
        *locked(&self.versions) = versions
            .map(|(_, program, known)| (program, known))
            .collect();
        attributes
    }

    /// Logs faults that were not there before.
    fn log_new_faults(&self, faults: Vec<(PathBuf, String)>) {
        let mut logged = locked(&self.logged);
        for (path, reason) in faults.iter().filter(|fault| !logged.contains(fault)) {
            tracing::warn!(path = %path.display(), reason, "a CNI configuration is not used");
        }
        *logged = faults;
    }
}

/// Programs in the directories with their change time and size; the first of a name counts.
fn programs(path: &[PathBuf]) -> Vec<(String, PathBuf, SystemTime, u64)> {
    let mut programs: BTreeMap<String, _> = BTreeMap::new();
    for dir in path {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        for program in entries.map(|entry| entry.path()) {
            let name = program.file_name().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| is_executable(&program)) else {
                continue;
            };
            let facts = std::fs::metadata(&program);
            let facts = facts.and_then(|it| Ok((it.modified()?, it.len())));
            if let Ok((changed, bytes)) = facts {
                let name = name.to_owned();
                programs.entry(name).or_insert((program, changed, bytes));
            }
        }
    }
    let programs = programs.into_iter().take(CNI_PROGRAMS_MAX);
    programs
        .map(|(name, (program, changed, bytes))| (name, program, changed, bytes))
        .collect()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: Vec<String>,
}

/// Returns the version of a plugin. For a plugin that reports none, it is the newest version of CNI that the plugin
/// supports.
async fn version(name: &str, program: &Path) -> Option<String> {
    let ask = async |env: Vec<(&'static str, String)>| {
        let call = PluginInvocation {
            plugin: name,
            program,
            env,
            input: b"{}",
            deadline: CNI_VERSION_DEADLINE,
        };
        let output = call.output().await;
        let log_fault = |error: &super::exec::PluginFault| {
            tracing::warn!(name, %error, "a CNI plugin does not tell its version");
        };
        output.inspect_err(log_fault).ok()
    };
    let Output { stdout, stderr, .. } = ask(Vec::new()).await?;
    let printed = [stdout, stderr].concat();
    if let Some(version) = named_version(&String::from_utf8_lossy(&printed)) {
        return Some(version);
    }
    let command = vec![("CNI_COMMAND", "VERSION".to_owned())];
    let Output { stdout, .. } = ask(command).await?;
    let Versions { supported_versions } = serde_json::from_slice(&stdout).ok()?;
    supported_versions
        .into_iter()
        .filter(|it| numbers(it).is_some())
        .max_by_key(|it| numbers(it))
}

/// The version in words such as `CNI bridge plugin v1.2.0`.
fn named_version(printed: &str) -> Option<String> {
    let line = printed.lines().find(|line| line.contains(" plugin "))?;
    let mut words = line.split_whitespace().rev();
    let version = words.find(|word| numbers(word).is_some())?;
    Some(version.to_owned())
}

/// The numbers of a version such as `v1.2.0` or `1.2.0-rc1`.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split(['-', '+']).next()?;
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_plugins_are_found() {
        for (printed, version) in [
            (
                "CNI bridge plugin v1.2.0\nCNI protocol versions supported: 0.1.0, 1.0.0\n",
                Some("v1.2.0"),
            ),
            ("CNI portmap plugin v1.0.0-rc1\n", Some("v1.0.0-rc1")),
            (
                "CNI bridge plugin version unknown\nCNI protocol versions supported: 0.1.0\n",
                None,
            ),
            ("", None),
        ] {
            assert_eq!(named_version(printed).as_deref(), version, "{printed}");
        }
        assert_eq!(numbers("v1.10.3"), Some([1, 10, 3]));
        for wrong in ["1.2", "1.2.3.4", "v1.x.0", ""] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }
}
