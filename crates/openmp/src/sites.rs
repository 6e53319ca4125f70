//! What loops keep of their threads' speeds, by the loops' names: a table of the job, to which the first
//! thread of a loop adds. A name is the address of a call or of a function, which all nodes share.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

use hiroba_schedule::Site;

use crate::memory;

/// The most loops that keep speeds. Others do without.
const SITES: usize = 256;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Sites {
    /// Names, each with the number of threads; 0 where there is none.
    names: [AtomicU64; SITES],
    words: [AtomicPtr<AtomicU64>; SITES],
}

/// A loop of teams of other sizes is another one.
fn name_of(address: u64, threads: u32) -> u64 {
    const THREADS_SHIFT: u32 = 48;
    address ^ u64::from(threads) << THREADS_SHIFT
}

/// The places where a name may be, in the order in which they are filled.
fn places(name: u64) -> impl Iterator<Item = usize> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let first = (name.wrapping_mul(GOLDEN) >> 32) as usize;
    (0..SITES).map(move |distance| (first + distance) % SITES)
}

impl Sites {
    fn at(&self, place: usize, threads: u32) -> Option<Site<'static>> {
        let words = self.words[place].load(Acquire);
        if words.is_null() {
            return None;
        }
        // SAFETY: `make` allocated as many words, forever, and zeros are valid.
        let words = unsafe { std::slice::from_raw_parts(words, Site::words(threads)) };
        Some(Site::new(words, threads))
    }

    /// The loop of this name, if it keeps speeds.
    pub(crate) fn find(&self, address: u64, threads: u32) -> Option<Site<'static>> {
        let wanted = name_of(address, threads);
        for place in places(wanted) {
            let name = self.names[place].load(Acquire);
            if name == wanted {
                return self.at(place, threads);
            }
            if name == 0 {
                break;
            }
        }
        None
    }

    /// The same, which shall keep speeds from now on. `None` if too many do.
    pub(crate) fn make(&self, address: u64, threads: u32) -> Option<Site<'static>> {
        let wanted = name_of(address, threads);
        for place in places(wanted) {
            match self.names[place].compare_exchange(0, wanted, AcqRel, Acquire) {
                Ok(_) => {
                    let words = memory::shared_zeroed(PAGE, Site::words(threads) * size_of::<AtomicU64>());
                    self.words[place].store(words.cast(), Release);
                }
                Err(other) if other != wanted => continue,
                Err(_) => {}
            }
            return self.at(place, threads);
        }
        None
    }
}

/// So that no other data lie on the pages.
const PAGE: usize = 4096;
