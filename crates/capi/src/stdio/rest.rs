//! Writes the unfinished line in the buffer of standard output when a bad access to memory kills the process.
//!
//! A signal handler must not call fflush(3): the stream may be locked, or in the middle of a change. So the
//! buffer is only read, by system calls, which fail if a broken program has overwritten it. Bytes that are
//! not certain are left.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

/// The maximum length that is written. A line-buffered stream keeps less; a program with a larger buffer may
/// lose its content.
const REST_BYTES_MAX: usize = 64 << 10;

/// How long to wait for a reader that does not read.
const PATIENCE_MS: c_int = 1000;

/// The stream is in output mode (`_IO_CURRENTLY_PUTTING` in the C library's `libio.h`).
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

/// Writes what standard output holds in its buffer. Runs in signal context, in a process that is about to
/// die.
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
        // By number, since the function of that name may make the runtime fetch shared pages first.
        // SAFETY: the kernel refuses memory that it cannot read.
        unsafe { libc::syscall(libc::SYS_write, descriptor, start, bytes) };
    }
}

/// Reads the stream at an address, if there is memory.
fn read(address: usize) -> Option<Stream> {
    let mut stream = MaybeUninit::<Stream>::uninit();
    let bytes = size_of::<Stream>();
    let local = libc::iovec { iov_base: stream.as_mut_ptr().cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes };
    let (number, me) = (libc::SYS_process_vm_readv, std::process::id());
    // As wide as registers: the call has more arguments than fit in registers, and the kernel reads the whole
    // word.
    let (one, flags): (usize, usize) = (1, 0);
    // SAFETY: the kernel fills the local, and refuses to read memory that does not exist.
    let came = unsafe { libc::syscall(number, me, &raw const local, one, &raw const remote, one, flags) };
    // SAFETY: all of its bytes were filled, and any bytes are a valid value.
    (usize::try_from(came) == Ok(bytes)).then(|| unsafe { stream.assume_init() })
}

/// Returns descriptor, start and length of the content of a stream's buffer.
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
