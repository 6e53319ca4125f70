//! The descriptors that the fabric waits for, and which is which.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hiroba_base::NodeId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

/// Descriptors looked at in one turn; the others have theirs in the next.
const EVENTS_AT_ONCE: usize = 64;

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Somebody wakes the pollers.
    Wake,
    /// A tick.
    Ticker,
    /// Somebody connects.
    Listener,
    /// An established connection.
    Peer(NodeId),
    /// A connection that this node tries to make.
    Dial(NodeId),
    /// A connection that somebody else tries to make, by the order of their coming.
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
    /// Of nothing yet.
    ///
    /// # Errors
    ///
    /// When the system gives no descriptor.
    pub fn new() -> rustix::io::Result<Watch> {
        Ok(Watch { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `descriptor` from now on.
    ///
    /// # Errors
    ///
    /// When the system has no room.
    pub fn add(&self, descriptor: impl AsFd, source: Source, events: EventFlags) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, descriptor, source.encode(), events)
    }

    /// Watches for other events, or as another source. It cannot fail for a descriptor that is watched.
    pub fn change(&self, descriptor: impl AsFd, source: Source, events: EventFlags) {
        let _ = epoll::modify(&self.epoll, descriptor, source.encode(), events);
    }

    /// Watches `descriptor` no more. Closing it does not do: a forked child may have it open, too.
    pub fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// What is ready now and for what, without waiting.
    ///
    /// # Errors
    ///
    /// The system's, which no repetition mends.
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
