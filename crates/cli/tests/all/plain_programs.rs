//! Programs that do not use Hiroba: what they get, and what their ends mean.

use std::io::Write;
use std::process::Stdio;

use crate::support::{Called, call, finish, hiroba, shell, start};

fn sh(nodes: &str, script: &str) -> Called {
    call(&["run", "-n", nodes, "sh", "-c", script])
}

#[test]
fn the_status_is_node_zeros_then_the_first_others() {
    sh("4", "exit 0").says(0, "without having joined the job");
    sh("2", "exit 3").says(3, "on both nodes without having joined");
    sh("1", "exit 9").says(9, "the program ended without having joined");
    sh("4", "exit $((HIROBA_NODE * 10))").says(10, "on all 4 nodes");
    // Whichever node ends first, node 0's output comes first.
    sh("3", "[ $HIROBA_NODE = 0 ] && sleep 0.2; exit $((HIROBA_NODE + 4))").says(4, "all 3 nodes");
}

#[test]
fn a_node_that_is_killed_is_named_and_ends_the_job() {
    sh("4", "[ $HIROBA_NODE = 2 ] && kill -SEGV $$; sleep 1000")
        .says(139, "killed by signal 11 (SIGSEGV); ending");
    sh("1", "kill -KILL $$").says(137, "node 0");
}

#[test]
fn a_node_that_fails_early_ends_the_others() {
    sh("3", "[ $HIROBA_NODE = 1 ] && exit 7; sleep 1000").says(7, "node 1");
}

#[test]
fn nodes_are_told_who_they_are_and_get_environment_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $HIROBA_NODE/$HIROBA_NODES $KEPT $SET \"$(pwd)\" \"$0\" \"$@\"";
    let line =
        ["run", "-n", "2", "-x", "SET=a=b", "-x", "KEPT", "sh", "-c", script, "zero", "--label", "-n 9"];
    let called = finish(start(hiroba(&line).current_dir(&directory).env("KEPT", "kept")));
    let mut lines: Vec<&str> = called.stdout.lines().collect();
    lines.sort_unstable();
    let place = directory.path().canonicalize().unwrap();
    let expected = |node| format!("{node}/2 kept a=b {} zero --label -n 9", place.display());
    assert_eq!(lines, [expected(0), expected(1)]);
}

#[test]
fn standard_input_is_node_zeros() {
    let mut child = start(hiroba(&["run", "-n", "3", "--label", "cat"]).stdin(Stdio::piped()));
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let called = finish(child);
    assert_eq!(called.stdout, "[0] one\n[0] two\n");
    assert_eq!(called.status, 0);
}

#[test]
fn labels_keep_lines_whole_and_streams_apart() {
    let script = "for i in 1 2 3; do printf a; printf 'b\\n'; done; echo to-error >&2; printf end";
    let called = call(&["run", "-n", "3", "--label", "sh", "-c", script]);
    for node in 0..3 {
        let of = |text: &str| {
            let label = format!("[{node}] ");
            text.lines().filter_map(|line| line.strip_prefix(&label)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(&called.stdout), ["ab", "ab", "ab", "end"]);
        assert_eq!(of(&called.stderr), ["to-error"]);
    }
}

#[test]
fn much_labelled_output_arrives_whole() {
    let called = call(&["run", "-n", "2", "--label", "seq", "100000"]);
    assert_eq!(called.stdout.lines().count(), 200_000);
    let script = "$H run -n 2 --label yes | head -n 2 | wc -l";
    let called = finish(start(&mut shell(script)));
    assert_eq!(called.stdout.trim(), "2", "a reader that leaves ends the job");
}

#[test]
fn nothing_of_the_launchers_leaks_into_nodes() {
    // Beside the standard streams: the door to the launcher, and what ls itself opens. Descriptors that the
    // test program passes on by accident are in both listings.
    let listing = "ls /proc/self/fd | wc -l";
    let outside: i32 = finish(start(&mut shell(listing))).stdout.trim().parse().unwrap();
    let called = call(&["run", "-n", "3", "sh", "-c", listing]);
    for line in called.stdout.lines() {
        assert_eq!(line.trim().parse::<i32>().unwrap(), outside + 1);
    }
    assert_eq!(called.stdout.lines().count(), 3);
}

#[test]
fn nodes_find_signals_as_the_launcher_did() {
    let script = "grep -E 'SigBlk|SigIgn' /proc/self/status";
    let outside = finish(start(&mut shell(script)));
    let inside = call(&["run", "-n", "1", "sh", "-c", script]);
    assert_eq!(inside.stdout, outside.stdout);
    let ignoring = "trap '' HUP; exec $H run -n 1 sh -c \"grep SigIgn /proc/self/status\"";
    let hangup = finish(start(&mut shell(ignoring))).stdout;
    assert!(hangup.trim().ends_with('1'), "nohup goes through: {hangup}");
}

#[test]
fn statistics_without_a_job_are_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("a.json");
    let flag = format!("--stats=json:{}", json.display());
    let called = call(&["run", "-n", "2", "--stats", &flag, "true"]);
    assert!(called.stderr.contains("no statistics: no job was started"), "{called:?}");
    let account: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&account["nodes"], &account["program"]), (&2.into(), &"true".into()));
    assert_eq!(account["per_node"], serde_json::json!([]));
}
