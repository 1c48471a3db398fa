//! Prints one-off tasks as text.

use std::time::Duration;

use muster_wire::api::task::{Task, TaskStatus};

use crate::exit::CliError;
use crate::output;

pub(super) fn list(tasks: &[Task]) -> Result<(), CliError> {
    if tasks.is_empty() {
        output::eprint("no tasks; have one done with `muster task run FILE`");
        return Ok(());
    }
    let mut table = output::table(&[
        "TASK", "DOMAIN", "STATE", "PHASE", "NODE", "CHANGED", "REASON",
    ]);
    for Task { status, .. } in tasks {
        table.add_row([
            output::clean(&status.task_guid),
            output::clean(&status.domain),
            status.state.clone(),
            status.phase.clone(),
            output::short_id(&status.cell_id).to_owned(),
            output::time_since(status.updated_at),
            output::clean(reason(status)),
        ]);
    }
    output::print_table(&table)
}

/// The reason for the failure or the wait.
fn reason(status: &TaskStatus) -> &str {
    if status.failed {
        &status.failure_reason
    } else {
        status.waits_for()
    }
}

pub(super) fn one(task: &Task) -> Result<(), CliError> {
    let Task { definition, status } = task;
    let mut lines = vec![format!(
        "{}  domain {}  {} ({})",
        output::clean(&status.task_guid),
        output::clean(&status.domain),
        status.state,
        status.phase
    )];
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {name:<10} {}", output::clean(&value)));
        }
    };
    line("desired", output::time_since(status.created_at));
    line("waits for", format_wait(status));
    line("node", status.cell_id.clone());
    line("alloc", status.alloc_id.clone());
    line("ended", format_end(status));
    line("failed", status.failure_reason.clone());
    line("in", status.failed_action.clone());
    line("used", used(status));
    line("result", status.result.trim_end().to_owned());
    line("", status.result_note.clone());
    if status.result_truncated {
        line("", "the file is longer: this is its beginning".to_owned());
    }
    line("callback", callback(task));
    line("annotation", definition.annotation.clone());
    if !status.alloc_id.is_empty() {
        let alloc = output::short_id(&status.alloc_id);
        lines.push(format!("  output: muster alloc logs {alloc}"));
    }
    output::print(&format!("{}\n", lines.join("\n")))
}

fn format_wait(status: &TaskStatus) -> String {
    match (status.waits_for(), status.rejection_count) {
        (reason, 0 | 1) => reason.to_owned(),
        ("", _) => String::new(),
        (reason, count) => format!("{reason} (looked {count} times)"),
    }
}

fn format_end(status: &TaskStatus) -> String {
    let how = match (status.exit_code, status.signal) {
        (_, Some(signal)) => format!("by signal {signal}"),
        (Some(code), None) => format!("with status {code}"),
        (None, None) => String::new(),
    };
    let memory = out_of_memory(status);
    if status.first_completed_at == 0 {
        return String::new();
    }
    let when = output::time_since(status.first_completed_at);
    format!("{when} {how}{memory}").trim_end().to_owned()
}

fn out_of_memory(status: &TaskStatus) -> String {
    if !status.out_of_memory {
        return String::new();
    }
    let limit = match (status.memory_limit_bytes, status.oom_peak_bytes) {
        (0, _) => String::new(),
        (limit, 0) => format!(" at {}", output::bytes(limit)),
        (limit, peak) => format!(
            " at {} (peak {})",
            output::bytes(limit),
            output::bytes(peak)
        ),
    };
    let killed = match status.oom_process.as_str() {
        "" => String::new(),
        name => format!(", {name} was killed"),
    };
    format!(", out of memory{limit}{killed}")
}

fn used(status: &TaskStatus) -> String {
    let cpu = status
        .cpu_ns
        .map(|nanos| format!("{} of CPU", output::span(Duration::from_nanos(nanos))));
    let memory = status
        .memory_peak_bytes
        .map(|bytes| format!("{} of memory", output::bytes(bytes)));
    // A zero is omitted because the task used nothing. An absent count is unknown.
    let some = |bytes: Option<u64>, what: &str| {
        let bytes = bytes.filter(|bytes| *bytes > 0)?;
        Some(format!("{} {what}", output::bytes(bytes)))
    };
    let parts = [
        cpu,
        memory,
        some(status.net_rx_bytes, "received"),
        some(status.net_tx_bytes, "sent"),
        some(status.block_read_bytes, "read from disks"),
        some(status.block_write_bytes, "written to disks"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

fn callback(task: &Task) -> String {
    let (url, status) = (&task.definition.completion_callback_url, &task.status);
    match (url.is_empty(), status.callback_attempts) {
        (true, _) => String::new(),
        (false, 0) => url.clone(),
        (false, failed) if status.callback_given_up => {
            let when = output::time_since(status.callback_given_up_at);
            let failed = output::count_with_noun(failed, "time");
            format!("{url}, given up {when}, failed {failed}")
        }
        (false, failed) => format!(
            "{url}, failed {}, next {}",
            output::count_with_noun(failed, "time"),
            output::time_until(status.callback_next_at)
        ),
    }
}

/// Prints the result of a task, alone on standard output; everything else goes to standard error.
pub(super) fn result(task: &Task) -> Result<(), CliError> {
    let status = &task.status;
    let guid = output::clean(&status.task_guid);
    if status.failed {
        let why = output::clean(&status.failure_reason);
        output::eprint(&format!("{guid} failed: {why}"));
    } else {
        output::eprint(&format!("{guid} is done"));
    }
    if !status.result_note.is_empty() {
        output::eprint(&output::clean(&status.result_note));
    }
    if status.result_truncated {
        output::eprint("the result is cut: the file is longer");
    }
    if !status.result.is_empty() {
        output::print(&status.result)?;
        if !status.result.ends_with('\n') {
            output::print("\n")?;
        }
    }
    Ok(())
}
