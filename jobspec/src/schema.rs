//! The schema of a job file: one table a block.
//!
//! A field is one row: its name in the file, its name in the API, and its kind. Names of Nomad that
//! this version does not have are in `muster_wire::api::job::unsupported`, which the API reads as well.

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
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

impl ValueKind {
    /// Describes the kind in messages.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Text => "a text in quotes".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Int => "a whole number".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Duration => {
                "a duration such as \"30s\" or \"1h15m\", or whole nanoseconds".to_owned()
            }
            Self::Texts => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
            Self::TextMap => "keys with texts, such as { KEY = \"value\" }".to_owned(),
        }
    }
}

/// One attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attr {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) kind: ValueKind,
}

/// How often a block may stand, and what it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockShape {
    One,
    /// Any number of times; a list of objects.
    Many,
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

/// One nested block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nested {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) shape: BlockShape,
    pub(crate) block: &'static Block,
}

/// One kind of block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The API field of the label; empty if there is none.
    pub(crate) label: &'static [&'static str],
    pub(crate) attrs: &'static [Attr],
    pub(crate) blocks: &'static [Nested],
    /// Attributes that must be there.
    pub(crate) required: &'static [&'static str],
    /// Names in the API with the text that stands there if the file does not say another.
    pub(crate) defaults: &'static [(&'static str, &'static str)],
}

const fn attr(name: &'static str, json: &'static str, kind: ValueKind) -> Attr {
    Attr { name, json, kind }
}

const fn nested(
    name: &'static str,
    json: &'static str,
    shape: BlockShape,
    block: &'static Block,
) -> Nested {
    Nested {
        name,
        json,
        shape,
        block,
    }
}

const EMPTY: Block = Block {
    label: &[],
    attrs: &[],
    blocks: &[],
    required: &[],
    defaults: &[],
};

/// Where groups of a single task are collected: Nomad lists them before the others.
pub(crate) const ALONE: &str = "alone";

pub(crate) const JOB: Block = Block {
    label: &["ID", "Name"],
    attrs: &[
        attr("id", "ID", ValueKind::Text),
        attr("name", "Name", ValueKind::Text),
        attr("namespace", "Namespace", ValueKind::Text),
        attr("region", "Region", ValueKind::Text),
        attr("type", "Type", ValueKind::Text),
        attr("priority", "Priority", ValueKind::Int),
        attr("all_at_once", "AllAtOnce", ValueKind::Bool),
        attr("datacenters", "Datacenters", ValueKind::Texts),
        attr("node_pool", "NodePool", ValueKind::Text),
        attr("meta", "Meta", ValueKind::TextMap),
    ],
    blocks: &[
        nested("affinity", "Affinities", BlockShape::Conditions, &AFFINITY),
        nested(
            "constraint",
            "Constraints",
            BlockShape::Conditions,
            &CONSTRAINT,
        ),
        nested("group", "TaskGroups", BlockShape::Many, &GROUP),
        nested("migrate", "Migrate", BlockShape::One, &MIGRATE),
        nested(
            "parameterized",
            "ParameterizedJob",
            BlockShape::One,
            &PARAMETERIZED,
        ),
        nested("periodic", "Periodic", BlockShape::One, &PERIODIC),
        nested("reschedule", "Reschedule", BlockShape::One, &RESCHEDULE),
        nested("spread", "Spreads", BlockShape::Many, &SPREAD),
        nested("task", ALONE, BlockShape::Alone, &TASK),
        nested("ui", "UI", BlockShape::One, &UI),
        nested("update", "Update", BlockShape::One, &UPDATE),
    ],
    ..EMPTY
};

