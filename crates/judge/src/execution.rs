//! The input of the checkers: the records of all nodes, and in them the history of each thread.
//!
//! A [`Run`] is the content of a trace, of a simulated cluster or of real nodes; both consist of
//! [`hiroba_trace::Event`]s. An [`Execution`] is the part of it that describes what the program's threads saw
//! of memory: their accesses, and what orders them.

use core::fmt;
use std::collections::BTreeMap;

use hiroba_base::NodeId;
use hiroba_trace::{Event, Record, ThreadNumber};

use crate::program::{Address, REGISTERS};

/// The records of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// By node, in the order in which the node wrote them.
    pub nodes: Vec<NodeRecords>,
}

/// The records of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecords {
    /// In the order in which they were written.
    pub records: Vec<Record>,
    /// Whether the node's last record is missing, and perhaps more: it was killed, or its disk was full.
    pub cut_off: bool,
}

impl Run {
    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|node| node.records.len()).sum()
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if some node's records break off.
    pub fn is_cut_off(&self) -> bool {
        self.nodes.iter().any(|node| node.cut_off)
    }

    /// Returns the nodes' ids.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        NodeId::all(self.nodes.len() as u16)
    }
}

/// What one thread did, in program order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The node that it ran on.
    pub node: NodeId,
    /// Its number there.
    pub thread: ThreadNumber,
    /// Its accesses, and what orders them among those of others.
    pub events: Vec<Event>,
}

/// What the threads of a run did. Memory is zero at the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// By node and thread number.
    pub threads: Vec<History>,
}

/// An event of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The thread's index in [`Execution::threads`].
    pub thread: usize,
    /// The event's index in the thread's history.
    pub index: usize,
}

/// Returns true if the event is an access, or orders accesses.
pub fn concerns_memory(event: &Event) -> bool {
    is_access(event)
        || matches!(
            event,
            Event::Acquired { .. }
                | Event::Released { .. }
                | Event::Met { .. }
                | Event::Published { .. }
                | Event::PublicationSeen { .. }
                | Event::Posted { .. }
                | Event::Taken { .. }
        )
}

/// Returns true if the event reads or writes memory.
pub fn is_access(event: &Event) -> bool {
    matches!(event, Event::Load { .. } | Event::Store { .. } | Event::Atomic { .. })
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Each thread's registers.
    pub registers: Vec<[u64; REGISTERS]>,
    /// The records.
    pub run: Run,
    /// The number of instructions and deliveries.
    pub steps: u64,
}

impl Ended {
    /// Returns a thread's register.
    pub fn register(&self, thread: usize, register: usize) -> u64 {
        self.registers[thread][register]
    }

    /// Returns what the threads saw of memory.
    pub fn execution(&self) -> Execution {
        Execution::of(&self.run)
    }
}

impl Execution {
    /// Returns the histories in a run. An event that took effect for a whole node (a publication that its
    /// runtime received) counts for each of its threads from the next record on that is not an access, since
    /// an access may have been recorded later than it was made.
    pub fn of(run: &Run) -> Execution {
        let mut threads = Vec::new();
        for (node, records) in run.ids().zip(&run.nodes) {
            threads.extend(histories(node, &records.records));
        }
        Execution { threads }
    }

    /// Returns the number of accesses.
    pub fn accesses(&self) -> usize {
        let events = self.threads.iter().flat_map(|history| &history.events);
        events.filter(|event| is_access(event)).count()
    }

    /// Returns every event, thread by thread.
    pub fn events(&self) -> impl Iterator<Item = (Position, &Event)> {
        self.threads.iter().enumerate().flat_map(|(thread, history)| {
            history.events.iter().enumerate().map(move |(index, event)| (Position { thread, index }, event))
        })
    }

    /// Returns an event.
    pub fn event(&self, position: Position) -> &Event {
        &self.threads[position.thread].events[position.index]
    }

    /// Describes where an event is.
    pub fn place(&self, position: Position) -> String {
        let history = &self.threads[position.thread];
        format!("node {} thread {} event {}", history.node, history.thread.0, position.index)
    }
}

fn histories(node: NodeId, records: &[Record]) -> impl Iterator<Item = History> + use<> {
    let mut threads: BTreeMap<ThreadNumber, (Vec<Event>, usize)> = BTreeMap::new();
    let mut of_the_node: Vec<Event> = Vec::new();
    for Record { thread, event, .. } in records {
        if *thread == ThreadNumber::RUNTIME {
            of_the_node.extend(matches!(event, Event::PublicationSeen { .. }).then(|| event.clone()));
            continue;
        }
        let (events, known) = threads.entry(*thread).or_default();
        if !is_access(event) && *known < of_the_node.len() {
            events.extend_from_slice(&of_the_node[*known..]);
            *known = of_the_node.len();
        }
        if concerns_memory(event) {
            events.push(event.clone());
        }
    }
    threads.into_iter().map(move |(thread, (events, _))| History { node, thread, events })
}

/// Formats an event in words.
pub struct Described<'a>(pub &'a Event);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |page: &hiroba_base::PageId, offset: &u32| Address { granule: *page, offset: *offset };
        match self.0 {
            Event::Load { page, offset, bytes, value } => {
                write!(f, "load of {bytes} bytes at {} = {value}", at(page, offset))
            }
            Event::Store { page, offset, bytes, value } => {
                write!(f, "store of {bytes} bytes at {} = {value}", at(page, offset))
            }
            Event::Acquired { lock, turn } => write!(f, "acquire of lock {} (turn {turn})", lock.0),
            Event::Released { lock, turn } => write!(f, "release of lock {} (turn {turn})", lock.0),
            Event::Met { epoch } => write!(f, "meeting {epoch}"),
            Event::Published { to, count } => write!(f, "publication {count} to node {to}"),
            Event::PublicationSeen { from, count } => {
                write!(f, "receipt of publication {count} from node {from}")
            }
            Event::Posted { number } => write!(f, "sending of message {number}"),
            Event::Taken { from, number } => write!(f, "receipt of message {number} from node {from}"),
            Event::Atomic { page, offset, turn, previous, current } => {
                write!(f, "atomic operation {turn} at {}: {previous} to {current}", at(page, offset))
            }
            other => write!(f, "{other:?}"),
        }
    }
}
