//! Brings a copy up to date: fetches the first copy from the home and diffs from their writers, and recovers
//! when a writer has discarded them.

use hiroba_base::{Access, IntervalSeq, NodeId, PageId, VersionVector};
use hiroba_wire::{IntervalDiff, Message, PageCopy};

use super::keeping::Purpose;
use super::{Fetch, Lrc, Page, Twin, raise};
use crate::coherence::Site;
use crate::{Effect, Expected, Fact, NewContent, Outcome, PageToSend, ProtocolError, diff, unexpected};

/// The changes of an interval to the page.
#[derive(Debug)]
pub(super) struct ReceivedDiff {
    writer: NodeId,
    seq: IntervalSeq,
    version: VersionVector,
    runs: Vec<u8>,
}

impl ReceivedDiff {
    /// Returns a sort key that ascends along happens-before. Sums of the counts that nodes have reached do
    /// not overflow; a sum that a stranger made up may as well be the last.
    fn place(&self) -> (u64, NodeId, IntervalSeq) {
        let entries = self.version.entries().iter();
        (entries.fold(0, |sum: u64, (_, seq)| sum.saturating_add(*seq)), self.writer, self.seq)
    }
}

/// The reader's side.
impl Lrc {
    /// Continues after an access miss (Keleher and others 1994): requests what the page lacks, first the copy
    /// and then the diffs of each writer that notices name. Takes them in when all have come.
    pub(super) fn go_on_fetching(&mut self, site: &mut Site, page_id: PageId) {
        let me = site.me;
        let page = self.page(site, page_id);
        let fetch = page.fetch.get_or_insert_default();
        if fetch.awaits_copy || !fetch.writers.is_empty() {
            return;
        }
        if fetch.is_too_late {
            self.give_copy_up(site, page_id);
        }
        let page = self.page(site, page_id);
        let fetch = page.fetch.get_or_insert_default();
        if !page.has_copy && !fetch.copy_came {
            fetch.awaits_copy = true;
            let home = site.locate(page_id).home;
            return site
                .out
                .send(home, &Message::PageRequest { page: page_id, needed: VersionVector::new() });
        }
        for (writer, after, through) in page.lacking() {
            let Page { fetch, kept, .. } = &mut *page;
            let fetch = fetch.get_or_insert_default();
            if writer == me {
                let own = kept.iter().filter(|kept| (after + 1..=through).contains(&kept.seq));
                fetch.received.extend(own.map(|kept| ReceivedDiff {
                    writer,
                    seq: kept.seq,
                    version: kept.version.clone(),
                    runs: kept.runs.clone(),
                }));
                fetch.gained.advance(me, through);
            } else {
                fetch.writers.insert(writer, through);
                site.out.send(writer, &Message::DiffsRequest { page: page_id, after, through });
            }
        }
        if page.fetch.as_ref().is_some_and(|fetch| fetch.writers.is_empty()) {
            self.take_in(site, page_id);
        }
    }

    /// Applies the received diffs, all of which have come, in an order that agrees with happens-before
    /// (Keleher, Cox, Zwaenepoel), gives the program access to the page, and answers the nodes that waited
    /// for it.
    fn take_in(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        let fetch = page.fetch.take().unwrap_or_default();
        assert!(fetch.writers.is_empty() && !fetch.awaits_copy, "{page_id}: all that was asked for is there");
        let Fetch { waiters, demanded, wants_write, hinted, mut received, gained, began_anew, .. } = fetch;
        received.retain(|diff| !diff.runs.is_empty());
        received.sort_by_key(ReceivedDiff::place);
        let set_aside = if began_anew { page.set_aside.clone() } else { Vec::new() };
        if !received.is_empty() {
            // Incoming diffs would be taken for this node's own writes, or hide them.
            self.compare_closed(site, page_id, None);
        }
        let runs = received.into_iter().map(|diff| diff.runs).chain(set_aside);
        site.out.extend(runs.map(|runs| Effect::Apply { page: page_id, runs }));
        let page = self.page(site, page_id);
        page.has_copy = true;
        page.hold(&gained);
        assert!(page.is_current(), "{page_id}: what notices name has been asked for");
        let (held, access) = (page.version.clone(), page.access);
        site.tell(|| Some(Fact::Holds { page: page_id, version: held }));
        if demanded || hinted && access == Access::None {
            let wanted = if wants_write { Access::Write } else { Access::Read };
            self.give(site, page_id, wanted);
        }
        waiters.into_iter().for_each(|waiter| site.out.wake(waiter, Outcome::Done));
        self.answer_who_waited(site, page_id);
    }

    /// Answers requests to this home that have waited for diffs.
    fn answer_who_waited(&mut self, site: &mut Site, page_id: PageId) {
        let page = self.page(site, page_id);
        let held = &page.version;
        let answered: Vec<_> =
            page.catch_up_requests.extract_if(.., |(_, version)| held.covers(version)).collect();
        let ready: Vec<_> =
            page.operations.extract_if(.., |operation| held.covers(&operation.needed)).collect();
        for (node, version) in answered {
            site.out.send(node, &Message::CaughtUp { page: page_id, version });
        }
        ready.into_iter().for_each(|operation| self.perform(site, page_id, operation));
    }

