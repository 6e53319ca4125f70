//! The receiving half of a link: orders datagrams, joins fragments into messages, and decides when to
//! acknowledge.

use core::ops::Range;
use core::time::Duration;

use hiroba_base::Instant;

use super::header::{Frames, HEADER_BYTES, Header, Rejected};
use super::pool::{BufferPool, Buffers};
use crate::unsent::MESSAGE_BYTES_MAX;

/// How far ahead of the next expected datagram others are kept: the width of the selective acknowledgement,
/// which a sender never exceeds.
pub const REORDER_DATAGRAMS_MAX: u64 = 64;

/// How long an acknowledgement waits for data to carry it. RFC 1122 §4.2.3.2 allows half a second; the
/// sender's minimum timeout must be longer than this.
pub const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_millis(1);

/// Number of datagrams after which an acknowledgement is sent at once. Senders ask for one when their window
/// is half used, so this only bounds how long they keep what has arrived.
const UNACKNOWLEDGED_DATAGRAMS_MAX: u32 = 32;

/// The result of a datagram with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The messages that it completed, if any, were delivered or wait for earlier datagrams.
    New,
    /// It has arrived before.
    Duplicate,
}

/// A message that is next in order.
#[derive(Debug)]
pub enum Arrived {
    /// It lies whole in the datagram that is being handled, at this place.
    Within(Range<usize>),
    /// It was joined from several datagrams, or copied because its datagram came too early.
    Copied(Vec<u8>),
}

impl Arrived {
    /// Returns the message as bytes of its own; `datagram` is the one that was being handled.
    pub fn into_bytes(self, datagram: &[u8]) -> Vec<u8> {
        match self {
            Arrived::Within(place) => datagram[place].to_vec(),
            Arrived::Copied(bytes) => bytes,
        }
    }
}

/// The receiving half of a link.
#[derive(Debug, Default)]
pub struct Receiver {
    /// All lower sequence numbers have arrived.
    next: u64,
    /// Bit i: `next + 1 + i` is kept.
    ahead: u64,
    /// The kept payloads by sequence number modulo the buffer's size; empty until a datagram arrives out of
    /// order.
    kept: Vec<Vec<u8>>,
    /// The beginning of a message whose last fragment has not arrived.
    partial: Option<Vec<u8>>,
    unacknowledged: u32,
    acknowledge_now: bool,
    acknowledge_at: Option<Instant>,
}

impl Receiver {
    /// Returns the first sequence number that has not arrived.
    pub fn acknowledged(&self) -> u64 {
        self.next
    }

    /// Returns the bitmap of later numbers that have arrived, as in the header.
    pub fn selective(&self) -> u64 {
        self.ahead
    }

    /// Returns true if an acknowledgement must be sent even without data.
    pub fn must_acknowledge(&self) -> bool {
        self.acknowledge_now
    }

    /// Returns when an acknowledgement that waits for data must be sent.
    pub fn deadline(&self) -> Option<Instant> {
        if self.acknowledge_now { None } else { self.acknowledge_at }
    }

    /// Returns the number of out-of-order datagrams kept, and the bytes of an incomplete message.
    pub fn kept(&self) -> (usize, usize) {
        (self.ahead.count_ones() as usize, self.partial.as_ref().map_or(0, Vec::len))
    }

    /// Records that a datagram with the acknowledgement is sent.
    pub fn acknowledgement_sent(&mut self) {
        self.unacknowledged = 0;
        self.acknowledge_now = false;
        self.acknowledge_at = None;
    }

    /// Makes a waiting acknowledgement leave at once.
    pub fn hasten_acknowledgement(&mut self) {
        self.acknowledge_now |= self.acknowledge_at.is_some();
    }

    /// Handles the delayed-acknowledgement timer.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.acknowledge_at.is_some_and(|deadline| deadline <= now) {
            self.acknowledge_now = true;
        }
    }

    /// Checks that a datagram with data lies in the window.
    ///
    /// # Errors
    ///
    /// Returns [`Rejected::Sequence`] if it lies beyond. It will be retransmitted when the window has moved.
    pub fn check_sequence(&self, sequence: u64) -> Result<(), Rejected> {
        let limit = self.next.saturating_add(REORDER_DATAGRAMS_MAX);
        if sequence > limit { Err(Rejected::Sequence { limit, got: sequence }) } else { Ok(()) }
    }

    /// Handles a datagram with data that has passed [`Receiver::check_sequence`].
    pub fn handle_data(
        &mut self,
        header: &Header,
        payload: &[u8],
        now: Instant,
        buffers: &mut Buffers,
        deliver: &mut dyn FnMut(Arrived),
    ) -> Accepted {
        let had_gap = self.ahead != 0;
        let accepted = self.take_in(header.sequence, payload, buffers, deliver);
        self.unacknowledged += 1;
        // Acknowledge at once: when the sender asks; after a duplicate, because our last acknowledgement was
        // lost or late; when a gap appears or is filled, for fast retransmission (RFC 5681 §4.2).
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
        deliver: &mut dyn FnMut(Arrived),
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
        self.join(payload, true, deliver, &mut buffers.messages);
        self.next += 1;
        loop {
            let follows = self.ahead & 1 != 0;
            self.ahead >>= 1;
            if !follows {
                return Accepted::New;
            }
            let place = (self.next % REORDER_DATAGRAMS_MAX) as usize;
            let payload = std::mem::take(&mut self.kept[place]);
            self.join(&payload, false, deliver, &mut buffers.messages);
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

    /// Joins the frames of the next payload in order. Fragments without a beginning, and beginnings without
    /// an end, come only from a sender that is not this code; they are skipped. A message in one frame of the
    /// datagram that `is_at_hand` is left there.
    fn join(
        &mut self,
        payload: &[u8],
        is_at_hand: bool,
        deliver: &mut dyn FnMut(Arrived),
        messages: &mut BufferPool,
    ) {
        let mut frames = Frames::new(payload);
        while let Some(frame) = frames.next() {
            let bytes = frame.bytes.len();
            if frame.first {
                if let Some(endless) = self.partial.take() {
                    messages.give(endless);
                }
                if frame.last && is_at_hand {
                    let end = HEADER_BYTES + payload.len() - frames.rest_bytes();
                    deliver(Arrived::Within(end - bytes..end));
                    continue;
                }
                self.partial =
                    Some(if frame.last { messages.take(bytes) } else { messages.take_large(bytes) });
            }
            let Some(partial) = &mut self.partial else { continue };
            if partial.len() + bytes > MESSAGE_BYTES_MAX {
                self.partial = None;
                continue;
            }
            partial.extend_from_slice(frame.bytes);
            if frame.last
                && let Some(message) = self.partial.take()
            {
                deliver(Arrived::Copied(message));
            }
        }
    }
}
