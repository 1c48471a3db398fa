//! Tests of downloads and uploads with real porters and a server of the test.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_driver::{ActionsEnd, ExitResult, TaskDriver};
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};

use crate::actions::{TreeTask, output, run, task};
use crate::fixture::{DEADLINE, pid_of, skipped};

/// Answers connections one after another, each with the next bytes, and records the requests.
struct Server {
    url: String,
    asked: mpsc::Receiver<Vec<u8>>,
}

impl Server {
    fn new<const N: usize>(answers: [Vec<u8>; N]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, asked) = mpsc::sync_channel(N);
        let mut answers = VecDeque::from(answers);
        std::thread::spawn(move || {
            while let Some(answer) = answers.pop_front() {
                let (mut stream, _) = listener.accept().unwrap();
                sender.send(request(&mut stream)).unwrap();
                // The client may have closed the connection.
                drop(stream.write_all(&answer));
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> String {
        let asked = self.asked.recv_timeout(DEADLINE).unwrap();
        String::from_utf8_lossy(&asked).into_owned()
    }
}

/// Returns the head of a request and as many bytes of the body as the head announces.
fn request(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let announced = head.split("content-length: ").nth(1);
            let announced = announced.and_then(|rest| rest.lines().next()?.parse().ok());
            if body.len() >= announced.unwrap_or(0) {
                return bytes;
            }
        }
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "{text}");
        bytes.extend_from_slice(&chunk[..read]);
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Returns one entry of an archive: its kind, its name, its mode, and its content or link target.
fn entry(kind: tar::EntryType, name: &str, mode: u32, content: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    let data = match kind {
        tar::EntryType::Regular => content,
        _ => {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            ""
        }
    };
    header.set_size(data.len() as u64);
    header.set_cksum();
    let padding = vec![0; (512 - data.len() % 512) % 512];
    [header.as_bytes(), data.as_bytes(), &padding].concat()
}

fn file(name: &str, mode: u32, content: &str) -> Vec<u8> {
    entry(tar::EntryType::Regular, name, mode, content)
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut all = entries.concat();
    all.extend([0; 1_024]);
    all
}

fn tgz(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&tar(entries)).unwrap();
    encoder.finish().unwrap()
}

fn download(from: &str, to: &str) -> Value {
    json!({"download": {"artifact": "app", "from": from, "to": to, "user": "vcap"}})
}

fn upload(from: &str, to: &str) -> Value {
    json!({"upload": {"artifact": "result", "from": from, "to": to, "user": "vcap"}})
}

fn serial(actions: &[Value]) -> Value {
    json!({"serial": {"actions": actions}})
}

async fn driver(more: Value) -> NativeDriver {
    let mut config = json!({"allow_raw": true, "allow_local_transfers": true});
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    let driver = NativeDriver::new();
    driver.set_config(config).await.unwrap();
    driver
}

async fn end(driver: &NativeDriver, task: &TreeTask) -> (ExitResult, ActionsEnd) {
    let waiting = driver.wait_task(task.id());
    let ended = tokio::time::timeout(DEADLINE, waiting).await;
    let result = ended.unwrap().unwrap();
    driver.destroy_task(task.id(), false).await.unwrap();
    let actions = result.actions.as_deref().unwrap().clone();
    (result, actions)
}

async fn run_to_end(task: &TreeTask) -> (ExitResult, ActionsEnd) {
    let driver = driver(json!({})).await;
    driver.start_task(task.config.clone()).await.unwrap();
    end(&driver, task).await
}

fn can_isolate(task: &TreeTask, name: &str) -> bool {
    let can = nix::unistd::geteuid().is_root() && task.config.cgroup.is_some();
    if !can {
        skipped(name, "needs root and a v2 cgroup");
    }
    can
}

/// The whole path: an archive is downloaded, its program runs, its result is uploaded. Contained tasks of this test
/// have no separate network, and strict tasks never have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_is_downloaded_executed_and_result_uploaded() {
    for level in ["raw", "contained", "strict"] {
        let archive = tgz(&[
            entry(tar::EntryType::Directory, "./bin/", 0o555, ""),
            file(
                "bin/work",
                0o106_755,
                "#!/bin/sh\ncat ${0%/*}/../words > out\n",
            ),
            file("words", 0o640, "it worked"),
            entry(tar::EntryType::Symlink, "bin/link", 0o777, "../words"),
            entry(tar::EntryType::Link, "same", 0o777, "words"),
        ]);
        let server = Server::new([ok(&archive), ok(b"")]);
        let to = if level == "raw" {
            "app/v1"
        } else {
            "/local/app/v1"
        };
        let tree = serial(&[
            download(&format!("{}/app.tgz", server.url), to),
            run("app/v1/bin/work; cat app/v1/bin/link app/v1/same > linked; id -u > uid"),
            upload("out", &format!("{}/result?x=y", server.url)),
        ]);
        let mut task = task(&tree, json!({"isolation": level}));
        if level != "raw" && !can_isolate(&task, "an_archive_comes_its_program_runs") {
            return;
        }
        let reader = task.with_stdout();

        let (result, actions) = run_to_end(&task).await;

        assert_eq!(result.exit_code, 0, "{level}: {actions:?}");
        let asked = server.asked();
        assert!(asked.starts_with("GET /app.tgz HTTP/1.1\r\n"), "{asked}");
        let sent = server.asked();
        assert!(sent.starts_with("POST /result?x=y HTTP/1.1\r\n"), "{sent}");
        assert!(sent.ends_with("\r\n\r\nit worked"), "{sent}");
        // `printf 'it worked' | openssl md5 -binary | base64`, and with sha256.
        for header in [
            "content-type: application/octet-stream",
            "content-md5: ",
            "content-digest: sha-256=:",
        ] {
            assert!(sent.contains(header), "{header}: {sent}");
        }
        let size = archive.len();
        let lines = format!(
            "Downloading app...\nDownloaded app ({size}B)\nExit status 0\nUploading result...\nUploaded result (9B)\n"
        );
        assert_eq!(output(reader), lines);
        let local = match level {
            "raw" => task.dir.path().to_owned(),
            _ => task.path("local"),
        };
        let linked = std::fs::read_to_string(local.join("linked")).unwrap();
        assert_eq!(linked, "it workedit worked");
        let program = local.join("app/v1/bin/work").metadata().unwrap();
        assert_eq!(program.permissions().mode() & 0o7777, 0o755);
        let own = local.join("uid").metadata().unwrap();
        assert_eq!((program.uid(), program.gid()), (own.uid(), own.gid()));
    }
}

