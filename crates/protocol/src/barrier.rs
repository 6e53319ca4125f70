//! Barriers and the other collectives: everybody tells node 0 what it has written since the last one, and node 0
//! tells everybody what the others have written.
//!
//! A collective names what it is (a barrier, an allocation, leaving the job). When two nodes meet in different
//! ones the program is wrong, and would wait for ever: the manager says so instead.

use hiroba_base::NodeId;
use hiroba_wire::{Collective, IntervalNotice, Knowledge};

use crate::ProtocolError;

/// The manager's side, on node 0.
#[derive(Debug)]
pub struct BarrierManager {
    epoch: u64,
    arrivals: Vec<Option<(Collective, Knowledge)>>,
    arrived: usize,
}

/// A completed collective.
#[derive(Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its number.
    pub epoch: u64,
    /// What it was.
    pub collective: Collective,
    /// What each node is told, by node.
    pub departures: Vec<Knowledge>,
}

/// Nodes met in different collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Who came first.
    pub first: (NodeId, Collective),
    /// Who disagrees.
    pub second: (NodeId, Collective),
}

impl Mismatch {
    /// The sentence for the user.
    pub fn sentence(&self) -> String {
        let ((first, first_call), (second, second_call)) = (self.first, self.second);
        format!(
            "node {second} called {} while node {first} waits in {}; every node must make the same collective \
             calls in the same order",
            describe(second_call),
            describe(first_call),
        )
    }
}

/// The call by its name alone.
pub(crate) fn name(collective: Collective) -> &'static str {
    match collective {
        Collective::Barrier => "hiroba_barrier",
        Collective::Leave => "hiroba_finalize",
        Collective::Allocate { .. } => "hiroba_alloc",
        Collective::BeginRun | Collective::EndRun => "hiroba_run",
        Collective::RunWorker { .. } => "tsm_create_procs",
        Collective::Follow => "tsm_startup",
    }
}

pub(crate) fn describe(collective: Collective) -> String {
    match collective {
        Collective::Allocate { bytes, placement, page_size } => {
            let page_bytes = page_size.bytes();
            format!("hiroba_alloc of {bytes} bytes placed {placement:?} in pages of {page_bytes}")
                .to_lowercase()
        }
        Collective::EndRun => "the end of hiroba_run's function".to_owned(),
        other => name(other).to_owned(),
    }
}

impl BarrierManager {
    /// Nobody has arrived yet.
    pub fn new(nodes: u16) -> BarrierManager {
        BarrierManager { epoch: 0, arrivals: vec![None; usize::from(nodes)], arrived: 0 }
    }

    /// A node has arrived; `Ok(Some)` when it was the last one.
    pub fn arrive(
        &mut self,
        from: NodeId,
        epoch: u64,
        collective: Collective,
        knowledge: Knowledge,
    ) -> Result<Result<Option<Completed>, Mismatch>, ProtocolError> {
        if epoch != self.epoch || self.arrivals[from.index()].is_some() {
            return Err(ProtocolError::Unexpected {
                expected: "one arrival a node in the present collective",
                got: format!("node {from} in collective {epoch} during {}", self.epoch),
            });
        }
        if let Some(mismatch) = self.mismatch(from, collective) {
            return Ok(Err(mismatch));
        }
        self.arrivals[from.index()] = Some((collective, knowledge));
        self.arrived += 1;
        if self.arrived < self.arrivals.len() {
            return Ok(Ok(None));
        }
        Ok(Ok(Some(self.complete())))
    }

    fn mismatch(&self, from: NodeId, collective: Collective) -> Option<Mismatch> {
        if collective == Collective::Follow {
            return None;
        }
        let others = self.arrivals.iter().enumerate();
        let leads = others.filter_map(|(index, arrival)| Some((NodeId(index as u16), arrival.as_ref()?.0)));
        let mut differs = leads.filter(|(_, other)| *other != Collective::Follow && *other != collective);
        differs.next().map(|first| Mismatch { first, second: (from, collective) })
    }

