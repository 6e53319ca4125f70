//! Tests what strangers can do to a node's socket: everything is counted, nothing is believed, nothing grows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::{NodeId, Prng, RngExt, seeded};
use hiroba_fabric::hooks::sealing::{OVERHEAD_BYTES, Sealing};
use hiroba_fabric::hooks::{Incoming, Outgoing, of_job};
use hiroba_fabric::{Fabric, FabricConfig, Hook, UdpFabric};
use hiroba_wire::control::{InjectedFaults, JobKey};

/// A test that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Counts the allocations of each thread.
struct Counting;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the system's allocator, which returned `pointer`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn config(local: u16, addresses: &[SocketAddr], key: u8) -> FabricConfig {
    let (local, addresses, key) = (NodeId(local), addresses.to_vec(), JobKey::new(&[key; 32]));
    FabricConfig { local, addresses, job: 1, key, inject: None }
}

fn noise(rng: &mut Prng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.random()).collect()
}

/// Polls until `rejected` datagrams were rejected, and asserts that nothing is delivered meanwhile.
fn poll_until_rejected(fabric: &UdpFabric, rejected: u64) {
    let start = Instant::now();
    while fabric.statistics().datagrams_rejected < rejected {
        assert!(start.elapsed() < HANGS_AFTER, "{:?}", fabric.statistics());
        fabric.poll(Some(Duration::from_millis(5)), &mut |_, bytes| panic!("delivered {bytes:?}")).unwrap();
    }
}

#[test]
fn noise_is_counted_and_not_answered() {
    let ((receiver, to), (real, from)) = (socket(), socket());
    let (stranger, _) = socket();
    let fabric = UdpFabric::open(receiver.into(), config(0, &[to, from], 7)).unwrap();
    let mut rng = seeded(3);
    let mut sent = 0;
    // From a stranger's address, and from a peer's.
    for source in [&stranger, &real] {
        for length in [0, 1, 23, 24, 25, 40, 52, 100, 1400, 40_000, 65_507] {
            source.send_to(&noise(&mut rng, length), to).unwrap();
            sent += 1;
        }
    }
    poll_until_rejected(&fabric, sent);
    assert_eq!(fabric.statistics().datagrams_rejected, sent);
    assert_eq!(fabric.statistics().datagrams_sent, 0, "strangers get no answer");
}

#[test]
fn a_peer_with_another_key_is_a_stranger() {
    let ((one, to), (other, from)) = (socket(), socket());
    let fabric = UdpFabric::open(one.into(), config(0, &[to, from], 7)).unwrap();
    let stranger = UdpFabric::open(other.into(), config(1, &[to, from], 8)).unwrap();
    stranger.send(NodeId(0), &[b"of another job"]);
    poll_until_rejected(&fabric, 1);
    assert_eq!(fabric.statistics().datagrams_sent, 0);
    assert_eq!(fabric.statistics().messages_received, 0);
}

/// Makes a datagram that node 1 would send to node 0 first.
fn genuine(addresses: &[SocketAddr], key: u8, content: &[u8]) -> Vec<u8> {
    let mut links = hiroba_fabric::LinkSet::new(NodeId(1), 2, hiroba_fabric::LinkConfig::default());
    links.send(NodeId(0), &[content]);
    let (_, datagram) = links.transmit(hiroba_base::Instant::ORIGIN).unwrap();
    let mut sealed = Vec::new();
    let mut seals = Sealing::hook(&config(1, addresses, key)).outgoing.unwrap();
    seals.pass(NodeId(0), datagram, &mut |_, bytes| sealed = bytes.to_vec());
    sealed
}

#[test]
fn a_genuine_datagram_from_another_address_is_not_believed() {
    let ((receiver, to), (real, from)) = (socket(), socket());
    let fabric = UdpFabric::open(receiver.into(), config(0, &[to, from], 7)).unwrap();
    let datagram = genuine(&[to, from], 7, b"page");
    socket().0.send_to(&datagram, to).unwrap();
    poll_until_rejected(&fabric, 1);
    real.send_to(&datagram, to).unwrap();
    let mut came = Vec::new();
    let start = Instant::now();
    while came.is_empty() {
        assert!(start.elapsed() < HANGS_AFTER);
        fabric
            .poll(Some(Duration::from_millis(5)), &mut |from, bytes| came.push((from, bytes.to_vec())))
            .unwrap();
    }
    assert_eq!(came, [(NodeId(1), b"page".to_vec())]);
    real.send_to(&datagram, to).unwrap();
    poll_until_rejected(&fabric, 2);
}

