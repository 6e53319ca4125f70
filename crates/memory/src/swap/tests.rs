use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::io::Errno;

use super::file::{Store, nameless_file};
use super::*;

pub(super) const UNIT: usize = 4096;

/// A seal that encrypts poorly but detects every change: enough to test the file.
pub(crate) struct Toy;

impl Toy {
    fn mask(count: u64, place: &[u8]) -> u8 {
        place.iter().fold(count as u8 | 1, |mask, byte| mask.wrapping_mul(31) ^ byte)
    }

    fn tag(count: u64, place: &[u8], bytes: &[u8]) -> [u8; SWAP_TAG_BYTES] {
        let mut sum = u128::from(count) ^ (1 << 127);
        for byte in place.iter().chain(bytes) {
            sum = sum.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b) ^ u128::from(*byte);
        }
        sum.to_be_bytes()
    }
}

impl SwapSeal for Toy {
    fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES] {
        bytes.iter_mut().for_each(|byte| *byte ^= Toy::mask(count, place));
        Toy::tag(count, place, bytes)
    }

    fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool {
        let is_whole = Toy::tag(count, place, bytes) == *tag;
        bytes.iter_mut().for_each(|byte| *byte ^= Toy::mask(count, place));
        is_whole
    }
}

/// A disk with faults.
#[derive(Clone, Default)]
pub(crate) struct Disk(pub(crate) Arc<Mutex<DiskState>>, Arc<Condvar>);

#[derive(Default)]
pub(crate) struct DiskState {
    pub(crate) bytes: Vec<u8>,
    /// Maximum number of bytes that a call moves.
    pub(crate) short: Option<usize>,
    /// The length beyond which writes fail, and the error.
    pub(crate) refuses: Option<(u64, Option<Errno>)>,
    pub(crate) refuses_reads: Option<Errno>,
    pub(crate) calls: usize,
    /// Calls at this offset wait, and how many do.
    held: Option<u64>,
    waiting: usize,
}

impl Disk {
    /// Has calls for a slot wait until [`let_go`](Self::let_go).
    pub(crate) fn hold(&self, slot: u64) {
        self.0.lock().unwrap().held = Some(slot * UNIT as u64);
    }

    /// Waits until a call is held.
    pub(crate) fn await_held(&self) {
        let state = self.0.lock().unwrap();
        drop(self.1.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    /// Lets go what is held, after a moment in which a thread that does not wait would be ahead.
    pub(crate) fn let_go(&self) {
        std::thread::sleep(Duration::from_millis(50));
        self.0.lock().unwrap().held = None;
        self.1.notify_all();
    }

    fn pass(&self, offset: u64) -> std::sync::MutexGuard<'_, DiskState> {
        let mut state = self.0.lock().unwrap();
        state.waiting += usize::from(state.held == Some(offset));
        self.1.notify_all();
        let is_held = state.held == Some(offset);
        let mut state = self.1.wait_while(state, |state| state.held == Some(offset)).unwrap();
        state.waiting -= usize::from(is_held);
        state.calls += 1;
        state
    }
}

impl Store for Disk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        let mut disk = self.pass(offset);
        if disk.short.is_some() && disk.calls.is_multiple_of(3) {
            return Err(Errno::INTR);
        }
        let mut count = bytes.len().min(disk.short.unwrap_or(usize::MAX));
        if let Some((end, errno)) = disk.refuses {
            count = count.min(end.saturating_sub(offset) as usize);
            if count == 0 {
                return errno.map_or(Ok(0), Err);
            }
        }
        let end = offset as usize + count;
        if disk.bytes.len() < end {
            disk.bytes.resize(end, 0);
        }
        disk.bytes[offset as usize..end].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let disk = self.pass(offset);
        if let Some(errno) = disk.refuses_reads {
            return Err(errno);
        }
        let here = disk.bytes.len().saturating_sub(offset as usize);
        let count = bytes.len().min(disk.short.unwrap_or(usize::MAX)).min(here);
        bytes[..count].copy_from_slice(&disk.bytes[offset as usize..][..count]);
        Ok(count)
    }
}

