//! Faults that a fabric injects into its own datagrams (`--inject`), beneath the reliable link.

use std::collections::VecDeque;

use hiroba_base::{NodeId, Prng, RngExt, seeded};
use hiroba_wire::control::InjectedFaults;

use super::Outgoing;

/// Maximum number of datagrams held back at once. Further ones are not held.
pub const HELD_DATAGRAMS_MAX: usize = 64;

/// Maximum number of later datagrams that pass a held one before it leaves.
const HELD_BEHIND_MAX: u32 = 5;

struct Held {
    to: NodeId,
    datagram: Vec<u8>,
    behind: u32,
}

/// Loses, duplicates and reorders datagrams by a seed. Stands between a link and its socket.
///
/// A held datagram leaves when later ones have passed it. If none come, it stays: the link sees a loss and
/// retransmits, and the retransmission is a later datagram.
pub struct FaultInjector {
    faults: InjectedFaults,
    rng: Prng,
    held: VecDeque<Held>,
}

impl FaultInjector {
    /// Makes an injector of `faults`. `stream` (a node's number) distinguishes injectors with the same seed,
    /// so that the nodes of a job do not all lose the same datagrams.
    pub fn new(faults: InjectedFaults, stream: u64) -> FaultInjector {
        let rng = seeded(faults.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let faults = InjectedFaults {
            loss: probability(faults.loss),
            reorder: probability(faults.reorder),
            duplicate: probability(faults.duplicate),
            seed: faults.seed,
        };
        FaultInjector { faults, rng, held: VecDeque::new() }
    }

    /// Passes one datagram. Calls `emit` for each that leaves now: none, this one, or several.
    pub fn pass(&mut self, to: NodeId, datagram: &[u8], emit: &mut dyn FnMut(NodeId, &[u8])) {
        if !self.rng.random_bool(self.faults.loss) {
            let copies = if self.rng.random_bool(self.faults.duplicate) { 2 } else { 1 };
            for _ in 0..copies {
                if self.held.len() < HELD_DATAGRAMS_MAX && self.rng.random_bool(self.faults.reorder) {
                    // One more than it lets pass, because the loop below counts this datagram too.
                    let behind = 1 + self.rng.random_range(1..=HELD_BEHIND_MAX);
                    self.held.push_back(Held { to, datagram: datagram.to_vec(), behind });
                } else {
                    emit(to, datagram);
                }
            }
        }
        self.held.retain_mut(|held| {
            held.behind -= 1;
            if held.behind == 0 {
                emit(held.to, &held.datagram);
            }
            held.behind > 0
        });
    }

    /// Returns the number of datagrams held back now.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

impl Outgoing for FaultInjector {
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8])) {
        FaultInjector::pass(self, to, datagram, next);
    }
}

/// Returns the nearest valid probability (0 for NaN), because values come from outside.
fn probability(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(faults: InjectedFaults, stream: u64) -> Vec<u8> {
        let mut injector = FaultInjector::new(faults, stream);
        let mut left = Vec::new();
        for number in 0..200u8 {
            injector.pass(NodeId(1), &[number], &mut |_, datagram| left.push(datagram[0]));
        }
        left
    }

    #[test]
    fn without_faults_everything_passes_in_order() {
        assert_eq!(run(InjectedFaults::default(), 0), (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn a_seed_reproduces_its_faults_and_streams_differ() {
        let faults = InjectedFaults { loss: 0.2, reorder: 0.2, duplicate: 0.2, seed: 7 };
        assert_eq!(run(faults, 1), run(faults, 1));
        assert_ne!(run(faults, 1), run(faults, 2));
    }

    #[test]
    fn each_fault_is_seen_at_its_rate() {
        let lossy = run(InjectedFaults { loss: 0.5, ..Default::default() }, 0);
        assert!((60..140).contains(&lossy.len()), "{} of 200 passed a loss of one half", lossy.len());
        let twice = run(InjectedFaults { duplicate: 1.0, ..Default::default() }, 0);
        assert_eq!(twice.len(), 400);
        let reordered = run(InjectedFaults { reorder: 0.3, ..Default::default() }, 0);
        assert!(reordered.windows(2).any(|pair| pair[0] > pair[1]));
        assert!(reordered.len() > 190, "at most a few may still be held");
    }

    #[test]
    fn bad_probabilities_are_mended_and_held_datagrams_are_bounded() {
        let mut injector =
            FaultInjector::new(InjectedFaults { loss: f64::NAN, reorder: 9.0, duplicate: -1.0, seed: 0 }, 0);
        for _ in 0..1000 {
            injector.pass(NodeId(1), &[0], &mut |_, _| {});
            assert!(injector.held() <= HELD_DATAGRAMS_MAX);
        }
    }
}
