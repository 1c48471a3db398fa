//! The schema of a job file: one table a block.
//!
//! A field is one row: its name in the file, its name in the API, and its kind. Names of Nomad that
//! this version does not have are in `muster_wire::api::job::unsupported`, which the API reads as well.

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// One of a few texts.
    Word(&'static [&'static str]),
    /// A whole number.
    Int,
    /// True or false.
    Bool,
    /// A text such as `30s`, or a number of nanoseconds; nanoseconds in the API.
    Duration,
    /// A list of texts.
    Texts,
    /// Keys with texts; as a block or as an attribute.
    TextMap,
}

impl Kind {
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
    pub(crate) kind: Kind,
}

/// How often a block may stand, and what it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Once; an object.
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
    pub(crate) shape: Shape,
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

const fn attr(name: &'static str, json: &'static str, kind: Kind) -> Attr {
    Attr { name, json, kind }
}

const fn nested(
    name: &'static str,
    json: &'static str,
    shape: Shape,
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
        attr("id", "ID", Kind::Text),
        attr("name", "Name", Kind::Text),
        attr("namespace", "Namespace", Kind::Text),
        attr("region", "Region", Kind::Text),
        attr("type", "Type", Kind::Text),
        attr("priority", "Priority", Kind::Int),
        attr("all_at_once", "AllAtOnce", Kind::Bool),
        attr("datacenters", "Datacenters", Kind::Texts),
        attr("node_pool", "NodePool", Kind::Text),
        attr("meta", "Meta", Kind::TextMap),
    ],
    blocks: &[
        nested("affinity", "Affinities", Shape::Conditions, &AFFINITY),
        nested("constraint", "Constraints", Shape::Conditions, &CONSTRAINT),
        nested("group", "TaskGroups", Shape::Many, &GROUP),
        nested("migrate", "Migrate", Shape::One, &MIGRATE),
        nested(
            "parameterized",
            "ParameterizedJob",
            Shape::One,
            &PARAMETERIZED,
        ),
        nested("periodic", "Periodic", Shape::One, &PERIODIC),
        nested("reschedule", "Reschedule", Shape::One, &RESCHEDULE),
        nested("spread", "Spreads", Shape::Many, &SPREAD),
        nested("task", ALONE, Shape::Alone, &TASK),
        nested("ui", "UI", Shape::One, &UI),
        nested("update", "Update", Shape::One, &UPDATE),
    ],
    ..EMPTY
};

const GROUP: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("count", "Count", Kind::Int),
        attr(
            "max_client_disconnect",
            "MaxClientDisconnect",
            Kind::Duration,
        ),
        attr("meta", "Meta", Kind::TextMap),
        attr(
            "prevent_reschedule_on_lost",
            "PreventRescheduleOnLost",
            Kind::Bool,
        ),
        attr("shutdown_delay", "ShutdownDelay", Kind::Duration),
        attr(
            "stop_after_client_disconnect",
            "StopAfterClientDisconnect",
            Kind::Duration,
        ),
    ],
    blocks: &[
        nested("affinity", "Affinities", Shape::Conditions, &AFFINITY),
        nested("constraint", "Constraints", Shape::Conditions, &CONSTRAINT),
        nested("disconnect", "Disconnect", Shape::One, &DISCONNECT),
        nested(
            "ephemeral_disk",
            "EphemeralDisk",
            Shape::One,
            &EPHEMERAL_DISK,
        ),
        nested("migrate", "Migrate", Shape::One, &MIGRATE),
        nested("network", "Networks", Shape::Many, &NETWORK),
        nested("reschedule", "ReschedulePolicy", Shape::One, &RESCHEDULE),
        nested("restart", "RestartPolicy", Shape::One, &RESTART),
        nested("scaling", "Scaling", Shape::One, &SCALING),
        nested("spread", "Spreads", Shape::Many, &SPREAD),
        nested("task", "Tasks", Shape::Many, &TASK),
        nested("update", "Update", Shape::One, &UPDATE),
        nested("volume", "Volumes", Shape::Named, &VOLUME),
    ],
    ..EMPTY
};

