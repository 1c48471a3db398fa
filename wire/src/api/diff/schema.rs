//! The structure of a job's JSON, for comparing.

/// A kind of block.
#[derive(Debug)]
pub(super) struct Kind {
    /// The order in which blocks within are listed; those not named go first.
    pub(super) order: &'static [&'static str],
    /// Values that are not compared.
    pub(super) hidden: &'static [&'static str],
    /// Objects of texts that are laid out as `Name[key]`.
    pub(super) maps: &'static [&'static str],
    /// Everything in it is laid out: free-form configuration.
    pub(super) is_free: bool,
    /// Blocks within: key, name, kind.
    pub(super) blocks: &'static [(&'static str, &'static str, &'static Kind)],
    /// Lists within: key, name, items.
    pub(super) lists: &'static [(&'static str, &'static str, ListItems)],
    /// Objects of blocks within: key, name, kind.
    pub(super) maps_of_blocks: &'static [(&'static str, &'static str, &'static Kind)],
}

/// How the items of a list are compared.
#[derive(Debug)]
pub(super) enum ListItems {
    /// Texts, as a set.
    Texts,
    /// Texts, as a set, listed in context even if nothing of it changed.
    TextsInContext,
    /// Blocks without a name, as a set: an edited one is one that went and one that came.
    Set(&'static Kind),
    /// Blocks with a `Name`.
    ByName(&'static Kind),
}

/// Fields of a group that are listed only if both versions have the group.
pub(super) const GROUP_OPTIONAL: [&str; 2] = ["ShutdownDelay", "StopAfterClientDisconnect"];

const PLAIN: Kind = Kind {
    order: &[],
    hidden: &[],
    maps: &[],
    is_free: false,
    blocks: &[],
    lists: &[],
    maps_of_blocks: &[],
};

/// A job.
pub(super) static JOB: Kind = Kind {
    order: &[
        "Datacenters",
        "Constraint",
        "Affinity",
        "Spread",
        "Periodic",
        "ParameterizedJob",
        "Multiregion",
    ],
    hidden: &[
        "ID",
        "Status",
        "StatusDescription",
        "Stable",
        "Version",
        "SubmitTime",
        "CreateIndex",
        "ModifyIndex",
        "JobModifyIndex",
        "ParentID",
        "NomadTokenID",
        "ConsulNamespace",
        "VaultNamespace",
        "Payload",
    ],
    maps: &["Meta"],
    blocks: &[
        ("Multiregion", "Multiregion", &MULTIREGION),
        ("ParameterizedJob", "ParameterizedJob", &PARAMETERIZED),
        ("Periodic", "Periodic", &PLAIN_BLOCK),
    ],
    lists: &[
        ("Affinities", "Affinity", ListItems::Set(&PLAIN_BLOCK)),
        ("Constraints", "Constraint", ListItems::Set(&PLAIN_BLOCK)),
        ("Datacenters", "Datacenters", ListItems::Texts),
        ("Spreads", "Spread", ListItems::Set(&SPREAD)),
    ],
    ..PLAIN
};

/// A task group.
pub(super) static GROUP: Kind = Kind {
    order: &[
        "Constraint",
        "Affinity",
        "Spread",
        "RestartPolicy",
        "ReschedulePolicy",
        "EphemeralDisk",
        "Update",
        "Migrate",
        "Disconnect",
        "Scaling",
        "Network",
        "Service",
        "Volume",
    ],
    hidden: &["Name"],
    maps: &["Meta"],
    blocks: &[
        ("Consul", "Consul", &PLAIN_BLOCK),
        ("Disconnect", "Disconnect", &PLAIN_BLOCK),
        ("EphemeralDisk", "EphemeralDisk", &PLAIN_BLOCK),
        ("Migrate", "Migrate", &PLAIN_BLOCK),
        ("ReschedulePolicy", "ReschedulePolicy", &PLAIN_BLOCK),
        ("RestartPolicy", "RestartPolicy", &PLAIN_BLOCK),
        ("Scaling", "Scaling", &SCALING),
        ("Update", "Update", &UPDATE),
    ],
    lists: &[
        ("Affinities", "Affinity", ListItems::Set(&PLAIN_BLOCK)),
        ("Constraints", "Constraint", ListItems::Set(&PLAIN_BLOCK)),
        ("Networks", "Network", ListItems::Set(&NETWORK)),
        ("Services", "Service", ListItems::ByName(&SERVICE)),
        ("Spreads", "Spread", ListItems::Set(&SPREAD)),
    ],
    maps_of_blocks: &[("Volumes", "Volume", &VOLUME)],
    ..PLAIN
};

/// A task.
pub(super) static TASK: Kind = Kind {
    order: &[
        "Constraint",
        "Affinity",
        "Config",
        "Resources",
        "LogConfig",
        "DispatchPayload",
        "Artifact",
        "Service",
        "Vault",
        "Template",
        "Lifecycle",
        "RestartPolicy",
        "VolumeMount",
        "Policy",
    ],
    hidden: &["Name", "Kind"],
    maps: &["Env", "Meta"],
    blocks: &[
        ("Config", "Config", &FREE),
        ("DispatchPayload", "DispatchPayload", &PLAIN_BLOCK),
        ("Lifecycle", "Lifecycle", &PLAIN_BLOCK),
        ("LogConfig", "LogConfig", &PLAIN_BLOCK),
        ("Policy", "Policy", &POLICY),
        ("Resources", "Resources", &RESOURCES),
        ("RestartPolicy", "RestartPolicy", &PLAIN_BLOCK),
        ("Vault", "Vault", &VAULT),
    ],
    lists: &[
        ("Affinities", "Affinity", ListItems::Set(&PLAIN_BLOCK)),
        ("Artifacts", "Artifact", ListItems::Set(&ARTIFACT)),
        ("Constraints", "Constraint", ListItems::Set(&PLAIN_BLOCK)),
        ("Services", "Service", ListItems::ByName(&SERVICE)),
        ("Templates", "Template", ListItems::Set(&PLAIN_BLOCK)),
        ("VolumeMounts", "VolumeMount", ListItems::Set(&PLAIN_BLOCK)),
    ],
    ..PLAIN
};

static PLAIN_BLOCK: Kind = PLAIN;

static FREE: Kind = Kind {
    is_free: true,
    ..PLAIN
};

static UPDATE: Kind = Kind {
    hidden: &["Stagger"],
    ..PLAIN
};

static SCALING: Kind = Kind {
    hidden: &["ID", "CreateIndex", "ModifyIndex"],
    maps: &["Policy", "Target"],
    ..PLAIN
};

static SPREAD: Kind = Kind {
    lists: &[("SpreadTarget", "SpreadTarget", ListItems::Set(&PLAIN_BLOCK))],
    ..PLAIN
};

static PARAMETERIZED: Kind = Kind {
    lists: &[
        ("MetaOptional", "MetaOptional", ListItems::Texts),
        ("MetaRequired", "MetaRequired", ListItems::Texts),
    ],
    ..PLAIN
};

static MULTIREGION: Kind = Kind {
    blocks: &[("Strategy", "Strategy", &PLAIN_BLOCK)],
    lists: &[("Regions", "Region", ListItems::ByName(&REGION))],
    ..PLAIN
};

static REGION: Kind = Kind {
    maps: &["Meta"],
    lists: &[("Datacenters", "Datacenters", ListItems::Texts)],
    ..PLAIN
};

static NETWORK: Kind = Kind {
    order: &["DNS", "CNIConfig", "Static Port", "Dynamic Port", "Policy"],
    hidden: &["Device", "CIDR", "IP"],
    blocks: &[
        ("CNI", "CNIConfig", &CNI),
        ("DNS", "DNS", &DNS),
        ("Policy", "Policy", &POLICY),
    ],
    lists: &[
        (
            "DynamicPorts",
            "Dynamic Port",
            ListItems::Set(&DYNAMIC_PORT),
        ),
        ("ReservedPorts", "Static Port", ListItems::Set(&PLAIN_BLOCK)),
    ],
    ..PLAIN
};

static POLICY: Kind = Kind {
    blocks: &[
        ("Egress", "Egress", &POLICY_DIRECTION),
        ("Ingress", "Ingress", &POLICY_DIRECTION),
    ],
    ..PLAIN
};

static POLICY_DIRECTION: Kind = Kind {
    lists: &[("Rules", "Rule", ListItems::ByName(&POLICY_RULE))],
    ..PLAIN
};

static POLICY_RULE: Kind = Kind {
    lists: &[
        ("Peers", "Peers", ListItems::Texts),
        ("Ports", "Ports", ListItems::Texts),
    ],
    ..PLAIN
};

static DYNAMIC_PORT: Kind = Kind {
    hidden: &["Value"],
    ..PLAIN
};

static CNI: Kind = Kind {
    maps: &["Args"],
    ..PLAIN
};

static DNS: Kind = Kind {
    lists: &[
        ("Options", "Options", ListItems::Texts),
        ("Searches", "Searches", ListItems::Texts),
        ("Servers", "Servers", ListItems::Texts),
    ],
    ..PLAIN
};

static RESOURCES: Kind = Kind {
    blocks: &[("IO", "IO", &PLAIN_BLOCK)],
    lists: &[
        ("Devices", "Device", ListItems::Set(&PLAIN_BLOCK)),
        ("Networks", "Network", ListItems::Set(&NETWORK)),
    ],
    ..PLAIN
};

static ARTIFACT: Kind = Kind {
    maps: &["GetterHeaders", "GetterOptions"],
    ..PLAIN
};

static VAULT: Kind = Kind {
    lists: &[("Policies", "Policies", ListItems::Texts)],
    ..PLAIN
};

static VOLUME: Kind = Kind {
    blocks: &[("MountOptions", "MountOptions", &MOUNT_OPTIONS)],
    ..PLAIN
};

static MOUNT_OPTIONS: Kind = Kind {
    lists: &[("MountFlags", "MountFlags", ListItems::Texts)],
    ..PLAIN
};

static SERVICE: Kind = Kind {
    order: &["CanaryTags", "Tags", "Check", "ConsulConnect"],
    maps: &["CanaryMeta", "Meta"],
    blocks: &[("Connect", "ConsulConnect", &CONNECT)],
    lists: &[
        ("CanaryTags", "CanaryTags", ListItems::TextsInContext),
        ("Checks", "Check", ListItems::ByName(&CHECK)),
        ("Tags", "Tags", ListItems::TextsInContext),
    ],
    ..PLAIN
};

static CHECK: Kind = Kind {
    order: &["Header", "CheckRestart"],
    blocks: &[
        ("CheckRestart", "CheckRestart", &PLAIN_BLOCK),
        ("Header", "Header", &FREE),
    ],
    ..PLAIN
};

static CONNECT: Kind = Kind {
    blocks: &[
        ("Gateway", "Gateway", &FREE),
        ("SidecarService", "SidecarService", &SIDECAR_SERVICE),
        ("SidecarTask", "SidecarTask", &FREE),
    ],
    ..PLAIN
};

static SIDECAR_SERVICE: Kind = Kind {
    blocks: &[("Proxy", "ConsulProxy", &FREE)],
    lists: &[("Tags", "Tags", ListItems::Texts)],
    ..PLAIN
};
