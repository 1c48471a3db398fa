//! The conditions that a job must meet before it is accepted.

mod launch;
mod policy;
mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use super::{
    Affinity, ByteRate, CniNetwork, Constraint, DnsConfig, GroupNetwork, JobSpec, JobType,
    Lifecycle, LifecycleHook, LogConfig, LogOverflow, NetworkMode, NetworkPolicy, Operand, PortAsk,
    RestartPolicy, Spread, Task, TaskGroup,
};
use crate::account::{Account, QuotedName};
use crate::fault::Fault;
use crate::limits;
use crate::namespace::ONE_OFF_NAMESPACE;
use crate::pattern::Pattern;
use crate::resources::{DeviceAsk, IoLimits, TaskResources};
use crate::version;

/// A valid job. Only [`validate`] creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidJob(JobSpec);

impl ValidJob {
    /// The job.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.0
    }

    /// Returns the job by value.
    #[must_use]
    pub fn into_spec(self) -> JobSpec {
        self.0
    }
}

/// Names that a task or group must not have. They are directories of an allocation or lead out of it.
const RESERVED_NAMES: [&str; 7] = [".", "..", "alloc", "local", "secrets", "tmp", "drivers"];

/// Checks every condition on `spec` that does not depend on a cluster.
///
/// # Errors
///
/// All faults, each with its path; the list is never empty.
pub fn validate(spec: JobSpec) -> Result<ValidJob, Vec<Fault>> {
    let mut faults = Vec::new();
    check_job(&spec, &mut faults);
    if faults.is_empty() {
        Ok(ValidJob(spec))
    } else {
        Err(faults)
    }
}

fn check_job(spec: &JobSpec, faults: &mut Vec<Fault>) {
    let JobSpec {
        namespace,
        id,
        name,
        job_type,
        priority,
        datacenters,
        node_pool,
        all_at_once: _,
        constraints,
        affinities,
        spreads,
        periodic: _,
        parameterized: _,
        launched: _,
        meta,
        groups,
        stop: _,
        as_written,
    } = spec;
    let at = format!("job \"{id}\"");
    check_name("job id", id, faults);
    check_label(format_args!("{at} → name"), name, faults);
    check_name(format_args!("{at} → namespace"), namespace, faults);
    check_name(format_args!("{at} → node_pool"), node_pool, faults);
    if !(1..=limits::PRIORITY_MAX).contains(priority) {
        faults.push(Fault::new(
            format!("{at} → priority"),
            format!("{priority} is outside 1 to {}", limits::PRIORITY_MAX),
        ));
    }
    check_datacenters(&at, datacenters, faults);
    check_constraint_texts(&at, constraints, faults);
    // The constraints of a one-off task are its placement tags, and an empty tag is one.
    if namespace != ONE_OFF_NAMESPACE {
        check_operands(&at, constraints, faults);
    }
    check_affinities(&at, affinities, faults);
    check_preferences(&at, spec, faults);
    check_spreads(&at, *job_type, spreads, faults);
    launch::check(&at, spec, faults);
    check_map(format_args!("{at} → meta"), meta, limits::META_MAX, faults);
    if groups.is_empty() {
        faults.push(Fault::new(
            at.clone(),
            "has no group: a job needs at least one `group` block",
        ));
    }
    check_count(
        format_args!("{at} → group"),
        groups.len(),
        limits::GROUPS_MAX,
        faults,
    );
    check_unique(
        &at,
        "group",
        groups.iter().map(|group| group.name.as_str()),
        faults,
    );
    for group in groups {
        check_group(*job_type, group, faults);
        // The output of a one-off task has a file of its own.
        if namespace != ONE_OFF_NAMESPACE {
            check_log_storage(group, faults);
        }
        check_kill_timeouts(group, faults);
    }
    check_written(&at, as_written, faults);
    if let Err(why) = check_instances(spec) {
        faults.push(Fault::new(format!("{at} → count"), why));
    }
}

fn check_datacenters(at: &str, datacenters: &[String], faults: &mut Vec<Fault>) {
    if datacenters.is_empty() {
        faults.push(Fault::new(
            format!("{at} → datacenters"),
            "is empty, so no node could ever match: leave it out or write [\"*\"]",
        ));
    }
    for datacenter in datacenters {
        if datacenter.is_empty() {
            faults.push(Fault::new(
                format!("{at} → datacenters"),
                "has an empty name: name a datacenter, such as \"dc1\" or \"*\"",
            ));
        }
        check_value(format_args!("{at} → datacenters"), datacenter, faults);
    }
}

