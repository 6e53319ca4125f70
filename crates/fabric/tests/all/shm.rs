//! Tests what the fabric over shared memory must withstand: full and wrapping rings, peers that die or write
//! garbage, many nodes. Also tests the order on which one-sided reads rely.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::{NodeId, RngExt, seeded};
use hiroba_fabric::{Fabric, FabricConfig, FabricError, OneSided, Receiver, ShmFabric, ShmFiles, Unsent};
use hiroba_wire::Payload;
use hiroba_wire::control::JobKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common;

/// A test that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

const PAGE_BYTES: usize = 4096;

fn config(local: u16, nodes: u16) -> FabricConfig {
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); usize::from(nodes)];
    let key = JobKey::new(&[7; 32]);
    FabricConfig { local: NodeId(local), addresses, job: 1, key, inject: None }
}

fn open(local: u16, nodes: u16, files: ShmFiles) -> ShmFabric {
    ShmFabric::open(files, &config(local, nodes)).unwrap()
}

/// Makes the fabrics of one job, and its files once more, to do what a fabric would not.
fn group(nodes: u16) -> (Vec<ShmFabric>, ShmFiles) {
    let files = common::shm_files(nodes);
    let fabrics = (0..nodes).map(|node| open(node, nodes, common::inherit(&files))).collect();
    (fabrics, files)
}

fn file(descriptor: impl AsFd) -> File {
    File::from(descriptor.as_fd().try_clone_to_owned().unwrap())
}

fn is_readable(fabric: &dyn Fabric) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fabric.descriptor(), PollFlags::IN)], Some(&none)).unwrap() == 1
}

fn one_sided(fabric: &ShmFabric) -> &dyn OneSided {
    fabric.one_sided().expect("its capabilities say so")
}

/// Makes bytes that depend on their number and length.
fn message(number: u64, length: usize) -> Vec<u8> {
    let mut rng = seeded(number);
    (0..length).map(|_| rng.random()).collect()
}

#[test]
fn messages_of_all_sizes_go_round_the_ring_in_order() {
    let (group, _files) = group(2);
    let longest = group[0].capabilities().max_inline_bytes;
    let mut rng = seeded(5);
    let mut sizes: Vec<usize> = (0..400).map(|_| rng.random_range(0..3 * longest)).collect();
    sizes.extend((0..400).map(|_| rng.random_range(0..200)));
    // Multiples of a line, with and without room for the header, many times round.
    sizes.extend((0..300).map(|number| number % 70 * 64 + number % 17));
    let all = sizes.len();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (number, &size) in (0..).zip(&sizes) {
                let message = message(number, size);
                let (head, tail) = message.split_at(size / 3);
                group[0].send(NodeId(1), &[head, &[], tail]);
                while group[0].backlog_bytes(NodeId(1)) > 2 << 20 {
                    // Wait until room is reported: without the report this would hang.
                    group[0].poll(Some(HANGS_AFTER), &mut |_, _| {}).unwrap();
                    assert!(start.elapsed() < HANGS_AFTER, "no room was reported");
                }
            }
            assert!(group[0].drain(HANGS_AFTER));
        });
        let mut received = 0;
        while received < all {
            assert!(start.elapsed() < HANGS_AFTER, "{received} of {all} came");
            let timeout = Some(HANGS_AFTER);
            let deliver = &mut |from, bytes: &[u8]| {
                assert_eq!((from, bytes.len()), (NodeId(0), sizes[received]));
                assert!(bytes == message(received as u64, bytes.len()), "message {received}");
                received += 1;
            };
            group[1].poll(timeout, deliver).unwrap();
        }
    });
    assert_eq!(group[0].backlog_bytes_all(), 0);
    let (sent, got) = (group[0].statistics(), group[1].statistics());
    assert_eq!((sent.messages_sent, got.messages_received), (all as u64, all as u64));
}

