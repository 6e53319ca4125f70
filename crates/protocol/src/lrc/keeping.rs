//! The writer's side: makes diffs late, keeps them until no node can request them, and sends them to the
//! nodes that do.

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{IntervalDiff, Message};

use super::{Lrc, Twin, raise};
use crate::coherence::Site;
use crate::{Effect, Expected, ProtocolError, unexpected};

/// The number of bytes of diffs, and of twins of intervals that have ended, beyond which a node collects.
pub const KEPT_BYTES_MAX: u64 = 32 << 20;

/// The bytes that a kept diff takes besides its content.
const KEPT_DIFF_BYTES: u64 = 128;

/// The number of bytes of diffs at which a reply is sent.
const REPLY_BYTES: usize = 48 << 10;

/// The changes of an interval of this node to a page.
#[derive(Debug)]
pub(super) struct KeptDiff {
    pub(super) seq: IntervalSeq,
    /// The page's version at the interval's end.
    pub(super) version: VersionVector,
    pub(super) runs: Vec<u8>,
}

impl KeptDiff {
    fn bytes(&self) -> u64 {
        self.runs.len() as u64 + KEPT_DIFF_BYTES
    }
}

/// A request for diffs: its node, after which interval, through which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    node: NodeId,
    after: IntervalSeq,
    through: IntervalSeq,
}

/// The reason why a page is compared with its twin.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The diff of an interval that has ended is kept.
    Keep { seq: IntervalSeq, version: VersionVector, for_request: Option<Wanted> },
    /// The copy is given up: the open interval's writes are set aside as a diff.
    SetAside,
    /// Neither the twin nor the diff is needed.
    Forget,
}

/// All that a node keeps.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    /// Pages with kept diffs, or with the twin of an interval that has ended. May include pages that had them
    /// earlier.
    pages: PageSet,
    /// The number of homes that must still report that they hold a page.
    awaited: usize,
}

impl Default for Keeping {
    fn default() -> Keeping {
        Keeping { bytes: 0, bytes_max: KEPT_BYTES_MAX, pages: PageSet::new(), awaited: 0 }
    }
}

impl Keeping {
    pub(super) fn add(&mut self, page: PageId, bytes: u64) {
        self.bytes += bytes;
        self.pages.insert(page);
    }

    /// Subtracts bytes from what is kept of the page.
    pub(super) fn remove(&mut self, page: PageId, bytes: u64) {
        assert!(self.bytes >= bytes, "{page}: what is kept no more was counted");
        self.bytes -= bytes;
    }
}

impl Lrc {
    /// Has the host compare the page with its twin.
    pub(super) fn compare(&mut self, site: &mut Site, page_id: PageId, keep_twin: bool, purpose: Purpose) {
        self.comparing.push_back((page_id, purpose));
        site.out.push(Effect::Diff { page: page_id, keep_twin });
    }

    /// Makes the diff of the page's last interval, if it does not exist yet.
    pub(super) fn compare_closed(&mut self, site: &mut Site, page_id: PageId, for_request: Option<Wanted>) {
        let page_bytes = u64::from(site.page_bytes(page_id));
        let page = self.page(site, page_id);
        match std::mem::take(&mut page.twin) {
            Twin::Closed { seq, version } => {
                self.keeping.remove(page_id, page_bytes);
                self.compare(site, page_id, false, Purpose::Keep { seq, version, for_request });
            }
            other => page.twin = other,
        }
    }

    pub(super) fn handle_compared(&mut self, site: &mut Site, page_id: PageId, runs: Vec<u8>) {
        let (asked, purpose) = self.comparing.pop_front().expect("every diff was asked for");
        assert_eq!(asked, page_id, "the host answers on the spot");
        match purpose {
            Purpose::Keep { seq, version, for_request } => {
                self.keep(page_id, KeptDiff { seq, version, runs });
                for_request.into_iter().for_each(|wanted| self.send_diffs(site, page_id, wanted));
            }
            Purpose::SetAside if runs.is_empty() => {}
            Purpose::SetAside => self.page(site, page_id).set_aside.push(runs),
            Purpose::Forget => {}
        }
    }

    pub(super) fn keep(&mut self, page_id: PageId, kept: KeptDiff) {
        self.keeping.add(page_id, kept.bytes());
        let page = self.pages.or_default(page_id);
        assert!(kept.seq > page.collected, "{page_id}: what is collected is not kept again");
        let behind = page.kept.partition_point(|other| other.seq <= kept.seq);
        page.kept.insert(behind, kept);
        debug_assert!(page.kept.iter().is_sorted_by_key(|kept| kept.seq), "{page_id}: kept diffs ascend");
    }

