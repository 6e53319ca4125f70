//! Describes where an address lies, for reports of invalid accesses.

use hiroba_base::NodeId;

use crate::arena::{Counted, Known};

/// A block further away than this is considered unrelated to the address.
const NEAR_BYTES: u64 = 64 << 10;

/// Describes `address` relative to the known blocks around it, which belong to `node`. Returns `None` when no
/// block is near.
pub(super) fn describe(address: u64, known: &[Known], node: NodeId) -> Option<String> {
    let block = known.iter().min_by_key(|block| rank(address, block))?;
    let (_, distance) = rank(address, block);
    if distance > NEAR_BYTES && !holds(address, block) {
        return None;
    }
    let place = if address < block.start {
        format!("{} before", Counted(distance))
    } else if holds(address, block) {
        format!("{} into", Counted(address - block.start))
    } else {
        format!("{} past the end of", Counted(distance))
    };
    let fate = block.freed_by.map(|by| format!(", which node {by} has freed")).unwrap_or_default();
    Some(format!("{place} a block of {} from hiroba_malloc on node {node}{fate}", Counted(block.bytes)))
}

fn holds(address: u64, block: &Known) -> bool {
    (block.start..block.start.saturating_add(block.bytes)).contains(&address)
}

/// Ranks how likely a block was meant; smaller is likelier. A block that contains the address comes first, if
/// need be a freed one, then the nearest live one.
fn rank(address: u64, block: &Known) -> (u8, u64) {
    let distance = block
        .start
        .saturating_sub(address)
        .max(address.saturating_sub(block.start.saturating_add(block.bytes)));
    let likelihood = match (holds(address, block), block.freed_by) {
        (true, None) => 0,
        (true, Some(_)) => 1,
        (false, None) => 2,
        (false, Some(_)) => 3,
    };
    (likelihood, distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn block(start: u64, bytes: u64, freed_by: Option<u16>) -> Known {
        Known { start, bytes, freed_by: freed_by.map(NodeId) }
    }

    #[test]
    fn the_nearest_block_is_named_in_words() {
        let known = [block(1000, 100, None), block(1200, 8, None)];
        let say = |address| describe(address, &known, NODE).unwrap();
        assert_eq!(say(1124), "24 bytes past the end of a block of 100 bytes from hiroba_malloc on node 1");
        assert_eq!(say(1199), "1 byte before a block of 8 bytes from hiroba_malloc on node 1");
        assert_eq!(say(1000), "0 bytes into a block of 100 bytes from hiroba_malloc on node 1");
        assert_eq!(describe(1_000_000, &known, NODE), None);
        assert_eq!(describe(1000, &[], NODE), None);
    }

    #[test]
    fn a_freed_block_is_named_when_it_held_the_address() {
        let known = [block(1000, 100, None), block(1100, 100, Some(3))];
        let said = describe(1110, &known, NODE).unwrap();
        assert_eq!(
            said,
            "10 bytes into a block of 100 bytes from hiroba_malloc on node 1, which node 3 has freed"
        );
    }
}
