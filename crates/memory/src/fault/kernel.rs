//! What calls of the kernel about mapped pages have in common.

use rustix::io::Errno;

/// A range of addresses.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Why the thread's latest system call failed.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
