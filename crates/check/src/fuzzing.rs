//! Targets for fuzzing: code that handles bytes which strangers may have made.
//!
//! Each target takes any bytes and must neither panic nor hang, nor take memory beyond a bound; a value that
//! decodes must stay the same when it is encoded and decoded again. libFuzzer calls the targets from `fuzz/`;
//! `tests/all/fuzz_corpus.rs` calls them with the corpus and seeded mutations of it.
//! `tests/all/fuzz_corpus.rs` calls them with the corpus and seeded mutations of it.

use core::fmt::Debug;

use hiroba_base::{Instant, NodeId};
use hiroba_fabric::link::header::{Frames, Header};
use hiroba_fabric::{LinkConfig, LinkSet};
use hiroba_protocol::diff;
use hiroba_trace::TraceReader;
use hiroba_wire::agent::{FromAgent, Greeting, ToAgent};
use hiroba_wire::control::{ToLauncher, ToNode, decode, encode};
use hiroba_wire::{Limits, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A target: its name, which is that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("message", message),
    ("control", control),
    ("link", link),
    ("diff", diff_runs),
    ("trace", trace),
    ("ports", hiroba_ports::fuzzing::packet),
];

/// Decodes a message of another node.
pub fn message(bytes: &[u8]) {
    for (nodes, region_granules) in [(2, 16), (64, 1 << 32)] {
        let limits = Limits { nodes, region_granules, granule_bytes: 4096 };
        if let Ok(message) = Message::decode(bytes, &limits) {
            let again = message.encode();
            assert_eq!(
                Message::decode(&again, &limits).as_ref(),
                Ok(&message),
                "a message means what it meant"
            );
        }
    }
}

fn same_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let again = decode::<T>(&encode(&message)).expect("what was encoded decodes");
        assert_eq!(encode(&again), encode(&message), "a message means what it meant");
    }
}

/// Decodes a message between launcher, agents and nodes.
pub fn control(bytes: &[u8]) {
    same_again::<ToNode>(bytes);
    same_again::<ToLauncher>(bytes);
    same_again::<ToAgent>(bytes);
    same_again::<FromAgent>(bytes);
    if let Ok(line) = core::str::from_utf8(bytes) {
        let _ = Greeting::parse(line);
    }
}

/// Takes a decrypted datagram. The receiving link has sent something, so that acknowledgements refer to
/// something.
pub fn link(bytes: &[u8]) {
    if let Ok((header, payload)) = Header::parse(bytes)
        && header.data
    {
        let taken: usize = Frames::new(payload).map(|frame| frame.bytes.len()).sum();
        assert!(taken <= payload.len(), "frames are parts of the payload");
    }
    let peer = NodeId(1);
    let mut links = LinkSet::new(NodeId(0), 2, LinkConfig::default());
    links.send(peer, &[b"something to acknowledge"]);
    let mut out = Vec::new();
    while links.poll_transmit(Instant::ORIGIN, &mut out).is_some() {}
    for moment in [0, 1 << 20, 1 << 30] {
        let now = Instant::from_nanos(moment);
        let _ = links.handle_datagram(peer, bytes, now);
        links.handle_timeout(now);
        while links.poll_transmit(now, &mut out).is_some() {}
        while links.poll_message().is_some() {}
    }
}

/// Applies a diff to a page. The first byte chooses the page's length.
pub fn diff_runs(bytes: &[u8]) {
    let Some((length, runs)) = bytes.split_first() else { return };
    let page_bytes = 4096usize << (length % 10);
    let mut end = 0;
    let applied = diff::apply(runs, page_bytes, |offset, bytes| {
        assert!(offset >= end && !bytes.is_empty(), "runs ascend");
        end = offset + bytes.len();
        assert!(end <= page_bytes, "runs lie in the page");
    });
    assert_eq!(diff::check(runs, page_bytes).is_ok(), applied.is_ok(), "what is checked can be applied");
    if applied.is_err() {
        assert_eq!(end, 0, "a bad diff is refused whole");
    }
}

/// Reads a node's trace.
pub fn trace(bytes: &[u8]) {
    let Ok(mut reader) = TraceReader::new(bytes) else { return };
    let failed = reader.by_ref().any(|record| record.is_err());
    assert!(failed || reader.ending().is_some(), "a trace that was read has an end");
}
