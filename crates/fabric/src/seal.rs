//! Authenticated encryption of messages: AEGIS-128X4 with one key for each direction between two nodes.
//!
//! Read first: draft-irtf-cfrg-aegis-aead (the cipher, and why a nonce must not be used twice with one key)
//! and RFC 5869 (derivation of the directions' keys from the job's key). Each direction counts its messages
//! from zero, and the count is the nonce. A key belongs to one job, one sender, one receiver and one
//! connection, so no pair of key and nonce is used twice. Receivers refuse counts they have seen. Each fabric
//! does that in its own way, because datagrams arrive out of order.
//!
//! The cipher runs four lanes of AEGIS-128L in parallel, in one vector register on processors with registers
//! of that length. It encrypts and authenticates in one pass, and costs a fifth of AES-GCM for 64 KiB
//! (measured by `examples/sealing.rs`). Therefore everything after a clear header is always encrypted, too.

use core::fmt;

use aegis::aegis128x4::{Aegis128X4, Key, Nonce};
use hiroba_wire::Secret;
use hiroba_wire::control::JobKey;
use hkdf::Hkdf;
use sha2::Sha256;
use thiserror::Error;

/// The number of bytes that authentication adds to a message, in addition to the count.
pub const TAG_BYTES: usize = 16;

/// From this length on, encrypting from one place to another costs less than copying first. The former sets
/// up, and wipes, its state separately.
const ENCRYPTED_ACROSS_BYTES_MIN: usize = 32 << 10;

/// Stack depth of the cipher and the key derivation, in bytes (a test checks it).
const FRAMES_BYTES: usize = 2 << 10;

type Cipher = Aegis128X4<TAG_BYTES>;

/// Separates keys of this purpose from all others derived from a job's key.
const PURPOSE: &[u8] = b"hiroba fabric, version 1";

/// The bytes are not what the key's owner sealed: forged, damaged, or sealed for another receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected bytes sealed with the job's key, got others")]
pub struct Forged;

/// The key of one direction of one connection.
pub struct DirectionKey {
    key: Secret<{ size_of::<Key>() }>,
}

impl fmt::Debug for DirectionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DirectionKey").finish_non_exhaustive()
    }
}

impl DirectionKey {
    /// Derives the key for `context`, whose parts include sender and receiver and have the same lengths
    /// wherever the key is derived.
    pub fn derive(job: &JobKey, context: &[&[u8]]) -> DirectionKey {
        let key = derive(job, context);
        forget_frames();
        DirectionKey { key }
    }

    /// Seals `bytes` in place; the first `clear_bytes` stay readable. No count may be used twice.
    ///
    /// # Panics
    ///
    /// Panics if `clear_bytes` exceeds the length.
    pub fn seal(&self, count: u64, bytes: &mut [u8], clear_bytes: usize) -> [u8; TAG_BYTES] {
        let (clear, hidden) = bytes.split_at_mut(clear_bytes);
        let tag = self.encrypt(count, clear, hidden);
        forget_frames();
        tag
    }

    /// Seals `bytes` into `room`, which has the same length, after a clear header that stays in its place.
    ///
    /// # Panics
    ///
    /// Panics if `room` has another length than `bytes`.
    pub fn seal_into(&self, count: u64, clear: &[u8], bytes: &[u8], room: &mut [u8]) -> [u8; TAG_BYTES] {
        if bytes.len() < ENCRYPTED_ACROSS_BYTES_MIN {
            room.copy_from_slice(bytes);
            let tag = self.encrypt(count, clear, room);
            forget_frames();
            return tag;
        }
        let tag = self.encrypt_across(count, clear, bytes, room);
        forget_frames();
        tag
    }

    /// Opens what [`seal`](Self::seal) sealed, in place.
    ///
    /// # Errors
    ///
    /// Fails if the bytes were not sealed so; `bytes` are worthless then.
    ///
    /// # Panics
    ///
    /// Panics if `clear_bytes` exceeds the length.
    pub fn open(
        &self,
        count: u64,
        bytes: &mut [u8],
        clear_bytes: usize,
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let (clear, hidden) = bytes.split_at_mut(clear_bytes);
        self.open_beside(count, clear, hidden, tag)
    }

    /// Seals `bytes` in place together with `clear`, which is in another place and stays readable. No count
    /// may be used twice.
    pub fn seal_beside(&self, count: u64, clear: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self.encrypt(count, clear, bytes);
        forget_frames();
        tag
    }

    /// Opens what [`seal_beside`](Self::seal_beside) sealed, in place.
    ///
    /// # Errors
    ///
    /// Fails if the bytes were not sealed so; `bytes` are worthless then.
    pub fn open_beside(
        &self,
        count: u64,
        clear: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let opened = self.decrypt(count, clear, bytes, tag);
        forget_frames();
        opened
    }

    #[inline(never)]
    fn encrypt(&self, count: u64, clear: &[u8], hidden: &mut [u8]) -> [u8; TAG_BYTES] {
        self.cipher(count).encrypt_in_place(hidden, clear)
    }

    #[inline(never)]
    fn encrypt_across(&self, count: u64, clear: &[u8], bytes: &[u8], room: &mut [u8]) -> [u8; TAG_BYTES] {
        let mut encryptor = self.cipher(count).encryptor(clear);
        encryptor.update(bytes, room);
        encryptor.finalize()
    }

    #[inline(never)]
    fn decrypt(
        &self,
        count: u64,
        clear: &[u8],
        hidden: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        self.cipher(count).decrypt_in_place(hidden, tag, clear).map_err(|_| Forged)
    }

