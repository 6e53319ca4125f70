//! A ring of frames from one sender to one receiver, on the receiver's board.
//!
//! Read first: L. Lamport, "Proving the correctness of multiprocess programs" (1977), whose bounded buffer
//! between one producer and one consumer needs no lock.
//!
//! A frame is a word (its length, and the number of bytes of its message that follow it) and its bytes, and
//! begins on a cache line. In the word of a frame that is a whole message, the second number may say how many
//! of its bytes are payload, which the receiver leaves in the ring until it knows their place. Frames do not
//! wrap. Where one does not fit before the end of the ring, a marker
//! word stands there and the frame follows at the start of the ring. A sender that finds its ring empty
//! returns to the beginning too, so that a pair that exchanges little touches little memory.
//!
//! Head and tail count all bytes that ever went through. Each side keeps its own count privately and only
//! shows it. It accepts the other side's count only within the possible range.

use std::sync::atomic::Ordering;

use hiroba_base::NodeId;
use hiroba_wire::Payload;
use thiserror::Error;

use super::board::{Board, LINE_BYTES};
use crate::unsent::{MESSAGE_BYTES_MAX, Unsent};

/// The length that marks that the next frame is at the start of the ring.
const GO_TO_START: u32 = u32::MAX;

const HEADER_BYTES: usize = size_of::<u64>();

/// The mark of a number of bytes of payload. A message is too short for a number of bytes that follow to
/// have it.
const IS_PAYLOAD: u32 = 1 << 31;
const _: () = assert!(MESSAGE_BYTES_MAX < IS_PAYLOAD as usize);

/// An empty ring restarts at its beginning from this offset on, in bytes.
const REWIND_FROM_BYTES: usize = 64 << 10;

/// Maximum number of bytes reserved ahead for a message, because lengths come from another process.
const RESERVE_AHEAD_BYTES: usize = 8 << 20;

/// A buffer that grew longer than this is freed, in bytes.
const KEPT_BUFFER_BYTES_MAX: usize = 4 << 20;

/// A peer left an invalid value on a board.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "node {peer} has left an invalid value on a board: expected {expected}, got {got}; its program may have written beyond its own memory"
)]
pub struct Nonsense {
    /// The peer.
    pub peer: NodeId,
    /// The valid values.
    pub expected: &'static str,
    /// The value found.
    pub got: u64,
}

/// Returns the longest piece of a message in one frame of a ring of `ring_bytes`, in bytes. It always fits
/// when half of the ring is free.
pub const fn fragment_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 4 - HEADER_BYTES
}

fn frame_bytes(fragment: usize) -> usize {
    (HEADER_BYTES + fragment).next_multiple_of(LINE_BYTES)
}

fn header(fragment: u32, behind: u32) -> u64 {
    u64::from(fragment) | u64::from(behind) << 32
}

/// The sender's end.
#[derive(Debug)]
pub struct Producer {
    sender: NodeId,
    receiver: NodeId,
    ring_bytes: usize,
    tail: u64,
    /// The head at the last look.
    head: u64,
    /// Number of frames put in.
    pub frames: u64,
    /// Bytes of these frames, without the skipped bytes of the ring.
    pub frame_bytes: u64,
}

impl Producer {
    /// Makes the end of a ring that is still unused.
    pub fn new(sender: NodeId, receiver: NodeId, ring_bytes: usize) -> Producer {
        Producer { sender, receiver, ring_bytes, tail: 0, head: 0, frames: 0, frame_bytes: 0 }
    }

    /// Returns the count of bytes put in or skipped.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Puts in as many frames of the message as there is room for. Returns true when the message is complete.
    pub fn push(&mut self, board: &Board, message: &mut Unsent) -> Result<bool, Nonsense> {
        let start = board.ring_start(self.sender);
        loop {
            let fragment = message.rest().min(fragment_bytes_max(self.ring_bytes));
            let Some(offset) = self.make_room(board, frame_bytes(fragment))? else { return Ok(false) };
            let rest = message.rest() - fragment;
            let payload = if rest == 0 && message.is_whole() { message.payload_bytes() as u32 } else { 0 };
            let behind = if payload > 0 { IS_PAYLOAD | payload } else { rest as u32 };
            board.memory.word(start + offset).store(header(fragment as u32, behind), Ordering::Relaxed);
            let mut at = start + offset + HEADER_BYTES;
            message.take_pieces(fragment, &mut |piece| {
                board.memory.copy_in(at, piece);
                at += piece.len();
            });
            self.tail += frame_bytes(fragment) as u64;
            self.frames += 1;
            self.frame_bytes += frame_bytes(fragment) as u64;
            // SYNC POINT: pairs with the acquire in `Consumer::next`: a reader that sees the tail sees the
            // frame.
            board.ring_tail(self.sender).store(self.tail, Ordering::Release);
            if rest == 0 {
                return Ok(true);
            }
        }
    }

