//! What the nodes of a job know together: one block of shared memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use hiroba_schedule::{Slots, WORDS};

use crate::endings::Endings;
use crate::face;
use crate::literals::Literals;
use crate::offers::{Claims, Reductions};
use crate::records::{Group, Queue};
use crate::runtime::Lock;
use crate::sites::Sites;
use crate::work::{RING, Share};

/// Stores a value that is not there yet: a store takes the page away from other nodes, even if it changes
/// nothing.
macro_rules! put {
    ($word:expr, $value:expr) => {
        if $word.load(Relaxed) != $value {
            $word.store($value, Relaxed);
        }
    };
}
pub(crate) use put;

/// The program's code that makes a copy of a `threadprivate` variable.
pub(crate) type Construct = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// How copies of a `threadprivate` variable begin. Records are in a list of the job.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) next: *mut Registered,
    pub(crate) variable: *mut c_void,
    pub(crate) construct: Option<Construct>,
}

/// Where the code of a region and its data lie, and who takes part. Fields change between regions.
#[repr(C, align(4096))]
pub(crate) struct Region {
    pub(crate) function: AtomicU64,
    pub(crate) data: AtomicPtr<c_void>,
    /// How many threads take part.
    pub(crate) threads: AtomicU32,
    /// In how many regions its threads are with it.
    pub(crate) level: AtomicU32,
    /// Which team of a league it is, and how many there are.
    pub(crate) team_number: AtomicU32,
    pub(crate) teams: AtomicU32,
    /// What its threads begin with: see `context.rs`.
    pub(crate) settings: [AtomicU64; SETTINGS],
    /// The number of the first piece of shared work, and of the first barrier.
    pub(crate) first_share: AtomicU64,
    pub(crate) first_barrier: AtomicU64,
    /// The loop that every thread begins with, if `has_loop` is not 0: see `loops.rs`.
    pub(crate) has_loop: AtomicU32,
    pub(crate) of_loop: [AtomicU64; WORDS],
    /// The group of tasks that its threads are in, if reductions are for all of it.
    pub(crate) group: AtomicPtr<Group>,
    /// The data of regions whose library knows how many they are.
    pub(crate) list: [AtomicU64; LIST],
}

/// How many words of data a record has room for.
pub(crate) const LIST: usize = 64;
/// How many records there are. A node that a team leaves out may come to the record when the next region has
/// begun, but never when the one after that has.
pub(crate) const RECORDS: usize = 2;

/// Words of settings that a region's threads begin with.
pub(crate) const SETTINGS: usize = 6;

/// What the threads of a team do together.
#[repr(C, align(4096))]
pub(crate) struct Team {
    /// What `copyprivate` passes on.
    pub(crate) copied: AtomicPtr<c_void>,
    /// Not 0 once the region is cancelled.
    pub(crate) cancelled: AtomicU32,
    /// Which loop is cancelled, in programs for LLVM's library; 0 for none.
    pub(crate) cancelled_loop: AtomicU64,
    /// Which barriers are those of regions' ends, if they may be cancelled.
    pub(crate) endings: Endings,
    /// A team whose threads do not meet in barriers of all nodes meets here, under `lock`.
    pub(crate) lock: Lock,
    pub(crate) arrived: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// Critical sections without a name, and what compilers make of long atomic operations.
    pub(crate) critical: Lock,
    pub(crate) atomic: Lock,
}

/// The longest format, with its final zero.
pub(crate) const FORMAT_BYTES: usize = 256;

/// The block.
#[repr(C)]
pub(crate) struct Job {
    pub(crate) regions: [Region; RECORDS],
    pub(crate) team: Team,
    pub(crate) tasks: Queue,
    pub(crate) reductions: Reductions,
    pub(crate) claims: Claims,
    pub(crate) shares: [Share; RING],
    pub(crate) sites: Sites,
    pub(crate) literals: Literals,
    /// How copies of thread-private variables begin, in programs for LLVM's library.
    pub(crate) thread_private: AtomicPtr<Registered>,
    /// Node 0's clock at the start, in nanoseconds.
    pub(crate) clock_ns: AtomicU64,
    /// The format in which the program has its threads' places shown.
    pub(crate) format: [AtomicU8; FORMAT_BYTES],
}

