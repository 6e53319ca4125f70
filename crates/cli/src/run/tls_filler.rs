//! The library that fills up an executable's thread-local storage (`--pthread`).
//!
//! The loader places the executable's thread-local variables directly below a thread's control block, and
//! those of libraries below them, in the order of loading. A library with just enough thread-local storage is
//! loaded first: both together fill whole pages, and its alignment is a page. Then no other library's
//! variables share a page with the executable's, and nothing is placed in a gap. `libhiroba_pthread.so`
//! (`tls.rs`) relies on it.
//!
//! Formats: System V ABI, chapter 5; U. Drepper, *ELF Handling for Thread-Local Storage*, 3.4 (variant II).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use object::elf::{
    DT_NULL, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMENT, DT_SYMTAB, Dyn64, ELFCLASS64, ELFDATA2LSB, ELFMAG,
    ELFOSABI_NONE, EM_X86_64, ET_DYN, EV_CURRENT, FileFlags, FileHeader64, Ident, PF_R, PF_W, PT_DYNAMIC,
    PT_GNU_STACK, PT_LOAD, PT_TLS, ProgramHeader64, SHN_UNDEF, Sym64,
};
use object::endian::{I64, LittleEndian, U16, U32, U64};
use object::pod::bytes_of;
use rustix::fs::MemfdFlags;

/// What an executable says about its thread-local variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocals {
    pub address: u64,
    pub bytes: u64,
    pub alignment: u64,
}

/// The unit in which memory is shared.
pub const PAGE_BYTES: u64 = 4096;

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

/// A library for an executable, in a file that its processes inherit.
#[derive(Debug)]
pub struct Filler {
    file: OwnedFd,
}

impl Filler {
    /// Returns the libraries in the order in which they must be loaded: first the one that fills the gap
    /// above the executable's variables, if there is one. None if the executable has no thread-local
    /// variables.
    pub fn make(variables: ThreadLocals) -> io::Result<Vec<Filler>> {
        if variables.bytes == 0 {
            return Ok(Vec::new());
        }
        let gap = Some(variables.gap_bytes()).filter(|bytes| *bytes > 0).map(|bytes| (bytes, 1));
        let rest = (variables.filler_bytes(), PAGE_BYTES);
        gap.into_iter().chain([rest]).map(|(bytes, alignment)| Filler::of(bytes, alignment)).collect()
    }

    fn of(bytes: u64, alignment: u64) -> io::Result<Filler> {
        // Without CLOEXEC, since the loader of each node opens it by its number.
        let file = rustix::fs::memfd_create("hiroba-tls", MemfdFlags::empty())?;
        let mut file = File::from(file);
        file.write_all(&library(bytes, alignment))?;
        Ok(Filler { file: file.into() })
    }

    /// Returns the path by which the loader finds it.
    pub fn path(&self) -> std::path::PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string())
    }
}

/// Makes a dynamic library with nothing but thread-local storage.
fn library(bytes: u64, alignment: u64) -> Vec<u8> {
    const SEGMENTS: usize = 4;
    const ENTRIES: usize = 6;
    let e = LittleEndian;
    let zero = U64::new(e, 0);
    let name = b"\0libhiroba_tls.so\0";
    let headers_at = size_of::<FileHeader64<LittleEndian>>();
    let symbols_at = headers_at + SEGMENTS * size_of::<ProgramHeader64<LittleEndian>>();
    let entries_at = symbols_at + size_of::<Sym64<LittleEndian>>();
    let names_at = entries_at + ENTRIES * size_of::<Dyn64<LittleEndian>>();
    let end = names_at + name.len();

    let header = FileHeader64::<LittleEndian> {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(e, ET_DYN),
        e_machine: U16::new(e, EM_X86_64),
        e_version: U32::new(e, 1),
        e_entry: zero,
        e_phoff: U64::new(e, headers_at as u64),
        e_shoff: zero,
        e_flags: U32::new(e, FileFlags(0)),
        e_ehsize: U16::new(e, headers_at as u16),
        e_phentsize: U16::new(e, size_of::<ProgramHeader64<LittleEndian>>() as u16),
        e_phnum: U16::new(e, SEGMENTS as u16),
        e_shentsize: U16::new(e, 0),
        e_shnum: U16::new(e, 0),
        e_shstrndx: U16::new(e, SHN_UNDEF),
    };
    let segment = |kind, at: usize, in_file: usize, in_memory: u64, alignment: u64| ProgramHeader64 {
        p_type: U32::new(e, kind),
        p_flags: U32::new(e, PF_R | PF_W),
        p_offset: U64::new(e, at as u64),
        p_vaddr: U64::new(e, at as u64),
        p_paddr: U64::new(e, at as u64),
        p_filesz: U64::new(e, in_file as u64),
        p_memsz: U64::new(e, in_memory),
        p_align: U64::new(e, alignment),
    };
    let entries_bytes = ENTRIES * size_of::<Dyn64<LittleEndian>>();
    let segments: [ProgramHeader64<LittleEndian>; SEGMENTS] = [
        segment(PT_LOAD, 0, end, end as u64, PAGE_BYTES),
        segment(PT_DYNAMIC, entries_at, entries_bytes, entries_bytes as u64, 8),
        segment(PT_TLS, 0, 0, bytes, alignment),
        // Without it the loader would make all stacks executable.
        segment(PT_GNU_STACK, 0, 0, 0, 16),
    ];
    let entry = |tag, value: usize| Dyn64 { d_tag: I64::new(e, tag), d_val: U64::new(e, value as u64) };
    let entries: [Dyn64<LittleEndian>; ENTRIES] = [
        entry(DT_SONAME, 1),
        entry(DT_STRTAB, names_at),
        entry(DT_STRSZ, name.len()),
        entry(DT_SYMTAB, symbols_at),
        entry(DT_SYMENT, size_of::<Sym64<LittleEndian>>()),
        entry(DT_NULL, 0),
    ];

    let mut file = Vec::with_capacity(end);
    file.extend_from_slice(bytes_of(&header));
    segments.iter().for_each(|segment| file.extend_from_slice(bytes_of(segment)));
    file.extend_from_slice(bytes_of(&Sym64::<LittleEndian>::default()));
    entries.iter().for_each(|entry| file.extend_from_slice(bytes_of(entry)));
    file.extend_from_slice(name);
    file
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
        assert_eq!(Filler::make(variables).unwrap().len(), 1);
        let with_gap = ThreadLocals { alignment: 64, ..variables };
        let fillers = Filler::make(with_gap).unwrap();
        let paths: Vec<String> = fillers.iter().map(|filler| filler.path().display().to_string()).collect();
        assert_eq!(paths.len(), 2);
        let mut command = std::process::Command::new("/bin/true");
        let called = command.env("LD_PRELOAD", paths.join(":")).output().unwrap();
        assert!(called.status.success() && called.stderr.is_empty(), "{called:?}");
        assert!(Filler::make(ThreadLocals::default()).unwrap().is_empty());
    }
}
