//! Ports: round trips of small messages, and messages with pages, beside a raw exchange of as many bytes.

use std::cell::RefCell;

use hiroba_node::Runtime;
use hiroba_node::ports::{
    Call, DataType, Disposition, Message, Name, Outcome, Patience, PortError, Received, RightToSend, service,
};

use super::node::{Home, Node, WARM_UP};
use super::samples::Taken;
use super::shared::PAGE_BYTES;

/// Sizes of answers in bytes, around the paper's threshold (440) and ours (8 KiB).
const ANSWERS: [usize; 8] = [4, 64, 440, 441, 4096, 8192, 8193, 65_536];
/// Pages of out-of-line data in a message; the paper's window caused dips at 9, 17 and 25.
const PAGES: [usize; 12] = [1, 2, 4, 8, 9, 16, 17, 24, 25, 32, 256, 1024];
/// The id of the last request.
pub const END: u32 = u32::MAX;

/// A client of a port.
pub struct Client {
    runtime: &'static Runtime,
    to: RightToSend,
    reply_port: Name,
}

/// Returns the result of a call, or ends the job if it failed.
pub fn must<T>(runtime: &Runtime, result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| runtime.fatal(&format!("cannot measure ports: {error}")))
}

fn named(runtime: &Runtime, call: Call) -> Name {
    match must(runtime, runtime.port_call("bench", call)) {
        Outcome::Name(name) => name,
        other => runtime.fatal(&format!("expected a name, got {other:?}")),
    }
}

/// Makes a message of `bytes` bytes.
pub fn inline(bytes: usize) -> Message {
    let types = vec![DataType { name: 0, element_bytes: 1, count: bytes as u32 }];
    Message { types, inline: vec![7; bytes], ..Message::default() }
}

impl Client {
    /// Makes a client of the port that is registered under that name.
    pub fn of(runtime: &'static Runtime, name: &str) -> Client {
        let id = service::LOOK_UP_WAITING;
        let answer = runtime.ask_port_names("bench", id, name.as_bytes(), Vec::new(), Patience::Endless);
        let Some(right) = must(runtime, answer).rights.first().copied() else {
            runtime.fatal("expected a right from the name service");
        };
        let to = RightToSend { name: right.name, disposition: Disposition::CopySend };
        Client { runtime, to, reply_port: named(runtime, Call::AllocatePort) }
    }

    /// Sends a message and waits for the answer.
    pub fn ask(&self, message: Message) -> Box<Received> {
        let call = Call::Rpc {
            to: self.to,
            message,
            reply_port: self.reply_port,
            bytes_max: None,
            patience: Patience::Endless,
        };
        match must(self.runtime, self.runtime.port_call("bench", call)) {
            Outcome::Received(received) => received,
            other => self.runtime.fatal(&format!("expected a message, got {other:?}")),
        }
    }

    fn end(&self) {
        let message = Message { id: END, ..Message::default() };
        let call = Call::Send { to: self.to, message, patience: Patience::Endless, notify: None };
        must(self.runtime, self.runtime.port_call("bench", call));
    }

    /// Measures round trips with an answer of `answer_bytes` bytes.
    pub fn round_trips(&self, answer_bytes: usize, times: usize) -> Taken {
        Taken::each(times, WARM_UP, |_| {
            let answer = self.ask(Message { id: answer_bytes as u32, ..inline(4) });
            assert_eq!(answer.inline.len(), answer_bytes, "an answer has the length that was asked for");
        })
    }

    /// Measures round trips of requests with `bytes` bytes out of line, which are written beforehand.
    fn requests_out_of_line(&self, bytes: usize, times: usize) -> Taken {
        let next = RefCell::new(None);
        let prepare = |_| {
            let regions = vec![vec![7; bytes].into()];
            *next.borrow_mut() = Some(Message { id: 4, regions, ..Message::default() });
        };
        Taken::prepared(times, WARM_UP, prepare, |_| {
            if let Some(message) = next.take() {
                self.ask(message);
            }
        })
    }
}

