//! The isolation of a task from its node, and the decision about it.
//!
//! - `../policy` is the node's policy, `../config` the job's request. [`Confinement`] is the result of both, or the
//!   named reason why the task does not start. A task never runs with less isolation than decided: a missing feature
//!   of the machine is an error.
//! - `template` is the root that tasks copy, `view` is one task's mounts in it, `privileges` sets its rights. `mounts`
//!   keeps a task's mounts briefly after its end, `seccomp` filters its system calls, `ranges` assigns the ids of
//!   `strict` tasks.
//!
//! This module creates no process. It opens files and writes the calls of a [`Script`], which the child of
//! [`crate::spawn`] makes. The clone itself creates all namespaces except the mount namespace.
//!
//! [`Script`]: crate::spawn::Script

pub(crate) mod capabilities;
pub(crate) mod mounts;
pub(crate) mod privileges;
pub(crate) mod ranges;
pub(crate) mod rlimits;
pub(crate) mod seccomp;
pub(crate) mod template;
pub(crate) mod view;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use muster_driver::{NetworkMode, TaskConfig, TaskReach};
use thiserror::Error;

use crate::config::{ConfigError, IsolationLevel, NativeConfig, Network};
use crate::isolation::capabilities::{Capabilities, UnknownCapability};
use crate::isolation::rlimits::Limit;
use crate::isolation::seccomp::CreatableFiles;
use crate::isolation::template::TemplateError;
use crate::limits;
use crate::names::NamesError;
use crate::paths::PathError;
use crate::policy::Policy;
use crate::spawn::OpenFiles;
use crate::user::{AllowedGroups, Identity, UserError};

