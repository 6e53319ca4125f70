//! Operations on many pages, or by many nodes, take few messages and few calls. These tests count them, on
//! engines without memory.

use std::collections::VecDeque;

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, PageSize};
use hiroba_protocol::barrier::BELOW_MAX;
use hiroba_protocol::{
    Consistency, Done, Effect, Engine, Outcome, PageToSend, Protocol, Synchronisation, Waiter, WriteTracking,
    diff,
};
use hiroba_wire::{Collective, Limits, Message, PageCopy, Placement};

const GRANULE_BYTES: u32 = 4096;
const REGION: PageRange = PageRange { first: PageId(100), count: 1024 };
const TRACKINGS: [WriteTracking; 2] = [WriteTracking::Fault, WriteTracking::Async];
const THREAD: Waiter = Waiter(0);
const NODE_0: NodeId = NodeId(0);
const NODE_1: NodeId = NodeId(1);

/// The actions of one node, and the messages that it received.
#[derive(Clone, Debug, Default)]
struct Counts {
    received: usize,
    faults: usize,
    pages_installed: u64,
    installs: usize,
    /// The numbers of calls that give access, and that take it away.
    grants: usize,
    invalidations: Vec<(PageRange, u64)>,
    /// The number of pages that came before a thread requested them.
    prefetched: u32,
    departures: usize,
    /// The number of collectives from which it had departed itself when it informed each node below.
    departed_when_telling: Vec<u64>,
}

struct Job {
    limits: Limits,
    engines: Vec<Consistency>,
    counts: Vec<Counts>,
    network: VecDeque<(NodeId, NodeId, Vec<u8>)>,
    /// Granules that each node's program has written since the host was last asked (asynchronous tracking).
    written: Vec<PageSet>,
    fatal: Option<String>,
}

impl Job {
    fn new(nodes: u16, tracking: WriteTracking, regions: &[(PageRange, PageSize, Placement)]) -> Job {
        let limits = Limits { nodes, region_granules: 1 << 20, granule_bytes: GRANULE_BYTES };
        let engine = |node| {
            let mut engine = Consistency::under(Protocol::Hlrc, node, limits, tracking, []);
            regions.iter().for_each(|(pages, size, placement)| engine.add_region(*pages, *size, *placement));
            engine
        };
        let engines: Vec<Consistency> = NodeId::all(nodes).map(engine).collect();
        let counts = vec![Counts::default(); engines.len()];
        let written = vec![PageSet::new(); engines.len()];
        Job { limits, engines, counts, network: VecDeque::new(), written, fatal: None }
    }

    /// Returns a job of two nodes whose whole region is homed on node 0.
    fn of_two(tracking: WriteTracking) -> Job {
        Job::new(2, tracking, &[(REGION, PageSize::KIB_4, Placement::On(NODE_0))])
    }

    fn engine(&mut self, node: NodeId) -> &mut Consistency {
        &mut self.engines[node.index()]
    }

