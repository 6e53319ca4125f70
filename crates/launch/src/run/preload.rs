//! Makes every node load the library before the program's own libraries.
//!
//! Functions of `libhiroba.so` that replace those of the C library make system calls on shared memory, and
//! threads, work. A program that is linked with the library loads it in time; an interpreter that loads it
//! later, or a program whose libraries were linked first, does not.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader};

use crate::compiler;

/// The dynamic loader's variable.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Returns the value of the variable for nodes that run `program`: the library, then the user's own value.
/// For executables that were not built for Hiroba, other libraries come first (`names`, of files beside the
/// library), and before them those that the launcher makes.
pub fn value(program: &Path, of_user: Option<&OsStr>, names: &[&str], small: &[PathBuf]) -> Option<OsString> {
    let of_user = of_user.filter(|value| !value.is_empty());
    let Some(library) = library(program) else { return of_user.map(OsStr::to_owned) };
    let mut value = OsString::new();
    for path in small {
        value.push(path);
        value.push(":");
    }
    for name in names {
        value.push(library.with_file_name(name));
        value.push(":");
    }
    value.push(library);
    if let Some(more) = of_user {
        value.push(":");
        value.push(more);
    }
    Some(value)
}

fn library(program: &Path) -> Option<PathBuf> {
    let library = compiler::library_file()?;
    // These characters end a name in the variable, and cannot be escaped.
    let nameable = !library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'));
    (nameable && !holds_the_runtime(program) && !wants_to_be_first(program)).then_some(library)
}

/// Returns true for this command itself, which measures with the runtime that it contains.
fn holds_the_runtime(program: &Path) -> bool {
    let same = |executable: PathBuf| Some(executable.canonicalize().ok()? == program.canonicalize().ok()?);
    std::env::current_exe().ok().and_then(same).unwrap_or(false)
}

/// Returns true for programs with AddressSanitizer, which refuses to start behind another library. Such a
/// program must be linked with ours.
fn wants_to_be_first(program: &Path) -> bool {
    let first = |name: &[u8]| name.starts_with(b"libasan.") || name.starts_with(b"libclang_rt.asan");
    needed(program).unwrap_or_default().iter().any(|name| first(name))
}

/// Returns the libraries that an executable names itself.
fn needed(program: &Path) -> Option<Vec<Vec<u8>>> {
    let data = &ReadCache::new(File::open(program).ok()?);
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let (entries, strings) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let names = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    Some(names.filter_map(|entry| entry.string(endian, strings).ok().map(<[u8]>::to_vec)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_stays() {
        let of_user = OsString::from("/lib/own.so:/lib/other.so");
        let program = std::env::current_exe().expect("this test has an executable");
        assert_eq!(
            value(&program, Some(&of_user), &[], &[]),
            Some(of_user),
            "a program that holds the runtime itself"
        );
        assert_eq!(value(&program, Some(OsStr::new("")), &[], &[]), None);
        assert_eq!(value(&program, None, &[], &[]), None);
        if let Some(library) = compiler::library_file() {
            let both = value(Path::new("/bin/sh"), Some(OsStr::new("own.so")), &[], &[]).unwrap_or_default();
            assert_eq!(both, OsString::from(format!("{}:own.so", library.display())));
        }
    }

    #[test]
    fn the_libraries_of_an_executable_are_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (source, program) = (directory.path().join("a.c"), directory.path().join("a"));
        std::fs::write(&source, "int main(void) { return 0; }").expect("a writable directory");
        let build = |flags: &[&str]| {
            let mut compiler = std::process::Command::new("cc");
            compiler.args(flags).arg("-o").arg(&program).arg(&source).stderr(std::process::Stdio::null());
            compiler.status().expect("a compiler").success()
        };
        assert!(build(&[]));
        assert!(needed(&program).unwrap_or_default().iter().any(|name| name.starts_with(b"libc.so")));
        assert!(!wants_to_be_first(&program));
        // Without the sanitizer's library there is nothing to distinguish.
        if build(&["-fsanitize=address", "-shared-libasan"]) || build(&["-fsanitize=address"]) {
            assert!(wants_to_be_first(&program), "{:?}", needed(&program));
        }
        for other in ["/dev/null", "/etc/passwd", "/no/such/file"] {
            assert_eq!(needed(Path::new(other)), None);
        }
    }
}
