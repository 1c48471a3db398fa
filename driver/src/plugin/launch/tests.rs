use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::{LaunchError, PluginCommand, discover};

const DEADLINE: Duration = Duration::from_secs(30);

fn script(dir: &TempDir, body: &str) -> PluginCommand {
    let program = dir.path().join("plugin.sh");
    fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    PluginCommand {
        program,
        args: vec!["one".into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        dir: dir.path().to_owned(),
        name: "plugin".to_owned(),
    }
}

async fn handshake(launch: &PluginCommand, deadline: Duration) -> Result<PathBuf, LaunchError> {
    let mut child = launch.spawn().unwrap();
    let answer = launch.handshake(&mut child, deadline).await;
    drop(child.kill().await);
    answer
}

#[tokio::test]
async fn plugin_is_found_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    // The script prints its argument and a variable of the host in the socket name.
    let launch = script(
        &dir,
        "test ${#NOMAD_PLUGIN_MAGIC_COOKIE} = 64 || exit 1\n\
         printf '1|2|unix|/run/%s-%s|grpc|\\n' $1 $PLUGIN_PROTOCOL_VERSIONS\nexec sleep 60",
    );

    let socket = handshake(&launch, DEADLINE).await.unwrap();

    assert_eq!(socket, PathBuf::from("/run/one-2"));
}

#[tokio::test]
async fn plugin_that_ends_is_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let launch = script(&dir, "echo 'no runtime here' >&2\nexit 3");

    let error = handshake(&launch, DEADLINE).await.unwrap_err();

    assert!(matches!(error, LaunchError::Ended { .. }), "{error:?}");
    assert!(error.to_string().contains("no runtime here"), "{error}");
    assert!(error.to_string().contains('3'), "{error}");
}

#[tokio::test]
async fn silent_plugin_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let launch = script(&dir, "exec sleep 60");

    let error = handshake(&launch, Duration::from_millis(50))
        .await
        .unwrap_err();

    assert!(matches!(error, LaunchError::Silent { .. }), "{error:?}");
}

#[tokio::test]
async fn handshake_error_contains_the_program_output() {
    let dir = tempfile::tempdir().unwrap();
    let launch = script(&dir, "echo hello\nexec sleep 60");

    let error = handshake(&launch, DEADLINE).await.unwrap_err();

    assert!(matches!(error, LaunchError::Handshake { .. }), "{error:?}");
    assert!(
        std::error::Error::source(&error)
            .unwrap()
            .to_string()
            .contains("hello")
    );
}

#[test]
fn only_safe_executables_are_plugins() {
    let dir = tempfile::tempdir().unwrap();
    for (name, mode) in [
        ("b", 0o755),
        ("a", 0o700),
        ("readme", 0o644),
        ("open", 0o777),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(dir.path().join("sub")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("c")).unwrap();

    let (programs, unused) = discover(dir.path()).unwrap();

    let names: Vec<_> = programs
        .iter()
        .map(|path| path.file_name().unwrap())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    let unused: Vec<_> = unused
        .iter()
        .map(|unused| {
            (
                unused.path.file_name().unwrap().to_str().unwrap(),
                unused.reason.as_str(),
            )
        })
        .collect();
    assert_eq!(unused[0].0, "open");
    assert!(unused[0].1.contains("everybody may write"), "{unused:?}");
    assert_eq!(unused[1].0, "readme");
    assert!(unused[1].1.contains("not executable"), "{unused:?}");
    assert_eq!(unused[2].0, "sub");
}