pub(crate) fn file_on(disk: &Disk, slots: u64) -> SwapStore {
    let file = SlotFile::over(Box::new(disk.clone()), Path::new("/swap"), slots * UNIT as u64, UNIT);
    SwapStore::over(Some(file), None, UNIT, Box::new(Toy))
}

pub(super) fn free_slots(store: &SwapStore) -> usize {
    store.book().slots.as_ref().map_or(0, Slots::free_slots)
}

/// Returns the number of granules that are out, and of those in memory that have a place.
pub(super) fn out_and_back(store: &SwapStore) -> (usize, usize) {
    let book = store.book();
    assert_eq!(book.out.is_empty(), store.is_empty());
    (book.out.len(), book.back.len())
}

pub(super) fn leave(
    store: &SwapStore,
    range: PageRange,
    read: impl FnMut(PageId, &mut [u8]),
) -> Result<u64, MemoryError> {
    store.take_in(range, read, || Ok(()))
}

pub(super) fn range(first: u64, count: u64) -> PageRange {
    PageRange { first: PageId(first), count }
}

pub(super) fn content(granule: PageId, room: &mut [u8]) {
    room.iter_mut().enumerate().for_each(|(at, byte)| *byte = (granule.0 * 7 + at as u64 % 251) as u8 | 1);
}

/// What the program has made of it.
pub(super) fn changed(granule: PageId, room: &mut [u8]) {
    content(granule, room);
    room[17] ^= 0x40;
}

pub(super) fn come_back(file: &SwapStore, asked: PageRange) -> Result<u64, MemoryError> {
    file.hand_back(asked, |run, bytes| {
        for (granule, bytes) in run.iter().zip(bytes.chunks(UNIT)) {
            let mut expected = [0; UNIT];
            content(granule, &mut expected);
            assert!(bytes == expected, "{granule} came back as something else");
        }
        Ok(())
    })
}

#[test]
fn what_leaves_comes_back_and_its_slots_are_used_again() {
    let disk = Disk::default();
    let file = file_on(&disk, 200);
    assert_eq!(leave(&file, range(10, 200), content), Ok(200 * UNIT as u64));
    assert_eq!(out_and_back(&file).0, 200);
    let plain = |granule: u64| {
        let mut bytes = [0; UNIT];
        content(PageId(granule), &mut bytes);
        bytes
    };
    let disk_bytes = || disk.0.lock().unwrap().bytes.clone();
    assert!(disk_bytes().chunks(UNIT).all(|slot| (10..210).all(|granule| slot != plain(granule))));
    assert_eq!(come_back(&file, range(0, 60)), Ok(50 * UNIT as u64));
    assert_eq!(come_back(&file, range(0, 60)), Ok(0), "it is here no more");
    assert!(!file.has_any_of(range(0, 60)) && file.has_any_of(range(0, 61)) && out_and_back(&file).0 == 150);
    // The range has more granules than are out.
    assert_eq!(file.book().granules_in(range(0, 1 << 40)).len(), 150);
    assert_eq!(leave(&file, range(1000, 50), content), Ok(50 * UNIT as u64));
    assert_eq!(disk_bytes().len(), 200 * UNIT, "slots of what has come back are used again");
    file.discard(range(1000, 10));
    assert_eq!(leave(&file, range(3000, 10), content), Ok(10 * UNIT as u64));
    assert_eq!(come_back(&file, range(0, 1 << 40)), Ok(200 * UNIT as u64));
    assert_eq!(out_and_back(&file), (0, 200));
    file.discard(range(0, 1 << 40));
    assert_eq!((out_and_back(&file).1, free_slots(&file)), (0, 200));
}

