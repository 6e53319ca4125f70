//! Calls that change how memory is mapped.
//!
//! The runtime decides from fault to fault which accesses to shared memory are allowed and what its pages
//! contain. A program that changed this by its own calls would read stale bytes, or end the job. So calls
//! that reach shared memory are carried out in another way if possible, else refused with `errno` and a
//! message. Other calls are passed on. `hiroba_node::Extent` tells how a range relates to shared memory;
//! [`protection`] and [`advice`] decide what a call means.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroba_node::{Extent, Locking, Runtime, SharedPages};

use super::{Call, Returns, page_bytes, touch};
use crate::reporting::{note, set_errno};

/// A call, and whether a refusal has been reported, which is done once.
struct Watched {
    call: Call,
    is_told: AtomicBool,
}

/// Defines the calls, and `ALL` of them.
macro_rules! watched {
    ($($constant:ident $name:literal;)*) => {
        $(static $constant: Watched =
            Watched { call: Call::new($name, &[], Returns::Number), is_told: AtomicBool::new(false) };)*
        pub(super) static ALL: &[&Call] = &[$(&$constant.call),*];
    };
}

watched! {
    MPROTECT c"mprotect";
    PKEY_MPROTECT c"pkey_mprotect";
    MADVISE c"madvise";
    POSIX_MADVISE c"posix_madvise";
    MLOCK c"mlock";
    MLOCK2 c"mlock2";
    MUNLOCK c"munlock";
    MMAP c"mmap";
    MMAP64 c"mmap64";
    MUNMAP c"munmap";
    MREMAP c"mremap";
    REMAP_FILE_PAGES c"remap_file_pages";
    SHMAT c"shmat";
}

/// Returns how a range relates to shared memory, in a process that has joined its job.
#[inline(always)]
fn extent(address: usize, bytes: usize) -> (Extent, Option<&'static Runtime>) {
    let runtime = Runtime::known();
    (runtime.map_or(Extent::Outside, |runtime| runtime.extent(address, bytes)), runtime)
}

impl Watched {
    /// Fails with a reason, for `hiroba_error_string` each time, on stderr once for each call.
    #[cold]
    fn refuse(&self, errno: c_int, address: usize, bytes: usize, why: &str) -> isize {
        let name = self.call.name.to_string_lossy();
        let sentence = format!("{name} of {bytes} bytes at 0x{address:x}: {why}; see hiroba.h");
        note(&sentence);
        if let Some(runtime) = Runtime::known()
            && !self.is_told.swap(true, Ordering::Relaxed)
        {
            let line = format!("hiroba: node {}: {sentence}\n", runtime.node());
            // SAFETY: the line has this length. One write keeps it whole; whether it arrives does not matter.
            unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        }
        set_errno(errno);
        -1
    }

    /// Refuses a range that is not entirely allocated shared memory.
    fn refuse_part(&self, extent: Extent, address: usize, bytes: usize) -> isize {
        if extent == Extent::Straddling {
            let why = "expected memory that is all shared or all private, got some of both";
            return self.refuse(libc::EINVAL, address, bytes, why);
        }
        let why = "expected shared memory that is allocated, got addresses that are not";
        self.refuse(libc::ENOMEM, address, bytes, why)
    }
}

fn result(done: io::Result<()>) -> isize {
    match done {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
            -1
        }
    }
}

/// What mprotect(2) means for allocated shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    /// Loads and stores remain allowed; executing code is allowed or not.
    Open { executable: bool },
    /// The program would lose access that the runtime grants.
    Refused,
}

fn protection(wanted: c_int) -> Protection {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    if wanted & !all != 0 {
        return Protection::Refused;
    }
    match (wanted & libc::PROT_EXEC != 0, wanted & libc::PROT_WRITE != 0) {
        (true, _) => Protection::Open { executable: true },
        (false, true) => Protection::Open { executable: false },
        (false, false) => Protection::Refused,
    }
}

