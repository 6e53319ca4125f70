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
}

impl Lenders for Neighbours {
    fn may_lend(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.lent.len() < state.room || !state.back.is_empty()
    }

    fn lend(&self, granules: &[(PageId, u64)], bytes: &[u8]) -> usize {
        let mut state = self.0.lock().unwrap();
        let mut lent = 0;
        for ((granule, stamp), bytes) in granules.iter().zip(bytes.chunks(UNIT)) {
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

    fn fetch(&self, granules: &[(PageId, u64)], bytes: &mut [u8]) -> Result<(), LenderLost> {
        let state = self.0.lock().unwrap();
        for ((granule, stamp), room) in granules.iter().zip(bytes.chunks_mut(UNIT)) {
            let found = state.returned.get(granule).or_else(|| state.lent.get(granule));
            let lost = LenderLost { granule: *granule, lender: hiroba_base::NodeId(3) };
            let (stored, bytes) = found.filter(|_| !state.is_dead).ok_or(lost)?;
            assert_eq!(stored, stamp);
            room.copy_from_slice(bytes);
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
