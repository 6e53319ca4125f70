//! Examines sockets and interfaces.

use std::net::{Ipv4Addr, UdpSocket};

use rustix::net::sockopt;

use super::{Finding, bytes, kernel_file};

/// The buffer size that a node requests, in bytes: every peer's full window for a dozen peers.
const BUFFER_WISHED: usize = 16 << 20;

/// With less than this (as the kernel counts) a node sends few datagrams at a time, and short ones.
const BUFFER_AMPLE: usize = 2 << 20;

/// A page of 4 KiB fits in one datagram on an interface with this MTU.
const LONG_FRAME_BYTES: u32 = 9000;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![loopback(), buffers()];
    findings.extend(interfaces());
    findings
}

fn loopback() -> Finding {
    let attempt = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.send_to(&[], socket.local_addr()?)
    };
    match attempt() {
        Ok(_) => Finding::good("loopback", "up"),
        Err(error) => Finding::lacking(
            "loopback",
            hiroba_launch::failure::system_words(&error),
            "fabrics udp and tcp on one machine",
            "'ip link set lo up', or use --fabric shm",
        ),
    }
}

/// Requests buffers as a node does, and reports what it got.
fn buffers() -> Finding {
    let got = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok().and_then(|socket| {
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_WISHED).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, BUFFER_WISHED);
        }
        sockopt::socket_recv_buffer_size(&socket).ok()
    });
    judge_buffer(got.unwrap_or(0))
}

fn judge_buffer(got: usize) -> Finding {
    // The kernel doubles the size for its own overhead.
    let found = format!("{} per socket", bytes(got as u64));
    if got >= BUFFER_AMPLE {
        return Finding::good("receive buffer", found);
    }
    Finding::lacking(
        "receive buffer",
        found,
        "udp sends shorter datagrams and fewer at a time: bulk transfers are slower, and many senders at once lose more",
        format!("'sysctl net.core.rmem_max={BUFFER_WISHED} net.core.wmem_max={BUFFER_WISHED}'"),
    )
}

/// Examines every interface that is up, except loopback.
fn interfaces() -> Vec<Finding> {
    let mut names: Vec<String> = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name != "lo")
        .collect();
    names.sort();
    let judged = names.iter().filter_map(|name| {
        let state = kernel_file(&format!("/sys/class/net/{name}/operstate"))?;
        let mtu = kernel_file(&format!("/sys/class/net/{name}/mtu"))?.parse().ok()?;
        (state != "down").then(|| judge_interface(name, mtu))
    });
    judged.collect()
}

fn judge_interface(name: &str, mtu_bytes: u32) -> Finding {
    let what = format!("interface {name}");
    let found = format!("carries {mtu_bytes} bytes per frame");
    if mtu_bytes >= LONG_FRAME_BYTES {
        return Finding::good(what, found);
    }
    Finding::lacking(
        what,
        found,
        "between hosts a page of 4 KiB takes several frames",
        format!(
            "'ip link set {name} mtu {LONG_FRAME_BYTES}' on all hosts, if their switches support it; irrelevant on one machine"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn what_a_page_fits_in_is_good() {
        assert_eq!(judge_interface("eth0", 9000).verdict, Verdict::Good);
        let short = judge_interface("eth0", 1500);
        assert!(short.loss.is_some_and(|(_, remedy)| remedy.contains("ip link set eth0 mtu 9000")));
    }

    #[test]
    fn an_ordinary_users_buffer_is_named_with_the_remedy() {
        assert_eq!(judge_buffer(32 << 20).verdict, Verdict::Good);
        assert!(judge_buffer(425_984).loss.is_some_and(|(_, remedy)| remedy.contains("rmem_max=16777216")));
    }
}
