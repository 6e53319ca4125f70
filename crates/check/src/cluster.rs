//! A whole cluster in one thread: real engines, simulated memories, scripted threads, and a network.
//!
//! At each step the scheduler draws either a thread's next instruction or the arrival of a message. Everything
//! drawn comes from one seed, so a seed reproduces a run exactly. The host's side of [`Engine`] is carried out to the letter of
//! [`Effect`](hiroba_protocol::Effect); and since on a real machine the program's loads and stores wait for nobody, threads that need not
//! fault go on between any two effects, and within those that look at more than one place.

use std::collections::VecDeque;

use hiroba_base::{LockId, NodeId, PageId, Prng, RngExt, seeded};
use hiroba_protocol::{Engine, FAULTING_FROM_GRANULES, Misfit, Misuse, Protocol, Waiter, WriteTracking};
use hiroba_trace::Event;
use hiroba_wire::{AtomicOutcome, Collective, Limits, Message};
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::execution::{Execution, Run};
use crate::memory::{MemoryError, SimulatedMemory};
use crate::mutant::Mutation;
use crate::narration::{Narration, PageStates};
use crate::network::{DirectNetwork, LossyNetwork, Network, Parcel, ShuffledNetwork};
use crate::program::{Address, GRANULE_BYTES, Instruction, Program, REGISTERS, Region, Register};

mod choosing;
mod effects;
mod instructions;
mod mapping;
mod one_sided;
mod options;
mod races;
mod recording;

pub use self::choosing::Choice;
use self::choosing::{Links, Within};
use self::mapping::Mappings;
pub use self::mapping::mapping_aurc;
use self::one_sided::{Board, Meddling};
pub use self::one_sided::{aurc, hlrc};
use self::options::protocol_of;
pub use self::options::{NetworkChoice, Options};
use self::races::RaceWatch;
pub use self::races::{FoundRace, RaceBug};
use self::recording::Recorder;

/// Why a run did not end well. All but a misuse and a fatal mismatch are faults of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// Nobody can go on.
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
        /// Which engine.
        node: NodeId,
        /// Its sentence.
        sentence: String,
    },
    /// An engine found the program at fault.
    #[error("thread {thread} broke the rules: {misuse}")]
    Misuse {
        /// The thread.
        thread: usize,
        /// What it did.
        misuse: Misuse,
    },
    /// An effect does not fit the memory.
    #[error("node {node}: {error}")]
    Memory {
        /// The node.
        node: NodeId,
        /// What is wrong.
        error: MemoryError,
    },
    /// A page fits no row of its protocol's state table.
    #[error("node {node}: {misfit}")]
    State {
        /// The node.
        node: NodeId,
        /// The page, and what it is.
        misfit: Misfit,
    },
    /// An effect does not fit the state of the threads.
    #[error("node {node}: {sentence}")]
    Host {
        /// The node.
        node: NodeId,
        /// What is wrong.
        sentence: String,
    },
    /// The threads run on and on.
    #[error("expected the program to end within {0} steps, got a program that runs on")]
    Endless(u64),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Each thread's registers.
    pub registers: Vec<[u64; REGISTERS]>,
    /// What was recorded.
    pub run: Run,
    /// Instructions and deliveries.
    pub steps: u64,
}

impl Ended {
    /// A thread's register.
    pub fn register(&self, thread: usize, register: usize) -> u64 {
        self.registers[thread][register]
    }

