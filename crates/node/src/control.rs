//! The node's end of the channel to the launcher.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::vec::IntoIter;

use hiroba_wire::control::{
    CONTROL_FD_VARIABLE, CONTROL_MESSAGE_BYTES_MAX, DESCRIPTORS_A_MESSAGE_MAX, JobDescription, ToLauncher,
    ToNode, decode, encode,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, sockopt,
};

use zeroize::Zeroizing;

use crate::NodeError;

/// The socket pair's end that this process keeps; the launcher has the other.
#[derive(Debug)]
pub(crate) struct ControlChannel {
    socket: OwnedFd,
}

/// The descriptors that arrived with the job, in the order of [`hiroba_wire::control::Descriptors`].
#[derive(Debug)]
pub(crate) struct Passed(IntoIter<OwnedFd>);

impl Passed {
    /// Takes the next `count` descriptors; the caller has checked that they are there.
    pub(crate) fn take(&mut self, count: u16) -> Vec<OwnedFd> {
        self.0.by_ref().take(usize::from(count)).collect()
    }

    /// Takes the next descriptor, if it came.
    pub(crate) fn next_if(&mut self, came: bool) -> Option<OwnedFd> {
        if came { self.0.next() } else { None }
    }
}

impl ControlChannel {
    /// Sends one end of a new channel to the launcher's socket that the environment names. Returns `None` if
    /// the process was not started by `hiroba run`.
    pub(crate) fn open() -> Result<Option<ControlChannel>, NodeError> {
        let Some(descriptor) = std::env::var_os(CONTROL_FD_VARIABLE) else { return Ok(None) };
        let descriptor = descriptor.to_string_lossy().into_owned();
        let bad = |source| NodeError::Control { descriptor: descriptor.clone(), source };
        let number: i32 = descriptor.parse().map_err(|_| bad(io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: F_GETFD only queries the number and has no memory operands.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            return Err(bad(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open, and no other code closes it during this function.
        let door = unsafe { BorrowedFd::borrow_raw(number) };
        // A program that was executed later may have opened a file of its own under that number.
        match (sockopt::socket_domain(door), sockopt::socket_type(door)) {
            (Ok(AddressFamily::UNIX), Ok(SocketType::SEQPACKET)) => {}
            (Err(errno), _) | (_, Err(errno)) => return Err(bad(errno.into())),
            _ => return Err(bad(Errno::NOTSOCK.into())),
        }
        // SAFETY: the launcher passed the descriptor to this process for this use alone.
        let door = unsafe { OwnedFd::from_raw_fd(number) };
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(NodeError::system("making a channel to the launcher"))?;
        match say_hello(&door, theirs) {
            Ok(()) => Ok(Some(ControlChannel { socket: ours })),
            // The launcher closes the socket after the first hello.
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(NodeError::NotFirst),
            Err(errno) => Err(bad(errno.into())),
        }
    }

    /// Receives the job and its descriptors.
    ///
    /// # Errors
    ///
    /// Fails if this library is of another build than the launcher, or if another process of this node has
    /// joined before.
    pub(crate) fn receive_job(&self) -> Result<(Box<JobDescription>, Passed), NodeError> {
        let mut buffer = Zeroizing::new(vec![0; CONTROL_MESSAGE_BYTES_MAX]);
        let mut passed = Vec::new();
        let job = match self.receive_with_descriptors(&mut buffer, &mut passed)? {
            Some(ToNode::Job(job)) => job,
            Some(ToNode::Refused { version, build }) => return Err(NodeError::other_build(version, build)),
            _ => return Err(NodeError::NotFirst),
        };
        let expected = job.descriptors.count();
        while passed.len() < expected {
            let got = passed.len();
            match self.receive_with_descriptors(&mut buffer, &mut passed)? {
                Some(ToNode::Descriptors) if passed.len() > got => {}
                _ => return Err(NodeError::Descriptors { expected, got }),
            }
        }
        Ok((job, Passed(passed.into_iter())))
    }

    fn receive_with_descriptors(
        &self,
        buffer: &mut [u8],
        passed: &mut Vec<OwnedFd>,
    ) -> Result<Option<ToNode>, NodeError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_A_MESSAGE_MAX))];
        let length = loop {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [io::IoSliceMut::new(buffer)];
            match recvmsg(&self.socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => {
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                            passed.extend(descriptors);
                        }
                    }
                    break received.bytes;
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(NodeError::system("reading from the launcher")(errno)),
            }
        };
        Ok(if length == 0 { None } else { Some(decode(&buffer[..length])?) })
    }

    /// Waits for the launcher's next message. Returns `None` when the launcher is gone.
    pub(crate) fn receive(&self) -> Result<Option<ToNode>, NodeError> {
        let mut buffer = vec![0; CONTROL_MESSAGE_BYTES_MAX];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(None),
                Ok((length, _)) => return Ok(Some(decode(&buffer[..length])?)),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(NodeError::system("reading from the launcher")(errno)),
            }
        }
    }

    /// Sends a message to the launcher. Errors are ignored: the reading side notices when the launcher is
    /// gone.
    pub(crate) fn send(&self, message: &ToLauncher) {
        let bytes = encode(message);
        while let Err(Errno::INTR) = send(&self.socket, &bytes, SendFlags::NOSIGNAL) {}
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn say_hello(door: &OwnedFd, channel: OwnedFd) -> Result<(), Errno> {
    let (version, build) = (env!("CARGO_PKG_VERSION").to_owned(), crate::BUILD.to_owned());
    let hello = encode(&ToLauncher::Hello { version, build });
    let descriptors = [channel.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    loop {
        match sendmsg(door, &[io::IoSlice::new(&hello)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
