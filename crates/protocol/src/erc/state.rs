//! The rows of the state table of [`erc`](super), and the function that finds the row of a page.

use hiroba_base::Access;

use super::{Mode, Page};

/// The state of a page on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no valid copy.
    Absent,
    /// There is a valid copy, and no thread here changes it.
    Clean,
    /// There is a valid copy, which takes its next update only if a thread touches it before.
    Resting,
    /// The copy is being written.
    Dirty,
    /// The copy was being written when it was invalidated.
    DirtyInvalidated,
    /// The page is homed here, and no other node has a copy.
    HomeExclusive,
    /// The page is homed here, and others have copies.
    HomeShared,
    /// The page is homed here, others have copies, and the program is writing it.
    HomeWritten,
}

impl State {
    /// Returns its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Clean => "clean copy",
            State::Resting => "resting copy",
            State::Dirty => "dirty copy",
            State::DirtyInvalidated => "dirty, invalidated",
            State::HomeExclusive => "home, exclusive",
            State::HomeShared => "home, shared, clean",
            State::HomeWritten => "home, written",
        }
    }

    /// Returns the row of the page, or `None` if it fits no row.
    pub(super) fn of(page: &Page, mode: Mode) -> Option<State> {
        match &page.directory {
            Some(directory) => {
                // A page that was dirty when it got its home here keeps its twin until the release.
                let may_have_twin = mode == Mode::Update || page.access == Access::Write;
                let state = match (directory.is_exclusive(), page.access) {
                    // A twin that was made while others had copies stays until the release.
                    (true, _) => State::HomeExclusive,
                    (false, Access::Write) => State::HomeWritten,
                    (false, Access::None | Access::Read) => State::HomeShared,
                };
                (page.valid && (may_have_twin || !page.twin)).then_some(state)
            }
            None => match (page.valid, page.access, page.twin) {
                (false, Access::None, false) => Some(State::Absent),
                (true, Access::Read, false) => Some(State::Clean),
                (true, Access::None, false) => Some(State::Resting),
                (true, Access::Write, true) => Some(State::Dirty),
                (false, Access::None, true) => Some(State::DirtyInvalidated),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;

    use super::*;

    #[test]
    fn a_copy_that_is_written_has_a_twin() {
        let mut page = Page { valid: true, access: Access::Write, ..Page::new(NodeId(1), NodeId(0)) };
        assert_eq!(State::of(&page, Mode::Update), None);
        page.twin = true;
        assert_eq!(State::of(&page, Mode::Update), Some(State::Dirty));
        page.valid = false;
        assert_eq!(State::of(&page, Mode::Update), None, "an invalidation takes the access away");
    }
}
