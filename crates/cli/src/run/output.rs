//! What nodes write that does not go to the launcher's own streams by itself: with `--label`, lines of all nodes on one standard
//! output, each with its node in front; and the output of nodes on other hosts.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};

use super::progress;
use crate::lines::Lines;

/// Output that waits for its reader, in bytes; nodes are not read from while there is more.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// A pipe that is writable takes this many bytes without blocking (`PIPE_BUF`).
const WRITE_BYTES: usize = 4096;

/// Where a node's stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The launcher's standard output.
    Out,
    /// The launcher's standard error.
    Error,
}

impl Sink {
    /// Both.
    pub const ALL: [Sink; 2] = [Sink::Out, Sink::Error];

    /// The one or the other.
    pub fn of(to_error: bool) -> Sink {
        if to_error { Sink::Error } else { Sink::Out }
    }

    fn write(self, bytes: &[u8]) -> rustix::io::Result<usize> {
        match self {
            Sink::Out => rustix::io::write(rustix::stdio::stdout(), bytes),
            Sink::Error => rustix::io::write(rustix::stdio::stderr(), bytes),
        }
    }

    fn is_writable(self) -> bool {
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let fd = match self {
            Sink::Out => stdout.as_fd(),
            Sink::Error => stderr.as_fd(),
        };
        let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
        matches!(poll(&mut fds, Some(&rustix::event::Timespec::default())), Ok(1))
    }
}

/// One stream of one node: bytes in, labelled lines out; or the same bytes, without a label.
#[derive(Debug)]
struct Stream {
    /// Where it comes from, unless an agent passes it on.
    fd: Option<OwnedFd>,
    open: bool,
    label: Option<String>,
    lines: Lines,
}

impl Stream {
    fn take(&mut self, bytes: &[u8], queue: &mut VecDeque<u8>) {
        match &self.label {
            None => queue.extend(bytes),
            Some(label) => self.lines.take(bytes, |line| put_line(label, line, queue)),
        }
    }

    fn end(&mut self, queue: &mut VecDeque<u8>) {
        let label = self.label.as_deref().unwrap_or("");
        self.lines.end(|line| put_line(label, line, queue));
        self.fd = None;
        self.open = false;
    }
}

fn put_line(label: &str, line: &[u8], queue: &mut VecDeque<u8>) {
    queue.extend(label.as_bytes());
    queue.extend(line);
    queue.push_back(b'\n');
}

/// All streams of all nodes and what waits to be written.
#[derive(Debug, Default)]
pub struct Labeller {
    streams: [BTreeMap<usize, Stream>; 2],
    queues: [VecDeque<u8>; 2],
}

impl Labeller {
    /// Adds the streams of a node of this machine, whose lines get labels.
    pub fn add(&mut self, node: usize, [out, error]: [OwnedFd; 2]) {
        for (sink, fd) in Sink::ALL.into_iter().zip([out, error]) {
            self.add_stream(sink, node, Some(fd), true);
        }
    }

    /// Adds the streams of a node whose output an agent passes on.
    pub fn add_remote(&mut self, node: usize, label: bool) {
        for sink in Sink::ALL {
            self.add_stream(sink, node, None, label);
        }
    }

    fn add_stream(&mut self, sink: Sink, node: usize, fd: Option<OwnedFd>, label: bool) {
        let label = label.then(|| format!("[{node}] "));
        self.streams[sink as usize].insert(node, Stream { fd, open: true, label, lines: Lines::default() });
    }

    /// Takes what an agent has passed on.
    pub fn take(&mut self, sink: Sink, node: usize, bytes: &[u8]) {
        if let Some(stream) = self.streams[sink as usize].get_mut(&node).filter(|stream| stream.open) {
            stream.take(bytes, &mut self.queues[sink as usize]);
        }
    }

    /// Nothing more will come of a stream that an agent has passed on.
    pub fn end(&mut self, sink: Sink, node: usize) {
        if let Some(stream) = self.streams[sink as usize].get_mut(&node) {
            stream.end(&mut self.queues[sink as usize]);
        }
    }

    /// The descriptor of a stream that is still open.
    pub fn stream(&self, sink: Sink, node: usize) -> Option<&OwnedFd> {
        self.streams[sink as usize].get(&node)?.fd.as_ref()
    }

    /// Whether the sink's queue is full, so that its streams must wait.
    pub fn is_full(&self, sink: Sink) -> bool {
        self.queues[sink as usize].len() >= QUEUE_BYTES_MAX
    }

    /// Whether something waits to be written.
    pub fn has_output(&self, sink: Sink) -> bool {
        !self.queues[sink as usize].is_empty()
    }

    /// Whether a stream is still open or something waits to be written.
    pub fn is_busy(&self) -> bool {
        let open = self.streams.iter().flat_map(BTreeMap::values).any(|stream| stream.open);
        open || Sink::ALL.into_iter().any(|sink| self.has_output(sink))
    }

    /// Reads once from a stream that is readable.
    pub fn read(&mut self, sink: Sink, node: usize) {
        let Some(stream) = self.streams[sink as usize].get_mut(&node) else { return };
        let Some(fd) = &stream.fd else { return };
        let queue = &mut self.queues[sink as usize];
        let mut bytes = [0u8; 16 << 10];
        match rustix::io::read(fd, &mut bytes) {
            Ok(0) => stream.end(queue),
            Ok(got) => stream.take(&bytes[..got], queue),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => stream.end(queue),
        }
    }

    /// Writes as much as the readers take without making the launcher wait.
    pub fn write(&mut self) {
        if Sink::ALL.into_iter().any(|sink| self.has_output(sink)) {
            progress::give_way(|| self.write_queues());
        }
    }

    fn write_queues(&mut self) {
        for sink in Sink::ALL {
            while self.has_output(sink) && sink.is_writable() {
                let queue = &mut self.queues[sink as usize];
                let (bytes, _) = queue.as_slices();
                match sink.write(&bytes[..bytes.len().min(WRITE_BYTES)]) {
                    Ok(written) => drop(queue.drain(..written)),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    // Nobody reads any more: the nodes learn it as they would without the launcher between.
                    Err(_) => {
                        queue.clear();
                        for stream in self.streams[sink as usize].values_mut() {
                            (stream.fd, stream.open) = (None, false);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::LINE_BYTES_MAX;

    fn labelled(pieces: &[&[u8]]) -> Vec<u8> {
        let mut stream =
            Stream { fd: None, open: true, label: Some("[1] ".to_owned()), lines: Lines::default() };
        let mut queue = VecDeque::new();
        for piece in pieces {
            stream.take(piece, &mut queue);
        }
        stream.end(&mut queue);
        queue.into()
    }

    #[test]
    fn lines_stay_whole_however_they_come() {
        assert_eq!(labelled(&[b"a\nb", b"c\n\nd"]), b"[1] a\n[1] bc\n[1] \n[1] d\n");
        assert_eq!(labelled(&[]), b"");
        let chunk = vec![b'x'; LINE_BYTES_MAX / 2];
        let long = labelled(&[&chunk, &chunk, &chunk]);
        assert_eq!(long.len(), 3 * chunk.len() + 2 * "[1] \n".len(), "a line without end is broken in two");
    }
}