    /// What the threads saw of memory.
    pub fn execution(&self) -> Execution {
        Execution::of(&self.run)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Faulting(Address),
    /// The kernel lets the thread try again when the access of its granule has been set.
    FaultingInKernel(Address),
    Waiting(Wait),
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Acquire(LockId),
    Try(LockId, Register),
    Release,
    Condition(LockId),
    Signal,
    Collective(Collective),
    Publish { to: NodeId, tag: u16 },
    Atomic { at: Address, into: Register },
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
}

struct Node<E> {
    engine: E,
    memory: SimulatedMemory,
    threads: Vec<usize>,
    /// The content of the message that came last.
    received: Vec<u8>,
    /// Tokens of publications that have come, by sender and tag.
    mailbox: FxHashMap<(NodeId, u16), VecDeque<u64>>,
    /// Collectives that the node has left.
    collectives: u64,
    /// Nodes whose publications tell of a collective that this node has yet to leave. The engine keeps them back until
    /// then, and the host must keep back what came behind them: here.
    ahead: FxHashSet<NodeId>,
    kept_back: Vec<(NodeId, u64)>,
    /// Pages whose diffs were applied, which is yet to be told of.
    applied: FxHashSet<PageId>,
    board: Board,
    mappings: Mappings,
    /// The rows of state tables that its pages were in when they were last told.
    states: PageStates,
    /// Its engine has been told of a lull.
    in_lull: bool,
    /// Where data races are looked for.
    races: Option<RaceWatch>,
}

impl<E> Node<E> {
    fn receive(&mut self, from: NodeId, token: u64) {
        self.mailbox.entry((from, tag_of(token))).or_default().push_back(token);
    }
}

#[derive(Default)]
struct LockRecord {
    holder: Option<usize>,
    turns: u64,
}

/// Bits of a publication's token that hold its tag.
const TAG_BITS: u32 = 16;

fn tag_of(token: u64) -> u16 {
    token as u16
}

/// A simulated cluster that runs one program.
pub struct Cluster<E> {
    limits: Limits,
    nodes: Vec<Node<E>>,
    threads: Vec<Thread>,
    network: Box<dyn Network>,
    mutation: Box<dyn Mutation>,
    random: Prng,
    /// How often each thread is drawn: some are much slower than others.
    paces: Vec<u32>,
    /// Steps in 16 that favour a thread over the network.
    thread_bias: u32,
    /// How often in 16 a thread goes on between two effects of its node.
    bustle: u32,
    meddling: Meddling,
    /// Steps in 64 that are a lull of some node whose engine wants one.
    lulls: u32,
    exploring: bool,
    within: Option<Within>,
    turn: u32,
    recorder: Recorder,
    narration: Option<Narration>,
    locks: FxHashMap<LockId, LockRecord>,
    /// Operations carried out at a word's home and not yet reported to the thread: turn, outcome.
    atomics: FxHashMap<Address, (u64, Vec<(u64, AtomicOutcome)>)>,
    /// Pages whose nodes have asked to be told when threads have had time to use them.
    holds: Vec<(NodeId, PageId)>,
    /// How many publications there were, by sender and receiver.
    publications: FxHashMap<(NodeId, NodeId), u64>,
    /// Why regions could not be mapped as engines want it.
    unmapped: Option<Failure>,
    deliveries: u64,
    steps: u64,
    steps_max: u64,
}

impl<E: Engine> Cluster<E> {
    /// A cluster about to run `program`, with one engine a node.
    pub fn new(
        program: &Program,
        mut engine: impl FnMut(NodeId, Limits, WriteTracking) -> E,
        mut options: Options,
    ) -> Cluster<E> {
        let region_granules = program.region_granules();
        let region_protocols = options.region_protocols.clone();
        let limits = Limits { nodes: program.nodes, region_granules, granule_bytes: GRANULE_BYTES };
        let mut random = seeded(options.seed);
        let mut nodes: Vec<Node<E>> = NodeId::all(program.nodes)
            .map(|id| {
                let mut engine = engine(id, limits, options.tracking);
                let mut memory = SimulatedMemory::new(region_granules, options.tracking);
                for (number, region) in program.regions.iter().enumerate() {
                    let Region { granules, page_size, placement, .. } = *region;
                    let protocol = protocol_of(&region_protocols, number);
                    let are_long =
                        page_size.bytes() as u64 >= FAULTING_FROM_GRANULES * u64::from(GRANULE_BYTES);
                    if are_long || protocol.is_some_and(Protocol::needs_write_faults) {
                        memory.let_stores_fault(granules).expect("regions lie inside the memory");
                    }
                    match protocol {
                        Some(protocol) => {
                            engine.add_region_under(protocol, granules, page_size, placement);
                        }
                        None => engine.add_region(granules, page_size, placement),
                    }
                }
                engine.set_team(options.mutation.on_team(program.team_of(id)).max(1));
                Node {
                    engine,
                    memory,
                    threads: Vec::new(),
                    received: Vec::new(),
                    mailbox: FxHashMap::default(),
                    collectives: 0,
                    ahead: FxHashSet::default(),
                    kept_back: Vec::new(),
                    applied: FxHashSet::default(),
                    board: Board::default(),
                    mappings: Mappings::default(),
                    states: PageStates::new(),
                    in_lull: false,
                    races: options.races.map(RaceWatch::new),
                }
            })
            .collect();
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
            }
        });
        let threads: Vec<Thread> = threads.collect();
        let network: Box<dyn Network> = match options.network {
            NetworkChoice::Direct => Box::new(DirectNetwork::default()),
            NetworkChoice::Chosen => Box::new(Links::default()),
            NetworkChoice::Lossy => Box::new(LossyNetwork::new(program.nodes, &mut random)),
            NetworkChoice::Shuffled => Box::new(ShuffledNetwork::new(program.nodes, &mut random)),
        };
        let thread_bias = [2, 8, 14][random.random_range(0..3)];
        let bustle = [0, 4, 12][random.random_range(0..3)];
        let paces = threads.iter().map(|_| [1, 8, 64][random.random_range(0..3)]).collect();
        let exploring = !matches!(options.network, NetworkChoice::Direct | NetworkChoice::Chosen);
        let meddling = Meddling::new(options.one_sided && exploring, &mut random);
        let mut cluster = Cluster {
            limits,
            nodes,
            recorder: Recorder::new(options.record, program.nodes),
            narration: None,
            threads,
            network,
            mutation: options.mutation,
            random,
            paces,
            thread_bias,
            bustle,
            meddling,
            lulls: [1, 8, 32][options.seed as usize % 3],
            exploring,
            within: None,
            turn: 0,
            locks: FxHashMap::default(),
            atomics: FxHashMap::default(),
            holds: Vec::new(),
            publications: FxHashMap::default(),
            unmapped: None,
            deliveries: 0,
            steps: 0,
            steps_max: options.steps_max,
        };
        cluster.note_regions(program, &region_protocols);
        cluster.unmapped = cluster.map_homes().err();
        cluster
    }

    /// A node's engine.
    pub fn engine(&self, node: NodeId) -> &E {
        &self.nodes[node.index()].engine
    }

    /// Tells from now on what nodes say and do.
    pub fn narrate(&mut self, narration: Narration) {
        self.narration = Some(narration);
    }

    /// The engines, by node.
    pub fn into_engines(self) -> Vec<E> {
        self.nodes.into_iter().map(|node| node.engine).collect()
    }

    /// A thread's register, now.
    pub fn register(&self, thread: usize, register: usize) -> u64 {
        self.threads[thread].registers[register]
    }

    /// Messages under way.
    pub fn messages_under_way(&self) -> usize {
        self.network.len()
    }

    /// Messages that have arrived.
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// Twins on all nodes.
    pub fn twins(&self) -> usize {
        self.nodes.iter().map(|node| node.memory.twins()).sum()
    }

    /// Runs to the end.
    pub fn run(mut self) -> Result<Ended, Failure> {
        while self.step()? {
            if self.steps > self.steps_max {
                return Err(Failure::Endless(self.steps_max));
            }
        }
        self.compare_locks()?;
        let registers = self.threads.iter().map(|thread| thread.registers).collect();
        Ok(Ended { registers, run: self.recorder.finish(), steps: self.steps })
    }

    /// One instruction or one message; false when everything has ended.
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

    /// False when nobody can do anything now.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.steps += 1;
        if let Some(parcel) = self.kept_parcel() {
            self.deliver(parcel)?;
            return Ok(true);
        }
        let thread = self.draw_thread();
        let idle = thread.is_none() && self.network.is_empty();
        if !self.holds.is_empty() && (idle || self.random.random_range(0..16) == 0) {
            self.end_a_hold()?;
            return Ok(true);
        }
        if !idle && self.a_lull_comes()? {
            return Ok(true);
        }
        let network_first = !self.network.is_empty()
            && (thread.is_none()
                || self.exploring && self.random.random_range(0..16) >= self.thread_bias
                || !self.exploring && self.steps.is_multiple_of(2));
        if network_first && let Some(parcel) = self.network.deliver(&mut self.random) {
            self.deliveries += 1;
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

    /// Threads wait for nobody while a page is held, but nobody knows how far they come.
    fn end_a_hold(&mut self) -> Result<(), Failure> {
        let drawn = self.random.random_range(0..self.holds.len());
        let (id, page) = self.holds.swap_remove(drawn);
        self.nodes[id.index()].engine.handle_held(page);
        self.pump(id)
    }

    /// Hosts have nothing to do now and then, and nobody knows when.
    fn a_lull_comes(&mut self) -> Result<bool, Failure> {
        let wants = |node: &Node<E>| !node.board.occupied && node.engine.wants_lull();
        let wanting: Vec<NodeId> = NodeId::all(self.limits.nodes)
            .zip(&self.nodes)
            .filter_map(|(id, node)| (self.exploring && wants(node)).then_some(id))
            .collect();
        if wanting.is_empty() || self.random.random_range(0..64) >= self.lulls {
            return Ok(false);
        }
        let id = wanting[self.random.random_range(0..wanting.len())];
        self.acts_by_itself(id);
        self.lull(id).map(|()| true)
    }

    /// A node's host has nothing to do.
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

    fn is_runnable(&self, thread: &Thread) -> bool {
        if self.nodes[thread.node.index()].board.occupied {
            return false;
        }
        let waits = |from: NodeId, tag: u16| {
            self.nodes[thread.node.index()].mailbox.get(&(from, tag)).is_none_or(|tokens| tokens.is_empty())
        };
        match thread.instructions.get(thread.next) {
            Some(Instruction::AwaitPublished { from, tag }) => {
                thread.state == State::Running && !waits(*from, *tag)
            }
            _ => thread.state == State::Running,
        }
    }

    fn draw_thread(&mut self) -> Option<usize> {
        let total: u32 = (0..self.threads.len()).map(|number| self.pace(number)).sum();
        if total == 0 {
            return None;
        }
        self.turn = self.turn.wrapping_add(1);
        let mut drawn = if self.exploring { self.random.random_range(0..total) } else { self.turn % total };
        for number in 0..self.threads.len() {
            let pace = self.pace(number);
            if drawn < pace {
                return Some(number);
            }
            drawn -= pace;
        }
        None
    }

    /// How likely a thread is drawn next; 0 when it waits.
    fn pace(&self, number: usize) -> u32 {
        match (self.is_runnable(&self.threads[number]), self.exploring) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.paces[number],
        }
    }

    /// When all have finished, the engines must know the same holders as the scripts imply.
    fn compare_locks(&self) -> Result<(), Failure> {
        for (id, node) in NodeId::all(self.limits.nodes).zip(&self.nodes) {
            let mut told = node.engine.locks_held();
            let held = self.locks.iter().filter_map(|(lock, record)| Some((*lock, record.holder?)));
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
                    State::Waiting(Wait::Acquire(lock) | Wait::Condition(lock)) => self.locks.get(&lock),
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
        let node = &mut self.nodes[to.index()];
        let refused = |sentence: String| Failure::Protocol { node: to, from, sentence };
        match message {
            Message::Free { address: token } if node.ahead.contains(&from) => {
                node.kept_back.push((from, *token));
                return Ok(());
            }
            Message::Free { address: token } => {
                node.receive(from, *token);
                return Ok(());
            }
            Message::Publish { knowledge, .. }
                if knowledge.epoch > node.collectives && self.mutation.keeps_back() =>
            {
                node.ahead.insert(from);
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
            node.ahead.clear();
            for (from, token) in std::mem::take(&mut node.kept_back) {
                node.receive(from, token);
            }
        }
        Ok(())
    }
}