#[test]
fn zeros_need_no_slot_and_neighbours_one_call() {
    let disk = Disk::default();
    let file = file_on(&disk, 64);
    let half = |granule: PageId, room: &mut [u8]| match granule.0 % 2 {
        0 => room.fill(0),
        _ => content(granule, room),
    };
    assert_eq!(leave(&file, range(0, 40), half), Ok(20 * UNIT as u64));
    assert_eq!((out_and_back(&file).0, disk.0.lock().unwrap().calls), (20, 1));
    assert_eq!(come_back(&file, range(0, 40)), Ok(20 * UNIT as u64));
}

#[test]
fn a_full_file_takes_in_nothing_of_what_it_has_no_room_for() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 30), content).unwrap();
    let full = MemoryError::SwapFull { directory: "/swap".into(), bytes: 100 * UNIT as u64 };
    assert_eq!(leave(&file, range(100, 71), content), Err(full.clone()));
    assert!(full.to_string().contains("'/swap' is full (400 KiB): pages stay in memory"), "{full}");
    assert_eq!((out_and_back(&file).0, file.book().granules_in(range(100, 71)).len()), (30, 0));
    assert_eq!(leave(&file, range(100, 70), content), Ok(70 * UNIT as u64), "all slots are there still");
    assert_eq!(come_back(&file, range(0, 200)), Ok(100 * UNIT as u64));
}

#[test]
fn a_disk_that_takes_bytes_in_pieces_or_none_loses_nothing() {
    let disk = Disk::default();
    let file = file_on(&disk, 1000);
    disk.0.lock().unwrap().short = Some(1000);
    leave(&file, range(0, 20), content).unwrap();
    for errno in [Some(Errno::NOSPC), Some(Errno::IO), None] {
        disk.0.lock().unwrap().refuses = Some((50 * UNIT as u64 + 100, errno));
        let errno = errno.unwrap_or(Errno::NOSPC);
        let refused = Err(MemoryError::SwapWrite { directory: "/swap".into(), errno });
        assert_eq!(leave(&file, range(100, 100), content), refused);
        assert_eq!((out_and_back(&file).0, file.book().granules_in(range(100, 100)).len()), (20, 0));
    }
    disk.0.lock().unwrap().refuses = None;
    leave(&file, range(100, 100), content).unwrap();
    assert_eq!(come_back(&file, range(0, 200)), Ok(120 * UNIT as u64));
    assert!(disk.0.lock().unwrap().bytes.len() <= 120 * UNIT, "slots of failures are free again");
}

/// Returns what the file's granules are: as they were, or as the program has changed them.
pub(super) fn versions(file: &SwapStore, asked: PageRange) -> Vec<(PageId, bool)> {
    let mut found = Vec::new();
    let outcome = file.hand_back(asked, |run, bytes| {
        for (granule, bytes) in run.iter().zip(bytes.chunks(UNIT)) {
            let (mut as_it_was, mut as_changed) = ([0; UNIT], [0; UNIT]);
            content(granule, &mut as_it_was);
            changed(granule, &mut as_changed);
            assert!(bytes == as_it_was || bytes == as_changed, "{granule} came back as something else");
            found.push((granule, bytes == as_changed));
        }
        Ok(())
    });
    outcome.unwrap();
    found
}

#[test]
fn what_leaves_unchanged_again_is_not_written_again() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 8), content).unwrap();
    come_back(&file, range(0, 8)).unwrap();
    let before = disk.0.lock().unwrap().bytes.clone();
    let calls = disk.0.lock().unwrap().calls;
    assert_eq!(leave(&file, range(0, 8), content), Ok(0));
    assert_eq!((out_and_back(&file).0, disk.0.lock().unwrap().calls), (8, calls));
    assert!(disk.0.lock().unwrap().bytes == before, "nothing was written");
    assert_eq!(come_back(&file, range(0, 8)), Ok(8 * UNIT as u64), "and it is all there");
    // Every other one is changed: those alone are written, to their own slots.
    let some = |granule: PageId, room: &mut [u8]| match granule.0 % 2 {
        0 => content(granule, room),
        _ => changed(granule, room),
    };
    assert_eq!(leave(&file, range(0, 8), some), Ok(4 * UNIT as u64));
    let slot = |at: usize| at * UNIT..(at + 1) * UNIT;
    for at in 0..8 {
        let is_written = disk.0.lock().unwrap().bytes[slot(at)] != before[slot(at)];
        assert_eq!(is_written, at % 2 == 1, "slot {at}");
    }
    let found = versions(&file, range(0, 8));
    assert!(
        found.len() == 8 && found.iter().all(|(granule, is_changed)| *is_changed == (granule.0 % 2 == 1))
    );
    // What has become zeros gives its slot up.
    leave(&file, range(0, 2), |_, room| room.fill(0)).unwrap();
    assert_eq!((out_and_back(&file), free_slots(&file)), ((0, 6), 2));
}

