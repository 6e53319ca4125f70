//! The requirements on every fault source, run over each and with each write tracking, each case in a process
//! of its own, as root and as an ordinary user. Requirements on asynchronous write tracking only are in
//! `write_tracking.rs`.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use hiroba_base::{Access, PageId, PageRange};
use hiroba_memory::{
    FaultSourceKind, MemoryConfig, MemoryError, REGION_START, SharedMemory, Twins, WriteTracking,
    install_alternate_stack, open, open_best,
};
use rustix::process::getuid;

use crate::common::{
    Ending, LAST_WORDS, isolated,
    pager::{Mode, Paged, Pager, User, become_ordinary, excuses, mode, range, run_case},
    skip,
};

macro_rules! conformance {
    (with every tracking: { $($both:ident: $ending:expr,)* } with faults: { $($fault:ident,)* }) => {
        conformance!(@suite event, Event, Fault, Caller, $($both: $ending,)* $($fault: Ending::Success,)*);
        conformance!(@suite sigbus, Sigbus, Fault, Caller, $($both: $ending,)* $($fault: Ending::Success,)*);
        conformance!(@suite sigsegv, Sigsegv, Fault, Caller, $($both: $ending,)* $($fault: Ending::Success,)*);
        conformance!(@suite sigbus_as_ordinary_user, Sigbus, Fault, Ordinary, $($both: $ending,)* $($fault: Ending::Success,)*);
        conformance!(@suite sigsegv_as_ordinary_user, Sigsegv, Fault, Ordinary, $($both: $ending,)* $($fault: Ending::Success,)*);
        conformance!(@suite event_async, Event, Async, Caller, $($both: $ending,)*);
        conformance!(@suite sigbus_async, Sigbus, Async, Caller, $($both: $ending,)*);
        conformance!(@suite sigbus_async_as_ordinary_user, Sigbus, Async, Ordinary, $($both: $ending,)*);
    };
    (@suite $suite:ident, $kind:ident, $tracking:ident, $user:ident, $($case:ident: $ending:expr,)*) => {
        mod $suite {
            use super::*;
            $(
                #[test]
                fn $case() {
                    let test = concat!(module_path!(), "::", stringify!($case));
                    let mode = mode(FaultSourceKind::$kind, WriteTracking::$tracking);
                    run_case(test, User::$user, mode, $ending, super::$case);
                }
            )*
        }
    };
}

const SEGMENTATION: Ending = Ending::Signal(libc::SIGSEGV);

conformance! {
    with every tracking: {
        a_store_first_faults_once: Ending::Success,
        lowered_to_none_a_page_faults_again_with_its_data: Ending::Success,
        threads_fault_on_the_same_page_at_once: Ending::Success,
        memcpy_over_many_pages: Ending::Success,
        untouched_pages_are_zero: Ending::Success,
        the_runtimes_view_never_faults: Ending::Success,
        lowered_access_holds_for_running_threads: Ending::Success,
        entries_dropped_by_the_kernel_come_back: Ending::Success,
        large_pages_change_as_one: Ending::Success,
        a_terabyte_costs_nothing_until_touched: Ending::Success,
        system_calls_on_absent_pages: Ending::Success,
        handlers_of_the_program_are_chained: Ending::Success,
        faults_are_handled_on_the_alternate_stack: Ending::Success,
        pages_not_allocated_are_refused: Ending::Success,
        a_dropped_source_leaves_room_for_another: Ending::Success,
        a_forked_child_has_no_region: Ending::Success,
        a_touch_behind_what_is_allocated_kills: SEGMENTATION,
        a_touch_after_the_source_is_dropped_kills: SEGMENTATION,
        a_null_pointer_kills: SEGMENTATION,
        faults_say_where_they_come_from: Ending::Success,
        stores_fault_on_pages_that_are_registered_so: Ending::Success,
        pages_that_are_mapped_elsewhere_fault_no_more: Ending::Success,
        code_is_executed_where_it_may_be: Ending::Success,
        a_range_across_executable_pages_changes_as_one: Ending::Success,
        data_that_is_executed_kills: SEGMENTATION,
        a_view_that_was_locked_loses_its_pages_all_the_same: Ending::Success,
    }
    with faults: {
        a_load_and_then_a_store_fault_once_each,
        a_large_page_that_is_writable_again_faults_once_for_all,
        no_store_is_lost_while_a_large_page_becomes_writable_again,
        lowered_to_read_a_page_faults_on_stores_again,
        one_call_changes_a_range,
        setting_access_twice_changes_nothing,
        an_answer_below_the_question_is_asked_again,
        threads_fault_on_different_pages_at_once,
    }
}

/// The lowest access with which loads do not fault.
fn readable(mode: Mode) -> Access {
    if mode.tracking == WriteTracking::Async { Access::Write } else { Access::Read }
}

fn a_load_and_then_a_store_fault_once_each(mode: Mode) {
    let paged = Paged::new(mode, 8);
    assert_eq!(paged.load(3, 77), 0);
    assert_eq!(paged.take_faults(), [paged.read_fault(3, 77)]);
    assert_eq!(paged.load(3, 0), 0);
    assert_eq!(paged.take_faults(), []);
    paged.store(3, 4095, 5);
    assert_eq!(paged.take_faults(), [paged.write_fault(3, 4095)]);
    paged.store(3, 0, 6);
    assert_eq!((paged.load(3, 4095), paged.load(3, 0)), (5, 6));
    assert_eq!(paged.take_faults(), []);
    assert_eq!((paged.runtime_byte(3, 4095), paged.runtime_byte(3, 0)), (5, 6));
}

