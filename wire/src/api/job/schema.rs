//! The schema of a job: one table a block.
//!
//! A row is a field: its name in the API, its name in job files, its kind, and how `muster job plan` compares it. Job
//! files are read by these tables and versions are compared by them. The
//! tables of groups, tasks and some blocks within are in `group`, `task` and `steps`. Names of Nomad that
//! have no effect here are in [`unsupported`](super::unsupported).

use self::BlockShape::{Alone, Conditions, Free, Many, ManyByName, One, Ports};
use self::FieldKind::{Block, Value};
use self::ValueKind::{Bool, Duration, Int, Text, TextMap, Texts, Word};
pub use super::group::GROUP;
use super::steps::{MIGRATE, RESCHEDULE, UPDATE};
pub use super::task::TASK;

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// One of a few texts.
    Word(&'static [&'static str]),
    Int,
    Bool,
    /// A text such as `30s`, or a number of nanoseconds; nanoseconds in the API.
    Duration,
    /// A list of texts.
    Texts,
    /// Keys with texts; as a block or as an attribute.
    TextMap,
}

/// How often a block may stand, and what it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockShape {
    One,
    /// Any number of times; a list of objects. A plan compares them as a set: an edited one went and came.
    Many,
    /// As [`Self::Many`], but each object has a `Name`, by which a plan compares them.
    ManyByName,
    /// Any number of times, labelled; an object of objects by their labels.
    Named,
    /// Once; free keys with values of any shape: a driver's configuration.
    Free,
    /// Any number of times, labelled: `port "http" {}`; `ReservedPorts` or `DynamicPorts`.
    Ports,
    /// Any number of times; `attribute`, `operator`, `value` and their short forms.
    Conditions,
    /// Any number of times; each is a group of its own.
    Alone,
}

/// The kind of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    Value(ValueKind),
    Block(BlockShape, &'static Schema),
}

/// How a plan compares a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// A value is listed by its name in the API, the entries of a map as `Name[key]`. Lists and blocks are not listed.
    Plain,
    /// As [`Self::Plain`], but only if both versions have the block that holds it.
    InBoth,
    /// A list or a block is an object of this name.
    Object(&'static str),
    /// As [`Self::Object`], and listed in context even if nothing of it changed.
    ObjectInContext(&'static str),
    Hidden,
}

/// The effect that a plan says a changed field of a task has on its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Replace,
    InPlace,
    /// As [`Self::InPlace`], unless the field of this name in the block differs.
    InPlaceUnless(&'static str),
}

/// One field of a block.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the API; empty if the API has no such field.
    pub json: &'static str,
    /// Its name in job files; empty if files have no such field.
    pub file: &'static str,
    pub kind: FieldKind,
    pub compared: Compared,
    /// The effect, if it is not the one of the domain's struct.
    pub effect: Option<Effect>,
    /// Its name in the domain's struct; empty if that has no such field.
    pub domain: &'static str,
}

/// A field of this name in the API, in job files, and of this kind.
pub(super) const fn field(json: &'static str, file: &'static str, kind: FieldKind) -> Field {
    Field {
        json,
        file,
        kind,
        compared: Compared::Plain,
        effect: None,
        domain: "",
    }
}

impl Field {
    /// The field, compared as this.
    pub(super) const fn compared(self, compared: Compared) -> Self {
        Self { compared, ..self }
    }

    /// The field, compared as an object of this name.
    pub(super) const fn plan(self, name: &'static str) -> Self {
        self.compared(Compared::Object(name))
    }

    /// The field, not compared.
    pub(super) const fn hidden(self) -> Self {
        self.compared(Compared::Hidden)
    }

    /// The field, of which a plan says this effect.
    pub(super) const fn plan_says(self, effect: Effect) -> Self {
        Self {
            effect: Some(effect),
            ..self
        }
    }

    /// The field, which holds this field of the domain's struct.
    pub(super) const fn of(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }
}

