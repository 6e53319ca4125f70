//! The judge of pages: does what the nodes did to pages keep the protocol's duties?
//!
//! Read first: Keleher, Cox, Zwaenepoel, *Lazy Release Consistency for Software Distributed Shared Memory*, ISCA 1992 (intervals, write
//! notices), and Zhou, Iftode, Li, OSDI 1996 (homes).
//!
//! Nobody records the single accesses of an ordinary program. But each node records its page facts: what it let its program do with which
//! page, which intervals its frames hold, which intervals it closed and which it has seen. A run is right if the facts
//! fit together as the [`Axiom`]s of its protocol say. Each node's records are in the order in which things took effect there; between nodes
//! only messages, holds of locks, meetings and publications order anything, and no axiom rests on more.

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

/// A duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axiom {
    /// The k-th message that came from a node is the k-th that it sent there.
    Messages,
    /// A lock's holds follow each other: each turn is acquired once, after the one before it was released.
    Holds,
    /// Who gets a lock has seen all that its last holder had seen.
    HoldsTell,
    /// A meeting is left only when all nodes have come to it.
    Meetings,
    /// Who leaves a meeting has seen all that any node had seen when it came.
    MeetingsTell,
    /// Where a publication takes effect, all is seen that its sender had seen.
    PublicationsTell,
    /// A node's intervals are numbered 1, 2, 3, …, and nobody sees one that was not closed.
    Intervals,
    /// A page that a seen interval wrote may be read only where the frame holds that interval.
    Visibility,
    /// A frame holds what its home held when it sent the page: intervals that were closed and whose diffs were applied there, and
    /// all of the reader's own.
    Versions,
    /// The diffs of an interval are applied at their homes once, whole and in the writer's order.
    Diffs,
    /// While one node may write a page, no other may touch it.
    OneWriter,
    /// A frame is said to hold only intervals that were closed, and that wrote its page.
    Claims,
    /// The same where an interval makes several of one page (automatic update): only all of them together are the interval's.
    DiffsInPieces,
}

impl fmt::Display for Axiom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axiom::Messages => "messages arrive as they were sent",
            Axiom::Holds => "a lock's holds follow each other",
            Axiom::HoldsTell => "a lock brings what its last holder had seen",
            Axiom::Meetings => "nobody leaves a meeting before all have come",
            Axiom::MeetingsTell => "a meeting brings what everybody had seen",
            Axiom::PublicationsTell => "a publication brings what its sender had seen",
            Axiom::Intervals => "intervals are counted, and seen only when they were closed",
            Axiom::Visibility => "what a node may read holds every interval that it has seen",
            Axiom::Versions => "a frame holds what its home held",
            Axiom::Diffs | Axiom::DiffsInPieces => "diffs are applied once, whole and in order",
            Axiom::OneWriter => "who may write a page is the only one who may touch it",
            Axiom::Claims => "a frame holds what was written",
        })
    }
}

/// Eager release consistency. A release ends when its diffs are performed, so acquires tell of no intervals,
/// and pages have no versions: only what is synchronised can be judged by records of pages. What loads return
/// is judged byte by byte, in simulated runs and in litmus programs.
const ERC: &[Axiom] = &[Axiom::Messages, Axiom::Holds, Axiom::Meetings];

/// Home-based lazy release consistency.
const HLRC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Versions,
    Axiom::Diffs,
];

/// Sequential consistency: nothing is told, so that nobody need have seen anything.
const SC: &[Axiom] = &[Axiom::Messages, Axiom::Holds, Axiom::Meetings, Axiom::OneWriter];

/// Lazy release consistency whose diffs stay with their writers: any node's frame may be behind, and diffs come from anywhere.
const LRC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Claims,
];

/// Automatic update release consistency: as home-based LRC, but for diffs that leave before their interval ends.
const AURC: &[Axiom] = &[
    Axiom::Messages,
    Axiom::Holds,
    Axiom::HoldsTell,
    Axiom::Meetings,
    Axiom::MeetingsTell,
    Axiom::PublicationsTell,
    Axiom::Intervals,
    Axiom::Visibility,
    Axiom::Versions,
    Axiom::DiffsInPieces,
];

/// The axioms that runs of a protocol are held to.
pub fn axioms_of(protocol: Protocol) -> &'static [Axiom] {
    match protocol {
        Protocol::Sc => SC,
        Protocol::ErcInvalidate | Protocol::ErcUpdate => ERC,
        Protocol::Lrc => LRC,
        Protocol::Hlrc | Protocol::Adaptive => HLRC,
        Protocol::Aurc => AURC,
    }
}

/// What the judge must know of a run beside its records.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// What it is held to.
    pub axioms: &'a [Axiom],
    /// Nodes read pages from each other's frames, so no message tells when.
    pub one_sided: bool,
    /// Bytes of a granule.
    pub granule_bytes: u32,
    /// The names of message kinds, for explanations.
    pub message_kinds: &'a [String],
}

impl Rules<'_> {
    /// The rules of a simulated run of HLRC.
    pub fn hlrc(one_sided: bool) -> Rules<'static> {
        Rules { axioms: HLRC, one_sided, granule_bytes: GRANULE_BYTES, message_kinds: &[] }
    }

    /// The rules of a simulated run of a protocol whose nodes meet in messages only.
    pub fn of(protocol: Protocol) -> Rules<'static> {
        Rules { axioms: axioms_of(protocol), ..Rules::hlrc(false) }
    }

    /// The rules of a simulated run of lazy release consistency without homes.
    pub fn lrc() -> Rules<'static> {
        Rules { axioms: LRC, one_sided: false, granule_bytes: GRANULE_BYTES, message_kinds: &[] }
    }
}

impl Rules<'_> {
    /// The rules of a simulated run of AURC.
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

/// A duty that was neglected: a fault of Hiroba's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub axiom: Axiom,
    /// Where it shows.
    pub place: Place,
    /// Who wrote, who should have known, by which chain.
    pub explanation: String,
}

/// What the judge found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Breaches, the one with the shortest explanation first; at most [`EXPLAINED_MAX`].
    pub breaches: Vec<Breach>,
    /// How many there are in all.
    pub breaches_found: usize,
    /// What it has looked at.
    pub counts: Counts,
}

/// What the judge has looked at.
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
    /// Times that a node saw that an interval had written a page.
    pub notices: usize,
    /// Versions of frames that were compared with their homes'.
    pub versions: usize,
    /// Diffs that were applied.
    pub diffs: usize,
    /// Times that a node was given more access to a page, and that was held against all other nodes.
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

/// Judges a run.
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

/// How one node came to know of an interval of another, told backwards; see [`Watcher`].
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
