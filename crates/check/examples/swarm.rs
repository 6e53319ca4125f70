//! Explores many seeds, or runs one again, shrinks it and explains it.
//!
//! `cargo run --release -p hiroba-check --example swarm -- 0..100000` explores; `… -- 4711` replays a seed;
//! `… -- 4711 SkipApply` does so with a planted bug. `--protocol NAME` before these chooses another protocol
//! than hlrc, which the planted bugs are made for.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hiroba_check::engines::by_name;
use hiroba_check::mutant::Mutant;
use hiroba_check::shrink::{Listing, instructions, shrink};
use hiroba_check::swarm::{Case, examine, replay_command};
use hiroba_protocol::Protocol;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut protocol = Protocol::Hlrc;
    if arguments.len() > 1 && arguments[0] == "--protocol" {
        match by_name(&arguments[1]) {
            Ok(named) => protocol = named,
            Err(sentence) => {
                eprintln!("{sentence}");
                return ExitCode::from(2);
            }
        }
        arguments.drain(..2);
    }
    let mutant = arguments.get(1).map(|name| {
        let found = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == *name);
        found.unwrap_or_else(|| panic!("expected a mutant's name, got '{name}'"))
    });
    match arguments.first().map(|text| seeds_of(text)) {
        Some(Some(seeds)) if seeds.end - seeds.start == 1 => replay(protocol, seeds.start, mutant),
        Some(Some(seeds)) => explore(protocol, seeds, mutant),
        _ => {
            eprintln!(
                "expected perhaps --protocol NAME, then a seed, or FIRST..END, and perhaps a mutant's name"
            );
            ExitCode::from(2)
        }
    }
}

fn seeds_of(text: &str) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((first, end)) => Some(first.parse().ok()?..end.parse().ok()?),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    }
}

fn explore(protocol: Protocol, seeds: Range<u64>, mutant: Option<Mutant>) -> ExitCode {
    let began = Instant::now();
    let count = seeds.end.saturating_sub(seeds.start);
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let (loads, notices) = (AtomicU64::new(0), AtomicU64::new(0));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (next, failed, loads, notices, seeds) = (&next, &failed, &loads, &notices, &seeds);
            scope.spawn(move || {
                let mut told = Instant::now();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end.min(failed.load(Ordering::Relaxed)) {
                        return;
                    }
                    match examine(&Case::under(protocol, seed), mutant) {
                        Ok(kept) => {
                            loads.fetch_add(kept.loads as u64, Ordering::Relaxed);
                            notices.fetch_add(kept.notices as u64, Ordering::Relaxed);
                        }
                        Err(_) => _ = failed.fetch_min(seed, Ordering::Relaxed),
                    }
                    if worker == 0 && told.elapsed() > Duration::from_secs(10) {
                        told = Instant::now();
                        let rate = (seed - seeds.start) as f64 / began.elapsed().as_secs_f64();
                        eprintln!("{} of {count} seeds, {rate:.0} a second", seed - seeds.start);
                    }
                }
            });
        }
    });
    let seed = failed.load(Ordering::Relaxed);
    if seed != u64::MAX {
        println!("seed {seed} fails; replay it by: {}", replay_command(protocol, seed, mutant));
        return replay(protocol, seed, mutant);
    }
    let (loads, notices) = (loads.into_inner(), notices.into_inner());
    let wall_s = began.elapsed().as_secs_f64();
    println!(
        "{count} seeds keep every promise: {loads} loads and {notices} write notices judged in {wall_s:.0} s, {:.0} seeds a second",
        count as f64 / wall_s
    );
    ExitCode::SUCCESS
}

fn replay(protocol: Protocol, seed: u64, mutant: Option<Mutant>) -> ExitCode {
    let case = Case::under(protocol, seed);
    match examine(&case, mutant) {
        Ok(kept) => {
            println!("seed {seed} keeps every promise: {kept:?} judged");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!(
                "seed {seed} ({:?}, {} instructions): {wrong}\n",
                case.conditions,
                instructions(&case.program)
            );
            if let Some((small, wrong)) = shrink(&case, mutant) {
                println!(
                    "shrunk to {} instructions:\n{}\n\n{wrong}",
                    instructions(&small.program),
                    Listing(&small)
                );
            }
            ExitCode::FAILURE
        }
    }
}