/// Checks kill timeouts. Nomad refuses a job if stopping a task may take longer than its deployment's deadline.
fn check_kill_timeouts(group: &TaskGroup, faults: &mut Vec<Fault>) {
    let deadline = group.update.as_ref().map(|it| it.progress_deadline);
    let Some(deadline) = deadline.filter(|deadline| !deadline.is_zero()) else {
        return;
    };
    for task in group.tasks.iter().filter(|it| it.kill_timeout > deadline) {
        faults.push(Fault::new(
            format!(
                "group \"{}\" → task \"{}\" → kill_timeout",
                group.name, task.name
            ),
            format!(
                "{:?} is above the `progress_deadline` of the group's update, {deadline:?}",
                task.kill_timeout
            ),
        ));
    }
}

fn check_written(at: &str, as_written: &BTreeMap<String, String>, faults: &mut Vec<Fault>) {
    let written: usize = as_written
        .iter()
        .map(|(at, json)| at.len() + json.len())
        .sum();
    if written > limits::CONFIG_BYTES_MAX {
        faults.push(Fault::new(
            at,
            format!(
                "its fields without an effect are {written} bytes together, above {}",
                limits::CONFIG_BYTES_MAX
            ),
        ));
    }
}

/// Checks how many instances the groups of a job have together.
///
/// # Errors
///
/// The reason if there are too many.
pub fn check_instances(spec: &JobSpec) -> Result<(), String> {
    let instances = spec.instances();
    if instances > limits::JOB_INSTANCES_MAX {
        return Err(format!(
            "its groups have {instances} instances together: a job has at most {}; lower the counts, or make several jobs",
            limits::JOB_INSTANCES_MAX
        ));
    }
    if spec.all_at_once && instances > limits::ALL_AT_ONCE_INSTANCES_MAX {
        return Err(format!(
            "its groups have {instances} instances together: with all_at_once a job has at most {}",
            limits::ALL_AT_ONCE_INSTANCES_MAX
        ));
    }
    Ok(())
}

fn check_group(job_type: JobType, group: &TaskGroup, faults: &mut Vec<Fault>) {
    let TaskGroup {
        name,
        count,
        constraints,
        affinities,
        spreads,
        restart,
        reschedule,
        update,
        migrate,
        disconnect,
        scaling,
        volumes,
        shutdown_delay,
        ephemeral_disk,
        network,
        meta,
        tasks,
    } = group;
    let at = format!("group \"{name}\"");
    check_label(&at, name, faults);
    check_group_count(&at, job_type, *count, faults);
    check_constraints(&at, constraints, faults);
    check_affinities(&at, affinities, faults);
    check_spreads(&at, job_type, spreads, faults);
    check_restart(&at, restart, faults);
    update::check_reschedule(&at, job_type, reschedule, faults);
    if let Some(update) = update {
        update::check_update(&at, job_type, *count, update, faults);
    }
    if let Some(migrate) = migrate {
        update::check_migrate(&at, job_type, migrate, faults);
    }
    update::check_disconnect(&at, job_type, disconnect, faults);
    if let Some(scaling) = scaling {
        launch::check_scaling(&at, *count, scaling, faults);
    }
    launch::check_volumes(&at, volumes, faults);
    check_delay(&at, *shutdown_delay, faults);
    if ephemeral_disk.size.0 < 10 {
        faults.push(Fault::new(
            format!("{at} → ephemeral_disk.size"),
            format!("{} MiB is below 10", ephemeral_disk.size.0),
        ));
    }
    if let Some(network) = network {
        check_network(&at, network, faults);
    }
    check_map(format_args!("{at} → meta"), meta, limits::META_MAX, faults);
    if tasks.is_empty() {
        faults.push(Fault::new(
            at.clone(),
            "has no task: a group needs at least one `task` block",
        ));
    }
    check_count(
        format_args!("{at} → task"),
        tasks.len(),
        limits::TASKS_MAX,
        faults,
    );
    check_unique(
        &at,
        "task",
        tasks.iter().map(|task| task.name.as_str()),
        faults,
    );
    for task in tasks {
        check_task(&at, task, faults);
        launch::check_mounts(&at, volumes, task, faults);
    }
    check_phases(&at, tasks, faults);
}

fn check_group_count(at: &str, job_type: JobType, count: u32, faults: &mut Vec<Fault>) {
    let at = format!("{at} → count");
    if count > limits::COUNT_MAX {
        let reason = format!("{count} is above {}", limits::COUNT_MAX);
        faults.push(Fault::new(at, reason));
    } else if job_type == JobType::System && count > 1 {
        let reason = format!("{count} is above 1: a `system` job has one instance on every node");
        faults.push(Fault::new(at, reason));
    }
}