#[test]
fn a_flood_allocates_nothing() {
    const ROUNDS: usize = 200;
    let ((receiver, to), (real, from)) = (socket(), socket());
    let (stranger, _) = socket();
    let fabric = UdpFabric::open(receiver.into(), config(0, &[to, from], 7)).unwrap();
    let mut rng = seeded(5);
    let replayed = genuine(&[to, from], 7, b"page");
    let mut forged = replayed.clone();
    forged[30] ^= 1;
    let hostile = [noise(&mut rng, 300), replayed.clone(), forged, replayed[..40].to_vec(), Vec::new()];
    real.send_to(&replayed, to).unwrap();
    let start = Instant::now();
    // Wait until the delayed acknowledgement has left: the link allocates for genuine datagrams.
    while fabric.statistics().acknowledgements_sent == 0 {
        assert!(start.elapsed() < HANGS_AFTER);
        fabric.poll(Some(Duration::from_millis(5)), &mut |_, _| {}).unwrap();
    }
    let round = |rejected: &mut u64| {
        for datagram in &hostile {
            for source in [&stranger, &real] {
                source.send_to(datagram, to).unwrap();
                *rejected += 1;
            }
        }
        poll_until_rejected(&fabric, *rejected);
    };
    let mut rejected = 0;
    (0..20).for_each(|_| round(&mut rejected));
    let before = ALLOCATIONS.get();
    (0..ROUNDS).for_each(|_| round(&mut rejected));
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(fabric.statistics().datagrams_rejected, rejected);
}

#[test]
fn a_great_flood_is_counted_and_peers_are_heard_through_it() {
    const NOISE: u64 = 5000;
    let sockets = [socket(), socket()];
    let addresses = [sockets[0].1, sockets[1].1];
    let (stranger, _) = socket();
    let mut node = 0;
    let fabrics = sockets.map(|(socket, _)| {
        node += 1;
        UdpFabric::open(socket.into(), config(node - 1, &addresses, 7)).unwrap()
    });
    let mut heard = 0u32;
    for number in 0..NOISE {
        stranger.send_to(b"noise", addresses[0]).unwrap();
        if number % 10 == 0 {
            fabrics[1].send(NodeId(0), &[b"page"]);
        }
        fabrics[0].poll_now(&mut |_, _| heard += 1).unwrap();
        fabrics[1].poll_now(&mut |_, _| {}).unwrap();
    }
    let start = Instant::now();
    while u64::from(heard) < NOISE / 10 || fabrics[0].statistics().datagrams_rejected < NOISE {
        assert!(start.elapsed() < HANGS_AFTER, "{heard} heard, {:?}", fabrics[0].statistics());
        fabrics[0].poll(Some(Duration::from_millis(5)), &mut |_, _| heard += 1).unwrap();
        fabrics[1].poll_now(&mut |_, _| {}).unwrap();
    }
    assert_eq!(fabrics[0].statistics().datagrams_rejected, NOISE);
}

/// Stands between two nodes, each of which takes it for the other.
struct Middle {
    sockets: [UdpSocket; 2],
    nodes: [SocketAddr; 2],
    rng: Prng,
    /// Earlier datagrams to each node.
    captured: [Vec<Vec<u8>>; 2],
    /// Number of hostile datagrams sent to each node.
    hostile: [u64; 2],
}

impl Middle {
    /// Passes one datagram on to `node`, if one waits, and a hostile datagram with it.
    fn pass(&mut self, node: usize) -> bool {
        let mut room = vec![0; 65_535];
        let Ok((length, _)) = self.sockets[1 - node].recv_from(&mut room) else { return false };
        room.truncate(length);
        self.captured[node].push(room.clone());
        let before = self.rng.random_bool(0.5);
        if before {
            self.send(node, &room);
        }
        let (target, hostile) = self.hostile_for(node, &room);
        self.send(target, &hostile);
        self.hostile[target] += 1;
        if !before {
            self.send(node, &room);
        }
        true
    }

    fn send(&self, node: usize, datagram: &[u8]) {
        self.sockets[node].send_to(datagram, self.nodes[node]).unwrap();
    }

