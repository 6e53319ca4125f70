//! The requirements on asynchronous write tracking, run over each fault source that has it, as root and as an
//! ordinary user.

use std::{
    collections::BTreeSet,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use hiroba_base::{Access, PageId};
use hiroba_memory::{FaultSourceKind, MemoryError, WriteTracking, install_alternate_stack};

use crate::common::{
    Ending,
    pager::{Mode, Paged, User, mode, range, run_case},
};

macro_rules! tracking {
    ($($case:ident,)*) => {
        tracking!(@suite event, Event, Caller, $($case,)*);
        tracking!(@suite sigbus, Sigbus, Caller, $($case,)*);
        tracking!(@suite sigbus_as_ordinary_user, Sigbus, Ordinary, $($case,)*);
    };
    (@suite $suite:ident, $kind:ident, $user:ident, $($case:ident,)*) => {
        mod $suite {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let test = concat!(module_path!(), "::", stringify!($case));
                    let mode = mode(FaultSourceKind::$kind, WriteTracking::Async);
                    run_case(test, User::$user, mode, Ending::Success, super::$case);
                }
            )*
        }
    };
}

tracking! {
    a_write_is_noted_once_and_does_not_fault,
    a_fault_that_is_answered_by_watching_notes_the_store,
    pages_are_watched_from_every_state,
    what_is_watched_again_forgets_nothing,
    unwatched_pages_are_not_reported,
    invalidated_and_watched_again,
    what_was_not_written_is_known_when_access_is_gone,
    written_neighbours_are_not_touched,
    absent_neighbours_still_fault,
    many_scattered_writes_are_reported_exactly,
    ranges_of_several_granules,
    entries_dropped_by_the_kernel_count_as_written,
    whole_page_tables_dropped_count_as_written,
    the_kernels_own_writes_are_noted,
    the_runtimes_writes_are_not_noted,
    no_write_is_lost_while_another_thread_collects,
    no_write_is_lost_while_neighbours_come_and_go,
    stores_that_fault_are_noted_beside_a_collector,
    two_collectors_share_each_write_out,
    pages_between_allocations_are_not_collected,
    a_gibibyte_is_watched_in_one_run,
    a_page_that_is_not_allocated_is_not_watched,
}

fn a_write_is_noted_once_and_does_not_fault(mode: Mode) {
    let paged = Paged::new(mode, 16);
    assert_eq!(paged.collect(), []);
    paged.watch(range(2, 8));
    assert_eq!(paged.collect(), []);
    for round in 1..20 {
        assert_eq!((paged.load(2, 0), paged.load(9, 4095)), (round - 1, 0));
        paged.store(2, 0, round);
        paged.store(2, 1, round);
        paged.store(7, 4095, round);
        assert_eq!(paged.collect(), [2, 7]);
        assert_eq!(paged.collect(), []);
        assert_eq!((paged.runtime_byte(2, 1), paged.runtime_byte(7, 4095)), (round, round));
        paged.store(5, 9, round);
        assert_eq!(paged.collect(), [5]);
    }
    assert_eq!(paged.take_faults(), []);
}

fn a_fault_that_is_answered_by_watching_notes_the_store(mode: Mode) {
    let paged = Paged::new(mode, 600);
    // The pager watches pages that fault, one granule at a time.
    for page in 0..600 {
        paged.store(page, 3, 1);
        assert_eq!(paged.take_faults(), [paged.write_fault(page, 3)]);
    }
    assert_eq!(paged.collect(), (0..600).collect::<Vec<_>>());
    assert_eq!(paged.collect(), []);
}

fn pages_are_watched_from_every_state(mode: Mode) {
    let paged = Paged::new(mode, 64);
    for round in 0..4u8 {
        // By sixteens: untouched or invalidated; writable; writable and written; watched before and not any
        // more.
        paged.protect(range(0, 16), Access::None);
        paged.protect(range(16, 32), Access::Write);
        (32..48).for_each(|page| paged.store(page, 1, round));
        paged.watch(range(48, 16));
        paged.source.unwatch(range(48, 16)).unwrap();
        (48..56).for_each(|page| paged.store(page, 1, round));
        paged.watch(range(0, 64));
        assert_eq!(paged.collect(), [], "round {round}");
        (0..64).for_each(|page| paged.store(page, 2, round));
        assert_eq!(paged.collect(), (0..64).collect::<Vec<_>>());
        (0..64).for_each(|page| assert_eq!(paged.runtime_byte(page, 2), round));
    }
    assert_eq!(paged.take_faults(), []);
}

