//! One node's simulated memory: frames, twins and access, as the effects of an engine change them.
//!
//! The memory is strict where a real one would corrupt data in silence: a twin made over a twin, a diff without
//! one, a page installed over unsent writes without a merge are reported.

use hiroba_base::{Access, PageId, PageRange};
use hiroba_protocol::{NewContent, diff};
use hiroba_wire::{AtomicOperation, AtomicOutcome};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::program::{Address, PAGE_BYTES, Width};

/// An effect that does not fit the state of the memory: a fault of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// A twin was made over a twin.
    #[error("expected a page without a twin to make one, got {0} that has one")]
    TwinOverTwin(PageId),
    /// A diff or a merge without a twin.
    #[error("expected a page with a twin, got {0} without one")]
    NoTwin(PageId),
    /// A page that has unsent writes was overwritten.
    #[error("expected a merge into {0}, which has a twin and perhaps unsent writes, got an overwrite")]
    Overwrite(PageId),
    /// A diff that does not decode.
    #[error("expected a checked diff for {0}, got one that does not fit it")]
    BadDiff(PageId),
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

#[derive(Debug, Default)]
struct Page {
    access: Access,
    /// `None` until first written: all zero.
    frame: Option<Vec<u8>>,
    twin: Option<Vec<u8>>,
}

/// The pages of one node.
#[derive(Debug, Default)]
pub struct SimulatedMemory {
    pages: FxHashMap<PageId, Page>,
}

fn zeroes() -> Vec<u8> {
    vec![0; PAGE_BYTES as usize]
}

impl SimulatedMemory {
    /// What loads and stores may do without a fault.
    pub fn access(&self, page: PageId) -> Access {
        self.pages.get(&page).map_or(Access::None, |page| page.access)
    }

    /// Carries out `Effect::Protect`.
    pub fn protect(&mut self, pages: PageRange, access: Access) {
        pages.iter().for_each(|page| self.pages.entry(page).or_default().access = access);
    }

    /// The bytes of a page; `None` when it was never written.
    pub fn content(&self, page: PageId) -> Option<&[u8]> {
        self.pages.get(&page)?.frame.as_deref()
    }

    /// How many twins there are.
    pub fn twins(&self) -> usize {
        self.pages.values().filter(|page| page.twin.is_some()).count()
    }

    fn frame(&mut self, page: PageId) -> &mut Vec<u8> {
        self.pages.entry(page).or_default().frame.get_or_insert_with(zeroes)
    }

    /// A load.
    pub fn load(&self, at: Address, width: Width) -> u64 {
        let Some(frame) = self.content(at.page) else { return 0 };
        let start = at.offset as usize;
        let mut bytes = [0; 8];
        let length = width.bytes() as usize;
        bytes[..length].copy_from_slice(&frame[start..start + length]);
        u64::from_le_bytes(bytes)
    }