fn a_store_first_faults_once(mode: Mode) {
    let paged = Paged::new(mode, 8);
    // SAFETY: an allocated page.
    let before = unsafe { AtomicU64::from_ptr(paged.at(0, 8).cast()) }.fetch_add(7, Ordering::AcqRel);
    assert_eq!((before, paged.runtime_byte(0, 8)), (0, 7));
    if cfg!(target_arch = "x86_64") {
        assert_eq!(paged.take_faults(), [paged.write_fault(0, 8)]);
    }
    paged.take_faults();
    assert_eq!(paged.load(0, 8), 7);
    paged.store(0, 9, 1);
    assert_eq!(paged.take_faults(), []);
}

fn pages_that_are_mapped_elsewhere_fault_no_more(mode: Mode) {
    use std::os::fd::AsFd;
    let paged = Paged::new(mode, 64);
    let file = rustix::fs::memfd_create("peer", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, paged.memory.region_bytes()).unwrap();
    rustix::io::pwrite(&file, &[9], 16 * 4096 + 5).unwrap();
    for (pages, frames) in [(range(16, 16), Some(file.as_fd())), (range(32, 8), None)] {
        paged.source.let_go(pages).unwrap();
        paged.memory.map_onto(pages, frames).unwrap();
    }
    assert_eq!((paged.load(16, 5), paged.load(31, 0), paged.load(39, 0)), (9, 0, 0));
    paged.store(31, 4095, 3);
    paged.store(32, 0, 4);
    assert_eq!((paged.runtime_byte(31, 4095), paged.runtime_byte(32, 0)), (3, 4));
    assert_eq!(paged.take_faults(), [], "the kernel gives these frames");
    let mut stored = [0];
    rustix::io::pread(&file, &mut stored, 32 * 4096 - 1).unwrap();
    assert_eq!(stored, [3], "the store is in the other file");
    // The neighbours fault, change and are watched as before, on both sides of the mapped pages.
    for page in [15, 40] {
        paged.store(page, 0, 1);
        assert_eq!(paged.take_faults(), [paged.write_fault(page, 0)]);
        paged.protect(range(page, 1), Access::None);
        assert_eq!(paged.load(page, 0), 1);
        assert_eq!(paged.take_faults(), [paged.read_fault(page, 0)]);
    }
    if mode.tracking == WriteTracking::Async {
        paged.watch(range(15, 1));
        paged.watch(range(40, 1));
        paged.store(15, 1, 1);
        paged.store(40, 1, 1);
        (16..40).for_each(|page| paged.store(page, 1, 1));
        assert_eq!(paged.collect(), [15, 40]);
    }
    assert_eq!(paged.take_faults(), []);
}

/// Makes a function that returns at once, and calls it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn execute(paged: &Paged, page: u64) {
    let code: &[u8] = if cfg!(target_arch = "x86_64") { &[0xc3] } else { &[0xc0, 0x03, 0x5f, 0xd6] };
    paged.memory.write(PageId(page), 0, code).unwrap();
    // SAFETY: the page contains a function without arguments and results.
    let function = unsafe { std::mem::transmute::<*mut u8, extern "C" fn()>(paged.at(page, 0)) };
    function();
}

fn code_is_executed_where_it_may_be(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.source.execute(range(2, 4), true).unwrap();
    for round in 0..3 {
        execute(&paged, 3);
        let faults = paged.take_faults();
        assert_eq!(faults, [paged.read_fault(3, 0)], "round {round}: to fetch is to load, and comes once");
        execute(&paged, 3);
        assert_eq!(paged.take_faults(), [], "round {round}");
        paged.protect(range(0, 16), Access::None);
    }
    // Accesses that do not execute still fault, and are found written.
    paged.store(3, 9, 1);
    assert_eq!(paged.take_faults(), [paged.write_fault(3, 9)]);
    assert_eq!((paged.load(3, 9), paged.runtime_byte(3, 9)), (1, 1));
    paged.source.execute(range(2, 4), false).unwrap();
    assert_eq!((paged.load(3, 9), paged.load(2, 0)), (1, 0));
    let error = paged.source.execute(range(15, 2), true).unwrap_err();
    assert!(matches!(error, MemoryError::NotAllocated { .. }), "{error}");
}

/// The kernel has several mappings for them.
fn a_range_across_executable_pages_changes_as_one(mode: Mode) {
    let paged = Paged::new(mode, 64);
    for page in [3, 4, 9, 20, 21, 22, 40, 63] {
        paged.source.execute(range(page, 1), true).unwrap();
    }
    for round in 1..4 {
        for (first, count) in [(0, 64), (3, 7), (4, 17), (21, 43)] {
            paged.protect(range(first, count), Access::None);
            paged.protect(range(first, count), Access::Write);
            paged.take_faults();
            (first..first + count).for_each(|page| paged.store(page, 8, round));
            assert_eq!(paged.take_faults(), [], "a page of {first} and {count} was not writable");
            assert!((first..first + count).all(|page| paged.runtime_byte(page, 8) == round));
        }
        paged.protect(range(0, 64), Access::None);
        if mode.tracking == WriteTracking::Async {
            paged.watch(range(0, 64));
            for page in [2, 3, 22, 23] {
                paged.store(page, 16, round);
            }
            assert_eq!(paged.collect(), [2, 3, 22, 23]);
        }
        paged.take_faults();
    }
}