    fn carry_out(&mut self, node: NodeId) {
        while let Some(effect) = self.engines[node.index()].poll_effect() {
            let counts = &mut self.counts[node.index()];
            match effect {
                Effect::Send { to, message } => {
                    if matches!(Message::decode(&message, &self.limits), Ok(Message::Depart { .. })) {
                        counts.departed_when_telling.push(self.engines[node.index()].seen().1);
                    }
                    self.network.push_back((node, to, message));
                }
                Effect::SendPages { to, pages, .. } => {
                    assert!(pages.is_sorted_by_key(|page| page.page) && !pages.is_empty());
                    let bytes: usize = pages.iter().map(|page| page.page_bytes as usize).sum();
                    let copy = |PageToSend { page, version, .. }| PageCopy { page, version, is_zero: false };
                    let copies = pages.into_iter().map(copy).collect();
                    let message = Message::PagesReply { copies, content: &vec![1; bytes] }.encode();
                    self.network.push_back((node, to, message));
                }
                Effect::Install { pages, merge, fetched, prefetched, .. } => {
                    counts.installs += 1;
                    counts.pages_installed += pages.count;
                    assert!(fetched + prefetched >= 1);
                    counts.prefetched += prefetched;
                    if merge {
                        let dirty = self.written[node.index()].contains(pages.first);
                        self.engine(node).handle_done(Done::Merged { page: pages.first, dirty });
                    }
                }
                Effect::Protect { .. } | Effect::Watch { .. } => counts.grants += 1,
                Effect::Invalidate { span, pages } => counts.invalidations.push((span, pages)),
                Effect::CollectWritten => {
                    let granules = std::mem::take(&mut self.written[node.index()]);
                    self.engine(node).handle_done(Done::Written { granules });
                }
                Effect::Diff { page, .. } => {
                    self.engine(node).handle_done(Done::Diff { page, runs: diff::of_bytes(0, &[7]) });
                }
                Effect::Wake { outcome: Outcome::Collective(_), .. } => counts.departures += 1,
                Effect::Fatal { sentence } => self.fatal = Some(sentence),
                _ => {}
            }
        }
    }

    fn deliver_all(&mut self) {
        while let Some((from, to, bytes)) = self.network.pop_front() {
            self.counts[to.index()].received += 1;
            let message = Message::decode(&bytes, &self.limits).unwrap();
            self.engine(to).handle_message(from, &message).unwrap();
            self.carry_out(to);
        }
    }

    /// Has the program touch a page, and delivers all messages that follow.
    fn touch(&mut self, node: NodeId, page: u64, wanted: Access) {
        let page = PageId(page);
        while self.engine(node).access(page) < wanted {
            self.counts[node.index()].faults += 1;
            self.engine(node).handle_fault(page, wanted, Some(THREAD));
            self.carry_out(node);
            self.deliver_all();
        }
        if wanted == Access::Write {
            self.written[node.index()].insert(page);
        }
    }

    fn read(&mut self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.touch(NODE_1, page, Access::Read));
    }

    fn come_to(&mut self, node: NodeId, collective: Collective) {
        self.engine(node).handle_sync(Synchronisation::Collective(collective), THREAD);
        self.carry_out(node);
    }

    fn meet(&mut self, collective: Collective) {
        for node in NodeId::all(self.limits.nodes) {
            self.come_to(node, collective);
            self.deliver_all();
        }
    }

    /// Returns the numbers of messages, faults and calls that give access, of node 1, and of the pages that
    /// it got. Resets the counts.
    fn taken(&mut self) -> (usize, usize, usize, u64) {
        let counts = std::mem::take(&mut self.counts);
        self.counts = vec![Counts::default(); counts.len()];
        let messages = counts.iter().map(|counts| counts.received).sum();
        (messages, counts[1].faults, counts[1].grants, counts[1].pages_installed)
    }
}

/// Checks the counts: one page at a time would take a fault, a request, a reply and a call for each.
fn is_a_sixteenth(pages: u64, (messages, faults, grants, installed): (usize, usize, usize, u64)) {
    assert_eq!(installed, pages);
    let pages = pages as usize;
    assert!(messages <= 2 * pages / 16, "{messages} messages for {pages} pages");
    assert!(faults <= pages / 16, "{faults} faults for {pages} pages");
    assert!(grants <= pages / 8, "{grants} calls for {pages} pages");
}

#[test]
fn a_sequential_read_takes_a_sixteenth_of_the_faults_and_messages() {
    for tracking in TRACKINGS {
        let mut up = Job::of_two(tracking);
        up.read(100..1124);
        is_a_sixteenth(1024, up.taken());
        let mut down = Job::of_two(tracking);
        down.read((100..1124).rev());
        is_a_sixteenth(1024, down.taken());
    }
}