/// One kind of block.
#[derive(Debug)]
pub struct Schema {
    /// The fields of the API that the label becomes; empty if there is no label.
    pub label: &'static [&'static str],
    pub fields: &'static [Field],
    /// Attributes that must be there.
    pub required: &'static [&'static str],
    /// Names in the API with the text that stands there if the file does not say another.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The order in which a plan lists objects; those not named go first.
    pub plan_order: &'static [&'static str],
}

impl Schema {
    pub(super) const EMPTY: Self = Self {
        label: &[],
        fields: &[],
        required: &[],
        defaults: &[],
        plan_order: &[],
    };

    /// The field that job files call `name`.
    #[must_use]
    pub fn in_file(&self, name: &str) -> Option<&'static Field> {
        let mut fields = self.fields.iter();
        fields.find(|field| field.file == name && !name.is_empty())
    }

    /// The field that the API calls `name`.
    #[must_use]
    pub fn in_api(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.json == name)
    }

    /// The field that a plan lists as `name`.
    #[must_use]
    pub fn in_plan(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| match field.compared {
            Compared::Object(object) | Compared::ObjectInContext(object) => object == name,
            Compared::Plain | Compared::InBoth | Compared::Hidden => field.json == name,
        })
    }
}

pub(super) static EMPTY: Schema = Schema::EMPTY;

/// Where groups of a single task are collected: Nomad lists them before the others.
pub const ALONE: &str = "alone";

/// A job.
#[rustfmt::skip]
pub static JOB: Schema = Schema {
    label: &["ID", "Name"],
    fields: &[
        field("ID", "id", Value(Text)).hidden(),
        field("Name", "name", Value(Text)),
        field("Namespace", "namespace", Value(Text)),
        field("Region", "region", Value(Text)),
        field("Type", "type", Value(Text)),
        field("Priority", "priority", Value(Int)),
        field("AllAtOnce", "all_at_once", Value(Bool)),
        field("Datacenters", "datacenters", Value(Texts)).plan("Datacenters"),
        field("NodePool", "node_pool", Value(Text)),
        field("Meta", "meta", Value(TextMap)),
        field("Affinities", "affinity", Block(Conditions, &AFFINITY)).plan("Affinity"),
        field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)).plan("Constraint"),
        field("TaskGroups", "group", Block(Many, &GROUP)),
        field("Migrate", "migrate", Block(One, &MIGRATE)),
        field("ParameterizedJob", "parameterized", Block(One, &PARAMETERIZED)).plan("ParameterizedJob"),
        field("Periodic", "periodic", Block(One, &PERIODIC)).plan("Periodic"),
        field("Reschedule", "reschedule", Block(One, &RESCHEDULE)),
        field("Spreads", "spread", Block(Many, &SPREAD)).plan("Spread"),
        field(ALONE, "task", Block(Alone, &TASK)),
        field("UI", "ui", Block(One, &UI)),
        field("Update", "update", Block(One, &UPDATE)),
        field("Status", "", Value(Text)).hidden(),
        field("StatusDescription", "", Value(Text)).hidden(),
        field("Stable", "", Value(Bool)).hidden(),
        field("Version", "", Value(Int)).hidden(),
        field("SubmitTime", "", Value(Int)).hidden(),
        field("CreateIndex", "", Value(Int)).hidden(),
        field("ModifyIndex", "", Value(Int)).hidden(),
        field("JobModifyIndex", "", Value(Int)).hidden(),
        field("ParentID", "", Value(Text)).hidden(),
        field("NomadTokenID", "", Value(Text)).hidden(),
        field("ConsulNamespace", "", Value(Text)).hidden(),
        field("VaultNamespace", "", Value(Text)).hidden(),
        field("Payload", "", Value(Text)).hidden(),
        field("Multiregion", "", Block(One, &MULTIREGION)).plan("Multiregion"),
    ],
    plan_order: &["Datacenters", "Constraint", "Affinity", "Spread", "Periodic", "ParameterizedJob", "Multiregion"],
    ..Schema::EMPTY
};

