//! Every schedule gives out every iteration once.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, Mutex};

use hiroba_schedule::{Kind, Loop, Range};
use proptest::prelude::*;

use crate::team::{Common, assert_once, execute, iterations};

const KINDS: [Kind; 6] =
    [Kind::Static, Kind::Dynamic, Kind::Guided, Kind::Factoring, Kind::WeightedFactoring, Kind::Profiled];

fn counted(count: u64, kind: Kind, chunk: u64) -> Loop {
    Loop::new(Range::unsigned(true, 0, count, 1), kind, chunk).at_site(1)
}

proptest! {
    /// Any interleaving of threads' claims, in several executions of a loop one after the other.
    #[test]
    fn in_any_order_of_claims(
        kind in prop::sample::select(KINDS.to_vec()), count in 0u64..400, chunk in 0u64..40,
        evaluated in 0u64..20, skipped in 0u64..20, threads in 1u32..9, per_node in 1u32..5,
        form in 0u32..3, order in prop::collection::vec(0usize..64, 0..200),
    ) {
        let common = Common::new(threads, per_node);
        let plain = counted(count, kind, chunk).profiled(evaluated, skipped);
        let of_loop = match form {
            0 => plain,
            1 => plain.monotonic(true),
            _ => plain.ordered(),
        };
        for execution in 0..4u64 {
            common.begin(of_loop);
            let mut going: Vec<(u32, Loop, u64)> = (0..threads).map(|number| (number, of_loop, 0)).collect();
            let (mut chunks, mut choices) = (Vec::new(), order.iter().cycle());
            let mut clock = 0;
            while !going.is_empty() {
                let turn = choices.next().copied().unwrap_or(0) % going.len();
                clock += 1 + execution;
                let (number, own, behind) = &mut going[turn];
                let clock_ns = clock * (1 + u64::from(*number));
                match own.next(common.team(*number), common.shared(&of_loop), || clock_ns) {
                    Some((first, end)) => {
                        prop_assert!(first < end);
                        prop_assert!(form == 0 || first >= *behind, "thread {number} goes back to {first}");
                        prop_assert!(*behind < count, "thread {number} goes on behind the last iteration");
                        *behind = end;
                        chunks.push((first, end));
                    }
                    None => drop(going.remove(turn)),
                }
            }
            assert_once(count, chunks);
        }
    }

    /// Loops as long as 64 bits count, of which the first thread takes the first chunks.
    #[test]
    fn of_the_longest_loops(
        kind in prop::sample::select(KINDS.to_vec()), less in 0u64..100, chunk in prop::sample::select(vec![
            0, 1, 1 << 20, 1 << 40, 1 << 62, 1 << 63, u64::MAX,
        ]), threads in 1u32..5, half: bool,
    ) {
        let count = (if half { 1 << 63 } else { u64::MAX }) - less;
        let (common, of_loop) = (Common::new(threads, 1), counted(count, kind, chunk));
        common.begin(of_loop);
        let mut own: Vec<Loop> = vec![of_loop; threads as usize];
        let mut seen: Vec<(u64, u64)> = Vec::new();
        for step in 0..64u32 {
            let number = step % threads;
            let chunk = own[number as usize].next(common.team(number), common.shared(&of_loop), || 0);
            if let Some((first, end)) = chunk {
                prop_assert!(first < end && end <= count);
                prop_assert!(seen.iter().all(|(from, to)| end <= *from || *to <= first), "{seen:?} {first} {end}");
                seen.push((first, end));
            }
        }
        prop_assert!(!seen.is_empty());
    }
}

/// Threads of this machine, whose claims cross.
#[test]
fn by_real_threads() {
    let mut round = 0u64;
    for kind in KINDS {
        for (threads, per_node) in [(4, 1), (4, 2), (6, 2)] {
            let common = Common::new(threads, per_node);
            for is_monotonic in [false, true] {
                round += 1;
                let of_loop = counted(20_000 + round, kind, 1 + round % 3).monotonic(is_monotonic);
                run_threads(&common, of_loop, is_monotonic);
            }
        }
    }
}

fn run_threads(common: &Common, of_loop: Loop, is_monotonic: bool) {
    common.begin(of_loop);
    let (taken, start) = (Mutex::new(Vec::new()), Barrier::new(common.threads as usize));
    std::thread::scope(|scope| {
        for number in 0..common.threads {
            let (taken, start) = (&taken, &start);
            scope.spawn(move || {
                let (mut own, mut chunks, mut behind, mut clock) = (of_loop, Vec::new(), 0, 0);
                start.wait();
                while let Some(chunk) = own.next(common.team(number), common.shared(&of_loop), || clock) {
                    assert!(!is_monotonic || chunk.0 >= behind, "thread {number} goes back");
                    assert!(
                        behind < of_loop.range.count,
                        "thread {number} goes on behind the last iteration"
                    );
                    (behind, clock) = (chunk.1, clock + 100);
                    chunks.push(chunk);
                }
                taken.lock().expect("no thread panicked").extend(chunks);
            });
        }
    });
    assert_once(of_loop.range.count, taken.into_inner().expect("no thread panicked"));
}

