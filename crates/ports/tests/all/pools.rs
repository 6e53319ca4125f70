//! The landing pools of simulated nodes, and the rules for who may write there, and when.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hiroba_base::NodeId;
use hiroba_ports::wire::{Envelope, FlowKey, Load, Packet};
use hiroba_ports::{Engine, Ground, UNIT_BYTES};

/// What is in a place that was given to a sender before anything is written there.
const STALE: u8 = 0xee;

/// A node's pool. No program accesses it by its address.
#[derive(Debug)]
struct Field(Mutex<Vec<u8>>);

impl Field {
    fn on<T>(&self, act: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Ground for Field {
    fn bytes(&self) -> u64 {
        self.on(|bytes| bytes.len() as u64)
    }

    fn address(&self, offset: u64) -> *mut u8 {
        self.on(|bytes| bytes[offset as usize..].as_mut_ptr())
    }

    fn append_to(&self, offset: u64, bytes: usize, into: &mut Vec<u8>) {
        self.on(|field| into.extend_from_slice(&field[offset as usize..][..bytes]));
    }
}

/// A long message: its receiver and sender, its flow and number.
type Key = (NodeId, NodeId, FlowKey, u64);

/// The pools of all nodes. Without pools, all long messages come in pieces.
#[derive(Default)]
pub struct Pools {
    fields: Vec<Arc<Field>>,
    /// The room that senders have asked for.
    asked: BTreeMap<Key, u64>,
    /// The places that senders may write to.
    open: BTreeMap<Key, Range<u64>>,
    /// Data that are put into their places too late.
    late: Vec<(NodeId, u64, Vec<u8>)>,
}

impl Pools {
    /// Gives each engine a pool of `units` units.
    pub fn open(engines: &mut [Engine], units: u64) -> Pools {
        let mut pools = Pools::default();
        for engine in engines {
            let field = Arc::new(Field(Mutex::new(vec![STALE; (units * UNIT_BYTES) as usize])));
            engine.land_on(field.clone());
            pools.fields.push(field);
        }
        pools
    }

    /// Notes a packet that a node sends. Returns the rule that it breaks, if any.
    pub fn note_sent(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) -> Result<(), String> {
        if self.fields.is_empty() {
            return Ok(());
        }
        let nodes = self.fields.len() as u16;
        let Ok(Envelope { packet, .. }) = Envelope::decode(bytes, nodes) else { return Ok(()) };
        match packet {
            Packet::Request { flow, number, load: Load::Bytes { landing_bytes, .. }, .. } => {
                self.asked.insert((to, from, flow, number), landing_bytes);
            }
            Packet::Permit { flow, number, landing: Some(start) } => {
                let key = (from, to, flow, number);
                let bytes = self.asked.get(&key).copied().unwrap_or(0).max(1);
                let place = start..start + bytes.next_multiple_of(UNIT_BYTES);
                let field = &self.fields[from.index()];
                if place.end > field.bytes() {
                    return Err(format!("node {from} gives {place:?} of its pool, which is shorter"));
                }
                let overlaps = |other: &Range<u64>| other.start < place.end && place.start < other.end;
                let same = self.open.iter().find(|((at, ..), other)| *at == from && overlaps(other));
                if let Some(((_, other, ..), _)) = same {
                    let what = format!("node {from} gives {place:?} to {to}");
                    return Err(format!("{what}, while node {other} may write there"));
                }
                // If a program still has the place, it notices.
                field.on(|bytes| bytes[place.start as usize..place.end as usize].fill(STALE));
                self.open.insert(key, place);
            }
            Packet::Begin { flow, number, .. } | Packet::GaveUp { flow, number } => {
                self.open.remove(&(to, from, flow, number));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts data into a node's pool. Returns the rule that this breaks, if any.
    pub fn land(&mut self, from: NodeId, to: NodeId, offset: u64, data: &[u8]) -> Result<(), String> {
        let end = offset + data.len() as u64;
        let is_in = |place: &Range<u64>| place.start <= offset && end <= place.end;
        if !self.open.iter().any(|((at, by, ..), place)| *at == to && *by == from && is_in(place)) {
            return Err(format!(
                "node {from} writes at {offset} to {end} of the pool of {to}, not its place"
            ));
        }
        self.put(to, offset, data);
        Ok(())
    }

    fn put(&self, to: NodeId, offset: u64, data: &[u8]) {
        self.fields[to.index()].on(|field| field[offset as usize..][..data.len()].copy_from_slice(data));
    }

    /// Keeps data that a planted bug puts into their place too late.
    pub fn land_late(&mut self, to: NodeId, offset: u64, data: Vec<u8>) {
        self.late.push((to, offset, data));
    }

    pub fn put_late(&mut self) {
        for (to, offset, data) in std::mem::take(&mut self.late) {
            self.put(to, offset, &data);
        }
    }

    /// Notes that a node has died, which does not write any more.
    pub fn note_death(&mut self, node: NodeId) {
        self.open.retain(|(at, by, ..), _| *at != node && *by != node);
    }
}
