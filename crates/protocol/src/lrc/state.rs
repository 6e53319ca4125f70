//! The rows of the state table of [`lrc`](super), and which of them a page is in.

use hiroba_base::Access;

use super::{Page, Twin};

/// What a page is on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no copy.
    Absent,
    /// The copy has all that notices name, and nothing of this node's own that no diff has.
    Clean,
    /// The copy is being written in the open interval.
    Dirty,
    /// The copy was written in an interval that has ended, whose diff nobody has needed yet.
    Closed,
    /// A notice has voided a clean copy.
    CleanInvalidated,
    /// A notice has voided a copy that was being written.
    DirtyInvalidated,
    /// A notice has voided a closed copy.
    ClosedInvalidated,
    /// The page is homed here, and no other node has asked for it.
    HomeExclusive,
}

impl State {
    /// As the table calls it.
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

    /// The row that the page is in; none if it fits no row.
    ///
    /// A copy that was brought up to date for others only has no access yet, in whatever row.
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
            page.needed.entries().iter().all(|(writer, seq)| page.held.get(*writer) < *seq);
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
