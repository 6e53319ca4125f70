//! Records: the format of an authenticated connection. Sans-IO.
//!
//! ```text
//! record    length of the frames, 4 bytes | frames | tag, 16 bytes      at most 64 KiB in all
//! frame     kind and length, 4 bytes      | bytes                       never across two records
//! ```
//!
//! The integers are little-endian. Read first: RFC 8446 §5.2 (TLS 1.3), of whose record protection this is a
//! small version. A record's number is not sent, because both sides count. A record that was left out,
//! repeated, moved or shortened therefore does not open, and the connection ends. A message is sent as `More`
//! frames and one `Last`; several short messages share a record. The length is readable, the frames are not;
//! both are authenticated.
//!
//! A `Ping` asks how many of its sender's messages have arrived; the `Pong` answers. Only they acknowledge:
//! TCP's own acknowledgements are the kernel's, and a stopped process sends them as well.

use std::collections::VecDeque;
use std::io::IoSlice;

use thiserror::Error;

use super::key::RecordKey;
use crate::seal::{Forged, TAG_BYTES};
use crate::unsent::{MESSAGE_BYTES_MAX, Unsent};

/// Maximum length of a record, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Length of a record's head, which is the length of its frames, unencrypted.
const HEAD_BYTES: usize = 4;
/// Length of a record without frames.
pub const RECORD_OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// Length of a frame's head: its kind and length.
const FRAME_HEAD_BYTES: usize = 4;
/// Maximum length of the frames of one record.
const FRAMES_BYTES_MAX: usize = RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES;
/// The longest message that travels as one frame, in bytes.
pub const INLINE_BYTES_MAX: usize = FRAMES_BYTES_MAX - FRAME_HEAD_BYTES;
/// Number of sent records whose buffers are kept for reuse: at most 256 KiB per peer.
const SPARE_RECORDS_MAX: usize = 4;
/// Maximum length of the buffer for assembling long messages that is kept for reuse, in bytes.
const ASSEMBLY_BYTES_KEPT: usize = 256 << 10;

const LAST: u8 = 1;
const MORE: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;

/// The peer, or a device between, has sent invalid bytes: the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsound {
    /// The record is too long.
    #[error("expected a record with at most {FRAMES_BYTES_MAX} bytes of frames, got one of {got}")]
    RecordLength {
        /// The length in its head.
        got: usize,
    },
    /// Not sealed by the peer, or not the next record.
    #[error(transparent)]
    Forged(#[from] Forged),
    /// The frame has an unknown kind, or is longer than the rest of its record.
    #[error("expected a frame of at most {rest} bytes, got kind {kind} and {got} bytes")]
    Frame {
        /// The rest of the record.
        rest: usize,
        /// The frame's kind.
        kind: u8,
        /// The frame's length.
        got: usize,
    },
    /// The message is too long.
    #[error("expected a message of at most {MESSAGE_BYTES_MAX} bytes, got a longer one")]
    MessageLength,
}

fn frame_head(kind: u8, length: usize) -> [u8; FRAME_HEAD_BYTES] {
    (u32::from(kind) << 24 | length as u32).to_le_bytes()
}

/// Makes the first record of a connection, number 0: without frames, it proves that its sender has `key`.
pub fn proof(key: &RecordKey) -> [u8; RECORD_OVERHEAD_BYTES] {
    let mut record = [0; RECORD_OVERHEAD_BYTES];
    let (head, tag) = record.split_at_mut(HEAD_BYTES);
    tag.copy_from_slice(&key.seal(0, head, HEAD_BYTES));
    record
}

/// The sending half, after the proof: records that wait for sealing, for more frames, or for the socket.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The first `sealed` are ready for the socket; frames can still be added to the last of the others.
    records: VecDeque<Vec<u8>>,
    sealed: usize,
    /// Number of bytes of the first record that the socket has taken.
    written: usize,
    bytes: usize,
    /// Number of records sealed after the proof.
    count: u64,
    spare: Vec<Vec<u8>>,
}

impl Outgoing {
    /// Returns a record with room for `wanted` bytes and a frame's head, or for as much of them as a record
    /// takes.
    fn open_record(&mut self, wanted: usize) -> &mut Vec<u8> {
        let wanted = (FRAME_HEAD_BYTES + wanted).min(FRAMES_BYTES_MAX);
        let is_open = self.records.len() > self.sealed;
        let has_room = |record: &Vec<u8>| HEAD_BYTES + FRAMES_BYTES_MAX - record.len() >= wanted;
        if !(is_open && self.records.back().is_some_and(has_room)) {
            let mut record = self.spare.pop().unwrap_or_default();
            record.extend_from_slice(&[0; HEAD_BYTES]);
            self.bytes += HEAD_BYTES;
            self.records.push_back(record);
        }
        self.records.back_mut().expect("there is one now")
    }

