//! Gives each node of this machine what it needs to join, once: the job's description with the key, and the
//! descriptors of sockets, traces and shared memory (`wire/src/control.rs` describes the sequence).
//!
//! Nodes do not inherit these, since a program may run under a wrapper whose other children would inherit
//! them too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hiroba_base::NodeId;
use hiroba_wire::control::{self, DESCRIPTORS_A_MESSAGE_MAX, Descriptors, JobDescription, ToNode};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use zeroize::Zeroizing;

use super::endpoints::{Endpoints, Parts};

/// What the nodes of one machine will be given.
#[derive(Debug)]
pub struct Handover {
    /// The description for the first node of this machine.
    job: JobDescription,
    sockets: Vec<Option<OwnedFd>>,
    traces: Vec<Option<OwnedFd>>,
    /// What all nodes get: each node's frames, then each one's board, then each one's doorbell.
    shared: Vec<OwnedFd>,
}

/// How far a node's handover has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    described: bool,
    descriptors: usize,
}

impl Handover {
    /// Prepares the handover for the nodes of `job` that run on this machine.
    pub fn new(job: JobDescription, endpoints: Endpoints, traces: Vec<OwnedFd>) -> Handover {
        let Parts { sockets, shared } = endpoints.into_parts();
        let mut traces: Vec<_> = traces.into_iter().map(Some).collect();
        traces.resize_with(sockets.len(), || None);
        Handover { job, sockets, traces, shared }
    }

    /// Gives the node at `place` what it has not got yet, over its own channel, and drops what no other node
    /// needs.
    ///
    /// # Errors
    /// Fails if the system accepts no more at present (`AGAIN`, `TOOMANYREFS`), or if the node is gone.
    pub fn give(&mut self, place: usize, channel: BorrowedFd<'_>, given: &mut Given) -> Result<(), Errno> {
        let own = [&self.sockets[place], &self.traces[place]];
        let all: Vec<BorrowedFd<'_>> =
            own.into_iter().flatten().chain(&self.shared).map(AsFd::as_fd).collect();
        while !given.described || given.descriptors < all.len() {
            let next = all.len().min(given.descriptors + DESCRIPTORS_A_MESSAGE_MAX);
            let message = if given.described {
                Zeroizing::new(control::encode(&ToNode::Descriptors))
            } else {
                control::encode_secret(&self.description(place))
            };
            send(channel, &message, &all[given.descriptors..next])?;
            *given = Given { described: true, descriptors: next };
        }
        (self.sockets[place], self.traces[place]) = (None, None);
        Ok(())
    }

    fn description(&self, place: usize) -> ToNode {
        let mut job = self.job.clone();
        job.node = NodeId(self.job.node.0 + place as u16);
        job.descriptors = Descriptors {
            socket: self.sockets[place].is_some(),
            trace: self.traces[place].is_some(),
            shared_by: (self.shared.len() / 3) as u16,
        };
        ToNode::Job(Box::new(job))
    }
}

/// Tells a node that says hello with a library of another build which build this is. A node that cannot read
/// this any more sees the end of its channel.
pub fn refuse(channel: BorrowedFd<'_>) {
    let (version, build) = (env!("CARGO_PKG_VERSION").to_owned(), hiroba_node::BUILD.to_owned());
    let _ = send(channel, &control::encode(&ToNode::Refused { version, build }), &[]);
}

fn send(channel: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space =
        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_A_MESSAGE_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(channel, &[std::io::IoSlice::new(bytes)], &mut ancillary, flags).map(drop)
}
