//! Streams of page-ins: what a program that goes through its memory in order needs next.
//!
//! A touch that continues an earlier one, upwards or downwards, needs twice as many pages, up to a bound: as
//! many as the engine will give access to. Once a stream is long enough, pages ahead of it are brought in
//! while the program computes. No more than the caller has room for are ahead and unused at a time. If more
//! of them leave unused than were used, none are brought ahead for a while.
//!
//! A program that goes through the same memory again mostly ends where it ended before. So the places where
//! streams have ended are remembered, and nothing beyond such a place is brought in before it is touched.

use std::collections::VecDeque;

use hiroba_base::{PageId, PageRange};
use rustc_hash::FxHashSet;

/// The maximum number of streams that are followed at once. A new one replaces the one that was quiet for the
/// longest time.
const STREAMS_MAX: usize = 16;

/// The maximum number of pages that one touch is given.
const RUN_MAX: u64 = 256;

/// Pages are brought ahead of a stream when a touch is given at least this many.
const AHEAD_FROM: u64 = 16;

/// The maximum number of places at which streams have ended that are remembered. A new one replaces the
/// oldest.
const ENDS_MAX: usize = 64;

/// Number of wasted pages that do not count yet: a stream that ends wastes some.
const WASTED_FREE: u64 = 256;

/// Number of touches for which nothing is brought ahead after more was wasted than used.
const PAUSE: u64 = 4096;

/// What a touch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Pages to bring in now; the touched one is the first, or the last if the stream goes down.
    pub now: PageRange,
    /// Pages to bring in while the program uses those.
    pub ahead: PageRange,
    /// The number of the stream that needs them.
    pub stream: u64,
}

#[derive(Debug)]
struct Stream {
    /// No other stream has or had this number.
    number: u64,
    /// The page that was touched first.
    start: PageId,
    /// The page that was touched last.
    touched: PageId,
    /// The first of the pages that the program may use since then.
    first: PageId,
    /// The page behind them.
    next: PageId,
    /// The page behind those that were requested ahead.
    ahead_to: PageId,
    /// The first of those that were requested ahead of a stream that goes down.
    ahead_from: PageId,
    /// True if it has gone down at its last touch.
    goes_down: bool,
    run: u64,
    last_used: u64,
}

impl Stream {
    /// Notes that the page below is touched, of a stream that goes down.
    fn go_down(&mut self, page: PageId, clock: u64, room: u64) -> Needs {
        self.run = (2 * self.run).min(RUN_MAX);
        let first = PageId((page.0 + 1).saturating_sub(self.run));
        let now = PageRange { first, count: page.0 + 1 - first.0 };
        (self.touched, self.first, self.next, self.last_used) = (page, first, now.end(), clock);
        self.goes_down = true;
        let end = self.ahead_from.min(first);
        let mut count = 0;
        if self.run >= AHEAD_FROM {
            count = end.0.saturating_sub(first.0.saturating_sub(2 * self.run)).min(room);
        }
        let ahead = PageRange { first: PageId(end.0 - count), count };
        self.ahead_from = ahead.first;
        Needs { now, ahead, stream: self.number }
    }
}

/// The streams of a node, and what was brought ahead of them.
#[derive(Debug, Default)]
pub struct Streams {
    streams: Vec<Stream>,
    /// The pages behind the last ones of streams that went up and have ended.
    ends: VecDeque<PageId>,
    /// The number of touches so far.
    clock: u64,
    /// Pages that were brought ahead, and neither used nor gone.
    unused: FxHashSet<PageId>,
    /// Pages that were used and that left unused, since they were last compared.
    used: u64,
    wasted: u64,
    /// Until then nothing is brought ahead.
    paused_until: u64,
}

