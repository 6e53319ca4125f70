//! The requirements on every fabric, run over each implementation. A new fabric adds one `conformance!` line.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_fabric::{
    Content, Fabric, FabricConfig, FabricError, Receiver, ShmFabric, TcpFabric, UdpFabric, Unsent,
};
use hiroba_wire::Payload;
use hiroba_wire::control::{InjectedFaults, JobKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common;

const JOB: u64 = 0x00c0_ffee;
fn job_key() -> JobKey {
    JobKey::new(&[42; 32])
}

/// A test that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

type Group = Vec<Box<dyn Fabric>>;

fn udp_sockets(nodes: u16) -> (Vec<UdpSocket>, Vec<SocketAddr>) {
    let sockets: Vec<UdpSocket> = (0..nodes).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
    (sockets, addresses)
}

fn config(local: u16, addresses: &[SocketAddr], job: u64, inject: Option<InjectedFaults>) -> FabricConfig {
    let addresses = addresses.to_vec();
    FabricConfig { local: NodeId(local), addresses, job, key: job_key(), inject }
}

fn udp_group(nodes: u16, inject: Option<InjectedFaults>) -> Group {
    let (sockets, addresses) = udp_sockets(nodes);
    let fabric = |(node, socket): (u16, UdpSocket)| -> Box<dyn Fabric> {
        Box::new(UdpFabric::open(socket.into(), config(node, &addresses, JOB, inject)).unwrap())
    };
    (0..nodes).zip(sockets).map(fabric).collect()
}

fn udp(nodes: u16) -> Group {
    udp_group(nodes, None)
}

fn udp_with_faults(nodes: u16) -> Group {
    udp_group(nodes, Some(InjectedFaults { loss: 0.1, reorder: 0.1, duplicate: 0.1, seed: 42 }))
}

/// Makes connected fabrics, with no work left.
fn tcp(nodes: u16) -> Group {
    let listeners: Vec<_> = (0..nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let fabric = |(node, listener): (u16, TcpListener)| {
        TcpFabric::open(listener.into(), config(node, &addresses, JOB, None)).unwrap()
    };
    let group: Vec<TcpFabric> = (0..nodes).zip(listeners).map(fabric).collect();
    let start = Instant::now();
    while group.iter().any(|fabric| fabric.peers_connected() + 1 < group.len()) {
        assert!(start.elapsed() < HANGS_AFTER, "the nodes could not connect");
        group.iter().for_each(|fabric| _ = fabric.poll_now(&mut |_, _| {}).unwrap());
    }
    group.into_iter().map(|fabric| -> Box<dyn Fabric> { Box::new(fabric) }).collect()
}

fn shm(nodes: u16) -> Group {
    let files = common::shm_files(nodes);
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); usize::from(nodes)];
    let fabric = |node| -> Box<dyn Fabric> {
        let config = config(node, &addresses, JOB, None);
        Box::new(ShmFabric::open(common::inherit(&files), &config).unwrap())
    };
    (0..nodes).map(fabric).collect()
}

/// Makes a message that shows its sender and number and whether it is complete.
fn message(from: NodeId, number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let stamp = [u64::from(from.0), u64::from(number)];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let word = stamp[(at / 8) % 2].to_le_bytes()[at % 8];
        *byte = word ^ ((at / 16) as u8).wrapping_mul(31);
    }
    bytes
}

fn length_of(number: u32) -> usize {
    [16, 64, 4096, 100, 1400, 5000, 40_000][number as usize % 7]
}

/// Runs `body` for each node in a thread of its own, then polls until all have drained.
fn on_each_node(group: &Group, body: impl Fn(&dyn Fabric) + Sync) {
    let drained = AtomicUsize::new(0);
    thread::scope(|scope| {
        for fabric in group {
            let (body, drained) = (&body, &drained);
            scope.spawn(move || {
                // A panic must not leave the others waiting forever.
                let counted = CountOnDrop(drained);
                body(&**fabric);
                assert!(fabric.drain(HANGS_AFTER), "node {} could not drain", fabric.local());
                drop(counted);
                let start = Instant::now();
                while drained.load(Ordering::SeqCst) < group.len() && start.elapsed() < HANGS_AFTER {
                    fabric.poll(Some(Duration::from_millis(5)), &mut |_, _| {}).unwrap();
                }
            });
        }
    });
}

