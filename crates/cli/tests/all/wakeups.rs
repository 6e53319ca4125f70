//! How many times waiting threads are woken: a cost that must not grow with their number.

use hiroba_trace::RunStatistics;

use crate::programs::{compile, run};

/// The messages that a node receives in a round: the other's request, and the answer to its own.
const MESSAGES_A_ROUND: u64 = 2;

/// For each message the thread that watches the fabric wakes, and then, by its bell, the thread that the
/// message is for, if that is another one. The service thread may take part while they change places.
const SLEEPS_A_MESSAGE: u64 = 3;

/// Parses the rounds that a node reports, and how many times its threads went to sleep meanwhile.
fn rounds_and_sleeps(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(": ").nth(1)?.split(' ');
    let rounds = words.next()?.parse().ok()?;
    Some((rounds, words.nth(1)?.parse().ok()?))
}

/// Of twelve threads of the program on each node, one asks and eleven wait for something else. One of the
/// twelve watches the fabric. If all of them watched, a message would wake all twelve: that made 22 sleeps
/// per round instead of three.
#[test]
fn a_message_does_not_wake_threads_that_it_is_not_for() {
    let program = compile("tests/programs/own_threads.c");
    let directory = tempfile::tempdir().expect("a temporary directory");
    for protocol in ["lrc", "aurc", "hlrc"] {
        let file = directory.path().join(protocol);
        let option = format!("--stats=json:{}", file.display());
        let output = run(2, &[&option, "--protocol", protocol, "--fabric", "udp"], &program, &[]);
        let said = String::from_utf8(output.stdout).expect("lines");
        let told: Vec<(u64, u64)> = said.lines().filter_map(rounds_and_sleeps).collect();
        assert_eq!(told.len(), 2, "{said}");
        for (rounds, sleeps) in told {
            assert!(sleeps <= rounds * MESSAGES_A_ROUND * SLEEPS_A_MESSAGE, "{protocol}: {said}");
        }
        let text = std::fs::read(file).expect("the statistics file");
        let run: RunStatistics = serde_json::from_slice(&text).expect("the contract's JSON");
        let counters = &run.total.counters;
        // For a message its taker wakes, and then the thread that it is for; some waits end without one.
        let waits = counters.lock_acquires + counters.barriers;
        assert!(counters.wakeups <= 2 * counters.messages_sent + waits, "{protocol}: {counters:?}");
    }
}