/// The attributes of a condition. What a short form becomes is decided where conditions are read; its
/// name in the API is its own until then.
pub(super) static CONSTRAINT: Schema = Schema {
    fields: &[
        field("LTarget", "attribute", Value(Text)),
        field("Operand", "operator", Value(Text)),
        field("RTarget", "value", Value(Text)),
        field("distinct_hosts", "distinct_hosts", Value(Bool)),
        field("distinct_property", "distinct_property", Value(Text)),
        field("is_not_set", "is_not_set", Value(Text)),
        field("is_set", "is_set", Value(Text)),
        field("regexp", "regexp", Value(Text)),
        field("semver", "semver", Value(Text)),
        field("set_contains", "set_contains", Value(Text)),
        field("set_contains_all", "set_contains_all", Value(Text)),
        field("set_contains_any", "set_contains_any", Value(Text)),
        field("version", "version", Value(Text)),
    ],
    defaults: &[("Operand", "=")],
    ..Schema::EMPTY
};

pub(super) static AFFINITY: Schema = Schema {
    fields: &[
        field("LTarget", "attribute", Value(Text)),
        field("Operand", "operator", Value(Text)),
        field("RTarget", "value", Value(Text)),
        field("Weight", "weight", Value(Int)),
        field("is_not_set", "is_not_set", Value(Text)),
        field("is_set", "is_set", Value(Text)),
        field("regexp", "regexp", Value(Text)),
        field("semver", "semver", Value(Text)),
        field("set_contains", "set_contains", Value(Text)),
        field("set_contains_all", "set_contains_all", Value(Text)),
        field("set_contains_any", "set_contains_any", Value(Text)),
        field("version", "version", Value(Text)),
    ],
    defaults: &[("Operand", "=")],
    ..Schema::EMPTY
};

pub(super) static SPREAD: Schema = Schema {
    fields: &[
        field("Attribute", "attribute", Value(Text)),
        field("Weight", "weight", Value(Int)),
        field("SpreadTarget", "target", Block(Many, &TARGET)).plan("SpreadTarget"),
    ],
    ..Schema::EMPTY
};

static TARGET: Schema = Schema {
    label: &["Value"],
    fields: &[field("Percent", "percent", Value(Int))],
    ..Schema::EMPTY
};

static PERIODIC: Schema = Schema {
    fields: &[
        field("Spec", "cron", Value(Text)),
        field("Specs", "crons", Value(Texts)),
        field("Enabled", "enabled", Value(Bool)),
        field("ProhibitOverlap", "prohibit_overlap", Value(Bool)),
        field("TimeZone", "time_zone", Value(Text)),
    ],
    defaults: &[("SpecType", "cron")],
    ..Schema::EMPTY
};

static PARAMETERIZED: Schema = Schema {
    fields: &[
        field("MetaOptional", "meta_optional", Value(Texts)).plan("MetaOptional"),
        field("MetaRequired", "meta_required", Value(Texts)).plan("MetaRequired"),
        field("Payload", "payload", Value(Text)),
    ],
    ..Schema::EMPTY
};

#[rustfmt::skip]
static UI: Schema = Schema {
    fields: &[
        field("Description", "description", Value(Text)), field("Links", "link", Block(Many, &LINK)),
    ],
    ..Schema::EMPTY
};

static LINK: Schema = Schema {
    fields: &[
        field("Label", "label", Value(Text)),
        field("URL", "url", Value(Text)),
    ],
    ..Schema::EMPTY
};

pub(super) static DISCONNECT: Schema = Schema {
    fields: &[
        field("LostAfter", "lost_after", Value(Duration)),
        field("Reconcile", "reconcile", Value(Text)),
        field("Replace", "replace", Value(Bool)),
        field("StopOnClientAfter", "stop_on_client_after", Value(Duration)),
    ],
    ..Schema::EMPTY
};

