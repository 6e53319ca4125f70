//! ATTEMPT-0: a machine whose processors page between local memory and shared memory.
//!
//! D. Hattori, J. Yamamoto, H. Amano: *An implementation and evaluation of virtual memory system on a shared
//! memory multiprocessor with local memory* (Keio University). Up to twenty processors (MC68030 and MC68882)
//! share a bus with a shared memory. Each has a local memory, and a write-through snoop cache in front of the
//! shared memory. Table 1 of the paper gives access times. A program may use at most 128 KiB of local memory;
//! its pages are swapped to the shared memory, which is large enough. A matrix multiplication is run in three
//! ways: all data in unlimited local memory (*normal*), all in shared memory (*shared*), and paged.
//!
//! The model simulates one processor, the one with most rows, word by word, and sums up times. It models the
//! cache's lines and the frames of local memory. A page moves word by word through the cache, as a processor
//! copies it.
//!
//! # Deviations
//!
//! - Processors do not contend for the bus. [`Outcome::time_ns`] contains no waiting for it;
//!   [`Outcome::with_bus_held_ns`] is the time if the bus serves one access at a time and is held during all
//!   of it.
//! - Instructions take the time of one [`Step::Compute`] per term, and pages of code and stack are not paged.
//! - Parameters that the paper does not give are marked *assumed* in [`Machine`] and [`Multiplication`].

mod cache;
mod program;

use hiroba_base::PageId;
use rustc_hash::FxHashMap;

use crate::{Opt, Policy, PolicyKind};
use cache::Cache;
pub use program::{Multiplication, Step, WORD_BYTES};

/// Access times and memory sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// An access to a word of local memory (table 1).
    pub local_ns: u64,
    /// A load of shared memory that hits the cache (table 1).
    pub hit_ns: u64,
    /// A load that misses it (table 1).
    pub miss_ns: u64,
    /// A store to shared memory (table 1).
    pub store_ns: u64,
    /// The length of the snoop cache (section 2.1).
    pub cache_bytes: u64,
    /// The number of lines in a set (section 2.1).
    pub cache_ways: usize,
    /// The line length. Assumed: the paper does not give it.
    pub line_bytes: u64,
    /// The local memory available for data (section 3.1).
    pub local_bytes: u64,
    /// The time from a fault to the moving of pages, and back. Assumed.
    pub fault_ns: u64,
    /// A multiplication and addition with its instructions, without the accesses to data. Assumed.
    pub compute_ns: u64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            local_ns: 250,
            hit_ns: 150,
            miss_ns: 18_200,
            store_ns: 750,
            cache_bytes: 64 << 10,
            cache_ways: 2,
            line_bytes: 16,
            local_bytes: 128 << 10,
            fault_ns: 100_000,
            compute_ns: 6_000,
        }
    }
}

/// Chooses the page that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// A policy.
    Policy(PolicyKind),
    /// The optimal policy, which knows the future.
    Opt,
}

/// The placement of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In unlimited local memory.
    Normal,
    /// In shared memory.
    Shared,
    /// In pages that are brought to local memory when they are used.
    Paged {
        /// The page length.
        page_bytes: u64,
        /// Chooses the pages that leave.
        chooser: Chooser,
    },
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The total time on the processor with most rows.
    pub time_ns: u64,
    /// The time of moving pages.
    pub paging_ns: u64,
    /// The time of accesses over the bus.
    pub bus_ns: u64,
    /// Pages brought in.
    pub page_ins: u64,
    /// Changed pages written out.
    pub page_outs: u64,
}

impl Outcome {
    /// Returns the time if the bus serves one access at a time, so that all bus accesses of processors are
    /// sequential.
    pub fn with_bus_held_ns(self, processors: u64) -> u64 {
        self.time_ns.max(self.bus_ns * processors)
    }
}

