//! The conditions that a one-off task must meet before it is accepted.

use crate::account::{Account, QuotedName};
use crate::fault::Fault;
use crate::job::{Operand, validate};
use crate::limits;
use crate::text_enum::TextEnum as _;

use super::{
    ACTION_DEPTH_MAX, ACTIONS_MAX, ANNOTATION_BYTES_MAX, Action, DEFINITION_BYTES_MAX, Definition,
    Download, EgressRule, GUID_BYTES_MAX, LABEL_BYTES_MAX, OneOffTimings, PIDS_MAX, RETENTION_MAX,
    START_TIMEOUT_MAX, TASK, URL_BYTES_MAX, job, job::RootSource,
};

/// Whether `guid` may name a task: letters, digits, `-` and `_`.
#[must_use]
pub fn is_guid(guid: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !guid.is_empty() && guid.len() <= GUID_BYTES_MAX && guid.bytes().all(fits)
}

/// Whether `domain` is a valid domain. Diego refuses an empty domain and one that is too long for its column. Control
/// characters would break log lines and headers.
#[must_use]
pub fn is_domain(domain: &str) -> bool {
    !domain.is_empty() && domain.len() <= GUID_BYTES_MAX && !domain.contains(char::is_control)
}

/// The fault in the name of a domain, if there is one.
#[must_use]
pub fn check_domain(domain: &str) -> Option<Fault> {
    let why = || format!("must have 1 to {GUID_BYTES_MAX} bytes and no control characters");
    (!is_domain(domain)).then(|| Fault::new("domain", why()))
}

/// Returns all faults of a task, by field; empty if there are none.
#[must_use]
pub fn check(guid: &str, domain: &str, definition: &Definition) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_guid(guid) {
        faults.push(Fault::new(
            "task_guid",
            format!("`{guid}` is not 1 to {GUID_BYTES_MAX} letters, digits, `-` and `_`"),
        ));
    }
    faults.extend(check_domain(domain));
    check_definition(definition, &mut faults);
    if faults.is_empty() {
        // The remaining checks are those of every job, such as the length of a value. A job may set both
        // `stop_on_client_after` and `lost_after` only if nothing is ever replaced.
        let mut job = job(guid, domain, definition, OneOffTimings::default());
        // A guid may be longer than the id of a job, and a tree larger than the configuration of a driver.
        for name in [&mut job.id, &mut job.name] {
            TASK.clone_into(name);
        }
        for group in &mut job.groups {
            group.disconnect.lost_after = None;
            for task in &mut group.tasks {
                "{}".clone_into(&mut task.config_json);
            }
        }
        if let Err(more) = validate(job) {
            faults.extend(more);
        }
    }
    faults
}

fn check_definition(definition: &Definition, faults: &mut Vec<Fault>) {
    let mut wrong = |field: &str, reason: String| faults.push(Fault::new(field, reason));
    check_root_and_limits(definition, &mut wrong);
    check_rest(definition, &mut wrong);
}

/// Checks the root and the limits.
fn check_root_and_limits(definition: &Definition, wrong: &mut impl FnMut(&str, String)) {
    let Definition {
        rootfs,
        env,
        disk_mb,
        memory_mb,
        cpu_weight,
        max_pids,
        privileged,
        ..
    } = definition;
    if let Err(reason) = RootSource::read(rootfs) {
        wrong("rootfs", reason);
    }
    if let Some(name) = env.iter().find(|it| !is_env_name(&it.name)) {
        wrong("env", format!("`{}` names no variable", name.name));
    }
    for (field, value) in [
        ("disk_mb", *disk_mb),
        ("memory_mb", *memory_mb),
        ("max_pids", *max_pids),
    ] {
        if value < 0 {
            wrong(field, format!("{value} is below 0"));
        }
    }
    if *max_pids > PIDS_MAX {
        wrong("max_pids", format!("{max_pids} is above {PIDS_MAX}"));
    }
    if *memory_mb > 0 && memory_mb.unsigned_abs() < limits::MEMORY_MB_MIN {
        let min = limits::MEMORY_MB_MIN;
        wrong("memory_mb", format!("{memory_mb} is below {min}"));
    }
    if *cpu_weight > 100 {
        wrong(
            "cpu_weight",
            format!("{cpu_weight} is above 100: weights are 1 to 100"),
        );
    }
    if *privileged {
        let reason = "true is not carried out: tasks share the kernel; leave it out";
        wrong("privileged", reason.to_owned());
    }
}

