//! Tests of names. `agent/tests/vm/nat.rs` has tests with the kernel.

use std::fs::File;

use super::*;
use crate::network::alloc_network::{AllocNetwork, HostVeth};
use crate::network::bridge::error::BridgeError;
use crate::network::bridge::node_network::NodeNetwork;
use crate::network::names::inside_port;

#[test]
fn host_veths_of_two_nodes_have_different_names() {
    let nodes = [1_u8, 2].map(|byte| NodeNetwork::new(NodeId([byte; 16]), DEFAULT_SUBNET));
    let alloc_id = AllocId::at(muster_domain::id::LogIndex(7), 0);

    let [first, second] = nodes.each_ref().map(|node| node.host_veth(alloc_id));

    assert_ne!(first, second);
    assert_eq!(
        first.len(),
        15,
        "{first}: as long as a device's name may be"
    );
    assert_ne!(nodes[0].handle, nodes[1].handle);
    assert_ne!(nodes[0].table, nodes[1].table);
}

#[test]
fn a_port_without_another_inside_is_the_same() {
    assert_eq!(inside_port(8080, 0), 8080);
    assert_eq!(inside_port(8080, 80), 80);
}

/// Answers requests to remove networks, and returns the names of their host veths.
async fn removed(
    requests: &mut mpsc::Receiver<NetnsRequest>,
    answers: Vec<io::Result<()>>,
) -> Vec<u32> {
    let mut host_veths = Vec::new();
    for answer in answers {
        let Some(NetnsRequest::Remove {
            host_veth, done, ..
        }) = requests.recv().await
        else {
            panic!("something else is asked for");
        };
        done.send(answer).unwrap();
        host_veths.push(host_veth);
    }
    host_veths
}

/// The removal is called once after the end of the tasks, and again before the allocation is destroyed. Then no
/// network is left.
#[tokio::test]
async fn busy_network_is_removed_on_next_call() {
    let alloc_id = AllocId::at(muster_domain::id::LogIndex(7), 0);
    let (sender, mut requests) = mpsc::channel(1);
    let bridge = Bridge {
        node: NodeNetwork::new(NodeId([1; 16]), DEFAULT_SUBNET),
        requests: Ok(sender),
        networks: Mutex::default(),
        unremoved: Mutex::default(),
        used: AtomicBool::new(false),
    };
    let network = AllocNetwork {
        address: Ipv4Addr::new(172, 26, 64, 2).into(),
        files: Vec::new(),
        host_veth: Some(HostVeth {
            index: 9,
            address: Ipv4Addr::new(172, 26, 64, 2),
            ports: Vec::new(),
        }),
        namespace: File::open("/dev/null").unwrap().into(),
        host_name: "web".to_owned(),
        made_by_driver: None,
    };
    let cell = OnceCell::new_with(Some(Arc::new(network)));
    bridge.locked().insert(alloc_id, Arc::new(cell));

    let busy = vec![Err(io::ErrorKind::ResourceBusy.into())];
    let (ended, first) = tokio::join!(bridge.remove(None, alloc_id), removed(&mut requests, busy));
    let (destroyed, second) = tokio::join!(
        bridge.remove(None, alloc_id),
        removed(&mut requests, vec![Ok(())])
    );

    assert!(
        matches!(ended, Err(BridgeError::Remove { .. })),
        "{ended:?}"
    );
    assert!(destroyed.is_ok(), "{destroyed:?}");
    assert_eq!((first, second), (vec![9], vec![9]));
    assert!(bridge.remove(None, alloc_id).await.is_ok());
    assert!(requests.try_recv().is_err());
}
