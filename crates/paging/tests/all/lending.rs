//! Lending on simulated nodes: random borrowers and lenders, whose messages of different pairs arrive in any
//! order, with memory that is taken back and nodes that die; and bugs planted in the messages.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use hiroba_base::{Instant, NodeId, PageId};
use hiroba_base::{Prng, RngExt, seeded};
use hiroba_paging::lending::{BATCH, Lending, Lent, Lost, Message, Page};
use proptest::prelude::*;

/// The maximum length of a page.
const BYTES: usize = 64;
/// Pages of each node.
const PAGES: u64 = 40;

/// Pages are compressed, so that each version has a length of its own.
fn content(owner: usize, granule: PageId, version: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [owner as u64, granule.0, version].iter().flat_map(|number| number.to_be_bytes()).collect();
    bytes.resize(24 + (granule.0 + 13 * version) as usize % (BYTES - 23), 0xab);
    bytes
}

fn pages(count: u64) -> u64 {
    count * BYTES as u64
}

/// Where the owner's store believes a page to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In memory; `stamp` names the version that may still be lent.
    Here {
        stamp: Option<u64>,
        is_changed: bool,
    },
    Out {
        stamp: u64,
    },
    /// Out, and requested.
    Awaited {
        stamp: u64,
    },
    /// On the node's disk.
    OnDisk,
}

#[derive(Clone, Debug)]
struct Owned {
    version: u64,
    state: State,
}

struct Node {
    lending: Lending,
    pages: BTreeMap<PageId, Owned>,
    next_stamp: u64,
    /// The memory that it may promise.
    room_bytes: u64,
    has_disk: bool,
    is_dead: bool,
}

type Wrong = Box<dyn FnMut(&Message) -> Vec<Message>>;

struct Cluster {
    nodes: Vec<Node>,
    /// What is under way, by sender and receiver.
    channels: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    now: Instant,
    wrong: Wrong,
    /// Whether each kind of event was seen.
    seen: BTreeMap<&'static str, u64>,
}

