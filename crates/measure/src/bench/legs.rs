//! Where the time of a barrier, a hand-over, a fetch and a release goes, leg by leg, on each node.
//!
//! Only in builds with the feature `legs`. Stamps take time themselves, which is subtracted from the legs
//! that they end.

use std::time::{Duration, Instant};

use hiroba_base::LockId;
use hiroba_base::legs::{self, Leg};
use serde::{Deserialize, Serialize};

use super::Report;
use super::markdown::line;
use super::node::{HOME, Home, Node, WARM_UP, report, scattered};
use super::shared::PAGE_BYTES;

/// The distance of pages that are fetched, so that each takes a message of its own.
const STRIDE: usize = 8 * PAGE_BYTES;
/// How long a node keeps the lock, so that the other has requested it before the release.
const HELD: Duration = Duration::from_micros(150);

/// The legs of an operation on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfNode {
    operation: String,
    node: u16,
    /// For each leg: its index in [`Leg::ALL`], microseconds per operation, stamps per operation.
    legs: Vec<(usize, f64, f64)>,
    /// The core's lock: how many times per operation it is held, for how long on average, and the 99th
    /// percentile, in microseconds.
    holds: Option<(f64, f64, f64)>,
}

/// The legs of all operations so far.
#[derive(Debug, Default)]
pub struct Legs {
    told: Vec<OfNode>,
}

impl Legs {
    /// Takes the legs of an operation on one node.
    pub fn add(&mut self, legs: OfNode) {
        self.told.push(legs);
    }

    /// Returns a Markdown table with a column for each operation and node, and a line for each leg in the
    /// order of a fetch. Returns `None` if there are none since the last table.
    pub fn take_table(&mut self) -> Option<String> {
        let mut told = std::mem::take(&mut self.told);
        let operations: Vec<String> = told.iter().map(|legs| legs.operation.clone()).collect();
        let rank = |legs: &OfNode| operations.iter().position(|operation| *operation == legs.operation);
        told.sort_by_key(|legs| (rank(legs), legs.node));
        (!told.is_empty()).then(|| table(&told))
    }
}

/// Formats microseconds per operation in all legs; the last two lines are their sum and the number of stamps.
fn table(columns: &[OfNode]) -> String {
    let with_cells = |name: &str, cell: &dyn Fn(&OfNode) -> String| {
        line([name.to_owned()].into_iter().chain(columns.iter().map(cell)))
    };
    let mut text = with_cells("leg, µs", &|legs| format!("{}: node {}", legs.operation, legs.node));
    text += &line(["---".to_owned()].into_iter().chain(columns.iter().map(|_| "---:".to_owned())));
    for (index, leg) in Leg::ALL.iter().enumerate() {
        let find = |legs: &OfNode| legs.legs.iter().find(|leg| leg.0 == index).map(|leg| leg.1);
        if columns.iter().any(|legs| find(legs).is_some()) {
            text +=
                &with_cells(leg.name(), &|legs| find(legs).map_or(String::new(), |us| format!("{us:.2}")));
        }
    }
    let sum_of = |legs: &OfNode, part: fn(&(usize, f64, f64)) -> f64| -> f64 {
        // Waiting is the other node's work.
        // Begins with +0: the sum of nothing is -0, which is printed with its sign.
        legs.legs
            .iter()
            .filter(|leg| Leg::ALL[leg.0] != Leg::Wait)
            .map(part)
            .fold(0.0, |sum, part| sum + part)
    };
    text += &with_cells("sum without wait", &|legs| format!("{:.2}", sum_of(legs, |leg| leg.1)));
    text += &with_cells("stamps without wait", &|legs| format!("{:.0}", sum_of(legs, |leg| leg.2)));
    let of_holds = |legs: &OfNode, part: fn((f64, f64, f64)) -> f64| {
        legs.holds.map_or(String::new(), |holds| format!("{:.2}", part(holds)))
    };
    text += &with_cells("core held, times", &|legs| of_holds(legs, |(times, ..)| times));
    text += &with_cells("core held, mean", &|legs| of_holds(legs, |(_, mean, _)| mean));
    text + &with_cells("core held, p99", &|legs| of_holds(legs, |(.., p99)| p99))
}

