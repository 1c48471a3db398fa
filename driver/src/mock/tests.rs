use super::*;

mod conformance {
    use crate::mock::fixture::InProcessDriver;

    crate::driver_conformance!(InProcessDriver::new());
}

fn config(id: &str, task: &MockTask) -> TaskConfig {
    TaskConfig {
        id: id.to_owned(),
        config: task.to_config(),
        ..TaskConfig::default()
    }
}

#[tokio::test]
async fn memory_kill_is_reported_as_configured() {
    let driver = MockDriver::new();
    let task = MockTask {
        exit_signal: 9,
        oom_killed: true,
        ..MockTask::exits(Duration::from_millis(5), 0)
    };

    driver.start_task(config("a", &task)).await.unwrap();
    let result = driver.wait_task("a").await.unwrap();

    assert_eq!(result.signal, 9);
    assert!(result.oom_killed);
}

#[tokio::test]
async fn recoverable_start_error_may_be_tried_again() {
    let driver = MockDriver::new();
    let task = MockTask {
        start_error_recoverable: true,
        ..MockTask::broken("no image yet")
    };

    let error = driver.start_task(config("a", &task)).await.unwrap_err();

    assert_eq!(error.retry(), Retry::Later);
    assert_eq!(error.to_string(), "no image yet");
}

#[tokio::test]
async fn unknown_field_is_named() {
    let driver = MockDriver::new();
    let config = TaskConfig {
        config: json!({"run_fro_ms": 3}),
        ..TaskConfig::default()
    };

    let error = driver.start_task(config).await.unwrap_err();

    assert!(error.to_string().contains("run_fro_ms"), "{error}");
}

#[tokio::test]
async fn detached_remote_task_runs_on() {
    let host = MockHost::new();
    let driver = MockDriver::remote(host.clone());
    let handle = driver
        .start_task(config("a", &MockTask::forever()))
        .await
        .unwrap()
        .handle;

    driver
        .stop_task("a", Duration::ZERO, DETACH_SIGNAL)
        .await
        .unwrap();

    assert_eq!(host.running(), 1);
    let elsewhere = MockDriver::remote(host);
    elsewhere.recover_task(handle).await.unwrap();
    assert_eq!(
        elsewhere.inspect_task("a").await.unwrap().state,
        TaskState::Running
    );
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_that_does_not_change_is_repeated() {
    let driver = MockDriver::new();
    let mut stream = driver.fingerprint().await.unwrap();
    let first = stream.next().await.unwrap();
    let began = Instant::now();

    let second = stream.next().await.unwrap();

    assert_eq!(second, first);
    assert_eq!(began.elapsed(), FINGERPRINT_INTERVAL);
}

#[tokio::test]
async fn health_change_is_streamed() {
    let driver = MockDriver::new();
    let mut stream = driver.fingerprint().await.unwrap();

    let first = stream.next().await.unwrap();
    driver.set_health(Health::Unhealthy, "the host is on fire");
    let second = stream.next().await.unwrap();

    assert_eq!(first.health, Health::Healthy);
    assert_eq!(second.health, Health::Unhealthy);
    assert_eq!(second.health_description, "the host is on fire");
}
