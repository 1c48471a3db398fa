//! Nomad's job fields without an effect here: one table for job files and for the API.
//!
//! A row is refused in all places, or accepted with a warning in all places. Accepted values are stored and returned as
//! submitted. A test compares the table with the text in `docs/compatibility.md`.

use std::fmt::Write as _;

/// The treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTreatment {
    /// The job is refused; the text names an alternative.
    Refused(&'static str),
    /// The job is accepted with a warning; the text describes the behavior without the field.
    Warned(&'static str),
    /// The field is stored without a warning because it changes nothing.
    Stored,
}

/// A field of a block.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name in job files; empty if files have no such field.
    pub file: &'static str,
    /// The name in the API; empty if the API has no such field.
    pub json: &'static str,
    /// The treatment of the field.
    pub answer: FieldTreatment,
}

const fn refused(file: &'static str, json: &'static str, instead: &'static str) -> Row {
    Row {
        file,
        json,
        answer: FieldTreatment::Refused(instead),
    }
}

const fn warned(file: &'static str, json: &'static str, effect: &'static str) -> Row {
    Row {
        file,
        json,
        answer: FieldTreatment::Warned(effect),
    }
}

const fn stored(file: &'static str, json: &'static str) -> Row {
    Row {
        file,
        json,
        answer: FieldTreatment::Stored,
    }
}

const LATER: &str = "this version does not have it; leave it out";
const CONSUL: &str = "Muster does not talk to Consul; leave it out, and reach tasks by their ports (`muster alloc status`)";
const VAULT: &str = "Muster does not talk to Vault; put the secret in a file on the node and mount it with a host `volume`";

/// Fields of a job.
pub const JOB: &[Row] = &[
    refused("consul_namespace", "ConsulNamespace", CONSUL),
    refused("consul_token", "ConsulToken", CONSUL),
    refused(
        "",
        "DispatchIdempotencyToken",
        "give the token to the dispatch (`/v1/job/ID/dispatch`)",
    ),
    refused(
        "multiregion",
        "Multiregion",
        "a cluster is one region; register the job in the cluster of each region",
    ),
    refused(
        "",
        "Payload",
        "give the payload to the dispatch (`muster job dispatch`)",
    ),
    warned("ui", "UI", "is stored; no web interface shows it"),
    refused("vault", "", VAULT),
    refused("vault_namespace", "VaultNamespace", VAULT),
    refused("vault_token", "VaultToken", VAULT),
];

/// Fields of a group.
pub const GROUP: &[Row] = &[
    refused("consul", "Consul", CONSUL),
    refused("max_run_duration", "MaxRunDuration", LATER),
    warned(
        "prevent_reschedule_on_lost",
        "PreventRescheduleOnLost",
        "is stored and has no effect; use `disconnect { replace = false }`",
    ),
    refused("service", "Services", LATER),
    refused("vault", "", VAULT),
];

/// Fields of a task.
pub const TASK: &[Row] = &[
    refused(
        "action",
        "Actions",
        "use `muster alloc exec` for commands in a running task",
    ),
    refused("artifact", "Artifacts", LATER),
    refused("consul", "Consul", CONSUL),
    refused(
        "csi_plugin",
        "CSIPluginConfig",
        "there are no CSI volumes; use host volumes of the nodes",
    ),
    warned(
        "identity",
        "Identities",
        "is stored; tasks get no workload identity",
    ),
    warned("", "Identity", "is stored; tasks get no workload identity"),
    refused("kind", "Kind", "there are no Connect proxies; leave it out"),
    warned(
        "scaling",
        "ScalingPolicies",
        "is stored; nothing scales the resources of a task",
    ),
    refused("schedule", "Schedule", "use a `periodic` job"),
    refused(
        "secret",
        "Secrets",
        "Muster has no secret provider; put the secret in a file on the node and mount it with a host `volume`",
    ),
    refused("service", "Services", LATER),
    refused("template", "Templates", LATER),
    refused("vault", "Vault", VAULT),
];

/// Fields of the resources of a task.
pub const RESOURCES: &[Row] = &[
    stored("disk", "DiskMB"),
    stored("iops", "IOPS"),
    refused(
        "numa",
        "NUMA",
        "use `cores`, which gives a task cores of its own",
    ),
    refused("secrets", "SecretsMB", LATER),
];

/// Fields of a restart policy.
pub const RESTART: &[Row] = &[stored("render_templates", "RenderTemplates")];

/// Fields of a network.
pub const NETWORK: &[Row] = &[
    refused(
        "",
        "CIDR",
        "a node has the networks of its configuration; leave it out",
    ),
    refused(
        "",
        "Device",
        "a node has the networks of its configuration; leave it out",
    ),
    warned(
        "mbits",
        "MBits",
        "is stored and limits nothing; use `policy { egress { rate = … } }`",
    ),
];

/// Fields of a port.
pub const PORT: &[Row] = &[warned(
    "ignore_collision",
    "IgnoreCollision",
    "is stored and has no effect; two instances with the port go to two nodes",
)];

/// Fields of a volume of a group.
pub const VOLUME: &[Row] = &[
    stored("access_mode", "AccessMode"),
    stored("attachment_mode", "AttachmentMode"),
    refused(
        "mount_options",
        "MountOptions",
        "set the options where the node mounts the file system",
    ),
    refused(
        "per_alloc",
        "PerAlloc",
        "give each instance a directory of its own in one volume",
    ),
    refused("sticky", "Sticky", "use `ephemeral_disk { sticky = true }`"),
];

/// Fields of a volume mount. The reader of the API reads these fields and uses the warnings from here.
pub const VOLUME_MOUNT: &[Row] = &[
    warned(
        "propagation_mode",
        "PropagationMode",
        "is passed to drivers; the native driver mounts `bidirectional` volumes as `host-to-task`, since its tasks cannot mount",
    ),
    warned(
        "selinux_label",
        "SELinuxLabel",
        "is passed to drivers; the native driver sets no label",
    ),
];

/// All blocks with such fields, by their names in job files.
pub const BLOCKS: [(&str, &[Row]); 9] = [
    ("job", JOB),
    ("group", GROUP),
    ("task", TASK),
    ("resources", RESOURCES),
    ("restart", RESTART),
    ("network", NETWORK),
    ("port", PORT),
    ("volume", VOLUME),
    ("volume_mount", VOLUME_MOUNT),
];

/// The row of the field `name` of the block `block`, as job files call both.
#[must_use]
pub fn in_file(block: &str, name: &str) -> Option<&'static Row> {
    let (_, rows) = BLOCKS.iter().find(|(known, _)| *known == block)?;
    rows.iter().find(|row| row.file == name && !name.is_empty())
}

/// The table as documentation.
#[must_use]
pub fn table() -> String {
    let mut text =
        String::from("| Block | In files | In the API | What happens |\n|---|---|---|---|\n");
    let code = |name: &str| {
        if name.is_empty() {
            "–".to_owned()
        } else {
            format!("`{name}`")
        }
    };
    for (block, rows) in BLOCKS {
        for Row { file, json, answer } in rows {
            let answer = match answer {
                FieldTreatment::Refused(instead) => format!("Refused: {instead}."),
                FieldTreatment::Warned(effect) => format!("Warned of: it {effect}."),
                FieldTreatment::Stored => "Stored; it has no effect.".to_owned(),
            };
            writeln!(
                text,
                "| `{block}` | {} | {} | {answer} |",
                code(file),
                code(json)
            )
            .expect("writing to a text cannot fail");
        }
    }
    text
}
