//! The checker of pages: checks that what the nodes did to pages fulfils the protocol's duties.
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*,
//! ISCA 1992 (intervals, write notices), and Zhou, Iftode, Li, OSDI 1996 (homes).
//!
//! The single accesses of an ordinary program are not recorded. But each node records its page facts: which
//! access it gave its program to which page, which intervals its frames contain, which intervals it closed
//! and which it has seen. A run is right if the facts fit together as the [`Axiom`]s of its protocol say.
//! Each node's records are in the order in which actions took effect there. Between nodes only messages,
//! holds of locks, meetings and publications order anything, and no axiom assumes more.

mod digest;
mod masters;
mod watch;

use core::fmt;

use hiroba_base::NodeId;
use hiroba_protocol::Protocol;
use serde::Serialize;

use self::digest::Digest;
pub use self::digest::Place;
use self::watch::Watcher;
use crate::axioms::EXPLAINED_MAX;
use crate::execution::Run;
use crate::program::GRANULE_BYTES;

/// A duty of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axiom {
    /// The k-th message that came from a node is the k-th that it sent there.
    Messages,
    /// A lock's holds follow each other: each turn is acquired once, after the previous one was released.
    Holds,
    /// A node that gets a lock has seen everything that its last holder had seen.
    HoldsTell,
    /// A meeting is left only after all nodes have arrived.
    Meetings,
    /// A node that leaves a meeting has seen everything that any node had seen when it arrived.
    MeetingsTell,
    /// When a publication takes effect, everything that its sender had seen is seen.
    PublicationsTell,
    /// When a message to a port is taken, everything that its sender had seen is seen.
    PostsTell,
    /// A node's intervals are numbered 1, 2, 3, …, and an interval is seen only if it was closed.
    Intervals,
    /// A page that a seen interval wrote may be read only if the frame contains that interval.
    Visibility,
    /// A frame contains what its home's frame contained when it sent the page: intervals that were closed and
    /// whose diffs were applied there, and all of the reader's own.
    Versions,
    /// The diffs of an interval are applied at their homes once, completely and in the writer's order.
    Diffs,
    /// While one node may write a page, no other may touch it.
    OneWriter,
    /// A frame is claimed to contain only intervals that were closed and that wrote its page.
    Claims,
    /// The same if an interval makes several diffs of one page (automatic update): only all of them together
    /// form the interval's diff.
    DiffsInPieces,
}

impl fmt::Display for Axiom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axiom::Messages => "messages arrive as they were sent",
            Axiom::Holds => "a lock's holds follow each other",
            Axiom::HoldsTell => "a lock brings what its last holder had seen",
            Axiom::Meetings => "no node leaves a meeting before all have arrived",
            Axiom::MeetingsTell => "a meeting brings what all nodes had seen",
            Axiom::PublicationsTell => "a publication brings what its sender had seen",
            Axiom::PostsTell => "a message to a port brings what its sender had seen",
            Axiom::Intervals => "intervals are counted, and seen only when they were closed",
            Axiom::Visibility => "a page that a node may read contains every interval that it has seen",
            Axiom::Versions => "a frame contains what its home's contained",
            Axiom::Diffs | Axiom::DiffsInPieces => "diffs are applied once, whole and in order",
            Axiom::OneWriter => "a node that may write a page is the only one that may touch it",
            Axiom::Claims => "a frame contains only what was written",
        })
    }
}

/// Eager release consistency. A release ends when its diffs are performed, so acquires carry no intervals and
/// pages have no versions: records of pages only allow checking the synchronisation. What loads return is
/// checked byte by byte, in simulated runs and in litmus programs.
const ERC: &[Axiom] = &[Axiom::Messages, Axiom::Holds, Axiom::Meetings];

/// Home-based lazy release consistency.
const HLRC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::PostsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Versions,
    Axiom::Diffs,
    // Of converted pages.
    Axiom::OneWriter,
];

/// Sequential consistency: nothing is told, so that no node need have seen anything.
const SC: &[Axiom] = &[Axiom::Messages, Axiom::Holds, Axiom::Meetings, Axiom::OneWriter];

/// Lazy release consistency whose diffs stay with their writers: any node's frame may be behind, and diffs
/// come from any node.
const LRC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::PostsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Claims,
];

/// Automatic update release consistency: as home-based LRC, except for diffs that are sent before their
/// interval ends.
const AURC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::PostsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Versions,
    Axiom::DiffsInPieces,
];

/// Returns the axioms that runs of a protocol must satisfy.
pub fn axioms_of(protocol: Protocol) -> &'static [Axiom] {
    match protocol {
        Protocol::Sc => SC,
        Protocol::ErcInvalidate | Protocol::ErcUpdate => ERC,
        Protocol::Lrc => LRC,
        Protocol::Hlrc | Protocol::Adaptive => HLRC,
        Protocol::Aurc => AURC,
    }
}

/// What the checker must know about a run beside its records.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The axioms to check.
    pub axioms: &'a [Axiom],
    /// Whether nodes read pages from each other's frames, so that no message tells when.
    pub one_sided: bool,
    /// Bytes of a granule.
    pub granule_bytes: u32,
    /// The names of message kinds, for explanations.
    pub message_kinds: &'a [String],
}