    /// Returns the offset in the ring at which a frame of `bytes` bytes can be written, if there is room.
    fn make_room(&mut self, board: &Board, bytes: usize) -> Result<Option<usize>, Nonsense> {
        let offset = (self.tail % self.ring_bytes as u64) as usize;
        let to_end = self.ring_bytes - offset;
        let mut skipped = if bytes > to_end { to_end } else { 0 };
        if offset >= REWIND_FROM_BYTES.max(bytes) && self.look_at_head(board)? == self.tail {
            skipped = to_end;
        }
        let needed = self.tail + (skipped + bytes) as u64;
        if needed - self.head > self.ring_bytes as u64
            && needed - self.look_at_head(board)? > self.ring_bytes as u64
        {
            return Ok(None);
        }
        if skipped > 0 {
            let word = board.memory.word(board.ring_start(self.sender) + offset);
            word.store(header(GO_TO_START, 0), Ordering::Relaxed);
            self.tail += skipped as u64;
        }
        Ok(Some((self.tail % self.ring_bytes as u64) as usize))
    }

    fn look_at_head(&mut self, board: &Board) -> Result<u64, Nonsense> {
        // SYNC POINT: pairs with the release in `Consumer::next`: the receiver has copied what we are about
        // to overwrite.
        let head = board.ring_head(self.sender).load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            let expected = "no more bytes taken out of a ring than were put in, and never fewer than before";
            return Err(Nonsense { peer: self.receiver, expected, got: head });
        }
        self.head = head;
        Ok(head)
    }
}

/// The result of taking from a ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: the ring is empty.
    Nothing,
    /// A piece of a message whose end is still to come.
    Piece,
    /// A complete message of this length, in the given buffer.
    Message(usize),
    /// A complete message that came in pieces, in [`Consumer::long`].
    LongMessage,
    /// A complete message: its beginning, of this length, in the given buffer, and the place of its payload.
    /// That is in the ring until [`Consumer::release`] or the next frame is taken.
    WithPayload(usize, InRing),
}

/// The place of bytes in a ring.
#[derive(Debug, PartialEq, Eq)]
pub struct InRing {
    at: usize,
    bytes: usize,
}

impl InRing {
    /// Returns the bytes, which are on that board.
    pub fn on(self, board: &Board) -> RingPayload<'_> {
        RingPayload { board, place: self }
    }
}

/// A payload in a ring. Its sender can still change it, but a mistaken sender so only damages a message of
/// its own: place and length are ours, and were checked.
pub struct RingPayload<'a> {
    board: &'a Board,
    place: InRing,
}

impl Payload for RingPayload<'_> {
    fn bytes(&self) -> usize {
        self.place.bytes
    }

    fn append_to(&mut self, bytes: usize, room: &mut Vec<u8>) {
        let InRing { at, bytes: left } = self.place;
        assert!(bytes <= left, "expected at most {left} bytes of a payload to be taken, got {bytes}");
        self.board.memory.append_to(at, bytes, room);
        self.place = InRing { at: at + bytes, bytes: left - bytes };
    }
}

/// The receiver's end.
#[derive(Debug)]
pub struct Consumer {
    sender: NodeId,
    ring_bytes: usize,
    head: u64,
    /// The tail at the last look.
    tail: u64,
    /// The received part of a message in several frames, and the number of bytes that follow.
    long: Vec<u8>,
    rest: usize,
    /// The length of the first frame, if its payload is still in use.
    in_use: u64,
}

impl Consumer {
    /// Makes the end of a ring that is still unused.
    pub fn new(sender: NodeId, ring_bytes: usize) -> Consumer {
        Consumer { sender, ring_bytes, head: 0, tail: 0, long: Vec::new(), rest: 0, in_use: 0 }
    }

    /// Returns true if nothing has arrived since the last look.
    pub fn is_empty(&self, board: &Board) -> bool {
        board.ring_tail(self.sender).load(Ordering::Relaxed) == self.head
    }