#[test]
fn pages_that_were_invalidated_are_streamed_again() {
    for tracking in TRACKINGS {
        let mut job = Job::of_two(tracking);
        job.read(100..1124);
        for round in 0..3 {
            for page in 100..1124 {
                job.touch(NODE_0, page, Access::Write);
            }
            job.taken();
            job.meet(Collective::Barrier);
            let invalidated = job.counts[1].invalidations.clone();
            assert_eq!(invalidated, [(REGION, 1024)], "{tracking:?} tracking, round {round}");
            // Some come with the barrier: those on which the stream faulted the last time.
            job.read(100..1124);
            is_a_sixteenth(1024, job.taken());
        }
    }
}

#[test]
fn strided_reads_and_several_at_once_are_streams() {
    let mut strided = Job::of_two(WriteTracking::Async);
    strided.read((100..1124).step_by(8));
    let (messages, faults, _, installed) = strided.taken();
    assert_eq!(installed, 128, "pages between are nobody's business");
    assert!(messages <= 40 && faults <= 16, "{messages} messages and {faults} faults for 128 pages");

    let mut interleaved = Job::of_two(WriteTracking::Async);
    interleaved.read((0..256).flat_map(|index| [100 + index, 700 - index, 800 + index]));
    let (messages, faults, _, installed) = interleaved.taken();
    // Each may have gone as far again as the program used.
    assert!((768..=1024).contains(&installed), "{installed}");
    assert!(messages <= 150 && faults <= 60, "{messages} messages and {faults} faults for 768 pages");
}

#[test]
fn pages_that_do_not_fault_do_not_end_a_stream() {
    for nodes in 2..6 {
        let mut job = Job::new(nodes, WriteTracking::Async, &[(REGION, PageSize::KIB_4, Placement::Cyclic)]);
        job.read(100..1124);
        let homes = u64::from(nodes);
        let own = (0..1024).filter(|index| index % homes == 1).count() as u64;
        let (messages, faults, _, installed) = job.taken();
        assert_eq!(installed, 1024 - own);
        // Each window is one request to each home and one reply at least.
        let most = 60 * usize::from(nodes);
        // Its own pages fault once at most, and cost no message.
        let of_own = own as usize;
        assert!(
            messages <= most && faults <= 40 + of_own,
            "{messages} messages and {faults} faults for {nodes} nodes"
        );
    }
}

#[test]
fn nothing_is_fetched_beyond_a_region_or_without_a_stream() {
    let page_size = PageSize::new(16 << 10).unwrap();
    let behind = PageRange { first: REGION.end(), count: 64 };
    let regions =
        [(REGION, PageSize::KIB_4, Placement::On(NODE_0)), (behind, page_size, Placement::On(NODE_0))];
    let mut job = Job::new(2, WriteTracking::Fault, &regions);
    job.read(1110..1124);
    assert_eq!(job.taken().3, 14);
    job.read((0..16).map(|index| 1124 + 4 * index));
    assert_eq!(job.taken().3, 64);

    let mut scattered = Job::of_two(WriteTracking::Fault);
    // No two steps are equal, and no three pages lie together.
    let pages: Vec<u64> = (0..24).map(|index| 100 + 42 * index + index * index % 11).collect();
    scattered.read(pages.iter().copied());
    assert_eq!(scattered.taken().3, 24);
}

#[test]
fn a_stream_that_ends_has_fetched_no_more_in_vain_than_was_used() {
    for used in [3, 10, 40, 200, 600] {
        let mut job = Job::of_two(WriteTracking::Async);
        job.read(100..100 + used);
        let installed = job.taken().3;
        assert!(installed <= 3 * used + 4, "{installed} pages came for {used}");
        assert!(installed <= used + 2 * 256, "{installed} pages came for {used}");
    }
}

