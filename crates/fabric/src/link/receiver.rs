//! The receiving half of a link: puts datagrams in order, joins fragments into messages, and decides
//! when to acknowledge.

use core::time::Duration;

use hiroba_base::Instant;

use super::header::{Frames, Header, Rejected};
use super::pool::{BufferPool, Buffers};
use crate::unsent::MESSAGE_BYTES_MAX;

/// How far ahead of the next expected datagram others are kept: the width of the selective
/// acknowledgement, beyond which a sender never goes.
pub const REORDER_DATAGRAMS_MAX: u64 = 64;

/// How long an acknowledgement waits for data to travel with. RFC 1122 §4.2.3.2 allows half a second; the
/// sender's least timeout must outlast it.
pub const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(1);

/// Datagrams after which the acknowledgement waits no longer. Senders ask for it when their window
/// is half used, so this only bounds how long they keep what has arrived.
const UNACKNOWLEDGED_DATAGRAMS_MAX: u32 = 32;

/// What became of a datagram with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Its messages, if it completed any, have been handed out or wait for earlier datagrams.
    New,
    /// It had come before.
    Duplicate,
}

/// The receiving half of a link.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The sequence number that all before have come.
    next: u64,
    /// Bit i: `next + 1 + i` is kept.
    ahead: u64,
    /// The kept payloads by sequence number modulo the buffer's size; empty until something is out of order.
    kept: Vec<Vec<u8>>,
    /// The beginning of a message whose last fragment has not come.
    partial: Option<Vec<u8>>,
    unacknowledged: u32,
    acknowledge_now: bool,
    acknowledge_at: Option<Instant>,
}

impl Receiver {
    /// Every sequence number below has come.
    pub fn acknowledged(&self) -> u64 {
        self.next
    }

    /// Which later ones have come, as the header says it.
    pub fn selective(&self) -> u64 {
        self.ahead
    }

    /// Whether an acknowledgement must leave even without data.
    pub fn must_acknowledge(&self) -> bool {
        self.acknowledge_now
    }

    /// When an acknowledgement that waits for data waits no longer.
    pub fn deadline(&self) -> Option<Instant> {
        if self.acknowledge_now { None } else { self.acknowledge_at }
    }

    /// Out-of-order datagrams kept, and bytes of an unfinished message.
    pub fn kept(&self) -> (usize, usize) {
        (self.ahead.count_ones() as usize, self.partial.as_ref().map_or(0, Vec::len))
    }

    /// A datagram that bears the acknowledgement leaves.
    pub fn acknowledgement_sent(&mut self) {
        self.unacknowledged = 0;
        self.acknowledge_now = false;
        self.acknowledge_at = None;
    }

    /// Lets an acknowledgement that waits for data wait no longer.
    pub fn hasten_acknowledgement(&mut self) {
        self.acknowledge_now |= self.acknowledge_at.is_some();
    }

    /// The delayed-acknowledgement timer.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.acknowledge_at.is_some_and(|deadline| deadline <= now) {
            self.acknowledge_now = true;
        }
    }

    /// Whether a datagram with data lies in the window.
    ///
    /// # Errors
    ///
    /// [`Rejected::Sequence`] when it lies beyond; it will come again when the window has moved.
    pub fn check_sequence(&self, sequence: u64) -> Result<(), Rejected> {
        let limit = self.next.saturating_add(REORDER_DATAGRAMS_MAX);
        if sequence > limit { Err(Rejected::Sequence { limit, got: sequence }) } else { Ok(()) }
    }

    /// Takes in a datagram with data that [`Receiver::check_sequence`] has passed.
    pub fn handle_data(
        &mut self,
        header: &Header,
        payload: &[u8],
        now: Instant,
        buffers: &mut Buffers,
        deliver: &mut dyn FnMut(Vec<u8>),
    ) -> Accepted {
        let had_gap = self.ahead != 0;
        let accepted = self.take_in(header.sequence, payload, buffers, deliver);
        self.unacknowledged += 1;
        // At once: what the sender asks for; a duplicate, since our last acknowledgement was lost or
        // late; a gap made or filled, for fast retransmission (RFC 5681 §4.2).
        self.acknowledge_now |= header.acknowledge_now
            || accepted == Accepted::Duplicate
            || had_gap
            || self.ahead != 0
            || self.unacknowledged >= UNACKNOWLEDGED_DATAGRAMS_MAX;
        if self.acknowledge_at.is_none() {
            self.acknowledge_at = Some(now + ACKNOWLEDGEMENT_DELAY);
        }
        accepted
    }

    fn take_in(
        &mut self,
        sequence: u64,
        payload: &[u8],
        buffers: &mut Buffers,
        deliver: &mut dyn FnMut(Vec<u8>),
    ) -> Accepted {
        if sequence < self.next {
            return Accepted::Duplicate;
        }
        if sequence > self.next {
            let bit = 1 << (sequence - self.next - 1);
            if self.ahead & bit != 0 {
                return Accepted::Duplicate;
            }
            self.ahead |= bit;
            self.keep(sequence, payload, &mut buffers.datagrams);
            return Accepted::New;
        }
        self.join(payload, deliver, &mut buffers.messages);
        self.next += 1;
        loop {
            let follows = self.ahead & 1 != 0;
            self.ahead >>= 1;
            if !follows {
                return Accepted::New;
            }
            let place = (self.next % REORDER_DATAGRAMS_MAX) as usize;
            let payload = std::mem::take(&mut self.kept[place]);
            self.join(&payload, deliver, &mut buffers.messages);
            buffers.datagrams.give(payload);
            self.next += 1;
        }
    }

    fn keep(&mut self, sequence: u64, payload: &[u8], pool: &mut BufferPool) {
        if self.kept.is_empty() {
            self.kept.resize_with(REORDER_DATAGRAMS_MAX as usize, Vec::new);
        }
        let mut buffer = pool.take(payload.len());
        buffer.extend_from_slice(payload);
        self.kept[(sequence % REORDER_DATAGRAMS_MAX) as usize] = buffer;
    }

    /// Joins the frames of the next payload in order. Fragments that continue nothing, and beginnings that
    /// never end, come only from a sender that is not this code; they are skipped.
    fn join(&mut self, payload: &[u8], deliver: &mut dyn FnMut(Vec<u8>), messages: &mut BufferPool) {
        for frame in Frames::new(payload) {
            if frame.first {
                let bytes = frame.bytes.len();
                if let Some(endless) = self.partial.take() {
                    messages.give(endless);
                }
                self.partial =
                    Some(if frame.last { messages.take(bytes) } else { messages.take_large(bytes) });
            }
            let Some(partial) = &mut self.partial else { continue };
            if partial.len() + frame.bytes.len() > MESSAGE_BYTES_MAX {
                self.partial = None;
                continue;
            }
            partial.extend_from_slice(frame.bytes);
            if frame.last
                && let Some(message) = self.partial.take()
            {
                deliver(message);
            }
        }
    }
}
