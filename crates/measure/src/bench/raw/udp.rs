//! Raw exchanges over datagrams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recvfrom};

use super::{Address, Wire};

/// The largest datagram that is sent.
const DATAGRAM_BYTES_MAX: usize = 60_000;

/// A socket on the loopback interface.
pub struct UdpWire {
    socket: UdpSocket,
    /// The peers whose addresses are known.
    peers: Vec<SocketAddr>,
}

impl UdpWire {
    /// Opens the home's socket, and returns its port.
    pub fn at_home() -> io::Result<(UdpWire, Address)> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = socket.local_addr()?.port();
        Ok((UdpWire { socket, peers: Vec::new() }, port.into()))
    }

    /// Opens a socket that knows the home.
    pub fn to(home: Address) -> io::Result<UdpWire> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(UdpWire { socket, peers: vec![(Ipv4Addr::LOCALHOST, home as u16).into()] })
    }
}

impl Wire for UdpWire {
    fn message_bytes_max(&self) -> usize {
        DATAGRAM_BYTES_MAX
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        let _ = self.socket.send_to(message, self.peers[to]);
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Option<(usize, usize)> {
        let (_, got, from) = recvfrom(&self.socket, buffer, RecvFlags::DONTWAIT).ok()?;
        let from = SocketAddr::try_from(from?).ok()?;
        let known = self.peers.iter().position(|peer| *peer == from);
        let peer = known.unwrap_or_else(|| {
            self.peers.push(from);
            self.peers.len() - 1
        });
        Some((peer, got))
    }

    fn sleep(&self, limit: Duration) {
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], limit.try_into().ok().as_ref());
    }

    fn duplicate(&self) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(UdpWire { socket: self.socket.try_clone()?, peers: self.peers.clone() }))
    }
}