struct CountOnDrop<'a>(&'a AtomicUsize);

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn receive(fabric: &dyn Fabric, count: usize, mut deliver: impl FnMut(NodeId, &[u8])) {
    let mut received = 0;
    let start = Instant::now();
    while received < count {
        assert!(start.elapsed() < HANGS_AFTER, "{received} of {count} messages came");
        fabric
            .poll(Some(Duration::from_secs(1)), &mut |from, bytes| {
                received += 1;
                deliver(from, bytes);
            })
            .unwrap();
    }
}

/// Receives messages of each peer, numbered from 0, and checks order, contents and number.
fn receive_numbered(fabric: &dyn Fabric, each: u32, peers: usize, length: fn(u32) -> usize) {
    let mut next = vec![0; usize::from(fabric.nodes())];
    receive(fabric, each as usize * peers, |from, bytes| {
        let number: &mut u32 = &mut next[from.index()];
        assert_eq!(bytes, message(from, *number, length(*number)), "message {number} of node {from}");
        *number += 1;
    });
}

fn both_directions_at_once(make: fn(u16) -> Group) {
    const EACH: u32 = 700;
    on_each_node(&make(2), |fabric| {
        let me = fabric.local();
        let peer = NodeId(1 - me.0);
        for number in 0..EACH {
            let bytes = message(me, number, length_of(number));
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            fabric.send(peer, &[head, &[], tail]);
        }
        receive_numbered(fabric, EACH, 1, length_of);
    });
}

fn every_size(make: fn(u16) -> Group) {
    let group = make(2);
    let inline = group[0].capabilities().max_inline_bytes;
    let mut sizes = vec![0, 1, 2, 63, 64, 4095, 4096, 4097, 65_535, 65_536, 1 << 20, 8 << 20];
    sizes.extend([inline - 1, inline, inline + 1, 2 * inline, 2 * inline + 1]);
    on_each_node(&group, |fabric| {
        for (number, &size) in (0..).zip(&sizes) {
            let expected = message(NodeId(0), number, size);
            if fabric.local() == NodeId(0) {
                fabric.send(NodeId(1), &[&expected]);
            }
            receive(fabric, 1, |_, bytes| assert!(bytes == expected, "{size} bytes came back changed"));
            if fabric.local() == NodeId(1) {
                fabric.send(NodeId(0), &[&expected]);
            }
        }
    });
}

/// Content that its owner changes as soon as it is sent.
struct Changing(RefCell<Vec<u8>>);

impl Content for Changing {
    fn bytes(&self) -> usize {
        self.0.borrow().len()
    }

    fn append(&self, offset: usize, bytes: usize, room: &mut Vec<u8>) {
        room.extend_from_slice(&self.0.borrow()[offset..offset + bytes]);
    }
}

fn content_is_copied_before_send_returns(make: fn(u16) -> Group) {
    const ROUNDS: u32 = 40;
    on_each_node(&make(2), |fabric| {
        if fabric.local() == NodeId(1) {
            return receive_numbered(fabric, ROUNDS, 1, |number| 16 + length_of(number) * number as usize);
        }
        for number in 0..ROUNDS {
            let expected = message(NodeId(0), number, 16 + length_of(number) * number as usize);
            let content = Changing(RefCell::new(expected[5..].to_vec()));
            fabric.send_unsent(NodeId(1), Unsent::with_content(&[&expected[..2], &expected[2..5]], &content));
            content.0.borrow_mut().fill(0);
        }
    });
}

