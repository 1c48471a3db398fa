//! A task's environment, and `${…}` in its configuration.
//!
//! Names are Nomad's (`NOMAD_*`), so that programs and job files written for it work. A reference to
//! something that is not there stays as it is written, for the operator to see.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use muster_domain::alloc::{DesiredAlloc, alloc_name};
use muster_domain::job::{Task, TaskGroup};
use muster_domain::node::NodeSpec;
use muster_domain::region;
use muster_domain::resources::{AllocatedPort, Mb};
use muster_driver::FsIsolation;
use serde_json::Value;

use crate::network::names::inside_port;
use crate::resources::cgroup::core_list;
use crate::storage::allocdir::AllocDirs;
use crate::tasks::task_ref::TaskRef;

/// The search path of a task that names none: where distributions keep programs.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a task and the values that `${…}` can name.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskEnv {
    pub(crate) vars: BTreeMap<String, String>,
    /// Facts of the node: `attr.*`, `meta.*`, `node.*`.
    node: BTreeMap<String, String>,
}

/// The paths at which a task finds its directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskPaths {
    /// The directory that all tasks of the group share.
    shared: PathBuf,
    local: PathBuf,
    secrets: PathBuf,
    tmp: PathBuf,
    /// The directory at which a relative destination of a mount begins.
    pub(crate) root: PathBuf,
}

impl TaskPaths {
    /// Returns the paths for the driver's isolation of file systems: the host's paths, or those in the task's own
    /// root.
    pub(crate) fn of(isolation: FsIsolation, dirs: &AllocDirs, task: &str) -> Self {
        match isolation {
            FsIsolation::None | FsIsolation::Unveil => {
                let own = dirs.task(task);
                Self {
                    shared: dirs.shared(),
                    local: own.join("local"),
                    secrets: own.join("secrets"),
                    tmp: own.join("tmp"),
                    root: own,
                }
            }
            FsIsolation::Chroot | FsIsolation::Image => Self {
                shared: "/alloc".into(),
                local: "/local".into(),
                secrets: "/secrets".into(),
                tmp: "/tmp".into(),
                root: "/".into(),
            },
        }
    }
}

impl TaskEnv {
    /// The environment for the network of a whole allocation: facts of the node and of the job's instance.
    pub(crate) fn of_alloc(desired: &DesiredAlloc, spec: &NodeSpec) -> Self {
        let job = &desired.job.spec;
        let group = desired.group().map_or("", |group| &group.name);
        let vars = [
            ("ALLOC_ID", desired.alloc_id.to_string()),
            ("SHORT_ALLOC_ID", desired.alloc_id.short()),
            ("ALLOC_NAME", alloc_name(&job.id, group, desired.name_index)),
            ("ALLOC_INDEX", desired.name_index.to_string()),
            ("GROUP_NAME", group.to_owned()),
            ("JOB_ID", job.id.clone()),
            ("JOB_NAME", job.name.clone()),
            ("NAMESPACE", job.namespace.clone()),
            ("DC", spec.datacenter.clone()),
            ("REGION", region::name().to_owned()),
        ];
        let vars = vars.map(|(name, value)| (format!("NOMAD_{name}"), value));
        Self {
            vars: vars.into(),
            node: node_facts(spec),
        }
    }

    /// Builds the environment of the task `at`, on the node described by `spec`. `address` is the allocation's, if
    /// it has its own network.
    pub(crate) fn build(
        at: &TaskRef,
        paths: &TaskPaths,
        spec: &NodeSpec,
        address: Option<IpAddr>,
    ) -> Self {
        let (desired, group, task) = (&*at.desired, at.group(), at.task());
        let node = node_facts(spec);
        let mut vars = muster_vars(at, paths, spec);
        add_ports(&mut vars, at, &spec.address, address);
        add_holding(&mut vars, at);
        let mut env = Self { vars, node };
        env.add_meta(desired, group, task);
        env.vars.insert("PATH".into(), DEFAULT_PATH.into());
        env.vars
            .insert("TMPDIR".into(), paths.tmp.display().to_string());
        let own: Vec<(String, String)> = task
            .env
            .iter()
            .map(|(name, value)| (name.clone(), env.interpolate(value)))
            .collect();
        let vars = std::mem::take(&mut env.vars);
        env.vars = vars
            .into_iter()
            .map(|(name, value)| (clean_name(&name), value))
            .collect();
        // Variables of the job override all others except the allocation's own facts. Their names stay as they are.
        for (name, value) in own {
            let fact = clean_name(&name);
            if !fact.starts_with("NOMAD_") || !env.vars.contains_key(&fact) {
                env.vars.insert(name, value);
            }
        }
        if at.is_one_off() {
            env.vars.extend(instance_vars(&spec.address, address));
        }
        env
    }

