//! Real jobs in which a node that is short of memory keeps its pages in that of the others (`--lend`).

use hiroba_trace::RunStatistics;

use crate::programs::{compile, run, statistics, ways};
use crate::support::call;

/// `lent_memory` proves what it reads.
const PROGRAM: &str = "tests/programs/lent_memory.c";

fn counts(run: &RunStatistics) -> Vec<[u64; 4]> {
    let of = |counters: &hiroba_trace::Counters| {
        [counters.pages_lent, counters.pages_borrowed, counters.pages_fetched_back, counters.pages_taken_back]
    };
    run.per_node.iter().map(|node| of(&node.counters)).collect()
}

#[test]
fn a_node_keeps_its_pages_in_the_memory_of_another_in_every_way() {
    let program = compile(PROGRAM);
    for way in ways().iter().filter(|way| !way.as_nobody) {
        let lend = ["--memory-limit", "4M", "--lend", "100%", "--fabric", "udp"];
        let run = statistics(2, &[&way.options()[..], &lend].concat(), &program, &["6", "keep"]);
        let counts = counts(&run);
        let [[_, borrowed, fetched, _], [lent, ..]] = counts[..] else { panic!("{counts:?}") };
        // Pages that left last may still be on their way when the lender sends its account.
        assert!(lent <= borrowed && lent > 600 && fetched > 1000, "{way:?}: {counts:?}");
        for node in &run.per_node {
            let most = node.counters.resident_bytes_max;
            assert!(most < (4 << 20) + (2 << 20), "{way:?}: {most} bytes of 4 MiB");
        }
        assert_eq!(run.total.counters.swap_bytes, 0);
    }
}

#[test]
fn nodes_lend_by_default_where_a_limit_is_set_and_no_disk() {
    let program = compile(PROGRAM);
    let borrowed = |options: &[&str]| {
        let options = [&["--memory-limit", "4M"], options].concat();
        let run = statistics(2, &options, &program, &["6", "keep"]);
        (run.per_node[0].counters.pages_borrowed, run.per_node[0].counters.resident_bytes_max)
    };
    for fabric in ["udp", "tcp"] {
        let (pages, most) = borrowed(&["--fabric", fabric]);
        assert!(
            pages > 600 && most < (4 << 20) + (3 << 19),
            "{fabric}: {pages} pages, {most} bytes of 4 MiB"
        );
    }
    let swap = std::env::temp_dir();
    for options in [&["--fabric", "shm"][..], &["--swap", swap.to_str().unwrap()], &["--lend", "0"]] {
        assert_eq!(borrowed(options).0, 0, "{options:?}");
    }
}

#[test]
fn what_compresses_takes_less_of_lenders_memory() {
    let program = compile(PROGRAM);
    let lend = ["--memory-limit", "4M", "--lend", "100%", "--fabric", "udp"];
    let share = |kind| {
        let run = statistics(2, &lend, &program, &["6", kind]);
        let counters = run.total.counters;
        assert!(counters.pages_borrowed > 600, "{kind}: {counters:?}");
        let lender = run.per_node[1].counters.resident_bytes_max;
        (100 * counters.borrowed_bytes / (4096 * counters.pages_borrowed), lender)
    };
    let [(whole, much), (short, little)] = ["keep", "short"].map(share);
    assert!(whole == 100 && short < 20, "{whole} % and {short} %");
    assert!(little < much / 2, "{little} bytes, and {much} of what does not compress");
}

