//! Records as bytes. `docs/TRACE.md` describes the format.
//!
//! A record gives its thread, its time and its pages relative to the previous record of the same chunk, so
//! most take five to ten bytes. Everything that is read is checked: a node belongs to the job, a range ends,
//! a length does not exceed the remaining bytes.

use hiroba_base::{Access, CondId, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VersionVector};

use crate::{Activity, Event, MessageKind, Record, ThreadNumber};

/// Set if the record has the same thread as the previous one.
const SAME_THREAD: u8 = 0x80;
/// Set if the record has the same time as the previous one.
const SAME_TIME: u8 = 0x40;

/// No granule number of a shared region is as high as this.
const GRANULES_MAX: u64 = 1 << 48;

/// A `Closed` with more runs of pages is written as several.
const CLOSED_RUNS_MAX: usize = 1 << 15;
/// A `Closed` with more pages is written as several.
pub(crate) const CLOSED_PAGES_MAX: u64 = 1 << 20;

/// The values that a record omits because the previous one in the chunk has them.
#[derive(Clone, Copy, Debug)]
struct Before {
    thread: ThreadNumber,
    at_ns: u64,
    page: PageId,
}

impl Before {
    const NOTHING: Before = Before { thread: ThreadNumber(0), at_ns: 0, page: PageId(0) };
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends records to a chunk.
#[derive(Debug)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
    records: u32,
    before: Before,
}

impl Encoder {
    pub(crate) fn new() -> Encoder {
        Encoder { bytes: Vec::new(), records: 0, before: Before::NOTHING }
    }

    /// Returns the bytes and the number of the records so far.
    pub(crate) fn content(&self) -> (&[u8], u32) {
        (&self.bytes, self.records)
    }

