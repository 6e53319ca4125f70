//! Streams: pages that the program is about to read, as far as its faults show.
//!
//! Faults on absent pages at equal distances, or page after page with nothing between them that would have
//! faulted, are a **stream**: ascending or descending, one for each of several threads or arrays. Of a stream
//! a **window** of pages is asked for in one message, and each further window has twice as many pages, up to
//! a bound. Pages that are here do not fault, so the program's progress would show only at the end of a
//! window, and cost a round trip there. Therefore the page in the middle of a window, its **marker**, is left
//! without access when it comes. Touching it costs a fault but no message, and asks for the next window while
//! the rest of this one is still to be read.
//!
//! A program that leaves its stream has fetched no more than one window in vain, which is about as much as it
//! has used. Where programs read short rows again and again even the first windows would be in vain, and
//! would make pages shared that need not be: each such window makes the node wait for one step more before it
//! takes faults for a stream, each good one for one less.

use core::ops::ControlFlow;

use hiroba_base::{Access, PageId};

use super::{Copies, Fetches, UnderWay};
use crate::coherence::Site;
use crate::home::Located;

/// Streams that are followed at once. A new one takes the place of the one that was quiet for the longest
/// time.
const STREAMS_MAX: usize = 16;

/// How many equal steps between faults make a stream: at least, and however often windows were in vain.
const STEPS_NEEDED_MIN: u32 = 2;
const STEPS_NEEDED_MAX: u32 = 12;

/// Pages between two faults of one stream, at most.
const STEP_PAGES_MAX: u64 = 64;

/// How many pages that are not worth a fault are passed over at once.
const PASSED_PAGES_MAX: u64 = 32;

/// Pages of a stream's first window.
const FIRST_WINDOW_PAGES: u64 = 4;

/// Bounds of a window: whichever is reached first, but one page at least. Where this node reads the home's
/// frames itself nothing travels, so there is no time to bridge, and the faulting thread itself copies the
/// window.
const WINDOW_PAGES_MAX: u64 = 256;
const WINDOW_BYTES_MAX: u64 = 1 << 20;
const WINDOW_BYTES_READ_MAX: u64 = 256 << 10;

/// What is known of the program's streams.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    steps_needed: u32,
    /// Counts faults.
    clock: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { streams: Vec::new(), steps_needed: STEPS_NEEDED_MIN, clock: 0 }
    }
}

impl Streams {
    /// A stream is given up.
    fn note_end(&mut self, was: Option<Window>) {
        if was.is_some_and(|window| !window.is_proven) {
            self.steps_needed = (self.steps_needed + 1).min(STEPS_NEEDED_MAX);
        }
    }

    /// The program has come to a window's marker.
    fn note_progress(&mut self, index: usize) {
        if let Some(window) = &mut self.streams[index].window
            && !std::mem::replace(&mut window.is_proven, true)
        {
            assert!(self.steps_needed >= STEPS_NEEDED_MIN, "some steps make a stream");
            self.steps_needed = (self.steps_needed - 1).max(STEPS_NEEDED_MIN);
        }
    }
}

#[derive(Debug)]
struct Stream {
    /// How far the program has come.
    reached: PageId,
    /// Granules from one page to the next; 0 while there is one page only.
    step: i64,
    /// How often the program has made this step.
    steps: u32,
    /// Set once there were steps enough.
    window: Option<Window>,
    last_used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pages: u64,
    /// The program has come to its marker, or to that of one before.
    is_proven: bool,
    /// Who comes here is to have the next window.
    marker: PageId,
    /// The page behind the window.
    behind: PageId,
}

/// What a fault means to a stream that has a window.
enum Place {
    Elsewhere,
    BeforeMarker,
    /// At the marker or behind it.
    Onward,
    /// In the window, but nothing is known of what was fetched: it was invalidated.
    Gone,
}

fn distance(from: PageId, to: PageId) -> i64 {
    to.0.wrapping_sub(from.0) as i64
}

impl Stream {
    fn place(&self, page: PageId, missed: bool) -> Place {
        let Some(window) = self.window else { return Place::Elsewhere };
        assert_ne!(self.step, 0, "{page}: a stream with a window leads somewhere");
        let onward = |from, to| distance(from, to).wrapping_mul(self.step.signum());
        let slack = self.step.abs().saturating_mul(PASSED_PAGES_MAX as i64);
        let in_step = distance(self.reached, page) % self.step == 0;
        if !in_step || onward(self.reached, page) < 0 || onward(window.behind, page) > slack {
            Place::Elsewhere
        } else if missed && onward(page, window.behind) > 0 {
            Place::Gone
        } else if onward(window.marker, page) < 0 {
            Place::BeforeMarker
        } else {
            Place::Onward
        }
    }
}

impl Streams {
    /// A thread has faulted on a page of another home. It was absent, perhaps on its way here (else
    /// `missed`), or was left as a marker: it belongs to a stream or may begin one.
    pub(super) fn follow(
        &mut self,
        site: &Site,
        copies: &impl Copies,
        under_way: &mut UnderWay,
        page: Located,
        missed: bool,
    ) -> Fetches {
        self.clock += 1;
        let clock = self.clock;
        for index in 0..self.streams.len() {
            let stream = &mut self.streams[index];
            let place = stream.place(page.page, missed);
            if matches!(place, Place::Elsewhere) {
                continue;
            }
            stream.last_used = clock;
            match place {
                Place::Onward => {
                    self.note_progress(index);
                    return self.fetch_next_window(site, copies, under_way, index, page);
                }
                Place::Gone => {
                    (stream.reached, stream.steps) = (page.page, 1);
                    let was = stream.window.take();
                    self.note_end(was);
                }
                Place::BeforeMarker | Place::Elsewhere => {}
            }
            return Fetches::default();
        }
        match self.learn(site, copies, page) {
            Some(index) => self.fetch_next_window(site, copies, under_way, index, page),
            None => Fetches::default(),
        }
    }

