//! Jobs in a control group with little memory: their budget, what yields when memory runs out, and what is
//! said when nothing can.

use hiroba_trace::RunStatistics;

use crate::programs;
use crate::support::Called;
use crate::support::control_group::Group;

const MIB: u64 = 1 << 20;

/// A limit that suffices for the own needs of a job of two or three nodes.
const LIMIT_BYTES: u64 = 128 * MIB;

/// Runs `hiroba` in a group with little memory. Returns `None`, and says why, where that is not possible.
fn call_with(limit_bytes: u64, arguments: &[&str]) -> Option<Called> {
    let called = Group::new(limit_bytes).and_then(|group| group.call(arguments));
    called.inspect_err(|why| println!("not tried: {why}")).ok()
}

fn growth() -> String {
    programs::compile("tests/programs/memory_growth.c").to_str().unwrap().to_owned()
}

#[test]
fn a_kill_for_want_of_memory_is_told_as_one() {
    let (_directory, program) = crate::deaths::compile();
    let Some(called) = call_with(LIMIT_BYTES, &["run", "-n", "2", "--", &program, "hoard"]) else { return };
    assert_eq!(called.status, 128 + libc::SIGKILL, "{called:?}");
    for part in
        ["node 1 ", "was killed by ", "probably by the kernel for lack of memory", "has reached its limit"]
    {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
}

/// Runs a small program with `--stats=json:`. Returns each node's limit.
fn limits(limit_bytes: u64, options: &[&str]) -> Option<Vec<u64>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("statistics.json");
    let statistics = format!("--stats=json:{}", file.display());
    let program = growth();
    let arguments = [&["run", &statistics], options, &["--", &program, "copies", "1", "0"]].concat();
    let called = call_with(limit_bytes, &arguments)?;
    assert_eq!(called.status, 0, "{called:?}");
    let run: RunStatistics = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    Some(run.per_node.iter().map(|node| node.counters.memory_limit_bytes).collect())
}

#[test]
fn the_budget_is_a_share_of_the_groups_limit_for_each_node() {
    for (options, expected) in [
        (&["-n", "2"][..], vec![48 * MIB; 2]),
        (&["-n", "3"], vec![32 * MIB; 3]),
        (&["-n", "2", "--memory-limit", "7M"], vec![7 * MIB; 2]),
        (&["-n", "2", "--memory-limit", "none"], vec![0; 2]),
        (&["-n", "2", "--protocol", "sc"], vec![0; 2]),
        (&["-n", "1"], vec![0]),
    ] {
        let Some(limits) = limits(LIMIT_BYTES, options) else { return };
        assert_eq!(limits, expected, "{options:?}");
    }
}

/// Asserts that a job in a group with little memory ends with a sentence that names the budget.
fn ends_with_a_sentence(limit_bytes: u64, options: &[&str], arguments: [&str; 3], budget: &str) {
    let program = growth();
    let line = [&["run", "-n", "2"], options, &["--", &program], &arguments[..]].concat();
    let Some(called) = call_with(limit_bytes, &line) else { return };
    assert_eq!(called.status, 125, "{line:?}: {called:?}");
    for part in ["the memory of this node's control group is used up", budget, "no more pages can leave"] {
        assert!(called.stderr.contains(part), "{line:?}: expected {part:?}: {called:?}");
    }
}

#[test]
fn shared_pages_without_room_end_with_a_sentence() {
    let of_share = "of a budget of 48 MiB by default";
    ends_with_a_sentence(LIMIT_BYTES, &[], ["homes", "512", "0"], of_share);
    ends_with_a_sentence(LIMIT_BYTES, &["--fabric", "shm"], ["homes", "512", "0"], of_share);
    let of_user = "of a budget of 16 MiB by --memory-limit";
    ends_with_a_sentence(LIMIT_BYTES, &["--memory-limit", "16M"], ["homes", "512", "0"], of_user);
    ends_with_a_sentence(LIMIT_BYTES, &["--protocol", "sc"], ["homes", "512", "0"], "without a budget");
}

#[test]
fn private_memory_without_room_beside_shared_pages_ends_with_a_sentence() {
    ends_with_a_sentence(LIMIT_BYTES, &[], ["homes", "64", "128"], "its private memory ");
}

#[test]
fn shared_pages_yield_to_private_memory() {
    let program = growth();
    let (directory, limit_bytes) = (tempfile::tempdir().unwrap(), 192 * MIB);
    let swap = directory.path().to_str().unwrap();
    for (options, arguments) in
        [(&[][..], ["copies", "48", "64"]), (&["--swap", swap], ["homes", "96", "96"])]
    {
        let file = directory.path().join("statistics.json");
        let statistics = format!("--stats=json:{}", file.display());
        let line = [&["run", "-n", "2", &statistics], options, &["--", &program], &arguments[..]].concat();
        let Some(called) = call_with(limit_bytes, &line) else { return };
        assert_eq!(called.status, 0, "{line:?}: {called:?}");
        let run: RunStatistics = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let node = &run.per_node[1].counters;
        assert!(node.evictions > 0, "{line:?}: {node:?}");
    }
}
