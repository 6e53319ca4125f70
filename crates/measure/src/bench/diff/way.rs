//! The way of a diff: made from a page and its twin on one node, checked and applied to frame and twin on
//! another. Both are this process, all data are in the caches, and the bytes are neither encrypted nor sent.

use std::hint::black_box;
use std::sync::Arc;

use hiroba_base::{ChangedBytes, PageId};
use hiroba_memory::{SharedMemory, Twins};
use hiroba_protocol::diff::{self, Blocks, Encoder};
use hiroba_wire::{Limits, Message, PageDiff};

use super::{batches, failed, region};
use crate::bench::shared::PAGE_BYTES;
use crate::bench::{Row, row};
use hiroba_launch::failure::Failure;

/// The number of diffs timed together.
const BATCH: usize = 100;

/// Returns true for the bytes of a page of 4 KiB that have changed.
type Changed = fn(usize) -> bool;

const PATTERNS: [(&str, Changed); 5] = [
    ("clean page", |_| false),
    ("one word", |at| at / 8 == 301),
    ("every other word (256)", |at| at / 8 % 2 == 1),
    ("every other byte", |at| at % 2 == 1),
    ("whole page", |_| true),
];

/// Both ends of the way.
struct Way {
    memory: Arc<SharedMemory>,
    twins: Twins,
    limits: Limits,
    from: PageId,
    to: PageId,
    changed: ChangedBytes,
}

/// Measures rows for each pattern.
pub fn measure(quick: bool) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let (memory, id) = region(2)?;
    let limits = Limits { nodes: 2, region_granules: memory.granules(), granule_bytes: PAGE_BYTES as u32 };
    let twins = Twins::new(memory.clone());
    let mut way = Way { memory, twins, limits, from: id(0), to: id(1), changed: ChangedBytes::NONE };
    let times = if quick { 50 } else { 200 };
    for (name, changed) in PATTERNS {
        way.prepare(changed)?;
        let state = |what: &str| format!("4 KiB, hot; {what}");
        let mut add =
            |what: &str, taken| rows.push(row(&format!("diff, {name}"), "", &state(what), taken, None));
        add("compare and encode", batches(times, BATCH, |_| _ = black_box(way.made())));
        let runs = way.made();
        add("check, apply to twin and frame", batches(times, BATCH, |_| way.take(black_box(&runs))));
        add("whole way, with its message", batches(times, BATCH, |_| way.go()));
    }
    Ok(rows)
}

impl Way {
    /// Restores both pages, then changes some bytes of one.
    fn prepare(&mut self, changed: Changed) -> Result<(), Failure> {
        let before: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 / 3) as u8).collect();
        for page in [self.from, self.to] {
            self.twins.remove(page);
            self.memory.write(page, 0, &before).map_err(failed)?;
            self.twins.make(page, PAGE_BYTES);
        }
        let after: Vec<u8> =
            before.iter().enumerate().map(|(at, byte)| if changed(at) { !byte } else { *byte }).collect();
        self.memory.write(self.from, 0, &after).map_err(failed)
    }

    fn made(&mut self) -> Vec<u8> {
        let mut runs = Vec::new();
        let mut encoder = Encoder::new(&mut runs);
        self.twins.collect(self.from, false, |changes| encoder.push(changes));
        runs
    }

    fn take(&mut self, runs: &[u8]) {
        diff::check(runs, PAGE_BYTES).expect("it was made here");
        let mut applying = self.twins.applying(self.to);
        let mut blocks = Blocks::of(runs, &mut self.changed);
        while let Some(changes) = blocks.next().expect("it was checked") {
            applying.write(changes).expect("it has frames");
        }
    }

    fn go(&mut self) {
        let runs = self.made();
        let diffs = vec![PageDiff { page: self.to, runs: &runs }];
        let message = Message::Diffs { seq: 1, last: true, diffs }.encode();
        let message = Message::decode(black_box(&message), &self.limits).expect("it was made here");
        let Message::Diffs { diffs, .. } = message else { unreachable!("it was made here") };
        for PageDiff { runs, .. } in diffs {
            // The engine passes it to the host in this form.
            let runs = runs.to_vec();
            self.take(&runs);
        }
    }
}
