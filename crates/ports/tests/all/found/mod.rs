//! Shrunk failures of random programs: each failed before its bug was fixed.

mod dead_nodes;
mod dead_ports;
mod moving;

use crate::random::{Op, run, tight};
use crate::simulator::Faithful;

pub use self::dead_nodes::{
    DEAD_ORIGIN_SEED, LOSS_SEED, a_loss_between_relayed_messages, a_loss_of_a_dead_origin,
};

fn runs(nodes: u16, seed: u64, ops: &[Op]) {
    runs_with(2, nodes, seed, ops);
}

/// Runs a program with this maximum number of unanswered requests.
fn runs_with(requests_max: usize, nodes: u16, seed: u64, ops: &[Op]) {
    assert_eq!(run(nodes, tight(requests_max), seed, ops, Box::new(Faithful)), Ok(()));
}
