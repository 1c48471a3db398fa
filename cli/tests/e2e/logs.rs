//! Reading logs: of a job, with their times, and on and on through the death of any process.

use std::collections::BTreeMap;
use std::path::Path;

use crate::dev::dev;
use crate::support::{
    Leftovers, Process, ask, job_file, muster, needs_root, poll_until, stderr, stdout,
};
use crate::tasks::ServerAndAgent;

/// A task that writes numbered lines of 10 kB, fails every fifty lines, and resumes at the next number. Its log rotates
/// at a megabyte.
const JOB: &str = r#"
job "count" {
  update { min_healthy_time = "0s" }
  type = "service"
  group "g" {
    restart {
      attempts = 1000
      interval = "1h"
      delay    = "0s"
      mode     = "delay"
    }
    task "t" {
      driver = "native"
      config {
        command = "/bin/bash"
        args    = ["-c", <<EOT
pad=$(printf '%10000s' x)
i=$(cat "$NOMAD_TASK_DIR/n" 2>/dev/null || echo 0)
end=$((i + 50))
while [ $i -lt $end ]; do
  echo "line $i $pad"
  i=$((i + 1))
  echo $i > "$NOMAD_TASK_DIR/n"
  sleep 0.01
done
exit 1
EOT
        ]
      }
      logs {
        max_files     = 10
        max_file_size = 1
      }
      resources { memory = 32 }
    }
  }
}
"#;

/// The numbers of the lines of each allocation, in the order they were printed.
fn numbers(text: &str) -> BTreeMap<String, Vec<u64>> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    // The last line may be in the midst of being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        let (label, line) = line
            .split_once(" | line ")
            .unwrap_or_else(|| panic!("{:?}", &line[..60.min(line.len())]));
        let number = line.split(' ').next().unwrap().parse().unwrap();
        numbers.entry(label.to_owned()).or_default().push(number);
    }
    numbers
}

fn follow(address: &str, dir: &Path) -> Process {
    let mut command = muster();
    command.args(["--address", address, "job", "logs", "-f", "count"]);
    Process::start(&mut command, &dir.join("followed"))
}

/// The numbers that a follower printed, without its notes between the lines.
fn printed_numbers(follower: &Process) -> BTreeMap<String, Vec<u64>> {
    let text = follower.output();
    let kept = text
        .split_inclusive('\n')
        .filter(|line| !line.contains("broke off"));
    numbers(&kept.collect::<String>())
}

/// A followed log has every line once, despite restarts of the task, rotation, a killed agent, a killed server and a
/// new allocation.
#[test]
fn a_followed_job_misses_nothing_whatever_dies() {
    if !needs_root("a_followed_job_misses_nothing_whatever_dies") {
        return;
    }
    let dir = tempfile::Builder::new()
        .prefix("ml")
        .tempdir_in("/tmp")
        .unwrap();
    let _left = Leftovers(dir.path().join("agent"));
    let mut pair = ServerAndAgent::start(dir.path());
    let address = format!("http://{}", pair.http);
    let file = job_file(dir.path(), JOB);
    poll_until("the job to run", || {
        let run = ask(
            &address,
            &["job", "run", "--detach", file.to_str().unwrap()],
        );
        run.status.success().then_some(())
    });
    poll_until("the first lines", || {
        let logs = ask(&address, &["job", "logs", "count"]);
        stdout(&logs).contains("line 1 ").then_some(())
    });
    let follower = follow(&address, dir.path());
    let followed = || printed_numbers(&follower);
    let reached = |at_least: u64| {
        poll_until("lines to come", || {
            let numbers = followed();
            let newest = numbers.values().filter_map(|numbers| numbers.last());
            newest
                .max()
                .is_some_and(|newest| *newest > at_least)
                .then_some(())
        });
    };

    reached(120);
    pair.kill_agent();
    reached(250);
    pair.kill_server();
    reached(400);
    poll_until("the allocation to be stopped", || {
        let stop = ask(&address, &["alloc", "stop", "--detach", "count"]);
        stop.status.success().then_some(())
    });
    poll_until("lines of another allocation", || {
        let numbers = followed();
        (numbers.len() == 2 && numbers.values().all(|numbers| numbers.len() > 60)).then_some(())
    });

    for (alloc, numbers) in followed() {
        let first = numbers[0];
        let expected: Vec<u64> = (first..).take(numbers.len()).collect();
        assert_eq!(first, 0, "{alloc}");
        assert_eq!(numbers, expected, "{alloc}");
    }
    ask(&address, &["job", "stop", "--detach", "count"]);
    drop(follower);

    parts_of_it_can_be_had(&address);
}