fn data_that_is_executed_kills(mode: Mode) {
    let paged = Paged::new(mode, 8);
    paged.source.execute(range(0, 2), true).unwrap();
    execute(&paged, 1);
    paged.protect(range(2, 2), Access::Write);
    println!("{LAST_WORDS}");
    execute(&paged, 2);
}

/// The kernel keeps the entries of locked pages: a program may have locked them by a raw system call.
fn a_view_that_was_locked_loses_its_pages_all_the_same(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.protect(range(0, 16), Access::Write);
    // SAFETY: locking changes no byte.
    let locked = unsafe { libc::syscall(libc::SYS_mlock, paged.at(4, 0), 2 * 4096) };
    assert_eq!(locked, 0);
    paged.store(4, 0, 7);
    paged.protect(range(0, 16), Access::None);
    paged.take_faults();
    assert_eq!(paged.load(4, 0), 7);
    assert_eq!(paged.take_faults(), [paged.read_fault(4, 0)]);
}

fn lowered_to_read_a_page_faults_on_stores_again(mode: Mode) {
    let paged = Paged::new(mode, 8);
    for round in 1..20 {
        paged.store(1, 0, round);
        paged.take_faults();
        paged.protect(range(1, 1), Access::Read);
        assert_eq!(paged.load(1, 0), round);
        assert_eq!(paged.take_faults(), []);
        paged.store(1, 1, round);
        assert_eq!(paged.take_faults(), [paged.write_fault(1, 1)]);
        assert_eq!(paged.runtime_byte(1, 1), round);
    }
}

fn lowered_to_none_a_page_faults_again_with_its_data(mode: Mode) {
    let paged = Paged::new(mode, 8);
    for round in 1..20 {
        paged.store(2, 0, round);
        paged.protect(range(2, 1), Access::None);
        paged.memory.write(PageId(2), 4095, &[round + 100]).unwrap();
        paged.take_faults();
        assert_eq!((paged.load(2, 0), paged.load(2, 4095)), (round, round + 100));
        assert_eq!(paged.take_faults(), [paged.read_fault(2, 0)]);
        // From Read to None and straight to Write.
        paged.protect(range(2, 1), Access::None);
        paged.store(2, 7, round);
        assert_eq!(paged.take_faults(), [paged.write_fault(2, 7)]);
        assert_eq!((paged.load(2, 0), paged.runtime_byte(2, 7)), (round, round));
    }
}

fn one_call_changes_a_range(mode: Mode) {
    const PAGES: u64 = 300;
    let paged = Paged::new(mode, PAGES + 2);
    let all = range(1, PAGES);
    paged.protect(all, Access::Read);
    all.iter().for_each(|page| assert_eq!(paged.load(page.0, 1), 0));
    assert_eq!(paged.take_faults(), []);
    // A mixture: every third page None, every third Write.
    for page in all.iter() {
        match page.0 % 3 {
            0 => paged.protect(PageRange::single(page), Access::None),
            1 => paged.protect(PageRange::single(page), Access::Write),
            _ => {}
        }
    }
    paged.protect(all, Access::Write);
    all.iter().for_each(|page| paged.store(page.0, 5, page.0 as u8));
    assert_eq!(paged.take_faults(), []);
    paged.protect(range(100, 50), Access::None);
    paged.protect(all, Access::Read);
    for page in all.iter() {
        assert_eq!(paged.load(page.0, 5), page.0 as u8);
        assert_eq!(paged.take_faults(), []);
        paged.store(page.0, 6, 1);
        assert_eq!(paged.take_faults(), [paged.write_fault(page.0, 6)]);
    }
    paged.protect(all, Access::None);
    for page in all.iter() {
        assert_eq!(paged.load(page.0, 5), page.0 as u8);
        assert_eq!(paged.take_faults(), [paged.read_fault(page.0, 5)]);
    }
    // The neighbours were not changed.
    assert!(!paged.memory.is_populated(range(0, 1)) && !paged.memory.is_populated(range(PAGES + 1, 1)));
}

fn setting_access_twice_changes_nothing(mode: Mode) {
    let paged = Paged::new(mode, 40);
    for access in [Access::None, Access::Read, Access::Write, Access::Read, Access::None, Access::Write] {
        paged.protect(range(0, 20), access);
        paged.protect(range(10, 20), access);
        paged.protect(range(5, 30), access);
        paged.protect(range(5, 0), access);
        for page in [0, 12, 22, 34] {
            paged.load(page, 0);
            let expected = if access == Access::None { vec![paged.read_fault(page, 0)] } else { vec![] };
            assert_eq!(paged.take_faults(), expected, "load with {access:?}");
            paged.store(page, 0, 1);
            let expected = if access == Access::Write { vec![] } else { vec![paged.write_fault(page, 0)] };
            assert_eq!(paged.take_faults(), expected, "store with {access:?}");
        }
    }
}

fn an_answer_below_the_question_is_asked_again(mode: Mode) {
    let paged = Paged::new(mode, 8);
    for access in [Access::None, Access::Read] {
        paged.protect(range(1, 1), access);
        paged.pager.stingy_answers.store(3, Ordering::Release);
        paged.store(1, 5, 3);
        // As often as the answer was at most Read, and once more; an entry that is present at first saves
        // none.
        assert_eq!(paged.take_faults(), [paged.write_fault(1, 5); 4]);
        assert_eq!(paged.runtime_byte(1, 5), 3);
    }
}

