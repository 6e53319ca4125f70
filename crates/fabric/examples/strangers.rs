//! Floods UDP ports with a stranger's datagrams: noise, truncated, replayed and forged ones. Serves to
//! measure what they cost a job.
//!
//! `cargo run --release -p hiroba-fabric --example strangers -- [--per-second N] [--seconds S] IP:PORT…`
//!
//! With permission for raw sockets (root) it captures datagrams to those ports, replays, truncates and
//! changes them, and sends them with their senders' addresses; all of this needs IPv4. Without, it sends
//! noise and forgeries from an address of its own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hiroba_base::{Prng, RngExt, seeded};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

/// Captured datagrams kept for each port; later ones replace random earlier ones.
const CAPTURED_MAX: usize = 64;

/// Captures once per this many datagrams sent.
const LISTEN_EVERY: u64 = 16;

const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const NOISE_BYTES_MAX: usize = 1400;

struct Options {
    per_second: Option<u64>,
    seconds: u64,
    targets: Vec<SocketAddr>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { per_second: None, seconds: 10, targets: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().unwrap_or_default();
            value.parse().map_err(|_| format!("expected a number after {argument}, got {value:?}"))
        };
        match argument.as_str() {
            "--per-second" => options.per_second = Some(number()?),
            "--seconds" => options.seconds = number()?,
            _ => options.targets.push(
                argument.parse().map_err(|_| format!("expected an address IP:PORT, got {argument:?}"))?,
            ),
        }
    }
    if options.targets.is_empty() {
        return Err("expected at least one address IP:PORT".into());
    }
    Ok(options)
}

/// A captured datagram on its way to a target.
struct Captured {
    from: SocketAddrV4,
    content: Vec<u8>,
}

/// Captures on every interface and sends under any address.
struct Wire {
    listening: OwnedFd,
    sending: OwnedFd,
    captured: Vec<Vec<Captured>>,
}

impl Wire {
    fn open(targets: usize) -> rustix::io::Result<Wire> {
        // packet(7): the kind of packets in network byte order; raw(7): such a socket sends headers as given.
        let internet = Protocol::from_raw(u32::from(0x0800u16.to_be()).try_into().expect("not zero"));
        let raw = Protocol::from_raw(255u32.try_into().expect("not zero"));
        Ok(Wire {
            listening: socket(AddressFamily::PACKET, SocketType::DGRAM, Some(internet))?,
            sending: socket(AddressFamily::INET, SocketType::RAW, Some(raw))?,
            captured: (0..targets).map(|_| Vec::new()).collect(),
        })
    }

    fn listen(&mut self, targets: &[SocketAddr], rng: &mut Prng) {
        let mut room = [0; 65_535];
        while let Ok((length, _)) = recv(&self.listening, &mut room, RecvFlags::DONTWAIT) {
            let Some((from, to, content)) = parse(&room[..length]) else { continue };
            let Some(index) = targets.iter().position(|target| *target == SocketAddr::V4(to)) else {
                continue;
            };
            // Peers' addresses are among the targets. This program's own datagrams bear them too, which does
            // no harm here.
            if targets.contains(&SocketAddr::V4(from)) {
                let captured = &mut self.captured[index];
                if captured.len() == CAPTURED_MAX {
                    captured.swap_remove(rng.random_range(0..CAPTURED_MAX));
                }
                captured.push(Captured { from, content: content.to_vec() });
            }
        }
    }

    fn send(&self, from: SocketAddrV4, to: SocketAddrV4, content: &[u8]) -> rustix::io::Result<()> {
        let total = IP_HEADER_BYTES + UDP_HEADER_BYTES + content.len();
        let mut packet = Vec::with_capacity(total);
        // RFC 791 §3.1 and RFC 768. The system fills in length and checksum of the IP header; a UDP checksum
        // of 0 means none.
        packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        for half in [from.port(), to.port(), (UDP_HEADER_BYTES + content.len()) as u16, 0] {
            packet.extend(half.to_be_bytes());
        }
        packet.extend(content);
        sendto(&self.sending, &packet, SendFlags::DONTWAIT, &SocketAddr::V4(to)).map(drop)
    }
}

/// Returns sender, receiver and content of a UDP datagram in an IPv4 packet.
fn parse(packet: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
    let header_bytes = usize::from(packet.first()? & 15) * 4;
    if packet.first()? >> 4 != 4 || *packet.get(9)? != 17 {
        return None;
    }
    let ip = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let port = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk::<2>()?));
    let from = SocketAddrV4::new(ip(12)?, port(header_bytes)?);
    let to = SocketAddrV4::new(ip(16)?, port(header_bytes + 2)?);
    Some((from, to, packet.get(header_bytes + UDP_HEADER_BYTES..)?))
}

fn noise(rng: &mut Prng) -> Vec<u8> {
    (0..rng.random_range(0..NOISE_BYTES_MAX)).map(|_| rng.random()).collect()
}

/// Sends one hostile datagram to the target at `index`, under a peer's address if one is known.
fn attack(
    number: u64,
    wire: Option<&Wire>,
    own: &UdpSocket,
    target: SocketAddr,
    index: usize,
    rng: &mut Prng,
) {
    let captured = wire.map_or(&[][..], |wire| &wire.captured[index][..]);
    let (Some(wire), SocketAddr::V4(to), false) = (wire, target, captured.is_empty()) else {
        let _ = own.send_to(&noise(rng), target);
        return;
    };
    let Captured { from, content } = &captured[rng.random_range(0..captured.len())];
    let mut content = content.clone();
    match number % 4 {
        0 => content = noise(rng),
        1 => content.truncate(rng.random_range(0..content.len().max(1))),
        2 if !content.is_empty() => {
            let bit = rng.random_range(0..content.len() * 8);
            content[bit / 8] ^= 1 << (bit % 8);
        }
        _ => {}
    }
    // A datagram that is too long for the path is not sent.
    let _ = wire.send(*from, to, &content);
}

fn main() -> Result<(), String> {
    let Options { per_second, seconds, targets } = options()?;
    let own = UdpSocket::bind("0.0.0.0:0").map_err(|error| format!("cannot bind a socket: {error}"))?;
    let mut rng = seeded(1);
    let mut wire = Wire::open(targets.len()).ok();
    if wire.is_none() {
        println!("without the right to raw sockets: noise alone, from an address of its own");
    }
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let mut sent = 0u64;
    while start.elapsed() < time {
        if let Some(rate) = per_second {
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        if let Some(wire) = &mut wire
            && sent.is_multiple_of(LISTEN_EVERY)
        {
            wire.listen(&targets, &mut rng);
        }
        let index = (sent % targets.len() as u64) as usize;
        attack(sent / targets.len() as u64, wire.as_ref(), &own, targets[index], index, &mut rng);
        sent += 1;
    }
    let captured: usize = wire.iter().flat_map(|wire| &wire.captured).map(Vec::len).sum();
    println!("{sent} datagrams in {:.1} s; {captured} captured ones at hand", start.elapsed().as_secs_f64());
    Ok(())
}
