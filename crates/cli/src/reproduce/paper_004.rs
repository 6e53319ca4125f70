//! Sugawara, Hosomi, Hirose, Sekiguchi: NORMA IPC/DE, messages of Mach between the nodes of Cenju-3.
//!
//! The figures of its diagrams are lost except for those in the text. Figure 6 (where the time goes) is not
//! made; `hiroba run --stats` shows where a program's time goes.

use super::jobs::{Form, Job, Results};
use super::programs::MESSAGES;
use super::report::{Measured, Paper, Plot, Row, Table};
use super::{Scale, Setting};

/// The source.
pub const SOURCE: &str = "Sugawara and others: NORMA IPC/DE, Mach IPC across the nodes of Cenju-3 (NEC)";

const FABRICS: [&str; 3] = ["shm", "udp", "tcp"];
/// Bytes of inline data; the same as in `messages.c`.
const SIZES: [u32; 9] = [4, 64, 440, 441, 1024, 4096, 8192, 8193, 16_384];
/// Pages out of line; the same as in `messages.c`.
const PAGES_MAX: u32 = 32;

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
pub fn tables(results: &Results, setting: Setting) -> Vec<Table> {
    vec![latencies(results, setting), throughputs(results, setting)]
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
    vec![
        "All runs: 2 nodes, pages of 4 KiB, on this machine; the medians of the rounds of a run. Figure 6 is not made."
            .to_owned(),
    ]
}
