//! Faults as messages on a userfaultfd, served by another thread than the faulting one.
//!
//! Transparent to system calls: the kernel itself waits for pages that it copies from or to.

use core::mem::MaybeUninit;
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use hiroba_base::{Access, PageRange, PageSet};
use rustix::io::Errno;

use super::{
    FAULTS_PER_READ_MAX, Fault, FaultEvents, FaultKind, FaultSource, FaultSourceKind, WriteTracking,
    userfaultfd::{Delivery, Supervised},
};
use crate::{MemoryError, SharedMemory};

// `struct uffd_msg` of userfaultfd(2); only page faults are requested.
const MESSAGE_BYTES: usize = 32;
const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
const UFFD_PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
const UFFD_PAGEFAULT_FLAG_WP: u64 = 1 << 1;

/// The event source; see the module.
pub(super) struct EventSource {
    supervised: Supervised,
}

impl EventSource {
    pub(super) fn open(
        memory: Arc<SharedMemory>,
        tracking: WriteTracking,
    ) -> Result<EventSource, MemoryError> {
        Ok(EventSource { supervised: Supervised::open(memory, Delivery::Messages, tracking)? })
    }

    fn read_from(&self, descriptor: &OwnedFd, out: &mut Vec<Fault>) -> Result<(), MemoryError> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); FAULTS_PER_READ_MAX * MESSAGE_BYTES];
        let got = loop {
            match rustix::io::read(descriptor, &mut buffer) {
                Ok((got, _)) => break got,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(MemoryError::System { operation: "read of a userfaultfd", errno }),
            }
        };
        out.extend(got.chunks_exact(MESSAGE_BYTES).filter_map(|message| self.decode(message)));
        Ok(())
    }

    fn decode(&self, message: &[u8]) -> Option<Fault> {
        let word = |offset: usize| {
            let bytes = message[offset..offset + 8].try_into().expect("a message has four words");
            u64::from_ne_bytes(bytes)
        };
        if message[0] != UFFD_EVENT_PAGEFAULT {
            return None;
        }
        let (flags, address, thread) = (word(8), word(16) as usize, word(24) as u32);
        let page = self.supervised.memory().allocated_page_of(address)?;
        if flags & UFFD_PAGEFAULT_FLAG_WP == 0 {
            self.supervised.forget(page);
        }
        let wrote = flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP) != 0;
        let kind = if wrote { FaultKind::Write } else { FaultKind::Read };
        Some(Fault { page, address, kind, program_counter: None, thread: Some(thread) })
    }
}

impl FaultSource for EventSource {
    fn kind(&self) -> FaultSourceKind {
        FaultSourceKind::Event
    }

    fn tracking(&self) -> WriteTracking {
        self.supervised.tracking()
    }

    fn register(&self, pages: PageRange, stores: WriteTracking) -> Result<(), MemoryError> {
        self.supervised.register(pages, stores)
    }

    fn let_go(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.supervised.let_go(pages)
    }

    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        self.supervised.protect(pages, access)
    }

    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        self.supervised.memory().open_for_executing(pages, on)
    }

    fn watch(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.supervised.watch(pages)
    }

    fn unwatch(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.supervised.unwatch(pages)
    }

    fn collect_written(&self, out: &mut PageSet) -> Result<(), MemoryError> {
        self.supervised.collect_written(out)
    }

    fn find_unwritten(&self, pages: PageRange, out: &mut PageSet) -> Result<(), MemoryError> {
        self.supervised.find_unwritten(pages, out)
    }

    fn events(&self) -> Option<&dyn FaultEvents> {
        Some(self)
    }
}

impl FaultEvents for EventSource {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.supervised.descriptors().into_iter().map(AsFd::as_fd).collect()
    }

    fn read(&self, out: &mut Vec<Fault>) -> Result<(), MemoryError> {
        self.supervised.descriptors_in_use().try_for_each(|descriptor| self.read_from(descriptor, out))
    }
}