fn what_is_watched_again_forgets_nothing(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.watch(range(0, 8));
    paged.store(3, 0, 1);
    paged.watch(range(3, 1));
    paged.watch(range(0, 16));
    assert_eq!(paged.collect(), [3]);
    paged.watch(range(0, 16));
    assert_eq!(paged.collect(), []);
    paged.store(12, 0, 1);
    assert_eq!(paged.collect(), [12]);
}

fn unwatched_pages_are_not_reported(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.watch(range(0, 16));
    (0..16).for_each(|page| paged.store(page, 0, 1));
    paged.source.unwatch(range(4, 8)).unwrap();
    assert_eq!(paged.collect(), [0, 1, 2, 3, 12, 13, 14, 15]);
    (0..16).for_each(|page| paged.store(page, 0, 2));
    paged.protect(range(12, 4), Access::Write);
    (12..16).for_each(|page| paged.store(page, 0, 3));
    assert_eq!(paged.collect(), [0, 1, 2, 3]);
    paged.source.unwatch(range(0, 16)).unwrap();
    (0..16).for_each(|page| paged.store(page, 0, 4));
    assert_eq!(paged.collect(), []);
    paged.watch(range(5, 1));
    paged.store(4, 0, 5);
    assert_eq!(paged.collect(), []);
    paged.store(5, 0, 5);
    assert_eq!(paged.collect(), [5]);
    assert_eq!(paged.take_faults(), []);
}

fn invalidated_and_watched_again(mode: Mode) {
    let paged = Paged::new(mode, 16);
    for round in 0..20 {
        paged.watch(range(0, 16));
        (0..16).for_each(|page| paged.store(page, 0, round));
        paged.protect(range(0, 8), Access::None);
        assert_eq!(paged.collect(), (8..16).collect::<Vec<_>>());
        assert_eq!(paged.load(3, 0), round);
        assert_eq!(paged.take_faults(), [paged.read_fault(3, 0)]);
        assert_eq!(paged.collect(), []);
        paged.store(3, 0, 99);
        paged.store(4, 0, 99);
        assert_eq!(paged.take_faults(), [paged.write_fault(4, 0)]);
        assert_eq!(paged.collect(), [3, 4]);
    }
}

fn what_was_not_written_is_known_when_access_is_gone(mode: Mode) {
    let paged = Paged::new(mode, 600);
    for round in 1..4 {
        paged.watch(range(0, 600));
        paged.store(3, 0, round);
        paged.store(64, 0, round);
        assert_eq!(paged.unwritten(range(0, 600)), [], "all are here");
        assert_eq!(paged.collect(), [3, 64]);
        // Since the collection: one page again, one new; one that was watched and is not any more; one only
        // read.
        paged.store(64, 0, round + 100);
        paged.store(65, 0, round + 100);
        paged.source.unwatch(range(70, 1)).unwrap();
        paged.store(70, 0, round);
        paged.load(71, 0);
        paged.protect(range(0, 600), Access::None);
        let expected: Vec<u64> = (0..600).filter(|page| ![64, 65, 70].contains(page)).collect();
        assert_eq!(paged.unwritten(range(0, 600)), expected);
        assert_eq!(paged.unwritten(range(63, 4)), [63, 66]);
        // After access without tracking, nothing is known of them.
        paged.protect(range(0, 8), Access::Write);
        paged.protect(range(0, 8), Access::None);
        assert_eq!(paged.unwritten(range(0, 9)), [8]);
    }
}

