//! A node of the measured job: node 1 measures, node 0 is the home of what it touches, the others take part.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hiroba_base::{LockId, NodeId, PageSize, RngExt, seeded};
use hiroba_node::Runtime;
use hiroba_wire::{AtomicOperation, Placement};

use super::raw::{Cipher, REQUEST_BYTES, Raw, Sink};
use super::samples::Taken;
use super::shared::{PAGE_BYTES, Region};
use super::{BenchPlan, Group, Report, compute, row};
use hiroba_launch::failure::Failure;

pub const HOME: NodeId = NodeId(0);
pub const CLIENT: NodeId = NodeId(1);
/// The number of operations before the first that counts.
pub const WARM_UP: usize = 32;
/// The name of the rows that show what encryption adds to a raw exchange.
pub const RAW_SEALED: &str = "raw exchange, sealed as the fabric does";
/// The name of the rows of faults that a message answers.
const PAGE_FETCHED: &str = "read fault, page fetched";
/// The bytes that one changed word of a page takes in a message: the page's number, the run, eight bytes.
const DIFF_BYTES: usize = 24;

/// Takes part in a measured job, in a process that `hiroba bench` has started as a node.
pub fn serve_as_node(plan: &BenchPlan) -> Result<u8, Failure> {
    let failed = |what: String| Failure::new(format!("cannot measure: {what}"));
    let runtime = Runtime::join_measurement().map_err(|error| failed(error.to_string()))?;
    runtime.prepare_thread().map_err(|error| failed(error.to_string()))?;
    if runtime.nodes() == 1 {
        report(&Report::Progress(Group::Compute.name().to_owned()));
        compute::measure(runtime, plan).for_each(|row| report(&Report::Row(row)));
    } else {
        let mut node = Node::new(runtime, plan).map_err(|error| failed(error.to_string()))?;
        for group in &plan.groups {
            if node.is_client() {
                report(&Report::Progress(group.name().to_owned()));
            }
            match group {
                Group::Fault => node.faults(),
                Group::Barrier => node.barriers(),
                Group::Lock => node.locks(),
                Group::Atomic => node.atomics(),
                Group::Stream => node.streams(),
                Group::Release => node.releases(),
                Group::Ports => node.ports(),
                Group::Stages => node.stages(),
                Group::Updates => node.updates(),
                #[cfg(feature = "legs")]
                Group::Legs => node.legs(),
                Group::Program | Group::Diff | Group::Compute => {}
            }
        }
    }
    report(&Report::Account(Box::new(runtime.last_statistics())));
    runtime.leave();
    Ok(0)
}

/// Writes a report as one line.
pub fn report(report: &Report) {
    let line = serde_json::to_string(report).unwrap_or_default() + "\n";
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// What the home does while the client measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Waits in a barrier and serves the runtime's messages.
    Waiting,
    /// Polls for raw requests and answers them.
    Answering,
    /// Computes, while a thread that sleeps until a request arrives answers raw requests.
    Computing,
}

/// The distance of pages that are touched one by one: one fault must not bring the next page, too.
const STRIDE: usize = 8 * PAGE_BYTES;

/// Returns the offsets of pages in an order without a pattern, so that they are not fetched ahead: single
/// fetches are to be measured.
pub fn scattered(pages: usize) -> Vec<usize> {
    scattered_by(0, pages)
}

/// Returns the same in an order that depends on a seed.
fn scattered_by(seed: u64, pages: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pages).map(|page| page * STRIDE).collect();
    let mut random = seeded(seed);
    for at in (1..pages).rev() {
        order.swap(at, random.random_range(0..=at));
    }
    order
}

/// A node of the measured job, and its end of the raw exchanges.
pub struct Node<'a> {
    pub runtime: &'static Runtime,
    pub plan: &'a BenchPlan,
    raw: Raw,
}

