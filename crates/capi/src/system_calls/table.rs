//! The calls and the kinds of their arguments.
//!
//! A line describes everything that shielding needs to know ([`Argument`]); sizes of structures are those of
//! the 64-bit kernel interface. To add a call, add its line.

use Argument::{
    Bits, Bytes, Elements, Filled, Mask, Offset, Pages, Path, Read, Received, Sized, SocketAddress, Value,
};

use super::{Argument, Call, Returns, shielding};

const STAT: usize = size_of::<libc::stat64>();
const STATX: usize = size_of::<libc::statx>();
const STATFS: usize = size_of::<libc::statfs64>();
const STATVFS: usize = size_of::<libc::statvfs64>();
const TIMESPEC: usize = size_of::<libc::timespec>();
const TIMEVAL: usize = size_of::<libc::timeval>();
const SIGNAL_SET: usize = size_of::<libc::sigset_t>();
const POLL: usize = size_of::<libc::pollfd>();
const EPOLL: usize = size_of::<libc::epoll_event>();
const RUSAGE: usize = size_of::<libc::rusage>();
const RLIMIT: usize = size_of::<libc::rlimit64>();

/// Defines the functions, and `ALL` of their [`Call`]s.
macro_rules! shielded {
    ($($name:ident($($argument:ident: $kind:expr),*) -> $returns:ident;)*) => {
        #[allow(non_upper_case_globals)]
        mod calls {
            use super::*;
            $(pub(super) static $name: Call = Call::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name holds no zero byte"),
                },
                &[$($kind),*],
                Returns::$returns,
            );)*
        }
        pub(super) static ALL: &[&Call] = &[$(&calls::$name),*];
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: usize),*) -> isize {
                match shielding() {
                    // SAFETY: the caller's: these are the arguments of the C library's function.
                    None => unsafe { calls::$name.call([$($argument),*]) },
                    // SAFETY: as above.
                    Some(runtime) => unsafe { calls::$name.shielded(runtime, &mut [$($argument),*]) },
                }
            }
        )*
    };
}

