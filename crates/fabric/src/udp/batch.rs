//! Receives many datagrams by one system call: recvmmsg(2), with datagrams of one sender joined by the system
//! (UDP_GRO, udp(7)).

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::address::RawAddress;

/// Maximum number of pieces received by one call. A piece is a datagram, or several joined ones.
pub const BATCH_PIECES: usize = 16;

/// Number of pieces received by one call after long ones, and the minimum length of those, in bytes. This
/// many stay in a processor's own cache until they are assembled.
const LONG_PIECES: usize = 4;
const LONG_FROM_BYTES: usize = 16 << 10;

/// Maximum length of a piece, in bytes: the bound of an IP packet.
const PIECE_BYTES_MAX: usize = 65_535;

/// The control message in which the system reports the length of joined datagrams (`struct cmsghdr` and its
/// data, laid out as in cmsg(3)).
#[derive(Clone, Copy)]
#[repr(C)]
struct JoinedControl {
    header: libc::cmsghdr,
    each_bytes: libc::c_int,
    padding: [u8; 4],
}

const NO_CONTROL: JoinedControl = JoinedControl {
    header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
    each_bytes: 0,
    padding: [0; 4],
};

// SAFETY: an mmsghdr of zeros is valid: null pointers with lengths of zero.
const EMPTY_HEADER: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };

/// A received piece, from one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    bytes: usize,
    /// The length of each datagram except the last, in bytes.
    each_bytes: usize,
}

/// Buffers for a batch of datagrams and their senders.
pub struct Batch {
    piece_bytes_max: usize,
    storage: Vec<u8>,
    addresses: [RawAddress; BATCH_PIECES],
    controls: [JoinedControl; BATCH_PIECES],
    /// The received pieces; `None` for a piece that was longer than its buffer.
    pieces: [Option<Piece>; BATCH_PIECES],
    /// Number of pieces that the next call asks for.
    wanted: usize,
}

impl Batch {
    /// Makes buffers for the longest datagrams. The kernel maps them on first use.
    pub fn new() -> Batch {
        Batch::with_room(PIECE_BYTES_MAX)
    }

    fn with_room(piece_bytes_max: usize) -> Batch {
        Batch {
            piece_bytes_max,
            storage: vec![0; piece_bytes_max * BATCH_PIECES],
            addresses: [RawAddress::EMPTY; BATCH_PIECES],
            controls: [NO_CONTROL; BATCH_PIECES],
            pieces: [None; BATCH_PIECES],
            wanted: 1,
        }
    }