/// Registers a port under a name.
pub fn register(runtime: &Runtime, name: &str) -> Name {
    let port = named(runtime, Call::AllocatePort);
    let rights = vec![RightToSend { name: port, disposition: Disposition::MakeSend }];
    let answer =
        runtime.ask_port_names("bench", service::REGISTER, name.as_bytes(), rights, Patience::Endless);
    must(runtime, answer);
    port
}

/// Answers requests with as many bytes as their id says, until the last one.
pub fn serve(runtime: &Runtime, port: Name) {
    loop {
        let call = Call::Receive { from: port, bytes_max: None, patience: Patience::Endless };
        let Outcome::Received(request) = must(runtime, runtime.port_call("bench", call)) else { continue };
        let Some(reply) = request.reply.filter(|_| request.id != END) else { return };
        let to = RightToSend { name: reply.name, disposition: Disposition::MoveSendOnce };
        let message = inline(request.id as usize);
        let call = Call::Send { to, message, patience: Patience::Endless, notify: None };
        must(runtime, runtime.port_call("bench", call));
    }
}

/// Makes the allocator return freed memory of this length, and above, to the system. The longest regions then
/// come into memory that the system has just cleared, ours and those of the raw peer.
fn return_freed_regions() {
    const BYTES_MIN: libc::c_int = 256 << 10;
    // SAFETY: the call changes how much the allocator keeps, and no memory that is in use.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, BYTES_MIN) };
}

impl Node<'_> {
    /// Measures ports: the home answers through a port while the client measures.
    pub fn ports(&mut self) {
        let times = self.plan.times(400);
        let fabric = self.plan.fabric.name();
        self.local_round_trips(times);
        for bytes in ANSWERS {
            let raw = self.raw_moved(bytes.max(64), times);
            let ours = self.by_port(|client| client.round_trips(bytes, times));
            let state = format!("4 bytes there, {bytes} back");
            self.tell("port round trip", fabric, &state, ours, raw.as_ref());
        }
        return_freed_regions();
        for pages in PAGES {
            let bytes = pages * PAGE_BYTES;
            let raw = self.raw_moved(bytes, times);
            let ours = self.by_port(|client| client.requests_out_of_line(bytes, times));
            let state = format!("{pages} pages of 4 KiB out of line there, 4 bytes back");
            self.tell("port round trip", fabric, &state, ours, raw.as_ref());
        }
    }

    /// Measures moving as many bytes with the raw peer: in one answer, or in several into fresh memory if one
    /// cannot carry them.
    fn raw_moved(&mut self, bytes: usize, times: usize) -> Option<Taken> {
        self.while_home(Home::Answering, |raw| {
            let in_one = bytes <= raw.answer_bytes_max();
            Taken::each(times, WARM_UP, |_| {
                if in_one {
                    raw.ask(bytes);
                } else {
                    raw.stream_fresh(bytes);
                }
            })
        })
    }

    /// Makes the client measure a port that the home serves.
    pub fn by_port<T>(&mut self, measure: impl FnOnce(&Client) -> T) -> Option<T> {
        const NAME: &str = "hiroba bench";
        let mut result = None;
        if self.is_home() {
            let port = register(self.runtime, NAME);
            self.runtime.barrier();
            serve(self.runtime, port);
            must(self.runtime, self.runtime.port_call("bench", Call::Destroy(port)));
        } else {
            self.runtime.barrier();
            if self.is_client() {
                let client = Client::of(self.runtime, NAME);
                result = Some(measure(&client));
                client.end();
            }
        }
        self.runtime.barrier();
        result
    }

    /// Measures round trips between two threads of the client.
    fn local_round_trips(&self, times: usize) {
        self.runtime.barrier();
        if self.is_client() {
            let runtime = self.runtime;
            let name = "hiroba bench, local";
            let port = register(runtime, name);
            let taken = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let prepared = runtime.prepare_thread();
                    prepared.unwrap_or_else(|error| runtime.fatal(&error.to_string()));
                    serve(runtime, port);
                    runtime.finish_thread();
                });
                let client = Client::of(runtime, name);
                let taken = client.round_trips(4, times);
                client.end();
                taken
            });
            let state = "4 bytes each way, between two threads of a node";
            self.tell("port round trip", "", state, Some(taken), None);
        }
        self.runtime.barrier();
    }
}
