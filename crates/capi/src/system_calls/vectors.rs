//! Calls on vectors of buffers, and on messages, whose headers contain pointers.

use std::ffi::c_int;
use std::mem::offset_of;

use hiroba_node::Runtime;

use super::{Bounce, Call, Returns, call_address, errno, load, shielding, store};
use crate::reporting::set_errno;

/// The longest vector that the kernel accepts: UIO_MAXIOV.
const VECTOR_MAX: usize = 1024;

const ENTRY: usize = size_of::<libc::iovec>();
const HEADER: usize = size_of::<libc::msghdr>();

/// Whether a call fills the buffers or reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Fills,
    Reads,
}

/// A vector of private buffers that replaces the program's.
struct Vector {
    /// The program's vector.
    given: *const libc::iovec,
    /// The vector for the call.
    private: *mut libc::iovec,
    count: usize,
}

/// The reason why there is no private vector.
enum NoVector {
    /// None of it is shared, or the kernel will refuse it.
    NotNeeded,
    NoMemory,
}

fn entry(vector: *const libc::iovec, index: usize) -> libc::iovec {
    // SAFETY: the vector is a private copy that is longer than `index`.
    let place = unsafe { vector.add(index) };
    // SAFETY: as above.
    unsafe { place.read() }
}

impl Vector {
    fn new(
        bounce: &mut Bounce,
        runtime: &Runtime,
        address: usize,
        count: usize,
        direction: Direction,
    ) -> Result<Vector, NoVector> {
        let bytes = count.saturating_mul(ENTRY);
        if count == 0 || count > VECTOR_MAX || bounce.allocated_prefix(address, bytes) < bytes {
            return Err(NoVector::NotNeeded);
        }
        let copies = (bounce.copy(address, bytes), bounce.copy(address, bytes));
        let (Some(given), Some(private)) = copies else { return Err(NoVector::NoMemory) };
        let mut vector = Vector { given: given.cast(), private: private.cast(), count };
        let buffers = (0..count).map(|index| entry(vector.given, index));
        let shared = buffers.filter(|buffer| runtime.is_shared(buffer.iov_base.addr(), buffer.iov_len));
        let (pieces, bytes) = shared
            .fold((0, 0_usize), |(pieces, bytes), buffer| (pieces + 1, bytes.saturating_add(buffer.iov_len)));
        if pieces == 0 && !runtime.is_shared(address, 1) {
            return Err(NoVector::NotNeeded);
        }
        if bytes > super::TRANSFER_BYTES_MAX {
            // The kernel transfers no more at once, so the rest is not examined.
            vector.count = vector.transferable();
        }
        bounce.reserve(pieces, bytes.min(super::TRANSFER_BYTES_MAX)).ok_or(NoVector::NoMemory)?;
        for index in 0..vector.count {
            if !vector.replace(bounce, index, direction)? {
                vector.count = index + 1;
            }
        }
        Ok(vector)
    }

    /// Makes a vector whose buffers belong to another process: only the vector itself may be shared.
    fn of_another(
        bounce: &mut Bounce,
        runtime: &Runtime,
        address: usize,
        count: usize,
    ) -> Result<Vector, NoVector> {
        let bytes = count.saturating_mul(ENTRY);
        if count == 0 || count > VECTOR_MAX || !runtime.is_shared(address, bytes) {
            return Err(NoVector::NotNeeded);
        }
        if bounce.allocated_prefix(address, bytes) < bytes {
            return Err(NoVector::NotNeeded);
        }
        let private = bounce.copy(address, bytes).ok_or(NoVector::NoMemory)?.cast();
        Ok(Vector { given: private, private, count })
    }

    /// Returns how many buffers, at least one, fit into what the kernel transfers at once.
    fn transferable(&self) -> usize {
        let mut bytes = 0_usize;
        let fits = |index: &usize| {
            bytes = bytes.saturating_add(entry(self.given, *index).iov_len);
            bytes <= super::TRANSFER_BYTES_MAX
        };
        (0..self.count).take_while(fits).count().max(1)
    }