#[test]
fn a_node_that_spins_costs_its_peers_no_system_call_and_one_that_sleeps_is_woken() {
    let (group, _files) = group(2);
    let (one, other) = (&group[0], &group[1]);
    assert!(one.begin_spinning());
    other.send(NodeId(0), &[b"first"]);
    assert!(!is_readable(one), "it spins: peers need not ring");
    let mut received = 0;
    one.poll_now(&mut |_, _| received += 1).unwrap();
    assert_eq!(received, 1);
    // Messages that it has not received when it stops are not lost.
    other.send(NodeId(0), &[b"second"]);
    one.end_spinning();
    assert!(is_readable(one));
    one.poll_now(&mut |_, _| received += 1).unwrap();
    assert_eq!(received, 2);
    assert!(!is_readable(one));
    other.send(NodeId(0), &[b"third"]);
    assert!(is_readable(one), "it may sleep: it must be woken");
    // An earlier ring does not wake others while a thread spins.
    one.begin_spinning();
    one.poll_now(&mut |_, _| received += 1).unwrap();
    assert!(!is_readable(one));
    one.end_spinning();
    assert_eq!(received, 3);
    assert!(!is_readable(one));
}

#[test]
fn threads_that_spin_and_sleep_by_turns_miss_nothing() {
    const ROUNDS: u32 = 5_000;
    let (group, _files) = group(2);
    // Each waits for the other's number, sometimes asleep without a timeout: a lost wake would hang here.
    let play = |me: usize| {
        let (fabric, peer) = (&group[me], NodeId(1 - me as u16));
        let mut rng = seeded(me as u64);
        let mut next = me as u32;
        if me == 0 {
            fabric.send(peer, &[&0u32.to_le_bytes()]);
            next = 1;
        }
        while next < ROUNDS {
            let mut expected = None;
            let mut deliver =
                |_, bytes: &[u8]| expected = Some(u32::from_le_bytes(bytes.try_into().unwrap()));
            if rng.random_range(0..3) == 0 {
                fabric.begin_spinning();
                for _ in 0..rng.random_range(0..200) {
                    fabric.poll_now(&mut deliver).unwrap();
                }
                fabric.end_spinning();
            }
            if expected.is_none() {
                let mut deliver =
                    |_, bytes: &[u8]| expected = Some(u32::from_le_bytes(bytes.try_into().unwrap()));
                fabric.poll(None, &mut deliver).unwrap();
            }
            if let Some(got) = expected {
                fabric.send(peer, &[&(got + 1).to_le_bytes()]);
                next = got + 2;
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(0));
        play(1);
    });
}

#[test]
fn either_the_home_takes_an_announcement_or_the_reader_sees_what_was_written() {
    const ROUNDS: u64 = 200_000;
    /// A crowded machine does fewer rounds.
    const ENOUGH: Duration = Duration::from_secs(3);
    let (group, _files) = group(2);
    // Two threads meet in each round, as close together as threads get. The home writes the round's number
    // and looks for announcements; the reader announces and reads. Neither may miss the other.
    let written = AtomicU64::new(0);
    let (home_ready, reader_ready) = (AtomicU64::new(0), AtomicU64::new(0));
    let (seen, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let rounds = AtomicU64::new(ROUNDS);
    let meet = |mine: &AtomicU64, theirs: &AtomicU64, count: u64| {
        mine.store(count, Ordering::SeqCst);
        let mut looks = 0u32;
        while theirs.load(Ordering::SeqCst) < count {
            looks += 1;
            if looks.is_multiple_of(100) { thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while round < rounds.load(Ordering::SeqCst) {
                round += 1;
                meet(&reader_ready, &home_ready, 2 * round - 1);
                assert!(one_sided(&group[0]).announce(NodeId(1), round));
                seen.store(written.load(Ordering::Relaxed), Ordering::Relaxed);
                meet(&reader_ready, &home_ready, 2 * round);
            }
        });
        let mut round = 0;
        while round < rounds.load(Ordering::SeqCst) {
            round += 1;
            meet(&home_ready, &reader_ready, 2 * round - 1);
            written.store(round, Ordering::Relaxed);
            one_sided(&group[1]).announcements(&mut |from, page| {
                assert_eq!(from, NodeId(0));
                taken.store(page, Ordering::Relaxed);
            });
            if start.elapsed() > ENOUGH {
                rounds.store(round, Ordering::SeqCst);
            }
            meet(&home_ready, &reader_ready, 2 * round);
            let (seen, taken) = (seen.load(Ordering::SeqCst), taken.load(Ordering::Relaxed));
            assert!(seen == round || taken == round, "in round {round} each missed the other");
            one_sided(&group[1]).announcements(&mut |_, page| assert_eq!(page, round));
        }
    });
}

