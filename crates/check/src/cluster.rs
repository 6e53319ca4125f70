//! A whole cluster in one thread: real engines, simulated memories, scripted threads, and a network.
//!
//! At each step the scheduler draws either a thread's next instruction or the arrival of a message.
//! Everything that is drawn comes from one seed, so a seed reproduces a run exactly. The host's side of
//! [`Engine`] carries out each [`Effect`](hiroba_protocol::Effect) literally. On a real machine the program's
//! loads and stores do not wait, so threads that need not fault continue between any two effects, and within
//! effects that examine more than one place.

use std::collections::VecDeque;

use hiroba_base::{LockId, NodeId, PageId, PageRange, Prng, RngExt, seeded};
use hiroba_protocol::{Engine, FAULTING_FROM_GRANULES, Misfit, Misuse, Protocol, Waiter, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{AtomicOutcome, Collective, Limits, Message};
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

pub use crate::execution::Ended;
use crate::memory::{MemoryError, SimulatedMemory};
use crate::mutant::Mutation;
use crate::narration::{Narration, PageStates};
use crate::network::{DirectNetwork, LossyNetwork, Network, Parcel, ShuffledNetwork};
use crate::program::{Address, GRANULE_BYTES, Instruction, Program, REGISTERS, Region, Register};

mod choosing;
mod contributions;
mod effects;
mod instructions;
mod mapping;
mod one_sided;
mod options;
mod ports;
mod races;
mod recording;
mod schedule;

pub use self::choosing::Choice;
use self::choosing::{Links, Within};
use self::contributions::Visit;
use self::mapping::Mappings;
use self::one_sided::Board;
use self::options::protocol_of;
pub use self::options::{NetworkChoice, Options};
use self::ports::{Desk, Post};
use self::races::RaceWatch;
pub use self::races::{FoundRace, RaceBug};
use self::recording::Recorder;
use self::schedule::Schedule;

/// The reason why a run did not end well. All except a misuse and a fatal mismatch are errors of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// No thread can continue.
    #[error("expected every thread to finish, got a deadlock: {0}")]
    Deadlock(String),
    /// An engine refused a message of another.
    #[error("node {node} refused a message from node {from}: {sentence}")]
    Protocol {
        /// The receiver.
        node: NodeId,
        /// The sender.
        from: NodeId,
        /// The engine's error.
        sentence: String,
    },
    /// An engine ended the job.
    #[error("node {node} ended the job: {sentence}")]
    Fatal {
        /// The engine's node.
        node: NodeId,
        /// Its sentence.
        sentence: String,
    },
    /// An engine found an error of the program.
    #[error("thread {thread} broke the rules: {misuse}")]
    Misuse {
        /// The thread.
        thread: usize,
        /// The misuse.
        misuse: Misuse,
    },
    /// An effect does not fit the memory.
    #[error("node {node}: {error}")]
    Memory {
        /// The node.
        node: NodeId,
        /// The error.
        error: MemoryError,
    },
    /// A page fits no row of its protocol's state table.
    #[error("node {node}: {misfit}")]
    State {
        /// The node.
        node: NodeId,
        /// The page and its state.
        misfit: Misfit,
    },
    /// An effect does not fit the state of the threads.
    #[error("node {node}: {sentence}")]
    Host {
        /// The node.
        node: NodeId,
        /// The error.
        sentence: String,
    },
    /// The threads do not end.
    #[error("expected the program to end within {0} steps, got a program that runs on")]
    Endless(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Faulting(Address),
    /// The kernel lets the thread retry when the access of its granule has been set.
    FaultingInKernel(Address),
    Waiting(Wait),
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Acquire(LockId),
    Try(LockId, Register),
    Release,
    Convert,
    Others,
    Condition(LockId),
    Signal,
    Collective(Collective),
    Combine(Address),
    Publish {
        to: NodeId,
        tag: u16,
    },
    Atomic {
        at: Address,
        into: Register,
    },
    /// For the port's node to be informed, before a message is posted.
    Inform(Post),
    Post,
    Take {
        into: Register,
    },
}

struct Thread {
    node: NodeId,
    waiter: Waiter,
    instructions: Vec<Instruction>,
    next: usize,
    registers: [u64; REGISTERS],
    state: State,
    in_team: bool,
    meetings: u64,
    /// True if it is recorded that all have met, and the thread has yet to leave the collective.
    has_met: bool,
    /// Set while it uses what nodes have contributed to a barrier.
    visit: Option<Visit>,
}

struct Node<E> {
    engine: E,
    memory: SimulatedMemory,
    threads: Vec<usize>,
    /// The content of the message that arrived last.
    received: Vec<u8>,
    mailbox: Mailbox,
    /// Collectives that the node has left.
    collectives: u64,
    /// Pages whose diffs were applied, which is not yet recorded.
    applied: FxHashSet<PageId>,
    board: Board,
    mappings: Mappings,
    /// The rows of state tables in which its pages were when they were last reported.
    states: PageStates,
    /// Whether its engine has been informed of a lull.
    in_lull: bool,
    /// Set to look for data races.
    races: Option<RaceWatch>,
}

impl<E: Engine> Node<E> {
    /// Makes a node with the program's regions and without threads.
    fn new(mut engine: E, id: NodeId, program: &Program, options: &mut Options) -> Node<E> {
        let mut memory = SimulatedMemory::new(program.region_granules(), options.tracking);
        for (number, region) in program.regions.iter().enumerate() {
            let Region { granules, page_size, placement, .. } = *region;
            let protocol = protocol_of(&options.region_protocols, number);
            let are_long = page_size.bytes() as u64 >= FAULTING_FROM_GRANULES * u64::from(GRANULE_BYTES);
            if are_long || protocol.is_some_and(Protocol::needs_write_faults) {
                memory.let_stores_fault(granules).expect("regions lie inside the memory");
            }
            match protocol {
                Some(protocol) => engine.add_region_under(protocol, granules, page_size, placement),
                None => engine.add_region(granules, page_size, placement),
            }
        }
        engine.set_team(options.mutation.on_team(program.team_of(id)).max(1));
        Node {
            engine,
            memory,
            threads: Vec::new(),
            received: Vec::new(),
            mailbox: Mailbox::default(),
            collectives: 0,
            applied: FxHashSet::default(),
            board: Board::default(),
            mappings: Mappings::default(),
            states: PageStates::new(),
            in_lull: false,
            races: options.races.map(RaceWatch::new),
        }
    }
}

/// The publications that a node has received.
#[derive(Default)]
struct Mailbox {
    /// Tokens of publications that have arrived, by sender and tag.
    tokens: FxHashMap<(NodeId, u16), VecDeque<u64>>,
    /// Nodes whose publications belong to a collective that this node has yet to leave. The engine defers
    /// them until then, and the host must defer what arrived after them, here.
    ahead: FxHashSet<NodeId>,
    kept_back: Vec<(NodeId, u64)>,
}

impl Mailbox {
    /// Takes what arrived after a publication.
    fn receive(&mut self, from: NodeId, token: u64) {
        if self.ahead.contains(&from) {
            self.kept_back.push((from, token));
        } else {
            self.tokens.entry((from, tag_of(token))).or_default().push_back(token);
        }
    }

    /// Handles that the node has left the collective.
    fn catch_up(&mut self) {
        self.ahead.clear();
        for (from, token) in std::mem::take(&mut self.kept_back) {
            self.receive(from, token);
        }
    }
}

/// The true state of synchronisation, derived from the actions of threads, with which the engines' statements
/// are compared.
#[derive(Default)]
struct Truth {
    locks: FxHashMap<LockId, LockRecord>,
    /// Operations carried out at a word's home and not yet reported to the thread: turn, outcome.
    atomics: FxHashMap<Address, (u64, Vec<(u64, AtomicOutcome)>)>,
    /// The number of publications, by sender and receiver.
    publications: FxHashMap<(NodeId, NodeId), u64>,
}

#[derive(Default)]
struct LockRecord {
    holder: Option<usize>,
    turns: u64,
}

/// How far a run has come, and how far it may go.
struct Progress {
    /// Messages that have arrived.
    deliveries: u64,
    /// The number of instructions and deliveries.
    steps: u64,
    steps_max: u64,
}

/// The number of bits of a publication's token that contain its tag.
const TAG_BITS: u32 = 16;

fn tag_of(token: u64) -> u16 {
    token as u16
}

/// A simulated cluster that runs one program.
pub struct Cluster<E> {
    limits: Limits,
    /// The program's regions, each of which counts as a block of the program.
    regions: Vec<PageRange>,
    nodes: Vec<Node<E>>,
    threads: Vec<Thread>,
    /// The nodes' ports, if the program has any.
    desks: Vec<Desk>,
    network: Box<dyn Network>,
    mutation: Box<dyn Mutation>,
    schedule: Schedule,
    /// The choices within the step that is being made, if steps are chosen.
    within: Option<Within>,
    recorder: Recorder,
    truth: Truth,
    /// Pages whose nodes have asked to be informed when threads have had time to use them.
    holds: Vec<(NodeId, PageId)>,
    /// The reason why regions could not be mapped as engines request.
    unmapped: Option<Failure>,
    progress: Progress,
}

/// Makes the program's threads, and registers each with its node.
fn threads_of<E>(program: &Program, nodes: &mut [Node<E>]) -> Vec<Thread> {
    let threads = program.threads.iter().enumerate().map(|(number, script)| {
        let siblings = &mut nodes[script.node.index()].threads;
        siblings.push(number);
        Thread {
            node: script.node,
            waiter: Waiter(siblings.len() as u32 - 1),
            instructions: script.instructions.clone(),
            next: 0,
            registers: [0; REGISTERS],
            state: State::Running,
            in_team: script.in_team,
            meetings: 0,
            has_met: false,
            visit: None,
        }
    });
    threads.collect()
}

fn network_of(choice: NetworkChoice, nodes: u16, random: &mut Prng) -> Box<dyn Network> {
    match choice {
        NetworkChoice::Direct => Box::new(DirectNetwork::default()),
        NetworkChoice::Chosen => Box::new(Links::default()),
        NetworkChoice::Lossy => Box::new(LossyNetwork::new(nodes, random)),
        NetworkChoice::Shuffled => Box::new(ShuffledNetwork::new(nodes, random)),
    }
}

impl<E: Engine> Cluster<E> {
    /// Makes a cluster that is about to run `program`, with one engine per node.
    pub fn new(
        program: &Program,
        mut engine: impl FnMut(NodeId, Limits, WriteTracking) -> E,
        mut options: Options,
    ) -> Cluster<E> {
        let region_granules = program.region_granules();
        let limits = Limits { nodes: program.nodes, region_granules, granule_bytes: GRANULE_BYTES };
        let mut random = seeded(options.seed);
        let mut nodes: Vec<Node<E>> = NodeId::all(program.nodes)
            .map(|id| Node::new(engine(id, limits, options.tracking), id, program, &mut options))
            .collect();
        let threads = threads_of(program, &mut nodes);
        let network = network_of(options.network, program.nodes, &mut random);
        let schedule = Schedule::new(random, &options, threads.len());
        let mut cluster = Cluster {
            limits,
            regions: program.regions.iter().map(|region| region.granules).collect(),
            nodes,
            recorder: Recorder::new(options.record, program.nodes),
            threads,
            desks: ports::open(program),
            network,
            mutation: options.mutation,
            schedule,
            within: None,
            truth: Truth::default(),
            holds: Vec::new(),
            unmapped: None,
            progress: Progress { deliveries: 0, steps: 0, steps_max: options.steps_max },
        };
        cluster.note_regions(program, &options.region_protocols);
        cluster.unmapped = cluster.map_homes().err();
        cluster
    }

    /// Returns a node's engine.
    pub fn engine(&self, node: NodeId) -> &E {
        &self.nodes[node.index()].engine
    }

    /// Begins to narrate the messages and actions of nodes.
    pub fn narrate(&mut self, narration: Narration) {
        self.recorder.narration = Some(narration);
    }

    /// Returns the engines, by node.
    pub fn into_engines(self) -> Vec<E> {
        self.nodes.into_iter().map(|node| node.engine).collect()
    }

    /// Returns the present value of a thread's register.
    pub fn register(&self, thread: usize, register: usize) -> u64 {
        self.threads[thread].registers[register]
    }

    /// Returns the number of messages in flight.
    pub fn messages_under_way(&self) -> usize {
        self.network.len()
    }

    /// Returns the number of messages that have arrived.
    pub fn deliveries(&self) -> u64 {
        self.progress.deliveries
    }

    /// Returns the number of twins on all nodes.
    pub fn twins(&self) -> usize {
        self.nodes.iter().map(|node| node.memory.twins()).sum()
    }

    /// Runs the program to its end.
    pub fn run(mut self) -> Result<Ended, Failure> {
        while self.step()? {
            if self.progress.steps > self.progress.steps_max {
                return Err(Failure::Endless(self.progress.steps_max));
            }
        }
        self.compare_locks()?;
        let registers = self.threads.iter().map(|thread| thread.registers).collect();
        Ok(Ended { registers, run: self.recorder.finish(), steps: self.progress.steps })
    }

    /// Makes one step, an instruction or a message. Returns false when everything has ended.
    pub fn step(&mut self) -> Result<bool, Failure> {
        self.unmapped.take().map_or(Ok(()), Err)?;
        if self.advance()? {
            return Ok(true);
        }
        if self.threads.iter().all(|thread| thread.state == State::Finished) {
            return Ok(false);
        }
        Err(Failure::Deadlock(self.describe_waits()))
    }

    /// Returns false if no node can act now.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.progress.steps += 1;
        if let Some(parcel) = self.kept_parcel() {
            self.deliver(parcel)?;
            return Ok(true);
        }
        let thread = self.draw_thread();
        let idle = thread.is_none() && self.network.is_empty();
        if !self.holds.is_empty() && (idle || self.schedule.chance(1, 16)) && self.end_a_hold()? {
            return Ok(true);
        }
        if self.packets_owe() && (idle || self.schedule.chance(1, 8)) {
            self.inform_for_packets()?;
            return Ok(true);
        }
        if idle && self.time_passes()? {
            return Ok(true);
        }
        if !idle && (self.a_lull_comes()? || self.memory_is_short()?) {
            return Ok(true);
        }
        let network_first = !self.network.is_empty()
            && (thread.is_none() || self.schedule.favours_network(self.progress.steps));
        if network_first && let Some(parcel) = self.network.deliver(&mut self.schedule.random) {
            self.progress.deliveries += 1;
            if !self.keep_parcel(&parcel) {
                self.deliver(parcel)?;
            }
            return Ok(true);
        }
        if let Some(thread) = thread {
            self.execute(thread)?;
        }
        Ok(thread.is_some())
    }

    /// Ends a page's hold. Threads do not wait while a page is held, but how far they come is unknown.
    /// Returns false if its node has yet to carry out the effects of another event.
    fn end_a_hold(&mut self) -> Result<bool, Failure> {
        let drawn = self.schedule.random.random_range(0..self.holds.len());
        if self.nodes[self.holds[drawn].0.index()].board.occupied {
            return Ok(false);
        }
        let (id, page) = self.holds.swap_remove(drawn);
        self.acts_by_itself(id);
        self.nodes[id.index()].engine.handle_retained(page);
        self.pump(id).map(|()| true)
    }

    /// Lets a lull begin. Hosts have nothing to do at times that are unknown.
    fn a_lull_comes(&mut self) -> Result<bool, Failure> {
        let wants = |node: &Node<E>| !node.board.occupied && node.engine.wants_lull();
        let wanting: Vec<NodeId> = NodeId::all(self.limits.nodes)
            .zip(&self.nodes)
            .filter_map(|(id, node)| (self.schedule.exploring && wants(node)).then_some(id))
            .collect();
        if wanting.is_empty() || !self.schedule.chance(self.schedule.lulls, 64) {
            return Ok(false);
        }
        let id = wanting[self.schedule.random.random_range(0..wanting.len())];
        self.acts_by_itself(id);
        self.lull(id).map(|()| true)
    }

    /// Informs a node's engine of a lull.
    ///
    /// # Errors
    /// What went wrong.
    pub fn lull(&mut self, id: NodeId) -> Result<(), Failure> {
        self.nodes[id.index()].engine.handle_lull();
        self.nodes[id.index()].in_lull = true;
        let pumped = self.pump(id);
        self.nodes[id.index()].in_lull = false;
        pumped
    }

    /// Simulates a shortage of memory: hosts evict pages of their choice.
    fn memory_is_short(&mut self) -> Result<bool, Failure> {
        let may = self.schedule.exploring && self.schedule.shortages > 0;
        if !may || !self.schedule.chance(self.schedule.shortages, 64) {
            return Ok(false);
        }
        let id = NodeId(self.schedule.random.random_range(0..self.limits.nodes));
        if self.nodes[id.index()].board.occupied {
            return Ok(false);
        }
        let is_picked = |_: &u64| self.schedule.random.random_bool(0.5);
        let pages: Vec<PageId> = (0..self.limits.region_granules).filter(is_picked).map(PageId).collect();
        self.acts_by_itself(id);
        self.nodes[id.index()].engine.handle_shortage(&pages);
        self.pump(id).map(|()| true)
    }

    fn is_runnable(&self, thread: &Thread) -> bool {
        if self.nodes[thread.node.index()].board.occupied {
            return false;
        }
        let waits = |from: NodeId, tag: u16| {
            self.nodes[thread.node.index()]
                .mailbox
                .tokens
                .get(&(from, tag))
                .is_none_or(|tokens| tokens.is_empty())
        };
        match thread.instructions.get(thread.next) {
            Some(Instruction::AwaitPublished { from, tag }) => {
                thread.state == State::Running && !waits(*from, *tag)
            }
            _ => thread.state == State::Running,
        }
    }

    fn draw_thread(&mut self) -> Option<usize> {
        let runnable: Vec<bool> = self.threads.iter().map(|thread| self.is_runnable(thread)).collect();
        self.schedule.draw(&runnable)
    }

    /// Checks, when all have finished, that the engines know the same holders as the scripts imply.
    fn compare_locks(&self) -> Result<(), Failure> {
        for (id, node) in NodeId::all(self.limits.nodes).zip(&self.nodes) {
            let mut told = node.engine.locks_held();
            let held = self.truth.locks.iter().filter_map(|(lock, record)| Some((*lock, record.holder?)));
            let here = held.filter(|(_, holder)| self.threads[*holder].node == id);
            let mut true_holders: Vec<_> =
                here.map(|(lock, holder)| (lock, self.threads[holder].waiter)).collect();
            told.sort();
            true_holders.sort();
            if told != true_holders {
                let sentence = format!("locks held are {true_holders:?}, but the engine says {told:?}");
                return Err(Failure::Host { node: id, sentence });
            }
        }
        Ok(())
    }

    fn describe_waits(&self) -> String {
        let waiting = self.threads.iter().enumerate().filter(|(_, thread)| thread.state != State::Finished);
        let lines: Vec<String> = waiting
            .map(|(number, thread)| {
                let instruction = thread.instructions.get(thread.next);
                let lock = match thread.state {
                    State::Waiting(Wait::Acquire(lock) | Wait::Condition(lock)) => {
                        self.truth.locks.get(&lock)
                    }
                    _ => None,
                };
                let holder = lock.and_then(|lock| lock.holder);
                let holder = holder.map_or(String::new(), |holder| format!(" (held by thread {holder})"));
                format!("thread {number} on node {} waits in {instruction:?}{holder}", thread.node)
            })
            .collect();
        lines.join("; ")
    }

    fn deliver(&mut self, parcel: Parcel) -> Result<(), Failure> {
        let Parcel { from, to, bytes } = parcel;
        let limits = self.limits;
        let refused = |sentence: String| Failure::Protocol { node: to, from, sentence };
        let message = Message::decode(&bytes, &limits).map_err(|error| refused(error.to_string()))?;
        self.begin_serving(to, from, &bytes);
        self.handle(from, to, &message)?;
        self.note_at(to, Event::Leave);
        Ok(())
    }

    fn handle(&mut self, from: NodeId, to: NodeId, message: &Message<'_>) -> Result<(), Failure> {
        let has_passed = self.has_passed(to);
        let node = &mut self.nodes[to.index()];
        let refused = |sentence: String| Failure::Protocol { node: to, from, sentence };
        match message {
            Message::Free { address: token } => {
                node.mailbox.receive(from, *token);
                return Ok(());
            }
            Message::Ports { bytes } => return self.hear_packet(from, to, bytes),
            Message::Publish { .. } if !self.mutation.hears_publications(has_passed) => return Ok(()),
            Message::Publish { knowledge, .. }
                if knowledge.epoch > node.collectives && self.mutation.keeps_back() =>
            {
                node.mailbox.ahead.insert(from);
            }
            _ => {}
        }
        if self.hear_touched(from, to, message) {
            return Ok(());
        }
        let node = &mut self.nodes[to.index()];
        let collectives = node.collectives;
        node.engine.handle_message(from, message).map_err(|error| refused(error.to_string()))?;
        node.received = message.content().to_vec();
        self.pump(to)?;
        let node = &mut self.nodes[to.index()];
        if node.collectives > collectives {
            node.mailbox.catch_up();
            return self.hear_kept_packets(to);
        }
        Ok(())
    }
}
