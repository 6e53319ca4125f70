//! `hiroba check` on real runs of litmus programs, and on a simulated run with a planted bug.

use std::path::Path;

use hiroba_base::NodeId;
use hiroba_check::cluster::{Cluster, Options};
use hiroba_check::engines::hlrc;
use hiroba_check::litmus::posts;
use hiroba_check::mutant::Mutant;
use hiroba_check::page_axioms::{Rules, judge};
use hiroba_check::random_program::{Shape, generate};
use hiroba_check::reading::write;
use hiroba_protocol::WriteTracking;
use hiroba_trace::{FORMAT_VERSION, Job, node_file};

use crate::support::{Called, call};

/// Runs a litmus program on real nodes under some options, and checks the trace.
fn judged(directory: &Path, options: &[&str], program: &[&str]) -> Called {
    let hiroba = env!("CARGO_BIN_EXE_hiroba");
    let listed = call(&[&["litmus", "--list"], program].concat());
    assert_eq!(listed.status, 0, "{listed:?}");
    let job: Vec<&str> = listed.stdout.split_whitespace().collect();
    let trace = directory.to_str().expect("a temporary directory has a plain name");
    let traced = ["--trace", trace, hiroba, "litmus"];
    let ran = call(&[&["run"], &job[..], options, &traced, program].concat());
    assert_eq!(ran.status, 0, "{options:?} {program:?}: {ran:?}");
    call(&["check", trace])
}

/// Each seed under another fabric, fault source and way of tracking writes.
#[test]
fn random_programs_on_real_nodes_keep_every_promise() {
    const WAYS: [&[&str]; 22] = [
        &["--fabric", "udp"],
        &["--fabric", "udp", "--inject", "loss=0.1,reorder=0.1,dup=0.05,seed=3"],
        &["--fabric", "tcp", "--fault-source", "sigbus"],
        &["--fabric", "shm"],
        &["--fabric", "shm", "--fault-source", "sigsegv", "--write-tracking", "fault"],
        &["--fabric", "udp", "--write-tracking", "fault"],
        &["--fabric", "shm", "--fault-source", "sigbus"],
        &["--protocol", "aurc", "--fabric", "udp"],
        &["--protocol", "aurc", "--fabric", "udp", "--inject", "loss=0.1,reorder=0.1,dup=0.05,seed=3"],
        &["--protocol", "aurc", "--fabric", "tcp", "--write-tracking", "fault"],
        &["--protocol", "aurc", "--fabric", "shm"],
        &["--protocol", "sc", "--fabric", "udp"],
        &["--protocol", "sc", "--fabric", "shm", "--fault-source", "sigbus"],
        &["--protocol", "lrc", "--fabric", "shm", "--fault-source", "sigbus"],
        &["--protocol", "lrc", "--fabric", "tcp"],
        &["--protocol", "lrc", "--inject", "loss=0.1,reorder=0.1,dup=0.05,seed=4"],
        &["--protocol", "erc-invalidate", "--fabric", "shm", "--fault-source", "sigbus"],
        &["--protocol", "erc-invalidate", "--home-migration", "faults", "--fabric", "tcp"],
        &["--protocol", "erc-update", "--inject", "loss=0.1,reorder=0.1,dup=0.05,seed=5"],
        &["--protocol", "erc-update", "--home-migration", "modification", "--fabric", "shm"],
        &["--protocol", "aurc", "--home-migration", "modification", "--fabric", "udp"],
        &["--protocol", "aurc", "--home-migration", "faults", "--fabric", "tcp"],
    ];
    for (seed, options) in (0..).zip(WAYS) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let seed = format!("{}", 40 + seed);
        let called = judged(directory.path(), options, &["--seed", &seed, "--team", "2", "--foreign", "1"]);
        assert_eq!(called.status, 0, "seed {seed}, {options:?}: {called:?}");
        assert!(
            called.stdout.contains("judged byte by byte") && !called.stdout.contains("data races"),
            "{called:?}"
        );
    }
}

/// Each page has 2 MiB, so that all are mapped onto their homes' frames if nodes share memory.
#[test]
fn random_programs_on_pages_that_are_mapped_keep_every_promise() {
    const WAYS: [&[&str]; 4] = [
        &["--fabric", "shm"],
        &["--fabric", "shm", "--fault-source", "sigbus", "--write-tracking", "fault"],
        &["--fabric", "shm", "--fault-source", "sigsegv", "--write-tracking", "fault"],
        &["--fabric", "udp"],
    ];
    for (seed, options) in (0..).zip(WAYS) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let seed = format!("{}", 70 + seed);
        let options = [&["--protocol", "aurc"], options].concat();
        let program = ["--seed", &seed, "--team", "2", "--foreign", "1", "--large-pages"];
        let called = judged(directory.path(), &options, &program);
        assert_eq!(called.status, 0, "seed {seed}, {options:?}: {called:?}");
        assert!(
            called.stdout.contains("judged byte by byte") && !called.stdout.contains("data races"),
            "{called:?}"
        );
    }
}