const GROUP: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("count", "Count", ValueKind::Int),
        attr(
            "max_client_disconnect",
            "MaxClientDisconnect",
            ValueKind::Duration,
        ),
        attr("meta", "Meta", ValueKind::TextMap),
        attr(
            "prevent_reschedule_on_lost",
            "PreventRescheduleOnLost",
            ValueKind::Bool,
        ),
        attr("shutdown_delay", "ShutdownDelay", ValueKind::Duration),
        attr(
            "stop_after_client_disconnect",
            "StopAfterClientDisconnect",
            ValueKind::Duration,
        ),
    ],
    blocks: &[
        nested("affinity", "Affinities", BlockShape::Conditions, &AFFINITY),
        nested(
            "constraint",
            "Constraints",
            BlockShape::Conditions,
            &CONSTRAINT,
        ),
        nested("disconnect", "Disconnect", BlockShape::One, &DISCONNECT),
        nested(
            "ephemeral_disk",
            "EphemeralDisk",
            BlockShape::One,
            &EPHEMERAL_DISK,
        ),
        nested("migrate", "Migrate", BlockShape::One, &MIGRATE),
        nested("network", "Networks", BlockShape::Many, &NETWORK),
        nested(
            "reschedule",
            "ReschedulePolicy",
            BlockShape::One,
            &RESCHEDULE,
        ),
        nested("restart", "RestartPolicy", BlockShape::One, &RESTART),
        nested("scaling", "Scaling", BlockShape::One, &SCALING),
        nested("spread", "Spreads", BlockShape::Many, &SPREAD),
        nested("task", "Tasks", BlockShape::Many, &TASK),
        nested("update", "Update", BlockShape::One, &UPDATE),
        nested("volume", "Volumes", BlockShape::Named, &VOLUME),
    ],
    ..EMPTY
};

const TASK: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("driver", "Driver", ValueKind::Text),
        attr("env", "Env", ValueKind::TextMap),
        attr("kill_signal", "KillSignal", ValueKind::Text),
        attr("kill_timeout", "KillTimeout", ValueKind::Duration),
        attr("leader", "Leader", ValueKind::Bool),
        attr("meta", "Meta", ValueKind::TextMap),
        attr("shutdown_delay", "ShutdownDelay", ValueKind::Duration),
        attr("user", "User", ValueKind::Text),
    ],
    blocks: &[
        nested("affinity", "Affinities", BlockShape::Conditions, &AFFINITY),
        nested("config", "Config", BlockShape::Free, &EMPTY),
        nested(
            "constraint",
            "Constraints",
            BlockShape::Conditions,
            &CONSTRAINT,
        ),
        nested(
            "dispatch_payload",
            "DispatchPayload",
            BlockShape::One,
            &DISPATCH_PAYLOAD,
        ),
        nested("identity", "Identities", BlockShape::Many, &IDENTITY),
        nested("lifecycle", "Lifecycle", BlockShape::One, &LIFECYCLE),
        nested("logs", "LogConfig", BlockShape::One, &LOGS),
        nested("policy", "Policy", BlockShape::One, &POLICY),
        nested("resources", "Resources", BlockShape::One, &RESOURCES),
        nested("restart", "RestartPolicy", BlockShape::One, &RESTART),
        nested(
            "scaling",
            "ScalingPolicies",
            BlockShape::Many,
            &TASK_SCALING,
        ),
        nested(
            "volume_mount",
            "VolumeMounts",
            BlockShape::Many,
            &VOLUME_MOUNT,
        ),
    ],
    ..EMPTY
};

/// The attributes of a condition. What a short form becomes is decided where conditions are read; its
/// name in the API is its own until then.
const CONSTRAINT: Block = Block {
    attrs: &[
        attr("attribute", "LTarget", ValueKind::Text),
        attr("operator", "Operand", ValueKind::Text),
        attr("value", "RTarget", ValueKind::Text),
        attr("distinct_hosts", "distinct_hosts", ValueKind::Bool),
        attr("distinct_property", "distinct_property", ValueKind::Text),
        attr("is_not_set", "is_not_set", ValueKind::Text),
        attr("is_set", "is_set", ValueKind::Text),
        attr("regexp", "regexp", ValueKind::Text),
        attr("semver", "semver", ValueKind::Text),
        attr("set_contains", "set_contains", ValueKind::Text),
        attr("set_contains_all", "set_contains_all", ValueKind::Text),
        attr("set_contains_any", "set_contains_any", ValueKind::Text),
        attr("version", "version", ValueKind::Text),
    ],
    defaults: &[("Operand", "=")],
    ..EMPTY
};

