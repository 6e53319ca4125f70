//! What a thread knows of itself: its place in its team, and the settings that OpenMP keeps for each task.

use std::cell::{Cell, RefCell};
use std::ptr;

use hiroba_schedule::Loop;

use crate::job::{self, Region, SETTINGS, put};
use crate::loop_schedule::Schedule;
use crate::nest::Nest;
use crate::offers::NODES_MAX;
use crate::records::Running;
use crate::settings::settings;
use crate::work::Share;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

/// Which team a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TeamKind {
    /// A team of one, in or outside a region.
    Alone,
    /// The job's threads, or some of them.
    OfJob,
}

/// Settings that a region's threads begin with (OpenMP calls them internal control variables).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many threads the next region gets.
    pub(crate) threads: u32,
    /// How many threads it may have at most.
    pub(crate) thread_limit: u32,
    pub(crate) schedule: Schedule,
    pub(crate) is_dynamic: bool,
    pub(crate) max_active_levels: u32,
    pub(crate) default_device: i32,
    pub(crate) teams_max: u32,
    pub(crate) teams_thread_limit: u32,
}

/// One thread in one team.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) team: Cell<TeamKind>,
    /// Its number in the team, and how many the team has.
    pub(crate) number: Cell<u32>,
    pub(crate) threads: Cell<u32>,
    /// How many regions it is in, and in how many of them it is not alone.
    pub(crate) level: Cell<u32>,
    pub(crate) active_level: Cell<u32>,
    pub(crate) settings: Cell<Settings>,
    /// The context that it had before it came to this region; NULL outside regions and in threads that joined
    /// the team for the region.
    pub(crate) outer: Cell<*const Context>,
    /// How many pieces of shared work it has come to, and how many lay before the latest barrier.
    pub(crate) shares: Cell<u64>,
    pub(crate) shares_settled: Cell<u64>,
    pub(crate) singles: Cell<u64>,
    /// The piece of work that it is at.
    pub(crate) share: Cell<Option<&'static Share>>,
    pub(crate) of_loop: RefCell<Loop>,
    /// The chunk that it has of that loop, in iterations: first and end.
    pub(crate) chunk: Cell<(u64, u64)>,
    /// The piece of work that it has left without saying so: see `shares.rs`.
    pub(crate) left: Cell<Option<&'static Share>>,
    /// The iterations of each loop of a nest whose iterations depend on each other.
    pub(crate) nest: RefCell<Vec<u64>>,
    /// The same in programs for LLVM's library.
    pub(crate) waiting_nest: RefCell<Option<Nest>>,
    /// What it ran, and with which settings, before it came to tasks that it runs itself in such programs.
    pub(crate) interrupted: RefCell<Vec<(Running, Settings)>>,
    /// How many barriers the team has passed.
    pub(crate) barriers: Cell<u64>,
    /// True if what it waits for at its next barrier has happened: in a reduction (`gathering.rs`), or in a
    /// `single` whose data it has passed on.
    pub(crate) has_met: Cell<bool>,
    /// Set while it adds the values of such a reduction: whether the end of that is the next barrier.
    pub(crate) gathered: Cell<Option<bool>>,
    /// Where the code of its region begins.
    pub(crate) code: Cell<usize>,
    /// Which team of a league it is in, and how many there are.
    pub(crate) team_number: Cell<u32>,
    pub(crate) teams: Cell<u32>,
    /// The task that it runs.
    pub(crate) running: Cell<Running>,
    /// When it last put a task off or began one, by the processor's clock.
    pub(crate) put_off_at: Cell<u64>,
    own_share: Share,
}

impl Context {
    /// A thread outside all regions.
    fn outside() -> Context {
        Context::alone(0, Settings::at_first(), ptr::null())
    }

    /// A team of one at this level.
    pub(crate) fn alone(level: u32, settings: Settings, outer: *const Context) -> Context {
        Context {
            team: Cell::new(TeamKind::Alone),
            number: Cell::new(0),
            threads: Cell::new(1),
            level: Cell::new(level),
            active_level: Cell::new(0),
            settings: Cell::new(settings),
            outer: Cell::new(outer),
            shares: Cell::new(0),
            shares_settled: Cell::new(0),
            singles: Cell::new(0),
            share: Cell::new(None),
            of_loop: RefCell::new(Loop::default()),
            chunk: Cell::new((0, 0)),
            left: Cell::new(None),
            nest: RefCell::new(Vec::new()),
            waiting_nest: RefCell::new(None),
            interrupted: RefCell::new(Vec::new()),
            barriers: Cell::new(0),
            has_met: Cell::new(false),
            gathered: Cell::new(None),
            code: Cell::new(0),
            team_number: Cell::new(0),
            teams: Cell::new(1),
            running: Cell::new(Running::default()),
            put_off_at: Cell::new(0),
            own_share: Share::default(),
        }
    }

    /// Thread `number` of the job's team in a region.
    pub(crate) fn in_region(region: &Region, number: u32, outer: *const Context) -> Context {
        let level = region.level.load(Relaxed);
        let context = Context::alone(level, Settings::read(&region.settings), outer);
        context.team.set(TeamKind::OfJob);
        context.number.set(number);
        context.threads.set(region.threads.load(Relaxed));
        context.active_level.set(1);
        let first = region.first_share.load(Relaxed);
        context.shares.set(first);
        context.shares_settled.set(first);
        context.barriers.set(region.first_barrier.load(Relaxed));
        context.team_number.set(region.team_number.load(Relaxed));
        context.teams.set(region.teams.load(Relaxed));
        let group = region.group.load(Relaxed);
        context.running.set(Running { group, ..Running::default() });
        context
    }

