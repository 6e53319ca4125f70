//! The threads that make a node's collective calls: the node arrives when the last of them has come.

use hiroba_base::LockId;
use hiroba_wire::Collective;

use crate::{Misuse, Waiter, barrier};

/// A node's team, and which of its threads have come to the next collective.
#[derive(Debug)]
pub struct Team {
    size: u32,
    gathered: Vec<Waiter>,
    meets: Option<Collective>,
    arrived: bool,
}

/// What follows when a thread has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Others have yet to come.
    Waiting,
    /// It was the last: the node arrives.
    All,
    /// It must not come now.
    Refused(Misuse),
    /// The threads of the node have come to different collectives: a sentence for the user.
    Mismatch(String),
}

impl Team {
    /// The program's first thread alone.
    pub fn of_one() -> Team {
        Team { size: 1, gathered: Vec::new(), meets: None, arrived: false }
    }

    /// How many threads must come. Changes only between collectives.
    pub fn set_size(&mut self, threads: u32) {
        assert!(self.gathered.is_empty(), "a team changes between collectives");
        assert!(threads > 0, "a team has a thread");
        self.size = threads;
    }

    /// Whether the node has arrived, and waits for the others.
    pub fn has_arrived(&self) -> bool {
        self.arrived
    }

    /// A thread has come. `held` is a lock that some thread of the node holds.
    pub fn gather(&mut self, collective: Collective, waiter: Waiter, held: Option<LockId>) -> Gathered {
        let meets = *self.meets.get_or_insert(collective);
        if self.arrived {
            return Gathered::Refused(Misuse::CollectiveTwice(barrier::name(meets)));
        }
        if collective.ends_the_job()
            && let Some(lock) = held
        {
            return Gathered::Refused(Misuse::StillHeld(lock));
        }
        if !meets.meets(collective) {
            let (first, second) = (barrier::describe(meets), barrier::describe(collective));
            return Gathered::Mismatch(format!(
                "a thread came to {second} while another one of its node waits in {first}; inside hiroba_run every thread \
                 must make the same collective calls in the same order"
            ));
        }
        assert!(!self.gathered.contains(&waiter), "a thread waits in one collective at a time");
        self.gathered.push(waiter);
        self.arrived = self.gathered.len() >= self.size as usize;
        if self.arrived { Gathered::All } else { Gathered::Waiting }
    }

    /// All nodes have met: the threads that go on.
    pub fn disperse(&mut self) -> Vec<Waiter> {
        assert!(self.arrived, "a node departs after it has arrived");
        assert_eq!(self.gathered.len(), self.size as usize, "all threads of a team wait for a departure");
        (self.arrived, self.meets) = (false, None);
        std::mem::take(&mut self.gathered)
    }
}
