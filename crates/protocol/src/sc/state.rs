//! The rows of the state table of [`sc`](super), and the function that finds the row of a page.

use hiroba_base::{Access, NodeId};

use super::Page;

/// The state of a page on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Another node owns the page, and there is no copy here.
    Absent,
    /// Another node owns the page, and has sent a copy.
    Copy,
    /// This node owns the page, no other node has a copy, and no thread here has touched it.
    OwnerFresh,
    /// This node owns the only copy, which is lent with the next departure once it is stored to.
    OwnerFollowed,
    /// This node owns the page, and others have copies.
    OwnerShared,
    /// This node owns the page, and waits until its copies are given up.
    OwnerInvalidating,
    /// This node owns the only copy.
    OwnerWriting,
    /// This node owns the page, which goes to another node after a release.
    OwnerGiving,
}

impl State {
    /// Returns its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Copy => "copy",
            State::OwnerFresh => "owner, fresh",
            State::OwnerFollowed => "owner, followed",
            State::OwnerShared => "owner, shared",
            State::OwnerInvalidating => "owner, invalidating",
            State::OwnerWriting => "owner, writing",
            State::OwnerGiving => "owner, giving",
        }
    }

    /// Returns the row of the page, or `None` if it fits no row.
    pub(super) fn of(page: &Page, me: NodeId, is_going: bool) -> Option<State> {
        let has_copies = page.has_copies();
        let state = match (page.owner, page.access) {
            (false, Access::None) => State::Absent,
            (false, Access::Read) => State::Copy,
            (false, Access::Write) => return None,
            (true, Access::None | Access::Read) if is_going => State::OwnerGiving,
            (_, _) if is_going => return None,
            (true, Access::None | Access::Read) if page.invalidating > 0 => State::OwnerInvalidating,
            (true, Access::None | Access::Read) if has_copies => State::OwnerShared,
            (true, Access::None) => State::OwnerFresh,
            (true, Access::Read) if page.followers.are_there() => State::OwnerFollowed,
            (true, Access::Read) => return None,
            (true, Access::Write) => State::OwnerWriting,
        };
        let may_have_copies = state == State::OwnerShared;
        let may_invalidate = state == State::OwnerInvalidating;
        let owes_copy = page.give_up_for.is_some();
        // While lent copies are given up for another node, ordinary ones stay.
        let fits = (has_copies == may_have_copies || is_going || may_invalidate)
            && !page.copyset.contains(&me)
            && (page.invalidating > 0) == may_invalidate
            && !(page.owner && (owes_copy || page.asked > Access::None));
        fits.then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_writes_has_given_no_copies() {
        let me = NodeId(0);
        let mut page = Page::new(me, me);
        assert_eq!(State::of(&page, me, false), Some(State::OwnerFresh));
        page.access = Access::Write;
        assert_eq!(State::of(&page, me, false), Some(State::OwnerWriting));
        page.copyset.insert(NodeId(1));
        assert_eq!(State::of(&page, me, false), None);
        page.access = Access::Read;
        assert_eq!(State::of(&page, me, false), Some(State::OwnerShared));
        page.owner = false;
        assert_eq!(State::of(&page, me, false), None, "only an owner has a copyset");
    }

    #[test]
    fn a_page_that_goes_is_owned_and_not_written() {
        let me = NodeId(0);
        let mut page = Page::new(me, me);
        page.access = Access::Read;
        assert_eq!(State::of(&page, me, true), Some(State::OwnerGiving));
        page.access = Access::Write;
        assert_eq!(State::of(&page, me, true), None);
    }
}