    /// Adds the meta of job, group and task, the innermost winning, under its own name and in capitals.
    fn add_meta(&mut self, desired: &DesiredAlloc, group: &TaskGroup, task: &Task) {
        let mut added = BTreeMap::new();
        for meta in [&desired.job.spec.meta, &group.meta, &task.meta] {
            for (key, value) in meta {
                let value = self.interpolate(value);
                added.insert(format!("NOMAD_META_{key}"), value.clone());
                added.insert(format!("NOMAD_META_{}", key.to_uppercase()), value);
            }
        }
        self.vars.extend(added);
    }

    /// Returns `text` with each known `${NAME}` replaced.
    pub(crate) fn interpolate(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(begin) = rest.find("${") {
            let (before, reference) = rest.split_at(begin);
            out.push_str(before);
            let Some(end) = reference.find('}') else {
                rest = reference;
                break;
            };
            match self.value(reference[2..end].trim()) {
                Some(value) => out.push_str(value),
                None => out.push_str(&reference[..=end]),
            }
            rest = &reference[end + 1..];
        }
        out.push_str(rest);
        out
    }

    /// Returns `config` with every text in it interpolated.
    pub(crate) fn interpolate_config(&self, config: Value) -> Value {
        match config {
            Value::String(text) => Value::String(self.interpolate(&text)),
            Value::Array(items) => Value::Array(
                items
                    .into_iter()
                    .map(|item| self.interpolate_config(item))
                    .collect(),
            ),
            Value::Object(fields) => Value::Object(
                fields
                    .into_iter()
                    .map(|(name, value)| (name, self.interpolate_config(value)))
                    .collect(),
            ),
            Value::Null | Value::Bool(_) | Value::Number(_) => config,
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        let name = name
            .strip_prefix("env[\"")
            .and_then(|rest| rest.strip_suffix("\"]"))
            .or_else(|| name.strip_prefix("env."))
            .unwrap_or(name);
        // `node.attr.x` and `node.meta.x` are synonyms of `attr.x` and `meta.x`.
        let of_node = || self.node.get(name.strip_prefix("node.")?);
        self.vars
            .get(name)
            .or_else(|| self.node.get(name))
            .or_else(of_node)
            .or_else(|| self.vars.get(&clean_name(name)))
            .map(String::as_str)
    }
}

fn node_facts(spec: &NodeSpec) -> BTreeMap<String, String> {
    let attributes = spec
        .attributes
        .iter()
        .map(|(key, value)| (format!("attr.{key}"), value.clone()));
    let meta = spec
        .meta
        .iter()
        .map(|(key, value)| (format!("meta.{key}"), value.clone()));
    let own = [
        ("node.unique.id", spec.id.to_string()),
        ("node.unique.name", spec.name.clone()),
        ("node.datacenter", spec.datacenter.clone()),
        ("node.class", spec.class.clone()),
        ("node.pool", spec.pool.clone()),
        ("node.region", region::name().to_owned()),
    ];
    attributes
        .chain(meta)
        .chain(own.map(|(key, value)| (key.to_owned(), value)))
        .collect()
}

fn muster_vars(at: &TaskRef, paths: &TaskPaths, spec: &NodeSpec) -> BTreeMap<String, String> {
    let (desired, group, task) = (&*at.desired, at.group(), at.task());
    let job = &desired.job.spec;
    let path = |path: &Path| path.display().to_string();
    let vars = [
        ("ALLOC_DIR", path(&paths.shared)),
        ("TASK_DIR", path(&paths.local)),
        ("SECRETS_DIR", path(&paths.secrets)),
        ("ALLOC_ID", desired.alloc_id.to_string()),
        ("SHORT_ALLOC_ID", desired.alloc_id.short()),
        (
            "ALLOC_NAME",
            alloc_name(&job.id, &group.name, desired.name_index),
        ),
        ("ALLOC_INDEX", desired.name_index.to_string()),
        ("TASK_NAME", task.name.clone()),
        ("GROUP_NAME", group.name.clone()),
        ("JOB_ID", job.id.clone()),
        ("JOB_NAME", job.name.clone()),
        ("NAMESPACE", job.namespace.clone()),
        ("DC", spec.datacenter.clone()),
        ("REGION", region::name().to_owned()),
        ("CPU_LIMIT", at.cpu_mhz().to_string()),
        ("MEMORY_LIMIT", task.resources.memory.0.to_string()),
    ];
    let memory_max = task.resources.memory_max.map(|max| {
        let unlimited = max == Mb::UNLIMITED;
        let max = if unlimited {
            "-1".to_owned()
        } else {
            max.0.to_string()
        };
        ("MEMORY_MAX_LIMIT", max)
    });
    let parent = job.launched.iter();
    let parent = parent.map(|launched| ("JOB_PARENT_ID", launched.parent_id.clone()));
    vars.into_iter()
        .chain(memory_max)
        .chain(parent)
        .map(|(name, value)| (format!("NOMAD_{name}"), value))
        .collect()
}

/// Diego's variables of a task's container, which win over the task's own environment. A one-off task has no ports.
fn instance_vars(node: &str, own: Option<IpAddr>) -> [(String, String); 5] {
    let internal = own.map_or_else(|| node.to_owned(), |own| own.to_string());
    [
        ("IP", node.to_owned()),
        ("INTERNAL_IP", internal),
        ("PORT", String::new()),
        ("ADDR", String::new()),
        ("PORTS", "[]".to_owned()),
    ]
    .map(|(word, value)| (format!("CF_INSTANCE_{word}"), value))
}

/// The machine's address of a port: the port's own address, or the node's.
pub(crate) fn host_address<'a>(port: &'a AllocatedPort, node: &'a str) -> &'a str {
    if port.host_ip.is_empty() {
        node
    } else {
        &port.host_ip
    }
}

fn add_ports(
    vars: &mut BTreeMap<String, String>,
    at: &TaskRef,
    address: &str,
    own: Option<IpAddr>,
) {
    let group = at.group();
    for (owner, port) in at.desired.holding.ports_of(group) {
        let address = host_address(port, address);
        if let Some(owner) = owner {
            let name = group.tasks.get(owner).map_or("", |task| &task.name);
            add_task_port(vars, port, address, (owner != at.at).then_some(name));
            continue;
        }
        let inside = inside_port(port.value, port.to);
        let values = [
            ("IP", address.to_owned()),
            ("PORT", inside.to_string()),
            ("ADDR", format!("{address}:{}", port.value)),
            ("HOST_IP", address.to_owned()),
            ("HOST_PORT", port.value.to_string()),
            ("HOST_ADDR", format!("{address}:{}", port.value)),
            ("ALLOC_PORT", inside.to_string()),
        ];
        let own = own.into_iter().flat_map(|own| {
            [
                ("ALLOC_INTERFACE", "eth0".to_owned()),
                ("ALLOC_IP", own.to_string()),
                ("ALLOC_ADDR", SocketAddr::new(own, inside).to_string()),
            ]
        });
        for (word, value) in values.into_iter().chain(own) {
            vars.insert(format!("NOMAD_{word}_{}", port.label), value);
        }
    }
}

/// Adds a port of a task's own network. The task finds it under its label. Other tasks find it under the name of
/// its task and its label.
fn add_task_port(
    vars: &mut BTreeMap<String, String>,
    port: &AllocatedPort,
    address: &str,
    of_other: Option<&str>,
) {
    let of_other = of_other.map(|task| format!("{task}_")).unwrap_or_default();
    let values = [
        ("IP", address.to_owned()),
        ("PORT", inside_port(port.value, port.to).to_string()),
        ("HOST_PORT", port.value.to_string()),
        ("ADDR", format!("{address}:{}", port.value)),
    ];
    for (word, value) in values {
        vars.insert(format!("NOMAD_{word}_{of_other}{}", port.label), value);
    }
}

/// Cores and devices that the task has for itself. A device group `nvidia/gpu/a100` is
/// `NOMAD_DEVICE_NVIDIA_GPU_A100`, its devices' ids with commas between them.
fn add_holding(vars: &mut BTreeMap<String, String>, at: &TaskRef) {
    if let Some(cores) = at.cores() {
        vars.insert("NOMAD_CPU_CORES".to_owned(), core_list(&cores.ids));
    }
    let devices = at.desired.holding.devices.iter();
    for held in devices.filter(|held| usize::from(held.task_at) == at.at) {
        let group: String = held
            .group
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_uppercase()
                } else {
                    '_'
                }
            })
            .collect();
        vars.insert(format!("NOMAD_DEVICE_{group}"), held.ids.join(","));
    }
}

