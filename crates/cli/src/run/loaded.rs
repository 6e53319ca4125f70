//! An executable with the libraries that it loads, as the loader itself finds them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::executable::Executable;
use super::openmp::{self, Library};

/// An executable, and the properties of the libraries that it loads.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) executable: Executable,
    /// All but OpenMP's own.
    libraries: Vec<Executable>,
    /// The names by which OpenMP's own are needed.
    of_openmp: Vec<String>,
}

impl Loaded {
    /// Reads an executable and its libraries. The error is a sentence: why the file is no executable.
    /// Libraries that cannot be found are left to the loader, which says so when the program starts.
    pub(super) fn read(path: &Path, variables: &[(OsString, OsString)]) -> Result<Loaded, String> {
        let executable = Executable::read(path)?;
        let found = executable.loader().map_or_else(Vec::new, |loader| list(loader, path, variables));
        let is_of_openmp = |name: &str| name.starts_with(openmp::OF_GNU) || openmp::is_of_llvm(name);
        let (of_openmp, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|dependency| is_of_openmp(&dependency.name));
        let named = executable.libraries.iter().filter(|name| is_of_openmp(name)).cloned();
        let mut names: Vec<String> =
            of_openmp.into_iter().map(|dependency| dependency.name).chain(named).collect();
        names.sort();
        names.dedup();
        let read = |dependency: &Dependency| Executable::read(&dependency.path).ok();
        let libraries = others.iter().filter_map(read).collect();
        Ok(Loaded { executable, libraries, of_openmp: names })
    }

    /// The executable and its libraries.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Executable> {
        std::iter::once(&self.executable).chain(&self.libraries)
    }

    /// Returns true if any part calls OpenMP's library, and the executable knows nothing of Hiroba.
    pub(super) fn is_openmp(&self) -> bool {
        // A library that contains OpenMP's creates threads as any other does.
        let by_library = self.libraries.iter().any(|part| part.calls_openmp() && !part.contains_openmp);
        (self.executable.calls_openmp() || by_library) && !self.executable.imports_any("hiroba_")
    }

    /// Which of OpenMP's libraries it was built for. The error is a sentence: for both.
    pub(super) fn library(&self) -> Result<Library, String> {
        let needs_gnu = self.of_openmp.iter().any(|name| name.starts_with(openmp::OF_GNU));
        let needs_llvm = self.of_openmp.iter().any(|name| openmp::is_of_llvm(name));
        match (needs_gnu, needs_llvm) {
            (true, true) => Err("it or its libraries need the OpenMP libraries of both GNU and LLVM, whose \
                                 locks have different lengths; build all of it with one compiler"
                .to_owned()),
            (_, true) => Ok(Library::Llvm),
            _ if self.parts().any(|part| part.imports_any("__kmpc_")) => Ok(Library::Llvm),
            _ => Ok(Library::Gnu),
        }
    }

    /// The names of LLVM's library by which any part needs it.
    pub(super) fn names_of_llvm(&self) -> impl Iterator<Item = &str> {
        self.of_openmp.iter().map(String::as_str).filter(|name| openmp::is_of_llvm(name))
    }
}

/// A library by the name by which it is needed, and where the loader finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    path: PathBuf,
}

/// Returns all libraries that an executable loads, with those that they need. No code of the program runs.
fn list(loader: &str, program: &Path, variables: &[(OsString, OsString)]) -> Vec<Dependency> {
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).stdin(Stdio::null()).stderr(Stdio::null());
    let is_searched = |name: &OsStr| name == "LD_LIBRARY_PATH";
    let set = variables.iter().filter(|(name, _)| is_searched(name));
    command.envs(set.map(|(name, value)| (name, value))).env_remove("LD_PRELOAD");
    let listed = command.output().ok().filter(|output| output.status.success());
    listed.map_or_else(Vec::new, |output| parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads lines of the form `name => path (address)`.
fn parse(list: &str) -> Vec<Dependency> {
    let of_line = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let (path, _) = rest.rsplit_once(" (")?;
        let (name, path) = (name.to_owned(), PathBuf::from(path));
        path.is_absolute().then_some(Dependency { name, path })
    };
    list.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_loader_are_read() {
        let list = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibgomp.so.1 => /lib/x y/libgomp.so.1 (0x00007f)\n\
                    \tlibnone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = Dependency { name: "libgomp.so.1".to_owned(), path: "/lib/x y/libgomp.so.1".into() };
        assert_eq!(parse(list), [expected]);
    }

    #[test]
    fn a_program_for_both_libraries_is_refused() {
        let of = |names: &[&str]| Loaded {
            of_openmp: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Loaded::default()
        };
        assert_eq!(of(&["libgomp.so.1"]).library(), Ok(Library::Gnu));
        assert_eq!(of(&["libomp.so.5"]).library(), Ok(Library::Llvm));
        assert_eq!(of(&["libiomp5.so", "libomp.so.5"]).names_of_llvm().count(), 2);
        assert!(of(&["libgomp.so.1", "libomp.so"]).library().unwrap_err().contains("both GNU and LLVM"));
    }
}