/// Models a node that reads its neighbours' border rows in every phase.
#[test]
fn rows_too_short_to_be_streams_are_soon_left_alone() {
    let mut job = Job::of_two(WriteTracking::Async);
    let rows = [200..204, 500..504, 804..808].map(Vec::from_iter);
    for phase in 0..40 {
        for page in 100..1124 {
            job.touch(NODE_0, page, Access::Write);
        }
        job.meet(Collective::Barrier);
        job.taken();
        rows.iter().for_each(|row| job.read(row.iter().copied()));
        let installed = job.taken().3;
        assert!(installed <= if phase < 20 { 24 } else { 12 }, "{installed} pages came in phase {phase}");
    }
    // A real stream is still found.
    job.read(600..800);
    let (_, faults, _, installed) = job.taken();
    assert!(faults <= 25 && installed >= 200, "{faults} faults, {installed} pages");
}

#[test]
fn long_pages_are_streamed_within_a_bound_of_bytes() {
    let page_size = PageSize::new(2 << 20).unwrap();
    let pages = PageRange { first: PageId(512), count: 512 * 16 };
    let mut job = Job::new(2, WriteTracking::Async, &[(pages, page_size, Placement::On(NODE_0))]);
    job.read((0..6).map(|index| 512 * (index + 1)));
    assert!(job.taken().3 <= 512 * 8, "one page ahead, or two");
}

#[test]
fn a_hint_is_one_message_to_each_home() {
    let mut job = Job::new(3, WriteTracking::Async, &[(REGION, PageSize::KIB_4, Placement::Block)]);
    job.engine(NODE_1).handle_prefetch(&[REGION]);
    job.carry_out(NODE_1);
    assert_eq!(job.network.len(), 2);
    job.deliver_all();
    let counts = &job.counts[1];
    assert_eq!((counts.prefetched, counts.faults), (1024 - 342, 0));
    assert!(counts.installs <= 50 && counts.grants <= 50, "{counts:?}");
}

#[test]
fn a_hint_of_several_ranges_is_one_message_to_each_home() {
    let mut job = Job::new(3, WriteTracking::Async, &[(REGION, PageSize::KIB_4, Placement::Block)]);
    let at = |first, count| PageRange { first: PageId(REGION.first.0 + first), count };
    // Pages of node 0's third, of node 2's, of node 0's again, and some of this node's own.
    job.engine(NODE_1).handle_prefetch(&[at(5, 10), at(900, 3), at(100, 1), at(400, 20)]);
    job.carry_out(NODE_1);
    assert_eq!(job.network.len(), 2);
    job.deliver_all();
    let counts = &job.counts[1];
    assert_eq!((counts.prefetched, counts.faults), (14, 0));
}

#[test]
fn pages_that_are_asked_for_together_wait_each_for_its_own_diffs() {
    let mut job = Job::new(3, WriteTracking::Fault, &[(REGION, PageSize::KIB_4, Placement::On(NODE_0))]);
    let node_2 = NodeId(2);
    for page in [103, 105] {
        job.touch(node_2, page, Access::Write);
    }
    // Node 2's diffs are on their way to node 0 when node 1 receives the notice and requests the page.
    job.engine(node_2).handle_sync(Synchronisation::Publish(NODE_1), THREAD);
    job.carry_out(node_2);
    let all = std::mem::take(&mut job.network);
    let (late, soon): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, to, _)| *to == NODE_0);
    job.network.extend(soon);
    job.deliver_all();
    assert_eq!(late.len(), 1);
    job.taken();
    job.engine(NODE_1).handle_prefetch(&[PageRange { first: PageId(100), count: 10 }]);
    job.carry_out(NODE_1);
    job.deliver_all();
    assert_eq!(job.taken().3, 8);
    job.network.extend(late);
    job.deliver_all();
    assert_eq!(job.taken().3, 2);
    assert!((100..110).all(|page| job.engine(NODE_1).access(PageId(page)) == Access::Read));
}

