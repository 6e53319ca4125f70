//! Describes the messages and actions of nodes: one line for each message or effect, for a reader who has the
//! paper at hand.

use core::cell::RefCell;
use core::fmt::Display;
use std::collections::BTreeMap;
use std::rc::Rc;

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet, VectorTimestamp, VersionVector};
use hiroba_protocol::{Effect, NewContent, Outcome};
use hiroba_wire::{
    AtomicOperation, Collective, Contribution, HomeMoves, Knowledge, Limits, Message, MoveKind, PageDiff,
    PageOwned,
};

use crate::program::{Address, Instruction, Register};

/// The rows of the state table that pages are in.
pub(crate) type PageStates = BTreeMap<PageId, &'static str>;

/// Collects lines.
#[derive(Clone, Debug, Default)]
pub struct Narration(Rc<RefCell<Vec<String>>>);

impl Narration {
    /// Returns the lines since the last call.
    pub fn take(&self) -> Vec<String> {
        self.0.take()
    }

    fn say(&self, line: String) {
        self.0.borrow_mut().push(line);
    }

    /// Describes a message that is sent.
    pub(crate) fn sends(&self, from: NodeId, to: NodeId, bytes: &[u8], limits: &Limits) {
        let said = match Message::decode(bytes, limits) {
            Ok(message) => describe_message(&message),
            Err(error) => format!("{} bytes: {error}", bytes.len()),
        };
        self.say(format!("node {from} → node {to}  {said}"));
    }

    /// Describes pages that are in other rows of their protocol's state table than before.
    pub(crate) fn changes_states(&self, node: NodeId, before: &PageStates, after: &PageStates) {
        for (page, state) in after {
            match before.get(page) {
                Some(was) if was == state => {}
                Some(was) => self.say(format!("node {node}           {page}: {was} ⇒ {state}")),
                None => self.say(format!("node {node}           {page}: {state}")),
            }
        }
    }

    /// Describes an effect that is about to be carried out.
    pub(crate) fn carries_out(&self, node: NodeId, effect: &Effect) {
        if let Some(line) = describe_effect(effect) {
            self.say(format!("node {node}           {line}"));
        }
    }
}

fn listed<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<String>>().join(", ")
}

fn pages_of(pages: &PageSet) -> String {
    if pages.is_empty() { "nothing".to_owned() } else { listed(pages.iter()) }
}

fn range_of(pages: &PageRange) -> String {
    if pages.count == 1 {
        pages.first.to_string()
    } else {
        format!("{} and {} more", pages.first, pages.count - 1)
    }
}

/// Formats intervals as `node:number`.
fn version_of(version: &VersionVector) -> String {
    let entries = version.entries().iter().map(|(node, seq)| format!("{node}:{seq}"));
    if version.is_empty() { "nothing".to_owned() } else { listed(entries) }
}

fn seen(timestamp: &VectorTimestamp) -> String {
    let entries = NodeId::all(timestamp.nodes() as u16).map(|node| timestamp.get(node));
    format!("[{}]", listed(entries))
}

fn told(knowledge: &Knowledge) -> String {
    let notices = knowledge
        .notices
        .iter()
        .map(|notice| format!("{}:{} wrote {}", notice.node, notice.seq, pages_of(&notice.pages)));
    let notices = if knowledge.notices.is_empty() { "no notices".to_owned() } else { listed(notices) };
    format!("seen {}, {notices}", seen(&knowledge.timestamp))
}

