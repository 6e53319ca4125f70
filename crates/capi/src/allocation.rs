//! Allocation, collective and not.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use hiroba_base::{NodeId, PageSize};
use hiroba_node::{AllocateError, Protocol, Runtime, SignalsDeferred, call_site};
use hiroba_wire::Placement;

use crate::call_sites::noting_caller;
use crate::reporting::{halt_if_over, note, null, runtime_for};

/// The alignment that `malloc` guarantees for every object.
const GRAIN_BYTES: usize = 16;

fn allocate(
    call: &str,
    bytes: usize,
    placement: Placement,
    page_size: Option<PageSize>,
    protocol: Option<Protocol>,
) -> *mut c_void {
    let Some(runtime) = Runtime::get() else { return outside(call) };
    if placement == Placement::FirstTouch && !runtime.can_place_by_first_touch() {
        say_that_homes_stay(call, runtime);
    }
    match runtime.allocate(bytes as u64, placement, page_size, protocol) {
        Ok(address) => address as *mut c_void,
        Err(error) => {
            let errno = match error {
                AllocateError::Invalid { .. } | AllocateError::PageTooSmall { .. } => libc::EINVAL,
                AllocateError::NoAddresses { .. } => libc::ENOMEM,
                AllocateError::UnderRaces { .. } => libc::ENOTSUP,
            };
            null(errno, &format!("{call}: {error}"))
        }
    }
}

/// Prints a message once per job; the program remains correct.
fn say_that_homes_stay(call: &str, runtime: &Runtime) {
    static SAID: Once = Once::new();
    if runtime.node() == NodeId::ZERO {
        SAID.call_once(|| {
            eprintln!(
                "hiroba: {call}: HIROBA_PLACEMENT_FIRST_TOUCH places pages in consecutive blocks where homes cannot move (with --races)"
            );
        });
    }
}

fn outside(call: &str) -> *mut c_void {
    halt_if_over();
    null(
        libc::EPERM,
        &format!("{call}: expected a call between hiroba_init and hiroba_finalize, got one outside"),
    )
}

fn no_memory(call: &str, bytes: usize) -> *mut c_void {
    null(libc::ENOMEM, &format!("{call}: no {bytes} bytes are left in this node's arena"))
}

/// Converts a C `int` to a node; the runtime refuses an invalid one.
fn node(number: c_int) -> NodeId {
    NodeId(u16::try_from(number).unwrap_or(u16::MAX))
}

noting_caller! {
    hiroba_alloc(1) => alloc;
    hiroba_alloc_at(2) => alloc_at;
    hiroba_alloc_with(2) => alloc_with;
}

extern "C" fn alloc(bytes: usize, site: usize) -> *mut c_void {
    call_site::note(site);
    allocate("hiroba_alloc", bytes, Placement::Block, None, None)
}

extern "C" fn alloc_at(bytes: usize, home: c_int, site: usize) -> *mut c_void {
    call_site::note(site);
    allocate("hiroba_alloc_at", bytes, Placement::On(node(home)), None, None)
}

/// `hiroba_options` of `hiroba.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HirobaOptions {
    protocol: *const c_char,
    placement: c_uint,
    home: c_int,
    page_bytes: usize,
}

/// # Safety
/// `options` must be NULL or point to options whose `protocol` is NULL or a C string.
unsafe extern "C" fn alloc_with(bytes: usize, options: *const HirobaOptions, site: usize) -> *mut c_void {
    let call = "hiroba_alloc_with";
    call_site::note(site);
    if Runtime::get().is_none() {
        return outside(call);
    }
    if options.is_null() {
        return allocate(call, bytes, Placement::Block, None, None);
    }
    // SAFETY: the caller passes NULL or a valid pointer, and it is not NULL.
    let options = unsafe { *options };
    let mut protocol = None;
    if !options.protocol.is_null() {
        // SAFETY: the caller passes NULL or a C string, and it is not NULL.
        let name = unsafe { CStr::from_ptr(options.protocol) }.to_string_lossy();
        protocol = Protocol::named(&name);
        if protocol.is_none() {
            let names = Protocol::names();
            return null(
                libc::ENOTSUP,
                &format!("{call}: expected {names} as the region's protocol, got {name}"),
            );
        }
    }
    let page_size = match options.page_bytes {
        0 => None,
        page_bytes => match PageSize::new(page_bytes as u64) {
            Ok(page_size) => Some(page_size),
            Err(error) => return null(libc::EINVAL, &format!("{call}: {error}")),
        },
    };
    let placement = match options.placement {
        0 => Placement::Block,
        1 => Placement::Cyclic,
        2 => Placement::On(node(options.home)),
        3 => Placement::FirstTouch,
        other => {
            return null(
                libc::EINVAL,
                &format!("{call}: expected a hiroba_placement of 0 to 3, got {other}"),
            );
        }
    };
    allocate(call, bytes, placement, page_size, protocol)
}

