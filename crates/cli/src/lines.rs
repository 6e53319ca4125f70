//! Lines of a stream that comes in pieces.

/// A longer line is broken, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The line that has begun.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Takes a piece; `each` gets the lines that are whole with it, without their newlines.
    pub fn take(&mut self, piece: &[u8], mut each: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() >= LINE_BYTES_MAX {
                self.end(&mut each);
            }
        }
    }

    /// The stream has ended: what has begun is a line too, if there is anything of it.
    pub fn end(&mut self, each: impl FnOnce(&[u8])) {
        if !self.begun.is_empty() {
            each(self.begun.strip_suffix(b"\n").unwrap_or(&self.begun));
            self.begun.clear();
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
}
