//! Measures what a protocol costs as clusters grow: messages and bytes per barrier, lock hand-over, fault and
//! atomic operation.
//!
//! Each figure is the difference between two runs of one program, of which the second performs the operation
//! more often, so that everything before and after cancels out. Bytes are those of encoded messages, without
//! the overhead of links and networks.

use std::cell::Cell;
use std::rc::Rc;

use hiroba_base::NodeId;
use hiroba_protocol::{Consistency, Protocol, WriteTracking};
use hiroba_wire::{Limits, Placement};

use crate::cluster::{Cluster, Failure, NetworkChoice, Options};
use crate::engines::engine_of;
use crate::mutant::Mutation;
use crate::program::script::*;
use crate::program::{Address, Instruction, Program, Region};

/// The network traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Messages between different nodes.
    pub messages: f64,
    /// Their bytes.
    pub bytes: f64,
}

impl Traffic {
    /// Returns the cost of one of `times` operations beyond `less`.
    fn each_beyond(self, less: Traffic, times: u64) -> Traffic {
        let each = |more: f64, less: f64| (more - less) / times as f64;
        Traffic { messages: each(self.messages, less.messages), bytes: each(self.bytes, less.bytes) }
    }
}

/// Counts what is sent.
struct Counting(Rc<Cell<Traffic>>);

impl Mutation for Counting {
    fn on_send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>, _: &Limits) -> Vec<(Vec<u8>, bool)> {
        if from != to {
            let Traffic { messages, bytes: before } = self.0.get();
            self.0.set(Traffic { messages: messages + 1.0, bytes: before + bytes.len() as f64 });
        }
        vec![(bytes, false)]
    }
}

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A barrier of all nodes; nothing has been written.
    IdleBarrier,
    /// A barrier before which every node has written a page that is homed on the next node and that no other
    /// node touches.
    Barrier,
    /// A lock goes to the next node; no other node requests it.
    HandOver,
    /// A lock that all nodes request goes to another one.
    ContendedHandOver,
    /// A lock that all nodes request goes to another one, and a word that it protects is incremented.
    ProtectedIncrement,
    /// A node reads a page that its home has written.
    ReadFault,
    /// A node writes a page that its home has written; includes the effects at the next barrier.
    WriteFault,
    /// A node adds to a word that is homed on another one and that no other node touches.
    Atomic,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 8] = [
        Operation::IdleBarrier,
        Operation::Barrier,
        Operation::HandOver,
        Operation::ContendedHandOver,
        Operation::ProtectedIncrement,
        Operation::ReadFault,
        Operation::WriteFault,
        Operation::Atomic,
    ];

    /// Returns its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Operation::IdleBarrier => "barrier, nothing written",
            Operation::Barrier => "barrier, one page written per node",
            Operation::HandOver => "lock hand-over",
            Operation::ContendedHandOver => "lock hand-over, contended",
            Operation::ProtectedIncrement => "the same with an increment",
            Operation::ReadFault => "read fault",
            Operation::WriteFault => "write fault and its release",
            Operation::Atomic => "atomic, all by one node",
        }
    }

    /// Returns a program on `nodes` nodes that performs the operation `times` times more than the one with
    /// `times` 0.
    fn program(self, nodes: u16, times: u64) -> Program {
        match self {
            Operation::IdleBarrier => on_all(nodes, |_| looped(vec![barrier()], times)),
            Operation::Barrier => on_all(nodes, |node| {
                let page = Address::word(u64::from((node + 1) % nodes), 0);
                looped(vec![store_from(page, ROUND), barrier()], times)
            }),
            Operation::HandOver => on_all(nodes, |node| taking_turns(node, nodes, times)),
            Operation::ContendedHandOver => {
                on_all(nodes, |node| looped(vec![lock(0), unlock(0)], share(node, nodes, times)))
            }
            Operation::ProtectedIncrement => on_all(nodes, |node| {
                let word = Address::word(0, 0);
                let body = vec![lock(0), load(word, 1), add(1, 1), store_from(word, 1), unlock(0)];
                looped(body, share(node, nodes, times))
            }),
            Operation::ReadFault => away(nodes, |node| match node {
                0 => [vec![barrier()], for_pages(times, |page| load(page, 1))].concat(),
                1 => [for_pages(FAULTS, |page| store(page, 1)), vec![barrier()]].concat(),
                _ => vec![barrier()],
            }),
            Operation::WriteFault => away(nodes, |node| match node {
                0 => [vec![barrier()], for_pages(times, |page| store(page, 2)), vec![barrier()]].concat(),
                1 => [for_pages(FAULTS, |page| store(page, 1)), vec![barrier(), barrier()]].concat(),
                _ => vec![barrier(), barrier()],
            }),
            Operation::Atomic => away(nodes, |node| {
                let times = if node == 0 { times } else { 0 };
                looped(vec![fetch_add(Address::word(0, 0), 1, 1)], times)
            }),
        }
    }

    /// Returns how many times the shorter and the longer program perform it.
    fn times(self, nodes: u16) -> (u64, u64) {
        let nodes = u64::from(nodes);
        match self {
            // Two before, so that everything is set up.
            Operation::IdleBarrier | Operation::Barrier => (2, 6),
            Operation::ContendedHandOver | Operation::ProtectedIncrement => (2 * nodes, 4 * nodes),
            Operation::HandOver => (0, HAND_OVERS),
            Operation::ReadFault | Operation::WriteFault => (0, FAULTS),
            Operation::Atomic => (4, 20),
        }
    }
}

