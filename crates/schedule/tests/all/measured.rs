//! Schedules that measure threads' speeds, with clocks that the tests set.

use hiroba_schedule::{Kind, Loop, Range, gain};

use crate::team::{Common, assert_once, execute, iterations};

fn counted(count: u64, kind: Kind, chunk: u64) -> Loop {
    Loop::new(Range::signed(0, count as i64, 1), kind, chunk).at_site(1)
}

type Chunks = Vec<(u32, u64, u64)>;

fn assert_all_once(count: u64, chunks: &Chunks) {
    assert_once(count, chunks.iter().map(|(_, first, end)| (*first, *end)).collect());
}

/// Asserts that threads end at nearly the same time.
#[track_caller]
fn assert_even(clocks: &[u64], tolerance: f64) {
    let (least, most) = (clocks.iter().min().unwrap(), clocks.iter().max().unwrap());
    assert!((*most as f64) < *least as f64 * (1.0 + tolerance), "{clocks:?}");
}

/// The paper's figure 2: speeds of 3 : 1 : 2.
fn figure(thread: u32, _iteration: u64) -> u64 {
    [20_000, 60_000, 30_000][thread as usize]
}

#[test]
fn the_rest_is_given_out_in_proportion_to_speeds() {
    let (common, of_loop) = (Common::new(3, 1), counted(6000, Kind::Profiled, 0).profiled(6, 2));
    let (chunks, clocks) = execute(&common, of_loop, figure);
    assert_all_once(6000, &chunks);
    assert_even(&clocks, 0.02);
    // Each thread: what it skips, what it times, perhaps more while others time theirs, and one block, which
    // it takes in a few pieces, but for the last iterations.
    for thread in 0..3 {
        let pieces: Vec<_> =
            chunks.iter().filter(|chunk| chunk.0 == thread && chunk.2 - chunk.1 > 6).collect();
        assert!(pieces.len() < 9, "{pieces:?}");
        assert!(pieces.windows(2).all(|pair| pair[0].2 == pair[1].1), "{pieces:?}");
        let block = pieces[pieces.len() - 1].2 - pieces[0].1;
        assert!(block.abs_diff([3000, 1000, 2000][thread as usize]) < 60, "{pieces:?}");
    }
    assert_eq!(&chunks[..3], [(0, 0, 2), (1, 2, 4), (2, 4, 6)]);
    assert_eq!(&chunks[3..6], [(0, 6, 12), (2, 12, 18), (1, 18, 24)]);
}

#[test]
fn speeds_are_kept_for_the_next_execution() {
    let (common, of_loop) = (Common::new(3, 1), counted(6000, Kind::Profiled, 0));
    execute(&common, of_loop, figure);
    for _ in 0..10 {
        let (chunks, clocks) = execute(&common, of_loop, figure);
        assert_eq!(chunks.len(), 3, "one block each, and nothing is timed anew: {chunks:?}");
        assert_eq!(iterations(3, &chunks), [3000, 1000, 2000]);
        assert_even(&clocks, 0.01);
    }
}

#[test]
fn a_chunk_makes_it_cyclic() {
    let (common, of_loop) = (Common::new(3, 1), counted(6000, Kind::Profiled, 10));
    execute(&common, of_loop, figure);
    let (chunks, clocks) = execute(&common, of_loop, figure);
    assert_all_once(6000, &chunks);
    assert_even(&clocks, 0.02);
    let of_one = |thread: u32| chunks.iter().filter(move |(number, ..)| *number == thread);
    assert!(of_one(0).take(99).all(|(_, first, end)| (29..=31).contains(&(end - first))), "{chunks:?}");
    assert!(of_one(1).take(99).all(|(_, first, end)| (9..=11).contains(&(end - first))), "{chunks:?}");
    assert!(of_one(2).take(99).all(|(_, first, end)| (19..=21).contains(&(end - first))), "{chunks:?}");
}

#[test]
fn equal_threads_keep_equal_blocks() {
    let (common, of_loop) = (Common::new(4, 2), counted(4000, Kind::Profiled, 0));
    let cost = |thread: u32, iteration: u64| 10_000 + u64::from(thread) * 50 + iteration % 7;
    execute(&common, of_loop, cost);
    let (chunks, _) = execute(&common, of_loop, cost);
    assert_eq!(iterations(4, &chunks), [1000, 1000, 1000, 1000]);
}

/// The cost of iterations that takes `first` for the first ten of a thread, and then as long as of others.
fn with_first(slow: u32, first: u64) -> impl Fn(u32, u64) -> u64 {
    let had = std::cell::RefCell::new([0; 8]);
    move |thread, _| {
        let had = &mut had.borrow_mut()[thread as usize];
        *had += 1;
        if thread == slow && *had <= 10 { first } else { 10_000 }
    }
}

/// First touches make a thread look slow, or luck makes it look fast, in the only iterations that are timed
/// before the parts are fixed. Threads that may not go back keep these parts.
#[test]
fn one_bad_measurement_does_not_unbalance_an_execution() {
    for (wrong, first) in [(0, 1_000_000), (3, 1_000_000), (0, 100), (3, 100)] {
        for chunk in [0, 1, 16] {
            let of_loop = counted(40_000, Kind::Profiled, chunk).profiled(10, 0);
            let (chunks, clocks) = execute(&Common::new(4, 2), of_loop, with_first(wrong, first));
            assert_all_once(40_000, &chunks);
            assert_even(&clocks, 0.03);
            let (_, clocks) = execute(&Common::new(4, 2), of_loop.monotonic(true), with_first(wrong, first));
            let most = clocks.iter().max().expect("clocks");
            assert!(*most > 130_000_000, "the measurement is bad: {wrong} {first} {chunk} {clocks:?}");
        }
    }
}