/// Runs a program on `processors` processors.
pub fn run(machine: &Machine, program: Multiplication, processors: u64, placement: Placement) -> Outcome {
    let mut processor = Processor::of(machine);
    match placement {
        Placement::Normal => program.run(processors, &mut |step| {
            processor.outcome.time_ns += match step {
                Step::Load(_) | Step::Store(_) => machine.local_ns,
                Step::Compute => machine.compute_ns,
            };
        }),
        Placement::Shared => program.run(processors, &mut |step| match step {
            Step::Load(word) => processor.load(word),
            Step::Store(_) => processor.store(),
            Step::Compute => processor.outcome.time_ns += machine.compute_ns,
        }),
        Placement::Paged { page_bytes, chooser } => {
            let policy = match chooser {
                Chooser::Policy(kind) => kind.make(),
                Chooser::Opt => Box::new(Opt::over(trace(program, processors, page_bytes))),
            };
            let mut window = Window::of(processor, policy, page_bytes);
            program.run(processors, &mut |step| match step {
                Step::Load(word) => window.touch(word, false),
                Step::Store(word) => window.touch(word, true),
                Step::Compute => window.processor.outcome.time_ns += machine.compute_ns,
            });
            processor = window.processor;
        }
    }
    processor.outcome
}

/// Returns the pages that a program uses, in order, without repetitions in a row.
fn trace(program: Multiplication, processors: u64, page_bytes: u64) -> Vec<PageId> {
    let mut pages = Vec::new();
    program.run(processors, &mut |step| {
        if let Step::Load(word) | Step::Store(word) = step {
            let page = PageId(word / page_bytes);
            if pages.last() != Some(&page) {
                pages.push(page);
            }
        }
    });
    pages
}

/// A processor and its path to shared memory.
struct Processor<'a> {
    machine: &'a Machine,
    cache: Cache,
    outcome: Outcome,
}

impl<'a> Processor<'a> {
    fn of(machine: &'a Machine) -> Processor<'a> {
        let cache = Cache::new(machine.cache_bytes, machine.cache_ways, machine.line_bytes);
        Processor { machine, cache, outcome: Outcome::default() }
    }

    /// Loads a word of shared memory.
    fn load(&mut self, address: u64) {
        if self.cache.load(address) {
            self.outcome.time_ns += self.machine.hit_ns;
        } else {
            self.over_bus(self.machine.miss_ns);
        }
    }

    /// Stores a word of shared memory. Cached lines are updated with it.
    fn store(&mut self) {
        self.over_bus(self.machine.store_ns);
    }

    fn over_bus(&mut self, ns: u64) {
        self.outcome.time_ns += ns;
        self.outcome.bus_ns += ns;
    }
}

/// Local memory as a window on data in shared memory.
struct Window<'a> {
    processor: Processor<'a>,
    policy: Box<dyn Policy>,
    page_bytes: u64,
    frames: usize,
    /// The resident pages, and whether they were changed.
    here: FxHashMap<PageId, bool>,
    /// The page used last, which need not be looked up again.
    last: Option<PageId>,
}