/// They race on purpose: only the checker of sequential consistency judges them.
#[test]
fn racy_programs_on_real_nodes_are_sequentially_consistent_where_that_is_promised() {
    for (fabric, program) in [("udp", "SB"), ("tcp", "MP"), ("shm", "IRIW"), ("udp", "writers of one page")] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let called = judged(directory.path(), &["--protocol", "sc", "--fabric", fabric], &[program]);
        assert_eq!(called.status, 0, "{program} over {fabric}: {called:?}");
        assert!(called.stdout.contains("no violation found"), "{called:?}");
    }
}

/// Without the records of messages the programs would seem to race.
#[test]
fn messages_to_ports_order_the_accesses_of_real_nodes() {
    const WAYS: [&[&str]; 4] = [
        &["--fabric", "shm"],
        &["--fabric", "udp", "--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=3"],
        &["--fabric", "tcp", "--protocol", "lrc"],
        &["--fabric", "shm", "--protocol", "aurc"],
    ];
    for (number, litmus) in posts().into_iter().enumerate() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = WAYS[number % WAYS.len()];
        let called = judged(directory.path(), options, &[litmus.name]);
        assert_eq!(called.status, 0, "'{}', {options:?}: {called:?}", litmus.name);
        let is_judged = called.stdout.contains("judged byte by byte");
        assert!(is_judged && !called.stdout.contains("data races"), "'{}': {called:?}", litmus.name);
    }
}

#[test]
fn a_racy_program_on_real_nodes_is_told_so_and_is_no_violation() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let called = judged(directory.path(), &[], &["store buffering"]);
    assert_eq!(called.status, 0, "{called:?}");
    assert!(
        called.stdout.contains("data races: ")
            && called.stdout.contains("nothing orders them")
            && called.stdout.contains("no violation found; the "),
        "{called:?}"
    );
}

fn simulated_job(nodes: u16) -> Job {
    Job {
        format: FORMAT_VERSION,
        program: "simulated".to_owned(),
        arguments: Vec::new(),
        nodes,
        threads_per_node: 1,
        protocol: "hlrc".to_owned(),
        fabric: "udp".to_owned(),
        page_bytes: 4096,
        exit_status: Some(0),
    }
}

#[test]
fn a_planted_bug_is_a_violation_with_an_explanation() {
    let shape = Shape { team: 1, foreign: 0, publications: false, waits: false };
    let broken = (0..200).find_map(|seed| {
        let program = generate(seed, shape);
        let mutation = Mutant::LoseInvalidation.plant();
        let options = Options { mutation, ..Options::seeded(seed, WriteTracking::Async) };
        let ended = Cluster::new(&program, hlrc(false), options).run().ok()?;
        let is_broken = !judge(&ended.run, &Rules::hlrc(false)).breaches.is_empty();
        is_broken.then_some((program.nodes, ended.run))
    });
    let (nodes, mut run) = broken.expect("some seed shows the bug");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_str().expect("a temporary directory has a plain name");
    write(directory.path(), &simulated_job(nodes), &run).expect("the trace is written");
    let called = call(&["check", path]);
    assert_eq!(called.status, 1, "{called:?}");
    for part in ["violations: ", "may read page", "closed interval", "saw it in a message from node"] {
        let words = called.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(part), "'{part}' is missing in {}", called.stdout);
    }
    let json = call(&["check", "--json", path]);
    let verdict: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert!(json.status == 1 && verdict["violations"].as_u64() > Some(0), "{json:?}");
    // Without its last records a node's trace is no evidence for what the others claim about it.
    for records in &mut run.nodes {
        records.records.truncate(3);
        records.cut_off = true;
    }
    write(directory.path(), &simulated_job(nodes), &run).expect("the trace is written");
    let called = call(&["check", path]);
    assert_eq!(called.status, 125, "{called:?}");
    assert!(called.stdout.contains("the trace of node 0 is cut off"), "{called:?}");
}

#[test]
fn what_is_no_trace_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_str().expect("a temporary directory has a plain name");
    call(&["check", path]).says(125, "job.json");
    simulated_job(1)
        .write(std::fs::File::open(directory.path()).expect("a directory"))
        .expect("it is written");
    std::fs::write(node_file(directory.path(), NodeId(0)), "noise").expect("it is written");
    call(&["check", path]).says(125, "");
}
