//! Names; what the kernel has to say is asked in `agent/tests/vm/nat.rs`.

use super::*;

#[test]
fn doors_of_two_nodes_have_different_names() {
    let nodes = [1_u8, 2].map(|byte| NodeNetwork::new(NodeId([byte; 16]), DEFAULT_SUBNET));
    let alloc_id = AllocId::at(muster_domain::id::LogIndex(7), 0);

    let [first, second] = nodes.each_ref().map(|node| node.door(alloc_id));

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
