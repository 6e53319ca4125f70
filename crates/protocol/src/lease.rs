//! Leases of locks: threads take and give back a lock that is on their node, without the engine.
//!
//! A lock that no other node wants needs no engine: its holds change nothing but who holds it. So the engine
//! *leases* a lock that becomes idle here to the node's threads, through a word of memory. A thread takes and
//! gives back a leased lock by one atomic instruction each. The engine ends the lease before it looks at the
//! lock for any reason, such as another node's request or a thread here that must wait, and learns then how
//! many holds there were and who holds the lock. It goes on as if it had made these holds itself.
//!
//! | word | meaning |
//! |---|---|
//! | another lock, or none | the engine decides |
//! | this lock, free | any thread here may take it |
//! | this lock, a holder | this thread may give it back |
//!
//! The engine alone puts locks into words and takes them out; threads change the rest.

use std::sync::atomic::{AtomicU64, Ordering};

use hiroba_base::LockId;

use crate::Waiter;

/// The number of locks that may be leased at a time. Locks that share a word take turns.
const WORDS: usize = 4096;

/// Bits of a word: a thread, the number of holds, the lock.
const STATE_BITS: u32 = 12;
const HOLDS_BITS: u32 = 20;
const LOCK_SHIFT: u32 = STATE_BITS + HOLDS_BITS;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const HOLDS_MAX: u64 = (1 << HOLDS_BITS) - 1;
const ONE_HOLD: u64 = 1 << STATE_BITS;

/// States of a word; a greater one is a holder's.
const NOT_LEASED: u64 = 0;
const FREE: u64 = 1;
const HELD: u64 = 2;
/// The number of waiters that can hold leased locks.
const WAITERS_MAX: u64 = STATE_MASK - HELD;

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The number of holds that have begun.
    pub holds: u64,
    /// The thread that holds the lock.
    pub holder: Option<Waiter>,
}

/// The answer to a thread that tries to take a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The thread holds it now.
    Yes,
    /// A thread of this node holds it.
    Held,
    /// The engine must be asked.
    AskEngine,
}

/// The leases of a node, which its engine and its threads share.
#[derive(Debug)]
pub struct Leases {
    words: Box<[AtomicU64]>,
    /// The number of holds of leases that have ended.
    past_holds: AtomicU64,
}

impl Default for Leases {
    fn default() -> Leases {
        Leases {
            words: (0..WORDS).map(|_| AtomicU64::new(NOT_LEASED)).collect(),
            past_holds: AtomicU64::new(0),
        }
    }
}

fn lock_of(word: u64) -> LockId {
    LockId((word >> LOCK_SHIFT) as u32)
}

fn holds_of(word: u64) -> u64 {
    word >> STATE_BITS & HOLDS_MAX
}

fn holder_of(word: u64) -> Option<Waiter> {
    (word & STATE_MASK).checked_sub(HELD).map(|waiter| Waiter(waiter as u32))
}

impl Leases {
    fn word(&self, lock: LockId) -> &AtomicU64 {
        &self.words[lock.0 as usize % WORDS]
    }

    /// Takes a lock for a thread of this node, if it is leased and free.
    #[inline]
    pub fn take(&self, lock: LockId, waiter: Waiter) -> Taken {
        let word = self.word(lock);
        let before = word.load(Ordering::Relaxed);
        if lock_of(before) != lock {
            return Taken::AskEngine;
        }
        match before & STATE_MASK {
            NOT_LEASED => Taken::AskEngine,
            FREE if holds_of(before) < HOLDS_MAX && u64::from(waiter.0) <= WAITERS_MAX => {
                let after = before - FREE + HELD + u64::from(waiter.0) + ONE_HOLD;
                // SYNC POINT: pairs with `give_back`: this hold sees what the one before has stored.
                match word.compare_exchange(before, after, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => Taken::Yes,
                    Err(_) => Taken::AskEngine,
                }
            }
            FREE => Taken::AskEngine,
            _ => Taken::Held,
        }
    }

