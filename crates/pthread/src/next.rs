//! The functions of the same names in the libraries that follow this one: `libhiroba.so`, or the C library.
//! The library for jobs of one node (`crates/single`) has this file, too.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that another library defines, too.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Looks up the address, so that [`address`](Self::address) need not: a signal handler must not. Returns
    /// 0 if no library that follows this one has it.
    pub(crate) fn look_up(&self) -> usize {
        // SAFETY: the name is a C string; the call only looks it up.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }.addr();
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Returns its address, looked up once.
    ///
    /// # Panics
    /// If no library that follows this one has it. Then the C library is not the one that this library was
    /// built for.
    pub(crate) fn address(&self) -> usize {
        let known = self.address.load(Ordering::Relaxed);
        let found = if known == 0 { self.look_up() } else { known };
        assert!(found != 0, "expected the C library to have {}", self.name.to_string_lossy());
        found
    }
}

/// Calls the next function of a name: `next!(fn pthread_join(u64, *mut *mut c_void) -> c_int)(thread,
/// result)`. The call is unsafe, and the caller is responsible for the types.
macro_rules! next {
    (fn $name:ident($($argument:ty),*) $(-> $result:ty)?) => {{
        static NEXT: $crate::next::Next = {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                };
            $crate::next::Next::new(NAME)
        };
        // Some callers are inside a block of their own.
        #[allow(unused_unsafe)]
        // SAFETY: a function of this name and type is declared in the C library's headers.
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?>(NEXT.address())
        }
    }};
}

pub(crate) use next;