    fn complete(&mut self) -> Completed {
        let arrivals: Vec<(Collective, Knowledge)> =
            self.arrivals.iter_mut().map(|arrival| arrival.take().expect("all have arrived")).collect();
        self.arrived = 0;
        let mut timestamp = arrivals[0].1.timestamp.clone();
        arrivals.iter().for_each(|(_, knowledge)| timestamp.merge(&knowledge.timestamp));
        let mut calls = arrivals.iter().map(|(collective, _)| *collective);
        let collective = calls.find(|collective| *collective != Collective::Follow);
        let departures = arrivals.iter().enumerate().map(|(receiver, (_, knowledge))| {
            let others = arrivals.iter().enumerate().filter(|(sender, _)| *sender != receiver);
            let notices = others.flat_map(|(_, (_, theirs))| &theirs.notices);
            let lacking = |notice: &&IntervalNotice| notice.seq > knowledge.timestamp.get(notice.node);
            Knowledge {
                timestamp: timestamp.clone(),
                notices: notices.filter(lacking).cloned().collect(),
                epoch: self.epoch + 1,
                beyond_arrival: false,
            }
        });
        let departures = departures.collect();
        let epoch = self.epoch;
        self.epoch += 1;
        Completed { epoch, collective: collective.unwrap_or(Collective::Follow), departures }
    }
}

#[cfg(test)]
mod tests {
    use hiroba_base::{PageId, PageSize, VectorTimestamp};
    use hiroba_wire::Placement;

    use super::*;

    fn knowledge(nodes: u16, of: u16, seq: u64, pages: &[u64]) -> Knowledge {
        let mut timestamp = VectorTimestamp::new(nodes);
        timestamp.advance(NodeId(of), seq);
        let pages = pages.iter().copied().map(PageId).collect();
        Knowledge {
            timestamp,
            notices: vec![IntervalNotice { node: NodeId(of), seq, pages }],
            epoch: 0,
            beyond_arrival: false,
        }
    }

    #[test]
    fn everybody_learns_what_the_others_wrote_and_nothing_else() {
        let mut manager = BarrierManager::new(3);
        for epoch in 0..2 {
            let seq = epoch + 1;
            for node in [2, 0] {
                let arrived =
                    manager.arrive(NodeId(node), epoch, Collective::Barrier, knowledge(3, node, seq, &[7]));
                assert_eq!(arrived, Ok(Ok(None)));
            }
            let mut last = knowledge(3, 1, seq, &[8]);
            last.timestamp.advance(NodeId(2), seq); // node 1 has acquired a lock from node 2 meanwhile
            let completed =
                manager.arrive(NodeId(1), epoch, Collective::Barrier, last).unwrap().unwrap().unwrap();
            let writers = |receiver: usize| {
                completed.departures[receiver].notices.iter().map(|notice| notice.node.0).collect::<Vec<_>>()
            };
            assert_eq!((writers(0), writers(1), writers(2)), (vec![1, 2], vec![0], vec![0, 1]));
            assert!(NodeId::all(3).all(|node| completed.departures[0].timestamp.get(node) == seq));
        }
    }

    #[test]
    fn different_collectives_are_a_mismatch_but_followers_follow() {
        let mut manager = BarrierManager::new(3);
        let allocate =
            Collective::Allocate { bytes: 8, placement: Placement::Block, page_size: PageSize::KIB_4 };
        assert_eq!(manager.arrive(NodeId(1), 0, Collective::Follow, knowledge(3, 1, 1, &[])), Ok(Ok(None)));
        assert_eq!(manager.arrive(NodeId(0), 0, allocate, knowledge(3, 0, 1, &[])), Ok(Ok(None)));
        let mismatch = manager.arrive(NodeId(2), 0, Collective::Barrier, knowledge(3, 2, 1, &[])).unwrap();
        let sentence = mismatch.unwrap_err().sentence();
        assert!(
            sentence.contains("node 2 called hiroba_barrier while node 0 waits in hiroba_alloc"),
            "{sentence}"
        );
        let completed = manager.arrive(NodeId(2), 0, Collective::Follow, knowledge(3, 2, 1, &[]));
        assert_eq!(completed.unwrap().unwrap().unwrap().collective, allocate);
        assert!(manager.arrive(NodeId(2), 0, Collective::Barrier, knowledge(3, 2, 1, &[])).is_err());
    }
}
