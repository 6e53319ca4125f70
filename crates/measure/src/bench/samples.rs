//! Times of single operations, and statistics of them.

use std::time::Instant;

/// Times in nanoseconds, sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    nanos: Vec<f64>,
    /// How many operations preceded the first of them.
    pub warm_up: usize,
}

impl Taken {
    /// Sorts the times.
    pub fn new(mut nanos: Vec<f64>, warm_up: usize) -> Taken {
        nanos.sort_by(f64::total_cmp);
        Taken { nanos, warm_up }
    }

    /// Runs `operation` `warm_up` times without and then `times` times with the clock. Its argument is the
    /// number of the run.
    pub fn each(times: usize, warm_up: usize, operation: impl FnMut(usize)) -> Taken {
        Taken::prepared(times, warm_up, |_| {}, operation)
    }

    /// Does the same with a preparation before each run, which does not count.
    pub fn prepared(
        times: usize,
        warm_up: usize,
        mut prepare: impl FnMut(usize),
        mut operation: impl FnMut(usize),
    ) -> Taken {
        let mut nanos = Vec::with_capacity(times);
        for which in 0..warm_up + times {
            prepare(which);
            let began = Instant::now();
            operation(which);
            let taken = began.elapsed().as_nanos() as f64;
            if which >= warm_up {
                nanos.push(taken);
            }
        }
        Taken::new(nanos, warm_up)
    }

    /// Returns half of each time: one way of a round trip.
    pub fn halved(&self) -> Taken {
        Taken { nanos: self.nanos.iter().map(|nanos| nanos / 2.0).collect(), warm_up: self.warm_up }
    }

    /// Returns the number of times.
    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    /// Returns the median in microseconds.
    pub fn median_us(&self) -> f64 {
        self.percentile_us(50)
    }

    /// Returns the mean of the middle half in microseconds; 0 if there are no times.
    pub fn middle_mean_us(&self) -> f64 {
        let quarter = self.nanos.len() / 4;
        let middle = &self.nanos[quarter..self.nanos.len() - quarter];
        middle.iter().sum::<f64>() / middle.len().max(1) as f64 / 1000.0
    }

    /// Returns a percentile in microseconds; 0 if there are no times.
    pub fn percentile_us(&self, percent: usize) -> f64 {
        let index = (self.nanos.len() * percent / 100).min(self.nanos.len().saturating_sub(1));
        self.nanos.get(index).copied().unwrap_or(0.0) / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let taken = Taken::new((1..=100).rev().map(|n| f64::from(n) * 1000.0).collect(), 0);
        assert_eq!((taken.median_us(), taken.percentile_us(99)), (51.0, 100.0));
        assert_eq!(Taken::new(vec![], 0).median_us(), 0.0);
        assert_eq!(Taken::new(vec![9000.0, 1000.0, 2000.0, 4000.0], 0).middle_mean_us(), 3.0);
        assert_eq!(Taken::new(vec![], 0).middle_mean_us(), 0.0);
        assert_eq!(Taken::new(vec![7000.0], 0).percentile_us(99), 7.0);
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let mut which = Vec::new();
        let taken = Taken::each(3, 2, |number| which.push(number));
        assert_eq!((taken.len(), taken.warm_up), (3, 2));
        assert_eq!(which, [0, 1, 2, 3, 4]);
        let mut prepared = 0;
        let taken = Taken::prepared(3, 2, |number| prepared += number, |_| {});
        assert_eq!((taken.len(), prepared), (3, 10));
        assert_eq!(Taken::new(vec![7000.0], 0).halved().median_us(), 3.5);
    }
}