    /// A store.
    pub fn store(&mut self, at: Address, width: Width, value: u64) {
        let start = at.offset as usize;
        let length = width.bytes() as usize;
        self.frame(at.page)[start..start + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    /// Carries out `Effect::Twin`.
    pub fn make_twin(&mut self, page: PageId) -> Result<&mut Vec<u8>, MemoryError> {
        let frame = self.frame(page).clone();
        let twin = &mut self.pages.entry(page).or_default().twin;
        match twin {
            Some(_) => Err(MemoryError::TwinOverTwin(page)),
            None => Ok(twin.insert(frame)),
        }
    }

    /// Carries out `Effect::Diff`: the frame and the twin, which is dropped.
    pub fn take_twin(&mut self, page: PageId) -> Result<(&[u8], Vec<u8>), MemoryError> {
        let entry = self.pages.entry(page).or_default();
        let twin = entry.twin.take().ok_or(MemoryError::NoTwin(page))?;
        Ok((entry.frame.get_or_insert_with(zeroes), twin))
    }

    /// Carries out `Effect::Apply`.
    pub fn apply(&mut self, page: PageId, runs: &[u8]) -> Result<(), MemoryError> {
        let frame = self.frame(page);
        diff::apply(runs, PAGE_BYTES as usize, |offset, bytes| {
            frame[offset..offset + bytes.len()].copy_from_slice(bytes);
        })
        .map_err(|_| MemoryError::BadDiff(page))
    }

    /// Carries out `Effect::Install`.
    pub fn install(&mut self, page: PageId, content: NewContent, merge: Merge) -> Result<(), MemoryError> {
        let content = match content {
            NewContent::Zero => zeroes(),
            NewContent::Bytes(bytes) => bytes,
        };
        let entry = self.pages.entry(page).or_default();
        let frame = entry.frame.get_or_insert_with(zeroes);
        match (merge, &mut entry.twin) {
            (Merge::Replace, None) => *frame = content,
            (Merge::Replace, Some(_)) => return Err(MemoryError::Overwrite(page)),
            (_, None) => return Err(MemoryError::NoTwin(page)),
            (Merge::Overwrite, Some(twin)) => {
                frame.clone_from(&content);
                *twin = content;
            }
            (Merge::FrameAndTwin | Merge::FrameOnly, Some(twin)) => {
                let mut runs = Vec::new();
                diff::for_each_difference(&content, twin, |start, end| runs.push(start..end));
                for run in runs {
                    frame[run.clone()].copy_from_slice(&content[run.clone()]);
                    if merge == Merge::FrameAndTwin {
                        twin[run.clone()].copy_from_slice(&content[run]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries out `Effect::Patch`; the twin is left alone only by a planted bug.
    pub fn patch(&mut self, page: PageId, offset: u32, value: u64, also_twin: bool) {
        let word = offset as usize..offset as usize + 8;
        self.frame(page)[word.clone()].copy_from_slice(&value.to_le_bytes());
        if also_twin && let Some(twin) = &mut self.pages.entry(page).or_default().twin {
            twin[word].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Carries out `Effect::Atomic`.
    pub fn operate(&mut self, page: PageId, offset: u32, operation: AtomicOperation) -> AtomicOutcome {
        let at = Address { page, offset };
        let previous = self.load(at, Width::Word);
        let (current, written) = match operation {
            AtomicOperation::Load => (previous, false),
            AtomicOperation::Store(value) => (value, true),
            AtomicOperation::FetchAdd(delta) => (previous.wrapping_add(delta), true),
            AtomicOperation::CompareExchange { expected, desired } if previous == expected => (desired, true),
            AtomicOperation::CompareExchange { .. } => (previous, false),
        };
        if written {
            self.store(at, Width::Word, current);
        }
        AtomicOutcome { previous, current, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_keeps_unsent_writes_and_takes_the_rest() {
        let mut memory = SimulatedMemory::default();
        let page = PageId(0);
        memory.make_twin(page).unwrap();
        memory.store(Address::byte(0, 3), Width::Byte, 7);
        let mut content = zeroes();
        content[4] = 9;
        memory.install(page, NewContent::Bytes(content), Merge::FrameAndTwin).unwrap();
        assert_eq!(memory.load(Address::byte(0, 3), Width::Byte), 7);
        assert_eq!(memory.load(Address::byte(0, 4), Width::Byte), 9);
        let (frame, twin) = memory.take_twin(page).unwrap();
        let mut runs = Vec::new();
        diff::encode(frame, &twin, &mut runs);
        assert_eq!(runs, [3, 1, 7], "the diff holds the own write and nothing that came with the page");
    }

    #[test]
    fn effects_that_would_lose_writes_are_refused() {
        let mut memory = SimulatedMemory::default();
        let page = PageId(0);
        assert!(matches!(memory.take_twin(page), Err(MemoryError::NoTwin(_))));
        memory.make_twin(page).unwrap();
        assert!(matches!(memory.make_twin(page), Err(MemoryError::TwinOverTwin(_))));
        assert_eq!(memory.install(page, NewContent::Zero, Merge::Replace), Err(MemoryError::Overwrite(page)));
    }
}