impl Cluster {
    fn new(nodes: u16, with_disks: bool, wrong: Wrong) -> Cluster {
        let node = |me: u16| Node {
            lending: Lending::new(NodeId(me), nodes, BYTES as u64),
            pages: (0..PAGES)
                .map(|granule| {
                    let state = State::Here { stamp: None, is_changed: true };
                    (PageId(granule), Owned { version: 1, state })
                })
                .collect(),
            next_stamp: 0,
            room_bytes: 0,
            has_disk: with_disks,
            is_dead: false,
        };
        Cluster {
            nodes: (0..nodes).map(node).collect(),
            channels: BTreeMap::new(),
            now: Instant::ORIGIN,
            wrong,
            seen: BTreeMap::new(),
        }
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn set_room(&mut self, node: usize, bytes: u64) {
        self.nodes[node].lending.set_room(bytes);
        self.nodes[node].room_bytes = bytes;
        self.send(node);
    }

    /// Puts what a node sends under way.
    fn send(&mut self, node: usize) {
        let Node { lending, room_bytes, .. } = &self.nodes[node];
        let promised = lending.promised_bytes();
        assert!(promised <= *room_bytes, "node {node} has promised {promised} bytes of {room_bytes}");
        while let Some((to, message)) = self.nodes[node].lending.poll_send() {
            if self.nodes[node].is_dead || self.nodes[to.index()].is_dead {
                continue;
            }
            for message in (self.wrong)(&message) {
                let (head, tail) = message.encode();
                let bytes = [&head, tail].concat();
                assert_eq!(Message::decode(&bytes, BYTES), Ok(message.clone()), "the codec is faithful");
                self.channels.entry((node, to.index())).or_default().push_back(bytes);
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let Some(bytes) = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        let message = Message::decode(&bytes, BYTES).expect("what was encoded");
        match &message {
            Message::Return(_) => self.see("return"),
            Message::Revoke { .. } => self.see("revoke"),
            Message::Missing { .. } => self.see("missing"),
            Message::GiveBack { .. } => self.see("give back"),
            Message::Grant { is_answer: false, .. } => self.see("given twice"),
            _ => {}
        }
        self.nodes[to].lending.handle_message(self.now, NodeId(from as u16), message);
        self.send(to);
    }

    fn deliver_some(&mut self, rng: &mut Prng) -> bool {
        let ready: Vec<(usize, usize)> =
            self.channels.iter().filter(|(_, queue)| !queue.is_empty()).map(|(pair, _)| *pair).collect();
        if ready.is_empty() {
            return false;
        }
        let (from, to) = ready[rng.random_range(0..ready.len())];
        self.deliver(from, to);
        true
    }

    fn evict(&mut self, node: usize, granule: PageId) {
        let Node { lending, pages, next_stamp, has_disk, .. } = &mut self.nodes[node];
        let owned = pages.get_mut(&granule).expect("a page of this node");
        let State::Here { stamp, is_changed } = owned.state else { return };
        if let Some(stamp) = stamp.filter(|_| !is_changed)
            && lending.keep(granule, stamp)
        {
            owned.state = State::Out { stamp };
            return self.see("kept");
        }
        let stamp = *next_stamp;
        *next_stamp += 1;
        match lending.lend(self.now, granule, stamp, &content(node, granule, owned.version)) {
            Lent::Sent => owned.state = State::Out { stamp },
            Lent::Asked | Lent::NoRoom => {
                // Whatever was lent before is worth nothing.
                lending.discard(granule);
                owned.state =
                    if *has_disk { State::OnDisk } else { State::Here { stamp: None, is_changed: true } };
            }
        }
        self.send(node);
    }

    fn want(&mut self, node: usize, granule: PageId) {
        let Node { lending, pages, .. } = &mut self.nodes[node];
        let owned = pages.get_mut(&granule).expect("a page of this node");
        match owned.state {
            State::OnDisk => owned.state = State::Here { stamp: None, is_changed: true },
            State::Out { stamp } => {
                lending.request(granule, stamp);
                owned.state = State::Awaited { stamp };
            }
            State::Here { .. } | State::Awaited { .. } => {}
        }
        self.send(node);
        self.look(node, granule);
    }

    /// Requests a version of a page that its thread saw out a while ago. Other threads may have brought it in
    /// since, and it may have left again.
    fn want_late(&mut self, node: usize, granule: PageId, rng: &mut Prng) {
        let Node { lending, next_stamp, pages, .. } = &mut self.nodes[node];
        let latest = match pages[&granule].state {
            State::Here { stamp, .. } => stamp,
            State::Out { stamp } | State::Awaited { stamp } => Some(stamp),
            State::OnDisk => None,
        };
        let any = rng.random_range(0..*next_stamp + 1);
        let stamp = latest.filter(|_| rng.random_range(0..4) > 0).unwrap_or(any);
        lending.request(granule, stamp);
        self.see("wanted late");
        self.send(node);
    }

    /// Looks whether an awaited page has come.
    fn look(&mut self, node: usize, granule: PageId) {
        let dead: Vec<bool> = self.nodes.iter().map(|node| node.is_dead).collect();
        let Node { lending, pages, .. } = &mut self.nodes[node];
        let owned = pages.get_mut(&granule).expect("a page of this node");
        let State::Awaited { stamp } = owned.state else { return };
        match lending.take(granule, stamp) {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                assert_eq!(bytes, content(node, granule, owned.version), "node {node}: {granule}");
                lending.note_back(granule);
                owned.state = State::Here { stamp: Some(stamp), is_changed: false };
                self.see("came back");
            }
            Err(Lost::Died(lender)) if dead[lender.index()] => {
                owned.state = State::Here { stamp: None, is_changed: true };
                owned.version += 1;
                self.nodes[node].lending.discard(granule);
                self.see("lost");
            }
            Err(lost) => panic!("node {node} has lost {granule}: {lost:?}"),
        }
        self.send(node);
    }

    /// Moves what has no other place to the disk.
    fn spill(&mut self, node: usize) {
        let Node { lending, pages, has_disk, .. } = &mut self.nodes[node];
        let Some((granule, stamp, bytes)) = lending.homeless().filter(|_| *has_disk) else { return };
        let owned = pages.get_mut(&granule).expect("a page of this node");
        assert_eq!(bytes, content(node, granule, owned.version), "node {node}: {granule} at home");
        assert_eq!(owned.state, State::Out { stamp }, "node {node}: {granule}");
        owned.state = State::OnDisk;
        lending.discard(granule);
        self.see("spilt");
    }

    fn die(&mut self, dead: usize) {
        self.nodes[dead].is_dead = true;
        self.channels.retain(|(from, to), _| *from != dead && *to != dead);
        for node in 0..self.nodes.len() {
            self.nodes[node].lending.handle_death(NodeId(dead as u16));
            self.send(node);
        }
    }

    fn step(&mut self, rng: &mut Prng, may_die: bool) {
        let node = rng.random_range(0..self.nodes.len());
        if self.nodes[node].is_dead {
            return;
        }
        let granule = PageId(rng.random_range(0..PAGES));
        match rng.random_range(0..100) {
            0..30 => self.evict(node, granule),
            30..50 => self.want(node, granule),
            50..60 => {
                let owned = self.nodes[node].pages.get_mut(&granule).expect("a page of this node");
                if let State::Here { is_changed, .. } = &mut owned.state {
                    *is_changed = true;
                    owned.version += 1;
                }
            }
            60..63 => {
                let room = [0, 3, 20, 60, 2000][rng.random_range(0..5)];
                self.set_room(node, pages(room));
            }
            63..66 => {
                // The program frees it.
                let Node { lending, pages, .. } = &mut self.nodes[node];
                lending.discard(granule);
                let owned = pages.get_mut(&granule).expect("a page of this node");
                owned.version += 1;
                owned.state = State::Here { stamp: None, is_changed: true };
                self.send(node);
            }
            66..70 => self.spill(node),
            70..72 => {
                self.now = self.now + Duration::from_millis(30);
                self.nodes[node].lending.handle_time(self.now);
                self.send(node);
            }
            73..76 => self.want_late(node, granule, rng),
            72 if may_die && rng.random_range(0..40) == 0 => self.die(node),
            _ => {
                self.deliver_some(rng);
            }
        }
        for granule in (0..PAGES).map(PageId) {
            self.look(node, granule);
        }
    }

    fn deliver_all(&mut self, rng: &mut Prng) {
        let ends = (0..100_000).any(|_| !self.deliver_some(rng));
        assert!(ends, "messages give rise to messages for ever");
    }

    /// Delivers everything, and holds the books of both sides against each other.
    fn rest(&mut self, rng: &mut Prng) {
        self.deliver_all(rng);
        for node in 0..self.nodes.len() {
            (0..PAGES).for_each(|granule| self.look(node, PageId(granule)));
        }
        self.deliver_all(rng);
        for (one, other) in
            (0..self.nodes.len()).flat_map(|one| (0..self.nodes.len()).map(move |two| (one, two)))
        {
            if self.nodes[one].is_dead || self.nodes[other].is_dead || one == other {
                continue;
            }
            let borrowed = self.nodes[one].lending.borrowed_from(NodeId(other as u16));
            let lent = self.nodes[other].lending.lent_to(NodeId(one as u16));
            assert_eq!(borrowed, lent, "room and pages of node {one} with node {other}");
            assert!(lent.1 <= lent.0 as u64, "node {other} has {} pages in room for {}", lent.1, lent.0);
        }
    }

    /// Wants every page, and expects it within the messages that it takes.
    fn come_home(&mut self, rng: &mut Prng) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_dead {
                (0..PAGES).for_each(|granule| self.want(node, PageId(granule)));
            }
        }
        self.rest(rng);
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.is_dead) {
            for (granule, owned) in &node.pages {
                assert!(matches!(owned.state, State::Here { .. }), "node {number}: {granule} is {owned:?}");
            }
        }
    }
}