fn threads_fault_on_different_pages_at_once(mode: Mode) {
    const PAGES: u64 = 400;
    let paged = Paged::new(mode, PAGES);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for parity in 0..2 {
            let (paged, start) = (&paged, &start);
            scope.spawn(move || {
                install_alternate_stack().unwrap();
                start.wait();
                for page in (parity..PAGES).step_by(2) {
                    assert_eq!(paged.load(page, 9), 0);
                    paged.store(page, 9, page as u8 | 1);
                }
            });
        }
    });
    let mut faults = paged.take_faults();
    faults.sort_by_key(|fault| fault.page);
    let expected: Vec<_> =
        (0..PAGES).flat_map(|page| [paged.read_fault(page, 9), paged.write_fault(page, 9)]).collect();
    assert_eq!(faults, expected);
    (0..PAGES).for_each(|page| assert_eq!(paged.runtime_byte(page, 9), page as u8 | 1));
}

fn threads_fault_on_the_same_page_at_once(mode: Mode) {
    const ROUNDS: u64 = 300;
    let paged = Paged::new(mode, 4);
    let start = Barrier::new(3);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (paged, start) = (&paged, &start);
            scope.spawn(move || {
                install_alternate_stack().unwrap();
                for round in 0..ROUNDS {
                    start.wait();
                    // One reads, one writes, alternating; a read granted late may lower the other's access.
                    if (round + thread) % 2 == 0 {
                        paged.load(1, 0);
                    } else {
                        paged.store(1, 8, round as u8);
                    }
                    start.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            start.wait();
            start.wait();
            assert_eq!(paged.runtime_byte(1, 8), round as u8);
            paged.protect(range(1, 1), Access::None);
        }
    });
}

fn memcpy_over_many_pages(mode: Mode) {
    const BYTES: usize = 100 * 4096;
    let paged = Paged::new(mode, 256);
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at * 31 + at / 4096) as u8).collect();
    for (page, bytes) in pattern.chunks(4096).enumerate() {
        paged.memory.write(PageId(page as u64), 0, bytes).unwrap();
    }
    let (from, to) = (paged.at(0, 0), paged.at(128, 123));
    // SAFETY: both ranges are allocated and do not overlap.
    unsafe { from.copy_to_nonoverlapping(to, BYTES) };
    let mut copied = vec![0; 101 * 4096];
    paged.memory.read(PageId(128), 0, &mut copied);
    assert!(copied[123..][..BYTES] == pattern[..]);
    assert!(copied[..123].iter().chain(&copied[123 + BYTES..]).all(|byte| *byte == 0));
}

fn untouched_pages_are_zero(mode: Mode) {
    let paged = Paged::new(mode, 16);
    (0..4096).for_each(|offset| assert_eq!(paged.load(4, offset), 0));
    paged.store(5, 100, 1);
    let mut page = [9; 4096];
    paged.memory.read(PageId(5), 0, &mut page);
    assert!(page.iter().enumerate().all(|(offset, byte)| *byte == u8::from(offset == 100)));
    paged.memory.read(PageId(6), 0, &mut page);
    assert_eq!(page, [0; 4096]);
    assert_eq!(paged.memory.frames(), 2);
}

fn the_runtimes_view_never_faults(mode: Mode) {
    let paged = Paged::new(mode, 16);
    let mut twins = Twins::new(paged.memory.clone());
    for access in [Access::None, readable(mode), Access::Write, readable(mode), Access::None] {
        paged.protect(range(0, 3), access);
        for page in 0..3 {
            let page = PageId(page);
            paged.memory.write(page, 10, &[access as u8 + 1; 20]).unwrap();
            assert_eq!(paged.runtime_byte(page.0, 29), access as u8 + 1);
            paged.memory.atomic_u64(page, 0).unwrap().fetch_add(1, Ordering::AcqRel);
            assert!(
                twins.make(page, 4096)
                    && twins.get(page).unwrap()[10] == access as u8 + 1
                    && twins.remove(page)
            );
        }
        assert_eq!(paged.take_faults(), []);
    }
    assert_eq!((paged.load(0, 0), paged.load(0, 10)), (5, 1));
}

