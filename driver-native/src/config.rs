//! A task's `config` block.

use std::collections::BTreeMap;
use std::path::Path;

use muster_domain::one_off::Action;
use muster_driver::Spec;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::actions::check::check;
use crate::field::field;
use crate::isolation::rlimits::{self, Limit, LimitError};
use crate::limits;
use crate::policy::is_plain_absolute;

/// The name that jobs write as `driver = "native"`.
pub const NAME: &str = "native";

/// The level of isolation from the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IsolationLevel {
    /// A process of the host, in its cgroup. It requires permission of the node.
    Raw,
    /// Separate namespaces, a separate root directory and a filter of system calls.
    #[default]
    Contained,
    /// Like `contained`, with separate ids, a read-only root, and no network.
    Strict,
}

impl IsolationLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Contained => "contained",
            Self::Strict => "strict",
        }
    }
}

/// The network of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Network {
    /// The network of the task's group, which is the host's unless the group sets another.
    Host,
    /// An empty network namespace of the task's own.
    None,
}

/// A directory or file shown in the task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BindMount {
    /// A path below the task's directory, or an absolute path that the node allows.
    pub(crate) source: String,
    /// The path in the task.
    pub(crate) target: String,
    /// The task cannot write to the mount, unless this is `false`.
    #[serde(default)]
    pub(crate) readonly: Option<bool>,
}

/// The fields that a job writes into `config { … }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NativeConfig {
    /// The program to run. It is absolute, relative to the task's directory if it contains a slash, or a name. A name
    /// is searched for in the task's directory and in `PATH`. Empty with `actions`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) command: String,
    /// A tree of actions to carry out in place of a command, as JSON text.
    #[serde(default, deserialize_with = "tree")]
    pub(crate) actions: Option<Action>,
    /// The name on the lines and failures of actions that have no name.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) log_source: String,
    /// A file, as the task sees it. Its beginning is the result of the actions.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) result_file: String,
    /// Successful actions count as failed if that file is missing.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) result_required: bool,
    /// The most processes and threads at once. The agent sets the limit in a cgroup that it creates. The driver sets
    /// the limit in a cgroup that a foreign host names and does not limit.
    #[serde(default)]
    pub(crate) pids_max: Option<serde_json::Number>,
    /// MiB that one download of the actions may unpack to, and that one downloaded or uploaded file may have.
    #[serde(default)]
    pub(crate) disk_mb: Option<u64>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) args: Vec<String>,
    /// The working directory: a path below the task's directory, or an absolute one.
    #[serde(default)]
    pub(crate) work_dir: Option<String>,
    /// The task cannot gain privileges by running set-user-id programs. Only a raw task may switch this off.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) no_new_privs: NoNewPrivs,
    /// The level of isolation from the node.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) isolation: IsolationLevel,
    /// A directory tree that becomes the root in place of the host's directories.
    #[serde(default)]
    pub(crate) root: Option<String>,
    /// Whether that tree is read-only; the default is `false`. In `strict` it is always read-only.
    #[serde(default)]
    pub(crate) readonly_root: Option<bool>,
    /// Further mounts that the task sees.
    #[serde(default, alias = "mount", deserialize_with = "one_or_many")]
    pub(crate) mounts: Vec<BindMount>,
    /// Overrides the task's `user`.
    #[serde(default)]
    pub(crate) user: Option<String>,
    /// Overrides the user's group.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Capabilities beyond the default.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) cap_add: Vec<String>,
    /// Capabilities that are removed from the default.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) cap_drop: Vec<String>,
    /// Limits of the process by name: `nofile = "1024:4096"`, soft and hard.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) rlimits: BTreeMap<String, String>,
    /// A reaper is the task's first process, and the program is its child.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) init: bool,
    /// The task's host name. The default consists of the task's name and its allocation.
    #[serde(default)]
    pub(crate) hostname: Option<String>,
    /// The network of the task; the default is the group's.
    #[serde(default)]
    pub(crate) network: Option<Network>,
}

/// `true` unless a job sets another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct NoNewPrivs(pub(crate) bool);

impl Default for NoNewPrivs {
    fn default() -> Self {
        Self(true)
    }
}

