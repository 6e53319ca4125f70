//! A whole cluster in one thread: real engines, simulated memories, scripted threads, and a network.
//!
//! At each step the scheduler draws either a thread's next instruction or the arrival of a message. Everything
//! drawn comes from one seed, so a seed reproduces a run exactly. The host's side of [`Engine`] is carried out to the letter of
//! [`Effect`]; and since on a real machine the program's loads and stores wait for nobody, threads that need not
//! fault go on between any two effects, and within those that look at more than one place.

use std::collections::VecDeque;

use crate::program::Region;
use hiroba_base::{Access, LockId, NodeId, PageId, PageRange, PageSet, Prng, RngExt, seeded};
use hiroba_protocol::{
    Done, Effect, Engine, Misuse, NewContent, Outcome, PageToSend, Sync, Waiter, WriteTracking, diff,
};
use hiroba_trace::{Activity, Event};
use hiroba_wire::{AtomicOperation, AtomicOutcome, Collective, Limits, Message, PageCopy};
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use crate::execution::{Execution, Run};
use crate::memory::{MemoryError, Merge, SimulatedMemory, TwinAfter};
use crate::mutant::Mutation;
use crate::narration::Narration;
use crate::network::{DirectNetwork, LossyNetwork, Network, Parcel, ShuffledNetwork};
use crate::program::{Address, GRANULE_BYTES, Instruction, Program, REGISTERS, Register, Width};

mod choosing;
mod mapping;
mod one_sided;
mod options;
mod recording;

