//! The allocator as a whole: its guarantees under random use, its error messages, and many threads at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hiroba_base::NodeId;
use proptest::prelude::*;

use super::Heap;
use super::classes::{SMALL_BYTES_MAX, SPAN_BYTES};
use super::pool::Pool;
use crate::arena::{GRAIN_BYTES, NotABlock};

const ME: NodeId = NodeId(1);
const START: u64 = 0x4800_0000_0000;

fn pool(bytes: u64, page_bytes: u64) -> Pool {
    Pool::new(ME, START..START + bytes, page_bytes)
}

fn heap(bytes: u64) -> Heap {
    Heap { pool: pool(bytes, 4096), long: None }
}

fn all_free(pool: &Pool, bytes: u64) -> bool {
    pool.free_ranges() == [(START, START + bytes)]
}

#[test]
fn blocks_of_a_page_or_more_have_pages_of_their_own() {
    for page_bytes in [4096, 64 << 10, 2 << 20] {
        let pool = pool(1 << 30, page_bytes);
        let mut cache = pool.new_cache();
        for bytes in [page_bytes, page_bytes + 1, 3 * page_bytes] {
            let block = pool.allocate(Some(&mut cache), bytes, 16).unwrap();
            assert!(block.address.is_multiple_of(page_bytes));
            assert!(pool.length_of(block.address).unwrap().is_multiple_of(page_bytes));
        }
    }
}

#[test]
fn pages_that_are_shared_with_a_neighbour_stay_unused() {
    let page_bytes = 2 << 20;
    let addresses = START + 4096..START + 3 * page_bytes - 4096;
    let pool = Pool::new(ME, addresses, page_bytes);
    assert_eq!(pool.free_ranges(), [(START + page_bytes, START + 2 * page_bytes)]);
    let nothing = Pool::new(ME, START + 4096..START + page_bytes, page_bytes);
    assert_eq!(nothing.allocate(None, 1, 1), None);
}

#[test]
fn small_blocks_of_two_threads_lie_on_different_lines() {
    let pool = pool(1 << 24, 4096);
    let (mut mine, mut theirs) = (pool.new_cache(), pool.new_cache());
    let mut lines = [Vec::new(), Vec::new()];
    for _ in 0..1000 {
        for (cache, lines) in [&mut mine, &mut theirs].into_iter().zip(&mut lines) {
            lines.push(pool.allocate(Some(cache), 24, 16).unwrap().address / 64);
        }
    }
    assert!(lines[0].iter().all(|line| !lines[1].contains(line)));
}

#[test]
fn a_thread_gets_neighbouring_blocks_in_order() {
    let pool = pool(1 << 24, 4096);
    let mut cache = pool.new_cache();
    let addresses: Vec<u64> =
        (0..500).map(|_| pool.allocate(Some(&mut cache), 48, 16).unwrap().address).collect();
    assert!(addresses.is_sorted());
}

#[test]
fn a_double_free_is_told_wherever_the_block_is() {
    let pool = pool(1 << 24, 4096);
    for bytes in [0, 1, 48, 5000, 50_000, 100_000] {
        let mut cache = pool.new_cache();
        let address = pool.allocate(Some(&mut cache), bytes, 16).unwrap().address;
        pool.free(Some(&mut cache), address, ME).unwrap();
        let told = Err(NotABlock::Freed { address, bytes, by: ME });
        assert!(!pool.free_cached(&mut cache, address));
        assert_eq!(pool.free(Some(&mut cache), address, ME), told, "in the cache");
        assert_eq!(pool.free(None, address, NodeId(2)), told, "by another node");
        assert_eq!(pool.length_of(address).map(|_| ()), told);
        assert_eq!(pool.resize(address, bytes).map(|_| ()), told);
        pool.finish(&mut cache);
        assert_eq!(pool.free(Some(&mut cache), address, ME), told, "in the pool, or back in the arena");
    }
    let address = pool.allocate(None, 48, 16).unwrap().address;
    pool.free(None, address, NodeId(3)).unwrap();
    let sentence = pool.free(None, address, ME).unwrap_err().to_string();
    assert_eq!(sentence, format!("block of 48 bytes at 0x{address:x} was already freed on node 3"));
    assert!(all_free(&pool, 1 << 24));
}