impl Streams {
    /// Notes that a page is touched. `room` is the number of pages that may be ahead and unused.
    pub fn touch(&mut self, page: PageId, room: u64) -> Needs {
        self.clock += 1;
        let clock = self.clock;
        let is_paused = clock < self.paused_until;
        let room = if is_paused { 0 } else { room.saturating_sub(self.unused.len() as u64) };
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.next == page) else {
            if let Some(stream) = self.streams.iter_mut().find(|stream| stream.first.0 == page.0 + 1) {
                return stream.go_down(page, clock, room);
            }
            self.end_streams_over(page);
            let next = PageId(page.0 + 1);
            let (touched, first, ahead_from) = (page, page, page);
            let stream = Stream {
                number: clock,
                start: page,
                touched,
                first,
                next,
                ahead_to: next,
                ahead_from,
                goes_down: false,
                run: 1,
                last_used: clock,
            };
            if self.streams.len() < STREAMS_MAX {
                self.streams.push(stream);
            } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.last_used) {
                let ended = std::mem::replace(oldest, stream);
                self.note_end(&ended);
            }
            let ahead = PageRange { first: next, count: 0 };
            return Needs { now: PageRange::single(page), ahead, stream: clock };
        };
        stream.run = (2 * stream.run).min(RUN_MAX);
        (stream.touched, stream.last_used) = (page, clock);
        self.ends.retain(|end| *end != page);
        let end = self.ends.iter().copied().filter(|end| *end > page).min().unwrap_or(PageId(u64::MAX));
        let now = PageRange { first: page, count: stream.run.min(end.0 - page.0) };
        (stream.first, stream.next, stream.goes_down) = (page, now.end(), false);
        let first = stream.ahead_to.max(stream.next);
        let mut count = 0;
        if stream.run >= AHEAD_FROM {
            let wanted = (stream.next.0 + 2 * stream.run).min(end.0);
            count = wanted.saturating_sub(first.0).min(room);
        }
        let ahead = PageRange { first, count };
        stream.ahead_to = ahead.end();
        Needs { now, ahead, stream: stream.number }
    }

    /// Ends the streams that have gone through a page which begins another one: the program goes through the
    /// same memory again.
    fn end_streams_over(&mut self, page: PageId) {
        let is_over = |stream: &mut Stream| stream.start <= page && page < stream.next;
        let ended: Vec<Stream> = self.streams.extract_if(.., is_over).collect();
        ended.iter().for_each(|stream| self.note_end(stream));
    }

    /// Remembers where a stream has ended that was long enough for pages ahead.
    fn note_end(&mut self, stream: &Stream) {
        if stream.run < AHEAD_FROM || stream.goes_down || self.ends.contains(&stream.next) {
            return;
        }
        if self.ends.len() == ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back(stream.next);
    }

    /// Returns what a stream has not come to yet of pages that were requested ahead of it. Whoever brings
    /// them may come late, and what the program has passed would be brought in vain.
    pub fn still_ahead(&self, stream: u64, requested: PageRange) -> PageRange {
        let PageRange { first, .. } = requested;
        let Some(stream) = self.streams.iter().find(|known| known.number == stream) else {
            return PageRange { first, count: 0 };
        };
        if stream.goes_down {
            let end = stream.first.min(requested.end());
            return PageRange { first, count: end.0.saturating_sub(first.0) };
        }
        let first = stream.next.max(first);
        PageRange { first, count: requested.end().0.saturating_sub(first.0) }
    }

    /// Notes that pages have come that were requested ahead.
    pub fn note_brought(&mut self, range: PageRange) {
        self.unused.extend(range.iter());
    }

    /// Notes that the program may use pages.
    pub fn note_given(&mut self, range: PageRange) {
        self.used += self.take(range);
        for stream in self.streams.iter_mut().filter(|stream| range.contains(stream.touched)) {
            (stream.first, stream.next) = (range.first, range.end());
            stream.run = stream.run.max(range.count).min(RUN_MAX);
        }
    }

    /// Notes that pages have left. Returns how many of them had been brought ahead in vain.
    pub fn note_left(&mut self, range: PageRange) -> u64 {
        let wasted = self.take(range);
        self.wasted += wasted;
        if self.wasted > self.used + WASTED_FREE {
            self.paused_until = self.clock + PAUSE;
            (self.used, self.wasted) = (0, 0);
        }
        wasted
    }

    /// Returns true if nothing that was brought ahead is unused.
    pub fn is_all_used(&self) -> bool {
        self.unused.is_empty()
    }

    /// Returns true if the page was brought ahead, and is neither used nor gone.
    pub fn is_unused(&self, page: PageId) -> bool {
        self.unused.contains(&page)
    }

    fn take(&mut self, range: PageRange) -> u64 {
        if self.unused.is_empty() {
            return 0;
        }
        range.iter().filter(|page| self.unused.remove(page)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u64) -> PageRange {
        PageRange { first: PageId(first), count }
    }

    /// Goes through memory in order, and uses all that it gets. Returns what was needed.
    fn go(streams: &mut Streams, mut page: u64, touches: usize, room: u64) -> Vec<Needs> {
        let mut needs = Vec::new();
        for _ in 0..touches {
            let need = streams.touch(PageId(page), room);
            streams.note_given(need.now);
            streams.note_brought(need.ahead);
            page = need.now.end().0;
            needs.push(need);
        }
        needs
    }

    #[test]
    fn a_stream_gets_twice_as_much_each_time_and_then_pages_ahead() {
        let mut streams = Streams::default();
        let needs = go(&mut streams, 100, 10, 1000);
        let runs: Vec<u64> = needs.iter().map(|need| need.now.count).collect();
        assert_eq!(runs, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
        let ahead: Vec<PageRange> = needs.iter().map(|need| need.ahead).collect();
        assert_eq!(ahead[..4].iter().map(|ahead| ahead.count).sum::<u64>(), 0);
        assert_eq!(ahead[4], range(131, 32));
        assert_eq!(ahead[5], range(163, 64), "behind those that were requested before");
        // Each page is requested ahead once, and none is left out.
        assert!(ahead[4..].windows(2).all(|pair| pair[0].end() == pair[1].first), "{ahead:?}");
        assert_eq!(ahead[9].end().0, needs[9].now.end().0 + 512);
    }

    #[test]
    fn a_stream_that_goes_down_gets_the_same_below() {
        let mut streams = Streams::default();
        let mut page = 5000;
        let mut needs = Vec::new();
        for _ in 0..10 {
            let need = streams.touch(PageId(page), 1000);
            assert_eq!(need.now.end().0, page + 1);
            streams.note_given(need.now);
            streams.note_brought(need.ahead);
            page = need.now.first.0 - 1;
            needs.push(need);
        }
        let runs: Vec<u64> = needs.iter().map(|need| need.now.count).collect();
        assert_eq!(runs, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
        let ahead: Vec<PageRange> = needs.iter().map(|need| need.ahead).collect();
        assert_eq!(ahead[..4].iter().map(|ahead| ahead.count).sum::<u64>(), 0);
        assert_eq!((ahead[4].count, ahead[4].end()), (32, needs[4].now.first));
        assert!(ahead[4..].windows(2).all(|pair| pair[1].end() == pair[0].first), "{ahead:?}");
        assert_eq!(ahead[9].first.0, needs[9].now.first.0 - 512);
        // It may turn.
        let turned = streams.touch(needs[9].now.end(), 1000).now;
        assert_eq!(turned.first, needs[9].now.end());
    }

    #[test]
    fn a_stream_that_goes_down_ends_at_the_first_page() {
        let mut streams = Streams::default();
        let mut page = 99;
        let mut seen = 0;
        while page > 0 {
            let need = streams.touch(PageId(page), 1000);
            streams.note_given(need.now);
            seen += need.now.count;
            page = need.now.first.0.saturating_sub(1);
            assert!(need.ahead.count == 0 || need.ahead.end() <= need.now.first);
        }
        assert!(seen >= 99 && streams.touch(PageId(0), 1000).ahead.count == 0);
        // Where there is no room, nothing comes ahead.
        let mut streams = Streams::default();
        let needs = [900, 899, 897, 893, 885, 869].map(|page| streams.touch(PageId(page), 0));
        assert_eq!(needs.map(|need| (need.now.count, need.ahead.count)).map(|(_, ahead)| ahead), [0; 6]);
    }

    #[test]
    fn a_stream_continues_behind_what_was_given() {
        let mut streams = Streams::default();
        streams.touch(PageId(7), 1000);
        streams.note_given(range(0, 128));
        let need = streams.touch(PageId(128), 1000);
        assert_eq!((need.now, need.ahead), (range(128, 256), range(384, 512)));
        streams.note_given(range(128, 16));
        assert_eq!(streams.touch(PageId(144), 1000).now, range(144, 256), "less than was expected");
    }

    #[test]
    fn what_a_stream_has_passed_is_not_ahead_of_it() {
        let mut streams = Streams::default();
        let needs = go(&mut streams, 100, 6, 1000);
        let Needs { ahead, stream, .. } = needs[5];
        assert_eq!((ahead, streams.still_ahead(stream, ahead)), (range(163, 64), range(163, 64)));
        streams.touch(PageId(163), 1000);
        streams.note_given(range(163, 16));
        assert_eq!(streams.still_ahead(stream, ahead), range(179, 48));
        go(&mut streams, 179, 1, 1000);
        assert_eq!(streams.still_ahead(stream, ahead).count, 0);
        // Of a stream that goes down, those above it are passed.
        let touches = [9000, 8999, 8997, 8993, 8985].map(|page| streams.touch(PageId(page), 1000));
        let Needs { ahead, stream, .. } = touches[4];
        assert_eq!((ahead, streams.still_ahead(stream, ahead)), (range(8938, 32), range(8938, 32)));
        streams.note_given(range(8950, 36));
        assert_eq!(streams.still_ahead(stream, ahead), range(8938, 12));
        streams.touch(PageId(8949), 1000);
        assert_eq!(streams.still_ahead(stream, ahead).count, 0);
        (0..STREAMS_MAX as u64).for_each(|at| _ = streams.touch(PageId(at * 1000 + 77), 0));
        assert_eq!(streams.still_ahead(stream, range(0, 100)).count, 0, "nobody follows it any more");
    }

    #[test]
    fn nothing_comes_beyond_the_end_of_an_earlier_stream_before_that_is_touched() {
        let mut streams = Streams::default();
        let end = go(&mut streams, 100, 9, 1000)[8].now.end();
        assert_eq!(end, PageId(611));
        // The first pages are still in memory.
        let again = go(&mut streams, 105, 11, 1000);
        assert!(again[..9].iter().all(|need| need.now.end() <= end && need.ahead.end() <= end), "{again:?}");
        let beyond = again.iter().find(|need| need.now.first == end).expect("it comes to the end");
        assert!(beyond.now.count == 256 && beyond.ahead.count > 0, "and goes on as before: {beyond:?}");
        let later = go(&mut streams, 105, 9, 1000);
        assert!(later.iter().any(|need| need.now.contains(end)), "the end is forgotten: {later:?}");
        // Short streams leave no ends, and old ends are forgotten.
        (0..1000).for_each(|at| _ = go(&mut streams, 100_000 * at, 4, 0));
        assert!(streams.ends.len() <= 2);
        (0..1000).for_each(|at| _ = go(&mut streams, 100_000 * at, 6, 0));
        assert_eq!(streams.ends.len(), ENDS_MAX);
    }

    #[test]
    fn touches_without_an_order_get_nothing_else() {
        let mut streams = Streams::default();
        for at in 0..1000 {
            let need = streams.touch(PageId(at * 7919 % 4099), 100);
            assert_eq!((need.now.count, need.ahead.count), (1, 0));
        }
        assert_eq!(streams.streams.len(), STREAMS_MAX);
    }

    #[test]
    fn no_more_is_ahead_than_there_is_room() {
        let mut streams = Streams::default();
        let mut page = 0;
        for _ in 0..20 {
            let need = streams.touch(PageId(page), 40);
            streams.note_brought(need.ahead);
            assert!(streams.unused.len() <= 40);
            page = need.now.end().0;
        }
        assert_eq!(streams.unused.len(), 40, "none of them is used");
        assert!(!streams.is_all_used());
        streams.note_given(range(1, 1 << 20));
        assert!(streams.is_all_used());
    }

    #[test]
    fn what_leaves_unused_stops_it_for_a_while() {
        let mut streams = Streams::default();
        let mut wasted = 0;
        let mut page = 0;
        let mut ahead = |streams: &mut Streams| {
            let need = streams.touch(PageId(page), 100);
            page = need.now.end().0;
            streams.note_brought(need.ahead);
            need.ahead
        };
        while streams.paused_until == 0 {
            let brought = ahead(&mut streams);
            wasted += streams.note_left(brought);
        }
        assert!((WASTED_FREE + 1..WASTED_FREE + 101).contains(&wasted), "{wasted}");
        assert!((1..PAUSE).all(|_| ahead(&mut streams).count == 0));
        assert!(ahead(&mut streams).count > 0, "it tries again");
    }
}
