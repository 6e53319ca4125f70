//! The language of litmus programs: short scripts of loads, stores and synchronisation, one a thread.

use core::fmt;

use hiroba_base::{CondId, LockId, NodeId, PageId, PageRange};
use hiroba_wire::{AtomicOperation, Collective, Placement};

/// Bytes of a page in the simulator: small, so that pages are shared falsely as a matter of course.
pub const PAGE_BYTES: u32 = 256;

/// A byte of the shared region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The page.
    pub page: PageId,
    /// The byte in it.
    pub offset: u32,
}

impl Address {
    /// Word `index` of a page.
    pub const fn word(page: u64, index: u32) -> Address {
        Address { page: PageId(page), offset: index * 8 }
    }

    /// Byte `offset` of a page.
    pub const fn byte(page: u64, offset: u32) -> Address {
        Address { page: PageId(page), offset }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte {}", self.page, self.offset)
    }
}

/// How many bytes a load or store touches. No access crosses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One.
    Byte,
    /// Eight, little-endian.
    Word,
}

impl Width {
    /// The number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Word => 8,
        }
    }
}

/// A thread's private variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub u8);

/// Registers of a thread.
pub const REGISTERS: usize = 32;

/// One step of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Write a value.
    Store {
        /// Where.
        at: Address,
        /// How many bytes.
        width: Width,
        /// What.
        value: u64,
    },
    /// Write a register's value.
    StoreFrom {
        /// Where; a word.
        at: Address,
        /// Whose value.
        from: Register,
    },
    /// Read into a register.
    Load {
        /// Where.
        at: Address,
        /// How many bytes.
        width: Width,
        /// Receives the value.
        into: Register,
    },
    /// Take a lock, waiting for it.
    Lock(LockId),
    /// Take a lock if it is free: the register becomes 1, or 0 when it is taken.
    TryLock(LockId, Register),
    /// Give a lock up.
    Unlock(LockId),
    /// Wait for a signal, giving the lock up meanwhile.
    Wait(CondId, LockId),
    /// Wake one waiter.
    Signal(CondId),
    /// Wake all waiters.
    Broadcast(CondId),
    /// Meet all nodes.
    Collective(Collective),
    /// Operate on a word; the register receives what was there before.
    Atomic {
        /// The word.
        at: Address,
        /// What to do.
        operation: AtomicOperation,
        /// Receives the previous value.
        into: Register,
    },
    /// Hint that these pages will be read.
    Prefetch(PageRange),
    /// Make everything written so far known to a node, then tell its host so: what `free` does.
    Publish(NodeId),
    /// Wait until the given node has published to this one once more.
    AwaitPublished(NodeId),
    /// `register += value`.
    Add(Register, u64),
    /// `register += other`.
    AddRegister(Register, Register),
    /// Go on at instruction `to` unless the register holds `is`.
    JumpUnless {
        /// The register.
        register: Register,
        /// What it is compared with.
        is: u64,
        /// The instruction's index.
        to: usize,
    },
}

/// One thread's script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Where it runs.
    pub node: NodeId,
    /// What it does.
    pub instructions: Vec<Instruction>,
}

/// A program for a simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Nodes of the cluster.
    pub nodes: u16,
    /// What is allocated before the threads begin.
    pub regions: Vec<(PageRange, Placement)>,
    /// The threads; one node's threads are its waiters 0, 1, … in this order.
    pub threads: Vec<Script>,
}

impl Program {
    /// A program with `pages` pages whose homes go round the nodes (page 0 on node 0), and one thread a node.
    pub fn new(pages: u64, scripts: impl IntoIterator<Item = Vec<Instruction>>) -> Program {
        let threads: Vec<Script> = scripts
            .into_iter()
            .enumerate()
            .map(|(node, instructions)| Script { node: NodeId(node as u16), instructions })
            .collect();
        Program {
            nodes: threads.len() as u16,
            regions: vec![(PageRange { first: PageId(0), count: pages }, Placement::Cyclic)],
            threads,
        }
    }

    /// The first page number behind all regions.
    pub fn region_pages(&self) -> u64 {
        self.regions.iter().map(|(pages, _)| pages.end().0).max().unwrap_or(0)
    }
}

/// Short names for the instructions: scripts are read beside the papers' figures.
pub mod script {
    use super::*;

    /// Store a word.
    pub const fn store(at: Address, value: u64) -> Instruction {
        Instruction::Store { at, width: Width::Word, value }
    }

    /// Store a byte.
    pub const fn store_byte(at: Address, value: u8) -> Instruction {
        Instruction::Store { at, width: Width::Byte, value: value as u64 }
    }

    /// Store a register.
    pub const fn store_from(at: Address, from: u8) -> Instruction {
        Instruction::StoreFrom { at, from: Register(from) }
    }

    /// Load a word.
    pub const fn load(at: Address, into: u8) -> Instruction {
        Instruction::Load { at, width: Width::Word, into: Register(into) }
    }

    /// Load a byte.
    pub const fn load_byte(at: Address, into: u8) -> Instruction {
        Instruction::Load { at, width: Width::Byte, into: Register(into) }
    }

    /// Take a lock.
    pub const fn lock(id: u32) -> Instruction {
        Instruction::Lock(LockId(id))
    }

    /// Take a lock if it is free.
    pub const fn try_lock(id: u32, into: u8) -> Instruction {
        Instruction::TryLock(LockId(id), Register(into))
    }

    /// Give a lock up.
    pub const fn unlock(id: u32) -> Instruction {
        Instruction::Unlock(LockId(id))
    }

    /// Wait for a condition variable.
    pub const fn wait(cond: u32, lock: u32) -> Instruction {
        Instruction::Wait(CondId(cond), LockId(lock))
    }

    /// Signal a condition variable.
    pub const fn signal(cond: u32) -> Instruction {
        Instruction::Signal(CondId(cond))
    }

    /// Broadcast a condition variable.
    pub const fn broadcast(cond: u32) -> Instruction {
        Instruction::Broadcast(CondId(cond))
    }

    /// Meet all nodes.
    pub const fn barrier() -> Instruction {
        Instruction::Collective(Collective::Barrier)
    }

    /// Leave the job.
    pub const fn leave() -> Instruction {
        Instruction::Collective(Collective::Leave)
    }

    /// Add to a word at its home.
    pub const fn fetch_add(at: Address, delta: u64, into: u8) -> Instruction {
        Instruction::Atomic { at, operation: AtomicOperation::FetchAdd(delta), into: Register(into) }
    }

    /// Hint at one page.
    pub const fn prefetch(page: u64) -> Instruction {
        Instruction::Prefetch(PageRange { first: PageId(page), count: 1 })
    }

    /// Publish to a node.
    pub const fn publish(to: u16) -> Instruction {
        Instruction::Publish(NodeId(to))
    }

    /// Wait for a publication.
    pub const fn await_published(from: u16) -> Instruction {
        Instruction::AwaitPublished(NodeId(from))
    }

    /// Add to a register.
    pub const fn add(register: u8, value: u64) -> Instruction {
        Instruction::Add(Register(register), value)
    }

    /// Add a register to a register.
    pub const fn add_register(register: u8, other: u8) -> Instruction {
        Instruction::AddRegister(Register(register), Register(other))
    }

    /// Jump unless a register holds `is`.
    pub const fn jump_unless(register: u8, is: u64, to: usize) -> Instruction {
        Instruction::JumpUnless { register: Register(register), is, to }
    }
}
