//! Traces survive writing and reading, whatever their content; damage and a missing end are detected.

use hiroba_base::{Access, CondId, LockId, NodeId, PageId, PageRange, PageSet, PageSize, VersionVector};
use hiroba_trace::{
    Activity, Ending, Event, Header, MessageKind, Record, ThreadNumber, TraceError, TraceReader, TraceWriter,
};
use proptest::prelude::*;

const NODES: u16 = 5;
const GRANULE_BYTES: u32 = 4096;

fn header() -> Header {
    Header {
        node: NodeId(2),
        nodes: NODES,
        granule_bytes: GRANULE_BYTES,
        page_size: PageSize::KIB_4,
        host: 0,
        monotonic_ns: 12_345_678_901,
        realtime_ns: 1_700_000_000_000_000_000,
        message_kinds: vec!["PageRequest".to_owned(), "PagesReply".to_owned()],
    }
}

fn node() -> impl Strategy<Value = NodeId> {
    (0..NODES).prop_map(NodeId)
}

fn page() -> impl Strategy<Value = PageId> {
    prop_oneof![0u64..64, 0..1u64 << 40].prop_map(PageId)
}

fn lock() -> impl Strategy<Value = LockId> {
    any::<u32>().prop_map(LockId)
}

fn range() -> impl Strategy<Value = PageRange> {
    (page(), 0u64..1 << 32).prop_map(|(first, count)| PageRange { first, count })
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::Write)]
}

fn kind() -> impl Strategy<Value = MessageKind> {
    any::<u8>().prop_map(MessageKind)
}

/// Returns the place of a word in a granule.
fn word() -> impl Strategy<Value = u32> {
    (0..GRANULE_BYTES / 8).prop_map(|word| word * 8)
}

fn page_set() -> impl Strategy<Value = PageSet> {
    proptest::collection::vec((1u64..1 << 20, 1u64..1 << 12), 0..20).prop_map(|runs| {
        let mut pages = PageSet::new();
        let mut end = 0;
        for (gap, count) in runs {
            pages.push(PageRange { first: PageId(end + gap), count });
            end += gap + count;
        }
        pages
    })
}

fn entries() -> impl Strategy<Value = Vec<(NodeId, u64)>> {
    proptest::collection::btree_map(node(), 1..u64::MAX, 0..5)
        .prop_map(|entries| entries.into_iter().collect())
}

fn activity() -> impl Strategy<Value = Activity> {
    prop_oneof![
        (page(), access()).prop_map(|(page, wanted)| Activity::Fault { page, wanted }),
        lock().prop_map(Activity::Acquire),
        lock().prop_map(Activity::Release),
        (any::<u32>(), lock()).prop_map(|(cond, lock)| Activity::Wait(CondId(cond), lock)),
        any::<u32>().prop_map(|cond| Activity::Signal(CondId(cond))),
        Just(Activity::Barrier),
        Just(Activity::Collective),
        (page(), word()).prop_map(|(page, offset)| Activity::Atomic { page, offset }),
        node().prop_map(Activity::Publish),
        Just(Activity::Other),
        (node(), kind()).prop_map(|(from, kind)| Activity::Serve { from, kind }),
    ]
}

fn access_of_bytes() -> impl Strategy<Value = (PageId, u32, u8, u64)> {
    (page(), word(), prop_oneof![Just(1u8), Just(2), Just(4), Just(8)], any::<u64>())
}

