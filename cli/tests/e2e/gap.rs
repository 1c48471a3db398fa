//! Limits hold without an agent: an agent and its driver are killed, and the remaining task tries forbidden operations.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    Leftovers, Process, agent, ask, began, needs_root, poll_until, server, stderr, stdout,
};

/// Processes that the task may start.
const PROCESSES: usize = 12;

/// A job whose task repeatedly writes a line to `written_lines`. The line has three values: whether it can connect to
/// `port`, how many processes it can have, and a signal. The signal is the one that ends a process above the memory
/// limit of all tasks.
fn job(dir: &Path, port: u16) -> PathBuf {
    let path = dir.join("tries.hcl");
    let text = format!(
        r#"
        job "tries" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            network {{
              policy {{
                egress {{
                  default = "deny"
                }}
              }}
            }}
            task "t" {{
              driver = "native"
              config {{
                command  = "/usr/bin/perl"
                pids_max = {PROCESSES}
                args     = ["-MIO::Socket::INET", "-e", <<-PERL
                  $| = 1;
                  open my $seen, ">>", "$ENV{{NOMAD_ALLOC_DIR}}/data/seen" or die;
                  $seen->autoflush(1);
                  while (1) {{
                    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:{port}", Timeout => 0.3);
                    pipe my $gate, my $open;
                    my @children;
                    while (@children < 100) {{
                      my $pid = fork();
                      last if !defined $pid;
                      if (!$pid) {{ close $open; sysread $gate, my $byte, 1; exit 0 }}
                      push @children, $pid;
                    }}
                    close $open;
                    waitpid $_, 0 for @children;
                    my $greedy = fork();
                    if (!$greedy) {{ my $much = "x"; $much .= $much for 1 .. 28; exit 0 }}
                    waitpid $greedy, 0;
                    printf $seen "%s %d %d\n", $socket ? "open" : "shut", scalar @children, $? & 127;
                    select undef, undef, undef, 0.05;
                  }}
                PERL
                ]
              }}
              resources {{
                cpu    = 100
                memory = 64
              }}
            }}
          }}
        }}
        "#
    );
    fs::write(&path, text).unwrap();
    path
}

/// The process with the `pid` of the driver's record in the agent's data directory.
fn driver(data: &Path) -> Option<u32> {
    let record: Value =
        serde_json::from_slice(&fs::read(data.join("drivers/native.json")).ok()?).ok()?;
    let pid = u32::try_from(record["pid"].as_u64()?).ok()?;
    (began(pid)? == record["start_ticks"].as_u64()?).then_some(pid)
}

/// The task's first process that tries `port`, and its start time. Its children have the same command line.
fn process(port: u16) -> Option<(u64, u32)> {
    let tried = format!("127.0.0.1:{port}");
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&command)
            .contains(&tried)
            .then_some(pid)
    });
    pids.filter_map(|pid| Some((began(pid)?, pid))).min()
}

/// The lines that the task wrote.
fn written_lines(data: &Path) -> Vec<String> {
    let allocs = fs::read_dir(data.join("alloc")).into_iter().flatten();
    let files = allocs.filter_map(|dir| Some(dir.ok()?.path().join("alloc/data/seen")));
    let text: String = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    text.lines().map(str::to_owned).collect()
}

/// Waits for the results of attempts that start from now on.
fn wait_for_attempt_results(data: &Path) -> Vec<String> {
    let before = written_lines(data).len();
    poll_until("what the task sees", || {
        let now = written_lines(data);
        (now.len() >= before + 3).then(|| now[before + 1..].to_vec())
    })
}

#[test]
fn limits_and_policy_hold_without_agent_and_driver() {
    if !needs_root("limits_and_policy_hold_without_agent_and_driver") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("mg").tempdir_in("/tmp");
    let dir = dir.unwrap();
    let dir = dir.path();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));

    let (_server, address) = server(dir);
    let data = dir.join("one");
    let _left = Leftovers(data.clone());
    let start = || -> Process { agent(dir, &address, ("one", "native"), &[]) };
    let mut running = start();
    let file = job(dir, port);
    let ran = ask(&address, &["job", "run", file.to_str().unwrap()]);
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    let task = poll_until("the task's process", || process(port));
    let wall = format!("shut {PROCESSES} {}", Signal::SIGKILL as i32);
    for line in wait_for_attempt_results(&data) {
        assert_eq!(line, wall);
    }

    running.end(Signal::SIGKILL);
    let pid = driver(&data).expect("a driver outlives its agent");
    let victim = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(victim, Signal::SIGKILL).unwrap();
    poll_until("the driver's end", || began(pid).is_none().then_some(()));
    for line in wait_for_attempt_results(&data) {
        assert_eq!(line, wall, "without agent and driver");
    }
    assert_eq!(process(port), Some(task));

    let _again = start();
    poll_until("a driver", || driver(&data));
    for line in wait_for_attempt_results(&data) {
        assert_eq!(line, wall, "with the next agent");
    }
    assert_eq!(process(port), Some(task));
    let status = stdout(&ask(&address, &["alloc", "status", "tries"]));
    assert!(!status.contains("Restart"), "{status}");
}
