//! A node of the measured job: node 1 measures, node 0 is the home of what it touches, the others take part.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hiroba_base::{LockId, NodeId, PageSize};
use hiroba_node::Runtime;
use hiroba_wire::{AtomicOperation, Placement};

use super::raw::{REQUEST_BYTES, RawSocket};
use super::samples::Taken;
use super::shared::{PAGE_BYTES, Region};
use super::{BenchPlan, Figures, Group, Report, Row, compute, row};
use crate::failure::Failure;

const HOME: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);
/// Operations before the first that counts.
const WARM_UP: usize = 32;
/// Bytes that one changed word of a page takes in a message: the page's number, the run, eight bytes.
const DIFF_BYTES: usize = 24;

/// Takes part in a measured job. Called in a process that `hiroba bench` has started as a node.
pub fn serve_as_node(plan: &BenchPlan) -> Result<u8, Failure> {
    let failed = |what: String| Failure::new(format!("cannot measure: {what}"));
    let runtime = Runtime::join().map_err(|error| failed(error.to_string()))?;
    runtime.prepare_thread().map_err(|error| failed(error.to_string()))?;
    if runtime.nodes() == 1 {
        report(&Report::Progress(Group::Compute.name().to_owned()));
        compute::measure(runtime, plan).into_iter().for_each(|row| report(&Report::Row(row)));
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
                Group::Diff | Group::Compute => {}
            }
        }
    }
    runtime.leave();
    Ok(0)
}

/// One line, in one piece.
fn report(report: &Report) {
    let line = serde_json::to_string(report).unwrap_or_default() + "\n";
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// What the home does while the client measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// Waits in a barrier and serves the runtime's messages.
    Waiting,
    /// Answers on the plain socket, awake.
    Answering,
    /// Computes; a thread that sleeps until something comes answers on the plain socket.
    Computing,
}

struct Node<'a> {
    runtime: &'static Runtime,
    plan: &'a BenchPlan,
    raw: RawSocket,
    /// The plain sockets of all nodes.
    ports: Vec<u16>,
}