/// A `config` block that cannot be used, with the name of the faulty field. The field is in backquotes and has its
/// name in a job file, so that the author finds the line.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// A field is missing, unknown or of another type.
    #[error("`{field}` cannot be read (fields: {FIELDS})")]
    Shape {
        field: String,
        #[source]
        source: serde_json::Error,
    },
    /// The block has neither a command nor actions.
    #[error("`config.command` is empty; name a program, or give `config.actions`")]
    EmptyCommand,
    #[error("`config.actions` and `config.command` exclude each other; leave one out")]
    CommandAndActions,
    #[error("`config.{field}` has a meaning with config.actions only; leave it out")]
    NeedsActions { field: &'static str },
    #[error("`config.actions`: {0}")]
    Actions(String),
    #[error("`config.rlimits.{name}`: {0}", name = .0.name())]
    Limit(#[from] LimitError),
    #[error(
        "`config.{field}` has no meaning with isolation = \"raw\": such a task has the host's; leave it out or choose another level"
    )]
    NeedsIsolation { field: &'static str },
    #[error("`config.no_new_privs` = false needs isolation = \"raw\"")]
    PrivilegesNeedRaw,
    #[error(
        "`config.network` = \"host\" contradicts isolation = \"strict\", which has no network; use \"contained\""
    )]
    StrictHasNoNetwork,
    #[error("`config.readonly_root` = false contradicts isolation = \"strict\"; use \"contained\"")]
    StrictIsReadOnly,
    #[error(
        "`config.readonly_root` = false needs config.root: the host's directories are never writable; write to /local, /alloc or /tmp"
    )]
    HostIsReadOnly,
    #[error(
        "`config.hostname` {0:?} is not a host name: use 1 to 63 of the letters a-z, digits, and hyphens inside"
    )]
    Hostname(String),
    #[error("`{field}`: {target:?} cannot be mounted on: {reason}")]
    MountTarget {
        field: String,
        target: String,
        reason: &'static str,
    },
    #[error(
        "`config.mount`: {count} are too many, a task may have {max}; mount a directory that holds them",
        max = limits::MOUNTS_MAX
    )]
    TooManyMounts { count: usize },
    #[error("`{field}`: {path:?} {reason}")]
    Path {
        field: String,
        path: String,
        reason: &'static str,
    },
}

/// The names of all fields, for errors.
const FIELDS: &str = "command, actions, log_source, result_file, result_required, pids_max, disk_mb, args, work_dir, no_new_privs, isolation, root, readonly_root, mounts, user, group, cap_add, cap_drop, rlimits, init, hostname, network";

/// The paths that the driver itself mounts, or that would hide its mounts.
const RESERVED: [&str; 7] = [
    "/alloc", "/dev", "/local", "/proc", "/secrets", "/sys", "/tmp",
];

/// Writable directories that Diego's clients expect in a container: the name in the task's directory and the path in
/// the task. Every user of the task's actions may write there.
const CLIENT_DIRS: [(&str, &str); 2] = [("home", HOME), ("app", "/app")];

/// The home of one-off tasks.
pub(crate) const HOME: &str = "/home/vcap";

