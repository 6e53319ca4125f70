//! Schedules that a program names in its source, by number: `hiroba cc` makes `dynamic` of them, with a call
//! as the length of chunks, whose result is a number that stands for the schedule.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::loop_schedule::Schedule;
use crate::runtime::Lock;

/// The most schedules in the program; others become `dynamic`.
const LITERALS: usize = 256;
/// Lengths of chunks from here on stand for schedules.
const FIRST: u64 = 0x7e5e_0000;

/// The schedules that threads have come to. Each is three words: where in the program, the kind and the
/// chunk, and the other numbers.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Literals {
    words: [[AtomicU64; 3]; LITERALS],
    /// Held by who adds one.
    lock: Lock,
}

impl Literals {
    /// The number of a schedule, if it is there, or where another one may be put.
    fn find(&self, wanted: [u64; 3]) -> Result<usize, Option<usize>> {
        for (number, words) in self.words.iter().enumerate() {
            let site = words[0].load(Acquire);
            if site == 0 {
                return Err(Some(number));
            }
            if site == wanted[0] && words[1].load(Relaxed) == wanted[1] && words[2].load(Relaxed) == wanted[2]
            {
                return Ok(number);
            }
        }
        Err(None)
    }

    /// The number of a schedule at a place in the program. `None` if there are too many.
    pub(crate) fn number_of(&self, schedule: Schedule, site: u64) -> Option<u64> {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let Schedule { kind, chunk, evaluated, skipped } = schedule;
        let wanted = [site, pair(kind, chunk), pair(evaluated, skipped)];
        Some(FIRST + self.add(wanted)? as u64)
    }

    fn add(&self, wanted: [u64; 3]) -> Option<usize> {
        self.find(wanted).ok().or_else(|| {
            self.lock.hold(|_| {
                let place = match self.find(wanted) {
                    Ok(number) => return Some(number),
                    Err(place) => place?,
                };
                let words = &self.words[place];
                words[1].store(wanted[1], Relaxed);
                words[2].store(wanted[2], Relaxed);
                words[0].store(wanted[0], Release);
                Some(place)
            })
        })
    }

    /// The schedule that a number stands for, and its place in the program.
    pub(crate) fn schedule_of(&self, number: u64) -> Option<(Schedule, u64)> {
        let number = usize::try_from(number.checked_sub(FIRST)?).ok()?;
        let words = self.words.get(number)?;
        let site = words[0].load(Acquire);
        let [kind_chunk, others] = [1, 2].map(|word| words[word].load(Relaxed));
        let schedule = Schedule {
            kind: (kind_chunk >> 32) as u32,
            chunk: kind_chunk as u32,
            evaluated: (others >> 32) as u32,
            skipped: others as u32,
        };
        (site != 0).then_some((schedule, site))
    }
}
