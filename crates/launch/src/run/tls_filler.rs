//! The library that fills up a program's thread-local storage (`--pthread`).
//!
//! The loader places the executable's thread-local variables directly below a thread's control block, and
//! those of libraries below them, in the order of loading. The program's libraries are loaded first, and
//! after them a library with just enough thread-local storage: all together fill whole pages, and its
//! alignment is a page. Then no other library's variables share a page with the program's, and nothing is
//! placed in a gap. `libhiroba_pthread.so` (`tls.rs`) relies on it.
//!
//! Format: U. Drepper, *ELF Handling for Thread-Local Storage*, 3.4 (variant II).

use std::io;

use super::small_library::{Contents, PAGE_BYTES, SmallLibrary};

/// What an executable or a library says about its thread-local variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocals {
    pub address: u64,
    pub bytes: u64,
    pub alignment: u64,
}

/// The storage below a control block as the loader fills it, library by library.
#[derive(Clone, Copy, Debug, Default)]
struct Storage {
    /// How far below the control block the storage begins.
    offset: u64,
    /// How far below it the gap ends and begins that an alignment has left: the loader puts later variables
    /// there if they fit.
    gap_end: u64,
    gap_start: u64,
}

impl Storage {
    /// Places variables. Returns how far below the control block they begin.
    fn place(&mut self, variables: ThreadLocals) -> u64 {
        let ThreadLocals { address, bytes, alignment } = variables;
        let alignment = alignment.max(1);
        let first_byte = address.wrapping_neg() & (alignment - 1);
        let after =
            |start: u64| (start + bytes).saturating_sub(first_byte).next_multiple_of(alignment) + first_byte;
        if self.gap_bytes() >= bytes {
            let offset = after(self.gap_end);
            if offset <= self.gap_start {
                self.gap_end = offset;
                return offset;
            }
        }
        let offset = after(self.offset);
        if offset > self.offset + bytes + self.gap_bytes() {
            (self.gap_end, self.gap_start) = (self.offset, offset - bytes);
        }
        self.offset = offset;
        offset
    }

    fn gap_bytes(self) -> u64 {
        self.gap_start - self.gap_end
    }

    /// Returns how many bytes fill the last page; at least one, so that there is an aligned library.
    fn filler_bytes(self) -> u64 {
        PAGE_BYTES - self.offset % PAGE_BYTES
    }
}

/// Returns the libraries that must be loaded after those whose variables are given, the executable's first:
/// one that fills the gap among these variables, if there is one, and one that fills their last page. None if
/// there are no variables.
pub fn fillers(all: impl Iterator<Item = ThreadLocals>) -> io::Result<Vec<SmallLibrary>> {
    let mut storage = Storage::default();
    for variables in all.filter(|variables| variables.bytes > 0) {
        storage.place(variables);
    }
    if storage.offset == 0 {
        return Ok(Vec::new());
    }
    let gap = Some(storage.gap_bytes()).filter(|bytes| *bytes > 0).map(|bytes| (bytes, 1));
    let rest = (storage.filler_bytes(), PAGE_BYTES);
    let of = |storage| {
        SmallLibrary::make(&Contents { name: "libhiroba_tls.so", versions: &[], thread_local: Some(storage) })
    };
    gap.into_iter().chain([rest]).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: u64, alignment: u64, address: u64) -> ThreadLocals {
        ThreadLocals { address, bytes, alignment }
    }

    /// Places variables and fillers, and checks that they fill whole pages without a gap.
    #[track_caller]
    fn check(all: &[ThreadLocals]) {
        let mut storage = Storage::default();
        let mut taken: Vec<std::ops::Range<u64>> = Vec::new();
        let mut put = |storage: &mut Storage, variables: ThreadLocals| {
            let offset = storage.place(variables);
            let range = offset - variables.bytes..offset;
            let is_free = taken.iter().all(|other| range.end <= other.start || other.end <= range.start);
            assert!(is_free, "{variables:?} of {all:?}");
            // The variables' address is congruent to where they are placed.
            let alignment = variables.alignment;
            assert_eq!(offset.wrapping_neg() % alignment, variables.address % alignment, "{variables:?}");
            taken.push(range);
        };
        all.iter().for_each(|variables| put(&mut storage, *variables));
        let before = storage.offset;
        let gap = storage.gap_bytes();
        if gap > 0 {
            put(&mut storage, of(gap, 1, 0));
        }
        let filler = storage.filler_bytes();
        put(&mut storage, of(filler, PAGE_BYTES, 0));
        assert!(
            storage.offset.is_multiple_of(PAGE_BYTES) && storage.gap_bytes() == 0,
            "{all:?}: {storage:?}"
        );
        assert!((1..=PAGE_BYTES).contains(&(storage.offset - before)), "{all:?}: {storage:?}");
    }

    #[test]
    fn variables_and_fillers_fill_whole_pages() {
        let lengths = [1, 8, 63, 64, 4090, 4096, 4097, 70_000];
        for bytes in lengths {
            for alignment in [1, 8, 64, 4096] {
                for address in [0x3d40, 0x3d58, 0x4000] {
                    let executable = of(bytes, alignment, address);
                    check(&[executable]);
                    for bytes in lengths {
                        let libraries = [of(bytes, 64, 0x1010), of(24, 8, 0x8), of(bytes, 16, 0)];
                        check(&[executable, libraries[0]]);
                        check(&[executable, libraries[0], libraries[1], libraries[2]]);
                    }
                }
            }
        }
    }

    /// In a gap, the loader places variables from its upper end on.
    #[test]
    fn small_variables_fill_a_gap() {
        let mut storage = Storage::default();
        assert_eq!(storage.place(of(8, 64, 0)), 64);
        assert_eq!((storage.place(of(16, 8, 0)), storage.place(of(40, 8, 0))), (16, 56));
        assert_eq!(storage.place(of(8, 8, 0)), 72);
    }

    #[test]
    fn the_loader_takes_the_library() {
        let of_one = |variables| fillers(std::iter::once(variables)).unwrap();
        assert_eq!(of_one(of(40, 8, 0)).len(), 1);
        let fillers = of_one(of(40, 64, 0));
        let paths: Vec<String> = fillers.iter().map(|filler| filler.path().display().to_string()).collect();
        assert_eq!(paths.len(), 2);
        let mut command = std::process::Command::new("/bin/true");
        let called = command.env("LD_PRELOAD", paths.join(":")).output().unwrap();
        assert!(called.status.success() && called.stderr.is_empty(), "{called:?}");
        assert!(of_one(ThreadLocals::default()).is_empty());
    }
}
