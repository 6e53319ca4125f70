//! What `hiroba cc` makes of `schedule` clauses that OpenMP does not have: see `literals.rs`.

use std::ffi::c_int;

use hiroba_schedule::{Kind, Loop, Range};

use crate::call_sites::with_call_site;
use crate::job;
use crate::loop_schedule::{FACTORING, PROFILED, Schedule};

with_call_site! { ompx_hiroba_schedule => number_of, 0; }

/// The number that stands for a schedule, as a length of chunks. `site` is its place in the program.
extern "C-unwind" fn number_of(
    kind: c_int,
    chunk: c_int,
    evaluated: c_int,
    skipped: c_int,
    _fifth: u64,
    _sixth: u64,
    site: u64,
) -> c_int {
    let [kind, chunk, evaluated, skipped] =
        [kind, chunk, evaluated, skipped].map(|number| number.max(0) as u32);
    let schedule = Schedule { kind, chunk, evaluated, skipped };
    let job = job::job().filter(|_| (FACTORING..=PROFILED).contains(&kind));
    // Without a number the loop is `dynamic`.
    let number = job.and_then(|job| job.literals.number_of(schedule, site));
    number.map_or_else(|| chunk.max(1) as c_int, |number| number as c_int)
}

/// A `dynamic` loop, or one with the schedule that its length of chunks stands for.
pub(crate) fn dynamic(range: Range, chunk: u64) -> Loop {
    let literal = job::job().and_then(|job| job.literals.schedule_of(chunk));
    literal
        .map_or_else(|| Loop::new(range, Kind::Dynamic, chunk), |(schedule, site)| schedule.of(range, site))
}