#[test]
fn a_full_log_refuses_until_it_is_taken() {
    let (group, _files) = group(3);
    let reader = one_sided(&group[0]);
    let home = one_sided(&group[1]);
    for lap in 0..3u64 {
        let mut made = Vec::new();
        while reader.announce(NodeId(1), lap << 32 | made.len() as u64) {
            made.push(lap << 32 | made.len() as u64);
            assert!(made.len() < 1 << 24, "a log must have an end");
        }
        assert!(made.len() >= 1024);
        assert!(reader.announce(NodeId(2), 5), "every home has a log of its own");
        let mut taken = Vec::new();
        home.announcements(&mut |from, page| {
            assert_eq!(from, NodeId(0));
            taken.push(page);
        });
        assert_eq!(taken, made);
        home.announcements(&mut |_, _| panic!("taken twice"));
    }
}

#[test]
fn words_are_published_after_what_was_written_before() {
    const ROUNDS: u64 = 20_000;
    let (group, files) = group(2);
    let frames = file(&files.frames[0]);
    frames.set_len(1 << 30).unwrap();
    let (home, reader) = (one_sided(&group[0]), one_sided(&group[1]));
    assert_eq!(reader.published(NodeId(0), NodeId(1)), 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                frames.write_all_at(&round.to_ne_bytes(), 3 * PAGE_BYTES as u64).unwrap();
                home.publish(NodeId(1), round);
            }
            done.store(true, Ordering::SeqCst);
        });
        loop {
            let last = done.load(Ordering::SeqCst);
            let published = reader.published(NodeId(0), NodeId(1));
            let mut word = [0; 8];
            reader.read(NodeId(0), 3 * PAGE_BYTES as u64, &mut word).unwrap();
            assert!(u64::from_ne_bytes(word) >= published);
            if last {
                break;
            }
        }
    });
    assert_eq!(reader.published(NodeId(0), NodeId(1)), ROUNDS);
    assert_eq!(reader.published(NodeId(0), NodeId(0)), 0);
}

#[test]
fn frames_are_read_whole_wherever_they_lie_and_holes_stay_holes() {
    const WINDOW_BYTES: u64 = 64 << 30;
    let (group, files) = group(2);
    let frames = file(&files.frames[0]);
    let reader = one_sided(&group[1]);
    let mut into = vec![1; PAGE_BYTES];
    let error = reader.read(NodeId(0), 0, &mut into).unwrap_err();
    assert!(error.to_string().contains("the end of a node's memory"), "{error}");
    frames.set_len(2 * WINDOW_BYTES).unwrap();
    // Data, a hole, data up to the border between two windows, and data after it.
    let first = message(1, 40 * PAGE_BYTES);
    let second = message(2, 5 * PAGE_BYTES);
    frames.write_all_at(&first, 0).unwrap();
    frames.write_all_at(&second, WINDOW_BYTES - 2 * PAGE_BYTES as u64).unwrap();
    let blocks = frames.metadata().unwrap().blocks();
    // Often enough for both ways of reading, with odd lengths and offsets.
    for round in 0..10 {
        let mut into = vec![7; 64 * PAGE_BYTES];
        reader.read(NodeId(0), 0, &mut into).unwrap();
        assert!(into[..first.len()] == first, "round {round}");
        assert!(into[first.len()..].iter().all(|byte| *byte == 0), "round {round}");
        let mut into = vec![7; 3 * PAGE_BYTES + 11];
        reader.read(NodeId(0), WINDOW_BYTES - 5000, &mut into).unwrap();
        let skipped = 2 * PAGE_BYTES - 5000;
        assert!(into[..] == second[skipped..skipped + into.len()], "round {round}");
        let mut one = vec![7; 100];
        reader.read(NodeId(0), 4090, &mut one).unwrap();
        assert_eq!(one, first[4090..4190]);
        let mut hole = vec![7; PAGE_BYTES];
        reader.read(NodeId(0), 1 << 30, &mut hole).unwrap();
        assert_eq!(hole, [0; PAGE_BYTES]);
    }
    assert_eq!(frames.metadata().unwrap().blocks(), blocks, "reading makes no frames");
    // Later writes are seen by both ways of reading.
    frames.write_all_at(b"new", 0).unwrap();
    frames.write_all_at(b"new", 1 << 30).unwrap();
    for offset in [0, 1 << 30] {
        let mut into = [0; 3];
        reader.read(NodeId(0), offset, &mut into).unwrap();
        assert_eq!(&into, b"new");
    }
    assert!(reader.reaches(NodeId(0)) && !reader.reaches(NodeId(2)));
}

