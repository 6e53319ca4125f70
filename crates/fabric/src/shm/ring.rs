//! A ring of frames from one sender to one receiver, on the receiver's board.
//!
//! What to read first: L. Lamport, "Proving the correctness of multiprocess programs" (1977), whose bounded buffer between one producer
//! and one consumer needs no lock.
//!
//! A frame is a word (its bytes, and how many bytes of its message come after it) and as many bytes, and begins on a cache line.
//! Frames do not wrap: where one does not fit before the end of the ring, a word that says so stands instead and the frame follows at the
//! beginning. A sender that finds its ring empty goes back to the beginning too, so that a pair that says little touches little memory.
//!
//! Head and tail count all bytes that ever went through. Each side keeps its own count to itself and only shows it; the other's it
//! believes within what is possible.

use std::sync::atomic::Ordering;

use hiroba_base::NodeId;
use thiserror::Error;

use super::board::{Board, LINE_BYTES};
use crate::unsent::{MESSAGE_BYTES_MAX, Unsent};

/// The length that says that the next frame stands at the beginning of the ring.
const GO_TO_START: u32 = u32::MAX;

const HEADER_BYTES: usize = size_of::<u64>();

/// An empty ring is begun anew from here on, in bytes.
const REWIND_FROM_BYTES: usize = 64 << 10;

/// Room is made ahead for no more of a message than this, in bytes: lengths are another's word.
const RESERVE_AHEAD_BYTES: usize = 8 << 20;

/// A buffer that grew longer is given back, in bytes.
const KEPT_BUFFER_BYTES_MAX: usize = 4 << 20;

/// What a peer left on a board cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "node {peer} has left nonsense on a board: expected {expected}, got {got}; its program may have written beyond its own memory"
)]
pub struct Nonsense {
    /// Who.
    pub peer: NodeId,
    /// What could have stood there.
    pub expected: &'static str,
    /// What stood there.
    pub got: u64,
}

/// The longest piece of a message in one frame of a ring of `ring_bytes`, in bytes: with half of the ring free there is always room for it.
pub const fn fragment_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 4 - HEADER_BYTES
}

fn frame_bytes(fragment: usize) -> usize {
    (HEADER_BYTES + fragment).next_multiple_of(LINE_BYTES)
}

fn header(fragment: u32, rest: u32) -> u64 {
    u64::from(fragment) | u64::from(rest) << 32
}

/// The sender's end.
#[derive(Debug)]
pub struct Producer {
    sender: NodeId,
    receiver: NodeId,
    ring_bytes: usize,
    tail: u64,
    /// The head when last looked at.
    head: u64,
    /// Frames put in.
    pub frames: u64,
    /// Bytes of these frames; not those of the ring that were skipped.
    pub frame_bytes: u64,
}

impl Producer {
    /// The end of a ring that nothing went through yet.
    pub fn new(sender: NodeId, receiver: NodeId, ring_bytes: usize) -> Producer {
        Producer { sender, receiver, ring_bytes, tail: 0, head: 0, frames: 0, frame_bytes: 0 }
    }

    /// Bytes ever put in or skipped.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Puts in as many frames of the message as there is room for; true when it went in to its end.
    pub fn push(&mut self, board: &Board, message: &mut Unsent) -> Result<bool, Nonsense> {
        let start = board.ring_start(self.sender);
        loop {
            let fragment = message.rest().min(fragment_bytes_max(self.ring_bytes));
            let Some(offset) = self.make_room(board, frame_bytes(fragment))? else { return Ok(false) };
            let rest = message.rest() - fragment;
            board.memory.word(start + offset).store(header(fragment as u32, rest as u32), Ordering::Relaxed);
            let mut at = start + offset + HEADER_BYTES;
            message.take_pieces(fragment, &mut |piece| {
                board.memory.copy_in(at, piece);
                at += piece.len();
            });
            self.tail += frame_bytes(fragment) as u64;
            self.frames += 1;
            self.frame_bytes += frame_bytes(fragment) as u64;
            // SYNC POINT: pairs with the acquire in `Consumer::next`: who sees the tail sees the frame.
            board.ring_tail(self.sender).store(self.tail, Ordering::Release);
            if rest == 0 {
                return Ok(true);
            }
        }
    }

