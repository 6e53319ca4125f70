//! The stages of one message to a port, from the sender's call to the return of the receiver's.
//!
//! Both nodes log time stamps by the clock of their machine (`hiroba_base::legs::timeline`), and the sender
//! joins the logs. A stage lasts from the stamp before to its own, so that all stages of a message add up to
//! its time. Shown are means of the same messages, namely of the middle half by time, so means add up, too.
//! A stamp takes time itself; it is subtracted from each stage and shown as a stage of its own.

use hiroba_base::legs::Leg;
use hiroba_base::legs::timeline::{self, Stamp};
use hiroba_node::Runtime;
use hiroba_node::ports::{Call, Disposition, Message, Name, Outcome, Patience, Region, RightToSend};
use rustix::time::{ClockId, clock_gettime};

use super::node::{Node, WARM_UP, report};
use super::ports::{Client, END, inline, must, register};
use super::samples::Taken;
use super::{Figures, Report, Row};

/// What the rows are called.
pub const NAME: &str = "stage of a message to a port";
/// The state of the row with the whole time.
pub const WHOLE: &str = "whole, from call to return";
/// The state of the row with the time in which no thread of either node works on the message.
pub const UNDER_WAY: &str = "under way";
/// The state of the row with the cost of the stamps.
pub const STAMPS: &str = "time stamps";
/// The state of the row with half a round trip in which no stamps were taken.
pub const UNSTAMPED: &str = "half a round trip without time stamps";

/// The bytes of a message and of its answer, as in the paper.
const BYTES: usize = 4;
const STAMP_BYTES: usize = size_of::<u64>();

/// The side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Sender,
    UnderWay,
    Receiver,
}

/// A part of a message's time: where, what, how long in nanoseconds.
type Part = (Side, Leg, u64);

/// What a part is called.
fn describe(side: Side, leg: Leg) -> String {
    match side {
        Side::Sender => format!("sender: {}", leg.name()),
        Side::UnderWay => UNDER_WAY.to_owned(),
        Side::Receiver => format!("receiver: {}", leg.name()),
    }
}

/// Returns the parts of a message that was sent at `began_ns` and answered before `answered_ns`, from the
/// stamps of both nodes; `None` if a stamp is missing, or if other threads have taken some in between.
fn parts(began_ns: u64, answered_ns: u64, sender: &[Stamp], receiver: &[Stamp]) -> Option<Vec<Part>> {
    let within = |stamp: &&Stamp| (began_ns..answered_ns).contains(&stamp.at_ns);
    // What the sender does before it has looked for writes to publish is the search for them.
    let publish = sender.iter().position(|stamp| stamp.leg == Leg::Publish)?;
    let send = publish + sender[publish..].iter().position(|stamp| stamp.leg == Leg::Send)?;
    let is_foreign = |stamp: &Stamp| stamp.leg == Leg::Receive;
    if sender[publish..=send].iter().any(is_foreign) {
        return None;
    }
    let received: Vec<Stamp> = receiver.iter().filter(within).copied().collect();
    let leave = received.iter().position(|stamp| stamp.leg == Leg::Leave)?;
    let receive = received[..leave].iter().rposition(|stamp| stamp.leg == Leg::Receive)?;
    let arrived_ns = received[receive].at_ns;
    let is_foreign = |stamp: &Stamp| stamp.leg == Leg::Publish;
    if received[receive..leave].iter().any(is_foreign) {
        return None;
    }
    let mut last_ns = began_ns;
    let mut parts = Vec::new();
    let mut add = |side, stamp: &Stamp, at_ns: u64| {
        parts.push((side, stamp.leg, at_ns.saturating_sub(last_ns)));
        last_ns = at_ns.max(last_ns);
    };
    for stamp in sender[publish..=send].iter().filter(within) {
        // A receiver that polls may have the message before the call that sends it has returned.
        add(Side::Sender, stamp, stamp.at_ns.min(arrived_ns));
    }
    add(Side::UnderWay, &received[receive], arrived_ns);
    received[receive + 1..=leave].iter().for_each(|stamp| add(Side::Receiver, stamp, stamp.at_ns));
    Some(parts)
}

/// The stages of many messages.
#[derive(Debug, Default, PartialEq)]
struct Stages {
    /// Each stage in the order of the way, with its mean in nanoseconds less the cost of its stamps.
    means_ns: Vec<((Side, Leg), f64)>,
    /// The mean cost of the stamps.
    stamps_ns: f64,
    /// The mean of the whole.
    whole_ns: f64,
    /// The number of messages that they are means of.
    messages: usize,
}

