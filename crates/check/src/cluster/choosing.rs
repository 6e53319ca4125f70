//! A cluster whose every step is chosen instead of drawn, for exploring all interleavings and for printing
//! one of them.
//!
//! Between two steps a thread may continue, a message arrive, or a page's hold end. A step concerns one node.
//! But the program's loads and stores do not wait, so a thread that need not fault may continue within the
//! step, between two effects that concern its memory.

use core::fmt;
use core::hash::{Hash, Hasher};
use std::collections::{BTreeMap, VecDeque};
use std::hash::DefaultHasher;

use hiroba_base::{Access, NodeId, PageId, Prng, RngExt};
use hiroba_protocol::{Effect, Engine};
use hiroba_wire::Message;
use rustc_hash::FxHasher;

use super::{Cluster, Failure, State};
use crate::execution::{Execution, concerns_memory as concerns_memory_order};
use crate::narration::{describe_instruction, describe_message};
use crate::network::{Network, Parcel};
use crate::program::{Instruction, Width};

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// The thread makes its next step.
    Thread(usize),
    /// The first message of a link arrives.
    Arrival {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
    },
    /// The node's hold of a page ends.
    HoldEnds {
        /// The node.
        node: NodeId,
        /// The page.
        page: PageId,
    },
    /// Within a step: the node continues with it.
    Onward,
    /// Within a step of its node: the thread makes its next step first, without a fault.
    Meanwhile(usize),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Thread(thread) => write!(f, "thread {thread} goes on"),
            Choice::Arrival { from, to } => write!(f, "node {to} hears from node {from}"),
            Choice::HoldEnds { node, page } => write!(f, "node {node} has held {page} long enough"),
            Choice::Onward => write!(f, "the node goes on first"),
            Choice::Meanwhile(thread) => write!(f, "meanwhile thread {thread} goes on"),
        }
    }
}

/// The choices within a step.
#[derive(Debug, Default)]
pub(super) struct Within {
    chosen: VecDeque<Choice>,
    /// The available choices, at the place where the given ones ran out.
    open: Option<Vec<Choice>>,
    /// Whether an effect of this step has concerned the memory.
    touched: bool,
}

/// A queue for each pair of nodes; which one delivers is chosen.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<(NodeId, NodeId), VecDeque<Parcel>>);

impl Network for Links {
    fn links(&self) -> Vec<(NodeId, NodeId)> {
        self.0.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link).collect()
    }

    fn deliver_from(&mut self, link: (NodeId, NodeId)) -> Option<Parcel> {
        self.0.get_mut(&link)?.pop_front()
    }

    fn first_of(&self, link: (NodeId, NodeId)) -> Option<&Parcel> {
        self.0.get(&link)?.front()
    }

    fn under_way(&self) -> Vec<&Parcel> {
        self.0.values().flatten().collect()
    }

    fn send(&mut self, parcel: Parcel, astray: bool) {
        // A message that leaves the order of its link has a link of its own, from the receiver to itself,
        // which is otherwise unused.
        let from = if astray { parcel.to } else { parcel.from };
        self.0.entry((from, parcel.to)).or_default().push_back(parcel);
    }

    fn deliver(&mut self, _: &mut Prng) -> Option<Parcel> {
        let first = *self.links().first()?;
        self.deliver_from(first)
    }

    fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }
}

/// Returns true if it may matter whether the program accesses the node's memory before or after the effect.
fn concerns_memory(effect: &Effect) -> bool {
    !matches!(
        effect,
        Effect::Send { .. }
            | Effect::Retain { .. }
            | Effect::Wake { .. }
            | Effect::Tell(_)
            | Effect::Fatal { .. }
            | Effect::Publish { .. }
            | Effect::TakeAnnouncements
            | Effect::IntervalEnded { .. }
    )
}

/// Steps.
impl<E: Engine> Cluster<E> {
    /// Returns what may happen next: nothing when everything is done or when no thread can continue.
    pub fn choices(&self) -> Vec<Choice> {
        let runnable = (0..self.threads.len()).filter(|number| self.is_runnable(&self.threads[*number]));
        let mut holds: Vec<Choice> =
            self.holds.iter().map(|(node, page)| Choice::HoldEnds { node: *node, page: *page }).collect();
        holds.sort();
        let arrivals = self.network.links().into_iter().map(|(from, to)| Choice::Arrival { from, to });
        runnable.map(Choice::Thread).chain(arrivals).chain(holds).collect()
    }

    /// Makes a step with the choices `within` it. If these are too few, returns the next available choices;
    /// the cluster is unusable then.
    ///
    /// # Errors
    /// What went wrong.
    pub fn choose(&mut self, choice: Choice, within: &[Choice]) -> Result<Option<Vec<Choice>>, Failure> {
        self.progress.steps += 1;
        self.within = Some(Within { chosen: within.iter().copied().collect(), open: None, touched: false });
        let made = self.make(choice);
        let within = self.within.take().expect("a step is being made");
        if within.open.is_none() {
            made?;
            self.run_privately()?;
        }
        Ok(within.open)
    }

