//! What stands between the reliable link and the network: sealing, injected faults, and a place for more.
//!
//! ```text
//!   link  ── first ──▶ … ── last ──▶  socket        outgoing halves, in this order
//!   link  ◀── first ── … ◀── last ──  socket        incoming halves, in the reverse order
//! ```
//!
//! A [`Hook`] has two halves because two threads use them at once: datagrams leave under the lock of sending, and those that come
//! are looked at by the thread in the receiving role, which must not hold that lock while it opens seals. What halves share, they
//! share by their own means. To add one, implement either half, or both, and name it where a fabric is opened
//! ([`UdpFabric::with_hooks`](crate::UdpFabric::with_hooks)). A hook that traces stands first, where datagrams are readable.

pub mod inject;
mod replay;
pub mod sealing;

use core::ops::Range;

use hiroba_base::NodeId;

use crate::traits::FabricConfig;
use inject::FaultInjector;
use sealing::Sealing;

/// A hook's view of the datagrams that leave.
pub trait Outgoing: Send {
    /// Passes `datagram` on to `next`: as it is, changed, several times, later, or not at all.
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8]));
}

/// A hook's view of the datagrams that come.
pub trait Incoming: Send {
    /// Where in `datagram`, which came from the address of `from`, lies what is to be passed on; `None` drops it, and it is
    /// counted as rejected. May change the bytes. No bytes make this panic or allocate.
    fn pass(&mut self, from: NodeId, datagram: &mut [u8]) -> Option<Range<usize>>;
}

/// One hook: what it does on the way out, and on the way in.
#[derive(Default)]
pub struct Hook {
    /// What it does to datagrams that leave; nothing when there is none.
    pub outgoing: Option<Box<dyn Outgoing>>,
    /// What it does to datagrams that come; nothing when there is none.
    pub incoming: Option<Box<dyn Incoming>>,
    /// By how much it lengthens a datagram, in bytes.
    pub overhead_bytes: usize,
}

/// The hooks of a job over datagrams: its seal, beneath it the faults to inflict, which are the network.
pub fn of_job(config: &FabricConfig) -> Vec<Hook> {
    let mut hooks = vec![Sealing::hook(config)];
    hooks.extend(config.inject.map(|faults| Hook {
        outgoing: Some(Box::new(FaultInjector::new(faults, u64::from(config.local.0)))),
        ..Hook::default()
    }));
    hooks
}

/// The outgoing halves of a stack of hooks.
#[derive(Default)]
pub struct OutgoingHooks(Vec<Box<dyn Outgoing>>);

/// The incoming halves of a stack of hooks.
#[derive(Default)]
pub struct IncomingHooks(Vec<Box<dyn Incoming>>);

/// Takes a stack apart: its halves, and by how much all together lengthen a datagram, in bytes. The first hook is the link's neighbour.
pub fn stack(hooks: Vec<Hook>) -> (OutgoingHooks, IncomingHooks, usize) {
    let mut overhead_bytes = 0;
    let (mut outgoing, mut incoming) = (OutgoingHooks::default(), IncomingHooks::default());
    for hook in hooks {
        overhead_bytes += hook.overhead_bytes;
        outgoing.0.extend(hook.outgoing);
        incoming.0.extend(hook.incoming);
    }
    (outgoing, incoming, overhead_bytes)
}

impl OutgoingHooks {
    /// Passes `datagram` through all halves; `emit` gets what leaves.
    pub fn pass(&mut self, to: NodeId, datagram: &[u8], emit: &mut dyn FnMut(NodeId, &[u8])) {
        pass_each(&mut self.0, to, datagram, emit);
    }
}

fn pass_each(
    hooks: &mut [Box<dyn Outgoing>],
    to: NodeId,
    datagram: &[u8],
    emit: &mut dyn FnMut(NodeId, &[u8]),
) {
    match hooks.split_first_mut() {
        Some((hook, rest)) => {
            hook.pass(to, datagram, &mut |to, datagram| pass_each(rest, to, datagram, emit));
        }
        None => emit(to, datagram),
    }
}

impl IncomingHooks {
    /// Where in `datagram` lies what the link is to see; `None` when a hook has dropped it.
    pub fn pass(&mut self, from: NodeId, datagram: &mut [u8]) -> Option<Range<usize>> {
        let mut rest = 0..datagram.len();
        for hook in self.0.iter_mut().rev() {
            let within = hook.pass(from, &mut datagram[rest.clone()])?;
            rest = rest.start + within.start..rest.start + within.end;
        }
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Adds its letter to what leaves, takes it from what comes, and notes both.
    struct Letter(u8, Arc<Mutex<Vec<(char, u8)>>>);

    impl Outgoing for Letter {
        fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8])) {
            self.1.lock().unwrap().push(('>', self.0));
            next(to, &[&[self.0], datagram].concat());
        }
    }

    impl Incoming for Letter {
        fn pass(&mut self, _: NodeId, datagram: &mut [u8]) -> Option<Range<usize>> {
            self.1.lock().unwrap().push(('<', self.0));
            (datagram.first() == Some(&self.0)).then_some(1..datagram.len())
        }
    }

    #[test]
    fn hooks_are_passed_in_order_and_in_reverse_and_may_drop() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let letter = |letter: u8| Hook {
            outgoing: Some(Box::new(Letter(letter, notes.clone()))),
            incoming: Some(Box::new(Letter(letter, notes.clone()))),
            overhead_bytes: 1,
        };
        let (mut outgoing, mut incoming, overhead_bytes) = stack(vec![letter(b'a'), letter(b'b')]);
        assert_eq!(overhead_bytes, 2);
        let mut left = Vec::new();
        outgoing.pass(NodeId(1), b"page", &mut |_, datagram| left = datagram.to_vec());
        assert_eq!(left, b"bapage");
        assert_eq!(incoming.pass(NodeId(1), &mut left), Some(2..6));
        assert_eq!(incoming.pass(NodeId(1), &mut b"bxpage".to_vec()), None);
        assert_eq!(incoming.pass(NodeId(1), &mut []), None);
        let notes: String =
            notes.lock().unwrap().iter().map(|&(way, letter)| format!("{way}{}", letter as char)).collect();
        assert_eq!(notes, ">a>b<b<a<b<a<b");
    }
}
