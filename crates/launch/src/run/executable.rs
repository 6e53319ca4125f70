//! Properties of an executable or a library, read from its file before it runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use object::Endianness;
use object::elf::{DT_NEEDED, ELFCLASS64, ELFMAG, EM_X86_64, FileHeader64, PT_DYNAMIC, PT_INTERP, PT_TLS};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::read::{ReadCache, ReadRef};

use super::openmp;
use super::small_library;
use super::tls_filler::ThreadLocals;
use crate::failure::system_words;

/// The properties of an executable or a library.
#[derive(Debug, Default)]
pub(super) struct Executable {
    is_x86_64: bool,
    interpreter: Option<String>,
    is_dynamic: bool,
    has_more_rights: bool,
    is_go: bool,
    pub(super) thread_locals: ThreadLocals,
    pub(super) libraries: Vec<String>,
    imported: Vec<String>,
    pub(super) exported: Vec<String>,
    /// OpenMP's library is linked into it.
    pub(super) contains_openmp: bool,
}

/// The loader of the C library that the library for such executables replaces parts of.
const LOADER: &str = "ld-linux-x86-64.so.2";

impl Executable {
    /// Reads a file. The error is a sentence that says why it is no 64-bit executable.
    pub(super) fn read(path: &Path) -> Result<Executable, String> {
        let words = |error: io::Error| system_words(&error);
        let file = File::open(path).map_err(words)?;
        let metadata = file.metadata().map_err(words)?;
        let data = &ReadCache::new(file);
        let magic = data.read_bytes_at(0, 5).unwrap_or_default();
        if magic.get(..4) != Some(&ELFMAG[..]) {
            return Err(
                "expected an executable, got a script or another kind of file; name the program that it starts"
                    .to_owned(),
            );
        }
        if magic[4] != ELFCLASS64.0 {
            return Err("expected a program of 64 bits, got one of 32".to_owned());
        }
        let mut executable = Executable {
            has_more_rights: metadata.permissions().mode() & 0o6000 != 0 && metadata.uid() != own_user(),
            ..Executable::default()
        };
        executable.parse(data).ok_or("expected an executable, got a file with invalid headers")?;
        Ok(executable)
    }

