//! The set of descriptors that the fabric waits for, with their meanings.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hiroba_base::NodeId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

/// Maximum number of ready descriptors in one turn; the others follow in the next.
const EVENTS_AT_ONCE: usize = 64;

/// The meaning of a ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A wake of the polling threads.
    Wake,
    /// A tick.
    Ticker,
    /// An incoming connection.
    Listener,
    /// An established connection.
    Peer(NodeId),
    /// A connection that this node tries to make.
    Dial(NodeId),
    /// A connection that another process tries to make, by order of arrival.
    Caller(u32),
}

impl Source {
    fn encode(self) -> EventData {
        let (kind, number) = match self {
            Source::Wake => (0, 0),
            Source::Ticker => (1, 0),
            Source::Listener => (2, 0),
            Source::Peer(node) => (3, u32::from(node.0)),
            Source::Dial(node) => (4, u32::from(node.0)),
            Source::Caller(number) => (5, number),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn decode(data: EventData) -> Source {
        let number = data.u64() as u32;
        let node = NodeId(number as u16);
        match data.u64() >> 32 {
            0 => Source::Wake,
            1 => Source::Ticker,
            2 => Source::Listener,
            3 => Source::Peer(node),
            4 => Source::Dial(node),
            _ => Source::Caller(number),
        }
    }
}

/// An epoll descriptor.
pub struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Makes an empty set.
    ///
    /// # Errors
    ///
    /// Fails if the system has no descriptor left.
    pub fn new() -> rustix::io::Result<Watch> {
        Ok(Watch { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `descriptor` from now on.
    ///
    /// # Errors
    ///
    /// Fails if the system has no room.
    pub fn add(&self, descriptor: impl AsFd, source: Source, events: EventFlags) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, descriptor, source.encode(), events)
    }

    /// Changes the events or the source of a descriptor. It cannot fail for a watched one.
    pub fn change(&self, descriptor: impl AsFd, source: Source, events: EventFlags) {
        let _ = epoll::modify(&self.epoll, descriptor, source.encode(), events);
    }

    /// Stops watching `descriptor`. Closing it is not enough: a forked child may have it open, too.
    pub fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Finds the descriptors that are ready now, without waiting.
    ///
    /// # Errors
    ///
    /// Fails with a system error that no retry repairs.
    pub fn ready(&self, found: &mut Vec<(Source, EventFlags)>) -> rustix::io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_AT_ONCE];
        found.clear();
        match epoll::wait(&self.epoll, &mut room, Some(&none)) {
            Ok((events, _)) => {
                found.extend(events.iter().map(|event| (Source::decode(event.data), event.flags)));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_the_kernel() {
        let node = NodeId(4095);
        for source in [
            Source::Wake,
            Source::Ticker,
            Source::Listener,
            Source::Peer(node),
            Source::Dial(NodeId(0)),
            Source::Caller(u32::MAX),
        ] {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }
}
