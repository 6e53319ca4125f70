//! Telling what has taken effect ([`Fact`]), when somebody keeps a record.

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

use super::Hlrc;
use crate::{Effect, Fact};

/// What is counted for the record alone.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// Somebody keeps a record.
    is_on: bool,
    /// How many operations there were on each atomic word homed here, by page and offset. As many as the program has such words.
    atomic_turns: FxHashMap<(PageId, u32), u64>,
}

impl Hlrc {
    /// Has the engine tell what takes effect: [`Effect::Tell`].
    pub fn telling(mut self) -> Hlrc {
        self.telling.is_on = true;
        self
    }

    pub(super) fn tells(&self) -> bool {
        self.telling.is_on
    }

    pub(super) fn tell(&mut self, fact: impl FnOnce(&Hlrc) -> Option<Fact>) {
        if self.telling.is_on {
            let fact = fact(self);
            self.out.extend(fact.map(Effect::Tell));
        }
    }

    /// The number of the operation on an atomic word that has just been carried out; 0 for all when nobody keeps a record.
    pub(super) fn count_atomic(&mut self, page: PageId, offset: u32) -> u64 {
        if !self.telling.is_on {
            return 0;
        }
        let next = self.telling.atomic_turns.entry((page, offset)).or_default();
        *next += 1;
        *next - 1
    }
}
