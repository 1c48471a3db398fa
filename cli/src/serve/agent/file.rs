//! The agent's configuration file: HCL, with the flags' names as attributes and a block for each
//! driver.
//!
//! ```hcl
//! servers    = ["10.0.0.1:4647", "10.0.0.2:4647"]
//! plugin_dir = "/usr/lib/muster/plugins"
//!
//! meta { rack = "r1" }
//!
//! host_volume "data" {
//!   path      = "/srv/data"
//!   read_only = true
//! }
//!
//! client {
//!   gc_max_allocs = 100
//!   reserved { memory = 512 }
//! }
//!
//! policy {
//!   egress {
//!     rule "no-office" {
//!       action = "deny"
//!       peers  = ["192.168.0.0/16"]
//!     }
//!   }
//! }
//!
//! plugin "podman" {
//!   args = ["--log-level", "info"]
//!   config { socket_path = "unix:///run/podman/podman.sock" }
//! }
//! ```
//!
//! Every fault is reported with its line and column, including faults that only a driver can find.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::Ipv4Net;
use muster_agent::node::{HostVolume, NetworkPolicy};
use muster_agent::region::Region;
use muster_agent::{
    ChrootEnv, DiskEnforcement, GcConfig, PluginError, PluginSettings, UserRange, parse_subnet,
};
use muster_driver::ConfigFault;
use serde_json::{Map, Value};

use super::chroot_env;
use super::policy;
use super::reserved::{self, Reserved};
use super::users;
use crate::exit::{CliError, Exit};
use muster_jobspec::free::{self, FieldSpans};
use muster_jobspec::syntax::{Attribute, Block, Body, Structure};
use muster_jobspec::{JobFileFault, ReadJobFileError, any, from_parser, span};

/// The largest configuration file in bytes. People write these files by hand, so a larger file is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Attributes of the file, as faults list them.
const ATTRIBUTES: &str = "class, data_dir, datacenter, name, plugin_dir, pool, region, servers, tls_dir; blocks: client, host_volume, meta, plugin, policy";

/// Attributes of the block `client`, by Nomad's names.
const CLIENT_ATTRIBUTES: &str = "allow_api_from_tasks, allow_host_from_bridge, allow_tasks_without_network_policy, bridge_network_subnet, chroot_env, cni_config_dir, cni_path, disk_enforcement, gc_disk_usage_threshold, gc_inode_usage_threshold, gc_interval, gc_max_allocs, gc_parallel_destroys, node_max_allocs, oom_score_adj; blocks: reserved, users";

/// Directories of CNI plugins, separated by colons as in Nomad.
fn cni_path(name: &str, attribute: &Attribute) -> Result<Vec<PathBuf>, JobFileFault> {
    let text = text_of(name, attribute)?;
    let dirs: Vec<PathBuf> = text.split(':').map(PathBuf::from).collect();
    if dirs.iter().any(|dir| !dir.is_absolute()) {
        return Err(invalid_value(
            attribute,
            "absolute directories with `:` between them",
        ));
    }
    Ok(dirs)
}

fn absolute_dir(name: &str, attribute: &Attribute) -> Result<PathBuf, JobFileFault> {
    let dir = PathBuf::from(text_of(name, attribute)?);
    if !dir.is_absolute() {
        return Err(invalid_value(attribute, "an absolute directory"));
    }
    Ok(dir)
}

/// Largest number of allocations or destroys that may be named: more than any node holds.
const COUNT_MAX: u64 = 1_000_000;

/// The settings in a file, all of them optional.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AgentFile {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) servers: Option<Vec<SocketAddr>>,
    pub(super) tls_dir: Option<PathBuf>,
    pub(super) name: Option<String>,
    pub(super) datacenter: Option<String>,
    pub(super) region: Option<Region>,
    pub(super) class: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) plugin_dir: Option<PathBuf>,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) gc: GcConfig,
    pub(super) bridge_subnet: Option<Ipv4Net>,
    pub(super) cni_path: Option<Vec<PathBuf>>,
    pub(super) cni_config_dir: Option<PathBuf>,
    pub(super) chroot_env: ChrootEnv,
    pub(super) disk: DiskEnforcement,
    pub(super) allow_tasks_without_network_policy: bool,
    pub(super) allow_api_from_tasks: bool,
    pub(super) allow_host_from_bridge: bool,
    pub(super) oom_score_adj: Option<i16>,
    pub(super) node_max_allocs: u32,
    pub(super) reserved: Reserved,
    pub(super) users: UserRange,
    pub(super) policy: NetworkPolicy,
    pub(super) host_volumes: BTreeMap<String, HostVolume>,
    pub(super) plugins: BTreeMap<String, PluginBlock>,
    file: String,
    text: String,
}

