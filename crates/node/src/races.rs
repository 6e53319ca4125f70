//! The host's part in looking for data races: it tells the homes of written pages what was written, where and when, and
//! tells the launcher what they find.

use std::collections::BTreeMap;

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_protocol::diff;
use hiroba_protocol::races::{Race, RaceLog, Written};
use hiroba_wire::control::{CodeSite, RaceReport, RaceWriter, ToLauncher};
use hiroba_wire::{Message, WrittenPage};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::call_site;
use crate::host::Core;
use crate::runtime::Runtime;

/// So many different races are reported by one node; a program that has more needs to know of these first.
const REPORTS_MAX: usize = 1000;

/// Where an interval's writes to a page came from.
#[derive(Clone, Debug)]
struct Origin {
    first_store: Option<CodeSite>,
    interval_end: Option<CodeSite>,
}

/// What one node knows.
#[derive(Debug, Default)]
pub(crate) struct Races {
    /// Of pages homed here.
    log: RaceLog<Origin>,
    /// The open interval's first store to each granule, by address of the instruction.
    first_stores: FxHashMap<PageId, usize>,
    /// What the interval that is being closed has changed, by home.
    closing: BTreeMap<NodeId, Vec<WrittenPage>>,
    /// Instructions looked up before.
    sites: FxHashMap<usize, Option<CodeSite>>,
    reported: FxHashSet<(PageId, u32, NodeId, NodeId)>,
}

impl Races {
    /// A store faulted.
    pub(crate) fn note_store(&mut self, granule: PageId, program_counter: Option<usize>) {
        if let Some(program_counter) = program_counter {
            self.first_stores.entry(granule).or_insert(program_counter);
        }
    }

    /// A diff was made of a page whose home is `home`.
    pub(crate) fn note_diff(&mut self, home: NodeId, span: PageRange, runs: &[u8]) {
        let mut first_store = None;
        for granule in span.iter() {
            first_store = first_store.or(self.first_stores.remove(&granule));
        }
        if runs.is_empty() {
            return;
        }
        let first_store =
            first_store.and_then(|instruction| self.site(instruction, call_site::of_instruction));
        let written = WrittenPage { page: span.first, ranges: diff::ranges(runs), first_store };
        self.closing.entry(home).or_default().push(written);
    }

    fn site(&mut self, address: usize, find: fn(usize) -> Option<CodeSite>) -> Option<CodeSite> {
        self.sites.entry(address).or_insert_with(|| find(address)).clone()
    }
}

impl Runtime {
    /// After effects were carried out: tells the homes what an interval that was closed by them has changed.
    pub(crate) fn tell_written(&self, core: &mut Core) {
        let Some(races) = core.races.as_mut().filter(|races| !races.closing.is_empty()) else { return };
        let closing = std::mem::take(&mut races.closing);
        let interval_end = match call_site::noted() {
            0 => None,
            address => races.site(address, call_site::of_return_address),
        };
        let (timestamp, epoch) = core.engine.seen();
        let (timestamp, seq) = (timestamp.clone(), timestamp.get(self.me));
        for (home, pages) in closing {
            let (timestamp, interval_end) = (timestamp.clone(), interval_end.clone());
            if home == self.me {
                self.hold_against(core, home, seq, &timestamp, epoch, interval_end, pages);
            } else {
                let message = Message::WrittenPages { seq, timestamp, epoch, interval_end, pages };
                self.send_to(home, &[&message.encode()]);
            }
        }
    }

    /// The home's side: holds what an interval of `node` has changed against what others have.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of one message")]
    pub(crate) fn hold_against(
        &self,
        core: &mut Core,
        node: NodeId,
        seq: u64,
        timestamp: &hiroba_base::VectorTimestamp,
        epoch: u64,
        interval_end: Option<CodeSite>,
        pages: Vec<WrittenPage>,
    ) {
        let Some(races) = core.races.as_mut() else { return };
        for WrittenPage { page, ranges, first_store } in pages {
            let origin = Origin { first_store, interval_end: interval_end.clone() };
            let written = Written { node, seq, timestamp: timestamp.clone(), epoch, ranges, origin };
            for race in races.log.record(page, written) {
                let [(first, _), (second, _)] = race.writers;
                let is_new = races.reported.len() < REPORTS_MAX
                    && races.reported.insert((page, race.bytes.start, first.min(second), first.max(second)));
                if is_new && let Some(control) = &self.control {
                    control.send(&ToLauncher::Race(self.describe_race(page, race)));
                }
            }
        }
    }

    fn describe_race(&self, page: PageId, race: Race<Origin>) -> RaceReport {
        let address = self.memory.address_of(page) as usize + race.bytes.start as usize;
        let writers = race.writers.map(|(node, Origin { first_store, interval_end })| RaceWriter {
            node,
            first_store,
            interval_end,
        });
        RaceReport {
            address: address as u64,
            bytes: u64::from(race.bytes.end - race.bytes.start),
            allocation: self.describe_address(address).unwrap_or_else(|| "shared memory".to_owned()),
            writers,
        }
    }
}
