//! The program's view of the region: one long mapping, and windows with parts of it at other addresses.
//!
//! The writable data of an executable lie where its loader has put them. A window shows a part of the region
//! there; the addresses of that part in the long mapping stay inaccessible.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::{
    io::Errno,
    mm::{Advice, MprotectFlags},
};

use crate::mapping::Mapping;

/// Maximum number of windows of a region: an executable and its libraries have one or two each.
pub(crate) const WINDOWS_MAX: usize = 128;

/// A part of the region at another address.
#[derive(Debug)]
struct Window {
    /// The offset in the region of the window's first byte.
    offset: usize,
    mapping: Mapping,
}

/// The view; see the module. Offsets count from the beginning of the region, whatever the address.
#[derive(Debug)]
pub(crate) struct View {
    linear: Mapping,
    /// Filled from the front; fault handlers read it without a lock.
    windows: Box<[OnceLock<Window>]>,
}

impl View {
    pub(crate) fn new(linear: Mapping) -> View {
        View { linear, windows: (0..WINDOWS_MAX).map(|_| OnceLock::new()).collect() }
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().map_while(OnceLock::get)
    }

    /// Shows the part of the region at `offset` through `mapping`. Returns false if there are too many
    /// windows.
    pub(crate) fn add_window(&self, offset: usize, mapping: Mapping) -> bool {
        let mut window = Window { offset, mapping };
        for place in &self.windows {
            match place.set(window) {
                Ok(()) => return true,
                Err(refused) => window = refused,
            }
        }
        // The addresses were replaced already, and their earlier content cannot be restored.
        std::mem::forget(window);
        false
    }

    /// Returns the address of the byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        let window = self.windows().find(|window| window.holds(offset));
        window.map_or_else(|| self.linear.at(offset), |window| window.mapping.at(offset - window.offset))
    }

    /// Returns the offset of the byte at `address`, if it lies in the view.
    pub(crate) fn offset_at(&self, address: usize) -> Option<usize> {
        if let Some(offset) =
            address.checked_sub(self.linear.start().addr()).filter(|offset| *offset < self.bytes())
        {
            return self.windows().all(|window| !window.holds(offset)).then_some(offset);
        }
        self.windows().find_map(|window| {
            let offset = address.checked_sub(window.mapping.start().addr())?;
            (offset < window.mapping.bytes()).then_some(window.offset + offset)
        })
    }

    /// Calls `visit` for each mapping that shows a part of `bytes` bytes from `offset`, with the offset in
    /// the mapping and the length of the part, until one fails.
    fn each_part(
        &self,
        offset: usize,
        bytes: usize,
        mut visit: impl FnMut(&Mapping, usize, usize, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        assert!(
            bytes <= self.bytes() && offset <= self.bytes() - bytes,
            "the range must stay inside the view"
        );
        let end = offset + bytes;
        let mut next = offset;
        while next < end {
            if let Some(window) = self.windows().find(|window| window.holds(next)) {
                let its_end = window.end().min(end);
                visit(&window.mapping, next - window.offset, its_end - next, next)?;
                next = its_end;
                continue;
            }
            let following = self.windows().map(|window| window.offset).filter(|start| *start > next).min();
            let its_end = following.map_or(end, |start| start.min(end));
            visit(&self.linear, next, its_end - next, next)?;
            next = its_end;
        }
        Ok(())
    }

    /// As [`Mapping::show`], with the same offset in view and file.
    pub(crate) fn show(&self, offset: usize, bytes: usize, file: BorrowedFd<'_>) -> Result<(), Errno> {
        self.each_part(offset, bytes, |mapping, start, bytes, in_file| {
            mapping.show(start, bytes, file, in_file as u64)
        })
    }

    /// Like [`Mapping::make_private`].
    pub(crate) fn make_private(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.each_part(offset, bytes, |mapping, start, bytes, _| mapping.make_private(start, bytes))
    }

    /// Returns true if this process made the view: a forked child has none.
    pub(crate) fn is_here(&self) -> bool {
        self.linear.is_here()
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.linear.bytes()
    }

    /// As [`Mapping::advise`].
    pub(crate) fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        self.each_part(offset, bytes, |mapping, start, bytes, _| mapping.advise(start, bytes, advice))
    }

    /// As [`Mapping::lock`].
    #[cfg(test)]
    pub(crate) fn lock(
        &self,
        offset: usize,
        bytes: usize,
        how: crate::mapping::Locking,
    ) -> Result<(), Errno> {
        self.each_part(offset, bytes, |mapping, start, bytes, _| mapping.lock(start, bytes, how))
    }

    /// As [`Mapping::protect`].
    pub(crate) fn protect(
        &self,
        offset: usize,
        bytes: usize,
        protection: MprotectFlags,
    ) -> Result<(), Errno> {
        self.each_part(offset, bytes, |mapping, start, bytes, _| mapping.protect(start, bytes, protection))
    }
}

impl Window {
    fn end(&self) -> usize {
        self.offset + self.mapping.bytes()
    }

    fn holds(&self, offset: usize) -> bool {
        (self.offset..self.end()).contains(&offset)
    }
}
