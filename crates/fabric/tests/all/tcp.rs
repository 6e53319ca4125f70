//! Tests what the fabric over TCP must withstand: strangers at the port, an attacker on the path, peers that
//! come late, stop or die.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::{NodeId, RngExt, seeded};
use hiroba_fabric::{Fabric, FabricConfig, FabricError, TcpFabric};
use hiroba_wire::control::JobKey;

fn job_key() -> JobKey {
    JobKey::new(&[42; 32])
}

/// A test that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

fn listeners(nodes: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    listeners_at([127, 0, 0, 1], nodes)
}

fn listeners_at(ip: [u8; 4], nodes: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let bind = |_| TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
    let listeners: Vec<_> = (0..nodes).map(bind).collect();
    let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    (listeners, addresses)
}

fn config(local: u16, addresses: &[SocketAddr]) -> FabricConfig {
    let addresses = addresses.to_vec();
    FabricConfig { local: NodeId(local), addresses, job: 7, key: job_key(), inject: None }
}

fn open(local: u16, listener: TcpListener, addresses: &[SocketAddr]) -> TcpFabric {
    TcpFabric::open(listener.into(), config(local, addresses)).unwrap()
}

fn pair() -> [TcpFabric; 2] {
    let (listeners, addresses) = listeners(2);
    let mut fabrics = (0..).zip(listeners).map(|(node, listener)| open(node, listener, &addresses));
    [fabrics.next().unwrap(), fabrics.next().unwrap()]
}

/// Polls all of `fabrics` in turn until `done`. `deliver` checks the messages.
fn poll_until(
    what: &str,
    fabrics: &[&TcpFabric],
    mut deliver: impl FnMut(NodeId, &[u8]),
    done: impl Fn() -> bool,
) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < HANGS_AFTER, "{what}");
        for fabric in fabrics {
            fabric.poll(Some(Duration::from_millis(1)), &mut deliver).unwrap();
        }
    }
}

fn nothing(_: NodeId, bytes: &[u8]) {
    panic!("{} bytes delivered", bytes.len());
}

/// Exchanges messages to show that two nodes reach each other.
fn exchange(one: &TcpFabric, other: &TcpFabric) {
    one.send(other.local(), &[b"there"]);
    other.send(one.local(), &[b"here"]);
    let count = std::cell::Cell::new(0);
    let deliver = |_, bytes: &[u8]| {
        assert!(bytes == b"there" || bytes == b"here");
        count.set(count.get() + 1);
    };
    poll_until("both messages arrive", &[one, other], deliver, || count.get() == 2);
}