impl NativeConfig {
    /// Returns the directories that clients of one-off tasks expect. A task with its own root has the content of its
    /// image there instead.
    pub(crate) fn client_dirs(&self) -> &'static [(&'static str, &'static str)] {
        if self.actions.is_some() && self.root.is_none() && self.isolation != IsolationLevel::Raw {
            &CLIENT_DIRS
        } else {
            &[]
        }
    }

    pub(crate) fn read(config: &Value) -> Result<Self, ConfigError> {
        let config: Self = serde_path_to_error::deserialize(config).map_err(|error| {
            let field = field(&error.path().to_string());
            let source = error.into_inner();
            ConfigError::Shape { field, source }
        })?;
        config.check_work()?;
        config.check_level()?;
        config.check_names()?;
        config.limits()?;
        Ok(config)
    }

    /// Returns whether a reaper is the task's first process. Actions start and end next to it.
    pub(crate) fn has_init(&self) -> bool {
        self.init || self.actions.is_some()
    }

    /// Returns the limit of processes and threads, if it is a positive number. The reaper does not count.
    pub(crate) fn pids_max(&self) -> Option<u64> {
        let max = self.pids_max.as_ref()?.as_u64().filter(|max| *max > 0)?;
        Some(max.saturating_add(self.has_init().into()))
    }

    /// Returns the limits of the process.
    pub(crate) fn limits(&self) -> Result<Vec<Limit>, ConfigError> {
        Ok(rlimits::read(&self.rlimits)?)
    }

    /// Checks that there is either a command or actions, and no field of the other kind.
    fn check_work(&self) -> Result<(), ConfigError> {
        let Some(tree) = &self.actions else {
            if self.command.is_empty() {
                return Err(ConfigError::EmptyCommand);
            }
            let fields = [
                ("log_source", !self.log_source.is_empty()),
                ("result_file", !self.result_file.is_empty()),
                ("result_required", self.result_required),
                ("disk_mb", self.disk_mb.is_some()),
            ];
            return match fields.into_iter().find(|(_, given)| *given) {
                Some((field, _)) => Err(ConfigError::NeedsActions { field }),
                None => Ok(()),
            };
        };
        if !self.command.is_empty() || !self.args.is_empty() {
            return Err(ConfigError::CommandAndActions);
        }
        check(tree).map_err(ConfigError::Actions)
    }

    /// Refuses fields that contradict the isolation level.
    fn check_level(&self) -> Result<(), ConfigError> {
        match self.isolation {
            IsolationLevel::Raw => {
                let fields = [
                    ("root", self.root.is_some()),
                    ("readonly_root", self.readonly_root.is_some()),
                    ("mounts", !self.mounts.is_empty()),
                    ("hostname", self.hostname.is_some()),
                    ("cap_add", !self.cap_add.is_empty()),
                    ("cap_drop", !self.cap_drop.is_empty()),
                    ("network", self.network == Some(Network::None)),
                ];
                if let Some((field, _)) = fields.into_iter().find(|(_, given)| *given) {
                    return Err(ConfigError::NeedsIsolation { field });
                }
            }
            IsolationLevel::Contained | IsolationLevel::Strict => {
                if !self.no_new_privs.0 {
                    return Err(ConfigError::PrivilegesNeedRaw);
                }
                if self.readonly_root == Some(false) && self.root.is_none() {
                    return Err(ConfigError::HostIsReadOnly);
                }
            }
        }
        if self.isolation == IsolationLevel::Strict {
            if self.network == Some(Network::Host) {
                return Err(ConfigError::StrictHasNoNetwork);
            }
            if self.readonly_root == Some(false) {
                return Err(ConfigError::StrictIsReadOnly);
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        if let Some(name) = self.hostname.as_ref().filter(|name| !is_host_name(name)) {
            return Err(ConfigError::Hostname(name.clone()));
        }
        if let Some(root) = &self.root {
            check_source("config.root", root)?;
        }
        let count = self.mounts.len();
        if count > limits::MOUNTS_MAX {
            return Err(ConfigError::TooManyMounts { count });
        }
        for (at, mount) in self.mounts.iter().enumerate() {
            check_source(&format!("config.mount[{at}].source"), &mount.source)?;
            check_target(&format!("config.mount[{at}].target"), &mount.target)?;
        }
        Ok(())
    }

    /// Returns the schema that hosts use to check the block.
    pub(crate) fn schema() -> Spec {
        let optional = |name: &'static str, kind: &str| (name, Spec::optional(name, kind));
        let mount = Spec::object([
            ("source", Spec::required("source", "string")),
            ("target", Spec::required("target", "string")),
            ("readonly", Spec::optional("readonly", "bool")),
        ]);
        Spec::object([
            optional("command", "string"),
            optional("actions", "string"),
            optional("log_source", "string"),
            optional("result_file", "string"),
            optional("result_required", "bool"),
            optional("pids_max", "number"),
            optional("disk_mb", "number"),
            optional("args", "list(string)"),
            optional("work_dir", "string"),
            optional("no_new_privs", "bool"),
            optional("isolation", "string"),
            optional("root", "string"),
            optional("readonly_root", "bool"),
            (
                "mounts",
                Spec::BlockList {
                    name: "mount".to_owned(),
                    items_min: 0,
                    items_max: 0,
                    nested: Box::new(mount),
                },
            ),
            optional("user", "string"),
            optional("group", "string"),
            optional("cap_add", "list(string)"),
            optional("cap_drop", "list(string)"),
            optional("rlimits", "map(string)"),
            optional("init", "bool"),
            optional("hostname", "string"),
            optional("network", "string"),
        ])
    }
}

/// Checks that a path is below the task's directory or absolute, and has no `..`. Links are checked when the path is
/// opened.
fn check_source(field: &str, path: &str) -> Result<(), ConfigError> {
    let refused = |reason| {
        Err(ConfigError::Path {
            field: field.to_owned(),
            path: path.to_owned(),
            reason,
        })
    };
    if path.is_empty() || path.contains('\0') {
        return refused("is empty or holds a zero byte");
    }
    if path.split('/').any(|part| part == "..") {
        return refused("holds `..`");
    }
    if path == "/" {
        return refused("is the host's whole root; name a directory");
    }
    Ok(())
}

/// Checks that a task may have a mount at `target`.
pub(crate) fn check_target(field: &str, target: &str) -> Result<(), ConfigError> {
    let refused = |reason| {
        Err(ConfigError::MountTarget {
            field: field.to_owned(),
            target: target.to_owned(),
            reason,
        })
    };
    if !is_plain_absolute(Path::new(target)) {
        return refused("it must be absolute, below the root, without `..`");
    }
    if RESERVED
        .iter()
        .any(|reserved| Path::new(target).starts_with(reserved))
    {
        return refused("the driver mounts there itself");
    }
    Ok(())
}

fn is_host_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Reads null as the default: hosts that follow the schema send an absent field as null.
fn null_is_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Reads a tree of actions from text, because a block's schema cannot describe a tree.
fn tree<'de, D>(from: D) -> Result<Option<Action>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let Some(text) = Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let tree = serde_json::from_str(&text);
    tree.map(Some).map_err(serde::de::Error::custom)
}

