//! The same exchanges without Hiroba: what the machine itself needs.
//!
//! Each fabric has a peer of its own kind: plain UDP sockets, plain TCP connections, or messages written to
//! memory that both processes have mapped. Both sides wait as the runtime's threads do: they poll, then
//! sleep. The home answers, all others ask.

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
/// A request without an answer after this time is lost.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// A home that receives nothing for this time is alone.
const ALONE_AFTER: Duration = Duration::from_secs(20);
/// The length of a request: about that of a page request with all headers.
pub const REQUEST_BYTES: usize = 64;
/// The requested size, in the first bytes of a request, that ends the exchange.
const STOP: u32 = u32::MAX;

/// Carries messages from one process to another.
trait Wire: Send {
    /// Returns the longest message in bytes, encryption included.
    fn message_bytes_max(&self) -> usize;

    /// Returns how many large messages of a stream may be in flight at once.
    fn window(&self) -> usize {
        2
    }

    /// At home: waits until all others, which know the address, have connected.
    fn meet(&mut self) {}

    /// Sends a message to a peer that has sent some. A node other than the home knows only the home, 0.
    fn send(&mut self, to: usize, message: &[u8]);

    /// Receives the next message, whose length is that of `buffer`. Returns its sender and how many bytes
    /// arrived. Does not wait for its beginning.
    fn try_receive(&mut self, buffer: &mut [u8]) -> Option<(usize, usize)>;

    /// Sleeps until a message has arrived or the time is over.
    fn sleep(&self, limit: Duration);

    /// Returns another handle to the same wire.
    fn duplicate(&self) -> io::Result<Box<dyn Wire>>;

    /// Copies `bytes` bytes of the home's memory into the same memory each time. Returns how many, or `None`
    /// if the home's memory is not mapped.
    fn copy(&mut self, _bytes: usize) -> Option<usize> {
        None
    }

    /// Copies the beginning of the home's memory. Returns how many bytes, or `None` if it is not mapped.
    fn copy_into(&self, _buffer: &mut [u8]) -> Option<usize> {
        None
    }
}

/// A node's end of a raw exchange.
pub struct Raw {
    wire: Box<dyn Wire>,
    /// Whether it polls before it sleeps.
    spins: bool,
    buffer: Vec<u8>,
    /// The source of copies into fresh memory.
    source: Vec<u8>,
    cipher: Option<Cipher>,
}

/// The address of the home: a number that is valid on this machine.
pub type Address = u64;

impl Raw {
    fn new(wire: Box<dyn Wire>, spins: bool) -> Raw {
        let buffer = vec![1; wire.message_bytes_max()];
        Raw { wire, spins, buffer, source: Vec::new(), cipher: None }
    }

    /// Opens the home's end, and returns its address for the others.
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

    /// Opens the end of another node, of which `number` others come before it.
    pub fn to(fabric: FabricKind, home: Address, number: usize, spins: bool) -> io::Result<Raw> {
        let wire: Box<dyn Wire> = match fabric {
            FabricKind::Tcp => Box::new(tcp::TcpWire::to(home)?),
            FabricKind::SharedMemory => Box::new(shm::ShmWire::to(home, number)?),
            FabricKind::Udp => Box::new(udp::UdpWire::to(home)?),
        };
        Ok(Raw::new(wire, spins))
    }

    /// At home: waits until all others have opened their ends.
    pub fn meet(&mut self) {
        self.wire.meet();
    }

    /// Turns encryption of all messages on or off. Both sides must do so.
    pub fn seal(&mut self, cipher: Option<Cipher>) {
        self.cipher = cipher;
    }

    /// Returns another handle, for a thread that only sleeps and answers.
    pub fn sleeping(&self) -> io::Result<Raw> {
        let mut other = Raw::new(self.wire.duplicate()?, false);
        other.cipher = self.cipher.clone();
        Ok(other)
    }

    /// Receives the next message of `bytes` bytes into the buffer. Returns its sender, or `None` if none
    /// arrives in time.
    fn receive(&mut self, bytes: usize, limit: Duration) -> Option<(usize, usize)> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.receive_into(&mut buffer, bytes, limit);
        self.buffer = buffer;
        received
    }

    /// Receives like [`receive`](Raw::receive), with the seal, into memory of the caller.
    fn receive_into(&mut self, buffer: &mut [u8], bytes: usize, limit: Duration) -> Option<(usize, usize)> {
        let sealed_bytes = bytes + if self.cipher.is_some() { SEAL_BYTES } else { 0 };
        let began = Instant::now();
        loop {
            if let Some((from, got)) = self.wire.try_receive(&mut buffer[..sealed_bytes]) {
                let opened = match &self.cipher {
                    Some(cipher) => cipher.open(&mut buffer[..got])?,
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

    /// Sends the first `bytes` bytes of the buffer.
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

    /// Returns the longest answer in bytes.
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

    /// Requests `answer_bytes` bytes from the home and waits for them. Returns true if they arrived.
    pub fn ask(&mut self, answer_bytes: usize) -> bool {
        self.request(answer_bytes as u32);
        self.receive(answer_bytes, LOST_AFTER).is_some()
    }

    /// Makes the home send `bytes` bytes in large messages, a few of them in flight at any time, and returns
    /// how many arrived. Copies them instead if the home's memory is mapped.
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

    /// Moves `bytes` bytes like [`stream`](Raw::stream), into memory that is allocated for them: every
    /// message is received, and opened, where it stays. Returns how many arrived.
    pub fn stream_fresh(&mut self, bytes: usize) -> usize {
        let mut fresh = vec![0; bytes + SEAL_BYTES];
        if let Some(copied) = self.wire.copy_into(&mut fresh[..bytes]) {
            return copied;
        }
        let (longest, window) = (self.answer_bytes_max(), self.wire.window());
        let length = |at: usize| longest.min(bytes - at);
        let starts: Vec<usize> = (0..bytes).step_by(longest).collect();
        starts.iter().take(window).for_each(|at| self.request(length(*at) as u32));
        let mut got_bytes = 0;
        for (index, &at) in starts.iter().enumerate() {
            let received = self.receive_into(&mut fresh[at..], length(at), LOST_AFTER);
            let Some((_, got)) = received else { break };
            got_bytes += got;
            if let Some(later) = starts.get(index + window) {
                self.request(length(*later) as u32);
            }
        }
        std::hint::black_box(&fresh);
        got_bytes
    }

    /// Copies `bytes` bytes page by page into memory that was just allocated. Returns how many.
    pub fn copy_fresh(&mut self, bytes: usize) -> usize {
        self.source.resize(bytes, 1);
        shm::copy_into_fresh_memory(&self.source).unwrap_or(0)
    }

    /// Ends the exchange, so that the home continues.
    pub fn stop(&mut self) {
        self.request(STOP);
    }

    /// Waits for a request from each of `others`, then answers all of them.
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
                assert_eq!(other.stream_fresh((1 << 20) + 1), (1 << 20) + 1, "{fabric:?}");
                other.stop();
                assert!(other.ask(4096), "one that sleeps answers, too: {fabric:?}");
                other.stop();
                assert!(other.ask(REQUEST_BYTES), "gathered: {fabric:?}");
                assert!(serving.join().expect("the home has stopped"), "{fabric:?}");
            }
        }
    }
}
