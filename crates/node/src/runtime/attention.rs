//! A serving thread's interest in a fabric.
//!
//! A thread that waits for an answer polls the fabric itself, which saves a hop between threads on every
//! answer. The thread that serves other nodes must not be woken then only to find nothing to do, so it is
//! made to ignore the fabric meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use hiroba_fabric::Fabric;
use rustix::event::epoll;
use rustix::io::Errno;

/// What a serving thread sleeps on. One waiting thread at a time watches the fabric in its place.
#[derive(Debug)]
pub(crate) struct Attention {
    epoll: OwnedFd,
    /// The number under which the fabric is reported.
    fabric: u64,
    /// True if a waiting thread watches.
    is_taken: Mutex<bool>,
}

impl Attention {
    /// Makes an attention to a fabric, which is reported under a number. More descriptors may be added to its
    /// epoll descriptor.
    pub(crate) fn new(fabric: Option<&dyn Fabric>, number: u64) -> Result<Attention, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for source in
            fabric.into_iter().flat_map(|fabric| [Some(fabric.descriptor()), fabric.alarms()]).flatten()
        {
            epoll::add(&epoll, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        Ok(Attention { epoll, fabric: number, is_taken: Mutex::new(false) })
    }

    /// Makes the calling thread watch the fabric in place of the serving thread. Returns false if another one
    /// does.
    pub(crate) fn take(&self, fabric: &dyn Fabric) -> bool {
        let mut is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_taken, true) {
            return false;
        }
        self.turn(fabric, epoll::EventFlags::empty());
        true
    }

    /// Ends the watch of that thread.
    pub(crate) fn give_back(&self, fabric: &dyn Fabric) {
        let mut is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        *is_taken = false;
        self.turn(fabric, epoll::EventFlags::IN);
    }

    /// Has the serving thread watch, too, until `is_needed` is false again.
    pub(crate) fn share(&self, fabric: &dyn Fabric, is_needed: bool) {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_taken {
            self.turn(fabric, if is_needed { epoll::EventFlags::IN } else { epoll::EventFlags::empty() });
        }
    }

    fn turn(&self, fabric: &dyn Fabric, events: epoll::EventFlags) {
        // It cannot fail for a descriptor that was added. If it did, the serving thread's naps would bound
        // the harm.
        let data = epoll::EventData::new_u64(self.fabric);
        let _ = epoll::modify(&self.epoll, fabric.descriptor(), data, events);
    }
}

impl AsFd for Attention {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