pub use self::choosing::Choice;
use self::choosing::{Links, Within};
use self::mapping::Mappings;
pub use self::mapping::mapping_aurc;
use self::one_sided::{Board, Meddling};
pub use self::one_sided::{aurc, hlrc};
use self::options::protocol_of;
pub use self::options::{NetworkChoice, Options};
use self::recording::{Recorder, activity_of};

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
    /// Its engine has been told of a lull.
    in_lull: bool,
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
                    match protocol_of(&region_protocols, number) {
                        Some(protocol) => {
                            if protocol.needs_write_faults() {
                                memory.let_stores_fault(granules).expect("regions lie inside the memory");
                            }
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
                    in_lull: false,
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

/// Effects.
impl<E: Engine> Cluster<E> {
    fn pump(&mut self, id: NodeId) -> Result<(), Failure> {
        while let Some(effect) = self.nodes[id.index()].engine.poll_effect() {
            // Telling takes no time, and nobody can get it wrong.
            if let Effect::Tell(fact) = effect {
                self.note_fact(id, fact)?;
                continue;
            }
            for effect in self.mutation.on_effect(id, effect) {
                self.meanwhile(id, &effect);
                if let Some(narration) = &self.narration {
                    narration.carries_out(id, &effect);
                }
                self.carry_out(id, effect)?;
                self.bustle(id);
                self.others_go_on(id)?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, id: NodeId, effect: Effect) -> Result<(), Failure> {
        let node = &mut self.nodes[id.index()];
        let memory = &mut node.memory;
        let wrong = |error| Failure::Memory { node: id, error };
        match effect {
            Effect::Send { to, message } => self.send(id, to, message),
            Effect::SendPages { to, pages, ahead_of } => {
                let mut content = Vec::new();
                let copies = pages.into_iter().map(|PageToSend { page, page_bytes, version }| {
                    let bytes = self.mutation.on_content(page, memory.content(page, page_bytes as usize));
                    content.extend(bytes.iter().flatten());
                    PageCopy { page, version, is_zero: bytes.is_none() }
                });
                let (copies, content) = (copies.collect(), &content[..]);
                let message = match ahead_of {
                    Some(epoch) => Message::PagesSupplied { epoch, copies, content },
                    None => Message::PagesReply { copies, content },
                };
                self.send(id, to, message.encode());
            }
            Effect::SendTwin { to, page, version } => {
                let (_, twin) = memory.with_twin(page).map_err(wrong)?;
                let bytes = self.mutation.on_content(page, Some(twin));
                let copies = vec![PageCopy { page, version, is_zero: bytes.is_none() }];
                let content = bytes.unwrap_or_default();
                let message = Message::PagesReply { copies, content: &content }.encode();
                self.send(id, to, message);
            }
            Effect::Protect { pages, access } => {
                memory.protect(pages, access).map_err(wrong)?;
                self.note_access(id, pages, access);
                if access > Access::None {
                    self.end_faults_in_kernel(id, pages);
                }
            }
            Effect::Invalidate { span, pages: _ } => {
                memory.protect(span, Access::None).map_err(wrong)?;
                self.note_access(id, span, Access::None);
            }
            Effect::MapHome { pages, home } => {
                memory.map(pages).map_err(wrong)?;
                node.mappings.add(pages, home);
                self.note_access(id, pages, Access::Write);
            }
            Effect::Watch { pages } => {
                memory.watch(pages).map_err(wrong)?;
                self.note_access(id, pages, Access::Write);
                self.end_faults_in_kernel(id, pages);
            }
            Effect::Unwatch { pages } => memory.unwatch(pages).map_err(wrong)?,
            Effect::CollectWritten => self.collect_written(id)?,
            Effect::FindUnwritten { spans } => self.find_unwritten(id, &spans),
            Effect::DropTwin { page } => memory.drop_twin(page).map_err(wrong)?,
            Effect::Twin { page, page_bytes } => {
                let twin = memory.make_twin(page, page_bytes as usize).map_err(wrong)?;
                self.mutation.on_twin(id, page, twin);
                self.note_at(id, Event::Twinned { page });
            }
            Effect::Diff { page, keep_twin } => {
                let after = if keep_twin { TwinAfter::WithDiff } else { TwinAfter::Dropped };
                let after = self.mutation.on_settle(after);
                let runs = self.make_diff(id, page, after)?;
                self.nodes[id.index()].engine.handle_done(Done::Diff { page, runs });
            }
            Effect::DiffEarly { page } => {
                let after = self.mutation.on_settle_early(TwinAfter::WithDiff);
                let runs = self.make_diff(id, page, after)?;
                self.nodes[id.index()].engine.handle_done(Done::DiffedEarly { page, runs });
            }
            Effect::Apply { page, runs } => {
                memory.apply(page, &runs, self.mutation.on_apply()).map_err(wrong)?;
                self.nodes[id.index()].applied.insert(page);
            }
            Effect::Install { pages, content, merge, fetched: _, prefetched: _ } => {
                let content = match content {
                    NewContent::Zero => None,
                    NewContent::Received(range) => Some(&node.received[range]),
                    NewContent::Kept(ref bytes, range) => Some(&bytes[range]),
                };
                let how = if merge { self.mutation.on_merge() } else { Merge::Replace };
                let dirty = memory.install(pages, content, how).map_err(wrong)?;
                if merge {
                    let dirty = self.mutation.on_merged(dirty);
                    self.nodes[id.index()].engine.handle_done(Done::Merged { page: pages.first, dirty });
                }
            }
            Effect::Read { pages, page_bytes, home, needed, merge, prefetched: _ } => {
                let outcome = self.read(id, pages, page_bytes as usize, home, &needed, merge)?;
                self.nodes[id.index()].engine.handle_done(Done::Read { pages, outcome });
            }
            Effect::Publish { writer, seq } => node.board.publish(writer, seq),
            Effect::TakeAnnouncements => {
                let pages = node.board.take_announced();
                let pages = self.mutation.on_announced(id, pages);
                self.nodes[id.index()].engine.handle_done(Done::Announced { pages });
            }
            Effect::Patch { page, offset, value } => {
                memory.patch(page, offset, value, self.mutation.on_patch());
            }
            Effect::Atomic { page, offset, operation } => {
                let outcome = memory.operate(page, offset, operation);
                node.engine.handle_done(Done::Atomic { page, outcome });
                let at = Address::in_page(page, offset);
                let (turns, unreported) = self.atomics.entry(at).or_default();
                unreported.push((*turns, outcome));
                *turns += 1;
            }
            Effect::Hold { page } => self.holds.push((id, page)),
            Effect::CountMove { .. } => {}
            Effect::Wake { waiter, outcome } => self.wake(id, waiter, outcome)?,
            Effect::Tell(_) => unreachable!("what is told is recorded at once"),
            Effect::Fatal { sentence } => return Err(Failure::Fatal { node: id, sentence }),
        }
        Ok(())
    }

    fn end_faults_in_kernel(&mut self, id: NodeId, pages: PageRange) {
        let mut ended = Vec::new();
        for number in self.nodes[id.index()].threads.iter() {
            let state = &mut self.threads[*number].state;
            if matches!(state, State::FaultingInKernel(at) if pages.contains(at.granule)) {
                *state = State::Running;
                ended.push(*number);
            }
        }
        ended.into_iter().for_each(|number| self.note(number, Event::Leave));
    }

    /// As a kernel scans: granule by granule, each looked at and cleared in one step, and now and then one that it has
    /// lost track of is taken for written.
    fn collect_written(&mut self, id: NodeId) -> Result<(), Failure> {
        let watched = self.nodes[id.index()].memory.watched();
        let watched = watched.map_err(|error| Failure::Memory { node: id, error })?;
        let late = self.mutation.clears_late();
        let mut granules = PageSet::new();
        for granule in watched.iter().copied() {
            let memory = &mut self.nodes[id.index()].memory;
            let is_written = memory.is_written(granule);
            if is_written || self.exploring && self.random.random_range(0..64) == 0 {
                granules.insert(granule);
            }
            if !late {
                memory.clear_written(granule);
            }
            self.bustle(id);
            self.choose_within(id);
        }
        let node = &mut self.nodes[id.index()];
        if late {
            watched.into_iter().for_each(|granule| node.memory.clear_written(granule));
        }
        let granules = self.mutation.on_collect(granules);
        let granules = if node.in_lull { self.mutation.on_collect_in_lull(granules) } else { granules };
        node.engine.handle_done(Done::Written { granules });
        Ok(())
    }

    /// Now and then the kernel has lost track of what a granule was.
    fn find_unwritten(&mut self, id: NodeId, spans: &[PageRange]) {
        let mut granules = PageSet::new();
        for granule in spans.iter().flat_map(|span| span.iter()) {
            let was_unwritten = self.nodes[id.index()].memory.was_unwritten(granule);
            let is_known = !self.exploring || self.random.random_range(0..16) > 0;
            if self.mutation.on_unwritten(was_unwritten) && is_known {
                granules.insert(granule);
            }
        }
        self.nodes[id.index()].engine.handle_done(Done::Unwritten { first: spans[0].first, granules });
    }

    fn make_diff(&mut self, id: NodeId, page: PageId, after: TwinAfter) -> Result<Vec<u8>, Failure> {
        let wrong = |error| Failure::Memory { node: id, error };
        let (frame, twin) = self.nodes[id.index()].memory.with_twin(page).map_err(wrong)?;
        let mut runs = Vec::new();
        diff::encode(frame, twin, &mut runs);
        let mutation = &mut self.mutation;
        let told = match self.nodes[id.index()].in_lull {
            true => mutation.on_early_diff(runs.clone()),
            false => mutation.on_diff(frame, twin, runs.clone()),
        };
        self.bustle(id);
        self.choose_within(id);
        let node = &mut self.nodes[id.index()];
        node.memory.settle_twin(page, &runs, after).map_err(wrong)?;
        self.note_at(id, Event::Diffed { page, bytes: told.len() as u32 });
        Ok(told)
    }

    fn send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        let limits = self.limits;
        for (to, bytes) in self.mutation.sends_before(from, &bytes, &limits) {
            self.note_sent(from, to, &bytes);
            self.network.send(Parcel { from, to, bytes }, false);
        }
        for (bytes, astray) in self.mutation.on_send(from, to, bytes, &limits) {
            self.note_sent(from, to, &bytes);
            self.network.send(Parcel { from, to, bytes }, astray);
        }
    }

    fn wake(&mut self, id: NodeId, waiter: Waiter, outcome: Outcome) -> Result<(), Failure> {
        let wrong = |sentence: String| Err(Failure::Host { node: id, sentence });
        let Some(&number) = self.nodes[id.index()].threads.get(waiter.0 as usize) else {
            return wrong(format!("waiter {} is no thread", waiter.0));
        };
        if let Outcome::Misuse(misuse) = outcome {
            return Err(Failure::Misuse { thread: number, misuse });
        }
        let state = self.threads[number].state;
        self.threads[number].state = State::Running;
        if matches!((state, outcome), (State::Faulting(_), Outcome::Done)) {
            self.note(number, Event::Leave);
            return Ok(());
        }
        match (state, outcome) {
            (State::Waiting(Wait::Acquire(lock) | Wait::Condition(lock)), Outcome::Done) => {
                self.acquired(number, lock)?;
            }
            (State::Waiting(Wait::Try(lock, into)), Outcome::Done) => {
                self.set(number, into, 1);
                self.acquired(number, lock)?;
            }
            (State::Waiting(Wait::Try(_, into)), Outcome::Refused) => self.set(number, into, 0),
            (State::Waiting(Wait::Release | Wait::Signal), Outcome::Done) => {}
            (State::Waiting(Wait::Collective(asked)), Outcome::Collective(done)) => {
                if asked != done && asked != Collective::Follow {
                    return wrong(format!("thread {number} asked for {asked:?} and was told {done:?}"));
                }
                let meetings = self.threads[number].meetings;
                self.nodes[id.index()].collectives = meetings;
                let missing = |thread: &&Thread| thread.in_team && thread.meetings < meetings;
                if let Some(missing) = self.threads.iter().position(|thread| missing(&thread)) {
                    return wrong(format!(
                        "thread {number} left a collective that thread {missing} has yet to reach"
                    ));
                }
                self.note(number, Event::Met { epoch: meetings - 1 });
            }
            (State::Waiting(Wait::Publish { to, tag }), Outcome::Done) => {
                self.tell_of_publication(number, to, tag);
            }
            (State::Waiting(Wait::Atomic { at, into }), Outcome::Atomic(outcome)) => {
                self.set(number, into, outcome.previous);
                self.note_atomic(number, at, outcome);
            }
            (state, outcome) => {
                return wrong(format!("thread {number} in {state:?} was woken with {outcome:?}"));
            }
        }
        self.note(number, Event::Leave);
        self.threads[number].next += 1;
        Ok(())
    }

    fn set(&mut self, thread: usize, register: Register, value: u64) {
        self.threads[thread].registers[usize::from(register.0)] = value;
    }

    fn acquired(&mut self, thread: usize, lock: LockId) -> Result<(), Failure> {
        let record = self.locks.entry(lock).or_default();
        if let Some(holder) = record.holder {
            let sentence = format!("thread {thread} was given lock {}, which thread {holder} holds", lock.0);
            return Err(Failure::Host { node: self.threads[thread].node, sentence });
        }
        record.holder = Some(thread);
        let turn = record.turns;
        record.turns += 1;
        self.note(thread, Event::Acquired { lock, turn });
        Ok(())
    }

    fn note_release(&mut self, thread: usize, lock: LockId) {
        let record = self.locks.entry(lock).or_default();
        if record.holder == Some(thread) {
            record.holder = None;
            let turn = record.turns - 1;
            self.note(thread, Event::Released { lock, turn });
        }
    }

    fn note_atomic(&mut self, thread: usize, at: Address, outcome: AtomicOutcome) {
        let Some((_, unreported)) = self.atomics.get_mut(&at) else { return };
        // Equal outcomes that wait for their threads are interchangeable: the earliest goes to whoever hears first.
        let Some(found) = unreported.iter().position(|(_, other)| *other == outcome) else { return };
        let (turn, AtomicOutcome { previous, current, .. }) = unreported.remove(found);
        let Address { granule: page, offset } = at;
        self.note(thread, Event::Atomic { page, offset, turn, previous, current });
    }

    /// What `free` sends behind the publication, over the same link.
    fn tell_of_publication(&mut self, thread: usize, to: NodeId, tag: u16) {
        let from = self.threads[thread].node;
        let count = self.publications.entry((from, to)).or_default();
        let token = *count << TAG_BITS | u64::from(tag);
        *count += 1;
        self.note(thread, Event::Published { to, count: token >> TAG_BITS });
        self.send(from, to, Message::Free { address: token }.encode());
    }
}

/// Instructions.
impl<E: Engine> Cluster<E> {
    fn execute(&mut self, number: usize) -> Result<(), Failure> {
        let thread = &mut self.threads[number];
        let Some(instruction) = thread.instructions.get(thread.next).cloned() else {
            thread.state = State::Finished;
            return Ok(());
        };
        let register = |register: Register| usize::from(register.0);
        match instruction {
            Instruction::Store { at, width, value } => self.store(number, at, width, value),
            Instruction::StoreFrom { at, from } => {
                let value = thread.registers[register(from)];
                self.store(number, at, Width::Word, value)
            }
            Instruction::Load { at, width, into } => self.load(number, at, width, into),
            Instruction::Add(into, value) => {
                let into = &mut thread.registers[register(into)];
                *into = into.wrapping_add(value);
                thread.next += 1;
                Ok(())
            }
            Instruction::AddRegister(into, other) => {
                let value = thread.registers[register(other)];
                let into = &mut thread.registers[register(into)];
                *into = into.wrapping_add(value);
                thread.next += 1;
                Ok(())
            }
            Instruction::JumpUnless { register: tested, is, to } => {
                thread.next = if thread.registers[register(tested)] == is { thread.next + 1 } else { to };
                Ok(())
            }
            Instruction::AwaitPublished { from, tag } => {
                thread.next += 1;
                let node = thread.node;
                let tokens = self.nodes[node.index()].mailbox.get_mut(&(from, tag));
                if let Some(token) = tokens.and_then(|tokens| tokens.pop_front()) {
                    self.note(number, Event::PublicationSeen { from, count: token >> TAG_BITS });
                }
                Ok(())
            }
            Instruction::Prefetch(pages) => {
                thread.next += 1;
                let node = thread.node;
                self.enter(number, Activity::Other);
                self.nodes[node.index()].engine.handle_prefetch(pages);
                self.pump(node)?;
                self.note(number, Event::Leave);
                Ok(())
            }
            Instruction::Atomic { at, operation, into } => self.operate(number, at, operation, into),
            other => self.synchronise(number, other),
        }
    }

    fn synchronise(&mut self, number: usize, instruction: Instruction) -> Result<(), Failure> {
        let (sync, wait) = match instruction {
            Instruction::Lock(lock) => (Sync::Acquire(lock), Wait::Acquire(lock)),
            Instruction::TryLock(lock, into) => (Sync::TryAcquire(lock), Wait::Try(lock, into)),
            Instruction::Unlock(lock) => (Sync::Release(lock), Wait::Release),
            Instruction::Wait(cond, lock) => (Sync::Wait(cond, lock), Wait::Condition(lock)),
            Instruction::Signal(cond) => (Sync::Signal(cond), Wait::Signal),
            Instruction::Broadcast(cond) => (Sync::Broadcast(cond), Wait::Signal),
            Instruction::Collective(collective) => {
                self.threads[number].meetings += 1;
                (Sync::Collective(collective), Wait::Collective(collective))
            }
            Instruction::Publish { to, tag } => (Sync::Publish(to), Wait::Publish { to, tag }),
            other => unreachable!("{other:?} does not synchronise"),
        };
        self.enter(number, activity_of(sync));
        if let Sync::Release(lock) | Sync::Wait(_, lock) = sync {
            self.note_release(number, lock);
        }
        let thread = &mut self.threads[number];
        thread.state = State::Waiting(wait);
        let (node, waiter) = (thread.node, thread.waiter);
        self.nodes[node.index()].engine.handle_sync(sync, waiter);
        self.pump(node)
    }

    fn operate(
        &mut self,
        number: usize,
        at: Address,
        operation: AtomicOperation,
        into: Register,
    ) -> Result<(), Failure> {
        self.enter(number, Activity::Atomic { page: at.granule, offset: at.offset });
        let thread = &mut self.threads[number];
        thread.state = State::Waiting(Wait::Atomic { at, into });
        let (node, waiter) = (thread.node, thread.waiter);
        self.nodes[node.index()].engine.handle_atomic(at.granule, at.offset, operation, waiter);
        self.pump(node)
    }

    fn allows(&self, number: usize, at: Address, wanted: Access) -> bool {
        self.nodes[self.threads[number].node.index()].memory.access(at.granule) >= wanted
    }

    /// Whether the access may run free; otherwise the thread faults.
    fn permitted(&mut self, number: usize, at: Address, wanted: Access) -> Result<bool, Failure> {
        if self.allows(number, at, wanted) {
            return Ok(true);
        }
        let thread = &mut self.threads[number];
        let (id, waiter) = (thread.node, thread.waiter);
        // Some machines do not say whether it was a load or a store, and some fault sources not who waits.
        let mut one_in = |chances: u32| self.exploring && self.random.random_range(0..chances) == 0;
        let (silent, in_kernel) = (one_in(4), one_in(4) && at.granule.0 < self.limits.region_granules);
        thread.state = if in_kernel { State::FaultingInKernel(at) } else { State::Faulting(at) };
        let wanted = if silent { Access::None } else { wanted };
        self.enter(number, Activity::Fault { page: at.granule, wanted });
        let engine = &mut self.nodes[id.index()].engine;
        engine.handle_fault(at.granule, wanted, (!in_kernel).then_some(waiter));
        self.pump(id)?;
        Ok(false)
    }

    fn load(&mut self, number: usize, at: Address, width: Width, into: Register) -> Result<(), Failure> {
        if self.permitted(number, at, Access::Read)? {
            self.load_freely(number, at, width, into);
        }
        Ok(())
    }

    fn load_freely(&mut self, number: usize, at: Address, width: Width, into: Register) {
        let value = self.load_from_frame(self.threads[number].node, at, width);
        self.set(number, into, value);
        self.threads[number].next += 1;
        let Address { granule: page, offset } = at;
        self.note(number, Event::Load { page, offset, bytes: width.bytes() as u8, value });
    }

    fn store(&mut self, number: usize, at: Address, width: Width, value: u64) -> Result<(), Failure> {
        if self.permitted(number, at, Access::Write)? {
            self.store_freely(number, at, width, value);
        }
        Ok(())
    }

    fn store_freely(&mut self, number: usize, at: Address, width: Width, value: u64) {
        self.store_into_frame(self.threads[number].node, at, width, value);
        self.threads[number].next += 1;
        let Address { granule: page, offset } = at;
        let bytes = width.bytes() as u8;
        let value = if bytes < 8 { value & 0xff } else { value };
        self.note(number, Event::Store { page, offset, bytes, value });
    }
}