fn lowered_access_holds_for_running_threads(mode: Mode) {
    let paged = Paged::new(mode, 4);
    let done = AtomicBool::new(false);
    let count = || paged.memory.atomic_u64(PageId(1), 0).unwrap().load(Ordering::Acquire);
    thread::scope(|scope| {
        scope.spawn(|| {
            install_alternate_stack().unwrap();
            // SAFETY: an allocated page.
            let counter = unsafe { AtomicU64::from_ptr(paged.at(1, 0).cast()) };
            while !done.load(Ordering::Acquire) {
                counter.fetch_add(1, Ordering::AcqRel);
            }
        });
        for round in 0..200 {
            let before = count();
            while count() < before + 10 {
                thread::yield_now();
            }
            paged.pager.hold.store(true, Ordering::Release);
            let lowered = if round % 2 == 0 && mode.tracking == WriteTracking::Fault {
                Access::Read
            } else {
                Access::None
            };
            paged.protect(range(1, 1), lowered);
            let held = count();
            thread::sleep(Duration::from_micros(100));
            assert_eq!(count(), held, "a store went through after access was taken away");
            paged.pager.hold.store(false, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
}

fn entries_dropped_by_the_kernel_come_back(mode: Mode) {
    let paged = Paged::new(mode, 64);
    for access in [readable(mode), Access::Write] {
        paged.protect(range(0, 64), access);
        (0..64).for_each(|page| paged.memory.write(PageId(page), 3, &[page as u8]).unwrap());
        paged.drop_entries(range(0, 64));
        (0..32).for_each(|page| assert_eq!(paged.load(page, 3), page as u8));
        paged.protect(range(0, 64), access);
        (0..64).for_each(|page| paged.store(page, 4, 1));
        (0..64)
            .for_each(|page| assert_eq!((paged.load(page, 3), paged.runtime_byte(page, 4)), (page as u8, 1)));
    }
}

/// Of a thousand granules the kernel may now and then remove an entry by itself (it compacts memory, and
/// looks for pages to reclaim). An access then faults although it is permitted, and is permitted again.
const TAKEN_BY_THE_KERNEL_MAX: usize = 3;

fn large_pages_change_as_one(mode: Mode) {
    let paged = Paged::new(mode, 4 * 512);
    for (first, granules) in [(16, 16), (512, 512), (1024, 1024)] {
        let page = range(first, granules);
        paged.protect(page, readable(mode));
        page.iter().for_each(|granule| assert_eq!(paged.load(granule.0, 4095), 0));
        assert!(paged.take_faults().len() <= TAKEN_BY_THE_KERNEL_MAX);
        paged.protect(page, Access::Write);
        page.iter().for_each(|granule| paged.store(granule.0, 0, 4));
        assert!(paged.take_faults().len() <= TAKEN_BY_THE_KERNEL_MAX);
        assert_eq!(paged.memory.frames() * 4096, paged.memory.resident_bytes());
        paged.drop_entries(range(first + 2, 2));
        page.iter().for_each(|granule| assert_eq!(paged.load(granule.0, 0), 4));
        paged.protect(page, Access::None);
        let dropped = if mode.kind == FaultSourceKind::Sigsegv { 0 } else { 2 };
        assert!((dropped..=dropped + TAKEN_BY_THE_KERNEL_MAX).contains(&paged.take_faults().len()));
        assert_eq!(paged.runtime_byte(first, granules as usize * 4096 - 4096), 4);
        for granule in page.iter().step_by(7) {
            assert_eq!(paged.load(granule.0, 0), 4);
            assert_eq!(paged.take_faults(), [paged.read_fault(granule.0, 0)]);
        }
    }
    assert_eq!(paged.memory.frames(), 16 + 512 + 1024);
}

fn no_store_is_lost_while_a_large_page_becomes_writable_again(mode: Mode) {
    const GRANULES: u64 = 64;
    let page = range(0, GRANULES);
    let paged = Paged::new(mode, GRANULES);
    paged.protect(page, Access::Write);
    let done = AtomicBool::new(false);
    let stores = [AtomicU64::new(0), AtomicU64::new(0)];
    let await_stores = || {
        let counts = || stores.each_ref().map(|count| count.load(Ordering::Acquire));
        let before = counts();
        while counts().iter().zip(before).any(|(now, before)| *now < before + 10) {
            thread::yield_now();
        }
    };
    let stored = thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (paged, done, stores) = (&paged, &done, &stores);
                scope.spawn(move || {
                    install_alternate_stack().unwrap();
                    let mut stored = 0_u64;
                    while !done.load(Ordering::Acquire) {
                        let (granule, value) = (stored % GRANULES, (stored / GRANULES) as u8);
                        let expected = value.wrapping_sub(u8::from(stored >= GRANULES));
                        assert_eq!(paged.load(granule, thread), expected);
                        paged.store(granule, thread, value);
                        stored += 1;
                        stores[thread].fetch_add(1, Ordering::AcqRel);
                    }
                    stored
                })
            })
            .collect();
        for _ in 0..200 {
            paged.protect(page, Access::Read);
            await_stores();
            paged.protect(page, Access::Write);
            await_stores();
        }
        done.store(true, Ordering::Release);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for (thread, stored) in stored.into_iter().enumerate() {
        assert!(stored >= GRANULES, "{stored} stores");
        for granule in 0..GRANULES {
            let last = (stored - 1 - granule) / GRANULES;
            assert_eq!(paged.runtime_byte(granule, thread), last as u8);
        }
    }
}

/// Returns the number of the calling thread's faults that the kernel handled by itself.
fn faults_of_the_kernel() -> i64 {
    // SAFETY: a rusage of zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place is a local of the required length.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_minflt
}

fn a_large_page_that_is_writable_again_faults_once_for_all(mode: Mode) {
    const GRANULES: u64 = 256;
    let page = range(0, GRANULES);
    let paged = Paged::new(mode, GRANULES);
    paged.protect(page, Access::Write);
    for round in 1..4 {
        page.iter().for_each(|granule| paged.store(granule.0, 0, round));
        paged.protect(page, Access::Read);
        page.iter().for_each(|granule| assert_eq!(paged.load(granule.0, 0), round));
        paged.protect(page, Access::Write);
        let before = faults_of_the_kernel();
        page.iter().for_each(|granule| paged.store(granule.0, 1, round));
        let faults = faults_of_the_kernel() - before;
        assert!(faults < GRANULES as i64 / 8, "{faults} faults where all was writable");
    }
    assert!(paged.take_faults().len() <= 3 * TAKEN_BY_THE_KERNEL_MAX);
}

fn faults_say_where_they_come_from(mode: Mode) {
    let paged = Paged::new(mode, 4);
    paged.load(1, 0);
    let faults = paged.take_faults_whole();
    let [fault] = faults[..] else { panic!("{faults:?}") };
    if mode.kind == FaultSourceKind::Event {
        let this_thread = rustix::thread::gettid().as_raw_pid() as u32;
        assert_eq!((fault.thread, fault.program_counter), (Some(this_thread), None));
        return;
    }
    assert_eq!(fault.thread, None);
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        // An address in this program.
        let place = fault.program_counter.unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut code = maps.lines().filter(|line| line.contains("r-xp"));
        assert!(code.any(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let address = |word| usize::from_str_radix(word, 16).unwrap();
            (address(start)..address(end)).contains(&place)
        }));
    }
}