impl<'a> Node<'a> {
    fn new(runtime: &'static Runtime, plan: &'a BenchPlan) -> std::io::Result<Node<'a>> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let raw = RawSocket::bind(usize::from(runtime.nodes()) <= cores)?;
        let nodes = usize::from(runtime.nodes());
        let table = Region::allocate(runtime, nodes * 8, Placement::On(HOME), None);
        table.store(runtime.node().index() * 8, u64::from(raw.port()?));
        runtime.barrier();
        let ports = (0..nodes).map(|node| table.load(node * 8) as u16).collect();
        runtime.barrier();
        Ok(Node { runtime, plan, raw, ports })
    }

    fn is_client(&self) -> bool {
        self.runtime.node() == CLIENT
    }

    fn is_home(&self) -> bool {
        self.runtime.node() == HOME
    }

    fn region(&self, bytes: usize, home: NodeId) -> Region {
        Region::allocate(self.runtime, bytes, Placement::On(home), None)
    }

    /// Has the client do something while the home is in a state; all nodes meet before and after.
    fn while_home<T>(&mut self, state: Home, measure: impl FnOnce(&mut RawSocket, u16) -> T) -> Option<T> {
        self.runtime.barrier();
        let home = self.ports[HOME.index()];
        let mut result = None;
        if self.is_client() {
            result = Some(measure(&mut self.raw, home));
            if state != Home::Waiting {
                self.raw.stop(home);
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

    /// The median of plain exchanges with the home, in microseconds.
    fn raw_exchange(&mut self, state: Home, answer_bytes: usize, times: usize) -> Option<f64> {
        let taken = self
            .while_home(state, |raw, home| Taken::each(times, WARM_UP, |_| _ = raw.ask(home, answer_bytes)));
        taken.map(|taken| taken.median_us())
    }

    /// Sends a row, if this node is the one that has measured it.
    fn tell(&self, name: &str, fabric: &str, state: &str, taken: Option<Taken>, raw_us: Option<f64>) {
        if let Some(taken) = taken {
            report(&Report::Row(row(name, fabric, state, taken, raw_us)));
        }
    }

    fn faults(&mut self) {
        let setting = self.plan.setting.clone();
        let pages = self.plan.times(2048);
        let timed = pages - WARM_UP;

        // Far enough apart that one fault does not settle the next page's, too.
        const STRIDE: usize = 8 * PAGE_BYTES;
        let own = self.region(pages * STRIDE, CLIENT);
        if self.is_home() {
            // So that the client's frames hold data which its program has never touched.
            (0..pages).for_each(|page| own.store(page * STRIDE, 1));
        }
        let taken = self.while_home(Home::Waiting, |_, _| {
            Taken::each(timed, WARM_UP, |page| _ = own.load(page * STRIDE))
        });
        self.tell("read fault, data here already", "", &setting, taken, None);

        let raw = self.raw_exchange(Home::Answering, PAGE_BYTES, self.plan.times(4000));
        let remote = self.filled(pages * PAGE_BYTES, None);
        let write = |value| Taken::each(timed, WARM_UP, |page| remote.store(page * PAGE_BYTES, value));
        // No barrier lies between the two: the first one after a page was fetched takes it away again.
        let taken = self.while_home(Home::Waiting, |_, _| {
            (Taken::each(timed, WARM_UP, |page| _ = remote.load(page * PAGE_BYTES)), write(2))
        });
        let (reads, writes) = taken.unzip();
        self.tell("read fault, page fetched", "udp", &format!("{setting}, home idle"), reads, raw);
        let name = "first write to a cached page";
        self.tell(name, "", &format!("{setting}, fetched since the last release"), writes, None);
        (3..5).for_each(|value| _ = self.while_home(Home::Waiting, |_, _| write(value)));
        let taken = self.while_home(Home::Waiting, |_, _| write(5));
        self.tell(name, "", &format!("{setting}, written before each release"), taken, None);

        let pages = self.plan.times(400);
        let raw = self.raw_exchange(Home::Computing, PAGE_BYTES, pages);
        let remote = self.filled((pages + WARM_UP) * PAGE_BYTES, None);
        let taken = self.while_home(Home::Computing, |_, _| {
            Taken::each(pages, WARM_UP, |page| _ = remote.load(page * PAGE_BYTES))
        });
        self.tell("read fault, page fetched", "udp", &format!("{setting}, home computing"), taken, raw);
        self.home_writes(&setting);
    }

    /// The home's own first writes to pages that others have copies of.
    fn home_writes(&mut self, setting: &str) {
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
        let taken = self.while_home(Home::Waiting, |_, _| {
            Taken::each(pages - WARM_UP, WARM_UP, |page| own.store(page * PAGE_BYTES, 2))
        });
        self.tell("first write of the home", "", &format!("{setting}, others have copies"), taken, None);
    }

    /// A region at the home in which no page is zero.
    fn filled(&mut self, bytes: usize, page: Option<PageSize>) -> Region {
        let region = Region::allocate(self.runtime, bytes, Placement::On(HOME), page);
        if self.is_home() {
            (0..bytes / 8).for_each(|word| region.store(word * 8, word as u64 | 1));
        }
        self.runtime.barrier();
        region
    }

    fn barriers(&mut self) {
        let times = self.plan.times(4000);
        let others: Vec<u16> = self.ports.iter().skip(1).copied().collect();
        let home = self.ports[HOME.index()];
        self.runtime.barrier();
        let mut raw_us = None;
        if self.is_home() {
            for _ in 0..times + WARM_UP {
                if !self.raw.gather(&others) {
                    break;
                }
            }
        } else {
            let taken = Taken::each(times, WARM_UP, |_| _ = self.raw.ask(home, 0));
            raw_us = Some(taken.median_us());
        }
        let taken = Taken::each(times, WARM_UP, |_| self.runtime.barrier());
        let state = format!("{} nodes, nothing written", self.ports.len());
        let client = self.is_client();
        self.tell("barrier", "udp", &state, Some(taken).filter(|_| client), raw_us);
    }

    fn locks(&mut self) {
        let runtime = self.runtime;
        let raw = self.raw_exchange(Home::Answering, REQUEST_BYTES, self.plan.times(4000));
        let lock = LockId(0);
        let mut nanos = Vec::new();
        runtime.barrier();
        for round in 0..self.plan.times(2000) + WARM_UP {
            let mine = if round % 2 == 0 { self.is_home() } else { self.is_client() };
            if mine {
                let began = Instant::now();
                runtime.lock(lock);
                nanos.push(began.elapsed().as_nanos() as f64);
                runtime.unlock(lock);
            }
            runtime.barrier();
        }
        let client = self.is_client();
        let taken = client.then(|| Taken::new(nanos.split_off(WARM_UP / 2), WARM_UP / 2));
        self.tell("lock, handed over", "udp", "the last holder waits", taken, raw);

        let taken = Taken::each(self.plan.times(4000), WARM_UP, |_| {
            runtime.lock(lock);
            runtime.unlock(lock);
        });
        runtime.barrier();
        let state = format!("{} nodes at once", self.ports.len());
        self.tell("lock and unlock", "udp", &state, Some(taken).filter(|_| client), raw);

        let own = self.own_lock();
        let taken = self.while_home(Home::Waiting, |_, _| {
            Taken::each(20_000, WARM_UP, |_| {
                runtime.lock(own);
                runtime.unlock(own);
            })
        });
        self.tell("lock and unlock", "", "nobody else wants it", taken, None);
    }

    /// A lock whose manager is the client.
    fn own_lock(&self) -> LockId {
        let nodes = self.runtime.nodes();
        (1..).map(LockId).find(|lock| lock.manager(nodes) == CLIENT).expect("every node manages some")
    }

    fn atomics(&mut self) {
        let runtime = self.runtime;
        let times = self.plan.times(4000);
        let raw = self.raw_exchange(Home::Answering, REQUEST_BYTES, times);
        for (home, name, raw) in [(CLIENT, "at this node", None), (HOME, "at another node", raw)] {
            let word = self.region(8, home).address(0);
            let taken = self.while_home(Home::Waiting, |_, _| {
                Taken::each(times, WARM_UP, |_| {
                    runtime.atomic("hiroba_fetch_add", word, AtomicOperation::FetchAdd(1));
                })
            });
            let fabric = if home == CLIENT { "" } else { "udp" };
            self.tell("fetch and add", fabric, name, taken, raw);
        }
    }

    fn streams(&mut self) {
        const BYTES: usize = 16 << 20;
        let passes = self.plan.times(4);
        let raw = self.while_home(Home::Answering, |raw, home| {
            gigabytes_per_second(passes, |_| raw.stream(home, BYTES))
        });
        for (words, page) in [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("2 MiB", 2 << 20)] {
            let page = PageSize::new(page).ok();
            let regions: Vec<Region> = (0..passes).map(|_| self.filled(BYTES, page)).collect();
            let ours = self.while_home(Home::Waiting, |_, _| {
                gigabytes_per_second(passes, |pass| {
                    (0..BYTES).step_by(PAGE_BYTES).for_each(|offset| _ = regions[pass].load(offset));
                    BYTES
                })
            });
            let Some(gb_per_s) = ours else { continue };
            report(&Report::Row(Row {
                name: "remote memory read in order".to_owned(),
                fabric: "udp".to_owned(),
                state: format!("16 MiB, pages of {words}, home idle"),
                figures: Figures::Bandwidth { gb_per_s, raw_gb_per_s: raw },
                ratio: raw.filter(|raw| *raw > 0.0).map(|raw| gb_per_s / raw),
                repetitions: passes,
                warm_up: 0,
            }));
        }
    }

    fn releases(&mut self) {
        let large = if self.plan.quick { 128 << 20 } else { 1 << 30 };
        let dirty = self.filled(1024 * PAGE_BYTES, None);
        // Large pages are mapped sooner; what a release scans is the same.
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
        let sink = RawSocket::bind(false).and_then(|sink| Ok((sink.port()?, sink)));
        let taken = self.while_home(Home::Waiting, |raw, _| {
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
                let plain = sink.as_ref().ok().filter(|_| pages > 0).map(|(port, _)| {
                    let send = |_| raw.send(*port, pages * DIFF_BYTES);
                    Taken::each(times, WARM_UP, send).median_us()
                });
                done.store(true, Ordering::Relaxed);
                (Taken::new(nanos, WARM_UP), plain)
            })
        });
        let Some((taken, raw_us)) = taken else { return };
        let s = if pages == 1 { "" } else { "s" };
        let threads = if sibling { "2 threads" } else { "1 thread" };
        let state = format!(
            "{}, {} MiB mapped, {pages} page{s} dirty, {threads}",
            self.plan.setting,
            mapped_bytes >> 20
        );
        let fabric = if pages > 0 { "udp" } else { "" };
        self.tell("release", fabric, &state, Some(taken), raw_us);
    }
}

/// Computes until it is done.
fn keep_busy(done: &AtomicBool) {
    let mut x = 0u64;
    while !done.load(Ordering::Relaxed) {
        (0..1000).for_each(|step| x = std::hint::black_box(x.wrapping_mul(3) ^ step));
    }
}

/// The median over some passes of the bytes that each moves.
fn gigabytes_per_second(passes: usize, mut pass: impl FnMut(usize) -> usize) -> f64 {
    let mut rates: Vec<f64> = (0..passes)
        .map(|number| {
            let began = Instant::now();
            let bytes = pass(number);
            bytes as f64 / began.elapsed().as_nanos().max(1) as f64
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(passes / 2).copied().unwrap_or(0.0)
}