#[test]
fn a_request_is_made_once_and_its_answer_is_of_no_use_after_the_page_is_back() {
    let mut rng = seeded(5);
    let mut cluster = Cluster::new(2, false, Box::new(|message| vec![message.clone()]));
    cluster.set_room(1, pages(2000));
    let granule = PageId(7);
    cluster.evict(0, granule);
    cluster.deliver_all(&mut rng);
    cluster.evict(0, granule);
    cluster.deliver_all(&mut rng);
    let State::Out { stamp } = cluster.nodes[0].pages[&granule].state else { panic!("it is lent") };
    let is_under_way = |cluster: &Cluster| cluster.channels.get(&(0, 1)).map_or(0, VecDeque::len);
    for _ in 0..2 {
        cluster.nodes[0].lending.request(granule, stamp);
        cluster.send(0);
        assert_eq!(is_under_way(&cluster), 1);
    }
    cluster.deliver_all(&mut rng);
    // Another thread has brought it in, and it leaves again, changed.
    cluster.nodes[0].lending.note_back(granule);
    let owned = cluster.nodes[0].pages.get_mut(&granule).expect("a page of this node");
    owned.version += 1;
    owned.state = State::Here { stamp: Some(stamp), is_changed: true };
    cluster.evict(0, granule);
    cluster.want(0, granule);
    cluster.rest(&mut rng);
    assert!(matches!(cluster.nodes[0].pages[&granule].state, State::Here { is_changed: false, .. }));
}

