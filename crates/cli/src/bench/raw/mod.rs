//! The same exchanges without Hiroba: what the machine itself takes.
//!
//! Each fabric has a peer of its own kind: plain UDP sockets, plain TCP connections, or messages laid into
//! memory that both processes have mapped. Both sides wait as the runtime's threads do: first awake, then
//! asleep. The home answers, all others ask.

mod cipher;
mod shm;
mod sink;
mod tcp;
mod udp;

use hiroba_wire::FabricKind;
use std::io;
use std::time::{Duration, Instant};

pub use self::cipher::Cipher;
use self::cipher::SEAL_BYTES;
pub use self::sink::Sink;

/// How long a side polls before it sleeps.
const SPIN: Duration = Duration::from_micros(60);
/// What is not answered for so long was lost.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// A home that hears nothing for so long is alone.
const ALONE_AFTER: Duration = Duration::from_secs(20);
/// A request's length: about that of a page request with all headers.
pub const REQUEST_BYTES: usize = 64;
/// What a request asks for, in its first bytes.
const STOP: u32 = u32::MAX;

/// How messages get from one process to another.
trait Wire: Send {
    /// The longest message, in bytes, seal included.
    fn message_bytes_max(&self) -> usize;

    /// How many large messages of a stream may be on their way at once.
    fn window(&self) -> usize {
        2
    }

    /// At home: waits until all others have connected, who have been told the address.
    fn meet(&mut self) {}

    /// Sends a message to one of those from whom some have come; a node that is not the home knows only the
    /// home, 0.
    fn send(&mut self, to: usize, message: &[u8]);

    /// The next message, of which `buffer` has the length: from whom, and how many bytes came. Does not wait
    /// for its beginning.
    fn try_receive(&mut self, buffer: &mut [u8]) -> Option<(usize, usize)>;

    /// Sleeps until a message has come, or the time is over.
    fn sleep(&self, limit: Duration);

    /// Another handle to the same.
    fn duplicate(&self) -> io::Result<Box<dyn Wire>>;

    /// Copies `bytes` bytes of the home's memory into memory that is always the same. Returns how many, or
    /// `None` where the home's memory is not mapped.
    fn copy(&mut self, _bytes: usize) -> Option<usize> {
        None
    }
}

/// A node's end.
pub struct Raw {
    wire: Box<dyn Wire>,
    /// Whether it polls before it sleeps.
    spins: bool,
    buffer: Vec<u8>,
    /// What is copied into fresh memory.
    source: Vec<u8>,
    cipher: Option<Cipher>,
}

/// Where the home can be reached: a number that means something on this machine.
pub type Address = u64;

impl Raw {
    fn new(wire: Box<dyn Wire>, spins: bool) -> Raw {
        let buffer = vec![1; wire.message_bytes_max()];
        Raw { wire, spins, buffer, source: Vec::new(), cipher: None }
    }

    /// The home's end, and where the others reach it.
    pub fn at_home(fabric: FabricKind, others: usize, spins: bool) -> io::Result<(Raw, Address)> {
        let (wire, address): (Box<dyn Wire>, Address) = match fabric {
            FabricKind::Tcp => {
                let (wire, address) = tcp::TcpWire::at_home(others)?;
                (Box::new(wire), address)
            }
            FabricKind::SharedMemory => {
                let (wire, address) = shm::ShmWire::at_home(others)?;
                (Box::new(wire), address)
            }
            FabricKind::Udp => {
                let (wire, address) = udp::UdpWire::at_home()?;
                (Box::new(wire), address)
            }
        };
        Ok((Raw::new(wire, spins), address))
    }

    /// The end of another node, of which `number` others come before it.
    pub fn to(fabric: FabricKind, home: Address, number: usize, spins: bool) -> io::Result<Raw> {
        let wire: Box<dyn Wire> = match fabric {
            FabricKind::Tcp => Box::new(tcp::TcpWire::to(home)?),
            FabricKind::SharedMemory => Box::new(shm::ShmWire::to(home, number)?),
            FabricKind::Udp => Box::new(udp::UdpWire::to(home)?),
        };
        Ok(Raw::new(wire, spins))
    }

    /// At home, when the others have been told the address and all of them have an end.
    pub fn meet(&mut self) {
        self.wire.meet();
    }

    /// Seals and opens all messages from now on, or no longer. Both sides must do so.
    pub fn seal(&mut self, cipher: Option<Cipher>) {
        self.cipher = cipher;
    }

    /// Another handle to the same, for a thread that only sleeps and answers.
    pub fn sleeping(&self) -> io::Result<Raw> {
        let mut other = Raw::new(self.wire.duplicate()?, false);
        other.cipher = self.cipher.clone();
        Ok(other)
    }