fn ordering_fact() -> impl Strategy<Value = Event> {
    prop_oneof![
        (lock(), any::<u64>()).prop_map(|(lock, turn)| Event::Acquired { lock, turn }),
        (lock(), any::<u64>()).prop_map(|(lock, turn)| Event::Released { lock, turn }),
        any::<u64>().prop_map(|epoch| Event::Met { epoch }),
        (node(), any::<u64>()).prop_map(|(to, count)| Event::Published { to, count }),
        (node(), any::<u64>()).prop_map(|(from, count)| Event::PublicationSeen { from, count }),
        any::<u64>().prop_map(|number| Event::Posted { number }),
        (node(), any::<u64>()).prop_map(|(from, number)| Event::Taken { from, number }),
        (page(), word(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(page, offset, turn, previous, current)| Event::Atomic { page, offset, turn, previous, current }
        ),
    ]
}

fn page_fact() -> impl Strategy<Value = Event> {
    let homes = proptest::collection::vec((node(), 1..u64::MAX), 0..6);
    let page_size = (12u32..22).prop_map(|bits| PageSize::new(1 << bits).expect("a size"));
    prop_oneof![
        (range(), page_size, homes, "[a-z-]{0,14}").prop_map(|(granules, page_size, homes, protocol)| {
            Event::Region { granules, page_size, homes, protocol }
        }),
        (range(), access()).prop_map(|(granules, access)| Event::Access { granules, access }),
        (page(), entries()).prop_map(|(page, entries)| {
            let mut version = VersionVector::new();
            entries.into_iter().for_each(|(node, seq)| version.advance(node, seq));
            Event::Holds { page, version }
        }),
        (page(), node(), any::<u64>(), any::<u32>()).prop_map(|(page, writer, seq, bytes)| Event::Applied {
            page,
            writer,
            seq,
            bytes
        }),
        (page(), any::<u32>()).prop_map(|(page, bytes)| Event::Diffed { page, bytes }),
        page().prop_map(|page| Event::Twinned { page }),
        page().prop_map(|page| Event::Converted { page }),
        (any::<u64>(), page_set()).prop_map(|(seq, pages)| Event::Closed { seq, pages }),
        entries().prop_map(|grown| Event::Seen { grown }),
        (page_set(), node()).prop_map(|(pages, to)| Event::Moved { pages, to }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        activity().prop_map(Event::Enter),
        Just(Event::Leave),
        (node(), kind(), any::<u32>()).prop_map(|(to, kind, bytes)| Event::Sent { to, kind, bytes }),
        (node(), kind(), any::<u32>()).prop_map(|(from, kind, bytes)| Event::Received { from, kind, bytes }),
        ordering_fact(),
        access_of_bytes().prop_map(|(page, offset, bytes, value)| Event::Load { page, offset, bytes, value }),
        access_of_bytes().prop_map(|(page, offset, bytes, value)| Event::Store {
            page,
            offset,
            bytes,
            value
        }),
        page_fact(),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let thread = prop_oneof![Just(ThreadNumber::RUNTIME), (0u32..3).prop_map(ThreadNumber)];
    let at_ns = prop_oneof![0u64..1000, any::<u64>()];
    (thread, at_ns, event()).prop_map(|(thread, at_ns, event)| Record { thread, at_ns, event })
}

/// Returns the file, and where its chunks begin.
fn written(records: &[Record], flush_every: usize, finish: bool) -> (Vec<u8>, Vec<u64>) {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    let mut chunks = vec![writer.written().1];
    for (index, Record { thread, at_ns, event }) in records.iter().enumerate() {
        writer.record(*thread, *at_ns, event).unwrap();
        if (index + 1) % flush_every == 0 {
            writer.flush().unwrap();
            chunks.push(writer.written().1);
        }
    }
    writer.flush().unwrap();
    chunks.push(writer.written().1);
    if !finish {
        let end_mark = 12;
        let mut bytes = writer.finish().unwrap();
        bytes.truncate(bytes.len() - end_mark);
        return (bytes, chunks);
    }
    assert_eq!(writer.written().0, records.len() as u64);
    (writer.finish().unwrap(), chunks)
}

fn read(bytes: &[u8]) -> (Vec<Record>, Option<Ending>, Option<TraceError>) {
    let mut reader = match TraceReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), None, Some(error)),
    };
    let mut records = Vec::new();
    for record in &mut reader {
        match record {
            Ok(record) => records.push(record),
            Err(error) => return (records, reader.ending(), Some(error)),
        }
    }
    let ending = reader.ending();
    assert!(ending.is_some(), "a trace that was read to its end has one");
    assert!(reader.next().is_none(), "nothing comes after the end");
    (records, ending, None)
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in proptest::collection::vec(record(), 0..200), flush_every in 1usize..50) {
        let (bytes, _) = written(&records, flush_every, true);
        let (got, ending, error) = read(&bytes);
        prop_assert!(error.is_none(), "{}", error.unwrap());
        prop_assert_eq!(ending, Some(Ending::Complete));
        prop_assert_eq!(got, records);
    }

    #[test]
    fn a_file_cut_off_anywhere_is_read_up_to_its_last_whole_chunk(
        records in proptest::collection::vec(record(), 1..100),
        flush_every in 1usize..20,
        cut in any::<prop::sample::Index>(),
    ) {
        let (bytes, chunks) = written(&records, flush_every, true);
        let header_bytes = chunks[0] as usize;
        let length = header_bytes + cut.index(bytes.len() - header_bytes);
        let (got, ending, error) = read(&bytes[..length]);
        prop_assert!(error.is_none(), "{}", error.unwrap());
        let whole = chunks.iter().filter(|end| **end as usize <= length).count() - 1;
        prop_assert_eq!(ending, Some(Ending::CutOff { at_byte: chunks[whole] }));
        prop_assert_eq!(&got[..], &records[..(whole * flush_every).min(records.len())]);
    }

    #[test]
    fn a_changed_byte_is_noticed(
        records in proptest::collection::vec(record(), 1..50),
        at in any::<prop::sample::Index>(),
        change in 1u8..=255,
    ) {
        let (mut bytes, _) = written(&records, 10, true);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let (got, ending, error) = read(&bytes);
        // A corrupted length may make the rest of the file look like an incomplete chunk.
        prop_assert!(error.is_some() || matches!(ending, Some(Ending::CutOff { .. })), "byte {at}");
        prop_assert!(got.len() <= records.len());
        prop_assert_eq!(&got[..], &records[..got.len()], "what is handed out was written");
    }

    #[test]
    fn hostile_chunks_are_refused_without_harm(content in proptest::collection::vec(any::<u8>(), 1..400), claimed in 1u32..500) {
        let (mut bytes, _) = written(&[], 1, false);
        let length = content.len() as u32;
        let mut hasher = crc32fast::Hasher::new();
        for part in [&length.to_le_bytes()[..], &claimed.to_le_bytes(), &content] {
            hasher.update(part);
        }
        bytes.extend(length.to_le_bytes());
        bytes.extend(claimed.to_le_bytes());
        bytes.extend(hasher.finalize().to_le_bytes());
        bytes.extend(&content);
        let (got, ..) = read(&bytes);
        prop_assert!(got.len() <= content.len());
    }

    #[test]
    fn arbitrary_bytes_are_no_trace(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (got, _, error) = read(&bytes);
        prop_assert!(got.is_empty() && error.is_some());
    }
}

