//! The program's large static arrays, which have the protocol of its long blocks.
//!
//! The symbol tables of the executable and of its libraries tell where each variable lies, and how long it
//! is. Whole pages inside variables of a certain length are *long* (`heap.rs`); pages with anything else are
//! short memory, as all other data are. Without a symbol table, nothing is long.
//!
//! Instructions that operate atomically on a fixed address are not replaced. So each page that one of them
//! names is short. Any other atomic instruction goes through its stub, which looks its operand's address up.

use std::cmp::Reverse;
use std::fs::File;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hiroba_patch::whole_pages;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSymbol, ReadCache, SymbolKind};

use crate::face::{self, DataPart};
use crate::heap::long_bytes;
use crate::saying;

/// The maximum number of long parts of all data. The shortest ones beyond that are short memory.
const PARTS_MAX: usize = 256;

/// The long parts of the program's data, by ascending address.
static LONG: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// Returns the long parts of the program's data, by ascending address.
pub(crate) fn long_parts() -> &'static [Range<usize>] {
    LONG.get().map_or(&[], Vec::as_slice)
}

/// Returns true if the address lies in one of them.
pub(crate) fn is_long(address: usize) -> bool {
    let parts = long_parts();
    let next = parts.partition_point(|part| part.start <= address);
    next > 0 && parts[next - 1].contains(&address)
}

/// Determines which parts of `data`, the program's writable data, are long. `files` are the paths of the
/// executable and of its libraries, with what the loader has added to their addresses; none if all memory of
/// the program has the same protocol. Atomic instructions name the places `named`.
pub(crate) fn find<'a>(
    data: &[Range<usize>],
    files: impl Iterator<Item = (&'a str, usize)>,
    named: &[Range<usize>],
) {
    let variables = files.flat_map(|(path, bias)| large_variables(path, bias)).collect();
    let mut runs = whole_pages(data, variables, named);
    runs.sort_by_key(|run| Reverse(run.len()));
    runs.truncate(PARTS_MAX);
    runs.sort_unstable_by_key(|run| run.start);
    let _ = LONG.set(runs);
}

/// Returns where an executable or library has long variables.
fn large_variables(path: &str, bias: usize) -> Vec<Range<usize>> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let cache = ReadCache::new(file);
    let Ok(file) = ElfFile64::<LittleEndian, _>::parse(&cache) else { return Vec::new() };
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let is_large = |symbol: &object::read::elf::ElfSymbol64<'_, '_, _, _>| {
        symbol.kind() == SymbolKind::Data && !symbol.is_undefined() && symbol.size() >= long_bytes() as u64
    };
    symbols
        .filter(is_large)
        .filter_map(|symbol| {
            let start = bias.checked_add(symbol.address() as usize)?;
            Some(start..start.checked_add(symbol.size() as usize)?)
        })
        .collect()
}

/// Finds out, on all nodes alike, which long parts are zeros on node 0. Collective.
fn zeros_on_node_0() -> Vec<bool> {
    let parts = long_parts();
    if parts.is_empty() {
        return Vec::new();
    }
    let told = face::hiroba_alloc_for_program(parts.len(), 0).cast::<AtomicU8>();
    if told.is_null() {
        let why = saying::why(-libc::ENOMEM);
        saying::fatal(&format!("expected shared memory to tell of the program's data, got none: {why}"));
    }
    // SAFETY: the memory is that long, stays for good, and is accessed as atomics alone.
    let told = unsafe { std::slice::from_raw_parts(told, parts.len()) };
    if face::hiroba_node() == 0 {
        told.iter().zip(parts).for_each(|(told, part)| told.store(u8::from(is_zero(part)), Relaxed));
    }
    face::hiroba_barrier();
    told.iter().map(|told| told.load(Relaxed) != 0).collect()
}

fn is_zero(part: &Range<usize>) -> bool {
    let start = ptr::with_exposed_provenance::<u64>(part.start);
    // SAFETY: whole pages of the program's data, which no thread writes yet.
    let words = unsafe { std::slice::from_raw_parts(start, part.len() / size_of::<u64>()) };
    words.iter().all(|word| *word == 0)
}

/// Shares the program's writable data, each range in its parts. Collective.
pub(crate) fn share(data: &[Range<usize>]) {
    let zeros = zeros_on_node_0();
    for range in data {
        let parts = parts_of(range, long_parts(), &zeros);
        // SAFETY: the data of the program and of its libraries. None of their code runs: the only other
        // threads are the runtime's, which do not use these data.
        let error = unsafe { face::hiroba_share_in_place(range.start, parts.as_ptr(), parts.len()) };
        if error != 0 {
            saying::fatal(&format!(
                "expected to share {} bytes of the program's data at {:#x}, got: {}; allocate large arrays with \
                 malloc, and link fewer libraries",
                range.len(),
                range.start,
                saying::why(error)
            ));
        }
    }
}

/// Divides a range of data at the ends of the long parts. Long parts of zeros get homes on all nodes.
fn parts_of(range: &Range<usize>, long: &[Range<usize>], zeros: &[bool]) -> Vec<DataPart> {
    let mut parts = Vec::new();
    let mut next = range.start;
    let mut add = |bytes: usize, is_long: bool, home| {
        if bytes > 0 {
            parts.push(DataPart { bytes, is_long: is_long.into(), home });
        }
    };
    let inside = long.iter().zip(zeros).filter(|(part, _)| range.contains(&part.start));
    for (part, is_zero) in inside {
        add(part.start - next, false, 0);
        add(part.len(), true, if *is_zero { -1 } else { 0 });
        next = part.end;
    }
    add(range.end - next, false, 0);
    parts
}
