//! The rows of the state table of [`lrc`](super), and the function that finds the row of a page.

use hiroba_base::Access;

use super::{Page, Twin};

/// The state of a page on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no copy.
    Absent,
    /// The copy has all that notices name, and every own change is in a diff.
    Clean,
    /// The copy is being written in the open interval.
    Dirty,
    /// The copy was written in an interval that has ended, whose diff has not been needed yet.
    Closed,
    /// A notice has invalidated a clean copy.
    CleanInvalidated,
    /// A notice has invalidated a copy that was being written.
    DirtyInvalidated,
    /// A notice has invalidated a closed copy.
    ClosedInvalidated,
    /// The page is homed here, and no other node has requested it.
    HomeExclusive,
}

impl State {
    /// Returns its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Clean => "clean",
            State::Dirty => "dirty",
            State::Closed => "closed",
            State::CleanInvalidated => "clean, invalidated",
            State::DirtyInvalidated => "dirty, invalidated",
            State::ClosedInvalidated => "closed, invalidated",
            State::HomeExclusive => "home, exclusive",
        }
    }

    /// Returns the row of the page, or `None` if it fits no row.
    ///
    /// In every row, a copy that was brought up to date only for other nodes has no access yet.
    pub(super) fn of(page: &Page, is_home: bool) -> Option<State> {
        let has_copy = page.has_copy || is_home;
        let (state, access_max) = match (has_copy, page.needed.is_empty(), &page.twin) {
            (false, _, Twin::None) => (State::Absent, Access::None),
            (false, ..) => return None,
            (true, true, Twin::None) if is_home && !page.shared => (State::HomeExclusive, Access::Write),
            (true, true, Twin::None) => (State::Clean, Access::Read),
            (true, true, Twin::Open) => (State::Dirty, Access::Write),
            (true, true, Twin::Closed { .. }) => (State::Closed, Access::Read),
            (true, false, Twin::None) => (State::CleanInvalidated, Access::None),
            (true, false, Twin::Open) => (State::DirtyInvalidated, Access::None),
            (true, false, Twin::Closed { .. }) => (State::ClosedInvalidated, Access::None),
        };
        let names_no_more_than_lacks =
            page.needed.entries().iter().all(|(writer, seq)| page.version.get(*writer) < *seq);
        (page.access <= access_max && names_no_more_than_lacks).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_lacks_intervals_is_not_touched() {
        let mut page = Page { has_copy: true, access: Access::Read, ..Page::default() };
        assert_eq!(State::of(&page, false), Some(State::Clean));
        page.needed.advance(hiroba_base::NodeId(1), 2);
        assert_eq!(State::of(&page, false), None);
        page.access = Access::None;
        assert_eq!(State::of(&page, false), Some(State::CleanInvalidated));
        page.twin = Twin::Open;
        assert_eq!(State::of(&page, false), Some(State::DirtyInvalidated));
        page.has_copy = false;
        assert_eq!(State::of(&page, false), None, "a twin is of a copy");
    }
}