/// Checks the action, the callback, the annotation, the rules for egress, the priority, and the constraints.
fn check_rest(definition: &Definition, wrong: &mut impl FnMut(&str, String)) {
    let Definition {
        action,
        completion_callback_url,
        annotation,
        egress_rules,
        priority,
        constraints,
        ..
    } = definition;
    if completion_callback_url.len() > URL_BYTES_MAX {
        wrong(
            "completion_callback_url",
            format!("has more than {URL_BYTES_MAX} bytes"),
        );
    } else if !completion_callback_url.is_empty() && !is_http(completion_callback_url) {
        wrong(
            "completion_callback_url",
            format!("`{completion_callback_url}` is not an http or https URL"),
        );
    }
    if annotation.len() > ANNOTATION_BYTES_MAX {
        wrong(
            "annotation",
            format!(
                "{} bytes are more than {ANNOTATION_BYTES_MAX}",
                annotation.len()
            ),
        );
    }
    check_labels(definition, wrong);
    check_egress(egress_rules, wrong);
    check_tags_and_times(definition, wrong);
    if !(1..=limits::PRIORITY_MAX).contains(priority) {
        let max = limits::PRIORITY_MAX;
        wrong("priority", format!("{priority} is outside 1 to {max}"));
    }
    for condition in constraints {
        match Operand::from_name(&condition.operator) {
            None => wrong("constraints", Operand::unknown(&condition.operator)),
            Some(Operand::DistinctHosts | Operand::DistinctProperty) => wrong(
                "constraints",
                format!(
                    "`{}` is about several instances: a task has one",
                    condition.operator
                ),
            ),
            Some(_) => {}
        }
    }
    check_tree(action, wrong);
    if serde_json::to_string(definition).map_or(usize::MAX, |text| text.len())
        > DEFINITION_BYTES_MAX
    {
        wrong(
            "task_definition",
            format!("has more than {DEFINITION_BYTES_MAX} bytes as JSON"),
        );
    }
}

/// Checks the names of the task's log and metrics.
fn check_labels(definition: &Definition, wrong: &mut impl FnMut(&str, String)) {
    let Definition {
        log_source,
        log_guid,
        metrics_guid,
        ..
    } = definition;
    for (field, label) in [
        ("log_source", log_source),
        ("log_guid", log_guid),
        ("metrics_guid", metrics_guid),
    ] {
        if label.len() > LABEL_BYTES_MAX || label.contains(char::is_control) {
            let reason =
                format!("must have no more than {LABEL_BYTES_MAX} bytes and no control characters");
            wrong(field, reason);
        }
    }
}

/// Checks the placement, the start deadline, and the retention.
fn check_tags_and_times(definition: &Definition, wrong: &mut impl FnMut(&str, String)) {
    let Definition {
        placement_tags,
        start_timeout_ms,
        retention_ms,
        ..
    } = definition;
    if placement_tags.iter().any(|tag| tag.contains(',')) {
        wrong("placement_tags", "a tag has a comma".to_owned());
    }
    for (field, millis, max) in [
        ("start_timeout_ms", *start_timeout_ms, START_TIMEOUT_MAX),
        ("retention_ms", *retention_ms, RETENTION_MAX),
    ] {
        if u128::from(millis) > max.as_millis() {
            let max = max.as_millis();
            wrong(field, format!("{millis} is above {max}"));
        }
    }
}

fn is_env_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn is_http(url: &str) -> bool {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
        let place = authority.rsplit('@').next().unwrap_or("");
        let (host, port) = match place.rsplit_once(':') {
            // The colons of an address such as `[::1]` do not separate a port.
            Some((host, port)) if !port.ends_with(']') => (host, port),
            Some(_) | None => (place, ""),
        };
        let is_port = port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0);
        !host.is_empty() && is_port && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

/// Whether `url` is `file:///PATH`. The path is on the task's node, which decides on access.
fn is_file(url: &str) -> bool {
    let path = url.strip_prefix("file://");
    path.is_some_and(|path| path.starts_with('/') && path.len() > 1)
}

