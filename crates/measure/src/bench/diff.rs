//! Compares a clean page with its twin, as a release does with every page that may have been written, and
//! measures the way of the diffs of changed pages.

mod way;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use hiroba_base::{PageId, PageRange};
use hiroba_memory::{MemoryConfig, MemoryError, SharedMemory, Twins};

use super::samples::Taken;
use super::shared::PAGE_BYTES;
use super::{Row, row};
use hiroba_launch::failure::Failure;

/// Pages and twins together exceed every cache.
const COLD_BYTES: usize = 128 << 20;
/// The number of hot comparisons timed together, since one is shorter than reading the clock.
const HOT_BATCH: usize = 1000;
/// The number of cold comparisons timed together, so that the processor's prefetching helps both sides alike.
const COLD_BATCH: usize = 64;
const WARM_UP: usize = 10;

/// Measures in this process, which is not a node.
pub fn measure(quick: bool) -> Result<Vec<Row>, Failure> {
    let cold_bytes = if quick { COLD_BYTES / 2 } else { COLD_BYTES };
    let pages = cold_bytes / PAGE_BYTES;
    let (memory, id) = region(pages)?;
    let mut twins = Twins::new(memory.clone());
    for page in 0..pages {
        let content = [page as u8 | 1; PAGE_BYTES];
        memory.write(id(page), 0, &content).map_err(failed)?;
        twins.make(id(page), PAGE_BYTES);
    }
    // As many bytes in private memory as page and twin have.
    let plain = vec![1u64; 2 * cold_bytes / 8];
    let plain_words = 2 * PAGE_BYTES / 8;

    let mut compare = |page: usize| twins.collect(id(page), false, |changes| _ = black_box(changes));
    let read = |page: usize| _ = black_box(sum(&plain[page * plain_words..][..plain_words]));
    let times = if quick { 100 } else { 400 };
    let hot = batches(times, HOT_BATCH, |_| compare(0));
    let hot_raw = batches(times, HOT_BATCH, |_| read(0));
    let batches_in_all = pages / COLD_BATCH;
    let cold = batches(batches_in_all - WARM_UP, COLD_BATCH, &mut compare);
    let cold_raw = batches(batches_in_all - WARM_UP, COLD_BATCH, read);
    drop(twins);
    drop(memory);
    let mut rows = vec![
        row("diff of a clean page", "", "4 KiB, hot; raw: plain read of both", hot, Some(&hot_raw)),
        row("diff of a clean page", "", "4 KiB, cold; raw: plain read of both", cold, Some(&cold_raw)),
    ];
    rows.extend(way::measure(quick)?);
    Ok(rows)
}

/// Allocates a region of `pages` pages in this process, and returns the first granule of each.
fn region(pages: usize) -> Result<(Arc<SharedMemory>, impl Fn(usize) -> PageId), Failure> {
    let region_bytes = (pages * PAGE_BYTES) as u64;
    let config = MemoryConfig { region_bytes, ..MemoryConfig::default() };
    let memory = Arc::new(SharedMemory::reserve(config).map_err(failed)?);
    let granules = memory.granules();
    memory.allocate(PageRange { first: PageId(0), count: granules }).map_err(failed)?;
    let granules_a_page = (granules as usize / pages).max(1);
    Ok((memory, move |page: usize| PageId((page * granules_a_page) as u64)))
}

fn failed(error: MemoryError) -> Failure {
    Failure::new(format!("cannot measure: {error}"))
}

/// Measures single operations in batches.
fn batches(times: usize, batch: usize, mut operation: impl FnMut(usize)) -> Taken {
    let mut next = 0;
    let mut nanos = Vec::with_capacity(times);
    for number in 0..times + WARM_UP {
        let began = Instant::now();
        (next..next + batch).for_each(&mut operation);
        if number >= WARM_UP {
            nanos.push(began.elapsed().as_nanos() as f64 / batch as f64);
        }
        next += batch;
    }
    Taken::new(nanos, WARM_UP)
}

/// Loads every word; the compiler vectorises it.
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}
