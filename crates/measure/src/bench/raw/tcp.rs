//! Raw exchanges over connections.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::{Address, Wire};

/// The largest message; a longer one would cost as much per byte.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The connections of one node. Messages have no headers: both sides know how long the next one is.
pub struct TcpWire {
    /// At home, until this many nodes have connected.
    listener: Option<(TcpListener, usize)>,
    streams: Vec<TcpStream>,
}

impl TcpWire {
    /// Opens the home's listener, and returns its port.
    pub fn at_home(others: usize) -> io::Result<(TcpWire, Address)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        Ok((TcpWire { listener: Some((listener, others)), streams: Vec::new() }, port.into()))
    }

    /// Connects to the home.
    pub fn to(home: Address) -> io::Result<TcpWire> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, home as u16))?;
        stream.set_nodelay(true)?;
        Ok(TcpWire { listener: None, streams: vec![stream] })
    }
}

fn wait(stream: &TcpStream, what: PollFlags) {
    let _ = poll(&mut [PollFd::new(stream, what)], None);
}

impl Wire for TcpWire {
    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn meet(&mut self) {
        let Some((listener, others)) = self.listener.take() else { return };
        for _ in 0..others {
            let Ok((stream, _)) = listener.accept() else { return };
            let _ = stream.set_nodelay(true);
            self.streams.push(stream);
        }
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        let stream = &self.streams[to];
        let mut rest = message;
        while !rest.is_empty() {
            match send(stream, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => wait(stream, PollFlags::OUT),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn try_receive(&mut self, buffer: &mut [u8]) -> Option<(usize, usize)> {
        for (from, stream) in self.streams.iter().enumerate() {
            let mut got = 0;
            while got < buffer.len() {
                match recv(stream, &mut buffer[got..], RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => break,
                    Ok((_, more)) => got += more,
                    // Once a message has begun, the rest is in flight.
                    Err(Errno::AGAIN) if got > 0 => wait(stream, PollFlags::IN),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            if got > 0 && got == buffer.len() {
                return Some((from, got));
            }
        }
        None
    }

    fn sleep(&self, limit: Duration) {
        let mut sources: Vec<PollFd<'_>> =
            self.streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
        let _ = poll(&mut sources, limit.try_into().ok().as_ref());
    }

    fn duplicate(&self) -> io::Result<Box<dyn Wire>> {
        let streams = self.streams.iter().map(TcpStream::try_clone).collect::<io::Result<_>>()?;
        Ok(Box::new(TcpWire { listener: None, streams }))
    }
}
