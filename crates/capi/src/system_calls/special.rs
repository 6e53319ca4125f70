//! Calls whose arguments depend on each other.

use std::ffi::{c_char, c_int};

use hiroba_node::Runtime;

use super::{Bounce, Call, Returns, errno, shielding, touch};
use crate::reporting::set_errno;

static IOCTL: Call = Call::new(c"ioctl", &[], Returns::Number);
static FCNTL: Call = Call::new(c"fcntl", &[], Returns::Number);
static FCNTL64: Call = Call::new(c"fcntl64", &[], Returns::Number);
static EXECVE: Call = Call::new(c"execve", &[], Returns::Number);

pub(super) static ALL: &[&Call] = &[&IOCTL, &FCNTL, &FCNTL64, &EXECVE];

/// Makes a call whose last argument points to `bytes` bytes, any of which the call may change.
///
/// # Safety
/// The arguments must be valid for the function.
unsafe fn with_bytes(call: &Call, runtime: &'static Runtime, mut a: [usize; 3], bytes: usize) -> isize {
    let mut bounce = Bounce::new(runtime);
    if bounce.must_shield(a[2], bytes) {
        match bounce.exchange(a[2], bytes) {
            Some(piece) => a[2] = piece.addr(),
            None => return call.fail(libc::ENOMEM),
        }
    }
    // SAFETY: the caller's; the private memory is as long as the memory it replaces.
    let result = unsafe { call.call(a) };
    let errno = errno();
    bounce.write_back();
    set_errno(errno);
    result
}

/// How many bytes of an argument of unknown length are touched.
const UNKNOWN_BYTES: usize = 256;

