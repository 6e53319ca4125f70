//! The executable and its libraries in this process's memory.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;

use crate::libraries::is_private;

pub(crate) const PAGE_BYTES: usize = 4096;

/// An executable or library.
pub(crate) struct Object {
    pub(crate) name: String,
    /// The path of its file.
    pub(crate) path: String,
    /// What the loader has added to the addresses in the file.
    pub(crate) bias: usize,
    /// Segments that are never written, and whether each has code.
    segments: Vec<(Range<usize>, bool)>,
    /// The addresses between the first and the last segment.
    span: Range<usize>,
    /// The address of its `.eh_frame_hdr`, 0 if it has none.
    pub(crate) frames: usize,
}

/// Returns the executable and the libraries that are parts of the program.
pub(crate) fn of_program() -> Vec<Object> {
    let mut all: Vec<Object> = Vec::new();
    // SAFETY: the callback's argument is the local, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut all).cast()) };
    all
}

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `of_program` passes its own local.
    let all = unsafe { &mut *all.cast::<Vec<Object>>() };
    if info.dlpi_phdr.is_null() || is_private(info.dlpi_name) {
        return 0;
    }
    // SAFETY: the loader has mapped that many program headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let range = |header: &libc::Elf64_Phdr| {
        let start = bias + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let segments: Vec<(Range<usize>, bool)> = loaded()
        .filter(|header| header.p_flags & libc::PF_W == 0 && header.p_flags & libc::PF_R != 0)
        .map(|header| (range(header), header.p_flags & libc::PF_X != 0))
        .collect();
    let span = loaded().map(range).reduce(|all, next| all.start.min(next.start)..all.end.max(next.end));
    let frames = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    if let Some(span) = span {
        // SAFETY: NULL, or the first byte of a string of the loader's.
        let name = unsafe { info.dlpi_name.as_ref() };
        // SAFETY: the loader's strings end with NUL.
        let path = name.map(|name| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        let frames = frames.map_or(0, |header| range(header).start);
        let (name, path) = match path {
            Some(path) if !path.is_empty() => (path.to_string(), path.into_owned()),
            _ => ("the program".to_owned(), "/proc/self/exe".to_owned()),
        };
        all.push(Object { name, path, bias, segments, span, frames });
    }
    0
}

/// Sets the protection of whole pages around a range.
fn protect(range: &Range<usize>, protection: c_int) {
    let start = range.start & !(PAGE_BYTES - 1);
    let bytes = range.end.next_multiple_of(PAGE_BYTES) - start;
    // SAFETY: the pages are code that this process has mapped; it runs nothing of it meanwhile.
    let error = unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(start), bytes, protection) };
    if error != 0 {
        let why = std::io::Error::last_os_error();
        crate::saying::fatal(&format!("expected to change the protection of the program's code, got: {why}"));
    }
}

impl Object {
    /// Returns the segments that are never written.
    pub(crate) fn readable(&self) -> Vec<(u64, &[u8])> {
        let bytes = |range: &Range<usize>| {
            let start = ptr::with_exposed_provenance::<u8>(range.start);
            // SAFETY: the loader has mapped the segment, readable; it changes only in `write`, when no slice
            // of it is in use.
            unsafe { std::slice::from_raw_parts(start, range.len()) }
        };
        self.segments.iter().map(|(range, _)| (range.start as u64, bytes(range))).collect()
    }

    /// Returns the ranges that contain code.
    pub(crate) fn code(&self) -> impl Iterator<Item = Range<usize>> {
        self.segments.iter().filter(|(_, has_code)| *has_code).map(|(range, _)| range.clone())
    }

    /// Maps pages that jumps from everywhere in the object reach. Returns `None` if there are none.
    pub(crate) fn map_near(&self, bytes: usize) -> Option<Area> {
        const STEP: usize = 16 << 20;
        const REACH: usize = 1800 << 20;
        // Far enough from the end that the C library's own heap can grow there.
        let above = (self.span.end + REACH / 2..self.span.end + REACH).step_by(STEP);
        let close = (self.span.end + STEP..self.span.end + REACH / 2).step_by(STEP);
        let below = (1..REACH / STEP).map_while(|steps| self.span.start.checked_sub(steps * STEP));
        above.chain(below).chain(close).find_map(|wanted| Area::map(wanted & !(PAGE_BYTES - 1), bytes))
    }

    /// Writes over code, whose segment is not executable meanwhile.
    pub(crate) fn write(&self, address: usize, bytes: &[u8]) {
        let page = address..address + bytes.len();
        protect(&page, libc::PROT_READ | libc::PROT_WRITE);
        let place = ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the bytes are the program's code, writable now, and nothing runs there.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Makes the code executable again, and read-only.
    pub(crate) fn make_executable(&self) {
        for range in self.code() {
            protect(&range, libc::PROT_READ | libc::PROT_EXEC);
        }
    }
}

/// Pages for stubs.
pub(crate) struct Area {
    pub(crate) start: usize,
    bytes: usize,
}

impl Area {
    fn map(wanted: usize, bytes: usize) -> Option<Area> {
        let place = ptr::with_exposed_provenance_mut(wanted);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: maps new pages where there are none.
        let got = unsafe { libc::mmap(place, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return None;
        }
        (got == place).then_some(Area { start: wanted, bytes })
    }

    /// Fills the pages with code, and makes them executable and read-only.
    pub(crate) fn fill(self, code: &[u8]) {
        assert!(code.len() <= self.bytes, "expected stubs of {} bytes, got {}", self.bytes, code.len());
        let place = ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: the pages are new, writable, and that long.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), place, code.len()) };
        protect(&(self.start..self.start + self.bytes), libc::PROT_READ | libc::PROT_EXEC);
    }
}
