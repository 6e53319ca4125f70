//! What a program sees of its own account, and runs in which nothing is fetched ahead.

use hiroba_node::Protocol;

use crate::support::{call, compiled};

/// What a job says of itself that lacks nothing.
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
