//! System calls on shared memory.
//!
//! With a fault source that raises signals, a system call on an absent page fails with `EFAULT`, transfers
//! less, or loses a datagram. So this library replaces the C library's wrappers: if an argument lies in
//! shared memory, the call uses a bounce buffer ([`bounce`]), which other threads' actions on the page cannot
//! affect. Results, errors and `errno` are those of the call itself. In jobs that do not need this, every
//! function passes its call on after one load and one branch.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | how one call is shielded, from a description of its arguments |
//! | `table.rs` | the calls and their arguments, one per line |
//! | `vectors.rs` | calls on vectors of buffers and on messages |
//! | `special.rs` | calls whose arguments depend on each other: ioctl, fcntl, execve … |
//! | `bounce.rs` | the private memory |
//! | `mappings.rs`, `locking.rs` | calls that change how memory is mapped: carried out in another way, or refused |
//!
//! Calls that change how memory is mapped concern every job, whatever its fault source (`mappings.rs`,
//! `locking.rs`).
//!
//! Not shielded are calls that keep buffers beyond their return (`io_uring`, `aio_*`, `io_submit`,
//! `MSG_ZEROCOPY`), calls made by `syscall(2)` or by the program's own instructions, and mutexes and
//! semaphores of the C library in shared memory. `--fault-source event` needs none of this.
//!
//! The functions are cancellation points if the C library's are: they unwind.

mod bounce;
mod locking;
mod mappings;
mod special;
mod table;
mod vectors;

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use hiroba_node::Runtime;

pub(crate) use bounce::{Bounce, load, store};
pub(crate) use locking::{prepare_to_join, why_not_lockable};

use crate::reporting::set_errno;

/// The most that the kernel transfers in one call (`MAX_RW_COUNT` of <linux/fs.h>).
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// The longest string that calls accept, with its end: PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

/// The buffer length for transfers of regular files, so that a large transfer does not double its memory.
const CHUNK_BYTES: usize = 16 << 20;

/// The runtime while calls need shielding.
static SHIELDING: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());

/// Returns the runtime if calls on its memory need shielding.
#[inline(always)]
pub(crate) fn shielding() -> Option<&'static Runtime> {
    // SAFETY: null, or a runtime that lives as long as the process.
    unsafe { SHIELDING.load(Ordering::Relaxed).as_ref() }
}

/// Begins to shield calls, if the job needs it; called after joining.
pub(crate) fn shield(runtime: &'static Runtime) {
    if !runtime.shields_system_calls() {
        return;
    }
    // SAFETY: the function stays loaded until the process ends.
    unsafe { libc::pthread_atfork(None, None, Some(unshield_child)) };
    SHIELDING.store(ptr::from_ref(runtime).cast_mut(), Ordering::Release);
}

/// Ends shielding: shared memory no longer exists, and the kernel's own error is right.
pub(crate) fn unshield() {
    SHIELDING.store(ptr::null_mut(), Ordering::Release);
}

/// Ends shielding in a forked child, which has no shared memory.
unsafe extern "C" fn unshield_child() {
    unshield();
}

/// The kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// Not a pointer.
    Value,
    /// A C string of at most PATH_MAX bytes.
    Path,
    /// This many bytes, which the call may read and change.
    Bytes(usize),
    /// Elements of this many bytes, which the call may read and change; the `int` argument of the given index
    /// counts them.
    Elements(usize, usize),
    /// As many bytes as the `size_t` argument of the given index, which the call may read and change.
    Sized(usize),
    /// As many bytes as the `socklen_t` to which the argument of the given index points.
    SocketAddress(usize),
    /// A byte for each page of as many bytes as the argument of the given index.
    Pages(usize),
    /// A set of as many bits as the argument of the given index, in whole words.
    Bits(usize),
    /// A buffer that the call fills from its start, as far as its result says; the argument of the given
    /// index is its size.
    Filled(usize),
    /// The same, unless the flags, the argument after the size, contain MSG_TRUNC: then the result does not
    /// tell how much was filled.
    Received(usize),
    /// A buffer that the call only reads; the argument of the given index is its size.
    Read(usize),
    /// A signal mask to wait with, which must not block faults.
    Mask,
    /// Not a pointer: the offset in a file where the transfer begins.
    Offset,
}

