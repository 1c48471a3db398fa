//! Tests of trees on a paused clock. Each leaf is a program that takes a number of seconds and exits with a code.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

/// Runs programs by their names. `3 ok` succeeds after three seconds, `1 fail 7` exits with code 7 after one second.
/// `deaf` ignores a stop, and `stuck` even a kill.
struct FakeExecutor {
    began: Instant,
    log: Mutex<Vec<String>>,
}

impl FakeExecutor {
    fn write(&self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        self.log.lock().unwrap().push(format!("{seconds} {what}"));
    }

    async fn act(
        &self,
        run: &Run,
        step: &ActionStep,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let (action_path, words) = (
            step.action_path.as_str(),
            run.path.split(' ').collect::<Vec<_>>(),
        );
        let fenced = if step.has_own_cgroup { " fenced" } else { "" };
        self.write(&format!("begin {action_path}{fenced}"));
        if words == ["stuck"] {
            std::future::pending::<()>().await;
        }
        let seconds = words[0].parse().unwrap_or(1_000);
        let ended = tokio::time::timeout(Duration::from_secs(seconds), stop.cancelled());
        if ended.await.is_ok() {
            if words == ["deaf"] {
                tokio::time::sleep(GRACE).await;
                return Err(Failure::stop_timed_out(action_path));
            }
            return Err(Failure::cancelled(action_path));
        }
        match words[1..] {
            ["ok"] => Ok(()),
            ["fail", code] => Err(Failure::exited(
                action_path,
                &step.source,
                code.parse().unwrap(),
                false,
            )),
            ["missing"] => Err(Failure::plain(action_path, "no such program")),
            _ => panic!("{}", run.path),
        }
    }
}

impl ActionExecutor for FakeExecutor {
    fn time_left(&self, _action_path: &str, bound: Duration) -> Duration {
        bound
    }

    fn run<'a>(
        &'a self,
        run: &'a Run,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        async move { self.act(run, &step, &stop).await }.boxed()
    }

    /// Ends like the program that its source names.
    fn download<'a>(
        &'a self,
        download: &'a Download,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        let run = program(&download.from);
        async move { self.act(&run, &step, &stop).await }.boxed()
    }

    /// Ends like the program that its file names.
    fn upload<'a>(
        &'a self,
        upload: &'a Upload,
        step: ActionStep,
        stop: CancellationToken,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        let run = program(&upload.from);
        async move { self.act(&run, &step, &stop).await }.boxed()
    }

    fn write_line<'a>(&'a self, output: Output, line: &'a str) -> BoxFuture<'a, ()> {
        self.write(&format!("{output:?} {line}"));
        async {}.boxed()
    }
}

fn program(path: &str) -> Run {
    serde_json::from_value(json!({"path": path, "user": "vcap"})).unwrap()
}

fn run(path: &str) -> Value {
    json!({"run": {"path": path, "user": "vcap"}})
}

fn all<const N: usize>(kind: &str, paths: [&str; N]) -> Value {
    json!({kind: {"actions": paths.map(run).to_vec()}})
}

fn within(seconds: u64, action: Value) -> Value {
    json!({"timeout": {"action": action, "timeout_ms": seconds * 1_000}})
}

/// The result of a tree: `ok`, or the time in seconds, the place and the text of its failure; and its log.
struct TreeOutcome {
    end: String,
    log: Vec<String>,
}

async fn run_tree(tree: Value, stop_after: Option<u64>) -> TreeOutcome {
    let tree: Action = serde_json::from_value(tree).unwrap();
    let actor = FakeExecutor {
        began: Instant::now(),
        log: Mutex::default(),
    };
    let stop = CancellationToken::new();
    let stopping = async {
        if let Some(seconds) = stop_after {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            stop.cancel();
        }
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        biased;
        () = stopping => unreachable!("it waits for ever"),
        ended = execute(&actor, &tree, "", &stop) => ended,
    };
    let seconds = actor.began.elapsed().as_secs();
    let end = match ended {
        Ok(()) => format!("{seconds} ok"),
        Err(Failure {
            text,
            action_path: place,
            code,
            ..
        }) => {
            let code = code.map_or(String::new(), |code| format!(" code {code}"));
            format!("{seconds} {place}{code}: {text}")
        }
    };
    TreeOutcome {
        end,
        log: actor.log.into_inner().unwrap(),
    }
}