    fn hostile_for(&mut self, node: usize, datagram: &[u8]) -> (usize, Vec<u8>) {
        let mut bytes = datagram.to_vec();
        match self.rng.random_range(0..7u32) {
            0 => return (1 - node, bytes),
            1 => {
                let bit = self.rng.random_range(0..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            2 => bytes.truncate(self.rng.random_range(0..datagram.len())),
            3 => bytes.extend(noise(&mut self.rng, 4)),
            4 => bytes = noise(&mut self.rng, datagram.len()),
            5 => bytes[..8].copy_from_slice(&self.rng.random::<u64>().to_le_bytes()),
            // Replays an earlier datagram. The first one has none before it, and a copy that overtook it
            // would be genuine, so that copy is truncated.
            _ => {
                let captured = &self.captured[node];
                let earlier = self.rng.random_range(0..captured.len().max(2) - 1);
                bytes = captured[earlier.min(captured.len() - 1)].clone();
                if captured.len() == 1 {
                    bytes.truncate(10);
                }
            }
        }
        (node, bytes)
    }
}

#[test]
fn one_in_the_middle_who_does_everything_but_lose_changes_nothing() {
    const EACH: u32 = 1500;
    let ([(one, at_one), (other, at_other)], [(to_one, as_other), (to_other, as_one)]) =
        ([socket(), socket()], [socket(), socket()]);
    let fabrics = [
        UdpFabric::open(one.into(), config(0, &[at_one, as_other], 7)).unwrap(),
        UdpFabric::open(other.into(), config(1, &[as_one, at_other], 7)).unwrap(),
    ];
    let mut middle = Middle {
        sockets: [to_one, to_other],
        nodes: [at_one, at_other],
        rng: seeded(11),
        captured: Default::default(),
        hostile: [0; 2],
    };
    for socket in &middle.sockets {
        socket.set_nonblocking(true).unwrap();
    }
    let mut next = [0u32; 2];
    let mut sent = 0;
    let start = Instant::now();
    // In one thread, so that no node is flooded: all that is sent is passed on and read.
    while next != [EACH; 2] || fabrics.iter().any(|fabric| fabric.backlog_bytes_all() > 0) {
        assert!(start.elapsed() < HANGS_AFTER, "{next:?}");
        if sent < EACH {
            for (node, fabric) in fabrics.iter().enumerate() {
                let message = [&sent.to_le_bytes()[..], &vec![sent as u8; (sent % 3000) as usize]].concat();
                fabric.send(NodeId(1 - node as u16), &[&message]);
            }
            sent += 1;
        }
        for (node, fabric) in fabrics.iter().enumerate() {
            while middle.pass(node) {}
            let next = &mut next[node];
            let mut deliver = |_, message: &[u8]| {
                let number = u32::from_le_bytes(*message.first_chunk().unwrap());
                assert_eq!(number, *next);
                assert_eq!(message.len(), 4 + (number % 3000) as usize);
                assert!(message[4..].iter().all(|byte| *byte == number as u8));
                *next += 1;
            };
            fabric.poll_now(&mut deliver).unwrap();
        }
        thread::yield_now();
    }
    for (fabric, hostile) in fabrics.iter().zip(middle.hostile) {
        assert!(hostile > 100);
        poll_until_rejected(fabric, hostile);
        assert_eq!(fabric.statistics().datagrams_rejected, hostile);
        assert_eq!(fabric.statistics().messages_received, u64::from(EACH));
    }
}

/// Counts datagrams and their bytes in both directions.
#[derive(Clone, Default)]
struct Trace {
    out: Arc<[AtomicU64; 2]>,
    back: Arc<[AtomicU64; 2]>,
}

fn note(counts: &[AtomicU64; 2], bytes: usize) {
    counts[0].fetch_add(1, Ordering::SeqCst);
    counts[1].fetch_add(bytes as u64, Ordering::SeqCst);
}

fn counted(counts: &[AtomicU64; 2]) -> [u64; 2] {
    [0, 1].map(|index| counts[index].load(Ordering::SeqCst))
}

impl Trace {
    fn hook(&self) -> Hook {
        Hook {
            outgoing: Some(Box::new(self.clone())),
            incoming: Some(Box::new(self.clone())),
            overhead_bytes: 0,
        }
    }
}

impl Outgoing for Trace {
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8])) {
        note(&self.out, datagram.len());
        next(to, datagram);
    }
}

impl Incoming for Trace {
    fn pass(&mut self, _: NodeId, datagram: &mut [u8]) -> Option<Range<usize>> {
        note(&self.back, datagram.len());
        Some(0..datagram.len())
    }
}

#[test]
fn a_tracing_hook_stands_above_or_beneath_the_seal() {
    let sockets = [socket(), socket()];
    let addresses = [sockets[0].1, sockets[1].1];
    let (above, beneath, network) = (Trace::default(), Trace::default(), Trace::default());
    let mut node = 0;
    let fabrics = sockets.map(|(socket, _)| {
        let inject = Some(InjectedFaults { duplicate: 1.0, ..InjectedFaults::default() });
        let config = FabricConfig { inject, ..config(node, &addresses, 7) };
        let mut hooks = of_job(&config);
        if node == 0 {
            hooks.insert(0, above.hook());
            hooks.insert(2, beneath.hook());
            hooks.push(network.hook());
        }
        node += 1;
        UdpFabric::with_hooks(socket.into(), config, hooks).unwrap()
    });
    let mut answered = false;
    fabrics[0].send(NodeId(1), &[b"fetch"]);
    let start = Instant::now();
    while !(answered && fabrics.iter().all(|fabric| fabric.backlog_bytes_all() == 0)) {
        assert!(start.elapsed() < HANGS_AFTER);
        fabrics[1].poll_now(&mut |from, _| fabrics[1].send(from, &[b"page"])).unwrap();
        fabrics[0].poll_now(&mut |_, bytes| answered = bytes == b"page").unwrap();
    }
    let sent = fabrics[0].statistics().datagrams_sent;
    let [out, out_bytes] = counted(&above.out);
    assert_eq!(out, sent);
    assert_eq!(counted(&beneath.out), [sent, out_bytes + sent * OVERHEAD_BYTES as u64]);
    assert_eq!(counted(&network.out)[0], 2 * sent, "each comes twice");
    // The copies that the injector makes are replays, which the seal keeps from the hook above it.
    let rejected = fabrics[0].statistics().datagrams_rejected;
    assert_eq!(counted(&beneath.back)[0], counted(&above.back)[0] + rejected);
    assert!(rejected > 0);
}
