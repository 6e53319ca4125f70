//! Random data-race-free programs with much false sharing.
//!
//! Some words of every page get a role: protected by one of a few locks, owned by one thread for a phase or
//! permanently, written before the first barrier and only read after it, or atomic. Some are divided into
//! bytes with a role each. So different nodes write neighbours on one page under different rules at once.
//! Phases end at barriers, except for threads outside the teams. Pages have one size, or several side by
//! side.

use hiroba_base::{CondId, LockId, NodeId, PageId, PageRange, Prng, RngExt, seeded};
use hiroba_wire::{AtomicOperation, Placement};

use crate::program::{Address, GRANULE_BYTES, Instruction, Program, Region, Register, Script, Width};

/// The kind of programs to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Threads of each node's team, which meet at barriers.
    pub team: u16,
    /// The maximum number of further threads on each node, which lock and operate on atomic words while
    /// others meet.
    pub foreign: u16,
    /// Whether `Publish` is used, as `free` does.
    pub publications: bool,
    /// Whether condition variables are used: threads wait for others, and are also woken without need.
    pub waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Locked(LockId),
    /// Owned by `(phase + offset) mod members`.
    Owned(usize),
    /// Owned by one thread, inside or outside a team, all the time.
    Private(usize),
    ReadOnly(usize),
    Atomic,
    /// Written by one thread of a pair, then read by the other, ordered by a publication.
    Mailbox(usize, usize),
    /// A flag under a lock, set by one thread of a pair and awaited by the other, with its own condition
    /// variable.
    Gate(usize, usize, LockId),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    at: Address,
    width: Width,
    role: Role,
}

struct Generator {
    random: Prng,
    shape: Shape,
    nodes: u16,
    /// The number of threads in teams; threads with higher numbers are outside.
    members: usize,
    threads: usize,
    slots: Vec<Slot>,
    regions: Vec<Region>,
    locks: u32,
    next_value: u64,
}

const REGISTERS_USED: u8 = 16;
/// The register with a gate's flag.
const FLAG: Register = Register(REGISTERS_USED + 1);
/// A register that is never written.
const ZERO: Register = Register(REGISTERS_USED + 2);

/// Returns true if a thread may read and write a slot in a phase without a lock.
fn owns(thread: usize, phase: usize, members: usize, role: Role) -> bool {
    match role {
        Role::Owned(offset) => (phase + offset) % members == thread,
        Role::Private(owner) => owner == thread,
        _ => false,
    }
}

/// Returns the value of a gate's flag after it was opened in a phase.
fn opened_in(phase: usize) -> u64 {
    phase as u64 + 1
}

/// Returns the condition variable of a gate.
fn cond_of(gate: Slot) -> CondId {
    CondId((gate.at.position() / 8) as u32)
}

/// Generates the program of a seed, for 2 to 5 nodes.
pub fn generate(seed: u64, shape: Shape) -> Program {
    let mut random = seeded(seed ^ 0x5eed_9a6e);
    let nodes = random.random_range(2..=5u16);
    let locks = random.random_range(1..=4u32);
    let members = usize::from(nodes * shape.team);
    let foreign = if shape.foreign == 0 { 0 } else { random.random_range(1..=nodes * shape.foreign) };
    let threads = members + usize::from(foreign);
    let regions = make_regions(&mut random, nodes);
    let mut generator = Generator {
        random,
        shape,
        nodes,
        members,
        threads,
        slots: Vec::new(),
        regions,
        locks,
        next_value: 1,
    };
    generator.make_slots();
    let phases = generator.random.random_range(1..=4);
    let scripts = generator.make_scripts(phases);
    let threads = scripts.into_iter().enumerate().map(|(number, instructions)| Script {
        node: generator.node_of(number),
        in_team: number < members,
        instructions,
    });
    Program { nodes, threads: threads.collect(), regions: generator.regions, ports: Vec::new() }
}

/// Makes pages of one granule, or of several sizes side by side.
fn make_regions(random: &mut Prng, nodes: u16) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    let sizes: &[u64] = [&[1][..], &[1], &[2, 1], &[1, 2], &[16, 2, 1], &[1, 16]][random.random_range(0..6)];
    for granules_per_page in sizes {
        let pages = random.random_range(1..=if sizes.len() == 1 { 5 } else { 2 });
        let placement = match random.random_range(0..3) {
            0 => Placement::Block,
            1 => Placement::Cyclic,
            _ => Placement::On(NodeId(random.random_range(0..nodes))),
        };
        let free_from = regions.last().map_or(0, |region| region.granules.end().0);
        let first = free_from.next_multiple_of(*granules_per_page);
        regions.push(Region::new(first, pages, *granules_per_page, placement));
    }
    regions
}

