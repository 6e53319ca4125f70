//! The program of the machine: a matrix multiplication, as a sequence of word accesses.

/// The length of a word in bytes, which is the most that one access moves.
pub const WORD_BYTES: u64 = 4;

/// One step of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Loads the word at this address of its data.
    Load(u64),
    /// Stores the word at this address.
    Store(u64),
    /// Multiplies and adds.
    Compute,
}

/// C = A · B, square, tile by tile. Rows of C and A are divided among processors in blocks. With a tile as
/// large as the matrix it is the three plain loops over rows, columns and terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplication {
    /// The number of rows and columns.
    pub order: u64,
    /// The number of rows and columns of a tile.
    pub tile: u64,
    /// The length of an element: a multiple of the word.
    pub element_bytes: u64,
}

/// A processor's matrices, in the order of its data.
#[derive(Clone, Copy)]
enum Matrix {
    OwnRowsOfA,
    OwnRowsOfC,
    B,
}

impl Multiplication {
    /// Returns the number of rows of the processor that has most.
    pub fn rows(self, processors: u64) -> u64 {
        self.order.div_ceil(processors)
    }

    /// Returns the bytes of that processor's data: its rows of A and C, and B.
    pub fn data_bytes(self, processors: u64) -> u64 {
        (2 * self.rows(processors) + self.order) * self.order * self.element_bytes
    }

    /// Passes that processor's steps to `act`, in order.
    pub fn run(self, processors: u64, act: &mut dyn FnMut(Step)) {
        let (rows, order, tile) = (self.rows(processors), self.order, self.tile as usize);
        let end = |begin: u64, limit: u64| (begin + self.tile).min(limit);
        for i0 in (0..rows).step_by(tile) {
            for j0 in (0..order).step_by(tile) {
                for k0 in (0..order).step_by(tile) {
                    for i in i0..end(i0, rows) {
                        for j in j0..end(j0, order) {
                            self.add_terms(rows, (i, j), k0..end(k0, order), act);
                        }
                    }
                }
            }
        }
    }

    /// Adds some terms to an element of C, which starts at zero.
    fn add_terms(
        self,
        rows: u64,
        (i, j): (u64, u64),
        terms: core::ops::Range<u64>,
        act: &mut dyn FnMut(Step),
    ) {
        let place = |matrix, row, column| {
            let rows_before = match matrix {
                Matrix::OwnRowsOfA => 0,
                Matrix::OwnRowsOfC => rows,
                Matrix::B => 2 * rows,
            };
            ((rows_before + row) * self.order + column) * self.element_bytes
        };
        let words = |first: u64| (first..first + self.element_bytes).step_by(WORD_BYTES as usize);
        let sum = place(Matrix::OwnRowsOfC, i, j);
        if terms.start > 0 {
            words(sum).for_each(|word| act(Step::Load(word)));
        }
        for k in terms {
            words(place(Matrix::OwnRowsOfA, i, k)).for_each(|word| act(Step::Load(word)));
            words(place(Matrix::B, k, j)).for_each(|word| act(Step::Load(word)));
            act(Step::Compute);
        }
        words(sum).for_each(|word| act(Step::Store(word)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_computed_once_whatever_the_tile() {
        for (tile, loads_of_sums) in [(1, 5 * 6 * 5), (2, 5 * 6 * 2), (6, 0), (7, 0)] {
            let program = Multiplication { order: 6, tile, element_bytes: 8 };
            let (mut loads, mut stores, mut terms, mut highest) = (0, 0, 0, 0);
            program.run(4, &mut |step| match step {
                Step::Load(word) => (loads, highest) = (loads + 1, highest.max(word)),
                Step::Store(_) => stores += 1,
                Step::Compute => terms += 1,
            });
            let rows = 2;
            assert_eq!(terms, rows * 6 * 6);
            let tiles = 6_u64.div_ceil(tile);
            assert_eq!(stores, 2 * rows * 6 * tiles, "tile {tile}");
            assert_eq!(loads, 2 * (2 * terms + loads_of_sums / 5 * rows), "tile {tile}");
            assert_eq!(highest + WORD_BYTES, program.data_bytes(4));
        }
    }
}
