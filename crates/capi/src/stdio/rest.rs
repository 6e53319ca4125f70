//! The part of a line that stands in the buffer of standard output when a bad access to memory kills the
//! process.
//!
//! fflush(3) is nothing for a signal handler: the stream may be locked, or be changed just now. Here the
//! buffer is only read, by system calls, which give up where a broken program has put something else. What
//! cannot be told for sure stays where it is.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

/// A line-buffered stream keeps less; a program that has chosen a larger buffer may lose what is in it.
const REST_BYTES_MAX: usize = 64 << 10;

/// How long a reader that does not read is waited for.
const PATIENCE_MS: c_int = 1000;

/// The stream holds output, not input (`_IO_CURRENTLY_PUTTING` in the C library's `libio.h`).
const PUTTING: c_int = 0x800;

/// The beginning of the C library's `struct _IO_FILE` (`bits/types/struct_FILE.h`). The layout is fixed,
/// since programs were compiled with it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Stream {
    flags: c_int,
    _read: [usize; 3],
    write_start: usize,
    write_end: usize,
    _write_limit: usize,
    buffer_start: usize,
    buffer_end: usize,
    _saved: [usize; 3],
    _markers: usize,
    _chain: usize,
    descriptor: c_int,
}

const _: () = assert!(size_of::<usize>() != 8 || offset_of!(Stream, descriptor) == 112);

/// Writes out what standard output holds back. In signal context, in a process that is about to die.
pub(crate) fn write_rest() {
    if !cfg!(target_env = "gnu") {
        return;
    }
    let Some((descriptor, start, bytes)) = read(super::standard_output().addr()).and_then(rest) else {
        return;
    };
    let mut reader = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the one description is a local.
    if unsafe { libc::poll(&raw mut reader, 1, PATIENCE_MS) } == 1 {
        // By number: the function of that name may have the runtime fetch shared pages first.
        // SAFETY: the kernel refuses what it cannot read.
        unsafe { libc::syscall(libc::SYS_write, descriptor, start, bytes) };
    }
}

/// The stream at an address, if there is memory.
fn read(address: usize) -> Option<Stream> {
    let mut stream = MaybeUninit::<Stream>::uninit();
    let bytes = size_of::<Stream>();
    let local = libc::iovec { iov_base: stream.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    let (number, me) = (libc::SYS_process_vm_readv, std::process::id());
    // As wide as registers: the call has more arguments than go in them, and the kernel looks at all of a word.
    let (one, flags): (usize, usize) = (1, 0);
    // SAFETY: the kernel fills the local in, and refuses to read what is not there.
    let came = unsafe { libc::syscall(number, me, &raw const local, one, &raw const remote, one, flags) };
    // SAFETY: all of its bytes were filled in, and any bytes make one.
    (usize::try_from(came) == Ok(bytes)).then(|| unsafe { stream.assume_init() })
}

/// Descriptor, start and length of what a stream holds back.
fn rest(stream: Stream) -> Option<(c_int, usize, usize)> {
    let Stream { flags, write_start, write_end, buffer_start, buffer_end, descriptor, .. } = stream;
    let in_order = buffer_start <= write_start && write_start < write_end && write_end <= buffer_end;
    let holds = flags & PUTTING != 0 && buffer_start != 0 && in_order && descriptor >= 0;
    let bytes = write_end.wrapping_sub(write_start);
    (holds && bytes <= REST_BYTES_MAX).then_some((descriptor, write_start, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_of_the_c_library_holds_is_found() {
        // SAFETY: both arguments are C strings.
        let stream = unsafe { libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr()) };
        assert!(!stream.is_null());
        assert!(read(stream.addr()).and_then(rest).is_none(), "nothing was written");
        // SAFETY: an open stream, and a C string.
        assert!(unsafe { libc::fputs(c"half".as_ptr(), stream) } >= 0);
        let (descriptor, start, bytes) = read(stream.addr()).and_then(rest).expect("something was written");
        // SAFETY: the stream's buffer is there until it is closed.
        let held = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
        // SAFETY: an open stream.
        assert_eq!((held, descriptor), (&b"half"[..], unsafe { libc::fileno(stream) }));
        // SAFETY: an open stream, which nobody uses again.
        unsafe { libc::fclose(stream) };
    }

    #[test]
    fn what_makes_no_sense_is_left_alone() {
        assert!(read(8).is_none(), "no memory");
        let good = Stream {
            flags: PUTTING,
            _read: [0; 3],
            write_start: 0x1000,
            write_end: 0x1004,
            _write_limit: 0,
            buffer_start: 0x1000,
            buffer_end: 0x2000,
            _saved: [0; 3],
            _markers: 0,
            _chain: 0,
            descriptor: 1,
        };
        assert_eq!(rest(good), Some((1, 0x1000, 4)));
        let broken = [
            Stream { flags: 0, ..good },
            Stream { write_end: 0x2001, ..good },
            Stream { write_end: 0x1000, ..good },
            Stream { write_start: 0xfff, ..good },
            Stream { buffer_end: usize::MAX, write_end: usize::MAX, ..good },
            Stream { descriptor: -1, ..good },
        ];
        for stream in broken {
            assert_eq!(rest(stream), None);
        }
    }
}
