//! Random data-race-free programs with much false sharing.
//!
//! Every word of every page gets a role — protected by one of a few locks, owned by one node a phase, written before the
//! first barrier and only read after it, atomic — and some words are cut into bytes with a role each, so
//! neighbours on one page are written by different nodes under different rules at once. Phases end at barriers.

use hiroba_base::{LockId, NodeId, PageId, PageRange, Prng, RngExt, seeded};
use hiroba_wire::{AtomicOperation, Placement};

use crate::program::{Address, Instruction, PAGE_BYTES, Program, Register, Script, Width};

/// What kind of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Threads on each node. More than one: no barriers, and what nodes own is split among their threads.
    pub threads_per_node: u16,
    /// With `Publish`, as `free` does it.
    pub publications: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Locked(LockId),
    /// Owned by `(phase + offset) mod threads`.
    Owned(usize),
    ReadOnly(usize),
    Atomic,
    /// Written by one node of a pair, then read by the other, ordered by a publication.
    Mailbox(usize, usize),
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
    threads: usize,
    slots: Vec<Slot>,
    pages: u64,
    locks: u32,
    next_value: u64,
}

const REGISTERS_USED: u8 = 16;

/// The program of a seed, for 2 to 5 nodes.
pub fn generate(seed: u64, shape: Shape) -> Program {
    let mut random = seeded(seed ^ 0x5eed_9a6e);
    let nodes = random.random_range(2..=5u16);
    let pages = random.random_range(1..=5u64);
    let locks = random.random_range(1..=4u32);
    let threads = usize::from(nodes * shape.threads_per_node);
    let mut generator = Generator { random, shape, threads, slots: Vec::new(), pages, locks, next_value: 1 };
    generator.make_slots();
    let phases = if shape.threads_per_node > 1 { 1 } else { generator.random.random_range(1..=4) };
    let scripts = generator.make_scripts(phases);
    let placement = match generator.random.random_range(0..3) {
        0 => Placement::Block,
        1 => Placement::Cyclic,
        _ => Placement::On(NodeId(generator.random.random_range(0..nodes))),
    };
    let threads = scripts.into_iter().enumerate().map(|(number, instructions)| Script {
        node: NodeId((number % usize::from(nodes)) as u16),
        instructions,
    });
    Program {
        nodes,
        regions: vec![(PageRange { first: PageId(0), count: pages }, placement)],
        threads: threads.collect(),
    }
}

impl Generator {
    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    fn make_slots(&mut self) {
        for page in 0..self.pages {
            for word in 0..PAGE_BYTES / 8 {
                // Few words, or threads would never meet.
                if !self.one_in(4) {
                    continue;
                }
                if self.one_in(3) {
                    for byte in 0..8 {
                        let role = self.role(Width::Byte);
                        let at = Address::byte(page, word * 8 + byte);
                        self.slots.push(Slot { at, width: Width::Byte, role });
                    }
                } else {
                    let role = self.role(Width::Word);
                    self.slots.push(Slot { at: Address::word(page, word), width: Width::Word, role });
                }
            }
        }
    }

