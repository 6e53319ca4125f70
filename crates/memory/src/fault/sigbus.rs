//! userfaultfd faults as SIGBUS in the faulting thread. No other thread has to wake, so this is the fastest
//! source, and an ordinary user may use it. System calls on absent pages fail with `EFAULT`.

use std::sync::Arc;

use hiroba_base::{Access, PageRange, PageSet};

use super::{
    FaultEvents, FaultHandler, FaultOutcome, FaultSource, FaultSourceKind, WriteTracking,
    signal::{Installed, RawFault, Signal, SignalReceiver},
    userfaultfd::{Delivery, Supervised},
};
use crate::{MemoryError, SharedMemory};

/// The SIGBUS source; see the module.
pub(super) struct SigbusSource {
    // Declared before the receiver that it calls: no fault may reach a source that is being dropped.
    _installed: Installed,
    receiver: Arc<Receiver>,
}

struct Receiver {
    supervised: Supervised,
    handler: Arc<dyn FaultHandler>,
}

impl SigbusSource {
    pub(super) fn open(
        memory: Arc<SharedMemory>,
        tracking: WriteTracking,
        handler: Arc<dyn FaultHandler>,
    ) -> Result<SigbusSource, MemoryError> {
        let supervised = Supervised::open(memory, Delivery::Sigbus, tracking)?;
        let receiver = Arc::new(Receiver { supervised, handler });
        let installed = Installed::install(Signal::Bus, FaultSourceKind::Sigbus, receiver.clone())?;
        Ok(SigbusSource { _installed: installed, receiver })
    }
}

impl SignalReceiver for Receiver {
    fn receive(&self, raw: RawFault) -> FaultOutcome {
        if raw.code != libc::BUS_ADRERR {
            return FaultOutcome::NotOurs;
        }
        let Some(page) = self.supervised.memory().allocated_page_of(raw.address) else {
            return FaultOutcome::NotOurs;
        };
        if raw.entry_present != Some(true) {
            self.supervised.forget(page);
        }
        self.handler.handle_fault(raw.at(page))
    }
}

impl FaultSource for SigbusSource {
    fn kind(&self) -> FaultSourceKind {
        FaultSourceKind::Sigbus
    }

    fn tracking(&self) -> WriteTracking {
        self.receiver.supervised.tracking()
    }

    fn register(&self, pages: PageRange, stores: WriteTracking) -> Result<(), MemoryError> {
        self.receiver.supervised.register(pages, stores)
    }

    fn let_go(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.receiver.supervised.let_go(pages)
    }

    fn protect(&self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        self.receiver.supervised.protect(pages, access)
    }

    fn execute(&self, pages: PageRange, on: bool) -> Result<(), MemoryError> {
        self.receiver.supervised.memory().open_for_executing(pages, on)
    }

    fn watch(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.receiver.supervised.watch(pages)
    }

    fn unwatch(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.receiver.supervised.unwatch(pages)
    }

    fn collect_written(&self, out: &mut PageSet) -> Result<(), MemoryError> {
        self.receiver.supervised.collect_written(out)
    }

    fn find_unwritten(&self, pages: PageRange, out: &mut PageSet) -> Result<(), MemoryError> {
        self.receiver.supervised.find_unwritten(pages, out)
    }

    fn events(&self) -> Option<&dyn FaultEvents> {
        None
    }
}
