//! Explores all interleavings of the small programs, and of larger ones.
//!
//! `cargo run --release -p hiroba-check --example explore -- [--larger] [PROTOCOL…] [NAME…]`: the protocols
//! of these names, or all; the programs whose names contain one of the other words, or all.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use hiroba_check::engines::{by_name, promise_of, trackings_of};
use hiroba_check::explore::{Exploration, Scenario, larger_scenarios, scenarios};
use hiroba_protocol::Protocol;

#[path = "../tests/all/model.rs"]
mod model;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let larger = words.iter().position(|word| word == "--larger").map(|at| words.remove(at)).is_some();
    let (names, words): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| by_name(word).is_ok());
    let wanted =
        |scenario: &Scenario| words.is_empty() || words.iter().any(|word| scenario.name.contains(word));
    let mut scenarios = scenarios();
    if larger {
        scenarios.extend(larger_scenarios());
    }
    println!(
        "{:<16}{:<7}{:<44}{:>12}{:>12}{:>10}{:>9}",
        "protocol", " writes", " program", "situations", "choices", "outcomes", "s"
    );
    for protocol in Protocol::ALL
        .into_iter()
        .filter(|protocol| names.is_empty() || names.iter().any(|name| name == protocol.name()))
    {
        for tracking in trackings_of(protocol) {
            for scenario in scenarios.iter().filter(|scenario| wanted(scenario)) {
                if !scenario.promises.contains(&promise_of(protocol)) {
                    continue;
                }
                let began = Instant::now();
                let exploration = Arc::new(Exploration::new(scenario.clone(), protocol, *tracking));
                let explored = model::explore(&exploration);
                println!(
                    "{:<16}{:<6} {:<44}{:>12}{:>12}{:>10}{:>9.1}",
                    protocol.name(),
                    format!("{tracking:?}"),
                    scenario.name,
                    explored.situations,
                    explored.choices,
                    exploration.outcomes().len(),
                    began.elapsed().as_secs_f64()
                );
                if let Some((situation, told)) = explored.wrong {
                    println!("{told}{}", situation.wrong.as_deref().unwrap_or_default());
                    return ExitCode::FAILURE;
                }
                if let Err(amiss) = scenario.compare(promise_of(protocol), &exploration.outcomes()) {
                    println!("{amiss}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