/// Checks that the group has a main task and at most one leader.
fn check_phases(at: &str, tasks: &[Task], faults: &mut Vec<Fault>) {
    if !tasks.is_empty() && tasks.iter().all(|task| task.lifecycle.is_some()) {
        faults.push(Fault::new(
            at,
            "has only tasks with a `lifecycle` block: one must be a main task, without it",
        ));
    }
    let leaders = tasks.iter().filter(|task| task.leader);
    if leaders.clone().count() > 1 {
        let names: Vec<&str> = leaders.map(|task| task.name.as_str()).collect();
        faults.push(Fault::new(
            at,
            format!(
                "has {} leaders ({}): one is allowed",
                names.len(),
                names.join(", ")
            ),
        ));
    }
}

fn check_delay(at: &str, delay: Duration, faults: &mut Vec<Fault>) {
    if delay > limits::DELAY_MAX {
        faults.push(Fault::new(
            format!("{at} → shutdown_delay"),
            format!("{delay:?} is above {:?}", limits::DELAY_MAX),
        ));
    }
}

/// Checks the user of a task. An empty user is the driver's default.
fn check_user(at: &str, user: &str, faults: &mut Vec<Fault>) {
    if user.is_empty() {
        return;
    }
    if let Err(error) = Account::parse(user) {
        let message = format!("{} {error}", QuotedName(user));
        faults.push(Fault::new(format!("{at} → user"), message));
    }
}

fn check_task(group: &str, task: &Task, faults: &mut Vec<Fault>) {
    let Task {
        name,
        driver,
        config_json,
        user,
        env,
        resources,
        constraints,
        affinities,
        restart: _,
        lifecycle,
        leader,
        payload_file,
        volume_mounts: _,
        shutdown_delay,
        kill_timeout,
        kill_signal,
        logs,
        meta,
        policy,
    } = task;
    let at = format!("{group} → task \"{name}\"");
    check_file_name(&at, name, faults);
    if driver.is_empty() {
        faults.push(Fault::new(
            format!("{at} → driver"),
            "is missing: name one, such as \"native\"",
        ));
    }
    check_value(format_args!("{at} → driver"), driver, faults);
    check_user(&at, user, faults);
    if config_json.len() > limits::CONFIG_BYTES_MAX {
        faults.push(Fault::new(
            format!("{at} → config"),
            format!(
                "is {} bytes, above {}",
                config_json.len(),
                limits::CONFIG_BYTES_MAX
            ),
        ));
    }
    check_map(format_args!("{at} → env"), env, limits::ENV_MAX, faults);
    for key in env.keys() {
        if key.is_empty() || key.contains('=') {
            faults.push(Fault::new(
                format!("{at} → env"),
                format!("`{key}` cannot name a variable"),
            ));
        }
    }
    check_resources(&at, resources, faults);
    check_constraints(&at, constraints, faults);
    check_affinities(&at, affinities, faults);
    check_delay(&at, *shutdown_delay, faults);
    launch::check_payload_file(&at, payload_file, faults);
    check_lifecycle(&at, *lifecycle, *leader, faults);
    if let Some(policy) = policy {
        policy::check_policy(&at, policy, faults);
    }
    if *kill_timeout > limits::DELAY_MAX {
        faults.push(Fault::new(
            format!("{at} → kill_timeout"),
            format!("{kill_timeout:?} is above {:?}", limits::DELAY_MAX),
        ));
    }
    if !kill_signal.is_empty() && !SIGNALS.contains(&kill_signal.as_str()) {
        faults.push(Fault::new(
            format!("{at} → kill_signal"),
            format!("unknown signal `{kill_signal}`: use a name of Linux, such as SIGTERM"),
        ));
    }
    check_logs(&at, *logs, faults);
    check_map(format_args!("{at} → meta"), meta, limits::META_MAX, faults);
}

fn check_logs(at: &str, logs: LogConfig, faults: &mut Vec<Fault>) {
    let LogConfig {
        max_files,
        max_file_size,
        rate,
        on_limit,
        on_full: _,
    } = logs;
    if (max_files == 0 || max_file_size.0 == 0) && !logs.is_disabled() {
        faults.push(Fault::new(
            format!("{at} → logs"),
            "max_files and max_file_size must be at least 1; `disabled = true` keeps nothing",
        ));
    }
    let (min, max) = (ByteRate::MIN, ByteRate::MAX);
    match rate {
        Some(rate) if !(min..=max).contains(&rate) => {
            let reason = format!("{rate} is not from {min} to {max}");
            faults.push(Fault::new(format!("{at} → logs → rate"), reason));
        }
        None if on_limit != LogOverflow::default() => faults.push(Fault::new(
            format!("{at} → logs → on_limit"),
            "says what happens above a `rate`, and there is none",
        )),
        Some(_) | None => {}
    }
}

