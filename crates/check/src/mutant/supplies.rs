//! Planted bugs of pages that are sent ahead of a barrier.

use std::sync::Arc;

use hiroba_base::{NodeId, PageId};
use hiroba_protocol::{Effect, NewContent};
use hiroba_wire::{Limits, Message, PageCopy};
use rustc_hash::FxHashMap;

use super::wrongs::truncate_install;
use super::{Fate, Mutation};
use crate::program::GRANULE_BYTES;

/// The catalogue of planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A supply claims one interval of its home more than it contains.
    ClaimHomes,
    /// A supply also claims what its reader has written, so that the reader does not notice that its diff
    /// crossed it.
    ClaimReaders,
    /// A supply claims everything that any node has written.
    ClaimAll,
    /// A supply has the content of the previous one.
    StaleContent,
    /// A supply of several pages has them in another order.
    ExchangeContents,
    /// A page that came ahead is not installed.
    SkipInstall,
    /// Of pages that are installed together only the first is.
    TruncateInstall,
    /// A supply overwrites a page that its reader has written, instead of being merged.
    Overwrite,
    /// A page is sent before all of its home's changes: the second half of its content is zero.
    HalfContent,
    /// A supply is installed as it came, without the changes of its reader that have crossed it.
    ForgetOwn,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 10] = [
        Mutant::ClaimHomes,
        Mutant::ClaimReaders,
        Mutant::ClaimAll,
        Mutant::StaleContent,
        Mutant::ExchangeContents,
        Mutant::SkipInstall,
        Mutant::TruncateInstall,
        Mutant::Overwrite,
        Mutant::HalfContent,
        Mutant::ForgetOwn,
    ];

    /// Returns the bug, ready to be planted in a cluster.
    pub fn plant(self) -> Box<dyn Mutation> {
        Box::new(Planted { mutant: self, contents: FxHashMap::default() })
    }
}

struct Planted {
    mutant: Mutant,
    /// What was last sent ahead, of each page and to each reader.
    contents: FxHashMap<(NodeId, PageId), Vec<u8>>,
}

impl Planted {
    fn alter_versions(&self, from: NodeId, to: NodeId, copies: &mut [PageCopy], nodes: u16) {
        for PageCopy { version, .. } in copies {
            let mut claim = |node| version.advance(node, version.get(node) + 1);
            match self.mutant {
                Mutant::ClaimHomes => claim(from),
                Mutant::ClaimReaders => (0..3).for_each(|_| claim(to)),
                Mutant::ClaimAll => (0..3).for_each(|_| NodeId::all(nodes).for_each(&mut claim)),
                _ => {}
            }
        }
    }

    /// All pages are one granule long.
    fn alter_content(&mut self, to: NodeId, copies: &[PageCopy], content: &[u8]) -> Vec<u8> {
        let mut pages: Vec<Vec<u8>> = content.chunks(GRANULE_BYTES as usize).map(<[u8]>::to_vec).collect();
        let sent = copies.iter().filter(|copy| !copy.is_zero);
        for (copy, page) in sent.zip(&mut pages) {
            match self.mutant {
                Mutant::StaleContent => {
                    let before = self.contents.insert((to, copy.page), page.clone());
                    *page = before.unwrap_or_else(|| page.clone());
                }
                Mutant::ForgetOwn => _ = self.contents.insert((to, copy.page), page.clone()),
                Mutant::HalfContent => page[GRANULE_BYTES as usize / 2..].fill(0),
                _ => {}
            }
        }
        if self.mutant == Mutant::ExchangeContents {
            pages.reverse();
        }
        pages.concat()
    }
}

impl Mutation for Planted {
    fn on_effect(&mut self, node: NodeId, effect: Effect) -> Vec<Effect> {
        let Effect::Install { content: NewContent::Kept(..), merge, .. } = effect else {
            return vec![effect];
        };
        match (self.mutant, effect) {
            (Mutant::ForgetOwn, Effect::Install { pages, content, merge, fetched, prefetched }) => {
                let came: Option<Vec<&[u8]>> =
                    pages.iter().map(|page| self.contents.get(&(node, page)).map(Vec::as_slice)).collect();
                let content = came.map_or(content, |came| {
                    let bytes: Arc<[u8]> = came.concat().into();
                    let range = 0..bytes.len();
                    NewContent::Kept(bytes, range)
                });
                vec![Effect::Install { pages, content, merge, fetched, prefetched }]
            }
            (Mutant::SkipInstall, _) if !merge => Vec::new(),
            (Mutant::TruncateInstall, effect) => vec![truncate_install(effect)],
            (Mutant::Overwrite, Effect::Install { pages, content, fetched, prefetched, .. }) => {
                vec![Effect::Install { pages, content, merge: false, fetched, prefetched }]
            }
            (_, effect) => vec![effect],
        }
    }

    fn on_message(&mut self, from: NodeId, to: NodeId, message: &Message<'_>, limits: &Limits) -> Fate {
        let Message::PagesSupplied { ahead_of, copies, content } = message else { return Fate::Sent };
        let content = self.alter_content(to, copies, content);
        let mut copies = copies.clone();
        self.alter_versions(from, to, &mut copies, limits.nodes);
        Fate::altered(&Message::PagesSupplied { ahead_of: *ahead_of, copies, content: &content })
    }
}
