//! The program's start: the process joins the job before the executable's constructors run.
//!
//! Libraries have been initialised by then, on every node alike and each in its private memory. All nodes
//! then get node 0's version of their data.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;

use crate::atomics;
use crate::carry;
use crate::control;
use crate::ending;
use crate::face;
use crate::interrupts;
use crate::libraries::is_private;
use crate::linkage;
use crate::locale;
use crate::masks;
use crate::next::next;
use crate::queues::{self, Told};
use crate::random;
use crate::record;
use crate::saying;
use crate::shared;
use crate::signals;
use crate::slots;
use crate::stacks;
use crate::statics;
use crate::threads;
use crate::tls;

type Main = unsafe extern "C-unwind" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Hook = *mut c_void;

unsafe extern "C" {
    /// environ(7).
    static mut environ: *mut *mut c_char;
}

/// The environment variable that the launcher sets in nodes of such a job.
const VARIABLE: &CStr = c"HIROBA_PTHREAD";

/// Replaces the function that the loader's start code calls to run `main`.
///
/// # Safety
/// Called by that code, once.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __libc_start_main(
    main: Main,
    count: c_int,
    arguments: *mut *mut c_char,
    init: Hook,
    fini: Hook,
    loader_fini: Hook,
    stack_end: Hook,
) -> c_int {
    let real = next!(fn __libc_start_main(Main, c_int, *mut *mut c_char, Hook, Hook, Hook, Hook) -> c_int);
    // SAFETY: the name is a C string, and no other thread changes the environment yet.
    if unsafe { libc::getenv(VARIABLE.as_ptr()) }.is_null() {
        // SAFETY: the caller's.
        return unsafe { real(main, count, arguments, init, fini, loader_fini, stack_end) };
    }
    carry::look_up();
    join();
    if face::hiroba_node() != 0 {
        start_others();
    }
    if let Err(error) = std::thread::Builder::new().name("starter".to_owned()).spawn(|| {
        masks::block(masks::all_signals());
        start_others()
    }) {
        saying::fatal(&format!("expected to start a thread on node 0, got: {error}"));
    }
    if !threads::adopt_main() {
        saying::fatal("expected shared memory for the main thread, got none");
    }
    let bytes = MAIN_STACK_BYTES;
    let stack = face::hiroba_aligned_alloc(PAGE_BYTES, bytes);
    if stack.is_null() {
        saying::fatal(&format!("expected {bytes} bytes of shared memory for main's stack, got none"));
    }
    let arguments = share_strings(count, arguments);
    let top = stack.addr() + bytes;
    record::note_stack(top, bytes);
    // SAFETY: the caller's; the strings are copies.
    stacks::run_program(top, || unsafe { real(main, count, arguments, init, fini, loader_fini, stack_end) })
}

const PAGE_BYTES: usize = 4096;
const MAIN_STACK_BYTES: usize = 64 << 20;

/// Joins the job and shares what must be shared.
fn join() {
    if face::hiroba_init(ptr::null_mut(), ptr::null_mut()) != 0 {
        // SAFETY: the thread's own C string.
        let why = unsafe { CStr::from_ptr(face::hiroba_error_string()) }.to_string_lossy().into_owned();
        saying::fatal(&why);
    }
    face::hiroba_expect_crew();
    saying::end_at_panics();
    carry::begin();
    ending::prepare();
    interrupts::prepare();
    let data = writable_data();
    data.iter().enumerate().for_each(|(place, range)| note_data(place, range));
    linkage::copy();
    let surveyed = atomics::survey();
    let with_long = surveyed.iter().filter(|_| atomics::has_long_memory());
    let files = with_long.map(|surveyed| (surveyed.object.path.as_str(), surveyed.object.bias));
    let named: Vec<Range<usize>> = surveyed.iter().flat_map(atomics::Surveyed::places_named).collect();
    statics::find(&data, files, &named);
    statics::share(&data);
    if !control::make() {
        let why = saying::why(-libc::ENOMEM);
        saying::fatal(&format!("expected shared memory for the job's threads, got none: {why}"));
    }
    // Before the threads' private stacks take the addresses near the libraries.
    atomics::replace(surveyed);
    let thread_locals = tls::share();
    if !thread_locals.is_empty() {
        note_data(data.len(), &thread_locals);
    }
    slots::make(thread_locals.len(), threads::usual_stack_bytes());
    random::begin();
    face::hiroba_barrier();
    prepare_above();
}

fn note_data(place: usize, range: &Range<usize>) {
    if !shared::note_data(place, range) {
        saying::fatal("expected at most 128 parts of writable data, got more libraries");
    }
}