    /// Begins the next chunk.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        (self.records, self.before) = (0, Before::NOTHING);
    }

    /// Appends a record, or several if it is too long for one.
    pub(crate) fn record(&mut self, thread: ThreadNumber, at_ns: u64, event: &Event) {
        match event {
            Event::Closed { seq, pages } if must_be_split(pages) => {
                for pages in split(pages) {
                    self.one(thread, at_ns, &Event::Closed { seq: *seq, pages });
                }
            }
            event => self.one(thread, at_ns, event),
        }
    }

    fn one(&mut self, thread: ThreadNumber, at_ns: u64, event: &Event) {
        self.records += 1;
        let mut tag = tag_of(event);
        let (same_thread, same_time) = (thread == self.before.thread, at_ns == self.before.at_ns);
        tag |= if same_thread { SAME_THREAD } else { 0 };
        tag |= if same_time { SAME_TIME } else { 0 };
        self.bytes.push(tag);
        if !same_thread {
            // The runtime, which has the highest number, becomes 0.
            self.put(u64::from(thread.0.wrapping_add(1)));
        }
        if !same_time {
            self.put(zigzag(at_ns.wrapping_sub(self.before.at_ns) as i64));
        }
        (self.before.thread, self.before.at_ns) = (thread, at_ns);
        self.event(event);
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Enter(activity) => self.activity(activity),
            Event::Leave => {}
            Event::Sent { to: node, kind, bytes } | Event::Received { from: node, kind, bytes } => {
                self.node(*node);
                self.bytes.push(kind.0);
                self.put(u64::from(*bytes));
            }
            Event::Acquired { lock, turn } | Event::Released { lock, turn } => {
                self.put(u64::from(lock.0));
                self.put(*turn);
            }
            Event::Met { epoch } => self.put(*epoch),
            Event::Published { to: node, count } | Event::PublicationSeen { from: node, count } => {
                self.node(*node);
                self.put(*count);
            }
            Event::Posted { number } => self.put(*number),
            Event::Taken { from, number } => {
                self.node(*from);
                self.put(*number);
            }
            Event::Atomic { page, offset, turn, previous, current } => {
                self.page(*page);
                self.put(u64::from(*offset));
                self.put(*turn);
                self.put(*previous);
                self.put(*current);
            }
            Event::Load { page, offset, bytes, value } | Event::Store { page, offset, bytes, value } => {
                self.page(*page);
                self.put(u64::from(*offset));
                self.bytes.push(*bytes);
                self.put(*value);
            }
            Event::Region { granules, page_size, homes, protocol } => {
                self.range(*granules);
                self.bytes.push(page_size.bytes().trailing_zeros() as u8);
                self.put(homes.len() as u64);
                for (node, pages) in homes {
                    self.node(*node);
                    self.put(*pages);
                }
                self.put(protocol.len() as u64);
                self.bytes.extend(protocol.as_bytes());
            }
            Event::Access { granules, access } => {
                self.range(*granules);
                self.bytes.push(*access as u8);
            }
            Event::Holds { page, version } => {
                self.page(*page);
                self.entries(version.entries());
            }
            Event::Applied { page, writer, seq, bytes } => {
                self.page(*page);
                self.node(*writer);
                self.put(*seq);
                self.put(u64::from(*bytes));
            }
            Event::Diffed { page, bytes } => {
                self.page(*page);
                self.put(u64::from(*bytes));
            }
            Event::Twinned { page } | Event::Converted { page } => self.page(*page),
            Event::Closed { seq, pages } => {
                self.put(*seq);
                self.put(pages.ranges().len() as u64);
                pages.ranges().iter().for_each(|range| self.range(*range));
            }
            Event::Seen { grown } => self.entries(grown),
            Event::Moved { pages, to } => {
                self.put(pages.ranges().len() as u64);
                pages.ranges().iter().for_each(|range| self.range(*range));
                self.node(*to);
            }
        }
    }

    fn activity(&mut self, activity: &Activity) {
        self.bytes.push(tag_of_activity(activity));
        match activity {
            Activity::Fault { page, wanted } => {
                self.page(*page);
                self.bytes.push(*wanted as u8);
            }
            Activity::Acquire(lock) | Activity::Release(lock) => self.put(u64::from(lock.0)),
            Activity::Wait(cond, lock) => {
                self.put(u64::from(cond.0));
                self.put(u64::from(lock.0));
            }
            Activity::Signal(cond) => self.put(u64::from(cond.0)),
            Activity::Barrier | Activity::Collective | Activity::Other => {}
            Activity::Atomic { page, offset } => {
                self.page(*page);
                self.put(u64::from(*offset));
            }
            Activity::Publish(node) => self.node(*node),
            Activity::Serve { from, kind } => {
                self.node(*from);
                self.bytes.push(kind.0);
            }
        }
    }

    /// Appends in LEB128: seven bits per byte, the lowest first; the highest bit means that more follow.
    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn node(&mut self, node: NodeId) {
        self.put(u64::from(node.0));
    }

    fn page(&mut self, page: PageId) {
        self.put(zigzag(page.0.wrapping_sub(self.before.page.0) as i64));
        self.before.page = page;
    }

    fn range(&mut self, range: PageRange) {
        self.page(range.first);
        self.put(range.count);
        self.before.page = range.end();
    }

    fn entries(&mut self, entries: &[(NodeId, u64)]) {
        self.put(entries.len() as u64);
        for (node, seq) in entries {
            self.node(*node);
            self.put(*seq);
        }
    }
}

fn must_be_split(pages: &PageSet) -> bool {
    pages.ranges().len() > CLOSED_RUNS_MAX || pages.len() > CLOSED_PAGES_MAX
}