/// mprotect(2) on a range that reaches shared memory.
#[cold]
fn protect(
    watched: &Watched,
    extent: Extent,
    runtime: &Runtime,
    address: usize,
    bytes: usize,
    wanted: usize,
) -> isize {
    let Extent::Allocated(pages) = extent else { return watched.refuse_part(extent, address, bytes) };
    match protection(wanted as c_int) {
        Protection::Open { executable } => result(runtime.set_executable(pages, executable)),
        Protection::Refused => {
            let why = format!(
                "expected PROT_READ | PROT_WRITE, or PROT_EXEC with any other, since Hiroba itself controls the access to shared \
                 memory, got 0x{wanted:x}"
            );
            watched.refuse(libc::ENOTSUP, address, bytes, &why)
        }
    }
}

/// Returns true if the start of a range is aligned to a page, as the kernel requires.
fn is_aligned(address: usize) -> bool {
    address.is_multiple_of(page_bytes())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mprotect(address: usize, bytes: usize, wanted: usize) -> isize {
    match extent(address, bytes) {
        (reached, Some(runtime)) if reached != Extent::Outside && is_aligned(address) => {
            protect(&MPROTECT, reached, runtime, address, bytes, wanted)
        }
        // SAFETY: the caller's.
        _ => unsafe { MPROTECT.call.call([address, bytes, wanted]) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pkey_mprotect(address: usize, bytes: usize, wanted: usize, key: usize) -> isize {
    match extent(address, bytes) {
        (reached, Some(runtime)) if reached != Extent::Outside && is_aligned(address) => {
            if key as c_int != -1 {
                let why = format!("expected no protection key (-1) for shared memory, got {}", key as c_int);
                return PKEY_MPROTECT.refuse(libc::ENOTSUP, address, bytes, &why);
            }
            protect(&PKEY_MPROTECT, reached, runtime, address, bytes, wanted)
        }
        // SAFETY: the caller's.
        _ => unsafe { PKEY_MPROTECT.call.call([address, bytes, wanted, key]) },
    }
}

/// What madvise(2) means for allocated shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// The runtime does the same anyway.
    Nothing,
    /// Requests missing pages.
    Fetch,
    /// Fetches the pages for reading.
    Read,
    /// Fetches the pages for writing.
    Write,
    /// Would change contents, or what children and core files get.
    Refused,
}

fn advice(given: c_int) -> Advice {
    match given {
        libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL => Advice::Nothing,
        // Children and core dumps get no more by these.
        libc::MADV_DONTFORK | libc::MADV_DODUMP => Advice::Nothing,
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => {
            Advice::Nothing
        }
        libc::MADV_COLD | libc::MADV_PAGEOUT => Advice::Nothing,
        libc::MADV_WILLNEED => Advice::Fetch,
        libc::MADV_POPULATE_READ => Advice::Read,
        libc::MADV_POPULATE_WRITE => Advice::Write,
        _ => Advice::Refused,
    }
}

#[cold]
fn advise(
    runtime: &'static Runtime,
    pages: SharedPages,
    address: usize,
    bytes: usize,
    given: usize,
) -> isize {
    match advice(given as c_int) {
        Advice::Nothing => {}
        Advice::Fetch => drop(runtime.prefetch(&[(address, bytes)])),
        Advice::Read => runtime.bring(pages),
        Advice::Write => {
            runtime.bring(pages);
            touch(runtime, address, bytes);
        }
        Advice::Refused => {
            let why = format!(
                "expected advice that changes neither contents nor inheritance of shared memory, got {}",
                given as c_int
            );
            return MADVISE.refuse(libc::EINVAL, address, bytes, &why);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn madvise(address: usize, bytes: usize, given: usize) -> isize {
    match extent(address, bytes) {
        (Extent::Allocated(pages), Some(runtime)) if is_aligned(address) => {
            advise(runtime, pages, address, bytes, given)
        }
        (reached, Some(_)) if reached != Extent::Outside && is_aligned(address) => {
            MADVISE.refuse_part(reached, address, bytes)
        }
        // SAFETY: the caller's.
        _ => unsafe { MADVISE.call.call([address, bytes, given]) },
    }
}

/// Returns an error number, and does not change `errno`. None of its advice changes contents.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_madvise(address: usize, bytes: usize, given: usize) -> isize {
    match (extent(address, bytes), given as c_int) {
        ((Extent::Allocated(_), Some(runtime)), libc::POSIX_MADV_WILLNEED) if is_aligned(address) => {
            let _ = runtime.prefetch(&[(address, bytes)]);
            0
        }
        ((Extent::Allocated(_), _), libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED)
            if is_aligned(address) =>
        {
            0
        }
        // SAFETY: the caller's. On memory that is not allocated the advice has no visible effect.
        _ => unsafe { POSIX_MADVISE.call.call([address, bytes, given]) },
    }
}

#[cold]
fn lock(watched: &Watched, reached: Extent, address: usize, bytes: usize, how: Locking) -> isize {
    match (reached, Runtime::known()) {
        (Extent::Allocated(pages), Some(runtime)) => result(runtime.lock_pages(pages, how)),
        _ => watched.refuse_part(reached, address, bytes),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mlock(address: usize, bytes: usize) -> isize {
    match extent(address, bytes).0 {
        // SAFETY: the caller's.
        Extent::Outside => unsafe { MLOCK.call.call([address, bytes]) },
        reached => lock(&MLOCK, reached, address, bytes, Locking::Now),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mlock2(address: usize, bytes: usize, flags: usize) -> isize {
    /// MLOCK_ONFAULT of <linux/mman.h>.
    const ON_FAULT: usize = 1;
    match (extent(address, bytes).0, flags as c_int as usize) {
        (reached, 0) if reached != Extent::Outside => lock(&MLOCK2, reached, address, bytes, Locking::Now),
        (reached, ON_FAULT) if reached != Extent::Outside => {
            lock(&MLOCK2, reached, address, bytes, Locking::Resident)
        }
        // SAFETY: the caller's; the kernel refuses invalid flags.
        _ => unsafe { MLOCK2.call.call([address, bytes, flags]) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn munlock(address: usize, bytes: usize) -> isize {
    match extent(address, bytes) {
        // SAFETY: the caller's.
        (Extent::Outside, _) | (_, None) => unsafe { MUNLOCK.call.call([address, bytes]) },
        (Extent::Allocated(pages), Some(runtime)) => result(runtime.unlock_pages(pages)),
        (reached, Some(_)) => MUNLOCK.refuse_part(reached, address, bytes),
    }
}

const MAPPING_WHY: &str = "expected private addresses, since shared ones must stay mapped, got shared ones";

/// Returns true if a call would replace or unmap shared addresses, allocated or not.
#[inline(always)]
fn reaches(address: usize, bytes: usize) -> bool {
    extent(address, bytes).0 != Extent::Outside
}

/// mmap(2).
///
/// # Safety
/// The requirements are those of the C library's function.
#[inline(always)]
unsafe fn map(watched: &Watched, arguments: [usize; 6]) -> isize {
    let [address, bytes, _, flags, ..] = arguments;
    // With MAP_FIXED_NOREPLACE the kernel finds the addresses in use, and with neither flag it chooses
    // others.
    let replaces = flags as c_int & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
    if replaces && reaches(address, bytes) {
        return watched.refuse(libc::EINVAL, address, bytes, MAPPING_WHY);
    }
    // SAFETY: the caller's.
    unsafe { watched.call.call(arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap(
    address: usize,
    bytes: usize,
    protection: usize,
    flags: usize,
    fd: usize,
    offset: usize,
) -> isize {
    // SAFETY: the caller's.
    unsafe { map(&MMAP, [address, bytes, protection, flags, fd, offset]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap64(
    address: usize,
    bytes: usize,
    protection: usize,
    flags: usize,
    fd: usize,
    offset: usize,
) -> isize {
    // SAFETY: the caller's.
    unsafe { map(&MMAP64, [address, bytes, protection, flags, fd, offset]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn munmap(address: usize, bytes: usize) -> isize {
    if reaches(address, bytes) {
        return MUNMAP.refuse(libc::EINVAL, address, bytes, MAPPING_WHY);
    }
    // SAFETY: the caller's.
    unsafe { MUNMAP.call.call([address, bytes]) }
}

/// The fifth argument exists only with MREMAP_FIXED, in the same place.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mremap(
    address: usize,
    bytes: usize,
    new_bytes: usize,
    flags: usize,
    new_address: usize,
) -> isize {
    // A call with zero bytes would make a second mapping of the pages.
    if reaches(address, bytes.max(1)) {
        return MREMAP.refuse(libc::EINVAL, address, bytes, MAPPING_WHY);
    }
    if flags as c_int & libc::MREMAP_FIXED != 0 && reaches(new_address, new_bytes) {
        return MREMAP.refuse(libc::EINVAL, new_address, new_bytes, MAPPING_WHY);
    }
    // SAFETY: the caller's.
    unsafe { MREMAP.call.call([address, bytes, new_bytes, flags, new_address]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn remap_file_pages(
    address: usize,
    bytes: usize,
    protection: usize,
    page: usize,
    flags: usize,
) -> isize {
    if reaches(address, bytes) {
        return REMAP_FILE_PAGES.refuse(libc::EINVAL, address, bytes, MAPPING_WHY);
    }
    // SAFETY: the caller's.
    unsafe { REMAP_FILE_PAGES.call.call([address, bytes, protection, page, flags]) }
}

/// Without SHM_REMAP the kernel finds the addresses in use.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shmat(segment: usize, address: usize, flags: usize) -> isize {
    if flags as c_int & libc::SHM_REMAP != 0 {
        let bytes = segment_bytes(segment as c_int).unwrap_or(1);
        if reaches(address, bytes) {
            return SHMAT.refuse(libc::EINVAL, address, bytes, MAPPING_WHY);
        }
    }
    // SAFETY: the caller's.
    unsafe { SHMAT.call.call([segment, address, flags]) }
}

fn segment_bytes(segment: c_int) -> Option<usize> {
    let mut status = std::mem::MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: the call fills in a local.
    let known = unsafe { libc::shmctl(segment, libc::IPC_STAT, status.as_mut_ptr()) } >= 0;
    // SAFETY: the call succeeded, so it has filled the status in.
    known.then(|| unsafe { status.assume_init() }.shm_segsz)
}

#[cfg(test)]
mod tests {
    use super::{Advice, Protection, advice, protection};

    #[test]
    fn executing_is_added_and_nothing_is_taken_away() {
        let open = |executable| Protection::Open { executable };
        let cases = [
            (libc::PROT_NONE, Protection::Refused),
            (libc::PROT_READ, Protection::Refused),
            (libc::PROT_WRITE, open(false)),
            (libc::PROT_READ | libc::PROT_WRITE, open(false)),
            (libc::PROT_EXEC, open(true)),
            (libc::PROT_READ | libc::PROT_EXEC, open(true)),
            (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, open(true)),
            (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_GROWSDOWN, Protection::Refused),
        ];
        for (wanted, expected) in cases {
            assert_eq!(protection(wanted), expected, "{wanted:#x}");
        }
    }

    #[test]
    fn advice_that_changes_contents_is_refused() {
        let destructive = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_REMOVE,
            libc::MADV_DOFORK,
            libc::MADV_DONTDUMP,
            libc::MADV_WIPEONFORK,
            libc::MADV_HWPOISON,
        ];
        for given in destructive.into_iter().chain([102, 103, -1, 12345]) {
            assert_eq!(advice(given), Advice::Refused, "{given}");
        }
        assert_eq!(advice(libc::MADV_HUGEPAGE), Advice::Nothing);
        assert_eq!(advice(libc::MADV_WILLNEED), Advice::Fetch);
    }
}
