//! Users of tasks that name none.

use std::os::unix::fs::MetadataExt as _;

use muster_agent::UserRange;

use super::*;

const RANGE: (u32, u32) = (84_000, 84_001);

/// A driver that runs tasks as users that no database knows, and two such users.
fn config(with: &PluginMachine) -> AgentConfig {
    // The way to their directories, which begins in a temporary one.
    let data = with.machine.data();
    fs::create_dir_all(&data).unwrap();
    for dir in [data.parent().unwrap(), &data] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
    }
    let mut config = with.config();
    let settings = PluginSettings {
        args: Vec::new(),
        config: json!({"users": true}),
    };
    config.plugins.insert("gotest".to_owned(), settings);
    config.users = UserRange::new(RANGE.0, RANGE.1).unwrap();
    config
}

/// A task that writes into the directories that are its own, then prints its user and group.
async fn place(with: &PluginMachine, index: u32) -> AllocId {
    let script = "echo x > $NOMAD_TASK_DIR/mine && echo y > $NOMAD_SECRETS_DIR/mine; id -u; id -g; \
        while :; do sleep 0.05; done";
    let alloc = service(index, "").driver("gotest", &shell(script));
    with.server.place(alloc.build()).await
}

/// User and group that the task printed at its newest start.
async fn who(with: &PluginMachine, alloc_id: AllocId) -> (u32, u32) {
    with.server.status(alloc_id, ClientStatus::Running).await;
    eventually("who the task is", async || {
        let printed = with.server.log(alloc_id, LogStream::Stdout).await;
        let mut numbers = printed.lines().map(|line| line.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    })
    .await
}

/// Two tasks have the two users; the third waits, also under the next agent, until one of the two is destroyed.
#[tokio::test(flavor = "multi_thread")]
async fn task_without_user_gets_unused_dynamic_user() {
    let Some(with) = PluginMachine::new("task_without_user_gets_unused_dynamic_user") else {
        return;
    };
    let first = Agent::start(config(&with)).await.unwrap();
    let one = place(&with, 1).await;
    let (first_user, first_group) = who(&with, one).await;
    let two = place(&with, 2).await;
    let (second_user, _) = who(&with, two).await;
    let files = ["main/local/mine", "main/secrets/mine", "main/secrets"];
    let owners = files.map(|file| {
        let path = with.machine.alloc_dir(one).join(file);
        fs::metadata(path).unwrap().uid()
    });

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    let second = Agent::start(config(&with)).await.unwrap();
    let three = place(&with, 3).await;
    let refused = with
        .server
        .reported(three, "a start without a user", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.message.contains("dynamic_user_min"))
        })
        .await;
    with.server.forget(one).await;
    eventually("the first is destroyed", async || {
        (!with.machine.alloc_dir(one).exists()).then_some(())
    })
    .await;
    let four = place(&with, 4).await;
    let (fourth_user, _) = who(&with, four).await;

    assert_eq!((first_user, first_group), (RANGE.0, RANGE.0));
    assert_eq!(second_user, RANGE.1);
    assert_eq!(owners, [RANGE.0; 3]);
    let events = format!("{:?}", refused.events);
    assert!(
        events.contains("all 2 users from 84000 to 84001 are taken"),
        "{events}"
    );
    assert_eq!(fourth_user, first_user);
    second.shutdown(ShutdownPolicy::StopTasks).await;
}

/// The running task itself says which user it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_gives_no_user_twice() {
    let Some(with) = PluginMachine::new("a_lost_store_gives_no_user_twice") else {
        return;
    };
    let first = Agent::start(config(&with)).await.unwrap();
    let one = place(&with, 1).await;
    let (first_user, _) = who(&with, one).await;

    first.shutdown(ShutdownPolicy::KeepTasks).await;
    fs::write(with.machine.data().join("agent.redb"), "garbage").unwrap();
    let second = Agent::start(config(&with)).await.unwrap();
    with.server
        .reported(one, "recovered", |task, _| {
            let mut events = task.events.iter();
            events.any(|event| event.kind == TaskEventKind::Recovered)
        })
        .await;
    let two = place(&with, 2).await;
    let (second_user, _) = who(&with, two).await;

    assert_eq!((first_user, second_user), RANGE);
    second.shutdown(ShutdownPolicy::StopTasks).await;
}
