//! Nodes that speak the control protocol: joining, leaving, dying between.
//!
//! The nodes are this program, started by the launcher to run only the test [`NODE`]. Their actions are in
//! the variable `NODE_ACTIONS`: for each node words separated by commas; nodes are separated by semicolons,
//! and the last entry is for all further nodes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Command;
use std::time::Duration;

use hiroba_base::{CodeSite, NodeId};
use hiroba_trace::{Counters, NodeStatistics, TimeBreakdown};
use hiroba_wire::control::{
    self, CONTROL_FD_VARIABLE, CONTROL_MESSAGE_BYTES_MAX, Descriptors, JobDescription, RaceAccount,
    RaceReport, RaceSide, ThreadWait, ToLauncher, ToNode, WaitReport, WriteTrackingChoice,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::support::{Called, eventually, finish, hiroba, mark, processes_marked, send, start};

/// The test that a node runs, by its full name.
const NODE: &str = "nodes::node";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn receive(channel: BorrowedFd) -> Option<ToNode> {
    let mut bytes = vec![0u8; CONTROL_MESSAGE_BYTES_MAX];
    match rustix::net::recv(channel, &mut bytes[..], RecvFlags::empty()) {
        Ok((got, _)) if got > 0 => {
            let message = control::decode(&bytes[..got]).expect("the launcher speaks our language");
            if message == ToNode::Ping {
                tell(channel, &ToLauncher::Pong);
                return receive(channel);
            }
            Some(message)
        }
        _ => None,
    }
}

fn tell(channel: BorrowedFd, message: &ToLauncher) {
    rustix::net::send(channel, &control::encode(message), SendFlags::NOSIGNAL).expect("the launcher listens");
}

fn account(node: NodeId) -> String {
    let time_s = TimeBreakdown { compute: 0.75, barrier: 0.25, ..TimeBreakdown::default() };
    let counters = Counters { barriers: 3, bytes_sent: 1 << 20, ..Counters::default() };
    serde_json::to_string(&NodeStatistics {
        node,
        wall_s: 1.0,
        core_share: None,
        shares_cores: false,
        others_share: None,
        regions: Vec::new(),
        time_s,
        counters,
    })
    .unwrap()
}

fn join(version: &str, build: &str) -> ToLauncher {
    ToLauncher::Join { version: version.to_owned(), build: build.to_owned() }
}

fn act(channel: BorrowedFd, job: &JobDescription, word: &str) {
    let (action, value) = word.split_once('=').unwrap_or((word, ""));
    match action {
        "join" => tell(channel, &join(VERSION, hiroba_node::BUILD)),
        "join-old" => tell(channel, &join("0.0.1", hiroba_node::BUILD)),
        "join-other-build" => tell(channel, &join(VERSION, "0123456789abcdef")),
        "start" => assert_eq!(receive(channel), Some(ToNode::Start)),
        "leave" => tell(channel, &ToLauncher::Leave { statistics_json: account(job.node) }),
        "fatal" => {
            tell(channel, &ToLauncher::Fatal { sentence: "expected a fish, got a bicycle".to_owned() })
        }
        "remark" => tell(channel, &ToLauncher::Remark { sentence: "the kettle is on".to_owned() }),
        "wait" => wait(channel, job, value.parse().unwrap()),
        "race" => race(channel, value.parse().unwrap()),
        "looked" => {
            let account = RaceAccount { writes: 1, loads: value.parse().unwrap(), forgotten: 0 };
            tell(channel, &ToLauncher::LookedForRaces(account));
        }
        "garbage" => _ = rustix::net::send(channel, b"\xff\xff\xff", SendFlags::NOSIGNAL),
        "exit" => std::process::exit(value.parse().unwrap()),
        "sleep" => std::thread::sleep(Duration::from_millis(value.parse().unwrap())),
        "kill" => {
            let signal = value.parse().unwrap();
            // Rust's own handler for SIGSEGV would treat the signal as an error and continue.
            // SAFETY: the default action runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // Sent to this thread, so that it does not reach its next action first.
            // SAFETY: raise touches no memory.
            unsafe { libc::raise(signal) };
        }
        // SAFETY: no handler of ours is involved.
        "ignore" => _ = unsafe { libc::signal(value.parse().unwrap(), libc::SIG_IGN) },
        "check-job" => check_job(job),
        "check-options" => {
            assert_eq!((job.threads_per_node, job.coherence.page_size.bytes()), (3, 64 << 10));
            assert_eq!(
                (job.coherence.write_tracking, job.coherence.races),
                (WriteTrackingChoice::Fault, true)
            );
        }
        other => panic!("no action {other}"),
    }
}

/// Waits forever and reports it often: node 0 for a lock that the last node holds, the others in a barrier.
/// `sent` messages have been sent in total, of which each node has received one.
fn wait(channel: BorrowedFd, job: &JobDescription, sent: u64) {
    let first = job.node == NodeId::ZERO;
    let last = job.node.index() + 1 == job.addresses.len();
    let (call, lock) = if first { ("hiroba_lock(7)", Some(7)) } else { ("hiroba_barrier()", None) };
    let site = Some(CodeSite { module: "/no/such/program".to_owned(), offset: 0x10 });
    let report = WaitReport {
        generation: 3,
        messages_sent: if first { sent } else { 0 },
        messages_received: 1,
        threads: vec![ThreadWait { thread: 0, call: call.to_owned(), lock, site }],
        locks_held: if last { vec![(7, 0)] } else { Vec::new() },
    };
    for _ in 0..100 {
        tell(channel, &ToLauncher::Waiting(report.clone()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn race(channel: BorrowedFd, address: u64) {
    let side = |node| RaceSide { node: NodeId(node), has_read: false, site: None, interval_end: None };
    let report = RaceReport {
        address,
        bytes: 4,
        allocation: "100 bytes of hiroba_alloc".to_owned(),
        sides: [side(0), side(1)],
    };
    tell(channel, &ToLauncher::Race(report));
}

/// Checks the promises of the job's description from inside a node.
fn check_job(job: &JobDescription) {
    assert_eq!(job.addresses.len().to_string(), std::env::var("HIROBA_NODES").unwrap());
    assert_eq!(job.node.to_string(), std::env::var("HIROBA_NODE").unwrap());
    assert_eq!(
        (job.coherence.protocol.as_str(), job.transport.fabric.name(), job.threads_per_node),
        ("adaptive", "udp", 1)
    );
    assert_eq!(job.descriptors, Descriptors { socket: true, trace: false, shared_by: 0 });
}

/// Says hello at the door with one end of a new channel, and returns the other.
fn enter(door: BorrowedFd) -> OwnedFd {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket pair");
    let build = std::env::var("NODE_BUILD").unwrap_or(hiroba_node::BUILD.to_owned());
    let (version, build) = (VERSION.to_owned(), build);
    let hello = control::encode(&ToLauncher::Hello { version, build });
    let passed = [theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&passed)));
    rustix::net::sendmsg(door, &[IoSlice::new(&hello)], &mut ancillary, SendFlags::NOSIGNAL)
        .expect("the launcher listens");
    ours
}

/// Receives the job, and the descriptors that come with it.
fn receive_job(channel: BorrowedFd) -> (Box<JobDescription>, Vec<OwnedFd>) {
    let mut bytes = vec![0u8; CONTROL_MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(channel, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let passed = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let passed = passed.collect();
    let job = match control::decode(&bytes[..got.bytes]) {
        Ok(ToNode::Job(job)) => job,
        Ok(ToNode::Refused { version, build }) => {
            assert_eq!((version.as_str(), build.as_str()), (VERSION, hiroba_node::BUILD));
            assert!(std::env::var_os("NODE_BUILD").is_some(), "this one is of the launcher's build");
            assert_eq!(receive(channel), None, "no key, and no descriptor");
            println!("refused");
            std::process::exit(7);
        }
        other => panic!("expected the job, got {other:?}"),
    };
    (job, passed)
}

/// The entry of a node; in an ordinary run of the tests there is no channel and nothing to do.
#[test]
fn node() {
    let Ok(channel) = std::env::var(CONTROL_FD_VARIABLE) else { return };
    // SAFETY: the launcher passes this descriptor on for the node to keep.
    let door = unsafe { BorrowedFd::borrow_raw(channel.parse::<RawFd>().unwrap()) };
    if std::env::var_os("NODE_GARBAGE").is_some() {
        rustix::net::send(door, b"\xff\xff\xff", SendFlags::NOSIGNAL).expect("the launcher listens");
        std::thread::sleep(Duration::from_secs(60));
    }
    let kept = enter(door);
    let channel = kept.as_fd();
    let (job, passed) = receive_job(channel);
    assert_eq!(passed.len(), 1, "the socket");
    let bound = rustix::net::getsockname(&passed[0]).unwrap();
    assert_eq!(std::net::SocketAddr::try_from(bound).unwrap(), job.addresses[job.node.index()]);
    let actions = std::env::var("NODE_ACTIONS").unwrap();
    let each: Vec<&str> = actions.split(';').collect();
    let mine = each.get(job.node.index()).or(each.last()).unwrap();
    for word in mine.split(',') {
        act(channel, &job, word);
    }
    std::process::exit(0);
}

/// Returns `hiroba run` with `flags` on nodes with these actions. libtest's output is not the nodes'.
fn job(flags: &[&str], actions: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut line = vec!["run"];
    line.extend(flags);
    line.extend([program.to_str().unwrap(), "--exact", NODE, "--nocapture", "--quiet"]);
    let mut command = hiroba(&line);
    command.env("NODE_ACTIONS", actions);
    command
}

fn with_flags(flags: &[&str], actions: &str) -> Called {
    let mut called = finish(start(&mut job(flags, actions)));
    called.stdout.clear();
    called
}

fn nodes(count: &str, actions: &str) -> Called {
    let mut called = finish(start(&mut job(&["-n", count], actions)));
    called.stdout.clear();
    called
}

#[test]
fn a_job_in_good_order_says_nothing() {
    let called = nodes("4", "check-job,join,start,leave");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
    let called = nodes("3", "join,start,leave,exit=0;join,start,leave,exit=4;join,start,leave,exit=5");
    assert_eq!((called.status, called.stderr.as_str()), (4, ""), "statuses after leaving are the program's");
}

#[test]
fn no_node_starts_before_all_have_joined() {
    // If node 0 were released early, it would leave and exit while node 1 still sleeps, and its status would
    // count.
    let called = nodes("2", "join,start,leave;sleep=200,exit=3");
    called.says(3, "node 1");
    assert!(called.stderr.contains("without having joined the job"), "{called:?}");
}

#[test]
fn a_joined_node_that_dies_ends_the_job() {
    nodes("3", "join,start,sleep=60000;join,start,sleep=60000;join,start,kill=11").says(
        139,
        "was killed by signal 11 (SIGSEGV); look closer with 'hiroba run --debug 2'; ending the job",
    );
    nodes("3", "join,start,sleep=60000;join,start,exit=6;join,start,sleep=60000")
        .says(6, "exited with status 6 before it had left the job; ending the job");
    nodes("2", "join,start,sleep=60000;join,start,exit=0").says(125, "without leaving the job");
    nodes("2", "ignore=15,join,start,sleep=60000;join,start,kill=9").says(137, "node 1");
}

#[test]
fn a_node_that_never_joins_ends_those_that_did() {
    nodes("3", "join,start;exit=0;join,start").says(125, "node 1");
    nodes("3", "join,start;exit=2;join,start").says(2, "did not call hiroba_init");
    nodes("2", "sleep=200,join,start;exit=0").says(125, "node 1");
}

#[test]
fn a_node_that_was_killed_after_leaving_is_named() {
    nodes("2", "join,start,leave;join,start,leave,kill=9").says(137, "after it had left the job");
}

#[test]
fn fatal_sentences_are_passed_on_once() {
    nodes("3", "join,start,fatal,exit=125").says(125, "expected a fish, got a bicycle");
    nodes("2", "join,start,sleep=60000;fatal,sleep=60000").says(125, "node 1: expected a fish");
}

#[test]
fn another_version_and_garbage_are_refused() {
    nodes("2", "join-old,sleep=60000").says(125, "was built with Hiroba 0.0.1");
    nodes("2", "join-other-build,sleep=60000").says(125, "was built with build 0123456789abcdef of Hiroba");
    nodes("2", "join,sleep=60000;garbage,sleep=60000").says(125, "node 1 sent 3 bytes");
}

#[test]
fn a_program_of_another_build_is_told_of_this_one_and_nothing_else() {
    // It would fail with another message if it were given the job.
    let mut command = job(&["-n", "1"], "exit=7");
    finish_quietly(command.env("NODE_BUILD", "0123456789abcdef"))
        .says(125, "was built with build 0123456789abcdef of Hiroba");
}

#[test]
fn what_comes_to_the_door_must_be_a_hello() {
    let mut command = job(&["-n", "1"], "exit=7");
    finish_quietly(command.env("NODE_GARBAGE", "1")).says(125, "node 0 sent 3 bytes");
}

fn finish_quietly(command: &mut Command) -> Called {
    let mut called = finish(start(command));
    called.stdout.clear();
    called
}

#[test]
fn a_wrapper_does_not_hide_a_death() {
    let program = std::env::current_exe().unwrap();
    let script =
        format!("'{}' --exact {NODE} --nocapture --quiet >/dev/null; sleep 1000; true", program.display());
    let wrapped = |actions: &str, script: &str| {
        finish(start(hiroba(&["run", "-n", "2", "sh", "-c", script]).env("NODE_ACTIONS", actions)))
    };
    wrapped("join,start,sleep=60000;join,start,exit=0", &script).says(125, "ended without leaving the job");
    let called = wrapped("join,start,leave", &script.replace("1000", "0"));
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{called:?}");
}

#[test]
fn a_stopped_node_is_not_dead() {
    let mark = mark("stopped");
    let child = start(job(&["-n", "2"], "join,start,leave;join,start,kill=19,leave").env("MARK", &mark));
    let stopped = || {
        let tasks = std::fs::read_dir("/proc").unwrap().flatten();
        tasks
            .filter(|task| {
                std::fs::read(task.path().join("environ"))
                    .is_ok_and(|bytes| bytes.windows(mark.len()).any(|part| part == mark.as_bytes()))
            })
            .filter(|task| {
                std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
            })
            .filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok())
            .collect::<Vec<_>>()
    };
    eventually("a node has stopped", || !stopped().is_empty());
    for pid in stopped() {
        // SAFETY: kill touches no memory; a stopped process keeps its pid.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
    assert_eq!(finish(child).status, 0);
}

#[test]
fn a_signal_ends_a_job_whose_nodes_have_joined() {
    let mark = mark("joined-signal");
    let child = start(job(&["-n", "2"], "join,start,sleep=60000").env("MARK", &mark));
    eventually("the nodes run", || processes_marked(&mark) == 5);
    send(&child, libc::SIGTERM);
    let called = finish(child);
    assert_eq!((called.status, called.stderr.lines().count()), (143, 1), "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
}

#[test]
fn statistics_are_shown_and_written() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("a.json");
    std::fs::write(&json, "x".repeat(100_000)).unwrap();
    let flag = format!("--stats=json:{}", json.display());
    let called = finish(start(&mut job(&["-n", "3", "--stats", &flag], "join,start,leave")));
    assert_eq!(called.status, 0);
    for part in
        ["on 3 nodes (adaptive over udp, pages of 4 KiB)", "750 ms  75 %", "2.25 s  75 %", "1 MiB", "3 MiB"]
    {
        assert!(called.stderr.contains(part), "expected {part:?}\n{}", called.stderr);
    }
    let account: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(account["per_node"].as_array().unwrap().len(), 3);
    assert_eq!(account["per_node"][2]["node"], 2);
    assert_eq!(account["total"]["barriers"], 9);
    assert_eq!(account["total"]["time_s"]["compute"], 2.25);
    for key in ["program", "nodes", "threads_per_node", "protocol", "fabric", "page_bytes", "wall_s"] {
        assert!(!account[key].is_null(), "{key}");
    }
}

#[test]
fn the_account_of_a_job_that_died_holds_those_who_left() {
    let directory = tempfile::tempdir().unwrap();
    let flag = format!("--stats=json:{}", directory.path().join("a.json").display());
    let called =
        finish(start(&mut job(&["-n", "2", &flag], "join,start,leave;join,start,sleep=200,kill=11")));
    assert_eq!(called.status, 139);
    let text = std::fs::read_to_string(directory.path().join("a.json")).unwrap();
    let account: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(account["nodes"], 2);
    assert_eq!(account["per_node"].as_array().unwrap().len(), 1);
}

#[test]
fn the_jobs_description_holds_what_was_asked_for() {
    let flags = ["-n", "2", "-t", "3", "--page-size", "64K", "--write-tracking", "fault", "--races"];
    let called = with_flags(&flags, "check-options,join,start,leave,looked=3");
    assert_eq!(called.status, 0, "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{called:?}");
    assert_eq!(lines[0], "hiroba: no data races between nodes found in what was searched");
    assert!(lines[1].contains("(2 pages of intervals)") && lines[1].ends_with("(6 loads)"), "{called:?}");
    assert!(lines[2].starts_with("  not searched: other loads, "), "{called:?}");
}

#[test]
fn a_job_in_which_all_wait_for_each_other_is_ended_with_a_report() {
    let called = nodes("3", "join,start,wait=3");
    assert_eq!(called.status, 125, "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    let waits = [
        "  node 0 thread 0: hiroba_lock(7) at /no/such/program+0x10, held by node 2 thread 0",
        "  node 1 thread 0: hiroba_barrier() at /no/such/program+0x10",
        "  node 2 thread 0: hiroba_barrier() at /no/such/program+0x10",
    ];
    assert!(lines[0].starts_with("hiroba: deadlock: every thread of all 3 nodes waits"), "{called:?}");
    assert_eq!(lines[1..], waits);
}

#[test]
fn a_message_on_its_way_or_a_node_that_computes_is_no_reason_to_end_a_job() {
    let called = nodes("3", "join,start,wait=4,leave");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "four sent, three received");
    let called = nodes("3", "join,start,wait=3,leave;join,start,sleep=2100,leave");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "one computes");
}

#[test]
fn remarks_are_passed_on_with_their_node() {
    nodes("2", "join,start,leave;join,start,remark,leave").says(0, "node 1: the kettle is on");
}

#[test]
fn races_are_told_once_and_do_not_change_the_status() {
    let called = with_flags(&["-n", "2", "--races"], "join,start,race=16,race=16,race=32,leave,exit=4");
    assert_eq!(called.status, 4, "{called:?}");
    let lines: Vec<&str> = called.stderr.lines().collect();
    assert_eq!(lines.len(), 2 * 3 + 4, "{called:?}");
    assert_eq!(
        lines[0],
        "hiroba: data race: nodes 0 and 1 both wrote 4 bytes at 0x10 (100 bytes of hiroba_alloc) \
         without synchronisation"
    );
    assert_eq!(lines[1], "  node 0: first store to the page unknown");
    assert_eq!(lines[6], "hiroba: 2 data races found");
    assert!(lines[9].starts_with("  nodes 0, 1 did not leave the job properly"), "{called:?}");
}
