use muster_control_core::fixture::Cluster;
use muster_domain::alloc::ClientStatus;
use muster_domain::fixture::{job, node};
use muster_domain::id::LogIndex;
use muster_domain::node::GcReason;

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

fn at_once(reports: Vec<AllocReport>) -> Vec<QueuedReport> {
    queued_reports(reports, false)
}

fn queued_reports(reports: Vec<AllocReport>, can_wait: bool) -> Vec<QueuedReport> {
    let reports = reports.into_iter();
    let queued = reports.map(|report| QueuedReport { report, can_wait });
    queued.collect()
}

/// Returns node, reports and acknowledged message of each part.
fn shown(parts: &[SessionReports]) -> Vec<(NodeId, Vec<&str>, Option<u64>)> {
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
    reports
        .put(FIRST, 1, at_once(vec![report(1, "a")]), &first)
        .await;
    reports
        .put(SECOND, 1, at_once(vec![report(2, "b")]), &second)
        .await;
    reports
        .put(FIRST, 2, at_once(vec![report(1, "c")]), &first)
        .await;

    let parts = reports.take(&mut NodeId([0; 16]), Instant::now());

    assert_eq!(
        shown(&parts),
        [(FIRST, vec!["c"], Some(2)), (SECOND, vec!["b"], Some(1))]
    );
    assert!(
        reports
            .take(&mut NodeId([0; 16]), Instant::now())
            .is_empty()
    );
}

#[tokio::test]
async fn entries_are_bounded_and_in_turn() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let (second, _second) = outbox();
    let many = u32::try_from(limits::REPORTS_PER_ENTRY_MAX).unwrap() + 1;
    let all = (0..many).map(|name| report(name, "a")).collect();
    reports.put(FIRST, 1, at_once(all), &first).await;
    reports
        .put(SECOND, 1, at_once(vec![report(0, "b")]), &second)
        .await;
    let mut after = NodeId([0; 16]);

    let one = reports.take(&mut after, Instant::now());
    let two = reports.take(&mut after, Instant::now());

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
    reports.put(FIRST, 1, at_once(all), &first).await;
    let mut after = NodeId([0; 16]);

    let counts: Vec<usize> = (0..3)
        .map(|_| {
            reports
                .take(&mut after, Instant::now())
                .iter()
                .map(|part| part.reports.len())
                .sum()
        })
        .collect();

    assert_eq!(counts, [1, 1, 1]);
}

/// The agent repeats the report to the next server. A copy here could be older than the one written there.
#[tokio::test]
async fn a_session_that_ended_writes_nothing() {
    let reports = Reports::default();
    let (first, inbox) = outbox();
    reports
        .put(FIRST, 1, at_once(vec![report(1, "a")]), &first)
        .await;

    drop(inbox);

    assert!(
        reports
            .take(&mut NodeId([0; 16]), Instant::now())
            .is_empty()
    );
}

#[tokio::test]
async fn new_session_reports_replace_old_session_reports() {
    let reports = Reports::default();
    let (old, _old) = outbox();
    let (new, _new) = outbox();
    reports
        .put(FIRST, 7, at_once(vec![report(1, "old")]), &old)
        .await;

    reports
        .put(FIRST, 1, at_once(vec![report(2, "new")]), &new)
        .await;

    let parts = reports.take(&mut NodeId([0; 16]), Instant::now());
    assert_eq!(shown(&parts), [(FIRST, vec!["new"], Some(1))]);
}

#[tokio::test]
async fn an_agent_with_too_much_under_way_waits() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let many = u32::try_from(limits::REPORTS_PER_SESSION_MAX).unwrap();
    let all = (0..many).map(|name| report(name, "a")).collect();
    reports.put(FIRST, 1, at_once(all), &first).await;
    let more = reports.put(FIRST, 2, at_once(vec![report(0, "b")]), &first);
    tokio::pin!(more);
    assert!(futures::poll!(&mut more).is_pending());

    reports.take(&mut NodeId([0; 16]), Instant::now());

    more.await;
}

/// An agent that started again reports all its allocations. Reports of ended allocations are left out.
#[test]
fn reports_of_ended_allocs_are_left_out() {
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

    let queued = relevant_reports(
        &cluster.state,
        vec![about(ended.id, "ended"), about(runs.id, "runs"), unknown],
    );

    let words: Vec<&str> = queued
        .iter()
        .map(|queued| queued.report.client_description.as_str())
        .collect();
    assert_eq!(words, ["runs", "unknown"]);
}

#[tokio::test]
async fn message_without_reports_is_acknowledged() {
    let reports = Reports::default();
    let (first, _first) = outbox();

    reports.put(FIRST, 3, at_once(Vec::new()), &first).await;

    let parts = reports.take(&mut NodeId([0; 16]), Instant::now());
    assert_eq!(shown(&parts), [(FIRST, vec![], Some(3))]);
}

