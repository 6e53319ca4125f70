//! One node's trace as a file: a preface and a header, then chunks. `docs/TRACE.md` describes the format.

use std::io::{self, ErrorKind, Read, Write};

use hiroba_base::{MAX_NODES, NodeId, PageSize};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::codec::{Decoder, Encoder};
use crate::{Event, MessageKind, Record, ThreadNumber};

/// The first bytes of every trace.
const MAGIC: [u8; 8] = *b"HirobaTr";

/// The version of the format that this library writes and reads.
pub const FORMAT_VERSION: u32 = 3;

/// The maximum length of a header.
const HEADER_BYTES_MAX: u32 = 256 << 10;

/// The maximum length of a chunk's records; a reader allocates no more.
pub const CHUNK_BYTES_MAX: u32 = 2 << 20;

/// A writer ends a chunk with the record that reaches this length.
const CHUNK_BYTES: usize = 32 << 10;

/// The length of a chunk's head: the length of its records, their number, and their checksum, each four
/// bytes.
const CHUNK_HEAD_BYTES: usize = 12;

/// What precedes the records of a node's trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The node.
    pub node: NodeId,
    /// Nodes of the job.
    pub nodes: u16,
    /// Bytes of a granule, the unit in which places in the shared region are counted.
    pub granule_bytes: u32,
    /// The coherence unit of regions that do not choose their own.
    pub page_size: PageSize,
    /// The machine that the node ran on; nodes with equal numbers have one monotonic clock.
    pub host: u16,
    /// The time of the host's monotonic clock at the trace's start, in nanoseconds.
    pub monotonic_ns: u64,
    /// The time of its real-time clock at that moment, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// The names of the kinds of messages, by number.
    pub message_kinds: Vec<String>,
}

impl Header {
    /// Returns the name of a kind of message.
    pub fn name_of(&self, kind: MessageKind) -> &str {
        self.message_kinds.get(usize::from(kind.0)).map_or("message of an unknown kind", String::as_str)
    }
}

/// How a trace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its end mark: nothing is missing.
    Complete,
    /// Without an end mark: the node was killed, or ended badly. All records up to the last complete chunk
    /// have been read.
    CutOff {
        /// The end of the valid part of the file.
        at_byte: u64,
    },
}

/// The reason why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// An error of the system.
    #[error("cannot {action}: {source}")]
    System {
        /// The attempted action.
        action: String,
        /// The reason.
        source: io::Error,
    },
    /// The file is something else, or too short to tell.
    #[error(
        "expected a trace of a node, got a file that does not begin like one; traces are written by `hiroba run --trace DIR`"
    )]
    NotATrace,
    /// The file is empty.
    #[error(
        "expected the trace of a node, got an empty file; the node never joined its job, or its host was lost"
    )]
    Empty,
    /// The file has another version of the format.
    #[error(
        "expected a trace in format {FORMAT_VERSION}, got one in format {got}; read it with the version of Hiroba that wrote it"
    )]
    Version {
        /// Its version.
        got: u32,
    },
    /// The bytes are not those that were written.
    #[error("expected {expected}, got something else at byte {at_byte}; the trace is damaged")]
    Damaged {
        /// The expected content.
        expected: String,
        /// The place.
        at_byte: u64,
    },
    /// The directory contains no trace, or an incomplete one.
    #[error("expected {expected} in '{directory}', got {got}")]
    Directory {
        /// The directory.
        directory: String,
        /// The expected content.
        expected: String,
        /// The actual content.
        got: String,
    },
}

fn io_error(action: &str) -> impl FnOnce(io::Error) -> TraceError {
    let action = action.to_owned();
    |source| TraceError::System { action, source }
}

/// Writes a trace, chunk by chunk. Without [`finish`](TraceWriter::finish) the trace counts as cut off, and
/// records since the last complete chunk are lost.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    to: W,
    encoder: Encoder,
    chunk: Vec<u8>,
    records: u64,
    bytes: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// Those of the system when writing.
    pub fn new(mut to: W, header: &Header) -> io::Result<TraceWriter<W>> {
        let json = serde_json::to_vec(header)?;
        let length = u32::try_from(json.len()).ok().filter(|length| *length <= HEADER_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("the header of the trace is too long"))?;
        let mut bytes = Vec::with_capacity(json.len() + 20);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(crc32fast::hash(&json).to_le_bytes());
        bytes.extend(json);
        to.write_all(&bytes)?;
        let bytes = bytes.len() as u64;
        Ok(TraceWriter { to, encoder: Encoder::new(), chunk: Vec::new(), records: 0, bytes })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Those of the system, if a chunk is full and cannot be written.
    pub fn record(&mut self, thread: ThreadNumber, at_ns: u64, event: &Event) -> io::Result<()> {
        self.encoder.record(thread, at_ns, event);
        if self.encoder.content().0.len() >= CHUNK_BYTES {
            return self.flush();
        }
        Ok(())
    }

    /// Ends the present chunk, so that the records so far are safe.
    ///
    /// # Errors
    /// Those of the system when writing.
    pub fn flush(&mut self) -> io::Result<()> {
        let (_, records) = self.encoder.content();
        if records == 0 {
            return Ok(());
        }
        self.write_chunk()
    }

    /// Ends the trace with its end mark.
    ///
    /// # Errors
    /// Those of the system when writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.end()?;
        Ok(self.to)
    }

    /// Does the same for a writer that cannot be consumed. Nothing may be recorded afterwards.
    ///
    /// # Errors
    /// Those of the system when writing.
    pub fn end(&mut self) -> io::Result<()> {
        self.flush()?;
        self.write_chunk()?;
        self.to.flush()
    }

    /// Returns the number of records, and the bytes of those that have been written to the file.
    pub fn written(&self) -> (u64, u64) {
        (self.records, self.bytes)
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        let (content, records) = self.encoder.content();
        let length = content.len() as u32;
        assert!(length <= CHUNK_BYTES_MAX, "expected records that fit a chunk, got {length} bytes");
        self.chunk.clear();
        self.chunk.extend(length.to_le_bytes());
        self.chunk.extend(records.to_le_bytes());
        self.chunk.extend(checksum(length, records, content).to_le_bytes());
        self.chunk.extend(content);
        self.to.write_all(&self.chunk)?;
        self.records += u64::from(records);
        self.bytes += self.chunk.len() as u64;
        self.encoder.clear();
        Ok(())
    }
}