/// The result by which a call reports a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returns {
    /// -1.
    Number,
    /// NULL.
    Pointer,
}

/// A function of the C library, and its address.
pub(crate) struct Call {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    arguments: &'static [Argument],
    returns: Returns,
}

impl Call {
    pub(crate) const fn new(name: &'static CStr, arguments: &'static [Argument], returns: Returns) -> Call {
        Call { name, address: AtomicPtr::new(ptr::null_mut()), arguments, returns }
    }

    /// Returns the address of the function in the next library. It is resolved when this library is loaded,
    /// or earlier if a call comes earlier.
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.resolve() } else { address }
    }

    #[cold]
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: looks a name up; the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let address = if address.is_null() { absent as *mut c_void } else { address };
        self.address.store(address, Ordering::Relaxed);
        address
    }

    /// Calls the function with these arguments.
    ///
    /// # Safety
    /// The arguments must be valid for the function, in number and meaning.
    #[inline(always)]
    pub(crate) unsafe fn call<const N: usize>(&self, a: [usize; N]) -> isize {
        // SAFETY: the caller's.
        unsafe { call_address(self.address(), &a) }
    }

    /// Calls the function with private memory instead of shared memory.
    ///
    /// # Safety
    /// The requirements are those of [`Call::call`].
    #[inline(never)]
    pub(crate) unsafe fn shielded(&self, runtime: &'static Runtime, arguments: &mut [usize]) -> isize {
        if !self.arguments.iter().zip(&*arguments).any(|(kind, value)| match kind {
            Argument::Value | Argument::Offset => false,
            Argument::Mask => *value != 0,
            _ => runtime.is_shared(*value, 1),
        }) {
            // SAFETY: the caller's.
            return unsafe { call_address(self.address(), arguments) };
        }
        if let Some((buffer, size)) = self.large_transfer(arguments) {
            // SAFETY: the caller's.
            return unsafe { self.in_chunks(runtime, arguments, buffer, size) };
        }
        // SAFETY: the caller's.
        unsafe { self.bounced(runtime, arguments) }
    }

    /// Returns the indices of buffer and size, if this is a transfer of more than a chunk from or to a
    /// regular file. Other transfers are not divided: a datagram is indivisible, and appending is atomic.
    fn large_transfer(&self, arguments: &[usize]) -> Option<(usize, usize)> {
        let large = |size: usize| arguments[size] > CHUNK_BYTES;
        let (buffer, size, reads) =
            self.arguments.iter().enumerate().find_map(|(index, kind)| match *kind {
                Argument::Filled(size) if large(size) => Some((index, size, true)),
                Argument::Read(size) if large(size) => Some((index, size, false)),
                _ => None,
            })?;
        let descriptor = *arguments.first().filter(|_| buffer == 1)? as c_int;
        is_regular(descriptor, reads).then_some((buffer, size))
    }

    /// # Safety
    /// The requirements are those of [`Call::call`].
    unsafe fn in_chunks(
        &self,
        runtime: &'static Runtime,
        given: &[usize],
        buffer: usize,
        size: usize,
    ) -> isize {
        let (total, mut done) = (given[size].min(TRANSFER_BYTES_MAX), 0);
        while done < total {
            let mut arguments = [0; ARGUMENTS_MAX];
            arguments[..given.len()].copy_from_slice(given);
            let chunk = CHUNK_BYTES.min(total - done);
            arguments[buffer] += done;
            arguments[size] = chunk;
            if let Some(place) = self.arguments.iter().position(|kind| *kind == Argument::Offset) {
                arguments[place] += done;
            }
            let before = errno();
            // SAFETY: the caller's; the chunk lies within the buffer.
            let result = unsafe { self.bounced(runtime, &mut arguments[..given.len()]) };
            if result <= 0 && done > 0 {
                set_errno(before);
                break;
            }
            if result <= 0 {
                return result;
            }
            done += result as usize;
            if (result as usize) < chunk {
                break;
            }
        }
        done as isize
    }

    /// # Safety
    /// The requirements are those of [`Call::call`].
    unsafe fn bounced(&self, runtime: &'static Runtime, arguments: &mut [usize]) -> isize {
        let mut bounce = Bounce::new(runtime);
        let mut filled = None;
        let given: [usize; ARGUMENTS_MAX] =
            std::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
        for (index, kind) in self.arguments.iter().enumerate() {
            match replace(&mut bounce, *kind, index, &given, arguments) {
                Some(Replaced::Buffer) => filled = Some((given[index], arguments[index])),
                Some(Replaced::Argument) => {}
                None => return self.fail(libc::ENOMEM),
            }
        }
        // SAFETY: the caller's; the private memory is as long as the memory it replaces.
        let result = unsafe { call_address(self.address(), arguments) };
        let errno = errno();
        if let Some((shared, private)) = filled
            && result > 0
        {
            // The result may be longer than the buffer: the true length of a datagram.
            let size = self.filled_size(arguments);
            store(shared, private as *const u8, size.min(result as usize));
        }
        bounce.write_back();
        set_errno(errno);
        self.pointer_back(result, &given, arguments)
    }

    /// Translates the result of calls that return the buffer that they were given, so that they do not return
    /// the private one.
    fn pointer_back(&self, result: isize, given: &[usize], arguments: &[usize]) -> isize {
        if self.returns == Returns::Pointer {
            let same = arguments.iter().position(|argument| *argument as isize == result);
            if let Some(index) = same.filter(|_| result != 0) {
                return given[index] as isize;
            }
        }
        result
    }

    fn filled_size(&self, arguments: &[usize]) -> usize {
        let size = self.arguments.iter().find_map(|kind| match kind {
            Argument::Filled(size) | Argument::Received(size) => Some(arguments[*size]),
            _ => None,
        });
        size.unwrap_or(0)
    }

    pub(crate) fn fail(&self, errno: c_int) -> isize {
        set_errno(errno);
        if self.returns == Returns::Pointer { 0 } else { -1 }
    }
}