    /// Replaces the copy by the home's, because a writer has discarded diffs that this copy lacks. Intervals
    /// that the old copy contained and the new one lacks are owed.
    fn give_copy_up(&mut self, site: &mut Site, page_id: PageId) {
        assert!(!site.is_home(page_id), "{page_id}: its home has the copy that all others can begin from");
        if self.page(site, page_id).twin == Twin::Open {
            self.compare(site, page_id, false, Purpose::SetAside);
            self.page(site, page_id).twin = Twin::None;
        }
        self.compare_closed(site, page_id, None);
        let page = self.page(site, page_id);
        assert_eq!(page.access, Access::None, "{page_id}: a copy that lacks something is not used");
        let held = std::mem::take(&mut page.version);
        raise(&mut page.owed, &held);
        page.has_copy = false;
        let fetch = page.fetch.take().unwrap_or_default();
        raise(&mut page.owed, &fetch.required);
        let Fetch { waiters, demanded, wants_write, hinted, .. } = fetch;
        let began_anew = true;
        page.fetch = Some(Fetch { waiters, demanded, wants_write, hinted, began_anew, ..Fetch::default() });
    }

    pub(super) fn handle_copy(
        &mut self,
        site: &mut Site,
        from: NodeId,
        copies: &[PageCopy],
        content: &[u8],
    ) -> Result<(), ProtocolError> {
        let [PageCopy { page: page_id, version, is_zero }] = copies else {
            return Err(unexpected(Expected::OnePage, format!("{} pages", copies.len())));
        };
        let (located, page_bytes) = (site.locate(*page_id), site.page_bytes(*page_id) as usize);
        let page = self.page(site, *page_id);
        let fetch = page.fetch.as_mut().filter(|fetch| fetch.awaits_copy);
        let (Some(fetch), true) = (fetch, located.home == from && located.page == *page_id) else {
            return Err(unexpected(Expected::PageItsHomeWasAskedFor, format!("{page_id}")));
        };
        let wanted_bytes = if *is_zero { 0 } else { page_bytes };
        if content.len() != wanted_bytes {
            return Err(unexpected(Expected::WholePage, format!("{} bytes of {page_id}", content.len())));
        }
        (fetch.awaits_copy, fetch.copy_came) = (false, true);
        let fetched = u32::from(fetch.demanded);
        page.hold(version);
        let content = if *is_zero { NewContent::Zero } else { NewContent::Received(0..page_bytes) };
        let (pages, merge, prefetched) = (located.span(), false, 1 - fetched);
        site.out.push(Effect::Install { pages, content, merge, fetched, prefetched });
        self.go_on_fetching(site, *page_id);
        Ok(())
    }

    pub(super) fn handle_diffs(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        last: bool,
        diffs: &[IntervalDiff<'_>],
    ) -> Result<(), ProtocolError> {
        let page_bytes = site.page_bytes(page_id) as usize;
        let fetch = self.page(site, page_id).fetch.as_mut();
        let asked = fetch.and_then(|fetch| Some((*fetch.writers.get(&from)?, fetch)));
        let Some((through, fetch)) = asked else {
            return Err(unexpected(Expected::AskedDiffs, format!("some of {page_id}")));
        };
        for IntervalDiff { seq, version, runs } in diffs {
            if version.get(from) < *seq {
                let got = format!("interval {seq} of node {from} in a version through {}", version.get(from));
                return Err(unexpected(Expected::DiffInItsVersion, got));
            }
            diff::check(runs, page_bytes)?;
            raise(&mut fetch.required, version);
            let (version, runs) = (version.clone(), runs.to_vec());
            fetch.received.push(ReceivedDiff { writer: from, seq: *seq, version, runs });
        }
        if last {
            fetch.writers.remove(&from);
            fetch.gained.advance(from, through);
            self.go_on_fetching(site, page_id);
        }
        Ok(())
    }

    pub(super) fn handle_too_late(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
    ) -> Result<(), ProtocolError> {
        if site.is_home(page_id) {
            return Err(unexpected(Expected::OnlyDiffs, format!("none of {page_id}")));
        }
        let fetch = self.page(site, page_id).fetch.as_mut();
        let Some(fetch) = fetch.and_then(|fetch| fetch.writers.remove(&from).map(|_| fetch)) else {
            return Err(unexpected(Expected::AnswerToDiffsRequest, format!("one for {page_id}")));
        };
        fetch.is_too_late = true;
        self.go_on_fetching(site, page_id);
        Ok(())
    }
}

impl Page {
    /// Returns the intervals that the copy must still get: each writer, after which interval, through which.
    fn lacking(&self) -> Vec<(NodeId, IntervalSeq, IntervalSeq)> {
        let mut there = self.version.clone();
        let mut wanted = self.needed.clone();
        raise(&mut wanted, &self.owed);
        if let Some(fetch) = &self.fetch {
            raise(&mut there, &fetch.gained);
            raise(&mut wanted, &fetch.required);
        }
        wanted.retain_beyond(&there);
        wanted.entries().iter().map(|(writer, through)| (*writer, there.get(*writer), *through)).collect()
    }
}

/// The home's side.
impl Lrc {
    pub(super) fn handle_page_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
    ) -> Result<(), ProtocolError> {
        self.share(site, page_id)?;
        let page_bytes = site.page_bytes(page_id);
        let page = self.page(site, page_id);
        let version = page.version.clone();
        site.out.push(if page.twin == Twin::Open {
            Effect::SendTwin { to: from, page: page_id, version }
        } else {
            let pages = vec![PageToSend { page: page_id, page_bytes, version, from_twin: false }];
            Effect::SendPages { to: from, pages }
        });
        Ok(())
    }
}
