//! A protocol that adapts itself, page by page, to what the program does.
//!
//! Read first: Amza, Cox, Dwarkadas, Zwaenepoel, *Software DSM Protocols that Adapt between Single Writer and Multiple Writer*, HPCA 1997;
//! Monnerat, Bianchini, *Efficiently Adapting to Sharing Patterns in Software DSMs*, HPCA 1998. For the classes of pages Bennett, Carter, Zwaenepoel,
//! *Adaptive Software Cache Management for Distributed Shared Memory Architectures*, ISCA 1990.
//!
//! Tests: `check/tests/all/adaptive.rs`, and there `claims.rs`, `supplies.rs`, `moves.rs` and `golden.rs`.
//!
//! It is home-based lazy release consistency ([`crate::hlrc`]) in which everything that may be chosen follows from what was seen. A
//! home-based protocol need not change over between single and multiple writer: a page *is* single-writer where its writer is its home, who
//! makes neither twins nor diffs, and, while nobody else reads it, sends no notices either; for every other writer it is
//! multiple-writer. So the choice between the two is the choice of the home. The choice between invalidation and update is each reader's own, of
//! each page: who reads a page whenever it has changed orders it.
//!
//! | what happens to a page | how it shows | what is done | where |
//! |---|---|---|---|
//! | one node writes it | no other node has a notice of it at the barrier behind | *single writer*: its writer becomes its home, and sends nothing | `hlrc/claims.rs` |
//! | many write disjoint parts | diffs of several nodes | *multiple writers*: who modifies more than all others together becomes its home; else it stays | [`crate::home`], `hlrc/moves.rs` |
//! | nobody else holds it | no requests | written without faults and notices (*exclusive*) | `hlrc.rs` |
//! | written in one phase, read in the next (producer and consumer) | the reader faults soon after a barrier has invalidated it | *invalidate* at first: fetched at that barrier, with all others of its kind | `anticipation/habits.rs` |
//! | the same, on and on | that habit proves right | *update*: its home sends it to this reader ahead of each barrier at which it has changed, until a trial shows that it was not read | `anticipation/supplies.rs` |
//! | goes with a lock (migratory) | a fault after the lock's grant has invalidated it | fetched when the next grant comes; then sent ahead of the lock, where its home hands that over | `anticipation/lock_pages.rs` |
//! | read on and on, in equal steps | faults at equal distances | windows of pages are fetched ahead | `anticipation/streams.rs` |
//!
//! All of these are believed only as long as they hold: a move doubles what the next one of the page takes, and what comes unasked must be
//! touched on trial from time to time.
//!
//! Why it is right: none of this changes what a node may read or when. Homes move by an agreement of all
//! (`hlrc/moves.rs` and `hlrc/claims.rs` argue that), a page that is fetched early is fetched like any other,
//! and one that was sent ahead has a version and is taken only if a fetch would bring no more.
//!
//! Deviations from the papers: single-writer pages have no ownership that is asked for at the first store, so nothing is refused and no
//! page falls back to multiple-writer in the middle of a phase; homes change at barriers only. An update is the whole page, not a diff, and comes from the page's home alone: a
//! reader that had it from another writer could change it again, and its diff overtake that writer's on the way to the home.

use hiroba_base::NodeId;

use crate::hlrc::Hlrc;
use crate::home::HomePolicy;

/// The protocol on a node that can read the frames of the nodes in `reached` itself.
pub fn adaptive(reached: impl IntoIterator<Item = NodeId>) -> Hlrc {
    let hlrc = Hlrc::new().reading_from(reached).moving_homes(HomePolicy::Modification);
    hlrc.claiming_homes().following_locks().supplying_readers()
}
