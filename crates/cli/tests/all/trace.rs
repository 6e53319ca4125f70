//! Traces of real runs contain what happened: as many events as the account of the run counts, in a
//! consistent order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hiroba_base::{LockId, NodeId, PageId};
use hiroba_trace::{Activity, Ending, Event, Record, RunStatistics, ThreadNumber, Trace};
use hiroba_wire::FabricKind;
use serde_json::Value;

use crate::support::{Called, call, compiled, finish, hiroba, start};

const NODES: u16 = 3;

/// A traced run of `traced.c`, and its account.
struct Run {
    called: Called,
    account: Option<RunStatistics>,
    directory: tempfile::TempDir,
}

impl Run {
    fn of(program: &Path, options: &[&str], arguments: &[&str]) -> Run {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let statistics = directory.path().join("account.json");
        let mut command = hiroba(&["run", "-n", &NODES.to_string()]);
        command.args(options).arg(format!("--stats=json:{}", statistics.display()));
        command.arg("--trace").arg(directory.path().join("trace")).arg(program).args(arguments);
        let called = finish(start(&mut command));
        let account = std::fs::read(&statistics).ok().and_then(|json| serde_json::from_slice(&json).ok());
        Run { called, account, directory }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("trace")
    }

    fn trace(&self) -> Trace {
        Trace::open(&self.path()).expect("a trace")
    }

    fn node(&self, node: NodeId) -> (Vec<Record>, Ending) {
        let mut reader = self.trace().node(node).expect("the node's trace");
        let records = reader.by_ref().map(|record| record.expect("a whole record")).collect();
        (records, reader.ending().expect("it was read to its end"))
    }

    fn all(&self) -> Vec<Vec<Record>> {
        NodeId::all(NODES)
            .map(|node| {
                let (records, ending) = self.node(node);
                assert_eq!(ending, Ending::Complete, "node {node}");
                records
            })
            .collect()
    }
}

fn count(records: &[Record], what: impl Fn(&Event) -> bool) -> u64 {
    records.iter().filter(|record| what(&record.event)).count() as u64
}

/// Asserts that the counts are those of the account.
fn agrees_with_account(nodes: &[Vec<Record>], account: &RunStatistics) {
    for (records, node) in nodes.iter().zip(&account.per_node) {
        let counted = |what: fn(&Event) -> bool| count(records, what);
        let counters = &node.counters;
        let faults = counted(|event| matches!(event, Event::Enter(Activity::Fault { .. })));
        let pairs = [
            ("faults", faults, counters.read_faults + counters.write_faults),
            ("barriers", counted(|e| matches!(e, Event::Enter(Activity::Barrier))), counters.barriers),
            ("locks", counted(|e| matches!(e, Event::Acquired { .. })), counters.lock_acquires),
            ("twins", counted(|e| matches!(e, Event::Twinned { .. })), counters.twins_made),
            ("diffs", counted(|e| matches!(e, Event::Diffed { .. })), counters.diffs_made),
            (
                "updates",
                counted(|e| matches!(e, Event::Applied { bytes: 1.., .. })),
                counters.updates_applied,
            ),
            (
                "copies",
                counted(|e| matches!(e, Event::Holds { .. })),
                counters.pages_fetched + counters.pages_prefetched,
            ),
            ("messages", counted(|e| matches!(e, Event::Sent { .. })), counters.messages_sent),
        ];
        for (what, recorded, counted) in pairs {
            assert_eq!(recorded, counted, "{what} of node {}", node.node);
        }
    }
}