/// The first report waits until an urgent report follows; a report that waits longer becomes due by itself.
#[tokio::test(start_paused = true)]
async fn progress_report_waits_for_terminal_or_deadline() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let mut after = NodeId([0; 16]);
    let now = Instant::now();
    let progress = queued_reports(vec![report(1, "runs"), report(2, "runs")], true);
    reports.put(FIRST, 4, progress, &first).await;
    assert!(reports.take(&mut after, now).is_empty());
    assert_eq!(reports.next_due(), Some(now + limits::PROGRESS_WAIT));

    reports
        .put(FIRST, 5, at_once(vec![report(1, "ended")]), &first)
        .await;

    let parts = reports.take(&mut after, now);
    // The progress report of the second allocation, from message 4, is not written yet.
    assert_eq!(shown(&parts), [(FIRST, vec!["ended"], Some(3))]);
    let later = now + limits::PROGRESS_WAIT;
    assert_eq!(
        shown(&reports.take(&mut after, later)),
        [(FIRST, vec!["runs"], Some(5))]
    );
    assert_eq!(reports.next_due(), None);
}

#[tokio::test(start_paused = true)]
async fn continuous_progress_reports_are_flushed_at_deadline() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let begun = Instant::now();
    for sequence in 1..4 {
        let progress = queued_reports(vec![report(1, "prepares")], true);
        reports.put(FIRST, sequence, progress, &first).await;
        tokio::time::advance(limits::PROGRESS_WAIT / 4).await;
    }

    assert_eq!(reports.next_due(), Some(begun + limits::PROGRESS_WAIT));
}

/// Only reports that a one-off task prepares or runs can wait. Reports of returned tasks, ended tasks and
/// other jobs cannot.
#[test]
fn only_progress_of_one_off_tasks_can_wait() {
    let mut cluster = Cluster::new();
    let node_id = cluster.node(node("n1").build());
    cluster.run(job("web").build());
    let web = cluster.live("web")[0].id;
    let at = cluster.now;
    let tasks = vec![muster_control_core::fsm::NewOneOff {
        guid: "task".to_owned(),
        domain: "apps".to_owned(),
        definition: muster_domain::fixture::definition(),
    }];
    cluster.apply(Entry::desire_one_offs(tasks, at));
    cluster.settle();
    let task = cluster
        .state
        .one_offs()
        .get("task")
        .unwrap()
        .alloc_id
        .unwrap();
    let can_wait = |cluster: &Cluster, alloc_id, client_status| {
        let report = AllocReport {
            alloc_id,
            client_status,
            ..report(0, "")
        };
        relevant_reports(&cluster.state, vec![report])[0].can_wait
    };
    assert!(can_wait(&cluster, task, ClientStatus::Pending));
    assert!(can_wait(&cluster, task, ClientStatus::Running));
    assert!(!can_wait(&cluster, task, ClientStatus::Complete));
    assert!(!can_wait(&cluster, web, ClientStatus::Running));

    cluster.node_status(node_id, muster_domain::node::NodeStatus::Down);
    cluster.settle();

    assert!(!can_wait(&cluster, task, ClientStatus::Running));
}

fn destroyed(began_at: u64, count: u64) -> NodeCollected {
    NodeCollected {
        began_at: Timestamp(began_at),
        rounds: 1,
        destroyed: BTreeMap::from([(GcReason::Disk, count)]),
        ..NodeCollected::default()
    }
}

/// Returns node, destroyed allocations and acknowledged message of each part with a collection.
fn shown_collections(parts: &[SessionReports]) -> Vec<(NodeId, u64, Option<u64>)> {
    let parts = parts.iter().filter_map(|part| {
        let collected = part.collected.as_ref()?;
        Some((
            part.node_id,
            collected.destroyed[&GcReason::Disk],
            part.sequence,
        ))
    });
    parts.collect()
}

/// The second collection is not due when the first is. A report of an allocation does not trigger their writing.
#[tokio::test(start_paused = true)]
async fn collections_of_all_nodes_share_an_entry() {
    let reports = Reports::default();
    let (first, _first) = outbox();
    let (second, _second) = outbox();
    let begun = Instant::now();
    reports.put_collected(FIRST, 1, destroyed(1, 2), &first);
    tokio::time::advance(limits::PROGRESS_WAIT / 2).await;
    reports.put_collected(SECOND, 7, destroyed(2, 3), &second);
    reports
        .put(FIRST, 2, at_once(vec![report(1, "a")]), &first)
        .await;
    let mut after = NodeId([0; 16]);

    let early = reports.take(&mut after, Instant::now());
    let due = reports.next_due();
    let late = reports.take(&mut after, begun + limits::PROGRESS_WAIT);

    assert_eq!(shown(&early), [(FIRST, vec!["a"], None)]);
    assert_eq!(shown_collections(&early), []);
    assert_eq!(due, Some(begun + limits::PROGRESS_WAIT));
    assert_eq!(
        shown_collections(&late),
        [(SECOND, 3, Some(7)), (FIRST, 2, Some(2))]
    );
    assert!(reports.lock().is_empty());
}

/// Collections of one session that arrive before the first is written are added up. Reports of an earlier session
/// are dropped, because the agent repeats them.
#[tokio::test(start_paused = true)]
async fn node_collections_are_summed_per_session() {
    let reports = Reports::default();
    let (old, _old) = outbox();
    let (new, _new) = outbox();
    reports.put_collected(FIRST, 9, destroyed(1, 100), &old);
    reports.put_collected(FIRST, 1, destroyed(1, 2), &new);
    reports.put_collected(FIRST, 2, destroyed(2, 3), &new);

    let later = Instant::now() + limits::PROGRESS_WAIT;
    let parts = reports.take(&mut NodeId([0; 16]), later);

    assert_eq!(shown_collections(&parts), [(FIRST, 5, Some(2))]);
}
