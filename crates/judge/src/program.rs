//! The language of litmus programs: short scripts of loads, stores and synchronisation, one per thread.

use core::fmt;

use hiroba_base::{CondId, LockId, NodeId, PageId, PageRange, PageSize};
use hiroba_wire::{AtomicOperation, Collective, Placement};

/// Bytes of a granule in the simulator: the smallest size that a page may have.
pub const GRANULE_BYTES: u32 = 4096;

/// A byte of the shared region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The granule.
    pub granule: PageId,
    /// The byte in it.
    pub offset: u32,
}

impl Address {
    /// Returns word `index` of a granule.
    pub const fn word(granule: u64, index: u32) -> Address {
        Address { granule: PageId(granule), offset: index * 8 }
    }

    /// Returns byte `offset` of a granule.
    pub const fn byte(granule: u64, offset: u32) -> Address {
        Address { granule: PageId(granule), offset }
    }

    /// Returns the byte `offset` bytes into a page, which may be longer than a granule.
    pub const fn in_page(page: PageId, offset: u32) -> Address {
        Address { granule: PageId(page.0 + (offset / GRANULE_BYTES) as u64), offset: offset % GRANULE_BYTES }
    }

    /// Returns its distance from the region's start, in bytes.
    pub const fn position(self) -> usize {
        self.granule.0 as usize * GRANULE_BYTES as usize + self.offset as usize
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} byte {}", self.granule, self.offset)
    }
}

/// The number of bytes of a load or store. No access crosses a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One.
    Byte,
    /// Eight, little-endian.
    Word,
}

impl Width {
    /// Returns the number of bytes.
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
        /// The address.
        at: Address,
        /// The number of bytes.
        width: Width,
        /// The value.
        value: u64,
    },
    /// Write a register's value.
    StoreFrom {
        /// The address of a word.
        at: Address,
        /// The register with the value.
        from: Register,
    },
    /// Read into a register.
    Load {
        /// The address.
        at: Address,
        /// The number of bytes.
        width: Width,
        /// Receives the value.
        into: Register,
    },
    /// Take a lock, waiting for it.
    Lock(LockId),
    /// Take a lock if it is free: the register becomes 1, or 0 when it is taken.
    TryLock(LockId, Register),
    /// Release a lock.
    Unlock(LockId),
    /// Wait for a signal, releasing the lock meanwhile.
    Wait(CondId, LockId),
    /// Wake one waiter.
    Signal(CondId),
    /// Wake all waiters.
    Broadcast(CondId),
    /// Meet all nodes.
    Collective(Collective),
    /// Wait, on node 0, until all other nodes have arrived at the next collective.
    AwaitOthers,
    /// Contribute a value to the next barrier.
    Contribute(u64),
    /// Meet all nodes in a barrier. On node 0, one thread of the team first adds the values that nodes have
    /// contributed to a word, each by an instruction of the machine.
    Combine(Address),
    /// Operate on a word; the register receives the previous value.
    Atomic {
        /// The word.
        at: Address,
        /// The operation.
        operation: AtomicOperation,
        /// Receives the previous value.
        into: Register,
    },
    /// Put the page of a granule under sequential consistency.
    Convert(PageId),
    /// Operate on a word by an instruction of the machine, which needs access like a store; the register
    /// receives the previous value.
    Swap {
        /// The word.
        at: Address,
        /// The operation.
        operation: AtomicOperation,
        /// Receives the previous value.
        into: Register,
    },
    /// Hint that these pages will be read.
    Prefetch(PageRange),
    /// Make everything written so far known to a node, then tell its host so, as `free` does.
    Publish {
        /// The node.
        to: NodeId,
        /// Distinguishes publications for several of its threads.
        tag: u16,
    },
    /// Wait until the given node has published to this one once more.
    AwaitPublished {
        /// The publisher's node.
        from: NodeId,
        /// The tag in `Publish`.
        tag: u16,
    },
    /// Send a message to a port.
    Post {
        /// The port's index in [`Program::ports`].
        port: u8,
        /// What the message says.
        value: u64,
        /// Whether its data are too long to travel with the request.
        long: bool,
    },
    /// Send a message that contains the receive right of a port. The port must be one of the thread's node;
    /// it moves to that of the thread that takes the message.
    Pass {
        /// The port's index.
        port: u8,
        /// The index of the port that the message is sent to.
        through: u8,
    },
    /// Receive a message, waiting for it. The port must be one of the thread's node.
    Take {
        /// The port's index.
        port: u8,
        /// Receives what the message says.
        into: Register,
    },
    /// `register += value`.
    Add(Register, u64),
    /// `register += other`.
    AddRegister(Register, Register),
    /// Jump to instruction `to` unless the register contains `is`.
    JumpUnless {
        /// The register.
        register: Register,
        /// The value to compare with.
        is: u64,
        /// The instruction's index.
        to: usize,
    },
}

/// One thread's script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The node that it runs on.
    pub node: NodeId,
    /// Whether it belongs to the node's team, whose threads make the collective calls. Other threads come and
    /// go.
    pub in_team: bool,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
}

impl Script {
    /// Returns a thread of a node's team.
    pub fn team(node: u16, instructions: Vec<Instruction>) -> Script {
        Script { node: NodeId(node), in_team: true, instructions }
    }

    /// Returns a thread that the program has created itself.
    pub fn foreign(node: u16, instructions: Vec<Instruction>) -> Script {
        Script { node: NodeId(node), in_team: false, instructions }
    }
}

/// An allocation of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its granules.
    pub granules: PageRange,
    /// Its coherence unit.
    pub page_size: PageSize,
    /// Its homes.
    pub placement: Placement,
}

