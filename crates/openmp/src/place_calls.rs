//! Questions about places that answer with lists: for C, and for Fortran, which passes addresses.

use std::ffi::c_int;

use crate::places;

/// Writes numbers one behind the other.
///
/// # Safety
/// There is room for them.
unsafe fn give<T>(place: *mut T, numbers: impl Iterator<Item = T>) {
    for (index, number) in numbers.enumerate() {
        // SAFETY: the caller's.
        unsafe { place.wrapping_add(index).write(number) };
    }
}

fn ids(place: i32) -> impl Iterator<Item = c_int> {
    places::processors_of(place).iter().map(|number| *number as c_int)
}

/// All places are in the partition of every thread.
fn all() -> impl Iterator<Item = c_int> {
    0..places::processors().len() as c_int
}

/// See OpenMP.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_get_place_num_procs(place: c_int) -> c_int {
    places::processors_of(place).len() as c_int
}

/// See OpenMP.
///
/// # Safety
/// There is room for as many numbers as the place has processors, as of the following ones.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_place_proc_ids(place: c_int, numbers: *mut c_int) {
    // SAFETY: the caller's.
    unsafe { give(numbers, ids(place)) };
}

/// See OpenMP.
///
/// # Safety
/// There is room for as many numbers as the partition has places.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_partition_place_nums(numbers: *mut c_int) {
    // SAFETY: the caller's.
    unsafe { give(numbers, all()) };
}

/// Defines the same for Fortran, for numbers of one length.
macro_rules! for_fortran {
    ($($count:ident $ids:ident $partition:ident $number:ty;)*) => { $(
        /// The same for Fortran, as of the following ones.
        ///
        /// # Safety
        /// The number can be read.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $count(place: *const $number) -> c_int {
            // SAFETY: the caller's.
            omp_get_place_num_procs(c_int::try_from(unsafe { place.read() }).unwrap_or(-1))
        }

        /// See OpenMP.
        ///
        /// # Safety
        /// The number can be read, and there is room as in C.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $ids(place: *const $number, numbers: *mut $number) {
            // SAFETY: the caller's.
            let place = c_int::try_from(unsafe { place.read() }).unwrap_or(-1);
            // SAFETY: the caller's.
            unsafe { give(numbers, ids(place).map(<$number>::from)) };
        }

        /// See OpenMP.
        ///
        /// # Safety
        /// There is room as in C.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $partition(numbers: *mut $number) {
            // SAFETY: the caller's.
            unsafe { give(numbers, all().map(<$number>::from)) };
        }
    )* };
}

for_fortran! {
    omp_get_place_num_procs_ omp_get_place_proc_ids_ omp_get_partition_place_nums_ i32;
    omp_get_place_num_procs_8_ omp_get_place_proc_ids_8_ omp_get_partition_place_nums_8_ i64;
}