impl Generator {
    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// Makes words near the beginnings and ends of granules: few, so that threads access the same ones.
    fn make_slots(&mut self) {
        const WORDS: u32 = GRANULE_BYTES / 8;
        for region in self.regions.clone() {
            let granules_per_page = region.page_size.bytes() / GRANULE_BYTES as usize;
            for granule in region.granules.iter() {
                if granules_per_page > 4 && !self.one_in(4) {
                    continue;
                }
                for word in (0..20).chain(WORDS - 4..WORDS) {
                    if self.one_in(4) {
                        self.make_slot(granule.0, word);
                    }
                }
            }
        }
    }

    fn make_slot(&mut self, granule: u64, word: u32) {
        if self.one_in(3) {
            for byte in 0..8 {
                let role = self.role(Width::Byte);
                let at = Address::byte(granule, word * 8 + byte);
                self.slots.push(Slot { at, width: Width::Byte, role });
            }
        } else {
            let role = self.role(Width::Word);
            self.slots.push(Slot { at: Address::word(granule, word), width: Width::Word, role });
        }
    }

    fn role(&mut self, width: Width) -> Role {
        match self.below(14) {
            0..5 => Role::Locked(LockId(self.random.random_range(0..self.locks))),
            5..8 => Role::Owned(self.below(self.members)),
            8 => Role::ReadOnly(self.below(self.members)),
            9 | 10 if width == Width::Word => Role::Atomic,
            11 if self.shape.publications => {
                let from = self.below(self.threads - 1);
                Role::Mailbox(from, from + 1 + self.below(self.threads - from - 1))
            }
            12 => Role::Private(self.below(self.threads)),
            13 if self.shape.waits && width == Width::Word => {
                let opener = self.below(self.threads);
                let waiter = (opener + 1 + self.below(self.threads - 1)) % self.threads;
                Role::Gate(opener, waiter, LockId(self.random.random_range(0..self.locks)))
            }
            _ => Role::Locked(LockId(self.random.random_range(0..self.locks))),
        }
    }

    fn store(&mut self, slot: Slot) -> Instruction {
        let value = self.next_value;
        self.next_value += 1;
        let value = if slot.width == Width::Byte { value % 255 + 1 } else { value };
        Instruction::Store { at: slot.at, width: slot.width, value }
    }

    fn register(&mut self) -> Register {
        Register(self.random.random_range(0..REGISTERS_USED))
    }

    fn load(&mut self, slot: Slot) -> Instruction {
        Instruction::Load { at: slot.at, width: slot.width, into: self.register() }
    }

    fn access(&mut self, slot: Slot) -> Instruction {
        if self.one_in(2) { self.store(slot) } else { self.load(slot) }
    }

    /// Draws a slot that satisfies a condition, if possible.
    fn slot(&mut self, fits: impl Fn(Role) -> bool) -> Option<Slot> {
        let fitting: Vec<Slot> = self.slots.iter().copied().filter(|slot| fits(slot.role)).collect();
        if fitting.is_empty() { None } else { Some(fitting[self.below(fitting.len())]) }
    }

    fn make_scripts(&mut self, phases: usize) -> Vec<Vec<Instruction>> {
        let mut scripts = vec![Vec::new(); self.threads];
        for slot in self.slots.clone() {
            if let Role::ReadOnly(writer) = slot.role {
                scripts[writer].push(self.store(slot));
            }
        }
        self.meet(&mut scripts);
        for phase in 0..phases {
            for (me, script) in scripts.iter_mut().enumerate() {
                let publish = self.shape.publications;
                // Directly after the barrier, a publication may overtake others' departures from it.
                let early = publish && self.one_in(2);
                if early {
                    self.publish(me, phase, script);
                }
                for _ in 0..self.random.random_range(2..=8) {
                    self.piece(me, phase, script);
                    if self.shape.waits {
                        self.wake_for_nothing(script);
                    }
                }
                self.open_gates(me, phase, script);
                if publish && !early {
                    self.publish(me, phase, script);
                }
            }
            if self.shape.publications {
                self.receive(phase, &mut scripts);
            }
            self.pass_gates(phase, &mut scripts);
            self.meet(&mut scripts);
        }
        self.read_again(&mut scripts);
        scripts
    }

