//! Real jobs in which nodes contribute to barriers (`hiroba_contribute`).

use crate::programs::{compile, run, statistics};
use crate::support::call;

const PROGRAM: &str = "tests/programs/contributions.c";

#[test]
fn contributions_are_used_before_any_node_goes_on() {
    let program = compile(PROGRAM);
    for nodes in [1, 2, 7] {
        for fabric in ["shm", "udp", "tcp"] {
            run(nodes, &["--fabric", fabric], &program, &[]);
        }
    }
}

/// Beyond those of the barriers there are the last loads of the sum.
#[test]
fn contributions_cost_no_message() {
    let program = compile(PROGRAM);
    let messages =
        |mode: &str| statistics(2, &["--fabric", "tcp"], &program, &[mode]).total.counters.messages_sent;
    let (plain, contributing) = (messages("plain"), messages("sum"));
    assert!(contributing <= plain + 10, "{contributing} messages with contributions, {plain} without");
}

#[test]
fn what_is_contributed_is_not_lost_in_silence() {
    let program = compile(PROGRAM);
    let called = call(&["run", "-n", "2", program.to_str().unwrap(), "late"]);
    called.says(125, "a fault of Hiroba's: nodes contribute to a barrier at which node 0 makes no use");
}
