//! One node's simulated memory: frames, twins, access and recorded writes, as the effects of an engine change
//! them.
//!
//! The memory is strict where a real one would silently corrupt data. It reports a twin made over a twin, a
//! diff without one, a twin dropped that differs from its page, and a page installed over unsent writes
//! without a merge. It also forgets as a real one does: a page whose access changes, or that is watched
//! again, is no longer known to have been written.
//! again, is not remembered to have been written.

use core::hash::{Hash, Hasher};
use std::collections::BTreeMap;

use hiroba_base::{Access, PageId, PageRange};
use hiroba_protocol::{WriteTracking, diff};
use hiroba_wire::{AtomicOperation, AtomicOutcome};
use rustc_hash::FxHasher;
use thiserror::Error;

use crate::program::{Address, GRANULE_BYTES, Width};

/// An effect that does not fit the state of the memory: an error of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// A twin was made over a twin.
    #[error("expected a page without a twin to make one, got {0} that has one")]
    TwinOverTwin(PageId),
    /// A diff or a merge without a twin.
    #[error("expected a page with a twin, got {0} without one")]
    NoTwin(PageId),
    /// A twin whose length differs from that of the incoming page.
    #[error("expected new content as long as the twin of {page}, got {page_bytes} bytes for {twin_bytes}")]
    OtherLength {
        /// The page.
        page: PageId,
        /// The content's length.
        page_bytes: usize,
        /// The twin's.
        twin_bytes: usize,
    },
    /// A page that has unsent writes, or that the program may be writing, was overwritten.
    #[error(
        "expected a merge into {0}, which has a twin or is writable and perhaps has unsent writes, got an overwrite"
    )]
    Overwrite(PageId),
    /// A twin that shows unsent writes was dropped.
    #[error("expected a page that equals the twin that is dropped, got {0}, which has unsent writes")]
    LostWrites(PageId),
    /// A diff that does not decode.
    #[error("expected a checked diff for {0}, got one that does not fit it")]
    BadDiff(PageId),
    /// An effect of the other way of tracking writes.
    #[error("expected effects of {1:?} write tracking, got one of the other for {0}")]
    OtherTracking(PageId, WriteTracking),
    /// A copy, or a part of one, of a page that is mapped onto its home's frame.
    #[error("expected no effect of a copy on {0}, which is mapped onto its home's frame, got one")]
    Mapped(PageId),
    /// A page that is in use is mapped.
    #[error("expected {0} untouched when it is mapped onto its home's frame, got access to it")]
    MappedInUse(PageId),
    /// A page that is in use, or has unsent writes, loses its frame.
    #[error("expected {0} without access and twin when its frame is given up, got one that has either")]
    GivenUpInUse(PageId),
    /// A page outside the region.
    #[error("expected granules of the region, got {0}")]
    OutOfRegion(PageId),
}

/// What an incoming page changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The page has no twin: the whole frame.
    Replace,
    /// Frame and twin, where the content differs from the twin.
    FrameAndTwin,
    /// A planted bug: the frame only.
    FrameOnly,
    /// A planted bug: frame and twin become the content.
    Overwrite,
}

/// What happens to a twin when its diff has been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinAfter {
    /// It is dropped.
    Dropped,
    /// The diff is applied to it.
    WithDiff,
    /// A planted bug: it becomes a copy of the present page.
    Page,
    /// A planted bug: it stays unchanged.
    Unchanged,
}

#[derive(Clone, Copy, Debug, Default, Hash)]
struct Granule {
    access: Access,
    /// Whether it has been written.
    populated: bool,
    watched: bool,
    written: bool,
    /// Whether it was watched and not written when its access was taken, and has not been given since.
    unwritten: bool,
    /// Whether stores to it must fault although others are recorded.
    stores_fault: bool,
    /// Whether it is mapped onto its home's frame.
    mapped: bool,
}

