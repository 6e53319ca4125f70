//! Collective allocation: every node makes the same calls, and each assigns the same addresses without
//! asking.

use std::sync::PoisonError;

use hiroba_base::{NodeId, PageId, PageRange, PageSize};
use hiroba_memory::MemoryError;
use hiroba_protocol::{FAULTING_FROM_GRANULES, Outcome, Protocol, Synchronisation};
use hiroba_wire::{Collective, Placement};
use thiserror::Error;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// Number of regions that have an unallocated granule after them, which catches overruns. Each costs two of
/// the process's mappings, of which the kernel allows 65,530. Further regions have no gap between them.
const GUARDED_REGIONS_MAX: usize = 8192;

/// The state of collective allocation; the same on every node.
#[derive(Debug, Default)]
pub(crate) struct CollectiveSpace {
    next_granule: u64,
    regions: Vec<Region>,
    /// The latest region's address, and how many threads of the team have yet to fetch it.
    untold: (usize, u32),
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
struct Region {
    granules: PageRange,
    bytes: u64,
}

impl CollectiveSpace {
    /// Returns the range of the next region, of `bytes` bytes in pages of `granules_per_page`.
    fn next(&self, bytes: u64, granule_bytes: u64, granules_per_page: u64) -> Option<PageRange> {
        let first = self.next_granule.checked_next_multiple_of(granules_per_page)?;
        let count = bytes.div_ceil(granule_bytes).checked_next_multiple_of(granules_per_page)?;
        first.checked_add(count)?;
        Some(PageRange { first: PageId(first), count })
    }

    fn take(&mut self, granules: PageRange, bytes: u64) {
        self.regions.push(Region { granules, bytes });
        self.next_granule = granules.end().0 + u64::from(self.regions.len() <= GUARDED_REGIONS_MAX);
    }
}

/// Options of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionOptions {
    pub(crate) placement: Placement,
    pub(crate) page_size: PageSize,
    /// The region's protocol, if it is not the job's.
    pub(crate) protocol: Option<Protocol>,
}

/// A part of a program's data that is shared where it is.
#[derive(Clone, Copy, Debug)]
pub struct PartInPlace {
    /// Its length.
    pub bytes: u64,
    /// True if it has the protocol of the program's long blocks.
    pub is_long: bool,
    /// The home of its pages. Without one, each node is the home of a block of them.
    pub home: Option<NodeId>,
}

/// Why an allocation failed. No node has allocated anything then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The size or placement is invalid.
    #[error("expected {expected}, got {got}")]
    Invalid {
        /// The valid values.
        expected: &'static str,
        /// The value requested.
        got: u64,
    },
    /// The page is smaller than the kernel's.
    #[error("expected pages of at least {granule_bytes} bytes, this kernel's own, got {got_bytes}")]
    PageTooSmall {
        /// The kernel's page size.
        granule_bytes: u64,
        /// The size requested.
        got_bytes: u64,
    },
    /// The run looks for data races, which another protocol would hide.
    #[error(
        "expected the job's protocol, hlrc, for every region while data races are looked for, got {protocol}; run without --races"
    )]
    UnderRaces {
        /// The protocol requested.
        protocol: &'static str,
    },
    /// The shared address space is used up.
    #[error(
        "expected at most {free_bytes} bytes, which are left of the shared address space, got {got_bytes}"
    )]
    NoAddresses {
        /// The bytes left.
        free_bytes: u64,
        /// The bytes requested.
        got_bytes: u64,
    },
}

