//! A real job while strangers flood its ports: it computes the right result, and reports how many datagrams
//! it has rejected.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroba_trace::RunStatistics;

use crate::support::{call, eventually, finish, hiroba, mark, start};

/// Hostile datagrams sent to each port before the job begins to compute; they wait in its socket's buffer.
const BEFOREHAND: usize = 20;

/// Returns the loopback ports of UDP sockets of processes with `mark` in their environment.
fn ports_of(mark: &str) -> Vec<u16> {
    let holds = |bytes: &[u8]| bytes.windows(mark.len()).any(|part| part == mark.as_bytes());
    let mut inodes = Vec::new();
    for process in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        if !fs::read(process.path().join("environ")).is_ok_and(|bytes| holds(&bytes)) {
            continue;
        }
        for descriptor in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|name| name.strip_prefix("socket:["));
            inodes.extend(inode.and_then(|name| name.strip_suffix(']')).map(str::to_owned));
        }
    }
    // proc_net(5): the second column is the local address, the tenth the inode.
    let table = fs::read_to_string("/proc/net/udp").expect("/proc is mounted");
    let bound = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(columns.get(1)?.rsplit(':').next()?, 16).ok()?;
        inodes.iter().any(|inode| Some(&inode.as_str()) == columns.get(9)).then_some(port)
    });
    let mut ports: Vec<u16> = bound.collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Makes hostile datagrams of several lengths; none is so long that a socket's buffer takes only a few.
fn hostile(number: usize) -> Vec<u8> {
    let length = [0, 1, 8, 24, 52, 300, 1400][number % 7];
    (0..length).map(|at| (at * 31 + number * 7) as u8).collect()
}

#[test]
fn a_job_stays_right_while_strangers_flood_its_ports() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/random.c");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (program, account) = (directory.path().join("random"), directory.path().join("account.json"));
    let (source, program) = (source.to_str().expect("a UTF-8 path"), program.to_str().expect("a UTF-8 path"));
    let compiled = call(&["cc", "-std=c11", "-O2", "-pthread", "-o", program, source]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    let mark = mark("strangers");
    let statistics = format!("--stats=json:{}", account.display());
    // Node 0 waits for a line before it joins, so that the strangers come first.
    let script = format!("read go; exec {program} 5 30");
    let mut command =
        hiroba(&["run", "-n", "2", "--fabric", "udp", "--encrypt", &statistics, "--", "sh", "-c", &script]);
    let mut job = start(command.env("MARK", &mark).stdin(Stdio::piped()));
    let mut input = job.stdin.take().expect("piped");
    // Looked for once only: while sockets are passed from the launcher to the nodes, one may be in no
    // process's list of descriptors.
    let mut ports = Vec::new();
    eventually("both nodes' sockets are bound", || {
        ports = ports_of(&mark);
        ports.len() == 2
    });
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let send = |number: usize| {
        for port in &ports {
            // Refused once the job has ended.
            let _ = stranger.send_to(&hostile(number), ("127.0.0.1", *port));
        }
    };
    (0..BEFOREHAND).for_each(send);
    input.write_all(b"go\n").expect("node 0 reads");
    drop(input);
    let ended = AtomicBool::new(false);
    let called = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = BEFOREHAND;
            while !ended.load(Ordering::SeqCst) {
                send(number);
                number += 1;
                // The job needs processors, too.
                std::thread::yield_now();
            }
        });
        let called = finish(job);
        ended.store(true, Ordering::SeqCst);
        called
    });
    assert!(called.status == 0 && called.stderr.is_empty(), "{called:?}");
    let run: RunStatistics =
        serde_json::from_slice(&fs::read(account).expect("the account")).expect("the contract's JSON");
    for node in &run.per_node {
        assert!(node.counters.datagrams_rejected >= BEFOREHAND as u64, "{node:?}");
    }
}
