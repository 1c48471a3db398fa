use muster_domain::fixture::{job, node};

use super::*;
use crate::fixture::Cluster;

/// Returns the pages that a scheduler with the pages of its last look must read again.
fn changed_pages(before: &Nodes, after: &Nodes) -> Vec<usize> {
    let pairs = before.pages().zip(after.pages()).enumerate();
    pairs
        .filter(|(_, (before, after))| !Arc::ptr_eq(before, after))
        .map(|(at, _)| at)
        .collect()
}

fn node_id(number: usize) -> NodeId {
    NodeId::at(LogIndex(1), u32::try_from(number).unwrap())
}

fn fleet(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    for number in 0..nodes {
        let mut spec = node(&format!("n{number}")).build();
        spec.id = node_id(number);
        cluster.node(spec);
    }
    cluster
}

#[test]
fn placement_changes_only_page_of_its_node() {
    let mut cluster = fleet(3 * PAGE_COLUMNS);
    let before = cluster.state.nodes().clone();
    let name = format!("n{}", PAGE_COLUMNS + 6);
    let there = job("web").constraint("${node.unique.name}", "=", &name);

    cluster.run(there.build());

    let after = cluster.state.nodes();
    assert_eq!(changed_pages(&before, after), [1]);
    assert_eq!(after.pages().len(), 3);
    let columns: Vec<&Column> = after.pages().flat_map(|page| page.iter()).collect();
    assert!(columns.into_iter().eq(after.columns()));
}

#[test]
fn the_last_page_goes_with_its_last_node() {
    let len = PAGE_COLUMNS + 6;
    let cluster = fleet(len);
    let mut nodes = cluster.state.nodes().clone();
    let last = (**nodes.get(&node_id(len - 1)).unwrap()).clone();

    for number in PAGE_COLUMNS - 4..len {
        nodes.remove(&node_id(number), false, LogIndex(200));
    }

    let left = (nodes.pages().len(), nodes.columns().count());
    assert_eq!(left, (1, PAGE_COLUMNS - 4));
    nodes.put(last);
    let number = nodes.number(&node_id(len - 1)).unwrap();
    assert_eq!(number.at(), PAGE_COLUMNS - 4);
}

#[test]
fn changed_since_detects_added_and_removed_nodes() {
    let cluster = fleet(70);
    let mut nodes = cluster.state.nodes().clone();
    let before = nodes.shared_columns();
    let with = |number: usize, nodes: &Nodes| {
        let mut node = (**nodes.get(&node_id(number)).unwrap()).clone();
        node.eligibility = muster_domain::node::Eligibility::Ineligible;
        node
    };

    nodes.put(with(3, &nodes));
    nodes.put(with(69, &nodes));
    let mut another = with(69, &nodes);
    let spec = Arc::make_mut(&mut another.spec);
    spec.id = node_id(70);
    nodes.put(another);
    let after = nodes.shared_columns();

    assert_eq!(after.changed_since(&before), [3, 69, 70]);
    assert_eq!(before.changed_since(&after), [3, 69, 70], "and back");
    assert!(after.changed_since(&after).is_empty());
    nodes.remove(&node_id(70), false, LogIndex(200));
    assert_eq!(nodes.shared_columns().changed_since(&after), [70]);
}

#[test]
fn plan_changes_do_not_alter_shared_state() {
    let cluster = fleet(3 * PAGE_COLUMNS);
    let before = cluster.state.nodes().shared_columns();
    let mut planned = before.clone();
    let last = 3 * PAGE_COLUMNS - 1;

    for number in [last, 1] {
        planned.get_mut(number).unwrap().used.cpu_mhz += 1;
    }
    let mut more = planned.clone();
    more.get_mut(PAGE_COLUMNS).unwrap().used.cpu_mhz += 1;

    assert_eq!(planned.changed_since(&before), [1, last]);
    assert_eq!(before.changed_since(&planned), [1, last], "and back");
    assert_eq!(more.changed_since(&planned), [PAGE_COLUMNS]);
    assert!(planned.clone().changed_since(&planned).is_empty());
    let written: Vec<&Column> = (0..=last).map(|at| planned.get(at).unwrap()).collect();
    assert!(written.into_iter().eq(planned.iter()));
    let state = cluster.state.nodes().shared_columns();
    assert!(state.changed_since(&before).is_empty());
    assert!(planned.get_mut(last + 1).is_none());
}

#[test]
fn plan_tracks_changes_across_many_pages() {
    let pages = 11;
    let cluster = fleet(pages * PAGE_COLUMNS);
    let before = cluster.state.nodes().shared_columns();
    let mut planned = before.clone();
    let mut wrote = Vec::new();

    for page in (0..pages).rev() {
        let number = page * PAGE_COLUMNS + page;
        planned.get_mut(number).unwrap().used.cpu_mhz += 1;
        wrote.insert(0, number);

        assert_eq!(planned.changed_since(&before), wrote);
        for number in &wrote {
            let used = |columns: &Columns| columns.get(*number).unwrap().used.cpu_mhz;
            assert_eq!(used(&planned), used(&before) + 1);
        }
    }
    let written: Vec<&Column> = (0..pages * PAGE_COLUMNS)
        .map(|at| planned.get(at).unwrap())
        .collect();
    assert!(written.into_iter().eq(planned.iter()));
}