    /// Replaces a shared buffer by a private one. Returns false if the transfer ends with it.
    fn replace(&mut self, bounce: &mut Bounce, index: usize, direction: Direction) -> Result<bool, NoVector> {
        let buffer = entry(self.given, index);
        let address = buffer.iov_base.addr();
        let wanted = buffer.iov_len.min(super::TRANSFER_BYTES_MAX);
        let bytes =
            if direction == Direction::Fills { bounce.allocated_prefix(address, wanted) } else { wanted };
        if bounce.must_shield(address, bytes) {
            let piece = match direction {
                Direction::Fills => bounce.piece(address, bytes),
                Direction::Reads => bounce.copy(address, bytes),
            };
            let piece = piece.ok_or(NoVector::NoMemory)?;
            let replaced = libc::iovec { iov_base: piece.cast(), iov_len: bytes };
            // SAFETY: the vector is a private copy that is longer than `index`.
            let place = unsafe { self.private.add(index) };
            // SAFETY: as above.
            unsafe { place.write(replaced) };
        }
        Ok(bytes == buffer.iov_len)
    }

    /// Copies the program's bytes to the buffers that the call will fill.
    fn preload(&self) {
        self.each(usize::MAX, load);
    }

    /// Writes back what the call has filled.
    fn scatter(&self, transferred: usize) {
        self.each(transferred, |private, shared, bytes| store(shared, private, bytes));
    }

    fn each(&self, transferred: usize, copy: impl Fn(*mut u8, usize, usize)) {
        let mut left = transferred;
        for index in 0..self.count {
            let (given, private) = (entry(self.given, index), entry(self.private, index));
            let bytes = private.iov_len.min(left);
            if given.iov_base != private.iov_base {
                copy(private.iov_base.cast(), given.iov_base.addr(), bytes);
            }
            left -= bytes;
        }
    }
}

/// Makes a call whose second argument is a vector and whose third counts its buffers.
///
/// # Safety
/// The arguments must be what the function takes.
#[inline(never)]
unsafe fn on_vector(
    call: &Call,
    runtime: &'static Runtime,
    direction: Direction,
    arguments: &mut [usize],
) -> isize {
    // SAFETY: the caller's.
    unsafe { on_vector_with(Bounce::new(runtime), call, runtime, direction, arguments) }
}

/// # Safety
/// The requirements are those of [`on_vector`].
unsafe fn on_vector_with(
    mut bounce: Bounce,
    call: &Call,
    runtime: &'static Runtime,
    direction: Direction,
    arguments: &mut [usize],
) -> isize {
    let count = usize::try_from(arguments[2] as c_int).unwrap_or(0);
    let vector = match Vector::new(&mut bounce, runtime, arguments[1], count, direction) {
        Ok(vector) => vector,
        // SAFETY: the caller's.
        Err(NoVector::NotNeeded) => return unsafe { call_address(call.address(), arguments) },
        Err(NoVector::NoMemory) => return call.fail(libc::ENOMEM),
    };
    arguments[1] = vector.private.addr();
    arguments[2] = vector.count;
    // SAFETY: the caller's; the private buffers are as long as those they replace.
    let result = unsafe { call_address(call.address(), arguments) };
    if direction == Direction::Fills && result > 0 {
        let errno = errno();
        vector.scatter(result as usize);
        set_errno(errno);
    }
    result
}

/// Defines functions on vectors, and `VECTOR_CALLS` of their [`Call`]s.
macro_rules! on_vectors {
    ($($name:ident($($argument:ident),*) $direction:ident;)*) => {
        #[allow(non_upper_case_globals)]
        mod vector_calls {
            use super::*;
            $(pub(super) static $name: Call = Call::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name holds no zero byte"),
                },
                &[],
                Returns::Number,
            );)*
        }
        pub(super) static ALL: &[&Call] = &[
            $(&vector_calls::$name,)* &PROCESS_VM_READV, &PROCESS_VM_WRITEV, &VMSPLICE, &SENDMSG, &RECVMSG, &SENDMMSG, &RECVMMSG,
        ];
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: usize),*) -> isize {
                let call = &vector_calls::$name;
                match shielding() {
                    // SAFETY: the caller's: these are the arguments of the C library's function.
                    None => unsafe { call.call([$($argument),*]) },
                    // SAFETY: as above.
                    Some(runtime) => unsafe {
                        on_vector(call, runtime, Direction::$direction, &mut [$($argument),*])
                    },
                }
            }
        )*
    };
}

