//! The seal that fabrics put on what they send, put on plain messages: so that the cipher's share can be told.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Tag and count behind each message.
pub const SEAL_BYTES: usize = TAG_BYTES + COUNT_BYTES;
const TAG_BYTES: usize = 16;
const COUNT_BYTES: usize = 8;

/// AES-128-GCM under a key that keeps no secret: only its cost matters.
#[derive(Clone)]
pub struct Cipher {
    key: LessSafeKey,
    /// Each sender's counts begin elsewhere, for all have the same key.
    count: u64,
}

impl Cipher {
    /// The home's.
    pub fn at_home() -> Cipher {
        let key = UnboundKey::new(&AES_128_GCM, &[0; 16]).expect("a key of this length");
        Cipher { key: LessSafeKey::new(key), count: 0 }
    }

    /// That of another node, of which `number` others come before it.
    pub fn of_another(number: usize) -> Cipher {
        Cipher { count: (number as u64 + 1) << 48, ..Cipher::at_home() }
    }

    /// Seals the first `bytes` of `buffer`; how long they are with the seal.
    pub fn seal(&mut self, buffer: &mut [u8], bytes: usize) -> usize {
        self.count += 1;
        let (message, rest) = buffer.split_at_mut(bytes);
        let sealed = self.key.seal_in_place_separate_tag(nonce(self.count), Aad::empty(), message);
        let tag = sealed.expect("a message is shorter than GCM's limit");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        rest[TAG_BYTES..SEAL_BYTES].copy_from_slice(&self.count.to_ne_bytes());
        bytes + SEAL_BYTES
    }

    /// Opens what is sealed; how long it is without the seal.
    pub fn open(&self, sealed: &mut [u8]) -> Option<usize> {
        let bytes = sealed.len().checked_sub(SEAL_BYTES)?;
        let (message, seal) = sealed.split_at_mut(bytes);
        let (tag, count) = seal.split_at(TAG_BYTES);
        let nonce = nonce(u64::from_ne_bytes(count.try_into().ok()?));
        let tag = tag.try_into().ok()?;
        let opened = self.key.open_in_place_separate_tag(nonce, Aad::empty(), tag, message, 0..);
        opened.ok().map(|_| bytes)
    }
}

fn nonce(count: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&count.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}
