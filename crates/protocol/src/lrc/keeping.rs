//! A writer's side: diffs are made late, kept until nobody can ask for them, and sent to whoever asks.

use hiroba_base::{IntervalSeq, NodeId, PageId, PageSet, VersionVector};
use hiroba_wire::{IntervalDiff, Message};

use super::{Lrc, Twin, raise};
use crate::coherence::Site;
use crate::{Effect, Expected, ProtocolError, unexpected};

/// A node that keeps more bytes of diffs, and of twins of intervals that have ended, collects.
pub const KEPT_BYTES_MAX: u64 = 32 << 20;

/// What a kept diff takes besides its bytes.
const KEPT_DIFF_BYTES: u64 = 128;

/// A reply is sent when its diffs reach this many bytes.
const REPLY_BYTES: usize = 48 << 10;

/// What an interval of this node changed in a page.
#[derive(Debug)]
pub(super) struct KeptDiff {
    pub(super) seq: IntervalSeq,
    /// The page's version at its end.
    pub(super) version: VersionVector,
    pub(super) runs: Vec<u8>,
}

impl KeptDiff {
    fn bytes(&self) -> u64 {
        self.runs.len() as u64 + KEPT_DIFF_BYTES
    }
}

/// Who asked for diffs: after which interval, through which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    node: NodeId,
    after: IntervalSeq,
    through: IntervalSeq,
}

/// Why a page is compared with its twin.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The diff of an interval that has ended.
    Keep { seq: IntervalSeq, version: VersionVector, for_request: Option<Wanted> },
    /// What the open interval has written so far: the copy goes.
    SetAside,
    /// The twin is not needed, nor the diff.
    Forget,
}

/// What is kept in all.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    /// Pages with kept diffs, or with the twin of an interval that has ended; perhaps some that had.
    pages: PageSet,
    /// Homes that have yet to say that they hold a page.
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

    /// So much less is kept of the page.
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

    /// Makes the diff of the page's last interval, if it is still to be made.
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
        let page = self.pages.entry(page_id).or_default();
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
    /// When too much is kept (Keleher and others 1994 collect then, too, but at a barrier): has every home
    /// hold what this node has written, so that it can be forgotten.
    pub(super) fn collect(&mut self, site: &mut Site) {
        if self.keeping.bytes <= self.keeping.bytes_max || self.keeping.awaited > 0 {
            return;
        }
        for page_id in std::mem::take(&mut self.keeping.pages).iter() {
            self.keeping.pages.insert(page_id);
            let (me, home) = (site.me, site.locate(page_id).home);
            let page = self.page(site, page_id);
            let version = page.held.clone();
            if home == me {
                self.forget(site, page_id, version.get(me));
            } else if page.has_copy {
                self.keeping.awaited += 1;
                site.out.send(home, &Message::CatchUpRequest { page: page_id, version });
            }
        }
    }

    /// The home holds the page's intervals of this node through this one.
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

    /// The home's side: answers when the copy holds all that.
    pub(super) fn handle_catch_up_request(
        &mut self,
        site: &mut Site,
        from: NodeId,
        page_id: PageId,
        version: &VersionVector,
    ) -> Result<(), ProtocolError> {
        self.share(site, page_id)?;
        let page = self.page(site, page_id);
        if page.held.covers(version) {
            site.out.send(from, &Message::CaughtUp { page: page_id, version: version.clone() });
            return Ok(());
        }
        raise(&mut page.owed, version);
        page.owed.retain_beyond(&page.held);
        page.hold_requests.push((from, version.clone()));
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
