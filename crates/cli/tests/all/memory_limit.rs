//! Real jobs that use more shared memory than they may hold at once (`tests/programs/short_memory.c`), under
//! every fault source and write tracking, over every fabric.

use crate::programs::{compile, run, statistics, ways};
use crate::support::call;

const PROGRAM: &str = "tests/programs/short_memory.c";
/// 8 MiB, half of them homed on each of two nodes.
const PAGES: &str = "2048";
const LIMIT_BYTES: u64 = 6 << 20;

#[test]
fn copies_leave_and_come_back_in_every_way() {
    let program = compile(PROGRAM);
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let options = [&way.options()[..], &["--memory-limit", "6M", "--fabric", "udp"]].concat();
        let run = statistics(2, &options, &program, &[PAGES, "2"]);
        for node in &run.per_node {
            let (left, most) = (node.counters.evictions, node.counters.resident_bytes_max);
            assert!(left > 500, "{options:?}: {left} copies left");
            // Pages that come with one fault may exceed the limit for a moment.
            assert!(most < LIMIT_BYTES + (1 << 20), "{options:?}: {most} bytes of {LIMIT_BYTES}");
        }
    }
}

#[test]
fn copies_leave_by_every_policy_and_over_every_fabric() {
    let program = compile(PROGRAM);
    for replacement in ["fifo", "clock", "lru-scan", "lirs", "s3-fifo", "sieve"] {
        let options = ["--memory-limit", "6M", "--replacement", replacement, "--fabric", "shm"];
        let run = statistics(2, &options, &program, &[PAGES, "2"]);
        assert!(run.total.counters.evictions > 1000, "{replacement}: {:?}", run.total.counters);
    }
    run(4, &["--memory-limit", "4M", "--fabric", "tcp"], &program, &[PAGES, "1"]);
    run(2, &["--memory-limit", "6M", "-t", "2", "--page-size", "16K"], &program, &[PAGES, "1"]);
}

#[test]
fn a_traced_run_whose_copies_leave_keeps_its_promises() {
    let program = compile(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let trace = trace.to_str().unwrap();
    run(2, &["--memory-limit", "6M", "--trace", trace], &program, &[PAGES, "1"]);
    let judged = call(&["check", trace]);
    assert_eq!(judged.status, 0, "{judged:?}");
}

#[test]
fn a_limit_that_is_never_reached_changes_nothing() {
    let program = compile(PROGRAM);
    let counts = |options: &[&str]| {
        let run = statistics(2, &[&["--prefetch", "off"], options].concat(), &program, &["64", "2", "turns"]);
        let counters = run.total.counters;
        let left = (counters.evictions, counters.swap_outs, counters.swap_ins);
        assert_eq!(left, (0, 0, 0), "{options:?}");
        let faults = (counters.read_faults, counters.write_faults, counters.messages_sent);
        let pages = (counters.pages_fetched, counters.twins_made, counters.diffs_made);
        (faults, pages, counters.resident_bytes_max)
    };
    // A page that is fetched while its home has already arrived at the barrier is fetched once more, which is
    // likely on a busy machine. The least of some runs has no such page.
    let least = |options: &[&str]| (0..5).map(|_| counts(options)).min();
    let unlimited = least(&["--fabric", "udp"]);
    assert_eq!(least(&["--fabric", "udp", "--memory-limit", "1G"]), unlimited);
    let swap = std::env::temp_dir();
    let swap = ["--fabric", "udp", "--memory-limit", "1G", "--swap", swap.to_str().unwrap()];
    assert_eq!(least(&swap), unlimited);
}
