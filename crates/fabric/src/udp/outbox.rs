//! Passes datagrams to the system: long ones one by one, many short ones of one length and receiver by one
//! call (UDP_SEGMENT, udp(7)), which the network card, or the last step before it, splits.

use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use hiroba_base::NodeId;
use rustix::io::Errno;
use rustix::net::{SendFlags, sendto};

use super::address::RawAddress;

/// Maximum length of datagrams that are gathered, in bytes: Ethernet's, so that the split ones always fit the
/// path. Longer ones stay on this machine, where a call for each costs little by comparison.
const GATHERED_BYTES_MAX: usize = 1472;

/// Maximum number gathered in one call. The system accepts 64, and 65,507 bytes (`UDP_MAX_SEGMENTS`).
const GATHERED_MAX: usize = 44;

/// Datagrams on their way to the system.
pub struct Outbox {
    addresses: Vec<SocketAddr>,
    /// Concatenated datagrams that wait for others or for the system. All have the same length except the
    /// last.
    held: Vec<u8>,
    to: NodeId,
    /// The length of the held datagrams, in bytes.
    each_bytes: usize,
    count: usize,
    /// True if the system takes no more: the held datagrams wait for it.
    stalled: bool,
    /// The datagram that was to be added when the system took no more.
    behind: Option<(NodeId, Vec<u8>)>,
    /// True if the system can split.
    gathers: bool,
}

/// A control message with the length to split at (`struct cmsghdr` and its data, laid out as in cmsg(3)).
#[repr(C)]
struct SegmentControl {
    header: libc::cmsghdr,
    segment_bytes: u16,
    padding: [u8; 6],
}

impl Outbox {
    /// Makes an outbox for peers at `addresses`.
    pub fn new(addresses: Vec<SocketAddr>) -> Outbox {
        Outbox {
            addresses,
            held: Vec::with_capacity(GATHERED_BYTES_MAX * GATHERED_MAX),
            to: NodeId(0),
            each_bytes: 0,
            count: 0,
            stalled: false,
            behind: None,
            gathers: true,
        }
    }

    /// Returns true if the system took no more when last tried. Nothing must be added then.
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Adds a datagram, which leaves by the next [`flush`](Self::flush) that the system accepts, at the
    /// latest. A datagram that is added while stalled is lost.
    ///
    /// # Errors
    ///
    /// Fails with a system error that no retry repairs.
    pub fn add(&mut self, socket: BorrowedFd<'_>, to: NodeId, datagram: &[u8]) -> io::Result<()> {
        if self.stalled {
            return Ok(());
        }
        let joins = self.count > 0
            && self.gathers
            && to == self.to
            // An empty datagram would disappear among others.
            && !datagram.is_empty()
            && datagram.len() <= self.each_bytes
            && self.count < GATHERED_MAX;
        if !joins {
            self.flush(socket)?;
            if self.stalled {
                self.behind = Some((to, datagram.to_vec()));
                return Ok(());
            }
            if !self.gathers || datagram.len() > GATHERED_BYTES_MAX {
                return self.put_alone(socket, to, datagram);
            }
            self.to = to;
            self.each_bytes = datagram.len();
        }
        self.held.extend_from_slice(datagram);
        self.count += 1;
        // A shorter one can only be the last.
        if datagram.len() < self.each_bytes || self.each_bytes == 0 {
            return self.flush(socket);
        }
        Ok(())
    }

    /// Passes all held datagrams to the system, unless it takes no more.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.flush_held(socket)?;
        if !self.stalled
            && let Some((to, datagram)) = self.behind.take()
        {
            self.add(socket, to, &datagram)?;
            self.flush_held(socket)?;
        }
        Ok(())
    }

    fn flush_held(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.stalled = false;
        if self.count == 0 {
            return Ok(());
        }
        if self.count > 1 && self.gathers {
            match persistently(|| {
                put_many(socket, &self.addresses[self.to.index()], &self.held, self.each_bytes)
            }) {
                Ok(taken) => {
                    self.stalled = !taken;
                    if taken {
                        self.clear();
                    }
                    return Ok(());
                }
                // Interfaces without checksums, and systems before 4.18, cannot split.
                Err(Errno::IO | Errno::INVAL | Errno::NOPROTOOPT | Errno::MSGSIZE | Errno::OPNOTSUPP) => {
                    self.gathers = false;
                }
                Err(errno) => {
                    self.clear();
                    return Err(errno.into());
                }
            }
        }
        self.flush_one_by_one(socket)
    }

    fn flush_one_by_one(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut start = 0;
        while self.count > 0 {
            let end = self.held.len().min(start + self.each_bytes);
            match self.put(socket, self.to, &self.held[start..end]) {
                Ok(true) => {}
                Ok(false) => {
                    self.held.drain(..start);
                    self.stalled = true;
                    return Ok(());
                }
                Err(error) => {
                    self.clear();
                    return Err(error);
                }
            }
            start = end;
            self.count -= 1;
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.held.clear();
        self.count = 0;
    }

    fn put_alone(&mut self, socket: BorrowedFd<'_>, to: NodeId, datagram: &[u8]) -> io::Result<()> {
        if !self.put(socket, to, datagram)? {
            self.to = to;
            self.each_bytes = datagram.len();
            self.held.extend_from_slice(datagram);
            self.count = 1;
            self.stalled = true;
        }
        Ok(())
    }

    /// Passes one datagram to the system. Returns false when it must be retried later.
    fn put(&self, socket: BorrowedFd<'_>, to: NodeId, datagram: &[u8]) -> io::Result<bool> {
        let address = &self.addresses[to.index()];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(persistently(|| sendto(socket, datagram, flags, address).map(drop))?)
    }
}