const AFFINITY: Block = Block {
    attrs: &[
        attr("attribute", "LTarget", ValueKind::Text),
        attr("operator", "Operand", ValueKind::Text),
        attr("value", "RTarget", ValueKind::Text),
        attr("weight", "Weight", ValueKind::Int),
        attr("is_not_set", "is_not_set", ValueKind::Text),
        attr("is_set", "is_set", ValueKind::Text),
        attr("regexp", "regexp", ValueKind::Text),
        attr("semver", "semver", ValueKind::Text),
        attr("set_contains", "set_contains", ValueKind::Text),
        attr("set_contains_all", "set_contains_all", ValueKind::Text),
        attr("set_contains_any", "set_contains_any", ValueKind::Text),
        attr("version", "version", ValueKind::Text),
    ],
    defaults: &[("Operand", "=")],
    ..EMPTY
};

const SPREAD: Block = Block {
    attrs: &[
        attr("attribute", "Attribute", ValueKind::Text),
        attr("weight", "Weight", ValueKind::Int),
    ],
    blocks: &[nested("target", "SpreadTarget", BlockShape::Many, &TARGET)],
    ..EMPTY
};

const TARGET: Block = Block {
    label: &["Value"],
    attrs: &[attr("percent", "Percent", ValueKind::Int)],
    ..EMPTY
};

const UPDATE: Block = Block {
    attrs: &[
        attr("auto_promote", "AutoPromote", ValueKind::Bool),
        attr("auto_revert", "AutoRevert", ValueKind::Bool),
        attr("canary", "Canary", ValueKind::Int),
        attr("health_check", "HealthCheck", ValueKind::Text),
        attr("healthy_deadline", "HealthyDeadline", ValueKind::Duration),
        attr("max_parallel", "MaxParallel", ValueKind::Int),
        attr("min_healthy_time", "MinHealthyTime", ValueKind::Duration),
        attr("progress_deadline", "ProgressDeadline", ValueKind::Duration),
        attr("stagger", "Stagger", ValueKind::Duration),
    ],
    ..EMPTY
};

const MIGRATE: Block = Block {
    attrs: &[
        attr("health_check", "HealthCheck", ValueKind::Text),
        attr("healthy_deadline", "HealthyDeadline", ValueKind::Duration),
        attr("max_parallel", "MaxParallel", ValueKind::Int),
        attr("min_healthy_time", "MinHealthyTime", ValueKind::Duration),
    ],
    ..EMPTY
};

const RESCHEDULE: Block = Block {
    attrs: &[
        attr("attempts", "Attempts", ValueKind::Int),
        attr("delay", "Delay", ValueKind::Duration),
        attr("delay_function", "DelayFunction", ValueKind::Text),
        attr("interval", "Interval", ValueKind::Duration),
        attr("max_delay", "MaxDelay", ValueKind::Duration),
        attr("unlimited", "Unlimited", ValueKind::Bool),
    ],
    ..EMPTY
};

const PERIODIC: Block = Block {
    attrs: &[
        attr("cron", "Spec", ValueKind::Text),
        attr("crons", "Specs", ValueKind::Texts),
        attr("enabled", "Enabled", ValueKind::Bool),
        attr("prohibit_overlap", "ProhibitOverlap", ValueKind::Bool),
        attr("time_zone", "TimeZone", ValueKind::Text),
    ],
    defaults: &[("SpecType", "cron")],
    ..EMPTY
};

const PARAMETERIZED: Block = Block {
    attrs: &[
        attr("meta_optional", "MetaOptional", ValueKind::Texts),
        attr("meta_required", "MetaRequired", ValueKind::Texts),
        attr("payload", "Payload", ValueKind::Text),
    ],
    ..EMPTY
};

const UI: Block = Block {
    attrs: &[attr("description", "Description", ValueKind::Text)],
    blocks: &[nested("link", "Links", BlockShape::Many, &LINK)],
    ..EMPTY
};

const LINK: Block = Block {
    attrs: &[
        attr("label", "Label", ValueKind::Text),
        attr("url", "URL", ValueKind::Text),
    ],
    ..EMPTY
};

const DISCONNECT: Block = Block {
    attrs: &[
        attr("lost_after", "LostAfter", ValueKind::Duration),
        attr("reconcile", "Reconcile", ValueKind::Text),
        attr("replace", "Replace", ValueKind::Bool),
        attr(
            "stop_on_client_after",
            "StopOnClientAfter",
            ValueKind::Duration,
        ),
    ],
    ..EMPTY
};

