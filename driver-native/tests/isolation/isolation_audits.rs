//! Third-party auditors that run as tasks. The tests compare their findings about a task with the promises to a task.
//! The promises are written by hand and not read from the driver.
//!
//! - [`oci`]: `runtimetest`, the in-container checks of the OCI runtime specification
//! - [`introspection`]: `procenv`, which shows a process's capabilities, filter and namespaces
//! - [`escape`]: Cepheus, which lists possible ways out of a container from inside
//!
//! `cargo xtask setup` puts the auditors into `judges` of the target folder, `cargo xtask vm` into the guest. Where an
//! auditor is missing, its tests report that by name. The fourth auditor is our own `probe`.

mod escape;
mod introspection;
mod oci;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use muster_driver::{ExitResult, TaskDriver};
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};

use crate::fixture::{Task, skipped};

/// The path of the auditors in the task.
pub(crate) const PLACE: &str = "/opt/judges";
/// The host name of `judged` tasks.
const HOST_NAME: &str = "judged";

/// The user and the isolation level of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskSetting {
    /// The default: `contained`, nobody.
    Nobody,
    /// `contained`, uid 0, on a node that allows it.
    Root,
    /// `strict`, nobody.
    Strict,
}

impl TaskSetting {
    fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Root => "root",
            Self::Strict => "strict",
        }
    }

    fn config(self) -> Value {
        let level = match self {
            Self::Nobody | Self::Root => "contained",
            Self::Strict => "strict",
        };
        json!({"isolation": level, "hostname": HOST_NAME})
    }

    fn user(self) -> &'static str {
        match self {
            Self::Nobody | Self::Strict => "nobody",
            Self::Root => "root",
        }
    }
}

/// The output of an auditor, and its exit result.
#[derive(Debug)]
struct AuditOutput {
    text: String,
    result: ExitResult,
}

/// Returns the folder of the auditors, if `needed` exists and tasks can be contained; otherwise reports the reason.
pub(crate) fn judge(test: &str, needed: &str) -> Option<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        skipped(test, "only root can contain a task; run the tests as root");
        return None;
    }
    let folder = std::env::var_os("MUSTER_JUDGES").map_or_else(default_audit_folder, PathBuf::from);
    if !folder.join(needed).exists() {
        let reason = format!("the judge {needed} is not in {}", folder.display());
        skipped(test, &format!("{reason}; run: cargo xtask setup"));
        return None;
    }
    Some(folder)
}

/// Returns the folder `judges` in the target folder of this binary.
fn default_audit_folder() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().join("judges")
}

/// Runs `script` as a task of `setting` with the auditors' `folder` mounted, and returns its output.
async fn run(
    setting: TaskSetting,
    folder: &PathBuf,
    script: &str,
    files: &[(&str, &str)],
) -> AuditOutput {
    let mut config = setting.config();
    config["command"] = json!("/bin/sh");
    config["args"] = json!(["-c", format!("exec >/local/said 2>&1; {script}")]);
    config["mounts"] = json!([{"source": folder, "target": PLACE}]);
    let mut task = Task::with(config);
    // The name is always the same, so that a strict task has the same ids.
    task.config.id = format!("00000000-0000-4000-8000-000000000001/{}/0", setting.name());
    setting.user().clone_into(&mut task.config.user);
    let local = task.dir.path().join("local");
    fs::create_dir_all(&local).unwrap();
    fs::set_permissions(task.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, content) in files {
        fs::write(local.join(name), content).unwrap();
    }
    let driver = NativeDriver::new();
    let policy = json!({"allow_uid0": true, "allow_paths": [folder]});
    driver.set_config(policy).await.unwrap();
    driver.start_task(task.config.clone()).await.unwrap();
    let result = driver.wait_task(task.id()).await.unwrap();
    driver.destroy_task(task.id(), true).await.unwrap();
    let text = fs::read_to_string(local.join("said")).unwrap();
    AuditOutput { text, result }
}
