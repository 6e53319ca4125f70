//! The host's part in data race detection. It reports stores and loads, with their places in the program, to
//! the pages' homes, and reports races to the launcher.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hiroba_base::{CodeSite, NodeId, PageId, VectorTimestamp};
use hiroba_memory::SharedMemory;
use hiroba_memory::fault::{Fault, FaultKind};
use hiroba_protocol::diff;
use hiroba_protocol::races::{Interval, Looked, OpenInterval, Race, RaceLog, Touch, Touched, stored_to};
use hiroba_wire::control::{RaceAccount, RaceReport, RaceSide, ToLauncher};
use hiroba_wire::{Message, TouchedPage};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::call_site;
use crate::runtime::Runtime;
use crate::runtime::host::Core;

/// Maximum number of different races that one node reports. A program with more must be fixed first anyway.
const REPORTS_MAX: usize = 1000;

/// Maximum number of pages in a message.
const PAGES_PER_MESSAGE_MAX: usize = 4096;

/// The places in the program of an interval's stores to a page, or of a load from it.
#[derive(Clone, Debug)]
struct Origin {
    site: Option<CodeSite>,
    interval_end: Option<CodeSite>,
}

/// The two accesses of a race, by ascending node.
type Sides = [(NodeId, Touch); 2];

/// A node's state of race detection.
#[derive(Debug, Default)]
pub(crate) struct Races {
    /// Accesses to pages homed here.
    log: RaceLog<Origin>,
    /// This node's accesses since its last synchronisation, by instruction address.
    open: OpenInterval<usize>,
    /// Cache of looked-up instructions.
    sites: FxHashMap<usize, Option<CodeSite>>,
    reported: FxHashSet<(PageId, u32, Sides)>,
    /// Other homes that received reports from this node.
    told: BTreeSet<NodeId>,
    /// Those of them that have not confirmed, at the end, that they have compared all reports.
    unheard: BTreeSet<NodeId>,
}

impl Races {
    /// Records stores of the program, which a diff of the closing interval shows.
    pub(crate) fn note_diff(&mut self, page: PageId, runs: &[u8]) {
        self.open.note_written(page, diff::ranges(runs));
    }

    /// Records that these bytes of a page with a twin are about to change in frame and twin alike. No diff
    /// will show what the program has stored there before.
    pub(crate) fn note_overwritten(
        &mut self,
        memory: &SharedMemory,
        page: PageId,
        twin: &[u8],
        changed: impl IntoIterator<Item = Range<u32>>,
    ) {
        let mut frame = vec![0; twin.len()];
        memory.read(page, 0, &mut frame);
        self.open.note_written(page, stored_to(&frame, twin, changed));
    }

    fn site(&mut self, address: usize, find: fn(usize) -> Option<CodeSite>) -> Option<CodeSite> {
        self.sites.entry(address).or_insert_with(|| find(address)).clone()
    }

    fn with_sites(&mut self, touched: Touched<usize>) -> TouchedPage {
        let Touched { page, written, first_store, loads } = touched;
        let mut site =
            |instruction: Option<usize>| instruction.and_then(|at| self.site(at, call_site::of_instruction));
        let loads = loads.into_iter().map(|(offset, instruction)| (offset, site(instruction))).collect();
        TouchedPage { page, written, first_store: site(first_store), loads }
    }
}

impl Core {
    /// If data races are looked for, records a fault of the program.
    pub(crate) fn note_touch(&mut self, memory: &SharedMemory, fault: &Fault) {
        let Some(races) = &mut self.races else { return };
        let Some(page) = self.engine.page_of(fault.page) else { return };
        // A fault that another thread reports has no instruction, but its thread waits there.
        let waits_at = || fault.thread.and_then(call_site::of_waiting_thread);
        let instruction = fault.program_counter.or_else(waits_at);
        match fault.kind {
            FaultKind::Write => races.open.note_store(page, instruction),
            FaultKind::Read => {
                let offset = fault.address - memory.address_of(page) as usize;
                races.open.note_load(page, offset as u32, instruction);
            }
            // The kind is unknown: a store might be taken for a load.
            FaultKind::Unknown => {}
        }
    }
}