/// Hurried and unhurried posts, and messages sent at once among them, arrive in order. Those that wait for a
/// push leave with it.
fn posts_keep_their_order(make: fn(u16) -> Group) {
    const EACH: u32 = 700;
    on_each_node(&make(3), |fabric| {
        let me = fabric.local();
        let peers: Vec<NodeId> = NodeId::all(fabric.nodes()).filter(|peer| *peer != me).collect();
        for number in 0..EACH {
            let bytes = message(me, number, length_of(number));
            let parts: [&[u8]; 1] = [&bytes];
            for &peer in &peers {
                let waits = match number % 5 {
                    0 => fabric.post_unhurried(peer, Unsent::new(&parts)),
                    1 => {
                        fabric.send(peer, &parts);
                        false
                    }
                    _ => fabric.post(peer, Unsent::new(&parts)),
                };
                // A later push, or a later message, also sends what waits.
                if waits && number % 3 == 2 {
                    fabric.push(peer);
                }
            }
        }
        peers.iter().for_each(|peer| fabric.push(*peer));
        receive_numbered(fabric, EACH, peers.len(), length_of);
    });
}

/// Takes numbered messages in either form, and payloads in pieces.
struct Numbered(u32);

impl Receiver for Numbered {
    fn take(&mut self, from: NodeId, bytes: &[u8]) {
        assert!(bytes == message(from, self.0, bytes.len()), "message {} of node {from}", self.0);
        assert_eq!(bytes.len(), length_of(self.0) * 2);
        self.0 += 1;
    }

    fn take_with_payload(&mut self, from: NodeId, head: &[u8], payload: &mut dyn Payload) {
        assert_eq!(payload.bytes(), payload_of(self.0), "the mark is the sender's");
        let mut whole = head.to_vec();
        while payload.bytes() > 0 {
            let bytes = payload.bytes().min(30_000);
            payload.append_to(bytes, &mut whole);
        }
        self.take(from, &whole);
    }
}

/// Some messages have no payload, and one consists of it.
fn payload_of(number: u32) -> usize {
    let bytes = length_of(number) * 2;
    [0, 1, bytes / 2, bytes - 1, bytes][number as usize % 5]
}

/// Messages with and without payloads arrive in order, whole or in two parts, before and after receivers that
/// take them whole.
fn payloads_come_behind_their_heads(make: fn(u16) -> Group) {
    const EACH: u32 = 700;
    on_each_node(&make(2), |fabric| {
        let me = fabric.local();
        let peer = NodeId(1 - me.0);
        for number in 0..EACH {
            let bytes = message(me, number, length_of(number) * 2);
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            let parts = [head, tail];
            fabric.send_unsent(peer, Unsent::new(&parts).ending_in_payload(payload_of(number)));
        }
        let mut receiver = Numbered(0);
        let start = Instant::now();
        for poll in 0u32.. {
            assert!(start.elapsed() < HANGS_AFTER, "{} of {EACH} messages came", receiver.0);
            if receiver.0 == EACH {
                break;
            }
            if poll % 4 == 0 {
                let mut deliver = |from, bytes: &[u8]| receiver.take(from, bytes);
                fabric.poll(Some(Duration::from_millis(1)), &mut deliver).unwrap();
            } else {
                fabric.receive_now(&mut receiver).unwrap();
            }
        }
    });
}

fn many_to_one(make: fn(u16) -> Group) {
    const EACH: u32 = 300;
    on_each_node(&make(6), |fabric| {
        if fabric.local() == NodeId(0) {
            receive_numbered(fabric, EACH, 5, |_| 4096);
        } else {
            for number in 0..EACH {
                fabric.send(NodeId(0), &[&message(fabric.local(), number, 4096)]);
            }
        }
    });
}

