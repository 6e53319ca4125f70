//! `--hosts FILE`: which machines a job runs on, at which addresses, and which nodes each gets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use hiroba_base::MAX_NODES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Failure, system_words};
use crate::run::options::HostsGiven;

/// The maximum length of a file of hosts, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// How long the writer of a pipe of hosts (a command after `<(...)`, say) may take to close it.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// The maximum length of a host's name, in bytes (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name for ssh, or for the launcher that the user named.
    pub name: String,
    /// How many nodes it takes; `None` for a share of the rest.
    pub slots: Option<u16>,
    /// The address of its nodes; `None` for the one that the name resolves to.
    pub address: Option<IpAddr>,
}

/// A host whose address is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedHost {
    /// The host's line in the file.
    pub host: Host,
    /// The address of its nodes.
    pub address: IpAddr,
    /// Whether it is the machine that the launcher runs on.
    pub is_here: bool,
}

/// Reads the hosts that the user gives, and finds their addresses.
pub fn find(given: &HostsGiven) -> Result<Vec<PlacedHost>, Failure> {
    match given {
        HostsGiven::File(path) => read(path),
        HostsGiven::List(list) => place(parse_list(list).map_err(Failure::new)?),
    }
}

/// Reads the file, and finds the hosts' addresses.
fn read(path: &Path) -> Result<Vec<PlacedHost>, Failure> {
    let name = path.display();
    let unreadable = |words: String| {
        Failure::new(format!("cannot read the hosts in '{name}': {words}; name another file after --hosts"))
    };
    let text = read_bounded(path, READ_LIMIT).map_err(|error| unreadable(system_words(&error)))?;
    let text = String::from_utf8(text).map_err(|_| unreadable("expected text in UTF-8".to_owned()))?;
    place(parse(&text).map_err(|words| Failure::new(format!("{name}: {words}")))?)
}

/// Reads the file. It may be a pipe, whose length and end are unknown, so both are bounded.
fn read_bounded(path: &Path, limit: Duration) -> io::Result<Vec<u8>> {
    // An ordinary open of a pipe blocks until there is a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let deadline = Instant::now() + limit;
    let mut text = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                let words = format!("expected its end within {} s, got none", limit.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Ok(text),
            Ok(got) => text.extend_from_slice(&piece[..got]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        if text.len() > FILE_BYTES_MAX {
            let words = format!("expected at most {FILE_BYTES_MAX} bytes, got more");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
        }
    }
}

/// Parses a file's text into hosts. The error is a sentence that begins with the line.
fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong = |words: String| format!("line {}: {words}", number + 1);
        let host = parse_host(name, words).map_err(wrong)?;
        if let Some(twice) = named_twice(&hosts, &host) {
            return Err(wrong(twice));
        }
        hosts.push(host);
    }
    match hosts.len() {
        0 => Err("expected a line HOST [slots=N] [address=IP] for each host, got none".to_owned()),
        many if many > usize::from(MAX_NODES) => {
            Err(format!("expected at most {MAX_NODES} hosts, got {many}"))
        }
        _ => Ok(hosts),
    }
}

/// Parses the hosts of `-H a,b:2`. The error is a sentence.
fn parse_list(list: &str) -> Result<Vec<Host>, String> {
    let mut hosts: Vec<Host> = Vec::new();
    for word in list.split(',') {
        // A name with several colons is an IPv6 address.
        let (name, slots) = match word.split_once(':') {
            Some((name, slots)) if !slots.contains(':') => (name, Some(format!("slots={slots}"))),
            _ => (word, None),
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(format!("expected HOST[:SLOTS],HOST[:SLOTS] after -H, got '{list}'"));
        }
        let host = parse_host(name, slots.as_deref().into_iter()).map_err(|words| format!("-H: {words}"))?;
        if let Some(twice) = named_twice(&hosts, &host) {
            return Err(format!("-H: {twice}"));
        }
        hosts.push(host);
    }
    if hosts.len() > usize::from(MAX_NODES) {
        return Err(format!("expected at most {MAX_NODES} hosts after -H, got {}", hosts.len()));
    }
    Ok(hosts)
}

fn named_twice(hosts: &[Host], host: &Host) -> Option<String> {
    let name = &host.name;
    let known = hosts.iter().any(|other| other.name == *name);
    known.then(|| format!("expected each host once, got '{name}' again; give it more slots instead"))
}

