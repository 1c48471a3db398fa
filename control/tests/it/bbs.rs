//! Diego's own wire over a real TLS socket: the life of a task, every kind of error, who is let in, events.
//!
//! Messages are put together and taken apart here by the numbers of their fields, as clients in the field have them:
//! the server's own types have no part in it.

mod client;
mod events;
mod message;

use muster_domain::alloc::{ClientStatus, DesiredStatus, Exit};
use muster_domain::fixture::node;
use muster_domain::one_off::{OneOffState, WorkEnd};

use crate::fixture::{FakeAgent, soon};
use client::{Client, Fixture, fixture};
use message::{Fields, block, desire, guid, number};

/// Diego's numbers of errors.
const INVALID_REQUEST: u64 = 4;
const INVALID_STATE_TRANSITION: u64 = 9;
const RESOURCE_EXISTS: u64 = 12;
const RESOURCE_NOT_FOUND: u64 = 13;

/// Diego's numbers of states.
const PENDING: u64 = 1;
const RUNNING: u64 = 2;
const COMPLETED: u64 = 3;
const RESOLVING: u64 = 4;

/// The kind and the message of the error in an answer.
fn error(answer: &Fields) -> (u64, String) {
    let error = answer.message(1);
    (error.number(1), error.text(2))
}

/// Kind and message of the error that `path` answers with.
async fn refused(client: &Client, path: &str, body: Vec<u8>) -> (u64, String) {
    error(&client.post(path, body).await)
}

async fn done(client: &Client, path: &str, body: Vec<u8>) {
    let answer = client.post(path, body).await;
    assert_eq!(answer, Fields::default(), "{path}");
}

async fn task(client: &Client, name: &str) -> Fields {
    let answer = client
        .post("/v1/tasks/get_by_task_guid.r3", guid(name))
        .await;
    answer.message(2)
}

