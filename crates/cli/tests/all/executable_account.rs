//! The account of executables: what their threads do, and not what the runtime's own threads wait for.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::{Path, PathBuf};
use std::process::Command;

use hiroba_trace::{NodeStatistics, RunStatistics};

use crate::executables::may_run;
use crate::support::{finish, hiroba, start};

fn built(directory: &tempfile::TempDir, option: &str) -> PathBuf {
    let program = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/executable_account.c");
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", option, "-o"]).arg(&program).arg(source);
    let called = finish(start(&mut command));
    assert_eq!(called.status, 0, "{called:?}");
    program
}

/// Returns the nodes' accounts of a run of the program, whose classes sum to the time of all threads.
fn accounts(option: &str, run: &str, given: &[&str]) -> Vec<NodeStatistics> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("statistics.json");
    let mut command = hiroba(&["run", "--pthread"]);
    command.args(run.split(' ')).arg(format!("--stats=json:{}", file.display())).arg("--");
    let called = finish(start(command.arg(built(&directory, option)).args(given)));
    assert_eq!(called.status, 0, "{called:?}");
    let account: RunStatistics =
        serde_json::from_slice(&std::fs::read(&file).expect("the statistics")).expect("JSON");
    for node in &account.per_node {
        let whole = node.wall_s * f64::from(account.threads_per_node);
        assert!((node.time_s.sum() / whole - 1.0).abs() < 0.02, "{node:?}");
    }
    account.per_node
}

/// Asserts that a node computes for most of the time: on so many threads for 0.5 s each. Threads begin and
/// end in the rest.
#[track_caller]
fn computes(node: &NodeStatistics, threads: u32) {
    let time_s = node.time_s;
    assert!(time_s.compute > 0.45 * f64::from(threads), "{node:?}");
    assert!(time_s.compute > 0.5 * time_s.sum(), "{node:?}");
}

/// Asserts that a node waits while another one computes, in the class whose time this is.
#[track_caller]
fn waits(node: &NodeStatistics, seconds: f64) {
    assert!(seconds > 0.45 && seconds > 0.5 * node.time_s.sum(), "{node:?}");
    assert!(node.time_s.compute < 0.45, "{node:?}");
}

#[test]
fn a_region_that_computes_has_an_account_of_computing() {
    if may_run() {
        for (run, threads) in [("-n 2", 1), ("-n 2 -t 2", 2)] {
            accounts("-fopenmp", run, &[]).iter().for_each(|node| computes(node, threads));
        }
    }
}

#[test]
fn between_regions_other_nodes_are_idle() {
    if may_run() {
        let nodes = accounts("-fopenmp", "-n 2", &["alone"]);
        computes(&nodes[0], 1);
        waits(&nodes[1], nodes[1].time_s.other);
    }
}

#[test]
fn threads_that_compute_have_an_account_of_computing() {
    if may_run() {
        // Main joins them meanwhile: the time of a node is that of those that compute, if there are enough.
        for (run, threads, on_each) in [("-n 2", "2", 1), ("-n 2", "6", 1), ("-n 2 -t 2", "4", 2)] {
            accounts("-pthread", run, &[threads]).iter().for_each(|node| computes(node, on_each));
        }
        // `main` counts as a thread of node 0 when the thread is placed.
        let nodes = accounts("-pthread", "-n 2", &["1"]);
        computes(&nodes[1], 1);
        waits(&nodes[0], nodes[0].time_s.lock);
    }
}