pub(super) static RESTART: Schema = Schema {
    fields: &[
        field("Attempts", "attempts", Value(Int)),
        field("Delay", "delay", Value(Duration)),
        field("Interval", "interval", Value(Duration)),
        field("Mode", "mode", Value(Text)),
        field("RenderTemplates", "render_templates", Value(Bool)),
    ],
    ..Schema::EMPTY
};

pub(super) static SCALING: Schema = Schema {
    fields: &[
        field("Enabled", "enabled", Value(Bool)),
        field("Max", "max", Value(Int)),
        field("Min", "min", Value(Int)),
        field("Type", "type", Value(Word(&["horizontal"]))),
        field("Policy", "policy", Block(Free, &EMPTY)),
        field("ID", "", Value(Text)).hidden(),
        field("CreateIndex", "", Value(Int)).hidden(),
        field("ModifyIndex", "", Value(Int)).hidden(),
        field("Target", "", Value(TextMap)),
    ],
    required: &["max"],
    defaults: &[("Type", "horizontal")],
    ..Schema::EMPTY
};

/// The scaling of a task's resources. Its label is `cpu` or `mem`.
pub(super) static TASK_SCALING: Schema = Schema {
    label: &["Type"],
    fields: &[
        field("Enabled", "enabled", Value(Bool)),
        field("Max", "max", Value(Int)),
        field("Min", "min", Value(Int)),
        field("type", "type", Value(Text)),
        field("Policy", "policy", Block(Free, &EMPTY)),
    ],
    required: &["max"],
    ..Schema::EMPTY
};

pub(super) static IDENTITY: Schema = Schema {
    fields: &[
        field("Audience", "aud", Value(Texts)),
        field("ChangeMode", "change_mode", Value(Text)),
        field("ChangeSignal", "change_signal", Value(Text)),
        field("Env", "env", Value(Bool)),
        field("File", "file", Value(Bool)),
        field("Filepath", "filepath", Value(Text)),
        field("Name", "name", Value(Text)),
        field("TTL", "ttl", Value(Duration)),
    ],
    ..Schema::EMPTY
};

pub(super) static VOLUME: Schema = Schema {
    label: &["Name"],
    fields: &[
        field("AccessMode", "access_mode", Value(Text)),
        field("AttachmentMode", "attachment_mode", Value(Text)),
        field("PerAlloc", "per_alloc", Value(Bool)),
        field("ReadOnly", "read_only", Value(Bool)),
        field("Source", "source", Value(Text)),
        field("Sticky", "sticky", Value(Bool)),
        field("Type", "type", Value(Text)),
        field("MountOptions", "", Block(One, &MOUNT_OPTIONS)).plan("MountOptions"),
    ],
    ..Schema::EMPTY
};

pub(super) static VOLUME_MOUNT: Schema = Schema {
    fields: &[
        field("Destination", "destination", Value(Text)),
        field("PropagationMode", "propagation_mode", Value(Text)),
        field("ReadOnly", "read_only", Value(Bool)),
        field("SELinuxLabel", "selinux_label", Value(Text)),
        field("Volume", "volume", Value(Text)),
    ],
    ..Schema::EMPTY
};

pub(super) static NETWORK: Schema = Schema {
    fields: &[
        field("Hostname", "hostname", Value(Text)),
        field("MBits", "mbits", Value(Int)),
        field("Mode", "mode", Value(Text)),
        field("CNI", "cni", Block(One, &CNI)).plan("CNIConfig"),
        field("DNS", "dns", Block(One, &DNS)).plan("DNS"),
        field("Policy", "policy", Block(One, &POLICY)).plan("Policy"),
        field("", "port", Block(Ports, &PORT)),
        field("Device", "", Value(Text)).hidden(),
        field("CIDR", "", Value(Text)).hidden(),
        field("IP", "", Value(Text)).hidden(),
        field("DynamicPorts", "", Block(Many, &DYNAMIC_PORT)).plan("Dynamic Port"),
        field("ReservedPorts", "", Block(Many, &PORT)).plan("Static Port"),
    ],
    plan_order: &["DNS", "CNIConfig", "Static Port", "Dynamic Port", "Policy"],
    ..Schema::EMPTY
};