/// Ends the next allocation that is to run.
async fn run(agent: &mut FakeAgent, result: &str) {
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let end = WorkEnd {
        result: result.to_owned(),
        exit: Some(Exit::default()),
        ..WorkEnd::default()
    };
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, end)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_lives_as_diegos_clients_know_it() {
    let Fixture { test, client, .. } = fixture().await;

    done(&client, "/v1/tasks/desire.r2", desire("a", "apps")).await;
    let listed = client.post("/v1/tasks/list.r3", Vec::new()).await;
    let pending = listed.message(2);
    assert_eq!(
        (pending.text(2), pending.text(3)),
        ("a".to_owned(), "apps".to_owned())
    );
    assert_eq!(pending.number(7), PENDING);
    assert_eq!(pending.message(1).text(13), "mine");
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    let running = task(&client, "a").await;
    assert_eq!(running.number(7), RUNNING);
    assert_eq!(running.text(8), agent.node_id.to_string());
    let end = WorkEnd {
        result: "42".to_owned(),
        exit: Some(Exit::default()),
        ..WorkEnd::default()
    };
    agent
        .report_end(alloc.alloc_id, ClientStatus::Complete, end)
        .await;

    let completed = task(&client, "a").await;
    assert_eq!(completed.number(7), COMPLETED);
    assert_eq!(
        (completed.text(8), completed.text(9)),
        (String::new(), "42".to_owned())
    );
    assert_eq!(completed.number(10), 0);
    assert!(completed.number(6) >= completed.number(4));
    done(&client, "/v1/tasks/resolving", guid("a")).await;
    assert_eq!(task(&client, "a").await.number(7), RESOLVING);
    done(&client, "/v1/tasks/delete", guid("a")).await;
    let listed = client.post("/v1/tasks/list.r2", Vec::new()).await;
    assert_eq!(listed, Fields::default());
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_list_filters_by_domain_and_cell() {
    let Fixture { test, client, .. } = fixture().await;
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    done(&client, "/v1/tasks/desire.r2", desire("a", "apps")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;
    for at in 0..40 {
        let name = format!("b{at}");
        done(&client, "/v1/tasks/desire.r2", desire(&name, "other")).await;
    }

    let count = async |body: Vec<u8>| client.post("/v1/tasks/list.r3", body).await.count(2);

    assert_eq!(count(Vec::new()).await, 41);
    assert_eq!(count(block(1, "apps")).await, 1);
    assert_eq!(count(block(1, "none")).await, 0);
    assert!(count(block(2, agent.node_id.to_string())).await >= 1);
    assert_eq!(count(block(2, "none")).await, 0);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_response_follows_task_completion() {
    let Fixture { test, client, .. } = fixture().await;
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    done(&client, "/v1/tasks/desire.r2", desire("a", "apps")).await;
    let alloc = agent.next_to_run().await;
    agent.report(alloc.alloc_id, ClientStatus::Running).await;

    let ends = async {
        let alloc = agent.next_wanted(DesiredStatus::Stop).await;
        let end = WorkEnd {
            result: "42".to_owned(),
            ..WorkEnd::default()
        };
        agent
            .report_end(alloc.alloc_id, ClientStatus::Complete, end)
            .await;
    };
    tokio::join!(done(&client, "/v1/tasks/cancel", guid("a")), ends);

    let cancelled = task(&client, "a").await;
    assert_eq!((cancelled.number(7), cancelled.number(10)), (COMPLETED, 1));
    assert_eq!(cancelled.text(11), "task was cancelled");
    // It had written a result, which Diego drops.
    assert_eq!(cancelled.text(9), "");
    let again = refused(&client, "/v1/tasks/cancel", guid("a")).await;
    let message = "Cannot transition from Completed to Completed".to_owned();
    assert_eq!(again, (INVALID_STATE_TRANSITION, message));
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_diegos_kind_and_words() {
    let Fixture { test, client, .. } = fixture().await;
    let mut agent = FakeAgent::join(&test, node("n1").build()).await;
    let path = |verb: &str| format!("/v1/tasks/{verb}");
    done(&client, "/v1/tasks/desire.r2", desire("a", "apps")).await;
    let exists = (
        RESOURCE_EXISTS,
        "the requested resource already exists".to_owned(),
    );
    // The same again exists as well.
    assert_eq!(
        refused(&client, &path("desire.r2"), desire("a", "apps")).await,
        exists
    );
    assert_eq!(
        refused(&client, &path("desire.r2"), desire("a", "other")).await,
        exists
    );
    let unknown = (
        RESOURCE_NOT_FOUND,
        "the requested resource could not be found".to_owned(),
    );
    for verb in [
        "get_by_task_guid.r3",
        "get_by_task_guid.r2",
        "cancel",
        "resolving",
        "delete",
    ] {
        assert_eq!(
            refused(&client, &path(verb), guid("none")).await,
            unknown,
            "{verb}"
        );
        let nameless = (INVALID_REQUEST, "Invalid field: task_guid".to_owned());
        assert_eq!(
            refused(&client, &path(verb), Vec::new()).await,
            nameless,
            "{verb}"
        );
    }
    let early = refused(&client, &path("resolving"), guid("a")).await;
    assert_eq!(early.0, INVALID_STATE_TRANSITION, "{early:?}");
    run(&mut agent, "").await;
    let late = refused(&client, &path("cancel"), guid("a")).await;
    let message = "Cannot transition from Completed to Completed".to_owned();
    assert_eq!(late, (INVALID_STATE_TRANSITION, message));
    let unclaimed = refused(&client, &path("delete"), guid("a")).await;
    assert_eq!(unclaimed.0, INVALID_STATE_TRANSITION, "{unclaimed:?}");
    for verb in ["start", "complete", "reject", "fail"] {
        let (kind, message) = refused(&client, &path(verb), guid("a")).await;
        assert_eq!(kind, INVALID_REQUEST, "{verb}");
        assert!(message.contains("Muster's own agents"), "{message}");
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_definition_names_its_fields() {
    let Fixture { test, client, .. } = fixture().await;
    let refused = async |definition: Vec<u8>| {
        let body = [block(1, definition), block(2, "b c"), block(3, "apps")].concat();
        refused(&client, "/v1/tasks/desire.r2", body).await
    };

    let nothing = refused(Vec::new()).await;
    // A timeout whose action says nothing, and a layer.
    let timeout = block(4, [block(1, ""), number(4, 1)].concat());
    let hollow =
        refused([block(1, "preloaded:host"), block(3, timeout), block(25, "")].concat()).await;
    let missing = self::refused(&client, "/v1/tasks/desire.r2", Vec::new()).await;

    let invalid = |fields: &[&str]| {
        let each: Vec<String> = fields
            .iter()
            .map(|it| format!("Invalid field: {it}"))
            .collect();
        (INVALID_REQUEST, each.join(", "))
    };
    assert_eq!(nothing, invalid(&["task_guid", "rootfs", "action"]));
    assert_eq!(hollow, invalid(&["task_guid", "image_layers", "action"]));
    assert_eq!(
        missing,
        invalid(&["task_guid", "domain", "task_definition"])
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_an_invalid_request() {
    let Fixture { test, client, .. } = fixture().await;
    let refusal = (
        INVALID_REQUEST,
        "the request received is invalid".to_owned(),
    );
    let deep = (0..1_000).fold(Vec::new(), |inner, _| block(1, block(6, inner)));
    let deep = [block(1, block(3, deep)), block(2, "a"), block(3, "apps")].concat();

    for body in [
        vec![0xff; 100],
        block(1, "x")[..2].to_vec(),
        block(2, [0xff]),
        deep,
    ] {
        let answer = refused(&client, "/v1/tasks/desire.r2", body).await;
        assert_eq!(answer, refusal);
    }
    let large = refused(&client, "/v1/tasks/desire.r2", vec![0; 5 << 20]).await;
    assert_eq!(large.0, INVALID_REQUEST, "{large:?}");
    assert_eq!(client.status("POST", "/v1/none/list").await, 404);
    assert_eq!(client.status("GET", "/v1/ping").await, 405);
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_domains_and_a_ping_are_answered() {
    let Fixture { test, client, .. } = fixture().await;
    let agent = FakeAgent::join(&test, node("n1").build()).await;
    test.until("the node is ready", |state| {
        state.nodes().iter().all(|node| node.takes_work())
    })
    .await;

    assert_eq!(client.post("/v1/ping", Vec::new()).await.number(1), 1);
    let cell = client
        .post("/v1/cells/list.r1", Vec::new())
        .await
        .message(2);
    assert_eq!(cell.text(1), agent.node_id.to_string());
    assert!(cell.message(4).number(1) > 0);
    let upsert = [block(1, "apps"), number(2, 60)].concat();
    done(&client, "/v1/domains/upsert", upsert).await;
    assert_eq!(
        client.post("/v1/domains/list", Vec::new()).await.text(2),
        "apps"
    );
    let nameless = refused(&client, "/v1/domains/upsert", Vec::new()).await;
    assert_eq!(
        nameless,
        (INVALID_REQUEST, "Invalid field: domain".to_owned())
    );
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lrps_are_listed_as_none() {
    let Fixture { test, client, .. } = fixture().await;

    for path in [
        "actual_lrps/list",
        "actual_lrp_groups/list",
        "desired_lrps/list.r3",
        "desired_lrp_scheduling_infos/list",
    ] {
        done(&client, &format!("/v1/{path}"), block(1, "apps")).await;
    }
    let path = "/v1/desired_lrps/get_by_process_guid.r3";
    let single = refused(&client, path, block(1, "web")).await;
    assert_eq!(single.0, RESOURCE_NOT_FOUND, "{single:?}");
    let created = refused(&client, "/v1/desired_lrp/desire.r2", Vec::new()).await;
    assert_eq!(created.0, INVALID_REQUEST, "{created:?}");
    test.server.shutdown().await;
}

/// The one node is empty and too small, or does not have the root.
#[tokio::test(flavor = "multi_thread")]
async fn task_that_no_cell_could_hold_fails() {
    let Fixture { test, client, .. } = fixture().await;
    let _agent = FakeAgent::join(&test, node("n1").build()).await;
    let desire = async |name: &str, root: &str, memory_mb: u64| {
        let run = [block(1, "/bin/true"), block(6, "vcap")].concat();
        let definition = [
            block(1, root),
            block(3, block(3, run)),
            number(5, memory_mb),
        ];
        let body = [block(1, definition.concat()), block(2, name), block(3, "d")];
        done(&client, "/v1/tasks/desire.r2", body.concat()).await;
    };

    desire("large", "preloaded:host", 1 << 24).await;
    desire("rooted", "preloaded:cflinuxfs9", 64).await;

    for (name, reason) in [
        ("large", "insufficient resources: memory"),
        ("rooted", "found no compatible cell for required rootfs"),
    ] {
        test.until("the task fails", |state| {
            let row = state.one_offs().get(name);
            row.is_some_and(|row| row.state == OneOffState::Completed)
        })
        .await;
        assert_eq!(task(&client, name).await.text(11), reason);
    }
    test.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_ca_signed_certificate_is_rejected() {
    let fixture = fixture().await;
    let nobody = fixture.client_without_certificate();
    let stranger = fixture.client_of_another_authority();

    for client in [nobody, stranger] {
        let error = client.try_post("/v1/ping", Vec::new()).await.unwrap_err();
        assert!(
            error.contains("alert") || error.contains("Certificate"),
            "{error}"
        );
    }

    assert_eq!(
        fixture.client.post("/v1/ping", Vec::new()).await.number(1),
        1
    );
    fixture.test.server.shutdown().await;
}

/// A browser may have a certificate of the authority.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_are_refused() {
    let Fixture { test, client, .. } = fixture().await;

    for (name, value, status) in [
        ("origin", "https://evil.example", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("content-type", "text/plain", 415),
        ("host", "bbs.service.internal:8889", 200),
    ] {
        let answered = client.status_with("/v1/ping", name, value).await;
        assert_eq!(answered, status, "{name}: {value}");
    }
    test.server.shutdown().await;
}

/// Sessions of clients would otherwise hold the old certificate for as long as they like.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_certificates_are_shown_from_then_on() {
    let fixture = fixture().await;

    fixture.replace_authority();

    soon("the new authority's clients are let in", async {
        let renewed = fixture.client_of_files();
        while renewed.try_post("/v1/ping", Vec::new()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    fixture.test.server.shutdown().await;
}