#[test]
fn no_two_contents_are_stored_under_one_count() {
    type Version = (u64, Vec<u8>);
    /// Notes what is sealed with each count.
    struct Watching(Arc<Mutex<Vec<Version>>>);
    impl SwapSeal for Watching {
        fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES] {
            let tag = Toy.seal(count, place, bytes);
            self.0.lock().unwrap().push((count, bytes.to_vec()));
            tag
        }

        fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool {
            Toy.open(count, place, bytes, tag)
        }
    }
    let (disk, sealed) = (Disk::default(), Arc::default());
    let file = SlotFile::over(Box::new(disk.clone()), Path::new("/swap"), 100 * UNIT as u64, UNIT);
    let file = SwapStore::over(Some(file), None, UNIT, Box::new(Watching(Arc::clone(&sealed))));
    for fill in 1..5 {
        leave(&file, range(0, 1), |_, room| room.fill(fill)).unwrap();
        let stored = disk.0.lock().unwrap().bytes.clone();
        let sealed = sealed.lock().unwrap();
        let (count, _) =
            sealed.iter().rfind(|(_, bytes)| *bytes == stored).expect("what is sealed is stored");
        let stored_before = sealed.iter().filter(|(other, bytes)| other == count && *bytes != stored).count();
        assert_eq!(stored_before, 0, "count {count} was used for something else first");
        drop(sealed);
        let is_same = |bytes: &[u8]| bytes.iter().all(|byte| *byte == fill);
        let outcome = file.hand_back(range(0, 1), |_, bytes| {
            assert!(is_same(bytes));
            Ok(())
        });
        outcome.unwrap();
    }
}

#[test]
fn a_slot_of_what_is_in_memory_serves_another_when_none_is_free() {
    let disk = Disk::default();
    let file = file_on(&disk, 10);
    leave(&file, range(0, 10), content).unwrap();
    come_back(&file, range(0, 6)).unwrap();
    assert_eq!(leave(&file, range(100, 4), content), Ok(4 * UNIT as u64));
    // Two of the six have kept theirs.
    assert_eq!(leave(&file, range(0, 2), content), Ok(0));
    let full = leave(&file, range(2, 1), content);
    assert!(matches!(full, Err(MemoryError::SwapFull { .. })), "{full:?}");
    assert_eq!(come_back(&file, range(0, 200)), Ok(10 * UNIT as u64));
}

#[test]
fn what_cannot_be_written_again_is_not_out_in_its_earlier_version() {
    let disk = Disk::default();
    let file = file_on(&disk, 10);
    leave(&file, range(0, 4), content).unwrap();
    come_back(&file, range(0, 4)).unwrap();
    disk.0.lock().unwrap().refuses = Some((0, Some(Errno::IO)));
    let some = |granule: PageId, room: &mut [u8]| match granule.0 {
        1 => changed(granule, room),
        _ => content(granule, room),
    };
    assert!(matches!(leave(&file, range(0, 4), some), Err(MemoryError::SwapWrite { .. })));
    assert_eq!(out_and_back(&file), (0, 3));
    disk.0.lock().unwrap().refuses = None;
    assert_eq!(leave(&file, range(0, 4), some), Ok(UNIT as u64));
    let found = versions(&file, range(0, 4));
    assert_eq!(
        found.iter().map(|(_, is_changed)| *is_changed).collect::<Vec<_>>(),
        [false, true, false, false]
    );
}

