//! The channel between the launcher and an agent on another host: framed messages over an agent's standard
//! input and output (`wire/src/agent.rs`). Nothing here blocks: bytes that cannot be written yet are queued.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hiroba_wire::WireError;
use hiroba_wire::control::{decode, encode};
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::{Zeroize, Zeroizing};

/// While more than this waits to be written, in bytes, senders that can wait put nothing more into the
/// channel.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read from the kernel at once.
const READ_BYTES: usize = 64 << 10;
/// Room left behind a message with a key, so that later messages seldom make the queue grow.
const SECRET_SPARE_BYTES: usize = 64 << 10;
/// Bytes of the length in front of each frame.
const LENGTH_BYTES: usize = 4;

/// The other side has closed the channel, or the channel broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    read: OwnedFd,
    write: OwnedFd,
    /// The longest frame that is accepted.
    frame_bytes_max: usize,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    /// Whether the bytes in `outgoing`, written or not, contain a key.
    outgoing_is_secret: bool,
}

impl Channel {
    /// Makes a channel over two descriptors, and makes these non-blocking.
    pub fn new(read: OwnedFd, write: OwnedFd, frame_bytes_max: usize) -> rustix::io::Result<Channel> {
        for end in [&read, &write] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Channel {
            read,
            write,
            frame_bytes_max,
            incoming: Vec::new(),
            outgoing: VecDeque::new(),
            outgoing_is_secret: false,
        })
    }

    /// Returns what to poll for: the descriptor to read from, and the one to write to if something is queued.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let output = self.has_output().then(|| (self.write.as_fd(), PollFlags::OUT));
        std::iter::once((self.read.as_fd(), PollFlags::IN)).chain(output)
    }

    /// Queues a message and writes as much as the other side takes.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Closed> {
        let bytes = encode(message);
        self.outgoing.extend((bytes.len() as u32).to_le_bytes());
        self.outgoing.extend(bytes);
        self.flush()
    }

    /// Sends a message with a key: it is wiped from the queue when it has been written.
    pub fn send_secret<T: Serialize>(&mut self, message: &T) -> Result<(), Closed> {
        let bytes = Zeroizing::new(encode(message));
        // Growing the queue later would leave a copy behind.
        self.outgoing.reserve(LENGTH_BYTES + bytes.len() + SECRET_SPARE_BYTES);
        self.outgoing_is_secret = true;
        self.outgoing.extend((bytes.len() as u32).to_le_bytes());
        self.outgoing.extend(&*bytes);
        self.flush()
    }

    /// Wipes the bytes of taken messages; to be called after taking a message with a key.
    pub fn wipe_taken(&mut self) {
        self.incoming.spare_capacity_mut().zeroize();
    }

    /// Queues bytes that are not a frame.
    pub fn send_text(&mut self, text: &str) -> Result<(), Closed> {
        self.outgoing.extend(text.as_bytes());
        self.flush()
    }

    /// Returns true if bytes wait to be written.
    pub fn has_output(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns true if so many bytes wait that no more should be added.
    pub fn is_full(&self) -> bool {
        self.outgoing.len() >= QUEUE_BYTES_MAX
    }

    /// Writes as much as the other side takes.
    pub fn flush(&mut self) -> Result<(), Closed> {
        while !self.outgoing.is_empty() {
            let (bytes, _) = self.outgoing.as_slices();
            match rustix::io::write(&self.write, bytes) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        if std::mem::take(&mut self.outgoing_is_secret) {
            self.outgoing.resize(self.outgoing.capacity(), 0);
            let (front, back) = self.outgoing.as_mut_slices();
            front.zeroize();
            back.zeroize();
            self.outgoing.clear();
        }
        Ok(())
    }

    /// Reads once what has arrived. What arrived before the end can still be taken after `Closed`.
    pub fn receive(&mut self) -> Result<(), Closed> {
        let had = self.incoming.len();
        self.make_room(READ_BYTES);
        self.incoming.resize(had + READ_BYTES, 0);
        let read = rustix::io::read(&self.read, &mut self.incoming[had..]);
        self.incoming.truncate(had + read.unwrap_or(0));
        match read {
            Ok(0) => Err(Closed),
            Ok(_) => Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(_) => Err(Closed),
        }
    }

    /// Makes room for incoming bytes without leaving copies of them behind.
    fn make_room(&mut self, bytes: usize) {
        let need = self.incoming.len() + bytes;
        if need > self.incoming.capacity() {
            let mut larger = Vec::with_capacity(need.max(2 * self.incoming.capacity()));
            larger.extend_from_slice(&self.incoming);
            std::mem::replace(&mut self.incoming, larger).zeroize();
        }
    }

    /// Returns the next whole message, if one has arrived.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let Some(length) = self.incoming.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.frame_bytes_max {
            return Err(WireError::OutOfBounds {
                field: "length of a frame",
                expected: "at most the longest of its direction",
                got: length as u64,
            });
        }
        let Some(frame) = self.incoming.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Ok(None) };
        let message = decode(frame)?;
        self.incoming.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }

    /// Returns the next whole line of text without its newline, if one has arrived.
    pub fn next_line(&mut self) -> Option<String> {
        let length = self.incoming.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.incoming.drain(..=length).collect();
        Some(String::from_utf8_lossy(&line[..length]).into_owned())
    }

    /// Returns how many bytes have arrived and were not taken.
    pub fn incoming_bytes(&self) -> usize {
        self.incoming.len()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair(frame_bytes_max: usize) -> [Channel; 2] {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a socket pair");
        [one, other].map(|end| {
            let second = end.try_clone().expect("a descriptor");
            Channel::new(end, second, frame_bytes_max).expect("it is open")
        })
    }

    #[test]
    fn messages_and_lines_come_whole() {
        let [mut one, mut other] = pair(1 << 20);
        assert_eq!(one.send_text("hello\n"), Ok(()));
        assert_eq!(one.send(&"first".to_owned()), Ok(()));
        // Longer than the kernel takes at once.
        let long = "x".repeat(600 << 10);
        assert_eq!(one.send(&long), Ok(()));
        assert!(one.has_output());
        let mut got: Vec<String> = Vec::new();
        while got.len() < 3 {
            assert_eq!(one.flush(), Ok(()));
            assert_eq!(other.receive(), Ok(()));
            if got.is_empty() {
                got.extend(other.next_line());
            }
            while let Ok(Some(message)) = other.next::<String>() {
                got.push(message);
            }
        }
        assert_eq!(got, ["hello".to_owned(), "first".to_owned(), long]);
        drop(one);
        assert_eq!(other.receive(), Err(Closed));
        assert_eq!(other.send(&1u8), Err(Closed));
    }

    #[test]
    fn a_message_with_a_key_is_wiped_on_both_sides() {
        let [mut one, mut other] = pair(1 << 20);
        let key = "0123456789abcdef".repeat(4);
        assert_eq!(one.send_secret(&key), Ok(()));
        one.outgoing.resize(one.outgoing.capacity(), 0);
        assert!(one.outgoing.iter().all(|byte| *byte == 0) && one.outgoing.len() > key.len());
        assert_eq!(other.receive(), Ok(()));
        assert_eq!(other.next::<String>(), Ok(Some(key.clone())));
        other.wipe_taken();
        // SAFETY: all of the capacity was written when it was wiped.
        unsafe { other.incoming.set_len(other.incoming.capacity()) };
        assert!(other.incoming.iter().all(|byte| *byte == 0) && other.incoming.len() > key.len());
    }

    #[test]
    fn bad_lengths_and_bad_messages_are_errors() {
        let [mut one, mut other] = pair(8);
        assert_eq!(one.send(&"too long for this end".to_owned()), Ok(()));
        assert_eq!(other.receive(), Ok(()));
        assert!(other.next::<String>().is_err());
        let [mut one, mut other] = pair(8);
        assert_eq!(one.send(&(7u8, 7u8)), Ok(()));
        assert_eq!(other.receive(), Ok(()));
        assert!(other.next::<String>().is_err(), "a length of seven and one byte");
    }
}
