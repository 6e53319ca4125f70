//! The same exchanges over plain UDP sockets: what the machine itself takes.
//!
//! Both sides wait as the runtime's threads do: first awake, then asleep.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};

/// How long a side polls before it sleeps.
const SPIN: Duration = Duration::from_micros(60);
/// What is not answered for so long was lost.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// A server that hears nothing for so long is alone.
const ALONE_AFTER: Duration = Duration::from_secs(20);
/// The largest datagram that is sent.
pub const DATAGRAM_BYTES_MAX: usize = 60_000;
/// A request's length: about that of a page request with all headers.
pub const REQUEST_BYTES: usize = 64;

/// What a request asks for, in its first bytes.
const STOP: u32 = u32::MAX;

/// A node's plain socket.
pub struct RawSocket {
    socket: UdpSocket,
    /// Whether it polls before it sleeps.
    spins: bool,
    buffer: Vec<u8>,
}

impl RawSocket {
    /// Binds one on the loopback interface.
    pub fn bind(spins: bool) -> std::io::Result<RawSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(RawSocket { socket, spins, buffer: vec![0; DATAGRAM_BYTES_MAX] })
    }

    /// Another handle to the same socket, for a thread that only sleeps and answers.
    pub fn sleeping(&self) -> std::io::Result<RawSocket> {
        Ok(RawSocket { socket: self.socket.try_clone()?, spins: false, buffer: vec![0; DATAGRAM_BYTES_MAX] })
    }

    /// The port it is bound to.
    pub fn port(&self) -> std::io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// The next datagram: its length and sender. Nothing when none comes in time.
    fn receive(&mut self, limit: Duration) -> Option<(usize, SocketAddr)> {
        let began = Instant::now();
        loop {
            match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, got, from)) => {
                    return Some((got, SocketAddr::try_from(from?).ok()?));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return None,
            }
            let elapsed = began.elapsed();
            if elapsed >= limit {
                return None;
            }
            if self.spins && elapsed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let left = limit - elapsed;
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        }
    }

    /// Answers every request with as many bytes as it asks for, until it is told to stop.
    pub fn serve(&mut self) {
        let answer = vec![1u8; DATAGRAM_BYTES_MAX];
        while let Some((got, from)) = self.receive(ALONE_AFTER) {
            let wanted = self.buffer[..got].first_chunk().map_or(STOP, |bytes| u32::from_ne_bytes(*bytes));
            if wanted == STOP {
                return;
            }
            let _ = self.socket.send_to(&answer[..(wanted as usize).min(DATAGRAM_BYTES_MAX)], from);
        }
    }

    /// Sends a request to `port` and waits for its answer; whether one came.
    pub fn ask(&mut self, port: u16, answer_bytes: usize) -> bool {
        self.request(port, answer_bytes);
        self.receive(LOST_AFTER).is_some()
    }

    fn request(&self, port: u16, answer_bytes: usize) {
        let mut request = [0u8; REQUEST_BYTES];
        request[..4].copy_from_slice(&(answer_bytes as u32).to_ne_bytes());
        let _ = self.socket.send_to(&request, (Ipv4Addr::LOCALHOST, port));
    }

    /// Has `bytes` sent in large datagrams, a few of them on their way at any time; how many came.
    pub fn stream(&mut self, port: u16, bytes: usize) -> usize {
        const WINDOW: usize = 2;
        let datagrams = bytes.div_ceil(DATAGRAM_BYTES_MAX);
        let mut got_bytes = 0;
        (0..WINDOW.min(datagrams)).for_each(|_| self.request(port, DATAGRAM_BYTES_MAX));
        for received in 1..=datagrams {
            let Some((got, _)) = self.receive(LOST_AFTER) else { break };
            got_bytes += got;
            if received + WINDOW <= datagrams {
                self.request(port, DATAGRAM_BYTES_MAX);
            }
        }
        got_bytes
    }

    /// Sends `bytes` in as few datagrams as it takes, to a socket that nobody reads.
    pub fn send(&self, sink: u16, bytes: usize) {
        static MESSAGE: [u8; DATAGRAM_BYTES_MAX] = [0; DATAGRAM_BYTES_MAX];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(DATAGRAM_BYTES_MAX);
            let _ = self.socket.send_to(&MESSAGE[..part], (Ipv4Addr::LOCALHOST, sink));
            left -= part;
        }
    }

    /// Lets the server go.
    pub fn stop(&self, port: u16) {
        let _ = self.socket.send_to(&STOP.to_ne_bytes(), (Ipv4Addr::LOCALHOST, port));
    }

    /// Waits for one datagram from each of `others` and lets all of them go.
    pub fn gather(&mut self, others: &[u16]) -> bool {
        let came = others.iter().all(|_| self.receive(LOST_AFTER).is_some());
        others.iter().for_each(|port| self.request(*port, 0));
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_until_the_server_is_stopped() {
        let mut server = RawSocket::bind(true).expect("the loopback interface is up");
        let port = server.port().expect("a bound socket");
        let serving = std::thread::spawn(move || server.serve());
        let mut client = RawSocket::bind(true).expect("the loopback interface is up");
        assert!(client.ask(port, 4096));
        assert!(client.stream(port, 1 << 20) >= 1 << 20);
        let sink = RawSocket::bind(false).expect("the loopback interface is up");
        client.send(sink.port().expect("a bound socket"), 100_000);
        client.stop(port);
        serving.join().expect("the server has stopped");
        assert!(!client.ask(port, 64), "nobody listens any more");
    }
}
