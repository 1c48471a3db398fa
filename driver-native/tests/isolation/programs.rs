//! Tests of common programs at the levels at which users run them. A program that is not installed is skipped by name.

use std::path::Path;

use muster_driver::TaskDriver;
use muster_driver_native::NativeDriver;
use serde_json::{Value, json};

use crate::fixture::{Task, skipped};
use crate::isolation_audits::{PLACE, judge};
use crate::probe::written;

const PYTHON: &str = "import threading, subprocess, socket, ssl, multiprocessing, os\n\
t = threading.Thread(target=lambda: None); t.start(); t.join()\n\
subprocess.run(['/bin/true'], check=True)\n\
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
multiprocessing.Lock()\n\
open('/local/out', 'w').write('python ' + str(os.getuid() != 0) + '\\n')\n";
const NODE: &str = "const fs = require('fs'), w = require('worker_threads'), c = require('child_process');\
if (w.isMainThread) { new w.Worker(__filename || process.argv[1], { eval: false }).on('exit', () => {}); }\
c.execFileSync('/bin/true'); require('crypto').randomBytes(8);\
const s = require('net').createServer().listen(0, '127.0.0.1', () => {\
fs.writeFileSync('/local/out', 'node true\\n'); process.exit(0); });";
const JAVA: &str = "public class Out { public static void main(String[] a) throws Exception {\
Thread t = new Thread(() -> {}); t.start(); t.join();\
new ProcessBuilder(\"/bin/true\").start().waitFor();\
new java.net.ServerSocket(0).close();\
java.nio.file.Files.writeString(java.nio.file.Path.of(\"/local/out\"), \"java true\\n\"); } }";
const NGINX: &str = "daemon off; pid /local/nginx.pid; error_log stderr; worker_processes 2;\n\
events { worker_connections 16; }\n\
http { access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p;\n\
fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s;\n\
server { listen unix:/local/http.sock; location / { return 200 'nginx true\\n'; } } }\n";

const GO: &str = "package main\n\
import (\"net\"; \"os\"; \"os/exec\"; \"sync\")\n\
func main() {\n\
var wait sync.WaitGroup\n\
for i := 0; i < 64; i++ { wait.Add(1); go func() { defer wait.Done(); exec.Command(\"/bin/true\").Run() }() }\n\
wait.Wait()\n\
if l, err := net.Listen(\"tcp\", \"127.0.0.1:0\"); err != nil { panic(err) } else { l.Close() }\n\
if err := os.WriteFile(\"/local/out\", []byte(\"go true\\n\"), 0o644); err != nil { panic(err) }\n\
}\n";

/// Runs `program` with `args`, and with `files` in its directory, until it has written `/local/out`.
async fn runs(name: &str, program: &str, args: &[&str], files: &[(&str, &str)], wanted: &str) {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "only root can contain a task; run the tests as root");
        return;
    }
    if !Path::new(program).exists() {
        skipped(
            name,
            &format!("{program} is not installed; run: cargo xtask setup"),
        );
        return;
    }
    for level in ["contained", "strict"] {
        let task = Task::with(json!({"command": program, "args": args, "isolation": level}));
        let local = task.dir.path().join("local");
        std::fs::create_dir_all(&local).unwrap();
        for (file, content) in files {
            std::fs::write(local.join(file), content).unwrap();
        }
        assert_output(&task, json!({}), wanted).await;
    }
}

/// Runs a program with mounts, on a node that allows them.
async fn runs_with(
    name: &str,
    program: &str,
    args: &[&str],
    (mounts, policy): (Value, Value),
    wanted: &str,
) {
    if !nix::unistd::geteuid().is_root() {
        skipped(name, "only root can contain a task; run the tests as root");
        return;
    }
    for level in ["contained", "strict"] {
        let config =
            json!({"command": program, "args": args, "isolation": level, "mounts": mounts});
        assert_output(&Task::with(config), policy.clone(), wanted).await;
    }
}

async fn assert_output(task: &Task, policy: Value, wanted: &str) {
    let driver = NativeDriver::new();
    driver.set_config(policy).await.unwrap();

    driver.start_task(task.config.clone()).await.unwrap();
    let output = written(&task.path("local/out"));

    assert_eq!(output, wanted, "{}", task.config.config["isolation"]);
    driver.destroy_task(task.id(), true).await.unwrap();
}

#[tokio::test]
async fn python_runs() {
    let name = "programs::python_runs";
    runs(
        name,
        "/usr/bin/python3",
        &["-c", PYTHON],
        &[],
        "python True\n",
    )
    .await;
}

#[tokio::test]
async fn node_runs() {
    let files = [("main.js", NODE)];
    let name = "programs::node_runs";
    runs(
        name,
        "/usr/bin/node",
        &["/local/main.js"],
        &files,
        "node true\n",
    )
    .await;
}

#[tokio::test]
async fn java_runs() {
    let files = [("Out.java", JAVA)];
    let name = "programs::java_runs";
    let args = ["-Xmx64m", "/local/Out.java"];
    runs(name, "/usr/bin/java", &args, &files, "java true\n").await;
}

/// The compiler runs outside of the task, and the compiled program inside.
#[tokio::test]
async fn go_runs() {
    let name = "programs::go_runs";
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("main.go");
    std::fs::write(&source, GO).unwrap();
    let program = dir.path().join("program");
    let built = std::process::Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        .env("GOCACHE", dir.path().join("cache"))
        .env("CGO_ENABLED", "0")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        skipped(name, "the Go compiler is missing; run: cargo xtask setup");
        return;
    }
    let mounted = json!([{"source": program, "target": "/opt/program"}]);
    let policy = json!({"allow_paths": [dir.path()]});
    runs_with(name, "/opt/program", &[], (mounted, policy), "go true\n").await;
}

/// Debian's nginx, as `cargo xtask setup` unpacks it.
#[tokio::test]
async fn nginx_answers() {
    let name = "programs::nginx_answers";
    let Some(folder) = judge(name, "nginx") else {
        return;
    };
    if !Path::new("/usr/bin/perl").exists() {
        skipped(name, "its client needs /usr/bin/perl");
        return;
    }
    let script = format!(
        "printf '%s' \"$NGINX\" >/local/nginx.conf; {PLACE}/nginx -c /local/nginx.conf & \
         while ! [ -S /local/http.sock ]; do sleep 0.02; done; \
         perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Peer => \"/local/http.sock\"); \
         print $s \"GET / HTTP/1.0\\r\\n\\r\\n\"; while (<$s>) {{ $last = $_ }} \
         open F, \">/local/out\"; print F $last' ; wait"
    );
    for level in ["contained", "strict"] {
        let mut task = Task::with(json!({
            "command": "/bin/sh", "args": ["-c", script], "isolation": level,
            "mounts": [{"source": folder, "target": PLACE}],
        }));
        let config = ("NGINX".to_owned(), NGINX.to_owned());
        task.config.env.extend([config]);
        assert_output(&task, json!({"allow_paths": [folder]}), "nginx true\n").await;
    }
}
