//! Default values of omitted fields: Nomad's and Muster's, by type of job.
//!
//! [`request`](super::request) applies the defaults. A test registers a job of each type and checks every row. A test
//! also compares the table with the text in `docs/compatibility.md`.

use std::fmt::Write as _;

use muster_domain::job::JobType;

/// The default of one field.
#[derive(Clone, Copy, Debug)]
pub struct DefaultRow {
    /// The path of the field in job files.
    pub file: &'static str,
    /// The JSON pointer of the field in the API; `@G` is the group, `@T` the task.
    pub json: &'static str,
    /// The types of jobs with this default.
    pub types: &'static [JobType],
    /// The optional block of the field, with the minimal JSON of that block.
    pub within: Option<(&'static str, &'static str)>,
    /// The JSON of the value that Nomad stores.
    pub nomad: &'static str,
    /// The JSON of Muster's default and the reason, if it differs from Nomad's.
    pub ours: Option<(&'static str, &'static str)>,
}

impl DefaultRow {
    /// The JSON of the value that Muster stores.
    #[must_use]
    pub const fn value(&self) -> &'static str {
        match self.ours {
            Some((value, _)) => value,
            None => self.nomad,
        }
    }
}

type Types = &'static [JobType];
type Within = (&'static str, &'static str);

const fn row(
    types: Types,
    file: &'static str,
    json: &'static str,
    value: &'static str,
) -> DefaultRow {
    DefaultRow {
        file,
        json,
        types,
        within: None,
        nomad: value,
        ours: None,
    }
}

const fn within(
    types: Types,
    within: Within,
    file: &'static str,
    json: &'static str,
    value: &'static str,
) -> DefaultRow {
    DefaultRow {
        within: Some(within),
        ..row(types, file, json, value)
    }
}

const ALL: Types = &[
    JobType::Service,
    JobType::Batch,
    JobType::System,
    JobType::SysBatch,
];
const SERVICE: Types = &[JobType::Service];
const BATCH: Types = &[JobType::Batch];
const PLACED: Types = &[JobType::Service, JobType::Batch];
const EVERYWHERE: Types = &[JobType::System, JobType::SysBatch];
const LASTING: Types = &[JobType::Service, JobType::System];
const ENDING: Types = &[JobType::Batch, JobType::SysBatch];
const NOT_SERVICE: Types = &[JobType::Batch, JobType::System, JobType::SysBatch];

