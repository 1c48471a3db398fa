//! What a job file may say: one table a block.
//!
//! A field is one row: its name in the file, its name in the API, and its kind. Names of Nomad that
//! this version does not know stand in `later`, so that they are refused by name, never ignored.

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A whole number.
    Int,
    /// A text such as `30s`; nanoseconds in the API.
    Duration,
    /// A list of texts.
    Texts,
    /// Keys with texts; as a block or as an attribute.
    TextMap,
}

impl Kind {
    /// For people.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Int => "a whole number",
            Self::Duration => "a duration in quotes, such as \"30s\" or \"1h15m\"",
            Self::Texts => "a list of texts, such as [\"a\", \"b\"]",
            Self::TextMap => "keys with texts, such as { KEY = \"value\" }",
        }
    }
}

/// One attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attr {
    pub(super) name: &'static str,
    pub(super) json: &'static str,
    pub(super) kind: Kind,
}

/// How often a block may stand, and what it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Once; an object.
    One,
    /// Any number of times; a list of objects.
    Many,
    /// Once; free keys with values of any shape: a driver's configuration.
    Free,
    /// Any number of times, labelled: `port "http" {}`; `ReservedPorts` or `DynamicPorts`.
    Ports,
    /// Any number of times; `attribute`, `operator`, `value` and their short forms.
    Constraints,
}

/// One nested block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    pub(super) name: &'static str,
    pub(super) json: &'static str,
    pub(super) shape: Shape,
    pub(super) block: &'static Block,
}

/// One kind of block.
#[derive(Debug)]
pub(super) struct Block {
    /// Whether it has a label, which becomes `Name`.
    pub(super) labelled: bool,
    pub(super) attrs: &'static [Attr],
    pub(super) blocks: &'static [Nested],
    /// Names of Nomad that are not supported yet.
    pub(super) later: &'static [&'static str],
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

pub(super) const JOB: Block = Block {
    labelled: true,
    attrs: &[
        attr("id", "ID", Kind::Text),
        attr("name", "Name", Kind::Text),
        attr("namespace", "Namespace", Kind::Text),
        attr("region", "Region", Kind::Text),
        attr("type", "Type", Kind::Text),
        attr("priority", "Priority", Kind::Int),
        attr("datacenters", "Datacenters", Kind::Texts),
        attr("node_pool", "NodePool", Kind::Text),
        attr("meta", "Meta", Kind::TextMap),
    ],
    blocks: &[
        nested("constraint", "Constraints", Shape::Constraints, &CONSTRAINT),
        nested("group", "TaskGroups", Shape::Many, &GROUP),
        nested("task", "", Shape::Many, &TASK),
    ],
    later: &[
        "affinity",
        "all_at_once",
        "consul_token",
        "migrate",
        "multiregion",
        "parameterized",
        "periodic",
        "reschedule",
        "spread",
        "ui",
        "update",
        "vault",
        "vault_token",
    ],
};

const GROUP: Block = Block {
    labelled: true,
    attrs: &[
        attr("count", "Count", Kind::Int),
        attr("meta", "Meta", Kind::TextMap),
    ],
    blocks: &[
        nested("constraint", "Constraints", Shape::Constraints, &CONSTRAINT),
        nested("restart", "RestartPolicy", Shape::One, &RESTART),
        nested(
            "ephemeral_disk",
            "EphemeralDisk",
            Shape::One,
            &EPHEMERAL_DISK,
        ),
        nested("network", "Networks", Shape::Many, &NETWORK),
        nested("task", "Tasks", Shape::Many, &TASK),
    ],
    later: &[
        "affinity",
        "consul",
        "disconnect",
        "max_client_disconnect",
        "max_run_duration",
        "migrate",
        "prevent_reschedule_on_lost",
        "reschedule",
        "scaling",
        "service",
        "shutdown_delay",
        "spread",
        "stop_after_client_disconnect",
        "update",
        "vault",
        "volume",
    ],
};

const TASK: Block = Block {
    labelled: true,
    attrs: &[
        attr("driver", "Driver", Kind::Text),
        attr("user", "User", Kind::Text),
        attr("kill_timeout", "KillTimeout", Kind::Duration),
        attr("kill_signal", "KillSignal", Kind::Text),
        attr("env", "Env", Kind::TextMap),
        attr("meta", "Meta", Kind::TextMap),
    ],
    blocks: &[
        nested("config", "Config", Shape::Free, &EMPTY),
        nested("constraint", "Constraints", Shape::Constraints, &CONSTRAINT),
        nested("resources", "Resources", Shape::One, &RESOURCES),
        nested("logs", "LogConfig", Shape::One, &LOGS),
    ],
    later: &[
        "action",
        "affinity",
        "artifact",
        "consul",
        "csi_plugin",
        "dispatch_payload",
        "identity",
        "kind",
        "leader",
        "lifecycle",
        "restart",
        "scaling",
        "schedule",
        "secret",
        "service",
        "shutdown_delay",
        "template",
        "vault",
        "volume_mount",
    ],
};

const CONSTRAINT: Block = Block {
    labelled: false,
    attrs: &[
        attr("attribute", "LTarget", Kind::Text),
        attr("operator", "Operand", Kind::Text),
        attr("value", "RTarget", Kind::Text),
        attr("regexp", "RTarget", Kind::Text),
    ],
    blocks: &[],
    later: &[
        "distinct_hosts",
        "distinct_property",
        "is_not_set",
        "is_set",
        "semver",
        "set_contains",
        "set_contains_all",
        "set_contains_any",
        "version",
    ],
};

const RESTART: Block = Block {
    labelled: false,
    attrs: &[
        attr("attempts", "Attempts", Kind::Int),
        attr("interval", "Interval", Kind::Duration),
        attr("delay", "Delay", Kind::Duration),
        attr("mode", "Mode", Kind::Text),
    ],
    blocks: &[],
    later: &["render_templates"],
};

const EPHEMERAL_DISK: Block = Block {
    labelled: false,
    attrs: &[attr("size", "SizeMB", Kind::Int)],
    blocks: &[],
    later: &["migrate", "sticky"],
};

const NETWORK: Block = Block {
    labelled: false,
    attrs: &[attr("mode", "Mode", Kind::Text)],
    blocks: &[nested("port", "", Shape::Ports, &PORT)],
    later: &["cni", "dns", "hostname", "mbits"],
};

const PORT: Block = Block {
    labelled: true,
    attrs: &[
        attr("static", "Value", Kind::Int),
        attr("to", "To", Kind::Int),
    ],
    blocks: &[],
    later: &["host_network", "ignore_collision"],
};

const RESOURCES: Block = Block {
    labelled: false,
    attrs: &[
        attr("cpu", "CPU", Kind::Int),
        attr("memory", "MemoryMB", Kind::Int),
        attr("memory_max", "MemoryMaxMB", Kind::Int),
    ],
    blocks: &[],
    later: &[
        "cores", "device", "disk", "iops", "network", "numa", "secrets",
    ],
};

const LOGS: Block = Block {
    labelled: false,
    attrs: &[
        attr("max_files", "MaxFiles", Kind::Int),
        attr("max_file_size", "MaxFileSizeMB", Kind::Int),
    ],
    blocks: &[],
    later: &["disabled", "enabled"],
};

const EMPTY: Block = Block {
    labelled: false,
    attrs: &[],
    blocks: &[],
    later: &[],
};