    /// The place of shared work of a team of one. Contexts stay where they are while they are current.
    pub(crate) fn own_share(&self) -> &'static Share {
        // SAFETY: only this context refers to it, for as long as it is current.
        unsafe { &*ptr::from_ref(&self.own_share) }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.settings.get();
        change(&mut settings);
        self.settings.set(settings);
    }

    /// The context that the thread had at an outer level; `None` when the level is none of its.
    pub(crate) fn at_level(&self, level: u32) -> Option<&Context> {
        let mut context = self;
        while context.level.get() > level {
            // SAFETY: outer contexts outlive those of the regions in them.
            context = unsafe { context.outer.get().as_ref() }?;
        }
        (context.level.get() == level).then_some(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: work of a team of one ends with the team.
        unsafe { crate::memory::free_shared(self.own_share.memory.load(Relaxed)) };
    }
}

impl Settings {
    fn at_first() -> Settings {
        let settings = settings();
        Settings {
            threads: settings.threads,
            thread_limit: settings.thread_limit,
            schedule: settings.schedule,
            is_dynamic: settings.is_dynamic,
            max_active_levels: settings.max_active_levels,
            default_device: 0,
            teams_max: settings.teams_max,
            teams_thread_limit: settings.teams_thread_limit,
        }
    }

    /// The settings of tasks in a region at this level that begins with these. A list of numbers of threads
    /// has one for each level.
    pub(crate) fn at_level(self, level: u32) -> Settings {
        let of_level = settings().threads_by_level.get(level as usize);
        Settings { threads: of_level.copied().unwrap_or(self.threads), ..self }
    }

    pub(crate) fn write(self, words: &[std::sync::atomic::AtomicU64; SETTINGS]) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let values = [
            pair(self.threads, self.schedule.kind),
            pair(self.schedule.chunk, u32::from(self.is_dynamic)),
            pair(self.max_active_levels, self.default_device as u32),
            pair(self.teams_max, self.teams_thread_limit),
            u64::from(self.thread_limit),
            pair(self.schedule.evaluated, self.schedule.skipped),
        ];
        words.iter().zip(values).for_each(|(word, value)| put!(word, value));
    }

    fn read(words: &[std::sync::atomic::AtomicU64; SETTINGS]) -> Settings {
        let pair = |word: usize| {
            let word = words[word].load(Relaxed);
            (word as u32, (word >> 32) as u32)
        };
        let ((threads, schedule), (chunk, is_dynamic)) = (pair(0), pair(1));
        let ((max_active_levels, default_device), (teams_max, teams_thread_limit)) = (pair(2), pair(3));
        Settings {
            threads,
            thread_limit: pair(4).0,
            schedule: Schedule { kind: schedule, chunk, evaluated: pair(5).0, skipped: pair(5).1 },
            is_dynamic: is_dynamic != 0,
            max_active_levels,
            default_device: default_device as i32,
            teams_max,
            teams_thread_limit,
        }
    }
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
    /// True if the calling thread is the program's first, which the job's team runs regions for.
    static LEADS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's context.
pub(crate) fn current<'a>() -> &'a Context {
    let context = CURRENT.get();
    // SAFETY: the current context stays until another one takes its place.
    if let Some(context) = unsafe { context.as_ref() } {
        return context;
    }
    let context: &'static Context = Box::leak(Box::new(Context::outside()));
    CURRENT.set(context);
    context
}

/// Runs a part of the program in another context.
pub(crate) fn run_in<R>(context: &Context, work: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(context);
    let result = work();
    CURRENT.set(before);
    result
}

/// Makes a context current, or the one before it again.
pub(crate) fn set_current(context: *const Context) {
    CURRENT.set(context);
}

/// The calling thread will run `main`.
pub(crate) fn lead() {
    LEADS.set(true);
}

/// Returns true if regions that the calling thread enters in this context may have several threads.
pub(crate) fn may_fork(context: &Context) -> bool {
    LEADS.get()
        && context.active_level.get() == 0
        && context.settings.get().max_active_levels > 0
        && job::job().is_some()
}

/// Returns true if the threads of the calling thread's team can reduce with a barrier: there are some on
/// every node, and none runs tasks or leaves the region early.
pub(crate) fn may_reduce_together(context: &Context) -> bool {
    let threads = context.threads.get();
    context.team.get() == TeamKind::OfJob
        && (2..=NODES_MAX as u32).contains(&job::nodes())
        && threads.div_ceil(job::block(threads)) == job::nodes()
        && !job::has_tasks()
        && !settings().cancellation
}

/// A name of the calling thread's task that no other task of the job has at the same time.
pub(crate) fn task_name() -> u64 {
    const NODE_SHIFT: u32 = 48;
    u64::from(job::node() + 1) << NODE_SHIFT | ptr::from_ref(current()).addr() as u64
}

/// Returns true if the thread's current region was cancelled.
pub(crate) fn is_cancelled(context: &Context) -> bool {
    settings().cancellation
        && context.team.get() == TeamKind::OfJob
        && job::begun().team.cancelled.load(Acquire) != 0
}
