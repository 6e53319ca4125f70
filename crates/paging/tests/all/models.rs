//! Compares each policy with a slow and plain model of it: the same pages must leave, in the same order.

use hiroba_paging::{Clock, Fifo, Lirs, LruScan, Opt, Policy, PolicyKind, S3Fifo, Sieve, replay};
use proptest::prelude::*;

use crate::traces::{habits, leavers, loads, pages};

/// A policy as its paper describes it: the actions at a hit and at a miss. A miss in full memory returns the
/// page that leaves.
trait Model {
    fn hit(&mut self, page: u64);
    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64>;
    fn is_here(&self, page: u64) -> bool;
    fn count(&self) -> usize;
}

fn model_leavers(model: &mut dyn Model, frames: usize, trace: &[u64]) -> Vec<u64> {
    let mut gone = Vec::new();
    for page in trace.iter().copied() {
        if model.is_here(page) {
            model.hit(page);
        } else {
            let is_full = model.count() == frames;
            gone.extend(model.miss(page, is_full));
        }
    }
    gone
}

/// A circle of frames, and a hand that points at one of them.
#[derive(Default)]
struct Circle {
    frames: Vec<(u64, bool)>,
    hand: usize,
    gives_chances: bool,
}

impl Model for Circle {
    fn hit(&mut self, page: u64) {
        let used = self.gives_chances;
        self.frames.iter_mut().filter(|frame| frame.0 == page).for_each(|frame| frame.1 = used);
    }

    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64> {
        if !is_full {
            self.frames.push((page, false));
            return None;
        }
        while self.frames[self.hand].1 {
            self.frames[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.frames.len();
        }
        let gone = std::mem::replace(&mut self.frames[self.hand], (page, false)).0;
        self.hand = (self.hand + 1) % self.frames.len();
        Some(gone)
    }

    fn is_here(&self, page: u64) -> bool {
        self.frames.iter().any(|frame| frame.0 == page)
    }

    fn count(&self) -> usize {
        self.frames.len()
    }
}

/// Pages in the order of the scan that last found them used, with their bits.
#[derive(Default)]
struct Scans {
    pages: Vec<(u64, bool)>,
    admitted: usize,
}

impl Scans {
    fn scan(&mut self) {
        self.admitted = 0;
        let (used, unused): (Vec<_>, Vec<_>) = self.pages.iter().copied().partition(|page| page.1);
        self.pages = unused.into_iter().chain(used.into_iter().map(|(page, _)| (page, false))).collect();
    }
}

impl Model for Scans {
    fn hit(&mut self, page: u64) {
        self.pages.iter_mut().filter(|known| known.0 == page).for_each(|known| known.1 = true);
    }

    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64> {
        let gone = is_full.then(|| {
            if self.pages[0].1 {
                self.scan();
            }
            self.pages.remove(0).0
        });
        self.pages.push((page, false));
        self.admitted += 1;
        if self.admitted > self.pages.len() / 8 {
            self.scan();
        }
        gone
    }

    fn is_here(&self, page: u64) -> bool {
        self.pages.iter().any(|known| known.0 == page)
    }

    fn count(&self) -> usize {
        self.pages.len()
    }
}

/// Pages with the new ones at the end, and a hand that counts from the start.
#[derive(Default)]
struct Sieved {
    pages: Vec<(u64, bool)>,
    hand: usize,
}

impl Model for Sieved {
    fn hit(&mut self, page: u64) {
        self.pages.iter_mut().filter(|known| known.0 == page).for_each(|known| known.1 = true);
    }

    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64> {
        let mut gone = None;
        if is_full {
            // A hand that has passed the newest page goes to the oldest, before another one comes.
            self.hand %= self.pages.len();
            while self.pages[self.hand].1 {
                self.pages[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.pages.len();
            }
            gone = Some(self.pages.remove(self.hand).0);
            if self.hand == self.pages.len() {
                self.hand = 0;
            }
        }
        self.pages.push((page, false));
        gone
    }

    fn is_here(&self, page: u64) -> bool {
        self.pages.iter().any(|known| known.0 == page)
    }

    fn count(&self) -> usize {
        self.pages.len()
    }
}

/// Three lists, the oldest first.
#[derive(Default)]
struct ThreeLists {
    small: Vec<(u64, u8)>,
    main: Vec<(u64, u8)>,
    ghosts: Vec<u64>,
}

impl ThreeLists {
    fn leave_small(&mut self) -> Option<u64> {
        while !self.small.is_empty() {
            let (page, uses) = self.small.remove(0);
            if uses <= 1 {
                self.ghosts.push(page);
                return Some(page);
            }
            self.main.push((page, 0));
        }
        None
    }