/// Checks the size of logs. Nomad refuses a task whose logs may fill the disk of its group.
fn check_log_storage(group: &TaskGroup, faults: &mut Vec<Fault>) {
    let disk = group.ephemeral_disk.size.0;
    for task in &group.tasks {
        let needed = u64::from(task.logs.max_files) * u64::from(task.logs.max_file_size.0);
        if needed >= u64::from(disk) {
            faults.push(Fault::new(
                format!("group \"{}\" → task \"{}\" → logs", group.name, task.name),
                format!(
                    "log storage ({needed} MB) must be less than requested disk capacity ({disk} MB): lower `max_files` or `max_file_size`, or raise `ephemeral_disk.size`"
                ),
            ));
        }
    }
}

fn check_lifecycle(at: &str, lifecycle: Option<Lifecycle>, leader: bool, faults: &mut Vec<Fault>) {
    let Some(lifecycle) = lifecycle else { return };
    if leader {
        faults.push(Fault::new(
            format!("{at} → leader"),
            "a task with a `lifecycle` block cannot lead: the leader is a main task",
        ));
    }
    if lifecycle.sidecar && lifecycle.hook == LifecycleHook::Poststop {
        faults.push(Fault::new(
            format!("{at} → lifecycle.sidecar"),
            "a task that runs after the others runs beside none: leave it out",
        ));
    }
}

fn check_resources(at: &str, resources: &TaskResources, faults: &mut Vec<Fault>) {
    let TaskResources {
        cpu,
        cores,
        memory,
        memory_max,
        devices,
        cpu_hard_limit,
        io,
        ports,
    } = resources;
    check_ports(&format!("{at} → resources.network"), ports, faults);
    check_io(at, io, faults);
    if *cpu_hard_limit && *cores > 0 {
        faults.push(Fault::new(
            format!("{at} → resources.cpu_hard_limit"),
            "a task with `cores` has these and no others: leave it out",
        ));
    }
    for device in devices {
        check_device(at, device, faults);
    }
    check_count(
        format_args!("{at} → resources.device"),
        devices.len(),
        limits::DEVICES_MAX,
        faults,
    );
    if *cores > limits::CORES_MAX {
        faults.push(Fault::new(
            format!("{at} → resources.cores"),
            format!("{cores} is above {}", limits::CORES_MAX),
        ));
    }
    if cpu.0 == 0 && *cores == 0 {
        faults.push(Fault::new(
            format!("{at} → resources.cpu"),
            "must be at least 1 MHz",
        ));
    }
    if memory.0 < limits::MEMORY_MB_MIN {
        faults.push(Fault::new(
            format!("{at} → resources.memory"),
            format!("{} MiB is below {}", memory.0, limits::MEMORY_MB_MIN),
        ));
    }
    if let Some(max) = memory_max
        && max < memory
    {
        faults.push(Fault::new(
            format!("{at} → resources.memory_max"),
            format!("{} MiB is below memory ({} MiB)", max.0, memory.0),
        ));
    }
}

fn check_io(at: &str, io: &IoLimits, faults: &mut Vec<Fault>) {
    let IoLimits {
        read_rate,
        write_rate,
        read_ops,
        write_ops,
        weight,
    } = io;
    for (name, rate) in [("read_rate", read_rate), ("write_rate", write_rate)] {
        let (min, max) = (IoLimits::RATE_MIN, IoLimits::RATE_MAX);
        if let Some(rate) = rate.filter(|rate| !(min..=max).contains(rate)) {
            faults.push(Fault::new(
                format!("{at} → resources.io.{name}"),
                format!("{rate} is not between {min} and {max}"),
            ));
        }
    }
    for (name, ops) in [("read_ops", read_ops), ("write_ops", write_ops)] {
        if let Some(ops) = ops.filter(|ops| *ops < IoLimits::OPS_MIN) {
            faults.push(Fault::new(
                format!("{at} → resources.io.{name}"),
                format!("{ops} in a second is below {}", IoLimits::OPS_MIN),
            ));
        }
    }
    if let Some(weight) = weight.filter(|weight| !(1..=IoLimits::WEIGHT_MAX).contains(weight)) {
        faults.push(Fault::new(
            format!("{at} → resources.io.weight"),
            format!("{weight} is not between 1 and {}", IoLimits::WEIGHT_MAX),
        ));
    }
}

