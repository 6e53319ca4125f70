//! A node's state for each of its peers, and the sending half of the connection to it.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hiroba_base::legs::{self, Leg};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::doors::Unconnected;
use super::key::RecordKey;
use super::record::Outgoing;

/// Number of records sealed ahead and passed to the socket in one call.
pub const RECORDS_AT_ONCE: usize = 4;

/// The state of the sending half of a connection.
pub enum State {
    /// Not established yet: records wait.
    Waiting,
    /// Established, under the keys of this direction.
    Open(RecordKey),
    /// Ended. The fabric can do nothing more for this peer; other code decides that it is dead.
    Broken,
}

/// The result of writing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The socket has taken all of them.
    All,
    /// The socket will take the rest later.
    Blocked,
    /// The connection takes no more.
    Broken,
}

/// The sending half. The state of one peer is under one lock.
pub struct Outbound {
    /// The connection's state.
    pub state: State,
    /// The records that wait.
    pub outgoing: Outgoing,
    /// True if the fabric must be notified when the socket takes more.
    pub is_blocked: bool,
    /// Messages passed to `send`.
    pub messages_sent: u64,
    /// Messages that the peer has confirmed.
    pub acknowledged: u64,
    /// True if the peer was asked and has not answered.
    pub is_asked: bool,
    /// Bytes passed to the socket, heads and tags included.
    pub bytes_sent: u64,
    /// This peer's share in the byte count over all peers.
    pub backlog_counted: usize,
}

/// A peer.
pub struct Peer {
    /// The established connection: set once and never replaced.
    pub socket: OnceLock<OwnedFd>,
    /// Number of successive ticks in which it owed an answer and nothing arrived.
    pub silent_ticks: AtomicU32,
    /// The failed attempts to connect to it, while there is no connection.
    unconnected: Mutex<Option<Unconnected>>,
    outbound: Mutex<Outbound>,
}

impl Peer {
    /// Makes a peer that has not connected.
    pub fn new() -> Peer {
        Peer {
            socket: OnceLock::new(),
            silent_ticks: AtomicU32::new(0),
            unconnected: Mutex::new(None),
            outbound: Mutex::new(Outbound {
                state: State::Waiting,
                outgoing: Outgoing::default(),
                is_blocked: false,
                messages_sent: 0,
                acknowledged: 0,
                is_asked: false,
                bytes_sent: 0,
                backlog_counted: 0,
            }),
        }
    }

    /// Locks the sending half. The lock is held for one pass over the records and for system calls that do
    /// not block.
    pub fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the record of failed attempts. The lock is held for a copy.
    pub fn unconnected(&self) -> MutexGuard<'_, Option<Unconnected>> {
        self.unconnected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that something has arrived from it.
    pub fn is_heard(&self) {
        // Mostly it is zero, and a cache line that other threads read is not written.
        if self.silent_ticks.load(Ordering::Relaxed) != 0 {
            self.silent_ticks.store(0, Ordering::Relaxed);
        }
    }
}

impl Outbound {
    /// Returns true if the peer has not confirmed all messages.
    pub fn is_owed(&self) -> bool {
        self.messages_sent != self.acknowledged
    }

    /// Asks the peer what has arrived, if it was not asked yet.
    pub fn ask(&mut self) {
        if matches!(self.state, State::Open(_)) && !self.is_asked {
            self.is_asked = true;
            self.outgoing.ping();
        }
    }

    /// Records the peer's confirmation of `messages` messages.
    pub fn acknowledge(&mut self, messages: u64) {
        self.acknowledged = messages.min(self.messages_sent);
        self.is_asked = false;
    }

    /// Confirms `messages` messages to the peer.
    pub fn answer(&mut self, messages: u64) {
        if matches!(self.state, State::Open(_)) {
            self.outgoing.pong(messages);
        }
    }

    /// Writes to the socket as many waiting records as it takes.
    pub fn flush(&mut self, socket: &OwnedFd) -> Flushed {
        let State::Open(key) = &mut self.state else { return Flushed::Broken };
        while self.outgoing.len() > 0 {
            self.outgoing.seal(key, RECORDS_AT_ONCE);
            legs::end(Leg::Seal);
            let mut slices = [IoSlice::new(&[]); RECORDS_AT_ONCE];
            let count = self.outgoing.sealed(&mut slices);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match &slices[..count] {
                [one] => send(socket, one, flags),
                several => sendmsg(socket, several, &mut SendAncillaryBuffer::default(), flags),
            };
            legs::end(Leg::Send);
            match sent {
                Ok(bytes) => {
                    self.outgoing.advance(bytes);
                    self.bytes_sent += bytes as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Flushed::Blocked,
                Err(_) => {
                    self.break_off();
                    return Flushed::Broken;
                }
            }
        }
        Flushed::All
    }

    /// Ends the connection. Waiting records are dropped.
    pub fn break_off(&mut self) {
        self.state = State::Broken;
        self.outgoing.discard();
        self.is_blocked = false;
    }
}
