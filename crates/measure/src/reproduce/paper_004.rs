//! Sugawara, Hosomi, Hirose, Sekiguchi: NORMA IPC/DE, messages of Mach between the nodes of Cenju-3.
//!
//! The figures of its diagrams are lost except for those in the text. Figure 6 (where the time goes) is not
//! of the same program as the others: `hiroba bench stages` takes time stamps in both nodes.

use std::cmp::Ordering;

use super::jobs::{Form, Job, Results};
use super::programs::MESSAGES;
use super::report::{Measured, Paper, Plot, Row, Table};
use super::{Scale, Setting};
use crate::bench::{self, Figures, stages};

/// The source.
pub const SOURCE: &str = "Sugawara and others: NORMA IPC/DE, Mach IPC across the nodes of Cenju-3 (NEC)";

/// The fabrics, in the order of the columns.
pub const FABRICS: [&str; 3] = ["shm", "udp", "tcp"];
/// Bytes of inline data; the same as in `messages.c`.
const SIZES: [u32; 9] = [4, 64, 440, 441, 1024, 4096, 8192, 8193, 16_384];
/// Pages out of line; the same as in `messages.c`.
const PAGES_MAX: u32 = 32;

/// The parts of a message's time that are drawn, in the order of its way.
const PARTS: [&str; 8] =
    ["call", "sender's engine", "send", "seal, open", "under way", "receive", "receiver's engine", "return"];
/// The parts that the paper distinguishes: its microseconds, which of 210, and which of our parts they are.
const PAPERS_PARTS: [(&str, f64, &[&str]); 3] = [
    ("IPC at both ends", 40.0, &["call", "sender's engine", "receiver's engine", "return"]),
    ("between the nodes", 100.0, &["send", "seal, open", "under way", "receive"]),
    ("Message Accepted", 40.0, &[]),
];
const PAPERS_WHOLE_US: f64 = 210.0;