fn diffs_of(diffs: &[PageDiff<'_>]) -> String {
    listed(diffs.iter().map(|diff| format!("{} ({} bytes of runs)", diff.page, diff.runs.len())))
}

fn moving(moves: &[HomeMoves]) -> String {
    let each = moves.iter().map(|moves| {
        let (pages, to) = (pages_of(&moves.pages), moves.to);
        match moves.kind {
            MoveKind::Given => format!(", {pages} to node {to}"),
            MoveKind::Claimed => format!(", {pages} claimed by node {to}"),
            MoveKind::Kept if moves.pages.is_empty() => format!(", node {to} gives nothing"),
            MoveKind::Kept => format!(", {pages} kept by node {to}"),
            MoveKind::Coming => format!(", {pages} on the way to node {to}"),
        }
    });
    each.collect()
}

fn contributed(contributions: &[Contribution<'_>]) -> String {
    let each = contributions.iter().map(|one| format!(", {} bytes of node {}", one.bytes.len(), one.node));
    each.collect()
}

fn operation_of(operation: AtomicOperation) -> String {
    match operation {
        AtomicOperation::Load => "load".to_owned(),
        AtomicOperation::Store(value) => format!("store {value}"),
        AtomicOperation::FetchAdd(delta) => format!("add {delta}"),
        AtomicOperation::CompareExchange { expected, desired } => {
            format!("{desired} instead of {expected}")
        }
    }
}

/// Describes a message in a line: its kind and its important fields. Kinds without a line of their own are
/// printed as they are.
pub fn describe_message(message: &Message<'_>) -> String {
    match message {
        Message::PageRequest { page, needed } => {
            format!("PageRequest {page}, needs {}", version_of(needed))
        }
        Message::PagesReply { copies, .. } => {
            let copies = copies.iter().map(|copy| {
                let content = if copy.is_zero { " (zero)" } else { "" };
                let version = if copy.version.is_empty() {
                    String::new()
                } else {
                    format!(" holding {}", version_of(&copy.version))
                };
                format!("{}{content}{version}", copy.page)
            });
            format!("PagesReply {}", listed(copies))
        }
        Message::Diffs { seq, diffs, .. } => format!("Diffs of interval {seq}: {}", diffs_of(diffs)),
        Message::EarlyDiffs { seq, diffs } => format!("EarlyDiffs of interval {seq}: {}", diffs_of(diffs)),
        Message::EagerDiffs { writer, diffs } => format!("EagerDiffs of node {writer}: {}", diffs_of(diffs)),
        Message::DiffsPerformed { count, .. } => format!("DiffsPerformed, {count}"),
        Message::InvalidateCopies { pages, .. } => format!("InvalidateCopies {}", pages_of(pages)),
        Message::UpdateCopies { diffs, .. } => format!("UpdateCopies: {}", diffs_of(diffs)),
        Message::CopiesSettled { left, .. } if left.is_empty() => "CopiesSettled".to_owned(),
        Message::CopiesSettled { left, .. } => format!("CopiesSettled, {} given up", pages_of(left)),
        Message::HomeMovesHeard { held, .. } => {
            let held = held
                .iter()
                .map(|held| format!("{} holds {}", pages_of(&held.pages), version_of(&held.version)));
            format!("HomeMovesHeard {}", listed(held)).trim_end().to_owned()
        }
        Message::HomeHandedOver { pages, .. } => {
            let pages = pages.iter().map(|handed| {
                let content = if handed.is_sent { ", with its content" } else { "" };
                format!("{} holding {}{content}", handed.page, version_of(&handed.version))
            });
            format!("HomeHandedOver {}", listed(pages))
        }
        Message::LockRequest { lock, timestamp } => {
            format!("LockRequest {}, seen {}", lock.0, seen(timestamp))
        }
        Message::LockForward { lock, requester, .. } => {
            format!("LockForward {} to node {requester} next", lock.0)
        }
        Message::LockGrant { lock, knowledge, .. } => format!("LockGrant {}, {}", lock.0, told(knowledge)),
        Message::Arrive { knowledge, moves, contributions, .. } => {
            format!("Arrive, {}{}{}", told(knowledge), moving(moves), contributed(contributions))
        }
        Message::Depart { knowledge, moves, .. } => format!("Depart, {}{}", told(knowledge), moving(moves)),
        Message::AtomicRequest { page, offset, operation, needed, .. } => {
            let operation = operation_of(*operation);
            format!("AtomicRequest {page} byte {offset}: {operation}, needs {}", version_of(needed))
        }
        Message::AtomicReply { outcome, .. } => {
            format!("AtomicReply: found {}, left {}", outcome.previous, outcome.current)
        }
        Message::CopyRequest { page, requester } => format!("CopyRequest {page} for node {requester}"),
        Message::CopiesRequest { pages, requester } => {
            format!("CopiesRequest {} for node {requester}", pages_of(pages))
        }
        Message::OwnershipRequest { pages } => format!("OwnershipRequest {}", pages_of(pages)),
        Message::OwnershipForward { pages, requester } => {
            format!("OwnershipForward {} to node {requester} next", pages_of(pages))
        }
        Message::Place { first, count } => {
            format!("Place {}", range_of(&PageRange { first: *first, count: *count }))
        }
        Message::Placed { first } => format!("Placed {first}"),
        Message::KeepHomes { epoch } => format!("KeepHomes of collective {epoch}"),
        Message::HomesKept { epoch } => format!("HomesKept of collective {epoch}"),
        Message::Ownership { pages } => {
            let of = |owned: &PageOwned| format!("{}, copies at [{}]", owned.page, listed(&owned.copyset));
            format!("Ownership {}", pages.iter().map(of).collect::<Vec<_>>().join("; "))
        }
        Message::InvalidateCopy { pages, are_lent } => {
            format!("InvalidateCopy {}{}", pages_of(pages), if *are_lent { ", lent" } else { "" })
        }
        Message::CopyInvalidated { pages } => format!("CopyInvalidated {}", pages_of(pages)),
        Message::ConversionRequest { page } => format!("ConversionRequest {page}"),
        Message::Convert { pages } => format!("Convert {}", pages_of(pages)),
        Message::Converted { pages } => format!("Converted {}", pages_of(pages)),
        Message::DiffsRequest { page, after, through } => {
            format!("DiffsRequest {page}, intervals {} to {through}", after + 1)
        }
        Message::DiffsReply { page, diffs, .. } => {
            let diffs = diffs.iter().map(|diff| {
                format!("{} at {} ({} bytes of runs)", diff.seq, version_of(&diff.version), diff.runs.len())
            });
            format!("DiffsReply {page}, intervals {}", listed(diffs))
        }
        other => format!("{other:?}"),
    }
}

fn allowed(access: Access) -> &'static str {
    match access {
        Access::None => "may not be touched",
        Access::Read => "may be read",
        Access::Write => "may be written",
    }
}

/// Describes an effect in a line; `None` if the line of the message suffices.
pub fn describe_effect(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Send { .. } | Effect::SendPages { .. } | Effect::SendTwin { .. } | Effect::Tell(_) => {
            return None;
        }
        Effect::Protect { pages, access } => format!("{} {}", range_of(pages), allowed(*access)),
        Effect::Invalidate { span, .. } => format!("{} {}", range_of(span), allowed(Access::None)),
        Effect::Watch { pages } => format!("{} may be written and is watched", range_of(pages)),
        Effect::MapHome { pages, home } => format!("{} mapped onto node {home}'s frames", range_of(pages)),
        Effect::MakeRoom { pages } => format!("{} is about to be filled", range_of(pages)),
        Effect::GiveUp { pages } => format!("{} leaves the memory", range_of(pages)),
        Effect::PageOut { pages } => format!("{} leaves the memory for the disk", range_of(pages)),
        Effect::Unwatch { pages } => format!("{} is not watched any more", range_of(pages)),
        Effect::CollectWritten => "what was written?".to_owned(),
        Effect::FindUnwritten { .. } => "what of it was not written?".to_owned(),
        Effect::IntervalEnded { seq, .. } => format!("interval {seq} has ended"),
        Effect::DropTwin { page } | Effect::DropSnapshot { page } => format!("twin of {page} dropped"),
        Effect::Twin { page, .. } => format!("twin of {page}"),
        Effect::Diff { page, keep_twin } => {
            format!("diff of {page}{}", if *keep_twin { ", twin kept" } else { "" })
        }
        Effect::Apply { page, .. } => format!("diff applied to {page}"),
        Effect::Install { pages, content, merge, .. } => {
            let zero = if *content == NewContent::Zero { " as zeros" } else { "" };
            format!("{} {}{zero}", range_of(pages), if *merge { "merged" } else { "installed" })
        }
        Effect::Patch { page, offset, value } => format!("{page} byte {offset} patched to {value}"),
        Effect::Atomic { page, offset, operation } => {
            format!("{page} byte {offset}: {}", operation_of(*operation))
        }
        Effect::CountConversion { page } => format!("{page} is under sequential consistency now"),
        Effect::CountMove { page } => format!("{page} lives here now"),
        Effect::DiffEarly { page } => format!("early diff of {page}, twin kept"),
        Effect::Retain { page } => format!("{page} held for a moment"),
        Effect::Wake { waiter, outcome: Outcome::Done | Outcome::Collective(_) } => {
            format!("thread {} goes on", waiter.0)
        }
        Effect::Wake { waiter, outcome } => format!("thread {} goes on: {outcome:?}", waiter.0),
        Effect::Fatal { sentence } => format!("the job ends: {sentence}"),
        other => format!("{other:?}"),
    })
}

/// Describes an instruction as a paper would write it.
pub fn describe_instruction(instruction: &Instruction) -> String {
    let register = |register: &Register| format!("r{}", register.0);
    match instruction {
        Instruction::Store { at, value, .. } => format!("{at} := {value}"),
        Instruction::StoreFrom { at, from } => format!("{at} := {}", register(from)),
        Instruction::Load { at, into, .. } => format!("{} := {at}", register(into)),
        Instruction::Lock(lock) => format!("acquire lock {}", lock.0),
        Instruction::Unlock(lock) => format!("release lock {}", lock.0),
        Instruction::Collective(Collective::Barrier) => "barrier".to_owned(),
        Instruction::Atomic { at: Address { granule, offset }, operation, into } => {
            format!("{} := {granule} byte {offset}, atomic {}", register(into), operation_of(*operation))
        }
        other => format!("{other:?}"),
    }
}
