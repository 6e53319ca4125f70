//! The sending half of a link: fragments messages into numbered datagrams, keeps them until they are
//! acknowledged, and decides which one to transmit next.

use std::collections::VecDeque;

use hiroba_base::Instant;

use super::congestion::Congestion;
use super::header::{FRAME_HEADER_BYTES, HEADER_BYTES, Rejected, frame_header};
use super::pool::BufferPool;
use super::rtt::RoundTrip;
use crate::unsent::Unsent;

/// A datagram counts as lost when one that was sent this much later has arrived (RFC 6675's DupThresh;
/// counted in transmissions, as RFC 9002 §6.1.1 does, so that the loss of a retransmission is detected too).
const REORDERING_DATAGRAMS: u64 = 3;

/// Limits of a sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderLimits {
    /// The maximum datagram length, header included.
    pub datagram_bytes_max: usize,
    /// Maximum distance of sequence numbers from the first unacknowledged one, and maximum number in flight.
    pub window_datagrams: usize,
    /// Maximum number of bytes in flight; a single datagram may exceed it.
    pub window_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not transmitted yet; later messages may still join it.
    Unsent,
    InFlight,
    /// To be retransmitted.
    Lost,
    /// Selectively acknowledged; waits for earlier datagrams. Its buffer is gone.
    Arrived,
}

#[derive(Debug)]
struct Slot {
    /// Room for the header, then frames.
    buffer: Vec<u8>,
    state: State,
    sent_at: Instant,
    /// The running number of its last transmission.
    order: u64,
    transmissions: u32,
}

/// The datagram that [`Sender::transmit`] has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Transmission {
    /// Its index.
    pub index: usize,
    /// Its sequence number.
    pub sequence: u64,
    /// True if it has been transmitted before.
    pub again: bool,
    /// True if the peer is asked to acknowledge without delay.
    pub acknowledge_now: bool,
}

/// The sending half of a link.
#[derive(Debug)]
pub struct Sender {
    limits: SenderLimits,
    ring: VecDeque<Slot>,
    /// The sequence number of the ring's first slot: all lower ones are acknowledged.
    first: u64,
    /// The first sequence number never transmitted.
    unsent: u64,
    in_flight: usize,
    in_flight_bytes: usize,
    lost: usize,
    backlog_bytes: usize,
    order_next: u64,
    /// The latest transmission known to have arrived.
    order_arrived: u64,
    congestion: Congestion,
    round_trip: RoundTrip,
    deadline: Option<Instant>,
    /// Losses below this number belong to a window reduction already made.
    recovery_end: u64,
}

impl Sender {
    /// Makes a sender with nothing queued.
    pub fn new(limits: SenderLimits) -> Sender {
        Sender {
            limits,
            ring: VecDeque::new(),
            first: 0,
            unsent: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            lost: 0,
            backlog_bytes: 0,
            order_next: 1,
            order_arrived: 0,
            congestion: Congestion::new(limits.window_datagrams),
            round_trip: RoundTrip::default(),
            deadline: None,
            recovery_end: 0,
        }
    }

