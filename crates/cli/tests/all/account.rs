//! What a program sees of its own account, and runs in which nothing is fetched ahead.

use hiroba_node::Protocol;
use hiroba_trace::{RegionStatistics, RunStatistics};

use crate::support::{call, compiled};

/// Returns the remark of a job that lacks nothing.
fn remark(protocol: &str) -> &'static str {
    if protocol == "aurc" {
        "hiroba: node 0: aurc cannot map pages onto their homes over udp: updates leave in the background\n"
    } else {
        ""
    }
}

#[test]
fn a_page_costs_a_fault_unless_it_is_fetched_ahead() {
    let (_directory, program) = compiled("account.c");
    let program = program.to_str().expect("a path in UTF-8");
    for protocol in Protocol::ALL.map(Protocol::name) {
        let run = ["run", "-n", "2", "--protocol", protocol];
        let each = call(&[&run[..], &["--prefetch", "off", program, "each"]].concat());
        assert_eq!((each.status, each.stderr.as_str()), (0, remark(protocol)), "{protocol}");
        let ahead = call(&[&run[..], &["--prefetch", "on", program]].concat());
        assert_eq!((ahead.status, ahead.stderr.as_str()), (0, remark(protocol)), "{protocol}");
    }
    call(&["run", "--prefetch", "often", program])
        .says(125, "expected on or off after --prefetch, got 'often'");
}

#[test]
fn pages_that_nodes_share_are_told_with_the_call_that_allocated_them() {
    const ROUNDS: u64 = 50;
    let (directory, program) = compiled("false_sharing.c");
    let program = program.to_str().expect("a path in UTF-8");
    let file = directory.path().join("statistics.json");
    let statistics = format!("--stats=json:{}", file.display());
    for protocol in ["hlrc", "adaptive", "lrc", "aurc"] {
        let run = ["run", "-n", "2", "--protocol", protocol, &statistics];
        let called = call(&[&run[..], &[program, &ROUNDS.to_string()]].concat());
        assert_eq!(called.status, 0, "{called:?}");
        let account: RunStatistics =
            serde_json::from_slice(&std::fs::read(&file).expect("the statistics")).expect("JSON");
        let told = account.per_node.iter().flat_map(|node| &node.regions);
        let mut told: Vec<&RegionStatistics> = told.filter(|region| region.bytes == 4096).collect();
        told.sort_by_key(|region| region.diffs);
        // Every node writes in each round, so the node that is not the page's home sends a diff and loses the
        // page: at the next barrier, or at the one after it if it fetched the page after its home had
        // arrived.
        let most = told.last().expect("somebody waited for the page");
        let lost = most.falsely_shared + most.lost_after_stores;
        assert!(most.diffs >= ROUNDS - 1, "{protocol}: {told:?}");
        assert!((ROUNDS / 2..=ROUNDS).contains(&lost), "{protocol}: {told:?}");
        let site = most.site.as_ref().expect("a call of the program's");
        assert_eq!(std::path::Path::new(&site.module), std::fs::canonicalize(program).expect("it is there"));
    }
}
