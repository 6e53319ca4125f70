//! How the threads of a team meet: those of a node among themselves, and one of them for all with the other
//! nodes.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use crate::job;
use crate::runtime::{self, Wait};
use crate::updates;

/// Where threads of one node wait for each other. Private to the process.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    arrived: AtomicU32,
    generation: AtomicU32,
    sleepers: AtomicU32,
}

/// How often a thread looks before it counts as waiting, and before it sleeps.
const FIRST_LOOKS: u32 = 100;
const LOOKS: u32 = 2000;

impl Gate {
    pub(crate) const fn new() -> Gate {
        Gate { arrived: AtomicU32::new(0), generation: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

    /// Waits until `threads` threads have come; the last one does `work` before they go on.
    pub(crate) fn meet(&self, threads: u32, work: impl FnOnce()) {
        if threads == 1 {
            return work();
        }
        let generation = self.generation.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == threads {
            self.arrived.store(0, Release);
            work();
            self.open();
        } else {
            self.wait(generation, Wait::Team);
        }
    }

    /// Lets the waiting threads continue.
    pub(crate) fn open(&self) {
        self.generation.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if self.sleepers.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            futex(&self.generation, libc::FUTEX_WAKE, i32::MAX as u32);
        }
    }

    /// How often the gate was opened.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Waits until it is opened another time than `generation`.
    pub(crate) fn wait(&self, generation: u32, what: Wait) {
        if !self.opens(generation, FIRST_LOOKS) {
            runtime::privately(|| runtime::waiting(what, || self.wait_long(generation)));
        }
    }

    /// Looks that often whether it is opened.
    fn opens(&self, generation: u32, looks: u32) -> bool {
        (0..looks).any(|_| {
            std::hint::spin_loop();
            self.generation() != generation
        })
    }

    fn wait_long(&self, generation: u32) {
        if !self.opens(generation, LOOKS) {
            self.sleepers.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            while self.generation.load(std::sync::atomic::Ordering::SeqCst) == generation {
                futex(&self.generation, libc::FUTEX_WAIT, generation);
            }
            self.sleepers.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// futex(2) on a word of this process, past the functions that stand before `syscall`.
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    let no_time = ptr::null::<libc::timespec>();
    // SAFETY: the kernel only reads the word.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_futex => _,
            in("rdi") ptr::from_ref(word),
            in("rsi") operation,
            in("rdx") value,
            in("r10") no_time,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
}

/// Where the threads of a team of this node meet.
static OF_TEAM: Gate = Gate::new();

/// The calling thread, one of a team of `threads` threads, waits for all of them.
pub(crate) fn meet_team(threads: u32) {
    let per_node = job::block(threads);
    let first = job::node() * per_node;
    let here = (threads.saturating_sub(first)).min(per_node);
    if threads <= per_node {
        OF_TEAM.meet(here, || {});
    } else if threads.div_ceil(per_node) == job::nodes() {
        OF_TEAM.meet(here, updates::meet_nodes);
    } else {
        meet_by_lock(threads);
    }
}

/// The same for teams that leave nodes out, whose barrier that of all nodes cannot be.
fn meet_by_lock(threads: u32) {
    let team = &job::begun().team;
    team.lock.hold(|held| {
        let generation = team.generation.load(Acquire);
        let arrived = team.arrived.load(Acquire) + 1;
        if arrived == threads {
            team.arrived.store(0, Release);
            team.generation.store(generation.wrapping_add(1), Release);
            held.tell_all();
            return;
        }
        team.arrived.store(arrived, Release);
        while team.generation.load(Acquire) == generation {
            held.wait();
        }
    });
}
