//! Streams of the C library. It transfers long data directly from and to the program's memory, by internal
//! calls that cannot be replaced, so streams use private memory (`system_calls/bounce.rs`).

mod format;
mod rest;

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroba_node::Runtime;
use hiroba_wire::control::CONTROL_FD_VARIABLE;

use crate::linked::program_is_linked;
use crate::reporting::set_errno;
use crate::system_calls::{Bounce, Call, Returns, errno, shielding, store};

/// The size of pieces in which a stream transfers shared memory; the division is invisible in a stream.
const CHUNK_BYTES: usize = 1 << 20;

/// The longest string that is copied to private memory in one piece.
const STRING_BYTES_MAX: usize = 1 << 30;

/// Defines the [`Call`]s of the functions below.
macro_rules! streams {
    ($($name:ident -> $returns:ident;)*) => {
        #[allow(non_upper_case_globals)]
        pub(super) mod calls {
            use super::*;
            $(pub(crate) static $name: Call = Call::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name holds no zero byte"),
                },
                &[],
                Returns::$returns,
            );)*
        }
        pub(crate) static ALL: &[&Call] = &[$(&calls::$name),*];
    };
}

// Functions that return a count of elements fail with 0, like those that return a pointer.
streams! {
    fread -> Pointer;
    fread_unlocked -> Pointer;
    __fread_chk -> Pointer;
    __fread_unlocked_chk -> Pointer;
    fwrite -> Pointer;
    fwrite_unlocked -> Pointer;
    fgets -> Pointer;
    fgets_unlocked -> Pointer;
    __fgets_chk -> Pointer;
    __fgets_unlocked_chk -> Pointer;
    fputs -> Number;
    fputs_unlocked -> Number;
    puts -> Number;
    perror -> Number;
    setvbuf -> Number;
    setbuf -> Number;
    setbuffer -> Number;
    vfprintf -> Number;
    vprintf -> Number;
    vdprintf -> Number;
    __vfprintf_chk -> Number;
    __vprintf_chk -> Number;
    __vdprintf_chk -> Number;
    flockfile -> Number;
    funlockfile -> Number;
}

fn shared(runtime: &Runtime, address: usize, bytes: usize) -> bool {
    bytes > 0 && runtime.is_shared(address, bytes)
}

/// fread(3) in chunks: `fill` reads a number of bytes into private memory and returns how many arrived.
fn filled_by_chunks(
    runtime: &'static Runtime,
    (buffer, size, count): (usize, usize, usize),
    fill: impl Fn(*mut u8, usize) -> usize,
) -> isize {
    let total = size * count;
    let mut done = 0;
    while done < total {
        let mut bounce = Bounce::new(runtime);
        let chunk = CHUNK_BYTES.min(total - done);
        let Some(piece) = bounce.piece(buffer + done, chunk) else {
            set_errno(libc::ENOMEM);
            break;
        };
        let came = fill(piece, chunk);
        let errno = errno();
        store(buffer + done, piece, came);
        set_errno(errno);
        done += came;
        if came < chunk {
            break;
        }
    }
    (done / size) as isize
}

/// Holds a stream's lock, so that a transfer in chunks is one transfer for other threads.
struct Locked(usize);

impl Locked {
    fn new(stream: usize) -> Locked {
        // SAFETY: the program passes an open stream.
        unsafe { calls::flockfile.call([stream]) };
        Locked(stream)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked when this was made.
        unsafe { calls::funlockfile.call([self.0]) };
    }
}

/// Returns the runtime if a stream's transfer needs private memory: all of it is shared and allocated.
/// Otherwise the C library itself handles the invalid memory.
fn needs_bounce(buffer: usize, size: usize, count: usize) -> Option<&'static Runtime> {
    let runtime = shielding()?;
    let bytes = size.checked_mul(count)?;
    Bounce::new(runtime).must_shield(buffer, bytes).then_some(runtime)
}

