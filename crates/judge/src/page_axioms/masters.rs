//! The pass over a run under sequential consistency: which node might touch which page when.
//!
//! Read first: Li, Hudak, *Memory Coherence in Shared Virtual Memory Systems*, ACM TOCS 7(4), 1989 (while one
//! may write a page nobody else may read it); Lamport, *Time, Clocks, and the Ordering of Events in a
//! Distributed System*, CACM 21(7), 1978, and Mattern, *Virtual Time and Global States of Distributed
//! Systems*, 1989, for what is before what.
//!
//! Clocks of different nodes cannot be compared. Only messages, those of the protocol or any others, show
//! that one node's access ended before another's began. So all nodes' records are read together, each message
//! after it was sent, with a vector clock for each node that counts the changes of access of all nodes that
//! are before its next record.

use std::collections::{BTreeSet, VecDeque};

use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_trace::Event;
use rustc_hash::FxHashMap;

use super::digest::Digest;
use super::{Axiom, Breach, Findings, Place, Rules};
use crate::execution::Run;

/// The maximum number of pages whose access changes in one record; this protocol changes that of one.
const PAGES_AT_ONCE_MAX: u64 = 512;

/// For each node, how many of its events came before.
type Clock = Vec<u64>;

/// A node's access to a page: the present one, and when it last had more.
#[derive(Clone, Copy, Default)]
struct Use {
    now: Access,
    /// The record of the last change.
    record: usize,
    /// The node's own count when it could no longer read the page, and when it could no longer write it.
    read_until: u64,
    written_until: u64,
}

struct Masters<'a> {
    run: &'a Run,
    digest: &'a Digest<'a>,
    rules: &'a Rules<'a>,
    findings: &'a mut Findings,
    /// The next record, by node.
    next: Vec<usize>,
    clocks: Vec<Clock>,
    /// By sender and receiver: what was before the messages in flight.
    links: FxHashMap<(NodeId, NodeId), VecDeque<Clock>>,
    /// By page, the nodes whose access to it has changed.
    pages: FxHashMap<PageId, Vec<(NodeId, Use)>>,
    /// In runs under another protocol: the pages that each node has put under sequential consistency.
    converted: Option<BTreeSet<(NodeId, PageId)>>,
}

/// Reports nodes that might touch a page while another might write it.
pub(super) fn judge(run: &Run, digest: &Digest<'_>, rules: &Rules<'_>, findings: &mut Findings) {
    let nodes = run.nodes.len();
    let (next, clocks) = (vec![0; nodes], vec![vec![0; nodes]; nodes]);
    let (links, pages) = (FxHashMap::default(), FxHashMap::default());
    let converted = rules.axioms.contains(&Axiom::Visibility).then(BTreeSet::new);
    Masters { run, digest, rules, findings, next, clocks, links, pages, converted }.read();
}

