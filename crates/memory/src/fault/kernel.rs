//! Common parts of system calls on mapped pages.

use rustix::io::Errno;

/// A range of addresses.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Returns why the thread's last system call failed.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
