//! What travels with the beginning of a region: the pages that its threads are about to read, so that other
//! nodes need not fetch them. These are the region's record, if it changes from region to region, and the
//! pages on the stack of the thread that begins the region, with the data that the compiler has put there.
//!
//! Such a page is lent until the region ends (`sc/lending.rs` of `hiroba-protocol`). A store to it ends that,
//! so the thread that begins the region runs its part on another page of its stack ([`below_page`]).

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::face;
use crate::job::{LIST, RECORDS, Region};
use crate::runtime;

const PAGE_BYTES: usize = 4096;
/// Data that compilers put together are mostly shorter.
const DATA_BYTES: usize = 512;
/// How far above the calling function data of the program's functions may lie.
const STACK_BYTES: usize = 64 << 10;
/// How many pages travel at most.
const PAGES_MAX: usize = 6;
/// For how many regions without a change a record that has changed travels.
const REGIONS_UNCHANGED: u32 = 8;

/// For how many regions each record still travels.
static TRAVELS: [AtomicU32; RECORDS] = [const { AtomicU32::new(0) }; RECORDS];

/// What a record contains, in short.
pub(crate) fn fingerprint(region: &Region) -> u64 {
    const WORDS: usize = std::mem::offset_of!(Region, list) / size_of::<AtomicU64>() + LIST;
    let first = ptr::from_ref(region).cast::<AtomicU64>();
    (0..WORDS).fold(0, |sum: u64, number| {
        // SAFETY: a record has as many words, aligned, which other threads only change atomically.
        let word = unsafe { &*first.wrapping_add(number) };
        (sum.rotate_left(5) ^ word.load(Relaxed)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// Pages that travel: the addresses of their first bytes.
#[derive(Default)]
pub(crate) struct Pages(Vec<usize>);

impl Pages {
    fn add(&mut self, address: usize) {
        let page = address & !(PAGE_BYTES - 1);
        if self.0.len() < PAGES_MAX && !self.0.contains(&page) {
            self.0.push(page);
        }
    }
}

/// Returns the pages that travel with a region: those of its data, and its record. This has a number, and has
/// changed or not.
pub(crate) fn pages(data: Pages, region: &Region, record: usize, has_changed: bool) -> Pages {
    let mut pages = data;
    let travels = &TRAVELS[record];
    let left = if has_changed { REGIONS_UNCHANGED } else { travels.load(Relaxed) };
    travels.store(left.saturating_sub(1), Relaxed);
    if left > 0 {
        pages.add(ptr::from_ref(region).addr());
    }
    pages
}

/// Returns those of data that the compiler has put together at an address; none if that is NULL.
pub(crate) fn pages_at(data: usize) -> Pages {
    let mut pages = Pages::default();
    if data != 0 {
        pages.add(data);
        pages.add(data + DATA_BYTES - 1);
    }
    pages
}

/// Returns those that a list is on, if it is on the calling thread's stack, and those of data there whose
/// addresses it contains.
///
/// # Safety
/// The list has as many words.
pub(crate) unsafe fn pages_of_list(list: *const usize, words: usize) -> Pages {
    let here = 0u8;
    let here = ptr::from_ref(&here).addr();
    let on_stack = |address: &usize| (here..here + STACK_BYTES).contains(address);
    let mut pages = Pages::default();
    let words = (0..words).map(|number| {
        // SAFETY: the caller's.
        unsafe { list.wrapping_add(number).read() }
    });
    [list.addr()].into_iter().chain(words).filter(on_stack).for_each(|address| pages.add(address));
    pages
}

/// Returns those that lie between a list, or the first of the data on the same stack whose addresses it
/// contains, and `top`, which is further up that stack: those of the list and of such data first.
///
/// # Safety
/// The list has as many words.
pub(crate) unsafe fn pages_up(list: *const usize, words: usize, top: usize) -> Pages {
    let words = (0..words).map(|number| {
        // SAFETY: the caller's.
        unsafe { list.wrapping_add(number).read() }
    });
    let here = list.addr().saturating_sub(STACK_BYTES);
    let on_stack = |address: &usize| (here..top).contains(address);
    let starts: Vec<usize> = [list.addr()].into_iter().chain(words).filter(on_stack).collect();
    let mut pages = Pages::default();
    pages.add(top);
    starts.iter().for_each(|start| pages.add(*start));
    // Values may be long.
    let first = starts.iter().min().map_or(top, |first| first & !(PAGE_BYTES - 1));
    (first..top).step_by(PAGE_BYTES).for_each(|page| pages.add(page));
    pages
}

/// Has these pages travel with this node's arrival at the next barrier of all nodes.
pub(crate) fn send_up(Pages(pages): &Pages) {
    // SAFETY: as many addresses are readable.
    unsafe { face::hiroba_carry_up(pages.as_ptr(), pages.len()) };
}

/// Has these pages travel with the departure from the next barrier of all nodes.
pub(crate) fn send(Pages(pages): &Pages) {
    // SAFETY: as many addresses are readable.
    runtime::privately(|| unsafe { face::hiroba_carry_along(pages.as_ptr(), pages.len()) });
}

/// Runs `work` on a part of the stack that shares no page with the caller's callers.
pub(crate) fn below_page(work: &mut dyn FnMut()) {
    // The page above may be on another node. It is about to be written, so it is not read first, which would
    // bring a copy and then the page.
    let above = AtomicU32::new(0);
    deeper(2, &mut || {
        work();
        black_box(&above).store(1, Relaxed);
    });
}

#[inline(never)]
fn deeper(levels: u32, work: &mut dyn FnMut()) {
    // A little shorter than a page, so that no function touches it.
    let room = MaybeUninit::<[u8; PAGE_BYTES - 256]>::uninit();
    black_box(room.as_ptr());
    match levels {
        0 => work(),
        _ => deeper(levels - 1, work),
    }
    black_box(room.as_ptr());
}
