//! `muster operator check` and `muster operator health`: whether the servers agree and are well.

use muster_wire::api::operator::{ClockConfirmed, DeepCheck, OperatorHealth, StateCheck};

use crate::client::Client;
use crate::exit::{CliResult, Exit};
use crate::output;

use super::raft::NO_LEADER;

/// Compares the state of all servers at one index, and lists the faults of the cluster. With `deep` the rules of the
/// state are checked.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub(super) fn check(client: &Client, json: bool, deep: bool) -> CliResult {
    let path = if deep {
        "/v1/operator/check?deep=true"
    } else {
        "/v1/operator/check"
    };
    let check: StateCheck = client.get(path)?;
    if json {
        output::print_json(&check)?;
        return Ok(exit_of_check(check.healthy));
    }
    let mut table = output::table(&["SERVER", "ID", "ADDRESS", "BEHIND", "STATE", "DIFFERS IN"]);
    for server in &check.servers {
        let state = if server.error.is_empty() {
            server.hash.clone()
        } else {
            output::clean(&server.error)
        };
        table.add_row([
            server.name.clone(),
            server.id.clone(),
            server.address.clone(),
            if server.error.is_empty() {
                server.entries_behind.to_string()
            } else {
                "–".to_owned()
            },
            state,
            server.differing.join(", "),
        ]);
    }
    output::print_table(&table)?;
    let silent = check
        .servers
        .iter()
        .filter(|server| !server.error.is_empty())
        .count();
    let verdict = match (check.differing.as_slice(), silent) {
        ([], 0) => format!(
            "All servers have the same state at index {}.\n",
            check.index
        ),
        ([], silent) => format!(
            "{silent} of {} servers gave no hash; all that answered have the same state at index {}.\n",
            check.servers.len(),
            check.index
        ),
        (tables, _) => format!(
            "The servers differ at index {} in: {}. Save a snapshot of a server that is right, then remove the wrong one \
             with `muster operator raft remove`, empty its data directory and let it join again.\n",
            check.index,
            tables.join(", ")
        ),
    };
    output::print(&verdict)?;
    for fault in &check.faults {
        output::print(&format!("Fault: {}.\n", output::clean(fault)))?;
    }
    if let Some(deep) = &check.deep {
        output::print(&deep_verdict(deep))?;
    }
    Ok(exit_of_check(check.healthy))
}

fn deep_verdict(deep: &DeepCheck) -> String {
    if !deep.error.is_empty() {
        return format!(
            "The rules of the state were not checked: {}.\n",
            output::clean(&deep.error)
        );
    }
    if deep.broken.is_empty() {
        return format!("All rules of the state hold at index {}.\n", deep.index);
    }
    let broken = deep.broken.iter();
    let lines = broken.map(|rule| {
        format!(
            "Fault of the state at index {}: {}.\n",
            deep.index,
            output::clean(rule)
        )
    });
    lines.collect()
}

/// Shows how every server is.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub(super) fn health(client: &Client, json: bool) -> CliResult {
    let health: OperatorHealth = client.get_any("/v1/operator/autopilot/health")?;
    if json {
        output::print_json(&health)?;
        return Ok(exit_of_check(health.healthy));
    }
    let mut table = output::table(&[
        "SERVER",
        "ID",
        "ADDRESS",
        "ROLE",
        "HEALTHY",
        "LAST CONTACT",
        "LAST INDEX",
        "BEHIND",
        "REASON",
    ]);
    for server in &health.servers {
        let role = match (server.leader, server.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let contact = if server.last_contact.is_empty() {
            "never"
        } else {
            &server.last_contact
        };
        table.add_row([
            server.name.clone(),
            server.id.clone(),
            server.address.clone(),
            role.to_owned(),
            if server.healthy { "yes" } else { "no" }.to_owned(),
            contact.to_owned(),
            server.last_index.to_string(),
            server.entries_behind.to_string(),
            output::clean(&server.reason),
        ]);
    }
    output::print_table(&table)?;
    let verdict = match (health.healthy, health.failure_tolerance) {
        (false, _) if health.leader.is_empty() => format!("{NO_LEADER}\n"),
        (true, 0) => "All servers are well; none may fail.\n".to_owned(),
        (true, 1) => "All servers are well; 1 of them may fail.\n".to_owned(),
        (true, count) => format!("All servers are well; {count} of them may fail.\n"),
        (false, count) => format!("Not all is well; {count} more may fail.\n"),
    };
    output::print(&verdict)?;
    Ok(exit_of_check(health.healthy))
}

/// Confirms a server's wall clock as right after a jump.
///
/// # Errors
///
/// [`crate::exit::CliError`].
pub(super) fn confirm_clock(client: &Client, json: bool) -> CliResult {
    let confirmed: ClockConfirmed = client.put("/v1/operator/clock/confirm", &())?;
    if json {
        output::print_json(&confirmed)?;
    } else if confirmed.jump.is_empty() {
        output::print(&format!(
            "The wall clock of {} has not jumped.\n",
            output::clean(&confirmed.server)
        ))?;
    } else {
        output::print(&format!(
            "{} goes by its wall clock again, which jumped by {}.\n",
            output::clean(&confirmed.server),
            output::clean(&confirmed.jump)
        ))?;
    }
    Ok(Exit::Done)
}

fn exit_of_check(well: bool) -> Exit {
    if well { Exit::Done } else { Exit::Failed }
}