    /// Gives back a lock that the thread has taken under its present lease. Returns false if there is none:
    /// the engine must be asked.
    #[inline]
    pub fn give_back(&self, lock: LockId, waiter: Waiter) -> bool {
        let word = self.word(lock);
        let before = word.load(Ordering::Relaxed);
        if lock_of(before) != lock || holder_of(before) != Some(waiter) {
            return false;
        }
        let after = before & !STATE_MASK | FREE;
        // SYNC POINT: pairs with `take` and with `end`, behind which the hold's stores are sent.
        word.compare_exchange(before, after, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Leases a lock, which is idle. Only the engine does this. Returns the lock whose lease had to end for
    /// that, and what became of it.
    pub fn begin(&self, lock: LockId) -> Option<(LockId, Leased)> {
        let word = self.word(lock);
        let other = word.load(Ordering::Relaxed);
        let is_leased = other & STATE_MASK != NOT_LEASED;
        let ended = is_leased.then(|| lock_of(other)).and_then(|other| Some((other, self.end(other)?)));
        word.store(u64::from(lock.0) << LOCK_SHIFT | FREE, Ordering::Release);
        ended
    }

    /// Ends the lease of a lock, if it is leased. Only the engine does this.
    pub fn end(&self, lock: LockId) -> Option<Leased> {
        let word = self.word(lock);
        let seen = word.load(Ordering::Relaxed);
        if lock_of(seen) != lock || seen & STATE_MASK == NOT_LEASED {
            return None;
        }
        // SYNC POINT: pairs with `give_back`. Threads may have changed the word, but not its lock.
        let last = word.swap(NOT_LEASED, Ordering::AcqRel);
        let leased = Leased { holds: holds_of(last), holder: holder_of(last) };
        self.past_holds.fetch_add(leased.holds, Ordering::Relaxed);
        Some(leased)
    }

    /// Returns the locks that are leased now, with their holders.
    pub(crate) fn leased(&self) -> impl Iterator<Item = (LockId, Option<Waiter>)> + '_ {
        let words = self.words.iter().map(|word| word.load(Ordering::Acquire));
        words.filter(|word| word & STATE_MASK != NOT_LEASED).map(|word| (lock_of(word), holder_of(word)))
    }

    /// Returns the number of all holds so far.
    pub fn holds(&self) -> u64 {
        let present = self.words.iter().map(|word| holds_of(word.load(Ordering::Relaxed)));
        self.past_holds.load(Ordering::Relaxed) + present.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockId = LockId(7);
    /// It shares the word of the other one.
    const OTHER: LockId = LockId(7 + WORDS as u32);
    const WAITER: Waiter = Waiter(0);
    const SIBLING: Waiter = Waiter(2);

    #[test]
    fn threads_take_a_leased_lock_in_turn_and_the_engine_learns_of_it() {
        let leases = Leases::default();
        assert_eq!(leases.take(LOCK, WAITER), Taken::AskEngine);
        assert_eq!(leases.begin(LOCK), None);
        assert_eq!(leases.take(OTHER, WAITER), Taken::AskEngine);
        assert_eq!(leases.take(LOCK, WAITER), Taken::Yes);
        assert_eq!(leases.take(LOCK, SIBLING), Taken::Held);
        assert!(!leases.give_back(LOCK, SIBLING), "only the holder gives it back");
        assert!(leases.give_back(LOCK, WAITER));
        assert!(!leases.give_back(LOCK, WAITER), "it holds it no more");
        assert_eq!(leases.take(LOCK, SIBLING), Taken::Yes);
        assert_eq!(leases.leased().collect::<Vec<_>>(), [(LOCK, Some(SIBLING))]);
        assert_eq!(leases.holds(), 2);
        assert_eq!(leases.end(LOCK), Some(Leased { holds: 2, holder: Some(SIBLING) }));
        assert!(!leases.give_back(LOCK, SIBLING), "the engine knows the holder now");
        assert_eq!((leases.end(LOCK), leases.holds()), (None, 2));
    }

    #[test]
    fn a_lease_ends_where_another_lock_needs_its_word() {
        let leases = Leases::default();
        leases.begin(LOCK);
        leases.take(LOCK, WAITER);
        let ended = Leased { holds: 1, holder: Some(WAITER) };
        assert_eq!(leases.begin(OTHER), Some((LOCK, ended)));
        assert_eq!((leases.take(LOCK, SIBLING), leases.take(OTHER, SIBLING)), (Taken::AskEngine, Taken::Yes));
    }

    #[test]
    fn a_number_of_holds_that_does_not_fit_is_left_to_the_engine() {
        let leases = Leases::default();
        leases.begin(LOCK);
        leases.word(LOCK).fetch_add(HOLDS_MAX * ONE_HOLD, Ordering::Relaxed);
        assert_eq!(leases.take(LOCK, WAITER), Taken::AskEngine);
        leases.begin(LOCK);
        assert_eq!(leases.take(LOCK, Waiter(u32::MAX)), Taken::AskEngine);
    }
}