/// Data of `hiroba_alloc_local` that was made outside a job and is not paged, by address, with its length.
static UNPAGED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn unpaged() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    UNPAGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_alloc_local(bytes: usize) -> *mut c_void {
    let call = "hiroba_alloc_local";
    if bytes == 0 {
        return null(libc::EINVAL, &format!("{call}: expected at least 1 byte, got 0"));
    }
    if let Some(runtime) = Runtime::get() {
        return match runtime.allocate_local(bytes as u64) {
            Ok(Some(address)) => address as *mut c_void,
            Ok(None) => null(
                libc::ENOMEM,
                &format!("{call}: no {bytes} bytes are left of this node's addresses for its own data"),
            ),
            Err(error) => null(libc::ENOMEM, &format!("{call}: {error}")),
        };
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice replaces nothing.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return null(libc::ENOMEM, &format!("{call}: the system has no {bytes} bytes of address space left"));
    }
    let _signals = SignalsDeferred::defer();
    unpaged().insert(memory.addr(), bytes);
    memory
}

/// Frees unpaged data. Returns false if none begins there.
fn free_unpaged(block: *mut c_void) -> bool {
    let _signals = SignalsDeferred::defer();
    let Some(bytes) = unpaged().remove(&block.addr()) else { return false };
    // SAFETY: `hiroba_alloc_local` mapped these bytes, and the caller has given them up.
    unsafe { libc::munmap(block, bytes) == 0 }
}

fn block(call: &str, bytes: usize, align: usize) -> Result<(*mut c_void, bool), *mut c_void> {
    let Some(runtime) = Runtime::get() else { return Err(outside(call)) };
    match runtime.malloc(bytes as u64, align as u64) {
        Some((address, zeroed)) => Ok((address as *mut c_void, zeroed)),
        None => Err(no_memory(call, bytes)),
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_malloc(bytes: usize) -> *mut c_void {
    block("hiroba_malloc", bytes, GRAIN_BYTES).map_or_else(|null| null, |(block, _)| block)
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_calloc(count: usize, bytes: usize) -> *mut c_void {
    let call = "hiroba_calloc";
    let Some(total) = count.checked_mul(bytes) else { return no_memory(call, usize::MAX) };
    match block(call, total, GRAIN_BYTES) {
        Err(null) => null,
        Ok((block, true)) => block,
        Ok((block, false)) => {
            // SAFETY: the block belongs to this caller and is `total` bytes long; the stores fault like the
            // program's.
            unsafe { ptr::write_bytes(block.cast::<u8>(), 0, total) };
            block
        }
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    let call = "hiroba_aligned_alloc";
    if !align.is_power_of_two() {
        return null(
            libc::EINVAL,
            &format!("{call}: expected an alignment that is a power of two, got {align}"),
        );
    }
    block(call, bytes, align).map_or_else(|null| null, |(block, _)| block)
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    let call = "hiroba_realloc";
    if old.is_null() {
        return hiroba_malloc(bytes);
    }
    let Some(runtime) = Runtime::get() else { return outside(call) };
    if runtime.resize_in_place(call, old as usize, bytes as u64) {
        return old;
    }
    let old_bytes = runtime.block_length(call, old as usize) as usize;
    match block(call, bytes, GRAIN_BYTES) {
        Err(null) => null,
        Ok((new, _)) => {
            // SAFETY: both blocks are live, distinct and long enough; loads and stores fault like the
            // program's.
            unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), old_bytes.min(bytes)) };
            runtime.free(call, old as usize);
            new
        }
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_free(block: *mut c_void) {
    // Only shared memory is quick to free; what else there is to free is data of this node.
    let is_shared = || Runtime::get().is_some_and(|runtime| runtime.is_shared(block.addr(), 1));
    if !block.is_null() && (is_shared() || !free_unpaged(block)) {
        runtime_for("hiroba_free").free("hiroba_free", block as usize);
    }
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_prefetch(start: *const c_void, bytes: usize) -> c_int {
    prefetch("hiroba_prefetch", &[(start as usize, bytes)])
}

/// `hiroba_range` of `hiroba.h`.
#[repr(C)]
pub struct HirobaRange {
    start: *const c_void,
    bytes: usize,
}

/// See `hiroba.h`.
///
/// # Safety
/// `ranges` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_prefetch_ranges(ranges: *const HirobaRange, count: usize) -> c_int {
    let call = "hiroba_prefetch_ranges";
    let ranges: &[HirobaRange] = match count {
        0 => &[],
        _ if ranges.is_null() => {
            note(&format!("{call}: expected an array of {count} ranges, got NULL"));
            return -libc::EFAULT;
        }
        // SAFETY: the caller guarantees that many elements.
        _ => unsafe { std::slice::from_raw_parts(ranges, count) },
    };
    let ranges: Vec<_> = ranges.iter().map(|range| (range.start as usize, range.bytes)).collect();
    prefetch(call, &ranges)
}

fn prefetch(call: &str, ranges: &[(usize, usize)]) -> c_int {
    let Some(runtime) = Runtime::get() else {
        note(&format!("{call}: expected a call between hiroba_init and hiroba_finalize, got one outside"));
        return -libc::EPERM;
    };
    let Err((start, bytes)) = runtime.prefetch(ranges) else { return 0 };
    note(&format!("{call}: expected {bytes} bytes in the shared address space, got those from 0x{start:x}"));
    -libc::EFAULT
}
