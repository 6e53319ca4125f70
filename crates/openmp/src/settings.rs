//! What the environment sets, and what a program that sets nothing gets.

use std::sync::OnceLock;

use crate::job;
use crate::loop_schedule::{Schedule, refuse};
use crate::runtime;

/// The settings of the job.
#[derive(Clone, Debug)]
pub(crate) struct FromEnvironment {
    pub(crate) threads: u32,
    /// The numbers that OMP_NUM_THREADS has for each level, if it is a list.
    pub(crate) threads_by_level: Vec<u32>,
    pub(crate) thread_limit: u32,
    pub(crate) schedule: Schedule,
    pub(crate) is_dynamic: bool,
    pub(crate) max_active_levels: u32,
    pub(crate) cancellation: bool,
    pub(crate) stack_bytes: usize,
    pub(crate) teams_max: u32,
    pub(crate) teams_thread_limit: u32,
    pub(crate) max_task_priority: u32,
    /// By the numbers of `omp_proc_bind_t`.
    pub(crate) proc_bind: i32,
    /// As the user wrote it; `None` where nothing is set.
    pub(crate) places: Option<String>,
    display: Display,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Display {
    No,
    Yes,
    Verbose,
}

/// A thread's stack where neither OMP_STACKSIZE nor the limit of the process says how long.
const STACK_BYTES: usize = 8 << 20;
const STACK_BYTES_MIN: usize = 64 << 10;
/// The most levels of regions that have several threads: a region inside another one has one.
pub(crate) const LEVELS_MAX: u32 = 1;

/// The settings; read when they are asked for first.
pub(crate) fn settings() -> &'static FromEnvironment {
    static SETTINGS: OnceLock<FromEnvironment> = OnceLock::new();
    SETTINGS.get_or_init(|| FromEnvironment::read(&|name| std::env::var(name).ok()))
}

impl FromEnvironment {
    fn read(get: &dyn Fn(&str) -> Option<String>) -> FromEnvironment {
        let text = |name: &str| get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let number = |name: &str, least: u32| {
            let text = text(name)?;
            match text.parse::<u32>() {
                Ok(number) if number >= least => Some(number),
                _ => refuse(name, &text, &format!("a number from {least}")),
            }
        };
        let switch = |name: &str| match text(name)?.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" => Some(true),
            "false" | "0" | "no" => Some(false),
            other => refuse(name, other, "true or false"),
        };
        let places = job::places();
        let limit = number("OMP_THREAD_LIMIT", 1).unwrap_or(u32::MAX).min(job::threads_max());
        let by_level = text("OMP_NUM_THREADS").map_or_else(Vec::new, |text| threads_of(&text, places));
        let threads = by_level.first().copied();
        let nested = switch("OMP_NESTED").map(|nested| if nested { LEVELS_MAX } else { 1 });
        if let Some(target) = text("OMP_TARGET_OFFLOAD")
            && target.eq_ignore_ascii_case("mandatory")
        {
            refuse("OMP_TARGET_OFFLOAD", &target, "disabled or default, since there are no devices");
        }
        FromEnvironment {
            threads: threads.unwrap_or(places).min(limit),
            threads_by_level: by_level,
            thread_limit: limit,
            schedule: text("OMP_SCHEDULE").map_or_else(Schedule::unset, |text| Schedule::given(&text)),
            is_dynamic: switch("OMP_DYNAMIC").unwrap_or(false),
            max_active_levels: number("OMP_MAX_ACTIVE_LEVELS", 0).or(nested).unwrap_or(1).min(LEVELS_MAX),
            cancellation: switch("OMP_CANCELLATION").unwrap_or(false),
            stack_bytes: text("OMP_STACKSIZE")
                .or_else(|| text("GOMP_STACKSIZE"))
                .map_or_else(stack_of_process, |text| bytes_of(&text)),
            teams_max: number("OMP_NUM_TEAMS", 1).unwrap_or(0),
            teams_thread_limit: number("OMP_TEAMS_THREAD_LIMIT", 1).unwrap_or(0),
            max_task_priority: number("OMP_MAX_TASK_PRIORITY", 0).unwrap_or(0),
            // Who names places wants threads bound to them.
            proc_bind: text("OMP_PROC_BIND")
                .map_or_else(|| i32::from(text("OMP_PLACES").is_some()), |text| bind_of(&text)),
            places: text("OMP_PLACES"),
            display: match text("OMP_DISPLAY_ENV").map(|text| text.to_ascii_lowercase()).as_deref() {
                Some("verbose") => Display::Verbose,
                Some("true" | "1" | "yes") => Display::Yes,
                _ => Display::No,
            },
        }
    }

    fn threads_shown(&self) -> String {
        let inner = self.threads_by_level.iter().skip(1);
        inner.fold(self.threads.to_string(), |text, threads| format!("{text},{threads}"))
    }

    /// Shows the settings on the standard error stream, if the user wants to see them.
    pub(crate) fn show_if_wanted(&self, places: &str) {
        match self.display {
            Display::No => {}
            Display::Yes => self.show(false, places),
            Display::Verbose => self.show(true, places),
        }
    }

    /// Shows the settings on the standard error stream. `places` are those of this node.
    pub(crate) fn show(&self, verbose: bool, places: &str) {
        let word = |is: bool| if is { "TRUE" } else { "FALSE" };
        let bind = ["FALSE", "TRUE", "PRIMARY", "CLOSE", "SPREAD"][self.proc_bind as usize];
        let mut lines = vec![
            ("_OPENMP", "201511".to_owned()),
            ("OMP_DYNAMIC", word(self.is_dynamic).to_owned()),
            ("OMP_NESTED", word(self.max_active_levels > 1).to_owned()),
            ("OMP_NUM_THREADS", self.threads_shown()),
            ("OMP_SCHEDULE", self.schedule.shown()),
            ("OMP_PROC_BIND", bind.to_owned()),
            ("OMP_PLACES", places.to_owned()),
            ("OMP_STACKSIZE", self.stack_bytes.to_string()),
            ("OMP_WAIT_POLICY", "PASSIVE".to_owned()),
            ("OMP_THREAD_LIMIT", self.thread_limit.to_string()),
            ("OMP_MAX_ACTIVE_LEVELS", self.max_active_levels.to_string()),
            ("OMP_NUM_TEAMS", self.teams_max.to_string()),
            ("OMP_TEAMS_THREAD_LIMIT", self.teams_thread_limit.to_string()),
            ("OMP_CANCELLATION", word(self.cancellation).to_owned()),
            ("OMP_DEFAULT_DEVICE", "0".to_owned()),
            ("OMP_MAX_TASK_PRIORITY", self.max_task_priority.to_string()),
        ];
        if verbose {
            lines.push(("HIROBA_NODES", job::nodes().to_string()));
            lines.push(("HIROBA_THREADS_PER_NODE", job::threads_per_node().to_string()));
        }
        let lines: String = lines.iter().map(|(name, value)| format!("  {name} = '{value}'\n")).collect();
        runtime::privately(|| {
            eprint!("\nOPENMP DISPLAY ENVIRONMENT BEGIN\n{lines}OPENMP DISPLAY ENVIRONMENT END\n");
        });
    }
}

