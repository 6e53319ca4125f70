//! What a program may have shown of where its threads run: a format with fields, as OpenMP defines it. The
//! runtime places threads itself, so that a thread's processors are those that its node may use.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::context;
use crate::job::{self, FORMAT_BYTES};
use crate::library;
use crate::runtime;

/// The formats of both libraries where none is set.
const DEFAULT: &str = "level %L thread %i affinity %A";
const DEFAULT_OF_LLVM: &str = "OMP: pid %P tid %i thread %n bound to OS proc set {%A}";

fn default_format() -> String {
    if library::is_llvm() { DEFAULT_OF_LLVM } else { DEFAULT }.to_owned()
}

/// The format that is set: shared by all nodes, and empty for the default one.
fn format_set() -> String {
    let Some(job) = job::job() else { return default_format() };
    let bytes: Vec<u8> =
        job.format.iter().map(|byte| byte.load(Relaxed)).take_while(|byte| *byte != 0).collect();
    if bytes.is_empty() { default_format() } else { String::from_utf8_lossy(&bytes).into_owned() }
}

fn set_format(format: &str) {
    let Some(job) = job::job() else { return };
    let bytes = format.bytes().take(FORMAT_BYTES - 1).chain(std::iter::repeat(0));
    job.format.iter().zip(bytes).for_each(|(place, byte): (&AtomicU8, u8)| place.store(byte, Relaxed));
}

/// What a field stands for, by its letter.
fn field(letter: char) -> String {
    let context = context::current();
    match letter {
        't' => context.team_number.get().to_string(),
        'T' => context.teams.get().to_string(),
        'L' => context.level.get().to_string(),
        'n' => context.number.get().to_string(),
        'N' => context.threads.get().to_string(),
        'a' => {
            let outer = context.level.get().checked_sub(1).and_then(|level| context.at_level(level));
            outer.map_or("-1".to_owned(), |outer| outer.number.get().to_string())
        }
        'H' => {
            let name = runtime::privately(|| std::fs::read_to_string("/proc/sys/kernel/hostname"));
            name.unwrap_or_default().trim().to_owned()
        }
        'P' => std::process::id().to_string(),
        // SAFETY: it has no arguments and cannot fail.
        'i' => format!("{:#x}", unsafe { libc::gettid() }),
        'A' => processors(),
        other => format!("%{other}"),
    }
}

/// The processors of this process, as ranges.
fn processors() -> String {
    let status = runtime::privately(|| std::fs::read_to_string("/proc/thread-self/status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or("0").trim().to_owned()
}

/// The letter of a field by its long name.
fn letter_of(name: &str) -> Option<char> {
    let names = [
        ("team_num", 't'),
        ("num_teams", 'T'),
        ("nesting_level", 'L'),
        ("thread_num", 'n'),
        ("num_threads", 'N'),
        ("ancestor_tnum", 'a'),
        ("host", 'H'),
        ("process_id", 'P'),
        ("native_thread_id", 'i'),
        ("thread_affinity", 'A'),
    ];
    names.into_iter().find(|(known, _)| *known == name).map(|(_, letter)| letter)
}

/// Puts the calling thread's values in for the fields `%[[0].]WIDTH LETTER`.
fn expand(format: &str) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let unpadded = after.trim_start_matches(['0', '.']);
        let flags = &after[..after.len() - unpadded.len()];
        let width_end = unpadded.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(unpadded.len());
        let width: usize = unpadded[..width_end].parse().unwrap_or(0);
        let named = &unpadded[width_end..];
        let long = named.strip_prefix('{').and_then(|name| name.split_once('}'));
        let (value, left) = match long {
            Some((name, left)) => (letter_of(name).map_or_else(String::new, field), left),
            None => match named.chars().next() {
                Some('%') => ("%".to_owned(), &named[1..]),
                Some(letter) => (field(letter), &named[letter.len_utf8()..]),
                None => (String::new(), named),
            },
        };
        let _ = match (flags.contains('.'), flags.contains('0')) {
            (true, true) => write!(text, "{value:0>width$}"),
            (true, false) => write!(text, "{value:>width$}"),
            (false, _) => write!(text, "{value:<width$}"),
        };
        rest = left;
    }
    text + rest
}