/// Converts a name for use in a shell. Characters other than letters, digits, `_` and `.` become `_`, and so does a
/// leading digit. Nomad does the same.
fn clean_name(name: &str) -> String {
    let clean = |(at, c): (usize, char)| match c {
        'a'..='z' | 'A'..='Z' | '_' | '.' => c,
        '0'..='9' if at > 0 => c,
        _ => '_',
    };
    name.chars().enumerate().map(clean).collect()
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;
    use muster_domain::id::{AllocId, LogIndex};
    use muster_domain::resources::{AllocatedPort, HeldCores, HeldDevices, Holding};
    use serde_json::json;

    use super::*;
    use crate::storage::allocdir::DataDir;

    /// Diego's facts about the container win over the task's own environment.
    #[test]
    fn one_off_task_knows_its_instance() {
        let mut definition = fixture::definition();
        definition.env = vec![muster_domain::one_off::EnvVar {
            name: "CF_INSTANCE_PORT".to_owned(),
            value: "80".to_owned(),
        }];
        let times = muster_domain::one_off::OneOffTimings::default();
        let job = muster_domain::one_off::job("g", "d", &definition, times);
        let desired = fixture::desired(AllocId::at(LogIndex(1), 0), fixture::version(job));
        let dirs = DataDir::new(Path::new("/d"))
            .unwrap()
            .alloc(desired.alloc_id);
        let at = TaskRef {
            desired: desired.into(),
            at: 0,
        };
        let paths = TaskPaths::of(FsIsolation::Chroot, &dirs, at.name());
        let node = fixture::node("n1").build();

        let env = TaskEnv::build(&at, &paths, &node, None).vars;

        let of = |word: &str| env[&format!("CF_INSTANCE_{word}")].as_str();
        assert_eq!((of("PORT"), of("ADDR"), of("PORTS")), ("", "", "[]"));
        assert_eq!(of("IP"), node.address);
        assert_eq!(of("INTERNAL_IP"), node.address);
    }

    fn env(edit: impl FnOnce(&mut Task)) -> TaskEnv {
        env_with(FsIsolation::None, edit)
    }

    fn env_with(isolation: FsIsolation, edit: impl FnOnce(&mut Task)) -> TaskEnv {
        let mut spec = fixture::job("web").build();
        spec.meta.insert("owner".into(), "job".into());
        spec.groups[0].meta.insert("owner".into(), "group".into());
        edit(&mut spec.groups[0].tasks[0]);
        let mut version = (*fixture::job("web").version()).clone();
        version.spec = spec;
        let desired = DesiredAlloc {
            name_index: 3,
            holding: Holding {
                ports: vec![AllocatedPort {
                    label: "http".into(),
                    value: 20_001,
                    to: 80,
                    host_ip: String::new(),
                }],
                cores: vec![HeldCores {
                    task_at: 0,
                    ids: vec![1, 2, 3],
                    mhz: 6_000,
                }],
                devices: vec![HeldDevices {
                    task_at: 0,
                    group: "nvidia/gpu/rtx-4090".into(),
                    ids: vec!["a".into(), "b".into()],
                }],
            },
            ..fixture::desired(AllocId::at(LogIndex(1), 0), version.into())
        };
        let dirs = DataDir::new(Path::new("/d"))
            .unwrap()
            .alloc(desired.alloc_id);
        let at = TaskRef {
            desired: desired.into(),
            at: 0,
        };
        let address = Some(IpAddr::from([172, 26, 64, 2]));
        let paths = TaskPaths::of(isolation, &dirs, at.name());
        TaskEnv::build(&at, &paths, &fixture::node("n1").build(), address)
    }

    #[test]
    fn variables_have_nomads_names() {
        let vars = env(|_| {}).vars;

        let expected = [
            ("NOMAD_ALLOC_NAME", "web.main[3]"),
            ("NOMAD_ALLOC_INDEX", "3"),
            ("NOMAD_TASK_NAME", "main"),
            ("NOMAD_MEMORY_LIMIT", "64"),
            ("NOMAD_CPU_CORES", "1-3"),
            ("NOMAD_CPU_LIMIT", "6000"),
            ("NOMAD_DEVICE_NVIDIA_GPU_RTX_4090", "a,b"),
            ("NOMAD_PORT_http", "80"),
            ("NOMAD_HOST_PORT_http", "20001"),
            ("NOMAD_ADDR_http", "127.0.0.1:20001"),
            ("NOMAD_ALLOC_INTERFACE_http", "eth0"),
            ("NOMAD_ALLOC_ADDR_http", "172.26.64.2:80"),
            ("NOMAD_META_owner", "group"),
            ("NOMAD_META_OWNER", "group"),
        ];
        for (name, value) in expected {
            assert_eq!(vars.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(vars["NOMAD_TASK_DIR"].ends_with("/main/local"));
        assert!(vars["NOMAD_ALLOC_DIR"].ends_with("/alloc"));
    }

    /// The server warns of jobs that try to set one of these.
    #[test]
    fn variables_of_node_are_always_set() {
        let vars = env(|_| {}).vars;

        for name in muster_domain::job::NODE_VARIABLES {
            assert!(vars.contains_key(name), "{name}");
        }
    }

    #[test]
    fn memory_max_is_exported_if_set() {
        let max = |memory_max| {
            let env = env(|task| task.resources.memory_max = memory_max);
            env.vars.get("NOMAD_MEMORY_MAX_LIMIT").cloned()
        };

        assert_eq!(max(None), None);
        assert_eq!(max(Some(Mb(80))), Some("80".to_owned()));
        assert_eq!(max(Some(Mb::UNLIMITED)), Some("-1".to_owned()));
    }

    /// If the task has its own root, the host's paths do not exist in it.
    #[test]
    fn directories_are_where_the_task_finds_them() {
        for (isolation, is_inside) in [
            (FsIsolation::None, false),
            (FsIsolation::Unveil, false),
            (FsIsolation::Chroot, true),
            (FsIsolation::Image, true),
        ] {
            let vars = env_with(isolation, |_| {}).vars;

            for (name, inside) in [
                ("NOMAD_ALLOC_DIR", "/alloc"),
                ("NOMAD_TASK_DIR", "/local"),
                ("NOMAD_SECRETS_DIR", "/secrets"),
                ("TMPDIR", "/tmp"),
            ] {
                let value = vars[name].as_str();
                assert_eq!(
                    value == inside,
                    is_inside,
                    "{isolation:?}: {name} is {value}"
                );
                assert_eq!(
                    value.starts_with("/d/"),
                    !is_inside,
                    "{isolation:?}: {name}"
                );
            }
        }
    }

    #[test]
    fn names_are_clean_and_meta_is_interpolated() {
        let env = env(|task| {
            let meta = [
                ("app-name", "shop"),
                ("where", "${node.datacenter}-${attr.cpu.arch}"),
            ];
            let meta = meta.map(|(key, value)| (key.to_owned(), value.to_owned()));
            task.meta.extend(meta);
            task.env
                .insert("my-var".into(), "${NOMAD_META_app-name}".into());
            task.env.insert("1st.x".into(), "1".into());
            task.env.insert("NOMAD_ADDR".into(), "http://a".into());
            task.env.insert("NOMAD-ALLOC-ID".into(), "forged".into());
        });

        let expected = [
            ("NOMAD_META_app_name", "shop"),
            ("NOMAD_META_APP_NAME", "shop"),
            ("NOMAD_META_where", "dc1-amd64"),
            // The job's own names stay as they are, and so do names that only look like the node's.
            ("my-var", "shop"),
            ("1st.x", "1"),
            ("NOMAD_ADDR", "http://a"),
        ];
        for (name, value) in expected {
            assert_eq!(
                env.vars.get(name).map(String::as_str),
                Some(value),
                "{name}"
            );
        }
        assert_ne!(env.vars["NOMAD_ALLOC_ID"], "forged");
        assert!(!env.vars.contains_key("NOMAD-ALLOC-ID"));
        assert_eq!(env.interpolate("${NOMAD_META_app_name}"), "shop");
        assert_eq!(env.interpolate("${NOMAD_META_app-name}"), "shop");
    }

    #[test]
    fn references_are_replaced_where_known() {
        let env = env(|_| {});

        let text = env.interpolate(
            "a ${NOMAD_PORT_http} ${attr.cpu.arch} ${node.attr.cpu.arch} ${env[\"NOMAD_DC\"]} ${nope} ${open",
        );

        assert_eq!(text, "a 80 amd64 amd64 dc1 ${nope} ${open");
    }

    #[test]
    fn configuration_is_replaced_in_depth() {
        let config =
            json!({"args": ["-p", "${NOMAD_PORT_http}", {"x": "${node.unique.name}"}], "n": 1});

        let replaced = env(|_| {}).interpolate_config(config);

        assert_eq!(replaced, json!({"args": ["-p", "80", {"x": "n1"}], "n": 1}));
    }

    #[test]
    fn a_tasks_own_variables_are_interpolated() {
        let vars = env(|task| {
            task.env
                .insert("LISTEN".into(), "0.0.0.0:${NOMAD_PORT_http}".into());
            task.env.insert("PATH".into(), "/opt/bin".into());
        })
        .vars;

        assert_eq!(
            (vars["LISTEN"].as_str(), vars["PATH"].as_str()),
            ("0.0.0.0:80", "/opt/bin")
        );
    }

    /// A task must not be able to present another allocation to its children.
    #[test]
    fn facts_of_the_allocation_cannot_be_overridden() {
        let vars = env(|task| {
            task.env.insert("NOMAD_ALLOC_ID".into(), "forged".into());
        })
        .vars;

        assert_ne!(vars["NOMAD_ALLOC_ID"], "forged");
    }

    /// A task finds its own ports by their labels, and those of others by the name of the task as well.
    #[test]
    fn ports_are_exported_to_all_tasks() {
        let mut spec = fixture::job("web").dynamic_port("http").build();
        let ask = spec.groups[0].network.as_ref().unwrap().ports[0].clone();
        spec.groups[0].tasks[0].resources.ports = vec![ask.clone()];
        let mut other = fixture::task("db");
        other.resources.ports = vec![ask];
        spec.groups[0].tasks.push(other);
        let port = |value| AllocatedPort {
            label: "http".into(),
            value,
            to: 0,
            host_ip: String::new(),
        };
        let desired = DesiredAlloc {
            holding: Holding {
                ports: vec![port(20_001), port(20_002), port(20_003)],
                ..Holding::default()
            },
            ..fixture::desired(AllocId::at(LogIndex(1), 0), fixture::version(spec))
        };
        let dirs = DataDir::new(Path::new("/d"))
            .unwrap()
            .alloc(desired.alloc_id);
        let at = TaskRef {
            desired: desired.into(),
            at: 0,
        };
        let paths = TaskPaths::of(FsIsolation::Chroot, &dirs, at.name());

        let env = TaskEnv::build(&at, &paths, &fixture::node("n1").build(), None);

        assert_eq!(env.vars["NOMAD_PORT_http"], "20002");
        assert_eq!(env.vars["NOMAD_PORT_db_http"], "20003");
        let address = env.vars["NOMAD_IP_db_http"].clone();
        assert_eq!(env.vars["NOMAD_ADDR_db_http"], format!("{address}:20003"));
        assert_eq!(env.vars["NOMAD_ALLOC_PORT_http"], "20001");
    }
}