/// Runs random nodes. Returns how often each event was seen.
fn run(seed: u64, nodes: u16, may_die: bool, wrong: Wrong) -> BTreeMap<&'static str, u64> {
    let mut rng = seeded(seed);
    let mut cluster = Cluster::new(nodes, rng.random_range(0..2) == 0, wrong);
    for node in 0..usize::from(nodes) {
        cluster.set_room(node, pages(rng.random_range(0..80)));
    }
    for step in 0..1500 {
        cluster.step(&mut rng, may_die);
        if step % 300 == 299 {
            cluster.rest(&mut rng);
        }
    }
    cluster.come_home(&mut rng);
    // A lender that needs all of its memory gets all of it.
    for node in 0..usize::from(nodes) {
        cluster.set_room(node, 0);
    }
    cluster.rest(&mut rng);
    for node in &cluster.nodes {
        let lending = &node.lending;
        assert_eq!((lending.pages_lent(), lending.promised_bytes()), (0, 0), "all was given back");
    }
    cluster.seen
}

fn sound() -> Wrong {
    Box::new(|message| vec![message.clone()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn what_is_lent_comes_back_as_it_was(seed in any::<u64>(), nodes in 2..5u16) {
        run(seed, nodes, false, sound());
    }

    #[test]
    fn what_a_dead_lender_had_is_lost_and_nothing_else(seed in any::<u64>(), nodes in 2..5u16) {
        run(seed, nodes, true, sound());
    }

    #[test]
    fn bytes_that_are_no_message_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(message) = Message::decode(&bytes, BYTES) {
            let (head, tail) = message.encode();
            prop_assert_eq!([&head, tail].concat(), bytes);
        }
    }
}

#[test]
fn the_simulation_reaches_every_crossing() {
    let mut seen = BTreeMap::new();
    for seed in 0..60 {
        let some = run(seed, 2 + (seed % 3) as u16, seed % 2 == 0, sound());
        some.into_iter().for_each(|(what, times)| *seen.entry(what).or_insert(0) += times);
    }
    for what in ["return", "revoke", "missing", "kept", "came back", "lost", "spilt"] {
        assert!(seen.get(what).is_some_and(|times| *times > 0), "{what} was never seen: {seen:?}");
    }
}

/// Two nodes whose messages the test delivers by hand.
fn pair() -> Cluster {
    let mut cluster = Cluster::new(2, false, sound());
    cluster.set_room(1, pages(1000));
    cluster.evict(0, PageId(0));
    settle(&mut cluster);
    cluster
}

fn settle(cluster: &mut Cluster) {
    cluster.deliver_all(&mut seeded(1));
}

#[test]
fn room_is_asked_for_granted_used_and_given_back() {
    let mut cluster = pair();
    let account = |cluster: &Cluster| cluster.nodes[1].lending.lent_to(NodeId(0));
    assert_eq!(account(&cluster), (i64::from(BATCH), 0), "the first page had to ask");
    (0..PAGES).for_each(|granule| cluster.evict(0, PageId(granule)));
    settle(&mut cluster);
    assert_eq!(account(&cluster), (i64::from(BATCH), PAGES));
    // The lender needs all but the memory of the first 10 of them.
    let bytes_of = |range: std::ops::Range<u64>| -> u64 {
        range.map(|granule| content(0, PageId(granule), 1).len() as u64).sum()
    };
    cluster.nodes[1].lending.set_room(bytes_of(0..10));
    assert_eq!(cluster.nodes[1].lending.pages_lent(), 10, "what it takes back is free at once");
    cluster.set_room(1, bytes_of(0..10));
    settle(&mut cluster);
    let home_bytes = cluster.nodes[0].lending.bytes_here();
    assert_eq!((account(&cluster), home_bytes), ((10, 10), bytes_of(10..PAGES)));
    // Later it has room again, and is asked for it.
    cluster.set_room(1, pages(1000));
    cluster.now = cluster.now + Duration::from_secs(1);
    cluster.nodes[0].lending.handle_time(cluster.now);
    cluster.send(0);
    settle(&mut cluster);
    assert_eq!((account(&cluster).1, cluster.nodes[0].lending.bytes_here()), (PAGES, 0));
    cluster.come_home(&mut seeded(1));
    let tallies = cluster.nodes[0].lending.tallies();
    assert_eq!((tallies.borrowed, tallies.fetched), (2 * PAGES - 10, PAGES));
    let tallies = cluster.nodes[1].lending.tallies();
    assert_eq!((tallies.lent, tallies.taken_back), (2 * PAGES - 10, PAGES - 10));
}

#[test]
fn short_pages_make_room_for_more_and_longer_versions_take_it_back() {
    let mut cluster = Cluster::new(3, false, sound());
    cluster.set_room(2, pages(20));
    let lend = |cluster: &mut Cluster, granule: u64, stamp: u64, bytes: usize| {
        cluster.now = cluster.now + Duration::from_secs(1);
        let outcome = cluster.nodes[1].lending.lend(cluster.now, PageId(granule), stamp, &vec![7; bytes]);
        cluster.send(1);
        settle(cluster);
        outcome
    };
    assert_eq!([0, 0].map(|_| lend(&mut cluster, 0, 0, 16)), [Lent::Asked, Lent::Sent]);
    (1..30).for_each(|granule| assert_eq!(lend(&mut cluster, granule, granule, 16), Lent::Sent));
    let lender = &cluster.nodes[2].lending;
    assert_eq!(lender.lent_to(NodeId(1)), (42, 30), "what they are shorter is granted again");
    assert_eq!((lender.bytes_here(), lender.promised_bytes()), (480, 480 + pages(12)));
    // New versions in their place are whole pages: room is taken back first, then pages.
    (0..30).for_each(|granule| _ = lend(&mut cluster, granule, 100 + granule, BYTES));
    assert!(cluster.seen["revoke"] > 12 && cluster.seen["return"] > 0, "{:?}", cluster.seen);
    assert!(cluster.nodes[2].lending.pages_lent() <= 20);
}

#[test]
fn much_unused_room_is_given_back_also_when_it_is_revoked_meanwhile() {
    let mut cluster = Cluster::new(2, false, sound());
    let lend = |cluster: &mut Cluster, pages: std::ops::Range<u64>| {
        for page in pages {
            let bytes = content(0, PageId(page), 1);
            while cluster.nodes[0].lending.lend(cluster.now, PageId(page), page, &bytes) != Lent::Sent {
                cluster.send(0);
                settle(cluster);
            }
            cluster.send(0);
        }
        settle(cluster);
    };
    let many = 5 * u64::from(BATCH);
    cluster.set_room(1, pages(10 * many));
    lend(&mut cluster, 0..many);
    (0..many).for_each(|page| cluster.nodes[0].lending.discard(PageId(page)));
    cluster.send(0);
    cluster.set_room(1, 0);
    settle(&mut cluster);
    assert_eq!(cluster.nodes[1].lending.lent_to(NodeId(0)).1, 0);
    assert!(cluster.seen["give back"] > 0 && cluster.seen["given twice"] > 0, "{:?}", cluster.seen);
    let one = cluster.nodes[0].lending.borrowed_from(NodeId(1));
    assert_eq!(one, cluster.nodes[1].lending.lent_to(NodeId(0)));
}

#[test]
fn each_node_asks_another_first_and_a_refusal_is_remembered() {
    let mut cluster = Cluster::new(4, false, sound());
    for node in 0..4 {
        cluster.evict(node, PageId(0));
        let asked: Vec<_> = cluster.channels.keys().filter(|(from, _)| *from == node).collect();
        assert_eq!(asked, [&(node, (node + 1) % 4)]);
    }
    settle(&mut cluster);
    // All have refused by now; none is asked again until a while has passed.
    for _ in 0..3 {
        cluster.evict(0, PageId(1));
        settle(&mut cluster);
    }
    let outcome = |cluster: &mut Cluster| {
        let now = cluster.now;
        cluster.nodes[0].lending.lend(now, PageId(1), 9, &content(0, PageId(1), 1))
    };
    assert_eq!(outcome(&mut cluster), Lent::NoRoom);
    assert!(!cluster.nodes[0].lending.may_lend(cluster.now));
    cluster.now = cluster.now + Duration::from_secs(1);
    assert!(cluster.nodes[0].lending.may_lend(cluster.now));
    assert_eq!(outcome(&mut cluster), Lent::Asked);
    assert!(cluster.nodes[0].lending.may_lend(cluster.now), "an answer is awaited");
}

#[test]
fn a_lender_that_does_not_answer_is_passed_over() {
    let mut cluster = Cluster::new(3, false, sound());
    (1..3).for_each(|node| cluster.set_room(node, pages(1000)));
    let lend = |cluster: &mut Cluster, wait_ms: u64| {
        cluster.now = cluster.now + Duration::from_millis(wait_ms);
        let bytes = content(0, PageId(1), 1);
        let outcome = cluster.nodes[0].lending.lend(cluster.now, PageId(1), 9, &bytes);
        cluster.send(0);
        // Node 1 is stopped.
        while cluster.channels.get(&(0, 2)).is_some_and(|queue| !queue.is_empty()) {
            cluster.deliver(0, 2);
            cluster.deliver(2, 0);
        }
        outcome
    };
    assert_eq!(
        [0, 100, 600, 0].map(|wait_ms| lend(&mut cluster, wait_ms)),
        [Lent::Asked, Lent::Asked, Lent::Asked, Lent::Sent]
    );
}

/// Returns most of the messages of a kind as they are, and what `change` makes of every fourth.
fn mutant(
    concerns: fn(&Message) -> bool,
    mut change: impl FnMut(&Message) -> Vec<Message> + 'static,
) -> Wrong {
    let mut count = 0;
    Box::new(move |message| {
        if !concerns(message) {
            return vec![message.clone()];
        }
        count += 1;
        if count % 4 == 0 { change(message) } else { vec![message.clone()] }
    })
}

fn lost(concerns: fn(&Message) -> bool) -> Wrong {
    mutant(concerns, |_| Vec::new())
}

type Mutant = (&'static str, fn() -> Wrong);

/// The planted bugs.
const MUTANTS: &[Mutant] = &[
    ("a stale version is served", || {
        let mut stored: BTreeMap<PageId, Vec<u8>> = BTreeMap::new();
        Box::new(move |message| match message {
            Message::Store(page) => {
                stored.entry(page.granule).or_insert_with(|| page.bytes.clone());
                vec![message.clone()]
            }
            Message::Page { ticket, page } => {
                let bytes = stored.get(&page.granule).cloned().unwrap_or_else(|| page.bytes.clone());
                vec![Message::Page { ticket: *ticket, page: Page { bytes, ..page.clone() } }]
            }
            _ => vec![message.clone()],
        })
    }),
    ("a page is returned to the wrong place", || {
        mutant(
            |message| matches!(message, Message::Return(_)),
            |message| match message {
                Message::Return(page) => {
                    vec![Message::Return(Page { granule: PageId(page.granule.0 ^ 1), ..page.clone() })]
                }
                _ => unreachable!(),
            },
        )
    }),
    ("a page is fetched into the wrong place", || {
        mutant(
            |message| matches!(message, Message::Fetch { .. }),
            |message| match *message {
                Message::Fetch { ticket, granule, stamp } => {
                    vec![Message::Fetch { ticket, granule: PageId(granule.0 ^ 1), stamp }]
                }
                _ => unreachable!(),
            },
        )
    }),
    ("room that was revoked is used on", || lost(|message| matches!(message, Message::Revoke { .. }))),
    ("room is granted twice", || {
        mutant(
            |message| matches!(message, Message::Grant { count: 1.., .. }),
            |message| vec![message.clone(), message.clone()],
        )
    }),
    ("a page that is returned is lost", || lost(|message| matches!(message, Message::Return(_)))),
    ("a page that is stored is lost", || lost(|message| matches!(message, Message::Store(_)))),
    ("a page is forgotten by its owner alone", || lost(|message| matches!(message, Message::Drop { .. }))),
    ("a page that is fetched does not come", || lost(|message| matches!(message, Message::Page { .. }))),
    ("the old version is dropped, whatever version it is", || {
        mutant(
            |message| matches!(message, Message::Store(_)),
            |message| match message {
                Message::Store(page) => {
                    let drop = Message::Drop { granule: page.granule, stamp: page.stamp };
                    vec![message.clone(), drop]
                }
                _ => unreachable!(),
            },
        )
    }),
];

#[test]
fn every_planted_bug_is_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<&str> = MUTANTS
        .iter()
        .filter(|(_, plant)| {
            let is_found =
                (0..40).any(|seed| catch_unwind(AssertUnwindSafe(|| run(seed, 3, false, plant()))).is_err());
            !is_found
        })
        .map(|(name, _)| *name)
        .collect();
    std::panic::set_hook(hook);
    assert_eq!(missed, Vec::<&str>::new());
}
