//! Writes the corpora of the fuzz targets, from real encodings: `cargo run --release -p hiroba-check
//! --example corpus -- fuzz/corpus`

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use hiroba_base::{CodeSite, NodeId, PageId, PageSize};
use hiroba_check::cluster::{Cluster, Options};
use hiroba_check::engines::hlrc;
use hiroba_check::litmus::contributing;
use hiroba_check::mutant::Mutation;
use hiroba_check::random_program::{Shape, generate};
use hiroba_fabric::{LinkConfig, LinkSet};
use hiroba_protocol::{Protocol, WriteTracking, diff};
use hiroba_trace::{Header, TraceWriter};
use hiroba_wire::Limits;
use hiroba_wire::agent::{FromAgent, NodeEvent, ToAgent};
use hiroba_wire::control::{RaceReport, RaceSide, ThreadWait, ToLauncher, ToNode, WaitReport, encode};

/// The maximum length of an example; longer ones teach a fuzzer nothing more.
const EXAMPLE_BYTES_MAX: usize = 400;
/// The number of examples of each kind of message.
const EACH_MAX: usize = 3;

/// Records what is sent.
struct Listener(Rc<RefCell<BTreeMap<u8, Vec<Vec<u8>>>>>);

impl Mutation for Listener {
    fn on_send(&mut self, _: NodeId, _: NodeId, bytes: Vec<u8>, _: &Limits) -> Vec<(Vec<u8>, bool)> {
        let mut kinds = self.0.borrow_mut();
        let kind = kinds.entry(bytes.first().copied().unwrap_or_default()).or_default();
        if kind.len() < EACH_MAX && bytes.len() <= EXAMPLE_BYTES_MAX && !kind.contains(&bytes) {
            kind.push(bytes.clone());
        }
        vec![(bytes, false)]
    }
}

fn main() -> std::io::Result<()> {
    let directory = std::env::args().nth(1).expect("expected the directory of the corpora");
    let kinds = Rc::new(RefCell::new(BTreeMap::new()));
    let mut traces = Vec::new();
    // A sum of two nodes: arrivals with contributions, and a page under sequential consistency.
    let program = contributing().swap_remove(0).program;
    let region_protocols = vec![None, None, Some(Protocol::Sc)];
    let mutation = Box::new(Listener(kinds.clone()));
    let options = Options { mutation, region_protocols, ..Options::seeded(0, WriteTracking::Async) };
    Cluster::new(&program, hlrc(false), options).run().expect("it ends");
    for seed in 0..60 {
        let shape = Shape { team: 1, foreign: 1, publications: seed % 2 == 0, waits: false };
        let mutation = Box::new(Listener(kinds.clone()));
        let options = Options { mutation, ..Options::seeded(seed, WriteTracking::Async) };
        let ended = Cluster::new(&generate(seed, shape), hlrc(false), options).run().expect("it ends");
        if seed < 2 {
            traces.extend(
                ended
                    .run
                    .nodes
                    .iter()
                    .take(2)
                    .map(|node| traced(&node.records[..node.records.len().min(60)])),
            );
        }
    }
    let messages: Vec<Vec<u8>> = kinds.borrow().values().flatten().cloned().collect();
    write(&directory, "link", &datagrams(&messages))?;
    write(&directory, "message", &messages)?;
    write(&directory, "control", &controls())?;
    write(&directory, "diff", &diffs())?;
    write(&directory, "trace", &traces)
}

fn write(directory: &str, target: &str, examples: &[Vec<u8>]) -> std::io::Result<()> {
    let directory = Path::new(directory).join(target);
    std::fs::create_dir_all(&directory)?;
    for (number, example) in examples.iter().enumerate() {
        std::fs::write(directory.join(format!("{number:03}")), example)?;
    }
    Ok(())
}

fn traced(records: &[hiroba_trace::Record]) -> Vec<u8> {
    let header = Header {
        node: NodeId(0),
        nodes: 2,
        granule_bytes: 4096,
        page_size: PageSize::KIB_4,
        host: 0,
        monotonic_ns: 5,
        realtime_ns: 7,
        message_kinds: vec!["PageRequest".to_owned(), "PagesRequest".to_owned()],
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).expect("a vector takes everything");
    for record in records {
        writer.record(record.thread, record.at_ns, &record.event).expect("a vector takes everything");
    }
    writer.finish().expect("a vector takes everything")
}

/// Makes datagrams of a link: single messages, several in one, fragments of a long one, an acknowledgement.
fn datagrams(messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let config = LinkConfig { datagram_bytes_max: 200, ..LinkConfig::default() };
    let mut links = [0, 1].map(|node| LinkSet::new(NodeId(node), 2, config));
    let now = hiroba_base::Instant::ORIGIN;
    messages.iter().for_each(|message| links[0].send(NodeId(1), &[message]));
    let mut examples = Vec::new();
    while let Some(datagram) = links[0].transmit(now).map(|(_, datagram)| datagram.to_vec()) {
        let _ = links[1].handle_datagram(NodeId(0), &datagram, now);
        examples.push(datagram);
    }
    links[1].hasten_acknowledgements();
    examples.truncate(12);
    examples.extend(links[1].transmit(now).map(|(_, datagram)| datagram.to_vec()));
    examples
}

fn diffs() -> Vec<Vec<u8>> {
    let changes: [&[(usize, u8)]; 4] = [&[(0, 1)], &[(5, 1), (6, 2), (4000, 3)], &[(4095, 9)], &[]];
    let runs = changes.map(|changes| {
        let (twin, mut page) = (vec![0; 4096], vec![0; 4096]);
        changes.iter().for_each(|(at, byte)| page[*at] = *byte);
        let mut runs = vec![0];
        diff::encode(&page, &twin, &mut runs);
        runs
    });
    runs.to_vec()
}

fn controls() -> Vec<Vec<u8>> {
    let site = || Some(CodeSite { module: "a.out".to_owned(), offset: 0x1234 });
    let wait = ThreadWait { thread: 1, call: "hiroba_lock(3)".to_owned(), lock: Some(3), site: site() };
    let side = |node| RaceSide { node: NodeId(node), has_read: false, site: site(), interval_end: None };
    let race = RaceReport {
        address: PageId(5).0 * 4096,
        bytes: 8,
        allocation: "hiroba_alloc".to_owned(),
        sides: [side(0), side(1)],
    };
    let report = WaitReport {
        generation: 2,
        messages_sent: 4,
        messages_received: 5,
        threads: vec![wait],
        locks_held: vec![(3, 1)],
    };
    let said = [
        ToLauncher::Join { version: "1".to_owned(), build: "00ff".to_owned() },
        ToLauncher::Leave { statistics_json: "{}".to_owned() },
        ToLauncher::Waiting(report),
        ToLauncher::Race(race),
        ToLauncher::Pong,
        ToLauncher::Silent { peer: NodeId(1), why: Some("no connection".to_owned()) },
    ];
    let mut examples: Vec<Vec<u8>> = said.iter().map(encode).collect();
    let told = said.into_iter().map(|said| FromAgent::Node { node: NodeId(1), event: NodeEvent::Said(said) });
    examples.extend(told.map(|told| encode(&told)));
    examples.extend([ToNode::Start, ToNode::Ping].iter().map(encode));
    examples.extend(
        [ToAgent::Tell(ToNode::Close), ToAgent::Signal(15), ToAgent::Ping { number: 300 }].iter().map(encode),
    );
    examples.push(b"hiroba-agent 0.1.0 00ff 8\n".to_vec());
    examples
}