    /// Makes a step without choices within it.
    ///
    /// # Errors
    /// What went wrong.
    pub fn choose_whole(&mut self, choice: Choice) -> Result<(), Failure> {
        self.progress.steps += 1;
        self.make(choice)?;
        self.run_privately()
    }

    fn make(&mut self, choice: Choice) -> Result<(), Failure> {
        match choice {
            Choice::Thread(thread) => self.execute(thread)?,
            Choice::Arrival { from, to } => {
                if let Some(parcel) = self.network.deliver_from((from, to)) {
                    self.progress.deliveries += 1;
                    self.deliver(parcel)?;
                }
            }
            Choice::HoldEnds { node, page } => {
                if let Some(ended) = self.holds.iter().position(|hold| *hold == (node, page)) {
                    self.holds.swap_remove(ended);
                    self.nodes[node.index()].engine.handle_retained(page);
                    self.pump(node)?;
                }
            }
            Choice::Onward | Choice::Meanwhile(_) => unreachable!("{choice}: only within a step"),
        }
        Ok(())
    }

    /// Returns the node that a choice between steps concerns.
    pub fn node_of(&self, choice: Choice) -> NodeId {
        match choice {
            Choice::Thread(thread) | Choice::Meanwhile(thread) => self.threads[thread].node,
            Choice::Arrival { to, .. } => to,
            Choice::HoldEnds { node, .. } => node,
            Choice::Onward => unreachable!("{choice}: only within a step"),
        }
    }

    /// Runs what threads do by themselves, which no other thread can see and nothing else changes, so that
    /// its time need not be chosen.
    ///
    /// # Errors
    /// A program that does this without end.
    pub fn run_privately(&mut self) -> Result<(), Failure> {
        (0..self.threads.len()).try_for_each(|number| self.run_thread_privately(number))
    }

    fn run_thread_privately(&mut self, number: usize) -> Result<(), Failure> {
        for _ in 0..self.progress.steps_max {
            let thread = &self.threads[number];
            let is_private = match thread.instructions.get(thread.next) {
                None | Some(Instruction::Add(..) | Instruction::AddRegister(..)) => true,
                Some(Instruction::JumpUnless { .. }) => true,
                Some(_) => false,
            };
            if thread.state != State::Running || !is_private {
                return Ok(());
            }
            self.execute(number)?;
        }
        Err(Failure::Endless(self.progress.steps_max))
    }

    /// Lets threads of the node be chosen to continue before an effect of a step. What they do before the
    /// first effect that concerns memory they might as well do before the step.
    pub(super) fn meanwhile(&mut self, id: NodeId, effect: &Effect) {
        let Some(within) = &mut self.within else { return };
        if concerns_memory(effect) && std::mem::replace(&mut within.touched, true) {
            self.choose_within(id);
        }
    }

    /// Lets threads of the node that need not fault be chosen to continue here.
    pub(super) fn choose_within(&mut self, id: NodeId) {
        loop {
            let Some(within) = &mut self.within else { return };
            if within.open.is_some() {
                return;
            }
            let threads = self.nodes[id.index()].threads.clone();
            let free: Vec<usize> =
                threads.into_iter().filter(|number| self.free_access(*number).is_some()).collect();
            if free.is_empty() {
                return;
            }
            let within = self.within.as_mut().expect("a step is being made");
            match within.chosen.pop_front() {
                Some(Choice::Meanwhile(number)) => {
                    self.go_on_freely(number);
                    // It cannot continue forever, since the step after this one would report it.
                    let _ = self.run_thread_privately(number);
                }
                Some(_) => return,
                None => {
                    let meanwhile = free.into_iter().map(Choice::Meanwhile);
                    within.open = Some(std::iter::once(Choice::Onward).chain(meanwhile).collect());
                }
            }
        }
    }

    /// Returns what the node may do with a granule without a fault.
    pub fn access(&self, node: NodeId, granule: PageId) -> Access {
        self.nodes[node.index()].memory.access(granule)
    }

    /// Returns the thread's name as the checkers use it: its node, and its number there.
    pub fn name_of(&self, thread: usize) -> String {
        let thread = &self.threads[thread];
        format!("node {} thread {}", thread.node, thread.waiter.0)
    }

    /// Returns the index of the instruction that a thread executes next, or retries.
    pub fn progress_of(&self, thread: usize) -> usize {
        self.threads[thread].next
    }

    /// Returns the instruction that a thread executes next, or retries.
    pub fn instruction_of(&self, thread: usize) -> Option<&Instruction> {
        self.threads[thread].instructions.get(self.threads[thread].next)
    }

    /// Returns sender and content of the message that arrives next on a link.
    pub fn first_message(&self, from: NodeId, to: NodeId) -> Option<(NodeId, Message<'_>)> {
        let parcel = self.network.first_of((from, to))?;
        Some((parcel.from, Message::decode(&parcel.bytes, &self.limits).ok()?))
    }

