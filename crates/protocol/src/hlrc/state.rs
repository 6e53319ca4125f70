//! The rows of the state tables of [`hlrc`](super), and the function that finds the row of a page.

use hiroba_base::Access;

use super::Page;

/// The state of a page on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no valid copy.
    Absent,
    /// There is a valid copy. Its first touch here faults.
    Closed,
    /// There is a valid copy that the program may read. Its first store here faults.
    Clean,
    /// There is a valid copy with a twin, which the program may write.
    Dirty,
    /// There is a valid copy with a twin, and the host notes its first store.
    Watched,
    /// A notice has invalidated a copy with a twin.
    Invalidated,
    /// The page is homed here, and no other node has a copy. The program writes it without faults and
    /// notices.
    HomeExclusive,
    /// The page is homed here, and no other node has a copy any more. Its first store here faults, or is
    /// noted.
    HomeReclaimed,
    /// The page is homed here, and others may have copies. Its first store here faults.
    HomeShared,
    /// The page is homed here, others may have copies, and the host notes its first store here.
    HomeWatched,
    /// The page is homed here, others may have copies, and the open interval writes it.
    HomeWritten,
    /// The page is homed here, others may have copies, and it counts as written in every interval.
    HomeUnguarded,
    /// The page is homed here, others may have copies, and its first touch here faults.
    HomeResting,
    /// The page is homed here, and diffs that notices name have not come yet.
    HomeLacking,
    /// The page will be homed here, when its last home has handed it over.
    Coming,
}

/// The home of a page, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Homed {
    Here,
    Elsewhere,
    /// This node is the next home.
    HereSoon,
}

/// Further facts that decide about a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) homed: Homed,
    /// True if the host notes stores to the page instead of having them fault.
    pub(super) is_async: bool,
    /// True if the open interval, or the one that is being closed, has written it.
    pub(super) is_written: bool,
    /// True if a release is under way, during which a home page may have a temporary twin.
    pub(super) is_closing: bool,
    /// True while data races are looked for: home pages have twins, and are never exclusive.
    pub(super) looks_for_races: bool,
    /// True if fetches are ordered: home pages have twins while they are written.
    pub(super) keeps_snapshots: bool,
}

impl State {
    /// Returns its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Closed => "closed copy",
            State::Clean => "clean copy",
            State::Dirty => "dirty copy",
            State::Watched => "watched copy",
            State::Invalidated => "invalidated, with a twin",
            State::HomeExclusive => "home, exclusive",
            State::HomeReclaimed => "home, reclaimed",
            State::HomeShared => "home, shared, clean",
            State::HomeWatched => "home, shared, watched",
            State::HomeWritten => "home, written",
            State::HomeUnguarded => "home, shared, unguarded",
            State::HomeResting => "home, resting",
            State::HomeLacking => "home, diffs missing",
            State::Coming => "coming",
        }
    }

    /// Returns the row of the page, or `None` if it fits no row.
    pub(super) fn of(page: &Page, around: Circumstances) -> Option<State> {
        // A reply on its way may have left the home before this node's own latest diff, which is therefore
        // needed although the frame contains it.
        let names_only_what_it_lacks = page.fetch.is_some()
            || page.needed.entries().iter().all(|(writer, seq)| page.version.get(*writer) < *seq);
        let is_consistent = names_only_what_it_lacks
            && (!page.watched || page.access == Access::Write)
            && (!page.unguarded || page.shared && !page.watched && page.access == Access::Write);
        let state = match around.homed {
            Homed::Elsewhere => State::of_copy(page, around),
            Homed::Here => State::of_home(page, around),
            Homed::HereSoon => (page.access == Access::None).then_some(State::Coming),
        };
        state.filter(|_| is_consistent)
    }

    fn of_copy(page: &Page, around: Circumstances) -> Option<State> {
        let is_home_only = page.unguarded || !page.pending.is_empty();
        let state = match (page.valid, page.access, page.twin) {
            (false, Access::None, false) => State::Absent,
            (false, Access::None, true) => State::Invalidated,
            (true, Access::None, false) => State::Closed,
            (true, Access::Read, false) if !around.is_async => State::Clean,
            (true, Access::Write, true) if around.is_async && page.watched => State::Watched,
            (true, Access::Write, true) if !around.is_async && around.is_written => State::Dirty,
            _ => return None,
        };
        let is_good = !page.valid || page.needed.is_empty();
        (is_good && !is_home_only).then_some(state)
    }

    fn of_home(page: &Page, around: Circumstances) -> Option<State> {
        let is_snapshot = around.keeps_snapshots && around.is_written && page.shared;
        let may_have_twin = around.looks_for_races || around.is_closing || is_snapshot;
        if page.twin && !may_have_twin {
            return None;
        }
        if !page.needed.is_empty() {
            return (page.access == Access::None).then_some(State::HomeLacking);
        }
        Some(match (page.shared, page.access) {
            (false, Access::Read) => State::HomeReclaimed,
            (false, Access::Write) if page.watched => State::HomeReclaimed,
            (false, _) => State::HomeExclusive,
            (true, Access::None) => State::HomeResting,
            (true, Access::Read) => State::HomeShared,
            (true, Access::Write) if page.unguarded => State::HomeUnguarded,
            (true, Access::Write) if page.watched => State::HomeWatched,
            (true, Access::Write) if around.is_written => State::HomeWritten,
            (true, Access::Write) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Circumstances = Circumstances {
        homed: Homed::Elsewhere,
        is_async: false,
        is_written: true,
        is_closing: false,
        looks_for_races: false,
        keeps_snapshots: false,
    };

    fn copy(valid: bool, access: Access, twin: bool) -> Page {
        Page { valid, access, twin, ..Page::default() }
    }

    #[test]
    fn copies_are_in_the_rows_of_the_table_and_in_no_others() {
        for (page, state) in [
            (copy(false, Access::None, false), Some(State::Absent)),
            (copy(true, Access::None, false), Some(State::Closed)),
            (copy(true, Access::Read, false), Some(State::Clean)),
            (copy(true, Access::Write, true), Some(State::Dirty)),
            (copy(false, Access::None, true), Some(State::Invalidated)),
            (copy(true, Access::Write, false), None),
            (copy(true, Access::Read, true), None),
            (copy(false, Access::Read, false), None),
        ] {
            assert_eq!(State::of(&page, COPY), state, "{page:?}");
        }
        let unnoted = Circumstances { is_written: false, ..COPY };
        assert_eq!(
            State::of(&copy(true, Access::Write, true), unnoted),
            None,
            "its writes would never leave"
        );
    }

    #[test]
    fn a_home_page_that_lacks_diffs_is_not_touched() {
        let home = Circumstances { homed: Homed::Here, ..COPY };
        let mut page = Page { shared: true, ..Page::default() };
        page.needed.advance(hiroba_base::NodeId(1), 3);
        assert_eq!(State::of(&page, home), Some(State::HomeLacking));
        page.access = Access::Read;
        assert_eq!(State::of(&page, home), None);
    }
}