impl<'a> Window<'a> {
    fn of(processor: Processor<'a>, policy: Box<dyn Policy>, page_bytes: u64) -> Window<'a> {
        let frames = (processor.machine.local_bytes / page_bytes) as usize;
        assert!(frames > 0, "local memory holds a page");
        Window { processor, policy, page_bytes, frames, here: FxHashMap::default(), last: None }
    }

    fn touch(&mut self, word: u64, is_store: bool) {
        self.processor.outcome.time_ns += self.processor.machine.local_ns;
        let page = PageId(word / self.page_bytes);
        if self.last != Some(page) {
            self.last = Some(page);
            if self.here.contains_key(&page) {
                self.policy.reference(page);
            } else {
                let before = self.processor.outcome.time_ns;
                self.bring(page);
                self.processor.outcome.paging_ns += self.processor.outcome.time_ns - before;
            }
        }
        if is_store {
            self.here.insert(page, true);
        }
    }

    fn bring(&mut self, page: PageId) {
        self.processor.outcome.time_ns += self.processor.machine.fault_ns;
        if self.here.len() == self.frames {
            let gone = self.policy.evict(&mut |_| true).expect("any page may leave");
            if self.here.remove(&gone) == Some(true) {
                self.processor.outcome.page_outs += 1;
                self.copy(gone, Processor::store_at);
            }
        }
        self.policy.admit(page);
        self.here.insert(page, false);
        self.processor.outcome.page_ins += 1;
        self.copy(page, Processor::load);
    }

    /// Copies a page, word by word.
    fn copy(&mut self, page: PageId, act: fn(&mut Processor<'a>, u64)) {
        let begin = page.0 * self.page_bytes;
        for word in (begin..begin + self.page_bytes).step_by(WORD_BYTES as usize) {
            self.processor.outcome.time_ns += self.processor.machine.local_ns;
            act(&mut self.processor, word);
        }
    }
}

impl Processor<'_> {
    fn store_at(&mut self, _address: u64) {
        self.store();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const SMALL: Multiplication = Multiplication { order: 16, tile: 16, element_bytes: 8 };

    fn paged(page_bytes: u64, kind: PolicyKind) -> Placement {
        Placement::Paged { page_bytes, chooser: Chooser::Policy(kind) }
    }

    #[test]
    fn normal_time_is_a_sum() {
        let outcome = run(&Machine::default(), SMALL, 1, Placement::Normal);
        let (terms, sums) = (16 * 16 * 16, 16 * 16);
        assert_eq!(outcome.time_ns, terms * (4 * 250 + 6_000) + sums * 2 * 250);
        assert_eq!((outcome.bus_ns, outcome.page_ins), (0, 0));
    }

    #[test]
    fn shared_data_that_the_cache_holds_are_missed_once_a_line() {
        let outcome = run(&Machine::default(), SMALL, 1, Placement::Shared);
        let (terms, sums, lines) = (16 * 16 * 16, 16 * 16, 2 * 16 * 16 * 8 / 16);
        let loads = terms * 4;
        let bus = lines * 18_200 + sums * 2 * 750;
        assert_eq!(outcome.bus_ns, bus);
        assert_eq!(outcome.time_ns, bus + (loads - lines) * 150 + terms * 6_000);
    }

    #[test]
    fn where_all_fits_each_page_comes_once() {
        let outcome = run(&Machine::default(), SMALL, 1, paged(KIB, PolicyKind::Fifo));
        let normal = run(&Machine::default(), SMALL, 1, Placement::Normal);
        // Three matrices of 2 KiB. A KiB has 64 lines, whose other three words hit.
        let page = 100_000 + 64 * 18_200 + 192 * 150 + 256 * 250;
        assert_eq!((outcome.page_ins, outcome.page_outs), (6, 0));
        assert_eq!(outcome.paging_ns, 6 * page);
        assert_eq!(outcome.time_ns, normal.time_ns + 6 * page);
        assert_eq!(outcome.bus_ns, 6 * 64 * 18_200);
    }

    #[test]
    fn changed_pages_go_out_word_by_word() {
        let machine = Machine { local_bytes: KIB, ..Machine::default() };
        let outcome = run(&machine, SMALL, 1, paged(KIB, PolicyKind::Fifo));
        assert!(outcome.page_outs > 0 && outcome.page_ins > outcome.page_outs, "{outcome:?}");
        let misses = outcome.bus_ns - outcome.page_outs * 256 * 750;
        assert_eq!(misses % 18_200, 0, "what else went over the bus are misses");
    }

    #[test]
    fn opt_brings_in_least() {
        let program = Multiplication { order: 48, tile: 16, element_bytes: 8 };
        let machine = Machine { local_bytes: 24 * KIB, ..Machine::default() };
        for page_bytes in [KIB, 2 * KIB, 4 * KIB, 8 * KIB] {
            let opt = Placement::Paged { page_bytes, chooser: Chooser::Opt };
            let least = run(&machine, program, 4, opt).page_ins;
            for kind in PolicyKind::ALL {
                let ins = run(&machine, program, 4, paged(page_bytes, kind)).page_ins;
                assert!(ins >= least, "{kind}, {page_bytes}: {ins} and {least}");
            }
        }
    }
}