#[test]
fn what_is_no_block_is_not_freed() {
    let pool = pool(1 << 24, 4096);
    let mut cache = pool.new_cache();
    let small = pool.allocate(Some(&mut cache), 100, 16).unwrap().address;
    let large = pool.allocate(Some(&mut cache), 100_000, 16).unwrap().address;
    for (start, bytes, offset) in [(small, 100, 16), (small, 100, 1), (large, 100_000, 4096)] {
        let address = start + offset;
        let inside = Err(NotABlock::Inside { address, start, offset, bytes });
        assert_eq!(pool.free(Some(&mut cache), address, ME), inside);
        assert!(!pool.free_cached(&mut cache, address));
    }
    let never_given_out = small + 10 * 112;
    for address in [never_given_out, never_given_out + 1, START - 16, START + (1 << 24), 0, u64::MAX] {
        assert_eq!(pool.free(Some(&mut cache), address, ME), Err(NotABlock::Unknown { address }));
        assert!(!pool.free_cached(&mut cache, address));
    }
    pool.free(Some(&mut cache), small, ME).unwrap();
    pool.free(Some(&mut cache), large, ME).unwrap();
    pool.finish(&mut cache);
    assert!(all_free(&pool, 1 << 24));
}

#[test]
fn addresses_are_told_by_the_nearest_block() {
    let pool = pool(1 << 24, 4096);
    let mut cache = pool.new_cache();
    let small = pool.allocate(Some(&mut cache), 100, 16).unwrap().address;
    let large = pool.allocate(Some(&mut cache), 70_000, 16).unwrap().address;
    let tell = |address| pool.describe(address).unwrap_or_default();
    let on_node = "from hiroba_malloc on node 1";
    assert_eq!(tell(small + 124), format!("24 bytes past the end of a block of 100 bytes {on_node}"));
    assert_eq!(tell(small + 99), format!("99 bytes into a block of 100 bytes {on_node}"));
    assert_eq!(tell(large + 70_001), format!("1 byte past the end of a block of 70000 bytes {on_node}"));
    assert_eq!(tell(large + 4096), format!("4096 bytes into a block of 70000 bytes {on_node}"));
    assert!(pool.resize(small, 110).unwrap());
    assert_eq!(tell(small + 110), format!("0 bytes past the end of a block of 110 bytes {on_node}"));
    pool.free(Some(&mut cache), small, ME).unwrap();
    pool.free(None, large, NodeId(2)).unwrap();
    assert_eq!(
        tell(small + 5),
        format!("5 bytes into a block of 110 bytes {on_node}, which node 1 has freed")
    );
    assert_eq!(tell(large), format!("0 bytes into a block of 70000 bytes {on_node}, which node 2 has freed"));
    assert_eq!(pool.describe(START + (1 << 23)), None);
    assert_eq!(pool.describe(0), None);
    assert_eq!(pool.describe(u64::MAX), None);
}

#[test]
fn a_block_at_a_spans_edge_is_told_from_the_next_span() {
    let pool = pool(1 << 24, 4096);
    let blocks: Vec<u64> =
        (0..SPAN_BYTES / 64).map(|_| pool.allocate(None, 64, 16).unwrap().address).collect();
    let edge = blocks.last().unwrap() + 64;
    assert!(edge.is_multiple_of(SPAN_BYTES));
    let told = "8 bytes past the end of a block of 64 bytes from hiroba_malloc on node 1";
    assert_eq!(pool.describe(edge + 8).as_deref(), Some(told));
}

