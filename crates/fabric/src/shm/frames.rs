//! Copies out of another node's frames.
//!
//! There are two ways, measured on a 2-core Sapphire Rapids VM, Linux 6.18 (destinations in memory; "cold"
//! means data and destination outside the caches):
//!
//! | bytes | `pread`, hot / cold | mapped, hot / cold | mapped, first touch |
//! |---|---|---|---|
//! | 4 KiB | 0.41 / 1.15 µs | 0.05 / 0.69 µs | 3.5 µs |
//! | 64 KiB | 3.1 / 8 µs | 0.6 / 3.6 µs | 10 µs |
//! | 2 MiB | 102 / 220–300 µs | 43 / 124 µs | 252 µs |
//! | 4 KiB never written | 0.37 µs | makes a frame in the home | |
//!
//! So a page is read by `pread` at first, and through a mapping once it has been read a few times, or in a
//! long run. A load through a mapping would give a frame to a page that was never written. Therefore only
//! pages in which a byte other than zero was seen are read through the mapping: those have frames, and keep
//! them. (If a frame were punched out, a read would bring back a zeroed one: that wastes memory but is
//! correct.)
//!
//! Mappings are windows of many GiB, of which a job uses one or two per peer, so they do not fragment the
//! address space. Where a window cannot be mapped, or the process's address space is limited, all reads use
//! `pread`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::fs::{SealFlags, fcntl_add_seals, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::mapping::{ReadOnlyMapping, SharedMapping};

/// The length of a window, in bytes.
const WINDOW_BYTES: u64 = 64 << 30;

/// Number of windows per peer: those of the longest region. Bytes beyond are read by `pread`.
const WINDOWS: usize = 256;

/// Maximum number of windows open in a process: a quarter of a 47-bit address space.
const WINDOWS_OPEN_MAX: usize = 512;

/// After this many reads of a page, the first touch of the mapping is cheaper than further calls.
const READS_BEFORE_MAPPING: u8 = 4;

/// A read of at least this many pages makes the first touch worthwhile the next time: the kernel maps 16
/// neighbours at once.
const LONG_RUN_PAGES: usize = 16;

/// The number of windows open in a process.
#[derive(Debug, Default)]
pub struct WindowCount(std::sync::atomic::AtomicUsize);

/// The frames of one node.
#[derive(Debug)]
pub struct Frames {
    file: OwnedFd,
    page_bytes: usize,
    /// The mapped parts of the file; inside, `None` for parts that cannot be mapped.
    windows: Vec<OnceLock<Option<Window>>>,
}

#[derive(Debug)]
struct Window {
    view: ReadOnlyMapping,
    /// By page: the number of reads that returned content, up to [`READS_BEFORE_MAPPING`].
    reads: SharedMapping,
}

impl Frames {
    /// Makes the frames in `file`, which may still be empty.
    pub fn new(file: OwnedFd) -> io::Result<Frames> {
        // A file that could shrink would raise SIGBUS in its readers.
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        // Windows would use up the address space that a limit leaves to the program.
        let windows = if getrlimit(Resource::As).current.is_some() { 0 } else { WINDOWS };
        let windows = (0..windows).map(|_| OnceLock::new()).collect();
        Ok(Frames { file, page_bytes: rustix::param::page_size(), windows })
    }

    /// Returns the file of the frames.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the bytes at `offset`, of any length.
    pub fn read(&self, offset: u64, into: &mut [u8], open: &WindowCount) -> io::Result<()> {
        let mut offset = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let in_window = offset % WINDOW_BYTES;
            let length = usize::try_from(WINDOW_BYTES - in_window).unwrap_or(usize::MAX).min(rest.len());
            let (piece, others) = rest.split_at_mut(length);
            match self.window(offset, open) {
                Some(window) if in_window as usize + length <= window.view.bytes() => {
                    self.read_through(window, offset, piece)?;
                }
                _ => self.read_by_call(offset, piece)?,
            }
            offset += length as u64;
            rest = others;
        }
        Ok(())
    }

    fn window(&self, offset: u64, open: &WindowCount) -> Option<&Window> {
        let index = usize::try_from(offset / WINDOW_BYTES).ok()?;
        let window = self.windows.get(index)?;
        if let Some(window) = window.get() {
            return window.as_ref();
        }
        // A file without a length will have one later.
        let length = u64::try_from(fstat(&self.file).ok()?.st_size).ok()?;
        let start = index as u64 * WINDOW_BYTES;
        let bytes = length.checked_sub(start)?.min(WINDOW_BYTES) as usize / self.page_bytes * self.page_bytes;
        if bytes == 0 {
            return None;
        }
        window.get_or_init(|| self.open_window(start, bytes, open)).as_ref()
    }

    fn open_window(&self, start: u64, bytes: usize, open: &WindowCount) -> Option<Window> {
        if open.0.fetch_add(1, Ordering::Relaxed) >= WINDOWS_OPEN_MAX {
            return None;
        }
        let view = ReadOnlyMapping::new(self.file.as_fd(), start, bytes).ok()?;
        let reads = SharedMapping::of_zeros(bytes / self.page_bytes).ok()?;
        Some(Window { view, reads })
    }

    /// Reads into `into`, which lies within the window: pages known to have frames through the mapping, the
    /// others by `pread`.
    fn read_through(&self, window: &Window, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = (offset % WINDOW_BYTES) as usize;
        let end = start + into.len();
        let is_mapped = |at: usize| {
            window.reads.byte(at / self.page_bytes).load(Ordering::Relaxed) >= READS_BEFORE_MAPPING
        };
        let mut at = start;
        while at < end {
            let mapped = is_mapped(at);
            let mut run_end = at;
            while run_end < end && is_mapped(run_end) == mapped {
                run_end = (run_end / self.page_bytes + 1) * self.page_bytes;
            }
            let run_end = run_end.min(end);
            let run = &mut into[at - start..run_end - start];
            if mapped {
                window.view.copy_out(at, run);
            } else {
                self.read_by_call(offset + (at - start) as u64, run)?;
                self.note_frames(window, at, run);
            }
            at = run_end;
        }
        Ok(())
    }

    /// Records pages with content: they have frames.
    fn note_frames(&self, window: &Window, start: usize, run: &[u8]) {
        let is_long = run.len() >= LONG_RUN_PAGES * self.page_bytes;
        let mut at = start;
        let mut rest = run;
        while !rest.is_empty() {
            let length = (self.page_bytes - at % self.page_bytes).min(rest.len());
            let (page, others) = rest.split_at(length);
            if !is_zero(page) {
                let reads = window.reads.byte(at / self.page_bytes);
                let before = if is_long { READS_BEFORE_MAPPING } else { reads.load(Ordering::Relaxed) };
                // Two threads may count one read: the count only decides which way is faster.
                reads.store(before.saturating_add(1), Ordering::Relaxed);
            }
            at += length;
            rest = others;
        }
    }

    /// Reads by `pread(2)`, which gives no frame to a page that was never written.
    fn read_by_call(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.file, &mut into[done..], offset + done as u64) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        format!("expected frames at offset {offset}, got the end of a node's memory"),
                    ));
                }
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Whole lines at a time: most pages have content in their first line.
    bytes.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}
