//! `mlockall` and `munlockall`.
//!
//! The kernel's own `mlockall` would lock and fill the two views of the shared region, 16 TiB each. So
//! present mappings are locked one by one, without the views; only `mlock` locks shared memory. Future
//! mappings are locked when they are first touched: Hiroba maps more addresses than there is memory, which
//! the kernel would fill, too.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroba_node::Runtime;

use super::{Call, Returns};
use crate::reporting::{note, set_errno};

static MLOCKALL: Call = Call::new(c"mlockall", &[], Returns::Number);
static MUNLOCKALL: Call = Call::new(c"munlockall", &[], Returns::Number);

pub(super) static ALL: &[&Call] = &[&MLOCKALL, &MUNLOCKALL];

/// Whether the kernel locks future mappings.
static LOCKS_FUTURE: AtomicBool = AtomicBool::new(false);

/// A mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: usize,
    bytes: usize,
    /// Whether it is a view of frames of the shared region.
    is_view: bool,
    /// Whether it was mapped without reserving memory (`nr` in smaps), so that it must not be filled.
    is_sparse: bool,
    is_locked: bool,
}

/// Parses /proc/self/smaps.
fn mappings(smaps: &str) -> Vec<Mapped> {
    let mut all: Vec<Mapped> = Vec::new();
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(mapped) = all.last_mut() {
                let has = |wanted: &str| flags.split_ascii_whitespace().any(|flag| flag == wanted);
                (mapped.is_sparse, mapped.is_locked) = (has("nr"), has("lo"));
            }
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let number = |word: &str| usize::from_str_radix(word, 16).ok();
        let bounds = words.next().and_then(|word| word.split_once('-'));
        let Some((Some(start), Some(end))) = bounds.map(|(start, end)| (number(start), number(end))) else {
            continue;
        };
        let name = words.nth(4).unwrap_or("");
        let is_view = matches!(name, "/memfd:hiroba" | "/memfd:hiroba-frames");
        if name == "[vsyscall]" {
            // The last entry, which is not memory of this process.
            break;
        }
        all.push(Mapped { start, bytes: end - start, is_view, is_sparse: false, is_locked: false });
    }
    all
}

fn fail(errno: c_int, sentence: &str) -> isize {
    note(sentence);
    eprintln!("hiroba: {sentence}");
    set_errno(errno);
    -1
}

/// Returns how many bytes this process may lock; `None` for no limit.
fn limit() -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills in a local.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limits) } == 0;
    let is_free = effective >> CAP_IPC_LOCK & 1 == 1 || known && limits.rlim_cur == libc::RLIM_INFINITY;
    (!is_free).then_some(limits.rlim_cur)
}

/// Memory that a node maps at least when it joins. Shared memory alone takes more.
const LOCKED_TO_JOIN: u64 = 64 << 20;

/// Returns why the node cannot join, if all memory that it maps is locked, and a limit leaves no room for
/// that. Otherwise an allocation of the runtime would fail, which ends the process.
pub(crate) fn why_not_lockable() -> Option<String> {
    if !LOCKS_FUTURE.load(Ordering::Relaxed) {
        return None;
    }
    let limit = limit()?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let locked = locked.and_then(|size| size.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0) << 10;
    (limit.saturating_sub(locked) < LOCKED_TO_JOIN).then(|| {
        format!(
            "expected at least {LOCKED_TO_JOIN} more bytes that may be locked, since \
             mlockall(MCL_FUTURE) was called before, got a limit of {limit} bytes, of which {locked} are locked; \
             call mlockall after hiroba_init, or raise ulimit -l"
        )
    })
}

/// Calls mlock2(2) directly, without the functions that this library replaces.
fn lock(mapped: Mapped, on_fault: bool) {
    const ON_FAULT: usize = 1;
    // Mappings that are gone or not readable are skipped, as by the kernel's mlockall.
    // SAFETY: locking changes no byte.
    unsafe {
        libc::syscall(libc::SYS_mlock2, mapped.start, mapped.bytes, if on_fault { ON_FAULT } else { 0 })
    };
}

fn read() -> Option<Vec<Mapped>> {
    std::fs::read_to_string("/proc/self/smaps").ok().map(|smaps| mappings(&smaps))
}