#[test]
fn a_block_is_resized_where_it_is_when_that_wastes_little() {
    let pool = pool(1 << 24, 4096);
    for bytes in [100, 100_000] {
        let address = pool.allocate(None, bytes, 16).unwrap().address;
        let length = pool.length_of(address).unwrap();
        assert_eq!(pool.resize(address, length), Ok(true));
        assert_eq!(pool.resize(address, length / 2), Ok(true));
        assert_eq!(pool.resize(address, length + 1), Ok(false));
        assert_eq!(pool.resize(address, length / 2 - 1), Ok(false));
        assert_eq!(pool.resize(address, u64::MAX), Ok(false));
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let pool = pool(1 << 24, 4096);
    let mut cache = pool.new_cache();
    for bytes in [u64::MAX, u64::MAX - 64, 1 << 63, (1 << 24) + 1] {
        assert_eq!(pool.allocate(Some(&mut cache), bytes, 16), None);
        assert_eq!(pool.allocate(None, bytes, 1 << 63), None);
    }
    assert_eq!(pool.allocate(Some(&mut cache), 1, 1 << 63), None);
    assert!(all_free(&pool, 1 << 24));
}

#[test]
fn all_memory_can_be_used_whatever_it_was_used_for_before() {
    let bytes = 4 * SPAN_BYTES;
    let pool = pool(bytes, 4096);
    let mut cache = pool.new_cache();
    for (size, usable) in
        [(16, 16), (100, 128), (4096, 4096), (8192, 8192), (SPAN_BYTES, SPAN_BYTES), (bytes, bytes)]
    {
        let blocks: Vec<u64> =
            std::iter::from_fn(|| pool.allocate(Some(&mut cache), size, 16).map(|block| block.address))
                .collect();
        assert!(blocks.len() as u64 + 4 >= bytes / usable, "{} blocks of {size}", blocks.len());
        for address in blocks {
            pool.free(Some(&mut cache), address, ME).unwrap();
        }
    }
    pool.finish(&mut cache);
    assert!(all_free(&pool, bytes));
}

#[test]
fn what_a_cache_holds_is_bounded() {
    let pool = pool(1 << 30, 4096);
    let mut cache = pool.new_cache();
    for size in [16, 1024, SMALL_BYTES_MAX] {
        let blocks: Vec<u64> = (0..10_000).map(|_| pool.allocate(None, size, 16).unwrap().address).collect();
        for address in blocks {
            pool.free(Some(&mut cache), address, ME).unwrap();
        }
    }
    let free: u64 = pool.free_ranges().iter().map(|(start, end)| end - start).sum();
    // Every block in a cache keeps at most one span from the arena.
    assert!((1 << 30) - free <= (256 + 64) * SPAN_BYTES + 4 * 8 * SPAN_BYTES);
    pool.finish(&mut cache);
    assert!(all_free(&pool, 1 << 30));
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate { bytes: u64, align: u32, cache: usize },
    Free { pick: prop::sample::Index, cache: usize },
    Finish { cache: usize },
}

/// The caches of two threads; a third variant uses no cache.
const CACHES: usize = 2;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let bytes = prop_oneof![4 => 0u64..300, 2 => 300u64..9000, 1 => 9000u64..100_000];
    let align = prop_oneof![4 => Just(0u32), 1 => 0u32..15];
    let allocate = (bytes, align, 0..=CACHES).prop_map(|(bytes, align, cache)| Operation::Allocate {
        bytes,
        align,
        cache,
    });
    let free =
        (any::<prop::sample::Index>(), 0..=CACHES).prop_map(|(pick, cache)| Operation::Free { pick, cache });
    let finish = (0..CACHES).prop_map(|cache| Operation::Finish { cache });
    proptest::collection::vec(prop_oneof![10 => allocate, 8 => free, 1 => finish], 1..400)
}

proptest! {
    #[test]
    fn blocks_never_overlap_and_zeroed_means_never_used(operations in operations(), large_pages in any::<bool>()) {
        let (bytes, page_bytes) = if large_pages { (1 << 21, 64 << 10) } else { (24 * SPAN_BYTES, 4096) };
        let pool = pool(bytes, page_bytes);
        let mut caches: Vec<_> = (0..CACHES).map(|_| pool.new_cache()).collect();
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut used = vec![false; bytes as usize];
        for operation in operations {
            match operation {
                Operation::Allocate { bytes: asked, align, cache } => {
                    let align = 1u64 << align;
                    let Some(block) = pool.allocate(caches.get_mut(cache), asked, align) else { continue };
                    let length = pool.length_of(block.address).unwrap();
                    prop_assert!(length >= asked.max(1) && block.address.is_multiple_of(align.max(GRAIN_BYTES)));
                    prop_assert!(asked < page_bytes || block.address.is_multiple_of(page_bytes));
                    prop_assert!(block.address >= START && block.address + length <= START + bytes);
                    prop_assert!(live.iter().all(|(other, size)| block.address + length <= *other || other + size <= block.address));
                    let range = (block.address - START) as usize..(block.address - START + length) as usize;
                    if block.zeroed {
                        prop_assert!(used[range.clone()].iter().all(|byte| !byte));
                    }
                    used[range].fill(true);
                    live.push((block.address, length));
                }
                Operation::Free { pick, cache } if !live.is_empty() => {
                    let (address, _) = live.swap_remove(pick.index(live.len()));
                    prop_assert_eq!(pool.free(caches.get_mut(cache), address, ME), Ok(()));
                    let again = pool.free(caches.get_mut(cache), address, ME);
                    let told = matches!(again, Err(NotABlock::Freed { .. }));
                    prop_assert!(told, "{:?}", again);
                }
                Operation::Free { .. } => {}
                Operation::Finish { cache } => pool.finish(&mut caches[cache]),
            }
        }
        for (address, _) in live {
            pool.free(None, address, NodeId(2)).unwrap();
        }
        for cache in &mut caches {
            pool.finish(cache);
        }
        prop_assert!(all_free(&pool, bytes), "{:?}", pool.free_ranges());
    }
}