static CNI: Schema = Schema {
    fields: &[field("Args", "args", Value(TextMap))],
    ..Schema::EMPTY
};

static DNS: Schema = Schema {
    fields: &[
        field("Options", "options", Value(Texts)).plan("Options"),
        field("Searches", "searches", Value(Texts)).plan("Searches"),
        field("Servers", "servers", Value(Texts)).plan("Servers"),
    ],
    ..Schema::EMPTY
};

static PORT: Schema = Schema {
    label: &["Label"],
    fields: &[
        field("HostNetwork", "host_network", Value(Text)),
        field("IgnoreCollision", "ignore_collision", Value(Bool)),
        field("Value", "static", Value(Int)),
        field("To", "to", Value(Int)),
    ],
    ..Schema::EMPTY
};

pub(super) static POLICY: Schema = Schema {
    fields: &[
        field("Egress", "egress", Block(One, &POLICY_DIRECTION)).plan("Egress"),
        field("Ingress", "ingress", Block(One, &POLICY_DIRECTION)).plan("Ingress"),
    ],
    ..Schema::EMPTY
};

static POLICY_DIRECTION: Schema = Schema {
    fields: &[
        field("Default", "default", Value(Text)),
        field("Rate", "rate", Value(Text)),
        field("Rules", "rule", Block(ManyByName, &POLICY_RULE)).plan("Rule"),
    ],
    ..Schema::EMPTY
};

static POLICY_RULE: Schema = Schema {
    label: &["Name"],
    fields: &[
        field("Action", "action", Value(Text)),
        field("ICMPCode", "icmp_code", Value(Int)),
        field("ICMPType", "icmp_type", Value(Int)),
        field("Log", "log", Value(Bool)),
        field("Peers", "peers", Value(Texts)).plan("Peers"),
        field("Ports", "ports", Value(Texts)).plan("Ports"),
        field("Protocol", "protocol", Value(Text)),
    ],
    required: &["action"],
    ..Schema::EMPTY
};

pub(super) static LIFECYCLE: Schema = Schema {
    fields: &[
        field("Hook", "hook", Value(Text)),
        field("Sidecar", "sidecar", Value(Bool)),
    ],
    required: &["hook"],
    ..Schema::EMPTY
};

pub(super) static DISPATCH_PAYLOAD: Schema = Schema {
    fields: &[field("File", "file", Value(Text))],
    ..Schema::EMPTY
};

pub(super) static RESOURCES: Schema = Schema {
    fields: &[
        field("Cores", "cores", Value(Int)),
        field("CPU", "cpu", Value(Int)),
        field("CPUHardLimit", "cpu_hard_limit", Value(Bool)),
        field("DiskMB", "disk", Value(Int)),
        field("IOPS", "iops", Value(Int)),
        field("MemoryMB", "memory", Value(Int)),
        field("MemoryMaxMB", "memory_max", Value(Int)),
        field("Devices", "device", Block(Many, &DEVICE)).plan("Device"),
        field("IO", "io", Block(One, &IO)).plan("IO"),
        field("Networks", "network", Block(Many, &NETWORK)).plan("Network"),
    ],
    ..Schema::EMPTY
};

static IO: Schema = Schema {
    fields: &[
        field("ReadOps", "read_ops", Value(Int)),
        field("ReadRate", "read_rate", Value(Text)),
        field("Weight", "weight", Value(Int)),
        field("WriteOps", "write_ops", Value(Int)),
        field("WriteRate", "write_rate", Value(Text)),
    ],
    ..Schema::EMPTY
};