/// Splits the pages into sets that are short enough.
fn split(pages: &PageSet) -> Vec<PageSet> {
    let mut parts = vec![PageSet::new()];
    let mut count = 0;
    for range in pages.ranges() {
        let mut rest = *range;
        while rest.count > 0 {
            let last = parts.last_mut().expect("there is one at least");
            if count == CLOSED_PAGES_MAX || last.ranges().len() == CLOSED_RUNS_MAX {
                count = 0;
                parts.push(PageSet::new());
                continue;
            }
            let taken = rest.count.min(CLOSED_PAGES_MAX - count);
            last.push(PageRange { first: rest.first, count: taken });
            count += taken;
            rest = PageRange { first: PageId(rest.first.0 + taken), count: rest.count - taken };
        }
    }
    parts
}

fn tag_of(event: &Event) -> u8 {
    match event {
        Event::Enter(_) => 0,
        Event::Leave => 1,
        Event::Sent { .. } => 2,
        Event::Received { .. } => 3,
        Event::Acquired { .. } => 4,
        Event::Released { .. } => 5,
        Event::Met { .. } => 6,
        Event::Published { .. } => 7,
        Event::PublicationSeen { .. } => 8,
        Event::Posted { .. } => 21,
        Event::Taken { .. } => 22,
        Event::Atomic { .. } => 9,
        Event::Load { .. } => 10,
        Event::Store { .. } => 11,
        Event::Region { .. } => 12,
        Event::Access { .. } => 13,
        Event::Holds { .. } => 14,
        Event::Applied { .. } => 15,
        Event::Diffed { .. } => 16,
        Event::Twinned { .. } => 17,
        Event::Closed { .. } => 18,
        Event::Seen { .. } => 19,
        Event::Moved { .. } => 20,
        Event::Converted { .. } => 23,
    }
}

fn tag_of_activity(activity: &Activity) -> u8 {
    match activity {
        Activity::Fault { .. } => 0,
        Activity::Acquire(_) => 1,
        Activity::Release(_) => 2,
        Activity::Wait(..) => 3,
        Activity::Signal(_) => 4,
        Activity::Barrier => 5,
        Activity::Collective => 6,
        Activity::Atomic { .. } => 7,
        Activity::Publish(_) => 8,
        Activity::Other => 9,
        Activity::Serve { .. } => 10,
    }
}

/// What was expected of a record that is invalid.
pub(crate) type Expected = &'static str;

/// Takes records out of a chunk.
#[derive(Debug)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    at: usize,
    before: Before,
    nodes: u16,
    granule_bytes: u32,
}

impl Decoder {
    pub(crate) fn new(nodes: u16, granule_bytes: u32) -> Decoder {
        Decoder { bytes: Vec::new(), at: 0, before: Before::NOTHING, nodes, granule_bytes }
    }

    /// Continues with another chunk.
    pub(crate) fn begin(&mut self, bytes: Vec<u8>) {
        (self.bytes, self.at, self.before) = (bytes, 0, Before::NOTHING);
    }

    /// Returns the offset of the next record in the chunk; `None` at its end.
    pub(crate) fn position(&self) -> Option<usize> {
        (self.at < self.bytes.len()).then_some(self.at)
    }

    pub(crate) fn record(&mut self) -> Result<Record, Expected> {
        let tag = self.byte()?;
        if tag & SAME_THREAD == 0 {
            let number = self.up_to(u64::from(u32::MAX), "a thread's number")?;
            self.before.thread = ThreadNumber((number as u32).wrapping_sub(1));
        }
        if tag & SAME_TIME == 0 {
            let passed = unzigzag(self.varint()?);
            self.before.at_ns = self.before.at_ns.wrapping_add_signed(passed);
        }
        let event = self.event(tag & !(SAME_THREAD | SAME_TIME))?;
        Ok(Record { thread: self.before.thread, at_ns: self.before.at_ns, event })
    }