    fn cipher(&self, count: u64) -> Cipher {
        let nonce: Nonce = u128::from(count).to_be_bytes();
        Cipher::new(self.key.expose(), &nonce)
    }
}

#[inline(never)]
fn derive(job: &JobKey, context: &[&[u8]]) -> Secret<{ size_of::<Key>() }> {
    let secret = Hkdf::<Sha256>::new(Some(PURPOSE), job.expose());
    Secret::made_by(|key| secret.expand_multi_info(context, key)).expect("a key is shorter than HKDF's limit")
}

/// Overwrites the part of the stack that the last call used: cipher and derivation keep keys and states
/// there, and a core file contains stacks.
#[inline(never)]
fn forget_frames() {
    core::hint::black_box(&mut [0u64; FRAMES_BYTES / 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    static JOB: std::sync::LazyLock<JobKey> = std::sync::LazyLock::new(|| JobKey::new(&[7; 32]));

    fn key(context: &[&[u8]]) -> DirectionKey {
        DirectionKey::derive(&JOB, context)
    }

    #[test]
    fn what_was_sealed_opens_and_nothing_else() {
        let direction = key(&[b"0", b"1"]);
        let mut bytes = *b"headpayload";
        let tag = direction.seal(3, &mut bytes, 4);
        assert_eq!(&bytes[..4], b"head");
        assert_ne!(&bytes[4..], b"payload");
        let opens = |key: &DirectionKey, count, bytes: [u8; 11], clear_bytes, tag| {
            let mut bytes = bytes;
            key.open(count, &mut bytes, clear_bytes, &tag).map(|()| bytes)
        };
        assert_eq!(opens(&direction, 3, bytes, 4, tag), Ok(*b"headpayload"));
        assert_eq!(opens(&direction, 4, bytes, 4, tag), Err(Forged));
        assert_eq!(opens(&direction, 3, bytes, 5, tag), Err(Forged));
        assert_eq!(opens(&key(&[b"1", b"0"]), 3, bytes, 4, tag), Err(Forged));
        for flipped in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[flipped / 8] ^= 1 << (flipped % 8);
            assert_eq!(opens(&direction, 3, damaged, 4, tag), Err(Forged), "bit {flipped}");
        }
        for flipped in 0..TAG_BYTES * 8 {
            let mut damaged = tag;
            damaged[flipped / 8] ^= 1 << (flipped % 8);
            assert_eq!(opens(&direction, 3, bytes, 4, damaged), Err(Forged), "bit {flipped} of the tag");
        }
    }

    #[test]
    fn sealed_in_place_or_into_another_the_bytes_are_the_same() {
        let direction = key(&[b"0", b"1"]);
        for length in [0, 1, 63, 64, ENCRYPTED_ACROSS_BYTES_MIN - 1, ENCRYPTED_ACROSS_BYTES_MIN, 65_000] {
            let mut bytes = vec![9; 4 + length];
            let mut room = vec![0; length];
            let tag_across = direction.seal_into(5, &bytes[..4], &bytes[4..], &mut room);
            let tag = direction.seal(5, &mut bytes, 4);
            assert_eq!((tag_across, &room[..]), (tag, &bytes[4..]), "{length} bytes");
        }
    }

    /// Counts the occurrences of `bytes` on this thread's stack below the caller's frame.
    #[inline(never)]
    fn traces_below(bytes: &[u8; 16]) -> usize {
        const LOOK_BYTES: usize = 64 << 10;
        let here = 0u8;
        let end = core::ptr::from_ref(core::hint::black_box(&here)) as usize;
        let memory = std::fs::File::open("/proc/self/mem").expect("/proc is mounted");
        let mut below = vec![0; LOOK_BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut below, (end - LOOK_BYTES) as u64)
            .expect("a thread's stack is longer");
        below.windows(bytes.len()).filter(|part| part == bytes).count()
    }

    #[inline(never)]
    fn leave_on_the_stack(bytes: &[u8; 16]) {
        // Deeper than the stack that the search uses.
        let mut frame = [[0u8; 16]; 64];
        frame[0] = *bytes;
        core::hint::black_box(&mut frame);
    }

    #[test]
    fn no_key_is_left_on_the_stack() {
        // A stack that is long enough and that no other code has used.
        let look = || {
            let direction = key(&[b"stack"]);
            assert_eq!(traces_below(direction.key.expose()), 0, "after the derivation");
            let mut bytes = vec![1u8; 40_000];
            for length in [0, 1, 63, 4096, 40_000] {
                let mut room = vec![0; length];
                direction.seal_into(1, &[], &bytes[..length], &mut room);
                assert_eq!(traces_below(direction.key.expose()), 0, "sealed {length} bytes across");
                let tag = direction.seal(2, &mut bytes[..length], 0);
                assert_eq!(traces_below(direction.key.expose()), 0, "sealed {length} bytes");
                assert_eq!(direction.open(2, &mut bytes[..length], 0, &tag), Ok(()));
                assert_eq!(traces_below(direction.key.expose()), 0, "opened {length} bytes");
            }
            // The search works: it finds what another function leaves there.
            leave_on_the_stack(direction.key.expose());
            assert!(traces_below(direction.key.expose()) > 0);
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(look).unwrap().join().unwrap();
    }

    #[test]
    fn a_key_is_not_printed() {
        assert!(!format!("{:?}{:?}", key(&[]), *JOB).contains('7'));
    }
}