    /// Returns the sequence number of the next new datagram.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Returns the number of bytes queued or in flight, framing included.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Returns the numbers of datagrams and bytes in flight.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.in_flight, self.in_flight_bytes)
    }

    /// Returns true if a transmitted datagram is unacknowledged.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.unsent > self.first
    }

    /// Returns the number of datagrams kept, transmitted or not.
    pub fn kept(&self) -> usize {
        self.ring.len()
    }

    /// Returns when [`Sender::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Queues as much of a message as fits into a datagram. Returns the number of bytes. A message that fits
    /// into one datagram is never split. It joins the last datagram if that has not been transmitted and has
    /// room.
    pub fn queue(&mut self, message: &mut Unsent<'_>, pool: &mut BufferPool) -> usize {
        let length = message.rest().min(self.limits.datagram_bytes_max - HEADER_BYTES - FRAME_HEADER_BYTES);
        let header = frame_header(length, message.is_whole(), length == message.rest());
        let slot = self.slot_for(FRAME_HEADER_BYTES + length, pool);
        slot.extend_from_slice(&header);
        message.move_into(slot, length);
        self.backlog_bytes += FRAME_HEADER_BYTES + length;
        length
    }

    fn slot_for(&mut self, bytes: usize, pool: &mut BufferPool) -> &mut Vec<u8> {
        let joins = self.ring.back().is_some_and(|last| {
            last.state == State::Unsent && last.buffer.len() + bytes <= self.limits.datagram_bytes_max
        });
        if !joins {
            let mut buffer = pool.take(HEADER_BYTES + bytes);
            buffer.resize(HEADER_BYTES, 0);
            self.ring.push_back(Slot {
                buffer,
                state: State::Unsent,
                sent_at: Instant::ORIGIN,
                order: 0,
                transmissions: 0,
            });
        }
        let last = self.ring.len() - 1;
        &mut self.ring[last].buffer
    }

    /// Returns the index of the datagram to transmit next, if the window allows one.
    fn choose(&self) -> Option<usize> {
        let transmitted = (self.unsent - self.first) as usize;
        let index = if self.lost > 0 {
            self.ring.iter().position(|slot| slot.state == State::Lost)?
        } else if transmitted < self.ring.len() && transmitted < self.limits.window_datagrams {
            transmitted
        } else {
            return None;
        };
        let bytes = self.ring[index].buffer.len();
        // With nothing in flight one datagram may always go, otherwise nothing would open the window.
        let allowed = self.in_flight == 0
            || (self.in_flight < self.congestion.window()
                && self.in_flight_bytes + bytes <= self.limits.window_bytes);
        allowed.then_some(index)
    }

    /// Returns true if [`Sender::transmit`] would return a datagram.
    pub fn wants_transmit(&self) -> bool {
        self.choose().is_some()
    }

    /// Marks the next datagram as transmitted at `now`.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmission> {
        let index = self.choose()?;
        let slot = &mut self.ring[index];
        let again = slot.state == State::Lost;
        slot.state = State::InFlight;
        slot.sent_at = now;
        slot.order = self.order_next;
        slot.transmissions = slot.transmissions.saturating_add(1);
        self.order_next += 1;
        let sequence = self.first + index as u64;
        if again {
            self.lost -= 1;
        } else {
            self.unsent = sequence + 1;
        }
        let before = (self.in_flight, self.in_flight_bytes);
        self.in_flight += 1;
        self.in_flight_bytes += slot.buffer.len();
        if self.deadline.is_none() {
            self.deadline = Some(now + self.round_trip.timeout());
        }
        let acknowledge_now = again || self.needs_acknowledgement_soon(before);
        Some(Transmission { index, sequence, again, acknowledge_now })
    }

    /// Returns true when half of the window or all of it is used: the acknowledgement is then needed before
    /// the receiver's timer, or the sender would stall. With less in flight it can wait for data to carry it.
    fn needs_acknowledgement_soon(&self, before: (usize, usize)) -> bool {
        let crosses = |before: usize, after: usize, limit: usize| {
            (before < limit / 2 && after >= limit / 2) || after >= limit
        };
        let window = self.congestion.window();
        crosses(before.0, self.in_flight, window)
            || crosses(before.1, self.in_flight_bytes, self.limits.window_bytes)
            || (self.unsent - self.first) as usize >= self.limits.window_datagrams
    }

    /// Returns the datagram at `index`.
    pub fn datagram(&self, index: usize) -> &[u8] {
        &self.ring[index].buffer
    }

    /// Returns the header's bytes of the datagram at `index`.
    pub fn header_mut(&mut self, index: usize) -> Option<&mut [u8; HEADER_BYTES]> {
        self.ring[index].buffer.first_chunk_mut()
    }

    /// Checks that acknowledgements name only transmitted datagrams.
    ///
    /// # Errors
    ///
    /// Returns [`Rejected::Acknowledgement`] if they do not.
    pub fn check_acknowledgement(&self, acknowledged: u64, selective: u64) -> Result<(), Rejected> {
        // The highest bit i stands for number acknowledged + 1 + i.
        let end = acknowledged.saturating_add(match selective {
            0 => 0,
            bits => 65 - u64::from(bits.leading_zeros()),
        });
        if end > self.unsent {
            return Err(Rejected::Acknowledgement { sent: self.unsent, got: end });
        }
        Ok(())
    }

    /// Handles acknowledgements that have passed [`Sender::check_acknowledgement`].
    pub fn handle_acknowledgement(
        &mut self,
        acknowledged: u64,
        selective: u64,
        now: Instant,
        pool: &mut BufferPool,
    ) {
        let mut settled = Settled::default();
        while self.first < acknowledged {
            let Some(mut slot) = self.ring.pop_front() else { break };
            self.settle(&mut slot, &mut settled, pool);
            self.first += 1;
        }
        let mut bits = selective;
        while bits != 0 {
            let sequence = acknowledged + 1 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            let Some(index) = sequence.checked_sub(self.first) else { continue };
            let index = index as usize;
            if index >= self.ring.len() || self.ring[index].state == State::Arrived {
                continue;
            }
            let mut slot = std::mem::replace(&mut self.ring[index], Slot::arrived());
            self.settle(&mut slot, &mut settled, pool);
        }
        if settled.datagrams == 0 {
            return;
        }
        if let Some(sent_at) = settled.newest_sent_at {
            self.round_trip.sample(now.saturating_since(sent_at));
        }
        if self.first >= self.recovery_end {
            self.congestion.acknowledged(settled.datagrams);
        }
        if selective != 0 {
            self.detect_loss();
        }
        // RFC 6298 §5.2 and §5.3.
        self.deadline = (self.in_flight > 0).then(|| now + self.round_trip.timeout());
    }

    /// Accounts for a datagram that has arrived.
    fn settle(&mut self, slot: &mut Slot, settled: &mut Settled, pool: &mut BufferPool) {
        let was_in_flight = slot.state == State::InFlight;
        match slot.state {
            State::InFlight => {
                self.in_flight -= 1;
                self.in_flight_bytes -= slot.buffer.len();
            }
            State::Lost => self.lost -= 1,
            State::Unsent | State::Arrived => return,
        }
        settled.datagrams += 1;
        self.backlog_bytes -= slot.buffer.len() - HEADER_BYTES;
        // If a datagram was sent twice, it is unknown which copy arrived (Karn), so it gives no information
        // about the order of arrival. The time of one that was taken for lost measures how long its peer was
        // stopped, not the path.
        if slot.transmissions == 1 {
            self.order_arrived = self.order_arrived.max(slot.order);
            if was_in_flight && slot.order > settled.newest_order {
                settled.newest_order = slot.order;
                settled.newest_sent_at = Some(slot.sent_at);
            }
        }
        pool.give(std::mem::take(&mut slot.buffer));
    }

    fn detect_loss(&mut self) {
        let transmitted = (self.unsent - self.first) as usize;
        let mut found = 0;
        for slot in self.ring.iter_mut().take(transmitted) {
            if slot.state == State::InFlight && slot.order + REORDERING_DATAGRAMS <= self.order_arrived {
                slot.state = State::Lost;
                self.in_flight -= 1;
                self.in_flight_bytes -= slot.buffer.len();
                found += 1;
            }
        }
        self.lost += found;
        if found > 0 && self.first >= self.recovery_end {
            self.congestion.lost();
            self.recovery_end = self.unsent;
        }
    }

    /// Takes everything in flight for lost when the timer has expired (RFC 6298 §5.4 to §5.6).
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        // The next transmission starts the timer again, backed off.
        self.deadline = None;
        let transmitted = (self.unsent - self.first) as usize;
        for slot in self.ring.iter_mut().take(transmitted) {
            if slot.state == State::InFlight {
                slot.state = State::Lost;
                self.lost += 1;
            }
        }
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        self.congestion.timed_out(!self.round_trip.is_backed_off());
        self.round_trip.back_off();
        // The window should grow at once when acknowledgements arrive again.
        self.recovery_end = self.first;
    }
}

impl Slot {
    fn arrived() -> Slot {
        Slot {
            buffer: Vec::new(),
            state: State::Arrived,
            sent_at: Instant::ORIGIN,
            order: 0,
            transmissions: 0,
        }
    }
}

/// The result of one acknowledgement.
#[derive(Default)]
struct Settled {
    datagrams: usize,
    newest_order: u64,
    newest_sent_at: Option<Instant>,
}