/// A porter does not follow a link in its path, whatever the link's target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_of_the_task_lead_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let archive = tar(&[file("sub/evil", 0o644, "evil")]);
    let server = Server::new([ok(&archive)]);
    let link = format!("mkdir to; ln -s {} to/sub", outside.path().display());
    let tree = serial(&[run(&link), download(&server.url, "to")]);
    let task = task(&tree, json!({}));

    let (result, actions) = run_to_end(&task).await;

    assert_eq!(result.exit_code, 1);
    assert_eq!(
        actions.failure_reason,
        "Copying app into the container failed: make the file \"sub/evil\": a link is in the way, which is not followed here"
    );
    assert_eq!(actions.failed_action, "serial[1].download");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// The porter replaces a link at the path of a file, and does not write through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_replaces_symlink_at_target() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "keep").unwrap();
    let server = Server::new([ok(&tar(&[file("f", 0o600, "new")]))]);
    let link = format!("mkdir to; ln -s {} to/f", victim.display());
    let task = task(
        &serial(&[run(&link), download(&server.url, "to")]),
        json!({}),
    );

    let (result, actions) = run_to_end(&task).await;

    assert_eq!(result.exit_code, 0, "{actions:?}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"keep");
    assert_eq!(std::fs::read(task.path("to/f")).unwrap(), b"new");
}

