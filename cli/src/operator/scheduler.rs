//! `muster operator scheduler`: settings that change while the cluster runs.

use clap::{Args, Subcommand};
use muster_wire::api::operator::{SchedulerConfig, SchedulerResponse, SchedulerSetResponse};

use crate::client::Client;
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

const PATH: &str = "/v1/operator/scheduler/configuration";

/// Commands about the scheduler.
#[derive(Debug, Subcommand)]
pub enum SchedulerCommand {
    /// Show the scheduler's settings.
    GetConfig,
    /// Change settings of the scheduler. Other settings stay.
    ///
    /// Example: muster operator scheduler set-config --scheduler-algorithm spread
    SetConfig(SetArgs),
}

/// Arguments of `muster operator scheduler set-config`. A flag without a value is true.
#[derive(Clone, Debug, Default, Args)]
#[command(group = clap::ArgGroup::new("settings").required(true).multiple(true))]
pub struct SetArgs {
    /// Which of two feasible nodes is better: the fuller one (binpack) or the emptier one (spread).
    #[arg(long, value_parser = ["binpack", "spread"], value_name = "ALGORITHM", group = "settings")]
    pub scheduler_algorithm: Option<String>,
    /// Let tasks use more memory than they reserve (`memory_max`).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub memory_oversubscription: Option<bool>,
    /// Let system jobs preempt less important jobs.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub preempt_system_scheduler: Option<bool>,
    /// Let batch jobs preempt.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub preempt_batch_scheduler: Option<bool>,
    /// Let service jobs preempt.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub preempt_service_scheduler: Option<bool>,
    /// Let sysbatch jobs preempt.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub preempt_sysbatch_scheduler: Option<bool>,
    /// Refuse new and changed jobs.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub reject_job_registration: Option<bool>,
    /// Do not process evaluations.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", group = "settings")]
    pub pause_eval_broker: Option<bool>,
    /// Change the settings only if they still have this modify index.
    #[arg(long, value_name = "INDEX")]
    pub check_index: Option<u64>,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(client: &Client, json: bool, command: &SchedulerCommand) -> CliResult {
    match command {
        SchedulerCommand::GetConfig => show(client, json),
        SchedulerCommand::SetConfig(args) => set(client, json, args),
    }
}

fn show(client: &Client, json: bool) -> CliResult {
    let answer: SchedulerResponse = client.get(PATH)?;
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    let SchedulerConfig {
        scheduler_algorithm,
        preemption_config: preempt,
        memory_oversubscription_enabled,
        reject_job_registration,
        pause_eval_broker,
        create_index: _,
        modify_index,
    } = answer.scheduler_config;
    let mut table = output::table(&["SETTING", "VALUE"]);
    for (name, value) in [
        ("scheduler algorithm", scheduler_algorithm),
        (
            "memory oversubscription",
            memory_oversubscription_enabled.to_string(),
        ),
        (
            "reject job registration",
            reject_job_registration.to_string(),
        ),
        ("pause eval broker", pause_eval_broker.to_string()),
        (
            "preempt system scheduler",
            preempt.system_scheduler_enabled.to_string(),
        ),
        (
            "preempt service scheduler",
            preempt.service_scheduler_enabled.to_string(),
        ),
        (
            "preempt batch scheduler",
            preempt.batch_scheduler_enabled.to_string(),
        ),
        (
            "preempt sysbatch scheduler",
            preempt.sys_batch_scheduler_enabled.to_string(),
        ),
        ("modify index", modify_index.to_string()),
    ] {
        table.add_row([name.to_owned(), value]);
    }
    output::print_table(&table)?;
    Ok(Exit::Done)
}

/// Changes settings. They are written as a whole, so they are read first and written only if unchanged since.
fn set(client: &Client, json: bool, args: &SetArgs) -> CliResult {
    let answer: SchedulerResponse = client.get(PATH)?;
    let seen = answer.scheduler_config.modify_index;
    let wanted = changed(answer.scheduler_config, args);
    let index = args.check_index.unwrap_or(seen);
    let answer: SchedulerSetResponse = client.put(&format!("{PATH}?cas={index}"), &wanted)?;
    if !answer.updated {
        return Err(CliError::new(
            Exit::Refused,
            format!("the settings are no longer those of index {index}: nothing is changed"),
        )
        .help("look at them with `muster operator scheduler get-config` and try again"));
    }
    if json {
        output::print_json(&answer)?;
        return Ok(Exit::Done);
    }
    output::print(&format!(
        "The scheduler's settings are changed (index {}).\n",
        answer.index
    ))?;
    Ok(Exit::Done)
}

/// `config` with the settings from `args`.
fn changed(mut config: SchedulerConfig, args: &SetArgs) -> SchedulerConfig {
    let SetArgs {
        scheduler_algorithm,
        memory_oversubscription,
        preempt_system_scheduler,
        preempt_batch_scheduler,
        preempt_service_scheduler,
        preempt_sysbatch_scheduler,
        reject_job_registration,
        pause_eval_broker,
        check_index: _,
    } = args;
    if let Some(algorithm) = scheduler_algorithm {
        config.scheduler_algorithm.clone_from(algorithm);
    }
    let preempt = &mut config.preemption_config;
    for (setting, wanted) in [
        (
            &mut config.memory_oversubscription_enabled,
            memory_oversubscription,
        ),
        (
            &mut preempt.system_scheduler_enabled,
            preempt_system_scheduler,
        ),
        (
            &mut preempt.batch_scheduler_enabled,
            preempt_batch_scheduler,
        ),
        (
            &mut preempt.service_scheduler_enabled,
            preempt_service_scheduler,
        ),
        (
            &mut preempt.sys_batch_scheduler_enabled,
            preempt_sysbatch_scheduler,
        ),
        (&mut config.reject_job_registration, reject_job_registration),
        (&mut config.pause_eval_broker, pause_eval_broker),
    ] {
        *setting = wanted.unwrap_or(*setting);
    }
    config
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: SetArgs,
    }

    fn after(line: &str) -> Result<SchedulerConfig, clap::Error> {
        let before = SchedulerConfig {
            scheduler_algorithm: "binpack".to_owned(),
            pause_eval_broker: true,
            ..SchedulerConfig::default()
        };
        let words = std::iter::once("set-config").chain(line.split_whitespace());
        TestArgs::try_parse_from(words).map(|line| changed(before, &line.args))
    }

    #[test]
    fn unnamed_settings_stay() {
        let config = after("--scheduler-algorithm spread --preempt-batch-scheduler=true").unwrap();

        assert_eq!(config.scheduler_algorithm, "spread");
        assert!(config.preemption_config.batch_scheduler_enabled);
        assert!(config.pause_eval_broker);
        assert!(!config.preemption_config.service_scheduler_enabled);
    }

    #[test]
    fn flag_without_a_value_is_true() {
        assert!(
            after("--memory-oversubscription")
                .unwrap()
                .memory_oversubscription_enabled
        );
        assert!(
            !after("--pause-eval-broker=false")
                .unwrap()
                .pause_eval_broker
        );
    }

    #[test]
    fn unknown_option_value_error_lists_allowed_values() {
        let error = after("--scheduler-algorithm random")
            .unwrap_err()
            .to_string();

        assert!(error.contains("binpack, spread"), "{error}");
        assert!(after("--preempt-batch-scheduler=maybe").is_err());
        assert!(after("").is_err());
        assert!(after("--check-index 5").is_err());
    }
}
