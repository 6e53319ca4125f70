//! Round-trip time and retransmission timeout: RFC 6298.

use core::time::Duration;

/// §2.4 asks for at least a second, for the Internet of 1988. In a cluster a round trip takes microseconds,
/// and the timeout must only exceed the peer's delayed acknowledgement and its scheduling.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(5);

/// §2.5 allows a maximum. A stopped peer costs a few datagrams a second, and is noticed within a second of
/// resuming.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// §2.1: before the first sample. Peers start at slightly different times, so it is well above the minimum.
const TIMEOUT_INITIAL: Duration = Duration::from_millis(100);

/// Doublings after which every timeout has reached [`TIMEOUT_MAX`].
const BACKOFF_MAX: u32 = 8;

/// The estimator of one link.
#[derive(Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
}

impl RoundTrip {
    /// Adds a sample (§2.2, §2.3). Only a sample ends the backoff (§5.7). Callers do not pass samples of
    /// datagrams that were sent twice or taken for lost (§3, Karn).
    ///
    /// A sample counts for at most the present timeout. It exceeds that only when this node itself was
    /// stopped, and must not leave a timeout of a second behind.
    pub fn sample(&mut self, measured: Duration) {
        let measured = measured.min(self.timeout());
        self.backoff = 0;
        match self.smoothed {
            None => {
                self.smoothed = Some(measured);
                self.variation = measured / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(measured)) / 4;
                self.smoothed = Some((smoothed * 7 + measured) / 8);
            }
        }
    }

    /// Doubles the timeout (§5.5) when the timer has expired.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Returns true if the timer has expired since the last sample.
    pub fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// Returns how long to wait for an acknowledgement: SRTT + 4 RTTVAR, doubled for each expiry.
    pub fn timeout(&self) -> Duration {
        let calm = match self.smoothed {
            None => TIMEOUT_INITIAL,
            Some(smoothed) => smoothed + self.variation * 4,
        };
        (calm.clamp(TIMEOUT_MIN, TIMEOUT_MAX) * (1 << self.backoff)).min(TIMEOUT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6298_by_hand() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(), Duration::from_millis(100));
        round_trip.sample(Duration::from_millis(80));
        // SRTT 80, RTTVAR 40.
        assert_eq!(round_trip.timeout(), Duration::from_millis(240));
        round_trip.sample(Duration::from_millis(40));
        // RTTVAR (3·40 + 40) / 4 = 40, SRTT (7·80 + 40) / 8 = 75.
        assert_eq!(round_trip.timeout(), Duration::from_millis(235));
    }

    #[test]
    fn one_pause_is_forgotten_and_slowness_is_learnt() {
        let mut round_trip = RoundTrip::default();
        (0..100).for_each(|_| round_trip.sample(Duration::from_micros(60)));
        round_trip.sample(Duration::from_secs(60));
        assert!(round_trip.timeout() < TIMEOUT_MIN * 2);
        // Samples show a slow network once the timeout has backed off beyond its round trip.
        (0..6).for_each(|_| round_trip.back_off());
        round_trip.sample(Duration::from_millis(150));
        assert!(round_trip.timeout() > Duration::from_millis(150));
    }

    #[test]
    fn the_timeout_is_clamped_backs_off_and_recovers() {
        let mut round_trip = RoundTrip::default();
        for _ in 0..100 {
            round_trip.sample(Duration::from_micros(60));
        }
        assert_eq!(round_trip.timeout(), TIMEOUT_MIN);
        round_trip.back_off();
        assert_eq!(round_trip.timeout(), TIMEOUT_MIN * 2);
        for _ in 0..1000 {
            round_trip.back_off();
        }
        assert_eq!(round_trip.timeout(), TIMEOUT_MAX);
        round_trip.sample(Duration::from_micros(60));
        assert_eq!(round_trip.timeout(), TIMEOUT_MIN);
    }
}
