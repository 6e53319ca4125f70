//! A protocol that adapts to the program, page by page.
//!
//! Read first: Amza, Cox, Dwarkadas, Zwaenepoel, *Software DSM Protocols that Adapt between Single Writer
//! and Multiple Writer*, HPCA 1997. For the classes of pages Bennett, Carter, Zwaenepoel, *Adaptive
//! Software Cache Management for Distributed Shared Memory Architectures*, ISCA 1990.
//!
//! Tests: `check/tests/all/adaptive.rs`, and there `anticipation.rs`, `claims.rs`, `moves.rs` and
//! `golden.rs`.
//!
//! It is home-based lazy release consistency ([`crate::hlrc`]) in which every choice follows from
//! observation. A home-based protocol need not switch between single and multiple writer. A page *is*
//! single-writer if its writer is its home, which makes neither twins nor diffs, and sends no notices either
//! while no other node reads the page. For every other writer it is multiple-writer. So the choice between
//! the two is the choice of the home.
//!
//! | what happens to a page | how it shows | what is done | where |
//! |---|---|---|---|
//! | one node writes it | no other node has a notice of it at the next barrier | *single writer*: its writer becomes its home, and sends nothing | `moves/claims.rs` |
//! | many write disjoint parts | diffs of several nodes | *multiple writers*: a node that modifies more than all others together becomes its home; else it stays, or returns once to where its region places it | [`crate::home`], `moves.rs` |
//! | no other node has a copy | no requests | written without faults and notices (*exclusive*) | `hlrc.rs` |
//! | written in one phase, read in the next (producer and consumer) | the reader faults soon after a barrier has invalidated it | fetched at that barrier, with all others of its kind | `anticipation/habits.rs` |
//! | goes with a lock (migratory) | a fault after the lock's grant has invalidated it | fetched when the next grant comes | `anticipation/lock_pages.rs` |
//! | read in equal steps | faults at equal distances | windows of pages are fetched ahead | `anticipation/streams.rs` |
//!
//! Each of these is trusted only while it proves right: a move doubles the threshold for the next move of the
//! page, a page that its home and another node have both written in one period stays for some periods, and a
//! page that comes unrequested is put on trial from time to time.
//!
//! Why this is correct: none of this changes what a node may read or when. All nodes agree on the moves of
//! homes (`moves.rs` and `moves/claims.rs` argue why that is correct). A page that is fetched early is
//! fetched like any other.
//!
//! Deviations from the papers: single-writer pages have no ownership that is requested at the first
//! store, so no request is refused and no page returns to multiple-writer in the middle of a phase; homes
//! change only at barriers. Homes push no updates to readers (Monnerat, Bianchini, *Efficiently Adapting
//! to Sharing Patterns in Software DSMs*, HPCA 1998): a page that arrives while its reader computes wakes
//! a thread there, which costs more than a request made by a thread that waits at the barrier anyway.

use hiroba_base::NodeId;

use crate::hlrc::Hlrc;
use crate::home::HomePolicy;

/// Returns the protocol on a node that can read the frames of the nodes in `reached` itself.
pub fn adaptive(reached: impl IntoIterator<Item = NodeId>) -> Hlrc {
    let hlrc = Hlrc::new().reading_from(reached).moving_homes(HomePolicy::Modification);
    hlrc.claiming_homes().following_locks()
}
