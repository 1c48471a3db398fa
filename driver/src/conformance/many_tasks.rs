//! Many tasks at once.

use futures::future::join_all;

use super::{DriverUnderTest, FOREVER, SIGTERM, destroy, start, state, task, wait, within};
use crate::task::{ExitResult, TaskState};

/// Fifty tasks start at once, each with a different exit code, and each result belongs to its task.
pub async fn fifty_tasks_run_at_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let driver = &*driver;
    let results = join_all((1..=50).map(|code| async move {
        let config = task(subject, "crowd", subject.exits_with(code));
        start(driver, &config).await;
        let result = wait(driver, &config.id).await;
        destroy(driver, &config.id).await;
        result
    }))
    .await;

    let expected: Vec<_> = (1..=50).map(ExitResult::exited).collect();
    assert_eq!(results, expected);
}

/// Two hundred tasks run at the same time, each with a waiting caller. All of them stop together, and none is left.
pub async fn two_hundred_tasks_live_at_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let driver = &*driver;
    let configs: Vec<_> = (0..200)
        .map(|_| task(subject, "many", subject.runs_for(FOREVER)))
        .collect();

    join_all(configs.iter().map(|config| start(driver, config))).await;
    let states = join_all(configs.iter().map(|config| state(driver, &config.id))).await;
    let waits = join_all(configs.iter().map(|config| wait(driver, &config.id)));
    let stops = join_all(
        configs
            .iter()
            .map(|config| driver.stop_task(&config.id, FOREVER, "SIGTERM")),
    );
    let (results, stops) = within("all stops", async { tokio::join!(waits, stops) }).await;
    join_all(configs.iter().map(|config| destroy(driver, &config.id))).await;

    assert_eq!(states, vec![TaskState::Running; 200]);
    assert_eq!(results, vec![ExitResult::signaled(SIGTERM); 200]);
    assert_eq!(stops, vec![Ok(()); 200]);
    if let Ok(left) = within("list", driver.list_tasks()).await {
        let left = left
            .iter()
            .filter(|handle| handle.config.task_name == "many");
        assert_eq!(left.count(), 0);
    }
}