impl Masters<'_> {
    fn read(mut self) {
        loop {
            let mut has_read = false;
            for node in self.run.ids() {
                has_read |= self.read_on(node, false);
            }
            // A node waits for a message without a known sender; nothing is known of what was before it.
            if !has_read && !self.run.ids().any(|node| self.read_on(node, true)) {
                return;
            }
        }
    }

    /// Reads the node's records up to one that must wait, or `past` that one. Returns true if it read any.
    fn read_on(&mut self, node: NodeId, mut past: bool) -> bool {
        let records = &self.run.nodes[node.index()].records;
        let first = self.next[node.index()];
        while let Some(record) = records.get(self.next[node.index()]) {
            match &record.event {
                Event::Sent { to, .. } if to.index() < self.clocks.len() => {
                    let clock = self.clocks[node.index()].clone();
                    self.links.entry((node, *to)).or_default().push_back(clock);
                }
                Event::Received { from, .. } => {
                    let before = self.links.get_mut(&(*from, node)).and_then(VecDeque::pop_front);
                    let clock = &mut self.clocks[node.index()];
                    match before {
                        Some(before) => {
                            clock.iter_mut().zip(before).for_each(|(mine, its)| *mine = its.max(*mine))
                        }
                        None if std::mem::take(&mut past) => self.believe_all(node),
                        None => break,
                    }
                }
                Event::Converted { page } => {
                    self.convert(node, *page);
                }
                Event::Access { granules, access } => self.change(node, *granules, *access),
                _ => {}
            }
            self.next[node.index()] += 1;
        }
        self.next[node.index()] > first
    }

    /// Assumes that the node knows everything, so that it is not blamed for what others did before this.
    fn believe_all(&mut self, node: NodeId) {
        let counts: Vec<u64> = self.clocks.iter().enumerate().map(|(index, clock)| clock[index]).collect();
        self.clocks[node.index()] = counts;
    }

    fn change(&mut self, node: NodeId, granules: PageRange, access: Access) {
        if self.converted.is_some() {
            return self.change_converted(node, granules, access);
        }
        let record = self.next[node.index()];
        let mut first = granules.first;
        for _ in 0..PAGES_AT_ONCE_MAX {
            if first >= granules.end() {
                return;
            }
            let Some((_, page_granules)) = self.digest.home_of(first) else { return };
            self.change_page(node, record, first, access);
            first = PageId(first.0.saturating_add(page_granules.max(1)));
        }
        self.convict(Place { node, record }, || {
            format!(
                "access to {} granules changes at once, but this protocol changes that of one page",
                granules.count
            )
        });
    }

    /// Handles that a node has given up its copy of a page under another protocol: until now its threads
    /// might touch it.
    fn convert(&mut self, node: NodeId, page: PageId) {
        let Some(converted) = &mut self.converted else { return };
        converted.insert((node, page));
        let record = self.next[node.index()];
        let clock = &mut self.clocks[node.index()];
        clock[node.index()] += 1;
        let until = clock[node.index()];
        let given_up = Use { now: Access::None, record, read_until: until, written_until: until };
        self.pages.entry(page).or_default().push((node, given_up));
    }

    /// Handles a change of access to pages of which some are converted.
    fn change_converted(&mut self, node: NodeId, granules: PageRange, access: Access) {
        let record = self.next[node.index()];
        let range = (node, granules.first)..(node, granules.end());
        let converted = self.converted.iter().flat_map(|converted| converted.range(range.clone()));
        let pages: Vec<PageId> = converted.map(|(_, page)| *page).collect();
        pages.into_iter().for_each(|page| self.change_page(node, record, page, access));
    }

    /// Returns a node that, as far as this one may know, has yet to give up a copy under another protocol.
    fn has_not_converted(&self, page: PageId) -> Option<NodeId> {
        self.converted.as_ref()?;
        let has_told = |node: &NodeId| self.pages[&page].iter().any(|(user, _)| user == node);
        self.run.ids().find(|node| !has_told(node) && !self.run.nodes[node.index()].cut_off)
    }

    fn change_page(&mut self, node: NodeId, record: usize, page: PageId, access: Access) {
        let clock = &mut self.clocks[node.index()];
        clock[node.index()] += 1;
        let count = clock[node.index()];
        let uses = self.pages.entry(page).or_default();
        let place = uses.iter().position(|(user, _)| *user == node).unwrap_or_else(|| {
            uses.push((node, Use::default()));
            uses.len() - 1
        });
        let mine = &mut uses[place].1;
        if access < Access::Write && mine.now == Access::Write {
            mine.written_until = count;
        }
        if access < Access::Read && mine.now >= Access::Read {
            mine.read_until = count;
        }
        let is_more = access > mine.now;
        *mine = Use { now: access, record, ..*mine };
        if is_more {
            self.findings.counts.grants += 1;
            self.compare(Place { node, record }, page, access);
        }
    }

    /// Checks an access that a node gets: a writer excludes readers, and a reader excludes writers.
    fn compare(&mut self, place: Place, page: PageId, access: Access) {
        if let Some(other) = self.has_not_converted(page) {
            return self.convict(place, || {
                format!("the program may touch {page} from here on, but node {other} has not given it up")
            });
        }
        let clock = &self.clocks[place.node.index()];
        let others = self.pages[&page].iter().filter(|(user, _)| *user != place.node);
        let conflict = others.into_iter().find_map(|(other, theirs)| {
            let (now, until) = match access {
                Access::Write => (theirs.now >= Access::Read, theirs.read_until),
                _ => (theirs.now == Access::Write, theirs.written_until),
            };
            (now || until > clock[other.index()]).then_some((*other, now, theirs.record))
        });
        let Some((other, now, changed)) = conflict else { return };
        let (mine, its) = if access == Access::Write { ("write", "touch") } else { ("read", "write") };
        let theirs = if now {
            format!("node {other}'s may {its} it since its record {changed}")
        } else {
            format!(
                "node {other}'s might {its} it until its record {changed} or before, of which no message has arrived here"
            )
        };
        self.convict(place, || format!("the program may {mine} {page} from here on, but {theirs}"));
    }

    fn convict(&mut self, place: Place, explanation: impl FnOnce() -> String) {
        let breach =
            || Breach { axiom: Axiom::OneWriter, place, explanation: format!("{place}: {}", explanation()) };
        self.findings.convict(self.rules, breach, Axiom::OneWriter);
    }
}