/// Checks that the restarts of a group can be counted and fit in their interval. Nomad does not check a task's own
/// policy.
fn check_restart(at: &str, restart: &RestartPolicy, faults: &mut Vec<Fault>) {
    if restart.attempts > 0 && restart.interval.is_zero() {
        faults.push(Fault::new(
            format!("{at} → restart.interval"),
            "must be above 0",
        ));
    }
    let attempts = restart.delay.saturating_mul(restart.attempts);
    if attempts > restart.interval {
        faults.push(Fault::new(
            format!("{at} → restart"),
            format!(
                "{} attempts with a delay of {:?} do not fit in an interval of {:?}",
                restart.attempts, restart.delay, restart.interval
            ),
        ));
    }
}

/// Returns all faults of a policy that is not part of a job; empty if there are none.
#[must_use]
pub fn validate_policy(policy: &NetworkPolicy) -> Vec<Fault> {
    let mut faults = Vec::new();
    policy::check_policy("node", policy, &mut faults);
    faults
}

/// Whether all characters of `text` are allowed in one word of a resolver's configuration.
#[must_use]
pub fn is_resolver_text(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b';')
}

fn check_dns(at: &str, mode: &NetworkMode, dns: &DnsConfig, faults: &mut Vec<Fault>) {
    let at = format!("{at} → dns");
    let DnsConfig {
        servers,
        searches,
        options,
    } = dns;
    if !mode.is_own() {
        let word = mode.as_str();
        let reason = format!(
            "does not go with mode `{word}`, whose tasks see the machine's /etc/resolv.conf: use `bridge` or `cni/NAME`"
        );
        faults.push(Fault::new(at.clone(), reason));
    }
    for (name, count, max) in [
        ("servers", servers.len(), limits::DNS_SERVERS_MAX),
        ("searches", searches.len(), limits::DNS_WORDS_MAX),
        ("options", options.len(), limits::DNS_WORDS_MAX),
    ] {
        check_count(format_args!("{at} → {name}"), count, max, faults);
    }
    let is_word = |word: &String| {
        (1..=limits::NAME_BYTES_MAX).contains(&word.len()) && is_resolver_text(word)
    };
    let is_server = |server: &&String| {
        server.contains("${") || server.trim().parse::<std::net::IpAddr>().is_ok()
    };
    if let Some(wrong) = servers.iter().find(|server| !is_server(server)) {
        let reason = format!("`{wrong}` is not an address such as 10.1.2.3");
        faults.push(Fault::new(format!("{at} → servers"), reason));
    }
    if let Some(wrong) = searches.iter().chain(options).find(|word| !is_word(word)) {
        let reason = format!("{wrong:?} is not a word of a resolver's configuration");
        faults.push(Fault::new(at, reason));
    }
}

fn check_cni(at: &str, cni: &CniNetwork, faults: &mut Vec<Fault>) {
    let CniNetwork { name, args } = cni;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_name = name.len() <= limits::NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(plain);
    if !is_name {
        let reason = format!(
            "unknown CNI network {name:?}: use `cni/NAME`, with a letter or digit and then letters, digits, `_`, `.` or `-`"
        );
        faults.push(Fault::new(format!("{at} → mode"), reason));
    }
    let at = format!("{at} → cni → args");
    check_count(&*at, args.len(), limits::CNI_ARGS_MAX, faults);
    for (key, value) in args {
        // Plugins separate arguments by `;` and keys from values by `=`.
        let wrong = |text: &str| {
            text.len() > limits::CNI_ARG_BYTES_MAX
                || text.contains(|char: char| char == ';' || char.is_control())
        };
        if key.is_empty() || key.contains('=') || wrong(key) || wrong(value) {
            let reason = format!(
                "invalid CNI argument {key:?}: use a key without `=` and a value, both without `;` and of at most {} bytes",
                limits::CNI_ARG_BYTES_MAX
            );
            faults.push(Fault::new(at.clone(), reason));
        }
    }
}

fn check_network(at: &str, network: &GroupNetwork, faults: &mut Vec<Fault>) {
    let at = format!("{at} → network");
    if let Some(policy) = &network.policy {
        policy::check_policy(&at, policy, faults);
    }
    if let Some(dns) = &network.dns {
        check_dns(&at, &network.mode, dns, faults);
    }
    if let Some(cni) = network.mode.cni() {
        check_cni(&at, cni, faults);
    }
    if !network.hostname.is_empty() {
        check_hostname(&at, &network.mode, &network.hostname, faults);
    }
    check_ports(&at, &network.ports, faults);
}