/// A bad measurement is forgotten: the next execution has parts by the speeds in the first one's parts.
#[test]
fn one_bad_measurement_is_forgotten() {
    let of_loop = counted(40_000, Kind::Profiled, 0).profiled(10, 0);
    let common = Common::new(4, 2);
    execute(&common, of_loop, with_first(2, 1_000_000));
    let (chunks, _) = execute(&common, of_loop, |_, _| 10_000);
    assert_eq!(iterations(4, &chunks), [10_000; 4]);
}

/// A thread that becomes slow while the loop runs gives up a part of what it has.
#[test]
fn parts_follow_speeds_that_change() {
    let had = std::cell::RefCell::new([0; 4]);
    let cost = |thread: u32, _| {
        let had = &mut had.borrow_mut()[thread as usize];
        *had += 1;
        if thread == 1 && *had > 1_500 { 40_000 } else { 10_000 }
    };
    let (chunks, clocks) = execute(&Common::new(4, 1), counted(40_000, Kind::Profiled, 0), cost);
    assert_all_once(40_000, &chunks);
    // A piece that was begun is finished.
    let (least, most) = (clocks.iter().min().expect("clocks"), clocks.iter().max().expect("clocks"));
    assert!(*most < 300_000_000 && *least > 90_000_000, "{clocks:?}, with the first parts 400,000,000");
}

/// However long the loop is, a thread comes back for few pieces.
#[test]
fn pieces_are_few() {
    for (count, cost) in [(1_000_000, 1_000), (100_000, 200_000), (10, 50_000_000)] {
        let of_loop = counted(count, Kind::Profiled, 0).profiled(1, 0);
        let (chunks, _) = execute(&Common::new(8, 2), of_loop, |_, _| cost);
        let most = (0..8).map(|thread| chunks.iter().filter(|chunk| chunk.0 == thread).count()).max();
        assert!(most < Some(24), "{most:?} of {count}");
    }
}

/// While other parts would gain little, executions are measured ever more rarely; a thread that becomes slow
/// is noticed all the same.
#[test]
fn measurement_switches_itself_off_and_on() {
    let (common, of_loop) = (Common::new(2, 1), counted(1000, Kind::Profiled, 0));
    let mut executions = Vec::new();
    for execution in 0..200u64 {
        let asked = std::cell::Cell::new(0);
        common.begin(of_loop);
        let now = || {
            asked.set(asked.get() + 1);
            asked.get() * 1_000_000
        };
        // The second thread comes when the first one has left.
        for number in 0..2 {
            let mut own = of_loop;
            while own.next(common.team(number), common.shared(&of_loop), now).is_some() {}
        }
        if asked.get() > 0 {
            executions.push(execution);
        }
    }
    assert!(executions.len() < 20, "{executions:?}");
    let slow = |thread: u32, _| if thread == 1 { 40_000 } else { 10_000 };
    let (mut even, mut clocks) = (0, Vec::new());
    for _ in 0..200 {
        clocks = execute(&common, of_loop, slow).1;
        even += u32::from(clocks[0] * 10 > clocks[1] * 9 && clocks[1] * 10 > clocks[0] * 9);
    }
    assert!(even > 100, "{even} of 200 executions were even, the last {clocks:?}");
}

#[test]
fn weighted_factoring_adapts_from_one_execution_to_the_next() {
    let common = Common::new(3, 1);
    let of_loop = counted(6000, Kind::WeightedFactoring, 1);
    let (chunks, _) = execute(&common, of_loop, figure);
    let lengths: Vec<u64> = chunks[..3].iter().map(|(_, first, end)| end - first).collect();
    assert_eq!(lengths, [1000, 1000, 1000], "nothing is known at first");
    let (chunks, clocks) = execute(&common, of_loop, figure);
    assert_all_once(6000, &chunks);
    let lengths: Vec<(u32, u64)> =
        chunks[..3].iter().map(|(number, first, end)| (*number, end - first)).collect();
    assert!(lengths.iter().all(|(number, length)| length.abs_diff([1500, 500, 1000][*number as usize]) < 50));
    assert_even(&clocks, 0.05);
}

/// A loop that is over before all threads have measured is given out all the same, and measured again.
#[test]
fn loops_may_be_too_short_to_measure() {
    let (common, of_loop) = (Common::new(4, 2), counted(3, Kind::Profiled, 0).profiled(5, 5));
    for _ in 0..3 {
        let (chunks, _) = execute(&common, of_loop, |_, _| 10);
        assert_all_once(3, &chunks);
    }
}

/// A thread does not wait for one that comes late or never.
#[test]
fn nobody_waits_for_a_late_thread() {
    let (common, of_loop) = (Common::new(2, 1), counted(100, Kind::Profiled, 0).profiled(2, 0));
    common.begin(of_loop);
    let (mut own, mut chunks) = (of_loop, Vec::new());
    while let Some((first, end)) = own.next(common.team(0), common.shared(&of_loop), || 0) {
        chunks.push((0, first, end));
    }
    assert_all_once(100, &chunks);
}

#[test]
fn what_other_parts_gain() {
    assert!(gain(&[1.0, 1.0], &[2.0, 2.0]).abs() < 1e-12);
    assert!((gain(&[1.0, 1.0], &[3.0, 1.0]) - 0.5).abs() < 1e-12);
    assert!(gain(&[3.0, 1.0], &[3.0, 1.0]).abs() < 1e-12);
}
