//! Ports in real jobs: the programs of `apps/ports`, and `ports.c` and `regions.c` of `tests/programs`, on
//! several nodes, over each fabric and a bad network, under each protocol.

use std::path::{Path, PathBuf};

use hiroba_node::Protocol;
use hiroba_wire::FabricKind;

use crate::support::{Called, call, finish, hiroba, start};

const BAD_NETWORK: [&str; 4] = ["--fabric", "udp", "--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=5"];

fn compiled(source: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source);
    let mut command = hiroba(&["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    let called = finish(start(command.arg(&program).arg(source)));
    assert_eq!(called.status, 0, "{called:?}");
    (directory, program)
}

fn run(nodes: &str, options: &[&str], program: &Path, given: &[&str]) -> Called {
    let mut command = hiroba(&["run", "-n", nodes]);
    finish(start(command.args(options).arg("--").arg(program).args(given)))
}

#[track_caller]
fn passes(nodes: &str, options: &[&str], program: &Path, given: &[&str]) {
    let called = run(nodes, options, program, given);
    assert_eq!(called.status, 0, "{nodes} nodes, {options:?}: {called:?}");
    let says = called.stdout.lines().any(|line| line == "checks                   passed");
    assert!(says, "{nodes} nodes, {options:?}: {called:?}");
}

fn passes_everywhere(source: &str, given: &[&str]) {
    let (_directory, program) = compiled(source);
    for nodes in ["1", "2", "4"] {
        for fabric in FabricKind::ALL.map(FabricKind::name) {
            passes(nodes, &["--fabric", fabric], &program, given);
        }
    }
    passes("4", &BAD_NETWORK, &program, given);
}

#[test]
fn requests_are_answered() {
    passes_everywhere("apps/ports/pingpong.c", &["200", "4"]);
    passes_everywhere("apps/ports/pingpong.c", &["20", "100000"]);
}

#[test]
fn a_set_takes_what_many_produce() {
    passes_everywhere("apps/ports/pipeline.c", &["3000"]);
}

#[test]
fn a_server_hands_out_rights_and_hears_of_their_end() {
    passes_everywhere("apps/ports/keyvalue.c", &["40"]);
}

#[test]
fn memory_is_handed_over_by_messages() {
    passes_everywhere("apps/ports/handover.c", &["20", "9000"]);
}

/// On `shm`, node 0 keeps more than its landing pool holds.
#[test]
fn regions_come_whole_wherever_they_land() {
    let (_directory, program) = compiled("tests/programs/regions.c");
    for nodes in ["1", "2", "4"] {
        passes(nodes, &["--fabric", "shm"], &program, &["200"]);
    }
    passes("3", &["--fabric", "shm", "--protocol", "aurc"], &program, &["30"]);
    passes("2", &["--fabric", "udp"], &program, &["30"]);
    passes("3", &["--fabric", "tcp"], &program, &["30"]);
    passes("4", &BAD_NETWORK, &program, &["6"]);
}

#[test]
fn what_was_written_before_a_message_is_seen_after_it_under_each_protocol() {
    let (_directory, program) = compiled("apps/ports/handover.c");
    for protocol in Protocol::ALL {
        let options = ["--protocol", protocol.name(), "--fabric", "udp"];
        passes("3", &options, &program, &["15", "9000"]);
    }
}

/// The checker finds that each message brought what its sender had seen.
#[test]
fn a_traced_run_is_judged() {
    let (directory, program) = compiled("apps/ports/handover.c");
    for (protocol, fabric) in [("hlrc", "shm"), ("lrc", "udp"), ("aurc", "tcp")] {
        let trace = directory.path().join(protocol);
        let trace = trace.to_str().expect("a temporary directory has a plain name");
        let options = ["--protocol", protocol, "--fabric", fabric, "--trace", trace];
        passes("3", &options, &program, &["15", "9000"]);
        let checked = call(&["check", trace]);
        assert!(checked.status == 0 && checked.stdout.contains("no violation found"), "{checked:?}");
        let summary = call(&["trace", "summary", trace]);
        assert!(summary.stdout.contains("messages taken off ports"), "{summary:?}");
    }
}

/// The same program with an error, which its check must find.
#[test]
fn what_is_written_after_a_message_is_not_seen() {
    let (_directory, program) = compiled("apps/ports/handover.c");
    for protocol in ["hlrc", "lrc"] {
        let called = run("2", &["--protocol", protocol], &program, &["-l", "15", "9000"]);
        assert_eq!(called.status, 3, "{protocol}: {called:?}");
        assert!(called.stderr.contains("is not what was written before the message"), "{called:?}");
    }
}

#[test]
fn each_call_does_as_its_header_says() {
    let (_directory, program) = compiled("tests/programs/ports.c");
    for (nodes, options) in [
        ("1", &[][..]),
        ("2", &["--fabric", "udp"]),
        ("4", &["--fabric", "shm"]),
        ("3", &["--fabric", "tcp", "--protocol", "erc-invalidate"]),
        ("4", &BAD_NETWORK),
    ] {
        let called = run(nodes, options, &program, &[]);
        assert_eq!(called.status, 0, "{nodes} nodes, {options:?}: {called:?}");
    }
}
