//! Every example program under every protocol, over every fabric, on 1, 2, 4 and 8 nodes, with one thread per
//! node and on some with two, and over a network that loses, reorders and duplicates. Each finds what one
//! thread finds, and its trace satisfies its protocol's axioms.
//!
//! That takes long, so the test runs each program under every second protocol, in ways chosen such that every
//! protocol meets every fabric. To run everything:
//! `HIROBA_MATRIX=all cargo test --release -p hiroba-cli --test all matrix:: -- --nocapture`.

use std::path::{Path, PathBuf};

use hiroba_node::Protocol;
use hiroba_wire::FabricKind;

use crate::support::{Called, finish, hiroba, sample, side_by_side, start};

/// Small problems: the test is whether nodes find what others have written, not how fast.
const PROGRAMS: [(&str, &[&str]); 14] = [
    ("nbody", &["-n", "200", "-s", "4"]),
    ("mandelbrot", &["-n", "90", "-p", "5", "-i", "300"]),
    ("jacobi", &["-n", "75", "-s", "20"]),
    ("matmul", &["-n", "70", "-b", "32"]),
    ("histogram", &["TEXT"]),
    ("mixed", &["-n", "9000", "-s", "6", "-e", "700", "-c", "900"]),
    ("fft3d", &["-n", "16", "-r", "2"]),
    ("ep", &["-c", "S"]),
    ("cg", &["-c", "S"]),
    ("is", &["-c", "S"]),
    ("fft", &["-n", "1024"]),
    ("lu", &["-n", "128", "-b", "8"]),
    ("ocean", &["-n", "34", "-s", "2"]),
    ("water", &["-n", "128", "-s", "2"]),
];

const BAD_NETWORK: [&str; 2] = ["--inject", "loss=0.05,reorder=0.05,dup=0.02,seed=11"];

/// How a program is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    nodes: &'static str,
    threads: &'static str,
    fabric: &'static str,
    is_network_bad: bool,
}

impl Way {
    fn properties(&self) -> Vec<String> {
        let shape = [format!("{} nodes", self.nodes), format!("{} threads", self.threads)];
        let network = [self.fabric.to_owned(), format!("bad: {}", self.is_network_bad)];
        [shape, network].concat()
    }
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for fabric in FabricKind::ALL.map(FabricKind::name) {
        for nodes in ["1", "2", "4", "8"] {
            ways.push(Way { nodes, threads: "1", fabric, is_network_bad: false });
        }
        for nodes in ["2", "4"] {
            ways.push(Way { nodes, threads: "2", fabric, is_network_bad: false });
        }
    }
    for nodes in ["2", "4"] {
        ways.push(Way { nodes, threads: "1", fabric: "udp", is_network_bad: true });
    }
    ways
}

fn apps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps").canonicalize().expect("the repository has it")
}

/// Returns a directory with the compiled programs, and a text.
fn workshop() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    side_by_side(PROGRAMS, |(name, _)| {
        let mut compiler = hiroba(&["cc", "-std=c11", "-O2", "-o"]);
        compiler.arg(directory.path().join(name)).arg(apps().join(name).with_extension("c")).arg("-lm");
        let called = finish(start(&mut compiler));
        assert_eq!(called.status, 0, "{name}: {called:?}");
    });
    std::fs::write(
        directory.path().join("text"),
        "one page, many nodes, none of them right alone\n".repeat(400),
    )
    .expect("written");
    directory
}

/// Runs a program and checks its trace. Returns the part of its output that does not depend on how it was
/// run.
fn run(workshop: &Path, (name, given): (&str, &[&str]), protocol: Protocol, way: Way) -> Vec<String> {
    let trace = tempfile::tempdir().expect("a temporary directory");
    let text = workshop.join("text").display().to_string();
    let mut command = hiroba(&["run", "-n", way.nodes, "-t", way.threads, "--fabric", way.fabric]);
    command.args(["--protocol", protocol.name(), "--trace"]).arg(trace.path());
    if way.is_network_bad {
        command.args(BAD_NETWORK);
    }
    command.arg("--").arg(workshop.join(name));
    command.args(given.iter().map(|word| if *word == "TEXT" { text.as_str() } else { word }));
    let called = finish(start(&mut command));
    assert_eq!(called.status, 0, "{name} under {} in {way:?}: {called:?}", protocol.name());
    let judged = finish(start(hiroba(&["check"]).arg(trace.path())));
    assert_eq!(judged.status, 0, "the trace of {name} under {} in {way:?}: {judged:?}", protocol.name());
    found(&called)
}

fn found(called: &Called) -> Vec<String> {
    let kept = |line: &&str| line.starts_with("checksum ") || line.starts_with("checks ");
    called.stdout.lines().filter(kept).map(str::to_owned).collect()
}

#[test]
fn every_program_is_right_under_every_protocol() {
    let all = sample::all();
    let workshop = workshop();
    let ways = ways();
    let properties: Vec<_> = ways.iter().map(Way::properties).collect();
    let (mut pairs, mut runs) = (sample::Pairs::default(), 0);
    for (row, program) in PROGRAMS.into_iter().enumerate() {
        let alone = Way { nodes: "1", threads: "1", fabric: "udp", is_network_bad: false };
        let expected = run(workshop.path(), program, Protocol::Hlrc, alone);
        assert!(!expected.is_empty(), "{} says nothing that could be compared", program.0);
        for (column, protocol) in Protocol::ALL.into_iter().enumerate() {
            let chosen = match (row + column) % 2 {
                _ if all => ways.clone(),
                0 => vec![ways[pairs.take(&[program.0, protocol.name()], &properties)]],
                _ => Vec::new(),
            };
            for way in chosen {
                let found = run(workshop.path(), program, protocol, way);
                assert_eq!(found, expected, "{} under {} in {way:?}", program.0, protocol.name());
                runs += 1;
            }
        }
        if all {
            println!("{}: right in all ways, {runs} runs so far", program.0);
        }
    }
    assert!(runs >= PROGRAMS.len() * Protocol::ALL.len() / 2);
    for (protocol, fabric) in Protocol::ALL.iter().flat_map(|one| FabricKind::ALL.map(|fabric| (one, fabric)))
    {
        let met = all || pairs.have_met(protocol.name(), fabric.name());
        assert!(met, "the sample has nothing under {} over {}", protocol.name(), fabric.name());
    }
}
