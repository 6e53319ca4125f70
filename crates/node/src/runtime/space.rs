//! Collective allocation: every node calls alike, and each gives out the same addresses without asking.

use std::sync::PoisonError;

use hiroba_base::{NodeId, PageId, PageRange, PageSize};
use hiroba_protocol::{FAULTING_FROM_GRANULES, Protocol, Synchronisation};
use hiroba_wire::{Collective, Placement};
use thiserror::Error;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// So many regions have an unallocated granule behind them, where running over the end is caught. Each costs two of
/// the process's mappings, of which the kernel allows 65,530; regions beyond lie side by side.
const GUARDED_REGIONS_MAX: usize = 8192;

/// How far collective allocation has come; the same on every node.
#[derive(Debug, Default)]
pub(crate) struct CollectiveSpace {
    next_granule: u64,
    regions: Vec<Region>,
    /// The latest region's address, and how many threads of the team have yet to be told.
    untold: (usize, u32),
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
struct Region {
    granules: PageRange,
    bytes: u64,
}

impl CollectiveSpace {
    /// Where a region of `bytes` bytes in pages of `granules_per_page` will lie.
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

/// What kind of region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionOptions {
    pub(crate) placement: Placement,
    pub(crate) page_size: PageSize,
    /// Where it is not the job's.
    pub(crate) protocol: Option<Protocol>,
}

/// Why an allocation failed. No node got anything.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The size or placement makes no sense.
    #[error("expected {expected}, got {got}")]
    Invalid {
        /// What would do.
        expected: &'static str,
        /// What was asked for.
        got: u64,
    },
    /// The page is smaller than the kernel's.
    #[error("expected pages of at least {granule_bytes} bytes, this kernel's own, got {got_bytes}")]
    PageTooSmall {
        /// The kernel's page size.
        granule_bytes: u64,
        /// What was asked for.
        got_bytes: u64,
    },
    /// The run looks for data races, which another protocol would hide.
    #[error(
        "expected the job's protocol, hlrc, for every region while data races are looked for, got {protocol}; run without --races"
    )]
    UnderRaces {
        /// What was asked for.
        protocol: &'static str,
    },
    /// The shared address space is used up.
    #[error(
        "expected at most {free_bytes} bytes, which is what is left of the shared address space, got {got_bytes}"
    )]
    NoAddresses {
        /// What is left.
        free_bytes: u64,
        /// What was asked for.
        got_bytes: u64,
    },
}

impl Runtime {
    /// Allocates `bytes` zeroed bytes at the same address on every node, kept coherent in pages of `page_size` (the job's when
    /// `None`) by `protocol` (likewise). All nodes call it alike.
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
        let signals = crate::signals::SignalsHeld::hold();
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

    /// Whether [`Placement::FirstTouch`] is more than consecutive blocks, or no protocol could make more of it: nothing depends on homes
    /// that collect no diffs, nor on those of pages that all nodes have mapped.
    pub fn can_place_by_first_touch(&self) -> bool {
        !self.looks_for_races()
    }

    fn granule_bytes(&self) -> u64 {
        self.memory.granule().bytes() as u64
    }

    fn granules_per_page(&self, page_size: PageSize) -> u64 {
        page_size.bytes() as u64 / self.granule_bytes()
    }

    /// Whether the engine relies on faults of stores to pages of this size, whatever it is told of others.
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
        if let Some(protocol) = protocol
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

    /// What every node does alike when a collective allocation is complete.
    pub(crate) fn add_region(&self, bytes: u64, options: RegionOptions) -> usize {
        let RegionOptions { placement, page_size, protocol } = options;
        let granules = {
            let _signals = crate::signals::SignalsHeld::hold();
            let mut space = self.allocations.space.lock().unwrap_or_else(PoisonError::into_inner);
            let granules = space.next(bytes, self.granule_bytes(), self.granules_per_page(page_size));
            let granules = granules.expect("the allocation was checked");
            space.take(granules, bytes);
            granules
        };
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

    /// What the address belongs to or lies nearest to, in words; `None` when that cannot be told (now).
    pub(crate) fn describe_address(&self, address: usize) -> Option<String> {
        let granule = self.memory.page_of(address)?;
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