fn lock_current(on_fault: bool) -> isize {
    let Some(all) = read() else {
        return fail(
            libc::EAGAIN,
            "mlockall: expected /proc/self/smaps to be readable, it is not; mount /proc",
        );
    };
    let wanted = || all.iter().filter(|mapped| !mapped.is_view).copied();
    let bytes: u64 = wanted().map(|mapped| mapped.bytes as u64).sum();
    if let Some(limit) = limit().filter(|limit| *limit < bytes) {
        let errno = if limit == 0 { libc::EPERM } else { libc::ENOMEM };
        let sentence = format!(
            "mlockall: expected a limit of at least {bytes} bytes, which the node has mapped beside shared memory, got {limit}; raise ulimit -l"
        );
        return fail(errno, &sentence);
    }
    // The stack grows while this runs; a locked stack stays locked as it grows.
    wanted().for_each(|mapped| lock(mapped, on_fault || mapped.is_sparse));
    0
}

/// # Safety
/// None: the kernel checks the flags.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mlockall(flags: c_int) -> isize {
    let exists = flags & !(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0
        && flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0;
    let future = flags & libc::MCL_FUTURE != 0;
    if !exists || Runtime::known().is_none_or(|runtime| !runtime.has_region()) {
        // SAFETY: it has no memory operands.
        let result = unsafe { MLOCKALL.call([flags as usize]) };
        if result == 0 {
            LOCKS_FUTURE.store(future, Ordering::Relaxed);
        }
        return result;
    }
    if future {
        if let Some(limit) = limit() {
            let sentence = format!(
                "mlockall: expected no limit on locked memory for MCL_FUTURE, since the node's runtime would exceed it, \
                 got {limit} bytes; set ulimit -l unlimited"
            );
            return fail(libc::ENOMEM, &sentence);
        }
        lock_future_on_fault();
        LOCKS_FUTURE.store(true, Ordering::Relaxed);
    } else if LOCKS_FUTURE.swap(false, Ordering::Relaxed) {
        // Only munlockall(2) ends MCL_FUTURE.
        let locked: Vec<Mapped> = read().into_iter().flatten().filter(|mapped| mapped.is_locked).collect();
        // SAFETY: it has no memory operands.
        unsafe { MUNLOCKALL.call([]) };
        locked.into_iter().for_each(|mapped| lock(mapped, true));
    }
    if flags & libc::MCL_CURRENT != 0 { lock_current(flags & libc::MCL_ONFAULT != 0) } else { 0 }
}

/// Makes the kernel lock future mappings when they are touched; present ones do not change.
fn lock_future_on_fault() {
    // SAFETY: it has no memory operands.
    unsafe { MLOCKALL.call([(libc::MCL_FUTURE | libc::MCL_ONFAULT) as usize]) };
}

/// Called before the job is joined and the region mapped, since the program's MCL_FUTURE would fill the
/// region.
pub(crate) fn prepare_to_join() {
    if LOCKS_FUTURE.load(Ordering::Relaxed) {
        lock_future_on_fault();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn munlockall() -> isize {
    LOCKS_FUTURE.store(false, Ordering::Relaxed);
    // SAFETY: it has no memory operands.
    unsafe { MUNLOCKALL.call([]) }
}

#[cfg(test)]
mod tests {
    use super::{Mapped, mappings};

    #[test]
    fn views_of_shared_memory_are_told_from_other_mappings() {
        let smaps = "\
400000-452000 r-xp 00000000 08:02 173521      /usr/bin/a b
Size:                328 kB
VmFlags: rd ex mr mw me
400000000000-500000000000 ---s 00000000 00:01 9   /memfd:hiroba-frames (deleted)
VmFlags: sh mr mw me ms nr dc dd um uw
7f0000000000-7f0000002000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me nr lo
7f0000010000-7f0000011000 rw-s 00000000 00:01 10   /memfd:hiroba-board (deleted)
VmFlags: rd wr sh
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
VmFlags: ex lo
";
        let mapped = |start, bytes, is_view, is_sparse, is_locked| Mapped {
            start,
            bytes,
            is_view,
            is_sparse,
            is_locked,
        };
        let expected = [
            mapped(0x40_0000, 0x5_2000, false, false, false),
            mapped(0x4000_0000_0000, 0x1000_0000_0000, true, true, false),
            mapped(0x7f00_0000_0000, 0x2000, false, true, true),
            mapped(0x7f00_0001_0000, 0x1000, false, false, false),
        ];
        assert_eq!(mappings(smaps), expected);
    }
}
