//! What a node keeps for each of its peers, and the sending half of the connection to it.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::doors::Unconnected;
use super::key::RecordKey;
use super::record::Outgoing;

/// Records that are sealed ahead of the socket, and given to it in one call.
pub const RECORDS_AT_ONCE: usize = 4;

/// Where the sending half of a connection stands.
pub enum State {
    /// Not established yet: what is sent waits.
    Waiting,
    /// Established, under the keys of this direction.
    Open(RecordKey),
    /// It has ended, and with it what the fabric can do for this peer; who is dead is decided elsewhere.
    Broken,
}

/// What became of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The socket has taken all of them.
    All,
    /// It will take the rest later.
    Blocked,
    /// It takes no more.
    Broken,
}

/// The sending half; what belongs to one peer is under one lock.
pub struct Outbound {
    /// Where it stands.
    pub state: State,
    /// What waits.
    pub outgoing: Outgoing,
    /// Whether the fabric is to be told when the socket takes more.
    pub is_blocked: bool,
    /// Messages given to `send`.
    pub messages_sent: u64,
    /// Messages of which the peer has said that they have come.
    pub acknowledged: u64,
    /// It was asked and has not answered.
    pub is_asked: bool,
    /// Bytes given to the socket, heads and tags included.
    pub bytes_sent: u64,
    /// What this peer has in the count of bytes over all peers.
    pub backlog_counted: usize,
}

/// A peer.
pub struct Peer {
    /// The established connection: set once, and never replaced, whoever else comes along.
    pub socket: OnceLock<OwnedFd>,
    /// Ticks in a row in which it owed an answer and nothing came.
    pub silent_ticks: AtomicU32,
    /// What has become of attempts to connect to it, while there is no connection.
    unconnected: Mutex<Option<Unconnected>>,
    outbound: Mutex<Outbound>,
}

impl Peer {
    /// One that has not connected.
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

    /// The lock is held for one pass over the records and for system calls that do not block.
    pub fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock is held for a copy.
    pub fn unconnected(&self) -> MutexGuard<'_, Option<Unconnected>> {
        self.unconnected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come from it.
    pub fn is_heard(&self) {
        // Mostly it is zero, and then a line that other threads read stays as it is.
        if self.silent_ticks.load(Ordering::Relaxed) != 0 {
            self.silent_ticks.store(0, Ordering::Relaxed);
        }
    }
}

impl Outbound {
    /// Whether the peer has not said that everything has come.
    pub fn is_owed(&self) -> bool {
        self.messages_sent != self.acknowledged
    }

    /// Asks the peer what has come, if it has not yet been asked.
    pub fn ask(&mut self) {
        if matches!(self.state, State::Open(_)) && !self.is_asked {
            self.is_asked = true;
            self.outgoing.ping();
        }
    }

    /// The peer says that so many messages have come.
    pub fn acknowledge(&mut self, messages: u64) {
        self.acknowledged = messages.min(self.messages_sent);
        self.is_asked = false;
    }

    /// Tells the peer that so many messages have come.
    pub fn answer(&mut self, messages: u64) {
        if matches!(self.state, State::Open(_)) {
            self.outgoing.pong(messages);
        }
    }

    /// Gives the socket what it takes of what waits.
    pub fn flush(&mut self, socket: &OwnedFd) -> Flushed {
        let State::Open(key) = &mut self.state else { return Flushed::Broken };
        while self.outgoing.len() > 0 {
            self.outgoing.seal(key, RECORDS_AT_ONCE);
            let mut slices = [IoSlice::new(&[]); RECORDS_AT_ONCE];
            let count = self.outgoing.sealed(&mut slices);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match &slices[..count] {
                [one] => send(socket, one, flags),
                several => sendmsg(socket, several, &mut SendAncillaryBuffer::default(), flags),
            };
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

    /// The connection has ended: what waits will not arrive.
    pub fn break_off(&mut self) {
        self.state = State::Broken;
        self.outgoing.discard();
        self.is_blocked = false;
    }
}