impl Stages {
    /// Forms the means over the middle half of the messages.
    fn of(mut messages: Vec<Vec<Part>>, stamp_ns: u64) -> Stages {
        let whole = |parts: &[Part]| parts.iter().map(|part| part.2).sum::<u64>();
        messages.sort_by_key(|parts| whole(parts));
        let quarter = messages.len() / 4;
        let middle = &messages[quarter..messages.len() - quarter];
        let mut stages = Stages { messages: middle.len(), ..Stages::default() };
        let each = 1.0 / middle.len().max(1) as f64;
        for parts in middle {
            stages.whole_ns += each * whole(parts) as f64;
            let mut after = None;
            for (side, leg, ns) in parts {
                // The clocks of the two nodes that bound the way between them were read one after the other.
                let own = if *side == Side::UnderWay { 0 } else { stamp_ns.min(*ns) };
                stages.stamps_ns += each * own as f64;
                let place = stages.place((*side, *leg), after);
                stages.means_ns[place].1 += each * (ns - own) as f64;
                after = Some(place);
            }
        }
        stages
    }

    /// Returns the place of a stage, which is behind `after` if it is a new one.
    fn place(&mut self, stage: (Side, Leg), after: Option<usize>) -> usize {
        self.means_ns.iter().position(|(known, _)| *known == stage).unwrap_or_else(|| {
            let place = after.map_or(0, |after| after + 1);
            self.means_ns.insert(place, (stage, 0.0));
            place
        })
    }