    /// The next message of `bytes` bytes, in the buffer: from whom. Nothing when none comes in time.
    fn receive(&mut self, bytes: usize, limit: Duration) -> Option<(usize, usize)> {
        let sealed_bytes = bytes + if self.cipher.is_some() { SEAL_BYTES } else { 0 };
        let began = Instant::now();
        loop {
            if let Some((from, got)) = self.wire.try_receive(&mut self.buffer[..sealed_bytes]) {
                let opened = match &self.cipher {
                    Some(cipher) => cipher.open(&mut self.buffer[..got])?,
                    None => got,
                };
                return Some((from, opened));
            }
            let elapsed = began.elapsed();
            if elapsed >= limit {
                return None;
            }
            if self.spins && elapsed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.wire.sleep(limit - elapsed);
        }
    }

    /// Sends the first `bytes` of the buffer.
    fn send(&mut self, to: usize, bytes: usize) {
        let sealed_bytes = match &mut self.cipher {
            Some(cipher) => cipher.seal(&mut self.buffer, bytes),
            None => bytes,
        };
        self.wire.send(to, &self.buffer[..sealed_bytes]);
    }

    fn request(&mut self, wanted: u32) {
        self.buffer[..4].copy_from_slice(&wanted.to_ne_bytes());
        self.send(0, REQUEST_BYTES);
    }

    /// The longest answer, in bytes.
    pub fn answer_bytes_max(&self) -> usize {
        self.wire.message_bytes_max() - SEAL_BYTES
    }

    /// Answers every request with as many bytes as it asks for, until it is told to stop.
    pub fn serve(&mut self) {
        while let Some((from, got)) = self.receive(REQUEST_BYTES, ALONE_AFTER) {
            let wanted = self.buffer[..got].first_chunk().map_or(STOP, |bytes| u32::from_ne_bytes(*bytes));
            if wanted == STOP {
                return;
            }
            self.send(from, (wanted as usize).min(self.answer_bytes_max()));
        }
    }

    /// Asks the home for `answer_bytes` and waits for them; whether they came.
    pub fn ask(&mut self, answer_bytes: usize) -> bool {
        self.request(answer_bytes as u32);
        self.receive(answer_bytes, LOST_AFTER).is_some()
    }

    /// Has the home send `bytes` in large messages, a few of them on their way at any time; how many came.
    /// Where its memory is mapped they are copied instead.
    pub fn stream(&mut self, bytes: usize) -> usize {
        if let Some(copied) = self.wire.copy(bytes) {
            return copied;
        }
        let (longest, window) = (self.answer_bytes_max(), self.wire.window());
        let messages = bytes.div_ceil(longest);
        let mut got_bytes = 0;
        (0..window.min(messages)).for_each(|_| self.request(longest as u32));
        for received in 1..=messages {
            let Some((_, got)) = self.receive(longest, LOST_AFTER) else { break };
            got_bytes += got;
            if received + window <= messages {
                self.request(longest as u32);
            }
        }
        got_bytes
    }

    /// Copies `bytes` bytes into memory that was just got from the system, page by page. Returns how many.
    pub fn copy_fresh(&mut self, bytes: usize) -> usize {
        self.source.resize(bytes, 1);
        shm::copy_into_fresh_memory(&self.source).unwrap_or(0)
    }

    /// Lets the home go on.
    pub fn stop(&mut self) {
        self.request(STOP);
    }

    /// Waits for a request from each of `others` and lets all of them go.
    pub fn gather(&mut self, others: usize) -> bool {
        let came: Vec<usize> = (0..others)
            .map_while(|_| self.receive(REQUEST_BYTES, LOST_AFTER).map(|(from, _)| from))
            .collect();
        came.iter().for_each(|from| self.send(*from, REQUEST_BYTES));
        came.len() == others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_until_the_home_is_stopped() {
        for fabric in FabricKind::ALL {
            for is_sealed in [false, true] {
                let (mut home, address) =
                    Raw::at_home(fabric, 1, true).expect("the loopback interface is up");
                home.seal(is_sealed.then(Cipher::at_home));
                let serving = std::thread::spawn(move || {
                    home.meet();
                    home.serve();
                    home.sleeping().expect("another handle").serve();
                    home.gather(1)
                });
                let mut other = Raw::to(fabric, address, 0, true).expect("the home listens");
                other.seal(is_sealed.then(|| Cipher::of_another(0)));
                assert!(other.ask(4096) && other.ask(REQUEST_BYTES), "{fabric:?}");
                assert!(other.stream(1 << 20) >= 1 << 20, "{fabric:?}");
                assert_eq!(other.copy_fresh(1 << 20), 1 << 20, "{fabric:?}");
                other.stop();
                assert!(other.ask(4096), "one that sleeps answers, too: {fabric:?}");
                other.stop();
                assert!(other.ask(REQUEST_BYTES), "gathered: {fabric:?}");
                assert!(serving.join().expect("the home has stopped"), "{fabric:?}");
            }
        }
    }
}
