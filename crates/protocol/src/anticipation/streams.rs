//! Streams: pages that the program is about to read, according to its faults.
//!
//! Faults on absent pages at equal distances, or page after page with nothing between them that would have
//! faulted, are a **stream**: ascending or descending, one for each of several threads or arrays. A
//! **window** of a stream's pages is requested in one message, and each further window has twice as many
//! pages, up to a bound. Present pages do not fault, so the program's progress would show only at the end of
//! a window, and cost a round trip there. Therefore the page in the middle of a window, its **marker**, is
//! left without access when it comes. Touching it costs a fault but no message, and requests the next window
//! while the rest of this one is still unread.
//!
//! A program that leaves its stream has fetched at most one window in vain, which is about as much as it has
//! used. If programs repeatedly read short rows, even the first windows would be in vain, and would make
//! pages shared unnecessarily. So each such window makes the node wait for one step more before it takes
//! faults for a stream, and each useful window for one less.

use core::ops::ControlFlow;

use hiroba_base::{Access, PageId};

use super::{Copies, Fetches, UnderWay};
use crate::coherence::Site;
use crate::home::Located;

/// The maximum number of streams that are followed at once. A new one replaces the one that was quiet for the
/// longest time.
const STREAMS_MAX: usize = 16;

/// The number of equal steps between faults that make a stream: the minimum, and the maximum after windows in
/// vain.
const STEPS_NEEDED_MIN: u32 = 2;
const STEPS_NEEDED_MAX: u32 = 12;

/// The maximum number of pages between two faults of one stream.
const STEP_PAGES_MAX: u64 = 64;

/// The maximum number of pages that need no fetch and are skipped at once.
const PASSED_PAGES_MAX: u64 = 32;

/// The number of pages of a stream's first window.
const FIRST_WINDOW_PAGES: u64 = 4;

/// The bounds of a window; the first one reached counts, but a window has at least one page. If this node
/// reads the home's frames itself, nothing travels, so there is no time to bridge, and the faulting thread
/// itself copies the window.
const WINDOW_PAGES_MAX: u64 = 256;
const WINDOW_BYTES_MAX: u64 = 1 << 20;
const WINDOW_BYTES_READ_MAX: u64 = 256 << 10;

/// The observed streams of the program.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    steps_needed: u32,
    /// The number of faults so far.
    clock: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams { streams: Vec::new(), steps_needed: STEPS_NEEDED_MIN, clock: 0 }
    }
}

impl Streams {
    /// Notes that a stream is given up.
    fn note_end(&mut self, was: Option<Window>) {
        if was.is_some_and(|window| !window.is_proven) {
            self.steps_needed = (self.steps_needed + 1).min(STEPS_NEEDED_MAX);
        }
    }

    /// Notes that the program has reached a window's marker.
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
    /// The last page that the program has reached.
    reached: PageId,
    /// The number of granules from one page to the next; 0 while there is only one page.
    step: i64,
    /// The number of times that the program has made this step.
    steps: u32,
    /// Set after enough steps.
    window: Option<Window>,
    last_used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pages: u64,
    /// True if the program has reached its marker, or that of an earlier window.
    is_proven: bool,
    /// The page at which a thread gets the next window.
    marker: PageId,
    /// The page after the window.
    behind: PageId,
}

/// The place of a fault in a stream that has a window.
enum Place {
    Elsewhere,
    BeforeMarker,
    /// At the marker or after it.
    Onward,
    /// In the window, but the fetched pages were invalidated.
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
    /// Handles that a thread has faulted on a page of another home. It was absent and perhaps on its way here
    /// (`missed` if not), or was left as a marker. It belongs to a stream or may begin one.
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

    /// Notes a fault outside all windows. Returns the index of the stream that it makes certain, if any.
    fn learn(&mut self, site: &Site, copies: &impl Copies, page: Located) -> Option<usize> {
        let clock = self.clock;
        let continued = (0..self.streams.len())
            .filter_map(|index| Some((index, step_of(site, copies, &self.streams[index], page)?)))
            // Prefer an equal step, then the nearest stream.
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

    /// Handles that the program has reached `page`. Its next window begins after that, or after the window
    /// that it is in.
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
        // If the program has overtaken its window, the next one begins at the program's page.
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

/// Returns the step that may have brought a stream without a window to `page`.
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
    // Tries page after page, without those that did not fault.
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

/// Returns true if a load from the page would not fault.
fn runs_free(site: &Site, copies: &impl Copies, page: PageId) -> bool {
    site.is_home(page) || copies.access(page) != Access::None
}

/// Visits pages from `first` on, never beyond the region of `page`, and at most [`PASSED_PAGES_MAX`] more
/// than `pages`. Returns the page after the last one visited.
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