/// The settings of one driver in a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PluginBlock {
    pub(super) settings: PluginSettings,
    /// The place of the block.
    at: Range<usize>,
    places: FieldSpans,
}

impl AgentFile {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        Self::parse(&path.display().to_string(), text_in(path)?)
    }

    fn parse(file: &str, text: String) -> Result<Self, CliError> {
        let mut parsed = Self {
            file: file.to_owned(),
            ..Self::default()
        };
        let mut faults = Vec::new();
        match muster_jobspec::syntax::parse_body(&chroot_env::as_attribute(&text)) {
            Ok(body) => parsed.body(&body, &mut faults),
            Err(error) => faults.push(from_parser(error)),
        }
        parsed.text = text;
        if faults.is_empty() {
            Ok(parsed)
        } else {
            Err(parsed.file_error(faults))
        }
    }

    /// `faults` with their places in the file.
    fn file_error(&self, faults: Vec<JobFileFault>) -> CliError {
        let error = ReadJobFileError::new(&self.file, &self.text, faults);
        CliError::new(Exit::Usage, error.to_string())
    }

    /// Converts a driver's fault in its configuration to an error with places in the file.
    pub(super) fn plugin_error(&self, error: &PluginError) -> Option<CliError> {
        match error {
            PluginError::Config { plugin, faults } => self.config_faults(plugin, faults),
            PluginError::Unknown { plugin, .. } => {
                let block = self.plugins.get(plugin)?;
                let fault = JobFileFault::at(block.at.clone(), error.to_string());
                Some(self.file_error(vec![fault]))
            }
            PluginError::Dir { .. } => None,
        }
    }

    /// As [`Self::plugin_error`], for faults from another check.
    pub(super) fn config_faults(&self, plugin: &str, faults: &[ConfigFault]) -> Option<CliError> {
        let block = self.plugins.get(plugin)?;
        let placed = faults.iter().map(|fault| {
            let place = block.places.of(&fault.field);
            let message = format!("plugin {plugin:?}: {fault}");
            // Without a `config` block, the fault is placed at the enclosing block.
            let place = if place.is_empty() {
                block.at.clone()
            } else {
                place
            };
            JobFileFault::at(place, message)
        });
        Some(self.file_error(placed.collect()))
    }

    fn body(&mut self, body: &Body, faults: &mut Vec<JobFileFault>) {
        for structure in &body.items {
            let outcome = match structure {
                Structure::Attribute(attribute) => self.attribute(attribute),
                Structure::Block(block) => self.block(block, faults),
            };
            faults.extend(outcome.err());
        }
    }

    fn attribute(&mut self, attribute: &Attribute) -> Result<(), JobFileFault> {
        let name = attribute.key.as_str().to_string();
        let text = || text_of(&name, attribute);
        match name.as_str() {
            "data_dir" => self.data_dir = Some(text()?.into()),
            "servers" => self.servers = Some(addresses(attribute)?),
            "tls_dir" => self.tls_dir = Some(text()?.into()),
            "name" => self.name = Some(text()?),
            "datacenter" => self.datacenter = Some(text()?),
            "class" => self.class = Some(text()?),
            "pool" => self.pool = Some(text()?),
            "region" => {
                let region = text()?.parse();
                let wanted = "letters, digits, `-` or `_`";
                self.region = Some(region.map_err(|_unusable| invalid_value(attribute, wanted))?);
            }
            "plugin_dir" => self.plugin_dir = Some(text()?.into()),
            "meta" => {
                let value = any(&name, &attribute.value)?;
                self.meta =
                    text_map(value).ok_or_else(|| invalid_value(attribute, "keys with texts"))?;
            }
            _ => return Err(unknown(&name, Some(attribute.key.span.clone()))),
        }
        Ok(())
    }

    /// Reads the `client` block of Nomad's files. It reads the settings for garbage collection, for networks of
    /// allocations and for roots of tasks. It also reads the settings for disks of allocations and the resources kept
    /// from tasks.
    fn client(
        &mut self,
        structure: &Structure,
        faults: &mut Vec<JobFileFault>,
    ) -> Result<(), JobFileFault> {
        let attribute = match structure {
            Structure::Attribute(attribute) => attribute,
            Structure::Block(block) if block.has_ident("reserved") && block.labels.is_empty() => {
                self.reserved = reserved::read(block, faults);
                return Ok(());
            }
            Structure::Block(block) if block.has_ident("users") && block.labels.is_empty() => {
                self.users = users::read(block, faults)?;
                return Ok(());
            }
            Structure::Block(block) => {
                let message = format!("unknown block `{}` in client", block.ident.as_str());
                let place = block.ident.span.clone();
                return Err(JobFileFault::at(place, message)
                    .help(format!("known here: {CLIENT_ATTRIBUTES}")));
            }
        };
        let name = attribute.key.as_str().to_string();
        let count = |min| {
            let number = number(&name, attribute, min, COUNT_MAX)?;
            usize::try_from(number).map_err(|_large| invalid_value(attribute, "a smaller number"))
        };
        match name.as_str() {
            "allow_api_from_tasks" => self.allow_api_from_tasks = parse_bool(&name, attribute)?,
            "allow_host_from_bridge" => self.allow_host_from_bridge = parse_bool(&name, attribute)?,
            "allow_tasks_without_network_policy" => {
                self.allow_tasks_without_network_policy = parse_bool(&name, attribute)?;
            }
            "bridge_network_subnet" => {
                let parsed = parse_subnet(&text_of(&name, attribute)?);
                let placed = |message: String| {
                    let place = attribute.value.span.clone();
                    JobFileFault::at(place, format!("`{name}`: {message}"))
                };
                self.bridge_subnet = Some(parsed.map_err(placed)?);
            }
            "cni_config_dir" => {
                self.cni_config_dir = Some(absolute_dir(&name, attribute)?);
            }
            "cni_path" => self.cni_path = Some(cni_path(&name, attribute)?),
            "chroot_env" => self.chroot_env = chroot_env::read(attribute)?,
            "disk_enforcement" => {
                let parsed = text_of(&name, attribute)?.parse();
                let placed = |message: String| {
                    let place = attribute.value.span.clone();
                    JobFileFault::at(place, format!("`{name}`: {message}"))
                };
                self.disk = parsed.map_err(placed)?;
            }
            "gc_interval" => self.gc.interval = interval(&name, attribute)?,
            "gc_disk_usage_threshold" => {
                self.gc.limits.disk_threshold = percent(&name, attribute)?;
            }
            "gc_inode_usage_threshold" => {
                self.gc.limits.inode_threshold = percent(&name, attribute)?;
            }
            "gc_max_allocs" => self.gc.limits.allocs_max = count(0)?,
            "node_max_allocs" => {
                let max = number(&name, attribute, 0, COUNT_MAX)?;
                self.node_max_allocs = u32::try_from(max).expect("`COUNT_MAX` fits in 32 bits");
            }
            "oom_score_adj" => self.oom_score_adj = Some(oom_score(&name, attribute)?),
            "gc_parallel_destroys" => self.gc.parallel_destroys = count(1)?,
            _ => {
                let place = attribute.key.span.clone();
                let message = format!("unknown field `{name}` in client");
                return Err(JobFileFault::at(place, message)
                    .help(format!("known here: {CLIENT_ATTRIBUTES}")));
            }
        }
        Ok(())
    }

    fn block(&mut self, block: &Block, faults: &mut Vec<JobFileFault>) -> Result<(), JobFileFault> {
        let at = block.ident.span.clone();
        match (block.ident.as_str(), block.labels.as_slice()) {
            ("meta", []) => {
                let (map, _places) = free::read("meta", block, faults);
                self.meta = text_map(Value::Object(map)).ok_or_else(|| {
                    JobFileFault::at(at, "`meta` holds keys with texts".to_owned())
                })?;
            }
            ("client", []) => {
                for structure in &block.body.items {
                    let fault = self.client(structure, faults).err();
                    faults.extend(fault);
                }
            }
            ("policy", []) => self.policy = policy::read(block, faults)?,
            ("plugin", [label]) => {
                let name = label.as_str().to_owned();
                let plugin = plugin(&name, block, faults)?;
                if self.plugins.insert(name.clone(), plugin).is_some() {
                    return Err(JobFileFault::at(
                        at,
                        format!("a second `plugin {name:?}` block"),
                    ));
                }
            }
            ("host_volume", [label]) => {
                let name = label.as_str().to_owned();
                let volume = host_volume(&name, block)?;
                if self.host_volumes.insert(name.clone(), volume).is_some() {
                    return Err(JobFileFault::at(
                        at,
                        format!("a second `host_volume {name:?}` block"),
                    ));
                }
            }
            ("host_volume", _) => {
                return Err(JobFileFault::at(at, "`host_volume` needs a name")
                    .help("write host_volume \"name\" { path = \"/…\" }"));
            }
            ("plugin", _) => {
                return Err(JobFileFault::at(at, "`plugin` needs the driver's name")
                    .help("write plugin \"name\" { … }"));
            }
            (name, _) => return Err(unknown(name, Some(at))),
        }
        Ok(())
    }
}

