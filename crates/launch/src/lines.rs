//! Splits a stream that arrives in pieces into lines.

use std::io::{ErrorKind, Read};

/// The longest line, in bytes; a longer one is broken.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The line that has begun and is not complete.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Takes a piece, and passes each line that it completes to `each`, without the newline.
    pub fn take(&mut self, piece: &[u8], mut each: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() >= LINE_BYTES_MAX {
                self.end(&mut each);
            }
        }
    }

    /// Ends the stream: passes the last line to `each` if it has no newline and is not empty.
    pub fn end(&mut self, each: impl FnOnce(&[u8])) {
        if !self.begun.is_empty() {
            each(self.begun.strip_suffix(b"\n").unwrap_or(&self.begun));
            self.begun.clear();
        }
    }
}

/// Reads `from` line by line and passes each line to `each`, to the end or to the first error: one of `each`,
/// or one of reading as `failed` describes it.
pub fn read_lines<E>(
    mut from: impl Read,
    failed: impl Fn(std::io::Error) -> E,
    mut each: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut lines, mut piece) = (Lines::default(), [0u8; 4096]);
    loop {
        let got = match from.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            got => got.map_err(&failed)?,
        };
        let mut told = Ok(());
        let tell = |line: &[u8]| {
            if told.is_ok() {
                told = each(line);
            }
        };
        if got == 0 {
            lines.end(tell)
        } else {
            lines.take(&piece[..got], tell)
        }
        told?;
        if got == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole() {
        let (mut lines, mut told) = (Lines::default(), Vec::new());
        let mut tell = |line: &[u8]| told.push(String::from_utf8_lossy(line).into_owned());
        for piece in ["one\ntw", "o\n\nthr", "ee"] {
            lines.take(piece.as_bytes(), &mut tell);
        }
        lines.end(&mut tell);
        lines.end(&mut tell);
        for _ in 0..2 {
            lines.take(&[b'x'; LINE_BYTES_MAX / 2], &mut tell);
        }
        assert_eq!(told[..4], ["one", "two", "", "three"]);
        assert_eq!((told[4].len(), told.len()), (LINE_BYTES_MAX, 5), "no line grows without bounds");
    }

    #[test]
    fn a_stream_is_read_to_its_end_or_to_the_first_error() {
        let read = |text: &str, worst: &str| {
            let mut told = Vec::new();
            let each = |line: &[u8]| {
                told.push(String::from_utf8_lossy(line).into_owned());
                if line == worst.as_bytes() { Err("bad") } else { Ok(()) }
            };
            let result = read_lines(text.as_bytes(), |_| "not read", each);
            (result, told)
        };
        assert_eq!(read("one\ntwo", ""), (Ok(()), vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!(read("one\ntwo\n", "one"), (Err("bad"), vec!["one".to_owned()]));
    }
}
