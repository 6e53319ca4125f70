//! The second pass: one node's records in order, compared with what the others recorded.

use std::collections::BTreeMap;

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, PageRange, PageSet, VersionVector};
use hiroba_trace::{Activity, Event, MessageKind, Record, ThreadNumber};
use hiroba_wire::Message;
use rustc_hash::{FxHashMap, FxHashSet};

use super::digest::{Applied, Digest, Timestamp, raise};
use super::{Axiom, Breach, Findings, Place, Rules, told};
use crate::execution::Run;

/// The accesses that do not fault, as runs of granules: where each begins, where it ends, and which.
#[derive(Default)]
struct AccessMap(BTreeMap<PageId, (PageId, Access)>);

impl AccessMap {
    fn set(&mut self, granules: PageRange, access: Access) {
        let (first, end) = (granules.first, granules.end());
        let begins_before = self.0.range(..first).next_back().map(|(start, run)| (*start, *run));
        if let Some((start, (before_end, before))) = begins_before.filter(|(_, (end, _))| *end > first) {
            self.0.insert(start, (first, before));
            if before_end > end {
                self.0.insert(end, (before_end, before));
            }
        }
        while let Some((start, (inner_end, inner))) =
            self.0.range(first..end).next().map(|(start, run)| (*start, *run))
        {
            self.0.remove(&start);
            if inner_end > end {
                self.0.insert(end, (inner_end, inner));
            }
        }
        if access > Access::None {
            self.0.insert(first, (end, access));
        }
    }

    /// Returns the most that some granule of `page` allows.
    fn most(&self, granules: PageRange) -> Access {
        let before = self.0.range(..granules.first).next_back();
        let before = before.filter(|(_, (end, _))| *end > granules.first).map(|(_, (_, access))| *access);
        let inside = self.0.range(granules.first..granules.end()).map(|(_, (_, access))| *access).max();
        before.max(inside).unwrap_or(Access::None)
    }
}

/// Returns true if a message of this kind brings a lock.
fn is_grant(kind: MessageKind) -> bool {
    Message::KINDS.get(usize::from(kind.0)) == Some(&"LockGrant")
}

/// A message: its sender, its kind, and how many had arrived from there before.
pub(super) type Told = (NodeId, MessageKind, usize);

/// Returns when a node saw interval `seq` of `writer`, at `at` or before, and by which message.
pub(super) fn learned(
    run: &Run,
    at: Place,
    writer: NodeId,
    seq: IntervalSeq,
) -> Option<(Place, Option<Told>)> {
    let records = &run.nodes[at.node.index()].records;
    let tells = |event: &Event| match event {
        Event::Seen { grown } => grown.iter().any(|(node, seen)| *node == writer && *seen >= seq),
        _ => false,
    };
    let record =
        (0..=at.record.min(records.len().checked_sub(1)?)).find(|index| tells(&records[*index].event))?;
    let learned = Place { node: at.node, record };
    let thread = records[record].thread;
    let mut inner = 0;
    for Record { event, .. } in records[..record].iter().rev().filter(|record| record.thread == thread) {
        match event {
            Event::Leave => inner += 1,
            Event::Enter(_) if inner > 0 => inner -= 1,
            Event::Enter(Activity::Serve { from, kind }) => {
                let came = |record: &&Record| matches!(&record.event, Event::Received { from: other, .. } if other == from);
                let count = records[..record].iter().filter(came).count();
                return Some((learned, Some((*from, *kind, count.saturating_sub(1)))));
            }
            _ => {}
        }
    }
    Some((learned, None))
}