/// A cheap generator of random numbers for the hammering threads.
fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 33
}

#[test]
fn threads_hammer_and_everything_comes_back() {
    const THREADS: u64 = 4;
    const BYTES: u64 = 1 << 28;
    let heap = heap(BYTES);
    // The owner of each grain: shows two live blocks that overlap.
    let owners: Vec<AtomicU64> = (0..BYTES / GRAIN_BYTES).map(|_| AtomicU64::new(0)).collect();
    let grains = |address: u64, bytes: u64| {
        let first = ((address - START) / GRAIN_BYTES) as usize;
        [first, first + ((bytes.max(1) - 1) / GRAIN_BYTES) as usize]
    };
    let exchange: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
    let release = |address: u64, bytes: u64, thread: u64| {
        for grain in grains(address, bytes) {
            owners[grain].store(0, Ordering::Relaxed);
        }
        if thread.is_multiple_of(2) || !heap.free_quickly(address) {
            heap.free(address, ME).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (heap, owners, exchange, release) = (&heap, &owners, &exchange, &release);
            scope.spawn(move || {
                let mut random = thread;
                let mut held: Vec<(u64, u64)> = Vec::new();
                for _ in 0..40_000 {
                    let bytes = match step(&mut random) % 16 {
                        0 => step(&mut random) % 100_000,
                        1..4 => step(&mut random) % 3000,
                        _ => step(&mut random) % 200,
                    };
                    let block = heap.allocate_quickly(bytes, 1).or_else(|| heap.allocate(bytes, 1)).unwrap();
                    let [first, last] = grains(block.address, bytes);
                    assert_eq!(owners[first].swap(thread, Ordering::Relaxed), 0);
                    assert!(first == last || owners[last].swap(thread, Ordering::Relaxed) == 0);
                    held.push((block.address, bytes));
                    if held.len() > 200 {
                        let pick = step(&mut random) as usize % held.len();
                        let (address, bytes) = held.swap_remove(pick);
                        match step(&mut random) % 4 {
                            0 => exchange.lock().unwrap().push((address, bytes)),
                            _ => release(address, bytes, thread),
                        }
                        let foreign = exchange.lock().unwrap().pop();
                        if let Some((address, bytes)) = foreign {
                            release(address, bytes, thread);
                        }
                    }
                }
                for (address, bytes) in held {
                    release(address, bytes, thread);
                }
                heap.finish_thread();
                let late = heap.allocate(48, 16).unwrap();
                assert!(!heap.free_quickly(late.address), "a finished thread has no cache");
                heap.free(late.address, ME).unwrap();
            });
        }
    });
    for (address, _) in exchange.into_inner().unwrap() {
        heap.pool.free(None, address, ME).unwrap();
    }
    assert!(all_free(&heap.pool, BYTES), "{:?}", heap.pool.free_ranges());
}

#[test]
fn one_of_many_that_free_the_same_block_succeeds() {
    let heap = heap(1 << 26);
    for bytes in [48, 100_000] {
        for _ in 0..200 {
            let address = heap.pool.allocate(None, bytes, 16).unwrap().address;
            let successes = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let freed = heap.free_quickly(address) || heap.free(address, ME).is_ok();
                        successes.fetch_add(u64::from(freed), Ordering::Relaxed);
                        heap.finish_thread();
                    });
                }
            });
            assert_eq!(successes.into_inner(), 1);
        }
    }
    assert!(all_free(&heap.pool, 1 << 26));
}
