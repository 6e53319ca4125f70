//! `hiroba trace export DIR -o FILE`: the Trace Event Format, which `ui.perfetto.dev` and `chrome://tracing` show.
//!
//! Source: *Trace Event Format*, Google, 2016. Nodes are processes; activities are complete events (`X`),
//! messages are flows (`s`, `f`) from the activity that sent them to the one that handled them, and bytes
//! sent are counters (`C`). The traces are read twice, one after the other, so that the memory needed does
//! not grow with them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use hiroba_base::{Access, NodeId};
use hiroba_trace::{Activity, Event, Header, MessageKind, Record, ThreadNumber, Trace, TraceError};
use serde::Serialize;
use serde_json::{Value, json};

use super::{each_record, unreadable, warn_of_ending};
use hiroba_launch::failure::Failure;

/// The least time between two changes of a node's counter of bytes.
const COUNTER_EVERY_NS: u64 = 1_000_000;

/// An event of the format. Times are in microseconds.
#[derive(Serialize)]
struct TraceEvent<'a> {
    ph: &'static str,
    name: &'a str,
    cat: &'static str,
    pid: u16,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Binds the end of a flow to the enclosing activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

impl TraceEvent<'_> {
    const NOTHING: TraceEvent<'static> = TraceEvent {
        ph: "M",
        name: "",
        cat: "hiroba",
        pid: 0,
        tid: 0,
        ts: 0.0,
        dur: None,
        id: None,
        bp: None,
        args: Value::Null,
    };
}

/// Number of messages by sender and receiver.
type Messages = BTreeMap<(NodeId, NodeId), u64>;

/// The identity of a message within a trace.
struct NumberedMessage {
    from: NodeId,
    to: NodeId,
    /// How many messages went the same way before it.
    number: u64,
    kind: MessageKind,
}

/// Writes the whole trace. The outer error is one of the trace, the inner one of the file.
pub fn write(trace: &Trace, to: &mut impl Write) -> Result<io::Result<()>, Failure> {
    let nodes = || NodeId::all(trace.job().nodes);
    let (mut sent, mut received) = (Messages::new(), Messages::new());
    let mut headers = Vec::new();
    for node in nodes() {
        headers.push(header_of(trace, node)?);
        let ending = each_record(trace, node, |record| match record.event {
            Event::Sent { to, .. } => *sent.entry((node, to)).or_default() += 1,
            Event::Received { from, .. } => *received.entry((from, node)).or_default() += 1,
            _ => {}
        })?;
        warn_of_ending(node, ending);
    }
    // Messages in flight when the job ended are left out, since their flows would have no end.
    let whole = |(pair, sent): (_, u64)| (pair, sent.min(received.get(&pair).copied().unwrap_or(0)));
    let flows: Messages = sent.into_iter().map(whole).collect();
    let headers: Vec<Header> = headers.into_iter().flatten().collect();
    let mut output = Output { to, is_first: true, result: Ok(()) };
    output.text("{\"displayTimeUnit\":\"ns\",\"otherData\":");
    output.json(&json!({ "program": trace.job().program, "protocol": trace.job().protocol, "fabric": trace.job().fabric }));
    output.text(",\"traceEvents\":[");
    for (header, start_ns) in headers.iter().zip(starts_ns(&headers)) {
        let node = header.node;
        let mut page = Page::new(node, start_ns, header, &flows, &mut output);
        page.introduce_node();
        each_record(trace, node, |record| page.take(&record))?;
        page.close();
    }
    output.text("\n]}\n");
    Ok(output.result)
}

