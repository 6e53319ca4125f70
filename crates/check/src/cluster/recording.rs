//! Records what a simulated node does, in the same form as a traced real one.

use hiroba_base::{Access, NodeId, PageId, PageRange};
use hiroba_protocol::Protocol;
use hiroba_protocol::{Engine, Fact, Synchronisation};
use hiroba_trace::{Activity, Event, MessageKind, Record, ThreadNumber};
use hiroba_wire::Collective;

use super::options::protocol_of;
use super::{Cluster, Failure};
use crate::execution::{NodeRecords, Run};
use crate::narration::Narration;
use crate::program::{GRANULE_BYTES, Program, Region};

/// The records of a run, as they are made.
#[derive(Default)]
pub(super) struct Recorder {
    enabled: bool,
    run: Run,
    /// The thread that acts on each node now.
    actors: Vec<ThreadNumber>,
    /// Narrates the messages and actions of nodes.
    pub(super) narration: Option<Narration>,
}

impl Recorder {
    pub(super) fn new(enabled: bool, nodes: u16) -> Recorder {
        let nodes = usize::from(nodes);
        Recorder {
            enabled,
            run: Run { nodes: vec![NodeRecords::default(); nodes] },
            actors: vec![ThreadNumber::RUNTIME; nodes],
            narration: None,
        }
    }

    pub(super) fn run(&self) -> &Run {
        &self.run
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

/// Returns the kind of a message: the first byte of its encoding.
fn kind_of(bytes: &[u8]) -> MessageKind {
    MessageKind(bytes.first().copied().unwrap_or_default())
}

/// Returns the activity of a thread in a call.
pub(super) fn activity_of(sync: Synchronisation) -> Activity {
    match sync {
        Synchronisation::Acquire(lock) | Synchronisation::TryAcquire(lock) => Activity::Acquire(lock),
        Synchronisation::Release(lock) => Activity::Release(lock),
        Synchronisation::Wait(cond, lock) => Activity::Wait(cond, lock),
        Synchronisation::Signal(cond) | Synchronisation::Broadcast(cond) => Activity::Signal(cond),
        Synchronisation::Collective(Collective::Barrier) => Activity::Barrier,
        Synchronisation::Collective(_) => Activity::Collective,
        Synchronisation::Publish(to) | Synchronisation::Inform(to) => Activity::Publish(to),
        Synchronisation::Convert(_)
        | Synchronisation::Place(_)
        | Synchronisation::AwaitOthers
        | Synchronisation::Conclude => Activity::Other,
    }
}

/// Returns the homes of a region's pages in turn.
fn homes_of(region: &Region, home_of: impl Fn(PageId) -> Option<NodeId>) -> Vec<(NodeId, u64)> {
    let granules_per_page = region.page_size.bytes() / GRANULE_BYTES as usize;
    let mut homes: Vec<(NodeId, u64)> = Vec::new();
    for home in region.granules.iter().step_by(granules_per_page).filter_map(home_of) {
        match homes.last_mut() {
            Some(last) if last.0 == home => last.1 += 1,
            _ => homes.push((home, 1)),
        }
    }
    homes
}

impl<E: Engine> Cluster<E> {
    /// Records an event of a thread.
    pub(super) fn note(&mut self, thread: usize, event: Event) {
        let thread = &self.threads[thread];
        self.recorder.add(thread.node, ThreadNumber(thread.waiter.0), self.progress.steps, event);
    }

    /// Records an event of a node, by the thread that acts there.
    pub(super) fn note_at(&mut self, node: NodeId, event: Event) {
        let actor = self.recorder.actors[node.index()];
        self.recorder.add(node, actor, self.progress.steps, event);
    }

    pub(super) fn note_regions(&mut self, program: &Program, protocols: &[Option<Protocol>]) {
        for node in NodeId::all(self.limits.nodes) {
            for (number, region) in program.regions.iter().enumerate() {
                let protocol = protocol_of(protocols, number).map_or("", Protocol::name).to_owned();
                let homes = homes_of(region, |page| self.nodes[node.index()].engine.home_of(page));
                let Region { granules, page_size, .. } = *region;
                self.note_at(node, Event::Region { granules, page_size, homes, protocol });
            }
        }
    }

    /// Records that a thread calls its node's engine.
    pub(super) fn enter(&mut self, thread: usize, activity: Activity) {
        let (node, number) = (self.threads[thread].node, ThreadNumber(self.threads[thread].waiter.0));
        self.recorder.actors[node.index()] = number;
        self.note(thread, Event::Enter(activity));
    }

    /// Notes that the node's runtime acts by itself.
    pub(super) fn acts_by_itself(&mut self, node: NodeId) {
        self.recorder.actors[node.index()] = ThreadNumber::RUNTIME;
    }

    /// Records that the node's runtime handles a message.
    pub(super) fn begin_serving(&mut self, node: NodeId, from: NodeId, bytes: &[u8]) {
        self.recorder.actors[node.index()] = ThreadNumber::RUNTIME;
        let kind = kind_of(bytes);
        self.note_at(node, Event::Received { from, kind, bytes: bytes.len() as u32 });
        self.note_at(node, Event::Enter(Activity::Serve { from, kind }));
    }

    pub(super) fn note_sent(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        if let Some(narration) = &self.recorder.narration {
            narration.sends(from, to, bytes, &self.limits);
        }
        self.note_at(from, Event::Sent { to, kind: kind_of(bytes), bytes: bytes.len() as u32 });
    }

    pub(super) fn note_access(&mut self, node: NodeId, granules: PageRange, access: Access) {
        self.note_at(node, Event::Access { granules, access });
    }

    /// Records what the engine reports. The host knows facts about threads better, and compares them.
    pub(super) fn note_fact(&mut self, node: NodeId, fact: Fact) -> Result<(), Failure> {
        let event = match fact {
            Fact::Acquired { lock, turn, .. } => {
                let turns = self.truth.locks.get(&lock).map_or(0, |record| record.turns);
                if turn == turns {
                    return Ok(());
                }
                let sentence =
                    format!("lock {} is taken in turn {turns}, but the engine says {turn}", lock.0);
                return Err(Failure::Host { node, sentence });
            }
            Fact::Applied { page, writer, seq, bytes } => {
                let applied = self.nodes[node.index()].applied.remove(&page);
                if bytes > 0 && !applied {
                    return Ok(());
                }
                Event::Applied { page, writer, seq, bytes }
            }
            Fact::Holds { page, version } => Event::Holds { page, version },
            Fact::Moved { pages, to } => Event::Moved { pages, to },
            Fact::Converted { page } => Event::Converted { page },
            Fact::Closed { seq, pages } => Event::Closed { seq, pages },
            Fact::Seen { grown } => Event::Seen { grown },
            Fact::Met { waiter, epoch } => {
                let number = self.nodes[node.index()].threads[waiter.0 as usize];
                self.threads[number].has_met = true;
                self.note(number, Event::Met { epoch });
                return Ok(());
            }
            Fact::Released { .. }
            | Fact::Published { .. }
            | Fact::PublicationSeen { .. }
            | Fact::Atomic { .. } => return Ok(()),
        };
        self.note_at(node, event);
        Ok(())
    }
}