    /// Puts as much of a message into a record as fits. Returns true if some is left.
    pub fn put(&mut self, message: &mut Unsent<'_>) -> bool {
        let length = message.rest().min(INLINE_BYTES_MAX);
        let record = self.open_record(length);
        record.extend_from_slice(&frame_head(if length == message.rest() { LAST } else { MORE }, length));
        message.move_into(record, length);
        self.bytes += FRAME_HEAD_BYTES + length;
        message.rest() > 0
    }

    /// Asks how many messages have arrived.
    pub fn ping(&mut self) {
        self.control(PING, &[]);
    }

    /// Answers that `messages` messages have arrived.
    pub fn pong(&mut self, messages: u64) {
        self.control(PONG, &messages.to_le_bytes());
    }

    fn control(&mut self, kind: u8, bytes: &[u8]) {
        let record = self.open_record(bytes.len());
        record.extend_from_slice(&frame_head(kind, bytes.len()));
        record.extend_from_slice(bytes);
        self.bytes += FRAME_HEAD_BYTES + bytes.len();
    }

    /// Seals waiting records until `ready` are sealed. No frames can be added to those any more.
    pub fn seal(&mut self, key: &RecordKey, ready: usize) {
        while self.sealed < ready.min(self.records.len()) {
            let record = &mut self.records[self.sealed];
            let frames_bytes = (record.len() - HEAD_BYTES) as u32;
            record[..HEAD_BYTES].copy_from_slice(&frames_bytes.to_le_bytes());
            self.count += 1;
            let tag = key.seal(self.count, record, HEAD_BYTES);
            record.extend_from_slice(&tag);
            self.bytes += TAG_BYTES;
            self.sealed += 1;
        }
    }

    /// Fills `slices` with the sealed records that the socket should take next. Returns their number.
    pub fn sealed<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.written;
        let ready = self.records.iter().take(self.sealed);
        slices
            .iter_mut()
            .zip(ready)
            .map(|(slice, record)| *slice = IoSlice::new(&record[std::mem::take(&mut skip)..]))
            .count()
    }

    /// Records that the socket has taken `bytes` bytes.
    pub fn advance(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        while let Some(first) = self.records.front() {
            let rest = first.len() - self.written;
            if self.sealed == 0 || bytes < rest {
                self.written += bytes;
                return;
            }
            bytes -= rest;
            self.written = 0;
            self.sealed -= 1;
            let Some(mut record) = self.records.pop_front() else { return };
            if self.spare.len() < SPARE_RECORDS_MAX {
                record.clear();
                self.spare.push(record);
            }
        }
    }

    /// Returns the number of waiting records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the number of bytes that the socket has not taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of records sealed after the proof.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Drops the records, which will not be sent.
    pub fn discard(&mut self) {
        *self = Outgoing { count: self.count, ..Outgoing::default() };
    }
}

/// A frame as its receiver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The end of a message, or all of it.
    Message(&'a [u8]),
    /// A part of a message that continues.
    Part,
    /// The peer asks how many messages have arrived.
    Ping,
    /// This many messages have arrived at the peer.
    Pong(u64),
}

/// The receiving half.
pub struct Incoming {
    key: RecordKey,
    /// Number of records opened, which is the next one's number.
    count: u64,
    /// A record whose end has not arrived.
    partial: Vec<u8>,
    /// A message whose end has not arrived.
    assembly: Vec<u8>,
    /// True if that message has been delivered.
    is_spent: bool,
    /// Number of complete messages.
    messages: u64,
}

impl Incoming {
    /// Makes the receiving half for records sealed with `key`.
    pub fn new(key: RecordKey) -> Incoming {
        Incoming { key, count: 0, partial: Vec::new(), assembly: Vec::new(), is_spent: false, messages: 0 }
    }

    /// Returns the number of records opened so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of complete messages so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the bytes of a record whose end has not arrived.
    pub fn kept(&self) -> &[u8] {
        &self.partial
    }

    /// Replaces the kept bytes by the beginning of a record.
    pub fn keep(&mut self, bytes: &[u8]) {
        self.partial.clear();
        self.partial.extend_from_slice(bytes);
    }