    /// A fault outside all windows. The number of the stream that it makes certain, if any.
    fn learn(&mut self, site: &Site, copies: &impl Copies, page: Located) -> Option<usize> {
        let clock = self.clock;
        let continued = (0..self.streams.len())
            .filter_map(|index| Some((index, step_of(site, copies, &self.streams[index], page)?)))
            // An equal step for preference, then the nearest.
            .min_by_key(|(index, step)| (self.streams[*index].step != *step, step.unsigned_abs()));
        let Some((index, step)) = continued else {
            let stream = Stream { reached: page.page, step: 0, steps: 0, window: None, last_used: clock };
            if self.streams.len() < STREAMS_MAX {
                self.streams.push(stream);
            } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.last_used) {
                let given_up = std::mem::replace(oldest, stream);
                self.note_end(given_up.window);
            }
            return None;
        };
        let stream = &mut self.streams[index];
        stream.steps = if stream.step == step { stream.steps + 1 } else { 1 };
        assert_ne!(step, 0, "{}: a step leads to another page", page.page);
        (stream.reached, stream.step, stream.last_used) = (page.page, step, clock);
        (stream.steps >= self.steps_needed).then_some(index)
    }

    /// The program has come to `page`. Its next window begins behind that, or behind the window that it is
    /// in.
    fn fetch_next_window(
        &mut self,
        site: &Site,
        copies: &impl Copies,
        under_way: &mut UnderWay,
        index: usize,
        page: Located,
    ) -> Fetches {
        let stream = &mut self.streams[index];
        let step = stream.step;
        let page_bytes = page.granules * u64::from(site.limits.granule_bytes);
        let reads = copies.reads_itself(page.home);
        let bytes_max = if reads { WINDOW_BYTES_READ_MAX } else { WINDOW_BYTES_MAX };
        let bound = WINDOW_PAGES_MAX.min(bytes_max / page_bytes).max(1);
        let twice = stream.window.map_or(FIRST_WINDOW_PAGES, |window| window.pages * 2);
        let pages = twice.min(bound);
        let onward = PageId(page.page.0.wrapping_add_signed(step));
        // Where the program has overtaken its window, the next one begins with the program.
        let first = match stream.window {
            Some(window) if distance(onward, window.behind).wrapping_mul(step.signum()) > 0 => window.behind,
            _ => onward,
        };
        let mut wanted: Vec<PageId> = Vec::new();
        let behind = each_ahead(site, page, first, step, pages, |located| {
            if !under_way.has_room() {
                return ControlFlow::Break(());
            }
            if under_way.begin(site, copies, located) {
                wanted.push(located.page);
            }
            if wanted.len() as u64 == pages { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let marker = wanted.get(wanted.len() / 2).copied().unwrap_or(behind);
        if !wanted.is_empty() || !site.is_home(marker) && copies.is_under_way(marker) {
            under_way.closed.insert(marker);
        }
        assert!(wanted.len() as u64 <= pages, "a window has no more pages than it may");
        stream.reached = page.page;
        let is_proven = stream.window.is_some_and(|window| window.is_proven);
        stream.window = Some(Window { pages, is_proven, marker, behind });
        Fetches { pages: wanted, is_descending: step < 0 }
    }
}

/// The step that brought a stream without a window to `page`, if it can have been one.
fn step_of(site: &Site, copies: &impl Copies, stream: &Stream, page: Located) -> Option<i64> {
    let step = distance(stream.reached, page.page);
    let length = page.granules as i64;
    let pages = step.unsigned_abs() / page.granules;
    if stream.window.is_some() || step == 0 || step % length != 0 || pages > STEP_PAGES_MAX {
        return None;
    }
    if step == stream.step || pages > PASSED_PAGES_MAX {
        return Some(step);
    }
    // Page after page, but for those that did not fault?
    for unit in [stream.step, length * step.signum()] {
        if unit != 0 && unit.signum() == step.signum() && step % unit == 0 {
            let mut between =
                (1..step / unit).map(|count| stream.reached.0.wrapping_add_signed(count * unit));
            if between.all(|granule| runs_free(site, copies, PageId(granule))) {
                return Some(unit);
            }
        }
    }
    Some(step)
}

/// Whether a load from the page would go unseen.
fn runs_free(site: &Site, copies: &impl Copies, page: PageId) -> bool {
    site.is_home(page) || copies.access(page) != Access::None
}

/// Visits pages from `first` on, never beyond the region of `page`, and no more than a few times `pages`. The
/// page behind the last one visited.
fn each_ahead(
    site: &Site,
    page: Located,
    first: PageId,
    step: i64,
    pages: u64,
    mut visit: impl FnMut(Located) -> ControlFlow<()>,
) -> PageId {
    let region = site.homes.region_around(page.page).expect("a page that faults is allocated");
    let mut next = first;
    for _ in 0..pages + PASSED_PAGES_MAX {
        if !region.contains(next) {
            break;
        }
        let located = site.locate(next);
        next = PageId(next.0.wrapping_add_signed(step));
        if visit(located).is_break() {
            break;
        }
    }
    next
}