/// The text of the file at `path`.
pub(super) fn text_in(path: &Path) -> Result<String, CliError> {
    let file = path.display();
    let failed = |what: String| CliError::new(Exit::Usage, format!("{file}: {what}"));
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if size.len() > FILE_BYTES_MAX {
        let what =
            format!("has more than {FILE_BYTES_MAX} bytes, too many for a configuration file");
        return Err(failed(what));
    }
    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

/// A value that `/proc/self/oom_score_adj` may hold (`proc_pid_oom_score_adj(5)`).
fn oom_score(name: &str, attribute: &Attribute) -> Result<i16, JobFileFault> {
    let value = any(name, &attribute.value)?;
    let whole = value.as_f64().filter(|number| number.fract() == 0.0);
    let score = value
        .as_i64()
        .or_else(|| format!("{}", whole?).parse().ok());
    score
        .and_then(|score| i16::try_from(score).ok())
        .filter(|score| (-1_000..=1_000).contains(score))
        .ok_or_else(|| invalid_value(attribute, "a whole number from -1000 to 1000"))
}

/// `true` or `false`.
fn parse_bool(name: &str, attribute: &Attribute) -> Result<bool, JobFileFault> {
    let value = any(name, &attribute.value)?;
    value
        .as_bool()
        .ok_or_else(|| invalid_value(attribute, "`true` or `false`"))
}

/// A whole number from `min` to `max`.
pub(super) fn number(
    name: &str,
    attribute: &Attribute,
    min: u64,
    max: u64,
) -> Result<u64, JobFileFault> {
    let wanted = format!("a whole number from {min} to {max}");
    let value = any(name, &attribute.value)?;
    let number = value.as_u64().or_else(|| {
        let whole = value.as_f64().filter(|number| number.fract() == 0.0)?;
        // Nomad's files write thresholds as 80.0 too.
        format!("{whole:.0}").parse().ok()
    });
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| invalid_value(attribute, &wanted))
}