macro_rules! reading {
    ($($name:ident $(($room:ident))?, $holds:ident;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            buffer: usize, $($room: usize,)? size: usize, count: usize, stream: usize,
        ) -> isize {
            let Some(runtime) = needs_bounce(buffer, size, count) else {
                // SAFETY: the caller's.
                return unsafe { calls::$name.call([buffer, $($room,)? size, count, stream]) };
            };
            $(
                if size.saturating_mul(count) > $room {
                    // SAFETY: the caller's; the C library ends the program in this case.
                    return unsafe { calls::$name.call([buffer, $room, size, count, stream]) };
                }
            )?
            let _locked = $holds(stream);
            filled_by_chunks(runtime, (buffer, size, count), |piece, bytes| {
                // SAFETY: the piece is private and of this length; the stream is the caller's.
                let came = unsafe { calls::fread_unlocked.call([piece.addr(), 1, bytes, stream]) };
                came as usize
            })
        }
    )* };
}

fn locked(stream: usize) -> Option<Locked> {
    Some(Locked::new(stream))
}

fn unlocked(_stream: usize) -> Option<Locked> {
    None
}

reading! {
    fread, locked;
    fread_unlocked, unlocked;
    __fread_chk(room), locked;
    __fread_unlocked_chk(room), unlocked;
}

macro_rules! writing {
    ($($name:ident, $holds:ident;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(buffer: usize, size: usize, count: usize, stream: usize) -> isize {
            let Some(runtime) = needs_bounce(buffer, size, count) else {
                // SAFETY: the caller's.
                return unsafe { calls::$name.call([buffer, size, count, stream]) };
            };
            let _locked = $holds(stream);
            (written_by_chunks(runtime, buffer, size * count, stream) / size) as isize
        }
    )* };
}

writing! {
    fwrite, locked;
    fwrite_unlocked, unlocked;
}

/// Returns how many bytes of shared memory were written. The caller has locked the stream if that is needed.
fn written_by_chunks(runtime: &'static Runtime, buffer: usize, total: usize, stream: usize) -> usize {
    let mut done = 0;
    while done < total {
        let mut bounce = Bounce::new(runtime);
        let chunk = CHUNK_BYTES.min(total - done);
        let Some(piece) = bounce.copy(buffer + done, chunk) else {
            set_errno(libc::ENOMEM);
            break;
        };
        // SAFETY: the piece is private and of this length; the stream is the caller's.
        let went = unsafe { calls::fwrite_unlocked.call([piece.addr(), 1, chunk, stream]) } as usize;
        done += went;
        if went < chunk {
            break;
        }
    }
    done
}

macro_rules! lines_in {
    ($($name:ident $(($room:ident))?;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(buffer: usize, $($room: usize,)? size: usize, stream: usize) -> isize {
            let bytes = usize::try_from(size as i32).unwrap_or(0);
            let Some(runtime) = needs_bounce(buffer, 1, bytes) else {
                // SAFETY: the caller's.
                return unsafe { calls::$name.call([buffer, $($room,)? size, stream]) };
            };
            let mut bounce = Bounce::new(runtime);
            let Some(piece) = bounce.piece(buffer, bytes) else {
                set_errno(libc::ENOMEM);
                return 0;
            };
            // Bytes beyond the line must be distinguishable from it.
            // SAFETY: the piece is private and of this length.
            unsafe { ptr::write_bytes(piece, b'\n', bytes) };
            // SAFETY: as above; the stream is the caller's.
            let result = unsafe { calls::$name.call([piece.addr(), $($room,)? size, stream]) };
            if result == 0 {
                return 0;
            }
            let errno = errno();
            store(buffer, piece, line_bytes(piece, bytes));
            set_errno(errno);
            buffer as isize
        }
    )* };
}

lines_in! {
    fgets;
    fgets_unlocked;
    __fgets_chk(room);
    __fgets_unlocked_chk(room);
}

/// Returns the length of a line with its end, in memory that contained only newlines before: the line may
/// contain zero bytes.
fn line_bytes(piece: *const u8, bytes: usize) -> usize {
    // SAFETY: the piece is private, of this length, and filled.
    let line = unsafe { std::slice::from_raw_parts(piece, bytes) };
    match line.iter().position(|byte| *byte == b'\n') {
        // The line's own newline is followed by the end.
        Some(newline) if line.get(newline + 1) == Some(&0) => newline + 2,
        // The first newline from before: the end precedes it.
        Some(untouched) => untouched,
        None => bytes,
    }
}

