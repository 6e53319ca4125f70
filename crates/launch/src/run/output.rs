//! Collects what nodes write into whole lines before it goes to the launcher's own streams.
//!
//! A node writes to a pipe, unless the launcher's stream is a terminal or another device: there each `write`
//! of a line is whole, and programs behave as they do without Hiroba. Pieces of any length arrive through the
//! pipes. A line is passed on when its end has arrived, so that lines of several nodes are never mixed. An
//! unfinished line (a prompt, a row of dots) is passed on when nothing has followed for [`PAUSE`]. The output
//! of nodes is not changed, except that `--label` puts the node in front of each line.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};

use crate::lines::{LINE_BYTES_MAX, Lines};
use crate::progress;

/// Output that waits for its reader, in bytes. Nodes are not read while more than this waits.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The number of bytes that a writable pipe takes without blocking (`PIPE_BUF`).
const WRITE_BYTES: usize = 4096;
/// Bytes of lines that may wait for the end of another node's line; with more they no longer wait.
const HELD_BYTES_MAX: usize = 16 << 20;
/// A line that has begun is passed on without its end when nothing has followed for this time.
const PAUSE: Duration = Duration::from_millis(200);

/// The destination of a node's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The launcher's standard output.
    Out,
    /// The launcher's standard error.
    Error,
}

impl Sink {
    /// Both sinks.
    pub const ALL: [Sink; 2] = [Sink::Out, Sink::Error];

    /// Returns standard error if `to_error`, else standard output.
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

/// Which streams of the nodes of this machine go through pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piped {
    /// Standard output.
    pub out: bool,
    /// Standard error.
    pub error: bool,
    /// One pipe carries both to standard output when both go to the same file, which keeps the order of a
    /// node's own output.
    pub together: bool,
}

impl Piped {
    /// No pipes: nodes write to the launcher's streams themselves.
    pub const NONE: Piped = Piped { out: false, error: false, together: false };
    /// A pipe for each stream.
    pub const EACH: Piped = Piped { out: true, error: true, together: false };

    /// Returns what suits the launcher's own streams when several nodes write.
    pub fn for_several() -> Piped {
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let [out, error] = [stdout.as_fd(), stderr.as_fd()].map(|stream| fstat(stream).ok());
        // A write to a terminal is whole; other devices store nothing.
        let mixes = |kind| matches!(kind, FileType::Fifo | FileType::Socket | FileType::RegularFile);
        let file = |stat: &rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let piped = |stat: &Option<rustix::fs::Stat>| {
            stat.as_ref().is_some_and(|stat| mixes(FileType::from_raw_mode(stat.st_mode)))
        };
        let together = piped(&out) && out.as_ref().map(file) == error.as_ref().map(file);
        Piped { out: piped(&out), error: piped(&error) && !together, together }
    }

    /// Returns how many pipes a node has.
    pub fn count(self) -> u64 {
        u64::from(self.out) + u64::from(self.error)
    }
}

/// The launcher's end of a pipe that carries a node's output, and its destination.
#[derive(Debug)]
pub struct OutputPipe {
    /// The destination.
    pub sink: Sink,
    /// Non-blocking.
    pub fd: OwnedFd,
}

/// One stream of one node: takes pieces, gives whole lines.
#[derive(Debug)]
struct Stream {
    /// The pipe, unless an agent passes the stream on.
    fd: Option<OwnedFd>,
    open: bool,
    /// The text in front of each line.
    label: Option<String>,
    /// Splits the lines that get labels.
    lines: Lines,
    /// Bytes that have arrived and were not passed on, without labels.
    held: Vec<u8>,
    /// When the last of these arrived.
    latest: Instant,
}

impl Stream {
    fn new(fd: Option<OwnedFd>, label: Option<String>) -> Stream {
        let (lines, held) = (Lines::default(), Vec::new());
        Stream { fd, open: true, label, lines, held, latest: Instant::now() }
    }

