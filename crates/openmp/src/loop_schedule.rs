//! The schedule of loops that leave it to the environment, to `omp_set_schedule` or to a clause that OpenMP
//! does not have.

use hiroba_schedule::{Kind, Loop, Range};

use crate::library;
use crate::runtime;

/// How iterations of a loop are given out that leaves it to the environment or to `omp_set_schedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// By the numbers of `omp_sched_t`.
    pub(crate) kind: u32,
    /// 0 where none was given.
    pub(crate) chunk: u32,
    /// How many iterations threads time, and how many they run before.
    pub(crate) evaluated: u32,
    pub(crate) skipped: u32,
}

pub(crate) const STATIC: u32 = 1;
const DYNAMIC: u32 = 2;
const GUIDED: u32 = 3;
pub(crate) const AUTO: u32 = 4;
/// Numbers that OpenMP leaves to libraries, and that neither GNU's nor LLVM's uses.
pub(crate) const FACTORING: u32 = 1001;
const WEIGHTED_FACTORING: u32 = 1002;
pub(crate) const PROFILED: u32 = 1003;
/// What `omp_sched_t` adds to a kind whose threads take chunks in ascending order.
pub(crate) const MONOTONIC: u32 = 0x8000_0000;

/// Schedules by their numbers, and how they are shown. `auto` is `static`.
const KINDS: [(u32, Kind, &str); 7] = [
    (STATIC, Kind::Static, "STATIC"),
    (DYNAMIC, Kind::Dynamic, "DYNAMIC"),
    (GUIDED, Kind::Guided, "GUIDED"),
    (FACTORING, Kind::Factoring, "FACTORING"),
    (WEIGHTED_FACTORING, Kind::WeightedFactoring, "AWF"),
    (PROFILED, Kind::Profiled, "PROFILED"),
    (AUTO, Kind::Static, "AUTO"),
];

impl Schedule {
    pub(crate) fn new(kind: u32, chunk: u32) -> Schedule {
        Schedule { kind, chunk, evaluated: 0, skipped: 0 }
    }

    /// What each library has where nothing is set.
    pub(crate) fn unset() -> Schedule {
        if library::is_llvm() { Schedule::new(STATIC, 0) } else { Schedule::new(DYNAMIC, 1) }
    }

    pub(crate) fn given(text: &str) -> Schedule {
        let given = hiroba_schedule::parse(text).unwrap_or_else(|why| refuse("OMP_SCHEDULE", text, why));
        let number = KINDS.iter().find(|(_, kind, _)| Some(*kind) == given.kind);
        let kind = number.map_or(AUTO, |(number, ..)| *number);
        // Of the others all are.
        let is_marked = given.is_monotonic && matches!(kind, DYNAMIC | GUIDED);
        let kind = if is_marked { kind | MONOTONIC } else { kind };
        Schedule { kind, chunk: given.chunk, evaluated: given.evaluated, skipped: given.skipped }
    }

    fn known(self) -> (u32, Kind, &'static str) {
        let number = self.kind & !MONOTONIC;
        KINDS.into_iter().find(|(known, ..)| *known == number).unwrap_or(KINDS[0])
    }

    /// A loop with this schedule. `site` is its name.
    pub(crate) fn of(self, range: Range, site: u64) -> Loop {
        let (number, kind, _) = self.known();
        let chunk = if number == AUTO { 0 } else { u64::from(self.chunk) };
        let of_loop = Loop::new(range, kind, chunk).monotonic(self.kind & MONOTONIC != 0);
        of_loop.profiled(u64::from(self.evaluated), u64::from(self.skipped)).at_site(site)
    }

    /// The schedule as users write it.
    pub(crate) fn shown(self) -> String {
        let numbers = [self.chunk, self.evaluated, self.skipped];
        let numbers: &[u32] = match numbers {
            [0 | 1, 0, 0] if self.known().0 == DYNAMIC => &[],
            [0, 0, 0] => &[],
            [_, 0, 0] => &numbers[..1],
            [_, _, 0] => &numbers[..2],
            _ => &numbers,
        };
        let (.., name) = self.known();
        numbers.iter().fold(name.to_owned(), |text, number| format!("{text},{number}"))
    }
}

/// What the user may have written wrongly: a sentence.
pub(crate) fn refuse(name: &str, text: &str, expected: &str) -> ! {
    runtime::fatal(&format!("{name}: expected {expected}, got '{text}'"))
}