on_vectors! {
    readv(fd, vector, count) Fills;
    preadv(fd, vector, count, offset) Fills;
    preadv64(fd, vector, count, offset) Fills;
    preadv2(fd, vector, count, offset, flags) Fills;
    preadv64v2(fd, vector, count, offset, flags) Fills;
    writev(fd, vector, count) Reads;
    pwritev(fd, vector, count, offset) Reads;
    pwritev64(fd, vector, count, offset) Reads;
    pwritev2(fd, vector, count, offset, flags) Reads;
    pwritev64v2(fd, vector, count, offset, flags) Reads;
}

static PROCESS_VM_READV: Call = Call::new(c"process_vm_readv", &[], Returns::Number);
static PROCESS_VM_WRITEV: Call = Call::new(c"process_vm_writev", &[], Returns::Number);

/// process_vm_readv(2), process_vm_writev(2): two vectors, of which the second belongs to another process, or
/// to this one.
///
/// # Safety
/// The arguments must be what the function takes.
#[inline(never)]
unsafe fn between_processes(
    call: &Call,
    runtime: &'static Runtime,
    direction: Direction,
    mut a: [usize; 6],
) -> isize {
    let remotely = match direction {
        Direction::Fills => Direction::Reads,
        Direction::Reads => Direction::Fills,
    };
    let mut bounce = Bounce::new(runtime);
    let mut vectors = [None, None];
    let is_own = is_own_process(a[0] as libc::pid_t);
    for (index, direction) in [(1, direction), (3, remotely)] {
        let (address, count) = (a[index], a[index + 1]);
        let vector = if index == 1 || is_own {
            Vector::new(&mut bounce, runtime, address, count, direction)
        } else {
            Vector::of_another(&mut bounce, runtime, address, count)
        };
        match vector {
            Ok(vector) => {
                (a[index], a[index + 1]) = (vector.private.addr(), vector.count);
                vectors[index / 2] = Some((vector, direction));
            }
            Err(NoVector::NotNeeded) => {}
            Err(NoVector::NoMemory) => return call.fail(libc::ENOMEM),
        }
    }
    // SAFETY: the caller's; the private buffers are as long as those they replace.
    let result = unsafe { call.call(a) };
    let errno = errno();
    for (vector, direction) in vectors.into_iter().flatten() {
        if direction == Direction::Fills && result > 0 {
            vector.scatter(result as usize);
        }
    }
    set_errno(errno);
    result
}

