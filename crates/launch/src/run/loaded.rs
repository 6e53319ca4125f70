//! An executable with the libraries that it loads, as the loader itself finds them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::executable::Executable;
use super::openmp::{self, Library};
use super::tls_filler::ThreadLocals;

/// How names of libraries begin whose state is private to each node: parts of the C library, and Hiroba's
/// own. `crates/pthread/src/libraries.rs` has the same list for a running process.
const PRIVATE: [&str; 10] = [
    "libc.so",
    "libm.so",
    "libmvec",
    "ld-linux",
    "libpthread",
    "libdl",
    "librt",
    "libresolv",
    "libhiroba",
    "libnss_",
];
/// How names of compilers' libraries begin whose thread-local variables no program gives to other threads.
const OF_COMPILERS: [&str; 2] = ["libstdc++.so", "libgfortran.so"];

/// A library that is loaded.
#[derive(Debug, Default)]
struct Part {
    /// The name by which it is needed.
    name: String,
    path: PathBuf,
    executable: Executable,
}

impl Part {
    fn begins(&self, prefixes: &[&str]) -> bool {
        let file = self.name.rsplit('/').next().unwrap_or_default();
        prefixes.iter().any(|prefix| file.starts_with(prefix))
    }
}

/// An executable, and the properties of the libraries that it loads.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) executable: Executable,
    /// All but OpenMP's own, in the order in which the loader searches them.
    libraries: Vec<Part>,
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
        let read = |Dependency { name, path }| {
            let executable = Executable::read(&path).ok()?;
            Some(Part { name, path, executable })
        };
        let libraries = others.into_iter().filter_map(read).collect();
        Ok(Loaded { executable, libraries, of_openmp: names })
    }

    /// The executable and its libraries.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Executable> {
        std::iter::once(&self.executable).chain(self.libraries.iter().map(|part| &part.executable))
    }

    /// Returns true if any part calls OpenMP's library, and the executable knows nothing of Hiroba.
    pub(super) fn is_openmp(&self) -> bool {
        // A library that contains OpenMP's creates threads as any other does.
        let by_library = self.libraries.iter().any(|part| {
            let library = &part.executable;
            library.calls_openmp() && !library.contains_openmp
        });
        (self.executable.calls_openmp() || by_library) && !self.executable.imports_any("hiroba_")
    }

    /// Returns the program's libraries in the order in which the loader searches them, if any of them has
    /// thread-local variables that the program may give to other threads; otherwise none. The error is a
    /// sentence: the variable of the loader that lists libraries cannot name one.
    pub(super) fn with_thread_locals(&self) -> Result<Vec<(&Path, ThreadLocals)>, String> {
        let of_program = || self.libraries.iter().filter(|part| !part.begins(&PRIVATE));
        let has_some = |part: &Part| part.executable.thread_locals.bytes > 0 && !part.begins(&OF_COMPILERS);
        if !of_program().any(has_some) {
            return Ok(Vec::new());
        }
        let separates = |byte: &u8| matches!(byte, b' ' | b':');
        if let Some(part) = of_program().find(|part| part.path.as_os_str().as_bytes().iter().any(separates)) {
            return Err(format!(
                "it has libraries with thread-local variables, and expected paths of libraries without spaces and \
                 colons, got {}; move that library",
                part.path.display()
            ));
        }
        Ok(of_program().map(|part| (part.path.as_path(), part.executable.thread_locals)).collect())
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

/// Reads lines of the form `name => path (address)`, or `path (address)` for a library that is needed by its
/// path.
fn parse(list: &str) -> Vec<Dependency> {
    let of_line = |line: &str| {
        let (found, _) = line.trim().rsplit_once(" (")?;
        let (name, path) = found.split_once(" => ").unwrap_or((found, found));
        let (name, path) = (name.to_owned(), PathBuf::from(path));
        found.contains('/').then_some(Dependency { name, path })
    };
    list.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_loader_are_read() {
        let list = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibgomp.so.1 => /lib/x y/libgomp.so.1 (0x00007f)\n\
                    \tlibnone.so => not found\n\t./own.so (0x00007f)\n";
        let of = |name: &str, path: &str| Dependency { name: name.to_owned(), path: path.into() };
        assert_eq!(parse(list), [of("libgomp.so.1", "/lib/x y/libgomp.so.1"), of("./own.so", "./own.so")]);
    }

    #[test]
    fn libraries_with_variables_come_in_their_order() {
        let part = |name: &str, bytes| {
            let mut executable = Executable::default();
            executable.thread_locals = ThreadLocals { address: 0, bytes, alignment: 8 };
            Part { name: name.to_owned(), path: Path::new("/lib").join(name), executable }
        };
        let of = |libraries| Loaded { libraries, ..Loaded::default() };
        let names = |program: &Loaded| {
            let found = program.with_thread_locals().unwrap();
            found.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>()
        };
        let private = || [part("libc.so.6", 144), part("libstdc++.so.6", 32), part("libplain.so", 0)];
        assert!(names(&of(private().into())).is_empty());
        let [c, cxx, plain] = private();
        let mut program = of(vec![cxx, plain, part("libown.so", 8), c]);
        assert_eq!(names(&program), ["/lib/libstdc++.so.6", "/lib/libplain.so", "/lib/libown.so"]);
        program.libraries.push(part("lib b.so", 0));
        assert!(program.with_thread_locals().unwrap_err().contains("lib b.so"));
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
