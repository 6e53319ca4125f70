//! Decides what happens next: everything that is drawn from the one seed while a program runs.

use hiroba_base::{Prng, RngExt};

use super::options::{NetworkChoice, Options};

/// Chooses the order of steps, and the odds of occasional actions of hosts and kernels.
pub(super) struct Schedule {
    pub(super) random: Prng,
    /// Whether steps are drawn; otherwise threads take turns, or each step is chosen, and nothing happens by
    /// chance.
    pub(super) exploring: bool,
    /// The weight of each thread in draws: some are much slower than others.
    paces: Vec<u32>,
    /// The number of steps in 16 that favour a thread over the network.
    thread_bias: u32,
    /// The chances in 16 that a thread continues between two effects of its node.
    pub(super) bustle: u32,
    pub(super) meddling: Meddling,
    /// The number of steps in 64 that are a lull of some node whose engine wants one.
    pub(super) lulls: u32,
    /// The number of steps in 64 in which some node is short of memory.
    pub(super) shortages: u32,
    /// The next turn, if threads take turns.
    turn: u32,
}

/// How much others do between the effects of a node whose frames they read.
#[derive(Clone, Copy)]
pub(super) struct Meddling {
    /// The chances in 16 that another thread makes one more step.
    pub(super) steps: u32,
    /// The chances in 16 that there is no room for an announcement.
    pub(super) refusals: u32,
}

impl Meddling {
    /// Draws them, or returns zeros.
    fn new(one_sided: bool, random: &mut Prng) -> Meddling {
        if !one_sided {
            return Meddling { steps: 0, refusals: 0 };
        }
        Meddling {
            steps: [1, 4, 10][random.random_range(0..3)],
            refusals: [0, 1, 4][random.random_range(0..3)],
        }
    }
}

impl Schedule {
    /// Draws what is fixed before the first step.
    pub(super) fn new(mut random: Prng, options: &Options, threads: usize) -> Schedule {
        let exploring = !matches!(options.network, NetworkChoice::Direct | NetworkChoice::Chosen);
        let thread_bias = [2, 8, 14][random.random_range(0..3)];
        let bustle = [0, 4, 12][random.random_range(0..3)];
        let paces = (0..threads).map(|_| [1, 8, 64][random.random_range(0..3)]).collect();
        let meddling = Meddling::new(options.one_sided && exploring, &mut random);
        let lulls = [1, 8, 32][options.seed as usize % 3];
        let shortages = if options.shortages { [2, 8, 24][options.seed as usize / 3 % 3] } else { 0 };
        Schedule { random, exploring, paces, thread_bias, bustle, meddling, lulls, shortages, turn: 0 }
    }

    /// Returns true in `often` of `of` draws.
    pub(super) fn chance(&mut self, often: u32, of: u32) -> bool {
        self.random.random_range(0..of) < often
    }

    /// Returns one of the runnable threads, if there are any.
    pub(super) fn draw(&mut self, runnable: &[bool]) -> Option<usize> {
        let pace = |(is_runnable, pace): (&bool, &u32)| match (is_runnable, self.exploring) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => *pace,
        };
        let paces: Vec<u32> = runnable.iter().zip(&self.paces).map(pace).collect();
        let total: u32 = paces.iter().sum();
        if total == 0 {
            return None;
        }
        self.turn = self.turn.wrapping_add(1);
        let mut drawn = if self.exploring { self.random.random_range(0..total) } else { self.turn % total };
        paces.iter().position(|pace| {
            let is_drawn = drawn < *pace;
            drawn = drawn.saturating_sub(*pace);
            is_drawn
        })
    }

    /// Returns true if a message arrives next although a thread could continue.
    pub(super) fn favours_network(&mut self, steps: u64) -> bool {
        if self.exploring { !self.chance(self.thread_bias, 16) } else { steps.is_multiple_of(2) }
    }
}
