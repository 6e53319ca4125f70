//! The program's thread-local variables, whose addresses mean the same on all nodes.
//!
//! The loader places the executable's variables directly below the thread's control block, and those of
//! libraries below them, in the order of loading. `hiroba run` has it load the program's libraries first, and
//! then a library whose thread-local storage has exactly the length that lets the program's variables fill
//! whole pages, and control blocks begin at pages:
//!
//! | below | pages of the program | from the thread pointer on |
//! |---|---|---|
//! | private stack, variables of Hiroba and the C library | shared | control block: the C library's, private |
//!
//! So these pages can be shared, although faults cannot be served while the runtime or the C library touches
//! its own variables. `main`'s pages are shared at their addresses; those of other threads are in shared
//! memory (`slots.rs`).
//!
//! If libstdc++ or libgfortran is the only library with such variables, these stay private: no program gives
//! them to other threads.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::control::control;
use crate::face::{self, DataPart};
use crate::libraries::{FILLER_PREFIX, is_private};
use crate::saying;

const PAGE_BYTES: usize = 4096;

/// Shares the program's thread-local variables in `main`'s thread. Collective; the calling thread must be the
/// one that runs `main`. Returns their pages in that thread, which are as long in each other one.
pub(crate) fn share() -> Range<usize> {
    let Some(pages) = pages_of_caller() else { return 0..0 };
    let place = &control().variables_start;
    if face::hiroba_node() == 0 {
        place.store(pages.start as u64, Relaxed);
    }
    face::hiroba_barrier();
    let on_node_0 = place.load(Relaxed);
    if on_node_0 != pages.start as u64 {
        saying::fatal(&format!(
            "expected the program's thread-local variables at {on_node_0:#x}, as on node 0, got {:#x}; \
             the nodes differ in their libraries or environment",
            pages.start
        ));
    }
    let part = DataPart { bytes: pages.len(), is_long: 0, home: 0 };
    // SAFETY: the pages contain only variables of the program, none of whose code runs yet.
    let error = unsafe { face::hiroba_share_in_place(pages.start, &raw const part, 1) };
    if error != 0 {
        saying::fatal(&format!(
            "expected to share {} bytes of thread-local variables, got: {}; allocate large ones with malloc",
            pages.len(),
            saying::why(error)
        ));
    }
    pages
}

/// Returns the thread pointer, which is the address of the control block (System V ABI, x86-64 TLS variant
/// II).
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the first word of a control block is its own address.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly))
    };
    pointer
}

/// An object's thread-local variables in the calling thread.
struct Variables {
    name: String,
    is_private: bool,
    range: Range<usize>,
}

/// Returns the pages of the calling thread that contain the program's variables and nothing else: from those
/// of the library that fills them up to the control block.
fn pages_of_caller() -> Option<Range<usize>> {
    let mut all: Vec<Variables> = Vec::new();
    // SAFETY: the callback's argument is the local, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note_variables), (&raw mut all).cast()) };
    let filler = |name: &str| name.strip_prefix(FILLER_PREFIX)?.parse::<c_int>().ok();
    let fillers = || all.iter().filter(|variables| filler(&variables.name).is_some());
    let start = fillers().map(|variables| variables.range.start).min()?;
    let pointer = thread_pointer();
    let pages = start & !(PAGE_BYTES - 1)..pointer;
    for descriptor in fillers().filter_map(|variables| filler(&variables.name)) {
        // SAFETY: the launcher opened it for the loader, which has mapped the file.
        unsafe { libc::close(descriptor) };
    }
    let foreign = all.iter().find(|variables| {
        (variables.is_private || variables.range.start < pages.start)
            && filler(&variables.name).is_none()
            && variables.range.start < pages.end
            && pages.start < variables.range.end
    });
    if let Some(foreign) = foreign {
        saying::fatal(&format!(
            "expected the program's thread-local variables on pages of their own, got those of {} beside them; \
             leave LD_PRELOAD as 'hiroba run' sets it",
            foreign.name
        ));
    }
    if !pointer.is_multiple_of(PAGE_BYTES) {
        saying::fatal("expected the thread's control block at the beginning of a page, got it elsewhere");
    }
    Some(pages)
}

unsafe extern "C" fn note_variables(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `pages_of_caller` passes its own local.
    let all = unsafe { &mut *all.cast::<Vec<Variables>>() };
    if info.dlpi_phdr.is_null() || info.dlpi_tls_data.is_null() {
        return 0;
    }
    // SAFETY: the loader has mapped that many program headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_private = is_private(info.dlpi_name);
    let name = if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's C string.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    let start = info.dlpi_tls_data.addr();
    for header in headers.iter().filter(|header| header.p_type == libc::PT_TLS && header.p_memsz > 0) {
        all.push(Variables { name: name.clone(), is_private, range: start..start + header.p_memsz as usize });
    }
    0
}