/// The pages of one node.
#[derive(Debug)]
pub struct SimulatedMemory {
    tracking: WriteTracking,
    bytes: Vec<u8>,
    granules: Vec<Granule>,
    twins: BTreeMap<PageId, Vec<u8>>,
}

impl Hash for SimulatedMemory {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.granules.hash(hasher);
        let mut content = FxHasher::default();
        self.bytes.hash(&mut content);
        self.twins.hash(&mut content);
        content.finish().hash(hasher);
    }
}

fn bytes_of(first: PageId, bytes: usize) -> std::ops::Range<usize> {
    let start = first.0 as usize * GRANULE_BYTES as usize;
    start..start + bytes
}

fn granules_of(page: PageId, page_bytes: usize) -> std::ops::Range<usize> {
    page.0 as usize..page.0 as usize + page_bytes.div_ceil(GRANULE_BYTES as usize)
}

fn pages_of(page: PageId, page_bytes: usize) -> PageRange {
    PageRange { first: page, count: page_bytes.div_ceil(GRANULE_BYTES as usize) as u64 }
}

impl SimulatedMemory {
    /// Makes the memory of a region of `granules` granules.
    pub fn new(granules: u64, tracking: WriteTracking) -> SimulatedMemory {
        SimulatedMemory {
            tracking,
            bytes: vec![0; bytes_of(PageId(granules), 0).start],
            granules: vec![Granule::default(); granules as usize],
            twins: BTreeMap::new(),
        }
    }

    /// Makes the first stores to these pages fault, whatever applies to the others.
    pub fn let_stores_fault(&mut self, pages: PageRange) -> Result<(), MemoryError> {
        self.change(pages, |granule| granule.stores_fault = true)
    }

    fn tracking_of(&self, pages: PageRange) -> WriteTracking {
        let stores_fault =
            self.granules.get(pages.first.0 as usize).is_some_and(|granule| granule.stores_fault);
        if stores_fault { WriteTracking::Fault } else { self.tracking }
    }

    /// Carries out `Effect::MapHome`, except for the redirection of loads and stores.
    pub fn map(&mut self, pages: PageRange) -> Result<(), MemoryError> {
        if pages.iter().any(|granule| self.access(granule) > Access::None) {
            return Err(MemoryError::MappedInUse(pages.first));
        }
        self.change(pages, |granule| (granule.access, granule.mapped) = (Access::Write, true))
    }

    /// Fails if one of the granules is mapped onto its home's frame, so that there are no copies of it.
    fn only_copies(&self, pages: PageRange) -> Result<(), MemoryError> {
        let range = pages.first.0 as usize..pages.end().0 as usize;
        let granules = self.granules.get(range).unwrap_or_default();
        if granules.iter().any(|granule| granule.mapped) {
            return Err(MemoryError::Mapped(pages.first));
        }
        Ok(())
    }

    /// Returns what loads and stores may do without a fault.
    pub fn access(&self, granule: PageId) -> Access {
        self.granules.get(granule.0 as usize).map_or(Access::None, |granule| granule.access)
    }

    /// Carries out `Effect::Protect`. Watched pages are no longer watched.
    pub fn protect(&mut self, pages: PageRange, access: Access) -> Result<(), MemoryError> {
        if access == Access::Read && self.tracking_of(pages) == WriteTracking::Async {
            return Err(MemoryError::OtherTracking(pages.first, self.tracking));
        }
        if access < Access::Write {
            self.only_copies(pages)?;
        }
        self.change(pages, |granule| {
            let stays_gone = granule.access == Access::None && granule.unwritten;
            let was_unwritten = stays_gone || granule.watched && !granule.written;
            granule.unwritten = access == Access::None && was_unwritten;
            (granule.access, granule.watched, granule.written) = (access, false, false)
        })
    }

    /// Returns true if a granule was watched and not written when its access was taken.
    pub fn was_unwritten(&self, granule: PageId) -> bool {
        self.granules[granule.0 as usize].unwritten
    }