/// Asserts that activities are nested, and that each that began has ended.
fn activities_nest(records: &[Record]) {
    let mut open: BTreeMap<ThreadNumber, Vec<u64>> = BTreeMap::new();
    for Record { thread, at_ns, event } in records {
        match event {
            Event::Enter(_) => open.entry(*thread).or_default().push(*at_ns),
            Event::Leave => {
                let began = open.entry(*thread).or_default().pop().expect("what ends has begun");
                assert!(began <= *at_ns, "{thread:?} ends before it begins");
            }
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

/// Asserts that the k-th message that a sent to b is the k-th that b received.
fn messages_pair(nodes: &[Vec<Record>]) {
    for (from, records) in nodes.iter().enumerate() {
        for (to, others) in nodes.iter().enumerate() {
            let sent = records.iter().filter_map(|record| match record.event {
                Event::Sent { to: NodeId(node), kind, bytes } if usize::from(node) == to => {
                    Some((kind, bytes))
                }
                _ => None,
            });
            let received = others.iter().filter_map(|record| match record.event {
                Event::Received { from: NodeId(node), kind, bytes } if usize::from(node) == from => {
                    Some((kind, bytes))
                }
                _ => None,
            });
            let (sent, received): (Vec<_>, Vec<_>) = (sent.collect(), received.collect());
            assert!(received.len() <= sent.len(), "from {from} to {to}");
            assert_eq!(received[..], sent[..received.len()], "from {from} to {to}");
        }
    }
}

/// Asserts that holds of a lock, and operations on a word, are numbered from 0 on without gaps.
fn turns_are_numbered(nodes: &[Vec<Record>]) {
    let mut acquired: BTreeMap<LockId, Vec<u64>> = BTreeMap::new();
    let mut released = acquired.clone();
    let mut words: BTreeMap<(PageId, u32), BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for record in nodes.iter().flatten() {
        match record.event {
            Event::Acquired { lock, turn } => acquired.entry(lock).or_default().push(turn),
            Event::Released { lock, turn } => released.entry(lock).or_default().push(turn),
            Event::Atomic { page, offset, turn, previous, current } => {
                let word = words.entry((page, offset)).or_default();
                assert!(word.insert(turn, (previous, current)).is_none(), "{record:?}");
            }
            _ => {}
        }
    }
    assert!(!acquired.is_empty() && !words.is_empty());
    for (lock, mut turns) in acquired {
        turns.sort_unstable();
        assert_eq!(turns, (0..turns.len() as u64).collect::<Vec<_>>(), "{lock:?}");
        let mut ended = released.remove(&lock).expect("it was given up");
        ended.sort_unstable();
        assert_eq!(ended, turns, "{lock:?}");
    }
    for (word, operations) in words {
        // The program initialises none of them by plain stores.
        let mut before = 0;
        for (number, (turn, (previous, current))) in operations.into_iter().enumerate() {
            assert_eq!((turn, previous), (number as u64, before), "{word:?}");
            before = current;
        }
    }
}

/// Asserts that loads return stored values, that meetings are numbered, and that seen intervals have been
/// closed.
fn facts_fit_together(nodes: &[Vec<Record>]) {
    let mut closed: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    let mut stored = BTreeSet::from([0]);
    for (node, records) in nodes.iter().enumerate() {
        let mut epochs: BTreeMap<ThreadNumber, u64> = BTreeMap::new();
        for record in records {
            match &record.event {
                Event::Closed { seq, pages } => {
                    assert!(!pages.is_empty());
                    assert!(closed.entry(node).or_default().insert(*seq));
                }
                Event::Store { value, .. } => drop(stored.insert(*value)),
                Event::Met { epoch } => {
                    let before = epochs.insert(record.thread, *epoch);
                    assert!(before.is_none_or(|before| before < *epoch), "{record:?}");
                }
                _ => {}
            }
        }
    }
    for (node, records) in nodes.iter().enumerate() {
        for record in records {
            match &record.event {
                Event::Seen { grown } => {
                    for (other, seq) in grown {
                        assert_ne!(other.index(), node);
                        assert!(closed[&other.index()].contains(seq), "node {node} saw {seq} of {other}");
                    }
                }
                Event::Applied { writer, seq, .. } => assert!(closed[&writer.index()].contains(seq)),
                Event::Load { value, .. } => assert!(stored.contains(value), "{record:?}"),
                _ => {}
            }
        }
    }
}

fn is_sound(run: &Run) {
    assert_eq!(run.called.status, 0, "{:?}", run.called);
    let nodes = run.all();
    assert_eq!(run.trace().job().exit_status, Some(0));
    assert_eq!(run.trace().job().nodes, NODES);
    agrees_with_account(&nodes, run.account.as_ref().expect("an account"));
    nodes.iter().for_each(|records| activities_nest(records));
    messages_pair(&nodes);
    turns_are_numbered(&nodes);
    facts_fit_together(&nodes);
    for records in &nodes {
        assert!(count(records, |event| matches!(event, Event::Load { .. })) > 0);
        assert!(count(records, |event| matches!(event, Event::Region { .. })) >= u64::from(NODES) + 4);
    }
}

#[test]
fn traces_hold_what_happened_over_every_fabric_with_every_fault_source() {
    let (_kept, program) = compiled("traced.c");
    // If the kernel grants no fault events, the command says so before anything starts.
    let with_events = call(&["run", "-n", "2", "--fault-source", "event", "true"]);
    let sources = if with_events.status == 0 { &["sigbus", "sigsegv", "event"][..] } else { &["sigsegv"] };
    for source in sources {
        for fabric in FabricKind::ALL.map(FabricKind::name) {
            is_sound(&Run::of(&program, &["--fabric", fabric, "--fault-source", source], &[]));
        }
    }
}

#[test]
fn threads_and_writes_that_fault_are_traced_too() {
    let (_kept, program) = compiled("traced.c");
    is_sound(&Run::of(&program, &["-t", "2"], &["2"]));
    is_sound(&Run::of(&program, &["--fabric", "shm", "--write-tracking", "fault"], &[]));
    is_sound(&Run::of(&program, &["--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=7"], &[]));
}

#[test]
fn a_crowd_of_threads_that_does_everything_at_once_is_traced() {
    let (_kept, program) = compiled("soak.c");
    for fabric in ["udp", "shm"] {
        // Under the adaptive protocol a node also applies changes of its own, which are no diffs that came.
        let options = ["-t", "2", "--fabric", fabric, "--protocol", "hlrc"];
        let run = Run::of(&program, &options, &["2", "11"]);
        assert_eq!(run.called.status, 0, "{:?}", run.called);
        let nodes = run.all();
        agrees_with_account(&nodes, run.account.as_ref().expect("an account"));
        nodes.iter().for_each(|records| activities_nest(records));
        messages_pair(&nodes);
        turns_are_numbered(&nodes);
    }
}

#[test]
fn the_trace_of_a_killed_node_is_cut_off_and_readable() {
    let (_kept, program) = compiled("traced.c");
    let run = Run::of(&program, &[], &["1", "die"]);
    assert_eq!(run.called.status, 128 + libc::SIGKILL, "{:?}", run.called);
    assert_eq!(run.trace().job().exit_status, Some(137));
    let (records, ending) = run.node(NodeId(1));
    assert!(matches!(ending, Ending::CutOff { .. }), "{ending:?}");
    assert!(count(&records, |event| matches!(event, Event::Load { .. })) > 10_000);
    let summary = call(&["trace", "summary", run.path().to_str().expect("UTF-8")]);
    assert_eq!(summary.status, 0);
    assert!(summary.stderr.contains("the trace of node 1 is cut off"), "{summary:?}");
}

#[test]
fn a_trace_is_written_where_nothing_is_overwritten() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::create_dir(path("full")).expect("a directory");
    std::fs::write(path("full/job.json"), "{}").expect("a file");
    call(&["run", "--trace", &path("full"), "true"]).says(125, "new or an empty directory");
    assert_eq!(std::fs::read_to_string(path("full/job.json")).expect("it is there"), "{}");
    call(&["run", "--trace", &path("no/where"), "true"]).says(125, "cannot write the trace to");
    call(&["run", "--trace", &path("new"), "no-such-program-anywhere"]).says(127, "not found");
    assert!(!Path::new(&path("new")).exists(), "nothing is left of a job that did not begin");
    call(&["trace", "summary", &path("new")]).says(125, "expected a traced run");
    std::fs::write(path("full/job.json"), "nonsense").expect("a file");
    call(&["trace", "export", &path("full"), "-o", &path("out")]).says(125, "a description of a job");
}

/// Trace Event Format: the requirements of its sections "Complete Events", "Flow Events" and "Counter
/// Events".
#[test]
fn the_export_is_what_trace_viewers_read() {
    let (_kept, program) = compiled("traced.c");
    let run = Run::of(&program, &[], &[]);
    let output = run.directory.path().join("chrome.json");
    let (path, file) = (run.path(), output.to_str().expect("UTF-8").to_owned());
    let called = call(&["trace", "export", path.to_str().expect("UTF-8"), "-o", &file]);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
    let json: Value = serde_json::from_slice(&std::fs::read(&output).expect("the file")).expect("JSON");
    let events = json["traceEvents"].as_array().expect("an array");
    let mut slices = 0;
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let number = |key: &str| event[key].as_f64().unwrap_or(-1.0);
        assert!(number("pid") < f64::from(NODES) && number("pid") >= 0.0, "{event}");
        assert!(number("tid") >= 0.0 && number("ts") >= 0.0, "{event}");
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        match event["ph"].as_str().expect("a phase") {
            "X" => {
                assert!(number("dur") >= 0.0, "{event}");
                slices += 1;
            }
            "s" => assert!(begun.insert(event["id"].to_string()), "{event}"),
            "f" => assert!(ended.insert(event["id"].to_string()) && event["bp"] == "e", "{event}"),
            "C" => assert!(event["args"]["bytes"].is_u64(), "{event}"),
            "M" => assert!(event["args"].is_object(), "{event}"),
            other => panic!("expected a phase that is known, got {other}"),
        }
    }
    assert_eq!(begun, ended, "every flow has both ends");
    let nodes = run.all();
    let entered: u64 =
        nodes.iter().map(|records| count(records, |event| matches!(event, Event::Enter(_)))).sum();
    let received: u64 =
        nodes.iter().map(|records| count(records, |event| matches!(event, Event::Received { .. }))).sum();
    assert_eq!((slices, begun.len() as u64), (entered, received));
}
