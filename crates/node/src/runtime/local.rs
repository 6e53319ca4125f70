//! A node's own data (`hiroba_alloc_local`).
//!
//! It lies in the shared region, at addresses that are this node's alone, and is paged like shared pages: by
//! the same budget and policy, to the same places (`--lend`, `--swap`). But no engine knows of it: the host
//! itself gives access at a fault and takes it away when a page leaves. So it costs no message, no notice, no
//! twin and no diff, under any protocol, and a trace does not contain it. Other nodes have nothing at these
//! addresses. In a job of one node nothing faults, and nothing leaves.

use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_memory::MemoryError;
use hiroba_memory::fault::{Fault, FaultOutcome};
use hiroba_wire::{AtomicOperation, AtomicOutcome};

use crate::runtime::Runtime;
use crate::runtime::host::{Core, operate};
use crate::signals::SignalsDeferred;
use crate::time_class::{TimeClass, classify};

impl Runtime {
    /// Allocates zeroed data of this node, in whole granules. Returns `None` if its addresses are used up.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for the record of these pages.
    pub fn allocate_local(&self, bytes: u64) -> Result<Option<usize>, MemoryError> {
        let _signals = SignalsDeferred::defer();
        let granule_bytes = u64::from(self.job.limits.granule_bytes);
        let Some(granules) = self.core().local.take(bytes, granule_bytes) else { return Ok(None) };
        self.register(granules, false)?;
        Ok(Some(self.memory.address_of(granules.first) as usize))
    }

    /// Frees data of this node. Returns false if the address is of no node's own data. `call` names the
    /// caller's call in the sentence that ends the job if no block of this node begins there.
    pub(crate) fn free_local(&self, call: &str, address: usize) -> bool {
        let page = self.memory.page_of(address);
        let Some((page, owner)) = page.and_then(|page| Some((page, self.job.layout.local_owner(page)?)))
        else {
            return false;
        };
        let is_start = address == self.memory.address_of(page) as usize;
        let mut freed = false;
        if owner == self.me && is_start {
            self.tell(|core| freed = self.take_back_local(core, page));
        }
        if !freed {
            let place = self.describe_address(address).unwrap_or_default();
            self.fatal(&format!(
                "{call}: expected an address that hiroba_alloc_local returned on this node and that is not freed \
                 yet, got 0x{address:x}: {place}"
            ));
        }
        true
    }

    fn take_back_local(&self, core: &mut Core, first: PageId) -> bool {
        let Some(granules) = core.local.free(first) else { return false };
        if let Some(faults) = &self.faults {
            self.or_fatal(faults.protect(granules, Access::None));
            self.or_fatal(faults.let_go(granules));
        }
        self.or_fatal(self.memory.deallocate(granules));
        core.note_gone(granules);
        self.pager.iter().for_each(|pager| _ = pager.note_left(granules));
        true
    }

    /// Returns true if the granule is of this node's own data, allocated or not.
    pub(crate) fn is_local(&self, granule: PageId) -> bool {
        self.job.local.contains(granule)
    }

    /// Handles a fault on this node's own data, in signal context on the faulting thread.
    pub(super) fn fault_locally(&self, fault: Fault) -> FaultOutcome {
        let (class, _) = classify(fault.kind);
        self.account.count_fault(class);
        self.bring_back(class, fault.page);
        let _inside = self.account.enter(&self.threads, class);
        let mut given = false;
        self.tell(|core| given = self.give_local(core, fault.page));
        if given { FaultOutcome::Resolved } else { FaultOutcome::NotOurs }
    }

    /// Gives the program access to a granule of this node's own data, and to those that its touches lead to.
    /// Returns false if it is not allocated.
    pub(crate) fn give_local(&self, core: &mut Core, granule: PageId) -> bool {
        let (Some(granules), Some(faults)) = (core.local.touch(granule), &self.faults) else { return false };
        core.note_awaited(granule);
        self.or_fatal(faults.protect(granules, Access::Write));
        core.note_given(granules);
        self.note_given_ahead(granules);
        self.end_event_faults(core, granules);
        true
    }

    /// Has pages of this node's own data leave, as far as they can.
    pub(super) fn evict_local(&self, core: &mut Core, pages: &mut [PageId]) {
        let Some(faults) = &self.faults else { return };
        pages.sort_unstable();
        for run in pages.chunk_by(|page, next| page.0 + 1 == next.0) {
            let granules = PageRange { first: run[0], count: run.len() as u64 };
            self.or_fatal(faults.protect(granules, Access::None));
            self.page_out(core, granules);
        }
    }

    /// Operates on an atomic word of this node's own data. Returns `None` if it is not allocated.
    pub(super) fn operate_locally(
        &self,
        page: PageId,
        offset: u32,
        operation: AtomicOperation,
    ) -> Option<AtomicOutcome> {
        let _inside = self.account.enter(&self.threads, TimeClass::Other);
        let mut outcome = None;
        self.tell(|core| {
            if core.local.is_allocated(page) {
                outcome =
                    Some(operate(self.or_fatal(self.memory.atomic_u64(page, offset as usize)), operation));
            }
        });
        outcome
    }

    /// Describes an address of a node's own data.
    pub(crate) fn describe_local(&self, owner: NodeId, granule: PageId, address: usize) -> Option<String> {
        if owner != self.me {
            return Some(format!(
                "data of node {owner} alone (hiroba_alloc_local), which other nodes cannot touch; share data by \
                 hiroba_alloc or hiroba_malloc"
            ));
        }
        // A dying process may hold the lock.
        let core = self.core.try_lock().ok()?;
        let Some((first, bytes)) = core.local.describe(granule) else {
            return Some("below all live data of hiroba_alloc_local".to_owned());
        };
        let start = self.memory.address_of(first) as usize;
        Some(format!(
            "{} bytes behind the start of the {bytes} bytes that hiroba_alloc_local gave at 0x{start:x}",
            address - start
        ))
    }
}