/// Returns `None` for a node that has recorded nothing.
fn header_of(trace: &Trace, node: NodeId) -> Result<Option<Header>, Failure> {
    match trace.node(node) {
        Ok(reader) => Ok(Some(reader.header().clone())),
        Err(TraceError::Empty) => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

/// Returns when each node's trace began, in nanoseconds after the first. Nodes of one host share a clock that
/// is never set.
fn starts_ns(headers: &[Header]) -> Vec<u64> {
    let start = |header: &Header| {
        let first = headers.iter().find(|first| first.host == header.host).unwrap_or(header);
        let since = header.monotonic_ns.wrapping_sub(first.monotonic_ns) as i64;
        first.realtime_ns.saturating_add_signed(since)
    };
    let starts: Vec<u64> = headers.iter().map(start).collect();
    let first = starts.iter().copied().min().unwrap_or(0);
    starts.into_iter().map(|start| start - first).collect()
}

/// The file being written. Keeps the first error.
struct Output<'a, W: Write> {
    to: &'a mut W,
    is_first: bool,
    result: io::Result<()>,
}

impl<W: Write> Output<'_, W> {
    fn text(&mut self, text: &str) {
        if self.result.is_ok() {
            self.result = self.to.write_all(text.as_bytes());
        }
    }

    fn json(&mut self, value: &impl Serialize) {
        if self.result.is_ok() {
            self.result = serde_json::to_writer(&mut *self.to, value).map_err(io::Error::from);
        }
    }

    fn event(&mut self, event: &TraceEvent<'_>) {
        let between = if std::mem::take(&mut self.is_first) { "\n" } else { ",\n" };
        self.text(between);
        self.json(event);
    }
}

/// An activity that has begun.
struct Open {
    name: String,
    category: &'static str,
    at_ns: u64,
    args: Value,
}

/// One node's part of the output.
struct Page<'a, 'b, W: Write> {
    node: NodeId,
    start_ns: u64,
    header: &'a Header,
    flows: &'a Messages,
    output: &'a mut Output<'b, W>,
    /// The open activities of each thread, the innermost last.
    threads: BTreeMap<ThreadNumber, Vec<Open>>,
    sent: BTreeMap<NodeId, u64>,
    received: BTreeMap<NodeId, u64>,
    bytes_sent: u64,
    counted_at_ns: Option<u64>,
    latest_ns: u64,
}

impl<'a, 'b, W: Write> Page<'a, 'b, W> {
    fn new(
        node: NodeId,
        start_ns: u64,
        header: &'a Header,
        flows: &'a Messages,
        output: &'a mut Output<'b, W>,
    ) -> Page<'a, 'b, W> {
        let (threads, sent, received) = Default::default();
        let (bytes_sent, counted_at_ns, latest_ns) = (0, None, 0);
        Page {
            node,
            start_ns,
            header,
            flows,
            output,
            threads,
            sent,
            received,
            bytes_sent,
            counted_at_ns,
            latest_ns,
        }
    }

    fn time(&self, at_ns: u64) -> f64 {
        self.start_ns.saturating_add(at_ns) as f64 / 1e3
    }

    fn metadata(&mut self, name: &str, tid: u32, args: Value) {
        self.output.event(&TraceEvent { name, pid: self.node.0, tid, args, ..TraceEvent::NOTHING });
    }

    fn introduce_node(&mut self) {
        self.metadata("process_name", 0, json!({ "name": format!("node {}", self.node) }));
        self.metadata("process_sort_index", 0, json!({ "sort_index": self.node.0 }));
    }

    fn introduce_thread(&mut self, thread: ThreadNumber) {
        if self.threads.contains_key(&thread) {
            return;
        }
        self.threads.insert(thread, Vec::new());
        let name = if thread == ThreadNumber::RUNTIME {
            "service".to_owned()
        } else {
            format!("thread {}", thread.0)
        };
        self.metadata("thread_name", tid(thread), json!({ "name": name }));
    }

    fn take(&mut self, record: &Record) {
        let Record { thread, at_ns, event } = record;
        self.latest_ns = self.latest_ns.max(*at_ns);
        match event {
            Event::Enter(activity) => {
                self.introduce_thread(*thread);
                let open = self.open(*at_ns, activity);
                self.threads.entry(*thread).or_default().push(open);
            }
            Event::Leave => {
                // A trace that began during an activity has one end too many.
                if let Some(open) = self.threads.entry(*thread).or_default().pop() {
                    self.slice(*thread, open, *at_ns);
                }
            }
            Event::Sent { to, kind, bytes } => {
                self.introduce_thread(*thread);
                let number = count(&mut self.sent, *to);
                let message = NumberedMessage { from: self.node, to: *to, number, kind: *kind };
                self.flow(record, ("s", None), &message);
                self.bytes_sent += u64::from(*bytes);
                self.counter(*at_ns);
            }
            Event::Received { from, kind, .. } => {
                self.introduce_thread(*thread);
                let number = count(&mut self.received, *from);
                let message = NumberedMessage { from: *from, to: self.node, number, kind: *kind };
                self.flow(record, ("f", Some("e")), &message);
            }
            _ => {}
        }
    }

