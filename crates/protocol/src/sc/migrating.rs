//! Pages that move from node to node with those that read and then write them.
//!
//! Read first: Cox, Fowler, *Adaptive Cache Coherency for Detecting Migratory Shared Data*, ISCA 1993;
//! Stenström, Brorsson, Sandberg, *An Adaptive Cache Coherence Protocol Optimized for Migratory Sharing*,
//! the same year.
//!
//! What a lock protects is mostly read and then written, by one node after the other. Each of them requests a
//! copy at its load, and then the page at its store. Requesting the page at the load saves the second request
//! and the invalidation of the first copy.
//!
//! In those papers the directory sees the pattern. Here each node sees its own part of it: it had a copy
//! that a thread had loaded from, and a thread stored to the page before the copy was invalidated. When
//! this happens [`ROUNDS_MIN`] times in a row, the next loads request the page, and then one requests a
//! copy again, to see whether the pattern still holds: after 2 loads at first, and after up to
//! [`LOADS_MAX`] if it held each time. When it does not hold, nothing is known any more.
//!
//! **Why this is correct.** A load that requests the page is a store that changes nothing, followed by the
//! load.

/// The number of times in a row that a copy must have been written before loads request the page.
const ROUNDS_MIN: u8 = 2;

/// The maximum number of loads that request the page before one requests a copy.
const LOADS_MAX: u8 = 32;

/// What a node knows of its own use of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Migration {
    /// The number of times in a row that the copy that was looked at was written.
    rounds: u8,
    /// The number of loads that still request the page.
    loads_left: u8,
    /// True if a load has requested the copy that is here, or on its way, and no store has followed.
    awaits_store: bool,
}

impl Migration {
    /// Notes a load from an absent page. Returns true if it should request the page instead of a copy.
    pub(super) fn note_load(&mut self) -> bool {
        if let Some(left) = self.loads_left.checked_sub(1) {
            self.loads_left = left;
            return true;
        }
        self.awaits_store = true;
        false
    }

    /// Notes a store to a copy.
    pub(super) fn note_store(&mut self) {
        if std::mem::take(&mut self.awaits_store) {
            self.rounds = self.rounds.saturating_add(1);
            if let Some(doublings) = self.rounds.checked_sub(ROUNDS_MIN) {
                self.loads_left =
                    2u8.checked_shl(doublings.into()).map_or(LOADS_MAX, |left| left.min(LOADS_MAX));
            }
        }
    }

    /// Notes that the copy is given up.
    pub(super) fn note_gone(&mut self) {
        if std::mem::take(&mut self.awaits_store) {
            *self = Migration::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(migration: &mut Migration, stores: bool) -> bool {
        let takes = migration.note_load();
        if stores {
            migration.note_store();
        }
        migration.note_gone();
        takes
    }

    #[test]
    fn pages_that_are_read_and_written_are_taken_at_the_load() {
        let mut migration = Migration::default();
        let taken: Vec<bool> = (0..200).map(|_| round(&mut migration, true)).collect();
        assert_eq!(taken[..10], [false, false, true, true, false, true, true, true, true, false]);
        let looked = taken[100..].iter().filter(|takes| !**takes).count();
        assert!((2..=4).contains(&looked), "one of 33 loads looks, here {looked} of 100");
    }

    #[test]
    fn pages_that_are_only_read_are_copied() {
        let mut migration = Migration::default();
        assert!(!(0..100).any(|_| round(&mut migration, false)));
        assert!(!(0..100).any(|number| round(&mut migration, number % 2 == 0)), "not twice in a row");
        (0..100).for_each(|_| _ = round(&mut migration, true));
        let taken = (0..100).filter(|_| round(&mut migration, false)).count();
        assert!(taken <= usize::from(LOADS_MAX), "{taken} loads took what they did not need");
    }
}
