//! The library that fills up an executable's thread-local storage (`--pthread`).
//!
//! The loader places the executable's thread-local variables directly below a thread's control block, and
//! those of libraries below them, in the order of loading. A library with just enough thread-local storage is
//! loaded first: both together fill whole pages, and its alignment is a page. Then no other library's
//! variables share a page with the executable's, and nothing is placed in a gap. `libhiroba_pthread.so`
//! (`tls.rs`) relies on it.
//!
//! Format: U. Drepper, *ELF Handling for Thread-Local Storage*, 3.4 (variant II).

use std::io;

use super::small_library::{Contents, PAGE_BYTES, SmallLibrary};

/// What an executable says about its thread-local variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocals {
    pub address: u64,
    pub bytes: u64,
    pub alignment: u64,
}

impl ThreadLocals {
    /// Returns how far below the control block the executable's variables begin, as the loader computes it.
    fn offset(self) -> u64 {
        let alignment = self.alignment.max(1);
        let first_byte = self.address.wrapping_neg() & (alignment - 1);
        (self.bytes - first_byte.min(self.bytes)).next_multiple_of(alignment) + first_byte
    }

    /// Returns how many bytes lie between the executable's variables and the control block, because of their
    /// alignment: the loader puts a library's variables there if they fit.
    fn gap_bytes(self) -> u64 {
        self.offset() - self.bytes
    }

    /// Returns how many bytes fill the executable's pages; at least one, so that there is an aligned library.
    fn filler_bytes(self) -> u64 {
        PAGE_BYTES - self.offset() % PAGE_BYTES
    }
}

impl ThreadLocals {
    /// Returns the libraries in the order in which they must be loaded: first the one that fills the gap
    /// above the executable's variables, if there is one. None if the executable has no thread-local
    /// variables.
    pub fn fillers(self) -> io::Result<Vec<SmallLibrary>> {
        if self.bytes == 0 {
            return Ok(Vec::new());
        }
        let gap = Some(self.gap_bytes()).filter(|bytes| *bytes > 0).map(|bytes| (bytes, 1));
        let rest = (self.filler_bytes(), PAGE_BYTES);
        let of = |storage| {
            SmallLibrary::make(&Contents {
                name: "libhiroba_tls.so",
                versions: &[],
                thread_local: Some(storage),
            })
        };
        gap.into_iter().chain([rest]).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_and_filler_fill_whole_pages() {
        for bytes in [1, 8, 63, 64, 4090, 4096, 4097, 70_000] {
            for alignment in [1, 8, 64, 4096] {
                for address in [0x3d40, 0x3d58, 0x4000] {
                    let variables = ThreadLocals { address, bytes, alignment };
                    let filler = variables.filler_bytes();
                    assert!((1..=PAGE_BYTES).contains(&filler));
                    assert!((variables.offset() + filler).is_multiple_of(PAGE_BYTES), "{variables:?}");
                    assert!(variables.offset() >= bytes, "{variables:?}");
                    // The variables' address is congruent to where they are placed.
                    let placed = variables.offset().wrapping_neg() % alignment;
                    assert_eq!(placed, address % alignment, "{variables:?}");
                }
            }
        }
    }

    #[test]
    fn the_loader_takes_the_library() {
        let variables = ThreadLocals { address: 0, bytes: 40, alignment: 8 };
        assert_eq!(variables.fillers().unwrap().len(), 1);
        let with_gap = ThreadLocals { alignment: 64, ..variables };
        let fillers = with_gap.fillers().unwrap();
        let paths: Vec<String> = fillers.iter().map(|filler| filler.path().display().to_string()).collect();
        assert_eq!(paths.len(), 2);
        let mut command = std::process::Command::new("/bin/true");
        let called = command.env("LD_PRELOAD", paths.join(":")).output().unwrap();
        assert!(called.status.success() && called.stderr.is_empty(), "{called:?}");
        assert!(ThreadLocals::default().fillers().unwrap().is_empty());
    }
}
