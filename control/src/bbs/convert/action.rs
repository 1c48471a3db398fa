//! The tree of actions. Decoding bounds its depth (a hundred messages), validation bounds it further.

use muster_domain::fault::Fault;
use muster_domain::one_off::{
    Action, Actions, Download, EmitProgress, EnvVar, ResourceLimits, Run, Timeout, Try, Upload,
};

use crate::bbs::proto::{
    self, ActionList, DownloadAction, EmitProgressAction, EnvironmentVariable, RunAction,
    TimeoutAction, TryAction, UploadAction,
};

/// Reads the action in `found`. A missing action adds a fault named `field` and returns a placeholder, so
/// that the rest is checked too.
pub(super) fn action(found: Option<proto::Action>, field: &str, faults: &mut Vec<Fault>) -> Action {
    let proto::Action {
        download,
        upload,
        run,
        timeout,
        emit_progress,
        r#try,
        parallel,
        serial,
        codependent,
    } = found.unwrap_or_default();
    if let Some(it) = download {
        Action::Download(from_download(it))
    } else if let Some(it) = upload {
        Action::Upload(from_upload(it))
    } else if let Some(it) = run {
        Action::Run(from_run(it, faults))
    } else if let Some(it) = timeout {
        Action::Timeout(from_timeout(*it, faults))
    } else if let Some(it) = emit_progress {
        Action::EmitProgress(from_emit_progress(*it, faults))
    } else if let Some(it) = r#try {
        Action::Try(from_try(*it, faults))
    } else if let Some(it) = parallel {
        Action::Parallel(from_list(it, faults))
    } else if let Some(it) = serial {
        Action::Serial(from_list(it, faults))
    } else if let Some(it) = codependent {
        Action::Codependent(from_list(it, faults))
    } else {
        faults.push(Fault::new(field, "is missing or says nothing"));
        placeholder()
    }
}

/// An action that is valid in itself.
fn placeholder() -> Action {
    let run = RunAction {
        path: "-".to_owned(),
        user: "-".to_owned(),
        ..RunAction::default()
    };
    Action::Run(from_run(run, &mut Vec::new()))
}

fn from_download(it: DownloadAction) -> Download {
    let DownloadAction {
        artifact,
        from,
        to,
        cache_key: _,
        log_source,
        user,
        checksum_algorithm,
        checksum_value,
    } = it;
    Download {
        artifact,
        from,
        to,
        user,
        log_source,
        checksum_algorithm,
        checksum_value,
    }
}

fn from_upload(it: UploadAction) -> Upload {
    let UploadAction {
        artifact,
        from,
        to,
        log_source,
        user,
    } = it;
    Upload {
        artifact,
        from,
        to,
        user,
        log_source,
    }
}

fn from_run(it: RunAction, faults: &mut Vec<Fault>) -> Run {
    let RunAction {
        path,
        args,
        dir,
        env,
        resource_limits,
        user,
        log_source,
        suppress_log_output,
        volume_mounted_files,
    } = it;
    if !volume_mounted_files.is_empty() {
        faults.push(Fault::new("volume_mounted_files", "are not carried out"));
    }
    Run {
        path,
        args,
        dir,
        env: from_env(env),
        resource_limits: resource_limits.map(|limits| ResourceLimits {
            nofile: limits.nofile,
        }),
        user,
        log_source,
        suppress_log_output,
    }
}

fn from_timeout(it: TimeoutAction, faults: &mut Vec<Fault>) -> Timeout {
    let TimeoutAction {
        action,
        timeout_ns: _,
        log_source,
        timeout_ms,
    } = it;
    Timeout {
        action: nested_action(action, faults),
        timeout_ms,
        log_source,
    }
}

fn from_emit_progress(it: EmitProgressAction, faults: &mut Vec<Fault>) -> EmitProgress {
    let EmitProgressAction {
        action,
        start_message,
        success_message,
        failure_message_prefix,
        log_source,
    } = it;
    EmitProgress {
        action: nested_action(action, faults),
        start_message,
        success_message,
        failure_message_prefix,
        log_source,
    }
}

fn from_try(it: TryAction, faults: &mut Vec<Fault>) -> Try {
    let TryAction { action, log_source } = it;
    Try {
        action: nested_action(action, faults),
        log_source,
    }
}