/// A porter has the rights of the task's user and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_porter_has_the_rights_of_its_user() {
    if !nix::unistd::geteuid().is_root() {
        skipped("a_porter_has_the_rights_of_its_user", "needs root");
        return;
    }
    let server = Server::new([ok(&tar(&[file("f", 0o600, "new")]))]);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let place = dir.path().to_str().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut coming = download(&server.url, place);
    let mut going = upload(secret.to_str().unwrap(), &server.url);
    coming["download"]["user"] = json!("nobody");
    going["upload"]["user"] = json!("nobody");
    let tree = json!({"parallel": {"actions": [coming, going]}});
    let task = task(&tree, json!({}));

    let (_, actions) = run_to_end(&task).await;

    let reason = actions.failure_reason;
    assert!(
        reason.contains("make the file \"f\": Permission denied"),
        "{reason}"
    );
    assert!(
        reason.contains("Uploading result failed: open "),
        "{reason}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_diegos_words() {
    let sum = |value: &str| json!({"checksum_algorithm": "sha1", "checksum_value": value});
    let none = json!({"artifact": ""});
    let not_found = || b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
    let good = tar(&[file("f", 0o600, "x")]);
    let out = tar(&[file("../f", 0o600, "x")]);
    let table = [
        (
            not_found(),
            json!({}),
            "Downloading app failed",
            "answered 404 Not Found",
        ),
        (
            not_found(),
            none.clone(),
            "Downloading failed",
            "answered 404 Not Found",
        ),
        (
            ok(&good),
            sum(&"0".repeat(40)),
            "Downloading app failed",
            "its sha1 is ",
        ),
        (
            ok(&out),
            json!({}),
            "Copying app into the container failed: \"../f\" is not a name",
            "",
        ),
        (
            ok(&out),
            none,
            "Copying into the container failed: \"../f\" is not a name",
            "",
        ),
    ];
    for (answer, more, reason, line) in table {
        let server = Server::new([answer]);
        let mut tree = download(&server.url, "to");
        for (name, value) in more.as_object().unwrap() {
            tree["download"][name] = value.clone();
        }
        let mut task = task(&tree, json!({}));
        let stdout = task.with_stdout();
        let stderr = task.with_stderr();

        let (result, actions) = run_to_end(&task).await;

        assert_eq!((result.exit_code, actions.exited), (1, false));
        assert!(actions.failure_reason.starts_with(reason), "{actions:?}");
        assert!(actions.failure_reason.contains(line), "{actions:?}");
        let printed = output(stderr);
        assert!(
            printed.starts_with(reason) && printed.contains(line),
            "{printed}"
        );
        drop(stdout);
        assert!(!task.path("f").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_none_are_not_sent() {
    let cases = [
        ("missing", "open \"missing\": No such file"),
        ("fifo", "\"fifo\" is not a regular file"),
        ("dir", "\"dir\" is not a regular file"),
        ("/dev/zero", "\"/dev/zero\" is not a regular file"),
    ];
    for (from, reason) in cases {
        let tree = serial(&[
            run("mkfifo fifo; mkdir dir"),
            upload(from, "http://127.0.0.1:1/"),
        ]);
        let (result, actions) = run_to_end(&task(&tree, json!({}))).await;
        assert_eq!(result.exit_code, 1);
        let expected = format!("Uploading result failed: {reason}");
        assert!(actions.failure_reason.starts_with(&expected), "{actions:?}");
    }
}

/// The content exceeds the task's disk: during the download, unpacked, and during the upload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_is_limited_to_task_disk() {
    let big = "0".repeat(3 << 20);
    let bomb = tgz(&[file("zeros", 0o600, &big)]);
    assert!(bomb.len() < 1 << 20);
    let server = Server::new([ok(big.as_bytes()), ok(&bomb)]);
    let fetched = task(&download(&server.url, "to"), json!({"disk_mb": 2}));
    let (_, actions) = run_to_end(&fetched).await;
    assert_eq!(
        actions.failure_reason,
        "Downloading app failed: it has more than 2097152 bytes, which is all that it may"
    );

    let unpacked = task(&download(&server.url, "to"), json!({"disk_mb": 2}));
    let (_, actions) = run_to_end(&unpacked).await;
    assert_eq!(
        actions.failure_reason,
        "Copying app into the container failed: it unpacks to more than 2097152 bytes, which is all that it may"
    );
    assert!(!unpacked.path("to/zeros").exists());

    let tree = serial(&[
        run("head -c 3000000 /dev/zero > f"),
        upload("f", &server.url),
    ]);
    let (_, actions) = run_to_end(&task(&tree, json!({"disk_mb": 2}))).await;
    let expected = "Uploading result failed: it has more than 2097152 bytes";
    assert!(actions.failure_reason.starts_with(expected), "{actions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_host_need_to_be_allowed() {
    let host = tempfile::tempdir().unwrap();
    std::fs::create_dir(host.path().join("open")).unwrap();
    std::fs::write(host.path().join("open/a b.txt"), "text").unwrap();
    std::os::unix::fs::symlink("/etc", host.path().join("open/etc")).unwrap();
    let place = host.path().display();
    let allowed = json!({"allow_downloads": [format!("{place}/open")]});
    let cases = [
        (json!({}), format!("file://{place}/open/a%20b.txt"), false),
        (
            allowed.clone(),
            format!("file://{place}/open/a%20b.txt"),
            true,
        ),
        (
            allowed.clone(),
            format!("file://{place}/open/../open/a%20b.txt"),
            false,
        ),
        (
            allowed.clone(),
            format!("file://{place}/open/etc/hostname"),
            false,
        ),
        (allowed.clone(), format!("file://{place}/open"), false),
        (allowed, "file:///etc/hostname".to_owned(), false),
    ];
    for (config, from, comes) in cases {
        let task = task(&download(&from, "to"), json!({}));
        let driver = driver(config).await;
        driver.start_task(task.config.clone()).await.unwrap();

        let (result, actions) = end(&driver, &task).await;

        assert_eq!(result.exit_code == 0, comes, "{from}: {actions:?}");
        let file = std::fs::read_to_string(task.path("to/a b.txt"));
        assert_eq!(file.is_ok_and(|text| text == "text"), comes, "{from}");
    }
}

/// Uploads go only into allowed directories, complete or not at all, without following a link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_into_the_host_need_to_be_allowed() {
    let host = tempfile::tempdir().unwrap();
    let open = host.path().join("open");
    std::fs::create_dir_all(open.join("sub/dir")).unwrap();
    std::fs::write(open.join("old"), "something longer").unwrap();
    let outside = host.path().join("outside");
    std::fs::write(&outside, "keep").unwrap();
    std::os::unix::fs::symlink(&outside, open.join("link")).unwrap();
    std::os::unix::fs::symlink(host.path(), open.join("up")).unwrap();
    let place = host.path().display();
    let allowed = json!({"allow_uploads": [format!("{place}/open")]});
    let cases = [
        (json!({}), "open/a", false),
        (
            json!({"allow_downloads": [format!("{place}/open")]}),
            "open/a",
            false,
        ),
        (allowed.clone(), "open/a%20b", true),
        (allowed.clone(), "open/sub/c", true),
        (allowed.clone(), "open/old", true),
        (allowed.clone(), "open/link", true),
        (allowed.clone(), "open/up/x", false),
        (allowed.clone(), "open/../x", false),
        (allowed.clone(), "open/none/x", false),
        (allowed.clone(), "open/sub/dir", false),
        (allowed.clone(), "open", false),
        (allowed, "opened", false),
    ];
    for (config, to, goes) in cases {
        let tree = serial(&[
            run("printf text > f"),
            upload("f", &format!("file://{place}/{to}")),
        ]);
        let task = task(&tree, json!({}));
        let driver = driver(config).await;
        driver.start_task(task.config.clone()).await.unwrap();

        let (result, actions) = end(&driver, &task).await;

        assert_eq!(result.exit_code == 0, goes, "{to}: {actions:?}");
        let file = host.path().join(to.replace("%20", " "));
        let text = std::fs::read_to_string(file);
        assert_eq!(text.is_ok_and(|text| text == "text"), goes, "{to}");
    }
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "keep");
    let left = std::fs::read_dir(&open).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a b", "link", "old", "sub", "up"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machine_itself_needs_to_be_allowed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut task = task(&download(&url, "to"), json!({}));
    let stderr = task.with_stderr();
    let driver = driver(json!({"allow_local_transfers": false})).await;
    driver.start_task(task.config.clone()).await.unwrap();

    let (_, actions) = end(&driver, &task).await;

    let reason = &actions.failure_reason;
    assert!(
        reason.starts_with("Downloading app failed: 127.0.0.1 is this machine"),
        "{reason}"
    );
    let printed = output(stderr);
    assert!(printed.contains(reason.as_str()), "{printed}");
    assert!(listener.accept().is_err(), "somebody connected");
}

/// Returns a task that downloads from a server that never answers, its driver, and the connection after the request.
async fn hanging() -> (TreeTask, NativeDriver, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let tree = serial(&[download(&url, "to"), run("touch no")]);
    let task = task(&tree, json!({}));
    let driver = driver(json!({})).await;
    driver.start_task(task.config.clone()).await.unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept().unwrap();
        request(&mut stream);
        stream
    });
    (task, driver, asked.await.unwrap())
}