#[test]
fn acquisition_takes_scattered_pages_away_in_few_calls() {
    for tracking in TRACKINGS {
        let mut job = Job::of_two(tracking);
        // Every third page is present, and in the middle all are.
        let near: Vec<u64> = (100..400).step_by(3).chain(600..700).chain((800..1100).step_by(3)).collect();
        for page in near.iter().copied() {
            // Far apart, so that they form no stream.
            job.touch(NODE_1, page, Access::Read);
        }
        let here: Vec<u64> =
            (100..1124).filter(|page| job.engine(NODE_1).access(PageId(*page)) > Access::None).collect();
        for page in here.iter().copied().filter(|page| !(640..660).contains(page)) {
            job.touch(NODE_0, page, Access::Write);
        }
        job.taken();
        job.meet(Collective::Barrier);
        let calls = job.counts[1].invalidations.clone();
        let lost: u64 = calls.iter().map(|(_, pages)| pages).sum();
        let kept: Vec<u64> =
            (100..1124).filter(|page| job.engine(NODE_1).access(PageId(*page)) > Access::None).collect();
        assert_eq!(kept, (640..660).collect::<Vec<u64>>(), "{tracking:?}");
        assert_eq!(lost as usize, here.len() - kept.len());
        assert!(calls.len() <= 5, "{calls:?}");
        assert!(calls.iter().all(|(span, _)| kept.iter().all(|page| !span.contains(PageId(*page)))));
    }
}

#[test]
fn no_node_hears_from_more_than_a_few_in_a_barrier() {
    for nodes in [2u16, 5, 6, 64, 128] {
        let mut job = Job::new(nodes, WriteTracking::Fault, &[(REGION, PageSize::KIB_4, Placement::Cyclic)]);
        for round in 0..3 {
            // Each node writes a page of its own, and one of its neighbour's.
            for node in NodeId::all(nodes) {
                for index in [node.0, (node.0 + 1) % nodes] {
                    job.touch(node, 100 + u64::from(index), Access::Write);
                }
            }
            job.taken();
            job.meet(Collective::Barrier);
            // A diff; and if the neighbour's page is requested at once, a request and a reply.
            let of_pages_most = 3;
            for (node, counts) in job.counts.iter().enumerate() {
                assert_eq!(counts.departures, 1, "node {node} of {nodes}, round {round}");
                let most = usize::from(BELOW_MAX) + 1 + of_pages_most;
                assert!(counts.received <= most, "{} messages for node {node} of {nodes}", counts.received);
            }
        }
        job.meet(Collective::Leave);
        assert!(job.counts.iter().all(|counts| counts.departures == 2));
    }
}

#[test]
fn those_below_are_told_of_a_departure_before_a_node_sees_to_itself() {
    for tracking in TRACKINGS {
        // Nodes 1 to 4 are below node 0, node 5 is below node 1.
        let mut job = Job::new(6, tracking, &[(REGION, PageSize::KIB_4, Placement::On(NodeId(5)))]);
        for round in 0..3 {
            for node in NodeId::all(5) {
                job.touch(node, 100 + 2 * u64::from(node.0), Access::Read);
            }
            for page in (100..110).step_by(2) {
                job.touch(NodeId(5), page, Access::Write);
            }
            job.taken();
            job.meet(Collective::Barrier);
            for (node, below) in [(0, 4), (1, 1)] {
                let counts = &job.counts[node];
                let told = vec![round; below];
                assert_eq!(counts.departed_when_telling, told, "{tracking:?}, node {node}, round {round}");
                assert_eq!(
                    (counts.invalidations.len(), counts.departures),
                    (1, 1),
                    "{tracking:?}, node {node}"
                );
            }
        }
    }
}