#[test]
fn what_is_not_what_was_written_is_noticed() {
    let corrupted = |page| Err(MemoryError::SwapCorrupted { directory: "/swap".into(), page: PageId(page) });
    let with = |spoil: &dyn Fn(&mut Vec<u8>)| {
        let disk = Disk::default();
        let file = file_on(&disk, 100);
        // Slot 0 contains granule 5 of an earlier version, then a later one.
        leave(&file, range(5, 3), content).unwrap();
        let earlier = disk.0.lock().unwrap().bytes[..UNIT].to_vec();
        come_back(&file, range(5, 1)).unwrap();
        leave(&file, range(5, 1), changed).unwrap();
        let mut state = disk.0.lock().unwrap();
        state.bytes.splice(3 * UNIT.., earlier);
        spoil(&mut state.bytes);
        drop(state);
        (file.hand_back(range(0, 100), |_, _| Ok(())), out_and_back(&file).0)
    };
    assert_eq!(with(&|_| {}).0, Ok(3 * UNIT as u64));
    assert_eq!(with(&|bytes| bytes[100] ^= 1), (corrupted(5), 3));
    assert_eq!(with(&|bytes| bytes[2 * UNIT + 9] ^= 128).0, corrupted(7));
    // Two exchanged pages, and one of an earlier version.
    assert_eq!(with(&|bytes| bytes[..2 * UNIT].rotate_left(UNIT)).0, corrupted(5));
    assert_eq!(with(&|bytes| bytes.copy_within(3 * UNIT.., 0)).0, corrupted(5));
    let lost = |errno| Err(MemoryError::SwapRead { directory: "/swap".into(), page: PageId(5), errno });
    assert_eq!(with(&|bytes| bytes.truncate(UNIT)).0, lost(Errno::IO));
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(5, 1), content).unwrap();
    disk.0.lock().unwrap().refuses_reads = Some(Errno::NXIO);
    assert_eq!(come_back(&file, range(5, 1)), lost(Errno::NXIO));
}

#[test]
fn a_frame_that_cannot_be_had_keeps_what_is_out() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 10), content).unwrap();
    let out_of_frames = MemoryError::OutOfFrames { range: range(0, 10), errno: Errno::NOMEM };
    assert_eq!(file.hand_back(range(0, 10), |_, _| Err(out_of_frames.clone())), Err(out_of_frames.clone()));
    assert_eq!(come_back(&file, range(0, 10)), Ok(10 * UNIT as u64));
}

#[test]
fn a_real_file_has_no_name_and_only_its_owner_may_read_it() {
    let directory = std::env::temp_dir().join(format!("hiroba-swap-test-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let names = || std::fs::read_dir(&directory).unwrap().count();
    let file =
        SwapStore::open(Some((&directory, Some(100 * UNIT as u64))), None, UNIT, Box::new(Toy)).unwrap();
    leave(&file, range(0, 100), content).unwrap();
    assert_eq!(names(), 0);
    let full = leave(&file, range(200, 1), content);
    assert!(matches!(full, Err(MemoryError::SwapFull { .. })), "{full:?}");
    assert_eq!(come_back(&file, range(0, 100)), Ok(100 * UNIT as u64));
    let stat = rustix::fs::fstat(nameless_file(&directory).unwrap()).unwrap();
    assert_eq!((stat.st_mode & 0o777, stat.st_nlink), (0o600, 0));
    assert_eq!((check_swap_directory(&directory), names()), (Ok(()), 0));
    std::fs::remove_dir(&directory).unwrap();
    let refused = check_swap_directory(&directory).unwrap_err();
    assert_eq!(refused, MemoryError::SwapDirectory { directory, errno: Errno::NOENT });
    let no_directory = check_swap_directory(Path::new("/dev/null")).unwrap_err();
    assert!(
        matches!(no_directory, MemoryError::SwapDirectory { errno: Errno::NOTDIR, .. }),
        "{no_directory:?}"
    );
}
