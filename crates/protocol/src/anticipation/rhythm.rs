//! Rhythms: distances that a program repeats, such as the numbers of barriers between its uses of a page.
//!
//! A loop that sweeps an array in several of its phases uses a page at distances that repeat with the loop's
//! period. After a distance that has occurred before, the one that came next then is expected again; if
//! several came next, the one that did so behind the same two distances, or else the latest.

use std::collections::VecDeque;

/// How many distances are remembered.
const REMEMBERED: usize = 16;

/// How many equal distances make a rhythm steady.
const STEADY: usize = 4;

/// The latest distances, the last one first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rhythm {
    distances: VecDeque<u16>,
}

impl Rhythm {
    /// Notes a distance. One that is longer than fits counts as the longest, which follows nothing.
    pub(crate) fn note(&mut self, distance: u64) {
        self.distances.truncate(REMEMBERED - 1);
        self.distances.push_front(u16::try_from(distance).unwrap_or(u16::MAX));
    }

    /// Returns true if the latest distances are all equal, as far as there are any.
    pub(crate) fn is_steady(&self) -> bool {
        self.distances.iter().take(STEADY).all(|distance| *distance == self.at(0))
    }

    /// Returns the latest distance.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.distances.front().filter(|distance| **distance < u16::MAX).copied().map(u64::from)
    }

    /// Returns the distance that is expected next, if the latest one has occurred before.
    pub(crate) fn next(&self) -> Option<u64> {
        let next = self.followed(2).or_else(|| self.followed(1));
        next.filter(|distance| *distance < u16::MAX).map(u64::from)
    }

    /// Returns the distance that came behind the latest `count` ones when these occurred last.
    fn followed(&self, count: usize) -> Option<u16> {
        let all = self.distances.len();
        let mut places = 1..(all + 1).saturating_sub(count);
        let is_like_now = |place: &usize| (0..count).all(|back| self.at(back) == self.at(place + back));
        places.find(is_like_now).map(|place| self.at(place - 1))
    }

    fn at(&self, place: usize) -> u16 {
        self.distances[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(distances: &[u64]) -> Vec<Option<u64>> {
        let mut rhythm = Rhythm::default();
        let noted = distances.iter().map(|distance| {
            rhythm.note(*distance);
            rhythm.next()
        });
        noted.collect()
    }

    #[test]
    fn distances_that_are_equal_or_alternate_are_expected_again() {
        assert_eq!(expected(&[3, 3, 3]), [None, Some(3), Some(3)]);
        assert_eq!(expected(&[2, 5, 2, 5, 2]), [None, None, Some(5), Some(2), Some(5)]);
        assert_eq!(expected(&[1 << 20, 1 << 20]), [None, None]);
        assert_eq!(Rhythm::default().next(), None);
    }

    #[test]
    fn equal_distances_are_steady() {
        let mut rhythm = Rhythm::default();
        for (distance, is_steady) in [(3, true), (3, true), (0, false), (0, false), (0, false), (0, true)] {
            rhythm.note(distance);
            assert_eq!(rhythm.is_steady(), is_steady);
        }
    }

    #[test]
    fn a_rhythm_of_several_distances_is_known_after_two_periods() {
        let period = [2, 2, 7, 1, 2, 5];
        let distances = period.repeat(4);
        for (index, next) in expected(&distances).into_iter().enumerate().skip(2 * period.len() - 1) {
            assert_eq!(next, Some(period[(index + 1) % period.len()]), "behind distance {index}");
        }
    }
}