impl Region {
    /// Returns `pages` pages of `granules_per_page` granules (a power of two) from granule `first` on.
    pub fn new(first: u64, pages: u64, granules_per_page: u64, placement: Placement) -> Region {
        let page_size = PageSize::new(granules_per_page * u64::from(GRANULE_BYTES));
        Region {
            granules: PageRange { first: PageId(first), count: pages * granules_per_page },
            page_size: page_size.expect("a page is a power of two of granules"),
            placement,
        }
    }
}

/// A program for a simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Nodes of the cluster.
    pub nodes: u16,
    /// The regions that are allocated before the threads begin.
    pub regions: Vec<Region>,
    /// The threads; one node's threads are its waiters 0, 1, … in this order.
    pub threads: Vec<Script>,
    /// The node of each port at first. Every node has rights to send to all of them.
    pub ports: Vec<NodeId>,
}

impl Program {
    /// Returns a program with `pages` pages of one granule whose homes go round the nodes (page 0 on node 0),
    /// and one thread per node.
    pub fn new(pages: u64, scripts: impl IntoIterator<Item = Vec<Instruction>>) -> Program {
        let threads: Vec<Script> = scripts
            .into_iter()
            .enumerate()
            .map(|(node, instructions)| Script::team(node as u16, instructions))
            .collect();
        Program::on(threads.len() as u16, pages, threads)
    }

    /// Returns a program on `nodes` nodes with any threads.
    pub fn on(nodes: u16, pages: u64, threads: Vec<Script>) -> Program {
        let regions = vec![Region::new(0, pages, 1, Placement::Cyclic)];
        Program { nodes, regions, threads, ports: Vec::new() }
    }

    /// Replaces the regions.
    pub fn with_regions(self, regions: Vec<Region>) -> Program {
        Program { regions, ..self }
    }

    /// Replaces the ports by ports on these nodes.
    pub fn with_ports(self, nodes: &[u16]) -> Program {
        Program { ports: nodes.iter().copied().map(NodeId).collect(), ..self }
    }

    /// Returns the first granule number after all regions.
    pub fn region_granules(&self) -> u64 {
        self.regions.iter().map(|region| region.granules.end().0).max().unwrap_or(0)
    }

    /// Returns how many threads of a node make its collective calls.
    pub fn team_of(&self, node: NodeId) -> u32 {
        self.threads.iter().filter(|script| script.in_team && script.node == node).count() as u32
    }
}

/// Short names for the instructions, since scripts are read beside the papers' figures.
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

    /// Release a lock.
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

    /// Put a page under sequential consistency.
    pub const fn convert(page: u64) -> Instruction {
        Instruction::Convert(PageId(page))
    }

    /// Waits, on node 0, until all other nodes have arrived at the next collective.
    pub fn await_others() -> Instruction {
        Instruction::AwaitOthers
    }

    /// Contribute a value to the next barrier.
    pub const fn contribute(value: u64) -> Instruction {
        Instruction::Contribute(value)
    }

    /// Meet all nodes in a barrier; node 0 adds what was contributed to a word.
    pub const fn combine(at: Address) -> Instruction {
        Instruction::Combine(at)
    }

    /// Add to a word by an instruction.
    pub const fn add_atomically(at: Address, delta: u64, into: u8) -> Instruction {
        Instruction::Swap { at, operation: AtomicOperation::FetchAdd(delta), into: Register(into) }
    }

    /// Exchange a word by an instruction.
    pub const fn exchange(at: Address, value: u64, into: u8) -> Instruction {
        Instruction::Swap { at, operation: AtomicOperation::Store(value), into: Register(into) }
    }

    /// Compare and exchange a word by an instruction.
    pub const fn compare_exchange(at: Address, expected: u64, desired: u64, into: u8) -> Instruction {
        let operation = AtomicOperation::CompareExchange { expected, desired };
        Instruction::Swap { at, operation, into: Register(into) }
    }

    /// Hint at the page of a granule.
    pub const fn prefetch(page: u64) -> Instruction {
        Instruction::Prefetch(PageRange { first: PageId(page), count: 1 })
    }

    /// Publish to a node.
    pub const fn publish(to: u16) -> Instruction {
        Instruction::Publish { to: NodeId(to), tag: 0 }
    }

    /// Wait for a publication.
    pub const fn await_published(from: u16) -> Instruction {
        Instruction::AwaitPublished { from: NodeId(from), tag: 0 }
    }

    /// Send a message that travels with its request, or a long one.
    pub const fn send(port: u8, value: u64, long: bool) -> Instruction {
        Instruction::Post { port, value, long }
    }

    /// Send a short message.
    pub const fn post(port: u8, value: u64) -> Instruction {
        send(port, value, false)
    }

    /// Send a port's receive right.
    pub const fn pass(port: u8, through: u8) -> Instruction {
        Instruction::Pass { port, through }
    }

    /// Receive a message.
    pub const fn take(port: u8, into: u8) -> Instruction {
        Instruction::Take { port, into: Register(into) }
    }

    /// Add to a register.
    pub const fn add(register: u8, value: u64) -> Instruction {
        Instruction::Add(Register(register), value)
    }

    /// Add a register to a register.
    pub const fn add_register(register: u8, other: u8) -> Instruction {
        Instruction::AddRegister(Register(register), Register(other))
    }

    /// Jump unless a register contains `is`.
    pub const fn jump_unless(register: u8, is: u64, to: usize) -> Instruction {
        Instruction::JumpUnless { register: Register(register), is, to }
    }
}
