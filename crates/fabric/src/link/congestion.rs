//! Limits the datagrams in flight to one peer: RFC 5681, counted in datagrams.

/// The smallest window after a loss. RFC 6928 starts with ten. Three later acknowledgements are needed to see
/// a loss without waiting for the timer; under heavy loss fewer than eight datagrams seldom produce them.
pub const WINDOW_DATAGRAMS_MIN: usize = 8;

/// The window of one link.
#[derive(Debug)]
pub struct Congestion {
    window: usize,
    window_max: usize,
    threshold: usize,
    /// Acknowledged datagrams that have not led to growth yet, in congestion avoidance.
    credit: usize,
}

impl Congestion {
    /// Makes a window that starts at its maximum, `window_max`. Both ends are in one cluster and the
    /// receiver's buffer is known, so there is nothing to probe for until a datagram is lost.
    pub fn new(window_max: usize) -> Congestion {
        Congestion { window: window_max, window_max, threshold: window_max, credit: 0 }
    }

    /// Returns the number of datagrams that may be in flight.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Grows the window (§3.1): by one per acknowledged datagram below the threshold, by one per window above
    /// it.
    pub fn acknowledged(&mut self, datagrams: usize) {
        if self.window < self.threshold {
            self.window = (self.window + datagrams).min(self.threshold);
            return;
        }
        self.credit += datagrams;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = (self.window + 1).min(self.window_max);
        }
    }

    /// Shrinks the window (§3.2) when a datagram was lost while acknowledgements keep coming. Call once per
    /// window of data.
    pub fn lost(&mut self) {
        self.threshold = (self.window / 2).max(self.window_min());
        self.window = self.threshold;
        self.credit = 0;
    }

    /// Shrinks the window (§3.1) when the timer expired. `first` is true unless it has expired before without
    /// progress, because the threshold must keep the window at which loss began.
    pub fn timed_out(&mut self, first: bool) {
        if first {
            self.threshold = (self.window / 2).max(self.window_min());
        }
        self.window = self.window_min();
        self.credit = 0;
    }

    fn window_min(&self) -> usize {
        WINDOW_DATAGRAMS_MIN.min(self.window_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_on_loss_and_grows_by_one_a_window() {
        let mut congestion = Congestion::new(64);
        congestion.lost();
        assert_eq!(congestion.window(), 32);
        congestion.acknowledged(31);
        assert_eq!(congestion.window(), 32);
        congestion.acknowledged(1);
        assert_eq!(congestion.window(), 33);
    }

    #[test]
    fn a_timeout_restarts_slowly_up_to_half() {
        let mut congestion = Congestion::new(64);
        congestion.timed_out(true);
        congestion.timed_out(false);
        assert_eq!(congestion.window(), WINDOW_DATAGRAMS_MIN);
        congestion.acknowledged(8);
        assert_eq!(congestion.window(), 16);
        congestion.acknowledged(100);
        assert_eq!(congestion.window(), 32);
    }

    #[test]
    fn stays_within_its_bounds() {
        for window_max in [1, 2, 8, 64] {
            let mut congestion = Congestion::new(window_max);
            for round in 0..2000 {
                match round % 7 {
                    0 => congestion.lost(),
                    1 => congestion.timed_out(round % 2 == 0),
                    _ => congestion.acknowledged(round % 50),
                }
                assert!((WINDOW_DATAGRAMS_MIN.min(window_max)..=window_max).contains(&congestion.window()));
            }
        }
    }
}