    /// Writes one end of a message's flow at its record.
    fn flow(
        &mut self,
        record: &Record,
        (ph, bp): (&'static str, Option<&'static str>),
        message: &NumberedMessage,
    ) {
        let NumberedMessage { from, to, number, kind } = *message;
        if number >= self.flows.get(&(from, to)).copied().unwrap_or(0) {
            return;
        }
        let id = Some(format!("{from}-{to}-{number}"));
        let (pid, tid, ts) = (self.node.0, tid(record.thread), self.time(record.at_ns));
        self.output.event(&TraceEvent {
            ph,
            name: self.header.name_of(kind),
            cat: "message",
            pid,
            tid,
            ts,
            id,
            bp,
            ..TraceEvent::NOTHING
        });
    }

    fn counter(&mut self, at_ns: u64) {
        if self.counted_at_ns.is_some_and(|before| at_ns < before.saturating_add(COUNTER_EVERY_NS)) {
            return;
        }
        self.counted_at_ns = Some(at_ns);
        let (pid, ts, args) = (self.node.0, self.time(at_ns), json!({ "bytes": self.bytes_sent }));
        self.output.event(&TraceEvent { ph: "C", name: "bytes sent", pid, ts, args, ..TraceEvent::NOTHING });
    }

    fn slice(&mut self, thread: ThreadNumber, open: Open, end_ns: u64) {
        let (pid, tid, ts) = (self.node.0, tid(thread), self.time(open.at_ns));
        let dur = Some(end_ns.saturating_sub(open.at_ns) as f64 / 1e3);
        let (name, cat, args) = (&open.name[..], open.category, open.args);
        self.output.event(&TraceEvent { ph: "X", name, cat, pid, tid, ts, dur, args, ..TraceEvent::NOTHING });
    }

    /// Ends the activities that were open when the trace ended.
    fn close(&mut self) {
        for (thread, open) in std::mem::take(&mut self.threads) {
            for open in open.into_iter().rev() {
                self.slice(thread, open, self.latest_ns);
            }
        }
    }

    fn open(&self, at_ns: u64, activity: &Activity) -> Open {
        let (category, name, args) = match activity {
            Activity::Fault { page, wanted } => {
                let name = match wanted {
                    Access::Write => "write fault",
                    Access::Read => "read fault",
                    Access::None => "fault",
                };
                ("fault", name.to_owned(), json!({ "page": page.0 }))
            }
            Activity::Acquire(lock) => ("lock", format!("lock {}", lock.0), Value::Null),
            Activity::Release(lock) => ("lock", format!("unlock {}", lock.0), Value::Null),
            Activity::Wait(cond, lock) => {
                ("lock", format!("wait for condition {}", cond.0), json!({ "lock": lock.0 }))
            }
            Activity::Signal(cond) => ("lock", format!("signal condition {}", cond.0), Value::Null),
            Activity::Barrier => ("barrier", "barrier".to_owned(), Value::Null),
            Activity::Collective => ("barrier", "collective".to_owned(), Value::Null),
            Activity::Atomic { page, offset } => {
                ("atomic", "atomic".to_owned(), json!({ "page": page.0, "offset": offset }))
            }
            Activity::Publish(node) => ("other", format!("publish to node {node}"), Value::Null),
            Activity::Other => ("other", "allocator or hint".to_owned(), Value::Null),
            Activity::Serve { from, kind } => {
                let name = self.header.name_of(*kind);
                ("serve", format!("handle {name}"), json!({ "from": from.0 }))
            }
        };
        Open { name, category, at_ns, args }
    }
}

/// Returns how many there were before, and counts one more.
fn count(messages: &mut BTreeMap<NodeId, u64>, peer: NodeId) -> u64 {
    let count = messages.entry(peer).or_default();
    *count += 1;
    *count - 1
}

/// Numbers the service thread first, the program's threads after it.
fn tid(thread: ThreadNumber) -> u32 {
    thread.0.wrapping_add(1)
}