impl Node<'_> {
    pub fn legs(&mut self) {
        let times = self.plan.times(2000);
        // Measured before anything is mapped, since releases scan what is.
        self.legs_of_barriers(times);
        self.legs_of_hand_overs(times);
        self.legs_of_fetches(times);
        self.legs_of_releases(times);
    }

    fn legs_of_barriers(&self, times: usize) {
        self.runtime.barrier();
        legs::begin();
        for _ in 0..times {
            legs::operation();
            self.runtime.barrier();
        }
        self.tell_legs("barrier", times);
    }

    fn legs_of_hand_overs(&self, times: usize) {
        let lock = LockId(0);
        self.runtime.barrier();
        legs::begin();
        for _ in 0..times {
            legs::operation();
            self.runtime.lock(lock);
            let began = Instant::now();
            while began.elapsed() < HELD {
                std::hint::spin_loop();
            }
            legs::operation();
            self.runtime.unlock(lock);
        }
        // Both nodes have had the lock equally often: each hand-over is one node's release and the other's
        // acquire.
        self.tell_legs("hand-over each way", times);
    }

    fn legs_of_fetches(&mut self, times: usize) {
        let remote = self.filled(times * STRIDE, None);
        let order = scattered(times);
        legs::begin();
        self.while_home(Home::Waiting, |_| {
            for offset in &order {
                legs::operation();
                remote.load(*offset);
                legs::end(Leg::Resume);
            }
        });
        self.tell_legs("page fetch", times);
    }

    fn legs_of_releases(&mut self, times: usize) {
        let runtime = self.runtime;
        let dirty = self.region(PAGE_BYTES, HOME);
        let lock = self.own_lock();
        legs::begin();
        self.while_home(Home::Waiting, |_| {
            for round in 0..times + WARM_UP {
                if round == WARM_UP {
                    legs::begin();
                }
                legs::pause();
                runtime.lock(lock);
                dirty.store(0, round as u64 + 1);
                legs::go_on();
                legs::operation();
                runtime.unlock(lock);
            }
        });
        self.tell_legs("release, 1 page dirty", times);
    }

    /// Sends the legs of this node, with a time and a number of stamps for each operation.
    fn tell_legs(&self, operation: &str, times: usize) {
        let taken = legs::take().into_iter().map(|leg| {
            let stamps = leg.stamps as f64 / times as f64;
            (leg.leg as usize, leg.mean_ns / 1000.0 * stamps, stamps)
        });
        let legs = taken.collect();
        let holds = legs::take_holds()
            .map(|holds| (holds.holds as f64 / times as f64, holds.mean_ns / 1000.0, holds.p99_ns / 1000.0));
        let (operation, node) = (operation.to_owned(), self.runtime.node().0);
        report(&Report::Legs(OfNode { operation, node, legs, holds }));
        self.runtime.barrier();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_their_order_and_nodes_come_in_turn() {
        let of = |operation: &str, node: u16, legs: &[(usize, f64, f64)]| OfNode {
            operation: operation.to_owned(),
            node,
            legs: legs.to_vec(),
            holds: (node == 1).then_some((2.0, 1.5, 3.25)),
        };
        let (engine, wait) = (Leg::Engine as usize, Leg::Wait as usize);
        let mut legs = Legs::default();
        assert_eq!(legs.take_table(), None);
        legs.add(of("fetch", 1, &[(engine, 0.5, 2.0), (wait, 7.0, 9.0)]));
        legs.add(of("fetch", 0, &[(engine, 0.25, 1.0)]));
        legs.add(of("barrier", 0, &[]));
        assert_eq!(
            legs.take_table().as_deref(),
            Some(
                "\
| leg, µs | fetch: node 0 | fetch: node 1 | barrier: node 0 |
| --- | ---: | ---: | ---: |
| engine | 0.25 | 0.50 |  |
| wait |  | 7.00 |  |
| sum without wait | 0.25 | 0.50 | 0.00 |
| stamps without wait | 1 | 2 | 0 |
| core held, times |  | 2.00 |  |
| core held, mean |  | 1.50 |  |
| core held, p99 |  | 3.25 |  |
"
            )
        );
    }
}