    /// The offset in the ring where a frame of `bytes` bytes can be written, if there is room.
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
        // SYNC POINT: pairs with the release in `Consumer::next`: the receiver has copied what we are about to overwrite.
        let head = board.ring_head(self.sender).load(Ordering::Acquire);
        if head < self.head || head > self.tail {
            let expected = "no more bytes taken out of a ring than were put in, and never fewer than before";
            return Err(Nonsense { peer: self.receiver, expected, got: head });
        }
        self.head = head;
        Ok(head)
    }
}

/// What comes out of a ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: it is empty.
    Nothing,
    /// A piece of a message whose end is still to come.
    Piece,
    /// A whole message, as long as this, in the buffer given.
    Message(usize),
    /// A whole message that came in pieces, in [`Consumer::long`].
    LongMessage,
}

/// The receiver's end.
#[derive(Debug)]
pub struct Consumer {
    sender: NodeId,
    ring_bytes: usize,
    head: u64,
    /// The tail when last looked at.
    tail: u64,
    /// What has come of a message in several frames, and how much is to come.
    long: Vec<u8>,
    rest: usize,
}

impl Consumer {
    /// The end of a ring that nothing went through yet.
    pub fn new(sender: NodeId, ring_bytes: usize) -> Consumer {
        Consumer { sender, ring_bytes, head: 0, tail: 0, long: Vec::new(), rest: 0 }
    }

    /// Whether nothing has come since the last look.
    pub fn is_empty(&self, board: &Board) -> bool {
        board.ring_tail(self.sender).load(Ordering::Relaxed) == self.head
    }

    /// Whether at least half of the ring is free.
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

    /// Takes the next frame out. `buffer` has room for the longest fragment.
    pub fn next(&mut self, board: &Board, buffer: &mut [u8]) -> Result<Taken, Nonsense> {
        if self.head == self.tail {
            self.look_at_tail(board)?;
        }
        if self.head == self.tail {
            return Ok(Taken::Nothing);
        }
        let start = board.ring_start(self.sender);
        let mut offset = (self.head % self.ring_bytes as u64) as usize;
        // The headers are read once, and believed within the bounds that follow.
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
        let (fragment, rest) = (word as u32 as usize, (word >> 32) as usize);
        let in_bounds = fragment <= fragment_bytes_max(self.ring_bytes)
            && frame_bytes(fragment) <= self.ring_bytes - offset
            && frame_bytes(fragment) as u64 <= self.tail - self.head
            && fragment + rest <= MESSAGE_BYTES_MAX
            && (fragment > 0 || rest == 0);
        let continues = self.rest == 0 || self.rest == fragment + rest;
        if !in_bounds || !continues {
            return self.nonsense("a frame within its ring that goes on with its message", word);
        }
        let at = start + offset + HEADER_BYTES;
        let taken = if self.rest == 0 && rest == 0 {
            board.memory.copy_out(at, &mut buffer[..fragment]);
            Taken::Message(fragment)
        } else {
            self.long.reserve((fragment + rest).min(RESERVE_AHEAD_BYTES));
            board.memory.append_to(at, fragment, &mut self.long);
            if rest == 0 { Taken::LongMessage } else { Taken::Piece }
        };
        self.rest = rest;
        self.head += frame_bytes(fragment) as u64;
        // SYNC POINT: pairs with the acquire in `Producer::look_at_head`: the copies above come before any overwriting.
        board.ring_head(self.sender).store(self.head, Ordering::Release);
        Ok(taken)
    }

    /// The message that came in pieces; give its buffer back by [`Consumer::recycle`].
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