fn burst_of_small_messages(make: fn(u16) -> Group) {
    const EACH: u32 = 20_000;
    on_each_node(&make(2), |fabric| {
        if fabric.local() == NodeId(0) {
            for number in 0..EACH {
                fabric.send(NodeId(1), &[&message(NodeId(0), number, 48)]);
            }
            assert!(fabric.drain(HANGS_AFTER));
            assert_eq!(fabric.backlog_bytes(NodeId(1)), 0);
            let statistics = fabric.statistics();
            assert_eq!(statistics.messages_sent, u64::from(EACH));
            assert!(statistics.datagrams_sent < u64::from(2 * EACH), "{statistics:?}");
        } else {
            receive_numbered(fabric, EACH, 1, |_| 48);
        }
    });
}

fn a_peer_that_does_not_poll_for_a_second(make: fn(u16) -> Group) {
    const EACH: u32 = 2000;
    on_each_node(&make(2), |fabric| {
        if fabric.local() == NodeId(0) {
            for number in 0..EACH {
                fabric.send(NodeId(1), &[&message(NodeId(0), number, length_of(number))]);
            }
            assert!(!fabric.drain(Duration::from_millis(100)), "no peer can have acknowledged");
        } else {
            thread::sleep(Duration::from_secs(1));
            receive_numbered(fabric, EACH, 1, length_of);
        }
    });
}

fn deliver_may_send_and_poll(make: fn(u16) -> Group) {
    const ROUNDS: u32 = 200;
    on_each_node(&make(2), |fabric| {
        let peer = NodeId(1 - fabric.local().0);
        if fabric.local() == NodeId(0) {
            fabric.send(peer, &[&0u32.to_le_bytes()]);
        }
        let mut expected = u32::from(peer.0);
        receive(fabric, ROUNDS as usize, |_, bytes| {
            assert_eq!(bytes, expected.to_le_bytes());
            expected += 2;
            let answer = expected - 1;
            if answer < 2 * ROUNDS {
                fabric.send(peer, &[&answer.to_le_bytes()]);
            }
            fabric.poll(None, &mut |_, _| panic!("a delivery inside a delivery")).unwrap();
        });
    });
}

/// The messages that arrived with the one whose receiver panics are delivered later, unchanged, also when
/// more have come.
fn a_receiver_that_panics_loses_one_message(make: fn(u16) -> Group) {
    let group = make(2);
    let post = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            group[1].post(NodeId(0), Unsent::new(&[&message(NodeId(1), number, 900)]));
        }
        group[1].push(NodeId(0));
    };
    post(0..5);
    let panics = || {
        let deliver = &mut |_: NodeId, _: &[u8]| panic!("planned");
        group[0].poll(Some(Duration::from_millis(1)), deliver)
    };
    let start = Instant::now();
    while std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_ok() {
        assert!(start.elapsed() < HANGS_AFTER);
        group[1].poll_now(&mut |_, _| {}).unwrap();
    }
    post(5..9);
    let mut came = 1;
    while came < 9 {
        assert!(start.elapsed() < HANGS_AFTER, "{came} of 9 messages came");
        let deliver = &mut |from, bytes: &[u8]| {
            assert!(bytes == message(from, came, 900), "message {came} has changed");
            came += 1;
        };
        group[0].poll(Some(Duration::from_millis(1)), deliver).unwrap();
        group[1].poll_now(&mut |_, _| {}).unwrap();
    }
}

fn many_threads_send_and_poll(make: fn(u16) -> Group) {
    const THREADS: u32 = 3;
    const EACH: u32 = 400;
    on_each_node(&make(2), |fabric| {
        let peer = NodeId(1 - fabric.local().0);
        let received = AtomicUsize::new(0);
        let all = (THREADS * EACH) as usize;
        thread::scope(|scope| {
            for sender in 0..THREADS {
                let received = &received;
                scope.spawn(move || {
                    for number in 0..EACH {
                        fabric.send(peer, &[&message(NodeId(sender as u16), number, 200)]);
                    }
                    let start = Instant::now();
                    loop {
                        let wakes = fabric.wakes();
                        if received.load(Ordering::SeqCst) >= all {
                            break;
                        }
                        assert!(start.elapsed() < HANGS_AFTER);
                        let mut deliver = |_, bytes: &[u8]| {
                            assert_eq!(bytes.len(), 200);
                            if received.fetch_add(1, Ordering::SeqCst) + 1 == all {
                                fabric.wake();
                            }
                        };
                        fabric.poll_since(wakes, None, &mut deliver).unwrap();
                    }
                });
            }
        });
        assert_eq!(received.load(Ordering::SeqCst), all);
    });
}