/// A time such as "90s" or "1m", longer than none.
fn interval(name: &str, attribute: &Attribute) -> Result<Duration, JobFileFault> {
    let text = text_of(name, attribute)?;
    let duration = muster_wire::api::duration::parse(&text);
    duration
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| invalid_value(attribute, "a time such as \"1m\""))
}

/// A percentage of a file system.
fn percent(name: &str, attribute: &Attribute) -> Result<u8, JobFileFault> {
    let number = number(name, attribute, 0, 100)?;
    u8::try_from(number).map_err(|_large| invalid_value(attribute, "a percentage"))
}

fn host_volume(name: &str, block: &Block) -> Result<HostVolume, JobFileFault> {
    let known = "known here: path, read_only";
    let (mut path, mut read_only) = (None, false);
    for structure in &block.body.items {
        let Structure::Attribute(attribute) = structure else {
            let message = format!("host_volume {name:?} holds no blocks");
            let at = block.ident.span.clone();
            return Err(JobFileFault::at(at, message).help(known));
        };
        match attribute.key.as_str() {
            "path" => path = Some(text_of("path", attribute)?),
            "read_only" => match any("read_only", &attribute.value)? {
                Value::Bool(asked) => read_only = asked,
                _ => return Err(invalid_value(attribute, "true or false")),
            },
            key => {
                let message = format!("unknown field `{key}` in host_volume {name:?}");
                let place = attribute.key.span.clone();
                return Err(JobFileFault::at(place, message).help(known));
            }
        }
    }
    match path {
        Some(path) if path.starts_with('/') => Ok(HostVolume { path, read_only }),
        Some(_) | None => Err(JobFileFault::at(
            block.ident.span.clone(),
            format!("host_volume {name:?} needs an absolute `path`"),
        )),
    }
}

