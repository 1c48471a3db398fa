//! Cases for the driver's other duties besides tasks: events, networks, settings.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::StreamExt;
use serde_json::Value;

use super::{DriverUnderTest, destroy, start, task, within};
use crate::error::DriverError;

/// Events contain the allocation and the name of their task, also when two tasks have events at the same time. Every
/// driver must report a stop that ended in a kill.
pub async fn events_are_of_their_own_task(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let mut events = within("events", driver.task_events())
        .await
        .expect("a driver has events");
    let mut configs = Vec::new();
    for name in ["first", "second"] {
        let mut config = task(subject, name, subject.ignores_signals());
        config.alloc_id = format!("alloc-of-{name}");
        start(&*driver, &config).await;
        within("settle", subject.settled(&config)).await;
        configs.push(config);
    }

    let stop = |at: usize| driver.stop_task(&configs[at].id, Duration::from_millis(50), "SIGTERM");
    let (first, second) = within("both stops", async { tokio::join!(stop(0), stop(1)) }).await;
    first.expect("the first stops");
    second.expect("the second stops");
    let mut received = BTreeMap::new();
    while received.len() < 2 {
        let event = within("an event of each", events.next())
            .await
            .expect("events go on");
        // A driver with other tasks reports their events too.
        if configs.iter().any(|config| config.id == event.task_id) {
            received.insert(event.task_id.clone(), event);
        }
    }

    for config in &configs {
        let event = &received[&config.id];
        assert_eq!(event.alloc_id, config.alloc_id);
        assert_eq!(event.task_name, config.task_name);
        assert!(!event.message.is_empty());
        destroy(&*driver, &config.id).await;
    }
}

/// A network is created once for an allocation and found again. A driver that creates no networks returns
/// "unsupported".
pub async fn network_is_made_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;
    let capabilities = within("capabilities", driver.capabilities())
        .await
        .expect("a driver knows what it can do");

    let made = within("create", driver.create_network("conformance-net", "web")).await;

    if !capabilities.must_create_network {
        assert!(
            matches!(made, Err(DriverError::Unsupported { .. })),
            "{made:?}"
        );
        return;
    }
    let made = made.expect("the network is made");
    let again = within("create", driver.create_network("conformance-net", "web"))
        .await
        .expect("the network is found");
    assert!(made.created);
    assert!(!again.created);
    assert_eq!(again.isolation, made.isolation);
    within(
        "destroy",
        driver.destroy_network("conformance-net", made.isolation),
    )
    .await
    .expect("the network is removed");
}

/// A host sends the configuration at each launch and may send it again; null is the default.
pub async fn settings_may_come_more_than_once(subject: &dyn DriverUnderTest) {
    let driver = subject.driver().await;

    for _time in 0..2 {
        within("set", driver.set_config(Value::Null))
            .await
            .expect("the default configuration is one");
    }
    let mut stream = within("fingerprint", driver.fingerprint())
        .await
        .expect("a driver has a fingerprint");

    assert!(within("the first item", stream.next()).await.is_some());
}