    pub(super) fn handle_diffs_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        after: IntervalSeq,
        through: IntervalSeq,
    ) -> Result<(), ProtocolError> {
        let closed = site.latest_closed();
        if after >= through || through > closed {
            let got = format!("a request for those after {after} through {through}");
            return Err(unexpected(Expected::RequestForEndedIntervals, format!("{got}, of {closed}")));
        }
        let page = self.page(site, page_id);
        if after < page.collected {
            site.out.send(from, &Message::DiffsCollected { page: page_id });
            return Ok(());
        }
        let wanted = Wanted { node: from, after, through };
        match page.twin {
            Twin::Closed { seq, .. } if seq <= through => self.compare_closed(site, page_id, Some(wanted)),
            _ => self.send_diffs(site, page_id, wanted),
        }
        Ok(())
    }

    fn send_diffs(&mut self, site: &mut Site, page_id: PageId, wanted: Wanted) {
        let Wanted { node, after, through } = wanted;
        assert!(after < through, "{page_id}: some interval is asked for");
        let kept = &self.page(site, page_id).kept;
        let mut diffs: Vec<IntervalDiff<'_>> = Vec::new();
        let mut bytes = 0;
        for KeptDiff { seq, version, runs } in
            kept.iter().filter(|kept| (after + 1..=through).contains(&kept.seq))
        {
            if bytes >= REPLY_BYTES {
                let diffs = std::mem::take(&mut diffs);
                site.out.send(node, &Message::DiffsReply { page: page_id, last: false, diffs });
                bytes = 0;
            }
            bytes += runs.len() + KEPT_DIFF_BYTES as usize;
            diffs.push(IntervalDiff { seq: *seq, version: version.clone(), runs });
        }
        site.out.send(node, &Message::DiffsReply { page: page_id, last: true, diffs });
    }
}

/// Collection.
impl Lrc {
    /// Has every home bring its copies up to date with this node's writes, so that this node can discard its
    /// diffs. Called when it keeps too much (Keleher and others 1994 collect then, too, but at a barrier).
    pub(super) fn collect(&mut self, site: &mut Site) {
        if self.keeping.bytes <= self.keeping.bytes_max || self.keeping.awaited > 0 {
            return;
        }
        for page_id in std::mem::take(&mut self.keeping.pages).iter() {
            self.keeping.pages.insert(page_id);
            let (me, home) = (site.me, site.locate(page_id).home);
            let page = self.page(site, page_id);
            let version = page.version.clone();
            if home == me {
                self.forget(site, page_id, version.get(me));
            } else if page.has_copy {
                self.keeping.awaited += 1;
                site.out.send(home, &Message::CatchUpRequest { page: page_id, version });
            }
        }
    }

    /// Discards diffs: the home's copy contains the page's intervals of this node through `through`.
    fn forget(&mut self, site: &mut Site, page_id: PageId, through: IntervalSeq) {
        let page_bytes = u64::from(site.page_bytes(page_id));
        let page = self.page(site, page_id);
        page.collected = page.collected.max(through);
        let forgotten = page.kept.partition_point(|kept| kept.seq <= through);
        let mut bytes: u64 = page.kept.drain(..forgotten).map(|kept| kept.bytes()).sum();
        if matches!(page.twin, Twin::Closed { seq, .. } if seq <= through) {
            page.twin = Twin::None;
            bytes += page_bytes;
            self.compare(site, page_id, false, Purpose::Forget);
        }
        self.keeping.remove(page_id, bytes);
        let page = self.page(site, page_id);
        if page.kept.is_empty() && !matches!(page.twin, Twin::Closed { .. }) {
            self.keeping.pages.remove(page_id);
        }
    }

    /// Handles a catch-up request on the home, which answers when the copy contains all requested intervals.
    pub(super) fn handle_catch_up_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        version: &VersionVector,
    ) -> Result<(), ProtocolError> {
        self.share(site, page_id)?;
        let page = self.page(site, page_id);
        if page.version.covers(version) {
            site.out.send(from, &Message::CaughtUp { page: page_id, version: version.clone() });
            return Ok(());
        }
        raise(&mut page.owed, version);
        page.owed.retain_beyond(&page.version);
        page.catch_up_requests.push((from, version.clone()));
        self.go_on_fetching(site, page_id);
        Ok(())
    }

    pub(super) fn handle_caught_up(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        version: &VersionVector,
    ) -> Result<(), ProtocolError> {
        let awaited = self.keeping.awaited.checked_sub(1);
        let (Some(awaited), true) = (awaited, site.homes.home_of(page_id) == Some(from)) else {
            return Err(unexpected(Expected::AskedHome, format!("a version of {page_id}")));
        };
        if version.get(site.me) > site.latest_closed() {
            let got = format!("interval {} of this node in {page_id}", version.get(site.me));
            return Err(unexpected(Expected::EndedIntervals, got));
        }
        self.keeping.awaited = awaited;
        self.forget(site, page_id, version.get(site.me));
        Ok(())
    }
}