/// The maximum number of arguments of a shielded function.
const ARGUMENTS_MAX: usize = 7;

enum Replaced {
    /// Or unchanged.
    Argument,
    Buffer,
}

/// Replaces a shared argument by private memory; `None` if there is no memory.
fn replace(
    bounce: &mut Bounce,
    kind: Argument,
    index: usize,
    given: &[usize; ARGUMENTS_MAX],
    arguments: &mut [usize],
) -> Option<Replaced> {
    let address = given[index];
    let bytes = match kind {
        Argument::Value | Argument::Offset => return Some(Replaced::Argument),
        Argument::Mask => return mask_without_faults(bounce, address, &mut arguments[index]),
        Argument::Path => 1,
        Argument::Bytes(bytes) => bytes,
        Argument::Elements(count, bytes) => usize::try_from(given[count] as c_int).unwrap_or(0) * bytes,
        Argument::Sized(size) => given[size],
        Argument::SocketAddress(length) => socket_length(bounce, given[length]),
        Argument::Pages(bytes) => given[bytes].div_ceil(page_bytes()),
        Argument::Bits(count) => usize::try_from(given[count] as c_int).unwrap_or(0).div_ceil(64) * 8,
        Argument::Filled(size) | Argument::Received(size) => {
            bounce.allocated_prefix(address, given[size].min(TRANSFER_BYTES_MAX))
        }
        Argument::Read(size) => given[size].min(TRANSFER_BYTES_MAX),
    };
    if address == 0 || !bounce.must_shield(address, bytes) {
        return Some(Replaced::Argument);
    }
    let piece = match kind {
        // Without a copy the string is too long, or reaches memory that is not allocated: the kernel reports
        // it.
        Argument::Path => bounce.string(address, PATH_BYTES_MAX).unwrap_or(address as *mut u8),
        Argument::Received(size) if given[size + 1] as c_int & libc::MSG_TRUNC != 0 => {
            arguments[size] = bytes;
            bounce.exchange(address, bytes)?
        }
        Argument::Filled(size) | Argument::Received(size) => {
            arguments[size] = bytes;
            let piece = bounce.piece(address, bytes)?;
            arguments[index] = piece.addr();
            return Some(Replaced::Buffer);
        }
        Argument::Read(size) => {
            arguments[size] = bytes;
            bounce.copy(address, bytes)?
        }
        _ => bounce.exchange(address, bytes)?,
    };
    arguments[index] = piece.addr();
    Some(Replaced::Argument)
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no memory operands.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

fn mask_without_faults(bounce: &mut Bounce, address: usize, argument: &mut usize) -> Option<Replaced> {
    let bytes = size_of::<u64>();
    if address == 0 || bounce.allocated_prefix(address, bytes) < bytes {
        return Some(Replaced::Argument);
    }
    // The C library reads a whole sigset_t, whose first word is the kernel's.
    let piece = bounce.piece(address, size_of::<libc::sigset_t>())?;
    load(piece, address, bytes);
    // SAFETY: the piece has room for a sigset_t, and is aligned to 8 like the program's set.
    let mask = unsafe { &mut *piece.cast::<u64>() };
    *mask &= !hiroba_node::program_signals::fault_signals();
    *argument = piece.addr();
    Some(Replaced::Argument)
}

/// Returns the value of a `socklen_t` that the program points to.
fn socket_length(bounce: &Bounce, address: usize) -> usize {
    if address == 0 || bounce.allocated_prefix(address, 4) < 4 {
        return 0;
    }
    // SAFETY: the program passes a pointer to a socklen_t; if it is shared, it is allocated, and faults are
    // served.
    unsafe { (address as *const u32).read_unaligned() as usize }
}

/// Replaces a function that this C library does not have.
unsafe extern "C-unwind" fn absent() -> isize {
    set_errno(libc::ENOSYS);
    -1
}

/// # Safety
/// `function` must take these arguments.
#[inline(always)]
pub(crate) unsafe fn call_address(function: *mut c_void, a: &[usize]) -> isize {
    macro_rules! with {
        ($($index:literal)*) => {{
            type Function = unsafe extern "C-unwind" fn($(with!(@type $index)),*) -> isize;
            // SAFETY: the caller passes a function of this many arguments, each of which fits a register.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function) };
            // SAFETY: the arguments are the caller's.
            unsafe { function($(a[$index]),*) }
        }};
        (@type $index:literal) => { usize };
    }
    match a.len() {
        0 => with!(),
        1 => with!(0),
        2 => with!(0 1),
        3 => with!(0 1 2),
        4 => with!(0 1 2 3),
        5 => with!(0 1 2 3 4),
        6 => with!(0 1 2 3 4 5),
        _ => with!(0 1 2 3 4 5 6),
    }
}

/// Touches every page of a range of shared memory for writing, so that the kernel finds it. Only for calls
/// that cannot be shielded, since another thread may lose the page again.
pub(crate) fn touch(runtime: &'static Runtime, address: usize, bytes: usize) {
    const PAGE_BYTES: usize = 4096;
    if bytes == 0 || !runtime.is_shared(address, bytes) {
        return;
    }
    let last = address.saturating_add(bytes - 1);
    let mut byte = address;
    while byte <= last {
        if runtime.is_allocated(byte, 1) {
            // SAFETY: the byte is allocated, and faults on it are served.
            let byte = unsafe { AtomicU8::from_ptr(byte as *mut u8) };
            // Storing the current value requires write access and changes nothing. Adding zero would be
            // compiled to a load.
            let mut value = byte.load(Ordering::Relaxed);
            while let Err(now) = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed) {
                value = now;
            }
        }
        byte = (byte | (PAGE_BYTES - 1)) + 1;
    }
}

/// Returns true if a descriptor is a regular file that may be transferred in pieces.
fn is_regular(descriptor: c_int, reads: bool) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    let before = errno();
    // SAFETY: the call fills in a local.
    let known = unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } == 0;
    // SAFETY: fcntl with F_GETFL has no memory operands.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    set_errno(before);
    // SAFETY: fstat succeeded, so it has filled the status in.
    let is_file = || unsafe { status.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFREG;
    known && is_file() && (reads || flags & libc::O_APPEND == 0)
}

pub(crate) fn errno() -> c_int {
    // SAFETY: __errno_location has no preconditions.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it points to the calling thread's errno.
    unsafe { *location }
}

/// Looks up the functions that this module replaces.
pub(crate) fn resolve_all() {
    let here = [table::ALL, vectors::ALL, special::ALL, mappings::ALL, locking::ALL];
    for call in here.into_iter().flatten() {
        call.resolve();
    }
}