/// Reads one block as an object and several blocks as a list.
fn one_or_many<'de, D>(from: D) -> Result<Vec<BindMount>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrManyMounts {
        Many(Vec<BindMount>),
        One(BindMount),
    }
    Ok(match Option::deserialize(from)? {
        None => Vec::new(),
        Some(OneOrManyMounts::Many(mounts)) => mounts,
        Some(OneOrManyMounts::One(mount)) => vec![mount],
    })
}

#[cfg(test)]
mod tests {
    use muster_domain::one_off::ACTION_DEPTH_MAX;
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_and_null_fields_are_the_defaults() {
        let expected = NativeConfig {
            command: "/bin/true".to_owned(),
            ..NativeConfig::default()
        };

        let absent = NativeConfig::read(&json!({"command": "/bin/true"}));
        let null = NativeConfig::read(&json!({
            "command": "/bin/true", "args": null, "work_dir": null, "no_new_privs": null,
            "isolation": null, "mounts": null, "rlimits": null, "init": null, "network": null
        }));

        assert!(expected.no_new_privs.0);
        assert_eq!(expected.isolation, IsolationLevel::Contained);
        assert_eq!(absent.unwrap(), expected);
        assert_eq!(null.unwrap(), expected);
    }

    #[test]
    fn unknown_field_is_named() {
        let error = NativeConfig::read(&json!({"command": "x", "arg": []})).unwrap_err();

        let ConfigError::Shape { field, source } = error else {
            panic!("{error}")
        };
        assert_eq!(field, "config.arg");
        assert!(source.to_string().contains("`arg`"), "{source}");
    }

    /// The errors use the names of a job file, where each mount is a block.
    #[test]
    fn a_field_that_cannot_be_read_is_named() {
        let mount = json!([{"source": "local/a", "target": "/a"}]);
        let cases = [
            (
                json!({"isolation": "weird"}),
                "`config.isolation` cannot be read",
            ),
            (
                json!({"network": "bridge"}),
                "`config.network` cannot be read",
            ),
            (json!({"args": ["a", 2]}), "`config.args[1]` cannot be read"),
            (json!({"disk_mb": -1}), "`config.disk_mb` cannot be read"),
            (
                json!({"rlimits": {"nofile": 1}}),
                "`config.rlimits.nofile` cannot be read",
            ),
            (
                json!({"rlimits": {"nofile": "many"}}),
                "`config.rlimits.nofile`: ",
            ),
            (json!({"actions": "{"}), "`config.actions` cannot be read"),
            (
                json!({"mounts": [mount[0], {"source": "x"}]}),
                "`config.mount` cannot be read",
            ),
            (
                json!({"mounts": [mount[0], {"source": "x", "target": "/proc"}]}),
                "`config.mount[1].target`: ",
            ),
            (
                json!({"mounts": [mount[0], {"source": "..", "target": "/x"}]}),
                "`config.mount[1].source`: ",
            ),
        ];
        for (mut config, words) in cases {
            config["command"] = json!("/bin/true");
            let message = refusal(config.clone());
            assert!(message.starts_with(words), "{config}: {message}");
        }
        assert!(refusal(Value::Null).starts_with("`config` cannot be read"));
    }

    #[test]
    fn missing_command_is_refused() {
        assert!(NativeConfig::read(&Value::Null).is_err());
        assert!(NativeConfig::read(&json!({"command": ""})).is_err());
    }

