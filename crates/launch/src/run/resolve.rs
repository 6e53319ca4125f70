//! Finds the program as `execvp` would, and explains in advance why it cannot be executed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use crate::failure::{Failure, system_words};

/// Where `execvp` looks if `PATH` is not set.
const PATH_WHEN_UNSET: &str = "/bin:/usr/bin";

/// Returns the file to execute for `program`.
pub fn resolve(program: &OsStr) -> Result<PathBuf, Failure> {
    let name = program.to_string_lossy();
    if program.is_empty() {
        return Err(Failure::not_found("expected a program to run, got an empty name"));
    }
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match std::fs::metadata(&path) {
            Ok(_) => check_executable(&path, &name).map(|()| path),
            Err(error) => Err(missing(&name, &error)),
        };
    }
    let directories = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH_WHEN_UNSET));
    let mut refused = None;
    for directory in std::env::split_paths(&directories) {
        let path = if directory.as_os_str().is_empty() {
            Path::new(".").join(program)
        } else {
            directory.join(program)
        };
        if path.metadata().is_err() {
            continue;
        }
        match check_executable(&path, &name) {
            Ok(()) => return Ok(path),
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let hint =
            if Path::new(program).is_file() { format!("; did you mean './{name}'?") } else { String::new() };
        Failure::not_found(format!("program '{name}' was not found in PATH{hint}"))
    }))
}

fn missing(name: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::not_found(format!("program '{name}' was not found"))
        }
        _ => Failure::not_executable(format!("program '{name}' cannot be executed: {}", system_words(error))),
    }
}

fn check_executable(path: &Path, name: &str) -> Result<(), Failure> {
    let refuse =
        |why: String| Err(Failure::not_executable(format!("program '{name}' cannot be executed: {why}")));
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return refuse("it is a directory".to_owned()),
        Ok(metadata) if !metadata.is_file() => return refuse("it is not a regular file".to_owned()),
        Ok(_) => {}
        Err(error) => return Err(missing(name, &error)),
    }
    if rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return refuse(format!("permission denied (is it executable? see 'ls -l {name}' and 'chmod +x')"));
    }
    match read_head(path) {
        Ok(head) => match explain_head(&head) {
            Some(why) => refuse(why),
            None => Ok(()),
        },
        // Executable but not readable is allowed; the kernel decides.
        Err(_) => Ok(()),
    }
}

/// The number of bytes of a `#!` line that the kernel reads (`BINPRM_BUF_SIZE`).
const HEAD_BYTES: u64 = 256;

fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// Returns the reason why the kernel will refuse a file that begins with `head`, if that is certain.
fn explain_head(head: &[u8]) -> Option<String> {
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or(rest);
        let interpreter = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
        let path = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
        if !path.exists() {
            return Some(format!("its interpreter '{}' does not exist", path.display()));
        }
        return None;
    }
    // Other formats may be registered with the kernel (binfmt_misc), so only those that it always knows are
    // checked.
    if head.starts_with(b"\x7fELF") {
        return explain_elf(head);
    }
    None
}

/// `e_machine` of this machine (ELF gABI, chapter 4).
const HOST_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "riscv64") {
    Some(243)
} else {
    None
};

fn explain_elf(head: &[u8]) -> Option<String> {
    let half = |at: usize| Some(u16::from_le_bytes([*head.get(at)?, *head.get(at + 1)?]));
    let (Some(kind), Some(machine)) = (half(16), half(18)) else {
        return Some("it is an incomplete ELF file".to_owned());
    };
    if kind == 1 {
        return Some("it is an object file; link it first, for example with 'hiroba cc'".to_owned());
    }
    // A program for another machine may still run under an emulator that is registered with the kernel.
    let emulators = Path::new("/proc/sys/fs/binfmt_misc/register").exists();
    match HOST_MACHINE {
        Some(host) if host != machine && machine != 3 && !emulators => Some(format!(
            "it is built for another architecture (ELF machine {machine}, this one is {host}); build it here"
        )),
        _ => None,
    }
}

/// Returns the error for an `execve` of `path` that the kernel refused.
pub fn refused(program: &OsStr, path: &Path, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    let why = match error.raw_os_error() {
        Some(libc::ENOEXEC) => {
            "it is neither a binary for this machine nor a script that begins with #!".to_owned()
        }
        Some(libc::ENOENT) if path.exists() => {
            "the interpreter or dynamic loader that it names does not exist".to_owned()
        }
        Some(libc::ENOENT) => return Failure::not_found(format!("program '{name}' was not found")),
        Some(libc::E2BIG) => "its arguments and environment together are too long".to_owned(),
        Some(libc::EAGAIN) => return super::lacks::too_many_processes(error),
        _ => system_words(error),
    };
    Failure::not_executable(format!("program '{name}' cannot be executed: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_no_kernel_takes_are_explained() {
        let told = |head: &[u8]| explain_head(head).unwrap_or_default();
        assert!(told(b"#!/no/such/interpreter -x\n").contains("/no/such/interpreter"));
        assert_eq!(explain_head(b"#! /bin/sh\necho"), None);
        assert_eq!(explain_head(b""), None);
        assert!(told(b"\x7fELF").contains("incomplete"));
        let mut object = [0u8; 64];
        object[..4].copy_from_slice(b"\x7fELF");
        object[16] = 1;
        assert!(told(&object).contains("object file"));
    }
}
