//! The locale, which is the job's: each node's C library has its own, and `setlocale` sets it on all nodes.
//!
//! The thread that sets it publishes the names of all categories, and returns when the starters of all nodes
//! have set them, too. Locale objects are the job's, too (`objects.rs`).

mod objects;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::control::{LOCALE_WORDS, THREADS, control};
use crate::face;
use crate::next::next;
use crate::record::this_node;
use crate::saying;
use crate::stacks::{in_program, privately};

const BYTES: usize = LOCALE_WORDS * size_of::<u64>();

/// The time that the nodes get. A starter that has ended with the job does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

fn real(category: c_int, names: *const c_char) -> *mut c_char {
    // SAFETY: each caller passes NULL or a C string.
    unsafe { next!(fn setlocale(c_int, *const c_char) -> *mut c_char)(category, names) }
}

/// setlocale(3).
///
/// # Safety
/// `names` is NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setlocale(category: c_int, names: *const c_char) -> *mut c_char {
    let result = real(category, names);
    if in_program() && !names.is_null() && !result.is_null() && face::hiroba_nodes() > 1 {
        publish();
    }
    result
}

/// The last change of the locale that this node has made.
static SET_HERE: AtomicU32 = AtomicU32::new(0);

/// Publishes the calling node's locale, and waits until all nodes have set it.
fn publish() {
    let names = real(libc::LC_ALL, ptr::null());
    // SAFETY: the C library returns the names of its present locale.
    let names = unsafe { CStr::from_ptr(names) }.to_bytes();
    if names.len() >= BYTES {
        saying::say(&format!(
            "setlocale: expected names of at most {BYTES} bytes, got {}; other nodes keep their locale",
            names.len()
        ));
        return;
    }
    privately(|| {
        let version = THREADS.hold(|held| {
            let locale = &control().locale;
            write_names(&locale.words, names);
            let set = locale.set.load(Relaxed) + 1;
            locale.set.store(set, Relaxed);
            SET_HERE.store(set, Relaxed);
            let version = locale.version.load(Relaxed) + 1;
            locale.version.store(version, Relaxed);
            (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
            version
        });
        await_all(version);
    });
}

/// Waits until all nodes have made this change and those before it.
fn await_all(version: u32) {
    let nodes = face::hiroba_nodes() as usize;
    let is_made = || control().locale.made[..nodes].iter().all(|made| made.load(Relaxed) >= version);
    let since = Instant::now();
    while !is_made() && since.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Puts names into shared words. Returns false if they are too long.
fn write_names(words: &[AtomicU64; LOCALE_WORDS], names: &[u8]) -> bool {
    if names.len() >= BYTES {
        return false;
    }
    let mut bytes = [0; BYTES];
    bytes[..names.len()].copy_from_slice(names);
    for (word, part) in words.iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(part.try_into().expect("eight bytes")), Relaxed);
    }
    true
}

/// Reads names from shared words; a zero follows them.
fn read_names(words: &[AtomicU64; LOCALE_WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    bytes
}

/// Returns true if this node has another locale than the job.
pub(crate) fn is_stale() -> bool {
    let locale = &control().locale;
    locale.made[this_node() as usize].load(Relaxed) != locale.version.load(Relaxed)
}

/// Sets the job's locale on this node. Called by its starter.
pub(crate) fn apply() {
    let locale = &control().locale;
    let (bytes, set, version) = THREADS.hold(|_| {
        let bytes = read_names(&locale.words);
        (bytes, locale.set.load(Relaxed), locale.version.load(Relaxed))
    });
    // Threads may be using what the C library has of the present names.
    if SET_HERE.swap(set, Relaxed) != set {
        real(libc::LC_ALL, bytes.as_ptr().cast());
    }
    objects::apply();
    THREADS.hold(|_| locale.made[this_node() as usize].store(version, Relaxed));
}
