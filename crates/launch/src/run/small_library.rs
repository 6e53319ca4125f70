//! Libraries without code that the launcher makes for the loader of an executable that was not built for
//! Hiroba: one that fills up thread-local storage (`tls_filler.rs`), and one that has the name of LLVM's
//! OpenMP library, so that the loader looks for no other of that name (`executables.rs`).
//!
//! Formats: System V ABI, chapter 5; Linux Standard Base, symbol versioning.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use object::elf::{
    DT_NULL, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMENT, DT_SYMTAB, DT_VERDEF, DT_VERDEFNUM, DT_VERSYM, Dyn64,
    DynamicTag, ELFCLASS64, ELFDATA2LSB, ELFMAG, ELFOSABI_NONE, EM_X86_64, ET_DYN, EV_CURRENT, FileFlags,
    FileHeader64, Ident, PF_R, PF_W, PT_DYNAMIC, PT_GNU_STACK, PT_LOAD, PT_TLS, ProgramHeader64, SHN_UNDEF,
    Sym64, VER_DEF_CURRENT, VER_FLG_BASE, Verdaux, Verdef, VersionFlags, VersionIndex, hash,
};
use object::endian::{I64, LittleEndian, U16, U32, U64};
use object::pod::bytes_of;
use rustix::fs::MemfdFlags;

/// The unit in which memory is shared.
pub const PAGE_BYTES: u64 = 4096;

/// What a library has.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The name by which other libraries need it.
    pub name: &'a str,
    /// The versions that it says to define, of symbols that other libraries have.
    pub versions: &'a [&'a str],
    /// The length and the alignment of thread-local storage.
    pub thread_local: Option<(u64, u64)>,
}

/// A library in a file that the processes of nodes inherit.
#[derive(Debug)]
pub struct SmallLibrary {
    file: OwnedFd,
}

impl SmallLibrary {
    /// Makes one.
    pub fn make(contents: &Contents<'_>) -> io::Result<SmallLibrary> {
        // Without CLOEXEC, since the loader of each node opens it by its number.
        let file = rustix::fs::memfd_create("hiroba-library", MemfdFlags::empty())?;
        let mut file = File::from(file);
        file.write_all(&bytes(contents))?;
        Ok(SmallLibrary { file: file.into() })
    }

    /// Returns the path by which the loader finds it.
    pub fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.file.as_raw_fd().to_string())
    }
}

/// Strings that other parts of a library refer to by their place.
struct Names(Vec<u8>);

impl Names {
    fn put(&mut self, name: &str) -> usize {
        let place = self.0.len();
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        place
    }
}

/// Defines the library itself as the first version, and then the others.
fn versions(contents: &Contents<'_>, names: &mut Names) -> Vec<u8> {
    let e = LittleEndian;
    let all: Vec<&str> = std::iter::once(contents.name).chain(contents.versions.iter().copied()).collect();
    let (record, one) = (size_of::<Verdef<LittleEndian>>(), size_of::<Verdaux<LittleEndian>>());
    let mut bytes = Vec::new();
    for (place, name) in all.iter().enumerate() {
        let is_last = place + 1 == all.len();
        let flags = if place == 0 { VER_FLG_BASE } else { VersionFlags(0) };
        let version = Verdef::<LittleEndian> {
            vd_version: U16::new(e, VER_DEF_CURRENT),
            vd_flags: U16::new(e, flags),
            vd_ndx: U16::new(e, VersionIndex(place as u16 + 1)),
            vd_cnt: U16::new(e, 1),
            vd_hash: U32::new(e, hash(name.as_bytes())),
            vd_aux: U32::new(e, record as u32),
            vd_next: U32::new(e, if is_last { 0 } else { (record + one) as u32 }),
        };
        let name = names.put(name);
        let auxiliary = Verdaux { vda_name: U32::new(e, name as u32), vda_next: U32::new(e, 0) };
        bytes.extend_from_slice(bytes_of(&version));
        bytes.extend_from_slice(bytes_of(&auxiliary));
    }
    bytes
}

/// Makes the library.
fn bytes(contents: &Contents<'_>) -> Vec<u8> {
    let e = LittleEndian;
    let mut names = Names(vec![0]);
    let name = names.put(contents.name);
    let versions = versions(contents, &mut names);
    let segment_count = 3 + usize::from(contents.thread_local.is_some());
    const ENTRIES: usize = 9;
    let headers_at = size_of::<FileHeader64<LittleEndian>>();
    let symbols_at = headers_at + segment_count * size_of::<ProgramHeader64<LittleEndian>>();
    let entries_at = symbols_at + size_of::<Sym64<LittleEndian>>();
    let versions_at = entries_at + ENTRIES * size_of::<Dyn64<LittleEndian>>();
    // The version of the one symbol, which is none: a word for it.
    let symbol_version_at = versions_at + versions.len();
    let names_at = symbol_version_at + size_of::<u16>();
    let end = names_at + names.0.len();

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
    let mut segments: Vec<ProgramHeader64<LittleEndian>> = vec![
        segment(PT_LOAD, 0, end, end as u64, PAGE_BYTES),
        segment(PT_DYNAMIC, entries_at, entries_bytes, entries_bytes as u64, 8),
        // Without it the loader would make all stacks executable.
        segment(PT_GNU_STACK, 0, 0, 0, 16),
    ];
    segments.extend(contents.thread_local.map(|(bytes, alignment)| segment(PT_TLS, 0, 0, bytes, alignment)));
    let entry =
        |tag: DynamicTag, value: usize| Dyn64 { d_tag: I64::new(e, tag), d_val: U64::new(e, value as u64) };
    let entries: [Dyn64<LittleEndian>; ENTRIES] = [
        entry(DT_SONAME, name),
        entry(DT_STRTAB, names_at),
        entry(DT_STRSZ, names.0.len()),
        entry(DT_SYMTAB, symbols_at),
        entry(DT_SYMENT, size_of::<Sym64<LittleEndian>>()),
        entry(DT_VERSYM, symbol_version_at),
        entry(DT_VERDEF, versions_at),
        entry(DT_VERDEFNUM, contents.versions.len() + 1),
        entry(DT_NULL, 0),
    ];

    let mut file = Vec::with_capacity(end);
    file.extend_from_slice(bytes_of(&header(headers_at, segment_count)));
    segments.iter().for_each(|segment| file.extend_from_slice(bytes_of(segment)));
    file.extend_from_slice(bytes_of(&Sym64::<LittleEndian>::default()));
    entries.iter().for_each(|entry| file.extend_from_slice(bytes_of(entry)));
    file.extend_from_slice(&versions);
    file.extend_from_slice(&[0; size_of::<u16>()]);
    file.extend_from_slice(&names.0);
    file
}

fn header(headers_at: usize, segment_count: usize) -> FileHeader64<LittleEndian> {
    let e = LittleEndian;
    let zero = U64::new(e, 0);
    FileHeader64 {
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
        e_phnum: U16::new(e, segment_count as u16),
        e_shentsize: U16::new(e, 0),
        e_shnum: U16::new(e, 0),
        e_shstrndx: U16::new(e, SHN_UNDEF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_takes_a_library_with_versions() {
        let contents = Contents { name: "libx.so.1", versions: &["VERSION", "OMP_1.0"], thread_local: None };
        let library = SmallLibrary::make(&contents).unwrap();
        let mut command = std::process::Command::new("/bin/true");
        let called = command.env("LD_PRELOAD", library.path()).output().unwrap();
        assert!(called.status.success() && called.stderr.is_empty(), "{called:?}");
    }
}