fn a_terabyte_costs_nothing_until_touched(mode: Mode) {
    const PAGES: u64 = 1 << 28;
    let paged = Paged::with_config(mode, MemoryConfig::default(), PAGES);
    assert_eq!(paged.memory.resident_bytes(), 0);
    assert_eq!((paged.load(0, 0), paged.load(PAGES - 1, 4095), paged.load(PAGES / 2, 1)), (0, 0, 0));
    paged.source.protect(range(0, PAGES), Access::None).unwrap();
    assert_eq!((paged.memory.frames(), paged.memory.resident_bytes()), (3, 3 * 4096));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 1024, "{kib} KiB of shared memory are resident");
}

fn system_calls_on_absent_pages(mode: Mode) {
    let paged = Paged::new(mode, 8);
    paged.memory.write(PageId(1), 0, &[1; 4096]).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    use std::os::fd::AsRawFd;
    // SAFETY: the range is allocated; the kernel reads it.
    let sent = unsafe { libc::write(writer.as_raw_fd(), paged.at(1, 0).cast(), 2000) };
    let error = std::io::Error::last_os_error();
    if mode.kind != FaultSourceKind::Event {
        assert_eq!((sent, error.raw_os_error()), (-1, Some(libc::EFAULT)));
        return;
    }
    assert_eq!(sent, 2000);
    // SAFETY: the range is allocated; the kernel writes it.
    let got = unsafe { libc::read(reader.as_raw_fd(), paged.at(2, 0).cast(), 2000) };
    assert_eq!(got, 2000);
    assert_eq!(paged.runtime_byte(2, 1999), 1);
    assert_eq!(paged.take_faults().iter().map(|fault| fault.page.0).collect::<Vec<_>>(), [1, 2]);
}

/// Static, because the program's own handlers get no argument of ours.
static OWN_PAGE: AtomicUsize = AtomicUsize::new(0);
static OWN_FILE: AtomicU32 = AtomicU32::new(0);
static SHARED_ADDRESS: AtomicUsize = AtomicUsize::new(0);
static OWN_CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn own_segmentation_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo, valid until we return.
    let info = unsafe { &*info };
    // SAFETY: SIGSEGV has an address.
    let address = unsafe { info.si_addr() }.addr();
    assert_eq!(address, OWN_PAGE.load(Ordering::Relaxed));
    // While our handler runs, other signals are blocked; while this one runs, signals that were not blocked
    // must not be.
    // SAFETY: a plain C set, of which zeros are a valid value.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: only queries, and writes to a local.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask) };
    // SAFETY: reads a local.
    assert_eq!(unsafe { libc::sigismember(&raw const mask, libc::SIGUSR1) }, 0);
    // A handler may itself access shared memory.
    // SAFETY: an allocated page.
    unsafe { (SHARED_ADDRESS.load(Ordering::Relaxed) as *mut u8).write_volatile(11) };
    // SAFETY: this test's own page.
    unsafe { libc::mprotect(address as *mut _, 4096, libc::PROT_READ) };
    OWN_CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn own_bus_handler(_: i32) {
    // SAFETY: this test's own file, which becomes long enough for the load.
    unsafe { libc::ftruncate(OWN_FILE.load(Ordering::Relaxed) as i32, 4096) };
    OWN_CALLS.fetch_add(100, Ordering::Relaxed);
}

fn install_own(number: i32, handler: usize, flags: i32) {
    // SAFETY: a plain C structure, of which zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the handler is a function of the kind that the flags say.
    assert_eq!(unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) }, 0);
}

fn handlers_of_the_program_are_chained(mode: Mode) {
    install_own(libc::SIGSEGV, own_segmentation_handler as *const () as usize, libc::SA_SIGINFO);
    install_own(libc::SIGBUS, own_bus_handler as *const () as usize, 0);
    let paged = Paged::new(mode, 4);
    SHARED_ADDRESS.store(paged.at(2, 0).addr(), Ordering::Relaxed);
    let file = rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::empty()).unwrap();
    OWN_FILE.store(std::os::fd::AsRawFd::as_raw_fd(&file) as u32, Ordering::Relaxed);
    let map = |protection, flags| {
        let fd = if flags & libc::MAP_ANONYMOUS == 0 { OWN_FILE.load(Ordering::Relaxed) as i32 } else { -1 };
        // SAFETY: a new mapping that replaces none.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>()
    };
    let forbidden = map(libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let too_short = map(libc::PROT_READ, libc::MAP_SHARED);
    OWN_PAGE.store(forbidden.addr(), Ordering::Relaxed);
    // SAFETY: faults, and the handler above makes it readable.
    assert_eq!(unsafe { forbidden.read_volatile() }, 0);
    // SAFETY: faults, and the handler above makes the file long enough.
    assert_eq!(unsafe { too_short.read_volatile() }, 0);
    assert_eq!(OWN_CALLS.load(Ordering::Relaxed), 101);
    assert_eq!(paged.runtime_byte(2, 0), 11);
    // Ours is still installed.
    paged.take_faults();
    assert_eq!(paged.load(3, 0), 0);
    assert_eq!(paged.take_faults(), [paged.read_fault(3, 0)]);
}