#[test]
fn all_of_128_nodes_see_what_each_wrote() {
    let nodes = 128;
    let mut job = Job::new(nodes, WriteTracking::Async, &[(REGION, PageSize::KIB_4, Placement::Cyclic)]);
    // Twice, because a home that serves a page for the first time counts as its writer.
    for _ in 0..2 {
        for reader in NodeId::all(nodes) {
            for page in (100..1124).step_by(97) {
                job.touch(reader, page, Access::Read);
            }
        }
        job.meet(Collective::Barrier);
    }
    for reader in NodeId::all(nodes) {
        for page in (100..1124).step_by(97) {
            job.touch(reader, page, Access::Read);
        }
    }
    for page in (100..1124).step_by(97) {
        let writer = NodeId(((page - 100 + 1) % u64::from(nodes)) as u16);
        job.touch(writer, page, Access::Write);
    }
    job.taken();
    job.meet(Collective::Barrier);
    for reader in NodeId::all(nodes) {
        let lost = &job.counts[reader.index()].invalidations;
        for page in (100..1124).step_by(97) {
            let home = NodeId(((page - 100) % u64::from(nodes)) as u16);
            let writer = NodeId(((page - 100 + 1) % u64::from(nodes)) as u16);
            // It may have been fetched again by now.
            let is_lost = lost.iter().any(|(span, _)| span.contains(PageId(page)));
            let keeps = reader == home || reader == writer;
            assert_eq!(is_lost, !keeps, "page {page} at node {reader}");
        }
    }
}

#[test]
fn nodes_that_differ_are_named_wherever_they_are_in_the_tree() {
    let mut job = Job::new(40, WriteTracking::Fault, &[]);
    for node in NodeId::all(40) {
        let collective = match node.0 {
            11 => Collective::Leave,
            30 => Collective::Barrier,
            _ => Collective::Follow,
        };
        job.come_to(node, collective);
        job.deliver_all();
    }
    let sentence = job.fatal.expect("they differ");
    for words in ["node 11", "node 30", "hiroba_finalize", "hiroba_barrier"] {
        assert!(sentence.contains(words), "{sentence}");
    }
}

/// Pages that are read after every barrier come with it, and cost no fault and no round trip each.
#[test]
fn pages_that_are_read_after_each_barrier_come_with_it() {
    for tracking in TRACKINGS {
        let mut job = Job::of_two(tracking);
        // Too far from each other to be a stream.
        let pages: Vec<u64> = (0..10).map(|index| 100 + 100 * index).collect();
        let (mut faults_in_all, rounds) = (0, 40);
        for _ in 0..rounds {
            pages.iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
            job.meet(Collective::Barrier);
            job.taken();
            pages.iter().for_each(|page| job.touch(NODE_1, *page, Access::Read));
            let (_, faults, ..) = job.taken();
            faults_in_all += faults;
            job.meet(Collective::Barrier);
        }
        // The first round, the second (nothing was lost before the first), and one each time that a habit
        // must be renewed.
        let renewals = 2 + 1 + 1 + 1 + rounds / 16 + 1;
        assert!(
            faults_in_all <= pages.len() * renewals,
            "{faults_in_all} faults under {tracking:?} tracking"
        );
    }
}

/// A node requests nothing after all have left, because there may be no node to answer.
#[test]
fn who_leaves_fetches_nothing() {
    let mut job = Job::of_two(WriteTracking::Async);
    for _ in 0..3 {
        job.touch(NODE_0, 500, Access::Write);
        job.meet(Collective::Barrier);
        job.touch(NODE_1, 500, Access::Read);
        job.meet(Collective::Barrier);
    }
    job.touch(NODE_0, 500, Access::Write);
    job.taken();
    job.meet(Collective::Leave);
    assert_eq!(job.counts[1].received, 1, "the departure, and no page");
}

/// A page that is not read any more is fetched in vain only a few times.
#[test]
fn habits_that_end_are_given_up() {
    let mut job = Job::of_two(WriteTracking::Async);
    for round in 0..100 {
        job.touch(NODE_0, 500, Access::Write);
        job.meet(Collective::Barrier);
        if round < 40 {
            job.touch(NODE_1, 500, Access::Read);
        }
        job.meet(Collective::Barrier);
        if round == 60 {
            job.taken();
        }
    }
    assert_eq!(job.taken().3, 0, "nothing is fetched long after the last read");
}