impl Runtime {
    /// Allocates `bytes` zeroed bytes at the same address on every node, in pages of `page_size` and under
    /// `protocol`; `None` means the job's. All nodes make the same call.
    pub fn allocate(
        &self,
        bytes: u64,
        placement: Placement,
        page_size: Option<PageSize>,
        protocol: Option<Protocol>,
    ) -> Result<usize, AllocateError> {
        let page_size = page_size.unwrap_or(self.page_size());
        let protocol = protocol.filter(|protocol| *protocol != self.protocol());
        let options = RegionOptions { placement, page_size, protocol };
        self.check_allocation(bytes, options)?;
        let protocol = protocol.map(Protocol::number);
        let collective = Collective::Allocate { bytes, placement, page_size, protocol };
        self.synchronise("hiroba_alloc", TimeClass::Other, Synchronisation::Collective(collective));
        // Every thread of the team gets here; the first one makes the region.
        let signals = crate::signals::SignalsDeferred::defer();
        let _one_by_one = self.allocations.regions_made.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner).untold;
        let (address, others) = match untold {
            (address, others @ 1..) => (address, others - 1),
            _ => (self.add_region(bytes, options), self.team() - 1),
        };
        self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner).untold = (address, others);
        drop(signals);
        Ok(address)
    }

    /// Returns true if [`Placement::FirstTouch`] differs from consecutive blocks, or if no protocol could
    /// make it differ because homes collect no diffs or all nodes have mapped the pages.
    pub fn can_place_by_first_touch(&self) -> bool {
        !self.looks_for_races()
    }

    /// Shares memory that the process has mapped already, such as the writable data of an executable, at its
    /// present addresses. `parts` follow one another from `address` on. All nodes find node 0's bytes there,
    /// which are zeros in parts that have no home. All nodes make the same call before the program has
    /// threads on other nodes. The address and all parts are whole granules.
    ///
    /// # Errors
    /// Fails if the shared address space is used up.
    ///
    /// # Safety
    /// The bytes are readable, no other code reads or writes them during the call, and no reference to them
    /// exists. The runtime never uses them.
    pub unsafe fn share_in_place(&self, address: usize, parts: &[PartInPlace]) -> Result<(), AllocateError> {
        let page_size = self.memory.granule();
        let options_of = |part: &PartInPlace| RegionOptions {
            placement: part.home.map_or(Placement::Block, Placement::On),
            page_size,
            protocol: self.job.program_protocol.filter(|_| !part.is_long),
        };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let Some(first) = parts.first() else { return Ok(()) };
        self.check_allocation(bytes, options_of(first))?;
        for part in parts {
            let RegionOptions { placement, protocol, .. } = options_of(part);
            let protocol = protocol.map(Protocol::number);
            let collective = Collective::Allocate { bytes: part.bytes, placement, page_size, protocol };
            self.synchronise(
                "sharing a program's data",
                TimeClass::Other,
                Synchronisation::Collective(collective),
            );
        }
        let signals = crate::signals::SignalsDeferred::defer();
        let _one_by_one = self.allocations.regions_made.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = {
            let space = self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner);
            let granules_per_page = self.granules_per_page(page_size);
            space.next(bytes, self.granule_bytes(), granules_per_page).expect("the allocation was checked")
        };
        // SAFETY: the caller's contract.
        self.or_fatal(unsafe { self.memory.show_at(whole, address, self.me == NodeId::ZERO) });
        let mut next = whole.first;
        for part in parts {
            let granules = PageRange { first: next, count: part.bytes.div_ceil(self.granule_bytes()) };
            self.place_region(granules, part.bytes, options_of(part));
            next = granules.end();
        }
        drop(signals);
        Ok(())
    }

    /// Allocates memory that the threads of an executable share like its own data, on `home`, which must be
    /// the same on all nodes. Its pages are single granules.
    pub fn allocate_for_program(&self, bytes: u64, home: NodeId) -> Result<usize, AllocateError> {
        let page_size = Some(self.memory.granule());
        self.allocate(bytes, Placement::On(home), page_size, self.job.program_protocol)
    }

    /// Returns the addresses where long blocks of a node lie, if those have a protocol of their own.
    pub fn long_memory(&self, node: NodeId) -> Option<std::ops::Range<usize>> {
        self.job.program_protocol.filter(|protocol| *protocol != self.job.protocol)?;
        let [_, long] = self.job.layout.divided_arena(node);
        let start = self.memory.address_of(long.first).addr();
        Some(start..start + long.count as usize * self.memory.granule().bytes())
    }

    /// Orders fetches of this node with the changes before them from now on.
    ///
    /// Not while data races are looked for: a fetch would order the accesses that are to be compared.
    pub fn order_fetches(&self) {
        if !self.job.protocol.converts_pages() || self.looks_for_races() {
            return;
        }
        self.tell(|core| core.engine.order_fetches());
        for node in NodeId::all(self.job.nodes).filter(|node| *node != self.me) {
            self.synchronise("hiroba_order_fetches", TimeClass::Other, Synchronisation::Inform(node));
        }
    }

    /// Returns true if the first store to a page after a release faults, false if the kernel notes stores.
    pub fn stores_fault(&self) -> bool {
        let tracking = self.faults.as_ref().map(|faults| faults.tracking());
        tracking != Some(hiroba_memory::WriteTracking::Async)
    }

    /// Returns true if pages of long blocks can be put under sequential consistency.
    pub fn converts_pages(&self) -> bool {
        self.job.converts_pages
    }

    /// Puts the page at an address under sequential consistency on all nodes, permanently, if it is not yet.
    pub fn convert_page(&self, address: usize) {
        // An address outside the region maps to a granule that is never allocated.
        let granule = self.memory.page_of(address).unwrap_or(PageId(self.memory.granules()));
        self.note_converted_block(granule);
        let outcome =
            self.synchronise("an atomic instruction", TimeClass::Other, Synchronisation::Convert(granule));
        if outcome == Outcome::Refused {
            self.fatal(&format!(
                "expected a protocol that gives up the page at 0x{address:x} for an atomic instruction, got {}; use --protocol sc",
                self.job.protocol.name()
            ));
        }
    }

    /// Tells the engine of the block of this node that contains a page, which is about to be converted.
    pub(crate) fn note_converted_block(&self, page: PageId) {
        if page.0 >= self.memory.granules() {
            return;
        }
        let address = self.memory.address_of(page).addr() as u64;
        let Some(extent) = self.allocations.heap.extent(address) else { return };
        let granule_of = |address: u64| self.memory.page_of(address as usize);
        if let (Some(first), Some(last)) = (granule_of(extent.start), granule_of(extent.end - 1)) {
            let block = PageRange { first, count: last.0 - first.0 + 1 };
            self.tell(|core| core.engine.note_converted_block(block));
        }
    }

    /// Counts the program's atomic instructions that were replaced.
    pub fn note_atomic_sites(&self, sites: u64) {
        self.account.tallies.atomic_sites.store(sites, std::sync::atomic::Ordering::Relaxed);
    }

    /// Counts an atomic instruction that was made exclusive in the job.
    pub fn count_exclusive_atomic(&self) {
        self.account.tallies.exclusive_atomics.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Counts an exchange of all nodes on behalf of a thread that waits for a plain store.
    pub fn count_exchange(&self) {
        self.account.tallies.exchanges.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Counts an interrupt of a thread of an executable by its processor time.
    pub fn count_interrupt(&self) {
        self.account.tallies.interrupts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Makes whole granules of the region permanently private to this process, filled with zeros. No thread
    /// of any node may have touched them, and no other node may use them later.
    ///
    /// # Errors
    /// When they are not allocated, or the kernel has no more mappings for this process.
    pub fn make_private(&self, address: usize, bytes: usize) -> Result<(), MemoryError> {
        let granule = self.memory.granule().bytes();
        // An address outside the region maps to a granule that is never allocated.
        let first = self.memory.page_of(address).unwrap_or(PageId(self.memory.granules()));
        self.memory.make_private(PageRange { first, count: (bytes / granule) as u64 })
    }

    /// Has the pages of a region, of which parts are or will be private, requested one by one.
    pub fn use_singly(&self, address: usize, bytes: usize) {
        let granules = bytes.div_ceil(self.memory.granule().bytes()) as u64;
        if let Some(first) = self.memory.page_of(address) {
            self.tell(|core| core.engine.use_singly(PageRange { first, count: granules }));
        }
    }

    fn granule_bytes(&self) -> u64 {
        self.memory.granule().bytes() as u64
    }

    fn granules_per_page(&self, page_size: PageSize) -> u64 {
        page_size.bytes() as u64 / self.granule_bytes()
    }

    /// Returns true if the engine relies on faults of stores to pages of this size, whatever the write
    /// tracking.
    pub(crate) fn do_stores_fault(&self, page_size: PageSize) -> bool {
        self.granules_per_page(page_size) >= FAULTING_FROM_GRANULES
    }

    fn check_allocation(&self, bytes: u64, options: RegionOptions) -> Result<(), AllocateError> {
        let RegionOptions { placement, page_size, protocol } = options;
        if bytes == 0 {
            return Err(AllocateError::Invalid { expected: "at least 1 byte", got: 0 });
        }
        if let Placement::On(home) = placement
            && home.0 >= self.nodes()
        {
            return Err(AllocateError::Invalid {
                expected: "a node of the job as home",
                got: u64::from(home.0),
            });
        }
        // An executable's short memory is under another protocol, and is not searched.
        if let Some(protocol) = protocol.filter(|_| self.job.program_protocol.is_none())
            && self.looks_for_races()
        {
            return Err(AllocateError::UnderRaces { protocol: protocol.name() });
        }
        let granule_bytes = self.granule_bytes();
        let got_bytes = page_size.bytes() as u64;
        if got_bytes < granule_bytes {
            return Err(AllocateError::PageTooSmall { granule_bytes, got_bytes });
        }
        let space = self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner);
        let granules = space.next(bytes, granule_bytes, self.granules_per_page(page_size));
        if granules.is_none_or(|granules| granules.end().0 >= self.job.layout.collective_end()) {
            let free = self.job.layout.collective_end().saturating_sub(space.next_granule + 1);
            let free_bytes = free * granule_bytes / got_bytes * got_bytes;
            return Err(AllocateError::NoAddresses { free_bytes, got_bytes: bytes });
        }
        Ok(())
    }

    /// Adds the region of a complete collective allocation; every node does the same.
    pub(crate) fn add_region(&self, bytes: u64, options: RegionOptions) -> usize {
        let granules = {
            let _signals = crate::signals::SignalsDeferred::defer();
            let space = self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner);
            let granules_per_page = self.granules_per_page(options.page_size);
            space.next(bytes, self.granule_bytes(), granules_per_page).expect("the allocation was checked")
        };
        self.place_region(granules, bytes, options)
    }

    /// Adds a region at granules that no other one has. Callers come one by one.
    fn place_region(&self, granules: PageRange, bytes: u64, options: RegionOptions) -> usize {
        let RegionOptions { placement, page_size, protocol } = options;
        {
            let _signals = crate::signals::SignalsDeferred::defer();
            self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner).take(granules, bytes);
        }
        self.explain(|regions| regions.add(granules, bytes));
        protocol.into_iter().for_each(|protocol| self.say_if_unmapped(protocol));
        let stores_fault =
            protocol.is_some_and(Protocol::needs_write_faults) || self.do_stores_fault(page_size);
        self.or_fatal(self.register(granules, stores_fault));
        self.tell(|core| {
            self.trace_region(granules, options);
            match protocol {
                Some(protocol) => core.engine.add_region_under(protocol, granules, page_size, placement),
                None => core.engine.add_region(granules, page_size, placement),
            }
        });
        self.memory.address_of(granules.first) as usize
    }

    /// Describes the allocation at or nearest to an address. Returns `None` when that is unknown or locked.
    pub(crate) fn describe_address(&self, address: usize) -> Option<String> {
        let granule = self.memory.page_of(address)?;
        if let Some(owner) = self.job.layout.local_owner(granule) {
            return self.describe_local(owner, granule, address);
        }
        if granule.0 >= self.job.layout.collective_end() {
            return self.describe_in_heap(address);
        }
        let space = self.allocations.space.try_lock().ok()?;
        let next = space.regions.partition_point(|region| region.granules.first <= granule);
        let region = space.regions.get(next.checked_sub(1)?)?;
        let start = self.memory.address_of(region.granules.first) as usize;
        let offset = (address - start) as u64;
        let what = format!(
            "the region of {} bytes that collective allocation {next} gave at 0x{start:x}",
            region.bytes
        );
        Some(if offset < region.bytes {
            format!("byte {offset} of {what}")
        } else {
            format!("{} bytes past the end of {what}", offset - region.bytes)
        })
    }

    fn describe_in_heap(&self, address: usize) -> Option<String> {
        let owner: NodeId = self.job.layout.arena_owner(self.memory.page_of(address)?)?;
        if owner == self.node() {
            return self.allocations.heap.nearest_allocation(address);
        }
        Some(format!("the malloc arena of node {owner}"))
    }
}
