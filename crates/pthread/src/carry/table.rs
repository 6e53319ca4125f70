//! The calls that are carried, and the arguments that must be lent.
//!
//! A line is a function of the C library. `text` marks a C string that it reads, `bytes(n)` a block of `n`
//! bytes that it reads, `items(n m)` one of `n` times `m`; other arguments are passed unchanged. `waits`
//! after the result marks a cancellation point.

use std::ffi::c_int;

use super::{Lent, call, is_wanted, maker};
use crate::cancel::cancellable;
use crate::next::Next;

/// Defines the functions.
macro_rules! carried {
    (@word $argument:ident) => { usize };
    (@make $call:ident) => { $call() };
    (@make $call:ident waits) => { cancellable(maker, $call) };
    ($($name:ident($($argument:ident $(: $kind:ident $(($($length:ident)*))?)?),*) -> $returns:ty $(, $waits:ident)?;)*) => {
        #[allow(non_upper_case_globals)]
        mod next {
            use super::Next;
            $(pub(super) static $name: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                },
            );)*
        }
        static ALL: &[&Next] = &[$(&next::$name),*];
        $(
            /// See the manual.
            ///
            /// # Safety
            /// As of the C library's function.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: usize),*) -> $returns {
                let make = || {
                    if is_wanted() {
                        #[allow(unused_mut)]
                        let mut lent = Lent::default();
                        $($(let $argument = lent.$kind($argument $($(, $length)*)?);)?)*
                        let result = call(next::$name.address(), &[$($argument),*]) as $returns;
                        drop(lent);
                        return result;
                    }
                    type Real = unsafe extern "C-unwind" fn($(carried!(@word $argument)),*) -> $returns;
                    // SAFETY: the C library's function takes these arguments, each of which fits a register.
                    let real = unsafe { std::mem::transmute::<usize, Real>(next::$name.address()) };
                    // SAFETY: the caller's.
                    unsafe { real($($argument),*) }
                };
                carried!(@make make $($waits)?)
            }
        )*
    };
}

/// Looks all functions up.
pub(super) fn look_up() {
    for next in ALL {
        next.look_up();
    }
}