/// Lets the library that builds on this one, if there is one, prepare its part of the job on all nodes.
fn prepare_above() {
    // SAFETY: the name is a C string; the call only looks it up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hiroba_prepare_above".as_ptr()) }.addr();
    if found != 0 {
        // SAFETY: `libhiroba_gomp.so` has a function of this name and type.
        let prepare = unsafe { std::mem::transmute::<usize, extern "C" fn()>(found) };
        prepare();
    }
}

/// Runs the starter of a node, which waits for threads to start. Node 0 runs it in a thread.
fn start_others() -> ! {
    loop {
        match queues::next_told() {
            Told::Start(thread) => threads::start_here(thread),
            Told::Order => atomics::order_here(),
            Told::Locale => locale::apply(),
            Told::Actions => signals::apply_all(),
            Told::Send(signal) => queues::send_asked(signal),
            Told::Exit(status, how) => ending::exit_here(status, how),
            Told::End if face::hiroba_node() == 0 => {
                ending::starter_is_done();
                loop {
                    std::thread::park();
                }
            }
            Told::End => ending::follow(),
        }
    }
}

/// Copies the arguments, and the environment that follows them, into shared memory, where threads of other
/// nodes can read them.
fn share_strings(count: c_int, arguments: *mut *mut c_char) -> *mut *mut c_char {
    let pointers = |first: *mut *mut c_char| {
        let mut all = Vec::new();
        loop {
            // SAFETY: the list ends with NULL, where this stops.
            let place = unsafe { first.add(all.len()) };
            // SAFETY: as above.
            let pointer = unsafe { place.read() };
            if pointer.is_null() {
                return all;
            }
            all.push(pointer);
        }
    };
    let own = pointers(arguments);
    // SAFETY: the environment follows the arguments and their NULL.
    let variables = pointers(unsafe { arguments.add(count as usize + 1) });
    let words = own.len() + variables.len() + 2 + AUXILIARY_WORDS;
    let list = face::hiroba_calloc(words, size_of::<*mut c_char>()).cast::<*mut c_char>();
    if list.is_null() {
        return arguments;
    }
    let mut place = 0;
    let mut put = |string: *mut c_char| {
        // SAFETY: the list has room for all strings, two NULLs, and zeros for the auxiliary vector.
        let word = unsafe { list.add(place) };
        // SAFETY: as above.
        unsafe { word.write(string) };
        place += 1;
    };
    own.iter().for_each(|string| put(copy(*string)));
    put(ptr::null_mut());
    variables.iter().for_each(|string| put(copy(*string)));
    put(ptr::null_mut());
    // SAFETY: the place is after the arguments, inside the list.
    let variables = unsafe { list.add(own.len() + 1) };
    // SAFETY: no other thread of the program runs yet; the list has the form that the C library makes.
    unsafe { environ = variables };
    list
}

/// The number of zero words that end the auxiliary vector. The C library looks for it after the environment
/// only in static programs.
const AUXILIARY_WORDS: usize = 2;

fn copy(string: *mut c_char) -> *mut c_char {
    // SAFETY: each is a C string.
    let bytes = unsafe { CStr::from_ptr(string) }.to_bytes_with_nul();
    let room = face::hiroba_malloc(bytes.len()).cast::<c_char>();
    if room.is_null() {
        return string;
    }
    // SAFETY: the block is new and that long.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), room, bytes.len()) };
    room
}

/// Returns the writable data of the executable and of its libraries: whole pages, except those that are
/// read-only after relocation.
fn writable_data() -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback's argument is the local, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note_object), (&raw mut ranges).cast()) };
    ranges
}

unsafe extern "C" fn note_object(info: *mut libc::dl_phdr_info, _: usize, ranges: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: `writable_data` passes its own local.
    let ranges = unsafe { &mut *ranges.cast::<Vec<Range<usize>>>() };
    if info.dlpi_phdr.is_null() || is_private(info.dlpi_name) {
        return 0;
    }
    // SAFETY: the loader has mapped that many program headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let relocated_end = headers
        .iter()
        .find(|header| header.p_type == libc::PT_GNU_RELRO)
        .map_or(0, |header| (bias + header.p_vaddr as usize + header.p_memsz as usize) & !(PAGE_BYTES - 1));
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0)
    {
        let start = bias + header.p_vaddr as usize;
        let end = (start + header.p_memsz as usize).next_multiple_of(PAGE_BYTES);
        let is_relocated = (start & !(PAGE_BYTES - 1)..end).contains(&relocated_end) || relocated_end == end;
        let start = if is_relocated { relocated_end } else { start & !(PAGE_BYTES - 1) };
        if start < end {
            ranges.push(start..end);
        }
    }
    0
}
