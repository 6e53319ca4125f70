//! Measures round trips over the fabric, sealed and not, and over bare sockets, and streams. Prints times and
//! ratios.
//!
//! `cargo run --release -p hiroba-fabric --example round_trip [spin|wait|stream [IP IP]]`
//!
//! Between two different addresses of this machine, datagrams are as short as across a network: `unshare -n
//! sh -c 'ip link set lo up; ip addr add 10.0.0.1 dev lo; ip addr add 10.0.0.2 dev lo; round_trip wait
//! 10.0.0.1 10.0.0.2'`

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hiroba_base::NodeId;
use hiroba_fabric::{Fabric, FabricConfig, SimCluster, SimConditions, UdpFabric};
use hiroba_wire::control::JobKey;

const ROUNDS: usize = 20_000;
const REQUEST_BYTES: usize = 64;

fn main() {
    let spin = std::env::args().nth(1).is_some_and(|argument| argument == "spin");
    if std::env::args().nth(1).is_some_and(|argument| argument == "stream") {
        streams();
        return;
    }
    for answer_bytes in [REQUEST_BYTES, 4096] {
        let best = |one: &dyn Fn() -> Duration| one().min(one());
        let raw = best(&|| bare(spin, answer_bytes));
        println!("64 B for {answer_bytes} B, median: bare {raw:.1?}");
        for sealed in [false, true] {
            let fabric = best(&|| over_fabric(spin, sealed, answer_bytes));
            let ratio = fabric.as_secs_f64() / raw.as_secs_f64();
            println!("  fabric, {}: {fabric:.1?}, ratio {ratio:.2}", words(sealed));
        }
    }
    streams();
    simulated();
}

fn words(sealed: bool) -> &'static str {
    if sealed { "sealed" } else { "not sealed" }
}

fn streams() {
    for sealed in [false, true] {
        println!("stream of 1 MiB messages, {}: {:.2} GB/s", words(sealed), stream(sealed));
    }
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn pair() -> [UdpSocket; 2] {
    [2, 3].map(|argument| {
        let ip = std::env::args().nth(argument).unwrap_or_else(|| "127.0.0.1".into());
        UdpSocket::bind((ip.as_str(), 0)).expect("an address of this machine")
    })
}

fn bare(spin: bool, answer_bytes: usize) -> Duration {
    let [one, other] = pair();
    one.connect(other.local_addr().expect("bound")).expect("connects");
    other.connect(one.local_addr().expect("bound")).expect("connects");
    for socket in [&one, &other] {
        socket.set_nonblocking(spin).expect("a socket");
    }
    let receive = |socket: &UdpSocket, room: &mut [u8]| {
        while socket.recv(room).is_err() {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut room = vec![0; answer_bytes];
            for _ in 0..ROUNDS {
                receive(&other, &mut room);
                other.send(&room).expect("sends");
            }
        });
        let mut room = vec![0; answer_bytes];
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            one.send(&room[..REQUEST_BYTES]).expect("sends");
            receive(&one, &mut room);
            start.elapsed()
        });
        median(samples.collect())
    })
}

fn fabrics(sealed: bool) -> [UdpFabric; 2] {
    let sockets = pair();
    let addresses: Vec<_> = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
    let mut node = 0;
    sockets.map(|socket| {
        node += 1;
        let (local, addresses) = (NodeId(node - 1), addresses.clone());
        let key = JobKey::new(&[1; 32]);
        let config = FabricConfig { local, addresses, job: 1, key, inject: None };
        let fabric = if sealed {
            UdpFabric::open(socket.into(), config)
        } else {
            UdpFabric::with_hooks(socket.into(), config, Vec::new())
        };
        fabric.expect("a fabric")
    })
}

fn poll(fabric: &UdpFabric, spin: bool, deliver: &mut dyn FnMut(NodeId, &[u8])) {
    let polled = if spin {
        fabric.poll_now(deliver).map(drop)
    } else {
        fabric.poll(Some(Duration::from_secs(1)), deliver)
    };
    polled.expect("polls");
}

fn over_fabric(spin: bool, sealed: bool, answer_bytes: usize) -> Duration {
    let [one, other] = fabrics(sealed);
    let answer = vec![0; answer_bytes];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                poll(&other, spin, &mut |from, _| other.send(from, &[&answer]));
            }
        });
        let samples = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            one.send(NodeId(1), &[&[0; REQUEST_BYTES]]);
            let mut answered = false;
            while !answered {
                poll(&one, spin, &mut |_, _| answered = true);
            }
            start.elapsed()
        });
        let result = median(samples.collect());
        done.store(true, Ordering::Relaxed);
        other.wake();
        result
    })
}

fn stream(sealed: bool) -> f64 {
    const MESSAGES: usize = 1000;
    let [one, other] = fabrics(sealed);
    let message = vec![1; 1 << 20];
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut received = 0;
            while received < MESSAGES {
                poll(&other, false, &mut |_, _| received += 1);
            }
            other.drain(Duration::ZERO);
        });
        for _ in 0..MESSAGES {
            one.send(NodeId(1), &[&message]);
            while one.backlog_bytes(NodeId(1)) > 4 << 20 {
                poll(&one, false, &mut |_, _| {});
            }
        }
        one.drain(Duration::from_secs(1));
    });
    (MESSAGES << 20) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn simulated() {
    const MESSAGES: u32 = 100_000;
    let start = Instant::now();
    let mut cluster = SimCluster::new(4, 1, SimConditions::default());
    for node in 1..4 {
        cluster.send(NodeId(0), NodeId(node), &[0; 64]);
    }
    for _ in 0..MESSAGES {
        let delivered = cluster.step().expect("goes on");
        cluster.send(delivered.to, delivered.from, &delivered.message);
    }
    println!("{MESSAGES} simulated messages: {:.1?}", start.elapsed());
}