#[test]
fn several_lenders_take_their_memory_back_and_pages_move_on() {
    let program = compile(PROGRAM);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let lend = ["--memory-limit", "4M", "--lend", "3M", "--swap", place, "--fabric", "tcp"];
    let run = statistics(4, &lend, &program, &["10", "back", "3"]);
    let counts = counts(&run);
    assert!(counts[1..].iter().all(|[lent, _, _, taken_back]| *lent > 0 && *taken_back > 0), "{counts:?}");
    assert!(run.per_node[0].counters.swap_outs > 0, "the disk comes last: {:?}", run.total.counters);
    // Over shm, with longer pages, and without a disk.
    self::run(3, &["--memory-limit", "4M", "--lend", "100%"], &program, &["8", "back", "1"]);
    let long = ["--memory-limit", "16M", "--lend", "50%", "--page-size", "16K", "--fabric", "shm", "-t", "2"];
    self::run(3, &long, &program, &["24", "back", "2"]);
}

#[test]
fn a_node_without_need_borrows_nothing_and_a_miser_lends_nothing() {
    let program = compile(PROGRAM);
    let run = statistics(2, &["--memory-limit", "64M", "--lend", "100%"], &program, &["4", "keep"]);
    assert_eq!(counts(&run), [[0; 4]; 2]);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let miser = ["--memory-limit", "4M", "--lend", "0", "--swap", place];
    let run = statistics(2, &miser, &program, &["8", "keep"]);
    assert_eq!(counts(&run), [[0; 4]; 2]);
    assert!(run.total.counters.swap_outs > 0);
}

#[test]
fn a_request_for_a_page_that_is_out_does_not_hold_up_other_nodes() {
    let program = compile(PROGRAM);
    let lend = ["--memory-limit", "4M", "--lend", "100%", "--fabric", "udp"];
    run(4, &lend, &program, &["6", "stop"]);
}

#[test]
fn a_lender_that_dies_ends_the_job_by_name() {
    let program = compile(PROGRAM);
    let program = program.to_str().unwrap();
    let line = ["run", "-n", "3", "--memory-limit", "4M", "--lend", "100%", "--", program, "8", "kill"];
    let called = call(&line);
    assert_eq!(called.status, 137, "{called:?}");
    assert!(called.stderr.contains("node 2"), "{called:?}");
}

/// A thread that waits for a page of a lender that gives no answer must neither wait for ever nor go on
/// without it.
#[test]
fn a_lender_that_cannot_be_reached_ends_the_job_by_name() {
    let program = compile(PROGRAM);
    let program = program.to_str().unwrap();
    let ended = |how| {
        let lend = ["run", "-n", "3", "--memory-limit", "4M", "--lend", "100%", "--fabric", "udp"];
        let called = call(&[&lend[..], &["--dead-after", "5", "--", program, "8", how]].concat());
        assert_eq!(called.status, 125, "{how}: {called:?}");
        called.stderr
    };
    let cut = ended("cut");
    let page = cut.split_once("node 0: expected page ").map(|(_, rest)| rest);
    assert!(
        page.is_some_and(|page| page.contains(" from the memory that node 2 lends, got nothing")),
        "{cut}"
    );
    // The launcher may notice first that the node has stopped.
    let frozen = ended("freeze");
    assert!(
        frozen.contains("from the memory that node 2 lends, got nothing")
            || frozen.contains("node 2 ") && frozen.contains(" is stopped and has answered nothing"),
        "{frozen}"
    );
}

#[test]
fn what_cannot_be_lent_is_refused_in_words() {
    let refused = |options: &[&str], sentence: &str| {
        let called = call(&[&["run", "-n", "2"], options, &["echo", "started"]].concat());
        called.says(125, sentence);
    };
    refused(
        &["--memory-limit", "64M", "--lend", "110%"],
        "expected a size such as 512M or a part such as 50% after --lend, got '110%'",
    );
    refused(
        &["--memory-limit", "64M", "--lend", "half"],
        "expected a size such as 512M or a part such as 50% after --lend, got 'half'",
    );
    refused(
        &["--lend", "50%", "--memory-limit", "none"],
        "--lend is for nodes that are short of memory at their limit, and --memory-limit none sets none; leave out one of them",
    );
    refused(&["--lend", "50%", "--protocol", "lrc"], "have pages leave under --protocol hlrc or adaptive");
}
