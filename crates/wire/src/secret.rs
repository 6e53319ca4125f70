//! Memory for keys: separate pages that are excluded from core files and forked children, and, if the limit
//! on locked memory allows, from swap. A key is wiped when it is no longer needed.
//!
//! Read first: madvise(2) on `MADV_DONTDUMP` and `MADV_WIPEONFORK`, mlock(2).

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous};
use zeroize::Zeroize;

/// The maximum length of a key, and the distance between two, in bytes.
const SLOT_BYTES: usize = 32;
/// Bytes taken from the system at once: whole pages on every processor.
const VAULT_BYTES: usize = 64 << 10;

/// The addresses of places without a key; all their bytes are 0.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Places for a process that gets no mapping, because it locks all its memory and may lock no more.
#[repr(align(65536))]
struct Spare(UnsafeCell<[u8; VAULT_BYTES]>);

// SAFETY: `new_places` gives each of its bytes to one place, once.
unsafe impl Sync for Spare {}

static SPARE: Spare = Spare(UnsafeCell::new([0; VAULT_BYTES]));
static SPARE_IS_USED: AtomicBool = AtomicBool::new(false);

/// A secret of `BYTES` bytes.
pub struct Secret<const BYTES: usize> {
    place: NonNull<[u8; BYTES]>,
}

// SAFETY: the place belongs to this value only, like that of a box.
unsafe impl<const BYTES: usize> Send for Secret<BYTES> {}
// SAFETY: as above; shared references only read.
unsafe impl<const BYTES: usize> Sync for Secret<BYTES> {}

impl<const BYTES: usize> Secret<BYTES> {
    /// Makes a secret that `fill` writes in place, so that there is no other copy.
    ///
    /// # Errors
    /// Those of `fill`.
    ///
    /// # Panics
    /// If the system has no memory left.
    pub fn made_by<E>(fill: impl FnOnce(&mut [u8; BYTES]) -> Result<(), E>) -> Result<Secret<BYTES>, E> {
        const { assert!(BYTES <= SLOT_BYTES) };
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            free.extend(new_places());
        }
        let address = free.pop().expect("new places were made");
        drop(free);
        let place = NonNull::new(address as *mut [u8; BYTES]).expect("a mapping is not at 0");
        let mut secret = Secret { place };
        // SAFETY: the place was taken from the free ones, so no other code refers to it; its bytes are mapped
        // until the process ends.
        fill(unsafe { secret.place.as_mut() })?;
        Ok(secret)
    }

    /// Returns the secret itself, which should not be copied elsewhere.
    pub fn expose(&self) -> &[u8; BYTES] {
        // SAFETY: the place belongs to this value and is mapped until the process ends.
        unsafe { self.place.as_ref() }
    }
}

fn new_places() -> impl Iterator<Item = usize> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let mapped = unsafe { mmap_anonymous(core::ptr::null_mut(), VAULT_BYTES, protection, MapFlags::PRIVATE) };
    let is_spare = mapped.is_err() && !SPARE_IS_USED.swap(true, Ordering::Relaxed);
    let start = if is_spare { SPARE.0.get().cast() } else { mapped.expect("memory for keys") };
    // If the system refuses one of these, the keys lie in ordinary memory.
    for advice in [Advice::LinuxDontDump, Advice::LinuxWipeOnFork] {
        // SAFETY: the mapping is new, and neither advice changes what this process reads in it.
        let _ = unsafe { madvise(start, VAULT_BYTES, advice) };
    }
    // SAFETY: locking does not change the content.
    let _ = unsafe { mlock(start, VAULT_BYTES) };
    (0..VAULT_BYTES / SLOT_BYTES).map(move |slot| start as usize + slot * SLOT_BYTES)
}

impl<const BYTES: usize> Clone for Secret<BYTES> {
    fn clone(&self) -> Self {
        let copy = |bytes: &mut [u8; BYTES]| {
            bytes.copy_from_slice(self.expose());
            Ok::<(), core::convert::Infallible>(())
        };
        let Ok(clone) = Secret::made_by(copy);
        clone
    }
}

impl<const BYTES: usize> Drop for Secret<BYTES> {
    fn drop(&mut self) {
        // SAFETY: the place belongs to this value and is mapped until the process ends.
        unsafe { self.place.as_mut() }.zeroize();
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.place.as_ptr() as usize);
    }
}

impl<const BYTES: usize> PartialEq for Secret<BYTES> {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl<const BYTES: usize> Eq for Secret<BYTES> {}

impl<const BYTES: usize> core::fmt::Debug for Secret<BYTES> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret<16> {
        let Ok(secret) = Secret::made_by(|bytes| {
            bytes.fill(byte);
            Ok::<(), core::convert::Infallible>(())
        });
        secret
    }

    /// Returns the flags of the mapping that contains an address (`/proc/PID/smaps`).
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bound = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(start, end)| (bound(start), bound(end))) {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("no mapping at {address:#x}")
    }

    #[test]
    fn a_secret_is_wiped_and_its_place_used_again() {
        let one = secret(7);
        let two = one.clone();
        assert_eq!((one.expose(), one == two, format!("{one:?}")), (&[7; 16], true, "Secret".to_owned()));
        assert!(one != secret(8));
        let many: Vec<_> = (0..3 * VAULT_BYTES / SLOT_BYTES).map(|number| secret(number as u8)).collect();
        assert!(many.iter().enumerate().all(|(number, secret)| *secret.expose() == [number as u8; 16]));
        drop(many);
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(free.len() >= 3 * VAULT_BYTES / SLOT_BYTES);
        for place in free.iter() {
            // SAFETY: free places are mapped until the process ends; the lock excludes others.
            let bytes = unsafe { *(*place as *const [u8; SLOT_BYTES]) };
            assert_eq!(bytes, [0; SLOT_BYTES]);
        }
    }

    #[test]
    fn it_lies_outside_core_files_and_forked_children() {
        let secret = secret(9);
        let flags = flags_at(secret.place.as_ptr() as usize);
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        assert!(has("dd") && has("wf"), "expected dd (no dump) and wf (wiped on fork), got {flags}");
    }
}