fn plugin(
    name: &str,
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> Result<PluginBlock, JobFileFault> {
    let mut plugin = PluginBlock {
        at: block.ident.span.clone(),
        ..PluginBlock::default()
    };
    for structure in &block.body.items {
        match structure {
            Structure::Attribute(attribute) if attribute.key.as_str() == "args" => {
                let value = any("args", &attribute.value)?;
                plugin.settings.args =
                    texts(value).ok_or_else(|| invalid_value(attribute, "a list of texts"))?;
            }
            Structure::Block(inner) if inner.has_ident("config") && inner.labels.is_empty() => {
                let (map, places) = free::read("config", inner, faults);
                plugin.settings.config = Value::Object(map);
                plugin.places = places;
            }
            Structure::Attribute(attribute) => {
                let key = attribute.key.as_str();
                let message = format!("unknown field `{key}` in plugin {name:?}");
                let place = attribute.key.span.clone();
                return Err(JobFileFault::at(place, message)
                    .help("known here: args, and the block config with what the driver takes"));
            }
            Structure::Block(inner) => {
                let message = format!(
                    "unknown block `{}` in plugin {name:?}",
                    inner.ident.as_str()
                );
                let place = inner.ident.span.clone();
                return Err(JobFileFault::at(place, message)
                    .help("known here: args, and the block config with what the driver takes"));
            }
        }
    }
    Ok(plugin)
}

fn unknown(name: &str, place: Option<Range<usize>>) -> JobFileFault {
    JobFileFault::at(place.unwrap_or_default(), format!("unknown field `{name}`"))
        .help(format!("known here: {ATTRIBUTES}"))
}

pub(super) fn invalid_value(attribute: &Attribute, wanted: &str) -> JobFileFault {
    let message = format!("`{}` must be {wanted}", attribute.key.as_str());
    JobFileFault::at(span(&attribute.value), message)
}

pub(super) fn text_of(name: &str, attribute: &Attribute) -> Result<String, JobFileFault> {
    match any(name, &attribute.value)? {
        Value::String(text) => Ok(text),
        _ => Err(invalid_value(attribute, "a text in quotes")),
    }
}

fn texts(value: Value) -> Option<Vec<String>> {
    let Value::Array(items) = value else {
        return None;
    };
    let text = |item: Value| match item {
        Value::String(text) => Some(text),
        _ => None,
    };
    items.into_iter().map(text).collect()
}

fn text_map(value: Value) -> Option<BTreeMap<String, String>> {
    let Value::Object(entries) = value else {
        return None;
    };
    let entries: Map<String, Value> = entries;
    let text = |(name, value): (String, Value)| match value {
        Value::String(text) => Some((name, text)),
        Value::Number(number) => Some((name, number.to_string())),
        Value::Bool(yes) => Some((name, yes.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    entries.into_iter().map(text).collect()
}

fn addresses(attribute: &Attribute) -> Result<Vec<SocketAddr>, JobFileFault> {
    let value = any("servers", &attribute.value)?;
    let wanted = "a list of addresses such as [\"10.0.0.1:4647\"]";
    let list = texts(value).ok_or_else(|| invalid_value(attribute, wanted))?;
    list.iter()
        .map(|text| {
            text.parse()
                .map_err(|_unparsed| invalid_value(attribute, wanted))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<AgentFile, String> {
        AgentFile::parse("agent.hcl", text.to_owned()).map_err(|error| error.message)
    }

    #[test]
    fn everything_in_a_file_is_read() {
        let file = parse(
            r#"
servers    = ["10.0.0.1:4647", "[::1]:4647"]
data_dir   = "/d"
tls_dir    = "/t"
plugin_dir = "/p"
name       = "web1"
datacenter = "dc2"
region     = "eu"
class      = "big"
pool       = "gpu"
meta {
  rack = "r1"
  unit = 3
}
plugin "podman" {
  args = ["-v"]
  config {
    socket = "x"
    volumes { enabled = true }
  }
}
plugin "native" {}
host_volume "certs" {
  path      = "/etc/ssl"
  read_only = true
}
"#,
        )
        .unwrap();

        assert_eq!(file.servers.unwrap().len(), 2);
        assert_eq!(file.data_dir.unwrap(), Path::new("/d"));
        assert_eq!(file.tls_dir.unwrap(), Path::new("/t"));
        assert_eq!(file.plugin_dir.unwrap(), Path::new("/p"));
        assert_eq!(file.name.unwrap(), "web1");
        assert_eq!(file.datacenter.unwrap(), "dc2");
        assert_eq!(file.region.unwrap(), "eu".parse().unwrap());
        assert_eq!(file.class.unwrap(), "big");
        assert_eq!(file.pool.unwrap(), "gpu");
        assert_eq!(file.meta["rack"], "r1");
        assert_eq!(file.meta["unit"], "3");
        assert_eq!(
            file.plugins["podman"].settings,
            PluginSettings {
                args: vec!["-v".to_owned()],
                config: json!({"socket": "x", "volumes": [{"enabled": true}]}),
            }
        );
        assert_eq!(file.plugins["native"].settings, PluginSettings::default());
        let certs = HostVolume {
            path: "/etc/ssl".to_owned(),
            read_only: true,
        };
        assert_eq!(file.host_volumes["certs"], certs);
    }

    #[test]
    fn collection_is_configured_under_nomads_names() {
        let file = parse(
            "client {\n gc_interval = \"90s\"\n gc_disk_usage_threshold = 85.0\n gc_inode_usage_threshold = 60\n gc_max_allocs = 7\n node_max_allocs = 900\n gc_parallel_destroys = 3\n disk_enforcement = \"off\"\n bridge_network_subnet = \"10.88.0.7/16\"\n cni_path = \"/opt/cni/bin:/usr/lib/cni\"\n cni_config_dir = \"/etc/cni/net.d\"\n}\n",
        )
        .unwrap();
        assert_eq!(file.disk, DiskEnforcement::Off);
        let path: Vec<PathBuf> = vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()];
        assert_eq!(file.cni_path, Some(path));
        assert_eq!(file.cni_config_dir, Some("/etc/cni/net.d".into()));
        assert_eq!(file.bridge_subnet, "10.88.0.0/16".parse().ok());

        let GcConfig {
            limits,
            interval,
            parallel_destroys,
        } = file.gc;
        assert_eq!(interval, Duration::from_secs(90));
        assert_eq!((limits.disk_threshold, limits.inode_threshold), (85, 60));
        assert_eq!((limits.allocs_max, parallel_destroys), (7, 3));
        assert_eq!(file.node_max_allocs, 900);
        assert_eq!(parse("").unwrap().gc, GcConfig::default());
    }

    #[test]
    fn reserved_resources_use_nomad_field_names() {
        let file = parse(
            "client {\n reserved {\n cpu = 500\n memory = 512\n disk = 1024\n cores = \"0,2-3\"\n reserved_ports = \"22,80,8000-8002\"\n }\n}\n",
        )
        .unwrap();

        let Reserved {
            amount,
            cores,
            ports,
        } = file.reserved;
        assert_eq!(
            (amount.cpu_mhz, amount.memory_mb, amount.disk_mb),
            (500, 512, 1_024)
        );
        assert_eq!(cores, [0, 2, 3]);
        assert_eq!(ports, [22, 80, 8_000, 8_001, 8_002]);
    }

    #[test]
    fn users_of_tasks_are_read_under_nomads_names() {
        let users = |text: &str| {
            parse(&format!("client {{\n  users {{\n{text}\n  }}\n}}\n")).map(|file| file.users)
        };

        assert_eq!(parse("").unwrap().users, UserRange::default());
        let range = users("    dynamic_user_min = 70000\n    dynamic_user_max = 70009");
        assert_eq!(range, Ok(UserRange::new(70_000, 70_009).unwrap()));
        for (text, start) in [
            (
                "    dynamic_user_min = 0",
                "agent.hcl:3:24: `dynamic_user_min` must be a whole number from 1 to",
            ),
            (
                "    dynamic_user_max = 79999",
                "agent.hcl:2:3: 80000 to 79999 holds no user",
            ),
            (
                "    user = 1",
                "agent.hcl:3:5: unknown field `user` in users",
            ),
            ("    a {}", "agent.hcl:3:5: unknown block `a` in users"),
        ] {
            let error = users(text).unwrap_err();
            assert!(
                error.lines().any(|line| line.starts_with(start)),
                "{start}: {error}"
            );
        }
    }

    #[test]
    fn wrong_reservations_are_placed() {
        let error = parse(
            "client {\n  reserved {\n    memory = -1\n    cores = \"3-1\"\n    reserved_ports = \"0\"\n    gpu = 1\n    a {}\n  }\n}\n",
        )
        .unwrap_err();

        for start in [
            "agent.hcl:3:14: `memory` must be a whole number",
            "agent.hcl:4:13: `cores` must be numbers and ranges such as",
            "agent.hcl:5:22: `reserved_ports` must be numbers and ranges such as",
            "agent.hcl:6:5: unknown field `gpu` in reserved",
            "agent.hcl:7:5: unknown block `a` in reserved",
        ] {
            assert!(
                error.lines().any(|line| line.starts_with(start)),
                "{start}: {error}"
            );
        }
    }

    #[test]
    fn task_permissions_are_allowed_by_name() {
        let allowed = |text| {
            parse(text).map(|file| {
                (
                    file.allow_tasks_without_network_policy,
                    file.allow_api_from_tasks,
                    file.allow_host_from_bridge,
                )
            })
        };

        assert_eq!(allowed(""), Ok((false, false, false)));
        let permissions = allowed("client {\n  allow_tasks_without_network_policy = true\n}\n");
        assert_eq!(permissions, Ok((true, false, false)));
        let permissions = allowed("client {\n  allow_api_from_tasks = true\n}\n");
        assert_eq!(permissions, Ok((false, true, false)));
        let permissions = allowed("client {\n  allow_host_from_bridge = true\n}\n");
        assert_eq!(permissions, Ok((false, false, true)));
        let error =
            allowed("client {\n  allow_tasks_without_network_policy = \"yes\"\n}\n").unwrap_err();
        let start =
            "agent.hcl:2:40: `allow_tasks_without_network_policy` must be `true` or `false`";
        assert!(error.contains(start), "{error}");
    }

    #[test]
    fn the_agents_oom_score_is_read() {
        let score = |text: &str| {
            parse(&format!("client {{\n  oom_score_adj = {text}\n}}\n"))
                .map(|file| file.oom_score_adj)
        };

        assert_eq!(parse("").unwrap().oom_score_adj, None);
        assert_eq!(score("-500"), Ok(Some(-500)));
        for text in ["-1001", "1001", "1.5", "\"low\""] {
            let error = score(text).unwrap_err();
            let start = "agent.hcl:2:19: `oom_score_adj` must be a whole number from -1000 to 1000";
            assert!(error.contains(start), "{error}");
        }
    }

    #[test]
    fn wrong_settings_of_collection_are_placed() {
        let error = parse(
            "client {\n  gc_interval = \"0s\"\n  gc_disk_usage_threshold = 101\n  gc_max_allocs = -1\n  gc_parallel_destroys = 0\n  gc_x = 1\n  a {}\n  bridge_network_subnet = \"10.0.0.0/30\"\n  cni_path = \"/opt/cni/bin:bin\"\n  cni_config_dir = \"net.d\"\n}\n",
        )
        .unwrap_err();

        for start in [
            "agent.hcl:2:17: `gc_interval` must be a time such as",
            "agent.hcl:3:29: `gc_disk_usage_threshold` must be a whole number from 0 to 100",
            "agent.hcl:4:19: `gc_max_allocs` must be a whole number from 0 to 1000000",
            "agent.hcl:5:26: `gc_parallel_destroys` must be a whole number from 1 to 1000000",
            "agent.hcl:6:3: unknown field `gc_x` in client",
            "agent.hcl:7:3: unknown block `a` in client",
            "agent.hcl:8:27: `bridge_network_subnet`: 10.0.0.0/30 is not a subnet for allocations",
            "agent.hcl:9:14: `cni_path` must be absolute directories",
            "agent.hcl:10:20: `cni_config_dir` must be an absolute directory",
        ] {
            assert!(
                error.lines().any(|line| line.starts_with(start)),
                "{start}: {error}"
            );
        }
    }

    #[test]
    fn example_is_a_configuration() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/agent/agent.hcl");

        let file = AgentFile::read(&path).unwrap();

        assert_eq!(file.meta["rack"], "r1");
    }

    #[test]
    fn every_fault_has_its_line_and_column() {
        let error = parse(
            "nam = \"x\"\nservers = [\"nowhere\"]\n  pool = 3\nplugin {}\nplugin \"a\" {\n  conf {}\n}\n",
        )
        .unwrap_err();

        let starts: Vec<&str> = error.lines().collect();
        assert!(
            starts[0].starts_with("agent.hcl:1:1: unknown field `nam`"),
            "{error}"
        );
        assert!(
            starts[1].starts_with("agent.hcl:2:11: `servers` must be"),
            "{error}"
        );
        assert!(
            starts[2].starts_with("agent.hcl:3:10: `pool` must be a text"),
            "{error}"
        );
        assert!(
            starts[3].starts_with("agent.hcl:4:1: `plugin` needs"),
            "{error}"
        );
        assert!(
            starts[4].starts_with("agent.hcl:6:3: unknown block `conf`"),
            "{error}"
        );
    }

    #[test]
    fn roots_of_tasks_are_described_under_nomads_name() {
        let expected = ChrootEnv::new([
            ("/bin".to_owned(), "/bin".to_owned()),
            ("/opt/tools".to_owned(), "/usr".to_owned()),
        ])
        .unwrap();
        for text in [
            "client {\n  chroot_env {\n    \"/bin\" = \"/bin\"\n    \"/opt/tools\" = \"/usr\"\n  }\n}\n",
            "client {\n  chroot_env = { \"/bin\" = \"/bin\", \"/opt/tools\" = \"/usr\" }\n}\n",
        ] {
            assert_eq!(parse(text).unwrap().chroot_env, expected);
        }
        assert_eq!(parse("").unwrap().chroot_env, ChrootEnv::default());
    }

    #[test]
    fn wrong_roots_of_tasks_are_placed() {
        for (entry, start) in [
            (
                "\"bin\" = \"/bin\"",
                "agent.hcl:2:14: `chroot_env`: entry \"bin\": \"bin\" must be",
            ),
            (
                "\"/a\" = \"/tmp/a\"",
                "agent.hcl:2:14: `chroot_env`: entry \"/a\": \"/tmp/a\" cannot be",
            ),
            ("\"/a\" = 1", "agent.hcl:2:14: `chroot_env` must be "),
        ] {
            let error =
                parse(&format!("client {{\n  chroot_env {{\n {entry}\n }}\n}}\n")).unwrap_err();

            assert!(error.starts_with(start), "{start}: {error}");
        }
    }

    #[test]
    fn text_that_is_no_hcl_is_placed() {
        let error = parse("name = \"x\"\nplugin \"a\" {").unwrap_err();

        assert!(error.starts_with("agent.hcl:2:"), "{error}");
    }

    #[test]
    fn words_of_a_driver_are_placed() {
        let file =
            parse("plugin \"a\" {\n  config {\n    b = 1\n    c = [1, []]\n  }\n}\n").unwrap();
        let fault = |field: &str| ConfigFault {
            field: field.to_owned(),
            message: "is wrong".to_owned(),
        };
        let error = PluginError::Config {
            plugin: "a".to_owned(),
            faults: vec![fault("config.b"), fault("config.c[1]"), fault("config.d")],
        };

        let placed = file.plugin_error(&error).unwrap().message;

        let lines: Vec<&str> = placed.lines().collect();
        assert_eq!(lines[0], "agent.hcl:3:5: plugin \"a\": `config.b` is wrong");
        assert!(lines[1].starts_with("agent.hcl:4:13: "), "{placed}");
        assert!(lines[2].starts_with("agent.hcl:2:3: "), "{placed}");
    }

    #[test]
    fn block_about_no_driver_is_placed() {
        let file = parse("\nplugin \"a\" {}\n").unwrap();
        let error = PluginError::Unknown {
            plugin: "a".to_owned(),
            known: "native".to_owned(),
        };

        let placed = file.plugin_error(&error).unwrap().message;

        assert!(placed.starts_with("agent.hcl:2:1: "), "{placed}");
    }
}
