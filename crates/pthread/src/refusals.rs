//! Calls that cannot mean the same on several nodes as in one process. They are refused by name, or answered
//! for the job.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr;

use crate::face;
use crate::futexes::futex;
use crate::heap::{self, set_errno};
use crate::next::next;
use crate::saying::refuse;
use crate::shared::is_shared;
use crate::stacks::{in_program, is_programs, privately};

/// Defines calls that make a process, which could not take part in the job.
macro_rules! no_process {
    ($($name:ident)*) => { $(
        /// Refused in the program. See the manual.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name() -> c_int {
            if !in_program() {
                // SAFETY: it has no arguments.
                return unsafe { next!(fn $name() -> c_int)() };
            }
            refuse(libc::ENOSYS, concat!(
                stringify!($name),
                ": a program whose threads run on several nodes cannot be copied; use posix_spawn, system or popen"
            ))
        }
    )* };
}

no_process! { fork _Fork }

/// Refused: the child would run on its parent's stack, which is shared between nodes. See vfork(2).
#[unsafe(no_mangle)]
extern "C-unwind" fn vfork() -> c_int {
    refuse(
        libc::ENOSYS,
        "vfork: a program whose threads run on several nodes cannot be copied; use posix_spawn, system or popen",
    )
}

/// Refused in the program. See sem_open(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn sem_open(_name: *const c_char, _flags: c_int) -> *mut c_void {
    refuse(
        libc::ENOSYS,
        "sem_open: named semaphores are each node's own; use sem_init in memory of the program",
    );
    ptr::null_mut()
}

/// Refused in the program: only one node would load the library. See dlopen(3).
///
/// # Safety
/// `name` is NULL or a C string.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    if !in_program() || name.is_null() {
        // SAFETY: the caller's.
        return unsafe { next!(fn dlopen(*const c_char, c_int) -> *mut c_void)(name, flags) };
    }
    // SAFETY: the caller passes a C string.
    let file = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    refuse(
        libc::ENOSYS,
        &format!(
            "dlopen: {file} would be loaded on one node only; link the program with it, or name it in LD_PRELOAD"
        ),
    );
    ptr::null_mut()
}

/// syscall(2): futexes of the program are between nodes. The runtime waits at words that are not shared, also
/// in threads of the program.
///
/// # Safety
/// As of syscall(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    if number == libc::SYS_futex && first.is_multiple_of(4) && is_programs(first as *const c_void) {
        // SAFETY: the caller passes an aligned word that it can read.
        return unsafe {
            futex(first, second as c_int, third as u32, fourth as *const libc::timespec, fifth, sixth as u32)
        };
    }
    type Raw = unsafe extern "C-unwind" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    static NEXT: crate::next::Next = crate::next::Next::new(c"syscall");
    // SAFETY: the C library's function reads no more arguments than the call has, and all are in registers or
    // on the stack where it looks for them.
    let raw = unsafe { std::mem::transmute::<usize, Raw>(NEXT.address()) };
    // SAFETY: the caller's.
    unsafe { raw(number, first, second, third, fourth, fifth, sixth) }
}

/// mmap(2): memory that is private to a process is shared between the nodes. Files are read in, since a
/// mapping would exist on one node only.
///
/// # Safety
/// As of mmap(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap(
    wanted: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // The runtime's allocator, and a thread that has crashed and reports that, need memory of their own.
    if !in_program() || face::hiroba_is_inside() != 0 || face::hiroba_is_dying() != 0 {
        type Real = unsafe extern "C-unwind" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
        static NEXT: crate::next::Next = crate::next::Next::new(c"mmap");
        // SAFETY: a function of this name and type is declared in the C library's headers.
        let real = unsafe { std::mem::transmute::<usize, Real>(NEXT.address()) };
        // SAFETY: the caller's.
        return unsafe { real(wanted, bytes, protection, flags, file, offset) };
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        refuse(libc::ENOTSUP, "mmap: a mapping at a fixed address would be there on one node only");
        return libc::MAP_FAILED;
    }
    let is_anonymous = flags & libc::MAP_ANONYMOUS != 0;
    if !is_anonymous && flags & libc::MAP_SHARED != 0 && protection & libc::PROT_WRITE != 0 {
        refuse(
            libc::ENOTSUP,
            "mmap: a file that is mapped to be written (MAP_SHARED) would be there on one node only; use MAP_PRIVATE, or read and write it",
        );
        return libc::MAP_FAILED;
    }
    if bytes == 0 {
        set_errno(libc::EINVAL);
        return libc::MAP_FAILED;
    }
    let room = bytes.next_multiple_of(PAGE_BYTES);
    let block = heap::allocate(PAGE_BYTES, room, true);
    if block.is_null() {
        return libc::MAP_FAILED;
    }
    if !is_anonymous && !read_in(block.cast(), bytes, file, offset) {
        // SAFETY: allocated above, and no other thread knows the address.
        unsafe { heap::free(block) };
        return libc::MAP_FAILED;
    }
    block
}

/// mmap64, which is the same as mmap.
///
/// # Safety
/// As of mmap(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mmap64(
    wanted: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(wanted, bytes, protection, flags, file, offset) }
}

const PAGE_BYTES: usize = 4096;

/// Reads a part of a file into new memory. Bytes beyond the file's end stay zero. Returns false and sets
/// `errno` if it cannot be read.
fn read_in(block: *mut u8, bytes: usize, file: c_int, offset: i64) -> bool {
    let mut done = 0;
    while done < bytes {
        // SAFETY: the place is inside the block, which is that long.
        let place = unsafe { block.add(done) };
        // SAFETY: `bytes - done` bytes are left there.
        let got = unsafe { libc::pread(file, place.cast(), bytes - done, offset + done as i64) };
        match got {
            0 => break,
            1.. => done += got as usize,
            _ if heap::errno() == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

/// munmap(2): frees memory from [`mmap`] when it is unmapped from its beginning; otherwise the memory stays.
///
/// # Safety
/// As of munmap(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn munmap(start: *mut c_void, bytes: usize) -> c_int {
    if !in_program() || !is_shared(start.addr()) {
        // SAFETY: the caller's.
        return unsafe { next!(fn munmap(*mut c_void, usize) -> c_int)(start, bytes) };
    }
    // A part that is unmapped by itself stays until the whole is unmapped.
    // SAFETY: the caller unmaps memory that it has mapped.
    if privately(|| unsafe { face::hiroba_block_bytes_if_any(start) }) >= bytes {
        // SAFETY: the caller's, and it is a block of this heap.
        unsafe { heap::free(start) };
    }
    0
}

/// mprotect(2): does nothing on shared memory, because the runtime controls access to it. A stack's guard is
/// an example.
///
/// # Safety
/// As of mprotect(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mprotect(start: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    if in_program() && is_shared(start.addr()) {
        if protection & libc::PROT_EXEC != 0 {
            return refuse(libc::ENOTSUP, "mprotect: code in shared memory would be there on one node only");
        }
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { next!(fn mprotect(*mut c_void, usize, c_int) -> c_int)(start, bytes, protection) }
}

/// sbrk(2): fails, because there is no such heap.
#[unsafe(no_mangle)]
extern "C-unwind" fn sbrk(by: isize) -> *mut c_void {
    if in_program() && by != 0 {
        set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    // SAFETY: any number may be passed.
    unsafe { next!(fn sbrk(isize) -> *mut c_void)(by) }
}
