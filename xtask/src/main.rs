//! `cargo xtask install --prefix DIR` installs the command, the libraries, the headers and the manual pages
//! under a prefix. `cargo xtask yardstick` measures the plain programs of `apps/plain` ([`yardstick`]),
//! `cargo xtask executables` programs that were not built for Hiroba ([`executables`]), and `cargo xtask
//! paging` nodes that are short of memory ([`paging`]).

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod executables;
mod paging;
mod yardstick;

const USAGE: &str = "usage: cargo xtask install --prefix DIR [--no-build], \
                     or cargo xtask yardstick|executables|paging [OPTIONS]";
const LIBRARY: &str = "libhiroba.so";
const PTHREAD_LIBRARY: &str = "libhiroba_pthread.so";
const SINGLE_LIBRARY: &str = "libhiroba_single.so";
const OPENMP_LIBRARY: &str = "libhiroba_gomp.so";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The pkg-config file. Its paths are relative to the file's own place, so that the prefix can be moved.
const PKG_CONFIG: &str = "\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: hiroba
Description: One address space over several nodes
Version: @VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -lhiroba -Wl,-rpath,${libdir}
";

const CMAKE: &str = "\
get_filename_component(_hiroba_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)
if(NOT TARGET hiroba::hiroba)
  add_library(hiroba::hiroba SHARED IMPORTED)
  set_target_properties(hiroba::hiroba PROPERTIES
    IMPORTED_LOCATION \"${_hiroba_prefix}/lib/libhiroba.so\"
    IMPORTED_SONAME libhiroba.so
    INTERFACE_INCLUDE_DIRECTORIES \"${_hiroba_prefix}/include\")
endif()
unset(_hiroba_prefix)
";

/// The version file of the CMake package. Before 1.0 a minor version may change the interface, so only
/// patches of the same minor version are compatible.
const CMAKE_VERSION: &str = "\
set(PACKAGE_VERSION @VERSION@)
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(PACKAGE_FIND_VERSION_MAJOR EQUAL @MAJOR@ AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  if(PACKAGE_FIND_VERSION_COUNT LESS 2 OR PACKAGE_FIND_VERSION_MINOR EQUAL @MINOR@)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
endif()
if(NOT PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let result = if arguments.next_if(|task| task == "yardstick").is_some() {
        yardstick::run(arguments)
    } else if arguments.next_if(|task| task == "executables").is_some() {
        executables::run(arguments)
    } else if arguments.next_if(|task| task == "paging").is_some() {
        paging::run(arguments)
    } else {
        parse(arguments).and_then(|(prefix, builds)| install(&prefix, builds))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::from(2)
        }
    }
}

/// Parses the arguments of `install`. Returns the prefix, and true if the build comes first.
fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<(PathBuf, bool), String> {
    if arguments.next().is_none_or(|task| task != "install") {
        return Err(USAGE.into());
    }
    let (mut prefix, mut builds) = (None, true);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--prefix") => prefix = arguments.next(),
            Some("--no-build") => builds = false,
            Some(given) if given.starts_with("--prefix=") => {
                prefix = given.strip_prefix("--prefix=").map(OsString::from);
            }
            _ => return Err(format!("unexpected argument '{}'; {USAGE}", argument.to_string_lossy())),
        }
    }
    let prefix = prefix.filter(|prefix| !prefix.is_empty()).ok_or(format!("no prefix was given; {USAGE}"))?;
    let prefix = std::path::absolute(&prefix).map_err(|error| format!("cannot find the prefix: {error}"))?;
    Ok((prefix, builds))
}

fn install(prefix: &Path, builds: bool) -> Result<(), String> {
    let source = source();
    if builds {
        build(source)?;
    }
    let executable = std::env::current_exe().map_err(|error| format!("cannot find the build: {error}"))?;
    let built = executable.parent().unwrap_or(Path::new("/"));
    let library = newest_library(built)?;
    let command = prefix.join("bin/hiroba");
    copy(&built.join("hiroba"), &command, 0o755)?;
    copy(&library, &prefix.join("lib").join(LIBRARY), 0o755)?;
    for name in [PTHREAD_LIBRARY, SINGLE_LIBRARY, OPENMP_LIBRARY] {
        copy(&library.with_file_name(name), &prefix.join("lib").join(name), 0o755)?;
    }
    copy_sources(&source.join("crates/capi/include"), &prefix.join("include"), &["h"])?;
    copy_sources(&source.join("apps"), &prefix.join("share/hiroba/apps"), &["c", "h"])?;
    write(&prefix.join("lib/pkgconfig/hiroba.pc"), filled(PKG_CONFIG).as_bytes(), 0o644)?;
    let cmake = prefix.join("lib/cmake/hiroba");
    write(&cmake.join("hirobaConfig.cmake"), CMAKE.as_bytes(), 0o644)?;
    write(&cmake.join("hirobaConfigVersion.cmake"), filled(CMAKE_VERSION).as_bytes(), 0o644)?;
    succeed(Command::new(&command).args(["generate"]).arg(prefix.join("share")))?;
    println!("installed Hiroba {VERSION} under {}", prefix.display());
    Ok(())
}

/// The root of the repository.
fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// Builds the command and the library.
fn build(source: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "hiroba-cli"]).current_dir(source);
    succeed(&mut build)
}

fn filled(template: &str) -> String {
    template
        .replace("@VERSION@", VERSION)
        .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
}

/// Finds the newest build of the library. Cargo refreshes the copy next to the command only when it builds
/// the library itself, so there may be a newer one in `deps`.
fn newest_library(built: &Path) -> Result<PathBuf, String> {
    let age = |file: &PathBuf| file.metadata().and_then(|file| file.modified()).ok();
    let places = [built.join("deps").join(LIBRARY), built.join(LIBRARY)];
    places.into_iter().filter(|file| age(file).is_some()).max_by_key(age).ok_or_else(|| {
        format!("{LIBRARY} was not found in {}; run 'cargo build --release' first", built.display())
    })
}

fn copy_sources(from: &Path, to: &Path, extensions: &[&str]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let fits =
            path.extension().is_some_and(|given| extensions.iter().any(|extension| given == *extension));
        if let (true, Some(name)) = (fits, path.file_name()) {
            copy(&path, &to.join(name), 0o644)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let content = fs::read(from).map_err(|error| {
        format!("cannot read {}: {error}; run 'cargo build --release' first", from.display())
    })?;
    write(to, &content, mode)
}

/// Writes a new file next to the old one and renames it, because jobs may be running the old one.
fn write(to: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", to.display());
    let mut name = to.as_os_str().to_owned();
    name.push(format!(".new{}", std::process::id()));
    let beside = PathBuf::from(name);
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    let put = || {
        let mut file = fs::File::create_new(&beside)?;
        file.write_all(content)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        drop(file);
        fs::rename(&beside, to)
    };
    put().map_err(|error| {
        let _ = fs::remove_file(&beside);
        failed(error)
    })
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("cannot execute {name}: {error}")),
    }
}