    #[test]
    fn actions_stand_in_for_a_command() {
        let run = json!({"run": {"path": "/bin/true", "user": "vcap"}}).to_string();
        let read = NativeConfig::read(&json!({"actions": run, "command": null, "pids_max": 7}));
        assert!(matches!(read.unwrap().actions, Some(Action::Run(_))));

        let cases = [
            (
                json!({"actions": run, "command": "x"}),
                "exclude each other",
            ),
            (json!({"actions": run, "args": ["x"]}), "exclude each other"),
            (
                json!({"command": "x", "result_file": "r"}),
                "config.result_file",
            ),
            (
                json!({"command": "x", "log_source": "r"}),
                "config.log_source",
            ),
            (
                json!({"command": "", "actions": ""}),
                "`config.command` is empty",
            ),
        ];
        for (config, words) in cases {
            let message = refusal(config.clone());
            assert!(message.contains(words), "{config}: {message}");
        }
    }

    #[test]
    fn actions_that_cannot_be_read_are_refused() {
        let deep = (0..ACTION_DEPTH_MAX).fold(
            json!({"run": {"path": "x", "user": "u"}}),
            |inner, _| json!({"try": {"action": inner}}),
        );
        for (tree, words) in [
            (json!({"run": {"path": "x"}}), "missing field `user`"),
            (json!({"walk": {}}), "unknown variant `walk`"),
            (json!({"serial": {"actions": []}}), "serial"),
            (deep, "levels"),
        ] {
            let error = NativeConfig::read(&json!({"actions": tree.to_string()})).unwrap_err();
            let message = muster_domain::error_chain::chain(&error);
            assert!(message.contains(words), "{tree}: {message}");
        }
    }

    fn refusal(config: Value) -> String {
        NativeConfig::read(&config).unwrap_err().to_string()
    }

    /// Each message has the field and a remedy.
    #[test]
    fn contradictions_are_named() {
        let cases = [
            (json!({"isolation": "raw", "root": "/x"}), "config.root"),
            (
                json!({"isolation": "raw", "cap_add": ["KILL"]}),
                "config.cap_add",
            ),
            (
                json!({"isolation": "raw", "network": "none"}),
                "config.network",
            ),
            (json!({"no_new_privs": false}), "isolation = \"raw\""),
            (json!({"readonly_root": false}), "needs config.root"),
            (
                json!({"isolation": "strict", "network": "host"}),
                "no network",
            ),
            (
                json!({"isolation": "strict", "root": "local/x", "readonly_root": false}),
                "config.readonly_root",
            ),
            (json!({"hostname": "-x"}), "config.hostname"),
            (json!({"hostname": "A.b"}), "config.hostname"),
            (json!({"root": "../x"}), "config.root"),
            (json!({"root": "/"}), "config.root"),
            (json!({"rlimits": {"nofiles": "1"}}), "config.rlimits"),
        ];
        for (mut config, words) in cases {
            config["command"] = json!("/bin/true");
            let message = refusal(config.clone());
            assert!(message.contains(words), "{config}: {message}");
        }
    }

    #[test]
    fn hostile_mounts_are_refused() {
        for target in ["", "data", "/", "/proc/x", "/dev", "/a/../proc", "/tmp"] {
            let mounts = json!([{"source": "local/x", "target": target}]);
            let message = refusal(json!({"command": "x", "mounts": mounts}));
            assert!(
                message.contains("`config.mount[0].target`"),
                "{target}: {message}"
            );
        }
        for source in ["", "..", "a/../../b", "/"] {
            let mounts = json!({"source": source, "target": "/data"});
            let message = refusal(json!({"command": "x", "mount": mounts}));
            assert!(
                message.contains("`config.mount[0].source`"),
                "{source}: {message}"
            );
        }
    }

    /// A host reads a job's block with the schema, and sends an entry for every field.
    #[test]
    fn block_that_fits_the_schema_is_read() {
        let schema = muster_driver::Schema::new(&NativeConfig::schema()).unwrap();
        let block = json!({
            "command": "/bin/true",
            "isolation": "strict",
            "mount": [{"source": "local/a", "target": "/a"}, {"source": "local/b", "target": "/b"}],
            "rlimits": {"nofile": "64:128"},
            "cap_drop": ["ALL"],
        });

        let decoded = schema.decode("config", &block).unwrap();
        let config = NativeConfig::read(&decoded).unwrap();

        assert_eq!(config.isolation, IsolationLevel::Strict);
        assert_eq!(config.mounts.len(), 2);
        assert_eq!(config.limits().unwrap()[0].hard, 128);
    }

    #[test]
    fn too_many_mounts_are_refused() {
        let mount = json!({"source": "local/x", "target": "/data"});
        let mounts = vec![mount; limits::MOUNTS_MAX + 1];

        let message = refusal(json!({"command": "x", "mounts": mounts}));

        assert!(message.contains("65 are too many"), "{message}");
    }
}
