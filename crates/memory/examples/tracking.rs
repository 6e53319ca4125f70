//! Measures asynchronous write tracking on this machine: medians of single operations, and of scans of
//! watched granules.
//!
//! `cargo run --release -p hiroba-memory --example tracking`

use std::{hint::black_box, sync::Arc, time::Instant};

use hiroba_base::{Access, PageId, PageRange, PageSet};
use hiroba_memory::{
    Fault, FaultHandler, FaultOutcome, FaultSource, FaultSourceKind, MemoryConfig, SharedMemory,
    WriteTracking, open,
};

/// Handles no faults: none occur here.
struct NoFaults;

impl FaultHandler for NoFaults {
    fn handle_fault(&self, _: Fault) -> FaultOutcome {
        FaultOutcome::NotOurs
    }
}

const GRANULES: u64 = 1 << 18;

fn range(first: u64, count: u64) -> PageRange {
    PageRange { first: PageId(first), count }
}

/// Returns the median of some measurements, in nanoseconds.
fn median_ns(times: usize, mut measure: impl FnMut(usize) -> f64) -> f64 {
    let mut all: Vec<f64> = (0..times).map(&mut measure).collect();
    all.sort_by(f64::total_cmp);
    all[times / 2]
}

fn timed_ns(operation: impl FnOnce()) -> f64 {
    let start = Instant::now();
    operation();
    start.elapsed().as_nanos() as f64
}

fn store(memory: &SharedMemory, granule: u64) {
    // SAFETY: the granule is allocated, registered and watched or writable: the store neither faults into
    // this program nor leaves the region.
    unsafe { memory.address_of(PageId(granule)).write_volatile(black_box(1)) }
}

fn collect(source: &dyn FaultSource) -> u64 {
    let mut written = PageSet::new();
    source.collect_written(&mut written).expect("what was registered can be scanned");
    written.len()
}

fn measure(source: &dyn FaultSource, memory: &SharedMemory) {
    let clock = median_ns(1001, |_| timed_ns(|| ()));
    let report = |what: &str, ns: f64| println!("  {what:<58} {:>12.0} ns", (ns - clock).max(0.0));
    report("collect, nothing watched", median_ns(1001, |_| timed_ns(|| assert_eq!(collect(source), 0))));
    memory.populate(range(0, GRANULES)).expect("a gibibyte of memory");
    source.watch(range(0, 1024)).expect("a kernel that tracks writes");
    report("first store to a watched page", median_ns(1024, |at| timed_ns(|| store(memory, at as u64))));
    assert_eq!(collect(source), 1024);
    let each = |dirty: u64| {
        median_ns(301, |round| {
            (0..dirty).for_each(|at| store(memory, (round as u64 * 7 + at * 1024 / dirty.max(1)) % 1024));
            timed_ns(|| assert_eq!(collect(source), dirty))
        })
    };
    for dirty in [0, 1, 64, 1024] {
        report(&format!("collect, 4 MiB watched, {dirty} of 1024 written"), each(dirty));
    }
    report("collect, every other of 1024 watched, absent between", {
        source.unwatch(range(0, 1024)).expect("room for the record");
        source.protect(range(0, 1024), Access::None).expect("access can be taken away");
        (0..512).for_each(|at| source.watch(range(at * 2, 1)).expect("a kernel that tracks writes"));
        median_ns(301, |_| timed_ns(|| assert_eq!(collect(source), 0)))
    });
    source.protect(range(0, 1024), Access::None).expect("access can be taken away");
    for granules in [1u64, 16, 256] {
        let watch = median_ns(301, |_| {
            source.protect(range(0, granules), Access::None).expect("access can be taken away");
            timed_ns(|| source.watch(range(0, granules)).expect("a kernel that tracks writes"))
        });
        report(&format!("watch {granules} absent granules with frames"), watch);
        let opened = median_ns(301, |_| {
            source.protect(range(0, granules), Access::None).expect("access can be taken away");
            timed_ns(|| source.protect(range(0, granules), Access::Write).expect("frames are there"))
        });
        report(&format!("make {granules} absent granules with frames writable"), opened);
        source.watch(range(0, granules)).expect("a kernel that tracks writes");
        let again = median_ns(301, |_| timed_ns(|| source.watch(range(0, granules)).expect("as before")));
        report(&format!("watch {granules} granules that are watched"), again);
    }
    for mebibytes in [4, 64, 1024] {
        source.watch(range(0, mebibytes * 256)).expect("a kernel that tracks writes");
        collect(source);
        let scan = median_ns(51, |_| timed_ns(|| assert_eq!(collect(source), 0)));
        report(&format!("collect, {mebibytes} MiB watched, nothing written"), scan);
    }
    source.protect(range(0, GRANULES), Access::None).expect("access can be taken away");
    (0..1024).for_each(|at| source.watch(range(at * 256, 1)).expect("a kernel that tracks writes"));
    let scattered = median_ns(51, |_| timed_ns(|| assert_eq!(collect(source), 0)));
    report("collect, 1024 granules watched, one in each MiB", scattered);
}

fn main() {
    for kind in [FaultSourceKind::Event, FaultSourceKind::Sigbus] {
        let config = MemoryConfig { region_bytes: 2 << 30, ..MemoryConfig::default() };
        let memory = Arc::new(SharedMemory::reserve(config).expect("free addresses"));
        memory.allocate(range(0, GRANULES)).expect("room for the record");
        match open(kind, WriteTracking::Async, memory.clone(), Arc::new(NoFaults)) {
            Err(error) => println!("{kind}: {error}"),
            Ok(source) => {
                println!("{kind}:");
                source.register(range(0, GRANULES), source.tracking()).expect("allocated pages");
                measure(&*source, &memory);
            }
        }
    }
}