    fn role(&mut self, width: Width) -> Role {
        match self.below(12) {
            0..5 => Role::Locked(LockId(self.random.random_range(0..self.locks))),
            5..8 => Role::Owned(self.below(self.threads)),
            8 => Role::ReadOnly(self.below(self.threads)),
            9 | 10 if width == Width::Word => Role::Atomic,
            11 if self.shape.publications => {
                let from = self.below(self.threads - 1);
                Role::Mailbox(from, from + 1 + self.below(self.threads - from - 1))
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

    /// A slot that satisfies a condition, if the draw finds one.
    fn slot(&mut self, fits: impl Fn(Role) -> bool) -> Option<Slot> {
        let fitting: Vec<Slot> = self.slots.iter().copied().filter(|slot| fits(slot.role)).collect();
        if fitting.is_empty() { None } else { Some(fitting[self.below(fitting.len())]) }
    }

    fn make_scripts(&mut self, phases: usize) -> Vec<Vec<Instruction>> {
        let mut scripts = vec![Vec::new(); self.threads];
        let barriers = self.shape.threads_per_node == 1;
        if barriers {
            for slot in self.slots.clone() {
                if let Role::ReadOnly(writer) = slot.role {
                    scripts[writer].push(self.store(slot));
                }
            }
            scripts.iter_mut().for_each(|script| script.push(crate::program::script::barrier()));
        }
        for phase in 0..phases {
            for (me, script) in scripts.iter_mut().enumerate() {
                let publish = barriers && self.shape.publications;
                // At once after the barrier, a publication may overtake others' departures from it.
                let early = publish && self.one_in(2);
                if early {
                    self.publish(me, script);
                }
                for _ in 0..self.random.random_range(2..=8) {
                    self.piece(me, phase, script);
                }
                if publish && !early {
                    self.publish(me, script);
                }
            }
            if self.shape.publications && barriers {
                self.receive(&mut scripts);
            }
            if barriers {
                scripts.iter_mut().for_each(|script| script.push(crate::program::script::barrier()));
            }
        }
        scripts
    }

    /// A thread writes its mailboxes and publishes to whoever reads them.
    fn publish(&mut self, me: usize, script: &mut Vec<Instruction>) {
        for to in me + 1..self.threads {
            let slots: Vec<Slot> =
                self.slots.iter().copied().filter(|slot| slot.role == Role::Mailbox(me, to)).collect();
            if !slots.is_empty() {
                slots.into_iter().for_each(|slot| script.push(self.store(slot)));
                script.push(Instruction::Publish(NodeId(to as u16)));
            }
        }
    }

    /// Receivers read theirs; they wait only for lower threads, whose publications wait for nobody.
    fn receive(&mut self, scripts: &mut [Vec<Instruction>]) {
        for (me, script) in scripts.iter_mut().enumerate() {
            for from in 0..me {
                let slots: Vec<Slot> =
                    self.slots.iter().copied().filter(|slot| slot.role == Role::Mailbox(from, me)).collect();
                if !slots.is_empty() {
                    script.push(Instruction::AwaitPublished(NodeId(from as u16)));
                    slots.into_iter().for_each(|slot| script.push(self.load(slot)));
                }
            }
        }
    }

    fn piece(&mut self, me: usize, phase: usize, script: &mut Vec<Instruction>) {
        let threads = self.threads;
        let mine = |role: Role| matches!(role, Role::Owned(offset) if (phase + offset) % threads == me);
        match self.below(16) {
            0..6 => self.locked_section(me, phase, script),
            6..10 => {
                for _ in 0..self.random.random_range(1..=3) {
                    if let Some(slot) = self.slot(mine) {
                        script.push(self.access(slot));
                    }
                }
            }
            10 => {
                if let Some(slot) = self.slot(|role| matches!(role, Role::ReadOnly(_))) {
                    script.push(self.load(slot));
                }
            }
            11 => {
                let first = PageId(self.random.random_range(0..self.pages));
                let count = self.random.random_range(1..=self.pages - first.0);
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
        let threads = self.threads;
        let outer = self.random.random_range(0..self.locks);
        let nested = self.one_in(4) && outer + 1 < self.locks;
        let inner = if nested { Some(self.random.random_range(outer + 1..self.locks)) } else { None };
        script.push(Instruction::Lock(LockId(outer)));
        // Locks are taken in ascending order, so that nobody waits in a circle.
        script.extend(inner.map(|inner| Instruction::Lock(LockId(inner))));
        for _ in 0..self.random.random_range(1..=4) {
            let fits = |role: Role| match role {
                Role::Locked(lock) => lock.0 == outer || Some(lock.0) == inner,
                Role::Owned(offset) => (phase + offset) % threads == me,
                _ => false,
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
