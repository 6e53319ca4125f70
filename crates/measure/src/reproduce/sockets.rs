//! Figure 5 of paper 000: where a datagram's time goes, on plain sockets of this machine.
//!
//! Two threads, on a processor each if there are two, send a datagram there and back. The time inside
//! `sendmsg` and inside `recvmsg` (of a datagram that has arrived) is measured; the remainder of half a round
//! trip belongs to the network, which here is the kernel's loopback.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Instant;

use hiroba_node::CoreShare;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Sizes in bytes: from a word to a page of the paper.
pub const SIZES: [usize; 8] = [4, 64, 256, 1024, 1400, 2048, 4096, 8192];

/// Exchanges that are not measured.
const WARM_UP: usize = 200;

/// An echo that does not arrive within this time is lost; loopback loses only what overflows.
const ANSWER_LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Medians for one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Inside `sendmsg`.
    pub send_us: f64,
    /// The remainder: neither sending nor receiving.
    pub network_us: f64,
    /// Inside `recvmsg`.
    pub receive_us: f64,
    /// Half a round trip.
    pub single_trip_us: f64,
}

/// The results.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// By size in bytes.
    pub by_size: Vec<(usize, Split)>,
    /// The share that the threads got of the processor time that they could have used, if they had a core
    /// each.
    pub core_share: Option<f64>,
}

/// Measures all sizes, `times` exchanges of each. With one core both threads sleep while they wait.
pub fn measure(times: usize) -> std::io::Result<Latencies> {
    let share = CoreShare::default();
    share.begin();
    let by_size = measure_all(times, &share)?;
    let core_share = share.share().filter(|_| two_processors().is_some());
    Ok(Latencies { by_size, core_share })
}

fn measure_all(times: usize, share: &CoreShare) -> std::io::Result<Vec<(usize, Split)>> {
    let (near, far) = (bound()?, bound()?);
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    let processors = two_processors();
    let awake = processors.is_some();
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            pin(processors.map(|pair| pair[1]));
            let answered = answer(&far, awake, SIZES.len() * (WARM_UP + times));
            share.note_end_of_mine();
            answered
        });
        let ask = scope.spawn(move || {
            pin(processors.map(|pair| pair[0]));
            let of_size = |bytes: &usize| Ok((*bytes, exchange(&near, awake, *bytes, times)?));
            let asked = SIZES.iter().map(of_size).collect();
            share.note_end_of_mine();
            asked
        });
        let asked = ask.join().expect("the asking thread does not panic");
        let echoed = echo.join().expect("the answering thread does not panic");
        echoed.and(asked)
    })
}

fn bound() -> std::io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
}

fn two_processors() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    Some([usable.next()?, usable.next()?])
}

/// Pins the calling thread to a processor; if that is refused, the kernel places it.
fn pin(processor: Option<usize>) {
    if let Some(processor) = processor {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Waits for a datagram, polling if `awake`.
fn wait(socket: &UdpSocket, awake: bool) -> std::io::Result<()> {
    let began = Instant::now();
    let limit = if awake { Timespec::default() } else { ANSWER_LIMIT };
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) if began.elapsed().as_secs() < ANSWER_LIMIT.tv_sec as u64 => {}
            Ok(0) => return Err(std::io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn answer(socket: &UdpSocket, awake: bool, times: usize) -> std::io::Result<()> {
    let mut bytes = vec![0u8; SIZES[SIZES.len() - 1]];
    for _ in 0..times {
        wait(socket, awake)?;
        let got = socket.recv(&mut bytes)?;
        socket.send(&bytes[..got])?;
    }
    Ok(())
}

fn exchange(socket: &UdpSocket, awake: bool, bytes: usize, times: usize) -> std::io::Result<Split> {
    let mut buffer = vec![0u8; bytes];
    let mut parts: [Vec<f64>; 3] = Default::default();
    for which in 0..WARM_UP + times {
        let began = Instant::now();
        socket.send(&buffer)?;
        let sent = began.elapsed();
        wait(socket, awake)?;
        let arrived = began.elapsed();
        socket.recv(&mut buffer)?;
        let received = began.elapsed();
        if which >= WARM_UP {
            for (part, taken) in parts.iter_mut().zip([sent, received - arrived, received / 2]) {
                part.push(taken.as_secs_f64() * 1e6);
            }
        }
    }
    let [send_us, receive_us, single_trip_us] = parts.map(median);
    let network_us = (single_trip_us - send_us - receive_us).max(0.0);
    Ok(Split { send_us, network_us, receive_us, single_trip_us })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_parts() {
        let Latencies { by_size: measured, core_share } = measure(20).expect("loopback");
        assert!(core_share.is_none_or(|share| share > 0.0 && share <= 1.0), "{core_share:?}");
        assert_eq!(measured.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), SIZES);
        for (bytes, split) in measured {
            let sum = split.send_us + split.network_us + split.receive_us;
            assert!(split.send_us > 0.0 && split.receive_us > 0.0, "{bytes}: {split:?}");
            assert!(sum >= split.single_trip_us - 1e-9, "{bytes}: {split:?}");
        }
    }
}
