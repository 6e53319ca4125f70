//! Raw sends without an answer.

use hiroba_wire::FabricKind;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

use rustix::net::{RecvFlags, SendFlags, recv, send};

/// The largest message.
const MESSAGE_BYTES_MAX: usize = 60_000;

/// Receives bytes and drops them.
pub enum Sink {
    /// A connected socket, and the one that receives its messages.
    Socket(std::os::fd::OwnedFd, std::os::fd::OwnedFd),
    /// Memory.
    Memory(Vec<u8>),
}

impl Sink {
    /// Opens a sink of the kind that the fabric uses.
    pub fn open(fabric: FabricKind) -> io::Result<Sink> {
        match fabric {
            FabricKind::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let sender = TcpStream::connect(listener.local_addr()?)?;
                sender.set_nodelay(true)?;
                Ok(Sink::Socket(sender.into(), listener.accept()?.0.into()))
            }
            FabricKind::SharedMemory => Ok(Sink::Memory(vec![1; MESSAGE_BYTES_MAX])),
            FabricKind::Udp => {
                let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                sender.connect(receiver.local_addr()?)?;
                Ok(Sink::Socket(sender.into(), receiver.into()))
            }
        }
    }

    /// Sends `bytes` bytes in as few calls as possible.
    pub fn send(&mut self, bytes: usize) {
        static MESSAGE: [u8; MESSAGE_BYTES_MAX] = [0; MESSAGE_BYTES_MAX];
        let mut left = bytes;
        while left > 0 {
            let part = &MESSAGE[..left.min(MESSAGE_BYTES_MAX)];
            match self {
                Sink::Socket(sender, _) => {
                    let _ = send(sender, part, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
                Sink::Memory(memory) => memory[..part.len()].copy_from_slice(std::hint::black_box(part)),
            }
            left -= part.len();
        }
    }

    /// Empties the sink for the next send.
    pub fn empty(&mut self) {
        if let Sink::Socket(_, receiver) = self {
            let mut room = [0; 4096];
            while recv(&*receiver, &mut room[..], RecvFlags::DONTWAIT).is_ok_and(|(_, got)| got > 0) {}
        }
    }
}