    /// Returns true if at least half of the ring is free.
    pub fn has_ample_room(&self) -> bool {
        self.tail - self.head <= self.ring_bytes as u64 / 2
    }

    fn nonsense<T>(&self, expected: &'static str, got: u64) -> Result<T, Nonsense> {
        Err(Nonsense { peer: self.sender, expected, got })
    }

    fn look_at_tail(&mut self, board: &Board) -> Result<(), Nonsense> {
        // SYNC POINT: pairs with the release in `Producer::push`.
        let tail = board.ring_tail(self.sender).load(Ordering::Acquire);
        let possible = tail >= self.tail && tail - self.head <= self.ring_bytes as u64;
        if !possible || !tail.is_multiple_of(LINE_BYTES as u64) {
            return self.nonsense("a ring filled by whole frames up to its length", tail);
        }
        self.tail = tail;
        Ok(())
    }

    /// Gives the ring back the frame of a payload.
    pub fn release(&mut self, board: &Board) {
        self.head += std::mem::take(&mut self.in_use);
        // SYNC POINT: pairs with the acquire in `Producer::look_at_head`: what was copied out comes before
        // any overwriting.
        board.ring_head(self.sender).store(self.head, Ordering::Release);
    }

    /// Takes the next frame out. `buffer` has room for the longest fragment.
    pub fn next(&mut self, board: &Board, buffer: &mut [u8]) -> Result<Taken, Nonsense> {
        if self.in_use > 0 {
            self.release(board); // the receiver of the payload has panicked
        }
        if self.head == self.tail {
            self.look_at_tail(board)?;
        }
        if self.head == self.tail {
            return Ok(Taken::Nothing);
        }
        let start = board.ring_start(self.sender);
        let mut offset = (self.head % self.ring_bytes as u64) as usize;
        // The headers are read once, and accepted within the bounds that follow.
        let mut word = board.memory.word(start + offset).load(Ordering::Relaxed);
        if word as u32 == GO_TO_START {
            let skipped = (self.ring_bytes - offset) as u64;
            if skipped >= self.tail - self.head {
                return self.nonsense("a frame at the beginning of a ring after the end of one", word);
            }
            self.head += skipped;
            offset = 0;
            word = board.memory.word(start).load(Ordering::Relaxed);
        }
        let (fragment, behind) = (word as u32 as usize, (word >> 32) as u32);
        let marked = behind & IS_PAYLOAD != 0;
        let (rest, payload) = if marked { (0, behind & !IS_PAYLOAD) } else { (behind, 0) };
        let (rest, payload) = (rest as usize, payload as usize);
        let in_bounds = fragment <= fragment_bytes_max(self.ring_bytes)
            && frame_bytes(fragment) <= self.ring_bytes - offset
            && frame_bytes(fragment) as u64 <= self.tail - self.head
            && fragment + rest <= MESSAGE_BYTES_MAX
            && (fragment > 0 || rest == 0)
            && (!marked || (1..=fragment).contains(&payload));
        let continues = self.rest == 0 || self.rest == fragment + rest && !marked;
        if !in_bounds || !continues {
            return self.nonsense("a frame within its ring that goes on with its message", word);
        }
        let at = start + offset + HEADER_BYTES;
        if payload > 0 {
            let head = fragment - payload;
            board.memory.copy_out(at, &mut buffer[..head]);
            self.in_use = frame_bytes(fragment) as u64;
            return Ok(Taken::WithPayload(head, InRing { at: at + head, bytes: payload }));
        }
        let taken = if self.rest == 0 && rest == 0 {
            board.memory.copy_out(at, &mut buffer[..fragment]);
            Taken::Message(fragment)
        } else {
            self.long.reserve((fragment + rest).min(RESERVE_AHEAD_BYTES));
            board.memory.append_to(at, fragment, &mut self.long);
            if rest == 0 { Taken::LongMessage } else { Taken::Piece }
        };
        self.rest = rest;
        self.in_use = frame_bytes(fragment) as u64;
        self.release(board);
        Ok(taken)
    }

    /// Takes the message that came in pieces. Return its buffer by [`Consumer::recycle`].
    pub fn long(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.long)
    }

    /// Keeps the buffer for the next long message.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.long.is_empty() && buffer.capacity() <= KEPT_BUFFER_BYTES_MAX {
            buffer.clear();
            self.long = buffer;
        }
    }
}