fn wake_ends_a_blocked_poll(make: fn(u16) -> Group) {
    let group = make(2);
    let fabric = &*group[0];
    thread::scope(|scope| {
        let blocked = scope.spawn(|| fabric.poll(None, &mut |_, _| {}).unwrap());
        let also = scope.spawn(|| fabric.poll_since(fabric.wakes(), None, &mut |_, _| {}).unwrap());
        while !(blocked.is_finished() && also.is_finished()) {
            fabric.wake();
            thread::yield_now();
        }
    });
    // Without a waiting thread, the wake is kept for the next poll; with a count, for a thread that has not
    // seen it.
    let seen = fabric.wakes();
    fabric.wake();
    fabric.poll(None, &mut |_, _| {}).unwrap();
    fabric.poll_since(seen, None, &mut |_, _| {}).unwrap();
}

fn is_readable(fabric: &dyn Fabric, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let descriptors = [Some(fabric.descriptor()), fabric.alarms()];
    let mut sources: Vec<PollFd<'_>> =
        descriptors.iter().flatten().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    poll(&mut sources, Some(&timeout)).unwrap() > 0
}

fn the_descriptor_tells_what_there_is_to_do(make: fn(u16) -> Group) {
    let group = make(2);
    let (one, other) = (&*group[0], &*group[1]);
    assert!(!is_readable(one, Duration::ZERO));
    one.wake();
    assert!(is_readable(one, Duration::ZERO));
    one.poll_now(&mut |_, _| {}).unwrap();
    assert!(!is_readable(one, Duration::ZERO));

    // Driven by the descriptors alone, retransmissions included.
    other.send(NodeId(0), &[b"fetch"]);
    let mut answered = false;
    let start = Instant::now();
    while !answered {
        assert!(start.elapsed() < HANGS_AFTER);
        for fabric in [one, other] {
            if is_readable(fabric, Duration::from_millis(1)) {
                fabric
                    .poll_now(&mut |from, bytes| match bytes {
                        b"fetch" => fabric.send(from, &[b"page"]),
                        _ => answered = bytes == b"page",
                    })
                    .unwrap();
            }
        }
    }
}

macro_rules! conformance {
    ($module:ident, $make:path) => {
        mod $module {
            use super::*;

            conformance!(@tests $make;
                both_directions_at_once every_size content_is_copied_before_send_returns posts_keep_their_order
                payloads_come_behind_their_heads many_to_one burst_of_small_messages
                a_peer_that_does_not_poll_for_a_second deliver_may_send_and_poll
                a_receiver_that_panics_loses_one_message many_threads_send_and_poll
                wake_ends_a_blocked_poll the_descriptor_tells_what_there_is_to_do);

            #[test]
            #[should_panic(expected = "expected a peer")]
            fn sending_to_oneself_is_a_mistake() {
                $make(2)[0].send(NodeId(0), &[b"me"]);
            }

            #[test]
            #[should_panic(expected = "expected a peer")]
            fn sending_to_a_stranger_is_a_mistake() {
                $make(2)[0].send(NodeId(2), &[b"you"]);
            }
        }
    };
    (@tests $make:path; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            super::$test($make);
        })*
    };
}

conformance!(over_udp, super::udp);
conformance!(over_udp_with_faults, super::udp_with_faults);
conformance!(over_tcp, super::tcp);
conformance!(over_shm, super::shm);

