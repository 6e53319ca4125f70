//! Jobs whose nodes have more data of their own (`hiroba_alloc_local`) than memory.

use crate::programs::{compile, run, statistics, ways};
use crate::support::{Called, call};

const PROGRAM: &str = "tests/programs/local_data.c";
const LIMIT_BYTES: u64 = 2 << 20;

/// What a fault may bring beyond the limit: up to 1 MiB that is given to the program, and as much meanwhile
/// from the paging thread.
const BEYOND_BYTES: u64 = 2 << 20;

#[test]
fn more_data_than_memory_in_every_way() {
    let program = compile(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let swap = directory.path().to_str().unwrap();
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let options = [&way.options()[..], &["--memory-limit", "2M", "--swap", swap]].concat();
        let run = statistics(2, &options, &program, &["keep", "6"]);
        for node in &run.per_node {
            let counters = &node.counters;
            assert!(counters.swap_outs > 1000 && counters.swap_ins > 1000, "{options:?}: {counters:?}");
            let most = counters.resident_bytes_max;
            assert!(most <= LIMIT_BYTES + BEYOND_BYTES, "{options:?}: {most} bytes of {LIMIT_BYTES}");
        }
    }
}

#[test]
fn data_of_a_node_work_everywhere() {
    let program = compile(PROGRAM);
    for options in [
        &["--protocol", "sc"][..],
        &["--protocol", "lrc", "--fabric", "tcp"],
        &["--protocol", "adaptive", "--fabric", "shm"],
        &["--races"],
        &["--page-size", "64K", "-t", "2"],
        &["--memory-limit", "1M"],
    ] {
        run(2, options, &program, &["keep", "2"]);
    }
    for nodes in [1, 3] {
        run(nodes, &[], &program, &["keep", "1"]);
    }
}

#[test]
fn data_of_a_node_cost_no_messages_and_are_not_traced() {
    let program = compile(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let swap = directory.path().to_str().unwrap();
    let options = ["--memory-limit", "2M", "--swap", swap, "--fabric", "udp"];
    let sent = |mib: &str| {
        let runs = (0..3).map(|_| {
            let total = statistics(2, &options, &program, &["keep", mib]).total.counters;
            let fetched = total.pages_fetched + total.pages_prefetched;
            (total.messages_sent, fetched, total.twins_made, total.diffs_made)
        });
        runs.min().unwrap()
    };
    let (without, with) = (sent("0"), sent("4"));
    assert_eq!((with.1, with.2, with.3), (0, 0, 0), "nothing is fetched or compared");
    // The lock may change nodes a different number of times. One message for each page would be a thousand.
    assert!(with.0 <= without.0 + 64, "{} messages, without data {}", with.0, without.0);

    let trace = directory.path().join("trace");
    let trace = trace.to_str().unwrap();
    run(2, &["--trace", trace], &program, &["keep", "1"]);
    let judged = call(&["check", trace]);
    assert_eq!(judged.status, 0, "{judged:?}");
}

fn misuse(what: &str) -> Called {
    let program = compile(PROGRAM);
    call(&["run", "-n", "2", "--", program.to_str().unwrap(), what, "0"])
}

#[test]
fn data_of_another_node_are_told_from_shared_data() {
    let touched = misuse("touch");
    assert_eq!(touched.status, 128 + libc::SIGSEGV, "{touched:?}");
    for part in ["node 1: ", "data of node 0 alone (hiroba_alloc_local), which other nodes cannot touch"] {
        assert!(touched.stderr.contains(part), "expected {part:?}: {touched:?}");
    }
    let freed = misuse("free");
    assert_eq!(freed.status, 125, "{freed:?}");
    assert!(freed.stderr.contains("hiroba_free: expected an address that hiroba_alloc_local"), "{freed:?}");
    assert!(freed.stderr.contains("data of node 0 alone"), "{freed:?}");
}

#[test]
fn freed_data_are_gone() {
    let twice = misuse("twice");
    assert_eq!(twice.status, 125, "{twice:?}");
    assert!(twice.stderr.contains("that is not freed yet"), "{twice:?}");
    let stale = misuse("stale");
    assert_eq!(stale.status, 128 + libc::SIGSEGV, "{stale:?}");
    assert!(stale.stderr.contains("live data of hiroba_alloc_local"), "{stale:?}");
}
