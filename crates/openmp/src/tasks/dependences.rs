//! Dependences among the children of one task.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Relaxed};

use crate::memory;
use crate::records::{BUCKETS, Edge, Entry, Family, Queue, Table, Task};
use crate::runtime::{self, Held};

/// How a task uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    Writes,
    /// Together with others of its kind, and apart from all else (`inoutset`).
    WritesInSet,
}

impl Use {
    fn number(self) -> u32 {
        self as u32
    }

    /// Returns true if a use must wait for an earlier one.
    fn waits_for(self, earlier: u32) -> bool {
        self == Use::Writes || self.number() != earlier
    }
}

/// The kinds of dependence objects.
const OBJECT_IN: usize = 1;
const OBJECT_MUTEX: usize = 4;
const OBJECT_SET: usize = 5;

/// Reads the list of dependences that compilers pass: each address and its use. NULL stands for all memory.
///
/// # Safety
/// `list` is such a list.
pub(super) unsafe fn read(list: *const *const c_void) -> Vec<(usize, Use)> {
    // SAFETY: the caller's, as of every word of the list.
    let word = |place: usize| unsafe { list.wrapping_add(place).read() }.addr();
    if word(0) > 0 {
        let (all, outs) = (word(0), word(1));
        let used = |place| if place < outs { Use::Writes } else { Use::Reads };
        return (0..all).map(|place| (word(2 + place), used(place))).collect();
    }
    let (all, outs, ins) = (word(1), word(2) + word(3), word(4));
    (0..all)
        .map(|place| match place {
            _ if place < outs => (word(5 + place), Use::Writes),
            _ if place < outs + ins => (word(5 + place), Use::Reads),
            _ => {
                let object = ptr::with_exposed_provenance::<usize>(word(5 + place));
                // SAFETY: the word is the address of an object of two words.
                let [address, kind] = unsafe { object.cast::<[usize; 2]>().read() };
                match kind {
                    OBJECT_IN => (address, Use::Reads),
                    OBJECT_SET => (address, Use::WritesInSet),
                    ..=OBJECT_MUTEX => (address, Use::Writes),
                    _ => runtime::fatal(&format!(
                        "OpenMP: expected a dependence object, got one of kind {kind}"
                    )),
                }
            }
        })
        .collect()
}

fn bucket(table: &Table, address: usize) -> &AtomicPtr<Entry> {
    &table.buckets[(address >> 4 ^ address >> 12) % BUCKETS]
}

/// Calls `visit` with each entry that a use of `address` must wait for. Under the lock.
fn conflicts(table: &Table, (address, used): (usize, Use), mut visit: impl FnMut(&Entry)) {
    let everywhere = address == 0 || table.of_all.load(Relaxed) > 0;
    let one = std::slice::from_ref(bucket(table, address));
    for bucket in if everywhere { &table.buckets[..] } else { one } {
        // SAFETY: entries stay until their task is done, which removes them under the lock.
        let mut entry = unsafe { bucket.load(Relaxed).as_ref() };
        while let Some(found) = entry {
            let other = found.address.load(Relaxed) as usize;
            let same = other == address || other == 0 || address == 0;
            if same && (address == 0 || other == 0 || used.waits_for(found.kind.load(Relaxed))) {
                visit(found);
            }
            // SAFETY: as above.
            entry = unsafe { found.next_in_bucket.load(Relaxed).as_ref() };
        }
    }
}

/// A task that has joined its family depends on its siblings by `uses`. Under the lock.
pub(super) fn add(task: &'static Task, family: &Family, uses: &[(usize, Use)]) {
    for used in uses {
        conflicts(&family.table, *used, |entry| {
            // SAFETY: entries stay as long as their tasks.
            let earlier = unsafe { &*entry.task.load(Relaxed) };
            let is_self = ptr::eq(earlier, task);
            // SAFETY: edges stay until the earlier task is done.
            let latest = unsafe { earlier.followers.load(Relaxed).as_ref() };
            let is_known =
                latest.is_some_and(|edge| ptr::eq(edge.follower.load(Relaxed), ptr::from_ref(task)));
            if !is_self && !is_known {
                let edge = memory::shared_zeroed(align_of::<Edge>(), size_of::<Edge>()).cast::<Edge>();
                // SAFETY: zeros are valid, and no other thread knows it yet.
                let new = unsafe { &*edge };
                new.follower.store(ptr::from_ref(task).cast_mut(), Relaxed);
                new.next.store(earlier.followers.load(Relaxed), Relaxed);
                earlier.followers.store(edge, Relaxed);
                task.waits_for.fetch_add(1, AcqRel);
            }
        });
    }
    for (address, used) in uses {
        let entry = memory::shared_zeroed(align_of::<Entry>(), size_of::<Entry>()).cast::<Entry>();
        // SAFETY: zeros are valid, and no other thread knows it yet.
        let new = unsafe { &*entry };
        new.address.store(*address as u64, Relaxed);
        new.kind.store(used.number(), Relaxed);
        new.task.store(ptr::from_ref(task).cast_mut(), Relaxed);
        new.next_of_task.store(task.entries.load(Relaxed), Relaxed);
        task.entries.store(entry, Relaxed);
        let bucket = bucket(&family.table, *address);
        new.next_in_bucket.store(bucket.load(Relaxed), Relaxed);
        bucket.store(entry, Relaxed);
        family.table.of_all.fetch_add(u32::from(*address == 0), AcqRel);
    }
}

/// Returns true if a use must wait for a child of the family. Called under the lock.
pub(super) fn must_wait(family: &Family, uses: &[(usize, Use)]) -> bool {
    let mut must = false;
    uses.iter().for_each(|used| conflicts(&family.table, *used, |_| must = true));
    must
}

/// A task is done: takes its entries out, and puts those into the queue that waited for it last. Under the
/// lock.
pub(super) fn resolve(task: &'static Task, queue: &Queue, held: Held) {
    // SAFETY: a family stays while it has children.
    let family = unsafe { &*task.family.load(Relaxed) };
    let mut entry = task.entries.load(Relaxed);
    // SAFETY: entries are the task's own.
    while let Some(own) = unsafe { entry.as_ref() } {
        let address = own.address.load(Relaxed) as usize;
        take_out(bucket(&family.table, address), entry);
        family.table.of_all.fetch_sub(u32::from(address == 0), AcqRel);
        let next = own.next_of_task.load(Relaxed);
        // SAFETY: no thread can find it any more.
        unsafe { memory::free_shared(entry.cast()) };
        entry = next;
    }
    let mut edge = task.followers.load(Relaxed);
    // SAFETY: edges are the task's own.
    while let Some(own) = unsafe { edge.as_ref() } {
        // SAFETY: a task that waits for another one is there.
        let follower: &'static Task = unsafe { &*own.follower.load(Relaxed) };
        if follower.waits_for.fetch_sub(1, AcqRel) == 1 {
            queue.put(follower);
            queue.tell(held);
        }
        let next = own.next.load(Relaxed);
        // SAFETY: no thread can find it any more.
        unsafe { memory::free_shared(edge.cast()) };
        edge = next;
    }
}

fn take_out(bucket: &AtomicPtr<Entry>, entry: *mut Entry) {
    let mut link = bucket;
    // SAFETY: entries in a bucket stay until they are taken out, under the lock.
    while let Some(found) = unsafe { link.load(Relaxed).as_ref() } {
        if ptr::eq(found, entry) {
            link.store(found.next_in_bucket.load(Relaxed), Relaxed);
            return;
        }
        link = &found.next_in_bucket;
    }
}