const RESTART: Block = Block {
    attrs: &[
        attr("attempts", "Attempts", ValueKind::Int),
        attr("delay", "Delay", ValueKind::Duration),
        attr("interval", "Interval", ValueKind::Duration),
        attr("mode", "Mode", ValueKind::Text),
        attr("render_templates", "RenderTemplates", ValueKind::Bool),
    ],
    ..EMPTY
};

const SCALING: Block = Block {
    attrs: &[
        attr("enabled", "Enabled", ValueKind::Bool),
        attr("max", "Max", ValueKind::Int),
        attr("min", "Min", ValueKind::Int),
        attr("type", "Type", ValueKind::Word(&["horizontal"])),
    ],
    blocks: &[nested("policy", "Policy", BlockShape::Free, &EMPTY)],
    required: &["max"],
    defaults: &[("Type", "horizontal")],
    ..EMPTY
};

/// The scaling of a task's resources. Its label is `cpu` or `mem`.
const TASK_SCALING: Block = Block {
    label: &["Type"],
    attrs: &[
        attr("enabled", "Enabled", ValueKind::Bool),
        attr("max", "Max", ValueKind::Int),
        attr("min", "Min", ValueKind::Int),
        attr("type", "type", ValueKind::Text),
    ],
    blocks: &[nested("policy", "Policy", BlockShape::Free, &EMPTY)],
    required: &["max"],
    ..EMPTY
};

const IDENTITY: Block = Block {
    attrs: &[
        attr("aud", "Audience", ValueKind::Texts),
        attr("change_mode", "ChangeMode", ValueKind::Text),
        attr("change_signal", "ChangeSignal", ValueKind::Text),
        attr("env", "Env", ValueKind::Bool),
        attr("file", "File", ValueKind::Bool),
        attr("filepath", "Filepath", ValueKind::Text),
        attr("name", "Name", ValueKind::Text),
        attr("ttl", "TTL", ValueKind::Duration),
    ],
    ..EMPTY
};

const VOLUME: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("access_mode", "AccessMode", ValueKind::Text),
        attr("attachment_mode", "AttachmentMode", ValueKind::Text),
        attr("per_alloc", "PerAlloc", ValueKind::Bool),
        attr("read_only", "ReadOnly", ValueKind::Bool),
        attr("source", "Source", ValueKind::Text),
        attr("sticky", "Sticky", ValueKind::Bool),
        attr("type", "Type", ValueKind::Text),
    ],
    ..EMPTY
};

const VOLUME_MOUNT: Block = Block {
    attrs: &[
        attr("destination", "Destination", ValueKind::Text),
        attr("propagation_mode", "PropagationMode", ValueKind::Text),
        attr("read_only", "ReadOnly", ValueKind::Bool),
        attr("selinux_label", "SELinuxLabel", ValueKind::Text),
        attr("volume", "Volume", ValueKind::Text),
    ],
    ..EMPTY
};

const EPHEMERAL_DISK: Block = Block {
    attrs: &[
        attr("migrate", "Migrate", ValueKind::Bool),
        attr("size", "SizeMB", ValueKind::Int),
        attr("sticky", "Sticky", ValueKind::Bool),
    ],
    ..EMPTY
};

const NETWORK: Block = Block {
    attrs: &[
        attr("hostname", "Hostname", ValueKind::Text),
        attr("mbits", "MBits", ValueKind::Int),
        attr("mode", "Mode", ValueKind::Text),
    ],
    blocks: &[
        nested("cni", "CNI", BlockShape::One, &CNI),
        nested("dns", "DNS", BlockShape::One, &DNS),
        nested("policy", "Policy", BlockShape::One, &POLICY),
        nested("port", "", BlockShape::Ports, &PORT),
    ],
    ..EMPTY
};

const CNI: Block = Block {
    attrs: &[attr("args", "Args", ValueKind::TextMap)],
    ..EMPTY
};

const DNS: Block = Block {
    attrs: &[
        attr("options", "Options", ValueKind::Texts),
        attr("searches", "Searches", ValueKind::Texts),
        attr("servers", "Servers", ValueKind::Texts),
    ],
    ..EMPTY
};

const PORT: Block = Block {
    label: &["Label"],
    attrs: &[
        attr("host_network", "HostNetwork", ValueKind::Text),
        attr("ignore_collision", "IgnoreCollision", ValueKind::Bool),
        attr("static", "Value", ValueKind::Int),
        attr("to", "To", ValueKind::Int),
    ],
    ..EMPTY
};