    /// Carries out `Effect::Watch`: writes are recorded from now on, and earlier records are dropped.
    pub fn watch(&mut self, pages: PageRange) -> Result<(), MemoryError> {
        self.only_async(pages)?;
        self.only_copies(pages)?;
        self.change(pages, |granule| {
            (granule.access, granule.watched, granule.written) = (Access::Write, true, false);
            granule.unwritten = false;
        })
    }

    /// Carries out `Effect::Unwatch`.
    pub fn unwatch(&mut self, pages: PageRange) -> Result<(), MemoryError> {
        self.only_async(pages)?;
        self.change(pages, |granule| (granule.watched, granule.written) = (false, false))
    }

    /// Carries out `Effect::GiveUp`.
    pub fn give_up(&mut self, pages: PageRange) -> Result<(), MemoryError> {
        self.only_copies(pages)?;
        self.not_in_use(pages)?;
        self.change(pages, |granule| granule.populated = false)?;
        let bytes = pages.count as usize * GRANULE_BYTES as usize;
        self.bytes[bytes_of(pages.first, bytes)].fill(0);
        Ok(())
    }

    /// Carries out `Effect::PageOut`. Where the content is stored does not matter as long as the frame is not
    /// read.
    pub fn page_out(&self, pages: PageRange) -> Result<(), MemoryError> {
        self.only_copies(pages)?;
        self.not_in_use(pages)
    }

    fn not_in_use(&self, pages: PageRange) -> Result<(), MemoryError> {
        let is_in_use =
            |granule: PageId| self.access(granule) > Access::None || self.twins.contains_key(&granule);
        pages
            .iter()
            .find(|granule| is_in_use(*granule))
            .map_or(Ok(()), |at| Err(MemoryError::GivenUpInUse(at)))
    }

    /// Carries out the first half of `Effect::CollectWritten`: returns the granules to examine.
    pub fn watched(&self) -> Result<Vec<PageId>, MemoryError> {
        if self.tracking == WriteTracking::Fault {
            return Err(MemoryError::OtherTracking(PageId(0), self.tracking));
        }
        let granules = self.granules.iter().enumerate().filter(|(_, granule)| granule.watched);
        Ok(granules.map(|(number, _)| PageId(number as u64)).collect())
    }

    /// Returns true if a granule is recorded as written.
    pub fn is_written(&self, granule: PageId) -> bool {
        self.granules[granule.0 as usize].written
    }

    /// Restarts recording writes to a granule.
    pub fn clear_written(&mut self, granule: PageId) {
        self.granules[granule.0 as usize].written = false;
    }

    fn only_async(&self, pages: PageRange) -> Result<(), MemoryError> {
        match self.tracking_of(pages) {
            WriteTracking::Async => Ok(()),
            WriteTracking::Fault => Err(MemoryError::OtherTracking(pages.first, self.tracking)),
        }
    }

    fn change(&mut self, pages: PageRange, mut to: impl FnMut(&mut Granule)) -> Result<(), MemoryError> {
        let range = pages.first.0 as usize..pages.end().0 as usize;
        let granules = self.granules.get_mut(range).ok_or(MemoryError::OutOfRegion(pages.first))?;
        granules.iter_mut().for_each(&mut to);
        Ok(())
    }

    /// Returns the bytes of a page; `None` if it was never written.
    pub fn content(&self, page: PageId, page_bytes: usize) -> Option<&[u8]> {
        let populated = self.granules[granules_of(page, page_bytes)].iter().any(|granule| granule.populated);
        populated.then(|| self.page(page, page_bytes))
    }

    /// Returns a page's bytes and its twin's, if it has one.
    pub fn with_twin(&self, page: PageId) -> Result<(&[u8], &[u8]), MemoryError> {
        let twin = self.twins.get(&page).ok_or(MemoryError::NoTwin(page))?;
        Ok((self.page(page, twin.len()), twin))
    }

