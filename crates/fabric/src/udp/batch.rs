//! Receiving many datagrams by one system call: recvmmsg(2).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Datagrams taken by one call.
pub const BATCH_DATAGRAMS: usize = 16;

/// A socket address as the kernel writes it (`struct sockaddr_storage`).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct RawAddress([u8; size_of::<libc::sockaddr_storage>()]);

/// Room for a batch of datagrams and where they came from.
pub struct Batch {
    datagram_bytes_max: usize,
    storage: Vec<u8>,
    addresses: [RawAddress; BATCH_DATAGRAMS],
    /// Each datagram's length; `None` for one that was longer than the room.
    lengths: [Option<usize>; BATCH_DATAGRAMS],
}

impl Batch {
    /// Room for datagrams of up to `datagram_bytes_max` bytes. The kernel maps it when it is first used.
    pub fn new(datagram_bytes_max: usize) -> Batch {
        Batch {
            datagram_bytes_max,
            storage: vec![0; datagram_bytes_max * BATCH_DATAGRAMS],
            addresses: [RawAddress([0; size_of::<libc::sockaddr_storage>()]); BATCH_DATAGRAMS],
            lengths: [None; BATCH_DATAGRAMS],
        }
    }

    /// Takes what has come, without waiting; how many datagrams.
    ///
    /// # Errors
    ///
    /// The system's, where it says more than that nothing is there.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut pieces = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH_DATAGRAMS];
        // SAFETY: an mmsghdr of zeros is valid: null pointers with lengths of zero.
        let mut headers: [libc::mmsghdr; BATCH_DATAGRAMS] = unsafe { std::mem::zeroed() };
        let rooms = self.storage.chunks_exact_mut(self.datagram_bytes_max);
        for (((header, piece), address), room) in
            headers.iter_mut().zip(&mut pieces).zip(&mut self.addresses).zip(rooms)
        {
            *piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = ptr::from_mut(address).cast();
            header.msg_hdr.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
        }
        // SAFETY: every header points to one piece, an address and a room that live in `pieces` and `self`,
        // are as long as the header says, and are borrowed by nobody else until the call returns.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH_DATAGRAMS as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => return nothing_or_error(io::Error::last_os_error()),
        };
        for (length, header) in self.lengths.iter_mut().zip(&headers).take(count) {
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            *length = whole.then_some(header.msg_len as usize);
        }
        Ok(count)
    }

    /// The datagram at `index` of the last call and its sender; `None` when it was cut short or came from
    /// no internet address.
    pub fn datagram(&self, index: usize) -> Option<(SocketAddr, &[u8])> {
        let length = self.lengths[index]?;
        let room = &self.storage[index * self.datagram_bytes_max..];
        Some((self.addresses[index].decode()?, &room[..length]))
    }
}

/// Errors of earlier datagrams that ICMP brought back, and signals, are not worth a word: the link
/// retransmits.
fn nothing_or_error(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(
            libc::EAGAIN
            | libc::EINTR
            | libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENOBUFS
            | libc::ENOMEM,
        ) => Ok(0),
        _ => Err(error),
    }
}

impl RawAddress {
    /// Reads `struct sockaddr_in` and `sockaddr_in6` (ip(7), ipv6(7)).
    fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Ipv4Addr::from(bytes[4..].first_chunk::<4>().copied()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(bytes[8..].first_chunk::<16>().copied()?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn takes_batches_and_names_senders_and_cut_datagrams() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let mut batch = Batch::new(8);
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 0);
        for message in [&b"one"[..], b"", b"nine byte"] {
            sender.send_to(message, to).unwrap();
        }
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 3);
        let from = sender.local_addr().unwrap();
        assert_eq!(batch.datagram(0), Some((from, &b"one"[..])));
        assert_eq!(batch.datagram(1), Some((from, &b""[..])));
        assert_eq!(batch.datagram(2), None);
    }
}