/// Returns true if the other side has ended the connection.
fn is_refused(mut stranger: &TcpStream) -> bool {
    stranger.set_nonblocking(true).unwrap();
    let mut room = [0; 256];
    loop {
        match stranger.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn noise_is_refused_counted_and_harmless() {
    let (mut listeners, addresses) = listeners(2);
    let late = listeners.pop().unwrap();
    let fabric = open(0, listeners.pop().unwrap(), &addresses);
    let mut rng = seeded(5);
    let strangers: Vec<TcpStream> = [68usize, 69, 1000, 100_000]
        .into_iter()
        .map(|length| {
            let mut stranger = TcpStream::connect(addresses[0]).unwrap();
            stranger.set_nonblocking(true).unwrap();
            let noise: Vec<u8> = (0..length).map(|_| rng.random()).collect();
            // It does not matter how much of it the other side reads.
            let _ = stranger.write(&noise);
            stranger
        })
        .collect();
    // A stranger that leaves during its hello.
    TcpStream::connect(addresses[0]).unwrap().write_all(b"hiroba").unwrap();
    let refused = || fabric.statistics().datagrams_rejected == 5;
    poll_until("all are refused", &[&fabric], nothing, refused);
    assert!(strangers.iter().all(is_refused));
    assert_eq!((fabric.peers_connected(), fabric.statistics().messages_received), (0, 0));
    exchange(&fabric, &open(1, late, &addresses));
}

#[test]
fn strangers_who_say_nothing_take_nobodys_place() {
    // No other test uses this address, so none can get the port when it is released.
    let (mut listeners, addresses) = listeners_at([127, 0, 0, 9], 3);
    let absent = listeners.pop().unwrap();
    let late = listeners.pop().unwrap();
    let fabric = open(0, listeners.pop().unwrap(), &addresses);
    let crowd: Vec<TcpStream> = (0..200)
        .map(|_| {
            let stranger = TcpStream::connect(addresses[0]).unwrap();
            fabric.poll_now(&mut nothing).unwrap();
            stranger
        })
        .collect();
    let other = open(1, late, &addresses);
    exchange(&fabric, &other);
    // As long as a node of the job is awaited, the node listens. Few strangers can wait there, and only for a
    // while.
    poll_until("the crowd goes", &[&fabric, &other], nothing, || crowd.iter().all(is_refused));
    assert!(fabric.statistics().datagrams_rejected >= 200);
    exchange(&fabric, &open(2, absent, &addresses));
    // Now that all have connected, no process can connect any more.
    assert!(TcpStream::connect(addresses[0]).is_err());
    exchange(&fabric, &other);
}

#[test]
fn another_key_or_another_job_does_not_get_in() {
    let (mut listeners, addresses) = listeners(2);
    let late = listeners.pop().unwrap();
    let fabric = open(0, listeners.pop().unwrap(), &addresses);
    let false_nodes = [
        FabricConfig { key: JobKey::new(&[43; 32]), ..config(1, &addresses) },
        FabricConfig { job: 8, ..config(1, &addresses) },
    ]
    .map(|config| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpFabric::open(listener.into(), config).unwrap()
    });
    let [one, other] = &false_nodes;
    one.send(NodeId(0), &[b"let me in"]);
    other.send(NodeId(0), &[b"let me in"]);
    // Each tries again.
    let refused = || fabric.statistics().datagrams_rejected >= 4;
    poll_until("both are refused, twice", &[&fabric, one, other], nothing, refused);
    assert_eq!((one.peers_connected(), other.peers_connected(), fabric.peers_connected()), (0, 0, 0));
    drop(false_nodes);
    exchange(&fabric, &open(1, late, &addresses));
}

/// Stands between a node and `to`; changes and records what the node sends.
struct Between {
    address: SocketAddr,
    thread: thread::JoinHandle<Vec<u8>>,
}

fn between(to: SocketAddr, change: impl Fn(usize, &mut [u8]) + Send + 'static) -> Between {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let mut node = listener.accept().unwrap().0;
        let mut onwards = TcpStream::connect(to).unwrap();
        let (mut back, mut home) = (onwards.try_clone().unwrap(), node.try_clone().unwrap());
        let answers = thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut home);
            let _ = home.shutdown(Shutdown::Both);
        });
        let (mut recorded, mut room) = (Vec::new(), [0; 4096]);
        while let Ok(got @ 1..) = node.read(&mut room) {
            change(recorded.len(), &mut room[..got]);
            recorded.extend_from_slice(&room[..got]);
            if onwards.write_all(&room[..got]).is_err() {
                break;
            }
        }
        let _ = onwards.shutdown(Shutdown::Both);
        answers.join().unwrap();
        recorded
    });
    Between { address, thread }
}

#[test]
fn what_was_recorded_opens_no_second_connection() {
    let (mut listeners, addresses) = listeners(3);
    let absent = listeners.pop().unwrap();
    let late = listeners.pop().unwrap();
    let fabric = open(0, listeners.pop().unwrap(), &addresses);
    let spy = between(addresses[0], |_, _| {});
    let other = open(1, late, &[spy.address, addresses[1], addresses[2]]);
    exchange(&fabric, &other);
    let before = fabric.statistics();
    assert_eq!(before.datagrams_rejected, 0);
    drop(other);
    let recorded = spy.thread.join().unwrap();
    let mut replayed = TcpStream::connect(addresses[0]).unwrap();
    replayed.write_all(&recorded).unwrap();
    poll_until("the replay is refused", &[&fabric], nothing, || is_refused(&replayed));
    let after = fabric.statistics();
    assert_eq!((after.datagrams_rejected, after.messages_received), (1, before.messages_received));
    assert_eq!(fabric.peers_connected(), 1);
    exchange(&fabric, &open(2, absent, &addresses));
}

#[test]
fn a_bit_that_was_changed_on_the_way_is_told_at_once_as_what_it_is() {
    const AFTER_BYTES: usize = 20_000;
    let (mut listeners, addresses) = listeners(2);
    let late = listeners.pop().unwrap();
    let fabric = open(0, listeners.pop().unwrap(), &addresses);
    let forger = between(addresses[0], |at, bytes| {
        if let Some(byte) = AFTER_BYTES.checked_sub(at).and_then(|index| bytes.get_mut(index)) {
            *byte ^= 1;
        }
    });
    let other = open(1, late, &[forger.address, addresses[1]]);
    for number in 0..100u8 {
        other.send(NodeId(0), &[&[number; 1000]]);
    }
    let mut next = 0;
    let mut deliver = |_, bytes: &[u8]| {
        assert_eq!(bytes, [next; 1000], "only what is sound, and in order");
        next += 1;
    };
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < HANGS_AFTER, "the change is noticed");
        other.poll(Some(Duration::from_millis(1)), &mut |_, _| {}).unwrap();
        if let Err(error) = fabric.poll(Some(Duration::from_millis(1)), &mut deliver) {
            break error;
        }
    };
    assert!(next < 100);
    for error in [error, fabric.poll_now(&mut nothing).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let sentence = error.to_string();
        assert!(sentence.starts_with("node 1 sent an invalid message over tcp: expected "), "{sentence}");
    }
    assert_eq!(fabric.statistics().datagrams_rejected, 1);
    // The other side has lost its connection, which is not an error there: it cannot know the cause.
    let missed = || other.longest_silence().is_some();
    poll_until("the connection has ended", &[&other], nothing, missed);
    drop(other);
    forger.thread.join().unwrap();
}