/// Returns true if the system has taken what `send` passes to it, or lost it like a network. Returns false
/// when it must be retried later.
fn persistently(send: impl Fn() -> rustix::io::Result<()>) -> rustix::io::Result<bool> {
    let mut attempts = 0;
    loop {
        match send() {
            Ok(()) => return Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
            // The error of an earlier datagram: this one has not left.
            Err(Errno::CONNREFUSED | Errno::INTR) if attempts < 3 => attempts += 1,
            // Routes and firewalls may change; the link retransmits.
            Err(
                Errno::CONNREFUSED
                | Errno::INTR
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::NETDOWN
                | Errno::PERM,
            ) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// Passes `datagrams` to the system by one call, which splits them every `each_bytes`.
fn put_many(
    socket: BorrowedFd<'_>,
    to: &SocketAddr,
    datagrams: &[u8],
    each_bytes: usize,
) -> rustix::io::Result<()> {
    let (mut address, address_bytes) = RawAddress::encode(to);
    let mut control = SegmentControl {
        header: libc::cmsghdr {
            cmsg_len: offset_of!(SegmentControl, padding),
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        },
        segment_bytes: each_bytes as u16,
        padding: [0; 6],
    };
    let mut piece = libc::iovec { iov_base: datagrams.as_ptr().cast_mut().cast(), iov_len: datagrams.len() };
    // SAFETY: a msghdr of zeros is valid: null pointers with lengths of zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut address).cast();
    header.msg_namelen = address_bytes;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<SegmentControl>();
    // SAFETY: address, piece, its bytes and the control message live in this function or its arguments, have
    // the lengths that the header gives, and are only read. The system call itself is used because the C face
    // intercepts the C library's function.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const header, flags)
    };
    if sent < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn received(socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut room = [0; 4000];
        (0..count)
            .map(|_| {
                let length = socket.recv(&mut room).unwrap();
                room[..length].to_vec()
            })
            .collect()
    }

    #[test]
    fn what_the_system_would_not_take_leaves_later_in_order() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut outbox = Outbox::new(vec![receiver.local_addr().unwrap()]);
        for datagram in [[1; 30], [2; 30]] {
            outbox.add(sender.as_fd(), NodeId(0), &datagram).unwrap();
        }
        // The state that a system without room leaves.
        outbox.stalled = true;
        outbox.behind = Some((NodeId(0), vec![3; 2000]));
        outbox.add(sender.as_fd(), NodeId(0), b"lost").unwrap();
        outbox.flush(sender.as_fd()).unwrap();
        assert!(!outbox.is_stalled());
        assert_eq!(received(&receiver, 3), [vec![1; 30], vec![2; 30], vec![3; 2000]]);
    }

    #[test]
    fn datagrams_arrive_as_they_were_added_gathered_or_not() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for gathers in [true, false] {
            let mut outbox = Outbox::new(vec![receiver.local_addr().unwrap(); 2]);
            outbox.gathers = gathers;
            let lengths = [100, 100, 100, 40, 100, 100, 200, 3000, 10, 10, 0, 10, 0, 0];
            let datagrams: Vec<Vec<u8>> =
                (0..).zip(lengths).map(|(number, length)| vec![number; length]).collect();
            for (number, datagram) in datagrams.iter().enumerate() {
                outbox.add(sender.as_fd(), NodeId(u16::from(number == 5)), datagram).unwrap();
            }
            outbox.flush(sender.as_fd()).unwrap();
            assert!(!outbox.is_stalled());
            assert_eq!(received(&receiver, datagrams.len()), datagrams);
            let many = vec![vec![7; 50]; 2 * GATHERED_MAX + 1];
            for datagram in &many {
                outbox.add(sender.as_fd(), NodeId(0), datagram).unwrap();
            }
            outbox.flush(sender.as_fd()).unwrap();
            assert_eq!(received(&receiver, many.len()), many);
            assert_eq!(outbox.gathers, gathers, "loopback cuts apart");
        }
    }
}
