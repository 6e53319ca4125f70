//! Encrypts plain messages as fabrics encrypt theirs, to measure the share of the cipher.

use aegis::aegis128x4::{Aegis128X4, Nonce};

/// Tag and count behind each message.
pub const SEAL_BYTES: usize = TAG_BYTES + COUNT_BYTES;
const TAG_BYTES: usize = 16;
const COUNT_BYTES: usize = 8;

/// AEGIS-128X4 with a key that is not secret, since only its cost matters.
#[derive(Clone)]
pub struct Cipher {
    /// Each sender's counts begin elsewhere, since all use the same key.
    count: u64,
}

impl Cipher {
    /// Returns the home's cipher.
    pub fn at_home() -> Cipher {
        Cipher { count: 0 }
    }

    /// Returns the cipher of another node, of which `number` others come before it.
    pub fn of_another(number: usize) -> Cipher {
        Cipher { count: (number as u64 + 1) << 48 }
    }

    /// Encrypts the first `bytes` bytes of `buffer`. Returns the length with the seal.
    pub fn seal(&mut self, buffer: &mut [u8], bytes: usize) -> usize {
        self.count += 1;
        let (message, rest) = buffer.split_at_mut(bytes);
        rest[..TAG_BYTES].copy_from_slice(&aegis(self.count).encrypt_in_place(message, &[]));
        rest[TAG_BYTES..SEAL_BYTES].copy_from_slice(&self.count.to_ne_bytes());
        bytes + SEAL_BYTES
    }

    /// Decrypts a message. Returns the length without the seal.
    pub fn open(&self, sealed: &mut [u8]) -> Option<usize> {
        let bytes = sealed.len().checked_sub(SEAL_BYTES)?;
        let (message, seal) = sealed.split_at_mut(bytes);
        let (tag, count) = seal.split_first_chunk::<TAG_BYTES>()?;
        let count = u64::from_ne_bytes(count.try_into().ok()?);
        aegis(count).decrypt_in_place(message, tag, &[]).ok().map(|()| bytes)
    }
}

fn aegis(count: u64) -> Aegis128X4<TAG_BYTES> {
    let nonce: Nonce = u128::from(count).to_be_bytes();
    Aegis128X4::new(&[0; 16], &nonce)
}