    /// Opens the first record of `bytes`. Returns the range of its frames and its end, or `None` when its end
    /// has not arrived.
    ///
    /// # Errors
    ///
    /// Fails if it is not a record of the peer's, or not the next one.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Option<(core::ops::Range<usize>, usize)>, Unsound> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let frames_bytes = u32::from_le_bytes(*head) as usize;
        if frames_bytes > FRAMES_BYTES_MAX {
            return Err(Unsound::RecordLength { got: frames_bytes });
        }
        let frames_end = HEAD_BYTES + frames_bytes;
        let Some(record) = bytes.get_mut(..frames_end + TAG_BYTES) else { return Ok(None) };
        let (sealed, tag) = record.split_at_mut(frames_end);
        let tag: &[u8; TAG_BYTES] = tag.first_chunk().expect("the record was cut so");
        self.key.open(self.count, sealed, HEAD_BYTES, tag)?;
        self.count += 1;
        Ok(Some((HEAD_BYTES..frames_end, frames_end + TAG_BYTES)))
    }

    /// Takes the first frame off `frames`, which must not be empty. Also returns its length in bytes.
    ///
    /// # Errors
    ///
    /// Fails if the frame is invalid.
    pub fn take<'a>(&'a mut self, frames: &'a [u8]) -> Result<(Frame<'a>, usize), Unsound> {
        if std::mem::take(&mut self.is_spent) {
            self.assembly.clear();
            self.assembly.shrink_to(ASSEMBLY_BYTES_KEPT);
        }
        let rest = frames.len().saturating_sub(FRAME_HEAD_BYTES);
        let head = frames.first_chunk::<FRAME_HEAD_BYTES>().map_or(0, |head| u32::from_le_bytes(*head));
        let (kind, got) = ((head >> 24) as u8, (head & 0xff_ffff) as usize);
        let unsound = Unsound::Frame { rest, kind, got };
        let bytes = frames.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + got).ok_or(unsound)?;
        if self.assembly.len() + got > MESSAGE_BYTES_MAX {
            return Err(Unsound::MessageLength);
        }
        let frame = match kind {
            LAST => {
                self.messages += 1;
                if self.assembly.is_empty() {
                    Frame::Message(bytes)
                } else {
                    self.assembly.extend_from_slice(bytes);
                    self.is_spent = true;
                    Frame::Message(&self.assembly)
                }
            }
            MORE => {
                self.assembly.extend_from_slice(bytes);
                Frame::Part
            }
            PING if got == 0 => Frame::Ping,
            PONG => Frame::Pong(u64::from_le_bytes(bytes.try_into().map_err(|_| unsound)?)),
            _ => return Err(unsound),
        };
        Ok((frame, FRAME_HEAD_BYTES + got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroba_base::NodeId;
    use hiroba_wire::control::JobKey;

    fn key() -> RecordKey {
        RecordKey::new(&JobKey::new(&[9; 32]), [[1; 32], [2; 32]], NodeId(0), NodeId(1))
    }

    /// Returns all ready records, taken in steps of at most `step` bytes.
    fn taken(outgoing: &mut Outgoing, key: &RecordKey, step: usize) -> Vec<u8> {
        let mut wire = if outgoing.count() == 0 { proof(key).to_vec() } else { Vec::new() };
        while outgoing.len() > 0 {
            outgoing.seal(key, 2);
            let mut slices = [IoSlice::new(&[]); 2];
            let count = outgoing.sealed(&mut slices);
            let ready: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let step = step.min(ready.len());
            wire.extend_from_slice(&ready[..step]);
            outgoing.advance(step);
        }
        assert_eq!(outgoing.bytes(), 0);
        wire
    }

    fn put(outgoing: &mut Outgoing, parts: &[&[u8]]) {
        let mut message = Unsent::new(parts);
        while outgoing.put(&mut message) {}
    }

    /// Returns the messages of `wire`, which arrives in pieces.
    fn messages(wire: &[u8], key: RecordKey, piece: usize) -> Result<Vec<Vec<u8>>, Unsound> {
        let (mut incoming, mut came, mut messages) = (Incoming::new(key), Vec::new(), Vec::new());
        for piece in wire.chunks(piece) {
            came.extend_from_slice(piece);
            while let Some((frames, end)) = incoming.open(&mut came)? {
                let mut frames = &came[frames];
                while !frames.is_empty() {
                    let (frame, length) = incoming.take(frames)?;
                    if let Frame::Message(bytes) = frame {
                        messages.push(bytes.to_vec());
                    }
                    frames = &frames[length..];
                }
                came.drain(..end);
            }
        }
        assert_eq!(incoming.messages(), messages.len() as u64);
        Ok(messages)
    }

    #[test]
    fn messages_of_all_lengths_come_back_whole() {
        let lengths = [0, 1, 64, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 300_000, 5, 0];
        for (step, piece) in [(usize::MAX, usize::MAX), (1000, 777), (65_536, 65_537)] {
            let mut outgoing = Outgoing::default();
            let expected: Vec<Vec<u8>> = lengths.iter().map(|length| vec![*length as u8; *length]).collect();
            for message in &expected {
                let (head, tail) = message.split_at(message.len() / 3);
                put(&mut outgoing, &[head, &[], tail]);
            }
            let wire = taken(&mut outgoing, &key(), step);
            assert_eq!(messages(&wire, key(), piece), Ok(expected), "{step} {piece}");
        }
    }

    #[test]
    fn short_messages_share_a_record() {
        let mut outgoing = Outgoing::default();
        (0..1000).for_each(|_| put(&mut outgoing, &[&[1; 40]]));
        assert_eq!(outgoing.len(), 1);
        outgoing.seal(&key(), 1);
        put(&mut outgoing, &[&[1; 40]]);
        assert_eq!(outgoing.len(), 2, "a sealed record takes no more");
    }

    #[test]
    fn pings_and_pongs_are_no_messages() {
        let mut outgoing = Outgoing::default();
        outgoing.ping();
        outgoing.pong(77);
        let mut wire = taken(&mut outgoing, &key(), usize::MAX);
        let mut incoming = Incoming::new(key());
        assert_eq!(incoming.open(&mut wire), Ok(Some((4..4, RECORD_OVERHEAD_BYTES))));
        wire.drain(..RECORD_OVERHEAD_BYTES);
        let (frames, end) = incoming.open(&mut wire).unwrap().unwrap();
        assert_eq!(end, wire.len());
        assert_eq!(incoming.take(&wire[frames.clone()]), Ok((Frame::Ping, 4)));
        assert_eq!(incoming.take(&wire[frames.start + 4..frames.end]), Ok((Frame::Pong(77), 12)));
        assert_eq!(incoming.messages(), 0);
    }

    #[test]
    fn records_repeated_left_out_or_changed_do_not_open() {
        let mut outgoing = Outgoing::default();
        let mut record = |byte| {
            put(&mut outgoing, &[&[byte; 10]]);
            taken(&mut outgoing, &key(), usize::MAX)
        };
        let [one, two] = [record(1), record(2)];
        let forged = Err(Unsound::Forged(Forged));
        let read = |records: &[&Vec<u8>]| {
            let wire: Vec<u8> = records.iter().flat_map(|record| record.iter().copied()).collect();
            messages(&wire, key(), usize::MAX)
        };
        assert_eq!(read(&[&one, &two]).unwrap().len(), 2);
        assert_eq!(read(&[&one, &one]), forged);
        assert_eq!(read(&[&two]), forged);
        for bit in 0..one.len() * 8 {
            let mut changed = one.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // A length that has grown waits for bytes that do not arrive, or is refused.
            match read(&[&changed]) {
                Ok(messages) => {
                    let in_a_head = bit / 8 % RECORD_OVERHEAD_BYTES < HEAD_BYTES;
                    assert!(in_a_head && messages.is_empty(), "bit {bit}");
                }
                Err(error) => {
                    assert!(matches!(error, Unsound::Forged(_) | Unsound::RecordLength { .. }), "bit {bit}")
                }
            }
        }
    }

    #[test]
    fn a_length_beyond_a_records_is_refused_before_its_bytes_come() {
        let mut bytes = (FRAMES_BYTES_MAX as u32 + 1).to_le_bytes();
        let refused = Incoming::new(key()).open(&mut bytes);
        assert_eq!(refused, Err(Unsound::RecordLength { got: FRAMES_BYTES_MAX + 1 }));
    }

    #[test]
    fn frames_that_make_no_sense_are_refused() {
        let refused = |frames: &[u8]| {
            let error = Incoming::new(key()).take(frames).unwrap_err();
            assert!(matches!(error, Unsound::Frame { .. }), "{error}");
        };
        refused(&[1]);
        refused(&[0, 0, 0]);
        refused(&[0; 4]);
        refused(&frame_head(9, 0));
        refused(&frame_head(LAST, 1));
        refused(&[&frame_head(PING, 1)[..], &[0]].concat());
        refused(&[&frame_head(PONG, 7)[..], &[0; 7]].concat());
    }
}