/// Returns true if the process or thread belongs to this process.
fn is_own_process(id: libc::pid_t) -> bool {
    // SAFETY: getpid has no memory operands.
    let own = unsafe { libc::getpid() };
    let before = errno();
    // SAFETY: signal 0 is not delivered; the kernel only checks whether the thread belongs to this process.
    let is_own = id == own || id > 0 && unsafe { libc::syscall(libc::SYS_tgkill, own, id, 0) } == 0;
    set_errno(before);
    is_own
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn process_vm_readv(
    process: usize,
    vector: usize,
    count: usize,
    remote: usize,
    remote_count: usize,
    flags: usize,
) -> isize {
    let arguments = [process, vector, count, remote, remote_count, flags];
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { PROCESS_VM_READV.call(arguments) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            between_processes(&PROCESS_VM_READV, runtime, Direction::Fills, arguments)
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn process_vm_writev(
    process: usize,
    vector: usize,
    count: usize,
    remote: usize,
    remote_count: usize,
    flags: usize,
) -> isize {
    let arguments = [process, vector, count, remote, remote_count, flags];
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { PROCESS_VM_WRITEV.call(arguments) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe {
            between_processes(&PROCESS_VM_WRITEV, runtime, Direction::Reads, arguments)
        },
    }
}

static VMSPLICE: Call = Call::new(c"vmsplice", &[], Returns::Number);

/// A pipe that is written to keeps the pages themselves, so it gets copies that nothing else uses.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vmsplice(fd: usize, vector: usize, count: usize, flags: usize) -> isize {
    let Some(runtime) = shielding() else {
        // SAFETY: the caller's.
        return unsafe { VMSPLICE.call([fd, vector, count, flags]) };
    };
    let before = errno();
    // SAFETY: fcntl with F_GETFL has no memory operands.
    let mode = unsafe { libc::fcntl(fd as c_int, libc::F_GETFL) } & libc::O_ACCMODE;
    set_errno(before);
    let direction = if mode == libc::O_RDONLY { Direction::Fills } else { Direction::Reads };
    let bounce = Bounce::for_one_call(runtime);
    // SAFETY: the caller's.
    unsafe { on_vector_with(bounce, &VMSPLICE, runtime, direction, &mut [fd, vector, count, flags]) }
}

static SENDMSG: Call = Call::new(c"sendmsg", &[], Returns::Number);
static RECVMSG: Call = Call::new(c"recvmsg", &[], Returns::Number);
static SENDMMSG: Call = Call::new(c"sendmmsg", &[], Returns::Number);
static RECVMMSG: Call = Call::new(c"recvmmsg", &[], Returns::Number);

/// sendmsg(2), recvmsg(2).
///
/// # Safety
/// The arguments must be what the function takes.
#[inline(never)]
unsafe fn on_message(
    call: &Call,
    runtime: &'static Runtime,
    direction: Direction,
    [fd, address, flags]: [usize; 3],
) -> isize {
    let mut bounce = Bounce::new(runtime);
    if bounce.allocated_prefix(address, HEADER) < HEADER || address == 0 {
        // SAFETY: the caller's; the kernel refuses it.
        return unsafe { call.call([fd, address, flags]) };
    }
    // SAFETY: the program passes a header; if it is shared, it is allocated, and faults are served.
    let mut header = unsafe { (address as *const libc::msghdr).read() };
    let parts_shared = [
        (address, HEADER),
        (header.msg_name.addr(), header.msg_namelen as usize),
        (header.msg_control.addr(), header.msg_controllen),
    ]
    .iter()
    .any(|(start, bytes)| *bytes > 0 && runtime.is_shared(*start, *bytes));
    let count = header.msg_iovlen;
    let vector = match Vector::new(&mut bounce, runtime, header.msg_iov.addr(), count, direction) {
        Ok(vector) => Some(vector),
        Err(NoVector::NotNeeded) if parts_shared => None,
        // SAFETY: the caller's.
        Err(NoVector::NotNeeded) => return unsafe { call.call([fd, address, flags]) },
        Err(NoVector::NoMemory) => return call.fail(libc::ENOMEM),
    };
    if let Some(vector) = &vector {
        header.msg_iov = vector.private;
        header.msg_iovlen = vector.count;
        if direction == Direction::Fills && flags as c_int & libc::MSG_TRUNC != 0 {
            vector.preload();
        }
    }
    let exchanged = exchange_parts(&mut bounce, &mut header);
    let Some(private) = exchanged.and_then(|()| bounce.piece(address, HEADER)) else {
        return call.fail(libc::ENOMEM);
    };
    // SAFETY: the piece has room for a header, and is aligned like the program's.
    unsafe { private.cast::<libc::msghdr>().write_unaligned(header) };
    // SAFETY: the caller's; the private memory is as long as the memory it replaces.
    let result = unsafe { call.call([fd, private.addr(), flags]) };
    if direction == Direction::Fills && result >= 0 {
        let errno = errno();
        if let Some(vector) = vector {
            vector.scatter(result as usize);
        }
        bounce.write_back();
        return_header(address, private);
        set_errno(errno);
    }
    result
}

/// Makes private memory for a message's address and ancillary data.
fn exchange_parts(bounce: &mut Bounce, header: &mut libc::msghdr) -> Option<()> {
    let (name, control) = (header.msg_name.addr(), header.msg_control.addr());
    if bounce.must_shield(name, header.msg_namelen as usize) {
        header.msg_name = bounce.exchange(name, header.msg_namelen as usize)?.cast();
    }
    if bounce.must_shield(control, header.msg_controllen) {
        header.msg_control = bounce.exchange(control, header.msg_controllen)?.cast();
    }
    Some(())
}

/// Writes back what recvmsg(2) has stored in the header.
fn return_header(given: usize, private: *const u8) {
    let fields = [
        (offset_of!(libc::msghdr, msg_namelen), 4),
        (offset_of!(libc::msghdr, msg_controllen), size_of::<usize>()),
        (offset_of!(libc::msghdr, msg_flags), 4),
    ];
    for (offset, bytes) in fields {
        // SAFETY: the private header is complete.
        store(given + offset, unsafe { private.add(offset) }, bytes);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: usize, message: usize, flags: usize) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { SENDMSG.call([fd, message, flags]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe { on_message(&SENDMSG, runtime, Direction::Reads, [fd, message, flags]) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: usize, message: usize, flags: usize) -> isize {
    match shielding() {
        // SAFETY: the caller's.
        None => unsafe { RECVMSG.call([fd, message, flags]) },
        // SAFETY: the caller's.
        Some(runtime) => unsafe { on_message(&RECVMSG, runtime, Direction::Fills, [fd, message, flags]) },
    }
}

const MESSAGE: usize = size_of::<libc::mmsghdr>();

/// Returns true if any part of the messages is shared.
fn any_shared(runtime: &'static Runtime, messages: usize, count: usize) -> bool {
    let bounce = Bounce::new(runtime);
    if runtime.is_shared(messages, count * MESSAGE) {
        return bounce.allocated_prefix(messages, count * MESSAGE) == count * MESSAGE;
    }
    (0..count).any(|index| {
        let address = messages + index * MESSAGE;
        // SAFETY: the program passes this many messages, in private memory.
        let header = unsafe { (address as *const libc::msghdr).read() };
        let shared = |start: usize, bytes: usize| bytes > 0 && runtime.is_shared(start, bytes);
        let (vector, entries) = (header.msg_iov, header.msg_iovlen);
        shared(header.msg_name.addr(), header.msg_namelen as usize)
            || shared(header.msg_control.addr(), header.msg_controllen)
            || shared(vector.addr(), entries * ENTRY)
            || (0..entries.min(VECTOR_MAX)).any(|at| {
                let buffer = entry(vector, at);
                shared(buffer.iov_base.addr(), buffer.iov_len)
            })
    })
}

fn set_length(message: usize, length: isize) {
    let length = length as u32;
    store(message + offset_of!(libc::mmsghdr, msg_len), (&raw const length).cast(), size_of::<u32>());
}

/// Sends messages one by one, as the kernel does, and stops at the first that fails.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(fd: usize, messages: usize, count: usize, flags: usize) -> isize {
    let bounded = usize::try_from(count as c_int).unwrap_or(0).min(VECTOR_MAX);
    let Some(runtime) = shielding().filter(|runtime| any_shared(runtime, messages, bounded)) else {
        // SAFETY: the caller's.
        return unsafe { SENDMMSG.call([fd, messages, count, flags]) };
    };
    let before = errno();
    for index in 0..bounded {
        let message = messages + index * MESSAGE;
        // SAFETY: the caller's; a message begins with its header.
        let result = unsafe { on_message(&SENDMSG, runtime, Direction::Reads, [fd, message, flags]) };
        if result < 0 && index > 0 {
            set_errno(before);
            return index as isize;
        }
        if result < 0 {
            return -1;
        }
        set_length(message, result);
    }
    bounded as isize
}

/// Receives messages one by one, as the kernel does: checks the timeout after each, and with MSG_WAITFORONE
/// waits only for the first.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: usize,
    messages: usize,
    count: usize,
    flags: usize,
    timeout: usize,
) -> isize {
    let bounded = usize::try_from(count as c_int).unwrap_or(0).min(VECTOR_MAX);
    let needed = |runtime: &&'static Runtime| {
        any_shared(runtime, messages, bounded) || timeout != 0 && runtime.is_shared(timeout, 16)
    };
    let Some(runtime) = shielding().filter(needed) else {
        // SAFETY: the caller's.
        return unsafe { RECVMMSG.call([fd, messages, count, flags, timeout]) };
    };
    let began = std::time::Instant::now();
    // SAFETY: the program passes NULL or a timeout; if it is shared, it is allocated, and faults are served.
    let limit = unsafe { (timeout as *const libc::timespec).as_ref() }.copied().map(duration);
    let before = errno();
    let mut flags = flags as c_int;
    for index in 0..bounded {
        let message = messages + index * MESSAGE;
        let arguments = [fd, message, (flags & !libc::MSG_WAITFORONE) as usize];
        // SAFETY: the caller's; a message begins with its header.
        let result = unsafe { on_message(&RECVMSG, runtime, Direction::Fills, arguments) };
        if result < 0 && index > 0 {
            set_errno(before);
            return index as isize;
        }
        if result < 0 {
            return -1;
        }
        set_length(message, result);
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if let Some(limit) = limit {
            let left = limit.saturating_sub(began.elapsed());
            let told = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            store(timeout, (&raw const told).cast(), size_of::<libc::timespec>());
            if left.is_zero() {
                return index as isize + 1;
            }
        }
    }
    bounded as isize
}

fn duration(time: libc::timespec) -> std::time::Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    std::time::Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
