//! Locale objects (newlocale(3)), which threads of any node may use.
//!
//! An object refers to data of the C library, which each node has at other addresses, and functions such as
//! `strtod_l` read it directly. So the program gets the address of a place in this library's private data,
//! which lie at the same address on every node, and each node fills that place with an object of its own.
//! The thread that makes an object publishes the names of its categories, and returns when the starters of
//! all nodes have made theirs. The object of the locale "C" is constant and the same on all nodes.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};

use super::{await_all, read_names, write_names};
use crate::control::{LOCALE_OBJECTS, THREADS, control};
use crate::face;
use crate::heap;
use crate::next::next;
use crate::record::this_node;
use crate::saying;
use crate::stacks::{in_program, privately};

/// `struct __locale_struct` (<bits/types/__locale_t.h>).
#[repr(C)]
#[derive(Clone, Copy)]
struct Object {
    data: [*const c_void; CATEGORIES],
    classes: *const c_void,
    lower: *const c_void,
    upper: *const c_void,
    names: [*const c_char; CATEGORIES],
}

/// The number of categories, `LC_ALL` included.
const CATEGORIES: usize = 13;
/// The names of categories where all are listed, by number.
const NAMES: [&str; CATEGORIES] = [
    "LC_CTYPE",
    "LC_NUMERIC",
    "LC_TIME",
    "LC_COLLATE",
    "LC_MONETARY",
    "LC_MESSAGES",
    "",
    "LC_PAPER",
    "LC_NAME",
    "LC_ADDRESS",
    "LC_TELEPHONE",
    "LC_MEASUREMENT",
    "LC_IDENTIFICATION",
];

/// The places of objects, at the same addresses on all nodes.
struct Places([UnsafeCell<Object>; LOCALE_OBJECTS]);

// SAFETY: a place changes only while the program has no object there, or is changing that object: in the
// node's starter, before the call that makes it returns.
unsafe impl Sync for Places {}

const NONE: Object = Object {
    data: [ptr::null(); CATEGORIES],
    classes: ptr::null(),
    lower: ptr::null(),
    upper: ptr::null(),
    names: [ptr::null(); CATEGORIES],
};

static PLACES: Places = Places([const { UnsafeCell::new(NONE) }; LOCALE_OBJECTS]);

/// The C library's own object of each place, whose names the place refers to.
static ORIGINALS: [AtomicPtr<Object>; LOCALE_OBJECTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; LOCALE_OBJECTS];

/// The change of each place that this node has made.
static APPLIED: [AtomicU32; LOCALE_OBJECTS] = [const { AtomicU32::new(0) }; LOCALE_OBJECTS];

fn real_new(mask: c_int, names: *const c_char, base: *mut Object) -> *mut Object {
    // SAFETY: each caller passes a C string, and NULL or an object.
    unsafe { next!(fn newlocale(c_int, *const c_char, *mut Object) -> *mut Object)(mask, names, base) }
}

fn real_duplicate(object: *mut Object) -> *mut Object {
    // SAFETY: each caller passes an object.
    unsafe { next!(fn duplocale(*mut Object) -> *mut Object)(object) }
}

fn real_free(object: *mut Object) {
    // SAFETY: each caller passes an object that nobody uses any more.
    unsafe { next!(fn freelocale(*mut Object) -> ())(object) };
}

fn place_of(object: *const Object) -> Option<usize> {
    PLACES.0.iter().position(|place| ptr::eq(place.get(), object))
}

/// Returns the names of an object's categories in the form that newlocale(3) takes, or `None` if all are "C".
fn names_of(object: *const Object) -> Option<CString> {
    // SAFETY: each caller passes an object of this node.
    let names = unsafe { (*object).names };
    let mut list = Vec::new();
    let mut all_c = true;
    for (category, name) in NAMES.iter().zip(names).filter(|(category, _)| !category.is_empty()) {
        // SAFETY: the C library's own C string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        all_c &= name == b"C";
        if !list.is_empty() {
            list.push(b';');
        }
        list.extend_from_slice(category.as_bytes());
        list.push(b'=');
        list.extend_from_slice(name);
    }
    (!all_c).then(|| CString::new(list).expect("C strings have no zeros"))
}

/// newlocale(3).
///
/// # Safety
/// The arguments are as the manual requires.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn newlocale(mask: c_int, names: *const c_char, base: *mut Object) -> *mut Object {
    if !in_program() || face::hiroba_nodes() < 2 {
        return real_new(mask, names, base);
    }
    let place = place_of(base);
    let made = privately(|| {
        // The base must not change if the call fails on another node.
        let copy = if base.is_null() { base } else { real_duplicate(base) };
        let made = real_new(mask, names, copy);
        if made.is_null() && !copy.is_null() {
            real_free(copy);
        }
        made
    });
    if made.is_null() { made } else { publish(made, place) }
}