impl Rules<'_> {
    /// Returns the rules of a simulated run of HLRC.
    pub fn hlrc(one_sided: bool) -> Rules<'static> {
        Rules { axioms: HLRC, one_sided, granule_bytes: GRANULE_BYTES, message_kinds: &[] }
    }

    /// Returns the rules of a simulated run of a protocol whose nodes only exchange messages.
    pub fn of(protocol: Protocol) -> Rules<'static> {
        Rules { axioms: axioms_of(protocol), ..Rules::hlrc(false) }
    }

    /// Returns the rules of a simulated run of lazy release consistency without homes.
    pub fn lrc() -> Rules<'static> {
        Rules { axioms: LRC, one_sided: false, granule_bytes: GRANULE_BYTES, message_kinds: &[] }
    }
}

impl Rules<'_> {
    /// Returns the rules of a simulated run of AURC.
    pub fn aurc(one_sided: bool) -> Rules<'static> {
        Rules { axioms: AURC, ..Rules::hlrc(one_sided) }
    }

    fn in_pieces(&self) -> bool {
        self.axioms.contains(&Axiom::DiffsInPieces)
    }

    fn diffs(&self) -> Axiom {
        if self.in_pieces() { Axiom::DiffsInPieces } else { Axiom::Diffs }
    }
}

/// A violated duty: an error in Hiroba.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The axiom.
    pub axiom: Axiom,
    /// The place where it shows.
    pub place: Place,
    /// Which node wrote, which should have known, and by which chain.
    pub explanation: String,
}

/// The result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Breaches, the one with the shortest explanation first; at most [`EXPLAINED_MAX`].
    pub breaches: Vec<Breach>,
    /// The number of breaches.
    pub breaches_found: usize,
    /// What was checked.
    pub counts: Counts,
}

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Messages that were compared with what was sent.
    pub messages: usize,
    /// Holds of locks.
    pub holds: usize,
    /// Meetings.
    pub meetings: usize,
    /// Intervals that were closed.
    pub intervals: usize,
    /// How many times a node saw that an interval had written a page.
    pub notices: usize,
    /// Versions of frames that were compared with their homes'.
    pub versions: usize,
    /// Diffs that were applied.
    pub diffs: usize,
    /// How many times a node got more access to a page, which was then compared with the access of all other
    /// nodes.
    pub grants: usize,
}

impl Findings {
    fn convict(&mut self, rules: &Rules<'_>, breach: impl FnOnce() -> Breach, axiom: Axiom) {
        if !rules.axioms.contains(&axiom) {
            return;
        }
        self.breaches_found += 1;
        if self.breaches.len() < EXPLAINED_MAX {
            self.breaches.push(breach());
        }
    }
}

/// Checks a run.
pub fn judge(run: &Run, rules: &Rules<'_>) -> Findings {
    let digest = Digest::of(run, rules.granule_bytes);
    let mut findings = Findings::default();
    for (place, what, lock, turn) in &digest.repeated {
        let breach = || Breach {
            axiom: Axiom::Holds,
            place: *place,
            explanation: format!("{place}: lock {} is {what} in turn {turn} for the second time", lock.0),
        };
        findings.convict(rules, breach, Axiom::Holds);
    }
    for node in run.ids() {
        Watcher::new(run, &digest, rules, node, &mut findings).watch();
    }
    if rules.axioms.contains(&Axiom::OneWriter) {
        masters::judge(run, &digest, rules, &mut findings);
    }
    findings.counts.meetings = digest.nodes.iter().map(|node| node.arrivals.len()).max().unwrap_or(0);
    findings.breaches.sort_by_key(|breach| breach.explanation.len());
    findings
}

/// Explains how one node learned of an interval of another, in reverse; see [`Watcher`].
fn told(
    run: &Run,
    digest: &Digest<'_>,
    rules: &Rules<'_>,
    mut at: Place,
    writer: NodeId,
    seq: u64,
) -> String {
    let mut steps = Vec::new();
    for _ in 0..run.nodes.len() * 2 {
        if at.node == writer {
            break;
        }
        let Some((learned, message)) = watch::learned(run, at, writer, seq) else { break };
        let Some((from, kind, count)) = message else {
            steps.push(format!("{learned} saw it"));
            break;
        };
        let name = rules.message_kinds.get(usize::from(kind.0));
        let name = name.map_or(String::new(), |name| format!(" ({name})"));
        steps.push(format!("{learned} saw it in a message from node {from}{name}"));
        let sent = digest.nodes[from.index()].sent.get(&at.node).and_then(|sent| sent.get(count));
        let Some(sent) = sent else { break };
        at = Place { node: from, record: sent.record };
    }
    let closed = digest.nodes[writer.index()].interval(seq);
    let closed =
        closed.map(|interval| format!("node {writer} record {} closed interval {seq}", interval.record));
    steps.extend(closed);
    steps.reverse();
    steps.join(" → ")
}