const TASK: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("driver", "Driver", Kind::Text),
        attr("env", "Env", Kind::TextMap),
        attr("kill_signal", "KillSignal", Kind::Text),
        attr("kill_timeout", "KillTimeout", Kind::Duration),
        attr("leader", "Leader", Kind::Bool),
        attr("meta", "Meta", Kind::TextMap),
        attr("shutdown_delay", "ShutdownDelay", Kind::Duration),
        attr("user", "User", Kind::Text),
    ],
    blocks: &[
        nested("affinity", "Affinities", Shape::Conditions, &AFFINITY),
        nested("config", "Config", Shape::Free, &EMPTY),
        nested("constraint", "Constraints", Shape::Conditions, &CONSTRAINT),
        nested(
            "dispatch_payload",
            "DispatchPayload",
            Shape::One,
            &DISPATCH_PAYLOAD,
        ),
        nested("identity", "Identities", Shape::Many, &IDENTITY),
        nested("lifecycle", "Lifecycle", Shape::One, &LIFECYCLE),
        nested("logs", "LogConfig", Shape::One, &LOGS),
        nested("policy", "Policy", Shape::One, &POLICY),
        nested("resources", "Resources", Shape::One, &RESOURCES),
        nested("restart", "RestartPolicy", Shape::One, &RESTART),
        nested("scaling", "ScalingPolicies", Shape::Many, &TASK_SCALING),
        nested("volume_mount", "VolumeMounts", Shape::Many, &VOLUME_MOUNT),
    ],
    ..EMPTY
};

/// The attributes of a condition. What a short form becomes is decided where conditions are read; its
/// name in the API is its own until then.
const CONSTRAINT: Block = Block {
    attrs: &[
        attr("attribute", "LTarget", Kind::Text),
        attr("operator", "Operand", Kind::Text),
        attr("value", "RTarget", Kind::Text),
        attr("distinct_hosts", "distinct_hosts", Kind::Bool),
        attr("distinct_property", "distinct_property", Kind::Text),
        attr("is_not_set", "is_not_set", Kind::Text),
        attr("is_set", "is_set", Kind::Text),
        attr("regexp", "regexp", Kind::Text),
        attr("semver", "semver", Kind::Text),
        attr("set_contains", "set_contains", Kind::Text),
        attr("set_contains_all", "set_contains_all", Kind::Text),
        attr("set_contains_any", "set_contains_any", Kind::Text),
        attr("version", "version", Kind::Text),
    ],
    defaults: &[("Operand", "=")],
    ..EMPTY
};

const AFFINITY: Block = Block {
    attrs: &[
        attr("attribute", "LTarget", Kind::Text),
        attr("operator", "Operand", Kind::Text),
        attr("value", "RTarget", Kind::Text),
        attr("weight", "Weight", Kind::Int),
        attr("is_not_set", "is_not_set", Kind::Text),
        attr("is_set", "is_set", Kind::Text),
        attr("regexp", "regexp", Kind::Text),
        attr("semver", "semver", Kind::Text),
        attr("set_contains", "set_contains", Kind::Text),
        attr("set_contains_all", "set_contains_all", Kind::Text),
        attr("set_contains_any", "set_contains_any", Kind::Text),
        attr("version", "version", Kind::Text),
    ],
    defaults: &[("Operand", "=")],
    ..EMPTY
};

const SPREAD: Block = Block {
    attrs: &[
        attr("attribute", "Attribute", Kind::Text),
        attr("weight", "Weight", Kind::Int),
    ],
    blocks: &[nested("target", "SpreadTarget", Shape::Many, &TARGET)],
    ..EMPTY
};

const TARGET: Block = Block {
    label: &["Value"],
    attrs: &[attr("percent", "Percent", Kind::Int)],
    ..EMPTY
};

const UPDATE: Block = Block {
    attrs: &[
        attr("auto_promote", "AutoPromote", Kind::Bool),
        attr("auto_revert", "AutoRevert", Kind::Bool),
        attr("canary", "Canary", Kind::Int),
        attr("health_check", "HealthCheck", Kind::Text),
        attr("healthy_deadline", "HealthyDeadline", Kind::Duration),
        attr("max_parallel", "MaxParallel", Kind::Int),
        attr("min_healthy_time", "MinHealthyTime", Kind::Duration),
        attr("progress_deadline", "ProgressDeadline", Kind::Duration),
        attr("stagger", "Stagger", Kind::Duration),
    ],
    ..EMPTY
};

const MIGRATE: Block = Block {
    attrs: &[
        attr("health_check", "HealthCheck", Kind::Text),
        attr("healthy_deadline", "HealthyDeadline", Kind::Duration),
        attr("max_parallel", "MaxParallel", Kind::Int),
        attr("min_healthy_time", "MinHealthyTime", Kind::Duration),
    ],
    ..EMPTY
};

const RESCHEDULE: Block = Block {
    attrs: &[
        attr("attempts", "Attempts", Kind::Int),
        attr("delay", "Delay", Kind::Duration),
        attr("delay_function", "DelayFunction", Kind::Text),
        attr("interval", "Interval", Kind::Duration),
        attr("max_delay", "MaxDelay", Kind::Duration),
        attr("unlimited", "Unlimited", Kind::Bool),
    ],
    ..EMPTY
};

