//! Out-of-line data of messages.

use core::fmt;
use std::sync::Arc;

use crate::landing::Extent;

/// A region of out-of-line data. A received one may lie in the node's landing pool, where its sender has put
/// it; its memory comes back to the pool when the region is dropped.
pub struct Region(Data);

enum Data {
    Own(Vec<u8>),
    Landed { extent: Arc<Extent>, offset: u64, bytes: usize },
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// In memory that no other process changes.
    Own(&'a [u8]),
    /// In the landing pool.
    Landed {
        /// The offset of the first one in the pool.
        offset: u64,
        /// Their number.
        bytes: usize,
    },
}

impl Region {
    /// Makes a region of bytes that have been put into an extent, at this offset of it.
    pub(crate) fn landed(extent: Arc<Extent>, offset: u64, bytes: usize) -> Region {
        Region(Data::Landed { extent, offset, bytes })
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Data::Own(bytes) => bytes.len(),
            Data::Landed { bytes, .. } => *bytes,
        }
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of its first byte. It does not change while the region is moved.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.0 {
            Data::Own(bytes) => bytes.as_mut_ptr(),
            Data::Landed { extent, offset, .. } => extent.ground().address(extent.start() + *offset),
        }
    }

    /// Returns where its bytes are.
    pub fn bytes(&self) -> Bytes<'_> {
        match &self.0 {
            Data::Own(bytes) => Bytes::Own(bytes),
            Data::Landed { extent, offset, bytes } => {
                Bytes::Landed { offset: extent.start() + offset, bytes: *bytes }
            }
        }
    }

    /// Returns a copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends a copy of its bytes.
    pub fn append_to(&self, into: &mut Vec<u8>) {
        match &self.0 {
            Data::Own(bytes) => into.extend_from_slice(bytes),
            Data::Landed { extent, offset, bytes } => {
                extent.ground().append_to(extent.start() + offset, *bytes, into);
            }
        }
    }

    /// Returns its bytes, or `None` if they lie in the landing pool.
    pub(crate) fn own(&self) -> Option<&[u8]> {
        match &self.0 {
            Data::Own(bytes) => Some(bytes),
            Data::Landed { .. } => None,
        }
    }

    /// Returns the memory of a region that is filled piece by piece, or `None` if it lies in the landing
    /// pool.
    pub(crate) fn own_mut(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.0 {
            Data::Own(bytes) => Some(bytes),
            Data::Landed { .. } => None,
        }
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Data::Own(bytes) => bytes,
            Data::Landed { .. } => self.to_vec(),
        }
    }
}

impl From<Vec<u8>> for Region {
    fn from(bytes: Vec<u8>) -> Region {
        Region(Data::Own(bytes))
    }
}

impl Default for Region {
    fn default() -> Region {
        Region::from(Vec::new())
    }
}

/// The clone has memory of its own.
impl Clone for Region {
    fn clone(&self) -> Region {
        Region::from(self.to_vec())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Data::Own(bytes) => bytes.fmt(f),
            Data::Landed { .. } => write!(f, "landed {:?}", self.to_vec()),
        }
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Region) -> bool {
        self == &other.to_vec()
    }
}

impl Eq for Region {}

impl<T: AsRef<[u8]>> PartialEq<T> for Region {
    fn eq(&self, other: &T) -> bool {
        match self.own() {
            Some(bytes) => bytes == other.as_ref(),
            None => self.to_vec() == other.as_ref(),
        }
    }
}
