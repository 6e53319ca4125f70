//! Real jobs that use more shared memory than all their nodes together may hold, so that home pages are
//! evicted to the nodes' disks (`--swap`), and disks that fail.

use std::path::Path;

use tempfile::TempDir;

use crate::programs::{compile, run, statistics, ways};
use crate::support::call;

/// `short_memory` proves what it reads.
const PROGRAM: &str = "tests/programs/short_memory.c";
/// 8 MiB: more than three times what two nodes may hold.
const PAGES: &str = "2048";
const LIMIT: [&str; 2] = ["--memory-limit", "1280K"];
const LIMIT_BYTES: u64 = 1280 << 10;

/// Returns a directory for swap files, and its name.
fn directory() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().to_str().unwrap().to_owned();
    (directory, name)
}

fn is_empty(directory: &TempDir) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn more_memory_than_all_nodes_have_in_every_way() {
    let program = compile(PROGRAM);
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let (directory, name) = directory();
        let options = [&way.options()[..], &LIMIT, &["--swap", &name, "--fabric", "udp"]].concat();
        let run = statistics(2, &options, &program, &[PAGES, "1"]);
        for node in &run.per_node {
            let counters = &node.counters;
            let (outs, ins, bytes) = (counters.swap_outs, counters.swap_ins, counters.swap_bytes);
            assert!(outs > 700 && ins > 500, "{options:?}: {outs} left, {ins} came back");
            assert_eq!(bytes, 4096 * (outs + ins));
            let (saved, apart) = (counters.pages_saved_ahead, counters.pages_in_apart);
            assert!(2 * saved > outs, "{options:?}: {outs} left, and {saved} were saved before they had to");
            assert!(2 * apart > ins, "{options:?}: {ins} came back, {apart} without the node's lock");
            // Touches without a pattern fetch nothing along for which others would have to be evicted.
            assert!(outs < 16_000, "{options:?}: {outs} left");
            assert!(counters.evictions > outs, "{options:?}: copies leave, too");
            // Pages that come with one fault may exceed the limit for a moment.
            let most = counters.resident_bytes_max;
            assert!(most < LIMIT_BYTES + (2 << 20), "{options:?}: {most} bytes of {LIMIT_BYTES}");
        }
        assert!(is_empty(&directory));
    }
}

#[test]
fn more_memory_than_all_nodes_have_over_every_fabric() {
    let program = compile(PROGRAM);
    let (directory, name) = directory();
    for (fabric, protocol) in [("shm", "hlrc"), ("tcp", "hlrc"), ("udp", "adaptive")] {
        let choices = ["--swap", &name, "--fabric", fabric, "--protocol", protocol];
        let run = statistics(2, &[&LIMIT[..], &choices].concat(), &program, &[PAGES, "1"]);
        assert!(run.total.counters.swap_ins > 1000, "{choices:?}: {:?}", run.total.counters);
    }
    let place = format!("{name}:64M");
    let several = ["--memory-limit", "4M", "--swap", &place, "-t", "2", "--page-size", "16K"];
    run(2, &several, &program, &["4096", "1"]);
    run(4, &[&LIMIT[..], &["--swap", &place, "--replacement", "sieve"]].concat(), &program, &[PAGES, "1"]);
    assert!(is_empty(&directory));
}

#[test]
fn what_a_stream_needs_next_comes_while_the_program_computes() {
    let program = compile("tests/programs/in_order.c");
    let (_directory, name) = directory();
    let limit = ["--memory-limit", "4M", "--swap", &name];
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let options = [&way.options()[..], &limit].concat();
        let counters = statistics(2, &options, &program, &["12"]).total.counters;
        let (ahead, in_vain) = (counters.pages_brought_ahead, counters.pages_brought_in_vain);
        // Each node reads 3072 pages twice.
        assert!(ahead > 1000, "{options:?}: {ahead} pages came ahead");
        assert!(10 * in_vain <= ahead, "{options:?}: {in_vain} of {ahead} came in vain");
        let most = counters.resident_bytes_max / 2;
        assert!(most < (4 << 20) + (2 << 20), "{options:?}: {most} bytes of 4 MiB");
    }
    let down = statistics(2, &limit, &program, &["12", "down"]).total.counters;
    let (ahead, in_vain) = (down.pages_brought_ahead, down.pages_brought_in_vain);
    assert!(ahead > 1000 && 2 * in_vain <= ahead, "{in_vain} of {ahead} came in vain");
    for options in [&["--prefetch", "off"][..], &[]] {
        let args: &[&str] = if options.is_empty() { &["12", "hops"] } else { &["12"] };
        let counters = statistics(2, &[&limit[..], options].concat(), &program, args).total.counters;
        let ahead = counters.pages_brought_ahead;
        assert!(ahead < 200 && counters.swap_ins > 6000, "{options:?} {args:?}: {counters:?}");
        assert!(ahead == 0 || options.is_empty(), "{options:?}: {ahead}");
    }
}

