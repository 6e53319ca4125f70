//! A socket filter that lets the system drop strangers' datagrams before they are queued (SO_ATTACH_FILTER,
//! socket(7); the instructions are described in bpf(4)).
//!
//! Datagrams from addresses of no peer then neither fill the receive buffer nor wake a thread. Datagrams with
//! a peer's address are left to the seal. The filter is attached only after many strangers' datagrams. Until
//! then each is counted individually. From then on the system's drops count as rejected; they include
//! datagrams for which the buffer had no room, because the system does not distinguish them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use super::address::canonical;

/// Number of strangers' datagrams after which the filter is attached.
pub const STRANGERS_BEFORE_FILTER: u64 = 1000;

/// Maximum length of a program that the system accepts (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;

/// Number of ports compared in a row: jumps reach 255 instructions.
const PORTS_IN_A_ROW: usize = 100;

/// Offset of the network header for the filter, whose offset 0 is the UDP header (`SKF_NET_OFF`).
const NETWORK_HEADER: u32 = (-0x10_0000_i32).cast_unsigned();

/// Offset of the source address in the network header: RFC 791 §3.1, RFC 8200 §3.
const SOURCE_IN_IPV4: u32 = 12;
const SOURCE_IN_IPV6: u32 = 8;

/// Number of words that `SO_MEMINFO` returns, and the index of the drop count (`SK_MEMINFO_VARS`,
/// `SK_MEMINFO_DROPS`).
const MEMINFO_WORDS: usize = 9;
const MEMINFO_DROPS: usize = 8;

/// The filter of one socket.
pub struct StrangerFilter {
    /// Compiled in advance; empty if there are too many peers for one program.
    program: Vec<libc::sock_filter>,
    /// The system's drop count when the filter was attached.
    dropped_before: OnceLock<u32>,
}

fn instruction(code: u32, jump_true: u8, jump_false: u8, constant: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k: constant }
}

impl StrangerFilter {
    /// Makes a filter that passes datagrams of `peers`; it is not attached yet.
    pub fn new(peers: &[SocketAddr]) -> StrangerFilter {
        let mut peers: Vec<SocketAddr> = peers.iter().map(|peer| canonical(*peer)).collect();
        peers.sort_unstable();
        let mut program = Vec::new();
        for same_ip in peers.chunk_by(|one, other| one.ip() == other.ip()) {
            for row in same_ip.chunks(PORTS_IN_A_ROW) {
                compare(&mut program, row[0].ip(), row);
            }
        }
        program.push(instruction(libc::BPF_RET, 0, 0, 0));
        // Sockets of one family see only its addresses. Jobs with both kinds do without a filter.
        let mixed = peers.iter().any(|peer| peer.is_ipv4() != peers[0].is_ipv4());
        if mixed || program.len() > INSTRUCTIONS_MAX {
            program.clear();
        }
        StrangerFilter { program, dropped_before: OnceLock::new() }
    }

    /// Attaches the filter to the peers' socket, once. If the system refuses, strangers' datagrams continue
    /// to be dropped one by one.
    pub fn attach(&self, socket: BorrowedFd<'_>) {
        if self.program.is_empty() || self.dropped_before.get().is_some() {
            return;
        }
        let program =
            libc::sock_fprog { len: self.program.len() as u16, filter: self.program.as_ptr().cast_mut() };
        let dropped_before = dropped(socket);
        // SAFETY: the option is a sock_fprog whose instructions live in `self`, and the system only copies
        // them.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if result == 0 {
            let _ = self.dropped_before.set(dropped_before);
        }
    }

    /// Returns the number of datagrams that the system has dropped since the filter was attached.
    pub fn dropped(&self, socket: BorrowedFd<'_>) -> u64 {
        self.dropped_before.get().map_or(0, |before| dropped(socket).wrapping_sub(*before).into())
    }
}

/// Appends a test: passes a datagram from `ip` and a port of `row`, otherwise continues after these
/// instructions.
fn compare(program: &mut Vec<libc::sock_filter>, ip: IpAddr, row: &[SocketAddr]) {
    let (at, bytes) = match ip {
        IpAddr::V4(ip) => (SOURCE_IN_IPV4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (SOURCE_IN_IPV6, ip.octets().to_vec()),
    };
    let words = bytes.len() / 4;
    for (index, word) in bytes.chunks_exact(4).enumerate() {
        let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        let place = NETWORK_HEADER + at + 4 * index as u32;
        let rest = 2 * (words - 1 - index) + 1 + 2 * row.len();
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, place));
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, rest as u8, word));
    }
    program.push(instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 0));
    for peer in row {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, peer.port().into()));
        program.push(instruction(libc::BPF_RET, 0, 0, u32::MAX));
    }
}

/// Returns the number of datagrams that the system has dropped for this socket, modulo 2³².
fn dropped(socket: BorrowedFd<'_>) -> u32 {
    let mut words = [0u32; MEMINFO_WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the words have the length that `length` gives, and both outlive the call. On failure they stay
    // zero.
    let _ = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    words[MEMINFO_DROPS]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn peers_pass_and_strangers_are_dropped_and_counted() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(receiver) = UdpSocket::bind(ip) else { continue };
            let sockets: Vec<UdpSocket> =
                (0..PORTS_IN_A_ROW + 5).map(|_| UdpSocket::bind(ip).unwrap()).collect();
            let stranger = UdpSocket::bind(ip).unwrap();
            let peers: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
            let filter = StrangerFilter::new(&peers);
            filter.attach(receiver.as_fd());
            assert_eq!(filter.dropped(receiver.as_fd()), 0);
            let to = receiver.local_addr().unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            for (number, socket) in sockets.iter().enumerate() {
                stranger.send_to(b"noise", to).unwrap();
                socket.send_to(&[number as u8], to).unwrap();
                let mut room = [0; 10];
                assert_eq!(receiver.recv(&mut room).unwrap(), 1);
                assert_eq!(room[0], number as u8);
            }
            assert_eq!(filter.dropped(receiver.as_fd()), sockets.len() as u64);
        }
    }

    #[test]
    fn there_is_none_for_too_many_peers() {
        let peers: Vec<SocketAddr> =
            (0..3000).map(|port| SocketAddr::from(([10, 0, 0, 1], 1024 + port))).collect();
        assert!(StrangerFilter::new(&peers).program.is_empty());
        let mixed = ["10.0.0.1:5".parse().unwrap(), "[::1]:5".parse().unwrap()];
        assert!(StrangerFilter::new(&mixed).program.is_empty());
        assert!(!StrangerFilter::new(&peers[..500]).program.is_empty());
    }
}