    fn leave_main(&mut self) -> Option<u64> {
        while !self.main.is_empty() {
            let (page, uses) = self.main.remove(0);
            if uses == 0 {
                return Some(page);
            }
            self.main.push((page, uses - 1));
        }
        None
    }
}

impl Model for ThreeLists {
    fn hit(&mut self, page: u64) {
        let known = self.small.iter_mut().chain(&mut self.main).find(|known| known.0 == page);
        known.into_iter().for_each(|known| known.1 = (known.1 + 1).min(3));
    }

    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64> {
        let mut gone = None;
        if is_full {
            gone = if self.small.len() * 10 >= self.count() {
                self.leave_small().or_else(|| self.leave_main())
            } else {
                self.leave_main().or_else(|| self.leave_small())
            };
            let excess = self.ghosts.len().saturating_sub(self.count());
            self.ghosts.drain(..excess);
        }
        match self.ghosts.iter().position(|ghost| *ghost == page) {
            Some(at) => {
                self.ghosts.remove(at);
                self.main.push((page, 0));
            }
            None => self.small.push((page, 0)),
        }
        gone
    }

    fn is_here(&self, page: u64) -> bool {
        self.small.iter().chain(&self.main).any(|known| known.0 == page)
    }

    fn count(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

/// The paper's stack S (bottom first) and list Q, and sets that classify pages.
#[derive(Default)]
struct StackAndList {
    stack: Vec<u64>,
    list: Vec<u64>,
    lir: Vec<u64>,
    /// In the order in which they left.
    gone: Vec<u64>,
    lir_wanted: Option<usize>,
}

impl StackAndList {
    fn prune(&mut self) {
        let bottom = self.stack.iter().position(|page| self.lir.contains(page));
        for page in self.stack.drain(..bottom.unwrap_or(self.stack.len())) {
            self.gone.retain(|gone| *gone != page);
        }
    }

    fn put_on_top(&mut self, page: u64) {
        self.stack.retain(|known| *known != page);
        self.stack.push(page);
    }

    fn demote_bottom(&mut self) {
        self.prune();
        let page = self.stack.remove(0);
        self.lir.retain(|known| *known != page);
        self.list.push(page);
        self.prune();
    }

    fn make_lir(&mut self, page: u64) {
        self.list.retain(|known| *known != page);
        self.gone.retain(|known| *known != page);
        self.put_on_top(page);
        self.lir.push(page);
        if self.lir_wanted.is_some_and(|wanted| self.lir.len() > wanted) {
            self.demote_bottom();
        }
    }
}

impl Model for StackAndList {
    fn hit(&mut self, page: u64) {
        if self.lir.contains(&page) {
            self.put_on_top(page);
            self.prune();
        } else if self.stack.contains(&page) {
            self.make_lir(page);
        } else {
            self.put_on_top(page);
            self.list.retain(|known| *known != page);
            self.list.push(page);
        }
    }

    fn miss(&mut self, page: u64, is_full: bool) -> Option<u64> {
        let mut left = None;
        if is_full {
            let wanted = self.count() - (self.count() / 100).max(1);
            self.lir_wanted = Some(wanted);
            while self.lir.len() > wanted {
                self.demote_bottom();
            }
            let victim = self.list.remove(0);
            if self.stack.contains(&victim) {
                self.gone.push(victim);
            }
            if self.gone.len() > self.count() {
                let oldest = self.gone.remove(0);
                self.stack.retain(|known| *known != oldest);
            }
            left = Some(victim);
        }
        if self.stack.contains(&page) {
            self.make_lir(page);
        } else if self.lir_wanted.is_none_or(|wanted| self.lir.len() < wanted) {
            self.put_on_top(page);
            self.lir.push(page);
        } else {
            self.put_on_top(page);
            self.list.push(page);
        }
        left
    }

    fn is_here(&self, page: u64) -> bool {
        self.lir.contains(&page) || self.list.contains(&page)
    }

    fn count(&self) -> usize {
        self.lir.len() + self.list.len()
    }
}

/// Returns the fewest page-ins of any choice of leaving pages, by trying all of them.
fn fewest(here: &mut Vec<u64>, frames: usize, trace: &[u64]) -> u64 {
    let Some((page, rest)) = trace.split_first() else { return 0 };
    if here.contains(page) {
        return fewest(here, frames, rest);
    }
    if here.len() < frames {
        let mut more = here.clone();
        more.push(*page);
        return 1 + fewest(&mut more, frames, rest);
    }
    let choices = (0..here.len()).map(|frame| {
        let mut other = here.clone();
        other[frame] = *page;
        1 + fewest(&mut other, frames, rest)
    });
    choices.min().expect("a frame")
}

fn page_ins(policy: &mut dyn Policy, frames: usize, trace: &[u64]) -> u64 {
    replay(policy, frames, loads(trace)).page_ins
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn policies_and_their_models_let_the_same_pages_leave(trace in habits(), frames in 1_usize..14) {
        let circle = |gives_chances| Circle { gives_chances, ..Circle::default() };
        let pairs: [(Box<dyn Policy>, Box<dyn Model>); 6] = [
            (Box::new(Fifo::default()), Box::new(circle(false))),
            (Box::new(Clock::default()), Box::new(circle(true))),
            (Box::new(LruScan::default()), Box::new(Scans::default())),
            (Box::new(Sieve::default()), Box::new(Sieved::default())),
            (Box::new(S3Fifo::default()), Box::new(ThreeLists::default())),
            (Box::new(Lirs::default()), Box::new(StackAndList::default())),
        ];
        for (mut policy, mut model) in pairs {
            let expected = model_leavers(&mut *model, frames, &trace);
            prop_assert_eq!(leavers(&mut *policy, frames, &trace), expected, "{}", policy.name());
        }
    }

    #[test]
    fn nobody_brings_in_fewer_pages_than_opt(trace in habits(), frames in 1_usize..14) {
        let least = page_ins(&mut Opt::over(pages(&trace)), frames, &trace);
        for kind in PolicyKind::ALL {
            prop_assert!(page_ins(&mut *kind.make(), frames, &trace) >= least, "{}", kind);
        }
    }

    #[test]
    fn opt_is_the_best_of_all_choices(trace in prop::collection::vec(0..5_u64, 1..12), frames in 1_usize..4) {
        let least = fewest(&mut Vec::new(), frames, &trace);
        prop_assert_eq!(page_ins(&mut Opt::over(pages(&trace)), frames, &trace), least);
    }
}

#[test]
fn more_memory_may_mean_more_faults_with_fifo() {
    let trace = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    assert_eq!(page_ins(&mut Fifo::default(), 3, &trace), 9);
    assert_eq!(page_ins(&mut Fifo::default(), 4, &trace), 10);
}

/// Ten times through 110 pages, with room for 100: policies that keep recent pages always miss.
#[test]
fn a_loop_that_does_not_fit_tells_the_policies_apart() {
    let trace: Vec<u64> = (0..10).flat_map(|_| 0..110).collect();
    let ins = |kind: PolicyKind| page_ins(&mut *kind.make(), 100, &trace);
    for kind in [PolicyKind::Fifo, PolicyKind::Clock, PolicyKind::LruScan] {
        assert_eq!(ins(kind), 1100, "{kind}");
    }
    let least = page_ins(&mut Opt::over(pages(&trace)), 100, &trace);
    assert!(ins(PolicyKind::Lirs) <= least + 30, "{} and {least}", ins(PolicyKind::Lirs));
}

/// A hot set of 40 pages, alternating with a stream of pages that are used once.
#[test]
fn a_stream_does_not_push_out_what_is_used() {
    let trace: Vec<u64> = (0..4000).flat_map(|at| [at % 40, 1000 + at]).collect();
    let cold = 40 + 4000;
    for kind in PolicyKind::ALL {
        let ins = page_ins(&mut *kind.make(), 100, &trace);
        let expected = if kind == PolicyKind::Fifo { cold + 1000..cold + 4000 } else { cold..cold + 100 };
        assert!(expected.contains(&ins), "{kind}: {ins}");
    }
}
