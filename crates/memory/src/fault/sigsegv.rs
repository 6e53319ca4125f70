//! mprotect, and SIGSEGV in the faulting thread: no privilege, any kernel. System calls on absent pages
//! fail with `EFAULT`.
//!
//! Each run of pages of like access is a mapping of its own to the kernel, which allows a process 65,530 of
//! them (`vm.max_map_count`). When they are used up, the source takes access to a neighbourhood away, whose
//! mappings thereby become one, and tries again: the program faults there once more, and goes on.

use std::sync::Arc;

use hiroba_base::{Access, PageRange, PageSet};
use rustix::{io::Errno, mm::MprotectFlags};

use super::{
    FaultEvents, FaultHandler, FaultOutcome, FaultSource, FaultSourceKind, WriteTracking,
    signal::{Installed, RawFault, Signal, SignalReceiver},
};
use crate::{MemoryError, SharedMemory, memory::Claim};

/// `SEGV_ACCERR` of <asm-generic/siginfo.h>: the mapping exists but does not allow the access.
const SEGV_ACCERR: i32 = 2;

/// The first neighbourhood that gives up its access for want of mappings, in bytes.
const NEIGHBOURHOOD_BYTES_MIN: usize = 2 << 20;
/// By how much the neighbourhood grows when that freed nothing.
const NEIGHBOURHOOD_GROWTH: usize = 8;

/// See the module.
pub(super) struct SigsegvSource {
    // Declared before what it calls: no fault may come to a source that is being dropped.
    _installed: Installed,
    receiver: Arc<Receiver>,
}

struct Receiver {
    claim: Claim,
    handler: Arc<dyn FaultHandler>,
}

impl SigsegvSource {
    pub(super) fn open(
        memory: Arc<SharedMemory>,
        tracking: WriteTracking,
        handler: Arc<dyn FaultHandler>,
    ) -> Result<SigsegvSource, MemoryError> {
        if tracking == WriteTracking::Async {
            return Err(MemoryError::NoAsyncTracking {
                missing: "a fault source over userfaultfd, not sigsegv,".to_owned(),
            });
        }
        let receiver = Arc::new(Receiver { claim: Claim::new(memory, FaultSourceKind::Sigsegv)?, handler });
        let installed = Installed::install(Signal::Segmentation, FaultSourceKind::Sigsegv, receiver.clone())?;
        Ok(SigsegvSource { _installed: installed, receiver })
    }
}

impl SignalReceiver for Receiver {
    fn receive(&self, raw: RawFault) -> FaultOutcome {
        if raw.code != SEGV_ACCERR {
            return FaultOutcome::NotOurs;
        }
        match self.claim.memory().allocated_page_of(raw.address) {
            // Access would not help: the page holds no code, and the fault would come again without end.
            Some(page) if raw.is_fetch && !self.claim.memory().is_executable(page) => FaultOutcome::NotOurs,
            Some(page) => self.handler.handle_fault(raw.at(page)),
            None => FaultOutcome::NotOurs,
        }
    }
}

impl Receiver {
    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        let (offset, bytes) = self.claim.memory().allocated_span(pages)?;
        if bytes == 0 {
            return Ok(());
        }
        let protection = match access {
            Access::None => MprotectFlags::empty(),
            Access::Read => MprotectFlags::READ,
            Access::Write => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        if access != Access::None {
            self.claim.memory().populate(pages)?;
        }
        if access == Access::None || !self.claim.memory().is_any_executable(pages) {
            return self.protect_as(offset, bytes, protection);
        }
        for (run, holds_code) in self.claim.memory().executable_runs(pages) {
            let (offset, bytes) = self.claim.memory().span(run)?;
            let execute = if holds_code { MprotectFlags::EXEC } else { MprotectFlags::empty() };
            self.protect_as(offset, bytes, protection | execute)?;
        }
        Ok(())
    }

    fn protect_as(&self, offset: usize, bytes: usize, protection: MprotectFlags) -> Result<(), MemoryError> {
        match self.claim.memory().application().protect(offset, bytes, protection) {
            Err(Errno::NOMEM) => self.protect_after_merging(offset, bytes, protection),
            other => other.map_err(MemoryError::of_view("mprotect")),
        }
    }

    /// Which access the pages have is not known here: they lose it, and get it back with the next faults, as executable as they are then. A
    /// thread that gives them access at the same time without knowing of this makes a fetch fault once more.
    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        self.claim.memory().allocated_span(pages)?;
        if !on && !self.claim.memory().is_any_executable(pages) {
            return Ok(());
        }
        self.claim.memory().note_executable(pages, on)?;
        self.protect(pages, Access::None)
    }

    fn protect_after_merging(
        &self,
        offset: usize,
        bytes: usize,
        protection: MprotectFlags,
    ) -> Result<(), MemoryError> {
        let view = self.claim.memory().application();
        let mut unit = NEIGHBOURHOOD_BYTES_MIN;
        loop {
            let start = offset / unit * unit;
            let end = (offset + bytes).next_multiple_of(unit).min(view.bytes());
            // The neighbourhood's own edges may need a mapping more: then a larger one is tried, up to the
            // whole region, which has no edges.
            let merged = view.protect(start, end - start, MprotectFlags::empty());
            let result = merged.and_then(|()| view.protect(offset, bytes, protection));
            match result {
                Err(Errno::NOMEM) if end - start < view.bytes() => {
                    unit = unit.saturating_mul(NEIGHBOURHOOD_GROWTH)
                }
                Err(Errno::NOMEM) => return Err(MemoryError::TooManyMappings),
                other => return other.map_err(MemoryError::of_view("mprotect")),
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.claim.close_application();
    }
}

impl FaultSource for SigsegvSource {
    fn kind(&self) -> FaultSourceKind {
        FaultSourceKind::Sigsegv
    }

    fn tracking(&self) -> WriteTracking {
        WriteTracking::Fault
    }

    fn register(&self, pages: PageRange, _stores: WriteTracking) -> Result<(), MemoryError> {
        self.receiver.protect(pages, Access::None)
    }

    fn let_go(&self, _pages: PageRange) -> Result<(), MemoryError> {
        Ok(())
    }

    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        self.receiver.protect(pages, access)
    }

    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        self.receiver.execute(pages, on)
    }

    fn watch(&self, _pages: PageRange) -> Result<(), MemoryError> {
        Err(MemoryError::NotTracking)
    }

    fn unwatch(&self, _pages: PageRange) -> Result<(), MemoryError> {
        Ok(())
    }

    fn collect_written(&self, _out: &mut PageSet) -> Result<(), MemoryError> {
        Ok(())
    }

    fn find_unwritten(&self, _pages: PageRange, _out: &mut PageSet) -> Result<(), MemoryError> {
        Err(MemoryError::NotTracking)
    }

    fn events(&self) -> Option<&dyn FaultEvents> {
        None
    }
}
