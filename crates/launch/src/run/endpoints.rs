//! The endpoints through which the nodes of a job reach each other: bound sockets, or memory files and
//! eventfds. Made before the first node, so that every node knows all the others from the start and none can
//! be impersonated.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use super::lacks::no_descriptor;
use crate::failure::{Failure, system_words};
use hiroba_wire::FabricKind;

/// The endpoints of nodes of one machine.
#[derive(Debug)]
pub struct Endpoints {
    /// Each node's socket, if the fabric uses sockets.
    sockets: Vec<Option<OwnedFd>>,
    /// The address of each node's socket.
    addresses: Vec<SocketAddr>,
    /// Each node's frames, board and doorbell, which all nodes get.
    frames: Vec<OwnedFd>,
    boards: Vec<OwnedFd>,
    doorbells: Vec<OwnedFd>,
}

impl Endpoints {
    /// Opens endpoints for `nodes` nodes at `ip`, an address of this machine.
    pub fn open(fabric: FabricKind, ip: IpAddr, nodes: u16) -> Result<Endpoints, Failure> {
        match fabric {
            FabricKind::Udp => Endpoints::of_sockets((0..nodes).map(|_| bind_udp(ip)), "UDP", ip),
            FabricKind::Tcp => Endpoints::of_sockets((0..nodes).map(|_| bind_tcp(ip)), "TCP", ip),
            FabricKind::SharedMemory => Endpoints::of_memory(nodes),
        }
    }

    fn of_sockets(
        bound: impl Iterator<Item = io::Result<(OwnedFd, SocketAddr)>>,
        what: &str,
        ip: IpAddr,
    ) -> Result<Endpoints, Failure> {
        let bound = bind_all(bound, what, ip)?;
        let (sockets, addresses) = bound.into_iter().map(|(socket, address)| (Some(socket), address)).unzip();
        let (frames, boards, doorbells) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Endpoints { sockets, addresses, frames, boards, doorbells })
    }

    fn of_memory(nodes: u16) -> Result<Endpoints, Failure> {
        let file = |name: &str| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            memfd_create(name, flags).map_err(|errno| no_descriptor(&errno.into()))
        };
        let doorbell = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(|errno| no_descriptor(&errno.into()))
        };
        Ok(Endpoints {
            sockets: (0..nodes).map(|_| None).collect(),
            addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); usize::from(nodes)],
            frames: (0..nodes).map(|_| file("hiroba-frames")).collect::<Result<_, _>>()?,
            boards: (0..nodes).map(|_| file("hiroba-board")).collect::<Result<_, _>>()?,
            doorbells: (0..nodes).map(|_| doorbell()).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the address of each node's socket, by node.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes apart what nodes get.
    pub fn into_parts(self) -> Parts {
        Parts {
            sockets: self.sockets,
            shared: self.frames.into_iter().chain(self.boards).chain(self.doorbells).collect(),
        }
    }
}

/// The descriptors that nodes get.
#[derive(Debug)]
pub struct Parts {
    /// Each node's socket, if the fabric uses sockets.
    pub sockets: Vec<Option<OwnedFd>>,
    /// What all nodes share: every node's frames, board and doorbell.
    pub shared: Vec<OwnedFd>,
}

fn bind_all(
    bound: impl Iterator<Item = io::Result<(OwnedFd, SocketAddr)>>,
    what: &str,
    ip: IpAddr,
) -> Result<Vec<(OwnedFd, SocketAddr)>, Failure> {
    bound
        .collect::<io::Result<Vec<_>>>()
        .and_then(|bound| if ip.is_loopback() { probe_loopback().map(|()| bound) } else { Ok(bound) })
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => no_descriptor(&error),
            _ if ip.is_loopback() => Failure::new(format!(
                "cannot use {what} on {ip} ({}); is the loopback interface up ('ip link set lo up')?",
                system_words(&error)
            )),
            _ => Failure::new(format!(
                "cannot use {what} on {ip} ({}); is it an address of this machine?",
                system_words(&error)
            )),
        })
}

fn bind_udp(ip: IpAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = UdpSocket::bind((ip, 0))?;
    let address = socket.local_addr()?;
    Ok((socket.into(), address))
}

fn bind_tcp(ip: IpAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = TcpListener::bind((ip, 0))?;
    let address = socket.local_addr()?;
    Ok((socket.into(), address))
}

/// Checks that the loopback interface is up: binding works even if it is down, but sending does not.
fn probe_loopback() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.send_to(&[], socket.local_addr()?).map(drop)
}