/// A server that never answers does not delay the stop of a task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_a_download_at_once() {
    let (task, driver, mut stream) = hanging().await;
    let began = Instant::now();

    driver
        .stop_task(task.id(), DEADLINE, "SIGTERM")
        .await
        .unwrap();

    let (result, actions) = end(&driver, &task).await;
    assert!(began.elapsed() < DEADLINE);
    assert_eq!(
        (result.exit_code, actions.failure_reason.as_str()),
        (1, "cancelled")
    );
    assert_eq!(actions.failed_action, "serial[0].download");
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    assert!(!task.path("no").exists());
}

/// The task's first process dies, as by an out-of-memory kill: the download of an ended task stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_kill_aborts_download() {
    let (task, driver, mut stream) = hanging().await;
    let began = Instant::now();

    let first = nix::unistd::Pid::from_raw(pid_of(&driver, task.id()).await);
    nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGKILL).unwrap();

    let (_, actions) = end(&driver, &task).await;
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(actions.failure_reason, "the task was killed");
    assert_eq!(actions.failed_action, "serial[0].download");
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
}

/// Five transfers run at once on a node. The sixth starts when one of them has ended, and a waiting transfer can be
/// stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_wait_for_their_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let tree = json!({"parallel": {"actions": vec![download(&url, "to"); 7]}});
    let task = task(&tree, json!({}));
    let driver = driver(json!({})).await;
    driver.start_task(task.config.clone()).await.unwrap();

    let looking = tokio::task::spawn_blocking(move || {
        let accepted = || {
            let (mut stream, _) = listener.accept().unwrap();
            request(&mut stream);
            stream
        };
        let mut five: Vec<_> = std::iter::repeat_with(accepted).take(5).collect();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "a sixth did not wait");
        listener.set_nonblocking(false).unwrap();
        five[0].write_all(&ok(b"x")).unwrap();
        let (mut sixth, _) = listener.accept().unwrap();
        request(&mut sixth);
        (five, sixth)
    });
    let held = tokio::time::timeout(DEADLINE, looking).await.unwrap();
    let began = Instant::now();
    driver
        .stop_task(task.id(), DEADLINE, "SIGTERM")
        .await
        .unwrap();

    let (_, actions) = end(&driver, &task).await;
    assert!(began.elapsed() < DEADLINE);
    assert_eq!(actions.failure_reason, "cancelled");
    assert_eq!(std::fs::read(task.path("to/f")).unwrap(), b"x");
    drop(held.unwrap());
}

/// The task stops the porter that unpacks for it, and the porter then accepts no more bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeout_kills_porter_stopped_by_task() {
    // Another run of this test may be active on the machine.
    let to = format!("held-by-its-task-{}", std::process::id());
    let big = "0".repeat(64 << 20);
    let server = Server::new([ok(&tgz(&[file("a", 0o600, &big)]))]);
    let pattern = to.replacen('-', "[-]", 1);
    let hold = format!(
        "until f=$(grep -lzx '{pattern}' /proc/[0-9]*/cmdline 2>/dev/null); do :; done
        f=${{f%/cmdline}}; kill -STOP ${{f#/proc/}}; echo held > held; sleep 600"
    );
    let tree = json!({"codependent": {"actions": [
        run(&hold),
        {"timeout": {"timeout_ms": 3_000, "action": download(&server.url, &to)}},
    ]}});
    let task = task(&tree, json!({}));

    let (_, actions) = run_to_end(&task).await;

    assert_eq!(task.read("held"), "held");
    assert_eq!(actions.failure_reason, "exceeded 3s timeout");
    // The porter may have been stopped before it created the file.
    let unpacked = task.path(&to).join("a").metadata();
    assert!(unpacked.map_or(0, |file| file.len()) < 64 << 20);
}