fn from_list(it: ActionList, faults: &mut Vec<Fault>) -> Actions {
    let ActionList {
        actions,
        log_source,
    } = it;
    let numbered = actions.into_iter().enumerate();
    let actions =
        numbered.map(|(at, it)| action(Some(it), &format!("action at index {at}"), faults));
    Actions {
        actions: actions.collect(),
        log_source,
    }
}

fn nested_action(found: Option<Box<proto::Action>>, faults: &mut Vec<Fault>) -> Box<Action> {
    Box::new(action(found.map(|it| *it), "action", faults))
}

pub(super) fn from_env(env: Vec<EnvironmentVariable>) -> Vec<EnvVar> {
    let variables = env.into_iter().map(|it| {
        let EnvironmentVariable { name, value } = it;
        EnvVar { name, value }
    });
    variables.collect()
}

/// Converts the action into Diego's message.
pub(super) fn message(action: &Action) -> proto::Action {
    let mut message = proto::Action::default();
    match action {
        Action::Download(it) => message.download = Some(download(it)),
        Action::Upload(it) => message.upload = Some(upload(it)),
        Action::Run(it) => message.run = Some(run(it)),
        Action::Timeout(it) => message.timeout = Some(Box::new(timeout(it))),
        Action::EmitProgress(it) => message.emit_progress = Some(Box::new(emit_progress(it))),
        Action::Try(it) => message.r#try = Some(Box::new(r#try(it))),
        Action::Parallel(it) => message.parallel = Some(list(it)),
        Action::Serial(it) => message.serial = Some(list(it)),
        Action::Codependent(it) => message.codependent = Some(list(it)),
    }
    message
}

fn download(it: &Download) -> DownloadAction {
    let Download {
        artifact,
        from,
        to,
        user,
        log_source,
        checksum_algorithm,
        checksum_value,
    } = it;
    DownloadAction {
        artifact: artifact.clone(),
        from: from.clone(),
        to: to.clone(),
        cache_key: String::new(),
        log_source: log_source.clone(),
        user: user.clone(),
        checksum_algorithm: checksum_algorithm.clone(),
        checksum_value: checksum_value.clone(),
    }
}

fn upload(it: &Upload) -> UploadAction {
    let Upload {
        artifact,
        from,
        to,
        user,
        log_source,
    } = it;
    UploadAction {
        artifact: artifact.clone(),
        from: from.clone(),
        to: to.clone(),
        log_source: log_source.clone(),
        user: user.clone(),
    }
}

fn run(it: &Run) -> RunAction {
    let Run {
        path,
        args,
        dir,
        env,
        resource_limits,
        user,
        log_source,
        suppress_log_output,
    } = it;
    RunAction {
        path: path.clone(),
        args: args.clone(),
        dir: dir.clone(),
        env: self::env(env),
        resource_limits: resource_limits.map(|ResourceLimits { nofile }| proto::ResourceLimits {
            nofile,
            nproc: None,
        }),
        user: user.clone(),
        log_source: log_source.clone(),
        suppress_log_output: *suppress_log_output,
        volume_mounted_files: Vec::new(),
    }
}

fn timeout(it: &Timeout) -> TimeoutAction {
    let Timeout {
        action,
        timeout_ms,
        log_source,
    } = it;
    TimeoutAction {
        action: Some(Box::new(message(action))),
        timeout_ns: 0,
        log_source: log_source.clone(),
        timeout_ms: *timeout_ms,
    }
}

fn emit_progress(it: &EmitProgress) -> EmitProgressAction {
    let EmitProgress {
        action,
        start_message,
        success_message,
        failure_message_prefix,
        log_source,
    } = it;
    EmitProgressAction {
        action: Some(Box::new(message(action))),
        start_message: start_message.clone(),
        success_message: success_message.clone(),
        failure_message_prefix: failure_message_prefix.clone(),
        log_source: log_source.clone(),
    }
}

fn r#try(it: &Try) -> TryAction {
    let Try { action, log_source } = it;
    TryAction {
        action: Some(Box::new(message(action))),
        log_source: log_source.clone(),
    }
}

fn list(it: &Actions) -> ActionList {
    let Actions {
        actions,
        log_source,
    } = it;
    ActionList {
        actions: actions.iter().map(message).collect(),
        log_source: log_source.clone(),
    }
}

pub(super) fn env(env: &[EnvVar]) -> Vec<EnvironmentVariable> {
    let variables = env
        .iter()
        .map(|EnvVar { name, value }| EnvironmentVariable {
            name: name.clone(),
            value: value.clone(),
        });
    variables.collect()
}
