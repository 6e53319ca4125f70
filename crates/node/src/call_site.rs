//! Where the program called: the faces note it, reports of waits and races name it.

use std::cell::Cell;

use hiroba_wire::control::CodeSite;
use object::{Object, ObjectSegment};

thread_local! {
    static SITE: Cell<usize> = const { Cell::new(0) };
}

/// Notes the return address of the call that the calling thread has just made.
pub fn note(site: usize) {
    SITE.set(site);
}

/// The last one noted on this thread, 0 when there is none.
pub(crate) fn noted() -> usize {
    SITE.get()
}

/// The site as its module's debug information counts. A return address is behind the call: the call itself is meant.
pub(crate) fn of_return_address(address: usize) -> Option<CodeSite> {
    of_instruction(address.checked_sub(1)?)
}

/// The site of an instruction.
pub(crate) fn of_instruction(address: usize) -> Option<CodeSite> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut first_of_module: Option<(usize, &str)> = None;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let Some(path) = rest.find('/').map(|at| &rest[at..]) else { continue };
        if first_of_module.is_none_or(|(_, module)| module != path) {
            first_of_module = Some((start, path));
        }
        if (start..end).contains(&address) {
            let (module_start, module) = first_of_module?;
            let bias = module_start.wrapping_sub(link_address(module)?);
            return Some(CodeSite { module: module.to_owned(), offset: address.wrapping_sub(bias) as u64 });
        }
    }
    None
}

/// The address at which the module's first segment was linked to begin.
fn link_address(module: &str) -> Option<usize> {
    let bytes = std::fs::read(module).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let system_page_bytes = rustix::param::page_size() as u64;
    file.segments()
        .map(|segment| segment.address() / system_page_bytes * system_page_bytes)
        .min()
        .map(|start| start as usize)
}
