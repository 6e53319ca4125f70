//! Messages about pages that move to other homes.

use hiroba_base::{NodeId, PageId, PageSet, VersionVector};
use serde::{Deserialize, Serialize};

use crate::{Limits, WireError};

/// The maximum number of pages that one home gives to others at one collective.
pub const MOVES_PER_HOME_MAX: u64 = 4096;

/// Pages that move to another home, or stay at theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeMoves {
    /// The new home.
    pub to: NodeId,
    /// The pages.
    pub pages: PageSet,
    /// Who requests the move.
    pub kind: MoveKind,
}

/// Who requests that pages move to another home, or stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MoveKind {
    /// Their home gives them away.
    Given,
    /// The new home has written them, and claims them: they move if no other node has written them.
    Claimed,
    /// Their home keeps them for good: no node may claim them. An empty set: it gives nothing away at this
    /// collective.
    Kept,
    /// They are still on their way to this home from earlier moves, so no node may claim them.
    Coming,
}

/// Pages of which a node holds the same version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesHeld {
    /// The intervals that their frames contain.
    pub version: VersionVector,
    /// The pages.
    pub pages: PageSet,
}

/// What the new home must know about a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageHandedOver {
    /// The page.
    pub page: PageId,
    /// The intervals that the last home's frame contained.
    pub version: VersionVector,
    /// How many times it has moved, including this move.
    pub moves: u32,
    /// The receiver's frame lacks part of it, so its content has been sent.
    pub is_sent: bool,
    /// Threads have operated on atomic words in it.
    pub has_words: bool,
    /// The number of operations on each atomic word, by its byte offset; only while the run is traced.
    pub turns: Vec<(u32, u64)>,
}

impl Limits {
    fn within_moves(pages: u64, most: u64) -> Result<(), WireError> {
        Self::within("pages that move", "no more than each home may give away at once", pages, pages <= most)
    }

    pub(crate) fn moves(&self, moves: &[HomeMoves]) -> Result<(), WireError> {
        let mut pages = 0u64;
        for HomeMoves { to, pages: moved, .. } in moves {
            self.node(*to)?;
            self.pages("page ranges of a move", moved)?;
            pages = pages.saturating_add(moved.len());
        }
        // Those of this collective, and those that are on their way from earlier ones.
        Self::within_moves(pages, 2 * MOVES_PER_HOME_MAX * u64::from(self.nodes))
    }

    pub(crate) fn held(&self, held: &[PagesHeld]) -> Result<(), WireError> {
        let mut pages = 0u64;
        for PagesHeld { version, pages: held } in held {
            self.version(version)?;
            self.pages("page ranges of a move", held)?;
            pages = pages.saturating_add(held.len());
        }
        Self::within_moves(pages, MOVES_PER_HOME_MAX)
    }

    pub(crate) fn handed_over(&self, pages: &[PageHandedOver]) -> Result<(), WireError> {
        for page in pages {
            self.page(page.page)?;
            self.version(&page.version)?;
            page.turns.iter().try_for_each(|(offset, _)| self.word(*offset))?;
        }
        Self::within_moves(pages.len() as u64, MOVES_PER_HOME_MAX)
    }
}