fn parse_host<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Result<Host, String> {
    // ssh would read a name that begins with a dash as an option.
    if name.starts_with('-') || name.contains('=') || name.len() > NAME_BYTES_MAX || name.contains('\0') {
        return Err(format!("expected HOST [slots=N] [address=IP], got '{name}' for a host's name"));
    }
    if name.contains(',') {
        return Err(format!(
            "expected one host per line, got '{name}'; put each on a line of its own, or write -H {name}"
        ));
    }
    // MPICH's notation for the number.
    let of_name = name.split_once(':').filter(|(_, slots)| slots.bytes().all(|byte| byte.is_ascii_digit()));
    let (name, of_name) = match of_name {
        Some((name, slots)) if !name.is_empty() && !slots.is_empty() => {
            (name, Some(format!("slots={slots}")))
        }
        _ => (name, None),
    };
    let mut host = Host { name: name.to_owned(), slots: None, address: None };
    let words = words.map(str::to_owned).collect::<Vec<_>>();
    for word in of_name.iter().chain(&words) {
        let twice = || format!("expected '{}' once", word.split('=').next().unwrap_or(word));
        match word.split_once('=') {
            Some(("slots", _)) if host.slots.is_some() => return Err(twice()),
            Some(("address", _)) if host.address.is_some() => return Err(twice()),
            Some(("slots", value)) => {
                let slots = value.parse().ok().filter(|slots| (1..=MAX_NODES).contains(slots));
                let wrong = || {
                    format!("expected a number of nodes from 1 to {MAX_NODES} after slots=, got '{value}'")
                };
                host.slots = Some(slots.ok_or_else(wrong)?);
            }
            Some(("address", value)) => {
                let usable = |address: &IpAddr| !address.is_unspecified() && !address.is_multicast();
                let address = value.parse().ok().filter(usable);
                let wrong = || format!("expected an IP address of the host after address=, got '{value}'");
                host.address = Some(address.ok_or_else(wrong)?);
            }
            Some(("max_slots" | "max-slots", _)) => {
                return Err(format!(
                    "expected slots=N or address=IP after the host's name, got '{word}'; a host gets as many nodes as slots= says"
                ));
            }
            _ => return Err(format!("expected slots=N or address=IP after the host's name, got '{word}'")),
        }
    }
    Ok(host)
}

/// Finds the hosts' addresses, and which host is this one.
fn place(hosts: Vec<Host>) -> Result<Vec<PlacedHost>, Failure> {
    let mut placed = Vec::with_capacity(hosts.len());
    for host in hosts {
        let address = match host.address {
            Some(address) => address,
            None => resolve(&host.name)?,
        };
        // With an explicit address the name is for the launcher only (it may name a container, say).
        let named_here = is_own_name(&host.name);
        let is_here = named_here || (host.address.is_none() && is_own_address(address));
        placed.push(PlacedHost { host, address, is_here });
    }
    if let Some(second) = placed.iter().filter(|host| host.is_here).nth(1) {
        return Err(Failure::new(format!(
            "expected each host once, got this machine twice, the second time as '{}'; give it more slots instead",
            second.host.name
        )));
    }
    reach_each_other(&mut placed)?;
    Ok(placed)
}

fn resolve(name: &str) -> Result<IpAddr, Failure> {
    let found = (name, 0).to_socket_addrs().map_err(|error| {
        Failure::new(format!(
            "cannot find the address of host '{name}': {}; check the name, or give its line address=IP",
            system_words(&error)
        ))
    })?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| {
        Failure::new(format!("cannot find the address of host '{name}'; give its line address=IP"))
    })
}

fn is_own_name(name: &str) -> bool {
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy();
    name == "localhost" || name == own || Some(name) == own.split('.').next()
}

fn is_own_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Makes addresses reachable from every host. A loopback address works only if all hosts have one. That of
/// this machine can be replaced by the address from which it reaches another host.
fn reach_each_other(hosts: &mut [PlacedHost]) -> Result<(), Failure> {
    let Some(elsewhere) = hosts.iter().find(|host| !host.address.is_loopback()).map(|host| host.address)
    else {
        return Ok(());
    };
    for host in hosts.iter_mut().filter(|host| host.address.is_loopback()) {
        let route =
            if host.is_here && host.host.address.is_none() { source_towards(elsewhere) } else { None };
        host.address = route.ok_or_else(|| {
            Failure::new(format!(
                "host '{}' has the address {}, which other hosts cannot reach; give its line address=IP",
                host.host.name, host.address
            ))
        })?;
    }
    if let Some(other) = hosts.iter().find(|host| host.address.is_ipv4() != elsewhere.is_ipv4()) {
        return Err(Failure::new(format!(
            "expected addresses of one kind, got {} for host '{}' beside {elsewhere}; give the lines address=IP",
            other.address, other.host.name
        )));
    }
    Ok(())
}