#[test]
fn a_peer_that_is_gone_is_no_error() {
    let (mut group, _files) = group(2);
    group[1].send(NodeId(0), &[b"last words"]);
    drop(group.pop());
    let fabric = &group[0];
    // Far more than any ring takes.
    let long = vec![3; 1 << 20];
    for _ in 0..20 {
        fabric.send(NodeId(1), &[&long]);
        fabric
            .poll(Some(Duration::from_millis(1)), &mut |_, bytes| assert_eq!(bytes, b"last words"))
            .unwrap();
    }
    assert!(!fabric.drain(Duration::from_millis(10)));
    assert!(fabric.backlog_bytes(NodeId(1)) >= 20 << 20);
    // The first look finds the silence, the second finds it unchanged.
    assert_eq!(fabric.longest_silence(), None);
    assert!(fabric.longest_silence().is_some_and(|(node, _)| node == NodeId(1)));
    let one_sided = one_sided(fabric);
    while one_sided.announce(NodeId(1), 1) {}
    assert_eq!(one_sided.published(NodeId(1), NodeId(0)), 0);
}

/// Polls until it fails, and ignores deliveries.
fn first_error(fabric: &ShmFabric, polls: u32) -> Option<std::io::Error> {
    (0..polls).find_map(|_| fabric.poll(Some(Duration::ZERO), &mut |_, _| {}).err())
}

#[test]
fn garbage_on_a_board_is_an_error_and_no_more() {
    let mut errors = 0;
    for seed in 0..60 {
        let (group, files) = group(2);
        group[1].send(NodeId(0), &[&message(seed, 3000)]);
        group[0].send(NodeId(1), &[b"to be scribbled over, too"]);
        let mut rng = seeded(seed);
        // Node 1 overwrites both boards: words, and the places of the rings' frames.
        for board in &files.boards {
            let board = file(board);
            let length = board.metadata().unwrap().len();
            let rings = length - 2 * group[0].capabilities().max_inline_bytes.next_multiple_of(64) as u64 * 4;
            let words: Vec<u8> = (0..1024).map(|_| rng.random()).collect();
            board.write_all_at(&words, 0).unwrap();
            for at in (0..64).map(|line| rings + line * 4096) {
                let header: [u8; 8] = if seed % 2 == 0 { rng.random() } else { [0xff; 8] };
                board.write_all_at(&header, at).unwrap();
            }
        }
        for fabric in &group {
            let peer = NodeId(1 - fabric.local().0);
            fabric.send(peer, &[&[0; 100]]);
            fabric.send(peer, &[&vec![0; 3 << 20]]);
            one_sided(fabric).announcements(&mut |_, _| {});
            let _ = (0..100_000).find(|page| !one_sided(fabric).announce(peer, *page));
            let _ = (fabric.backlog_bytes_all(), fabric.longest_silence(), fabric.statistics());
            fabric.drain(Duration::from_millis(1));
            if let Some(error) = first_error(fabric, 50) {
                let sentence = error.to_string();
                assert!(sentence.contains(&format!("node {peer} has left an invalid value")), "{sentence}");
                errors += 1;
            }
        }
    }
    assert!(errors >= 100, "random counts can hardly be right: {errors} errors");
}

#[test]
fn forged_frames_are_refused() {
    // A message locates the ring of node 1 at node 0: its header contains its length, and that nothing
    // follows.
    let length = 3000u32;
    let header = u64::from(length).to_ne_bytes();
    let forge = |forged: u64| {
        let (group, files) = group(2);
        group[1].send(NodeId(0), &[&vec![9; length as usize]]);
        let board = file(&files.boards[0]);
        let bytes = board.metadata().unwrap().len() as usize;
        let mut page = [0; 8];
        let at = (0..bytes).step_by(PAGE_BYTES).find(|at| {
            board.read_exact_at(&mut page, *at as u64).unwrap();
            page == header
        });
        board.write_all_at(&forged.to_ne_bytes(), at.expect("the frame") as u64).unwrap();
        first_error(&group[0], 3).map(|error| error.to_string())
    };
    assert_eq!(forge(3000), None);
    assert_eq!(forge(2999), None, "as long a frame; the contents are the sender's affair");
    let long_rest = 1u64 << 32 << 31;
    // The mark of a payload, and the longest one.
    assert_eq!(forge(3000 | long_rest | 3000 << 32), None);
    let beyond = 3000 | long_rest | 3001 << 32;
    let far_beyond = 3000 | u64::from(u32::MAX) << 32;
    let wrong = [3072, u64::from(u32::MAX), u64::from(u32::MAX - 7), 1 << 32, 3000 | long_rest, 1 << 31];
    let wrong = wrong.into_iter().chain([beyond, far_beyond]);
    for forged in wrong {
        let sentence = forge(forged).unwrap_or_else(|| panic!("{forged:#x} was believed"));
        assert!(sentence.contains("node 1 has left an invalid value"), "{sentence}");
    }
}

