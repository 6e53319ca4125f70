//! The format of a datagram: a fixed header, then frames.
//!
//! The layers below the link have established the datagram's sender and that it is genuine, so the header
//! does not contain them.
//!
//! ```text
//! offset bytes  header (little-endian)
//!  0     4      flags: 1 carries data, 2 acknowledge at once
//!  4     8      sequence number (without data: that of the next datagram with data)
//! 12     8      acknowledged: all lower sequence numbers have arrived
//! 20     8      selective: bit i says that acknowledged + 1 + i has arrived too
//!
//! frame: 4 bytes (bits 0-29 length, bit 30 last, bit 31 first fragment of its message), then the bytes
//! ```
//!
//! Sequence numbers count datagrams from 0 and never wrap: 64 bits last for half a million years at a
//! million datagrams a second.

use hiroba_base::NodeId;
use thiserror::Error;

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = 28;

/// Bytes before each frame's content.
pub const FRAME_HEADER_BYTES: usize = 4;

const FLAG_DATA: u32 = 1;
const FLAG_ACKNOWLEDGE_NOW: u32 = 2;
const FRAME_FIRST: u32 = 1 << 31;
const FRAME_LAST: u32 = 1 << 30;
const FRAME_LENGTH: u32 = FRAME_LAST - 1;

/// Why a datagram was dropped. It has had no effect except to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// The datagram is shorter than a header.
    #[error("expected a datagram of at least {HEADER_BYTES} bytes, got {got_bytes}")]
    TooShort {
        /// Its length.
        got_bytes: usize,
    },
    /// Flags that this release does not know.
    #[error("expected flags below 4, got {got}")]
    Flags {
        /// The flags.
        got: u32,
    },
    /// The source is not a node that can send to this one.
    #[error("expected a source other than ourselves among {nodes} nodes, got node {got}")]
    Source {
        /// The number of nodes in the job.
        nodes: u16,
        /// The sender.
        got: NodeId,
    },
    /// It acknowledges datagrams that were never sent.
    #[error("expected acknowledgements below sequence number {sent}, got {got}")]
    Acknowledgement {
        /// The number sent.
        sent: u64,
        /// The number acknowledged.
        got: u64,
    },
    /// The sequence number lies beyond the receiver's window.
    #[error("expected a sequence number of at most {limit}, got {got}")]
    Sequence {
        /// The last acceptable number.
        limit: u64,
        /// The number received.
        got: u64,
    },
    /// The frames do not fill the datagram exactly.
    #[error("expected frames that fill the datagram, got a frame header that does not fit at byte {at}")]
    Frames {
        /// The offset in the payload.
        at: usize,
    },
}

/// A datagram's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// True if frames follow.
    pub data: bool,
    /// True if the sender waits for the acknowledgement.
    pub acknowledge_now: bool,
    /// This datagram's number, or the next one's when it carries no data.
    pub sequence: u64,
    /// All lower numbers have arrived.
    pub acknowledged: u64,
    /// Bit i: `acknowledged + 1 + i` has arrived.
    pub selective: u64,
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl Header {
    /// Splits a datagram into header and payload.
    ///
    /// The payload's frames are checked here: [`Frames`] over it never fails.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the bytes.
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), Rejected> {
        let Some((bytes, payload)) = datagram.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Rejected::TooShort { got_bytes: datagram.len() });
        };
        let flags = u32::from_le_bytes(field(bytes, 0));
        if flags & !(FLAG_DATA | FLAG_ACKNOWLEDGE_NOW) != 0 {
            return Err(Rejected::Flags { got: flags });
        }
        let header = Header {
            data: flags & FLAG_DATA != 0,
            acknowledge_now: flags & FLAG_ACKNOWLEDGE_NOW != 0,
            sequence: u64::from_le_bytes(field(bytes, 4)),
            acknowledged: u64::from_le_bytes(field(bytes, 12)),
            selective: u64::from_le_bytes(field(bytes, 20)),
        };
        if header.data {
            check_frames(payload)?;
        } else if !payload.is_empty() {
            return Err(Rejected::Frames { at: 0 });
        }
        Ok((header, payload))
    }

    /// Writes the header into a datagram's first [`HEADER_BYTES`] bytes.
    pub fn emit(&self, bytes: &mut [u8; HEADER_BYTES]) {
        let flags = if self.data { FLAG_DATA } else { 0 }
            | if self.acknowledge_now { FLAG_ACKNOWLEDGE_NOW } else { 0 };
        bytes[..4].copy_from_slice(&flags.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[20..].copy_from_slice(&self.selective.to_le_bytes());
    }
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// True if the message begins here.
    pub first: bool,
    /// True if the message ends here.
    pub last: bool,
    /// The content.
    pub bytes: &'a [u8],
}