/// Checks a hostname. It needs a network of its own. A hostname with references is checked after they are filled in.
fn check_hostname(at: &str, mode: &NetworkMode, name: &str, faults: &mut Vec<Fault>) {
    let at = format!("{at} → hostname");
    if *mode == NetworkMode::Host {
        faults.push(Fault::new(
            at,
            "does not go with mode `host`, where tasks have the machine's name: use `bridge`",
        ));
    } else if !name.contains("${") && !is_hostname(name) {
        faults.push(Fault::new(
            at,
            format!(
                "{} is not a host name: use letters, digits, `-` and dots",
                QuotedName(name)
            ),
        ));
    }
}

/// Whether `name` is a valid hostname.
#[must_use]
pub fn is_hostname(name: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The kernel stores at most 64 bytes.
    name.len() <= 64 && name.split('.').all(is_label)
}

fn check_ports(at: &str, ports: &[PortAsk], faults: &mut Vec<Fault>) {
    check_count(
        format_args!("{at} → port"),
        ports.len(),
        limits::PORTS_MAX,
        faults,
    );
    check_unique(
        at,
        "port",
        ports.iter().map(|port| port.label.as_str()),
        faults,
    );
    let mut fixed = BTreeSet::new();
    for port in ports {
        let at = format!("{at} → port \"{}\"", port.label);
        check_file_name(&at, &port.label, faults);
        match port.fixed {
            Some(0) => faults.push(Fault::new(
                at,
                "static port 0 does not exist: use 1 to 65535",
            )),
            Some(value) if !fixed.insert(value) => {
                faults.push(Fault::new(
                    at,
                    format!("static port {value} is asked for twice"),
                ));
            }
            Some(_) | None => {}
        }
    }
}

fn check_constraints(at: &str, constraints: &[Constraint], faults: &mut Vec<Fault>) {
    check_constraint_texts(at, constraints, faults);
    check_operands(at, constraints, faults);
}

fn check_operands(at: &str, constraints: &[Constraint], faults: &mut Vec<Fault>) {
    for (ordinal, constraint) in constraints.iter().enumerate() {
        check_operand(&format!("{at} → constraint[{ordinal}]"), constraint, faults);
    }
}

fn check_constraint_texts(at: &str, constraints: &[Constraint], faults: &mut Vec<Fault>) {
    check_count(
        format_args!("{at} → constraint"),
        constraints.len(),
        limits::CONSTRAINTS_MAX,
        faults,
    );
    for (ordinal, constraint) in constraints.iter().enumerate() {
        let at = format!("{at} → constraint[{ordinal}]");
        check_value(&at, &constraint.left, faults);
        check_value(&at, &constraint.right, faults);
    }
}

fn check_versions(
    at: &str,
    conditions: &str,
    rules: version::VersionRules,
    faults: &mut Vec<Fault>,
) {
    // The value of a reference is only known on a node.
    if !conditions.contains("${") && version::Conditions::parse(conditions, rules).is_none() {
        faults.push(Fault::new(
            at,
            format!(
                "invalid version conditions {}: use for instance `>= 1.2, < 2.0`",
                QuotedName(conditions)
            ),
        ));
    }
}

fn check_operand(at: &str, constraint: &Constraint, faults: &mut Vec<Fault>) {
    let Constraint {
        left,
        operand,
        right,
    } = constraint;
    match operand {
        Operand::Regexp => {
            if let Err(error) = Pattern::new(right) {
                faults.push(Fault::new(
                    at,
                    format!("`{right}` is not a regular expression: {error}"),
                ));
            }
        }
        Operand::Version => check_versions(at, right, version::VersionRules::Version, faults),
        Operand::Semver => check_versions(at, right, version::VersionRules::Semver, faults),
        Operand::SetContainsAll | Operand::SetContainsAny => {
            if right.is_empty() {
                faults.push(Fault::new(
                    at,
                    format!("`{operand}` needs a value to compare with"),
                ));
            }
        }
        Operand::DistinctHosts => {
            if !matches!(right.as_str(), "" | "true" | "false") {
                faults.push(Fault::new(
                    at,
                    format!("distinct_hosts is true or false, not `{right}`"),
                ));
            }
        }
        Operand::DistinctProperty => {
            let limit: Result<u64, _> = right.parse();
            if !right.is_empty() && !matches!(limit, Ok(limit) if limit > 0) {
                faults.push(Fault::new(
                    at,
                    format!("distinct_property takes a number of instances, not `{right}`"),
                ));
            }
        }
        Operand::Equal
        | Operand::NotEqual
        | Operand::Less
        | Operand::LessOrEqual
        | Operand::Greater
        | Operand::GreaterOrEqual => {
            if right.is_empty() {
                faults.push(Fault::new(
                    at,
                    format!("`{operand}` needs a value to compare with; `is_set` and `is_not_set` need none"),
                ));
            }
        }
        Operand::IsSet | Operand::IsNotSet => {
            if !right.is_empty() {
                faults.push(Fault::new(
                    at,
                    format!("`{operand}` compares with nothing: leave `value` out"),
                ));
            }
        }
    }
    for side in [left, right] {
        if is_unknown_reference(side) {
            faults.push(Fault::new(
                at,
                format!(
                    "unknown attribute {}: use ${{attr.…}}, ${{meta.…}}, ${{node.class}}, ${{node.datacenter}}, ${{node.pool}}, ${{node.region}}, ${{node.unique.id}} or ${{node.unique.name}}",
                    QuotedName(side)
                ),
            ));
        }
    }
    if left.is_empty() && *operand != Operand::DistinctHosts {
        faults.push(Fault::new(at, "has no attribute to compare"));
    }
}

