//! What one node costs a program: the same loops over private and over shared memory, alternately.

use std::hint::black_box;
use std::time::Instant;

use hiroba_base::NodeId;
use hiroba_node::Runtime;
use hiroba_wire::Placement;

use super::samples::Taken;
use super::shared::Region;
use super::{BenchPlan, Row, row};

/// Larger than most caches.
const BYTES: usize = 32 << 20;
const WARM_UP: usize = 2;

type Loop = fn(&mut [u64]);

/// Measures in a job of one node; each row is measured when it is requested.
pub fn measure(runtime: &Runtime, plan: &BenchPlan) -> impl Iterator<Item = Row> {
    let mut private = vec![0u64; BYTES / 8];
    let shared = Region::allocate(runtime, BYTES, Placement::On(NodeId::ZERO), None).words();
    let loops: [(&str, Loop); 2] =
        [("read and written in order", in_order), ("read and written anywhere", anywhere)];
    let of_each = move |(what, run): (&str, Loop)| {
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        for round in 0..plan.times(40) + WARM_UP {
            let [first, second] = [&mut *shared, &mut private[..]].map(|words| {
                let began = Instant::now();
                run(black_box(words));
                began.elapsed().as_nanos() as f64
            });
            if round >= WARM_UP {
                ours.push(first);
                theirs.push(second);
            }
        }
        let raw = Taken::new(theirs, WARM_UP);
        row("compute on one node", "", &format!("32 MiB {what}"), Taken::new(ours, WARM_UP), Some(&raw))
    };
    loops.into_iter().map(of_each)
}

fn in_order(words: &mut [u64]) {
    for word in words {
        *word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
}

fn anywhere(words: &mut [u64]) {
    let mut at = 1usize;
    for _ in 0..words.len() / 16 {
        // A full-period generator modulo 2⁶⁴ (Knuth's MMIX), whose high bits spread over the whole array.
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (at >> 33) % words.len();
        words[index] ^= at as u64;
    }
}