/// Returns the address that this machine's datagrams to `there` come from. Connecting a datagram socket sends
/// nothing.
fn source_towards(there: IpAddr) -> Option<IpAddr> {
    const ANY_PORT: u16 = 9;
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((there, ANY_PORT)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

/// Returns how many nodes each host gets, in the file's order.
///
/// `cores` has the number of processors of each host. A host without slots gets an equal share of the nodes
/// requested with -n, else as many nodes as its cores can run with their threads.
pub fn share(
    hosts: &[Host],
    cores: &[u16],
    asked: Option<u16>,
    threads_per_node: u16,
) -> Result<Vec<u16>, Failure> {
    let given: u32 = hosts.iter().filter_map(|host| host.slots.map(u32::from)).sum();
    let open = hosts.iter().filter(|host| host.slots.is_none()).count() as u32;
    let Some(asked) = asked else {
        let by_cores = |cores: u16| (cores / threads_per_node).max(1);
        let nodes: Vec<u16> = hosts
            .iter()
            .zip(cores)
            .map(|(host, cores)| host.slots.unwrap_or_else(|| by_cores(*cores)))
            .collect();
        let total: u32 = nodes.iter().map(|nodes| u32::from(*nodes)).sum();
        if total > u32::from(MAX_NODES) {
            return Err(Failure::new(format!(
                "expected at most {MAX_NODES} nodes, got hosts for {total}; use -n, or fewer slots"
            )));
        }
        return Ok(nodes);
    };
    let asked = u32::from(asked);
    if open == 0 && given != asked {
        return Err(Failure::new(format!(
            "the hosts have {given} slots, but -n asks for {asked} nodes; leave -n out, or change the slots"
        )));
    }
    if asked < given + open {
        return Err(Failure::new(format!(
            "{} hosts (with {given} slots on {} of them) need at least {} nodes, but -n asks for {asked}; take hosts out of the file, \
             or raise -n",
            hosts.len(),
            hosts.len() - open as usize,
            given + open
        )));
    }
    let rest = asked - given;
    // The remainder goes to the first ones.
    let mut shares = (0..open).map(|place| (rest / open + u32::from(place < rest % open)) as u16);
    Ok(hosts.iter().map(|host| host.slots.unwrap_or_else(|| shares.next().unwrap_or(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: Option<u16>) -> Host {
        Host { name: name.to_owned(), slots, address: None }
    }

    #[test]
    fn lines_are_understood() {
        let text = "# my cluster\nh1 slots=2 address=10.0.0.1\n\n  h2 address=::1 slots=4096 # the big one\nuser@h3\n";
        let mut hosts = [host("h1", Some(2)), host("h2", Some(4096)), host("user@h3", None)];
        hosts[0].address = Some(IpAddr::from([10, 0, 0, 1]));
        hosts[1].address = Some(std::net::Ipv6Addr::LOCALHOST.into());
        assert_eq!(parse(text), Ok(hosts.to_vec()));
    }

    #[test]
    fn a_pipe_of_hosts_has_a_bound_and_a_deadline() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let pipe = directory.path().join("pipe");
        let (fifo, mode) = (rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).expect("a pipe");
        let short = Duration::from_millis(50);
        let error = read_bounded(&pipe, short).expect_err("nobody writes it");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let writer = |text: Vec<u8>| {
            let pipe = pipe.clone();
            std::thread::spawn(move || drop(std::fs::write(pipe, text)))
        };
        let written = writer(b"h1\n".to_vec());
        assert_eq!(read_bounded(&pipe, READ_LIMIT).expect("a writer comes"), b"h1\n");
        written.join().expect("it has ended");
        let written = writer(vec![b'#'; FILE_BYTES_MAX + 1]);
        let error = read_bounded(&pipe, READ_LIMIT).expect_err("it is too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        written.join().expect("it has ended");
        assert_eq!(
            read_bounded(Path::new("/dev/zero"), READ_LIMIT).expect_err("it has no end").kind(),
            error.kind()
        );
        // A writer that opens the pipe and writes nothing.
        let held = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).expect("a pipe");
        assert_eq!(read_bounded(&pipe, short).expect_err("it does not end").kind(), io::ErrorKind::TimedOut);
        drop(held);
    }

    #[test]
    fn every_mistake_names_its_line() {
        for (text, phrase) in [
            ("", "got none"),
            ("# h1\n \n", "got none"),
            ("h1\nh1 slots=2", "line 2: expected each host once, got 'h1' again"),
            (
                "h1\n\n-oProxyCommand=x",
                "line 3: expected HOST [slots=N] [address=IP], got '-oProxyCommand=x'",
            ),
            ("slots=3", "line 1: expected HOST"),
            ("h1 slots=0", "line 1: expected a number of nodes from 1 to 4096 after slots=, got '0'"),
            ("h1 slots=99999999", "got '99999999'"),
            ("h1 slots=1 slots=1", "line 1: expected 'slots' once"),
            ("h1 address=h1", "line 1: expected an IP address of the host after address=, got 'h1'"),
            ("h1 address=0.0.0.0", "got '0.0.0.0'"),
            ("h1 slot=2", "line 1: expected slots=N or address=IP after the host's name, got 'slot=2'"),
            ("h1 4", "got '4'"),
            ("h1 slots=2 max_slots=4", "got 'max_slots=4'; a host gets as many nodes as slots= says"),
            ("h1,h2", "line 1: expected one host per line, got 'h1,h2'; put each on a line of its own"),
            ("h1:0", "from 1 to 4096 after slots=, got '0'"),
            ("h1:2 slots=2", "line 1: expected 'slots' once"),
        ] {
            let sentence = parse(text).expect_err(text);
            assert!(sentence.contains(phrase), "{text:?}: {sentence}");
        }
        let many: String = (0..5000).map(|number| format!("h{number}\n")).collect();
        assert!(parse(&many).is_err_and(|sentence| sentence.contains("at most 4096 hosts, got 5000")));
    }

    #[test]
    fn slots_may_stand_behind_a_colon() {
        assert_eq!(parse("h1:2\n::1\n"), Ok(vec![host("h1", Some(2)), host("::1", None)]));
        assert_eq!(
            parse_list("h1,h2:3,::1"),
            Ok(vec![host("h1", None), host("h2", Some(3)), host("::1", None)])
        );
        for (list, phrase) in [
            ("", "got ''"),
            ("a,,b", "got 'a,,b'"),
            ("a, b", "HOST[:SLOTS],HOST[:SLOTS] after -H"),
            ("a:x", "from 1 to 4096 after slots=, got 'x'"),
            ("a,b,a:2", "-H: expected each host once, got 'a' again"),
            ("-oProxyCommand=x", "got '-oProxyCommand=x' for a host's name"),
        ] {
            let sentence = parse_list(list).expect_err(list);
            assert!(sentence.contains(phrase), "{list:?}: {sentence}");
        }
    }

    #[test]
    fn nodes_are_shared_in_order() {
        let shared = |slots: &[Option<u16>], asked| {
            let hosts: Vec<Host> = slots.iter().map(|slots| host("h", *slots)).collect();
            share(&hosts, &vec![8; slots.len()], asked, 2).map_err(|failure| failure.sentence)
        };
        assert_eq!(shared(&[None, None], None), Ok(vec![4, 4]), "a node for two cores");
        assert_eq!(shared(&[Some(3), None], None), Ok(vec![3, 4]));
        assert_eq!(shared(&[None, None, None], Some(8)), Ok(vec![3, 3, 2]));
        assert_eq!(shared(&[None, Some(2), None], Some(5)), Ok(vec![2, 2, 1]));
        assert_eq!(shared(&[Some(1), Some(2)], Some(3)), Ok(vec![1, 2]));
        let refused = |slots: &[Option<u16>], asked, phrase: &str| {
            let sentence = shared(slots, asked).expect_err(phrase);
            assert!(sentence.contains(phrase), "{sentence}");
        };
        refused(&[Some(1), Some(2)], Some(4), "have 3 slots, but -n asks for 4 nodes");
        refused(&[Some(1), Some(2)], Some(2), "have 3 slots, but -n asks for 2 nodes");
        refused(&[None, Some(3)], Some(3), "need at least 4 nodes, but -n asks for 3");
        refused(&[Some(4096), None], None, "got hosts for 4100");
    }

    #[test]
    fn a_loopback_address_serves_only_among_its_like() {
        let at = |name: &str, address: [u8; 4], is_here: bool| {
            let mut host = host(name, None);
            host.address = (!is_here).then_some(address.into());
            PlacedHost { host, address: address.into(), is_here }
        };
        let mut all = [at("a", [127, 0, 0, 2], false), at("b", [127, 0, 0, 3], false)];
        assert_eq!(reach_each_other(&mut all), Ok(()));
        let mut mixed = [at("a", [127, 0, 0, 2], false), at("b", [192, 0, 2, 1], false)];
        let sentence = reach_each_other(&mut mixed).expect_err("it cannot be reached").sentence;
        assert!(
            sentence.contains("host 'a' has the address 127.0.0.2, which other hosts cannot reach"),
            "{sentence}"
        );
    }
}