    fn meet(&self, scripts: &mut [Vec<Instruction>]) {
        scripts[..self.members].iter_mut().for_each(|script| script.push(crate::program::script::barrier()));
    }

    /// Lets every thread that took part read, after the last barrier, what is no longer written.
    fn read_again(&mut self, scripts: &mut [Vec<Instruction>]) {
        let members = self.members;
        for script in &mut scripts[..members] {
            for _ in 0..6 {
                let settled = |role: Role| match role {
                    Role::Owned(_) | Role::ReadOnly(_) => true,
                    Role::Private(owner) => owner < members,
                    _ => false,
                };
                if let Some(slot) = self.slot(settled) {
                    script.push(self.load(slot));
                }
            }
        }
    }

    /// Lets a thread write its mailboxes and publish to their readers.
    fn publish(&mut self, me: usize, phase: usize, script: &mut Vec<Instruction>) {
        for to in me + 1..self.threads {
            let slots = self.mailboxes(me, to, phase);
            if !slots.is_empty() {
                slots.into_iter().for_each(|slot| script.push(self.store(slot)));
                script.push(Instruction::Publish { to: self.node_of(to), tag: self.tag(me, to) });
            }
        }
    }

    /// Lets receivers read their mailboxes. They wait only for lower threads, whose publications do not wait.
    fn receive(&mut self, phase: usize, scripts: &mut [Vec<Instruction>]) {
        for (me, script) in scripts.iter_mut().enumerate() {
            for from in 0..me {
                let slots = self.mailboxes(from, me, phase);
                if !slots.is_empty() {
                    let tag = self.tag(from, me);
                    script.push(Instruction::AwaitPublished { from: self.node_of(from), tag });
                    slots.into_iter().for_each(|slot| script.push(self.load(slot)));
                }
            }
        }
    }

    /// Returns the mailboxes that a pair uses in a phase. Threads that do not meet at its end use theirs
    /// once.
    fn mailboxes(&self, from: usize, to: usize, phase: usize) -> Vec<Slot> {
        let again = from.max(to) < self.members;
        let fits = |slot: &Slot| slot.role == Role::Mailbox(from, to) && (again || phase == 0);
        self.slots.iter().copied().filter(fits).collect()
    }

    /// Lets a thread set the flags of its gates, and wake the waiters with or without the lock held.
    fn open_gates(&mut self, me: usize, phase: usize, script: &mut Vec<Instruction>) {
        for (slot, lock) in self.gates(phase, |opener, _| opener == me) {
            let wake = self.wake(slot);
            let open = Instruction::Store { at: slot.at, width: slot.width, value: opened_in(phase) };
            script.extend([Instruction::Lock(lock), open]);
            if self.one_in(2) {
                script.extend([wake, Instruction::Unlock(lock)]);
            } else {
                script.extend([Instruction::Unlock(lock), wake]);
            }
        }
    }

    /// Lets threads wait for their gates after everything that another thread may wait for. Their first
    /// writes are still unreleased when they begin to wait.
    fn pass_gates(&mut self, phase: usize, scripts: &mut [Vec<Instruction>]) {
        let members = self.members;
        for (me, script) in scripts.iter_mut().enumerate() {
            for (slot, lock) in self.gates(phase, |_, waiter| waiter == me) {
                script.push(Instruction::Lock(lock));
                for _ in 0..self.random.random_range(0..=3) {
                    let fits = |role| role == Role::Locked(lock) || owns(me, phase, members, role);
                    if let Some(written) = self.slot(fits) {
                        script.push(self.store(written));
                    }
                }
                let test = script.len();
                let jump_unless = |register, is, to| Instruction::JumpUnless { register, is, to };
                script.extend([
                    Instruction::Load { at: slot.at, width: slot.width, into: FLAG },
                    jump_unless(FLAG, opened_in(phase), test + 3),
                    jump_unless(ZERO, 1, test + 5),
                    Instruction::Wait(cond_of(slot), lock),
                    jump_unless(ZERO, 1, test),
                    Instruction::Unlock(lock),
                ]);
            }
        }
    }