/// Checks partial output of two allocations.
fn parts_of_it_can_be_had(address: &str) {
    let tail = ask(
        address,
        &["job", "logs", "--all", "--tail", "3", "-t", "count"],
    );
    let lines: Vec<String> = stdout(&tail)
        .lines()
        .map(|line| line[..60].to_owned())
        .collect();
    assert_eq!(lines.len(), 6, "{lines:?} {}", stderr(&tail));
    assert!(lines.is_sorted(), "they begin with their times: {lines:?}");
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("20") && line[..24].ends_with('Z')),
        "{lines:?}"
    );
    let young = ask(
        address,
        &[
            "job",
            "logs",
            "--all",
            "--since",
            "2100-01-01T00:00:00Z",
            "count",
        ],
    );
    assert_eq!(stdout(&young), "", "{}", stderr(&young));
    let old = ask(address, &["job", "logs", "--all", "--since", "1h", "count"]);
    assert!(numbers(&stdout(&old)).len() == 2, "{}", stderr(&old));
}

/// A task that writes 20 000 lines at once and then nothing, with `logs`.
fn write_burst_job(dir: &Path, logs: &str) -> std::path::PathBuf {
    let text = format!(
        r#"
        job "chatty" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            task "t" {{
              driver = "native"
              config {{
                command = "/bin/bash"
                args    = ["-c", "seq -f 'line %g' 20000; exec sleep 1000"]
              }}
              logs {{
                {logs}
              }}
              resources {{ memory = 32 }}
            }}
          }}
        }}
        "#
    );
    job_file(dir, &text)
}

/// Output above the rate is dropped and counted at its position, and displaces no other output. A changed rate causes
/// no replacement.
#[test]
fn log_output_over_rate_becomes_counted_gap() {
    if !needs_root("log_output_over_rate_becomes_counted_gap") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let run = |logs: &str| {
        let file = write_burst_job(dir.path(), logs);
        ask(&address, &["job", "run", file.to_str().unwrap()])
    };

    let refused = run("rate = \"5 parsec\"");
    let message = stderr(&refused);
    assert_ne!(refused.status.code(), Some(0));
    assert!(
        message.contains("`5 parsec` is not a rate such as 1mb"),
        "{message}"
    );

    let limited = "rate = \"1kb\"\n on_limit = \"drop\"\n on_full = \"drop\"";
    let ran = run(limited);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    poll_until("bytes to be dropped", || {
        let shown = stdout(&ask(&address, &["alloc", "status", "chatty"]));
        let dropped = shown.lines().find(|line| line.contains("log dropped"))?;
        let limited = shown.lines().find(|line| line.contains("log above rate"))?;
        let some = |line: &str| {
            line.split_whitespace()
                .any(|word| word.starts_with(|first: char| first.is_ascii_digit() && first != '0'))
        };
        (some(dropped) && some(limited)).then_some(())
    });
    let logs = ask(&address, &["alloc", "logs", "chatty"]);
    let (kept, notes) = (stdout(&logs), stderr(&logs));
    assert!(kept.starts_with("line 1\nline 2\n"), "{kept}");
    assert!(!kept.contains("line 10000\n"), "{kept}");
    assert!(notes.contains("bytes were dropped and not kept"), "{notes}");

    let faster = write_burst_job(dir.path(), "rate = \"2mb\"");
    let plan = stdout(&ask(&address, &["job", "plan", faster.to_str().unwrap()]));
    assert!(plan.contains("1kb") && plan.contains("2mb"), "{plan}");
    assert!(plan.contains("in-place update"), "{plan}");
    assert!(!plan.contains("create/destroy"), "{plan}");
}