fn faults_are_handled_on_the_alternate_stack(mode: Mode) {
    let paged = Paged::new(mode, 4);
    // SAFETY: returns the address of this thread's errno, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { errno.write(12345) };
    paged.load(0, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { errno.read() }, 12345, "handling a fault must not be seen in errno");
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: only queries.
    assert_eq!(unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) }, 0);
    let used = paged.pager.stack_address.load(Ordering::Relaxed) as usize;
    let on_it = (stack.ss_sp.addr()..stack.ss_sp.addr() + stack.ss_size).contains(&used);
    assert_eq!(on_it, mode.kind != FaultSourceKind::Event);
}

fn pages_not_allocated_are_refused(mode: Mode) {
    let paged = Paged::new(mode, 4);
    let refused = |pages| Err(MemoryError::NotAllocated { range: pages });
    assert_eq!(paged.source.protect(range(4, 1), Access::Write), refused(range(4, 1)));
    assert_eq!(paged.source.protect(range(3, 2), Access::None), refused(range(3, 2)));
    assert_eq!(paged.source.register(range(5, 1), WriteTracking::Fault), refused(range(5, 1)));
    let beyond = range(1 << 40, 1);
    assert!(matches!(paged.source.protect(beyond, Access::Write), Err(MemoryError::OutsideRegion { .. })));
    // A second allocation next to the first, and another apart from it.
    for pages in [range(4, 4), range(100, 3)] {
        paged.memory.allocate(pages).unwrap();
        paged.source.register(pages, paged.source.tracking()).unwrap();
        paged.store(pages.first.0 + 1, 0, 1);
        assert_eq!(paged.take_faults(), [paged.write_fault(pages.first.0 + 1, 0)]);
    }
    paged.protect(range(0, 8), readable(mode));
    paged.load(3, 0);
    paged.load(4, 0);
    assert_eq!(paged.take_faults(), []);
}

fn stores_fault_on_pages_that_are_registered_so(mode: Mode) {
    let paged = Paged::new(mode, 4);
    paged.pager.stores_fault_from.set(4).unwrap();
    paged.memory.allocate(range(4, 4)).unwrap();
    paged.source.register(range(4, 4), WriteTracking::Fault).unwrap();
    paged.load(1, 0);
    paged.load(5, 0);
    assert_eq!(paged.take_faults(), [paged.read_fault(1, 0), paged.read_fault(5, 0)]);
    paged.store(5, 9, 1);
    assert_eq!(paged.take_faults(), [paged.write_fault(5, 9)]);
    paged.store(1, 1, 2);
    let faults = paged.take_faults();
    let written = paged.collect();
    match mode.tracking {
        WriteTracking::Async => assert_eq!((faults, written), (vec![], vec![1])),
        WriteTracking::Fault => assert_eq!((faults, written), (vec![paged.write_fault(1, 1)], vec![])),
    }
    paged.protect(range(4, 4), Access::Read);
    assert_eq!(paged.load(5, 9), 1);
    assert_eq!(paged.take_faults(), []);
    paged.store(5, 9, 3);
    assert_eq!(paged.take_faults(), [paged.write_fault(5, 9)]);
    assert_eq!((paged.load(5, 9), paged.runtime_byte(5, 9), paged.collect()), (3, 3, vec![]));
}

fn a_dropped_source_leaves_room_for_another(mode: Mode) {
    let paged = Paged::new(mode, 4);
    let elsewhere = MemoryConfig { region_start: REGION_START + (1 << 40), ..MemoryConfig::default() };
    let elsewhere = Arc::new(SharedMemory::reserve(elsewhere).unwrap());
    for other in FaultSourceKind::ALL {
        let second = open(other, WriteTracking::Fault, paged.memory.clone(), Arc::new(Pager::default()));
        assert_eq!(second.err().unwrap(), MemoryError::AlreadyOpen { kind: other });
        let second = open(other, WriteTracking::Fault, elsewhere.clone(), Arc::new(Pager::default()));
        let signal_taken = other == mode.kind && mode.kind != FaultSourceKind::Event;
        let refused_as_taken = matches!(second, Err(MemoryError::AlreadyOpen { .. }));
        assert_eq!(refused_as_taken, signal_taken, "{other} beside {mode:?}");
    }
    let memory = paged.memory.clone();
    paged.store(1, 1, 8);
    drop(paged);
    for round in 0..3 {
        let paged = Paged::over(mode, memory.clone());
        paged.source.register(range(0, 4), paged.source.tracking()).unwrap();
        assert_eq!(paged.load(1, 1), 8 + round);
        assert_eq!(paged.take_faults(), [paged.read_fault(1, 1)]);
        paged.store(1, 1, 9 + round);
    }
    drop(memory);
    Paged::new(mode, 4).store(0, 0, 1);
}

fn a_forked_child_has_no_region(mode: Mode) {
    let paged = Paged::new(mode, 4);
    paged.store(1, 0, 1);
    let address = paged.at(1, 0);
    // SAFETY: the child only touches one byte and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: not mapped in the child: must die here.
        unsafe { address.write_volatile(2) };
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
    assert_eq!(paged.runtime_byte(1, 0), 1);
}