const PERIODIC: Block = Block {
    attrs: &[
        attr("cron", "Spec", Kind::Text),
        attr("crons", "Specs", Kind::Texts),
        attr("enabled", "Enabled", Kind::Bool),
        attr("prohibit_overlap", "ProhibitOverlap", Kind::Bool),
        attr("time_zone", "TimeZone", Kind::Text),
    ],
    defaults: &[("SpecType", "cron")],
    ..EMPTY
};

const PARAMETERIZED: Block = Block {
    attrs: &[
        attr("meta_optional", "MetaOptional", Kind::Texts),
        attr("meta_required", "MetaRequired", Kind::Texts),
        attr("payload", "Payload", Kind::Text),
    ],
    ..EMPTY
};

const UI: Block = Block {
    attrs: &[attr("description", "Description", Kind::Text)],
    blocks: &[nested("link", "Links", Shape::Many, &LINK)],
    ..EMPTY
};

const LINK: Block = Block {
    attrs: &[
        attr("label", "Label", Kind::Text),
        attr("url", "URL", Kind::Text),
    ],
    ..EMPTY
};

const DISCONNECT: Block = Block {
    attrs: &[
        attr("lost_after", "LostAfter", Kind::Duration),
        attr("reconcile", "Reconcile", Kind::Text),
        attr("replace", "Replace", Kind::Bool),
        attr("stop_on_client_after", "StopOnClientAfter", Kind::Duration),
    ],
    ..EMPTY
};

const RESTART: Block = Block {
    attrs: &[
        attr("attempts", "Attempts", Kind::Int),
        attr("delay", "Delay", Kind::Duration),
        attr("interval", "Interval", Kind::Duration),
        attr("mode", "Mode", Kind::Text),
        attr("render_templates", "RenderTemplates", Kind::Bool),
    ],
    ..EMPTY
};

const SCALING: Block = Block {
    attrs: &[
        attr("enabled", "Enabled", Kind::Bool),
        attr("max", "Max", Kind::Int),
        attr("min", "Min", Kind::Int),
        attr("type", "Type", Kind::Word(&["horizontal"])),
    ],
    blocks: &[nested("policy", "Policy", Shape::Free, &EMPTY)],
    required: &["max"],
    defaults: &[("Type", "horizontal")],
    ..EMPTY
};

/// The scaling of a task's resources. Its label is `cpu` or `mem`.
const TASK_SCALING: Block = Block {
    label: &["Type"],
    attrs: &[
        attr("enabled", "Enabled", Kind::Bool),
        attr("max", "Max", Kind::Int),
        attr("min", "Min", Kind::Int),
        attr("type", "type", Kind::Text),
    ],
    blocks: &[nested("policy", "Policy", Shape::Free, &EMPTY)],
    required: &["max"],
    ..EMPTY
};

const IDENTITY: Block = Block {
    attrs: &[
        attr("aud", "Audience", Kind::Texts),
        attr("change_mode", "ChangeMode", Kind::Text),
        attr("change_signal", "ChangeSignal", Kind::Text),
        attr("env", "Env", Kind::Bool),
        attr("file", "File", Kind::Bool),
        attr("filepath", "Filepath", Kind::Text),
        attr("name", "Name", Kind::Text),
        attr("ttl", "TTL", Kind::Duration),
    ],
    ..EMPTY
};

const VOLUME: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("access_mode", "AccessMode", Kind::Text),
        attr("attachment_mode", "AttachmentMode", Kind::Text),
        attr("per_alloc", "PerAlloc", Kind::Bool),
        attr("read_only", "ReadOnly", Kind::Bool),
        attr("source", "Source", Kind::Text),
        attr("sticky", "Sticky", Kind::Bool),
        attr("type", "Type", Kind::Text),
    ],
    ..EMPTY
};

const VOLUME_MOUNT: Block = Block {
    attrs: &[
        attr("destination", "Destination", Kind::Text),
        attr("propagation_mode", "PropagationMode", Kind::Text),
        attr("read_only", "ReadOnly", Kind::Bool),
        attr("selinux_label", "SELinuxLabel", Kind::Text),
        attr("volume", "Volume", Kind::Text),
    ],
    ..EMPTY
};

const EPHEMERAL_DISK: Block = Block {
    attrs: &[
        attr("migrate", "Migrate", Kind::Bool),
        attr("size", "SizeMB", Kind::Int),
        attr("sticky", "Sticky", Kind::Bool),
    ],
    ..EMPTY
};

