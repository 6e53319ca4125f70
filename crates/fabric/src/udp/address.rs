//! Conversion of socket addresses to and from the kernel's format.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `struct sockaddr_storage`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct RawAddress([u8; size_of::<libc::sockaddr_storage>()]);

impl RawAddress {
    /// An empty address.
    pub const EMPTY: RawAddress = RawAddress([0; size_of::<libc::sockaddr_storage>()]);

    /// Reads `struct sockaddr_in` and `sockaddr_in6` (ip(7), ipv6(7)); `None` for other kinds.
    pub fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Ipv4Addr::from(bytes[4..].first_chunk::<4>().copied()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(bytes[8..].first_chunk::<16>().copied()?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    /// Writes `struct sockaddr_in` or `sockaddr_in6`. Also returns its length.
    pub fn encode(address: &SocketAddr) -> (RawAddress, libc::socklen_t) {
        let mut raw = RawAddress::EMPTY;
        let bytes = &mut raw.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, length) = match address {
            SocketAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.ip().octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(address) => {
                bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        (raw, length as libc::socklen_t)
    }
}

/// Returns the form of an address that identifies a peer: IPv4-mapped IPv6 addresses become IPv4 ones, and
/// flow labels and scopes, which do not distinguish peers, are dropped.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["127.0.0.1:80", "10.1.2.3:65535", "[::1]:7", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, _) = RawAddress::encode(&address);
            assert_eq!(raw.decode(), Some(canonical(address)));
        }
        assert_eq!(RawAddress::EMPTY.decode(), None);
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:5".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:5".parse().unwrap());
    }
}