#[test]
fn a_page_that_leaves_while_it_is_locked_is_not_lost() {
    let program = compile("tests/programs/locked_leaving.c");
    let (directory, name) = directory();
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let options =
            [&way.options()[..], &["--memory-limit", "2M", "--swap", &name, "--fabric", "udp"]].concat();
        let run = statistics(2, &options, &program, &["10"]);
        assert!(run.total.counters.swap_ins > 3000, "{options:?}: {:?}", run.total.counters);
    }
    assert!(is_empty(&directory));
}

#[test]
fn a_traced_run_whose_home_pages_leave_keeps_its_promises() {
    let program = compile(PROGRAM);
    let (directory, name) = directory();
    let trace = directory.path().join("trace");
    let trace = trace.to_str().unwrap();
    let options = [&LIMIT[..], &["--swap", &name, "--trace", trace]].concat();
    run(2, &options, &program, &["1024", "1"]);
    let judged = call(&["check", trace]);
    assert_eq!(judged.status, 0, "{judged:?}");
}

#[test]
fn a_full_disk_keeps_pages_in_memory_and_is_told_once() {
    let program = compile(PROGRAM);
    let (directory, name) = directory();
    let place = format!("{name}:256K");
    let output = run(2, &[&LIMIT[..], &["--swap", &place]].concat(), &program, &[PAGES, "1"]);
    let told = String::from_utf8_lossy(&output.stderr);
    let times = |phrase: &str| told.matches(phrase).count();
    assert_eq!(times("is full (256 KiB): pages stay in memory"), 2, "each node says so: {told}");
    assert_eq!(times("no more of them can leave at the moment"), 2, "{told}");
    assert!(is_empty(&directory));
}

fn fails(what: &str) -> (crate::support::Called, TempDir) {
    let program = compile("tests/programs/swap_faults.c");
    let (directory, name) = directory();
    let program = program.to_str().unwrap();
    let line = ["run", "-n", "2", LIMIT[0], LIMIT[1], "--swap", &name, "--", program, what, &name];
    let called = call(&line);
    assert!(is_empty(&directory), "{called:?}");
    (called, directory)
}

#[test]
fn nothing_is_left_of_a_node_that_is_killed() {
    let (called, directory) = fails("kill");
    assert_ne!(called.status, 0, "{called:?}");
    assert!(is_empty(&directory));
}

#[test]
fn a_page_that_was_changed_on_the_disk_ends_the_job() {
    let (called, directory) = fails("change");
    assert_eq!(called.status, 125, "{called:?}");
    let name = directory.path().to_str().unwrap();
    assert!(called.stderr.contains(&format!("in the swap file in '{name}' as it was written")), "{called:?}");
}

#[test]
fn a_directory_that_cannot_be_used_is_refused_before_the_program_starts() {
    let (directory, name) = directory();
    let missing = directory.path().join("missing");
    for place in [missing.to_str().unwrap(), "/proc", "/dev/null"] {
        let line = ["run", "-n", "2", "--memory-limit", "1G", "--swap", place, "echo", "started"];
        let called = call(&line);
        called.says(125, &format!("a directory after --swap in which this user can make files on every node's machine, got '{place}'"));
        assert_eq!(called.stdout, "");
    }
    // A path relative to the working directory is the same for every node.
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count());
    let relative = format!("{up}{}", name.trim_start_matches('/'));
    let program = compile(PROGRAM);
    run(2, &[&LIMIT[..], &["--swap", &relative]].concat(), &program, &["256", "1"]);
    assert!(Path::new(&name).is_dir() && is_empty(&directory));
}