    /// Describes what a choice makes happen.
    pub fn describe(&self, choice: Choice) -> String {
        match choice {
            Choice::Thread(thread) => {
                let next = self.instruction_of(thread).map_or("ends".to_owned(), describe_instruction);
                format!("{}: {next}", self.name_of(thread))
            }
            Choice::Meanwhile(thread) => format!("meanwhile {} goes on", self.name_of(thread)),
            Choice::Arrival { from, to } => match self.first_message(from, to) {
                Some((sender, message)) => {
                    let kind = describe_message(&message);
                    let kind = kind.split([' ', ',', ':']).next().unwrap_or_default().to_owned();
                    format!("node {to} gets node {sender}'s {kind}")
                }
                None => choice.to_string(),
            },
            _ => choice.to_string(),
        }
    }

    /// Returns what the threads have seen of memory so far.
    pub fn execution(&self) -> Execution {
        Execution::of(self.recorder.run())
    }

    /// Checks, when nothing can happen any more, that everything is done.
    ///
    /// # Errors
    /// Threads that wait, or locks about which engines and threads disagree.
    pub fn conclude(&self) -> Result<(), Failure> {
        if self.threads.iter().any(|thread| thread.state != State::Finished) {
            return Err(Failure::Deadlock(self.describe_waits()));
        }
        self.compare_locks()
    }
}

/// Accesses that need not fault.
impl<E: Engine> Cluster<E> {
    /// Lets threads of the node that need not fault continue.
    pub(super) fn bustle(&mut self, id: NodeId) {
        while self.schedule.exploring && self.schedule.chance(self.schedule.bustle, 16) {
            let threads = &self.nodes[id.index()].threads;
            if threads.is_empty() {
                return;
            }
            let number = threads[self.schedule.random.random_range(0..threads.len())];
            self.go_on_freely(number);
        }
    }

    /// Returns the thread's next instruction, if it is an access that need not fault.
    fn free_access(&self, number: usize) -> Option<Instruction> {
        let thread = &self.threads[number];
        let next = thread.instructions.get(thread.next).filter(|_| thread.state == State::Running)?;
        let (at, wanted) = match next {
            Instruction::Load { at, .. } => (at, Access::Read),
            Instruction::Store { at, .. } | Instruction::StoreFrom { at, .. } => (at, Access::Write),
            _ => return None,
        };
        self.allows(number, *at, wanted).then(|| next.clone())
    }

    fn go_on_freely(&mut self, number: usize) {
        match self.free_access(number) {
            Some(Instruction::Load { at, width, into }) => self.load_freely(number, at, width, into),
            Some(Instruction::Store { at, width, value }) => self.store_freely(number, at, width, value),
            Some(Instruction::StoreFrom { at, from }) => {
                let value = self.threads[number].registers[usize::from(from.0)];
                self.store_freely(number, at, Width::Word, value);
            }
            _ => {}
        }
    }
}

/// Writes formatted text into a hash.
struct Hashed<'a, H>(&'a mut H);

impl<H: Hasher> fmt::Write for Hashed<'_, H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn hash_printed(what: &impl fmt::Debug, hasher: &mut impl Hasher) {
    fmt::Write::write_fmt(&mut Hashed(hasher), format_args!("{what:?}")).expect("hashing does not fail");
}

/// Digests that distinguish states. The own memory of planted bugs is not included.
impl<E: Engine + fmt::Debug> Cluster<E> {
    /// Returns a hash of a node: engine, memory, threads, and what its threads have seen of memory, by which
    /// runs are judged.
    pub fn digest_of(&self, id: NodeId) -> u64 {
        let node = &self.nodes[id.index()];
        let hasher = &mut DefaultHasher::new();
        hash_printed(&node.engine, hasher);
        node.memory.hash(hasher);
        for number in &node.threads {
            let thread = &self.threads[*number];
            (thread.next, thread.registers, thread.meetings, &thread.visit).hash(hasher);
            hash_printed(&thread.state, hasher);
        }
        hash_printed(&(&node.mailbox.tokens, node.collectives, &node.mailbox.kept_back), hasher);
        for record in &self.recorder.run().nodes[id.index()].records {
            if concerns_memory_order(&record.event) {
                hash_printed(&(record.thread, &record.event), hasher);
            }
        }
        let mut holds: Vec<PageId> =
            self.holds.iter().filter(|hold| hold.0 == id).map(|hold| hold.1).collect();
        holds.sort();
        holds.hash(hasher);
        hash_printed(&node.races, hasher);
        hasher.finish()
    }

    /// Returns a hash of the state between the nodes: messages, and the true state of locks and atomic words.
    pub fn digest_between(&self) -> u64 {
        let hasher = &mut DefaultHasher::new();
        for Parcel { from, to, bytes } in self.network.under_way() {
            let content = &mut FxHasher::default();
            bytes.hash(content);
            (from, to, content.finish()).hash(hasher);
        }
        let mut locks: Vec<_> =
            self.truth.locks.iter().map(|(lock, record)| (lock, record.holder, record.turns)).collect();
        locks.sort();
        locks.hash(hasher);
        let mut atomics: Vec<_> = self.truth.atomics.iter().collect();
        atomics.sort_by_key(|(at, _)| **at);
        hash_printed(&atomics, hasher);
        hasher.finish()
    }
}