/// duplocale(3).
///
/// # Safety
/// `object` is a locale object, or `LC_GLOBAL_LOCALE`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn duplocale(object: *mut Object) -> *mut Object {
    if !in_program() || face::hiroba_nodes() < 2 {
        return real_duplicate(object);
    }
    let made = privately(|| real_duplicate(object));
    if made.is_null() { made } else { publish(made, None) }
}

/// freelocale(3).
///
/// # Safety
/// `object` is a locale object that nobody uses any more.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freelocale(object: *mut Object) {
    match place_of(object) {
        // The nodes free theirs when the place is used again.
        Some(place) => THREADS.hold(|_| control().locale_objects[place].is_used.store(0, Relaxed)),
        None => real_free(object),
    }
}

/// Has all nodes make an object like `made`, which is freed, at a place of its own or at that of its base.
fn publish(made: *mut Object, place: Option<usize>) -> *mut Object {
    let names = privately(|| {
        let names = names_of(made);
        real_free(made);
        names
    });
    if names.is_none() && place.is_none() {
        return real_new(libc::LC_ALL_MASK, c"C".as_ptr(), ptr::null_mut());
    }
    let names = names.unwrap_or_else(|| c"C".to_owned());
    let base = place;
    let result = privately(|| {
        let (place, version) = THREADS.hold(|held| {
            let objects = &control().locale_objects;
            let place = place.or_else(|| objects.iter().position(|object| object.is_used.load(Relaxed) == 0));
            let place = place.filter(|place| write_names(&objects[*place].words, names.as_bytes()))?;
            let object = &objects[place];
            object.is_used.store(1, Relaxed);
            object.failed.store(0, Relaxed);
            object.version.store(object.version.load(Relaxed) + 1, Relaxed);
            let locale = &control().locale;
            let version = locale.version.load(Relaxed) + 1;
            locale.version.store(version, Relaxed);
            (0..face::hiroba_nodes() as usize).for_each(|node| held.tell_starter(node));
            Some((place, version))
        })?;
        await_all("newlocale", version);
        let failed = control().locale_objects[place].failed.load(Relaxed);
        if failed > 0 {
            control().locale_objects[place].is_used.store(u32::from(base.is_some()), Relaxed);
            saying::say(&format!("newlocale: node {} lacks a locale of node {}", failed - 1, this_node()));
        }
        (failed == 0).then_some(place)
    });
    match result {
        Some(place) => PLACES.0[place].get(),
        None => {
            heap::set_errno(libc::ENOENT);
            ptr::null_mut()
        }
    }
}

/// Makes the objects that this node does not have yet. Called by its starter.
pub(super) fn apply() {
    for (place, applied) in APPLIED.iter().enumerate() {
        let shared = &control().locale_objects[place];
        if shared.version.load(Relaxed) == applied.load(Relaxed) {
            continue;
        }
        let (names, version) = THREADS.hold(|_| (read_names(&shared.words), shared.version.load(Relaxed)));
        applied.store(version, Relaxed);
        let made = real_new(libc::LC_ALL_MASK, names.as_ptr().cast(), ptr::null_mut());
        if made.is_null() {
            THREADS.hold(|_| shared.failed.store(this_node() + 1, Relaxed));
            continue;
        }
        // SAFETY: an object of this node.
        let object = unsafe { made.read() };
        // SAFETY: nobody uses the place while the program waits for this change of it.
        unsafe { PLACES.0[place].get().write(object) };
        let before = ORIGINALS[place].swap(made, Relaxed);
        if !before.is_null() {
            real_free(before);
        }
    }
}

/// The same function by the name that libstdc++ calls.
///
/// # Safety
/// As `newlocale`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __newlocale(mask: c_int, names: *const c_char, base: *mut Object) -> *mut Object {
    // SAFETY: the caller's.
    let made =
        unsafe { next!(fn __newlocale(c_int, *const c_char, *mut Object) -> *mut Object)(mask, names, base) };
    // libstdc++ keeps addresses of this node's data in its own objects, which are shared.
    if in_program()
        && face::hiroba_nodes() > 1
        && !made.is_null()
        && privately(|| names_of(made)).is_some()
        && !HAS_WARNED.swap(true, Relaxed)
    {
        saying::say(&format!(
            "std::locale: only threads of node {} can use the locale that this program makes; set LC_ALL=C, or \
             name no locale but \"C\"",
            this_node()
        ));
    }
    made
}

/// True once the program was told of that.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);