    /// Returns the gates that are used in a phase. Threads that do not meet at its end use theirs once.
    fn gates(&self, phase: usize, fits: impl Fn(usize, usize) -> bool) -> Vec<(Slot, LockId)> {
        let gate = |slot: &Slot| match slot.role {
            Role::Gate(opener, waiter, lock) if fits(opener, waiter) => {
                let again = opener.max(waiter) < self.members;
                (again || phase == 0).then_some((*slot, lock))
            }
            _ => None,
        };
        self.slots.iter().filter_map(gate).collect()
    }

    /// Adds a signal without need: a signal is a hint, and a waiter may be woken although nothing has
    /// changed.
    fn wake_for_nothing(&mut self, script: &mut Vec<Instruction>) {
        if let Some(slot) = self.slot(|role| matches!(role, Role::Gate(..))) {
            script.push(self.wake(slot));
        }
    }

    fn wake(&mut self, gate: Slot) -> Instruction {
        let cond = cond_of(gate);
        if self.one_in(2) { Instruction::Signal(cond) } else { Instruction::Broadcast(cond) }
    }

    fn node_of(&self, thread: usize) -> NodeId {
        NodeId((thread % usize::from(self.nodes)) as u16)
    }

    fn tag(&self, from: usize, to: usize) -> u16 {
        (from * self.threads + to) as u16
    }

    fn piece(&mut self, me: usize, phase: usize, script: &mut Vec<Instruction>) {
        let members = self.members;
        let mine = |role: Role| owns(me, phase, members, role);
        match self.below(16) {
            0..6 => self.locked_section(me, phase, script),
            6..10 => {
                for _ in 0..self.random.random_range(1..=3) {
                    if let Some(slot) = self.slot(mine) {
                        script.push(self.access(slot));
                    }
                }
            }
            10 if me < self.members => {
                if let Some(slot) = self.slot(|role| matches!(role, Role::ReadOnly(_))) {
                    script.push(self.load(slot));
                }
            }
            11 => {
                let end = self.regions.iter().map(|region| region.granules.end().0).max().unwrap_or(1);
                let first = PageId(self.random.random_range(0..end));
                let count = self.random.random_range(1..=end - first.0);
                script.push(Instruction::Prefetch(PageRange { first, count }));
            }
            12 => self.try_section(script),
            13 => {
                if let Some(slot) = self.slot(|role| role == Role::Atomic) {
                    script.push(self.load(slot));
                }
            }
            _ => {
                if let Some(slot) = self.slot(|role| role == Role::Atomic) {
                    let operation = match self.below(4) {
                        0 => AtomicOperation::Load,
                        _ => AtomicOperation::FetchAdd(1),
                    };
                    script.push(Instruction::Atomic { at: slot.at, operation, into: self.register() });
                }
            }
        }
    }

    fn locked_section(&mut self, me: usize, phase: usize, script: &mut Vec<Instruction>) {
        let members = self.members;
        let outer = self.random.random_range(0..self.locks);
        let nested = self.one_in(4) && outer + 1 < self.locks;
        let inner = if nested { Some(self.random.random_range(outer + 1..self.locks)) } else { None };
        script.push(Instruction::Lock(LockId(outer)));
        // Locks are taken in ascending order, so that threads do not wait in a circle.
        script.extend(inner.map(|inner| Instruction::Lock(LockId(inner))));
        for _ in 0..self.random.random_range(1..=4) {
            let fits = |role: Role| match role {
                Role::Locked(lock) => lock.0 == outer || Some(lock.0) == inner,
                other => owns(me, phase, members, other),
            };
            if let Some(slot) = self.slot(fits) {
                script.push(self.access(slot));
            }
        }
        script.extend(inner.map(|inner| Instruction::Unlock(LockId(inner))));
        script.push(Instruction::Unlock(LockId(outer)));
    }

    fn try_section(&mut self, script: &mut Vec<Instruction>) {
        let lock = LockId(self.random.random_range(0..self.locks));
        let taken = Register(REGISTERS_USED);
        let mut body = Vec::new();
        for _ in 0..self.random.random_range(1..=3) {
            if let Some(slot) = self.slot(|role| role == Role::Locked(lock)) {
                body.push(self.access(slot));
            }
        }
        script.push(Instruction::TryLock(lock, taken));
        let to = script.len() + body.len() + 2;
        script.push(Instruction::JumpUnless { register: taken, is: 1, to });
        script.extend(body);
        script.push(Instruction::Unlock(lock));
    }
}