const NETWORK: Block = Block {
    attrs: &[
        attr("hostname", "Hostname", Kind::Text),
        attr("mbits", "MBits", Kind::Int),
        attr("mode", "Mode", Kind::Text),
    ],
    blocks: &[
        nested("cni", "CNI", Shape::One, &CNI),
        nested("dns", "DNS", Shape::One, &DNS),
        nested("policy", "Policy", Shape::One, &POLICY),
        nested("port", "", Shape::Ports, &PORT),
    ],
    ..EMPTY
};

const CNI: Block = Block {
    attrs: &[attr("args", "Args", Kind::TextMap)],
    ..EMPTY
};

const DNS: Block = Block {
    attrs: &[
        attr("options", "Options", Kind::Texts),
        attr("searches", "Searches", Kind::Texts),
        attr("servers", "Servers", Kind::Texts),
    ],
    ..EMPTY
};

const PORT: Block = Block {
    label: &["Label"],
    attrs: &[
        attr("host_network", "HostNetwork", Kind::Text),
        attr("ignore_collision", "IgnoreCollision", Kind::Bool),
        attr("static", "Value", Kind::Int),
        attr("to", "To", Kind::Int),
    ],
    ..EMPTY
};

const POLICY: Block = Block {
    blocks: &[
        nested("egress", "Egress", Shape::One, &POLICY_DIRECTION),
        nested("ingress", "Ingress", Shape::One, &POLICY_DIRECTION),
    ],
    ..EMPTY
};

const POLICY_DIRECTION: Block = Block {
    attrs: &[
        attr("default", "Default", Kind::Text),
        attr("rate", "Rate", Kind::Text),
    ],
    blocks: &[nested("rule", "Rules", Shape::Many, &POLICY_RULE)],
    ..EMPTY
};

const POLICY_RULE: Block = Block {
    label: &["Name"],
    attrs: &[
        attr("action", "Action", Kind::Text),
        attr("icmp_code", "ICMPCode", Kind::Int),
        attr("icmp_type", "ICMPType", Kind::Int),
        attr("log", "Log", Kind::Bool),
        attr("peers", "Peers", Kind::Texts),
        attr("ports", "Ports", Kind::Texts),
        attr("protocol", "Protocol", Kind::Text),
    ],
    required: &["action"],
    ..EMPTY
};

const LIFECYCLE: Block = Block {
    attrs: &[
        attr("hook", "Hook", Kind::Text),
        attr("sidecar", "Sidecar", Kind::Bool),
    ],
    required: &["hook"],
    ..EMPTY
};

const DISPATCH_PAYLOAD: Block = Block {
    attrs: &[attr("file", "File", Kind::Text)],
    ..EMPTY
};

const RESOURCES: Block = Block {
    attrs: &[
        attr("cores", "Cores", Kind::Int),
        attr("cpu", "CPU", Kind::Int),
        attr("cpu_hard_limit", "CPUHardLimit", Kind::Bool),
        attr("disk", "DiskMB", Kind::Int),
        attr("iops", "IOPS", Kind::Int),
        attr("memory", "MemoryMB", Kind::Int),
        attr("memory_max", "MemoryMaxMB", Kind::Int),
    ],
    blocks: &[
        nested("device", "Devices", Shape::Many, &DEVICE),
        nested("io", "IO", Shape::One, &IO),
        nested("network", "Networks", Shape::Many, &NETWORK),
    ],
    ..EMPTY
};

const IO: Block = Block {
    attrs: &[
        attr("read_ops", "ReadOps", Kind::Int),
        attr("read_rate", "ReadRate", Kind::Text),
        attr("weight", "Weight", Kind::Int),
        attr("write_ops", "WriteOps", Kind::Int),
        attr("write_rate", "WriteRate", Kind::Text),
    ],
    ..EMPTY
};

const DEVICE: Block = Block {
    label: &["Name"],
    attrs: &[attr("count", "Count", Kind::Int)],
    blocks: &[
        nested("affinity", "Affinities", Shape::Conditions, &AFFINITY),
        nested("constraint", "Constraints", Shape::Conditions, &CONSTRAINT),
    ],
    ..EMPTY
};

const LOGS: Block = Block {
    attrs: &[
        attr("disabled", "Disabled", Kind::Bool),
        attr("enabled", "Enabled", Kind::Bool),
        attr("max_file_size", "MaxFileSizeMB", Kind::Int),
        attr("max_files", "MaxFiles", Kind::Int),
        attr("on_full", "OnFull", Kind::Word(&["block", "drop"])),
        attr("on_limit", "OnLimit", Kind::Word(&["block", "drop"])),
        attr("rate", "Rate", Kind::Text),
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
