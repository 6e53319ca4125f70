//! Locks of the program.
//!
//! Theirs is the word in which the program keeps them: the number of a lock of Hiroba. A nested lock has its
//! owner and depth beside it, or elsewhere, where the program has room for an address alone: in Fortran, and
//! built for LLVM's library.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release};

use crate::context;
use crate::library;
use crate::memory;
use crate::runtime::Lock;

/// `omp_nest_lock_t`.
#[repr(C)]
struct Nested {
    lock: Lock,
    depth: AtomicU32,
    owner: AtomicU64,
}

impl Nested {
    /// Who asks: a task owns a nested lock. Its context's address is a name that no other task has meanwhile.
    fn asker() -> u64 {
        context::task_name()
    }

    fn init(&self) {
        self.lock.forget();
        self.depth.store(0, Release);
        self.owner.store(0, Release);
    }

    fn count(&self) -> u32 {
        let depth = self.depth.load(Acquire) + 1;
        self.depth.store(depth, Release);
        depth
    }

    fn set(&self) {
        if self.owner.load(Acquire) != Self::asker() {
            self.lock.lock();
            self.owner.store(Self::asker(), Release);
        }
        self.count();
    }

    fn test(&self) -> c_int {
        if self.owner.load(Acquire) != Self::asker() {
            if !self.lock.try_lock() {
                return 0;
            }
            self.owner.store(Self::asker(), Release);
        }
        self.count() as c_int
    }

    fn unset(&self) {
        let depth = self.depth.load(Acquire) - 1;
        self.depth.store(depth, Release);
        if depth == 0 {
            self.owner.store(0, Release);
            self.lock.unlock();
        }
    }
}

/// Defines functions of a lock, for C and for Fortran.
macro_rules! of_lock {
    ($($name:ident $fortran:ident ($lock:ident: $kind:ty) $(-> $result:ty)? => $act:expr;)*) => { $(
        /// See OpenMP.
        ///
        /// # Safety
        /// The lock is the program's, and initialised but by functions that initialise it.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(lock: *const $kind) $(-> $result)? {
            // SAFETY: the caller's.
            let $lock = unsafe { &*lock };
            $act
        }

        /// The same for Fortran.
        ///
        /// # Safety
        /// As above.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran(lock: *const $kind) $(-> $result)? {
            // SAFETY: the caller's.
            unsafe { $name(lock) }
        }
    )* };
}

of_lock! {
    omp_init_lock omp_init_lock_(lock: Lock) => lock.forget();
    omp_destroy_lock omp_destroy_lock_(lock: Lock) => lock.forget();
    omp_set_lock omp_set_lock_(lock: Lock) => lock.lock();
    omp_unset_lock omp_unset_lock_(lock: Lock) => lock.unlock();
    omp_test_lock omp_test_lock_(lock: Lock) -> c_int => c_int::from(lock.try_lock());
}

/// omp_init_lock with advice, which changes nothing.
///
/// # Safety
/// As of omp_init_lock.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_lock_with_hint(lock: *const Lock, _hint: c_uint) {
    // SAFETY: the caller's.
    unsafe { omp_init_lock(lock) };
}

/// The same for Fortran.
///
/// # Safety
/// As of omp_init_lock.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_lock_with_hint_(lock: *const Lock, _hint: *const c_uint) {
    // SAFETY: the caller's.
    unsafe { omp_init_lock(lock) };
}

/// Defines functions of a nested lock: for C, and for Fortran, whose variable is the address of the lock.
macro_rules! of_nested {
    ($($name:ident $fortran:ident $(-> $result:ty)? => $act:ident;)*) => { $(
        /// See OpenMP.
        ///
        /// # Safety
        /// The lock is the program's, and initialised.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(lock: *const Nested) $(-> $result)? {
            if library::is_llvm() {
                // SAFETY: the caller's; such a lock is as Fortran's.
                return unsafe { $fortran(lock.cast()) };
            }
            // SAFETY: the caller's.
            unsafe { &*lock }.$act()
        }

        /// The same for Fortran.
        ///
        /// # Safety
        /// As above.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran(lock: *const *const Nested) $(-> $result)? {
            // SAFETY: the caller's.
            let lock = unsafe { lock.read() };
            // SAFETY: as above.
            unsafe { &*lock }.$act()
        }
    )* };
}

of_nested! {
    omp_set_nest_lock omp_set_nest_lock_ => set;
    omp_unset_nest_lock omp_unset_nest_lock_ => unset;
    omp_test_nest_lock omp_test_nest_lock_ -> c_int => test;
}

/// Makes a nested lock.
///
/// # Safety
/// The place is the program's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_nest_lock(lock: *const Nested) {
    if library::is_llvm() {
        // SAFETY: the caller's; such a lock is as Fortran's.
        return unsafe { omp_init_nest_lock_(lock.cast_mut().cast()) };
    }
    // SAFETY: the caller's.
    unsafe { &*lock }.init();
}

/// The same with advice, which changes nothing.
///
/// # Safety
/// The place is the program's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_nest_lock_with_hint(lock: *const Nested, _hint: c_uint) {
    // SAFETY: the caller's.
    unsafe { omp_init_nest_lock(lock) };
}

/// Ends a nested lock.
///
/// # Safety
/// It was initialised, and no thread uses it any more.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_destroy_nest_lock(lock: *const Nested) {
    if library::is_llvm() {
        // SAFETY: the caller's; such a lock is as Fortran's.
        return unsafe { omp_destroy_nest_lock_(lock.cast_mut().cast()) };
    }
    // SAFETY: the caller's.
    unsafe { &*lock }.init();
}

/// Makes a nested lock for Fortran, where the variable has room for an address.
///
/// # Safety
/// The place is the program's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_nest_lock_(place: *mut *const Nested) {
    let lock = memory::shared_zeroed(align_of::<Nested>(), size_of::<Nested>());
    // SAFETY: the caller's.
    unsafe { place.write(lock.cast_const().cast()) };
}

/// The same with advice, which changes nothing.
///
/// # Safety
/// The place is the program's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_init_nest_lock_with_hint_(place: *mut *const Nested, _hint: *const c_uint) {
    // SAFETY: the caller's.
    unsafe { omp_init_nest_lock_(place) };
}

/// Ends a nested lock of Fortran.
///
/// # Safety
/// It was initialised, and no thread uses it any more.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_destroy_nest_lock_(place: *mut *const Nested) {
    // SAFETY: the caller's.
    let lock = unsafe { place.read() };
    // SAFETY: made by `omp_init_nest_lock_`.
    unsafe { memory::free_shared(lock.cast_mut().cast()) };
    // SAFETY: the caller's.
    unsafe { place.write(ptr::null()) };
}