fn check_egress(rules: &[EgressRule], wrong: &mut impl FnMut(&str, String)) {
    if rules.len() > limits::POLICY_RULES_MAX {
        let max = limits::POLICY_RULES_MAX;
        return wrong("egress_rules", format!("has more than {max} rules"));
    }
    let faults = rules.iter().enumerate();
    let mut faults = faults.filter_map(|(at, rule)| Some((at, rule.fault()?)));
    if let Some((at, fault)) = faults.next() {
        wrong("egress_rules", format!("rule {at}: {fault}"));
    }
}

fn check_tree(action: &Action, wrong: &mut impl FnMut(&str, String)) {
    let mut count = 0;
    let mut level = vec![(action, 1_usize)];
    while let Some((action, depth)) = level.pop() {
        count += 1;
        if depth > ACTION_DEPTH_MAX || count > ACTIONS_MAX {
            wrong(
                "action",
                format!("has more than {ACTION_DEPTH_MAX} levels or {ACTIONS_MAX} actions"),
            );
            return;
        }
        check_action(action, wrong);
        level.extend(action.children().iter().map(|child| (child, depth + 1)));
    }
}

fn check_action(action: &Action, wrong: &mut impl FnMut(&str, String)) {
    let mut needs = |field: &str, value: &str| {
        if value.is_empty() {
            wrong(field, format!("is missing in a {} action", action.as_str()));
        }
    };
    match action {
        Action::Run(run) => {
            needs("path", &run.path);
            needs("user", &run.user);
            if let Some(it) = run.env.iter().find(|it| !is_env_name(&it.name)) {
                wrong("env", format!("`{}` names no variable", it.name));
            }
            check_user(&run.user, wrong);
        }
        Action::Download(download) => {
            needs("from", &download.from);
            needs("to", &download.to);
            needs("user", &download.user);
            let from = &download.from;
            if !from.is_empty() && !is_http(from) && !is_file(from) {
                wrong(
                    "from",
                    format!("`{from}` is not an http, https or file URL"),
                );
            }
            check_user(&download.user, wrong);
            check_sum(download, wrong);
        }
        Action::Upload(upload) => {
            needs("to", &upload.to);
            needs("from", &upload.from);
            needs("user", &upload.user);
            let to = &upload.to;
            if !to.is_empty() && !is_http(to) && !is_file(to) {
                wrong("to", format!("`{to}` is not an http, https or file URL"));
            }
            check_user(&upload.user, wrong);
        }
        Action::Timeout(timeout) => {
            if timeout.timeout_ms <= 0 {
                let millis = timeout.timeout_ms;
                wrong("timeout_ms", format!("{millis} is not above 0"));
            }
        }
        Action::EmitProgress(_) | Action::Try(_) => {}
        Action::Parallel(all) | Action::Serial(all) | Action::Codependent(all) => {
            if all.actions.is_empty() {
                wrong(
                    "actions",
                    format!("is empty in a {} action", action.as_str()),
                );
            }
        }
    }
}

/// Checks the user. An empty user is reported as missing.
fn check_user(user: &str, wrong: &mut impl FnMut(&str, String)) {
    if let Err(error) = Account::parse(user)
        && !user.is_empty()
    {
        wrong("user", format!("{} {error}", QuotedName(user)));
    }
}

/// Checks that algorithm and value are set together and that the value has the right number of digits.
fn check_sum(download: &Download, wrong: &mut impl FnMut(&str, String)) {
    let (algorithm, value) = (&download.checksum_algorithm, &download.checksum_value);
    let digits = match algorithm.as_str() {
        "" if value.is_empty() => return,
        "" => {
            let reason = "is missing beside checksum_value".to_owned();
            return wrong("checksum algorithm", reason);
        }
        "md5" => 32,
        "sha1" => 40,
        "sha256" => 64,
        other => {
            let reason = format!("`{other}` is none of md5, sha1, sha256");
            return wrong("checksum algorithm", reason);
        }
    };
    if value.is_empty() {
        let reason = "is missing beside checksum_algorithm".to_owned();
        wrong("checksum value", reason);
    } else if value.len() != digits || !value.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let reason = format!("`{value}` is not a {algorithm} in {digits} hexadecimal digits");
        wrong("checksum value", reason);
    }
}