    /// Receives what has arrived, without waiting. Returns the number of pieces.
    ///
    /// A call that asks for more than has arrived checks the socket once more than necessary. So it asks for
    /// one at first, and for many, or for some long ones, as long as the system returns as many as were asked
    /// for.
    ///
    /// # Errors
    ///
    /// Fails with a system error, unless that only means that nothing has arrived.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let wanted = self.wanted;
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH_PIECES];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH_PIECES];
        let rooms = self.storage.chunks_exact_mut(self.piece_bytes_max);
        let places = self.addresses.iter_mut().zip(&mut self.controls).zip(rooms);
        for ((header, vector), ((address, control), room)) in
            headers.iter_mut().zip(&mut vectors).zip(places).take(wanted)
        {
            let vector =
                vector.write(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
            let header = &mut header.write(EMPTY_HEADER).msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_name = ptr::from_mut(address).cast();
            header.msg_namelen = size_of::<RawAddress>() as libc::socklen_t;
            header.msg_control = ptr::from_mut(control).cast();
            header.msg_controllen = size_of::<JoinedControl>();
        }
        // The system call itself, because the C face intercepts the C library's function.
        let (descriptor, no_timeout) = (socket.as_raw_fd(), ptr::null::<libc::timespec>());
        // SAFETY: each of the first `wanted` headers points to one vector, an address, a control message and
        // a buffer that live in `vectors` and `self`, have the lengths that the header gives, and are not
        // borrowed elsewhere until the call returns.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::syscall(libc::SYS_recvmmsg, descriptor, headers.as_mut_ptr(), wanted, flags, no_timeout)
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => nothing_or_error(io::Error::last_os_error())?,
        };
        for (index, header) in headers.iter().enumerate().take(count) {
            // SAFETY: the first `wanted` headers were filled in, and no more than that many arrived.
            let header = unsafe { header.assume_init_ref() };
            self.pieces[index] = self.piece(index, header);
        }
        let is_long = self.pieces[..count].iter().flatten().any(|piece| piece.bytes >= LONG_FROM_BYTES);
        self.wanted = match count == wanted {
            true if is_long => LONG_PIECES,
            true => BATCH_PIECES,
            false => 1,
        };
        Ok(count)
    }

    fn piece(&self, index: usize, header: &libc::mmsghdr) -> Option<Piece> {
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let bytes = header.msg_len as usize;
        let control = &self.controls[index];
        let joined = header.msg_hdr.msg_controllen >= offset_of!(JoinedControl, padding)
            && control.header.cmsg_level == libc::SOL_UDP
            && control.header.cmsg_type == libc::UDP_GRO;
        let each_bytes = if joined { usize::try_from(control.each_bytes).ok()? } else { bytes };
        Some(Piece { bytes, each_bytes: each_bytes.max(1) })
    }

    /// Returns the sender of the piece at `index` of the last call, the length of each datagram except the
    /// last, and the bytes. Returns `None` if the piece was truncated or has no internet address.
    pub fn piece_mut(&mut self, index: usize) -> Option<(SocketAddr, usize, &mut [u8])> {
        let Piece { bytes, each_bytes } = self.pieces[index]?;
        let room = &mut self.storage[index * self.piece_bytes_max..];
        Some((self.addresses[index].decode()?, each_bytes, &mut room[..bytes]))
    }

    /// Returns bytes of the piece at `index` of the last call.
    pub fn bytes(&self, index: usize, within: std::ops::Range<usize>) -> &[u8] {
        &self.storage[index * self.piece_bytes_max..][within]
    }
}

/// Lets the system join datagrams of one sender that arrive together, if it can.
pub fn join_datagrams(socket: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int that outlives the call.
    let _ = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, (&raw const on).cast(), length)
    };
}

/// Ignores errors that ICMP reports about earlier datagrams, and signals, because the link retransmits.
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

#[cfg(test)]
mod tests {
    use super::super::outbox::Outbox;
    use super::*;
    use hiroba_base::NodeId;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn takes_batches_and_names_senders_and_cut_datagrams() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        let mut batch = Batch::with_room(8);
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 0);
        for message in [&b"first"[..], b"one", b"", b"nine byte"] {
            sender.send_to(message, to).unwrap();
        }
        let from = sender.local_addr().unwrap();
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 1, "one at first");
        assert_eq!(batch.piece_mut(0), Some((from, 5, &mut b"first".to_owned()[..])));
        assert_eq!(batch.receive(receiver.as_fd()).unwrap(), 3);
        assert_eq!(batch.piece_mut(0), Some((from, 3, &mut b"one".to_owned()[..])));
        assert_eq!(batch.bytes(0, 1..3), b"ne");
        assert_eq!(batch.piece_mut(1), Some((from, 1, &mut [][..])));
        assert_eq!(batch.piece_mut(2), None);
    }

    #[test]
    fn takes_apart_what_was_joined() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        join_datagrams(receiver.as_fd());
        let mut outbox = Outbox::new(vec![receiver.local_addr().unwrap()]);
        let datagrams = [[1; 90], [2; 90], [3; 90]];
        for datagram in &datagrams {
            outbox.add(sender.as_fd(), NodeId(0), datagram).unwrap();
        }
        outbox.add(sender.as_fd(), NodeId(0), &[4; 20]).unwrap();
        let mut batch = Batch::new();
        let mut came = Vec::new();
        while came.len() < 4 {
            for index in 0..batch.receive(receiver.as_fd()).unwrap() {
                let (_, each_bytes, bytes) = batch.piece_mut(index).unwrap();
                came.extend(bytes.chunks(each_bytes).map(<[u8]>::to_vec));
            }
        }
        assert_eq!(came[..3], datagrams.map(|datagram| datagram.to_vec()));
        assert_eq!(came[3], [4; 20]);
    }
}