/// Returns the header of a frame of `length` bytes.
pub fn frame_header(length: usize, first: bool, last: bool) -> [u8; FRAME_HEADER_BYTES] {
    debug_assert!(length <= FRAME_LENGTH as usize);
    let word = (length as u32 & FRAME_LENGTH)
        | if first { FRAME_FIRST } else { 0 }
        | if last { FRAME_LAST } else { 0 };
    word.to_le_bytes()
}

/// Iterates over the frames of a payload. Ends early at a frame that does not fit, which does not happen in a
/// checked payload.
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Iterates over the frames of `payload`.
    pub fn new(payload: &'a [u8]) -> Frames<'a> {
        Frames { rest: payload }
    }

    /// Returns the number of bytes behind the last frame.
    pub fn rest_bytes(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let (word, rest) = self.rest.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let word = u32::from_le_bytes(*word);
        let (bytes, rest) = rest.split_at_checked((word & FRAME_LENGTH) as usize)?;
        self.rest = rest;
        Some(Frame { first: word & FRAME_FIRST != 0, last: word & FRAME_LAST != 0, bytes })
    }
}

fn check_frames(payload: &[u8]) -> Result<(), Rejected> {
    let mut frames = Frames::new(payload);
    while frames.next().is_some() {}
    // A numbered datagram without a frame is never sent, so it is refused like one that overruns.
    if frames.rest.is_empty() && !payload.is_empty() {
        Ok(())
    } else {
        Err(Rejected::Frames { at: payload.len() - frames.rest_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header { data: true, acknowledge_now: false, sequence: 1 << 40, acknowledged: 77, selective: 0b101 }
    }

    fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        [&bytes[..], payload].concat()
    }

    #[test]
    fn what_is_emitted_parses_to_the_same() {
        let payload = [&frame_header(3, true, false)[..], b"abc", &frame_header(0, false, true)].concat();
        let bytes = datagram(&sample(), &payload);
        let (header, rest) = Header::parse(&bytes).unwrap();
        assert_eq!(header, sample());
        let frames: Vec<Frame<'_>> = Frames::new(rest).collect();
        assert_eq!(
            frames,
            [
                Frame { first: true, last: false, bytes: b"abc" },
                Frame { first: false, last: true, bytes: b"" }
            ]
        );
    }

    #[test]
    fn each_malformation_is_named() {
        let good = datagram(&sample(), &frame_header(0, true, true));
        let parse = |bytes: &[u8]| Header::parse(bytes).map(|_| ()).unwrap_err();
        assert_eq!(parse(&good[..27]), Rejected::TooShort { got_bytes: 27 });
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(parse(&changed(0, 0xff)), Rejected::Flags { got: 0xff });
        assert_eq!(parse(&changed(3, 1)), Rejected::Flags { got: 1 | 1 << 24 });
        assert_eq!(parse(&changed(28, 1)), Rejected::Frames { at: 0 });
        assert_eq!(parse(&good[..28]), Rejected::Frames { at: 0 });
        assert_eq!(parse(&[&good[..], b"x"].concat()), Rejected::Frames { at: 4 });
        assert_eq!(parse(&changed(0, 0)), Rejected::Frames { at: 0 });
    }
}