/// Calls a function with each head and payload. Other messages are a mistake.
struct InParts<F>(F);

impl<F: FnMut(&[u8], &mut dyn Payload)> Receiver for InParts<F> {
    fn take(&mut self, from: NodeId, message: &[u8]) {
        panic!("{} bytes of node {from} came whole", message.len());
    }

    fn take_with_payload(&mut self, _from: NodeId, head: &[u8], payload: &mut dyn Payload) {
        (self.0)(head, payload);
    }
}

fn send_in_parts(fabric: &ShmFabric, head: &[u8], payload: &[u8]) {
    let parts = [head, payload];
    fabric.send_unsent(NodeId(0), Unsent::new(&parts).ending_in_payload(payload.len()));
}

#[test]
fn a_payload_stays_in_the_ring_until_it_is_taken_and_its_head_does_not() {
    let (group, files) = group(2);
    let (head, payload) = ([3; 100], [4; 8000]);
    send_in_parts(&group[1], &head, &payload);
    let board = file(&files.boards[0]);
    let bytes = board.metadata().unwrap().len() as usize;
    let mut line = [0; 100];
    let is_head = |at: &usize| {
        board.read_exact_at(&mut line, *at as u64 + 8).unwrap();
        line == head
    };
    let at = (0..bytes - 200).step_by(PAGE_BYTES).find(is_head).expect("the frame") as u64;
    let mut came = Vec::new();
    let mut receiver = InParts(|got: &[u8], payload: &mut dyn Payload| {
        // The sender rewrites its whole frame while the receiver has it, and says that it is longer.
        payload.append_to(1000, &mut came);
        board.write_all_at(&[0xff; 8 + 100], at).unwrap();
        board.write_all_at(&[5; 8000], at + 8 + 100).unwrap();
        assert_eq!(got, head, "the head was copied before");
        assert_eq!(payload.bytes(), 7000, "the length was, too");
        payload.append_to(7000, &mut came);
        assert!(group[1].backlog_bytes(NodeId(0)) > 8000, "the ring still has it");
    });
    assert!(group[0].receive_now(&mut receiver).unwrap());
    assert_eq!(came, [[4; 1000].as_slice(), &[5; 7000]].concat());
    assert_eq!(group[1].backlog_bytes(NodeId(0)), 0, "the ring has room again");
    assert_eq!(first_error(&group[0], 3).map(|error| error.to_string()), None);
}

#[test]
fn payloads_that_are_not_taken_make_room_too() {
    let (group, _files) = group(2);
    let longest = group[0].capabilities().max_inline_bytes;
    // Many times round the ring: some messages wait in the sender.
    for round in 0..40 {
        for number in 0..6 {
            send_in_parts(&group[1], &[round, number], &vec![7; longest - 2]);
        }
        let mut count = 0;
        let start = Instant::now();
        while count < 6 {
            assert!(start.elapsed() < HANGS_AFTER, "{count} came");
            let mut receiver = InParts(|head: &[u8], payload: &mut dyn Payload| {
                assert_eq!((head, payload.bytes()), (&[round, count][..], longest - 2));
                payload.append_to(usize::from(count), &mut Vec::new());
                count += 1;
            });
            group[0].receive_now(&mut receiver).unwrap();
            group[1].poll_now(&mut |_, _| {}).unwrap();
        }
    }
    assert_eq!(group[1].backlog_bytes_all(), 0);
}

#[test]
fn a_receiver_of_a_payload_that_panics_does_not_get_it_again() {
    let (group, _files) = group(2);
    send_in_parts(&group[1], b"one", &[1; 2000]);
    send_in_parts(&group[1], b"two", &[2; 2000]);
    let mut receiver = InParts(|_: &[u8], _: &mut dyn Payload| panic!("planned"));
    let poll = std::panic::AssertUnwindSafe(|| group[0].receive_now(&mut receiver));
    assert!(std::panic::catch_unwind(poll).is_err());
    let mut came = Vec::new();
    let mut receiver = InParts(|head: &[u8], _: &mut dyn Payload| came.push(head.to_vec()));
    group[0].receive_now(&mut receiver).unwrap();
    assert_eq!(came, [b"two"]);
    assert_eq!(group[1].backlog_bytes_all(), 0);
}

