//! Tests of granules that other nodes keep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::tests::{
    Disk, Toy, UNIT, changed, come_back, content, free_slots, leave, out_and_back, range, versions,
};
use super::*;

/// Other nodes with room for some granules, which can be taken back.
#[derive(Default)]
struct Neighbours(Mutex<NeighboursState>);

#[derive(Default)]
struct NeighboursState {
    room: usize,
    lent: BTreeMap<PageId, (u64, Vec<u8>)>,
    back: BTreeSet<PageId>,
    returned: BTreeMap<PageId, (u64, Vec<u8>)>,
    is_dead: bool,
    stores: usize,
    requested: Vec<PageId>,
}

impl Lenders for Neighbours {
    fn may_lend(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.lent.len() < state.room || !state.back.is_empty()
    }

    fn lend(&self, granules: &[SealedGranule<'_>]) -> usize {
        let mut state = self.0.lock().unwrap();
        let mut lent = 0;
        for SealedGranule { granule, stamp, bytes } in granules {
            if state.lent.len() == state.room && !state.lent.contains_key(granule) {
                let Some(gives_way) = state.back.pop_last() else { break };
                state.lent.remove(&gives_way);
            }
            state.back.remove(granule);
            state.lent.insert(*granule, (*stamp, bytes.to_vec()));
            lent += 1;
        }
        state.stores += lent;
        lent
    }

    fn keep(&self, granule: PageId, stamp: u64) -> bool {
        let mut state = self.0.lock().unwrap();
        state.back.remove(&granule) && state.lent[&granule].0 == stamp
    }

    fn request(&self, granules: &[(PageId, u64)]) {
        self.0.lock().unwrap().requested.extend(granules.iter().map(|(granule, _)| *granule));
    }

    fn fetch(&self, granules: &[(PageId, u64)], bytes: &mut [u8]) -> Result<(), LenderLost> {
        let state = self.0.lock().unwrap();
        for ((granule, stamp), room) in granules.iter().zip(bytes.chunks_mut(UNIT)) {
            let found = state.returned.get(granule).or_else(|| state.lent.get(granule));
            let lost = LenderLost { granule: *granule, lender: hiroba_base::NodeId(3) };
            let (stored, bytes) = found.filter(|_| !state.is_dead).ok_or(lost)?;
            assert_eq!(stored, stamp);
            room[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn note_back(&self, granules: &[PageId]) {
        let mut state = self.0.lock().unwrap();
        for granule in granules {
            if state.returned.remove(granule).is_none() {
                state.back.insert(*granule);
            }
        }
    }

    fn discard(&self, granules: &[PageId]) {
        let mut state = self.0.lock().unwrap();
        for granule in granules {
            state.lent.remove(granule);
            state.back.remove(granule);
            state.returned.remove(granule);
        }
    }

    fn homeless(&self) -> Option<(PageId, u64, Vec<u8>)> {
        let state = self.0.lock().unwrap();
        state.returned.first_key_value().map(|(granule, (stamp, bytes))| (*granule, *stamp, bytes.clone()))
    }
}

fn store_with(disk: Option<(&Disk, u64)>, room: usize) -> (SwapStore, Arc<Neighbours>) {
    let neighbours = Arc::new(Neighbours::default());
    neighbours.0.lock().unwrap().room = room;
    let file = disk.map(|(disk, slots)| {
        SlotFile::over(Box::new(disk.clone()), Path::new("/swap"), slots * UNIT as u64, UNIT)
    });
    (SwapStore::over(file, Some(neighbours.clone()), UNIT, Box::new(Toy)), neighbours)
}

#[test]
fn neighbours_come_before_the_disk_and_the_disk_before_nothing() {
    let disk = Disk::default();
    let (store, neighbours) = store_with(Some((&disk, 10)), 20);
    assert_eq!(leave(&store, range(0, 25), content), Ok(5 * UNIT as u64));
    assert_eq!((out_and_back(&store).0, neighbours.0.lock().unwrap().lent.len()), (25, 20));
    let full = leave(&store, range(100, 6), content);
    assert!(matches!(full, Err(MemoryError::SwapFull { .. })), "{full:?}");
    assert_eq!(leave(&store, range(100, 5), content), Ok(5 * UNIT as u64));
    assert_eq!(come_back(&store, range(0, 200)), Ok(10 * UNIT as u64), "the others come from neighbours");
    // All of them stay where they are until they are changed.
    let stores = neighbours.0.lock().unwrap().stores;
    assert_eq!(leave(&store, range(0, 25), content), Ok(0));
    assert_eq!(neighbours.0.lock().unwrap().stores, stores);
    assert_eq!(come_back(&store, range(0, 25)), Ok(5 * UNIT as u64));
    leave(&store, range(0, 2), changed).unwrap();
    assert!(versions(&store, range(0, 2)).iter().all(|(_, is_changed)| *is_changed));
    store.discard(range(0, 1 << 40));
    assert_eq!((neighbours.0.lock().unwrap().lent.len(), free_slots(&store)), (0, 10));
}

#[test]
fn without_a_disk_neighbours_are_all_there_is() {
    let (store, neighbours) = store_with(None, 3);
    assert_eq!(leave(&store, range(0, 4), content), Err(MemoryError::NoLender));
    assert_eq!(
        (out_and_back(&store).0, neighbours.0.lock().unwrap().lent.len()),
        (0, 0),
        "none was taken in"
    );
    assert_eq!(leave(&store, range(0, 3), content), Ok(0));
    come_back(&store, range(0, 2)).unwrap();
    // What is in memory gives way there.
    assert_eq!(leave(&store, range(10, 2), content), Ok(0));
    let unread = |_, _: &mut [u8]| panic!("there is no room for it");
    assert_eq!(leave(&store, range(0, 1), unread), Err(MemoryError::NoLender));
    come_back(&store, range(0, 20)).unwrap();
}

#[test]
fn what_neighbours_return_goes_to_the_disk() {
    let disk = Disk::default();
    let (store, neighbours) = store_with(Some((&disk, 2)), 4);
    leave(&store, range(0, 4), content).unwrap();
    {
        let mut state = neighbours.0.lock().unwrap();
        state.room = 1;
        for granule in 1..4 {
            let bytes = state.lent.remove(&PageId(granule)).unwrap();
            state.returned.insert(PageId(granule), bytes);
        }
    }
    // Two of the three have room on the disk.
    assert!(leave(&store, range(50, 1), content).is_err());
    assert_eq!((neighbours.0.lock().unwrap().returned.len(), out_and_back(&store).0), (1, 4));
    assert_eq!(come_back(&store, range(0, 4)), Ok(2 * UNIT as u64));
}

#[test]
fn what_a_dead_or_faulty_neighbour_had_is_lost_by_name() {
    let (store, neighbours) = store_with(None, 4);
    leave(&store, range(5, 2), content).unwrap();
    neighbours.0.lock().unwrap().is_dead = true;
    let lost = come_back(&store, range(5, 1)).unwrap_err();
    assert_eq!(lost, MemoryError::LenderLost { page: PageId(5), lender: hiroba_base::NodeId(3) });
    assert!(lost.to_string().contains("from the memory that node 3 lends"), "{lost}");
    let mut state = neighbours.0.lock().unwrap();
    state.is_dead = false;
    state.lent.get_mut(&PageId(5)).unwrap().1[7] ^= 1;
    drop(state);
    assert_eq!(come_back(&store, range(5, 1)), Err(MemoryError::LentCorrupted { page: PageId(5) }));
}

/// Contents that compress to less than half of their length: numbers that count upwards.
fn numbers(granule: PageId, room: &mut [u8]) {
    for (at, word) in room.chunks_mut(32).enumerate() {
        word.fill(granule.0 as u8 + 1);
        word[..4].copy_from_slice(&(at as u32).to_be_bytes());
    }
}

fn are_numbers(store: &SwapStore, range: PageRange) -> bool {
    let mut are = true;
    let outcome = store.hand_back(range, |run, bytes| {
        for (granule, found) in run.iter().zip(bytes.chunks(UNIT)) {
            let mut expected = vec![0; UNIT];
            numbers(granule, &mut expected);
            are &= found == expected;
        }
        Ok(())
    });
    outcome.is_ok() && are
}

#[test]
fn what_compresses_is_lent_compressed_and_comes_back_whole() {
    let (store, neighbours) = store_with(None, 20);
    leave(&store, range(0, 10), numbers).unwrap();
    let lengths = || -> Vec<usize> {
        neighbours.0.lock().unwrap().lent.values().map(|(_, bytes)| bytes.len()).collect()
    };
    assert!(lengths().iter().all(|bytes| *bytes < UNIT / 2), "{:?}", lengths());
    assert!(are_numbers(&store, range(0, 10)));
    // Unchanged, they are not sent again.
    let stores = neighbours.0.lock().unwrap().stores;
    leave(&store, range(0, 10), numbers).unwrap();
    assert_eq!(neighbours.0.lock().unwrap().stores, stores);
    assert!(are_numbers(&store, range(0, 10)));
    // Changed to others of the same length.
    let others = |granule: PageId, room: &mut [u8]| numbers(PageId(granule.0 + 1), room);
    leave(&store, range(0, 10), others).unwrap();
    assert_eq!(neighbours.0.lock().unwrap().stores, stores + 10);
    assert!(!are_numbers(&store, range(0, 10)));
    // Changed so that they do not compress, and back.
    let noise = |granule: PageId, room: &mut [u8]| {
        let mut state = granule.0 as u32;
        for byte in room {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
    };
    leave(&store, range(0, 10), noise).unwrap();
    assert_eq!(lengths(), [UNIT; 10]);
    store.hand_back(range(0, 10), |_, _| Ok(())).unwrap();
    leave(&store, range(0, 10), numbers).unwrap();
    assert!(lengths().iter().all(|bytes| *bytes < UNIT / 2) && are_numbers(&store, range(0, 10)));
}

#[test]
fn what_comes_next_is_requested_before_it_is_fetched() {
    let (store, neighbours) = store_with(None, 300);
    let batch = (BATCH_BYTES / UNIT) as u64;
    leave(&store, range(0, 2 * batch + 5), content).unwrap();
    let requested = || std::mem::take(&mut neighbours.0.lock().unwrap().requested);
    store.request(range(3, 10));
    assert!(requested().into_iter().eq(range(3, 10).iter()));
    let mut parts = Vec::new();
    let outcome = store.hand_back(range(0, 2 * batch + 5), |run, _| {
        parts.push((run, requested()));
        Ok(())
    });
    assert_eq!(outcome, Ok(0));
    let next = [range(batch, batch), range(2 * batch, 5)];
    assert_eq!(parts.len(), 3);
    for ((_, requested), next) in parts.iter().zip(next) {
        assert!(requested.iter().copied().eq(next.iter()), "{requested:?}");
    }
    assert!(parts[2].1.is_empty());
}

#[test]
fn what_is_compressed_and_finds_no_lender_leaves_nothing_of_itself_on_the_disk() {
    let disk = Disk::default();
    let (store, neighbours) = store_with(Some((&disk, 10)), 4);
    assert_eq!(leave(&store, range(0, 6), numbers), Ok(2 * UNIT as u64));
    {
        let mut state = neighbours.0.lock().unwrap();
        let returned = state.lent.remove(&PageId(0)).unwrap();
        state.returned.insert(PageId(0), returned);
        state.room = 3;
    }
    leave(&store, range(20, 1), numbers).unwrap();
    let bytes = disk.0.lock().unwrap().bytes.clone();
    assert_eq!(bytes.len(), 4 * UNIT);
    // The last one could not be lent, and so was not compressed.
    for slot in bytes[..3 * UNIT].chunks(UNIT) {
        assert!(slot[UNIT / 2..].iter().all(|byte| *byte == 0), "sealed bytes, and then zeros");
    }
    assert!(are_numbers(&store, range(0, 21)));
}

#[test]
fn damage_to_what_is_compressed_is_found_by_the_seal() {
    /// Opens everything.
    struct Blind;
    impl SwapSeal for Blind {
        fn seal(&self, count: u64, place: &[u8], bytes: &mut [u8]) -> [u8; SWAP_TAG_BYTES] {
            Toy.seal(count, place, bytes)
        }
        fn open(&self, count: u64, place: &[u8], bytes: &mut [u8], tag: &[u8; SWAP_TAG_BYTES]) -> bool {
            Toy.open(count, place, bytes, tag);
            true
        }
    }
    let damaged = |store: &SwapStore, neighbours: &Neighbours, at: usize| {
        leave(store, range(5, 1), numbers).unwrap();
        let mut state = neighbours.0.lock().unwrap();
        let bytes = &mut state.lent.get_mut(&PageId(5)).unwrap().1;
        let length = bytes.len();
        bytes[at % length] ^= 0x55;
        drop(state);
        let outcome = store.hand_back(range(5, 1), |_, _| Ok(()));
        store.discard(range(5, 1));
        outcome
    };
    let (store, neighbours) = store_with(None, 4);
    for at in 0..100 {
        let outcome = damaged(&store, &neighbours, at * 7);
        assert_eq!(outcome, Err(MemoryError::LentCorrupted { page: PageId(5) }), "byte {at}");
    }
    // Without the seal some damage would be taken for a page, and none would do worse than be refused.
    let store = SwapStore::over(None, Some(neighbours.clone()), UNIT, Box::new(Blind));
    let taken = (0..100).filter(|at| damaged(&store, &neighbours, at * 7).is_ok()).count();
    assert!((1..100).contains(&taken), "{taken} of 100");
}