/// Chunks are claimed in batches: a node asks the team's word a few times, and not for every chunk.
#[test]
fn nodes_claim_batches() {
    for (kind, most) in [(Kind::Dynamic, 60), (Kind::Guided, 60)] {
        let (common, of_loop) = (Common::new(4, 2), counted(100_000, kind, 10));
        common.begin(of_loop);
        let (mut claims, mut chunks, mut own) = (0, Vec::new(), [of_loop; 4]);
        let mut going = vec![0, 1, 2, 3];
        while !going.is_empty() {
            going.retain(|number: &usize| {
                let before = common.next();
                let team = common.team(*number as u32);
                let chunk = own[*number].next(team, common.shared(&of_loop), || 0);
                claims += u32::from(common.next() != before);
                chunks.extend(chunk);
                chunk.is_some()
            });
        }
        assert!(claims <= most, "{kind:?}: {claims} claims");
        assert!(kind == Kind::Guided || chunks.iter().all(|(first, end)| end - first == 10), "{chunks:?}");
        assert_once(100_000, chunks);
    }
}

/// A node that is done takes over what another one has claimed, unless threads may not go back.
#[test]
fn nodes_steal_from_each_other() {
    // All work lies in the first half of the first batch.
    let cost = |_, iteration: u64| if iteration < 100 { 1000 } else { 1 };
    let common = Common::new(2, 1);
    let (_, clocks) = execute(&common, counted(1000, Kind::Dynamic, 1), cost);
    assert!(clocks.iter().all(|clock| *clock < 60_000), "{clocks:?}");
    let (_, clocks) = execute(&common, counted(1000, Kind::Dynamic, 1).monotonic(true), cost);
    assert!(clocks.iter().any(|clock| *clock > 90_000), "{clocks:?}");
}

/// What a cancelled loop leaves is not found by the next loop in its place.
#[test]
fn what_a_cancelled_loop_leaves_is_cleared() {
    let (common, of_loop) = (Common::new(2, 1), counted(1000, Kind::Dynamic, 1));
    common.begin(of_loop);
    let mut own = of_loop;
    assert!(own.next(common.team(0), common.shared(&of_loop), || 0).is_some());
    common.slots().clear();
    let (chunks, _) = execute(&common, of_loop, |_, _| 1);
    assert_once(1000, chunks.iter().map(|(_, first, end)| (*first, *end)).collect());
}

/// An ordered loop gives neighbouring chunks to different nodes, or they would wait for each other.
#[test]
fn ordered_loops_alternate() {
    for kind in [Kind::Dynamic, Kind::Profiled, Kind::Factoring, Kind::WeightedFactoring] {
        let (common, of_loop) = (Common::new(2, 1), counted(1000, kind, 1).ordered());
        let (chunks, _) = execute(&common, of_loop, |_, _| 10);
        assert_eq!(chunks.len(), 1000, "{kind:?}");
        assert_eq!(iterations(2, &chunks[..100]), [50, 50], "{kind:?}");
    }
}

/// Chunks of factoring halve from round to round.
#[test]
fn chunks_of_factoring_halve() {
    let common = Common::new(4, 2);
    let (chunks, _) = execute(&common, counted(1600, Kind::Factoring, 10), |_, _| 1);
    let lengths: Vec<u64> = chunks.iter().map(|(_, first, end)| end - first).collect();
    assert_eq!(lengths[..12], [200, 200, 200, 200, 100, 100, 100, 100, 50, 50, 50, 50]);
    assert!(lengths[..lengths.len() - 1].iter().all(|length| *length >= 10), "{lengths:?}");
}

/// Two threads of a node have claimed batches, and the earlier one is put where both find it: the other
/// thread does not go back, and takes nothing away.
#[test]
fn a_thread_leaves_earlier_chunks_to_its_sibling() {
    let common = Common::new(4, 2);
    let of_loop = counted(1000, Kind::Dynamic, 1).monotonic(true);
    common.begin(of_loop);
    let (mut first, mut second) = (of_loop, of_loop);
    let slot = &common.slots().words[common.slots().place];
    assert_eq!(second.next(common.team(1), common.shared(&of_loop), || 0), Some((0, 1)));
    let earlier = slot.swap(0, Relaxed);
    let (later, _) = first.next(common.team(0), common.shared(&of_loop), || 0).expect("a chunk");
    slot.store(earlier, Relaxed);
    let (chunk, _) = first.next(common.team(0), common.shared(&of_loop), || 0).expect("a chunk");
    assert!(chunk > later, "{chunk} after {later}");
    assert_eq!(slot.load(Relaxed), earlier);
    assert_eq!(second.next(common.team(1), common.shared(&of_loop), || 0), Some((1, 2)));
}

/// A thread that found nothing to steal has the last iteration. Chunks that were on their way between nodes
/// meanwhile are not for it, or the last values of variables would be lost.
#[test]
fn nothing_follows_the_last_iteration() {
    let (common, of_loop) = (Common::new(2, 1), counted(1000, Kind::Dynamic, 1));
    common.begin(of_loop);
    let (mut first, mut second) = (of_loop, of_loop);
    assert_eq!(first.next(common.team(0), common.shared(&of_loop), || 0), Some((0, 1)));
    let slot = &common.slots().words[common.slots().place];
    let on_their_way = slot.swap(0, Relaxed);
    let mut latest = None;
    while latest != Some((999, 1000)) {
        latest = second.next(common.team(1), common.shared(&of_loop), || 0);
        assert!(latest.is_some());
    }
    slot.store(on_their_way, Relaxed);
    assert_eq!(second.next(common.team(1), common.shared(&of_loop), || 0), None);
    assert_eq!(first.next(common.team(0), common.shared(&of_loop), || 0), Some((1, 2)));
}
