//! The node's end of the channel to the launcher.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use hiroba_wire::control::{
    CONTROL_FD_VARIABLE, CONTROL_MESSAGE_BYTES_MAX, ToLauncher, ToNode, decode, encode,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::NodeError;

/// The inherited socket.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    socket: OwnedFd,
}

impl ControlChannel {
    /// Takes over the descriptor that the environment names; `None` when the process was not started by
    /// `hiroba run`.
    pub(crate) fn inherit() -> Result<Option<ControlChannel>, NodeError> {
        let Some(descriptor) = std::env::var_os(CONTROL_FD_VARIABLE) else { return Ok(None) };
        let descriptor = descriptor.to_string_lossy().into_owned();
        let bad = |source| NodeError::Control { descriptor: descriptor.clone(), source };
        let number: i32 = descriptor.parse().map_err(|_| bad(io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: a number is looked at, nothing is taken over yet; F_GETFD has no memory operands.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            return Err(bad(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open, and the launcher passed it to this process for this use alone.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        close_on_exec(socket.as_fd()).map_err(|errno| bad(errno.into()))?;
        Ok(Some(ControlChannel { socket }))
    }

    /// The job, which the launcher queued before the node's first program began; `None` when the launcher is gone.
    pub(crate) fn receive_job(&self) -> Result<Option<ToNode>, NodeError> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Waits for the launcher's next word; `None` when it is gone.
    pub(crate) fn receive(&self) -> Result<Option<ToNode>, NodeError> {
        self.receive_with(RecvFlags::empty())
    }

    fn receive_with(&self, flags: RecvFlags) -> Result<Option<ToNode>, NodeError> {
        let mut buffer = vec![0; CONTROL_MESSAGE_BYTES_MAX];
        loop {
            match recv(&self.socket, &mut buffer[..], flags) {
                Ok((0, _)) => return Ok(None),
                Ok((length, _)) => return Ok(Some(decode(&buffer[..length])?)),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(Errno::AGAIN) => return Err(NodeError::NotFirst),
                Err(errno) => return Err(NodeError::system("reading from the launcher")(errno)),
            }
        }
    }

    /// Tells the launcher something. A launcher that is gone is noticed by whoever reads.
    pub(crate) fn send(&self, message: &ToLauncher) {
        let bytes = encode(message);
        while let Err(Errno::INTR) = send(&self.socket, &bytes, SendFlags::NOSIGNAL) {}
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Keeps a descriptor of ours out of programs that the program starts.
pub(crate) fn close_on_exec(descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC)
}
