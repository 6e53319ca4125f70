//! Times of single operations and what is told of them.

use std::time::Instant;

/// Times in nanoseconds, sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    nanos: Vec<f64>,
    /// How many were done before the first of them.
    pub warm_up: usize,
}

impl Taken {
    /// Sorts them.
    pub fn new(mut nanos: Vec<f64>, warm_up: usize) -> Taken {
        nanos.sort_by(f64::total_cmp);
        Taken { nanos, warm_up }
    }

    /// Does `operation` some times for nothing and then `times` times by the clock; it is told which time it is.
    pub fn each(times: usize, warm_up: usize, mut operation: impl FnMut(usize)) -> Taken {
        (0..warm_up).for_each(&mut operation);
        let timed = (warm_up..warm_up + times).map(|which| {
            let began = Instant::now();
            operation(which);
            began.elapsed().as_nanos() as f64
        });
        Taken::new(timed.collect(), warm_up)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    /// The median, in microseconds.
    pub fn median_us(&self) -> f64 {
        self.percentile_us(50)
    }

    /// What so many percent do not exceed, in microseconds; 0 of nothing.
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
        assert_eq!(Taken::new(vec![7000.0], 0).percentile_us(99), 7.0);
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let mut which = Vec::new();
        let taken = Taken::each(3, 2, |number| which.push(number));
        assert_eq!((taken.len(), taken.warm_up), (3, 2));
        assert_eq!(which, [0, 1, 2, 3, 4]);
    }
}
