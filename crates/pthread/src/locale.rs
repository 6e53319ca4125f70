//! The locale, which is the job's: each node's C library has its own, and `setlocale` sets it on all nodes.
//!
//! The thread that sets it publishes the names of all categories, and returns when the starters of all nodes
//! have set them, too. Locale objects are the job's, too (`objects.rs`).

mod objects;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::control::{Deadline, LOCALE_MADE, LOCALE_WORDS, THREADS, control};
use crate::face;
use crate::next::next;
use crate::record::this_node;
use crate::saying;
use crate::stacks::{in_program, privately};

const BYTES: usize = LOCALE_WORDS * size_of::<u64>();

/// The time that the nodes get, which only one whose starter hangs exceeds.
static PATIENCE: libc::timespec = libc::timespec { tv_sec: 60, tv_nsec: 0 };

fn real(category: c_int, names: *const c_char) -> *mut c_char {
    // SAFETY: each caller passes NULL or a C string.
    unsafe { next!(fn setlocale(c_int, *const c_char) -> *mut c_char)(category, names) }
}

/// setlocale(3). Fails if another node lacks the locale; then all nodes keep the present one.
///
/// # Safety
/// `names` is NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setlocale(category: c_int, names: *const c_char) -> *mut c_char {
    if !in_program() || names.is_null() || face::hiroba_nodes() < 2 {
        return real(category, names);
    }
    let before = names_here().to_owned();
    let result = real(category, names);
    if result.is_null() || publish() {
        return result;
    }
    real(libc::LC_ALL, before.as_ptr());
    publish();
    ptr::null_mut()
}

/// The last change of the locale that this node has made.
static SET_HERE: AtomicU32 = AtomicU32::new(0);

/// Returns the names of the calling node's locale.
fn names_here<'a>() -> &'a CStr {
    // SAFETY: the C library returns the names of its present locale.
    unsafe { CStr::from_ptr(real(libc::LC_ALL, ptr::null())) }
}

/// Publishes the calling node's locale, and waits until all nodes have set it. Returns false, and says why,
/// if one cannot.
fn publish() -> bool {
    let names = names_here().to_bytes();
    if names.len() >= BYTES {
        saying::say(&format!("setlocale: expected names of at most {BYTES} bytes, got {}", names.len()));
        return false;
    }
    privately(|| {
        let locale = &control().locale;
        let version = THREADS.hold(|held| {
            write_names(&locale.words, names);
            let set = locale.set.load(Relaxed) + 1;
            locale.set.store(set, Relaxed);
            locale.failed.store(0, Relaxed);
            SET_HERE.store(set, Relaxed);
            let version = locale.version.load(Relaxed) + 1;
            locale.version.store(version, Relaxed);
            (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
            version
        });
        await_all("setlocale", version);
        let failed = locale.failed.load(Relaxed);
        if failed > 0 {
            saying::say(&format!(
                "setlocale: node {} cannot set the locale {}, which node {} has; install it there",
                failed - 1,
                String::from_utf8_lossy(names),
                this_node()
            ));
        }
        failed == 0
    })
}

/// Waits until all nodes have made this change and those before it.
fn await_all(call: &str, version: u32) {
    let nodes = face::hiroba_nodes() as usize;
    let is_behind = |node: &usize| control().locale.made[*node].load(Relaxed) < version;
    let deadline = Deadline::after(&raw const PATIENCE);
    let missing = THREADS.hold(|held| {
        loop {
            let missing = (0..nodes).find(is_behind)?;
            if !held.wait_until(LOCALE_MADE, deadline) {
                return Some(missing);
            }
        }
    });
    if let Some(node) = missing {
        saying::fatal(&format!(
            "{call}: expected node {node} to set its locale within {} s, got no answer; look at what that node \
             does with 'hiroba run --debug {node}'",
            PATIENCE.tv_sec
        ));
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
    if SET_HERE.swap(set, Relaxed) != set && real(libc::LC_ALL, bytes.as_ptr().cast()).is_null() {
        THREADS.hold(|_| locale.failed.store(this_node() + 1, Relaxed));
    }
    objects::apply();
    THREADS.hold(|held| {
        locale.made[this_node() as usize].store(version, Relaxed);
        held.tell_of(LOCALE_MADE);
    });
}