async fn check(cases: impl IntoIterator<Item = (Value, &str)>) {
    for (tree, expected) in cases {
        let outcome = run_tree(tree.clone(), None).await;
        assert_eq!(outcome.end, expected, "{tree}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_its_program() {
    check([
        (run("3 ok"), "3 ok"),
        (run("1 fail 7"), "1 run code 7: LOG: Exited with status 7"),
        (run("0 missing"), "0 run: no such program"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_serial_ends_with_the_first_failure() {
    check([
        (all("serial", ["1 ok", "2 ok"]), "3 ok"),
        (
            all("serial", ["1 ok", "1 fail 2", "9 ok"]),
            "2 serial[1].run code 2: LOG: Exited with status 2",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_parallel_waits_for_all() {
    check([
        (all("parallel", ["1 ok", "5 ok"]), "5 ok"),
        (
            all("parallel", ["1 fail 2", "5 ok"]),
            "5 parallel[0].run code 2: LOG: Exited with status 2",
        ),
        (
            all("parallel", ["4 fail 2", "1 missing", "1 ok", "2 fail 3"]),
            "4 parallel[0].run code 2: LOG: Exited with status 2; no such program; LOG: Exited with status 3",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn timeout_stops_with_its_own_reason() {
    check([
        (within(2, run("1 ok")), "1 ok"),
        (
            within(2, run("1 fail 4")),
            "1 timeout.run code 4: LOG: Exited with status 4",
        ),
        (within(2, run("9 ok")), "2 timeout: exceeded 2s timeout"),
        (
            within(90, run("deaf")),
            "100 timeout: exceeded 1m30s timeout",
        ),
        (within(2, run("stuck")), "13 timeout: exceeded 2s timeout"),
        (
            within(2, all("parallel", ["1 fail 4", "9 ok"])),
            "2 timeout: exceeded 2s timeout; LOG: Exited with status 4",
        ),
        (
            within(2, all("parallel", ["1 missing", "9 ok"])),
            "2 timeout: exceeded 2s timeout",
        ),
        (
            within(9, within(2, run("3 ok"))),
            "2 timeout.timeout: exceeded 2s timeout",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_try_goes_on() {
    let tried = json!({"try": {"action": run("1 fail 3")}});
    let then = |action: &Value| json!({"serial": {"actions": [action, run("1 ok")]}});
    check([(then(&tried), "2 ok"), (tried, "1 ok")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_codependent_never_succeeds() {
    check([
        (
            all("codependent", ["9 ok", "1 ok"]),
            "1 codependent[1].run: Codependent step exited",
        ),
        (
            all("codependent", ["1 fail 3", "9 ok"]),
            "1 codependent[0].run code 3: LOG: Exited with status 3",
        ),
        (
            all("codependent", ["deaf", "1 ok"]),
            "11 codependent[1].run: Codependent step exited",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_message_is_logged_when_set() {
    let emit = |path: &str, prefix: &str| {
        json!({"emit_progress": {"action": run(path), "start_message": "go",
            "success_message": "done", "failure_message_prefix": prefix}})
    };
    let log = |outcome: TreeOutcome| outcome.log.join(", ");

    let begin = "begin emit_progress.run";
    let logged = log(run_tree(emit("1 ok", "no"), None).await);
    assert_eq!(logged, format!("0 Stdout go, 0 {begin}, 1 Stdout done"));
    let logged = log(run_tree(emit("1 fail 3", "no"), None).await);
    assert_eq!(
        logged,
        format!("0 Stdout go, 0 {begin}, 1 Stderr no: LOG: Exited with status 3")
    );
    let logged = log(run_tree(emit("1 missing", "no"), None).await);
    assert_eq!(logged, format!("0 Stdout go, 0 {begin}, 1 Stderr no"));
    let logged = log(run_tree(emit("1 fail 3", ""), None).await);
    assert_eq!(logged, format!("0 Stdout go, 0 {begin}"));
}

#[tokio::test(start_paused = true)]
async fn the_nearest_source_names_a_failure() {
    let named = json!({"timeout": {"timeout_ms": 9_000, "log_source": "VIZ", "action":
        {"parallel": {"actions": [run("1 fail 1"),
            {"run": {"path": "1 fail 2", "user": "vcap", "log_source": "OWN"}}]}}}});

    let outcome = run_tree(named, None).await;

    let text = "VIZ: Exited with status 1; OWN: Exited with status 2";
    assert_eq!(
        outcome.end,
        format!("1 timeout.parallel[0].run code 1: {text}")
    );
}

/// No tree treats a stop as a success, and no tree continues after a stop.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_every_tree() {
    let tried = json!({"try": {"action": run("9 ok")}});
    let cases = [
        (run("9 ok"), "3 run: cancelled"),
        (run("deaf"), "13 run: exceeded graceful shutdown interval"),
        (
            all("serial", ["9 ok", "1 ok"]),
            "3 serial[0].run: cancelled",
        ),
        (
            all("parallel", ["9 ok", "9 ok"]),
            "3 parallel[0].run: cancelled",
        ),
        (
            all("parallel", ["9 ok", "1 fail 2"]),
            "3 parallel[1].run code 2: LOG: Exited with status 2",
        ),
        (
            json!({"serial": {"actions": [tried, run("1 ok")]}}),
            "3 serial[0].try.run: cancelled",
        ),
        (within(5, run("9 ok")), "3 timeout.run: cancelled"),
        // A timer that expires within the grace period changes nothing.
        (
            within(5, run("deaf")),
            "13 timeout.run: exceeded graceful shutdown interval",
        ),
        (within(5, run("stuck")), "16 timeout: cancelled"),
        (
            all("codependent", ["9 ok", "9 ok"]),
            "3 codependent[0].run: cancelled",
        ),
        (
            json!({"emit_progress": {"action": run("9 ok")}}),
            "3 emit_progress.run: cancelled",
        ),
    ];
    for (tree, expected) in cases {
        let outcome = run_tree(tree.clone(), Some(3)).await;
        assert_eq!(outcome.end, expected, "{tree}");
        assert!(
            !outcome
                .log
                .iter()
                .any(|line| line.contains("begin serial[1]")),
            "{tree}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_stopped_first_begins_nothing() {
    let outcome = run_tree(all("parallel", ["1 ok", "1 ok"]), Some(0)).await;

    assert_eq!(outcome.end, "0 parallel: cancelled");
    assert_eq!(outcome.log, Vec::<String>::new());
}

/// Only actions that may be stopped while another action continues have an action cgroup, because a cgroup has a cost.
#[tokio::test(start_paused = true)]
async fn early_stoppable_actions_get_own_cgroup() {
    let fenced = async |tree| {
        let log = run_tree(tree, None).await.log;
        let begun = log.iter().filter_map(|line| line.split_once("begin "));
        let begun = begun.filter_map(|(_, line)| line.strip_suffix(" fenced"));
        begun.map(str::to_owned).collect::<Vec<_>>()
    };
    let tried = |action: Value| json!({"try": {"action": action}});

    assert_eq!(fenced(run("1 ok")).await, [""; 0]);
    assert_eq!(fenced(within(5, run("1 ok"))).await, [""; 0]);
    let first = json!({"serial": {"actions": [within(5, run("1 ok")), run("1 ok")]}});
    assert_eq!(fenced(first).await, [""; 0], "the tree fails with it");
    assert_eq!(fenced(tried(run("1 ok"))).await, [""; 0]);
    assert_eq!(fenced(all("parallel", ["1 ok", "2 ok"])).await, [""; 0]);
    assert_eq!(fenced(within(5, tried(run("1 ok")))).await, [""; 0]);

    assert_eq!(
        fenced(tried(within(5, run("1 ok")))).await,
        ["try.timeout.run"]
    );
    let beside = json!({"parallel": {"actions": [run("1 ok"), within(5, run("1 ok"))]}});
    assert_eq!(fenced(beside).await, ["parallel[1].timeout.run"]);
    let below = json!({"try": {"action": all("codependent", ["1 ok"])}});
    assert_eq!(fenced(below).await, ["try.codependent[0].run"]);
}
