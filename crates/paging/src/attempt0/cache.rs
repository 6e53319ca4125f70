//! The snoop cache of a processor in front of shared memory.

/// A set-associative cache with write-through and LRU replacement within a set. A store does not allocate a
/// line.
#[derive(Clone, Debug)]
pub struct Cache {
    line_bytes: u64,
    ways: usize,
    /// Line numbers, the most recently used first in each set.
    sets: Vec<Vec<u64>>,
}

impl Cache {
    /// Makes an empty cache.
    pub fn new(bytes: u64, ways: usize, line_bytes: u64) -> Cache {
        let sets = bytes / line_bytes / ways as u64;
        Cache { line_bytes, ways, sets: vec![Vec::with_capacity(ways); sets as usize] }
    }

    /// Loads the word at `address`. Returns true on a hit.
    pub fn load(&mut self, address: u64) -> bool {
        let line = address / self.line_bytes;
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(line % count) as usize];
        if let Some(at) = set.iter().position(|known| *known == line) {
            set[..=at].rotate_right(1);
            return true;
        }
        if set.len() == self.ways {
            set.pop();
        }
        set.insert(0, line);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_of_a_set_stay_and_a_third_replaces_the_older() {
        let mut cache = Cache::new(64, 2, 16);
        let loads = [0, 4, 32, 0, 64, 32, 0, 16, 20].map(|address| cache.load(address));
        // Lines 0, 2 and 4 share a set; line 1 is in the other.
        assert_eq!(loads, [false, true, false, true, false, false, false, false, true]);
    }
}