/// Returns the numbers of threads of a list, one for each level, if the job has as many as the first says.
fn threads_of(text: &str, places: u32) -> Vec<u32> {
    let numbers =
        text.split(',').map(|number| number.trim().parse::<u32>().ok().filter(|number| *number > 0));
    let numbers: Option<Vec<u32>> = numbers.collect();
    match numbers {
        Some(numbers) if numbers[0] <= places => numbers,
        Some(numbers) => runtime::fatal(&format!(
            "OMP_NUM_THREADS: expected at most {places} threads, which are {} nodes with {} each, got {}; \
             use more nodes (-n) or threads (-t)",
            job::nodes(),
            job::threads_per_node(),
            numbers[0],
        )),
        None => refuse("OMP_NUM_THREADS", text, "a number from 1, or one for each level"),
    }
}

/// A length, in kilobytes where no unit is given.
fn bytes_of(text: &str) -> usize {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = lower[digits.len()..].trim();
    let shift = match unit {
        "b" => Some(0),
        "" | "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        _ => None,
    };
    let bytes =
        digits.trim().parse::<usize>().ok().zip(shift).and_then(|(number, shift)| number.checked_shl(shift));
    bytes
        .unwrap_or_else(|| refuse("OMP_STACKSIZE", text, "a number, perhaps with B, K, M or G"))
        .max(STACK_BYTES_MIN)
}

/// The soft limit of the process, when it makes sense as a stack's length.
fn stack_of_process() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a local.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    if (1 << 16..=1 << 30).contains(&limit.rlim_cur) { limit.rlim_cur as usize } else { STACK_BYTES }
}

/// By the numbers of `omp_proc_bind_t`.
fn bind_of(text: &str) -> i32 {
    match text.split(',').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "false" => 0,
        "true" => 1,
        "master" | "primary" => 2,
        "close" => 3,
        "spread" => 4,
        _ => refuse("OMP_PROC_BIND", text, "true, false, primary, close or spread"),
    }
}