    /// Returns true if the stream has ended, or has been silent for a while with nothing in its pipe. Bytes
    /// in the pipe mean that the node has written, and the launcher itself got no processor.
    fn pauses(&self, now: Instant) -> bool {
        !self.open || (now >= self.latest + PAUSE && !self.has_unread())
    }

    fn has_unread(&self) -> bool {
        let has = |fd: &OwnedFd| {
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            matches!(poll(&mut fds, Some(&rustix::event::Timespec::default())), Ok(1))
        };
        self.fd.as_ref().is_some_and(has)
    }

    /// Returns how many of the held bytes make whole lines.
    fn whole_bytes(&self) -> usize {
        self.held.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1)
    }
}

fn put_line(label: &str, line: &[u8], queue: &mut VecDeque<u8>) {
    queue.extend(label.as_bytes());
    queue.extend(line);
    queue.push_back(b'\n');
}

/// All streams that go to one sink, and the bytes that wait to be written there.
#[derive(Debug, Default)]
struct Outlet {
    streams: BTreeMap<usize, Stream>,
    queue: VecDeque<u8>,
    /// The node whose unfinished line was passed on.
    unfinished: Option<usize>,
    /// Nodes with held bytes.
    holding: BTreeSet<usize>,
    /// The sum of the held bytes.
    held_bytes: usize,
}

impl Outlet {
    /// Returns true if so many bytes wait to be written that nodes are not read.
    fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_BYTES_MAX
    }

    /// Resumes reading nodes that were not read for a while.
    fn listen_again(&mut self, now: Instant) {
        self.streams.values_mut().for_each(|stream| stream.latest = now);
    }

    /// Returns true if a node has begun a line and paused. A node that is not read may have continued.
    fn has_paused(&self, node: usize, now: Instant) -> bool {
        let stream = &self.streams[&node];
        !stream.open || (!self.is_full() && stream.pauses(now))
    }

    fn take(&mut self, node: usize, bytes: &[u8], now: Instant) {
        let Some(stream) = self.streams.get_mut(&node).filter(|stream| stream.open) else { return };
        stream.latest = now;
        match &stream.label {
            Some(label) => {
                let queue = &mut self.queue;
                stream.lines.take(bytes, |line| put_line(label, line, queue));
            }
            None if !bytes.is_empty() => {
                stream.held.extend_from_slice(bytes);
                self.held_bytes += bytes.len();
                self.holding.insert(node);
                self.pass(node, now);
            }
            None => {}
        }
    }

    fn end(&mut self, node: usize, now: Instant) {
        let Some(stream) = self.streams.get_mut(&node) else { return };
        (stream.fd, stream.open) = (None, false);
        let label = stream.label.as_deref().unwrap_or("");
        let queue = &mut self.queue;
        stream.lines.end(|line| put_line(label, line, queue));
        self.pass(node, now);
    }

    /// Passes on what can go, of all nodes.
    fn settle(&mut self, now: Instant) {
        let holding: Vec<usize> = self.holding.iter().copied().collect();
        for node in holding {
            self.pass(node, now);
        }
    }

    /// Passes on what can go of one node, and then what has waited for the end of its line.
    fn pass(&mut self, node: usize, now: Instant) {
        let others = self.unfinished.filter(|unfinished| *unfinished != node);
        let too_much = self.held_bytes >= HELD_BYTES_MAX;
        if others.is_some_and(|other| !self.has_paused(other, now) && !too_much) {
            return;
        }
        let (begun, has_paused) = (self.unfinished == Some(node), self.has_paused(node, now));
        let Some(stream) = self.streams.get_mut(&node) else { return };
        let whole = stream.whole_bytes();
        let rest = stream.held.len() - whole;
        let goes = if begun || rest >= LINE_BYTES_MAX || has_paused { whole + rest } else { whole };
        if goes == 0 {
            return;
        }
        self.queue.extend(stream.held.drain(..goes));
        self.held_bytes -= goes;
        if stream.held.is_empty() {
            self.holding.remove(&node);
        }
        self.unfinished = (goes > whole).then_some(node);
        if begun && self.unfinished.is_none() {
            self.settle(now);
        }
    }

    /// Returns when the next held bytes can go although nothing more arrives.
    fn due(&self) -> Option<Instant> {
        if self.is_full() {
            return None;
        }
        let unfinished = self.unfinished.map(|node| (node, &self.streams[&node]));
        let due = self.holding.iter().map(|node| {
            let stream = &self.streams[node];
            let own = (stream.open && stream.whole_bytes() == 0).then_some(stream.latest + PAUSE);
            let others = unfinished.filter(|(other, stream)| other != node && stream.open);
            own.max(others.map(|(_, stream)| stream.latest + PAUSE)).unwrap_or(stream.latest)
        });
        due.min()
    }

    /// Returns what the next write writes: no more than can be written at once, and whole lines if there are
    /// any.
    fn next_bytes(&self) -> &[u8] {
        let (bytes, _) = self.queue.as_slices();
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES)];
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map(|newline| newline + 1);
        &bytes[..whole.unwrap_or(bytes.len())]
    }

    /// Closes the streams because the reader is gone: the nodes notice it as they would without the launcher.
    fn close(&mut self) {
        self.queue.clear();
        self.holding.clear();
        (self.held_bytes, self.unfinished) = (0, None);
        for stream in self.streams.values_mut() {
            (stream.fd, stream.open) = (None, false);
            stream.held.clear();
        }
    }
}

