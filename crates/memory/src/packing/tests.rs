use hiroba_base::BLOCK_LINES;
use proptest::prelude::*;

use super::*;

const KEPT: u8 = 0xa5;

/// Generates the bytes of a block that change.
fn changes() -> impl Strategy<Value = Vec<bool>> {
    let line = prop_oneof![
        4 => Just(vec![false; LINE_BYTES]),
        1 => Just(vec![true; LINE_BYTES]),
        2 => any::<u8>().prop_map(|words| (0..LINE_BYTES).map(|at| words >> (at / 8) & 1 == 1).collect()),
        2 => any::<u64>().prop_map(|bytes| (0..LINE_BYTES).map(|at| bytes >> at & 1 == 1).collect()),
        1 => (0..LINE_BYTES).prop_map(|byte| (0..LINE_BYTES).map(|at| at == byte).collect()),
    ];
    proptest::collection::vec(line, BLOCK_LINES).prop_map(|lines| lines.concat())
}

fn block(seed: u8) -> Box<TwinBlock> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    block.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 3) as u8 ^ seed);
    block
}

/// Returns the same block with other bytes where it changes.
fn changed_block(before: &TwinBlock, changes: &[bool]) -> Box<TwinBlock> {
    let mut after = Box::new(*before);
    after.iter_mut().zip(changes).filter(|(_, changes)| **changes).for_each(|(byte, _)| *byte ^= KEPT);
    after
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn all_variants_move_the_bytes_that_differ_and_no_others(changes in changes(), seed in any::<u8>()) {
        let before = block(seed);
        let after = changed_block(&before, &changes);
        let bytes: Vec<u8> =
            after.iter().zip(&changes).filter(|(_, changes)| **changes).map(|(byte, _)| *byte).collect();
        for variant in Variant::available() {
            let (mut changed, mut packed) = (ChangedBytes::ALL, Box::new(Packed::new()));
            for settle in [false, true] {
                let mut twin = before.clone();
                // SAFETY: a block that no other thread writes, and a variant that this processor has.
                let count = unsafe {
                    variant.pack(after.as_ptr(), &mut twin, settle, u64::MAX, &mut changed, &mut packed)
                };
                prop_assert_eq!(packed.bytes(count), &bytes[..], "{:?}", variant);
                prop_assert!(twin == if settle { after.clone() } else { before.clone() }, "{:?}", variant);
                let mut named = vec![false; BLOCK_BYTES];
                changed.runs().for_each(|run| named[run].fill(true));
                prop_assert_eq!(&named, &changes, "{:?}", variant);
            }
            // The frame differs where it does not change, as if another thread had stored there.
            let mut frame = Box::new([KEPT; BLOCK_BYTES]);
            let mut twin = before.clone();
            let blocks = BlockChanges { block: 0, changed: &changed, bytes: &bytes };
            // SAFETY: a block of this thread only, and a variant that this processor has.
            unsafe { variant.spread(blocks, frame.as_mut_ptr(), Some(&mut twin)) };
            let expected = |at: usize| if changes[at] { after[at] } else { KEPT };
            prop_assert!(frame.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{:?}", variant);
            prop_assert!(twin == after, "{:?}", variant);
            let mut frame = Box::new([KEPT; BLOCK_BYTES]);
            // SAFETY: as above.
            unsafe { variant.spread(blocks, frame.as_mut_ptr(), None) };
            prop_assert!(frame.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{:?}", variant);
            let (mut frame, mut twin) = (Box::new([KEPT; BLOCK_BYTES]), before.clone());
            // SAFETY: as above.
            unsafe { variant.merge(&after, &mut twin, u64::MAX, frame.as_mut_ptr()) };
            prop_assert!(frame.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{:?}", variant);
            prop_assert!(twin == after, "{:?}", variant);
        }
    }
}

/// Nothing behind the bytes of a diff is read, and nothing around the block is written.
#[test]
fn the_edges_of_memory_are_respected() {
    let protected = |bytes: usize| {
        let mapping = crate::mapping::Mapping::of_zeros(bytes + BLOCK_BYTES).unwrap();
        mapping.protect(bytes, BLOCK_BYTES, rustix::mm::MprotectFlags::empty()).unwrap();
        mapping
    };
    let frames = protected(BLOCK_BYTES);
    let source = protected(BLOCK_BYTES);
    for variant in Variant::available() {
        for count in (1..=200).chain([BLOCK_BYTES - 1, BLOCK_BYTES]) {
            let mut changed = ChangedBytes::NONE;
            changed.insert(BLOCK_BYTES - count..BLOCK_BYTES);
            let bytes = source.start().wrapping_add(BLOCK_BYTES - count);
            // SAFETY: the bytes before the protected page, which no other thread writes.
            let bytes = unsafe { core::slice::from_raw_parts(bytes, count) };
            let changes = BlockChanges { block: 0, changed: &changed, bytes };
            // SAFETY: the block before the protected page, and a variant that this processor has.
            unsafe { variant.spread(changes, frames.start(), None) };
        }
    }
}

/// Threads that write other bytes of the same words at the same time lose no write.
#[test]
fn bytes_that_others_write_meanwhile_are_left_alone() {
    const ROUNDS: u8 = 200;
    for variant in Variant::available() {
        for period in [2, 3, 8, 16] {
            let frame = crate::mapping::Mapping::of_zeros(BLOCK_BYTES).unwrap();
            let start = frame.start() as usize;
            let mut changed = ChangedBytes::NONE;
            (0..BLOCK_BYTES).filter(|at| at % period < period / 2).for_each(|at| changed.insert(at..at + 1));
            std::thread::scope(|scope| {
                let other = scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for at in (0..BLOCK_BYTES).filter(|at| at % period >= period / 2) {
                            let place = (start as *mut u8).wrapping_add(at);
                            // SAFETY: a byte of the mapping that the other thread does not write.
                            let before = unsafe { place.read_volatile() };
                            assert_eq!(before, round - 1, "{variant:?}: a store was undone");
                            // SAFETY: as above.
                            unsafe { place.write_volatile(round) };
                        }
                    }
                });
                let mut round = 0u8;
                while !other.is_finished() {
                    round = round.wrapping_add(1);
                    let bytes = vec![round; changed.count()];
                    let changes = BlockChanges { block: 0, changed: &changed, bytes: &bytes };
                    // SAFETY: a mapped block, of which the other thread writes other bytes; the processor has
                    // the variant.
                    unsafe { variant.spread(changes, start as *mut u8, None) };
                }
            });
        }
    }
}