static JOB: AtomicPtr<Job> = AtomicPtr::new(std::ptr::null_mut());
/// A page of each node, with a word for each piece of work.
static SLOTS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
const SLOTS_OF_NODE: usize = 4096 / size_of::<AtomicU64>();
static NODE: AtomicU32 = AtomicU32::new(0);
static NODES: AtomicU32 = AtomicU32::new(1);
static THREADS_PER_NODE: AtomicU32 = AtomicU32::new(1);
static HAS_TASKS: AtomicU32 = AtomicU32::new(0);

/// Makes the block. Collective. False when there is no room.
pub(crate) fn make(threads_per_node: u32, has_tasks: bool) -> bool {
    HAS_TASKS.store(u32::from(has_tasks), Relaxed);
    NODE.store(face::hiroba_node() as u32, Relaxed);
    NODES.store(face::hiroba_nodes() as u32, Relaxed);
    THREADS_PER_NODE.store(threads_per_node, Relaxed);
    let block = face::hiroba_alloc_for_program(size_of::<Job>(), 0).cast::<Job>();
    let slots = face::hiroba_alloc_for_program(slots_count() * size_of::<AtomicU64>(), 0);
    SLOTS.store(slots.cast(), Relaxed);
    JOB.store(block, Relaxed);
    !block.is_null() && !slots.is_null()
}

fn slots_count() -> usize {
    nodes() as usize * SLOTS_OF_NODE
}

/// The nodes' words for the piece of work in this place of the ring; `None` while there is no job.
pub(crate) fn slots(place: usize) -> Option<Slots<'static>> {
    let words = SLOTS.load(Relaxed);
    if words.is_null() {
        return None;
    }
    // SAFETY: as of the block, which `make` allocated together with them.
    let words = unsafe { std::slice::from_raw_parts(words, slots_count()) };
    Some(Slots { words, stride: SLOTS_OF_NODE, place })
}

/// The block; `None` while there is no job.
pub(crate) fn job() -> Option<&'static Job> {
    // SAFETY: `make` allocated it for as long as the process lives, zeros are valid, and its fields are
    // atomics, which other threads and nodes may change.
    unsafe { JOB.load(Relaxed).as_ref() }
}

/// The block of a job that has begun.
pub(crate) fn begun() -> &'static Job {
    job().expect("only a job's threads form teams")
}

/// This node's number.
pub(crate) fn node() -> u32 {
    NODE.load(Relaxed)
}

/// How many nodes there are.
pub(crate) fn nodes() -> u32 {
    NODES.load(Relaxed)
}

/// How many threads each node has.
pub(crate) fn threads_per_node() -> u32 {
    THREADS_PER_NODE.load(Relaxed)
}

/// How many threads all nodes have.
pub(crate) fn places() -> u32 {
    nodes() * threads_per_node()
}

/// How many threads of a team of `threads` are on each node, as long as they last: as many as the node has,
/// or more of them where the program asks for more than the job has.
pub(crate) fn block(threads: u32) -> u32 {
    if threads <= places() { threads_per_node() } else { threads.div_ceil(nodes()) }
}

/// The most threads of a team.
pub(crate) fn threads_max() -> u32 {
    nodes() * BLOCK_MAX
}

/// The most threads of a team on one node.
pub(crate) const BLOCK_MAX: u32 = 512;

/// Returns true if the program has tasks: then threads that wait at a barrier run some.
pub(crate) fn has_tasks() -> bool {
    HAS_TASKS.load(Relaxed) != 0
}