/// All streams of all nodes, and what waits to be written.
#[derive(Debug, Default)]
pub struct Labeller {
    outlets: [Outlet; 2],
}

impl Labeller {
    /// Adds the streams of a node of this machine.
    pub fn add(&mut self, node: usize, pipes: Vec<OutputPipe>, label: bool) {
        for OutputPipe { sink, fd } in pipes {
            self.add_stream(sink, node, Some(fd), label);
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
        self.outlets[sink as usize].streams.insert(node, Stream::new(fd, label));
    }

    /// Takes output that an agent has passed on.
    pub fn take(&mut self, sink: Sink, node: usize, bytes: &[u8]) {
        self.outlets[sink as usize].take(node, bytes, Instant::now());
    }

    /// Ends a stream that an agent has passed on.
    pub fn end(&mut self, sink: Sink, node: usize) {
        self.outlets[sink as usize].end(node, Instant::now());
    }

    /// Returns the descriptor of a stream that is still open.
    pub fn stream(&self, sink: Sink, node: usize) -> Option<&OwnedFd> {
        self.outlets[sink as usize].streams.get(&node)?.fd.as_ref()
    }

    /// Returns true if so many bytes wait for the sink that its streams must wait, too.
    pub fn is_full(&self, sink: Sink) -> bool {
        self.outlets[sink as usize].is_full()
    }

    /// Returns true if something waits to be written.
    pub fn has_output(&self, sink: Sink) -> bool {
        !self.outlets[sink as usize].queue.is_empty()
    }

    /// Returns true if a stream is still open or something waits to be written.
    pub fn is_busy(&self) -> bool {
        let busy = |outlet: &Outlet| {
            let open = outlet.streams.values().any(|stream| stream.open);
            open || !outlet.holding.is_empty() || !outlet.queue.is_empty()
        };
        self.outlets.iter().any(busy)
    }

    /// Returns when [`write`](Self::write) must be called although nothing more arrives.
    pub fn due(&self) -> Option<Instant> {
        self.outlets.iter().filter_map(Outlet::due).min()
    }

    /// Reads once from a stream that is readable. Returns true if there may be more.
    pub fn read(&mut self, sink: Sink, node: usize) -> bool {
        let outlet = &mut self.outlets[sink as usize];
        let Some(fd) = outlet.streams.get(&node).and_then(|stream| stream.fd.as_ref()) else { return false };
        let mut bytes = [0u8; 16 << 10];
        match rustix::io::read(fd, &mut bytes) {
            Ok(got) if got > 0 => outlet.take(node, &bytes[..got], Instant::now()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return false,
            Ok(_) | Err(_) => {
                outlet.end(node, Instant::now());
                return false;
            }
        }
        true
    }

    /// Reads what the nodes of this machine have written so far, as far as there is room, and writes what the
    /// readers take: a node's output comes before the message about its end.
    pub fn catch_up(&mut self) {
        for sink in Sink::ALL {
            let nodes: Vec<usize> = self.outlets[sink as usize].streams.keys().copied().collect();
            for node in nodes {
                while !self.is_full(sink) && self.read(sink, node) {}
            }
        }
        self.write();
    }

    /// Writes as much as the readers take without blocking the launcher.
    pub fn write(&mut self) {
        for outlet in &mut self.outlets {
            outlet.settle(Instant::now());
        }
        if Sink::ALL.into_iter().any(|sink| self.has_output(sink)) {
            progress::give_way(|| self.write_queues());
        }
    }

    fn write_queues(&mut self) {
        for (sink, outlet) in Sink::ALL.into_iter().zip(&mut self.outlets) {
            let was_full = outlet.is_full();
            while !outlet.queue.is_empty() && sink.is_writable() {
                match sink.write(outlet.next_bytes()) {
                    Ok(written) => drop(outlet.queue.drain(..written)),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    Err(_) => outlet.close(),
                }
            }
            if was_full && !outlet.is_full() {
                outlet.listen_again(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlet(labels: &[Option<&str>]) -> Outlet {
        let stream = |label: &Option<&str>| Stream::new(None, label.map(str::to_owned));
        Outlet { streams: labels.iter().map(stream).enumerate().collect(), ..Outlet::default() }
    }

    fn labelled(pieces: &[&[u8]]) -> Vec<u8> {
        let mut outlet = outlet(&[Some("[1] ")]);
        for piece in pieces {
            outlet.take(0, piece, Instant::now());
        }
        outlet.end(0, Instant::now());
        outlet.queue.into()
    }

    #[test]
    fn lines_stay_whole_however_they_come() {
        assert_eq!(labelled(&[b"a\nb", b"c\n\nd"]), b"[1] a\n[1] bc\n[1] \n[1] d\n");
        assert_eq!(labelled(&[]), b"");
        let chunk = vec![b'x'; LINE_BYTES_MAX / 2];
        let long = labelled(&[&chunk, &chunk, &chunk]);
        assert_eq!(long.len(), 3 * chunk.len() + 2 * "[1] \n".len(), "a line without end is broken in two");
    }

    /// Returns the output for pieces of two nodes, each with its time in milliseconds after the start.
    fn plain(pieces: &[(u64, usize, &str)]) -> String {
        let (mut outlet, start) = (outlet(&[None, None]), Instant::now());
        for (ms, node, piece) in pieces {
            let now = start + Duration::from_millis(*ms);
            outlet.settle(now);
            outlet.take(*node, piece.as_bytes(), now);
        }
        for node in [0, 1] {
            outlet.end(node, start + Duration::from_millis(pieces.last().map_or(0, |piece| piece.0)));
        }
        assert_eq!((outlet.holding.len(), outlet.due()), (0, None), "nothing stays behind");
        String::from_utf8(outlet.queue.into()).unwrap()
    }

    #[test]
    fn lines_of_two_nodes_are_not_mixed() {
        assert_eq!(
            plain(&[(0, 0, "a"), (0, 1, "b"), (0, 0, "c\nd"), (1, 1, "e\n"), (1, 0, "f\n")]),
            "ac\nbe\ndf\n"
        );
        assert_eq!(plain(&[(0, 0, "one\ntwo\n"), (0, 1, "three\n")]), "one\ntwo\nthree\n");
        assert_eq!(plain(&[(0, 0, "no end")]), "no end", "bytes stay as they are");
        assert_eq!(plain(&[(0, 0, "x"), (0, 1, "whole\n")]), "whole\nx", "the last lines of both");
        assert_eq!(plain(&[(0, 0, "x"), (0, 1, "y")]), "xy", "nothing is added");
    }

    #[test]
    fn a_prompt_goes_out_without_its_end() {
        let prompt = [(0, 0, "how many? "), (300, 0, "3\n")];
        assert_eq!(plain(&prompt), "how many? 3\n");
        let interrupted = [(0, 0, "how many? "), (300, 1, "hello\n"), (600, 0, "3\n")];
        assert_eq!(plain(&interrupted), "how many? hello\n3\n", "nothing is added");
        let (mut outlet, start) = (outlet(&[None, None]), Instant::now());
        outlet.take(0, b"how many? ", start);
        assert_eq!((outlet.queue.len(), outlet.due()), (0, Some(start + PAUSE)));
        outlet.settle(start + PAUSE);
        assert_eq!((outlet.queue.len(), outlet.due()), (10, None));
        // A node that has just continued a line may end it soon.
        outlet.take(0, b"3", start + 2 * PAUSE);
        outlet.take(1, b"hello\n", start + 2 * PAUSE);
        assert_eq!((outlet.queue.len(), outlet.due()), (11, Some(start + 3 * PAUSE)));
        outlet.settle(start + 3 * PAUSE);
        assert_eq!(Vec::from(outlet.queue), b"how many? 3hello\n");
    }

    #[test]
    fn who_is_not_heard_has_not_paused() {
        let (mut outlet, start) = (outlet(&[None, None]), Instant::now());
        outlet.queue.extend(vec![b'x'; QUEUE_BYTES_MAX]);
        outlet.take(0, b"be", start);
        outlet.settle(start + 2 * PAUSE);
        assert_eq!((outlet.queue.len(), outlet.due()), (QUEUE_BYTES_MAX, None), "nobody reads");
        outlet.queue.clear();
        outlet.listen_again(start + 2 * PAUSE);
        outlet.settle(start + 2 * PAUSE);
        assert_eq!(outlet.due(), Some(start + 3 * PAUSE));
        outlet.take(1, b"whole\n", start + 2 * PAUSE);
        outlet.take(0, b"gun\n", start + 2 * PAUSE);
        assert_eq!(Vec::from(outlet.queue), b"whole\nbegun\n");
    }

    #[test]
    fn what_waits_in_a_pipe_is_no_pause() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        let stream = Stream::new(Some(reading), None);
        let later = stream.latest + PAUSE;
        assert!(stream.pauses(later));
        rustix::io::write(&writing, b"x").unwrap();
        assert!(!stream.pauses(later));
    }

    #[test]
    fn what_waits_for_a_line_without_end_is_bounded() {
        let (mut outlet, now) = (outlet(&[None, None]), Instant::now());
        let chunk = vec![b'x'; LINE_BYTES_MAX];
        let line = [&chunk[..], b"\n"].concat();
        outlet.take(0, &chunk, now);
        let mut waiting = 0;
        while outlet.queue.len() <= chunk.len() {
            outlet.take(1, &line, now);
            waiting += line.len();
            assert!(waiting <= HELD_BYTES_MAX + line.len());
        }
        assert!(waiting >= HELD_BYTES_MAX);
        assert_eq!((outlet.queue.len(), outlet.held_bytes), (chunk.len() + waiting, 0));
    }

    #[test]
    fn a_long_line_goes_out_by_and_by_and_stays_one() {
        let (mut outlet, now) = (outlet(&[None, None]), Instant::now());
        let chunk = vec![b'x'; LINE_BYTES_MAX / 2];
        for _ in 0..5 {
            outlet.take(0, &chunk, now);
            outlet.take(1, b"y\n", now);
        }
        assert_eq!(outlet.held_bytes, 2 * 4, "others wait for its end; before it began, they did not");
        outlet.take(0, b"\n", now);
        let text = Vec::from(outlet.queue);
        assert_eq!(text.len(), 5 * chunk.len() + 1 + 2 * 5);
        assert_eq!(&text[..2], b"y\n");
        assert_eq!(&text[text.len() - 10..], b"x\ny\ny\ny\ny\n");
    }
}