shielded! {
    // Transfers.
    read(fd: Value, buffer: Filled(2), size: Value) -> Number;
    __read(fd: Value, buffer: Filled(2), size: Value) -> Number;
    write(fd: Value, buffer: Read(2), size: Value) -> Number;
    __write(fd: Value, buffer: Read(2), size: Value) -> Number;
    pread(fd: Value, buffer: Filled(2), size: Value, offset: Offset) -> Number;
    pread64(fd: Value, buffer: Filled(2), size: Value, offset: Offset) -> Number;
    __pread64(fd: Value, buffer: Filled(2), size: Value, offset: Offset) -> Number;
    pwrite(fd: Value, buffer: Read(2), size: Value, offset: Offset) -> Number;
    pwrite64(fd: Value, buffer: Read(2), size: Value, offset: Offset) -> Number;
    __pwrite64(fd: Value, buffer: Read(2), size: Value, offset: Offset) -> Number;
    __read_chk(fd: Value, buffer: Filled(2), size: Value, room: Value) -> Number;
    __pread_chk(fd: Value, buffer: Filled(2), size: Value, offset: Offset, room: Value) -> Number;
    __pread64_chk(fd: Value, buffer: Filled(2), size: Value, offset: Offset, room: Value) -> Number;
    recv(fd: Value, buffer: Received(2), size: Value, flags: Value) -> Number;
    __recv_chk(fd: Value, buffer: Filled(2), size: Value, room: Value, flags: Value) -> Number;
    recvfrom(fd: Value, buffer: Received(2), size: Value, flags: Value, address: SocketAddress(5), length: Bytes(4)) -> Number;
    __recvfrom_chk(fd: Value, buffer: Filled(2), size: Value, room: Value, flags: Value, address: SocketAddress(6), length: Bytes(4)) -> Number;
    send(fd: Value, buffer: Read(2), size: Value, flags: Value) -> Number;
    sendto(fd: Value, buffer: Read(2), size: Value, flags: Value, address: Sized(5), length: Value) -> Number;
    getrandom(buffer: Filled(1), size: Value, flags: Value) -> Number;
    getentropy(buffer: Sized(1), size: Value) -> Number;
    getdents64(fd: Value, buffer: Filled(2), size: Value) -> Number;
    sendfile(out: Value, from: Value, offset: Bytes(8), count: Value) -> Number;
    sendfile64(out: Value, from: Value, offset: Bytes(8), count: Value) -> Number;
    copy_file_range(from: Value, from_offset: Bytes(8), to: Value, to_offset: Bytes(8), count: Value, flags: Value) -> Number;
    splice(from: Value, from_offset: Bytes(8), to: Value, to_offset: Bytes(8), count: Value, flags: Value) -> Number;
    eventfd_read(fd: Value, value: Bytes(8)) -> Number;

    // Files by name.
    open(path: Path, flags: Value, mode: Value) -> Number;
    open64(path: Path, flags: Value, mode: Value) -> Number;
    __open_2(path: Path, flags: Value) -> Number;
    __open64_2(path: Path, flags: Value) -> Number;
    openat(fd: Value, path: Path, flags: Value, mode: Value) -> Number;
    openat64(fd: Value, path: Path, flags: Value, mode: Value) -> Number;
    __openat_2(fd: Value, path: Path, flags: Value) -> Number;
    __openat64_2(fd: Value, path: Path, flags: Value) -> Number;
    creat(path: Path, mode: Value) -> Number;
    creat64(path: Path, mode: Value) -> Number;
    fopen(path: Path, mode: Path) -> Pointer;
    fopen64(path: Path, mode: Path) -> Pointer;
    freopen(path: Path, mode: Path, stream: Value) -> Pointer;
    freopen64(path: Path, mode: Path, stream: Value) -> Pointer;
    opendir(path: Path) -> Pointer;
    unlink(path: Path) -> Number;
    unlinkat(fd: Value, path: Path, flags: Value) -> Number;
    remove(path: Path) -> Number;
    rmdir(path: Path) -> Number;
    mkdir(path: Path, mode: Value) -> Number;
    mkdirat(fd: Value, path: Path, mode: Value) -> Number;
    mkfifo(path: Path, mode: Value) -> Number;
    mknod(path: Path, mode: Value, device: Value) -> Number;
    rename(from: Path, to: Path) -> Number;
    renameat(from_fd: Value, from: Path, to_fd: Value, to: Path) -> Number;
    renameat2(from_fd: Value, from: Path, to_fd: Value, to: Path, flags: Value) -> Number;
    link(from: Path, to: Path) -> Number;
    linkat(from_fd: Value, from: Path, to_fd: Value, to: Path, flags: Value) -> Number;
    symlink(from: Path, to: Path) -> Number;
    symlinkat(from: Path, fd: Value, to: Path) -> Number;
    chdir(path: Path) -> Number;
    chroot(path: Path) -> Number;
    chmod(path: Path, mode: Value) -> Number;
    fchmodat(fd: Value, path: Path, mode: Value, flags: Value) -> Number;
    chown(path: Path, user: Value, group: Value) -> Number;
    lchown(path: Path, user: Value, group: Value) -> Number;
    fchownat(fd: Value, path: Path, user: Value, group: Value, flags: Value) -> Number;
    access(path: Path, mode: Value) -> Number;
    faccessat(fd: Value, path: Path, mode: Value, flags: Value) -> Number;
    euidaccess(path: Path, mode: Value) -> Number;
    truncate(path: Path, length: Value) -> Number;
    truncate64(path: Path, length: Value) -> Number;
    utime(path: Path, times: Bytes(16)) -> Number;
    utimes(path: Path, times: Bytes(2 * TIMEVAL)) -> Number;
    utimensat(fd: Value, path: Path, times: Bytes(2 * TIMESPEC), flags: Value) -> Number;
    futimens(fd: Value, times: Bytes(2 * TIMESPEC)) -> Number;
    readlink(path: Path, buffer: Filled(2), size: Value) -> Number;
    __readlink_chk(path: Path, buffer: Filled(2), size: Value, room: Value) -> Number;
    readlinkat(fd: Value, path: Path, buffer: Filled(3), size: Value) -> Number;
    __readlinkat_chk(fd: Value, path: Path, buffer: Filled(3), size: Value, room: Value) -> Number;
    getcwd(buffer: Sized(1), size: Value) -> Pointer;
    __getcwd_chk(buffer: Sized(1), size: Value, room: Value) -> Pointer;
    shm_open(name: Path, flags: Value, mode: Value) -> Number;
    shm_unlink(name: Path) -> Number;
    memfd_create(name: Path, flags: Value) -> Number;
    inotify_add_watch(fd: Value, path: Path, mask: Value) -> Number;
    name_to_handle_at(fd: Value, path: Path, handle: Bytes(136), mount: Bytes(4), flags: Value) -> Number;

    // Metadata of files.
    stat(path: Path, status: Bytes(STAT)) -> Number;
    stat64(path: Path, status: Bytes(STAT)) -> Number;
    lstat(path: Path, status: Bytes(STAT)) -> Number;
    lstat64(path: Path, status: Bytes(STAT)) -> Number;
    fstat(fd: Value, status: Bytes(STAT)) -> Number;
    fstat64(fd: Value, status: Bytes(STAT)) -> Number;
    fstatat(fd: Value, path: Path, status: Bytes(STAT), flags: Value) -> Number;
    fstatat64(fd: Value, path: Path, status: Bytes(STAT), flags: Value) -> Number;
    __xstat(version: Value, path: Path, status: Bytes(STAT)) -> Number;
    __xstat64(version: Value, path: Path, status: Bytes(STAT)) -> Number;
    __lxstat(version: Value, path: Path, status: Bytes(STAT)) -> Number;
    __lxstat64(version: Value, path: Path, status: Bytes(STAT)) -> Number;
    __fxstat(version: Value, fd: Value, status: Bytes(STAT)) -> Number;
    __fxstat64(version: Value, fd: Value, status: Bytes(STAT)) -> Number;
    __fxstatat(version: Value, fd: Value, path: Path, status: Bytes(STAT), flags: Value) -> Number;
    __fxstatat64(version: Value, fd: Value, path: Path, status: Bytes(STAT), flags: Value) -> Number;
    statx(fd: Value, path: Path, flags: Value, mask: Value, status: Bytes(STATX)) -> Number;
    statfs(path: Path, status: Bytes(STATFS)) -> Number;
    statfs64(path: Path, status: Bytes(STATFS)) -> Number;
    fstatfs(fd: Value, status: Bytes(STATFS)) -> Number;
    fstatfs64(fd: Value, status: Bytes(STATFS)) -> Number;
    statvfs(path: Path, status: Bytes(STATVFS)) -> Number;
    statvfs64(path: Path, status: Bytes(STATVFS)) -> Number;
    fstatvfs(fd: Value, status: Bytes(STATVFS)) -> Number;
    fstatvfs64(fd: Value, status: Bytes(STATVFS)) -> Number;
    getxattr(path: Path, name: Path, value: Filled(3), size: Value) -> Number;
    lgetxattr(path: Path, name: Path, value: Filled(3), size: Value) -> Number;
    fgetxattr(fd: Value, name: Path, value: Filled(3), size: Value) -> Number;
    setxattr(path: Path, name: Path, value: Read(3), size: Value, flags: Value) -> Number;
    lsetxattr(path: Path, name: Path, value: Read(3), size: Value, flags: Value) -> Number;
    fsetxattr(fd: Value, name: Path, value: Read(3), size: Value, flags: Value) -> Number;
    listxattr(path: Path, list: Filled(2), size: Value) -> Number;
    flistxattr(fd: Value, list: Filled(2), size: Value) -> Number;

    // Sockets.
    bind(fd: Value, address: Sized(2), length: Value) -> Number;
    connect(fd: Value, address: Sized(2), length: Value) -> Number;
    accept(fd: Value, address: SocketAddress(2), length: Bytes(4)) -> Number;
    accept4(fd: Value, address: SocketAddress(2), length: Bytes(4), flags: Value) -> Number;
    getsockname(fd: Value, address: SocketAddress(2), length: Bytes(4)) -> Number;
    getpeername(fd: Value, address: SocketAddress(2), length: Bytes(4)) -> Number;
    getsockopt(fd: Value, level: Value, option: Value, value: SocketAddress(4), length: Bytes(4)) -> Number;
    setsockopt(fd: Value, level: Value, option: Value, value: Sized(4), length: Value) -> Number;
    socketpair(domain: Value, kind: Value, protocol: Value, fds: Bytes(8)) -> Number;
    pipe(fds: Bytes(8)) -> Number;
    pipe2(fds: Bytes(8), flags: Value) -> Number;

    // Polling.
    poll(fds: Elements(1, POLL), count: Value, timeout: Value) -> Number;
    __poll_chk(fds: Elements(1, POLL), count: Value, timeout: Value, room: Value) -> Number;
    select(count: Value, reads: Bits(0), writes: Bits(0), errors: Bits(0), timeout: Bytes(TIMEVAL)) -> Number;
    ppoll(fds: Elements(1, POLL), count: Value, timeout: Bytes(TIMESPEC), mask: Mask) -> Number;
    __ppoll_chk(fds: Elements(1, POLL), count: Value, timeout: Bytes(TIMESPEC), mask: Mask, room: Value) -> Number;
    pselect(count: Value, reads: Bits(0), writes: Bits(0), errors: Bits(0), timeout: Bytes(TIMESPEC), mask: Mask) -> Number;
    epoll_pwait(fd: Value, events: Elements(2, EPOLL), count: Value, timeout: Value, mask: Mask) -> Number;
    epoll_pwait2(fd: Value, events: Elements(2, EPOLL), count: Value, timeout: Bytes(TIMESPEC), mask: Mask) -> Number;
    sigsuspend(mask: Mask) -> Number;
    epoll_wait(fd: Value, events: Elements(2, EPOLL), count: Value, timeout: Value) -> Number;
    epoll_ctl(fd: Value, operation: Value, other: Value, event: Bytes(EPOLL)) -> Number;
    nanosleep(wanted: Bytes(TIMESPEC), left: Bytes(TIMESPEC)) -> Number;
    clock_nanosleep(clock: Value, flags: Value, wanted: Bytes(TIMESPEC), left: Bytes(TIMESPEC)) -> Number;
    wait(status: Bytes(4)) -> Number;
    waitpid(process: Value, status: Bytes(4), options: Value) -> Number;
    wait3(status: Bytes(4), options: Value, usage: Bytes(RUSAGE)) -> Number;
    wait4(process: Value, status: Bytes(4), options: Value, usage: Bytes(RUSAGE)) -> Number;
    waitid(kind: Value, process: Value, info: Bytes(128), options: Value) -> Number;
    sigpending(set: Bytes(8)) -> Number;
    sigwait(set: Bytes(SIGNAL_SET), number: Bytes(4)) -> Number;
    sigwaitinfo(set: Bytes(SIGNAL_SET), info: Bytes(128)) -> Number;
    sigtimedwait(set: Bytes(SIGNAL_SET), info: Bytes(128), timeout: Bytes(TIMESPEC)) -> Number;
    signalfd(fd: Value, set: Bytes(SIGNAL_SET), flags: Value) -> Number;
    sigqueue(process: Value, number: Value, value: Value) -> Number;

    // Clocks and timers.
    clock_gettime(clock: Value, time: Bytes(TIMESPEC)) -> Number;
    clock_getres(clock: Value, time: Bytes(TIMESPEC)) -> Number;
    clock_settime(clock: Value, time: Bytes(TIMESPEC)) -> Number;
    gettimeofday(time: Bytes(TIMEVAL), zone: Bytes(8)) -> Number;
    times(times: Bytes(32)) -> Number;
    getitimer(which: Value, value: Bytes(2 * TIMEVAL)) -> Number;
    setitimer(which: Value, value: Bytes(2 * TIMEVAL), old: Bytes(2 * TIMEVAL)) -> Number;
    timerfd_gettime(fd: Value, value: Bytes(2 * TIMESPEC)) -> Number;
    timerfd_settime(fd: Value, flags: Value, value: Bytes(2 * TIMESPEC), old: Bytes(2 * TIMESPEC)) -> Number;

    // The process and the system.
    uname(names: Bytes(390)) -> Number;
    sysinfo(info: Bytes(112)) -> Number;
    getrusage(who: Value, usage: Bytes(RUSAGE)) -> Number;
    getrlimit(resource: Value, limit: Bytes(RLIMIT)) -> Number;
    getrlimit64(resource: Value, limit: Bytes(RLIMIT)) -> Number;
    setrlimit(resource: Value, limit: Bytes(RLIMIT)) -> Number;
    setrlimit64(resource: Value, limit: Bytes(RLIMIT)) -> Number;
    prlimit(process: Value, resource: Value, new: Bytes(RLIMIT), old: Bytes(RLIMIT)) -> Number;
    prlimit64(process: Value, resource: Value, new: Bytes(RLIMIT), old: Bytes(RLIMIT)) -> Number;
    getgroups(count: Value, groups: Elements(0, 4)) -> Number;
    getresuid(real: Bytes(4), effective: Bytes(4), saved: Bytes(4)) -> Number;
    getresgid(real: Bytes(4), effective: Bytes(4), saved: Bytes(4)) -> Number;
    getcpu(cpu: Bytes(4), node: Bytes(4)) -> Number;
    sched_getaffinity(process: Value, size: Value, set: Sized(1)) -> Number;
    sched_setaffinity(process: Value, size: Value, set: Sized(1)) -> Number;
    mincore(address: Value, bytes: Value, vector: Pages(1)) -> Number;
    sethostname(name: Sized(1), size: Value) -> Number;
}