/// Follows one node.
pub(super) struct Watcher<'a> {
    run: &'a Run,
    digest: &'a Digest<'a>,
    rules: &'a Rules<'a>,
    node: NodeId,
    findings: &'a mut Findings,
    record: usize,
    seen: Timestamp,
    access: AccessMap,
    /// Which intervals of others the frames contain. A node's frames always contain its own intervals.
    holds: FxHashMap<PageId, VersionVector>,
    /// Seen intervals that the frames do not contain.
    lacking: BTreeMap<PageId, VersionVector>,
    /// The latest interval of this node that wrote a page, with a diff for its home.
    own: FxHashMap<PageId, IntervalSeq>,
    received: FxHashMap<NodeId, usize>,
    /// The bytes of diffs of the latest interval of a node that has changed a page here.
    applied: FxHashMap<(PageId, NodeId), (IntervalSeq, u32)>,
    /// Where pages have moved to, as far as the node knows.
    moved: FxHashMap<PageId, NodeId>,
    /// Pages that are under sequential consistency from now on. Intervals demand nothing of them.
    converted: FxHashSet<PageId>,
    /// The grants of locks that threads handle: the sender, and its record. Meanwhile other threads may take
    /// locks that were here already.
    grants: FxHashMap<ThreadNumber, (NodeId, usize)>,
    /// The activities of threads: the sender if it is a message.
    serving: FxHashMap<ThreadNumber, Vec<Option<NodeId>>>,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(
        run: &'a Run,
        digest: &'a Digest<'a>,
        rules: &'a Rules<'a>,
        node: NodeId,
        findings: &'a mut Findings,
    ) -> Watcher<'a> {
        Watcher {
            run,
            digest,
            rules,
            node,
            findings,
            record: 0,
            seen: vec![0; run.nodes.len()],
            access: AccessMap::default(),
            holds: FxHashMap::default(),
            lacking: BTreeMap::new(),
            own: FxHashMap::default(),
            received: FxHashMap::default(),
            applied: FxHashMap::default(),
            moved: FxHashMap::default(),
            converted: FxHashSet::default(),
            grants: FxHashMap::default(),
            serving: FxHashMap::default(),
        }
    }

    pub(super) fn watch(mut self) {
        for (index, record) in self.run.nodes[self.node.index()].records.iter().enumerate() {
            self.record = index;
            self.step(record.thread, &record.event);
        }
        self.look_back();
    }

    fn place(&self) -> Place {
        Place { node: self.node, record: self.record }
    }

    fn convict(&mut self, axiom: Axiom, explanation: impl FnOnce(&Self) -> String) {
        if !self.rules.axioms.contains(&axiom) {
            return;
        }
        let place = self.place();
        let explanation = if self.findings.breaches.len() < super::EXPLAINED_MAX {
            format!("{place}: {}", explanation(self))
        } else {
            String::new()
        };
        self.findings.convict(self.rules, || Breach { axiom, place, explanation }, axiom);
    }

    fn is_cut_off(&self, node: NodeId) -> bool {
        self.run.nodes[node.index()].cut_off
    }

    fn exists(&self, node: NodeId) -> bool {
        node.index() < self.run.nodes.len()
    }

    fn step(&mut self, thread: ThreadNumber, event: &Event) {
        match event {
            Event::Enter(activity) => {
                let sender = if let Activity::Serve { from, .. } = activity { Some(*from) } else { None };
                self.serving.entry(thread).or_default().push(sender);
            }
            Event::Leave => self.leave(thread),
            Event::Received { from, kind, bytes } => self.receive(thread, *from, *kind, *bytes),
            Event::Acquired { lock, turn } => self.acquire(thread, *lock, *turn),
            Event::Met { epoch } => self.meet(*epoch),
            Event::PublicationSeen { from, count } => {
                if let Some(published) = self.digest.published.get(&(*from, self.node, *count)) {
                    self.must_have_seen(
                        Axiom::PublicationsTell,
                        published,
                        *from,
                        "published it to this node",
                    );
                }
            }
            Event::Taken { from, number } => {
                if let Some(known) = self.digest.posted.get(&(*from, *number)) {
                    self.must_have_seen(Axiom::PostsTell, known, *from, "sent a message that was taken here");
                }
            }
            Event::Seen { grown } => {
                let me = self.node;
                for (writer, seq) in grown.iter().filter(|(writer, _)| *writer != me) {
                    self.see(*writer, *seq);
                }
            }
            Event::Moved { pages, to } => self.moved.extend(pages.iter().map(|page| (page, *to))),
            Event::Converted { page } => {
                self.converted.insert(*page);
                self.lacking.remove(page);
            }
            Event::Closed { seq, pages } => self.close(*seq, pages),
            Event::Holds { page, .. } | Event::Applied { page, .. }
                if self.digest.is_under_another(*page) => {}
            Event::Holds { page, version } => self.hold(thread, *page, version),
            Event::Applied { page, writer, seq, bytes } => self.apply(*page, *writer, *seq, *bytes),
            Event::Access { granules, access } => {
                self.access.set(*granules, *access);
                if *access >= Access::Read {
                    self.look_at(*granules);
                }
            }
            _ => {}
        }
    }

    fn leave(&mut self, thread: ThreadNumber) {
        let left = self.serving.entry(thread).or_default().pop();
        if left.flatten().is_some() {
            self.grants.remove(&thread);
        }
    }

    fn receive(&mut self, thread: ThreadNumber, from: NodeId, kind: MessageKind, bytes: u32) {
        let count = self.received.entry(from).or_default();
        let index = std::mem::replace(count, *count + 1);
        self.findings.counts.messages += 1;
        if !self.exists(from) {
            return self.convict(Axiom::Messages, |_| {
                format!("a message from node {from}, which does not belong to the job")
            });
        }
        let sent =
            self.digest.nodes[from.index()].sent.get(&self.node).and_then(|sent| sent.get(index)).copied();
        match sent {
            Some(sent) if (sent.kind, sent.bytes) == (kind, bytes) => {
                if is_grant(kind) {
                    self.grants.insert(thread, (from, sent.record));
                } else {
                    self.grants.remove(&thread);
                }
            }
            Some(sent) => self.convict(Axiom::Messages, |_| {
                format!(
                    "message {index} from node {from} is of kind {} and {bytes} bytes, but was sent as kind {} and {} bytes \
                     (node {from} record {})",
                    kind.0, sent.kind.0, sent.bytes, sent.record
                )
            }),
            None if self.is_cut_off(from) => {}
            None => self.convict(Axiom::Messages, |_| format!("message {index} from node {from} was never sent")),
        }
    }

    fn acquire(&mut self, thread: ThreadNumber, lock: hiroba_base::LockId, turn: u64) {
        self.findings.counts.holds += 1;
        self.look_at_grant(thread, lock);
        let Some(before) = turn.checked_sub(1) else { return };
        match self.digest.released.get(&(lock, before)) {
            Some((place, seen)) => {
                if let Some(seen) = seen {
                    let how = format!("released lock {} to this node (turn {before})", lock.0);
                    self.must_have_seen(Axiom::HoldsTell, seen, place.node, &how);
                }
            }
            None if self.run.is_cut_off() => {}
            None => {
                let holder = self.digest.acquired.get(&(lock, before));
                let holder = holder.map_or("no thread took".to_owned(), |place| format!("{place} took"));
                self.convict(Axiom::Holds, |_| {
                    format!("lock {} is acquired in turn {turn}, but turn {before}, which {holder}, was never released", lock.0)
                });
            }
        }
    }

    /// A lock's last holder may have unlocked it long before it closed the interval and sent the lock.
    /// Everything that it had closed by then must be seen here.
    fn look_at_grant(&mut self, thread: ThreadNumber, lock: hiroba_base::LockId) {
        let Some((from, record)) = self.grants.get(&thread).copied() else { return };
        let closed = self.digest.nodes[from.index()].last_interval_before(record);
        let seen = self.seen[from.index()];
        if closed > seen {
            self.convict(Axiom::HoldsTell, |_| {
                format!(
                    "lock {} came from node {from}, which had closed its interval {closed} before it sent the lock \
                     (record {record}); this node has seen its intervals through {seen}",
                    lock.0
                )
            });
        }
    }

    fn meet(&mut self, epoch: u64) {
        for other in self.run.ids() {
            match self.digest.nodes[other.index()].arrivals.get(&epoch) {
                Some(seen) => {
                    self.must_have_seen(
                        Axiom::MeetingsTell,
                        seen,
                        other,
                        &format!("came to meeting {epoch}"),
                    );
                }
                None if self.run.is_cut_off() => {}
                None => self.convict(Axiom::Meetings, |_| {
                    format!("left meeting {epoch}, which node {other} never reached")
                }),
            }
        }
    }

    /// Checks that this node has seen what another one had seen when it made it known.
    fn must_have_seen(&mut self, axiom: Axiom, known: &Timestamp, teller: NodeId, how: &str) {
        let missing = known.iter().zip(&self.seen).position(|(known, seen)| known > seen);
        if let Some(writer) = missing {
            let (known, seen) = (known[writer], self.seen[writer]);
            let writer = NodeId(writer as u16);
            self.convict(axiom, |this| {
                let by = Place { node: teller, record: usize::MAX };
                let chain = told(this.run, this.digest, this.rules, by, writer, known);
                format!(
                    "node {teller} had seen interval {known} of node {writer} when it {how}, but this node has seen {seen} only\n  \
                     {chain}"
                )
            });
        }
    }

    fn see(&mut self, writer: NodeId, seq: IntervalSeq) {
        if !self.exists(writer) {
            return self.convict(Axiom::Intervals, |_| {
                format!("intervals of node {writer}, which does not belong to the job")
            });
        }
        let digest = self.digest;
        let theirs = &digest.nodes[writer.index()];
        if seq > theirs.last_interval() && !self.is_cut_off(writer) {
            let last = theirs.last_interval();
            self.convict(Axiom::Intervals, |_| {
                format!("interval {seq} of node {writer} is seen, but that node closed {last} only")
            });
        }
        let before = self.seen[writer.index()];
        raise(&mut self.seen, writer, seq);
        for interval in theirs.between(before, seq) {
            for page in interval.pages.iter().flat_map(|pages| pages.iter()) {
                self.findings.counts.notices += 1;
                self.must_hold(page, writer, interval.seq);
            }
        }
    }

    /// Returns where the page is homed, as far as the node knows, and its number of granules.
    fn home_of(&self, page: PageId) -> Option<(NodeId, u64)> {
        let (first, granules) = self.digest.home_of(page)?;
        Some((self.moved.get(&page).copied().unwrap_or(first), granules))
    }

    fn must_hold(&mut self, page: PageId, writer: NodeId, seq: IntervalSeq) {
        if self.converted.contains(&page) {
            return;
        }
        let Some((home, granules)) = self.home_of(page) else { return };
        if self.holds.get(&page).is_some_and(|held| held.get(writer) >= seq) {
            return;
        }
        // The home needs nothing if no byte differed (an atomic word of its own was operated on), provided
        // that every diff is sent to it.
        let empty = self.rules.axioms.contains(&Axiom::Diffs)
            && !self.digest.nodes[writer.index()].diffs.contains_key(&(page, seq));
        if home == self.node && (empty || writer == self.node) {
            return;
        }
        self.lacking.entry(page).or_default().advance(writer, seq);
        if self.access.most(PageRange { first: page, count: granules }) >= Access::Read {
            self.convict_of_stale(page);
        }
    }

    /// Checks pages that may be read from now on.
    fn look_at(&mut self, granules: PageRange) {
        let stale: Vec<PageId> =
            self.lacking.range(granules.first..granules.end()).map(|(page, _)| *page).collect();
        for page in stale {
            self.convict_of_stale(page);
        }
    }

    fn convict_of_stale(&mut self, page: PageId) {
        self.convict(Axiom::Visibility, |this| {
            let lacking = &this.lacking[&page];
            let Some((writer, seq)) = lacking.entries().first().copied() else { return String::new() };
            let held = this.holds.get(&page).map_or(0, |held| held.get(writer));
            let chain = told(this.run, this.digest, this.rules, this.place(), writer, seq);
            format!(
                "the program may read {page}, which node {writer} wrote in its interval {seq}; this node has seen that interval, \
                 but its frame contains those of node {writer} only through {held}\n  {chain}"
            )
        });
    }

    fn close(&mut self, seq: IntervalSeq, pages: &PageSet) {
        let before = self.seen[self.node.index()];
        self.findings.counts.intervals += usize::from(seq != before);
        if seq != before && seq != before + 1 {
            self.convict(Axiom::Intervals, |_| format!("interval {seq} is closed after interval {before}"));
        }
        raise(&mut self.seen, self.node, seq);
        for page in pages.iter() {
            self.own.insert(page, seq);
        }
    }

    fn hold(&mut self, thread: ThreadNumber, page: PageId, version: &VersionVector) {
        self.findings.counts.versions += 1;
        let held = self.holds.entry(page).or_default();
        version.entries().iter().for_each(|(writer, seq)| held.advance(*writer, *seq));
        self.settle(page);
        self.look_at_claims(page, version);
        let Some((home, _)) = self.home_of(page) else { return };
        if home == self.node {
            return;
        }
        let own = self.own.get(&page).copied().unwrap_or(0);
        if version.get(self.node) < own {
            self.convict(Axiom::Versions, |_| {
                format!("{page} came without what this node itself wrote in its interval {own}")
            });
        }
        let sender = self.serving.get(&thread).and_then(|calls| calls.last().copied().flatten());
        let by_message = sender == Some(home) && !self.rules.one_sided;
        let sent = if by_message { self.sent_by(home) } else { usize::MAX };
        for (writer, seq) in version.entries() {
            let held = self.some_home_held(home, page, *writer, *seq, sent);
            if let Err(wrong) = held {
                self.convict(Axiom::Versions, |_| {
                    format!("{page} came as if it contained interval {seq} of node {writer}, but {wrong}")
                });
            }
        }
    }

    /// Does the same as [`home_held`](Self::home_held); a page that has moved took along what its homes
    /// contained.
    fn some_home_held(
        &self,
        home: NodeId,
        page: PageId,
        writer: NodeId,
        seq: IntervalSeq,
        before: usize,
    ) -> Result<(), String> {
        let held = |home, before| self.home_held(home, page, writer, seq, before);
        let somewhere = self.digest.has_moved(page)
            && self.digest.homes_of(page).any(|home| held(home, usize::MAX).is_ok());
        if somewhere { Ok(()) } else { held(home, before) }
    }

    /// Checks that everything that a frame is claimed to contain was written.
    fn look_at_claims(&mut self, page: PageId, version: &VersionVector) {
        let digest = self.digest;
        for (writer, seq) in version.entries() {
            if !self.exists(*writer) || self.is_cut_off(*writer) {
                continue;
            }
            let interval = digest.nodes[writer.index()].interval(*seq);
            let wrote =
                interval.is_some_and(|interval| interval.pages.iter().any(|pages| pages.contains(page)));
            if !wrote {
                self.convict(Axiom::Claims, |_| {
                    format!(
                        "{page} is claimed to contain interval {seq} of node {writer}, which did not write it"
                    )
                });
            }
        }
    }

    /// Returns where the home sent the message that is being handled.
    fn sent_by(&self, home: NodeId) -> usize {
        let came = self.received.get(&home).copied().unwrap_or(0);
        let sent = self.digest.nodes[home.index()].sent.get(&self.node);
        let parcel = sent.zip(came.checked_sub(1)).and_then(|(sent, last)| sent.get(last));
        parcel.map_or(usize::MAX, |parcel| parcel.record)
    }

    /// Checks that the home's frame contained an interval before one of its records.
    fn home_held(
        &self,
        home: NodeId,
        page: PageId,
        writer: NodeId,
        seq: IntervalSeq,
        before: usize,
    ) -> Result<(), String> {
        if !self.exists(writer) || self.is_cut_off(writer) || self.is_cut_off(home) {
            return Ok(());
        }
        let Some(interval) = self.digest.nodes[writer.index()].interval(seq) else {
            return Err("that node never closed it".to_owned());
        };
        if writer == home {
            let held = interval.record < before;
            return if held {
                Ok(())
            } else {
                Err(format!("its home closed it later (record {})", interval.record))
            };
        }
        if !self.digest.nodes[writer.index()].diffs.contains_key(&(page, seq)) {
            return Ok(());
        }
        let applied = self.digest.nodes[home.index()].applied.get(&(page, writer));
        let applied = applied.and_then(|applied| applied.iter().rfind(|applied| applied.seq == seq));
        match applied {
            Some(applied) if applied.record < before => Ok(()),
            Some(applied) => Err(format!(
                "its home, node {home}, sent it (record {before}) before it applied that diff (record {})",
                applied.record
            )),
            None => Err(format!("its home, node {home}, never applied that diff")),
        }
    }

    /// Forgets what the frame contains by now.
    fn settle(&mut self, page: PageId) {
        if let Some(lacking) = self.lacking.get_mut(&page) {
            lacking.retain_beyond(&self.holds[&page]);
            if lacking.is_empty() {
                self.lacking.remove(&page);
            }
        }
    }

    fn apply(&mut self, page: PageId, writer: NodeId, seq: IntervalSeq, bytes: u32) {
        let axiom = self.rules.diffs();
        self.findings.counts.diffs += 1;
        let held = self.holds.entry(page).or_default();
        let before = held.get(writer);
        if !self.exists(writer) {
            return self
                .convict(axiom, |_| format!("a diff of node {writer}, which does not belong to the job"));
        }
        let made = self.digest.nodes[writer.index()].diffs.get(&(page, seq)).copied();
        let applied = self.applied.entry((page, writer)).or_default();
        if !self.rules.in_pieces() || applied.0 != seq {
            *applied = (seq, 0);
        }
        applied.1 += bytes;
        let applied = applied.1 + self.applied_before_moves(page, writer, seq);
        // The size of an interval's diff is unknown while the interval is open; its end shows whether
        // everything came.
        let is_whole = !self.rules.in_pieces() || applied >= made.unwrap_or(0);
        if is_whole {
            let held = self.holds.entry(page).or_default();
            held.advance(writer, seq);
            self.settle(page);
        }
        if before > seq || before == seq && (bytes > 0 || !self.rules.in_pieces()) {
            self.convict(axiom, |_| {
                format!("the diff of {page} from interval {seq} of node {writer} is applied when that of interval {before} has been")
            });
        }
        let is_right =
            if self.rules.in_pieces() { applied <= made.unwrap_or(0) } else { applied == made.unwrap_or(0) };
        if !is_right && !self.is_cut_off(writer) {
            let made = made.map_or("none".to_owned(), |made| format!("one of {made} bytes"));
            self.convict(axiom, |_| {
                format!("a diff of {page} of {applied} bytes from interval {seq} of node {writer} is applied, which made {made}")
            });
        }
    }

    /// Returns how many bytes of a page an interval has changed in pieces that were applied at earlier homes
    /// of the page.
    fn applied_before_moves(&self, page: PageId, writer: NodeId, seq: IntervalSeq) -> u32 {
        if !self.rules.in_pieces() || !self.digest.has_moved(page) {
            return 0;
        }
        let moves = |node: NodeId, record| self.digest.nodes[node.index()].moves_before(page, record);
        let moves_here = moves(self.node, self.record);
        let others = self.run.ids().filter(|other| *other != self.node).map(|other| {
            let applied = self.digest.nodes[other.index()].applied.get(&(page, writer));
            let pieces = applied.into_iter().flatten().filter(|piece| piece.seq == seq);
            let earlier = pieces.filter(|piece| moves(other, piece.record) < moves_here);
            earlier.map(|piece| piece.bytes).sum::<u32>()
        });
        others.sum()
    }

    /// Checks at the end for diffs that arrived here and were not applied.
    fn look_back(&mut self) {
        if self.is_cut_off(self.node) {
            return;
        }
        let (digest, me) = (self.digest, self.node);
        for ((page, writer), applied) in &digest.nodes[me.index()].applied {
            for other in digest.homes_of(*page).filter(|other| *other > me && digest.has_moved(*page)) {
                let there = digest.nodes[other.index()].applied.get(&(*page, *writer));
                let twice = applied.iter().find(|applied| {
                    there.is_some_and(|there| there.iter().any(|there| there.seq == applied.seq))
                });
                if let Some(Applied { seq, .. }) = twice {
                    self.convict(Axiom::Diffs, |_| {
                        format!("the diff of {page} from interval {seq} of node {writer} is applied here and at node {other}")
                    });
                }
            }
        }
        for writer in self.run.ids().filter(|writer| *writer != me) {
            let theirs = &digest.nodes[writer.index()];
            let sent = theirs.sent.get(&self.node).map_or(&[][..], |sent| sent.as_slice());
            let came = self.received.get(&writer).copied().unwrap_or(0);
            for ((page, seq), made) in &theirs.diffs {
                // If a page has moved, its first home need not be where the diff came.
                if digest.has_moved(*page) || digest.home_of(*page).is_none_or(|(home, _)| home != self.node)
                {
                    continue;
                }
                let Some(interval) = theirs.interval(*seq) else { continue };
                // The last of the interval's diffs for this home is what the writer sends it next.
                let must_come = sent.partition_point(|parcel| parcel.record < interval.record) + 1;
                let applied = digest.nodes[self.node.index()].applied.get(&(*page, writer));
                let pieces = applied.into_iter().flatten().filter(|applied| applied.seq == *seq);
                let is_applied = if self.rules.in_pieces() {
                    pieces.map(|piece| piece.bytes).sum::<u32>() >= *made
                } else {
                    pieces.count() > 0
                };
                if came >= must_come && !is_applied {
                    self.convict(self.rules.diffs(), |_| {
                        format!(
                            "the diff of {page} that node {writer} made in its interval {seq} (record {}) came here and was never \
                             applied",
                            interval.record
                        )
                    });
                }
            }
        }
    }
}
