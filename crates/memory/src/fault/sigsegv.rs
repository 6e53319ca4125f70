//! mprotect, with SIGSEGV in the faulting thread: needs no privilege and works on any kernel. System calls on
//! absent pages fail with `EFAULT`.
//!
//! The kernel keeps a mapping for each run of pages with equal access, and allows a process 65,530 of them
//! (`vm.max_map_count`). When they are used up, the source takes access away from a neighbourhood, whose
//! mappings thereby merge into one, and tries again. The program then faults there once more.

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

/// Length of the first neighbourhood that loses its access when mappings run out, in bytes.
const NEIGHBOURHOOD_BYTES_MIN: usize = 2 << 20;
/// The factor by which the neighbourhood grows when that freed nothing.
const NEIGHBOURHOOD_GROWTH: usize = 8;

/// The SIGSEGV source; see the module.
pub(super) struct SigsegvSource {
    // Declared before the receiver that it calls: no fault may reach a source that is being dropped.
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
            // Access would not help: the page contains no code, and the fault would repeat endlessly.
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

    /// Changes executability. The pages' access is not known here: they lose it, and regain it at the next
    /// faults, with the new executability. A thread that gives them access at the same time, unaware of this,
    /// makes a fetch fault once more.
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
            // The neighbourhood's own edges may need another mapping. Then a larger one is tried, up to the
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