impl<'a> Node<'a> {
    fn new(runtime: &'static Runtime, plan: &'a BenchPlan) -> std::io::Result<Node<'a>> {
        let spins = runtime.has_cores_to_spare();
        let others = usize::from(runtime.nodes()) - 1;
        let table = Region::allocate(runtime, 8, Placement::On(HOME), None);
        let raw = if runtime.node() == HOME {
            let (mut raw, address) = Raw::at_home(plan.fabric, others, spins)?;
            table.store(0, address);
            runtime.barrier();
            runtime.barrier();
            raw.meet();
            raw
        } else {
            runtime.barrier();
            let raw = Raw::to(plan.fabric, table.load(0), runtime.node().index() - 1, spins)?;
            runtime.barrier();
            raw
        };
        runtime.barrier();
        let mut node = Node { runtime, plan, raw };
        node.raw.seal(node.cipher());
        Ok(node)
    }

    /// Returns the cipher of the raw exchanges, if the fabric encrypts its messages, so that the comparison
    /// is fair.
    fn cipher(&self) -> Option<Cipher> {
        self.plan.is_sealed().then(|| match self.runtime.node().index().checked_sub(1) {
            None => Cipher::at_home(),
            Some(number) => Cipher::of_another(number),
        })
    }

    pub fn is_client(&self) -> bool {
        self.runtime.node() == CLIENT
    }

    pub fn is_home(&self) -> bool {
        self.runtime.node() == HOME
    }

    pub fn region(&self, bytes: usize, home: NodeId) -> Region {
        Region::allocate(self.runtime, bytes, Placement::On(home), None)
    }

    /// Lets the client run `measure` while the home is in a state. All nodes meet before and after.
    pub fn while_home<T>(&mut self, state: Home, measure: impl FnOnce(&mut Raw) -> T) -> Option<T> {
        self.runtime.barrier();
        let mut result = None;
        if self.is_client() {
            result = Some(measure(&mut self.raw));
            if state != Home::Waiting {
                self.raw.stop();
            }
        } else if self.is_home() {
            match state {
                Home::Waiting => {}
                Home::Answering => self.raw.serve(),
                Home::Computing => self.compute_and_answer(),
            }
        }
        self.runtime.barrier();
        result
    }

    fn compute_and_answer(&self) {
        let Ok(mut answering) = self.raw.sleeping() else { return };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                answering.serve();
                done.store(true, Ordering::Relaxed);
            });
            keep_busy(&done);
        });
    }

    /// Exchanges messages with the home through the raw peer, encrypted as the fabric's are.
    pub fn raw_exchange(&mut self, state: Home, answer_bytes: usize, times: usize) -> Option<Taken> {
        self.while_home(state, |raw| Taken::each(times, WARM_UP, |_| _ = raw.ask(answer_bytes)))
    }

    /// Measures the raw peer without encryption. Returns `None` if it has none anyway.
    pub fn unsealed<T>(&mut self, measure: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if !self.plan.is_sealed() {
            return None;
        }
        self.raw.seal(None);
        let result = measure(self);
        self.raw.seal(self.cipher());
        result
    }

    /// Sends a row, if this node is the one that has measured it.
    pub fn tell(&self, name: &str, fabric: &str, state: &str, taken: Option<Taken>, raw: Option<&Taken>) {
        if let Some(taken) = taken {
            report(&Report::Row(row(name, fabric, state, taken, raw)));
        }
    }

    fn faults(&mut self) {
        let pages = self.plan.times(2048);
        self.faults_on_data_here(pages);
        self.fetches(pages);
        self.fetches_of_voided_pages(pages);
        self.fetches_from_a_computing_home(self.plan.times(400));
        self.home_writes();
    }

    /// Measures faults that need no message: the cost of the fault itself.
    fn faults_on_data_here(&mut self, pages: usize) {
        let order = scattered(pages);
        let own = self.region(pages * STRIDE, CLIENT);
        if self.is_home() {
            // The client's frames then contain data that its program has never touched.
            (0..pages).for_each(|page| own.store(page * STRIDE, 1));
        }
        let taken = self.while_home(Home::Waiting, |_| {
            Taken::each(pages - WARM_UP, WARM_UP, |turn| _ = own.load(order[turn]))
        });
        self.tell("read fault, data here already", "", &self.plan.setting, taken, None);
    }

    /// Measures first fetches of pages, into frames that the kernel allocates, and first writes to the
    /// copies.
    fn fetches(&mut self, pages: usize) {
        let plan = self.plan;
        let (setting, fabric) = (&plan.setting, plan.fabric.name());
        let timed = pages - WARM_UP;
        let order = scattered(pages);
        let exchanges = plan.times(4000);
        let raw = self.raw_exchange(Home::Answering, PAGE_BYTES, exchanges);
        let unsealed = self.unsealed(|node| node.raw_exchange(Home::Answering, PAGE_BYTES, exchanges));
        if let Some(unsealed) = unsealed {
            let state = "64 B for 4 KiB, home idle; raw: the same without a seal";
            self.tell(RAW_SEALED, fabric, state, raw.clone(), Some(&unsealed));
        }
        let remote = self.filled(pages * STRIDE, None);
        let write = |value| Taken::each(timed, WARM_UP, |turn| remote.store(order[turn], value));
        // There is no barrier between the two, since the first barrier after a fetch would void the page
        // again.
        let taken = self.while_home(Home::Waiting, |_| {
            (Taken::each(timed, WARM_UP, |turn| _ = remote.load(order[turn])), write(2))
        });
        let (reads, writes) = taken.unzip();
        let state = format!("{setting}, into a fresh frame, home idle");
        self.tell(PAGE_FETCHED, fabric, &state, reads, raw.as_ref());
        let name = "first write to a cached page";
        self.tell(name, "", &format!("{setting}, fetched since the last release"), writes, None);
        (3..5).for_each(|value| _ = self.while_home(Home::Waiting, |_| write(value)));
        let taken = self.while_home(Home::Waiting, |_| write(5));
        self.tell(name, "", &format!("{setting}, written before each release"), taken, None);
    }

    /// Measures fetches of pages whose frames exist, since the home's writes have voided earlier copies. Each
    /// page is voided once and read again in another order, so that neither habits nor streams fetch it
    /// before its fault.
    fn fetches_of_voided_pages(&mut self, pages: usize) {
        let remote = self.filled(pages * STRIDE, None);
        let raw = self.raw_exchange(Home::Answering, PAGE_BYTES, self.plan.times(4000));
        if self.is_client() {
            scattered(pages).into_iter().for_each(|offset| _ = remote.load(offset));
        }
        self.runtime.barrier();
        if self.is_home() {
            (0..pages).for_each(|page| remote.store(page * STRIDE, 2));
        }
        let order = scattered_by(1, pages);
        let taken = self.while_home(Home::Waiting, |_| {
            Taken::each(pages - WARM_UP, WARM_UP, |turn| _ = remote.load(order[turn]))
        });
        let state = format!("{}, into a frame already there, home idle", self.plan.setting);
        self.tell(PAGE_FETCHED, self.plan.fabric.name(), &state, taken, raw.as_ref());
    }

    fn fetches_from_a_computing_home(&mut self, pages: usize) {
        let raw = self.raw_exchange(Home::Computing, PAGE_BYTES, pages);
        let remote = self.filled((pages + WARM_UP) * STRIDE, None);
        let order = scattered(pages + WARM_UP);
        let taken = self.while_home(Home::Computing, |_| {
            Taken::each(pages, WARM_UP, |turn| _ = remote.load(order[turn]))
        });
        let state = format!("{}, into a fresh frame, home computing", self.plan.setting);
        self.tell(PAGE_FETCHED, self.plan.fabric.name(), &state, taken, raw.as_ref());
    }

    /// Measures the home's own first writes to pages of which other nodes have copies.
    fn home_writes(&mut self) {
        let pages = self.plan.times(1024);
        let own = self.region(pages * PAGE_BYTES, CLIENT);
        if self.is_client() {
            (0..pages).for_each(|page| own.store(page * PAGE_BYTES, 1));
        }
        self.runtime.barrier();
        if self.is_home() {
            (0..pages).for_each(|page| _ = own.load(page * PAGE_BYTES));
        }
        self.runtime.barrier();
        let taken = self.while_home(Home::Waiting, |_| {
            Taken::each(pages - WARM_UP, WARM_UP, |page| own.store(page * PAGE_BYTES, 2))
        });
        let state = format!("{}, others have copies", self.plan.setting);
        self.tell("first write of the home", "", &state, taken, None);
    }

    /// Allocates a region at the home in which no page is zero.
    pub fn filled(&mut self, bytes: usize, page: Option<PageSize>) -> Region {
        let region = Region::allocate(self.runtime, bytes, Placement::On(HOME), page);
        if self.is_home() {
            (0..bytes / 8).for_each(|word| region.store(word * 8, word as u64 | 1));
        }
        self.runtime.barrier();
        region
    }

    fn barriers(&mut self) {
        let times = self.plan.times(4000);
        let nodes = usize::from(self.runtime.nodes());
        self.runtime.barrier();
        let mut raw = None;
        if self.is_home() {
            for _ in 0..times + WARM_UP {
                if !self.raw.gather(nodes - 1) {
                    break;
                }
            }
        } else {
            raw = Some(Taken::each(times, WARM_UP, |_| _ = self.raw.ask(REQUEST_BYTES)));
        }
        let dirty = self.region(64 * PAGE_BYTES, HOME);
        for (pages, words) in [(0, "nothing written"), (64, "64 pages dirty")] {
            let times = if pages == 0 { times } else { times / 4 };
            let write = |round: usize| {
                if self.is_client() {
                    (0..pages).for_each(|page| dirty.store(page * PAGE_BYTES, round as u64 + 1));
                }
            };
            let taken = Taken::prepared(times, WARM_UP, write, |_| self.runtime.barrier());
            let state = format!("{nodes} nodes, {words}");
            let taken = Some(taken).filter(|_| self.is_client());
            self.tell("barrier", self.plan.fabric.name(), &state, taken, raw.as_ref());
        }
    }

    /// Returns a lock whose manager is the client.
    pub fn own_lock(&self) -> LockId {
        let nodes = self.runtime.nodes();
        (1..).map(LockId).find(|lock| lock.manager(nodes) == CLIENT).expect("every node manages some")
    }

    fn atomics(&mut self) {
        let runtime = self.runtime;
        let times = self.plan.times(4000);
        let raw = self.raw_exchange(Home::Answering, REQUEST_BYTES, times);
        for (home, name, raw) in [(CLIENT, "at this node", None), (HOME, "at another node", raw.as_ref())] {
            let word = self.region(8, home).address(0);
            let taken = self.while_home(Home::Waiting, |_| {
                Taken::each(times, WARM_UP, |_| {
                    runtime.atomic("hiroba_fetch_add", word, AtomicOperation::FetchAdd(1));
                })
            });
            let fabric = if home == CLIENT { "" } else { self.plan.fabric.name() };
            self.tell("fetch and add", fabric, name, taken, raw);
        }
    }

    fn releases(&mut self) {
        let large = if self.plan.quick { 128 << 20 } else { 1 << 30 };
        let dirty = self.filled(1024 * PAGE_BYTES, None);
        // Large pages are mapped faster; a release scans the same.
        for (bytes, page) in [(16 << 20, None), (large, Some(PageSize::MIB_2))] {
            let mapped = Region::allocate(self.runtime, bytes, Placement::On(HOME), page);
            if self.is_client() {
                report(&Report::Progress(format!("release, {} MiB mapped", bytes >> 20)));
                (0..mapped.bytes()).step_by(PAGE_BYTES).for_each(|offset| _ = mapped.load(offset));
            }
            for sibling in [false, true] {
                for pages in [0, 1, 64, 1024] {
                    self.release(dirty, pages, bytes, sibling);
                }
            }
        }
    }

    fn release(&mut self, region: Region, pages: usize, mapped_bytes: usize, sibling: bool) {
        let (runtime, lock) = (self.runtime, self.own_lock());
        let times = self.plan.times(if pages == 1024 { 60 } else { 400 });
        let mut sink = Sink::open(self.plan.fabric);
        let taken = self.while_home(Home::Waiting, |_| {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                if sibling {
                    scope.spawn(|| {
                        let _ = runtime.prepare_thread();
                        keep_busy(&done);
                        runtime.finish_thread();
                    });
                }
                let mut nanos = Vec::with_capacity(times);
                for round in 0..times + WARM_UP {
                    runtime.lock(lock);
                    (0..pages).for_each(|page| region.store(page * PAGE_BYTES, round as u64 + 1));
                    let began = Instant::now();
                    runtime.unlock(lock);
                    if round >= WARM_UP {
                        nanos.push(began.elapsed().as_nanos() as f64);
                    }
                }
                let plain = sink.as_mut().ok().filter(|_| pages > 0).map(|sink| {
                    let mut nanos = Vec::with_capacity(times);
                    for _ in 0..times {
                        let began = Instant::now();
                        sink.send(pages * DIFF_BYTES);
                        nanos.push(began.elapsed().as_nanos() as f64);
                        sink.empty();
                    }
                    Taken::new(nanos, 0)
                });
                done.store(true, Ordering::Relaxed);
                (Taken::new(nanos, WARM_UP), plain)
            })
        });
        let Some((taken, raw)) = taken else { return };
        let s = if pages == 1 { "" } else { "s" };
        let threads = if sibling { "2 threads" } else { "1 thread" };
        let state = format!(
            "{}, {} MiB mapped, {pages} page{s} dirty, {threads}",
            self.plan.setting,
            mapped_bytes >> 20
        );
        let fabric = if pages > 0 { self.plan.fabric.name() } else { "" };
        self.tell("release", fabric, &state, Some(taken), raw.as_ref());
    }
}

/// Computes until `done` is set.
fn keep_busy(done: &AtomicBool) {
    let mut x = 0u64;
    while !done.load(Ordering::Relaxed) {
        (0..1000).for_each(|step| x = std::hint::black_box(x.wrapping_mul(3) ^ step));
    }
}