    fn event(&mut self, tag: u8) -> Result<Event, Expected> {
        Ok(match tag {
            0 => Event::Enter(self.activity()?),
            1 => Event::Leave,
            2 => Event::Sent { to: self.node()?, kind: MessageKind(self.byte()?), bytes: self.word()? },
            3 => Event::Received { from: self.node()?, kind: MessageKind(self.byte()?), bytes: self.word()? },
            4 => Event::Acquired { lock: LockId(self.word()?), turn: self.varint()? },
            5 => Event::Released { lock: LockId(self.word()?), turn: self.varint()? },
            6 => Event::Met { epoch: self.varint()? },
            7 => Event::Published { to: self.node()?, count: self.varint()? },
            8 => Event::PublicationSeen { from: self.node()?, count: self.varint()? },
            21 => Event::Posted { number: self.varint()? },
            22 => Event::Taken { from: self.node()?, number: self.varint()? },
            9 => Event::Atomic {
                page: self.page()?,
                offset: self.offset(8)?,
                turn: self.varint()?,
                previous: self.varint()?,
                current: self.varint()?,
            },
            10 => {
                let (page, offset, bytes, value) = self.access_of_bytes()?;
                Event::Load { page, offset, bytes, value }
            }
            11 => {
                let (page, offset, bytes, value) = self.access_of_bytes()?;
                Event::Store { page, offset, bytes, value }
            }
            12 => self.region()?,
            13 => Event::Access { granules: self.range()?, access: self.access()? },
            14 => Event::Holds { page: self.page()?, version: self.version()? },
            15 => Event::Applied {
                page: self.page()?,
                writer: self.node()?,
                seq: self.varint()?,
                bytes: self.word()?,
            },
            16 => Event::Diffed { page: self.page()?, bytes: self.word()? },
            17 => Event::Twinned { page: self.page()? },
            18 => Event::Closed { seq: self.varint()?, pages: self.pages()? },
            19 => Event::Seen { grown: self.entries()? },
            20 => Event::Moved { pages: self.pages()?, to: self.node()? },
            23 => Event::Converted { page: self.page()? },
            _ => return Err("an event that this version knows"),
        })
    }

    fn activity(&mut self) -> Result<Activity, Expected> {
        Ok(match self.byte()? {
            0 => Activity::Fault { page: self.page()?, wanted: self.access()? },
            1 => Activity::Acquire(LockId(self.word()?)),
            2 => Activity::Release(LockId(self.word()?)),
            3 => Activity::Wait(CondId(self.word()?), LockId(self.word()?)),
            4 => Activity::Signal(CondId(self.word()?)),
            5 => Activity::Barrier,
            6 => Activity::Collective,
            7 => Activity::Atomic { page: self.page()?, offset: self.offset(8)? },
            8 => Activity::Publish(self.node()?),
            9 => Activity::Other,
            10 => Activity::Serve { from: self.node()?, kind: MessageKind(self.byte()?) },
            _ => return Err("an activity that this version knows"),
        })
    }

    fn region(&mut self) -> Result<Event, Expected> {
        let granules = self.range()?;
        let page_size = 1u64.checked_shl(u32::from(self.byte()?)).unwrap_or(0);
        let page_size = PageSize::new(page_size).map_err(|_| "a page size from 4K to 2M")?;
        let count = self.count()?;
        let mut homes = Vec::with_capacity(count);
        for _ in 0..count {
            let (node, pages) = (self.node()?, self.varint()?);
            if pages == 0 {
                return Err("a home with pages");
            }
            homes.push((node, pages));
        }
        let protocol = self.name()?;
        Ok(Event::Region { granules, page_size, homes, protocol })
    }

    /// Reads a short name, which its length precedes.
    fn name(&mut self) -> Result<String, Expected> {
        let left = (self.bytes.len() - self.at) as u64;
        let count = self.up_to(left, "a name no longer than the remaining bytes")?;
        let bytes: Result<Vec<u8>, Expected> = (0..count).map(|_| self.byte()).collect();
        String::from_utf8(bytes?).map_err(|_| "a name")
    }