fn checksum(length: u32, records: u32, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(&records.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Reads a trace, one chunk at a time: an iterator over its records, in the order in which they were written.
///
/// After the last record, [`ending`](TraceReader::ending) tells whether it was the last that the node wrote.
/// An error ends the iteration.
#[derive(Debug)]
pub struct TraceReader<R: Read> {
    from: R,
    header: Header,
    decoder: Decoder,
    /// Records that remain in the present chunk, according to its head.
    records_left: u32,
    /// The offset of its records in the file.
    chunk_at: u64,
    /// The offset of the next chunk.
    next_at: u64,
    ending: Option<Ending>,
    failed: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the preface and the header.
    ///
    /// # Errors
    /// Fails if they are not those of a trace that this version can read.
    pub fn new(mut from: R) -> Result<TraceReader<R>, TraceError> {
        let mut preface = [0; 20];
        let got = read_up_to(&mut from, &mut preface).map_err(io_error("read the trace"))?;
        if got == 0 {
            return Err(TraceError::Empty);
        }
        if got < MAGIC.len() || preface[..MAGIC.len()] != MAGIC {
            return Err(TraceError::NotATrace);
        }
        let damaged = |expected: &str| TraceError::Damaged { expected: expected.to_owned(), at_byte: 20 };
        if got < preface.len() {
            return Err(damaged("a header after the preface"));
        }
        let [version, length, checksum] = [8, 12, 16].map(|at| word(&preface, at));
        if version != FORMAT_VERSION {
            return Err(TraceError::Version { got: version });
        }
        if length > HEADER_BYTES_MAX {
            return Err(damaged("a header of valid length"));
        }
        let json = read_bytes(&mut from, length)?;
        if json.len() < length as usize || crc32fast::hash(&json) != checksum {
            return Err(damaged("a header with its checksum"));
        }
        let header: Header =
            serde_json::from_slice(&json).map_err(|error| damaged(&format!("a header in JSON ({error})")))?;
        let granules = 4096..=PageSize::MIB_2.bytes() as u32;
        let is_possible = (1..=MAX_NODES).contains(&header.nodes)
            && header.node.0 < header.nodes
            && granules.contains(&header.granule_bytes)
            && header.granule_bytes.is_power_of_two();
        if !is_possible {
            return Err(damaged("a node of a job, and granules of 4K to 2M"));
        }
        let decoder = Decoder::new(header.nodes, header.granule_bytes);
        let next_at = u64::from(length) + 20;
        Ok(TraceReader {
            from,
            header,
            decoder,
            records_left: 0,
            chunk_at: next_at,
            next_at,
            ending: None,
            failed: false,
        })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns how the trace ends, once all its records have been read.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Continues with the next chunk. Returns false at the end.
    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        let at_byte = self.next_at;
        let damaged = |expected: &str| TraceError::Damaged { expected: expected.to_owned(), at_byte };
        let mut head = [0; CHUNK_HEAD_BYTES];
        let got = read_up_to(&mut self.from, &mut head).map_err(io_error("read the trace"))?;
        if got < head.len() {
            self.ending = Some(Ending::CutOff { at_byte });
            return Ok(false);
        }
        let [length, records, sum] = [0, 4, 8].map(|at| word(&head, at));
        if length > CHUNK_BYTES_MAX || records > length || (records == 0) != (length == 0) {
            return Err(damaged("a chunk's length and number of records"));
        }
        let content = read_bytes(&mut self.from, length)?;
        if content.len() < length as usize {
            self.ending = Some(Ending::CutOff { at_byte });
            return Ok(false);
        }
        if checksum(length, records, &content) != sum {
            return Err(damaged("a chunk with its checksum"));
        }
        self.chunk_at = at_byte + CHUNK_HEAD_BYTES as u64;
        self.next_at = self.chunk_at + u64::from(length);
        if records == 0 {
            if read_up_to(&mut self.from, &mut [0]).map_err(io_error("read the trace"))? > 0 {
                return Err(damaged("nothing after the end mark"));
            }
            self.ending = Some(Ending::Complete);
            return Ok(false);
        }
        self.records_left = records;
        self.decoder.begin(content);
        Ok(true)
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while self.records_left == 0 {
            if let Some(at) = self.decoder.position() {
                let at_byte = self.chunk_at + at as u64;
                return Err(TraceError::Damaged { expected: "the end of the chunk".to_owned(), at_byte });
            }
            if self.ending.is_some() || !self.next_chunk()? {
                return Ok(None);
            }
        }
        let at_byte = self.chunk_at + self.decoder.position().unwrap_or(0) as u64;
        let record = self.decoder.record();
        self.records_left -= 1;
        record.map(Some).map_err(|expected| TraceError::Damaged { expected: expected.to_owned(), at_byte })
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.next_record().transpose();
        self.failed = matches!(record, Some(Err(_)));
        record
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// Fills as much of `buffer` as there are bytes. Returns the number of bytes.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads `length` bytes, or fewer if the file ends.
fn read_bytes(from: &mut impl Read, length: u32) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut bytes).map_err(io_error("read the trace"))?;
    Ok(bytes)
}