/// Writes as much of a text as there is room for, with a final zero; how long all of it is.
///
/// # Safety
/// `place` has room for `bytes` bytes.
unsafe fn give(text: &str, place: *mut c_char, bytes: usize) -> usize {
    if let Some(most) = bytes.checked_sub(1) {
        let count = text.len().min(most);
        // SAFETY: the caller's; the text is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), count) };
        // SAFETY: the caller's.
        unsafe { place.wrapping_add(count).write(0) };
    }
    text.len()
}

/// The same for Fortran: blanks follow.
///
/// # Safety
/// `place` has room for `bytes` bytes.
unsafe fn give_padded(text: &str, place: *mut c_char, bytes: usize) -> c_int {
    for number in 0..bytes {
        let byte = text.as_bytes().get(number).copied().unwrap_or(b' ');
        // SAFETY: the caller's.
        unsafe { place.wrapping_add(number).cast::<u8>().write(byte) };
    }
    text.len() as c_int
}

/// A format that the program passes; the one that is set for NULL or nothing.
///
/// # Safety
/// NULL or a C string.
unsafe fn given(format: *const c_char) -> String {
    if format.is_null() {
        return format_set();
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(format) }.to_string_lossy().into_owned();
    if text.is_empty() { format_set() } else { text }
}

/// The same for Fortran, without the blanks at its end.
///
/// # Safety
/// That many bytes can be read.
unsafe fn given_padded(format: *const c_char, bytes: usize) -> String {
    // SAFETY: the caller's.
    let text = unsafe { std::slice::from_raw_parts(format.cast::<u8>(), bytes) };
    let text = String::from_utf8_lossy(text).trim_end().to_owned();
    if text.is_empty() { format_set() } else { text }
}

fn show(format: &str) {
    let line = expand(format);
    runtime::privately(|| eprintln!("{line}"));
}

/// See OpenMP.
///
/// # Safety
/// A C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_set_affinity_format(format: *const c_char) {
    // SAFETY: the caller's.
    set_format(&unsafe { given(format) });
}

/// See OpenMP.
///
/// # Safety
/// `place` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_get_affinity_format(place: *mut c_char, bytes: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { give(&format_set(), place, bytes) }
}

/// See OpenMP.
///
/// # Safety
/// NULL or a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_display_affinity(format: *const c_char) {
    // SAFETY: the caller's.
    show(&unsafe { given(format) });
}

/// See OpenMP.
///
/// # Safety
/// `place` has room for `bytes` bytes; the format is NULL or a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn omp_capture_affinity(
    place: *mut c_char,
    bytes: usize,
    format: *const c_char,
) -> usize {
    // SAFETY: the caller's.
    let text = expand(&unsafe { given(format) });
    // SAFETY: the caller's.
    unsafe { give(&text, place, bytes) }
}

/// The same for Fortran, as of the following ones.
///
/// # Safety
/// That many bytes can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_set_affinity_format_(format: *const c_char, bytes: usize) {
    // SAFETY: the caller's.
    set_format(&unsafe { given_padded(format, bytes) });
}

/// See OpenMP.
///
/// # Safety
/// `place` has room for `bytes` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_affinity_format_(place: *mut c_char, bytes: usize) -> c_int {
    // SAFETY: the caller's.
    unsafe { give_padded(&format_set(), place, bytes) }
}

/// See OpenMP.
///
/// # Safety
/// That many bytes can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_display_affinity_(format: *const c_char, bytes: usize) {
    // SAFETY: the caller's.
    show(&unsafe { given_padded(format, bytes) });
}

/// See OpenMP.
///
/// # Safety
/// `place` has room for `bytes` bytes, and that many of the format can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_capture_affinity_(
    place: *mut c_char,
    format: *const c_char,
    bytes: usize,
    format_bytes: usize,
) -> c_int {
    // SAFETY: the caller's.
    let text = expand(&unsafe { given_padded(format, format_bytes) });
    // SAFETY: the caller's.
    unsafe { give_padded(&text, place, bytes) }
}