/// The rows of `hiroba bench stages`, of several runs over each fabric.
#[derive(Debug, Default)]
pub struct StageRuns(Vec<(&'static str, Vec<bench::Row>)>);

impl StageRuns {
    /// Adds a run.
    pub fn add(&mut self, fabric: &'static str, rows: Vec<bench::Row>) {
        self.0.push((fabric, rows));
    }

    /// Returns the run over a fabric with the median of the whole time.
    fn middle(&self, fabric: &str) -> Option<&[bench::Row]> {
        let runs = self.0.iter().filter(|run| run.0 == fabric).map(|run| &run.1[..]);
        let mut runs: Vec<&[bench::Row]> = runs.filter(|rows| mean(rows, stages::WHOLE).is_some()).collect();
        runs.sort_by(|one, other| {
            mean(one, stages::WHOLE).partial_cmp(&mean(other, stages::WHOLE)).unwrap_or(Ordering::Equal)
        });
        runs.get(runs.len() / 2).copied()
    }
}

/// Returns the mean in the row of a state, in microseconds.
fn mean(rows: &[bench::Row], state: &str) -> Option<f64> {
    let of = |row: &bench::Row| match row.figures {
        Figures::Mean { mean_us } => Some(mean_us),
        _ => None,
    };
    rows.iter().find(|row| row.state == state).and_then(of)
}

/// Returns the part to which a stage belongs; `None` for rows that are no stages.
fn part_of(state: &str) -> Option<&'static str> {
    let name = match state.split_once(": ") {
        None if state == stages::UNDER_WAY => "under way",
        None => return None,
        Some(("sender", "publish" | "enter")) => "call",
        Some(("sender", "engine" | "host")) => "sender's engine",
        Some((_, "seal" | "open")) => "seal, open",
        Some(("sender", _)) => "send",
        Some((_, "enter" | "engine" | "host")) => "receiver's engine",
        Some((_, "wake" | "leave")) => "return",
        Some(_) => "receive",
    };
    Some(name)
}

/// Returns the microseconds of each part.
fn parts(rows: &[bench::Row]) -> [f64; PARTS.len()] {
    PARTS.map(|part| {
        let states = rows.iter().filter(|row| part_of(&row.state) == Some(part));
        // Begins with +0: the sum of nothing is -0, which is printed with its sign.
        states.filter_map(|row| mean(rows, &row.state)).fold(0.0, |sum, mean| sum + mean)
    })
}

fn job(scale: Scale, fabric: &'static str) -> Job {
    let rounds = match scale {
        Scale::Full => "400",
        Scale::Quick => "100",
        Scale::Tiny => "3",
    };
    let form = Form::Nodes { nodes: 2, protocol: "hlrc", fabric, page_size: "4K", prefetch: true };
    Job::sequential(&MESSAGES, rounds).in_form(form)
}

/// Returns the jobs that are measured, by program.
pub fn jobs(scale: Scale) -> Vec<Vec<Job>> {
    vec![FABRICS.map(|fabric| job(scale, fabric)).to_vec()]
}

fn measured(results: &Results, fabric: &'static str, field: &str, setting: Setting) -> Measured {
    let job = job(setting.scale, fabric);
    match results.median(&job, field) {
        Some(value) => Measured::wall(value).with_share(results.core_share(&[&job], field)),
        None => Measured::none(),
    }
}

/// Makes the tables from the results.
pub fn tables(results: &Results, runs: &StageRuns, setting: Setting) -> Vec<Table> {
    vec![latencies(results, setting), breakdown(runs), shares(runs), throughputs(results, setting)]
}

fn breakdown(runs: &StageRuns) -> Table {
    let mut rows = Vec::new();
    for fabric in FABRICS {
        let run = runs.middle(fabric);
        let share = run.and_then(|run| run[0].core_share);
        let measured = |value: Option<f64>| value.map_or(Measured::none(), Measured::wall).with_share(share);
        let values = run.map(parts);
        for (index, part) in PARTS.iter().enumerate() {
            rows.push(Row::at("", fabric, part, None, measured(values.map(|values| values[index]))));
        }
        let paper = (fabric == "udp").then_some(Paper::Number(PAPERS_WHOLE_US));
        for (state, column, paper) in [
            (stages::STAMPS, "time stamps", None),
            (stages::WHOLE, "whole", paper),
            (stages::UNSTAMPED, "unstamped", None),
        ] {
            let value = run.and_then(|run| mean(run, state));
            rows.push(Row::at("", fabric, column, paper, measured(value)).whole());
        }
    }
    Table {
        id: "figure 6".to_owned(),
        title: "where the time of a message of 4 bytes goes, from the call that sends it to the return of the call that receives it".to_owned(),
        unit: "µs",
        rows,
        notes: vec![
            "By time stamps in both nodes on the clock of the machine: means of the middle half of the messages of a run, less the cost of the stamps. All \
             parts and the time stamps add up to the whole. Call: the way into the runtime, and the search for writes that the receiver must know of. Under \
             way: from the end of sending to the poll that finds the message; over udp and tcp with the kernel's part and the call that receives. \
             Unstamped: half a round trip of the same messages without time stamps. `hiroba bench stages` shows more stages."
                .to_owned(),
        ],
        plot: Plot::Stacked,
        axis: "",
    }
}

fn shares(runs: &StageRuns) -> Table {
    let mut rows = Vec::new();
    for (name, paper_us, ours) in PAPERS_PARTS {
        for fabric in FABRICS {
            let run = runs.middle(fabric);
            let share = run.and_then(|run| run[0].core_share);
            let values = run.filter(|_| !ours.is_empty()).map(parts);
            let percent = |values: [f64; PARTS.len()]| {
                let is_mine = |index: &usize| ours.contains(&PARTS[*index]);
                let mine: f64 = (0..PARTS.len()).filter(is_mine).map(|index| values[index]).sum();
                Measured::wall(100.0 * mine / values.iter().sum::<f64>()).with_share(share)
            };
            let paper = Some(Paper::Number((100.0 * paper_us / PAPERS_WHOLE_US).round()));
            rows.push(Row::at("", name, fabric, paper, values.map_or(Measured::none(), percent)));
        }
    }
    Table {
        id: "figure 6, shares".to_owned(),
        title: "the same by the parts that the paper distinguishes".to_owned(),
        unit: "%",
        rows,
        notes: vec![
            "The paper's diagram is lost; its text says: about 40 of 210 µs for the work of Mach's IPC, two messages between the nodes of about 50 µs each \
             (request and acknowledgement), and 40 µs for the notices of messages taken (Message Accepted), which should not have been in the path; 30 µs \
             remain. Ours: one message is in the path. Notices ride on the next message, so there is nothing to measure. IPC: call, both engines and return."
                .to_owned(),
        ],
        plot: Plot::Paired,
        axis: "",
    }
}

fn latencies(results: &Results, setting: Setting) -> Table {
    let mut rows = Vec::new();
    for bytes in SIZES {
        let line = format!("{bytes} bytes");
        let local = measured(results, "shm", &format!("local {bytes}"), setting);
        rows.push(Row::at("", &line, "one node", None, local));
        for fabric in FABRICS {
            let paper = match (bytes, fabric) {
                (4, "udp") => Some(Paper::Number(210.0)),
                (441, "udp") => Some(Paper::Words("+ 100")),
                _ => None,
            };
            let ours = measured(results, fabric, &format!("remote {bytes}"), setting);
            rows.push(Row::at("", &line, fabric, paper, ours));
        }
    }
    Table {
        id: "figure 5".to_owned(),
        title: "half a round trip of messages with inline data".to_owned(),
        unit: "µs",
        rows,
        notes: vec![
            "The paper says 210 µs for 4 bytes between nodes, and a step of 100 µs at 440 bytes, where data no longer ride on the request. Ours ride up to \
             8,192 bytes. Requests and answers have the same length. One node: between two threads of it."
                .to_owned(),
        ],
        plot: Plot::None,
        axis: "",
    }
}

fn throughputs(results: &Results, setting: Setting) -> Table {
    let mut rows = Vec::new();
    for pages in 1..=PAGES_MAX {
        for fabric in FABRICS {
            let paper = match (pages, fabric) {
                (9 | 17 | 25, "udp") => Some(Paper::Words("a dip")),
                _ => None,
            };
            let ours = measured(results, fabric, &format!("pages {pages}"), setting);
            rows.push(Row::at("", &format!("{pages} pages"), fabric, paper, ours));
        }
    }
    Table {
        id: "figure 7".to_owned(),
        title: "throughput of messages with pages out of line, one at a time".to_owned(),
        unit: "MB/s",
        rows,
        notes: vec![
            "The paper says 22 MB/s on the average and 24 at most, with dips at 9, 17 and 25 pages: its window was 8 pages. Ours: bytes of a message over the \
             time until the receiver, which has taken it off the queue, has answered."
                .to_owned(),
        ],
        plot: Plot::None,
        axis: "",
    }
}

/// Returns the notes that apply to all tables.
pub fn notes() -> Vec<String> {
    vec!["All runs: 2 nodes, pages of 4 KiB, on this machine; the medians of the rounds of a run.".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, mean_us: f64) -> bench::Row {
        bench::Row {
            name: stages::NAME.to_owned(),
            fabric: "shm".to_owned(),
            state: state.to_owned(),
            figures: Figures::Mean { mean_us },
            ratio: None,
            repetitions: 100,
            warm_up: 32,
            core_share: Some(1.0),
            shares_cores: false,
        }
    }

    #[test]
    fn every_stage_belongs_to_a_part_and_sums_do_not() {
        for leg in hiroba_base::legs::Leg::ALL {
            for side in ["sender", "receiver"] {
                let part = part_of(&format!("{side}: {}", leg.name()));
                assert!(part.is_some_and(|part| PARTS.contains(&part)), "{side} {leg:?}");
            }
        }
        assert_eq!(part_of(stages::UNDER_WAY), Some("under way"));
        for state in [stages::STAMPS, stages::WHOLE, stages::UNSTAMPED] {
            assert_eq!(part_of(state), None);
        }
        let distinguished = PAPERS_PARTS.iter().flat_map(|part| part.2);
        let mut distinguished: Vec<&str> = distinguished.copied().collect();
        distinguished.sort_by_key(|part| PARTS.iter().position(|other| other == part));
        assert_eq!(distinguished, PARTS, "each part once");
    }

    #[test]
    fn the_run_in_the_middle_is_shown_and_its_parts_add_up() {
        let mut runs = StageRuns::default();
        for scale in [3.0, 1.0, 2.0] {
            let stages = [("sender: publish", 1.0), ("sender: enter", 0.5), ("under way", 2.0)];
            let rest = [("receiver: decode", 0.5), (stages::STAMPS, 0.25), (stages::WHOLE, 4.25)];
            let rows = stages.iter().chain(&rest).map(|(state, us)| row(state, us * scale));
            runs.add("shm", rows.collect());
        }
        let figures = breakdown(&runs).rows;
        let of = |column: &str| figures.iter().find(|row| row.column == column).expect("a row").measured;
        assert_eq!((of("call"), of("under way"), of("receive")), (Some(3.0), Some(4.0), Some(1.0)));
        assert_eq!((of("send"), of("whole"), of("unstamped")), (Some(0.0), Some(8.5), None));
        let drawn: f64 = figures.iter().filter(|row| !row.is_whole).filter_map(|row| row.measured).sum();
        assert_eq!(drawn + 0.5, 8.5);
        let percents: f64 = shares(&runs).rows.iter().filter_map(|row| row.measured).sum();
        assert!((percents - 100.0).abs() < 1e-9, "{percents}");
    }
}
