//! Turns places in a program's code into file, line and function.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use hiroba_base::CodeSite;

/// The number of executables and libraries whose debug information is kept; sites in others are shown by
/// offset.
const MODULES_MAX: usize = 64;
/// The number of sites whose names are cached; others are looked up each time.
const SITES_MAX: usize = 4096;

/// Looks up sites when they are shown, and caches the result.
#[derive(Default)]
pub struct Symboliser {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// `None` if the file cannot be read as an object file.
    modules: HashMap<String, Option<Loader>>,
    known: HashMap<CodeSite, String>,
}

impl Symboliser {
    /// Describes `site`, as in `jacobi.c:88 (relax)`; without debug information `relax in ./jacobi`, without
    /// symbols `./jacobi+0x12f0`.
    pub fn name(&self, site: &CodeSite) -> String {
        let state = &mut *self.state.borrow_mut();
        if let Some(known) = state.known.get(site) {
            return known.clone();
        }
        let name = state.look_up(site).unwrap_or_else(|| {
            let module = shown(Path::new(&site.module));
            format!("{module}+0x{:x}", site.offset)
        });
        if state.known.len() < SITES_MAX {
            state.known.insert(site.clone(), name.clone());
        }
        name
    }
}

impl Symboliser {
    /// Describes the site of a call. If the call was inlined, also names the line of the outermost function,
    /// since the innermost is often a wrapper.
    pub fn name_of_call(&self, site: &CodeSite) -> String {
        let inner = self.name(site);
        match self.state.borrow().outermost(site) {
            Some(outer) if outer != inner => format!("{inner}, inlined at {outer}"),
            _ => inner,
        }
    }
}

impl State {
    /// Returns the line of the outermost function at a site that has been looked up.
    fn outermost(&self, site: &CodeSite) -> Option<String> {
        let loader = self.modules.get(&site.module)?.as_ref()?;
        let mut frames = loader.find_frames(site.offset).ok()?;
        let mut outermost = None;
        while let Ok(Some(frame)) = frames.next() {
            outermost = Some(frame);
        }
        named(loader, site.offset, outermost?)
    }

    fn look_up(&mut self, site: &CodeSite) -> Option<String> {
        if !self.modules.contains_key(&site.module) {
            if self.modules.len() >= MODULES_MAX {
                return None;
            }
            self.modules.insert(site.module.clone(), open(Path::new(&site.module)));
        }
        let loader = self.modules.get(&site.module)?.as_ref()?;
        from_debug_information(loader, site.offset).or_else(|| {
            // Outside the code the nearest symbol means nothing.
            let code = loader.get_section_range(b".text")?;
            let in_code = (code.begin..code.end).contains(&site.offset);
            let symbol = loader.find_symbol(site.offset).filter(|_| in_code)?;
            Some(format!("{} in {}", demangled(symbol), shown(Path::new(&site.module))))
        })
    }
}

fn open(module: &Path) -> Option<Loader> {
    // The file may be a device or a pipe, which must not be read.
    module.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Loader::new(module).ok()
}

/// Returns the innermost frame: in inlined code, the line that its author wrote.
fn from_debug_information(loader: &Loader, address: u64) -> Option<String> {
    let frame = loader.find_frames(address).ok()?.next().ok()??;
    named(loader, address, frame)
}

fn named(
    loader: &Loader,
    address: u64,
    frame: addr2line::Frame<'_, impl addr2line::gimli::Reader>,
) -> Option<String> {
    let location = frame.location?;
    let (file, line) = (location.file?, location.line.filter(|line| *line > 0)?);
    let function = frame.function.as_ref().and_then(|function| function.demangle().ok());
    let symbol = || loader.find_symbol(address).map(demangled);
    let file = shown(Path::new(file));
    Some(match function.map(|name| name.into_owned()).or_else(symbol) {
        Some(function) => format!("{file}:{line} ({function})"),
        None => format!("{file}:{line}"),
    })
}

fn demangled(symbol: &str) -> String {
    addr2line::demangle_auto(symbol.into(), None).into_owned()
}

/// Formats a path as the user would type it: relative if it lies below the working directory, without inner
/// `.`.
fn shown(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    let here = std::env::current_dir().unwrap_or_default();
    match path.strip_prefix(&here) {
        Ok(below) if !here.as_os_str().is_empty() && !below.as_os_str().is_empty() => {
            below.display().to_string()
        }
        _ => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOURCE: &str = "\
static volatile int sink;
int inner(int x)
{
    sink = x;
    return sink + 1;
}
int main(void)
{
    int x = inner(3);
    return x + inner(4);
}
";

    /// Builds the program, and returns the address that `nm` gives for `inner`.
    fn build(directory: &Path, flags: &[&str]) -> Option<(String, u64)> {
        let (source, program) = (directory.join("sample.c"), directory.join("sample"));
        std::fs::write(&source, SOURCE).expect("a writable directory");
        let mut compiler = Command::new("cc");
        compiler.args(flags).arg("-o").arg(&program).arg(&source);
        assert!(compiler.status().expect("a compiler").success());
        let listing = Command::new("nm").arg(&program).output().expect("binutils come with the compiler");
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
        let line = listing.lines().find(|line| line.ends_with(" T inner"));
        let address = line.map(|line| u64::from_str_radix(&line[..16], 16).expect("nm's address"));
        Some((program.to_str().expect("a UTF-8 path").to_owned(), address?))
    }

    #[test]
    fn lines_functions_and_offsets_in_this_order() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (module, offset) = build(directory.path(), &["-g", "-O0"]).expect("a symbol");
        let symboliser = Symboliser::default();
        let site = CodeSite { module: module.clone(), offset };
        let source = directory.path().join("sample.c").display().to_string();
        assert_eq!(symboliser.name(&site), format!("{source}:3 (inner)"));
        let last = CodeSite { offset: u64::MAX, ..site.clone() };
        assert_eq!(symboliser.name(&last), format!("{module}+0xffffffffffffffff"), "outside the module");

        let (module, offset) = build(directory.path(), &["-O0"]).expect("a symbol");
        let plain = CodeSite { module: module.clone(), offset };
        assert_eq!(Symboliser::default().name(&plain), format!("inner in {module}"));

        assert!(build(directory.path(), &["-O0", "-s"]).is_none(), "a stripped program");
        assert_eq!(Symboliser::default().name(&plain), format!("{module}+0x{offset:x}"));
    }

    #[test]
    fn what_is_no_object_file_is_shown_by_offset() {
        let symboliser = Symboliser::default();
        for module in ["/dev/null", "/dev/zero", "/no/such/file", "", "/etc/passwd", "[vdso]"] {
            let site = CodeSite { module: module.to_owned(), offset: 0x40 };
            assert_eq!(symboliser.name(&site), format!("{module}+0x40"));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let symboliser = Symboliser::default();
        for number in 0..2 * SITES_MAX as u64 {
            let site = CodeSite { module: format!("/no/{}", number % 1000), offset: number };
            symboliser.name(&site);
        }
        let state = symboliser.state.borrow();
        assert_eq!((state.modules.len(), state.known.len()), (MODULES_MAX, SITES_MAX));
    }
}
