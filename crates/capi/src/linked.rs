//! Tells whether the program itself is linked with this library, or has it only preloaded by the launcher, as
//! all processes of a node have.

use std::ffi::{CStr, c_char, c_int, c_void};

/// The library's file name, with or without a version behind it.
const NAME: &[u8] = b"libhiroba.so";

/// Returns true if the executable names this library among those that it needs.
pub(crate) fn program_is_linked() -> bool {
    let mut linked = false;
    // SAFETY: the callback's argument is the local, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_program), (&raw mut linked).cast()) };
    linked
}

/// Called for each loaded object. The first one is the program (dl_iterate_phdr(3)); the others are ignored.
unsafe extern "C" fn look_at_program(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    linked: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    if !info.dlpi_phdr.is_null() {
        // SAFETY: the loader has mapped that many program headers there.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        let needs = dynamic.is_some_and(|header| needs_library(info.dlpi_addr, header.p_vaddr));
        // SAFETY: `program_is_linked` passes its own local.
        unsafe { linked.cast::<bool>().write(needs) };
    }
    1
}

/// An entry of the dynamic section (elf(5)).
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: usize,
    value: usize,
}

const DT_NULL: usize = 0;
const DT_NEEDED: usize = 1;
const DT_STRTAB: usize = 5;

fn needs_library(bias: u64, dynamic: u64) -> bool {
    let first = bias.wrapping_add(dynamic) as usize as *const Entry;
    // SAFETY: the loader has mapped the section, and an entry DT_NULL ends it.
    let entry = |place: usize| unsafe { first.wrapping_add(place).read() };
    let entries = || (0..).map(entry).take_while(|entry| entry.tag != DT_NULL);
    let Some(strings) = entries().find(|entry| entry.tag == DT_STRTAB) else { return false };
    // Some loaders leave the unrelocated address.
    let is_relocated = strings.value as u64 >= bias;
    let strings = if is_relocated { strings.value } else { strings.value + bias as usize };
    entries().filter(|entry| entry.tag == DT_NEEDED).any(|needed| {
        let name = (strings + needed.value) as *const c_char;
        // SAFETY: the value of such an entry is the place of a C string in the string table.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        name.rsplit(|byte| *byte == b'/').next().is_some_and(|file| file.starts_with(NAME))
    })
}