#[test]
fn a_peer_whose_socket_is_gone_is_no_error() {
    let mut group = udp(2);
    drop(group.pop());
    for _ in 0..20 {
        group[0].send(NodeId(1), &[b"anyone?"]);
        group[0].poll(Some(Duration::from_millis(2)), &mut |_, _| {}).unwrap();
    }
    assert!(!group[0].drain(Duration::from_millis(10)));
}

#[test]
fn a_silent_peer_is_named_until_it_is_heard() {
    let group = udp(3);
    assert_eq!(group[0].longest_silence(), None);
    group[0].send(NodeId(2), &[b"anyone?"]);
    let start = Instant::now();
    while group[0].longest_silence().is_none_or(|(_, silence)| silence < Duration::from_millis(50)) {
        assert!(start.elapsed() < HANGS_AFTER);
        group[0].poll(Some(Duration::from_millis(5)), &mut |_, _| {}).unwrap();
    }
    assert_eq!(group[0].longest_silence().unwrap().0, NodeId(2));
    assert_eq!(group[1].longest_silence(), None);
    while group[0].longest_silence().is_some() {
        assert!(start.elapsed() < HANGS_AFTER);
        for node in [2, 0] {
            group[node].poll(Some(Duration::from_millis(5)), &mut |_, _| {}).unwrap();
        }
    }
    assert_eq!(group[0].backlog_bytes_all(), 0);
}

#[test]
fn impossible_jobs_are_refused() {
    let make = |local: u16, nodes: usize| {
        let (mut sockets, addresses) = udp_sockets(1);
        let addresses = addresses.repeat(nodes);
        UdpFabric::open(sockets.pop().unwrap().into(), config(local, &addresses, JOB, None))
    };
    assert!(matches!(make(2, 2), Err(FabricError::NotANode { .. })));
    assert!(matches!(make(0, 4097), Err(FabricError::NotANode { .. })));
    let alone = make(0, 1).unwrap();
    assert!(alone.drain(Duration::ZERO));
    let not_a_socket = std::fs::File::open("/dev/null").unwrap();
    let addresses = vec!["127.0.0.1:1".parse().unwrap()];
    let error = UdpFabric::open(not_a_socket.into(), config(0, &addresses, JOB, None)).err().unwrap();
    assert!(error.to_string().starts_with("cannot read the size"), "{error}");
}

#[test]
fn what_is_posted_travels_together_and_what_is_long_does_not_wait() {
    let group = udp(2);
    let parts: [&[u8]; 1] = [&[7; 1000]];
    for _ in 0..10 {
        assert!(group[0].post(NodeId(1), Unsent::new(&parts)));
    }
    assert_eq!(group[0].statistics().datagrams_sent, 0);
    group[0].push(NodeId(1));
    assert_eq!(group[0].statistics().datagrams_sent, 1);
    group[0].push(NodeId(1));
    assert_eq!(group[0].statistics().datagrams_sent, 1);
    receive(&*group[1], 10, |_, bytes| assert_eq!(bytes, parts[0]));
    let parts: [&[u8]; 1] = [&[8; 100_000]];
    assert!(!group[0].post(NodeId(1), Unsent::new(&parts)));
    receive(&*group[1], 1, |_, bytes| assert_eq!(bytes, parts[0]));
}

#[test]
fn answers_carry_the_acknowledgements() {
    const ROUNDS: u64 = 500;
    let group = udp(2);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                group[1].poll_now(&mut |from, bytes| group[1].send(from, &[bytes])).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            group[0].send(NodeId(1), &[b"ping"]);
            receive(&*group[0], 1, |_, bytes| assert_eq!(bytes, b"ping"));
        }
        done.store(true, Ordering::SeqCst);
    });
    // A thread that loses its processor for more than 5 ms sends one alone, so a few are allowed.
    let datagrams = group[0].statistics().datagrams_sent;
    assert!(datagrams < ROUNDS + ROUNDS / 2, "{datagrams} datagrams for {ROUNDS} requests");
}
