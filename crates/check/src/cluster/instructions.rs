//! What threads do: instructions that are carried out at once if possible, else begun by a call of an engine.

use hiroba_base::Access;
use hiroba_protocol::lease::Taken;
use hiroba_protocol::{Engine, Synchronisation};
use hiroba_trace::{Activity, Event};
use hiroba_wire::{AtomicOperation, Collective};

use super::recording::activity_of;
use super::{Cluster, Failure, Post, State, TAG_BITS, Wait};
use crate::program::{Address, Instruction, Register, Width};

impl<E: Engine> Cluster<E> {
    pub(super) fn execute(&mut self, number: usize) -> Result<(), Failure> {
        if self.threads[number].visit.is_some() {
            return self.go_on_visiting(number);
        }
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
                let tokens = self.nodes[node.index()].mailbox.tokens.get_mut(&(from, tag));
                if let Some(token) = tokens.and_then(|tokens| tokens.pop_front()) {
                    self.note(number, Event::PublicationSeen { from, count: token >> TAG_BITS });
                }
                Ok(())
            }
            Instruction::Prefetch(pages) => {
                thread.next += 1;
                let node = thread.node;
                self.enter(number, Activity::Other);
                self.nodes[node.index()].engine.handle_prefetch(&[pages]);
                self.pump(node)?;
                self.note(number, Event::Leave);
                Ok(())
            }
            Instruction::Contribute(value) => {
                thread.next += 1;
                let node = thread.node;
                self.nodes[node.index()].engine.contribute(value.to_le_bytes().to_vec());
                Ok(())
            }
            Instruction::Atomic { at, operation, into } => self.operate(number, at, operation, into),
            Instruction::Swap { at, operation, into } => self.swap(number, at, operation, into),
            Instruction::Post { port, value, long } => {
                self.post(number, Post { port, value, long, passed: None })
            }
            Instruction::Pass { port, through } => {
                let post = Post { port: through, value: port.into(), long: false, passed: Some(port) };
                self.post(number, post)
            }
            Instruction::Take { port, into } => self.take(number, port, into),
            other => self.synchronise(number, other),
        }
    }

    fn synchronise(&mut self, number: usize, instruction: Instruction) -> Result<(), Failure> {
        let (sync, wait) = match instruction {
            Instruction::Lock(lock) => (Synchronisation::Acquire(lock), Wait::Acquire(lock)),
            Instruction::TryLock(lock, into) => (Synchronisation::TryAcquire(lock), Wait::Try(lock, into)),
            Instruction::Unlock(lock) => (Synchronisation::Release(lock), Wait::Release),
            Instruction::Wait(cond, lock) => (Synchronisation::Wait(cond, lock), Wait::Condition(lock)),
            Instruction::Signal(cond) => (Synchronisation::Signal(cond), Wait::Signal),
            Instruction::Broadcast(cond) => (Synchronisation::Broadcast(cond), Wait::Signal),
            Instruction::Convert(granule) => (Synchronisation::Convert(granule), Wait::Convert),
            Instruction::AwaitOthers => (Synchronisation::AwaitOthers, Wait::Others),
            Instruction::Collective(collective) => {
                self.threads[number].meetings += 1;
                (Synchronisation::Collective(collective), Wait::Collective(collective))
            }
            Instruction::Combine(at) => {
                self.threads[number].meetings += 1;
                (Synchronisation::Collective(Collective::Barrier), Wait::Combine(at))
            }
            // Every second one as a message to a port does it.
            Instruction::Publish { to, tag } if tag % 2 == 1 => {
                (Synchronisation::Inform(to), Wait::Publish { to, tag })
            }
            Instruction::Publish { to, tag } => (Synchronisation::Publish(to), Wait::Publish { to, tag }),
            other => unreachable!("{other:?} does not synchronise"),
        };
        self.enter(number, activity_of(sync));
        if self.by_lease(number, &instruction)? {
            return Ok(());
        }
        if let Synchronisation::Release(lock) | Synchronisation::Wait(_, lock) = sync {
            self.note_release(number, lock);
        }
        if let Synchronisation::Convert(granule) = sync
            && let Some(block) = self.regions.iter().find(|region| region.contains(granule))
        {
            self.nodes.iter_mut().for_each(|node| node.engine.note_converted_block(*block));
        }
        self.ask(number, sync, wait)
    }

    pub(super) fn ask(&mut self, number: usize, sync: Synchronisation, wait: Wait) -> Result<(), Failure> {
        let thread = &mut self.threads[number];
        thread.state = State::Waiting(wait);
        let (node, waiter) = (thread.node, thread.waiter);
        self.nodes[node.index()].engine.handle_sync(sync, waiter);
        self.pump(node)
    }

    /// Takes or gives back a leased lock. Returns false if the engine must do it.
    fn by_lease(&mut self, number: usize, instruction: &Instruction) -> Result<bool, Failure> {
        let (node, waiter) = (self.threads[number].node, self.threads[number].waiter);
        let Some(leases) = self.nodes[node.index()].engine.leases() else { return Ok(false) };
        match *instruction {
            Instruction::Lock(lock) | Instruction::TryLock(lock, _) => {
                let taken = self.mutation.on_take(node, lock, leases.take(lock, waiter));
                match (taken, instruction) {
                    (Taken::Yes, &Instruction::TryLock(_, into)) => {
                        self.set(number, into, 1);
                        self.acquired(number, lock)?;
                    }
                    (Taken::Yes, _) => self.acquired(number, lock)?,
                    (Taken::Held, &Instruction::TryLock(_, into)) => self.set(number, into, 0),
                    _ => return Ok(false),
                }
            }
            Instruction::Unlock(lock) if self.mutation.give_back(leases, lock, waiter) => {
                self.note_release(number, lock);
            }
            _ => return Ok(false),
        }
        self.note(number, Event::Leave);
        self.threads[number].next += 1;
        Ok(true)
    }

    pub(super) fn operate(
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

    /// Operates on a word as one instruction of the machine does: indivisibly, with an access like a store's.
    fn swap(
        &mut self,
        number: usize,
        at: Address,
        operation: AtomicOperation,
        into: Register,
    ) -> Result<(), Failure> {
        if self.permitted(number, at, Access::Write)? {
            let previous = self.swap_freely(number, at, operation);
            self.set(number, into, previous);
            self.threads[number].next += 1;
        }
        Ok(())
    }

    /// Does so with that access, and returns the previous value.
    pub(super) fn swap_freely(&mut self, number: usize, at: Address, operation: AtomicOperation) -> u64 {
        let node = self.threads[number].node;
        let previous = self.load_from_frame(node, at, Width::Word);
        let current = match operation {
            AtomicOperation::Load => previous,
            AtomicOperation::Store(value) => value,
            AtomicOperation::FetchAdd(delta) => previous.wrapping_add(delta),
            AtomicOperation::CompareExchange { expected, desired } if expected == previous => desired,
            AtomicOperation::CompareExchange { .. } => previous,
        };
        self.store_into_frame(node, at, Width::Word, current);
        let (turns, _) = self.truth.atomics.entry(at).or_default();
        let turn = std::mem::replace(turns, *turns + 1);
        let Address { granule: page, offset } = at;
        self.note(number, Event::Atomic { page, offset, turn, previous, current });
        previous
    }

    pub(super) fn allows(&self, number: usize, at: Address, wanted: Access) -> bool {
        self.nodes[self.threads[number].node.index()].memory.access(at.granule) >= wanted
    }

    /// Returns true if the access may proceed; otherwise the thread faults.
    pub(super) fn permitted(&mut self, number: usize, at: Address, wanted: Access) -> Result<bool, Failure> {
        if self.allows(number, at, wanted) {
            return Ok(true);
        }
        let thread = &mut self.threads[number];
        let (id, waiter) = (thread.node, thread.waiter);
        // Some machines do not report whether it was a load or a store, and some fault sources not which
        // thread waits.
        let mut one_in = |chances: u32| self.schedule.exploring && self.schedule.chance(1, chances);
        let (silent, in_kernel) = (one_in(4), one_in(4) && at.granule.0 < self.limits.region_granules);
        thread.state = if in_kernel { State::FaultingInKernel(at) } else { State::Faulting(at) };
        let wanted = if silent { Access::None } else { wanted };
        self.enter(number, Activity::Fault { page: at.granule, wanted });
        self.note_fault(id, at, wanted);
        let engine = &mut self.nodes[id.index()].engine;
        engine.handle_fault(at.granule, wanted, (!in_kernel).then_some(waiter));
        self.pump(id)?;
        Ok(false)
    }

    pub(super) fn load(
        &mut self,
        number: usize,
        at: Address,
        width: Width,
        into: Register,
    ) -> Result<(), Failure> {
        if self.permitted(number, at, Access::Read)? {
            self.load_freely(number, at, width, into);
        }
        Ok(())
    }

    pub(super) fn load_freely(&mut self, number: usize, at: Address, width: Width, into: Register) {
        let value = self.load_from_frame(self.threads[number].node, at, width);
        self.set(number, into, value);
        self.threads[number].next += 1;
        let Address { granule: page, offset } = at;
        self.note(number, Event::Load { page, offset, bytes: width.bytes() as u8, value });
    }

    pub(super) fn store(
        &mut self,
        number: usize,
        at: Address,
        width: Width,
        value: u64,
    ) -> Result<(), Failure> {
        if self.permitted(number, at, Access::Write)? {
            self.store_freely(number, at, width, value);
        }
        Ok(())
    }

    pub(super) fn store_freely(&mut self, number: usize, at: Address, width: Width, value: u64) {
        self.store_into_frame(self.threads[number].node, at, width, value);
        self.threads[number].next += 1;
        let Address { granule: page, offset } = at;
        let bytes = width.bytes() as u8;
        let value = if bytes < 8 { value & 0xff } else { value };
        self.note(number, Event::Store { page, offset, bytes, value });
    }
}