impl Runtime {
    /// Reports the accesses of an interval that has ended to the homes of their pages.
    pub(crate) fn tell_touched(&self, core: &mut Core, interval: Interval) {
        let Some(races) = &mut core.races else { return };
        // An executable calls the library that replaces the C library's functions, which calls this one.
        let interval_end = match call_site::noted() {
            0 => None,
            _ if self.job.program_protocol.is_some() => None,
            address => races.site(address, call_site::of_return_address),
        };
        let mut homes: BTreeMap<NodeId, Vec<TouchedPage>> = BTreeMap::new();
        for touched in races.open.end() {
            if let Some(home) = core.engine.home_of(touched.page) {
                homes.entry(home).or_default().push(races.with_sites(touched));
            }
        }
        let here = homes.remove(&self.me);
        for (home, mut pages) in homes {
            races.told.insert(home);
            while !pages.is_empty() {
                let rest = pages.split_off(pages.len().min(PAGES_PER_MESSAGE_MAX));
                let Interval { seq, ref timestamp, epoch, .. } = interval;
                let (timestamp, interval_end) = (timestamp.clone(), interval_end.clone());
                let message = Message::TouchedPages { seq, timestamp, epoch, interval_end, pages };
                self.send_to(home, &[&message.encode()]);
                pages = rest;
            }
        }
        if let Some(pages) = here {
            self.look_for_races(core, interval, interval_end, pages);
        }
    }

    /// Handles a report of another node's interval about pages that are homed here.
    pub(crate) fn hear_touched(
        &self,
        core: &mut Core,
        (node, seq): (NodeId, u64),
        (timestamp, epoch): (VectorTimestamp, u64),
        interval_end: Option<CodeSite>,
        pages: Vec<TouchedPage>,
    ) {
        self.look_for_races(core, Interval { node, seq, timestamp, epoch }, interval_end, pages);
    }

    /// At the home: compares an interval's accesses to pages with those of others.
    fn look_for_races(
        &self,
        core: &mut Core,
        interval: Interval,
        interval_end: Option<CodeSite>,
        pages: Vec<TouchedPage>,
    ) {
        let Some(races) = core.races.as_mut() else { return };
        let interval = Arc::new(interval);
        for TouchedPage { page, written, first_store, loads } in pages {
            let loads = loads.into_iter().map(|(offset, site)| (offset, Some(site))).collect();
            let touched = Touched { page, written, first_store: Some(first_store), loads };
            let origin = |site: Option<Option<CodeSite>>| Origin {
                site: site.flatten(),
                interval_end: interval_end.clone(),
            };
            for race in races.log.record(&interval, touched, origin) {
                let mut sides = [0, 1].map(|side: usize| (race.sides[side].node, race.sides[side].touch));
                sides.sort();
                let is_new = races.reported.len() < REPORTS_MAX
                    && races.reported.insert((page, race.bytes.start, sides));
                if is_new && let Some(control) = &self.control {
                    control.send(&ToLauncher::Race(self.describe_race(page, race)));
                }
            }
        }
    }

    fn describe_race(&self, page: PageId, race: Race<Origin>) -> RaceReport {
        let address = self.memory.address_of(page) as usize + race.bytes.start as usize;
        let sides = race.sides.map(|side| RaceSide {
            node: side.node,
            has_read: side.touch == Touch::Read,
            site: side.origin.site,
            interval_end: side.origin.interval_end,
        });
        RaceReport {
            address: address as u64,
            bytes: u64::from(race.bytes.end - race.bytes.start),
            allocation: self.describe_address(address).unwrap_or_else(|| "shared memory".to_owned()),
            sides,
        }
    }

    /// Asks the homes that received reports to confirm when they have compared them all. Called when the node
    /// has left the job. Until [`all_touched_is_heard`](Self::all_touched_is_heard), reports that show a race
    /// may be in transit.
    pub(crate) fn ask_who_has_heard(&self, core: &mut Core) {
        let Some(races) = &mut core.races else { return };
        races.unheard = std::mem::take(&mut races.told);
        for home in &races.unheard {
            self.send_to(*home, &[&Message::TouchedAll.encode()]);
        }
    }

    /// Returns true if all homes that were asked have confirmed.
    pub(crate) fn all_touched_is_heard(core: &Core) -> bool {
        core.races.as_ref().is_none_or(|races| races.unheard.is_empty())
    }

    /// Records the confirmation of a home.
    pub(crate) fn note_heard(core: &mut Core, home: NodeId) {
        if let Some(races) = &mut core.races {
            races.unheard.remove(&home);
        }
    }

    /// Sends the launcher the counts of accesses examined here, once no more reports can come.
    pub(crate) fn tell_looked(&self) {
        let looked = self.core().races.as_ref().map(|races| races.log.looked());
        if let (Some(Looked { writes, loads, forgotten }), Some(control)) = (looked, &self.control) {
            control.send(&ToLauncher::LookedForRaces(RaceAccount { writes, loads, forgotten }));
        }
    }
}
