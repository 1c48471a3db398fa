//! The input of plugins: environment and configuration.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use muster_domain::job::{CniNetwork, TaskGroup};
use muster_domain::region;
use muster_driver::Dns;
use serde_json::{Map, Value, json};

use super::config::{NetworkList, Plugin};
use super::record::CniRecord;
use crate::network::bridge;
use crate::network::names::inside_port;
use crate::tasks::task_env::{TaskEnv, host_address};

/// The device of an allocation's network in its namespace.
const DEVICE: &str = "eth0";
/// Capability of plugins that publish ports.
const PORT_MAPPINGS: &str = "portMappings";
/// Capability of plugins that set up a resolver.
const DNS: &str = "dns";

/// The operation that a plugin is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Del,
    Check,
    Collect,
}

muster_domain::text_enum!(Command {
    Add => "ADD",
    Del => "DEL",
    Check => "CHECK",
    Collect => "GC",
});

/// A request to all plugins of a network.
#[derive(Debug)]
pub(super) struct Request<'a> {
    list: &'a NetworkList,
    runtime: &'a BTreeMap<String, Value>,
    env: Vec<(&'static str, String)>,
    /// Allocations that have the network, for GC.
    valid: Option<Value>,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        command: Command,
        list: &'a NetworkList,
        record: &'a CniRecord,
        alloc_id: AllocId,
        namespace: String,
        path: &[PathBuf],
    ) -> Self {
        let env = vec![
            ("CNI_COMMAND", command.as_str().to_owned()),
            ("CNI_CONTAINERID", alloc_id.to_string()),
            ("CNI_NETNS", namespace),
            ("CNI_IFNAME", DEVICE.to_owned()),
            ("CNI_ARGS", record.args.clone()),
            ("CNI_PATH", joined(path)),
        ];
        Self {
            list,
            runtime: &record.runtime,
            env,
            valid: None,
        }
    }

    /// Returns a request to plugins to remove resources of allocations that are not `valid`.
    pub(super) fn collect(
        list: &'a NetworkList,
        record: &'a CniRecord,
        path: &[PathBuf],
        valid: &[AllocId],
    ) -> Self {
        let valid = valid
            .iter()
            .map(|alloc_id| json!({"containerID": alloc_id.to_string(), "ifname": DEVICE}));
        Self {
            list,
            runtime: &record.runtime,
            env: vec![
                ("CNI_COMMAND", Command::Collect.as_str().to_owned()),
                ("CNI_PATH", joined(path)),
            ],
            valid: Some(valid.collect()),
        }
    }

    pub(super) fn env(&self) -> Vec<(&'static str, String)> {
        self.env.clone()
    }

    /// The configuration that `plugin` reads.
    pub(super) fn input(&self, plugin: &Plugin, previous: Option<&Value>) -> String {
        let mut config = plugin.config.clone();
        for field in ["capabilities", "prevResult", "cniVersions"] {
            config.remove(field);
        }
        config.insert("name".to_owned(), json!(self.list.name));
        config.insert(
            "cniVersion".to_owned(),
            json!(self.list.version.to_string()),
        );
        if let Some(previous) = previous {
            config.insert("prevResult".to_owned(), previous.clone());
        }
        let runtime: Map<String, Value> = self
            .runtime
            .iter()
            .filter(|(capability, _)| plugin.has_capability(capability))
            .map(|(capability, value)| (capability.clone(), value.clone()))
            .collect();
        if !runtime.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(runtime));
        }
        if let Some(valid) = &self.valid {
            // Plugins read the second name. Plugins of early versions of CNI 1.1 read the first one.
            config.insert("cni.dev/attachments".to_owned(), valid.clone());
            config.insert("cni.dev/valid-attachments".to_owned(), valid.clone());
        }
        Value::Object(config).to_string()
    }
}

/// The variable `CNI_ARGS`: ids of the allocation as Nomad passes them, and the arguments of the job with references
/// filled in from `env`.
pub(super) fn args(
    desired: &DesiredAlloc,
    group: &TaskGroup,
    cni: &CniNetwork,
    env: &TaskEnv,
) -> String {
    let spec = &desired.job.spec;
    let own = [
        ("NOMAD_ALLOC_ID", desired.alloc_id.to_string()),
        ("NOMAD_GROUP_NAME", group.name.clone()),
        ("NOMAD_JOB_ID", spec.id.clone()),
        ("NOMAD_NAMESPACE", spec.namespace.clone()),
        ("NOMAD_REGION", region::name().to_owned()),
    ];
    let asked = cni.args.iter();
    let asked = asked.map(|(key, value)| (key.clone(), env.interpolate(value)));
    let mut args: BTreeMap<String, String> = asked.collect();
    args.extend(own.map(|(key, value)| (key.to_owned(), value)));
    args.remove("IgnoreUnknown");
    // A value with the separator would be read as two arguments.
    args.retain(|_, value| !value.contains(|char: char| char == ';' || char.is_control()));
    let args = args.iter().map(|(key, value)| format!(";{key}={value}"));
    // The argument makes plugins ignore unknown arguments.
    format!("IgnoreUnknown=true{}", args.collect::<String>())
}

/// Values for plugins with capabilities: the ports of the group and its resolver, with references filled in from `env`.
pub(super) fn runtime(
    desired: &DesiredAlloc,
    group: &TaskGroup,
    node_address: &str,
    env: &TaskEnv,
) -> BTreeMap<String, Value> {
    let ports = desired.holding.ports.iter().flat_map(|port| {
        ["tcp", "udp"].map(|protocol| {
            json!({
                "hostPort": port.value,
                "containerPort": inside_port(port.value, port.to),
                "protocol": protocol,
                "hostIP": host_address(port, node_address),
            })
        })
    });
    let mut runtime = BTreeMap::from([(PORT_MAPPINGS.to_owned(), ports.collect())]);
    if let Some(dns) = group.network.as_ref().and_then(|it| it.dns.as_ref()) {
        let Dns {
            servers,
            searches,
            options,
        } = bridge::dns_config(dns, env);
        let dns = json!({ "servers": servers, "searches": searches, "options": options });
        runtime.insert(DNS.to_owned(), dns);
    }
    runtime
}

/// The program of a plugin: in the first directory that has it.
pub(super) fn program(path: &[PathBuf], kind: &str) -> Option<PathBuf> {
    let mut programs = path.iter().map(|dir| dir.join(kind));
    programs.find(|program| is_executable(program))
}

/// Whether the agent may run the file: only its owner and group may change it.
pub(super) fn is_executable(path: &Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0 && it.mode() & 0o002 == 0)
}

/// Directories with colons between them.
pub(super) fn joined(path: &[PathBuf]) -> String {
    let dirs: Vec<_> = path
        .iter()
        .map(|dir: &PathBuf| Path::display(dir).to_string())
        .collect();
    dirs.join(":")
}