    fn parse<'data, R: ReadRef<'data>>(&mut self, data: R) -> Option<()> {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        self.is_x86_64 = header.e_machine(endian) == EM_X86_64;
        for segment in header.program_headers(endian, data).ok()? {
            self.is_dynamic |= segment.p_type(endian) == PT_DYNAMIC;
            if segment.p_type(endian) == PT_TLS {
                self.thread_locals = ThreadLocals {
                    address: segment.p_vaddr(endian),
                    bytes: segment.p_memsz(endian),
                    alignment: segment.p_align(endian),
                };
            }
            if segment.p_type(endian) == PT_INTERP {
                let name = segment.data(endian, data).ok()?;
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                self.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
        }
        let sections = header.sections(endian, data).ok()?;
        self.is_go = sections.iter().any(|section| {
            sections
                .section_name(endian, section)
                .is_ok_and(|name| name == b".go.buildinfo" || name == b".gopclntab")
        });
        if let Some((entries, strings)) = sections.dynamic(endian, data).ok()? {
            let strings = sections.strings(endian, data, strings).ok()?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
                let name = entry.string(endian, strings).ok()?;
                self.libraries.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        let own = sections.symbols(endian, data, object::elf::SHT_SYMTAB).ok()?;
        self.contains_openmp = own.iter().any(|symbol| {
            !symbol.is_undefined(endian)
                && symbol
                    .name(endian, own.strings())
                    .is_ok_and(|name| name == b"GOMP_parallel" || name == b"__kmpc_fork_call")
        });
        let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM).ok()?;
        for symbol in symbols.iter() {
            let name = symbol.name(endian, symbols.strings()).ok()?;
            let list = if symbol.is_undefined(endian) { &mut self.imported } else { &mut self.exported };
            list.push(String::from_utf8_lossy(name).into_owned());
        }
        Some(())
    }

    pub(super) fn imports(&self, name: &str) -> bool {
        self.imported.iter().any(|imported| imported == name)
    }

    pub(super) fn imports_any(&self, prefix: &str) -> bool {
        self.imported.iter().any(|imported| imported.starts_with(prefix))
    }

    /// Returns true if it calls OpenMP's library, or contains it.
    pub(super) fn calls_openmp(&self) -> bool {
        let calls = ["GOMP_", "__kmpc_"].iter().any(|prefix| self.imports_any(prefix));
        let needs = (self.needs(openmp::OF_GNU) || self.needs_llvm()) && self.imports_any("omp_");
        calls || needs || self.contains_openmp
    }

    pub(super) fn is_openmp(&self) -> bool {
        self.calls_openmp() && !self.imports_any("hiroba_")
    }

    /// The loader that starts it.
    pub(super) fn loader(&self) -> Option<&str> {
        self.interpreter.as_deref()
    }

    fn needs_llvm(&self) -> bool {
        self.libraries.iter().any(|name| openmp::is_of_llvm(name))
    }

    /// Functions of OpenMP's that it wants and that are not provided.
    pub(super) fn missing(&self, provided: &[String]) -> Vec<&str> {
        let is_of_openmp = |name: &&String| openmp::PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let wanted = self.imported.iter().filter(is_of_openmp);
        wanted.filter(|name| !provided.contains(name)).map(String::as_str).collect()
    }

    fn needs(&self, prefix: &str) -> bool {
        self.libraries.iter().any(|library| library.starts_with(prefix))
    }

    /// Returns the reason why the threads of this executable cannot run on several nodes.
    pub(super) fn why_not(&self) -> Option<String> {
        let sanitizers = ["__asan_init", "__tsan_init", "__msan_init", "__hwasan_init", "__lsan_init"];
        let allocators = ["libjemalloc", "libtcmalloc", "libmimalloc"];
        let loader = self.interpreter.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
        let why = if !self.is_x86_64 {
            "expected a program for x86-64, got one for another processor"
        } else if self.is_go {
            "it is a Go program, whose own scheduler creates threads without pthreads"
        } else if self.interpreter.is_none() && self.is_dynamic {
            "it is linked statically (static-pie), so the runtime cannot be loaded before its C library; link it without -static-pie"
        } else if self.interpreter.is_none() {
            "it is linked statically, so the runtime cannot be loaded before its C library; link it without -static"
        } else if loader != Some(LOADER) {
            let loader = self.interpreter.as_deref().unwrap_or_default();
            return Some(format!(
                "expected a program of the GNU C library ({LOADER}), got one that {loader} loads"
            ));
        } else if self.has_more_rights {
            "it is set-user-ID or set-group-ID, and the loader would not load the runtime"
        } else if self.imports_any("hiroba_") {
            "it is built for Hiroba and joins the job itself; leave --pthread out"
        } else if self.contains_openmp {
            "OpenMP's library is linked into it statically, so that nothing can stand in for it; link it dynamically"
        } else if let Some(sanitizer) = sanitizers.into_iter().find(|name| self.imports(name)) {
            return Some(format!(
                "it is built with a sanitizer ({sanitizer}), whose shadow memory belongs to one process"
            ));
        } else if let Some(allocator) = allocators.into_iter().find(|name| self.needs(name)) {
            return Some(format!(
                "it has an allocator of its own ({allocator}), whose memory belongs to one process"
            ));
        } else if self.imports_any("io_uring_") {
            "it uses io_uring, through which the kernel writes to memory unnoticed"
        } else if self.thread_locals.alignment > small_library::PAGE_BYTES {
            "it aligns thread-local variables to more than a page"
        } else {
            return None;
        };
        Some(why.to_owned())
    }
}

/// Returns the user who runs this command.
fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Executable {
        Executable {
            is_x86_64: true,
            is_dynamic: true,
            interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            libraries: vec!["libc.so.6".to_owned()],
            imported: vec!["pthread_create".to_owned()],
            ..Executable::default()
        }
    }

    fn with_import(name: &str) -> Executable {
        Executable { imported: vec![name.to_owned()], ..fit() }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        assert_eq!(fit().why_not(), None);
        let cases = [
            (Executable { interpreter: None, is_dynamic: false, ..fit() }, "linked statically, so"),
            (Executable { interpreter: None, ..fit() }, "static-pie"),
            (Executable { interpreter: Some("/lib/ld-musl-x86_64.so.1".to_owned()), ..fit() }, "ld-musl"),
            (Executable { is_x86_64: false, ..fit() }, "another processor"),
            (Executable { has_more_rights: true, ..fit() }, "set-user-ID"),
            (Executable { is_go: true, ..fit() }, "Go"),
            (with_import("hiroba_init"), "leave --pthread out"),
            (Executable { contains_openmp: true, ..fit() }, "linked into it"),
            (with_import("__asan_init"), "sanitizer"),
            (with_import("io_uring_queue_init"), "io_uring"),
            (Executable { libraries: vec!["libjemalloc.so.2".to_owned()], ..fit() }, "libjemalloc"),
            (
                Executable {
                    thread_locals: ThreadLocals { alignment: 8192, ..ThreadLocals::default() },
                    ..fit()
                },
                "more than a page",
            ),
        ];
        for (executable, word) in cases {
            let why = executable.why_not().unwrap_or_default();
            assert!(why.contains(word), "expected a sentence with '{word}', got '{why}'");
        }
    }

    #[test]
    fn files_that_are_no_executables_are_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "#!/bin/sh\n").unwrap();
        assert!(Executable::read(file.path()).unwrap_err().contains("script"));
        std::fs::write(file.path(), b"\x7fELF\x01").unwrap();
        assert!(Executable::read(file.path()).unwrap_err().contains("32"));
        std::fs::write(file.path(), b"\x7fELF\x02\x01\x01").unwrap();
        assert!(Executable::read(file.path()).unwrap_err().contains("headers"));
        let own = Executable::read(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.is_x86_64 == cfg!(target_arch = "x86_64") && own.interpreter.is_some());
    }
}
