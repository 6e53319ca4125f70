//! How many datagrams may be on their way to one peer: RFC 5681, counted in datagrams.

/// The smallest window that loss leaves. RFC 6928 starts with ten; three later acknowledgements
/// are needed to see a loss without waiting for the timer, and fewer than eight seldom give them under heavy loss.
pub const WINDOW_DATAGRAMS_MIN: usize = 8;

/// The window of one link.
#[derive(Debug)]
pub struct Congestion {
    window: usize,
    window_max: usize,
    threshold: usize,
    /// Acknowledged datagrams not yet turned into growth, in congestion avoidance.
    credit: usize,
}

impl Congestion {
    /// A window that may grow to `window_max` and begins there: both ends are in one cluster and the
    /// receiver's buffer is known, so there is nothing to probe for until something is lost.
    pub fn new(window_max: usize) -> Congestion {
        Congestion { window: window_max, window_max, threshold: window_max, credit: 0 }
    }

    /// Datagrams that may be in flight.
    pub fn window(&self) -> usize {
        self.window
    }

    /// §3.1: one for each acknowledged datagram below the threshold, one a window's worth above it.
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

    /// §3.2: something was lost while acknowledgements keep coming. Once a window of data.
    pub fn lost(&mut self) {
        self.threshold = (self.window / 2).max(self.window_min());
        self.window = self.threshold;
        self.credit = 0;
    }

    /// §3.1: the timer expired. `first` unless it has expired before without progress, since
    /// the threshold is to remember the window at which loss began.
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