const POLICY: Block = Block {
    blocks: &[
        nested("egress", "Egress", BlockShape::One, &POLICY_DIRECTION),
        nested("ingress", "Ingress", BlockShape::One, &POLICY_DIRECTION),
    ],
    ..EMPTY
};

const POLICY_DIRECTION: Block = Block {
    attrs: &[
        attr("default", "Default", ValueKind::Text),
        attr("rate", "Rate", ValueKind::Text),
    ],
    blocks: &[nested("rule", "Rules", BlockShape::Many, &POLICY_RULE)],
    ..EMPTY
};

const POLICY_RULE: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("action", "Action", ValueKind::Text),
        attr("icmp_code", "ICMPCode", ValueKind::Int),
        attr("icmp_type", "ICMPType", ValueKind::Int),
        attr("log", "Log", ValueKind::Bool),
        attr("peers", "Peers", ValueKind::Texts),
        attr("ports", "Ports", ValueKind::Texts),
        attr("protocol", "Protocol", ValueKind::Text),
    ],
    required: &["action"],
    ..EMPTY
};

const LIFECYCLE: Block = Block {
    attrs: &[
        attr("hook", "Hook", ValueKind::Text),
        attr("sidecar", "Sidecar", ValueKind::Bool),
    ],
    required: &["hook"],
    ..EMPTY
};

const DISPATCH_PAYLOAD: Block = Block {
    attrs: &[attr("file", "File", ValueKind::Text)],
    ..EMPTY
};

const RESOURCES: Block = Block {
    attrs: &[
        attr("cores", "Cores", ValueKind::Int),
        attr("cpu", "CPU", ValueKind::Int),
        attr("cpu_hard_limit", "CPUHardLimit", ValueKind::Bool),
        attr("disk", "DiskMB", ValueKind::Int),
        attr("iops", "IOPS", ValueKind::Int),
        attr("memory", "MemoryMB", ValueKind::Int),
        attr("memory_max", "MemoryMaxMB", ValueKind::Int),
    ],
    blocks: &[
        nested("device", "Devices", BlockShape::Many, &DEVICE),
        nested("io", "IO", BlockShape::One, &IO),
        nested("network", "Networks", BlockShape::Many, &NETWORK),
    ],
    ..EMPTY
};

const IO: Block = Block {
    attrs: &[
        attr("read_ops", "ReadOps", ValueKind::Int),
        attr("read_rate", "ReadRate", ValueKind::Text),
        attr("weight", "Weight", ValueKind::Int),
        attr("write_ops", "WriteOps", ValueKind::Int),
        attr("write_rate", "WriteRate", ValueKind::Text),
    ],
    ..EMPTY
};

const DEVICE: Block = Block {
    label: &["Name"],
    attrs: &[attr("count", "Count", ValueKind::Int)],
    blocks: &[
        nested("affinity", "Affinities", BlockShape::Conditions, &AFFINITY),
        nested(
            "constraint",
            "Constraints",
            BlockShape::Conditions,
            &CONSTRAINT,
        ),
    ],
    ..EMPTY
};

const LOGS: Block = Block {
    attrs: &[
        attr("disabled", "Disabled", ValueKind::Bool),
        attr("enabled", "Enabled", ValueKind::Bool),
        attr("max_file_size", "MaxFileSizeMB", ValueKind::Int),
        attr("max_files", "MaxFiles", ValueKind::Int),
        attr("on_full", "OnFull", ValueKind::Word(&["block", "drop"])),
        attr("on_limit", "OnLimit", ValueKind::Word(&["block", "drop"])),
        attr("rate", "Rate", ValueKind::Text),
    ],
    ..EMPTY
};

/// Whether the block `block` has a field or a block `name`, wherever it stands below a job.
#[cfg(test)]
pub(crate) fn knows(block: &str, name: &str) -> bool {
    fn find<'b>(owner: &str, at: &'b Block, wanted: &str) -> Option<&'b Block> {
        if owner == wanted {
            return Some(at);
        }
        let mut blocks = at.blocks.iter();
        blocks.find_map(|nested| find(nested.name, nested.block, wanted))
    }
    find("job", &JOB, block).is_some_and(|block| {
        block.attrs.iter().any(|attr| attr.name == name)
            || block.blocks.iter().any(|nested| nested.name == name)
    })
}
