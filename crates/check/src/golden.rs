//! Prints a run in a fixed order line by line, to be read beside the figure of a paper and kept unchanged.

use core::fmt::Write as _;

use hiroba_base::NodeId;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

use crate::cluster::{Choice, Cluster, Failure, NetworkChoice, Options};
use crate::engines::engine_of;
use crate::narration::Narration;
use crate::program::Program;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The thread executes its next instruction, and everything that follows happens before anything else.
    Whole(usize),
    /// The thread begins its next instruction; the messages that it sends are in flight.
    Begins(usize),
    /// A message of this sender arrives at this receiver.
    Arrives(u16, u16),
    /// The node's host has nothing to do for a moment, and everything that follows happens before anything
    /// else.
    Lull(u16),
    /// Everything in flight happens.
    Rest,
}

/// Runs a program in this order and prints what the threads do, and below each of their instructions one line
/// for each message and effect.
///
/// # Errors
/// A run that goes wrong, or that has not ended after the last turn.
pub fn trace(
    protocol: Protocol,
    tracking: WriteTracking,
    program: &Program,
    turns: &[Turn],
) -> Result<String, Failure> {
    let narration = Narration::default();
    let options = Options { network: NetworkChoice::Chosen, ..Options::seeded(0, tracking) };
    let mut telling = Telling {
        cluster: Cluster::new(
            program,
            |me, limits, tracking| engine_of(protocol, me, limits, tracking),
            options,
        ),
        narration,
        begun: Vec::new(),
        told: String::new(),
    };
    telling.cluster.narrate(telling.narration.clone());
    telling.cluster.run_privately()?;
    for turn in turns {
        match turn {
            Turn::Whole(thread) => {
                telling.begin(*thread)?;
                telling.settle()?;
            }
            Turn::Begins(thread) => telling.begin(*thread)?,
            Turn::Arrives(from, to) => {
                telling.choose(Choice::Arrival { from: NodeId(*from), to: NodeId(*to) })?;
            }
            Turn::Lull(node) => {
                telling.lull(NodeId(*node))?;
                telling.settle()?;
            }
            Turn::Rest => telling.settle()?,
        }
    }
    telling.cluster.conclude()?;
    Ok(telling.told)
}

struct Telling {
    cluster: Cluster<Consistency>,
    narration: Narration,
    /// Threads that have begun an instruction, and its place in their scripts.
    begun: Vec<(usize, usize)>,
    told: String,
}

impl Telling {
    fn begin(&mut self, thread: usize) -> Result<(), Failure> {
        let _ = writeln!(self.told, "{}", self.cluster.describe(Choice::Thread(thread)));
        self.begun.push((thread, self.cluster.progress_of(thread)));
        self.choose(Choice::Thread(thread))
    }

    /// Delivers messages, then lets threads retry what they have faulted on, then ends the holds of pages.
    fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let choices = self.cluster.choices();
            let arrival = choices.iter().find(|choice| matches!(choice, Choice::Arrival { .. }));
            let again = choices.iter().find(|choice| match choice {
                Choice::Thread(thread) => self.begun.contains(&(*thread, self.cluster.progress_of(*thread))),
                _ => false,
            });
            let held = choices.iter().find(|choice| matches!(choice, Choice::HoldEnds { .. }));
            let Some(choice) = arrival.or(again).or(held) else { return Ok(()) };
            self.choose(*choice)?;
        }
    }

    fn lull(&mut self, node: NodeId) -> Result<(), Failure> {
        let _ = writeln!(self.told, "node {node} has nothing to do");
        let passed = self.cluster.lull(node);
        self.tell();
        passed
    }

    fn choose(&mut self, choice: Choice) -> Result<(), Failure> {
        let chosen = self.cluster.choose_whole(choice);
        self.tell();
        chosen
    }

    fn tell(&mut self) {
        for line in self.narration.take() {
            let _ = writeln!(self.told, "    {line}");
        }
    }
}
