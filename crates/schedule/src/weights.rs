//! Parts in proportion to the threads' speeds.

/// What one more thread's speed must gain before parts change: below, the threads' data stay where they are.
pub(crate) const THRESHOLD: f64 = 0.05;
/// How long a thread times iterations where the user does not say how many, in nanoseconds.
pub(crate) const TIMED_NS: u64 = 50_000;
/// A thread that is slower than the fastest by more gets parts as if it were not.
const RATIO_MAX: f64 = 1024.0;
const UNIT: f64 = (1u64 << 30) as f64;

/// Returns which share of the time parts in proportion to `speeds` would save, where parts in proportion to
/// `weights` take 1. All numbers are above 0.
pub fn gain(weights: &[f64], speeds: &[f64]) -> f64 {
    let slowest = weights.iter().zip(speeds).map(|(weight, speed)| weight / speed).fold(0.0, f64::max);
    1.0 - weights.iter().sum::<f64>() / (speeds.iter().sum::<f64>() * slowest)
}

/// Returns the weights that follow from speeds where no others are known: equal ones unless others gain.
pub(crate) fn first(speeds: &[f64]) -> Vec<f64> {
    let equal = vec![1.0; speeds.len()];
    if gain(&equal, speeds) < THRESHOLD { equal } else { speeds.to_vec() }
}

/// Returns weights halfway between those that are used and new speeds, so that data follow slowly.
pub(crate) fn between(weights: &[f64], speeds: &[f64]) -> Vec<f64> {
    let (all, sum) = (weights.iter().sum::<f64>(), speeds.iter().sum::<f64>());
    weights.iter().zip(speeds).map(|(weight, speed)| (weight / all + speed / sum) / 2.0).collect()
}

/// Parts of iterations in proportion to weights. All nodes compute the same from the same weights.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// Sums of whole weights before each thread's, and of all.
    before: Vec<u64>,
}

impl Parts {
    pub(crate) fn new(weights: &[f64]) -> Parts {
        let most = weights.iter().copied().fold(0.0, f64::max);
        let whole = |weight: f64| ((weight / most).max(1.0 / RATIO_MAX) * UNIT) as u64;
        let mut before = vec![0];
        for weight in weights {
            before.push(before[before.len() - 1] + whole(*weight));
        }
        Parts { before }
    }

    fn all(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// The part of a thread of `count` iterations: first and end.
    pub(crate) fn block(&self, thread: usize, count: u64) -> (u64, u64) {
        let bound = |index: usize| {
            (u128::from(count) * u128::from(self.before[index]) / u128::from(self.all())) as u64
        };
        (bound(thread), bound(thread + 1))
    }

    /// The length of a round in which the thread with the least weight gets `chunk` iterations.
    pub(crate) fn round(&self, chunk: u64) -> u64 {
        let least = self.before.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1).max(1);
        let round = u128::from(chunk) * u128::from(self.all()) / u128::from(least);
        u64::try_from(round).unwrap_or(u64::MAX)
    }

    /// A length in proportion to the thread's weight, where the mean is `length`.
    pub(crate) fn weighted(&self, thread: usize, length: u64) -> u64 {
        let own = u128::from(self.before[thread + 1] - self.before[thread]);
        let threads = self.before.len() as u128 - 1;
        (u128::from(length) * own * threads / u128::from(self.all())) as u64
    }
}
