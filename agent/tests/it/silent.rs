//! Output of tasks that write nothing, or not yet: no files, and an empty log all the same.

use std::fs;

use muster_domain::alloc::ClientStatus;
use muster_domain::id::AllocId;
use muster_wire::rpc::{FailureKind, LogOrigin, LogStream, LogsRequest, NodeReply, NodeRequest};

use crate::support::{Machine, batch, eventually, privileged, service};

/// Names of an allocation's log files.
fn files(machine: &Machine, alloc_id: AllocId) -> Vec<String> {
    let entries = fs::read_dir(machine.log_dir(alloc_id)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name != "fifos" && name != "names")
        .collect()
}

fn of_task(alloc_id: AllocId, task: &str, follow: bool) -> NodeRequest {
    NodeRequest::Logs(LogsRequest {
        alloc_id,
        task: task.to_owned(),
        stream: LogStream::Stdout,
        from: LogOrigin::Start(0),
        follow,
    })
}

/// While its agent remembers it and for the next agent; a task that there is none of stays an error.
#[tokio::test(flavor = "multi_thread")]
async fn silent_task_has_empty_log_without_file() {
    if !privileged("silent_task_has_empty_log_without_file") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let mut agent = machine.agent(&server).await;
    let alloc_id = server.place(batch(1, "true").build()).await;
    server.status(alloc_id, ClientStatus::Complete).await;

    for _agent in 0..2 {
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            assert_eq!(server.log(alloc_id, stream).await, "");
        }
        let replies = server
            .ask(of_task(alloc_id, "nosuch", false), |_| false)
            .await;
        assert!(
            matches!(
                &replies[..],
                [NodeReply::Failed {
                    kind: FailureKind::NotFound,
                    ..
                }]
            ),
            "{replies:?}"
        );
        assert_eq!(files(&machine, alloc_id), Vec::<String>::new());

        agent.leave().await;
        agent = machine.agent(&server).await;
        server.node(|_| true).await;
    }
    agent.end().await;
}

/// The agent is killed before the first byte, which is written to the next one once somebody follows.
#[tokio::test(flavor = "multi_thread")]
async fn early_follower_receives_first_byte() {
    if !privileged("early_follower_receives_first_byte") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.killable_agent(&server);
    let script = "until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done; echo first; sleep 600";
    let alloc_id = server.place(service(1, script).build()).await;
    server.status(alloc_id, ClientStatus::Running).await;
    let sessions = server.sessions();
    agent.kill();
    let agent = machine.killable_agent(&server);
    eventually("a session", async || {
        (server.sessions() > sessions).then_some(())
    })
    .await;
    server.pid(alloc_id).await;
    assert_eq!(files(&machine, alloc_id), Vec::<String>::new());

    let go = machine.alloc_dir(alloc_id).join("alloc/go");
    let replies = server
        .ask(of_task(alloc_id, "main", true), |replies| {
            // Nothing for a while: whoever follows waits.
            if replies.len() == 1 {
                fs::write(&go, "").unwrap();
            }
            !matches!(replies.last(), None | Some(NodeReply::Idle))
        })
        .await;

    assert_eq!(replies[0], NodeReply::Idle);
    let first = NodeReply::LogData {
        file: "main.stdout.0".into(),
        offset: 6,
        data: b"first\n".into(),
    };
    assert_eq!(replies.last(), Some(&first));
    server.forget(alloc_id).await;
    eventually("everything of it is gone", async || {
        (!machine.log_dir(alloc_id).exists()).then_some(())
    })
    .await;
    agent.kill();
}

/// Its FIFOs, of which the agent needs both ends. Nothing of its files, nor of their directory.
#[tokio::test(flavor = "multi_thread")]
async fn silent_task_uses_two_log_descriptors() {
    if !privileged("silent_task_uses_two_log_descriptors") {
        return;
    }
    let machine = Machine::new();
    let server = machine.server();
    let agent = machine.agent(&server).await;
    let alloc_id = server.place(service(1, "sleep 600").build()).await;
    server.pid(alloc_id).await;

    let open = fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let dir = machine.log_dir(alloc_id);
    let mut below: Vec<String> = links
        .filter_map(|link| Some(link.strip_prefix(&dir).ok()?.display().to_string()))
        .collect();
    below.sort();

    assert_eq!(below, ["fifos/main.stderr", "fifos/main.stdout"]);
    agent.end().await;
}