fn a_touch_behind_what_is_allocated_kills(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.store(15, 4095, 1);
    println!("{LAST_WORDS}");
    paged.load(16, 0);
}

fn a_touch_after_the_source_is_dropped_kills(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.store(15, 4095, 1);
    let memory = paged.memory.clone();
    drop(paged);
    println!("{LAST_WORDS}");
    // SAFETY: mapped without access: must die here.
    unsafe { memory.address_of(PageId(15)).read_volatile() };
}

fn a_null_pointer_kills(mode: Mode) {
    let paged = Paged::new(mode, 16);
    paged.store(15, 4095, 1);
    println!("{LAST_WORDS}");
    let nowhere = std::hint::black_box(8usize) as *const u8;
    // SAFETY: never mapped: must die here.
    unsafe { nowhere.read_volatile() };
}

/// Makes enough mappings to come near `vm.max_map_count`, without memory behind them.
fn use_up_mappings(leave: usize) {
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 1 << 20 {
        skip("vm.max_map_count is too high to be used up in a test");
    }
    let bytes = limit * 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping that replaces none.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // Every second page readable: two mappings per change.
    for change in 0..(limit - leave) / 2 {
        let page = start.wrapping_byte_add((2 * change + 1) * 4096);
        // SAFETY: inside this test's own mapping.
        if unsafe { libc::mprotect(page, 4096, libc::PROT_READ) } != 0 {
            break;
        }
    }
}

fn alternating_pages(paged: &Paged, pages: u64) {
    for page in (1..pages).step_by(2) {
        paged.protect(range(page, 1), Access::Write);
        paged.store(page, 0, page as u8 | 1);
        if page % 4 == 1 {
            paged.protect(range(page, 1), Access::Read);
        }
    }
    for page in 0..pages {
        assert_eq!(paged.load(page, 0), if page % 2 == 1 { page as u8 | 1 } else { 0 });
        paged.store(page, 1, 7);
        assert_eq!(paged.runtime_byte(page, 1), 7);
    }
}

#[test]
fn more_alternating_pages_than_mappings() {
    run_case(
        concat!(module_path!(), "::more_alternating_pages_than_mappings"),
        User::Caller,
        mode(FaultSourceKind::Sigsegv, WriteTracking::Fault),
        Ending::Success,
        |mode| {
            let paged = Paged::new(mode, 8000);
            use_up_mappings(1500);
            alternating_pages(&paged, 8000);
        },
    );
}

#[test]
fn no_mapping_left_at_all() {
    let sigsegv = mode(FaultSourceKind::Sigsegv, WriteTracking::Fault);
    let test = concat!(module_path!(), "::no_mapping_left_at_all");
    run_case(test, User::Caller, sigsegv, Ending::Success, |mode| {
        let paged = Paged::new(mode, 64);
        use_up_mappings(0);
        assert_eq!(paged.source.protect(range(1, 1), Access::Write), Err(MemoryError::TooManyMappings));
        // A change of the whole region needs no further mapping.
        assert_eq!(paged.source.protect(range(0, 64), Access::None), Ok(()));
    });
}

#[test]
fn the_best_source_is_opened_and_the_others_excused() {
    for (user, name) in [(User::Caller, "the caller"), (User::Ordinary, "an ordinary user")] {
        let test = concat!(module_path!(), "::the_best_source_is_opened_and_the_others_excused");
        run_case_named(test, user, name);
    }
}

fn run_case_named(test: &str, user: User, name: &str) {
    isolated(test, Ending::Success, || {
        if user == User::Ordinary && getuid().is_root() {
            become_ordinary();
        }
        let config = MemoryConfig { region_bytes: 1 << 30, ..MemoryConfig::default() };
        let memory = Arc::new(SharedMemory::reserve(config).unwrap());
        let pager: Arc<dyn hiroba_memory::FaultHandler> = Arc::new(Pager::default());
        let (source, refusals) = open_best(None, None, &memory, &pager).unwrap();
        let best = Mode { kind: source.kind(), tracking: source.tracking() };
        drop(source);
        let order = FaultSourceKind::ALL
            .into_iter()
            .flat_map(|kind| WriteTracking::ALL.into_iter().map(move |tracking| Mode { kind, tracking }));
        let tried: Vec<Mode> = order.clone().take_while(|each| *each != best).collect();
        let refused: Vec<Mode> =
            refusals.iter().map(|refusal| Mode { kind: refusal.kind, tracking: refusal.tracking }).collect();
        assert_eq!(refused, tried, "{name}");
        for refusal in &refusals {
            assert!(excuses(&refusal.reason), "{name}: {refusal}");
            println!("{name}: {refusal}");
        }
        // The requested combination is opened, or refused for its own reason.
        for Mode { kind, tracking } in order {
            match open_best(Some(kind), Some(tracking), &memory, &pager) {
                Ok((source, refusals)) => {
                    assert_eq!((source.kind(), source.tracking(), refusals), (kind, tracking, vec![]));
                }
                Err(error) => assert!(excuses(&error), "{name}: {error}"),
            }
        }
        let (sigsegv, refusals) = open_best(Some(FaultSourceKind::Sigsegv), None, &memory, &pager).unwrap();
        assert_eq!((sigsegv.tracking(), refusals.len()), (WriteTracking::Fault, 1));
        assert!(refusals[0].reason.to_string().contains("--write-tracking fault"), "{}", refusals[0]);
    });
}