#[test]
fn a_message_in_several_frames_comes_whole_despite_its_mark() {
    let (group, _files) = group(2);
    let length = group[0].capabilities().max_inline_bytes + 1;
    send_in_parts(&group[1], b"h", &message(1, length - 1));
    let mut came = 0;
    let expected = [b"h", &message(1, length - 1)[..]].concat();
    group[0].poll_now(&mut |_, bytes| came += usize::from(bytes == expected)).unwrap();
    assert_eq!(came, 1);
}

#[test]
fn many_nodes_take_little_memory() {
    const NODES: u16 = 128;
    /// The nodes of the job that exist here. Each takes as many descriptors as in a process of its own.
    const PRESENT: [u16; 3] = [0, 1, 127];
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let files = common::shm_files(NODES);
    let taken =
        || -> u64 { files.boards.iter().map(|board| file(board).metadata().unwrap().blocks() * 512).sum() };
    let group: Vec<_> = PRESENT.iter().map(|node| open(*node, NODES, common::inherit(&files))).collect();
    assert!(taken() <= PRESENT.len() as u64 * 4 * PAGE_BYTES as u64, "{} bytes for nothing", taken());
    // They send a little to every node, many times, and receive each other's messages.
    for round in 0..20u64 {
        for fabric in &group {
            for peer in NodeId::all(NODES).filter(|peer| *peer != fabric.local()) {
                fabric.send(peer, &[&round.to_le_bytes(), &fabric.local().0.to_le_bytes()]);
                one_sided(fabric).announce(peer, round);
            }
        }
        for fabric in &group {
            let mut received = 0;
            let mut deliver = |from: NodeId, bytes: &[u8]| {
                assert_eq!(bytes[..8], round.to_le_bytes());
                assert_eq!(bytes[8..], from.0.to_le_bytes());
                received += 1;
            };
            fabric.poll_now(&mut deliver).unwrap();
            assert_eq!(received, PRESENT.len() - 1);
            one_sided(fabric).announcements(&mut |_, page| assert_eq!(page, round));
        }
    }
    // A page for each ring and each log, and a few for the words of each board.
    let pairs = PRESENT.len() as u64 * u64::from(NODES - 1);
    let most = (2 * pairs + 4 * u64::from(NODES)) * PAGE_BYTES as u64;
    assert!(taken() <= most, "{} bytes for {pairs} pairs", taken());
}

#[test]
fn a_pair_that_takes_turns_touches_little_of_its_ring() {
    let (group, files) = group(2);
    let page = vec![5; PAGE_BYTES];
    for _ in 0..2000 {
        group[1].send(NodeId(0), &[&page]);
        let mut received = 0;
        group[0].poll_now(&mut |_, _| received += 1).unwrap();
        assert_eq!(received, 1);
    }
    let taken = file(&files.boards[0]).metadata().unwrap().blocks() * 512;
    assert!(taken < 256 << 10, "{taken} bytes");
    let sent = group[1].statistics().bytes_sent / 2000;
    assert!(
        (PAGE_BYTES as u64..PAGE_BYTES as u64 + 256).contains(&sent),
        "{sent} bytes a message: of the ring none"
    );
}

#[test]
fn impossible_jobs_are_refused() {
    let refused = |local, nodes, files| ShmFabric::open(files, &config(local, nodes)).err().unwrap();
    let two = || common::shm_files(2);
    assert!(matches!(refused(2, 2, two()), FabricError::NotANode { .. }));
    let sentence = refused(0, 3, two()).to_string();
    assert!(sentence.contains("for each of 3 nodes, got 2"), "{sentence}");
    // A file whose length others could change is refused.
    let unsealed = || rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut files = two();
    files.boards[1] = unsealed();
    assert!(refused(0, 2, files).to_string().starts_with("cannot map a node's board"));
    let mut files = two();
    files.frames[1] = unsealed();
    assert!(refused(0, 2, files).to_string().starts_with("cannot use a node's memory file"));
    let alone = open(0, 1, common::shm_files(1));
    assert!(alone.drain(Duration::ZERO));
}