/// Arrays that change places are read at distances from their loss that no habit fits: a page travels in vain
/// only a few times.
#[test]
fn arrays_that_change_places_are_not_fetched_in_vain() {
    for tracking in TRACKINGS {
        let mut job = Job::of_two(tracking);
        // Not in steps that could be a stream, nor many together.
        let arrays: [Vec<u64>; 2] =
            [100, 105].map(|first| (0..10).map(|index| first + 64 * index + index * index).collect());
        let (mut fetched_in_all, transforms) = (0, 20);
        for transform in 0..transforms {
            for step in 0..3 {
                let (from, to) = (&arrays[(transform + step) % 2], &arrays[(transform + step + 1) % 2]);
                from.iter().for_each(|page| job.touch(NODE_1, *page, Access::Read));
                to.iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
                job.meet(Collective::Barrier);
                if step < 2 {
                    to.iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
                    job.meet(Collective::Barrier);
                }
                fetched_in_all += job.taken().3;
            }
        }
        let read_in_all = 3 * transforms as u64 * arrays[0].len() as u64;
        let mistakes = 3 * 2 * arrays[0].len() as u64;
        assert!(
            fetched_in_all <= read_in_all + mistakes,
            "{fetched_in_all} pages fetched for {read_in_all} under {tracking:?} tracking"
        );
        // When the program does the same in every phase later on, it has habits again.
        let (mut faults_in_all, phases) = (0, 60);
        for _ in 0..phases {
            arrays[0].iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
            job.meet(Collective::Barrier);
            job.taken();
            arrays[0].iter().for_each(|page| job.touch(NODE_1, *page, Access::Read));
            faults_in_all += job.taken().1;
            job.meet(Collective::Barrier);
        }
        let until_trusted = 6;
        let trials = 2 + phases / 16 + 1;
        assert!(
            faults_in_all <= arrays[0].len() * (until_trusted + trials),
            "{faults_in_all} faults under {tracking:?} tracking"
        );
    }
}

/// A program that fills untouched memory faults once for every doubling, not once for every page.
#[test]
fn untouched_pages_are_given_out_in_runs() {
    for tracking in TRACKINGS {
        for down in [false, true] {
            let mut job = Job::of_two(tracking);
            let order: Vec<u64> = if down { (100..1124).rev().collect() } else { (100..1124).collect() };
            order.iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
            let Counts { faults, grants, .. } = job.counts[0];
            assert!(
                faults > 0 && faults <= 14 && grants <= 14,
                "{faults} faults and {grants} calls for 1024 pages"
            );
            assert_eq!(job.taken().0, 0, "nobody need be asked");
            // Each is shared like one that was touched by itself.
            job.read(100..1124);
            job.taken();
            order.iter().for_each(|page| job.touch(NODE_0, *page, Access::Write));
            job.meet(Collective::Barrier);
            let lost: u64 = job.counts[1].invalidations.iter().map(|(_, pages)| pages).sum();
            assert_eq!(lost, 1024);
        }
    }
}

/// Scattered touches get access only to the pages that they touch.
#[test]
fn single_touches_are_given_single_pages() {
    let mut job = Job::of_two(WriteTracking::Async);
    (100..1124).step_by(32).for_each(|page| job.touch(NODE_0, page, Access::Write));
    let open = (100..1124).filter(|page| job.engine(NODE_0).access(PageId(*page)) > Access::None);
    assert_eq!(open.count(), 32);
}

/// Models a program that scatters keys: it touches nearly all pages, and no two in succession.
#[test]
fn pages_touched_in_no_order_come_together() {
    for tracking in TRACKINGS {
        let scattered = || (0..1024).map(|count| 100 + count * 389 % 1024);
        let mut job = Job::of_two(tracking);
        scattered().for_each(|page| job.touch(NODE_0, page, Access::Write));
        let faults = job.counts[0].faults;
        assert!(faults <= 1024 / 4, "{faults} first touches at the home");
        job.meet(Collective::Barrier);
        job.taken();
        job.read(scattered());
        let (messages, faults, _, installed) = job.taken();
        assert_eq!(installed, 1024);
        assert!(messages <= 1024 * 2 / 3 && faults <= 1024 / 4, "{messages} messages and {faults} faults");
    }
}