/// The reason why a task cannot have its isolation, or must not have less.
#[derive(Debug, Error)]
pub(crate) enum IsolationError {
    #[error(
        "`config.isolation`: \"raw\" is not allowed on this node; leave the field out, or allow it in the agent's configuration: plugin \"native\" {{ config {{ allow_raw = true }} }}"
    )]
    RawNotAllowed,
    #[error(
        "`config.isolation`: \"{}\" needs a driver that runs as root, this one runs as uid {uid}; start the agent as root, or let the node allow raw tasks and ask for isolation = \"raw\"",
        level.name()
    )]
    NotRoot { level: IsolationLevel, uid: u32 },
    #[error(
        "`{field}`: {user:?} is uid 0, which is not allowed on this node; name another user, or allow it in the agent's configuration: plugin \"native\" {{ config {{ allow_uid0 = true }} }}"
    )]
    RootNotAllowed { field: &'static str, user: String },
    #[error(
        "uid {uid} or gid {gid} lies beyond the {count} ids of a strict task; use a smaller one"
    )]
    IdBeyond { uid: u32, gid: u32, count: u32 },
    #[error(
        "`config.cap_add`: {names} not allowed on this node (allow_caps of the native driver's configuration)"
    )]
    CapabilitiesNotAllowed { names: Capabilities },
    #[error("`config.cap_add`: the driver itself does not have {names}")]
    CapabilitiesNotOwned { names: Capabilities },
    #[error("`{field}`")]
    UnknownCapability {
        field: &'static str,
        #[source]
        source: UnknownCapability,
    },
    #[error(
        "`config.isolation`: \"strict\" has no network, and the task's group has one; use \"contained\""
    )]
    StrictInNetwork,
    #[error(
        "`config.isolation`: the task's group has a network of its own (mode \"bridge\" or \"none\"), and a task with isolation = \"raw\" is in the host's; use \"contained\", or leave the group in mode \"host\""
    )]
    RawInNetwork,
    #[error("open the network namespace {path}")]
    NetworkNamespace {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{what} for a task are not supported by the native driver; remove them from the job")]
    Unsupported { what: &'static str },
    #[error(
        "`config.isolation`: host paths to show in a task need isolation \"contained\" or \"strict\""
    )]
    RawHasNoMounts,
    #[error(
        "make the user namespace of a strict task; look at the sysctl user.max_user_namespaces"
    )]
    UserNamespace(#[source] io::Error),
    #[error("all {count} id ranges for strict tasks are in use")]
    NoRange { count: u32 },
    #[error("`config.init`: make the reaper of the task")]
    Init(#[source] io::Error),
    #[error("what the node allows was changed while the task started; start it again")]
    Changed,
    #[error("make what carries files into a task and out of it")]
    Porter(#[source] io::Error),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(transparent)]
    View(#[from] view::ViewError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("`{field}`")]
    User {
        field: &'static str,
        #[source]
        source: UserError,
    },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The network of a task's sockets.
#[derive(Debug)]
pub(crate) enum TaskNetwork {
    Host,
    /// A separate namespace that contains only `lo`.
    Empty,
    /// A namespace that already exists.
    Joined(OwnedFd),
}

/// The rights and limits of a task after the decision.
#[derive(Debug)]
pub(crate) struct Confinement {
    pub(crate) level: IsolationLevel,
    /// The user of the task; `None` means the driver's user, in raw tasks only.
    pub(crate) identity: Option<Identity>,
    pub(crate) capabilities: Capabilities,
    pub(crate) limits: Vec<Limit>,
    pub(crate) hostname: String,
    pub(crate) no_new_privs: bool,
    /// The task can reach only its own abstract sockets, if the kernel supports that. In a separate network namespace
    /// only the tasks of its allocation have abstract sockets, and they may use them to communicate.
    pub(crate) scoped: bool,
    pub(crate) init: bool,
    /// The kinds of files that the task can create.
    pub(crate) files: CreatableFiles,
}

impl Confinement {
    /// Decides the confinement for `config` on a node with `policy`.
    pub(crate) fn decide(
        config: &TaskConfig,
        native: &NativeConfig,
        policy: &Policy,
        open_files: Option<OpenFiles>,
    ) -> Result<Self, IsolationError> {
        let level = native.isolation;
        let own_uid = nix::unistd::geteuid();
        if level == IsolationLevel::Raw {
            if !policy.allow_raw {
                return Err(IsolationError::RawNotAllowed);
            }
            if network_mode(config) != NetworkMode::Host {
                // This check comes before the mounts: the name files that come with such a network are not the job's.
                return Err(IsolationError::RawInNetwork);
            }
            if !config.mounts.is_empty() {
                return Err(IsolationError::RawHasNoMounts);
            }
        } else if !own_uid.is_root() {
            let uid = own_uid.as_raw();
            return Err(IsolationError::NotRoot { level, uid });
        }
        if !config.devices.is_empty() {
            return Err(IsolationError::Unsupported { what: "devices" });
        }
        Self::of(config, native, policy, open_files)
    }

    /// Returns whether the task certainly keeps no capability while `policy` applies.
    pub(crate) fn keeps_no_capability(native: &NativeConfig, policy: &Policy) -> bool {
        nix::unistd::geteuid().is_root()
            && native.isolation == IsolationLevel::Contained
            && native.cap_add.is_empty()
            && !policy.allow_uid0
    }

    /// Decides the rights of a task from its configuration and the node's policy.
    pub(crate) fn of(
        config: &TaskConfig,
        native: &NativeConfig,
        policy: &Policy,
        open_files: Option<OpenFiles>,
    ) -> Result<Self, IsolationError> {
        let level = native.isolation;
        let identity = identity(config, native, policy)?;
        let capabilities = match (&identity, level) {
            (Some(identity), IsolationLevel::Contained | IsolationLevel::Strict) => {
                kept_capabilities(native, policy, identity.uid == 0)?
            }
            (_, IsolationLevel::Raw) | (None, _) => Capabilities::EMPTY,
        };
        let files = files(config, native);
        let capabilities = match files {
            CreatableFiles::Any => capabilities,
            // A program with file capabilities is as dangerous as a program that runs as root.
            CreatableFiles::Plain => capabilities.difference(Capabilities::of_files()),
        };
        let mut limits = native.limits()?;
        let has = |limits: &[Limit], resource| limits.iter().any(|l| l.resource == resource);
        if let Some(OpenFiles { soft, hard }) = open_files
            && !has(&limits, libc::RLIMIT_NOFILE)
        {
            limits.push(Limit::open_files(soft, hard));
        }
        if level != IsolationLevel::Raw && !has(&limits, libc::RLIMIT_CORE) {
            limits.push(rlimits::NO_CORE);
        }
        Ok(Self {
            level,
            identity,
            capabilities,
            limits,
            hostname: hostname(config, native),
            no_new_privs: native.no_new_privs.0,
            scoped: level == IsolationLevel::Contained
                && network_mode(config) == NetworkMode::Host
                && native.network != Some(Network::None),
            init: native.has_init(),
            files,
        })
    }
}

/// Decides the kinds of files that the task may create. Files must be plain if other users of the host can find them.
/// Such users reach files that a task writes to the host's directories, and mounts there may run set-id programs as
/// their owners.
fn files(config: &TaskConfig, native: &NativeConfig) -> CreatableFiles {
    let on_host = |mount: &crate::config::BindMount| {
        mount.readonly == Some(false) && Path::new(&mount.source).is_absolute()
    };
    let writes =
        config.mounts.iter().any(|mount| !mount.readonly) || native.mounts.iter().any(on_host);
    if writes {
        CreatableFiles::Plain
    } else {
        CreatableFiles::Any
    }
}

/// Returns the network of a task.
pub(crate) fn network(
    config: &TaskConfig,
    native: &NativeConfig,
) -> Result<TaskNetwork, IsolationError> {
    match select_network(config, native)? {
        SelectedNetwork::Host => Ok(TaskNetwork::Host),
        SelectedNetwork::Empty => Ok(TaskNetwork::Empty),
        SelectedNetwork::Joined(path) => match File::open(path) {
            Ok(namespace) => Ok(TaskNetwork::Joined(namespace.into())),
            Err(source) => Err(IsolationError::NetworkNamespace {
                path: path.to_owned(),
                source,
            }),
        },
    }
}

/// Returns the reach of the task while no host enforces a network policy on it.
pub(crate) fn reach(
    config: &TaskConfig,
    native: &NativeConfig,
) -> Result<TaskReach, IsolationError> {
    Ok(match (select_network(config, native)?, native.isolation) {
        (_, IsolationLevel::Raw) => TaskReach::Machine,
        (SelectedNetwork::Empty, IsolationLevel::Contained | IsolationLevel::Strict) => {
            TaskReach::Itself
        }
        (
            SelectedNetwork::Host | SelectedNetwork::Joined(_),
            IsolationLevel::Contained | IsolationLevel::Strict,
        ) => TaskReach::Network,
    })
}

/// A [`TaskNetwork`] before its file is opened.
enum SelectedNetwork<'a> {
    Host,
    Empty,
    Joined(&'a str),
}

fn select_network<'a>(
    config: &'a TaskConfig,
    native: &NativeConfig,
) -> Result<SelectedNetwork<'a>, IsolationError> {
    let path = config.network.as_ref().map_or("", |given| &given.path);
    let joined = match network_mode(config) {
        NetworkMode::Group | NetworkMode::Task if !path.is_empty() => Some(path),
        _ => None,
    };
    let host = network_mode(config) == NetworkMode::Host;
    let no_network = native.network == Some(Network::None);
    match (native.isolation, joined) {
        (IsolationLevel::Raw, None) if host => Ok(SelectedNetwork::Host),
        (IsolationLevel::Raw, _) => Err(IsolationError::RawInNetwork),
        (IsolationLevel::Strict, Some(_)) => Err(IsolationError::StrictInNetwork),
        (IsolationLevel::Contained, Some(path)) if !no_network => Ok(SelectedNetwork::Joined(path)),
        (IsolationLevel::Contained, None) if host && !no_network => Ok(SelectedNetwork::Host),
        (IsolationLevel::Contained | IsolationLevel::Strict, _) => Ok(SelectedNetwork::Empty),
    }
}

/// Returns the network mode of the task's group.
fn network_mode(config: &TaskConfig) -> NetworkMode {
    config
        .network
        .as_ref()
        .map_or(NetworkMode::Host, |given| given.mode)
}

fn identity(
    config: &TaskConfig,
    native: &NativeConfig,
    policy: &Policy,
) -> Result<Option<Identity>, IsolationError> {
    let named = native.user.as_deref().unwrap_or(&config.user);
    let group = native.group.as_deref();
    let field = match native.user {
        Some(_) => "config.user",
        None => "user",
    };
    let refused = |source| match source {
        UserError::UnknownGroup { .. }
        | UserError::MalformedGroup { .. }
        | UserError::LookupGroup { .. }
        | UserError::GroupNotAllowed { .. } => IsolationError::User {
            field: "config.group",
            source,
        },
        UserError::Malformed { .. }
        | UserError::Unknown { .. }
        | UserError::Lookup { .. }
        | UserError::UsersGroupNotAllowed { .. }
        | UserError::NotRoot { .. } => IsolationError::User { field, source },
    };
    if native.isolation == IsolationLevel::Raw {
        return Identity::of(named, group).map_err(refused);
    }
    let user = if named.is_empty() {
        &policy.default_user
    } else {
        named
    };
    // The ids of a strict task are separate from the host's.
    let allowed = if native.isolation == IsolationLevel::Strict {
        &AllowedGroups::Any
    } else {
        &policy.allow_groups
    };
    let identity = Identity::with_one_group(user, group, allowed).map_err(refused)?;
    if identity.uid == 0 && !policy.allow_uid0 {
        return Err(IsolationError::RootNotAllowed {
            field,
            user: user.to_owned(),
        });
    }
    let (uid, gid) = (identity.uid, identity.gid);
    let count = limits::IDS_PER_TASK;
    if native.isolation == IsolationLevel::Strict && uid.max(gid) >= count {
        return Err(IsolationError::IdBeyond { uid, gid, count });
    }
    Ok(Some(identity))
}

/// Parses the capabilities of a list in the block.
fn capabilities(field: &'static str, names: &[String]) -> Result<Capabilities, IsolationError> {
    Capabilities::parse(names.iter().map(String::as_str))
        .map_err(|source| IsolationError::UnknownCapability { field, source })
}

/// Returns the capabilities that a task keeps. Root keeps the default set; every other user keeps only those that the
/// job names.
fn kept_capabilities(
    native: &NativeConfig,
    policy: &Policy,
    is_root: bool,
) -> Result<Capabilities, IsolationError> {
    let own = Capabilities::own();
    let added = capabilities("config.cap_add", &native.cap_add)?;
    let dropped = if native
        .cap_drop
        .iter()
        .any(|name| name.eq_ignore_ascii_case("all"))
    {
        Capabilities::all()
    } else {
        capabilities("config.cap_drop", &native.cap_drop)?
    };
    let refused = added.difference(policy.allow_caps);
    if !refused.is_empty() {
        return Err(IsolationError::CapabilitiesNotAllowed { names: refused });
    }
    let missing = added.difference(own);
    if !missing.is_empty() {
        return Err(IsolationError::CapabilitiesNotOwned { names: missing });
    }
    let default = if is_root {
        Capabilities::default_of_root()
            .intersection(policy.allow_caps)
            .intersection(own)
    } else {
        Capabilities::EMPTY
    };
    Ok(default.difference(dropped).union(added))
}

/// Returns the host name in the job, or `<task>-<allocation>`, in characters that host names allow.
fn hostname(config: &TaskConfig, native: &NativeConfig) -> String {
    if let Some(name) = &native.hostname {
        return name.clone();
    }
    let alloc = config.alloc_id.get(..8).unwrap_or(&config.alloc_id);
    let name: String = format!("{}-{alloc}", config.task_name)
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(limits::HOST_NAME_BYTES_MAX)
        .collect();
    match name.trim_matches('-') {
        "" => "task".to_owned(),
        name => name.to_owned(),
    }
}

/// Replaces paths of the host with the paths that the task sees: `<task directory>/local` becomes `/local`, and so on.
/// The host paths contain the allocation's id, so no other text matches them.
///
/// A raw task sees the host's paths. A foreign host has no isolation levels and passes it paths in a separate root
/// (`NOMAD_TASK_DIR=/local`), which do not exist for a raw task. Then the paths are replaced in the other direction.
#[derive(Debug, Default)]
pub(crate) struct PathTranslation {
    host_to_task: Vec<(String, &'static str)>,
    task_to_host: Vec<(&'static str, String)>,
}

/// The directory of files that a task wrote in a root of its own, below the task's directory.
pub(crate) const UPPER_LAYER: &str = ".root/upper";

/// The variable that shows which paths the host passes.
const TASK_DIR_VARIABLE: &str = "NOMAD_TASK_DIR";

impl PathTranslation {
    pub(crate) fn of(config: &TaskConfig, level: IsolationLevel) -> Self {
        let task_dir = task_dir(config);
        let pairs = [
            (task_dir.as_deref(), "local", "/local"),
            (task_dir.as_deref(), "secrets", "/secrets"),
            (task_dir.as_deref(), "tmp", "/tmp"),
            (Some(config.alloc_dir.as_path()), "alloc", "/alloc"),
        ];
        let pairs = pairs.into_iter().filter_map(|(dir, name, inside)| {
            let dir = dir.filter(|dir| dir.is_absolute())?;
            Some((dir.join(name).to_str()?.to_owned(), inside))
        });
        if level != IsolationLevel::Raw {
            return Self {
                host_to_task: pairs.collect(),
                ..Self::default()
            };
        }
        let variable = config.env.get(TASK_DIR_VARIABLE);
        if variable.is_none_or(|path| path != "/local") {
            return Self::default();
        }
        // The host's `/tmp` exists, and the task may mean it.
        let pairs = pairs.filter(|(_, inside)| *inside != "/tmp");
        Self {
            task_to_host: pairs.map(|(host, inside)| (inside, host)).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (host, inside) in &self.host_to_task {
            if text.contains(host.as_str()) {
                text = replaced(&text, host, inside, |_before| true);
            }
        }
        for (inside, host) in &self.task_to_host {
            if text.contains(inside) {
                text = replaced(&text, inside, host, |before| !is_of_path(before));
            }
        }
        text
    }
}

/// Replaces `from` where it is a whole path or the beginning of a path, if `begins` accepts the character before it.
fn replaced(text: &str, from: &str, to: &str, begins: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let after = &rest[at + from.len()..];
        out.push_str(&rest[..at]);
        let begins = out.chars().next_back().is_none_or(&begins);
        let is_whole = !after.starts_with(|c| c != '/' && is_of_path(c));
        out.push_str(if begins && is_whole { to } else { from });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns whether `c` is usual in a file name.
fn is_of_path(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '/' | '_' | '-' | '.')
}

/// Returns the task's directory. If a host names none, it is the directory with the task's name in the allocation's
/// directory.
pub(crate) fn task_dir(config: &TaskConfig) -> Option<std::path::PathBuf> {
    if !config.task_dir.as_os_str().is_empty() {
        return Some(config.task_dir.clone());
    }
    if config.alloc_dir == Path::new("") {
        return None;
    }
    Some(config.alloc_dir.join(&config.task_name))
}

#[cfg(test)]
mod tests;