    /// Returns the number of twins.
    pub fn twins(&self) -> usize {
        self.twins.len()
    }

    /// Returns the bytes of a page; zeros if it was never written.
    pub fn page(&self, page: PageId, page_bytes: usize) -> &[u8] {
        &self.bytes[bytes_of(page, page_bytes)]
    }

    fn frame(&mut self, page: PageId, page_bytes: usize) -> &mut [u8] {
        self.granules[granules_of(page, page_bytes)].iter_mut().for_each(|granule| granule.populated = true);
        &mut self.bytes[bytes_of(page, page_bytes)]
    }

    /// Loads a value.
    pub fn load(&self, at: Address, width: Width) -> u64 {
        let mut bytes = [0; 8];
        let length = width.bytes() as usize;
        bytes[..length].copy_from_slice(&self.bytes[at.position()..at.position() + length]);
        u64::from_le_bytes(bytes)
    }

    /// Stores a value for the program.
    pub fn store(&mut self, at: Address, width: Width, value: u64) {
        let granule = &mut self.granules[at.granule.0 as usize];
        granule.written |= granule.watched;
        self.write(at, &value.to_le_bytes()[..width.bytes() as usize]);
    }

    /// Stores for the runtime, which is not recorded.
    fn write(&mut self, at: Address, bytes: &[u8]) {
        let end = at.offset as usize + bytes.len();
        self.granules[granules_of(at.granule, end)].iter_mut().for_each(|granule| granule.populated = true);
        self.bytes[at.position()..at.position() + bytes.len()].copy_from_slice(bytes);
    }

    /// Carries out `Effect::Twin`.
    pub fn make_twin(&mut self, page: PageId, page_bytes: usize) -> Result<&mut Vec<u8>, MemoryError> {
        self.only_copies(pages_of(page, page_bytes))?;
        let frame = self.page(page, page_bytes).to_vec();
        match self.twins.entry(page) {
            std::collections::btree_map::Entry::Occupied(_) => Err(MemoryError::TwinOverTwin(page)),
            std::collections::btree_map::Entry::Vacant(vacant) => Ok(vacant.insert(frame)),
        }
    }

    /// Carries out `Effect::DropTwin`.
    pub fn drop_twin(&mut self, page: PageId) -> Result<(), MemoryError> {
        let (frame, twin) = self.with_twin(page)?;
        if frame != twin {
            return Err(MemoryError::LostWrites(page));
        }
        self.twins.remove(&page);
        Ok(())
    }

    /// Carries out `Effect::DropSnapshot`.
    pub fn drop_snapshot(&mut self, page: PageId) -> Result<(), MemoryError> {
        self.twins.remove(&page).map(|_| ()).ok_or(MemoryError::NoTwin(page))
    }

    /// Carries out the second half of `Effect::Diff`: `runs` have been made from page and twin.
    pub fn settle_twin(&mut self, page: PageId, runs: &[u8], after: TwinAfter) -> Result<(), MemoryError> {
        let twin_bytes = self.with_twin(page)?.1.len();
        match after {
            TwinAfter::Dropped => {
                self.twins.remove(&page);
            }
            TwinAfter::Unchanged => {}
            TwinAfter::Page => {
                let copy = self.page(page, twin_bytes).to_vec();
                self.twins.insert(page, copy);
            }
            TwinAfter::WithDiff => {
                let twin = self.twins.get_mut(&page).ok_or(MemoryError::NoTwin(page))?;
                let write = |offset: usize, bytes: &[u8]| {
                    twin[offset..offset + bytes.len()].copy_from_slice(bytes);
                };
                diff::apply(runs, twin_bytes, write).map_err(|_| MemoryError::BadDiff(page))?;
            }
        }
        Ok(())
    }

