use muster_control_core::fixture::Cluster;
use muster_domain::alloc::ClientStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::LogIndex;

use super::*;

const FIRST: NodeId = NodeId([1; 16]);
const SECOND: NodeId = NodeId([2; 16]);

fn report(name: u32, words: &str) -> AllocReport {
    AllocReport {
        alloc_id: AllocId::at(LogIndex(1), name),
        client_status: ClientStatus::Running,
        client_description: words.to_owned(),
        task_states: Vec::new(),
        healthy: None,
        end: None,
        remote: Vec::new(),
    }
}

/// What is taken: node, words, acknowledged.
fn shown(parts: &[Part]) -> Vec<(NodeId, Vec<&str>, Option<u64>)> {
    parts
        .iter()
        .map(|part| {
            let words = part
                .reports
                .iter()
                .map(|report| report.client_description.as_str());
            (part.node_id, words.collect(), part.sequence)
        })
        .collect()
}

fn outbox() -> (mpsc::Sender<ToAgent>, mpsc::Receiver<ToAgent>) {
    mpsc::channel(16)
}

#[tokio::test]
async fn nodes_share_an_entry() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let (second, _second) = outbox();
    reports.put(FIRST, 1, vec![report(1, "a")], &first).await;
    reports.put(SECOND, 1, vec![report(2, "b")], &second).await;
    reports.put(FIRST, 2, vec![report(1, "c")], &first).await;

    let parts = reports.take(&mut NodeId([0; 16]));

    assert_eq!(
        shown(&parts),
        [(FIRST, vec!["c"], Some(2)), (SECOND, vec!["b"], Some(1))]
    );
    assert!(reports.take(&mut NodeId([0; 16])).is_empty());
}

#[tokio::test]
async fn entries_are_bounded_and_in_turn() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let (second, _second) = outbox();
    let many = u32::try_from(limits::REPORTS_PER_ENTRY_MAX).unwrap() + 1;
    let all = (0..many).map(|name| report(name, "a")).collect();
    reports.put(FIRST, 1, all, &first).await;
    reports.put(SECOND, 1, vec![report(0, "b")], &second).await;
    let mut after = NodeId([0; 16]);

    let one = reports.take(&mut after);
    let two = reports.take(&mut after);

    assert_eq!(one.len(), 1);
    assert_eq!(one[0].reports.len(), limits::REPORTS_PER_ENTRY_MAX);
    assert_eq!(one[0].sequence, None);
    assert_eq!(
        shown(&two),
        [(SECOND, vec!["b"], Some(1)), (FIRST, vec!["a"], Some(1))]
    );
}

#[tokio::test]
async fn large_reports_are_cut_by_their_bytes() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let words = "x".repeat(limits::REPORT_BYTES_PER_ENTRY_MAX / 2);
    let all = (0..3).map(|name| report(name, &words)).collect();
    reports.put(FIRST, 1, all, &first).await;
    let mut after = NodeId([0; 16]);

    let counts: Vec<usize> = (0..3)
        .map(|_| {
            reports
                .take(&mut after)
                .iter()
                .map(|part| part.reports.len())
                .sum()
        })
        .collect();

    assert_eq!(counts, [1, 1, 1]);
}

/// Its agent says it again to the next server, where it may be older than what that one has written.
#[tokio::test]
async fn a_session_that_ended_writes_nothing() {
    let reports = Reports::default();
    let (first, inbox) = outbox();
    reports.put(FIRST, 1, vec![report(1, "a")], &first).await;

    drop(inbox);

    assert!(reports.take(&mut NodeId([0; 16])).is_empty());
}

#[tokio::test]
async fn a_new_session_replaces_what_the_old_one_had() {
    let reports = Reports::default();
    let (old, _old) = outbox();
    let (new, _new) = outbox();
    reports.put(FIRST, 7, vec![report(1, "old")], &old).await;

    reports.put(FIRST, 1, vec![report(2, "new")], &new).await;

    let parts = reports.take(&mut NodeId([0; 16]));
    assert_eq!(shown(&parts), [(FIRST, vec!["new"], Some(1))]);
}

#[tokio::test]
async fn an_agent_with_too_much_under_way_waits() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let many = u32::try_from(limits::REPORTS_PER_SESSION_MAX).unwrap();
    let all = (0..many).map(|name| report(name, "a")).collect();
    reports.put(FIRST, 1, all, &first).await;
    let more = reports.put(FIRST, 2, vec![report(0, "b")], &first);
    tokio::pin!(more);
    assert!(futures::poll!(&mut more).is_pending());

    reports.take(&mut NodeId([0; 16]));

    more.await;
}

/// Its agent started again, and says of everything how it is.
#[test]
fn what_has_ended_is_no_news() {
    let mut cluster = Cluster::new();
    cluster.node(node("n1").build());
    cluster.run(job("web").count(2).build());
    let [ended, runs] = cluster.live("web").try_into().unwrap();
    cluster.report(ended.id, ClientStatus::Failed);
    cluster.report(runs.id, ClientStatus::Running);
    let about = |alloc_id, words| AllocReport {
        alloc_id,
        ..report(0, words)
    };
    let unknown = report(7, "unknown");

    let news = news(
        &cluster.state,
        vec![about(ended.id, "ended"), about(runs.id, "runs"), unknown],
    );

    let words: Vec<&str> = news
        .iter()
        .map(|report| report.client_description.as_str())
        .collect();
    assert_eq!(words, ["runs", "unknown"]);
}

#[tokio::test]
async fn a_message_without_news_is_acknowledged() {
    let reports = Reports::default();
    let (first, _first) = outbox();

    reports.put(FIRST, 3, Vec::new(), &first).await;

    let parts = reports.take(&mut NodeId([0; 16]));
    assert_eq!(shown(&parts), [(FIRST, vec![], Some(3))]);
}