carried! {
    // Descriptors.
    read(fd, buffer, size) -> isize, waits;
    __read_chk(fd, buffer, size, room) -> isize, waits;
    write(fd, buffer: bytes(size), size) -> isize, waits;
    pread(fd, buffer, size, offset) -> isize, waits;
    pread64(fd, buffer, size, offset) -> isize, waits;
    __pread_chk(fd, buffer, size, offset, room) -> isize, waits;
    __pread64_chk(fd, buffer, size, offset, room) -> isize, waits;
    pwrite(fd, buffer: bytes(size), size, offset) -> isize, waits;
    pwrite64(fd, buffer: bytes(size), size, offset) -> isize, waits;
    readv(fd, vector, count) -> isize, waits;
    writev(fd, vector, count) -> isize, waits;
    preadv(fd, vector, count, offset) -> isize, waits;
    preadv64(fd, vector, count, offset) -> isize, waits;
    pwritev(fd, vector, count, offset) -> isize, waits;
    pwritev64(fd, vector, count, offset) -> isize, waits;
    lseek(fd, offset, whence) -> isize;
    lseek64(fd, offset, whence) -> isize;
    close(fd) -> c_int;
    dup(fd) -> c_int;
    dup2(fd, wanted) -> c_int;
    dup3(fd, wanted, flags) -> c_int;
    fcntl(fd, command, argument) -> c_int;
    fcntl64(fd, command, argument) -> c_int;
    ioctl(fd, request, argument) -> c_int;
    fsync(fd) -> c_int;
    fdatasync(fd) -> c_int;
    ftruncate(fd, length) -> c_int;
    ftruncate64(fd, length) -> c_int;
    fallocate(fd, mode, offset, length) -> c_int;
    fallocate64(fd, mode, offset, length) -> c_int;
    posix_fallocate(fd, offset, length) -> c_int;
    posix_fallocate64(fd, offset, length) -> c_int;
    posix_fadvise(fd, offset, length, advice) -> c_int;
    posix_fadvise64(fd, offset, length, advice) -> c_int;
    flock(fd, operation) -> c_int;
    lockf(fd, command, length) -> c_int;
    lockf64(fd, command, length) -> c_int;
    isatty(fd) -> c_int;
    fchmod(fd, mode) -> c_int;
    fchown(fd, user, group) -> c_int;
    futimens(fd, times) -> c_int;
    fstat(fd, status) -> c_int;
    fstat64(fd, status) -> c_int;
    __fxstat(version, fd, status) -> c_int;
    __fxstat64(version, fd, status) -> c_int;
    fstatfs(fd, status) -> c_int;
    fstatfs64(fd, status) -> c_int;
    fstatvfs(fd, status) -> c_int;
    fstatvfs64(fd, status) -> c_int;
    sendfile(out, from, offset, count) -> isize;
    sendfile64(out, from, offset, count) -> isize;
    copy_file_range(from, from_offset, to, to_offset, count, flags) -> isize;
    splice(from, from_offset, to, to_offset, count, flags) -> isize;
    pipe(both) -> c_int;
    pipe2(both, flags) -> c_int;
    eventfd(value, flags) -> c_int;
    eventfd_read(fd, value) -> c_int;
    eventfd_write(fd, value) -> c_int;
    memfd_create(name: text, flags) -> c_int;
    timerfd_create(clock, flags) -> c_int;
    timerfd_settime(fd, flags, new, old) -> c_int;
    timerfd_gettime(fd, value) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags) -> c_int;
    inotify_add_watch(fd, path: text, mask) -> c_int;
    inotify_rm_watch(fd, watch) -> c_int;
    poll(descriptors, count, timeout) -> c_int, waits;
    __poll_chk(descriptors, count, timeout, room) -> c_int, waits;
    ppoll(descriptors, count, timeout, mask) -> c_int, waits;
    select(count, read, write, except, timeout) -> c_int, waits;
    pselect(count, read, write, except, timeout, mask) -> c_int, waits;
    epoll_create(size) -> c_int;
    epoll_create1(flags) -> c_int;
    epoll_ctl(fd, operation, of, event) -> c_int;
    epoll_wait(fd, events, count, timeout) -> c_int, waits;
    epoll_pwait(fd, events, count, timeout, mask) -> c_int, waits;

    // Files by name.
    open(path: text, flags, mode) -> c_int;
    open64(path: text, flags, mode) -> c_int;
    __open_2(path: text, flags) -> c_int;
    __open64_2(path: text, flags) -> c_int;
    openat(fd, path: text, flags, mode) -> c_int;
    openat64(fd, path: text, flags, mode) -> c_int;
    __openat_2(fd, path: text, flags) -> c_int;
    __openat64_2(fd, path: text, flags) -> c_int;
    creat(path: text, mode) -> c_int;
    creat64(path: text, mode) -> c_int;
    mkstemp(template) -> c_int;
    mkstemp64(template) -> c_int;
    mkostemp(template, flags) -> c_int;
    mkostemp64(template, flags) -> c_int;
    mkdtemp(template) -> usize;
    stat(path: text, status) -> c_int;
    stat64(path: text, status) -> c_int;
    lstat(path: text, status) -> c_int;
    lstat64(path: text, status) -> c_int;
    fstatat(fd, path: text, status, flags) -> c_int;
    fstatat64(fd, path: text, status, flags) -> c_int;
    statx(fd, path: text, flags, mask, status) -> c_int;
    __xstat(version, path: text, status) -> c_int;
    __xstat64(version, path: text, status) -> c_int;
    __lxstat(version, path: text, status) -> c_int;
    __lxstat64(version, path: text, status) -> c_int;
    __fxstatat(version, fd, path: text, status, flags) -> c_int;
    __fxstatat64(version, fd, path: text, status, flags) -> c_int;
    statfs(path: text, status) -> c_int;
    statfs64(path: text, status) -> c_int;
    statvfs(path: text, status) -> c_int;
    statvfs64(path: text, status) -> c_int;
    access(path: text, mode) -> c_int;
    faccessat(fd, path: text, mode, flags) -> c_int;
    truncate(path: text, length) -> c_int;
    truncate64(path: text, length) -> c_int;
    unlink(path: text) -> c_int;
    unlinkat(fd, path: text, flags) -> c_int;
    remove(path: text) -> c_int;
    rename(from: text, to: text) -> c_int;
    renameat(from_fd, from: text, to_fd, to: text) -> c_int;
    renameat2(from_fd, from: text, to_fd, to: text, flags) -> c_int;
    link(from: text, to: text) -> c_int;
    symlink(from: text, to: text) -> c_int;
    readlink(path: text, buffer, size) -> isize;
    __readlink_chk(path: text, buffer, size, room) -> isize;
    readlinkat(fd, path: text, buffer, size) -> isize;
    realpath(path: text, resolved) -> usize;
    __realpath_chk(path: text, resolved, room) -> usize;
    mkdir(path: text, mode) -> c_int;
    mkdirat(fd, path: text, mode) -> c_int;
    mkfifo(path: text, mode) -> c_int;
    rmdir(path: text) -> c_int;
    chdir(path: text) -> c_int;
    fchdir(fd) -> c_int;
    getcwd(buffer, size) -> usize;
    __getcwd_chk(buffer, size, room) -> usize;
    get_current_dir_name() -> usize;
    chmod(path: text, mode) -> c_int;
    chown(path: text, user, group) -> c_int;
    umask(mask) -> c_int;
    utime(path: text, times) -> c_int;
    utimes(path: text, times) -> c_int;
    utimensat(fd, path: text, times, flags) -> c_int;
    opendir(path: text) -> usize;
    fdopendir(fd) -> usize;
    readdir(directory) -> usize;
    readdir64(directory) -> usize;
    rewinddir(directory) -> isize;
    seekdir(directory, place) -> isize;
    telldir(directory) -> isize;
    closedir(directory) -> c_int;
    dirfd(directory) -> c_int;
    scandir(path: text, list, filter, compare) -> c_int;
    scandir64(path: text, list, filter, compare) -> c_int;
    glob(pattern: text, flags, failed, found) -> c_int;
    glob64(pattern: text, flags, failed, found) -> c_int;
    ftw(path: text, visit, depth) -> c_int;
    nftw(path: text, visit, depth, flags) -> c_int;
    ftw64(path: text, visit, depth) -> c_int;
    nftw64(path: text, visit, depth, flags) -> c_int;

    // Sockets.
    socket(domain, kind, protocol) -> c_int;
    socketpair(domain, kind, protocol, both) -> c_int;
    bind(fd, address, length) -> c_int;
    listen(fd, backlog) -> c_int;
    accept(fd, address, length) -> c_int, waits;
    accept4(fd, address, length, flags) -> c_int, waits;
    connect(fd, address, length) -> c_int, waits;
    send(fd, buffer: bytes(size), size, flags) -> isize, waits;
    sendto(fd, buffer: bytes(size), size, flags, address, length) -> isize, waits;
    sendmsg(fd, message, flags) -> isize, waits;
    sendmmsg(fd, messages, count, flags) -> c_int;
    recv(fd, buffer, size, flags) -> isize, waits;
    __recv_chk(fd, buffer, size, room, flags) -> isize, waits;
    recvfrom(fd, buffer, size, flags, address, length) -> isize, waits;
    recvmsg(fd, message, flags) -> isize, waits;
    recvmmsg(fd, messages, count, flags, timeout) -> c_int;
    shutdown(fd, how) -> c_int;
    getsockopt(fd, level, name, value, length) -> c_int;
    setsockopt(fd, level, name, value, length) -> c_int;
    getsockname(fd, address, length) -> c_int;
    getpeername(fd, address, length) -> c_int;

    // Streams.
    fopen(path: text, mode: text) -> usize;
    fopen64(path: text, mode: text) -> usize;
    freopen(path: text, mode: text, stream) -> usize;
    freopen64(path: text, mode: text, stream) -> usize;
    fdopen(fd, mode: text) -> usize;
    fmemopen(buffer, size, mode: text) -> usize;
    open_memstream(buffer, size) -> usize;
    tmpfile() -> usize;
    tmpfile64() -> usize;
    fclose(stream) -> c_int;
    fileno(stream) -> c_int;
    fileno_unlocked(stream) -> c_int;
    fflush(stream) -> c_int;
    fflush_unlocked(stream) -> c_int;
    setvbuf(stream, buffer, mode, size) -> c_int;
    setbuf(stream, buffer) -> isize;
    setbuffer(stream, buffer, size) -> isize;
    setlinebuf(stream) -> isize;
    fwrite(buffer: items(size count), size, count, stream) -> usize;
    fwrite_unlocked(buffer: items(size count), size, count, stream) -> usize;
    fread(buffer, size, count, stream) -> usize;
    fread_unlocked(buffer, size, count, stream) -> usize;
    __fread_chk(buffer, room, size, count, stream) -> usize;
    __fread_unlocked_chk(buffer, room, size, count, stream) -> usize;
    fgets(buffer, size, stream) -> usize;
    fgets_unlocked(buffer, size, stream) -> usize;
    __fgets_chk(buffer, room, size, stream) -> usize;
    fgetc(stream) -> c_int;
    fgetc_unlocked(stream) -> c_int;
    getc(stream) -> c_int;
    getc_unlocked(stream) -> c_int;
    getchar() -> c_int;
    getchar_unlocked() -> c_int;
    _IO_getc(stream) -> c_int;
    __uflow(stream) -> c_int;
    ungetc(character, stream) -> c_int;
    getline(line, size, stream) -> isize;
    getdelim(line, size, delimiter, stream) -> isize;
    __getdelim(line, size, delimiter, stream) -> isize;
    fputs(string: text, stream) -> c_int;
    fputs_unlocked(string: text, stream) -> c_int;
    puts(string: text) -> c_int;
    fputc(character, stream) -> c_int;
    fputc_unlocked(character, stream) -> c_int;
    putc(character, stream) -> c_int;
    putc_unlocked(character, stream) -> c_int;
    putchar(character) -> c_int;
    putchar_unlocked(character) -> c_int;
    _IO_putc(character, stream) -> c_int;
    __overflow(stream, character) -> c_int;
    perror(string: text) -> isize;
    fseek(stream, offset, whence) -> c_int;
    fseeko(stream, offset, whence) -> c_int;
    fseeko64(stream, offset, whence) -> c_int;
    ftell(stream) -> isize;
    ftello(stream) -> isize;
    ftello64(stream) -> isize;
    rewind(stream) -> isize;
    fgetpos(stream, place) -> c_int;
    fgetpos64(stream, place) -> c_int;
    fsetpos(stream, place) -> c_int;
    fsetpos64(stream, place) -> c_int;
    feof(stream) -> c_int;
    feof_unlocked(stream) -> c_int;
    ferror(stream) -> c_int;
    ferror_unlocked(stream) -> c_int;
    clearerr(stream) -> isize;
    clearerr_unlocked(stream) -> isize;
    flockfile(stream) -> isize;
    ftrylockfile(stream) -> c_int;
    funlockfile(stream) -> isize;

    // Processes, users, the environment.
    getpid() -> c_int;
    getppid() -> c_int;
    kill(process, signal) -> c_int;
    alarm(seconds) -> c_int;
    sigqueue(process, signal, value) -> c_int;
    setitimer(which, new, old) -> c_int;
    getitimer(which, value) -> c_int;
    timer_settime(timer, flags, new, old) -> c_int;
    timer_gettime(timer, value) -> c_int;
    timer_getoverrun(timer) -> c_int;
    timer_delete(timer) -> c_int;
    system(command: text) -> c_int;
    popen(command: text, mode: text) -> usize;
    pclose(stream) -> c_int;
    posix_spawn(process, path: text, actions, attributes, arguments, environment) -> c_int;
    posix_spawnp(process, file: text, actions, attributes, arguments, environment) -> c_int;
    wait(status) -> c_int, waits;
    waitpid(process, status, options) -> c_int, waits;
    wait3(status, options, usage) -> c_int, waits;
    wait4(process, status, options, usage) -> c_int, waits;
    getenv(name: text) -> usize;
    secure_getenv(name: text) -> usize;
    setenv(name: text, value: text, replace) -> c_int;
    unsetenv(name: text) -> c_int;
    putenv(assignment) -> c_int;
    clearenv() -> c_int;
}
