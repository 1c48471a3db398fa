use muster_domain::fixture::node;
use muster_domain::id::{LogIndex, NodeId};

use super::*;
use crate::fixture::Cluster;

/// Returns nodes of two sizes, with more than two blocks of each size.
fn columns() -> Columns {
    let mut cluster = Cluster::new();
    cluster.unchecked = true;
    for number in 0..300 {
        let mut spec = node(&format!("n{number}"))
            .cpu_mhz([4_000, 8_000][number as usize % 2])
            .build();
        spec.id = NodeId::at(LogIndex(1), number);
        cluster.node(spec);
    }
    cluster.state.nodes().shared_columns()
}

/// Checks the data of a kind against its nodes.
fn check(kinds: &NodeShapes, columns: &Columns) {
    let mut seen = 0;
    for kind in kinds.all() {
        let mut whole = BlockBounds::EMPTY;
        for (block, bounds) in kind.blocks.iter().zip(&kind.block_bounds) {
            assert_eq!(*bounds, block.open_bounds());
            whole.add(bounds);
        }
        assert_eq!(kind.whole, whole);
        assert_eq!(kind.block_bounds.len(), kind.blocks.len());
        seen += kind.len;
    }
    assert_eq!(seen, columns.len());
    for (number, column) in columns.iter().enumerate() {
        let ShapePosition { kind, at } = kinds.positions[number];
        let (kind, at) = (&kinds.kinds[kind as usize], at as usize);
        let mut alone = Block::EMPTY;
        alone.write(0, u32::try_from(number).unwrap(), column);
        assert_eq!(kind.blocks[at / BLOCK].row(at % BLOCK), alone.row(0));
    }
}

#[test]
fn node_shapes_follow_column_changes() {
    let mut columns = columns();
    let mut kinds = NodeShapes::default();
    kinds.follow(&columns);
    check(&kinds, &columns);
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for _ in 0..400 {
        // Mostly one node changes at a time: it gets fuller or emptier, or takes no work for a while.
        let changes = if next(10) == 0 { next(40) } else { 1 };
        for _ in 0..changes {
            let number = usize::try_from(next(300)).unwrap();
            let column = columns.get_mut(number).unwrap();
            match next(8) {
                0 => column.takes_work = !column.takes_work,
                1 => column.used = Amount::default(),
                2 => column.used.cpu_mhz = 9_000,
                _ => {
                    column.used.cpu_mhz += next(600);
                    column.used.memory_mb += next(300);
                }
            }
        }
        kinds.follow(&columns);
        check(&kinds, &columns);
        // A plan writes to nodes, and its writes are undone.
        let number = usize::try_from(next(300)).unwrap();
        let mut planned = *columns.get(number).unwrap();
        planned.used.memory_mb += 7;
        kinds.set(number, &planned);
        kinds.close(usize::try_from(next(300)).unwrap());
        kinds.restore();
        check(&kinds, &columns);
    }
}

#[test]
fn nodes_that_get_fuller_come_to_lie_together() {
    let mut columns = columns();
    let mut kinds = NodeShapes::default();
    kinds.follow(&columns);
    // Three nodes of each size, far from each other, get fuller again and again.
    let busy = [1, 2, 149, 150, 298, 299];
    for round in 0..200 {
        let column = columns.get_mut(busy[round % busy.len()]).unwrap();
        column.used.memory_mb += 1;
        kinds.follow(&columns);
    }
    for at in 0..2 {
        let kind = &kinds.kinds[at];
        let in_first = busy.iter().filter(|number| {
            let position = kinds.positions[**number];
            position.kind as usize == at && (position.at as usize) < BLOCK
        });
        assert_eq!(in_first.count(), 3, "in a kind of {}", kind.len);
    }
}
