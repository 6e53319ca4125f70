//! The threads that make a node's collective calls: the node arrives with the last of them.

use hiroba_base::LockId;
use hiroba_wire::Collective;

use crate::{Misuse, Waiter, barrier};

/// A node's team, with the threads that have come to the next collective.
#[derive(Debug)]
pub struct Team {
    size: u32,
    gathered: Vec<Waiter>,
    meets: Option<Collective>,
    arrived: bool,
    /// A thread that ends the job while others of its node wait in another collective, in which it takes
    /// part.
    ending: Option<Waiter>,
    /// The number of threads that have come, but were halted before they wait for the departure.
    lost: usize,
    /// True once the job has ended, for threads that were halted.
    is_over: bool,
}

/// The result of a thread's arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Other threads have not come yet.
    Waiting,
    /// It was the last thread: the node arrives.
    All,
    /// The thread comes after another one of a halted program has come to the job's end.
    Over,
    /// The thread may not come now.
    Refused(Misuse),
    /// The threads of the node have come to different collectives: a sentence for the user.
    Mismatch(String),
}

impl Team {
    /// Returns the team of the program's first thread alone.
    pub fn of_one() -> Team {
        let (gathered, meets, ending) = (Vec::new(), None, None);
        Team { size: 1, gathered, meets, arrived: false, ending, lost: 0, is_over: false }
    }

    /// Sets the number of threads that must come. Changes only between collectives.
    pub fn set_size(&mut self, threads: u32) {
        assert!(self.gathered.is_empty(), "a team changes between collectives");
        assert!(threads > 0, "a team has a thread");
        self.size = threads;
    }

    /// Returns true if the node has arrived and waits for the others.
    pub fn has_arrived(&self) -> bool {
        self.arrived
    }

    /// Returns the collective that the threads have come to, if one has.
    pub fn meets(&self) -> Option<Collective> {
        self.meets
    }

    /// Returns the first of the threads that have come.
    pub fn first(&self) -> Option<Waiter> {
        self.gathered.first().copied()
    }

    /// Returns true if a thread ends the job, and others of its program are halted.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Handles that one of the threads that have come does not wait, because it was halted.
    pub fn lose(&mut self, waiter: Waiter) {
        let all = self.gathered.len();
        self.gathered.retain(|other| *other != waiter);
        self.lost += all - self.gathered.len();
    }

    /// Notes that a thread has come. `held` is a lock that some thread of the node holds.
    pub fn gather(&mut self, collective: Collective, waiter: Waiter, held: Option<LockId>) -> Gathered {
        // A thread that was inside the runtime when others were halted may still come to a collective.
        if self.is_over || (self.arrived && self.meets == Some(Collective::LeaveHalted)) {
            return Gathered::Over;
        }
        if collective == Collective::LeaveHalted && self.arrived && self.ending.is_none() {
            self.ending = Some(waiter);
            return Gathered::Waiting;
        }
        let meets = *self.meets.get_or_insert(collective);
        if self.arrived {
            return Gathered::Refused(Misuse::CollectiveTwice(barrier::name(meets)));
        }
        if collective.ends_the_job()
            && collective != Collective::LeaveHalted
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

    /// Returns the threads that go on, after all nodes have met in `collective`.
    pub fn disperse(&mut self, collective: Collective) -> Vec<Waiter> {
        assert!(self.arrived, "a node departs after it has arrived");
        let all = self.gathered.len() + std::mem::take(&mut self.lost);
        assert_eq!(all, self.size as usize, "all threads of a team wait for a departure");
        (self.arrived, self.meets) = (false, None);
        self.is_over |= collective == Collective::LeaveHalted;
        let mut all = std::mem::take(&mut self.gathered);
        all.extend(self.ending.take());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(number: u32) -> Waiter {
        Waiter(number)
    }

    #[test]
    fn a_halted_program_ends_in_the_collective_that_a_thread_waits_in() {
        let mut team = Team::of_one();
        assert_eq!(team.gather(Collective::Barrier, waiter(1), None), Gathered::All);
        assert_eq!(team.gather(Collective::LeaveHalted, waiter(2), None), Gathered::Waiting);
        // Both threads would return the same way if the other nodes had come to the barrier.
        assert_eq!(team.disperse(Collective::Barrier), [waiter(1), waiter(2)]);
        assert_eq!(team.gather(Collective::LeaveHalted, waiter(2), None), Gathered::All);
        assert_eq!(team.disperse(Collective::LeaveHalted), [waiter(2)]);
    }

    #[test]
    fn who_comes_late_to_the_end_does_not_wait() {
        let mut team = Team::of_one();
        assert_eq!(team.gather(Collective::Barrier, waiter(1), None), Gathered::All);
        assert_eq!(team.disperse(Collective::LeaveHalted), [waiter(1)]);
        assert_eq!(team.gather(Collective::LeaveHalted, waiter(2), None), Gathered::Over);
    }

    #[test]
    fn a_thread_that_was_not_halted_yet_does_not_come_between_the_end() {
        let mut team = Team::of_one();
        assert_eq!(team.gather(Collective::LeaveHalted, waiter(1), None), Gathered::All);
        assert_eq!(team.gather(Collective::Barrier, waiter(2), None), Gathered::Over);
        assert_eq!(team.disperse(Collective::LeaveHalted), [waiter(1)]);
        assert_eq!(team.gather(Collective::Barrier, waiter(2), None), Gathered::Over);
    }

    #[test]
    fn other_collectives_are_not_mixed() {
        let mut team = Team::of_one();
        assert_eq!(team.gather(Collective::Barrier, waiter(1), None), Gathered::All);
        assert!(matches!(team.gather(Collective::Leave, waiter(2), None), Gathered::Refused(_)));
    }
}