    /// Carries out `Effect::Apply`; only a planted bug omits the twin.
    pub fn apply(&mut self, page: PageId, runs: &[u8], also_twin: bool) -> Result<(), MemoryError> {
        self.only_copies(PageRange::single(page))?;
        let longest = self.bytes.len() - bytes_of(page, 0).start;
        let mut changes = Vec::new();
        diff::apply(runs, longest, |offset, bytes| changes.push((offset, bytes.to_vec())))
            .map_err(|_| MemoryError::BadDiff(page))?;
        for (offset, bytes) in changes {
            self.write(Address::in_page(page, offset as u32), &bytes);
            if also_twin {
                self.write_twin(page, offset, &bytes);
            }
        }
        Ok(())
    }

    /// Carries out `Effect::Install`. Returns whether the page differed from its twin before, if it has one.
    pub fn install(
        &mut self,
        pages: PageRange,
        content: Option<&[u8]>,
        merge: Merge,
    ) -> Result<bool, MemoryError> {
        let (page, page_bytes) = (pages.first, pages.count as usize * GRANULE_BYTES as usize);
        let content = content.map_or_else(|| vec![0; page_bytes], <[u8]>::to_vec);
        self.only_copies(pages)?;
        if merge == Merge::Replace {
            let writable = |granule: &Granule| granule.access == Access::Write;
            if self.twins.range(pages.first..pages.end()).next().is_some()
                || self.granules[granules_of(page, page_bytes)].iter().any(writable)
            {
                return Err(MemoryError::Overwrite(page));
            }
            self.frame(page, page_bytes).copy_from_slice(&content);
            return Ok(false);
        }
        let mut twin = self.twins.remove(&page).ok_or(MemoryError::NoTwin(page))?;
        if twin.len() != content.len() {
            let twin_bytes = twin.len();
            return Err(MemoryError::OtherLength { page, page_bytes: content.len(), twin_bytes });
        }
        let frame = self.frame(page, page_bytes);
        let dirty = *frame != *twin;
        if merge == Merge::Overwrite {
            frame.copy_from_slice(&content);
            twin = content;
        } else {
            let mut runs = Vec::new();
            diff::for_each_difference(&content, &twin, |start, end| runs.push(start..end));
            for run in runs {
                frame[run.clone()].copy_from_slice(&content[run.clone()]);
                if merge == Merge::FrameAndTwin {
                    twin[run.clone()].copy_from_slice(&content[run]);
                }
            }
        }
        self.twins.insert(page, twin);
        Ok(dirty)
    }

    /// Carries out `Effect::Patch`; only a planted bug omits the twin.
    pub fn patch(&mut self, page: PageId, offset: u32, value: u64, also_twin: bool) {
        self.write(Address::in_page(page, offset), &value.to_le_bytes());
        if also_twin {
            self.write_twin(page, offset as usize, &value.to_le_bytes());
        }
    }