static DEVICE: Schema = Schema {
    label: &["Name"],
    fields: &[
        field("Count", "count", Value(Int)),
        field("Affinities", "affinity", Block(Conditions, &AFFINITY)),
        field("Constraints", "constraint", Block(Conditions, &CONSTRAINT)),
    ],
    ..Schema::EMPTY
};

pub(super) static LOGS: Schema = Schema {
    fields: &[
        field("Disabled", "disabled", Value(Bool)),
        field("Enabled", "enabled", Value(Bool)),
        field("MaxFileSizeMB", "max_file_size", Value(Int)),
        field("MaxFiles", "max_files", Value(Int)),
        field("OnFull", "on_full", Value(Word(&["block", "drop"]))),
        field("OnLimit", "on_limit", Value(Word(&["block", "drop"]))),
        field("Rate", "rate", Value(Text)),
    ],
    ..Schema::EMPTY
};

// Blocks that no job has here. A plan compares jobs of Nomad that have them.

static DYNAMIC_PORT: Schema = Schema {
    fields: &[field("Value", "", Value(Int)).hidden()],
    ..Schema::EMPTY
};

static MULTIREGION: Schema = Schema {
    fields: &[
        field("Strategy", "", Block(One, &EMPTY)).plan("Strategy"),
        field("Regions", "", Block(ManyByName, &REGION)).plan("Region"),
    ],
    ..Schema::EMPTY
};

static REGION: Schema = Schema {
    fields: &[
        field("Meta", "", Value(TextMap)),
        field("Datacenters", "", Value(Texts)).plan("Datacenters"),
    ],
    ..Schema::EMPTY
};

pub(super) static ARTIFACT: Schema = Schema {
    fields: &[
        field("GetterHeaders", "", Value(TextMap)),
        field("GetterOptions", "", Value(TextMap)),
    ],
    ..Schema::EMPTY
};

pub(super) static VAULT: Schema = Schema {
    fields: &[field("Policies", "", Value(Texts)).plan("Policies")],
    ..Schema::EMPTY
};

static MOUNT_OPTIONS: Schema = Schema {
    fields: &[field("MountFlags", "", Value(Texts)).plan("MountFlags")],
    ..Schema::EMPTY
};

pub(super) static SERVICE: Schema = Schema {
    fields: &[
        field("CanaryMeta", "", Value(TextMap)),
        field("Meta", "", Value(TextMap)),
        field("Connect", "", Block(One, &CONNECT)).plan("ConsulConnect"),
        field("CanaryTags", "", Value(Texts)).compared(Compared::ObjectInContext("CanaryTags")),
        field("Checks", "", Block(ManyByName, &CHECK)).plan("Check"),
        field("Tags", "", Value(Texts)).compared(Compared::ObjectInContext("Tags")),
    ],
    plan_order: &["CanaryTags", "Tags", "Check", "ConsulConnect"],
    ..Schema::EMPTY
};

static CHECK: Schema = Schema {
    fields: &[
        field("CheckRestart", "", Block(One, &EMPTY)).plan("CheckRestart"),
        field("Header", "", Block(Free, &EMPTY)).plan("Header"),
    ],
    plan_order: &["Header", "CheckRestart"],
    ..Schema::EMPTY
};

static CONNECT: Schema = Schema {
    fields: &[
        field("Gateway", "", Block(Free, &EMPTY)).plan("Gateway"),
        field("SidecarService", "", Block(One, &SIDECAR_SERVICE)).plan("SidecarService"),
        field("SidecarTask", "", Block(Free, &EMPTY)).plan("SidecarTask"),
    ],
    ..Schema::EMPTY
};

static SIDECAR_SERVICE: Schema = Schema {
    fields: &[
        field("Proxy", "", Block(Free, &EMPTY)).plan("ConsulProxy"),
        field("Tags", "", Value(Texts)).plan("Tags"),
    ],
    ..Schema::EMPTY
};
