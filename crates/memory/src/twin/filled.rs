//! The bytes with which frames were last filled, until they are released: twins made meanwhile need no copy.

use hiroba_base::PageRange;

use super::arena::{Arena, Room};

/// The arena, and rooms of it with bytes with which frames were filled.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) arena: Arena,
    received: Vec<Received>,
}

/// The bytes of some granules.
#[derive(Debug)]
struct Received {
    granules: PageRange,
    room: Room,
}

impl Filled {
    pub(super) fn new(granule_bytes: usize) -> Filled {
        Filled { arena: Arena::new(granule_bytes), received: Vec::new() }
    }

    /// Keeps the bytes with which these granules were filled.
    pub(super) fn keep(&mut self, granules: PageRange, room: Room) {
        self.received.push(Received { granules, room });
    }

    pub(super) fn forget_all(&mut self) {
        self.received.drain(..).for_each(|received| self.arena.give_back(received.room));
    }

    pub(super) fn forget_overlapping(&mut self, granules: PageRange) {
        let apart = |of: &PageRange| of.end() <= granules.first || granules.end() <= of.first;
        for received in self.received.extract_if(.., |received| !apart(&received.granules)) {
            self.arena.give_back(received.room);
        }
    }

    /// Takes the room with the granules' bytes, if they were filled.
    pub(super) fn claim(&mut self, granules: PageRange) -> Option<Room> {
        let within = |of: &PageRange| of.first <= granules.first && granules.end() <= of.end();
        let index = self.received.iter().rposition(|received| within(&received.granules))?;
        let Received { granules: all, room } = self.received.swap_remove(index);
        let (before, room) = room.split((granules.first.0 - all.first.0) as usize);
        let (room, behind) = room.split(granules.count as usize);
        let rest = [(all.first, granules.first, before), (granules.end(), all.end(), behind)];
        for (first, end, room) in rest.into_iter().filter(|(first, end, _)| first < end) {
            self.keep(PageRange { first, count: end.0 - first.0 }, room);
        }
        Some(room)
    }
}