/// The number of hand-overs that are counted.
const HAND_OVERS: u64 = 8;
/// The number of faults that are counted.
const FAULTS: u64 = 16;
/// One page in this many is touched, so that they are too far apart to be taken for a stream.
const PAGES_APART: u64 = 97;
/// The register that counts rounds.
const ROUND: u8 = 0;

fn on_all(nodes: u16, script: impl Fn(u16) -> Vec<Instruction>) -> Program {
    Program::new(u64::from(nodes), (0..nodes).map(script))
}

/// Makes a program with all pages homed on node 1.
fn away(nodes: u16, script: impl Fn(u16) -> Vec<Instruction>) -> Program {
    let pages = FAULTS * PAGES_APART;
    on_all(nodes, script).with_regions(vec![Region::new(0, pages, 1, Placement::On(NodeId(1)))])
}

fn looped(mut body: Vec<Instruction>, rounds: u64) -> Vec<Instruction> {
    if rounds == 0 {
        return Vec::new();
    }
    body.push(add(ROUND, 1));
    body.push(jump_unless(ROUND, rounds, 0));
    body
}

/// Returns a node's share of what all do together.
fn share(node: u16, nodes: u16, times: u64) -> u64 {
    times / u64::from(nodes) + u64::from(u64::from(node) < times % u64::from(nodes))
}

/// Makes a script of barriers between all; one node after the other takes the lock in the first `times`
/// rounds.
fn taking_turns(node: u16, nodes: u16, times: u64) -> Vec<Instruction> {
    let mut script = Vec::new();
    for round in 0..HAND_OVERS {
        if round < times && round % u64::from(nodes) == u64::from(node) {
            script.extend([lock(0), unlock(0)]);
        }
        script.push(barrier());
    }
    script
}

fn page_of(number: u64) -> Address {
    Address::word(number * PAGES_APART, 0)
}

fn for_pages(count: u64, instruction: impl Fn(Address) -> Instruction) -> Vec<Instruction> {
    (0..count).map(page_of).map(instruction).collect()
}

fn run(
    protocol: Protocol,
    tracking: WriteTracking,
    program: &Program,
) -> Result<(Traffic, Cluster<Consistency>), Failure> {
    let traffic = Rc::new(Cell::default());
    let options = Options {
        record: false,
        mutation: Box::new(Counting(traffic.clone())),
        network: NetworkChoice::Direct,
        ..Options::seeded(0, tracking)
    };
    let mut cluster =
        Cluster::new(program, |me, limits, tracking| engine_of(protocol, me, limits, tracking), options);
    while cluster.step()? {}
    Ok((traffic.get(), cluster))
}

/// Returns the cost of one operation on `nodes` nodes (at least two).
///
/// # Errors
/// A run that does not end well, which is an error of the engine.
pub fn cost(
    protocol: Protocol,
    tracking: WriteTracking,
    operation: Operation,
    nodes: u16,
) -> Result<Traffic, Failure> {
    let (few, many) = operation.times(nodes);
    let (less, _) = run(protocol, tracking, &operation.program(nodes, few))?;
    let (more, _) = run(protocol, tracking, &operation.program(nodes, many))?;
    Ok(more.each_beyond(less, many - few))
}

/// Returns the engines of a cluster whose nodes have all read `pages` pages, each written by one of them, and
/// met twice, to measure their memory.
///
/// # Errors
/// A run that does not end well, which is an error of the engine.
pub fn engines_that_know(
    protocol: Protocol,
    tracking: WriteTracking,
    nodes: u16,
    pages: u64,
) -> Result<Vec<Consistency>, Failure> {
    let at = |page: u64| Address::word(page, 0);
    let program = on_all(nodes, |node| {
        let mine = (0..pages).filter(|page| page % u64::from(nodes) == u64::from(node));
        let mut script: Vec<Instruction> = mine.map(|page| store(at(page), 1)).collect();
        script.push(barrier());
        script.extend((0..pages).map(|page| load(at(page), 1)));
        script.push(barrier());
        script
    });
    let program = program.with_regions(vec![Region::new(0, pages.max(1), 1, Placement::Cyclic)]);
    Ok(run(protocol, tracking, &program)?.1.into_engines())
}
