//! Measures the comparison of pages with their twins: medians for each variant, hot and cold, beside a plain
//! read of the same bytes.
//!
//! `cargo run --release -p hiroba-memory --example compare`

use std::{hint::black_box, sync::Arc, time::Instant};

use hiroba_base::PageId;
use hiroba_memory::{MemoryConfig, SharedMemory, Twins, compare::Variant};

const PAGE_BYTES: usize = 4096;
/// Enough pages to exceed any last-level cache of such machines four times.
const COLD_PAGES: usize = 32 << 10;
const ROUNDS: usize = 9;
const HOT_TIMES: usize = 2000;

/// A cache line, so that copies begin on cache lines as frames and twins do.
#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn pages(count: usize) -> Vec<Line> {
    vec![Line([3; 64]); count * PAGE_BYTES / 64]
}

fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are plain bytes without padding, one after the other.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// One way to process pages.
struct Course<'a> {
    name: String,
    pages: usize,
    round: Box<dyn FnMut() + 'a>,
}

impl<'a> Course<'a> {
    fn new(name: impl Into<String>, pages: usize, round: impl FnMut() + 'a) -> Course<'a> {
        Course { name: name.into(), pages, round: Box::new(round) }
    }
}

/// Prints medians in nanoseconds per page, and their ratios to the first. The courses take turns, so that
/// other load on the machine affects all of them alike.
fn report(title: &str, courses: &mut [Course<'_>]) {
    let mut all = vec![Vec::new(); courses.len()];
    for round in 0..=ROUNDS {
        for (course, times) in courses.iter_mut().zip(&mut all) {
            let start = Instant::now();
            (course.round)();
            let page_ns = start.elapsed().as_nanos() as f64 / course.pages as f64;
            // The first round warms up.
            times.extend((round > 0).then_some(page_ns));
        }
    }
    println!("{title}");
    let medians: Vec<f64> = all.into_iter().map(median).collect();
    for (course, page_ns) in courses.iter().zip(&medians) {
        println!("  {:<24} {page_ns:>8.1} ns  {:>5.2}", course.name, page_ns / medians[0]);
    }
}

/// Reads bytes plainly: the compiler turns the sums into the widest vectors that it may use.
fn read_plainly(page: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { sum_avx2(page) };
    }
    sum(page)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(page: &[u8]) -> u64 {
    sum(page)
}

#[inline(always)]
fn sum(page: &[u8]) -> u64 {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    page.chunks_exact(8).fold(0, |sum, bytes| sum.wrapping_add(word(bytes)))
}

/// Reads the bytes of frames and twins page by page, as a comparison must.
fn read_pairs(first: &[u8], second: &[u8]) {
    for (ours, theirs) in first.chunks_exact(PAGE_BYTES).zip(second.chunks_exact(PAGE_BYTES)) {
        black_box(read_plainly(ours).wrapping_add(read_plainly(theirs)));
    }
}

fn compare_pairs(variant: Variant, first: &[u8], second: &[u8]) {
    for (ours, theirs) in first.chunks_exact(PAGE_BYTES).zip(second.chunks_exact(PAGE_BYTES)) {
        let mut word = [0];
        assert!(!variant.changed_lines(black_box(ours), black_box(theirs), &mut word));
    }
}

/// Returns the order of the pages: in sequence, or so that no two in a row are near each other.
fn place(at: usize, scattered: bool) -> usize {
    if scattered { at * 4099 % COLD_PAGES } else { at }
}

fn nth(pages: &[u8], page: usize) -> &[u8] {
    &pages[page * PAGE_BYTES..][..PAGE_BYTES]
}

fn hot() {
    let (page, twin) = (pages(1), pages(1));
    let (page, twin) = (bytes(&page), bytes(&twin));
    let repeat = |operation: &dyn Fn()| (0..HOT_TIMES).for_each(|_| operation());
    let plain = move || repeat(&|| read_pairs(black_box(page), twin));
    let mut courses = vec![Course::new("plain read of both", HOT_TIMES, plain)];
    for variant in Variant::available() {
        let compare = move || repeat(&|| compare_pairs(variant, page, twin));
        courses.push(Course::new(format!("{variant:?}"), HOT_TIMES, compare));
    }
    let (_memory, mut twins) = twins(1);
    let compare = move || {
        (0..HOT_TIMES).for_each(|_| twins.collect(black_box(PageId(0)), false, |_| panic!("it is clean")));
    };
    courses.push(Course::new("Twins::collect", HOT_TIMES, compare));
    report("hot, one page again and again", &mut courses);
}

fn cold(scattered: bool) {
    let (frames, copies) = (pages(COLD_PAGES), pages(COLD_PAGES));
    let (frames, copies) = (bytes(&frames), bytes(&copies));
    let each = |operation: &dyn Fn(&[u8], &[u8])| {
        let places = (0..COLD_PAGES).map(|at| place(at, scattered));
        places.for_each(|page| operation(nth(frames, page), nth(copies, page)));
    };
    let mut courses = vec![Course::new("plain read of both", COLD_PAGES, || each(&read_pairs))];
    for variant in Variant::available() {
        let compare = move || each(&|frame: &[u8], copy: &[u8]| compare_pairs(variant, frame, copy));
        courses.push(Course::new(format!("{variant:?}"), COLD_PAGES, compare));
    }
    let (_memory, mut twins) = twins(COLD_PAGES);
    let compare = move || {
        let places = (0..COLD_PAGES).map(|at| PageId(place(at, scattered) as u64));
        places.for_each(|page| twins.collect(page, false, |_| panic!("it is clean")));
    };
    courses.push(Course::new("Twins::collect", COLD_PAGES, compare));
    report(if scattered { "cold, scattered" } else { "cold, in order" }, &mut courses);
}

/// Makes pages and twins as the runtime has them.
fn twins(pages: usize) -> (Arc<SharedMemory>, Twins) {
    let config = MemoryConfig { region_bytes: 1 << 30, ..MemoryConfig::default() };
    let memory = Arc::new(SharedMemory::reserve(config).expect("free addresses"));
    let mut twins = Twins::new(memory.clone());
    for page in 0..pages as u64 {
        memory.write(PageId(page), 0, &[3; PAGE_BYTES]).expect("memory");
        twins.make(PageId(page), PAGE_BYTES);
    }
    (memory, twins)
}

fn main() {
    // Frames are small pages; buffers compared with them must not be faster by being in large ones.
    // SAFETY: takes numbers, touches no memory.
    let refused = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    assert_eq!(refused, 0, "transparent huge pages can be switched off");
    println!("a clean page of {PAGE_BYTES} bytes and its twin; medians, and how many times the first line");
    hot();
    cold(false);
    cold(true);
}