/// Returns the length of an ioctl's argument, from its number or a table; `None` if it is unknown.
fn ioctl_bytes(request: usize) -> Option<usize> {
    // The kernel's TCGETS and TCSETS have a shorter termios than the C library.
    const KERNEL_TERMIOS: usize = 36;
    const INTERFACE_REQUEST: usize = 40;
    let request = request as u32;
    match u64::from(request) {
        0x5401..=0x5404 => Some(KERNEL_TERMIOS),
        0x5413 | 0x5414 => Some(size_of::<libc::winsize>()),
        0x540f | 0x5410 | 0x5411 | 0x541b | 0x5421 | 0x5423 | 0x5452 => Some(4),
        0x8901..=0x8905 => Some(4),
        0x8906 | 0x8907 => Some(16),
        0x8913..=0x893f => Some(INTERFACE_REQUEST),
        _ => {
            // <asm-generic/ioctl.h>: two bits of direction, fourteen of size.
            let (direction, size) = (request >> 30, (request >> 16) & 0x3fff);
            (direction != 0 && size != 0).then_some(size as usize)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: usize, request: usize, argument: usize) -> isize {
    if let Some(runtime) = shielding().filter(|runtime| runtime.is_shared(argument, 1)) {
        match ioctl_bytes(request) {
            // SAFETY: the caller's.
            Some(bytes) => return unsafe { with_bytes(&IOCTL, runtime, [fd, request, argument], bytes) },
            // The length is unknown; the kernel finds at least the first bytes.
            None => touch(runtime, argument, UNKNOWN_BYTES),
        }
    }
    // SAFETY: the caller's.
    unsafe { IOCTL.call([fd, request, argument]) }
}

/// Returns how many bytes the argument of a command of fcntl(2) points to.
fn fcntl_bytes(command: c_int) -> usize {
    const OWNER: usize = 8;
    match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => size_of::<libc::flock64>(),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => size_of::<libc::flock64>(),
        // F_SETOWN_EX, F_GETOWN_EX; F_GET_RW_HINT to F_SET_FILE_RW_HINT.
        15 | 16 | 1035..=1038 => OWNER,
        _ => 0,
    }
}

/// # Safety
/// The requirements are those of fcntl(2).
unsafe fn control(call: &Call, fd: usize, command: usize, argument: usize) -> isize {
    let bytes = fcntl_bytes(command as c_int);
    match shielding().filter(|_| bytes > 0) {
        // SAFETY: the caller's.
        Some(runtime) => unsafe { with_bytes(call, runtime, [fd, command, argument], bytes) },
        // SAFETY: the caller's.
        None => unsafe { call.call([fd, command, argument]) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: usize, command: usize, argument: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { control(&FCNTL, fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: usize, command: usize, argument: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { control(&FCNTL64, fd, command, argument) }
}

/// The maximum number of words of a command line or an environment that are examined.
const WORDS_MAX: usize = 1 << 20;

fn word_count(words: *const *const c_char) -> usize {
    if words.is_null() {
        return 0;
    }
    // SAFETY: the program passes a vector that ends with NULL.
    let is_word = |index: &usize| unsafe { !(*words.wrapping_add(*index)).is_null() };
    (0..WORDS_MAX).take_while(is_word).count()
}

/// Copies a vector of strings to private memory, if any of it is shared.
fn private_words(bounce: &mut Bounce, runtime: &Runtime, words: usize) -> Option<usize> {
    let given = words as *const *const c_char;
    let count = word_count(given);
    // SAFETY: the vector has `count` words.
    let word = |index: usize| unsafe { *given.wrapping_add(index) };
    let shared = |index: &usize| runtime.is_shared(word(*index).addr(), 1);
    // SAFETY: the program passes C strings.
    let bytes_of = |index: usize| unsafe { libc::strlen(word(index)) } + 1;
    let bytes: usize = (0..count).filter(shared).map(bytes_of).sum();
    if bytes == 0 && !runtime.is_shared(words, 1) {
        return Some(words);
    }
    let vector_bytes = (count + 1) * size_of::<usize>();
    bounce.reserve(1, vector_bytes)?;
    let vector = bounce.copy(words, vector_bytes)?.cast::<usize>();
    bounce.reserve(1, bytes + 1)?;
    let mut place = bounce.piece(0, bytes + 1)?;
    for index in (0..count).filter(shared) {
        let length = bytes_of(index);
        super::load(place, word(index).addr(), length);
        // SAFETY: the private vector has `count` words and its end.
        let entry = unsafe { vector.add(index) };
        // SAFETY: as above.
        unsafe { entry.write(place.addr()) };
        // SAFETY: the piece has room for all strings.
        place = unsafe { place.add(length) };
    }
    Some(vector.addr())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(path: usize, arguments: usize, environment: usize) -> isize {
    let mut a = [path, arguments, environment];
    let Some(runtime) = shielding() else {
        // SAFETY: the caller's.
        return unsafe { EXECVE.call(a) };
    };
    let mut bounce = Bounce::new(runtime);
    if bounce.must_shield(path, 1) {
        a[0] = bounce.string(path, super::PATH_BYTES_MAX).map_or(path, |piece| piece.addr());
    }
    for words in &mut a[1..] {
        match private_words(&mut bounce, runtime, *words) {
            Some(private) => *words = private,
            None => return EXECVE.fail(libc::ENOMEM),
        }
    }
    // SAFETY: the caller's; the private memory has the same content as the memory it replaces.
    unsafe { EXECVE.call(a) }
}

#[cfg(test)]
mod tests {
    use super::ioctl_bytes;

    #[test]
    fn an_ioctl_tells_how_long_its_argument_is() {
        assert_eq!(ioctl_bytes(libc::FIONREAD as usize), Some(4));
        assert_eq!(ioctl_bytes(libc::TIOCGWINSZ as usize), Some(8));
        const BLKGETSIZE64: usize = 0x8008_1272;
        assert_eq!(ioctl_bytes(BLKGETSIZE64), Some(8));
        const BLKRRPART: usize = 0x125f;
        assert_eq!(ioctl_bytes(BLKRRPART), None);
    }
}
