//! The memory of a job that needs many times its budget, seen from outside: by the kernel's account of a
//! control group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::programs::compile;
use crate::support::control_group::Group;
use crate::support::{finish, start};

const MIB: u64 = 1 << 20;

/// Returns the most memory, without file caches, that a job had at any time while it ran.
fn most_bytes(group: &Group, options: &[&str], arguments: &[&str]) -> u64 {
    let program = compile("tests/programs/short_memory.c");
    let program = program.to_str().unwrap();
    // Memory is short and other tests may keep the processors busy, so a node may be silent for a while.
    let run = ["run", "-n", "2", "--fabric", "udp", "--dead-after", "60"];
    let line = [&run, options, &["--", program], arguments].concat();
    let job = start(&mut group.command(&line));
    let is_over = AtomicBool::new(false);
    let (most, called) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(group.memory_bytes());
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let called = finish(job);
        is_over.store(true, Ordering::Relaxed);
        (watcher.join().unwrap(), called)
    });
    assert_eq!(called.status, 0, "{line:?}: {called:?}");
    most
}

#[test]
fn a_node_keeps_to_its_budget_as_seen_from_outside() {
    let group = match Group::new(2048 * MIB) {
        Ok(group) => group,
        Err(why) => return println!("not tried: {why}"),
    };
    let directory = tempfile::tempdir().unwrap();
    let swap = directory.path().to_str().unwrap();
    // What the launcher and two nodes have without shared pages.
    let private = most_bytes(&group, &[], &["8", "1", "turns"]);
    for (limit, budget_bytes, options, arguments) in [
        // 16 MiB, of which each node holds half, and copies of the rest with their twins.
        ("12M", 12 * MIB, &[][..], ["4096", "1", "turns"]),
        // Twice what a node may have.
        ("8M", 8 * MIB, &["--swap", swap], ["4096", "1", "turns"]),
    ] {
        let options = [&["--memory-limit", limit], options].concat();
        let most = most_bytes(&group, &options, &arguments);
        let shared = most.saturating_sub(private);
        let excess = shared.saturating_sub(2 * budget_bytes) / 2;
        println!("{options:?}: {shared} bytes in two nodes, {excess} each beyond a budget of {budget_bytes}");
        assert!(shared > budget_bytes, "{options:?}: the budget is used: {shared}");
        // What may be: 2 % and 8 MiB.
        let excess_max = budget_bytes / 50 + 8 * MIB;
        assert!(excess <= excess_max, "{options:?}: {excess} bytes beyond the budget");
    }
}