const PERIODIC: Within = ("/Periodic", r#"{"Spec": "@daily"}"#);
const PARAMETERIZED: Within = ("/ParameterizedJob", "{}");
const SCALING: Within = ("@G/Scaling", r#"{"Max": 5}"#);
const SCALING_MIN: Within = ("@G/Scaling", r#"{"Min": 2, "Max": 5}"#);
const DISCONNECT: Within = ("@G/Disconnect", "{}");
const PORTS: Within = ("@G/Networks", r#"[{"DynamicPorts": [{"Label": "http"}]}]"#);
const TASK_PORTS: Within = (
    "@T/Resources",
    r#"{"Networks": [{"DynamicPorts": [{"Label": "http"}]}]}"#,
);
const CORES: Within = ("@T/Resources", r#"{"Cores": 1}"#);
const DEVICE: Within = ("@T/Resources", r#"{"Devices": [{"Name": "gpu"}]}"#);
const CONSTRAINT: Within = (
    "/Constraints",
    r#"[{"LTarget": "${node.class}", "RTarget": "big"}]"#,
);
const AFFINITY: Within = (
    "/Affinities",
    r#"[{"LTarget": "${node.class}", "RTarget": "big"}]"#,
);
const SPREAD: Within = ("/Spreads", r#"[{"Attribute": "${node.datacenter}"}]"#);
const VOLUME: Within = ("@G/Volumes", r#"{"v": {"Type": "host", "Source": "v"}}"#);
const LIFECYCLE: Within = (
    "@G/Tasks/1",
    r#"{"Name": "before", "Driver": "native", "Lifecycle": {"Hook": "prestart"}}"#,
);

/// All defaults, one row per line.
#[rustfmt::skip]
pub const ROWS: &[DefaultRow] = &[
    row(SERVICE, "type", "/Type", r#""service""#),
    row(ALL, "region", "/Region", r#""global""#),
    row(ALL, "namespace", "/Namespace", r#""default""#),
    row(ALL, "name", "/Name", r#""JOB-ID""#),
    row(ALL, "priority", "/Priority", "50"),
    row(ALL, "all_at_once", "/AllAtOnce", "false"),
    row(ALL, "datacenters", "/Datacenters", r#"["*"]"#),
    row(ALL, "node_pool", "/NodePool", r#""default""#),
    row(ALL, "meta", "/Meta", "null"),
    row(ALL, "constraint", "/Constraints", "null"),
    row(ALL, "affinity", "/Affinities", "null"),
    row(ALL, "spread", "/Spreads", "null"),
    row(ALL, "periodic", "/Periodic", "null"),
    row(ALL, "parameterized", "/ParameterizedJob", "null"),
    within(ALL, CONSTRAINT, "constraint.operator", "/Constraints/0/Operand", r#""=""#),
    within(PLACED, AFFINITY, "affinity.operator", "/Affinities/0/Operand", r#""=""#),
    within(PLACED, AFFINITY, "affinity.weight", "/Affinities/0/Weight", "50"),
    within(PLACED, SPREAD, "spread.weight", "/Spreads/0/Weight", "50"),
    within(ENDING, PERIODIC, "periodic.enabled", "/Periodic/Enabled", "true"),
    within(ENDING, PERIODIC, "periodic.prohibit_overlap", "/Periodic/ProhibitOverlap", "false"),
    within(ENDING, PERIODIC, "periodic.time_zone", "/Periodic/TimeZone", r#""UTC""#),
    within(ENDING, PERIODIC, "–", "/Periodic/SpecType", r#""cron""#),
    within(ENDING, PARAMETERIZED, "parameterized.payload", "/ParameterizedJob/Payload", r#""optional""#),
    within(ENDING, PARAMETERIZED, "parameterized.meta_required", "/ParameterizedJob/MetaRequired", "null"),
    within(ENDING, PARAMETERIZED, "parameterized.meta_optional", "/ParameterizedJob/MetaOptional", "null"),
    row(LASTING, "update.stagger", "/Update/Stagger", "30000000000"),
    row(LASTING, "update.max_parallel", "/Update/MaxParallel", "1"),
    row(ENDING, "update.stagger", "/Update/Stagger", "0"),
    row(ENDING, "update.max_parallel", "/Update/MaxParallel", "0"),
    row(LASTING, "group.update.stagger", "@G/Update/Stagger", "30000000000"),
    row(LASTING, "group.update.max_parallel", "@G/Update/MaxParallel", "1"),
    row(LASTING, "group.update.health_check", "@G/Update/HealthCheck", r#""checks""#),
    row(LASTING, "group.update.min_healthy_time", "@G/Update/MinHealthyTime", "10000000000"),
    row(LASTING, "group.update.healthy_deadline", "@G/Update/HealthyDeadline", "300000000000"),
    row(LASTING, "group.update.progress_deadline", "@G/Update/ProgressDeadline", "600000000000"),
    row(LASTING, "group.update.auto_revert", "@G/Update/AutoRevert", "false"),
    row(LASTING, "group.update.auto_promote", "@G/Update/AutoPromote", "false"),
    row(LASTING, "group.update.canary", "@G/Update/Canary", "0"),
    row(ENDING, "group.update", "@G/Update", "null"),
    row(SERVICE, "group.migrate.max_parallel", "@G/Migrate/MaxParallel", "1"),
    row(SERVICE, "group.migrate.health_check", "@G/Migrate/HealthCheck", r#""checks""#),
    row(SERVICE, "group.migrate.min_healthy_time", "@G/Migrate/MinHealthyTime", "10000000000"),
    row(SERVICE, "group.migrate.healthy_deadline", "@G/Migrate/HealthyDeadline", "300000000000"),
    row(NOT_SERVICE, "group.migrate", "@G/Migrate", "null"),
    row(SERVICE, "group.reschedule.attempts", "@G/ReschedulePolicy/Attempts", "0"),
    row(SERVICE, "group.reschedule.interval", "@G/ReschedulePolicy/Interval", "0"),
    row(SERVICE, "group.reschedule.delay", "@G/ReschedulePolicy/Delay", "30000000000"),
    row(SERVICE, "group.reschedule.delay_function", "@G/ReschedulePolicy/DelayFunction", r#""exponential""#),
    row(SERVICE, "group.reschedule.max_delay", "@G/ReschedulePolicy/MaxDelay", "3600000000000"),
    row(SERVICE, "group.reschedule.unlimited", "@G/ReschedulePolicy/Unlimited", "true"),
    row(BATCH, "group.reschedule.attempts", "@G/ReschedulePolicy/Attempts", "1"),
    row(BATCH, "group.reschedule.interval", "@G/ReschedulePolicy/Interval", "86400000000000"),
    row(BATCH, "group.reschedule.delay", "@G/ReschedulePolicy/Delay", "5000000000"),
    row(BATCH, "group.reschedule.delay_function", "@G/ReschedulePolicy/DelayFunction", r#""constant""#),
    row(BATCH, "group.reschedule.max_delay", "@G/ReschedulePolicy/MaxDelay", "0"),
    row(BATCH, "group.reschedule.unlimited", "@G/ReschedulePolicy/Unlimited", "false"),
    row(EVERYWHERE, "group.reschedule", "@G/ReschedulePolicy", "null"),
    row(LASTING, "group.restart.attempts", "@G/RestartPolicy/Attempts", "2"),
    row(LASTING, "group.restart.interval", "@G/RestartPolicy/Interval", "1800000000000"),
    row(ENDING, "group.restart.attempts", "@G/RestartPolicy/Attempts", "3"),
    row(ENDING, "group.restart.interval", "@G/RestartPolicy/Interval", "86400000000000"),
    row(ALL, "group.restart.delay", "@G/RestartPolicy/Delay", "15000000000"),
    row(ALL, "group.restart.mode", "@G/RestartPolicy/Mode", r#""fail""#),
    row(ALL, "group.restart.render_templates", "@G/RestartPolicy/RenderTemplates", "false"),
    row(ALL, "group.count", "@G/Count", "1"),
    within(PLACED, SCALING_MIN, "group.count", "@G/Count", "2"),
    row(ALL, "group.scaling", "@G/Scaling", "null"),
    within(PLACED, SCALING, "group.scaling.min", "@G/Scaling/Min", "1"),
    within(PLACED, SCALING, "group.scaling.enabled", "@G/Scaling/Enabled", "true"),
    within(PLACED, SCALING, "group.scaling.type", "@G/Scaling/Type", r#""horizontal""#),
    row(ALL, "group.ephemeral_disk.size", "@G/EphemeralDisk/SizeMB", "300"),
    row(ALL, "group.ephemeral_disk.sticky", "@G/EphemeralDisk/Sticky", "false"),
    row(ALL, "group.ephemeral_disk.migrate", "@G/EphemeralDisk/Migrate", "false"),
    row(ALL, "group.shutdown_delay", "@G/ShutdownDelay", "null"),
    row(ALL, "group.disconnect", "@G/Disconnect", "null"),
    within(SERVICE, DISCONNECT, "group.disconnect.lost_after", "@G/Disconnect/LostAfter", "0"),
    within(SERVICE, DISCONNECT, "group.disconnect.stop_on_client_after", "@G/Disconnect/StopOnClientAfter", "null"),
    within(SERVICE, DISCONNECT, "group.disconnect.replace", "@G/Disconnect/Replace", "true"),
    within(SERVICE, DISCONNECT, "group.disconnect.reconcile", "@G/Disconnect/Reconcile", r#""best_score""#),
    row(ALL, "group.network", "@G/Networks", "null"),
    within(ALL, PORTS, "group.network.mode", "@G/Networks/0/Mode", r#""""#),
    within(ALL, PORTS, "group.network.mbits", "@G/Networks/0/MBits", "0"),
    within(ALL, PORTS, "group.network.dns", "@G/Networks/0/DNS", "null"),
    within(ALL, PORTS, "group.network.port.static", "@G/Networks/0/DynamicPorts/0/Value", "0"),
    within(ALL, PORTS, "group.network.port.to", "@G/Networks/0/DynamicPorts/0/To", "0"),
    within(ALL, PORTS, "group.network.port.host_network", "@G/Networks/0/DynamicPorts/0/HostNetwork", r#""default""#),
    row(ALL, "group.volume", "@G/Volumes", "null"),
    within(ALL, VOLUME, "group.volume.read_only", "@G/Volumes/v/ReadOnly", "false"),
    within(ALL, VOLUME, "group.volume.access_mode", "@G/Volumes/v/AccessMode", r#""""#),
    within(ALL, VOLUME, "group.volume.attachment_mode", "@G/Volumes/v/AttachmentMode", r#""""#),
    within(ALL, VOLUME, "–", "@G/Volumes/v/Name", r#""v""#),
    row(ALL, "group.meta", "@G/Meta", "null"),
    row(ALL, "task.user", "@T/User", r#""""#),
    row(ALL, "task.env", "@T/Env", "null"),
    row(ALL, "task.meta", "@T/Meta", "null"),
    row(ALL, "task.leader", "@T/Leader", "false"),
    row(ALL, "task.kill_timeout", "@T/KillTimeout", "5000000000"),
    row(ALL, "task.kill_signal", "@T/KillSignal", r#""""#),
    row(ALL, "task.shutdown_delay", "@T/ShutdownDelay", "0"),
    row(ALL, "task.lifecycle", "@T/Lifecycle", "null"),
    within(PLACED, LIFECYCLE, "task.lifecycle.sidecar", "@G/Tasks/1/Lifecycle/Sidecar", "false"),
    row(ALL, "task.logs.max_files", "@T/LogConfig/MaxFiles", "10"),
    row(ALL, "task.logs.max_file_size", "@T/LogConfig/MaxFileSizeMB", "10"),
    DefaultRow { ours: Some(("null", "absent means that logs are kept")), ..row(ALL, "task.logs.disabled", "@T/LogConfig/Disabled", "false") },
    row(ALL, "task.resources.cpu", "@T/Resources/CPU", "100"),
    within(ALL, CORES, "task.resources.cpu", "@T/Resources/CPU", "0"),
    row(ALL, "task.resources.cores", "@T/Resources/Cores", "0"),
    row(ALL, "task.resources.memory", "@T/Resources/MemoryMB", "300"),
    row(ALL, "task.resources.memory_max", "@T/Resources/MemoryMaxMB", "0"),
    row(ALL, "task.resources.disk", "@T/Resources/DiskMB", "0"),
    row(ALL, "task.resources.device", "@T/Resources/Devices", "null"),
    within(ALL, DEVICE, "task.resources.device.count", "@T/Resources/Devices/0/Count", "1"),
    row(ALL, "task.resources.network", "@T/Resources/Networks", "null"),
    within(ALL, TASK_PORTS, "task.resources.network.mode", "@T/Resources/Networks/0/Mode", r#""""#),
    within(ALL, TASK_PORTS, "task.resources.network.port.host_network", "@T/Resources/Networks/0/DynamicPorts/0/HostNetwork", r#""default""#),
    row(LASTING, "task.restart.attempts", "@T/RestartPolicy/Attempts", "2"),
    row(LASTING, "task.restart.interval", "@T/RestartPolicy/Interval", "1800000000000"),
    row(ENDING, "task.restart.attempts", "@T/RestartPolicy/Attempts", "3"),
    row(ENDING, "task.restart.interval", "@T/RestartPolicy/Interval", "86400000000000"),
    row(ALL, "task.restart.delay", "@T/RestartPolicy/Delay", "15000000000"),
    row(ALL, "task.restart.mode", "@T/RestartPolicy/Mode", r#""fail""#),
    DefaultRow { ours: Some(("null", "tasks get no workload identity")), ..row(ALL, "task.identity", "@T/Identity", r#"{"Name": "default", "Audience": ["nomadproject.io"]}"#) },
];

/// The table as documentation.
#[must_use]
pub fn table() -> String {
    let mut text = String::from(
        "| In files | In the API | Types | Nomad | Muster | Notes |\n|---|---|---|---|---|---|\n",
    );
    for row in ROWS {
        let types = if row.types.len() == ALL.len() {
            "all".to_owned()
        } else {
            let words: Vec<&str> = row.types.iter().map(|it| it.as_str()).collect();
            words.join(", ")
        };
        let given = row
            .within
            .map(|(at, block)| format!("with `{}: {block}`", api_path(at)));
        let reason = row.ours.map(|(_, reason)| reason.to_owned());
        let notes: Vec<String> = given.into_iter().chain(reason).collect();
        writeln!(
            text,
            "| `{}` | `{}` | {types} | `{}` | `{}` | {} |",
            row.file,
            api_path(row.json),
            row.nomad,
            row.value(),
            notes.join("; ")
        )
        .expect("writing to a text cannot fail");
    }
    text
}

/// `pointer` with the first group for `@G` and its first task for `@T`.
#[must_use]
pub fn expand(pointer: &str) -> String {
    pointer
        .replace("@G", "/TaskGroups/0")
        .replace("@T", "/TaskGroups/0/Tasks/0")
}

/// `pointer` as a path: `TaskGroups[].RestartPolicy.Mode`.
fn api_path(pointer: &str) -> String {
    let pointer = expand(pointer);
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str("[]");
            continue;
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(part);
    }
    path
}

#[cfg(test)]
mod tests;