/// Whether `side` is a single reference that no node and no device can resolve.
fn is_unknown_reference(side: &str) -> bool {
    const NODE: [&str; 6] = [
        "node.class",
        "node.datacenter",
        "node.pool",
        "node.region",
        "node.unique.id",
        "node.unique.name",
    ];
    let inside = side
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|name| {
        let of_map = ["attr.", "meta.", "device."];
        !NODE.contains(&name) && !of_map.iter().any(|prefix| name.starts_with(prefix))
    })
}

fn check_affinities(at: &str, affinities: &[Affinity], faults: &mut Vec<Fault>) {
    check_count(
        format_args!("{at} → affinity"),
        affinities.len(),
        limits::CONSTRAINTS_MAX,
        faults,
    );
    for (ordinal, affinity) in affinities.iter().enumerate() {
        let at = format!("{at} → affinity[{ordinal}]");
        let Affinity {
            left,
            operand,
            right,
            weight,
        } = affinity;
        check_value(&at, left, faults);
        check_value(&at, right, faults);
        if !(-100..=100).contains(weight) || *weight == 0 {
            faults.push(Fault::new(
                format!("{at} → weight"),
                format!("{weight} is not within -100 to 100, or is 0, which says nothing"),
            ));
        }
        if matches!(operand, Operand::IsSet | Operand::IsNotSet) {
            faults.push(Fault::new(
                at.clone(),
                format!("`{operand}` is for constraints: write a `constraint` block"),
            ));
        }
        if matches!(operand, Operand::DistinctHosts | Operand::DistinctProperty) {
            faults.push(Fault::new(
                at,
                format!("`{operand}` is a constraint: write a `constraint` block"),
            ));
            continue;
        }
        let constraint = Constraint {
            left: left.clone(),
            operand: *operand,
            right: right.clone(),
        };
        check_operand(&at, &constraint, faults);
    }
}

/// Refuses affinities of jobs that run on every node, as Nomad does. The scheduler does not choose nodes for these
/// jobs.
fn check_preferences(at: &str, spec: &JobSpec, faults: &mut Vec<Fault>) {
    let job_type = spec.job_type;
    if !matches!(job_type, JobType::System | JobType::SysBatch) {
        return;
    }
    let mut check = |at: String, affinities: &[Affinity]| {
        if !affinities.is_empty() {
            let reason = format!(
                "a `{job_type}` job runs on every node, so none is preferred: leave it out"
            );
            faults.push(Fault::new(format!("{at} → affinity"), reason));
        }
    };
    check(at.to_owned(), &spec.affinities);
    for group in &spec.groups {
        let at = format!("group \"{}\"", group.name);
        for task in &group.tasks {
            let at = format!("{at} → task \"{}\"", task.name);
            check(at, &task.affinities);
        }
        check(at, &group.affinities);
    }
}

fn check_spreads(at: &str, job_type: JobType, spreads: &[Spread], faults: &mut Vec<Fault>) {
    check_count(
        format_args!("{at} → spread"),
        spreads.len(),
        limits::CONSTRAINTS_MAX,
        faults,
    );
    if !spreads.is_empty() && matches!(job_type, JobType::System | JobType::SysBatch) {
        faults.push(Fault::new(
            format!("{at} → spread"),
            format!(
                "a `{job_type}` job runs on every node, so nothing can be spread: leave it out"
            ),
        ));
    }
    for (ordinal, spread) in spreads.iter().enumerate() {
        let at = format!("{at} → spread[{ordinal}]");
        check_value(&at, &spread.attribute, faults);
        if spread.attribute.is_empty() {
            faults.push(Fault::new(at.clone(), "has no attribute to spread over"));
        }
        if !(1..=100).contains(&spread.weight) {
            faults.push(Fault::new(
                format!("{at} → weight"),
                format!("{} is outside 1 to 100", spread.weight),
            ));
        }
        check_unique(
            &at,
            "target",
            spread.targets.iter().map(|target| target.value.as_str()),
            faults,
        );
        let percent: u32 = spread
            .targets
            .iter()
            .map(|target| u32::from(target.percent))
            .sum();
        if percent > 100 {
            faults.push(Fault::new(
                at,
                format!("its targets make {percent} percent together: 100 is all"),
            ));
        }
    }
}