#[test]
fn an_interval_with_very_many_pages_is_several_records() {
    let mut pages = PageSet::new();
    pages.push(PageRange { first: PageId(0), count: (1 << 21) + 5 });
    let scattered: Vec<PageRange> =
        (0..100_000).map(|index| PageRange { first: PageId((1 << 22) + 2 * index), count: 1 }).collect();
    scattered.iter().for_each(|range| pages.push(*range));
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    writer.record(ThreadNumber(0), 1, &Event::Closed { seq: 7, pages: pages.clone() }).unwrap();
    let (records, ending, error) = read(&writer.finish().unwrap());
    assert!(error.is_none() && ending == Some(Ending::Complete));
    assert!(records.len() > 2, "{} records", records.len());
    let mut together = PageSet::new();
    for record in records {
        let Event::Closed { seq: 7, pages } = record.event else { panic!("expected interval 7") };
        pages.ranges().iter().for_each(|range| together.push(*range));
    }
    assert_eq!(together, pages);
}

#[test]
fn other_files_and_versions_are_refused_with_a_sentence() {
    let (mut bytes, _) = written(&[], 1, true);
    bytes[8] = 99;
    let error = TraceReader::new(&bytes[..]).expect_err("another version");
    assert!(error.to_string().contains("got one in format 99"), "{error}");
    let error = TraceReader::new(&b"{\"format\": 1}"[..]).expect_err("not a trace");
    assert!(error.to_string().contains("does not begin like one"), "{error}");
}

#[test]
fn most_records_take_few_bytes() {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    let before = writer.written().1;
    for index in 0..1000u64 {
        let page = PageId(5_000_000 + index);
        let fault = Event::Enter(Activity::Fault { page, wanted: Access::Read });
        writer.record(ThreadNumber(0), index * 9000, &fault).unwrap();
        let asked = Event::Sent { to: NodeId(1), kind: MessageKind(0), bytes: 12 };
        writer.record(ThreadNumber(0), index * 9000 + 300, &asked).unwrap();
        let given = Event::Access { granules: PageRange::single(page), access: Access::Read };
        writer.record(ThreadNumber(0), index * 9000 + 5000, &given).unwrap();
        writer.record(ThreadNumber(0), index * 9000 + 5000, &Event::Leave).unwrap();
    }
    writer.flush().unwrap();
    let bytes = writer.written().1 - before;
    assert!(bytes <= 4000 * 6, "{bytes} bytes for 4000 records");
}

#[test]
fn a_region_names_the_home_of_each_page() {
    let region = |homes| Event::Region {
        granules: PageRange { first: PageId(8), count: 12 },
        page_size: PageSize::new(16 << 10).unwrap(),
        homes,
        protocol: String::new(),
    };
    let cyclic = region(vec![(NodeId(0), 1), (NodeId(1), 1)]);
    let homes: Vec<_> =
        [7, 8, 11, 12, 16, 19, 20].map(|granule| cyclic.home_of(PageId(granule), 4096)).into_iter().collect();
    let at = |page, node| Some((PageId(page), NodeId(node)));
    assert_eq!(homes, [None, at(8, 0), at(8, 0), at(12, 1), at(16, 0), at(16, 0), None]);
    assert_eq!(region(vec![(NodeId(3), 3)]).home_of(PageId(19), 4096), at(16, 3));
    assert_eq!(region(vec![]).home_of(PageId(9), 4096), None);
}
