//! What a simulated node writes down: the same records as a real one that is traced.

use hiroba_base::{Access, NodeId, PageId, PageRange, VersionVector};
use hiroba_protocol::{Engine, Sync};
use hiroba_trace::{Activity, Event, MessageKind, Record, ThreadNumber};
use hiroba_wire::{Collective, PageCopy};

use super::Cluster;
use crate::execution::{NodeRecords, Run};
use crate::program::{Program, Region};

/// The records of a run, as they are made.
#[derive(Default)]
pub(super) struct Recorder {
    enabled: bool,
    run: Run,
    /// By node, who acts there now.
    actors: Vec<ThreadNumber>,
    /// By node, the versions of the copies in the message that came last.
    versions: Vec<Vec<(PageId, VersionVector)>>,
}

impl Recorder {
    pub(super) fn new(enabled: bool, nodes: u16) -> Recorder {
        let nodes = usize::from(nodes);
        Recorder {
            enabled,
            run: Run { nodes: vec![NodeRecords::default(); nodes] },
            actors: vec![ThreadNumber::RUNTIME; nodes],
            versions: vec![Vec::new(); nodes],
        }
    }

    pub(super) fn finish(self) -> Run {
        self.run
    }

    fn add(&mut self, node: NodeId, thread: ThreadNumber, at_ns: u64, event: Event) {
        if self.enabled {
            self.run.nodes[node.index()].records.push(Record { thread, at_ns, event });
        }
    }
}

/// The kind of a message: the first byte of its encoding.
fn kind_of(bytes: &[u8]) -> MessageKind {
    MessageKind(bytes.first().copied().unwrap_or_default())
}

/// What a thread does in a call.
pub(super) fn activity_of(sync: Sync) -> Activity {
    match sync {
        Sync::Acquire(lock) | Sync::TryAcquire(lock) => Activity::Acquire(lock),
        Sync::Release(lock) => Activity::Release(lock),
        Sync::Wait(cond, lock) => Activity::Wait(cond, lock),
        Sync::Signal(cond) | Sync::Broadcast(cond) => Activity::Signal(cond),
        Sync::Collective(Collective::Barrier) => Activity::Barrier,
        Sync::Collective(_) => Activity::Collective,
        Sync::Publish(to) => Activity::Publish(to),
    }
}

/// The homes of a region's pages, as runs.
fn homes_of(region: &Region, home_of: impl Fn(PageId) -> Option<NodeId>) -> Vec<(PageId, NodeId)> {
    let mut homes: Vec<(PageId, NodeId)> = Vec::new();
    for granule in region.granules.iter() {
        let Some(home) = home_of(granule) else { continue };
        let end = PageId(granule.0 + 1);
        match homes.last_mut() {
            Some(last) if last.1 == home => last.0 = end,
            _ => homes.push((end, home)),
        }
    }
    homes
}

impl<E: Engine> Cluster<E> {
    /// A thread did something.
    pub(super) fn note(&mut self, thread: usize, event: Event) {
        let thread = &self.threads[thread];
        self.recorder.add(thread.node, ThreadNumber(thread.waiter.0), self.steps, event);
    }

    /// Something became of a node, by whoever acts there.
    pub(super) fn note_at(&mut self, node: NodeId, event: Event) {
        let actor = self.recorder.actors[node.index()];
        self.recorder.add(node, actor, self.steps, event);
    }

    pub(super) fn note_regions(&mut self, program: &Program) {
        for node in NodeId::all(self.limits.nodes) {
            for region in &program.regions {
                let homes = homes_of(region, |page| self.nodes[node.index()].engine.home_of(page));
                let Region { granules, page_size, .. } = *region;
                self.note_at(node, Event::Region { granules, page_size, homes });
            }
        }
    }

    /// A thread calls its node's engine.
    pub(super) fn enter(&mut self, thread: usize, activity: Activity) {
        let (node, number) = (self.threads[thread].node, ThreadNumber(self.threads[thread].waiter.0));
        self.recorder.actors[node.index()] = number;
        self.note(thread, Event::Enter(activity));
    }

    /// The node's runtime handles a message.
    pub(super) fn begin_serving(&mut self, node: NodeId, from: NodeId, bytes: &[u8], copies: &[PageCopy]) {
        self.recorder.actors[node.index()] = ThreadNumber::RUNTIME;
        self.recorder.versions[node.index()] =
            copies.iter().map(|copy| (copy.page, copy.version.clone())).collect();
        let kind = kind_of(bytes);
        self.note_at(node, Event::Received { from, kind, bytes: bytes.len() as u32 });
        self.note_at(node, Event::Enter(Activity::Serve { from, kind }));
    }

    pub(super) fn note_sent(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        self.note_at(from, Event::Sent { to, kind: kind_of(bytes), bytes: bytes.len() as u32 });
    }

    pub(super) fn note_access(&mut self, node: NodeId, granules: PageRange, access: Access) {
        self.note_at(node, Event::Access { granules, access });
    }

    /// Pages came with the message that is being handled.
    pub(super) fn note_installed(&mut self, node: NodeId, pages: PageRange) {
        let versions = self.recorder.versions[node.index()].clone();
        for (page, version) in versions.into_iter().filter(|(page, _)| pages.contains(*page)) {
            self.note_at(node, Event::Holds { page, version });
        }
    }

    /// Pages were read from their home's frames. What the home itself wrote needs no publication: a notice of it tells that it is there.
    pub(super) fn note_read(
        &mut self,
        node: NodeId,
        pages: PageRange,
        page_bytes: u32,
        home: NodeId,
        needed: &VersionVector,
    ) {
        let mut version = needed.clone();
        version.advance(home, self.nodes[node.index()].engine.seen().0.get(home));
        let granules = u64::from(page_bytes / self.limits.granule_bytes);
        for page in pages.iter().step_by(granules as usize) {
            self.note_at(node, Event::Holds { page, version: version.clone() });
        }
    }

    /// The diff that was made here, or applied.
    pub(super) fn note_applied(&mut self, node: NodeId, page: PageId, bytes: usize) {
        let Some((writer, seq)) = self.nodes[node.index()].diffs_from else { return };
        self.note_at(node, Event::Applied { page, writer, seq, bytes: bytes as u32 });
    }
}