#[test]
fn messages_wait_for_a_peer_that_comes_late() {
    let (mut listeners, addresses) = listeners(3);
    let third = listeners.pop().unwrap();
    let second = listeners.pop().unwrap();
    let first = listeners.pop().unwrap();
    // The node to which all others connect opens last.
    let third = open(2, third, &addresses);
    third.send(NodeId(0), &[&[3; 100_000]]);
    third.send(NodeId(1), &[b"early"]);
    assert!(third.backlog_bytes(NodeId(0)) > 100_000 && third.backlog_bytes_all() > 100_005);
    assert!(!third.drain(Duration::from_millis(1)));
    let second = open(1, second, &addresses);
    let first = open(0, first, &addresses);
    let count = std::cell::Cell::new(0);
    let deliver = |from, bytes: &[u8]| {
        assert!(from == NodeId(2) && (bytes == b"early" || bytes == [3; 100_000]));
        count.set(count.get() + 1);
    };
    poll_until("both arrive", &[&first, &second, &third], deliver, || count.get() == 2);
    thread::scope(|scope| {
        let drained = scope.spawn(|| third.drain(HANGS_AFTER));
        poll_until("it drains", &[&first, &second], nothing, || drained.is_finished());
        assert!(drained.join().unwrap());
    });
    assert_eq!((third.backlog_bytes_all(), third.longest_silence()), (0, None));
}

#[test]
fn a_peer_that_has_stopped_is_silent_until_it_goes_on() {
    let [one, other] = pair();
    exchange(&one, &other);
    assert_eq!(one.longest_silence(), None);
    one.send(NodeId(1), &[b"are you there?"]);
    let silent_for =
        |limit| one.longest_silence().is_some_and(|(node, time)| node == NodeId(1) && time >= limit);
    poll_until("it is silent", &[&one], nothing, || silent_for(Duration::from_secs(1)));
    let answered = std::cell::Cell::new(false);
    let deliver = |_, bytes: &[u8]| answered.set(bytes == b"are you there?");
    poll_until("it has come back", &[&one, &other], deliver, || one.longest_silence().is_none());
    assert!(answered.get());
}

#[test]
fn a_peer_that_has_died_is_silent_and_no_error() {
    let [one, other] = pair();
    exchange(&one, &other);
    drop(other);
    poll_until("it is missed", &[&one], nothing, || one.longest_silence().is_some());
    for _ in 0..20 {
        one.send(NodeId(1), &[b"anyone?"]);
    }
    assert!(!one.drain(Duration::from_millis(10)));
    assert_eq!(one.backlog_bytes_all(), 0, "data without a receiver are not kept");
}

#[test]
fn every_node_reaches_every_other() {
    const NODES: usize = 12;
    let (listeners, addresses) = listeners(NODES);
    let fabrics: Vec<TcpFabric> =
        (0..).zip(listeners).map(|(node, listener)| open(node, listener, &addresses)).collect();
    for one in &fabrics {
        for other in NodeId::all(NODES as u16).filter(|other| *other != one.local()) {
            one.send(other, &[&one.local().0.to_le_bytes()]);
        }
    }
    let count = std::cell::Cell::new(0);
    let deliver = |from: NodeId, bytes: &[u8]| {
        assert_eq!(bytes, from.0.to_le_bytes());
        count.set(count.get() + 1);
    };
    let all: Vec<&TcpFabric> = fabrics.iter().collect();
    poll_until("all arrive", &all, deliver, || count.get() == NODES * (NODES - 1));
    assert!(fabrics.iter().all(|fabric| fabric.statistics().messages_received == NODES as u64 - 1));
}

#[test]
fn impossible_jobs_are_refused() {
    let make = |local: u16, nodes: usize| {
        let (mut listeners, addresses) = listeners(1);
        TcpFabric::open(listeners.pop().unwrap().into(), config(local, &addresses.repeat(nodes)))
    };
    assert!(matches!(make(2, 2), Err(FabricError::NotANode { .. })));
    assert!(matches!(make(0, 4097), Err(FabricError::NotANode { .. })));
    assert!(make(0, 1).unwrap().drain(Duration::ZERO));
    let not_a_socket = std::fs::File::open("/dev/null").unwrap();
    let error =
        TcpFabric::open(not_a_socket.into(), config(0, &["127.0.0.1:1".parse().unwrap()])).err().unwrap();
    assert!(error.to_string().starts_with("cannot listen on a TCP socket"), "{error}");
}
