//! Errors that planted bugs of several protocols make.

use hiroba_base::{Access, NodeId, PageId, PageSet};
use hiroba_protocol::{Effect, NewContent};
use hiroba_wire::{AtomicOperation, Knowledge, Limits};
use rustc_hash::FxHashMap;

use crate::program::GRANULE_BYTES;

/// Limits for code that sees only an engine's effects: with these, pages and versions can be decoded, which
/// suffices.
pub(super) const WIDE_LIMITS: Limits =
    Limits { nodes: u16::MAX, region_granules: u64::MAX, granule_bytes: GRANULE_BYTES };

/// The content of each page when it was first sent.
#[derive(Default)]
pub(super) struct FirstContents(FxHashMap<PageId, Option<Vec<u8>>>);

impl FirstContents {
    /// Returns that content instead of the present one.
    pub(super) fn instead_of(&mut self, page: PageId, content: Option<&[u8]>) -> Option<Vec<u8>> {
        self.0.entry(page).or_insert_with(|| content.map(<[u8]>::to_vec)).clone()
    }
}

/// What each node's granules allow, according to the effects so far.
#[derive(Default)]
pub(super) struct Rights(FxHashMap<(NodeId, PageId), Access>);

impl Rights {
    /// Returns true if the effect takes write access away and leaves read access; records what it gives and
    /// takes.
    pub(super) fn lowers(&mut self, node: NodeId, effect: &Effect) -> bool {
        let (granules, access) = match effect {
            Effect::Protect { pages, access } => (*pages, *access),
            Effect::Invalidate { span, .. } => (*span, Access::None),
            _ => return false,
        };
        granules.iter().fold(false, |lowers, granule| {
            let before = self.0.insert((node, granule), access);
            lowers || before == Some(Access::Write) && access == Access::Read
        })
    }
}

/// Diffs that each node has yet to apply.
#[derive(Default)]
pub(super) struct Unapplied(FxHashMap<NodeId, Vec<Effect>>);

impl Unapplied {
    /// Defers an application until the node does something else; then returns that, and what was deferred
    /// before it.
    pub(super) fn keep_back(&mut self, node: NodeId, effect: Effect) -> Option<(Vec<Effect>, Effect)> {
        let unapplied = self.0.entry(node).or_default();
        if matches!(effect, Effect::Apply { .. }) {
            unapplied.push(effect);
            return None;
        }
        Some((std::mem::take(unapplied), effect))
    }
}

/// Carries out an atomic addition twice.
pub(super) fn add_twice(effect: Effect) -> Effect {
    match effect {
        Effect::Atomic { page, offset, operation: AtomicOperation::FetchAdd(delta) } => {
            Effect::Atomic { page, offset, operation: AtomicOperation::FetchAdd(delta.wrapping_mul(2)) }
        }
        other => other,
    }
}

/// Installs only the first granule of what arrives together.
pub(super) fn truncate_install(effect: Effect) -> Effect {
    match effect {
        Effect::Install { mut pages, mut content, merge, fetched, prefetched } if pages.count > 1 => {
            pages.count = 1;
            if let NewContent::Received(range) | NewContent::Kept(_, range) = &mut content {
                range.end = range.start + GRANULE_BYTES as usize;
            }
            Effect::Install { pages, content, merge, fetched, prefetched }
        }
        other => other,
    }
}

pub(super) fn without_last(mut granules: PageSet) -> PageSet {
    let last = granules.iter().last();
    last.map(|granule| granules.remove(granule));
    granules
}

/// Removes the last page from the last write notice.
pub(super) fn without_last_page(mut knowledge: Knowledge) -> Knowledge {
    if let Some(notice) = knowledge.notices.last_mut() {
        notice.pages = without_last(std::mem::take(&mut notice.pages));
    }
    knowledge.notices.retain(|notice| !notice.pages.is_empty());
    knowledge
}

/// Returns runs that cover everything between the first and the last changed byte.
pub(super) fn joined(frame: &[u8], twin: &[u8]) -> Vec<u8> {
    let differs = |index: &usize| frame[*index] != twin[*index];
    let (Some(first), Some(last)) = ((0..frame.len()).find(differs), (0..frame.len()).rev().find(differs))
    else {
        return Vec::new();
    };
    // A run is made by encoding a page that differs from another one in exactly these bytes.
    let other: Vec<u8> = frame
        .iter()
        .enumerate()
        .map(|(index, byte)| if (first..=last).contains(&index) { !byte } else { *byte })
        .collect();
    let mut runs = Vec::new();
    hiroba_protocol::diff::encode(frame, &other, &mut runs);
    runs
}