fn written_neighbours_are_not_touched(mode: Mode) {
    let paged = Paged::new(mode, 64);
    paged.protect(range(0, 64), Access::Write);
    let watched: Vec<u64> = (0..64).step_by(3).collect();
    watched.iter().for_each(|page| paged.watch(range(*page, 1)));
    for round in 0..5 {
        (0..64).for_each(|page| paged.store(page, 0, round));
        assert_eq!(paged.collect(), watched);
        (1..64).step_by(3).for_each(|page| paged.store(page, 0, round));
        assert_eq!(paged.collect(), []);
    }
    assert_eq!(paged.take_faults(), []);
}

fn absent_neighbours_still_fault(mode: Mode) {
    let paged = Paged::new(mode, 64);
    (0..64).for_each(|page| paged.memory.write(PageId(page), 0, &[page as u8]).unwrap());
    let watched: Vec<u64> = (0..64).step_by(4).collect();
    watched.iter().for_each(|page| paged.watch(range(*page, 1)));
    watched.iter().for_each(|page| paged.store(*page, 1, 1));
    assert_eq!(paged.collect(), watched);
    assert_eq!(paged.collect(), []);
    for page in (0..64).filter(|page| page % 4 != 0) {
        assert_eq!(paged.load(page, 0), page as u8);
        assert_eq!(paged.take_faults(), [paged.read_fault(page, 0)]);
        assert_eq!(paged.collect(), []);
        paged.store(page, 1, 1);
        assert_eq!(paged.collect(), [page]);
    }
    paged.protect(range(0, 64), Access::None);
    for page in 0..64 {
        paged.store(page, 2, 1);
        assert_eq!(paged.take_faults(), [paged.write_fault(page, 2)]);
        assert_eq!(paged.collect(), [page]);
    }
}

fn many_scattered_writes_are_reported_exactly(mode: Mode) {
    const PAGES: u64 = 4000;
    let paged = Paged::new(mode, PAGES);
    paged.watch(range(0, PAGES));
    // More separate ranges than one call of the kernel reports.
    for stride in [2, 3, 5, 64, 511] {
        let written: Vec<u64> = (1..PAGES).step_by(stride).collect();
        written.iter().for_each(|page| paged.store(*page, 0, 1));
        assert_eq!(paged.collect(), written);
        assert_eq!(paged.collect(), []);
    }
}

fn ranges_of_several_granules(mode: Mode) {
    let paged = Paged::new(mode, 4 * 512);
    for page in [range(512, 512), range(16, 16), range(1024, 4), range(1535, 300)] {
        paged.watch(page);
        let last = page.end().0 - 1;
        paged.store(page.first.0, 0, 1);
        paged.store(last, 4095, 1);
        assert_eq!(paged.collect(), [page.first.0, last]);
    }
    paged.protect(range(512, 512), Access::None);
    paged.store(16, 0, 2);
    paged.store(1025, 0, 2);
    assert_eq!(paged.collect(), [16, 1025]);
    paged.watch(range(512, 512));
    (512..1024).for_each(|granule| paged.store(granule, 8, 2));
    assert_eq!(paged.collect(), (512..1024).collect::<Vec<_>>());
    assert_eq!(paged.take_faults(), []);
}

fn entries_dropped_by_the_kernel_count_as_written(mode: Mode) {
    let paged = Paged::new(mode, 64);
    paged.watch(range(0, 64));
    for round in 1..5 {
        let written: BTreeSet<u64> = (0..64).step_by(2).collect();
        written.iter().for_each(|page| paged.store(*page, 0, round));
        paged.drop_entries(range(0, 32));
        // Accessed again before the collection, or not.
        (0..16).for_each(|page| assert_eq!(paged.load(page, 0), if page % 2 == 0 { round } else { 0 }));
        let collected: BTreeSet<u64> = paged.collect().into_iter().collect();
        assert!(collected.is_superset(&written), "{collected:?}");
        assert!(collected.iter().all(|page| *page < 32 || written.contains(page)), "{collected:?}");
        // After the collection everything works as before.
        (0..64).for_each(|page| assert_eq!(paged.load(page, 0), if page % 2 == 0 { round } else { 0 }));
        paged.collect();
        assert_eq!(paged.collect(), []);
        paged.store(17, 1, round);
        paged.store(18, 1, round);
        assert_eq!(paged.collect(), [17, 18]);
    }
}

