//! Real jobs that use more shared memory than they may hold at once (`tests/programs/short_memory.c`), under
//! every fault source and write tracking, over every fabric.

use std::collections::BTreeMap;
use std::process::Command;

use crate::programs::{compile, finish, run, statistics, ways};
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
fn copies_leave_where_homes_move() {
    let program = compile(PROGRAM);
    for (choice, fabric) in [("--protocol=adaptive", "udp"), ("--home-migration=modification", "shm")] {
        let options = ["--memory-limit", "6M", choice, "--fabric", fabric];
        let run = statistics(2, &options, &program, &[PAGES, "1"]);
        assert!(run.total.counters.evictions > 500, "{options:?}: {:?}", run.total.counters);
    }
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
        // Which pages move under the adaptive protocol depends on who comes first.
        let fixed = ["--prefetch", "off", "--protocol", "hlrc"];
        let run = statistics(2, &[&fixed, options].concat(), &program, &["64", "2", "turns"]);
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
    let unlimited = least(&["--fabric", "udp", "--memory-limit", "none"]);
    assert_eq!(least(&["--fabric", "udp"]), unlimited, "there is a limit by default");
    assert_eq!(least(&["--fabric", "udp", "--memory-limit", "1G"]), unlimited);
    let swap = std::env::temp_dir();
    let swap = ["--fabric", "udp", "--memory-limit", "1G", "--swap", swap.to_str().unwrap()];
    assert_eq!(least(&swap), unlimited);
}

/// System calls by which memory is mapped, watched and given back, and files are read and written. Those that
/// wait, or send and receive, depend on time.
const CALLS: &str = "ioctl,madvise,fallocate,mprotect,openat,pread64,pwrite64,lseek,ftruncate";

/// Returns how often the processes of a job of `short_memory` called each of [`CALLS`].
fn system_calls(options: &[&str]) -> Option<Vec<(String, u64)>> {
    let program = compile(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let counts = directory.path().join("counts");
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "--seccomp-bpf",
        "-c",
        "-S",
        "name",
        "-U",
        "calls,name",
        "-e",
        &format!("trace={CALLS}"),
    ]);
    command.arg("-o").arg(&counts).arg(env!("CARGO_BIN_EXE_hiroba"));
    command.args(["run", "-n", "2", "--prefetch", "off", "--fabric", "udp", "--low-latency", "off"]);
    command.args(options).arg("--").arg(program).args(["64", "2", "turns"]);
    if Command::new("strace").arg("-V").output().is_err() {
        return None;
    }
    let output = finish(&mut command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let counts = std::fs::read_to_string(counts).unwrap();
    let count_of = |line: &str| {
        let (count, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), count.parse().ok()?))
    };
    Some(counts.lines().filter_map(count_of).filter(|(name, _)| name != "total").collect())
}

#[test]
fn a_limit_that_is_never_reached_makes_no_system_calls() {
    let least = |options: &[&str]| {
        let runs: Option<Vec<_>> = (0..5).map(|_| system_calls(options)).collect();
        let mut least = BTreeMap::new();
        for (name, count) in runs?.into_iter().flatten() {
            least.entry(name).and_modify(|least: &mut u64| *least = count.min(*least)).or_insert(count);
        }
        Some(least)
    };
    let Some(unlimited) = least(&["--memory-limit", "none"]) else {
        return println!("not tried: there is no strace to count system calls");
    };
    assert!(unlimited["ioctl"] > 100 && unlimited["openat"] > 10, "{unlimited:?}");
    for options in [&[][..], &["--memory-limit", "1G"]] {
        let limited = least(options).unwrap();
        // A thread of the C library may end a little later, and make a call or two more.
        let more = limited.iter().find(|(name, count)| **count > unlimited.get(*name).unwrap_or(&0) + 2);
        assert_eq!(more, None, "{options:?}: {limited:?}, without a limit {unlimited:?}");
    }
}
