//! The assignment of pages to the protocols that keep them coherent.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSet};

use crate::aurc::mapped::{Mapped, MappingRule};
use crate::coherence::{Coherence, Site};
use crate::{HomePolicy, Protocol};

/// The protocols of a job, and the pages of each.
#[derive(Debug)]
pub(super) struct Protocols {
    /// The protocols, the job's first one in front.
    pub(super) all: Vec<Box<dyn Coherence>>,
    /// The keepers of the other entries.
    pub(super) others: Vec<Keeper>,
    /// The rule by which runs of pages are mapped onto their homes' frames, if nodes share memory.
    pub(super) mapping: Option<MappingRule>,
    /// The number of runs that are mapped.
    pub(super) runs_mapped: usize,
    /// The other nodes whose frames this one can read itself.
    pub(super) reached: Vec<NodeId>,
    /// The policy by which homes move.
    pub(super) home_policy: HomePolicy,
    /// Regions, and parts of them, under other protocols than the first, by ascending first granule.
    pub(super) regions: Vec<(PageRange, usize)>,
    /// Pages that other protocols have given up to sequential consistency, and its index.
    converted: PageSet,
    sequential: Option<usize>,
}

/// The protocol or mapping that keeps pages coherent, other than the job's first protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeper {
    Protocol(Protocol),
    /// All nodes have mapped the pages onto their home's frames.
    Mapping,
}

impl Protocols {
    /// Uses one protocol for all pages, until regions are given to others.
    pub(super) fn of_one(first: Box<dyn Coherence>) -> Protocols {
        Protocols {
            all: vec![first],
            others: Vec::new(),
            mapping: None,
            runs_mapped: 0,
            reached: Vec::new(),
            home_policy: HomePolicy::Fixed,
            regions: Vec::new(),
            converted: PageSet::new(),
            sequential: None,
        }
    }

    /// Returns true if another protocol has given the page up.
    pub(super) fn is_converted(&self, page: PageId) -> bool {
        self.converted.contains(page)
    }

    /// Assigns a page that its protocol has given up to sequential consistency.
    pub(super) fn convert(&mut self, site: &mut Site, page: PageId) {
        let giver = self.of(page).as_giver();
        giver.expect("a protocol that gives up a page can do so").forget(page);
        self.sequential = Some(self.index_for(Keeper::Protocol(Protocol::Sc)));
        let is_new = self.converted.insert(page);
        assert!(is_new, "{page}: a page changes its protocol once");
        self.of(page).take_over(site, page);
    }

    pub(super) fn index_of(&self, page: PageId) -> usize {
        if let Some(index) = self.sequential
            && self.is_converted(page)
        {
            return index;
        }
        self.index_of_region(page)
    }

    /// Returns the index of the protocol that the page's region was declared under.
    pub(super) fn index_of_region(&self, page: PageId) -> usize {
        let next = self.regions.partition_point(|(region, _)| region.first <= page);
        let before = next.checked_sub(1).map(|index| self.regions[index]);
        before.filter(|(region, _)| region.contains(page)).map_or(0, |(_, index)| index)
    }

    pub(super) fn of(&mut self, page: PageId) -> &mut dyn Coherence {
        let index = self.index_of(page);
        &mut *self.all[index]
    }

    pub(super) fn access(&self, page: PageId) -> Access {
        self.all[self.index_of(page)].access(page)
    }

    /// Calls `act` for each protocol.
    pub(super) fn each(&mut self, site: &mut Site, mut act: impl FnMut(&mut dyn Coherence, &mut Site)) {
        self.all.iter_mut().for_each(|protocol| act(&mut **protocol, site));
    }

    /// Returns true if `is_so` is true of any protocol.
    pub(super) fn any(&self, is_so: impl Fn(&dyn Coherence) -> bool) -> bool {
        self.all.iter().any(|protocol| is_so(&**protocol))
    }

    /// Returns the index of a keeper that is not the first protocol.
    pub(super) fn index_for(&mut self, keeper: Keeper) -> usize {
        assert_eq!(self.all.len(), 1 + self.others.len(), "each keeper but the first is named");
        let known = self.others.iter().position(|other| *other == keeper);
        1 + known.unwrap_or_else(|| {
            let mut coherence: Box<dyn Coherence> = match keeper {
                Keeper::Protocol(protocol) => protocol.coherence(self.reached.iter().copied()),
                Keeper::Mapping => Box::new(Mapped::default()),
            };
            coherence.move_homes(self.home_policy);
            self.others.push(keeper);
            self.all.push(coherence);
            self.all.iter_mut().for_each(|coherence| coherence.keep_order_with_others());
            self.others.len() - 1
        })
    }

    /// Assigns these pages to the protocol with that index.
    pub(super) fn give(&mut self, pages: PageRange, index: usize) {
        assert!(index < self.all.len(), "{}: expected one of {} keepers", pages.first, self.all.len());
        if index > 0 {
            let at = self.regions.partition_point(|(region, _)| region.first < pages.first);
            let clear_left = at == 0 || self.regions[at - 1].0.end() <= pages.first;
            let clear_right = self.regions.get(at).is_none_or(|(region, _)| pages.end() <= region.first);
            assert!(clear_left && clear_right, "{}: a page has one keeper", pages.first);
            self.regions.insert(at, (pages, index));
        }
    }
}