    /// Returns the rows, in the order of the way.
    fn rows(&self, fabric: &str, unstamped: &Taken) -> Vec<Row> {
        let parts = self.means_ns.iter().map(|((side, leg), ns)| (describe(*side, *leg), *ns));
        let sums = [(STAMPS.to_owned(), self.stamps_ns), (WHOLE.to_owned(), self.whole_ns)];
        let row = |(state, ns): (String, f64)| Row {
            name: NAME.to_owned(),
            fabric: fabric.to_owned(),
            state,
            figures: Figures::Mean { mean_us: ns / 1000.0 },
            ratio: None,
            repetitions: self.messages,
            warm_up: WARM_UP,
            core_share: None,
            shares_cores: false,
        };
        let mut rows: Vec<Row> = parts.chain(sums).map(row).collect();
        let middle = unstamped.middle_mean_us() * 1000.0;
        rows.push(Row { repetitions: unstamped.len(), ..row((UNSTAMPED.to_owned(), middle)) });
        rows
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Answers requests like [`serve`](super::ports::serve), and logs stamps. The answer to the last request
/// contains them out of line.
fn serve_stamped(runtime: &Runtime, port: Name) {
    let mut log = Vec::new();
    loop {
        let call = Call::Receive { from: port, bytes_max: None, patience: Patience::Endless };
        let Outcome::Received(request) = must(runtime, runtime.port_call("bench", call)) else { continue };
        hiroba_base::legs::end(Leg::Leave);
        // Those of a message with too many are missing.
        log.extend(timeline::take().unwrap_or_default().iter().map(|stamp| stamp.to_bits()));
        let Some(reply) = request.reply else { return };
        let mut message = inline(BYTES);
        if request.id == END {
            let bytes: Vec<u8> = log.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            message.regions = vec![bytes.into()];
        }
        let to = RightToSend { name: reply.name, disposition: Disposition::MoveSendOnce };
        let call = Call::Send { to, message, patience: Patience::Endless, notify: None };
        must(runtime, runtime.port_call("bench", call));
        if request.id == END {
            return;
        }
    }
}

/// Sends messages and returns the stages of each that has all its stamps, and the cost of a stamp.
fn follow(client: &Client, times: usize) -> (Vec<Vec<Part>>, u64) {
    let stamp_ns = timeline::own_cost_ns();
    let mut sent = Vec::with_capacity(times);
    for _ in 0..WARM_UP + times {
        let message = inline(BYTES);
        let _ = timeline::take();
        let began_ns = now_ns();
        client.ask(message);
        let answered_ns = now_ns();
        sent.push((began_ns, answered_ns, timeline::take()));
    }
    let answer = client.ask(Message { id: END, ..inline(BYTES) });
    let regions: Vec<Vec<u8>> = answer.regions.iter().map(Region::to_vec).collect();
    let bits = regions.iter().flat_map(|region| region.chunks_exact(STAMP_BYTES));
    let stamp = |bytes: &[u8]| Stamp::from_bits(u64::from_le_bytes(bytes.try_into().ok()?));
    let received: Vec<Stamp> = bits.filter_map(stamp).collect();
    let messages = sent.iter().skip(WARM_UP).filter_map(|(began_ns, answered_ns, stamps)| {
        let from = received.partition_point(|stamp| stamp.at_ns < *began_ns);
        let to = received.partition_point(|stamp| stamp.at_ns < *answered_ns);
        parts(*began_ns, *answered_ns, stamps.as_ref()?, &received[from..to])
    });
    (messages.collect(), stamp_ns)
}

impl Node<'_> {
    /// Measures the stages of messages from the client to the home.
    pub fn stages(&mut self) {
        const PORT: &str = "hiroba bench, stages";
        let times = self.plan.times(4000);
        let unstamped = self.by_port(|client| client.round_trips(BYTES, times).halved());
        timeline::begin(now_ns);
        if self.is_home() {
            let port = register(self.runtime, PORT);
            self.runtime.barrier();
            serve_stamped(self.runtime, port);
            must(self.runtime, self.runtime.port_call("bench", Call::Destroy(port)));
        } else {
            self.runtime.barrier();
        }
        if let Some(unstamped) = unstamped {
            let (messages, stamp_ns) = follow(&Client::of(self.runtime, PORT), times);
            let stages = Stages::of(messages, stamp_ns);
            let rows = stages.rows(self.plan.fabric.name(), &unstamped);
            rows.into_iter().for_each(|row| report(&Report::Row(row)));
        }
        timeline::end();
        self.runtime.barrier();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(all: &[(Leg, u64)]) -> Vec<Stamp> {
        all.iter().map(|(leg, at_ns)| Stamp { at_ns: *at_ns, leg: *leg }).collect()
    }

    /// A message that takes 1000 ns: the sender begins at 5000, the receiver has it at 5600.
    fn message() -> Vec<Part> {
        let sender = stamps(&[
            (Leg::Enter, 5050), // of the search for writes
            (Leg::Engine, 5060),
            (Leg::Publish, 5100),
            (Leg::Engine, 5200),
            (Leg::Queue, 5350),
            (Leg::Send, 5700), // returns after the message has arrived
            (Leg::Receive, 6200),
        ]);
        let receiver = stamps(&[
            (Leg::Leave, 4900),   // the message before
            (Leg::Receive, 5300), // something else
            (Leg::Receive, 5600),
            (Leg::Open, 5700),
            (Leg::Engine, 5950),
            (Leg::Leave, 6000),
            (Leg::Send, 6100),
        ]);
        parts(5000, 6300, &sender, &receiver).expect("no stamp is missing")
    }

    #[test]
    fn a_message_is_followed_through_both_nodes() {
        assert_eq!(
            message(),
            [
                (Side::Sender, Leg::Publish, 100),
                (Side::Sender, Leg::Engine, 100),
                (Side::Sender, Leg::Queue, 150),
                (Side::Sender, Leg::Send, 250),
                (Side::UnderWay, Leg::Receive, 0),
                (Side::Receiver, Leg::Open, 100),
                (Side::Receiver, Leg::Engine, 250),
                (Side::Receiver, Leg::Leave, 50),
            ]
        );
        assert_eq!(parts(5000, 6300, &stamps(&[(Leg::Publish, 5100), (Leg::Send, 5200)]), &[]), None);
    }

    #[test]
    fn stages_add_up_to_the_whole() {
        let twice = |parts: &[Part]| -> Vec<Part> {
            parts.iter().map(|(side, leg, ns)| (*side, *leg, 2 * ns)).collect()
        };
        let short = vec![(Side::Sender, Leg::Publish, 1)];
        // The middle half are the second and the third.
        let messages = vec![message(), twice(&twice(&message())), short, twice(&message())];
        let stages = Stages::of(messages, 30);
        assert_eq!((stages.messages, stages.whole_ns), (2, 1500.0));
        let order: Vec<String> =
            stages.means_ns.iter().map(|((side, leg), _)| describe(*side, *leg)).collect();
        assert_eq!(order[..3], ["sender: publish", "sender: engine", "sender: queue"]);
        assert_eq!(order[4..], ["under way", "receiver: open", "receiver: engine", "receiver: leave"]);
        assert_eq!(stages.means_ns[0].1, 150.0 - 30.0);
        let sum: f64 = stages.means_ns.iter().map(|(_, ns)| ns).sum();
        assert!((sum + stages.stamps_ns - stages.whole_ns).abs() < 1e-6, "{stages:?}");
        assert_eq!(stages.stamps_ns, 7.0 * 30.0, "each stamp but that on arrival");
        let rows = stages.rows("shm", &Taken::new(vec![900.0], 0));
        assert_eq!(rows.len(), 8 + 3);
        assert_eq!(rows[10].figures, Figures::Mean { mean_us: 0.9 });
        assert_eq!(Stages::of(Vec::new(), 30).messages, 0);
    }
}