macro_rules! lines_out {
    ($($name:ident($($stream:ident)?);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(string: usize $(, $stream: usize)?) -> isize {
            if let Some(runtime) = shielding().filter(|runtime| shared(runtime, string, 1)) {
                let mut bounce = Bounce::new(runtime);
                if let Some(piece) = bounce.string(string, STRING_BYTES_MAX) {
                    // SAFETY: the piece is a copy of the caller's string.
                    return unsafe { calls::$name.call([piece.addr() $(, $stream)?]) };
                }
            }
            // SAFETY: the caller's.
            unsafe { calls::$name.call([string $(, $stream)?]) }
        }
    )* };
}

lines_out! {
    fputs(stream);
    fputs_unlocked(stream);
    puts();
    perror();
}

unsafe extern "C" {
    /// stdout(3).
    #[link_name = "stdout"]
    static STANDARD_OUTPUT: *mut libc::FILE;
}

/// Whether the program has chosen the buffering of its standard output itself.
static CHOSEN: AtomicBool = AtomicBool::new(false);

fn standard_output() -> *mut libc::FILE {
    // SAFETY: the C library sets it before any code of the program runs.
    unsafe { ptr::read(&raw const STANDARD_OUTPUT) }
}

pub(crate) use rest::write_rest;

/// Makes standard output line-buffered, whatever it is, unless the program has chosen otherwise, since a node
/// that dies has no time to write its buffer. Flushes what the buffer contains.
pub(crate) fn hand_on_lines() {
    if CHOSEN.load(Ordering::Relaxed) {
        return;
    }
    let stream = standard_output();
    // SAFETY: an open stream; without a buffer argument only the mode changes, even after output.
    unsafe { calls::setvbuf.call([stream.addr(), 0, libc::_IOLBF as usize, 0]) };
    // Only after this does the C library check every character that goes into the buffer.
    // SAFETY: an open stream.
    unsafe { libc::fflush(stream) };
}

/// Called when the library is loaded: does the same from the beginning of a node's program, which may die
/// before it joins. Does not affect other processes of a node, in which the library is only preloaded.
pub(crate) fn hand_on_lines_of_node() {
    let is_node = std::env::var_os(CONTROL_FD_VARIABLE).is_some() && program_is_linked();
    if is_node && !standard_output().is_null() {
        hand_on_lines();
    }
}

/// Records that the program has chosen how a stream is buffered.
fn note_choice(stream: usize) {
    if stream == standard_output().addr() {
        CHOSEN.store(true, Ordering::Relaxed);
    }
}

/// Refuses a stream's buffer in shared memory, which internal calls that cannot be replaced would read and
/// fill: the stream gets a buffer of its own instead.
fn private_or_null(buffer: usize) -> usize {
    match shielding() {
        Some(runtime) if shared(runtime, buffer, 1) => 0,
        _ => buffer,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setvbuf(stream: usize, buffer: usize, mode: usize, size: usize) -> isize {
    note_choice(stream);
    // SAFETY: the caller's; without a buffer the C library allocates one.
    unsafe { calls::setvbuf.call([stream, private_or_null(buffer), mode, size]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuf(stream: usize, buffer: usize) {
    note_choice(stream);
    if buffer != 0 && private_or_null(buffer) == 0 {
        return;
    }
    // SAFETY: the caller's.
    unsafe { calls::setbuf.call([stream, buffer]) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuffer(stream: usize, buffer: usize, size: usize) {
    note_choice(stream);
    if buffer != 0 && private_or_null(buffer) == 0 {
        return;
    }
    // SAFETY: the caller's.
    unsafe { calls::setbuffer.call([stream, buffer, size]) };
}

/// Copies private bytes to a stream as fwrite does. Returns how many were written.
fn write_private(stream: usize, bytes: *const u8, length: usize) -> usize {
    // SAFETY: the bytes are private and of this length; the stream is the caller's.
    unsafe { calls::fwrite.call([bytes.addr(), 1, length, stream]) as usize }
}

#[cfg(test)]
mod tests {
    use super::line_bytes;

    #[test]
    fn a_line_is_told_from_what_was_there_before() {
        let cases: [(&[u8], usize); 6] = [
            (b"ab\n\0\n\n", 4),
            (b"a\0b\n\0\n", 5),
            (b"ab\0\n\n\n", 3),
            (b"a\0\0\n\n\n", 3),
            (b"abcde\0", 6),
            (b"\n\0\n\n\n\n", 2),
        ];
        for (memory, bytes) in cases {
            assert_eq!(line_bytes(memory.as_ptr(), memory.len()), bytes, "{memory:?}");
        }
    }
}