fn check_device(at: &str, device: &DeviceAsk, faults: &mut Vec<Fault>) {
    let at = format!("{at} → device \"{}\"", device.name);
    check_name(&at, &device.name, faults);
    if device.name.split('/').count() > 3 {
        faults.push(Fault::new(
            at.clone(),
            "is `type`, `vendor/type` or `vendor/type/name`",
        ));
    }
    if device.count == 0 {
        faults.push(Fault::new(format!("{at} → count"), "must be at least 1"));
    }
    check_constraints(&at, &device.constraints, faults);
    check_affinities(&at, &device.affinities, faults);
}

/// Signals of Linux that have a name and a fixed number.
const SIGNALS: [&str; 31] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGKILL",
    "SIGPIPE",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn check_name(at: impl Display + Copy, name: &str, faults: &mut Vec<Fault>) {
    if name.is_empty() {
        faults.push(Fault::new(at.to_string(), "is empty"));
    } else if name.len() > limits::NAME_BYTES_MAX {
        faults.push(Fault::new(
            at.to_string(),
            format!("is {} bytes, above {}", name.len(), limits::NAME_BYTES_MAX),
        ));
    } else if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        faults.push(Fault::new(
            at.to_string(),
            "contains white space or control characters",
        ));
    }
}

/// Checks a display name. Nomad allows blanks in it.
fn check_label(at: impl Display + Copy, name: &str, faults: &mut Vec<Fault>) {
    if name.chars().any(char::is_control) {
        faults.push(Fault::new(at.to_string(), "contains control characters"));
    } else if name.trim().is_empty() {
        faults.push(Fault::new(at.to_string(), "is empty"));
    } else if name.len() > limits::NAME_BYTES_MAX {
        faults.push(Fault::new(
            at.to_string(),
            format!("is {} bytes, above {}", name.len(), limits::NAME_BYTES_MAX),
        ));
    }
}

/// Checks a name that becomes a directory, a cgroup or part of a variable's name.
fn check_file_name(at: impl Display + Copy, name: &str, faults: &mut Vec<Fault>) {
    check_label(at, name, faults);
    if name.contains(['/', '\\']) {
        faults.push(Fault::new(
            at.to_string(),
            "contains a slash, but it names a directory",
        ));
    }
    if RESERVED_NAMES.contains(&name) {
        faults.push(Fault::new(
            at.to_string(),
            format!("`{name}` is reserved: choose another name"),
        ));
    }
}

fn check_value(at: impl Display + Copy, value: &str, faults: &mut Vec<Fault>) {
    if value.len() > limits::VALUE_BYTES_MAX {
        faults.push(Fault::new(
            at.to_string(),
            format!(
                "is {} bytes, above {}",
                value.len(),
                limits::VALUE_BYTES_MAX
            ),
        ));
    }
    if value.contains('\0') {
        faults.push(Fault::new(at.to_string(), "contains a NUL byte"));
    }
}

fn check_map(
    at: impl Display + Copy,
    map: &BTreeMap<String, String>,
    max: usize,
    faults: &mut Vec<Fault>,
) {
    check_count(at, map.len(), max, faults);
    for (key, value) in map {
        check_value(format_args!("{at}.{key}"), key, faults);
        check_value(format_args!("{at}.{key}"), value, faults);
    }
}

fn check_count(at: impl Display + Copy, count: usize, max: usize, faults: &mut Vec<Fault>) {
    if count > max {
        faults.push(Fault::new(
            at.to_string(),
            format!("{count} are too many: at most {max}"),
        ));
    }
}

fn check_unique<'a>(
    at: impl Display + Copy,
    noun: &str,
    names: impl Iterator<Item = &'a str>,
    faults: &mut Vec<Fault>,
) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            faults.push(Fault::new(
                at.to_string(),
                format!("has two {noun}s named \"{name}\""),
            ));
        }
    }
}

#[cfg(test)]
mod tests;
