//! Hooks between the reliable link and the network: sealing, injected faults, and a place for more.
//!
//! ```text
//!   link  ── first ──▶ … ── last ──▶  socket        outgoing halves, in this order
//!   link  ◀── first ── … ◀── last ──  socket        incoming halves, in the reverse order
//! ```
//!
//! A [`Hook`] has two halves because two threads use them at once. Datagrams leave under the lock of sending.
//! The thread in the receiving role handles incoming ones, and must not hold that lock while it opens seals.
//! Halves that share state synchronise it themselves. To add a hook, implement one half or both, and pass it
//! where a fabric is opened ([`UdpFabric::with_hooks`](crate::UdpFabric::with_hooks)). A tracing hook comes
//! first, where datagrams are readable.

pub mod inject;
mod replay;
pub mod sealing;

use core::ops::Range;

use hiroba_base::NodeId;

use crate::traits::FabricConfig;
use inject::FaultInjector;
use sealing::Sealing;

/// Handles outgoing datagrams.
pub trait Outgoing: Send {
    /// Passes `datagram` on to `next`: unchanged, changed, several times, later, or not at all.
    fn pass(&mut self, to: NodeId, datagram: &[u8], next: &mut dyn FnMut(NodeId, &[u8]));
}

/// Handles incoming datagrams.
pub trait Incoming: Send {
    /// Returns the range of `datagram`, which came from the address of `from`, that is passed on. `None`
    /// drops the datagram, and it is counted as rejected. May change the bytes. Must not panic or allocate,
    /// whatever the bytes.
    fn pass(&mut self, from: NodeId, datagram: &mut [u8]) -> Option<Range<usize>>;
}

/// One hook: its outgoing and its incoming half.
#[derive(Default)]
pub struct Hook {
    /// The outgoing half, if there is one.
    pub outgoing: Option<Box<dyn Outgoing>>,
    /// The incoming half, if there is one.
    pub incoming: Option<Box<dyn Incoming>>,
    /// The number of bytes that it adds to a datagram.
    pub overhead_bytes: usize,
}

/// Returns the hooks of a job over datagrams: the seal, and beneath it the injected faults, which simulate
/// the network.
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

/// Splits a stack into its halves. Also returns the number of bytes that all hooks add to a datagram. The
/// first hook is next to the link.
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
    /// Passes `datagram` through all halves. `emit` receives the datagrams that leave.
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
    /// Returns the range of `datagram` that the link receives, or `None` when a hook has dropped it.
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

    /// Adds its letter to outgoing datagrams, removes it from incoming ones, and notes both.
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
