//! Acquires: learning from write notices what changed.

use hiroba_base::{PageRange, PageSet, PageSize, VectorTimestamp};
use hiroba_wire::{Knowledge, Placement};

use super::Consistency;
use super::keepers::Keeper;
use crate::aurc::mapped::{self, Part};
use crate::home::Layout;
use crate::{Effect, Fact};

impl Consistency {
    /// Returns the knowledge that a node that has seen `timestamp` lacks.
    pub(super) fn knowledge_beyond(&self, timestamp: &VectorTimestamp) -> Knowledge {
        Knowledge {
            timestamp: self.site.timestamp.clone(),
            notices: self.site.log.beyond(timestamp),
            epoch: self.site.collectives_done,
            beyond_arrival: self.team.has_arrived() || !self.beyond.is_empty(),
        }
    }

    /// Declares a region that the protocol of this number keeps coherent, except its mapped parts.
    pub(super) fn place_region(
        &mut self,
        index: usize,
        region: PageRange,
        page_size: PageSize,
        placement: Placement,
    ) {
        assert!(index < self.protocols.all.len(), "a region is under one of the node's protocols");
        let placement = match placement {
            Placement::FirstTouch if !self.protocols.all[index].can_move_homes() => Placement::Block,
            other => other,
        };
        let granule_bytes = self.site.limits.granule_bytes;
        let granules_per_page = page_size.bytes() as u64 / u64::from(granule_bytes);
        let rule = self.protocols.mapping.filter(|_| self.protocols.all[index].maps_homes());
        let whole = || vec![Part { granules: region, mapped_onto: None }];
        let parts = rule.map_or_else(whole, |rule| {
            assert!(self.protocols.runs_mapped <= mapped::RUNS_MAX, "no more runs are mapped than may be");
            let left = mapped::RUNS_MAX - self.protocols.runs_mapped;
            rule.parts(
                &self.site.homes,
                &Layout { granules: region, granules_per_page, placement },
                granule_bytes,
                left,
            )
        });
        for Part { granules, mapped_onto } in parts {
            let placement = match (placement, mapped_onto) {
                // No node lacks a page that all have mapped, so no node is the first to touch it.
                (Placement::FirstTouch, Some(_)) => Placement::Block,
                (other, _) => other,
            };
            self.site.homes.add_part(granules, region, granules_per_page, placement);
            let index = match mapped_onto {
                Some(home) => {
                    self.protocols.runs_mapped += 1;
                    self.site.out.push(Effect::MapHome { pages: granules, home });
                    self.protocols.index_for(Keeper::Mapping)
                }
                None => index,
            };
            self.protocols.give(granules, index);
            self.place_notices(granules);
        }
        self.site.out.keep(std::mem::take(&mut self.site.deferred));
    }

    /// Passes on the notices about the region, which is known now.
    fn place_notices(&mut self, region: PageRange) {
        let Consistency { site, protocols, unplaced, .. } = self;
        let mut voided = PageSet::new();
        for (writer, seq, page) in unplaced.extract_if(.., |(_, _, page)| region.contains(*page)) {
            protocols.of(page).handle_notice(site, writer, seq, page, &mut voided);
        }
        debug_assert!(voided.is_empty(), "nobody has touched a page of a region that is new");
    }

    /// Absorbs knowledge. Returns the pages that lost their access by it.
    pub(super) fn absorb(&mut self, knowledge: &Knowledge, keep_for_others: bool) -> PageSet {
        let Consistency { site, protocols, beyond, team, unplaced, .. } = self;
        debug_assert_eq!(
            knowledge.timestamp.nodes(),
            usize::from(site.limits.nodes),
            "a timestamp that was decoded speaks of all nodes"
        );
        let mut voided = PageSet::new();
        // The manager will assume that this node has seen what it reports with its arrival, so the node must
        // be able to report it.
        let for_arrival =
            knowledge.beyond_arrival && knowledge.epoch == site.collectives_done && !team.has_arrived();
        for notice in &knowledge.notices {
            if notice.node == site.me || notice.seq <= site.timestamp.get(notice.node) {
                continue;
            }
            if keep_for_others {
                site.log.record(notice.node, notice.seq, &notice.pages);
            }
            if for_arrival {
                beyond.record(notice.node, notice.seq, &notice.pages);
            }
            for page in notice.pages.iter() {
                if site.homes.locate(page).is_some() {
                    protocols.of(page).handle_notice(site, notice.node, notice.seq, page, &mut voided);
                } else {
                    unplaced.push((notice.node, notice.seq, page));
                }
            }
        }
        let before = site.tells.then(|| site.timestamp.clone());
        site.timestamp.merge(&knowledge.timestamp);
        site.invalidate(&voided, |page| protocols.access(page));
        protocols.each(site, |protocol, site| protocol.end_invalidation(site));
        if site.orders_fetches {
            // Diffs that waited for these notices.
            site.out.keep(std::mem::take(&mut site.deferred));
        }
        if let Some(before) = before {
            let seen = Fact::seen(site.me, &before, &site.timestamp);
            site.tell(|| seen);
        }
        voided
    }
}