    fn access_of_bytes(&mut self) -> Result<(PageId, u32, u8, u64), Expected> {
        let (page, offset, bytes) = (self.page()?, self.word()?, self.byte()?);
        let end = offset.checked_add(u32::from(bytes));
        let fits = (1..=8).contains(&bytes) && end.is_some_and(|end| end <= self.granule_bytes);
        if !fits {
            return Err("one to eight bytes within a granule");
        }
        Ok((page, offset, bytes, self.varint()?))
    }

    fn pages(&mut self) -> Result<PageSet, Expected> {
        let count = self.count()?;
        let mut pages = PageSet::new();
        let mut total = 0u64;
        for _ in 0..count {
            let range = self.range()?;
            total = total.saturating_add(range.count);
            let is_behind = pages.ranges().last().is_none_or(|last| last.end() < range.first);
            if range.count == 0 || !is_behind || total > CLOSED_PAGES_MAX {
                return Err("ascending runs of pages, not too many, with others between them");
            }
            pages.push(range);
        }
        Ok(pages)
    }

    fn version(&mut self) -> Result<VersionVector, Expected> {
        let mut version = VersionVector::new();
        for (node, seq) in self.entries()? {
            version.advance(node, seq);
        }
        Ok(version)
    }

    /// Reads ascending nodes, each with the number of an interval.
    fn entries(&mut self) -> Result<Vec<(NodeId, u64)>, Expected> {
        let count = self.count()?;
        let mut entries: Vec<(NodeId, u64)> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = (self.node()?, self.varint()?);
            if entry.1 == 0 || entries.last().is_some_and(|last| last.0 >= entry.0) {
                return Err("intervals of ascending nodes");
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn access(&mut self) -> Result<Access, Expected> {
        match self.byte()? {
            0 => Ok(Access::None),
            1 => Ok(Access::Read),
            2 => Ok(Access::Write),
            _ => Err("an access that this version knows"),
        }
    }

    fn node(&mut self) -> Result<NodeId, Expected> {
        let node = self.up_to(u64::from(u16::MAX), "a node of the job")? as u16;
        if node < self.nodes { Ok(NodeId(node)) } else { Err("a node of the job") }
    }

    fn page(&mut self) -> Result<PageId, Expected> {
        let distance = unzigzag(self.varint()?);
        let page = PageId(self.before.page.0.wrapping_add_signed(distance));
        if page.0 >= GRANULES_MAX {
            return Err("a page of the shared region");
        }
        self.before.page = page;
        Ok(page)
    }

    fn range(&mut self) -> Result<PageRange, Expected> {
        let first = self.page()?;
        let count = self.up_to(GRANULES_MAX, "granules of the shared region")?;
        let range = PageRange { first, count };
        self.before.page = range.end();
        Ok(range)
    }

    fn offset(&mut self, bytes: u32) -> Result<u32, Expected> {
        let offset = self.word()?;
        let end = offset.checked_add(bytes);
        if end.is_some_and(|end| end <= self.granule_bytes) {
            Ok(offset)
        } else {
            Err("bytes within a granule")
        }
    }

    /// Reads a count of items, each of which takes at least two bytes, so that no more are allocated than can
    /// follow.
    fn count(&mut self) -> Result<usize, Expected> {
        let left = (self.bytes.len() - self.at) as u64;
        self.up_to(left / 2, "a number of entries that fits the remaining bytes").map(|count| count as usize)
    }

    fn word(&mut self) -> Result<u32, Expected> {
        self.up_to(u64::from(u32::MAX), "a number of 32 bits").map(|value| value as u32)
    }

    fn up_to(&mut self, most: u64, expected: Expected) -> Result<u64, Expected> {
        let value = self.varint()?;
        if value <= most { Ok(value) } else { Err(expected) }
    }

    fn varint(&mut self) -> Result<u64, Expected> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number of 64 bits")
    }

    fn byte(&mut self) -> Result<u8, Expected> {
        let byte = *self.bytes.get(self.at).ok_or("more bytes in the record")?;
        self.at += 1;
        Ok(byte)
    }
}