fn whole_page_tables_dropped_count_as_written(mode: Mode) {
    const PAGES: u64 = 2048;
    let paged = Paged::new(mode, PAGES);
    paged.watch(range(0, PAGES));
    (0..PAGES).for_each(|page| paged.store(page, 0, 1));
    paged.drop_entries(range(0, PAGES));
    assert_eq!(paged.collect(), (0..PAGES).collect::<Vec<_>>());
    (0..PAGES).for_each(|page| paged.store(page, 0, 2));
    assert_eq!(paged.collect(), (0..PAGES).collect::<Vec<_>>());
    assert_eq!(paged.collect(), []);
}

fn the_kernels_own_writes_are_noted(mode: Mode) {
    let paged = Paged::new(mode, 8);
    paged.watch(range(0, 8));
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(rustix::io::write(&writer, &[7; 8000]).unwrap(), 8000);
    // SAFETY: the range is allocated; the kernel writes it.
    let got = unsafe { libc::read(reader.as_raw_fd(), paged.at(2, 4000).cast(), 8000) };
    assert_eq!(got, 8000);
    assert_eq!(paged.collect(), [2, 3, 4]);
    assert_eq!((paged.load(2, 4000), paged.load(4, 3807)), (7, 7));
    assert_eq!(paged.take_faults(), []);
}

fn the_runtimes_writes_are_not_noted(mode: Mode) {
    let paged = Paged::new(mode, 8);
    paged.watch(range(0, 8));
    paged.memory.write(PageId(3), 100, &[5; 5000]).unwrap();
    paged.memory.atomic_u64(PageId(6), 8).unwrap().fetch_add(3, Ordering::AcqRel);
    assert_eq!(paged.collect(), []);
    assert_eq!((paged.load(3, 100), paged.load(4, 1000), paged.load(6, 8)), (5, 5, 3));
    assert_eq!(paged.collect(), []);
}

/// Stores the numbers 1, 2, 3, … to pages in turn, as fast as it can, and publishes its progress.
struct Hammer<'a> {
    paged: &'a Paged,
    pages: Vec<u64>,
    done: AtomicU64,
    stop: AtomicBool,
}