    fn write_twin(&mut self, page: PageId, offset: usize, bytes: &[u8]) {
        if let Some(twin) = self.twins.get_mut(&page) {
            twin[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Carries out `Effect::Atomic`.
    pub fn operate(&mut self, page: PageId, offset: u32, operation: AtomicOperation) -> AtomicOutcome {
        let at = Address::in_page(page, offset);
        let previous = self.load(at, Width::Word);
        let (current, written) = match operation {
            AtomicOperation::Load => (previous, false),
            AtomicOperation::Store(value) => (value, true),
            AtomicOperation::FetchAdd(delta) => (previous.wrapping_add(delta), true),
            AtomicOperation::CompareExchange { expected, desired } if previous == expected => (desired, true),
            AtomicOperation::CompareExchange { .. } => (previous, false),
        };
        if written {
            self.write(at, &current.to_le_bytes());
        }
        self.write_twin(page, offset as usize, &current.to_le_bytes());
        AtomicOutcome { previous, current, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId(1);
    const BYTES: usize = GRANULE_BYTES as usize;

    fn runs(memory: &SimulatedMemory) -> Vec<u8> {
        let (frame, twin) = memory.with_twin(PAGE).unwrap();
        let mut runs = Vec::new();
        diff::encode(frame, twin, &mut runs);
        runs
    }

    fn noted(memory: &mut SimulatedMemory) -> Vec<PageId> {
        let watched = memory.watched().unwrap();
        let written = watched.into_iter().filter(|granule| memory.is_written(*granule));
        let written: Vec<_> = written.collect();
        written.iter().for_each(|granule| memory.clear_written(*granule));
        written
    }

    #[test]
    fn a_merge_keeps_unsent_writes_and_takes_the_rest() {
        let mut memory = SimulatedMemory::new(2, WriteTracking::Fault);
        memory.make_twin(PAGE, BYTES).unwrap();
        memory.store(Address::byte(1, 3), Width::Byte, 7);
        let mut content = vec![0; BYTES];
        content[4] = 9;
        let page = PageRange::single(PAGE);
        assert_eq!(memory.install(page, Some(&content), Merge::FrameAndTwin), Ok(true));
        assert_eq!(memory.load(Address::byte(1, 3), Width::Byte), 7);
        assert_eq!(memory.load(Address::byte(1, 4), Width::Byte), 9);
        assert_eq!(
            runs(&memory),
            diff::of_bytes(3, &[7]),
            "the diff holds the own write and nothing that came with the page"
        );
        let made = runs(&memory);
        memory.settle_twin(PAGE, &made, TwinAfter::WithDiff).unwrap();
        assert_eq!(memory.install(page, Some(&content), Merge::FrameAndTwin), Ok(false));
    }

    #[test]
    fn a_kept_twin_shows_what_was_written_after_the_diff() {
        let mut memory = SimulatedMemory::new(2, WriteTracking::Async);
        memory.make_twin(PAGE, BYTES).unwrap();
        memory.store(Address::byte(1, 3), Width::Byte, 7);
        let made = runs(&memory);
        memory.store(Address::byte(1, 5), Width::Byte, 8);
        memory.settle_twin(PAGE, &made, TwinAfter::WithDiff).unwrap();
        assert_eq!(runs(&memory), diff::of_bytes(5, &[8]));
    }

    #[test]
    fn effects_that_would_lose_writes_are_refused() {
        let mut memory = SimulatedMemory::new(2, WriteTracking::Fault);
        assert!(matches!(memory.with_twin(PAGE), Err(MemoryError::NoTwin(_))));
        memory.make_twin(PAGE, BYTES).unwrap();
        assert!(matches!(memory.make_twin(PAGE, BYTES), Err(MemoryError::TwinOverTwin(_))));
        let page = PageRange { first: PageId(0), count: 2 };
        assert_eq!(memory.install(page, None, Merge::Replace), Err(MemoryError::Overwrite(PageId(0))));
        memory.store(Address::byte(1, 3), Width::Byte, 7);
        assert!(memory.watch(PageRange::single(PAGE)).is_err(), "there is nothing to watch with faults");
    }

    #[test]
    fn writes_to_watched_granules_are_noted_once_and_others_are_not() {
        let mut memory = SimulatedMemory::new(4, WriteTracking::Async);
        memory.watch(PageRange { first: PAGE, count: 2 }).unwrap();
        memory.protect(PageRange { first: PageId(3), count: 1 }, Access::Write).unwrap();
        [1, 3].into_iter().for_each(|granule| memory.store(Address::word(granule, 0), Width::Word, 1));
        assert_eq!(noted(&mut memory), [PAGE]);
        assert_eq!(noted(&mut memory), []);
        memory.store(Address::word(2, 0), Width::Word, 1);
        memory.unwatch(PageRange { first: PageId(2), count: 1 }).unwrap();
        assert_eq!((noted(&mut memory), memory.access(PageId(2))), (vec![], Access::Write));
        assert!(memory.protect(PageRange::single(PAGE), Access::Read).is_err());
    }
}