impl Hammer<'_> {
    fn run(&self) {
        install_alternate_stack().unwrap();
        let mut number = 0;
        while !self.stop.load(Ordering::Acquire) {
            let page = self.pages[number as usize % self.pages.len()];
            number += 1;
            // SAFETY: an allocated page.
            unsafe { AtomicU64::from_ptr(self.paged.at(page, 64).cast()) }.store(number, Ordering::Release);
            self.done.store(number, Ordering::Release);
        }
    }

    /// Returns the last of the first `done` stores to the page at place `index`.
    fn last_store(&self, index: usize, done: u64) -> u64 {
        let (index, pages) = (index as u64, self.pages.len() as u64);
        if done <= index { 0 } else { (done - 1 - index) / pages * pages + index + 1 }
    }

    fn value(&self, page: u64) -> u64 {
        let mut bytes = [0; 8];
        self.paged.memory.read(PageId(page), 64, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Simulates a release: `mirror` is what other nodes know of the pages.
    fn release(&self, mirror: &mut [u64]) {
        let done = self.done.load(Ordering::Acquire);
        let written: BTreeSet<u64> = self.paged.collect().into_iter().collect();
        for (index, page) in self.pages.iter().enumerate() {
            if written.contains(page) {
                mirror[index] = self.value(*page);
            }
            let expected = self.last_store(index, done);
            assert!(mirror[index] >= expected, "page {page}: {} of {expected} at {done}", mirror[index]);
        }
    }
}

fn no_write_is_lost_while_another_thread_collects(mode: Mode) {
    let paged = Paged::new(mode, 1024);
    paged.watch(range(0, 1024));
    for stride in [1, 7, 300] {
        let pages: Vec<u64> = (0..1000).step_by(stride).collect();
        let mut mirror = vec![0; pages.len()];
        pages.iter().for_each(|page| paged.memory.write(PageId(*page), 64, &[0; 8]).unwrap());
        let hammer = Hammer { paged: &paged, pages, done: AtomicU64::new(0), stop: AtomicBool::new(false) };
        thread::scope(|scope| {
            scope.spawn(|| hammer.run());
            while hammer.done.load(Ordering::Acquire) < 20_000 {
                hammer.release(&mut mirror);
            }
            hammer.stop.store(true, Ordering::Release);
        });
        hammer.release(&mut mirror);
        for (index, page) in hammer.pages.iter().enumerate() {
            assert_eq!((mirror[index], hammer.value(*page)), (hammer.value(*page), mirror[index]));
        }
        assert_eq!(paged.collect(), []);
    }
}

fn no_write_is_lost_while_neighbours_come_and_go(mode: Mode) {
    let paged = Paged::new(mode, 256);
    let pages: Vec<u64> = (0..256).step_by(2).collect();
    pages.iter().for_each(|page| paged.watch(range(*page, 1)));
    let mut mirror = vec![0; pages.len()];
    let hammer = Hammer { paged: &paged, pages, done: AtomicU64::new(0), stop: AtomicBool::new(false) };
    thread::scope(|scope| {
        scope.spawn(|| hammer.run());
        scope.spawn(|| {
            install_alternate_stack().unwrap();
            let mut round = 0;
            while !hammer.stop.load(Ordering::Acquire) {
                let page = 2 * (round * 31 % 128) + 1;
                match round % 4 {
                    0 => paged.source.protect(range(page, 1), Access::Write).unwrap(),
                    1 => paged.watch(range(page, 1)),
                    2 => paged.source.unwatch(range(page, 1)).unwrap(),
                    _ => paged.source.protect(range(page, 1), Access::None).unwrap(),
                }
                round += 1;
            }
        });
        while hammer.done.load(Ordering::Acquire) < 20_000 {
            hammer.release(&mut mirror);
        }
        hammer.stop.store(true, Ordering::Release);
    });
    hammer.release(&mut mirror);
}

fn stores_that_fault_are_noted_beside_a_collector(mode: Mode) {
    const PAGES: u64 = 600;
    let paged = Paged::new(mode, PAGES);
    for round in 1..6u8 {
        let finished = AtomicU64::new(0);
        let mut noted = BTreeSet::new();
        thread::scope(|scope| {
            for parity in 0..2 {
                let (paged, finished) = (&paged, &finished);
                scope.spawn(move || {
                    install_alternate_stack().unwrap();
                    (parity..PAGES).step_by(2).for_each(|page| paged.store(page, 9, round));
                    finished.fetch_add(1, Ordering::AcqRel);
                });
            }
            while finished.load(Ordering::Acquire) < 2 {
                noted.extend(paged.collect());
            }
        });
        noted.extend(paged.collect());
        assert_eq!(noted.len() as u64, PAGES, "round {round}");
        assert_eq!(paged.take_faults().len() as u64, PAGES);
        (0..PAGES).for_each(|page| assert_eq!(paged.runtime_byte(page, 9), round));
        paged.protect(range(0, PAGES), Access::None);
    }
}

fn two_collectors_share_each_write_out(mode: Mode) {
    const PAGES: u64 = 1500;
    let paged = Paged::new(mode, PAGES);
    paged.watch(range(0, PAGES));
    for _ in 0..20 {
        (0..PAGES).step_by(2).for_each(|page| paged.store(page, 0, 1));
        let mut both: Vec<u64> = thread::scope(|scope| {
            let collectors = [scope.spawn(|| paged.collect()), scope.spawn(|| paged.collect())];
            collectors.into_iter().flat_map(|collector| collector.join().unwrap()).collect()
        });
        both.sort_unstable();
        assert_eq!(both, (0..PAGES).step_by(2).collect::<Vec<_>>());
    }
}

/// Between watched pages lie a guard page, and pages whose stores fault.
fn pages_between_allocations_are_not_collected(mode: Mode) {
    let paged = Paged::new(mode, 8);
    paged.memory.allocate(range(9, 3)).unwrap();
    paged.memory.allocate(range(12, 8)).unwrap();
    paged.source.register(range(9, 3), WriteTracking::Fault).unwrap();
    paged.source.register(range(12, 8), mode.tracking).unwrap();
    paged.watch(range(0, 8));
    paged.watch(range(12, 8));
    // Nothing else is mapped yet, but no record may be reset between the two.
    [7, 12].iter().for_each(|page| paged.store(*page, 0, 9));
    assert_eq!(paged.collect(), [7, 12]);
    paged.protect(range(9, 3), Access::Write);
    assert_eq!(paged.collect(), []);
    for round in 0..3 {
        [7, 12, 19].iter().chain(&[9, 11]).for_each(|page| paged.store(*page, 0, round));
        assert_eq!(paged.collect(), [7, 12, 19]);
    }
    assert_eq!(paged.collect(), []);
    paged.protect(range(12, 8), Access::None);
    paged.store(0, 0, 1);
    assert_eq!(paged.collect(), [0]);
    assert_eq!(paged.take_faults(), []);
}

fn a_gibibyte_is_watched_in_one_run(mode: Mode) {
    const PAGES: u64 = 1 << 18;
    let paged = Paged::new(mode, PAGES + 8);
    paged.watch(range(5, PAGES));
    assert_eq!(paged.collect(), []);
    let written = [5, 6, 32768, 40_000, PAGES / 2, PAGES + 4];
    for round in 0..3 {
        written.iter().for_each(|page| paged.store(*page, 0, round));
        assert_eq!(paged.collect(), written);
    }
    paged.source.unwatch(range(32768, 32768)).unwrap();
    written.iter().for_each(|page| paged.store(*page, 0, 9));
    assert_eq!(paged.collect(), [5, 6, PAGES / 2, PAGES + 4]);
    assert_eq!(paged.take_faults(), []);
    paged.protect(range(0, PAGES), Access::None);
    assert_eq!(paged.collect(), [], "four granules are still watched, and none of them was written");
    paged.source.unwatch(range(0, PAGES + 8)).unwrap();
    assert_eq!(paged.collect(), []);
}

fn a_page_that_is_not_allocated_is_not_watched(mode: Mode) {
    let paged = Paged::new(mode, 4);
    let refused = Err(MemoryError::NotAllocated { range: range(3, 2) });
    assert_eq!(paged.source.watch(range(3, 2)), refused);
    assert_eq!(paged.source.watch(range(4, 0)), Ok(()));
    assert!(matches!(paged.source.watch(range(1 << 40, 1)), Err(MemoryError::OutsideRegion { .. })));
    assert_eq!(paged.source.unwatch(range(0, 100)), Ok(()));
    assert_eq!(paged.collect(), []);
    paged.watch(range(3, 1));
    paged.protect(range(3, 1), Access::None);
    assert_eq!(paged.unwritten(range(1, 100)), [3]);
}

/// In a debug build an assertion catches the same call.
#[cfg(not(debug_assertions))]
#[test]
fn asked_for_read_access_a_page_is_watched() {
    let test = concat!(module_path!(), "::asked_for_read_access_a_page_is_watched");
    let sigbus = mode(FaultSourceKind::Sigbus, WriteTracking::Async);
    run_case(test, User::Caller, sigbus, Ending::Success, |sigbus| {
        let paged = Paged::new(sigbus, 4);
        paged.source.protect(range(0, 2), Access::Read).unwrap();
        paged.store(1, 0, 1);
        assert_eq!((paged.take_faults(), paged.collect()), (vec![], vec![1]));
    });
}

#[test]
fn a_source_that_finds_writes_by_faults_watches_nothing() {
    let test = concat!(module_path!(), "::a_source_that_finds_writes_by_faults_watches_nothing");
    let sigsegv = mode(FaultSourceKind::Sigsegv, WriteTracking::Fault);
    run_case(test, User::Caller, sigsegv, Ending::Success, |sigsegv| {
        for kind in FaultSourceKind::ALL.into_iter().rev() {
            let paged = Paged::new(Mode { kind, ..sigsegv }, 4);
            assert_eq!(paged.source.watch(range(0, 1)), Err(MemoryError::NotTracking));
            assert_eq!(paged.source.unwatch(range(0, 1)), Ok(()));
            paged.store(0, 0, 1);
            assert_eq!(paged.collect(), []);
        }
    });
}
