//! Barli, Watanabe, Sakai, Tanaka: the papers' programs under four protocols, and where their time goes.
//!
//! The paper's figures are those of its tables 5 and 8 and of the text of its section 4.2. Its diagrams
//! contain no numbers.

use super::jobs::{CORE_SHARE, Fields, Form, Job, PROCESSOR_SECONDS, Results, SECONDS};
use super::programs::{FFT, LU, OCEAN, Program, WATER};
use super::report::{Measured, Paper, Plot, Row, Table};
use super::sockets::Latencies;
use super::{Scale, Setting};

/// The source.
pub const SOURCE: &str = "N. D. Barli, M. Watanabe, S. Sakai, H. Tanaka: Performance Analysis on Software DSM System \
                          Connected with High Speed Network (University of Tokyo)";

/// The values of `--protocol`, with the paper's names.
const PROTOCOLS: [(&str, &str); 4] = [("sc", "SC"), ("lrc", "LRC"), ("hlrc", "HLRC"), ("aurc", "AURC")];

/// The number of protocols that the paper measured; it only estimated AURC.
const BEST_OF: usize = 3;

const NODES: [u16; 2] = [2, 4];

/// The fabric of all measurements, as in the paper.
const FABRIC: &str = "udp";

/// The fabric over which AURC does what the paper's hardware does: stores reach the home at once.
const MAPPING_FABRIC: &str = "shm";

/// The paper's coherence unit.
const PAGE_SIZE: &str = "8K";

/// Milliseconds per second.
const MS: f64 = 1e3;

/// The number of transposes in FFT.
const TRANSPOSES: f64 = 3.0;

/// A program with the paper's figures.
struct Subject {
    program: &'static Program,
    name: &'static str,
    /// The paper's size, and its arguments.
    full: &'static str,
    tiny: &'static str,
    figure: &'static str,
    /// Table 5: on 2 and on 4 nodes, by protocol.
    speed_up: [[f64; 4]; 2],
    /// Table 8, in percent: on 2 and on 4 nodes, against HLRC and against the best protocol, which is named.
    reduction: [(f64, f64, &'static str); 2],
}

static SUBJECTS: [Subject; 4] = [
    Subject {
        program: &FFT,
        name: "FFT",
        full: "-n 262144 -l patches",
        tiny: "-n 4096 -l patches",
        figure: "figure 7",
        speed_up: [[0.21, 0.14, 0.25, 0.35], [0.14, 0.13, 0.19, 0.21]],
        reduction: [(26.0, 26.0, "HLRC"), (11.0, f64::NAN, "")],
    },
    Subject {
        program: &LU,
        name: "LU",
        full: "-n 1024 -b 16",
        tiny: "-n 64 -b 16",
        figure: "figure 8",
        speed_up: [[1.3, 1.2, 0.86, 1.2], [2.0, 2.0, 1.5, 2.2]],
        reduction: [(42.0, 10.0, "SC"), (25.0, 11.0, "LRC")],
    },
    Subject {
        program: &OCEAN,
        name: "Ocean",
        full: "-n 258",
        tiny: "-n 34",
        figure: "figure 9",
        speed_up: [[0.39, 0.40, 0.23, 0.40], [0.07, 0.11, 0.15, 0.20]],
        reduction: [(41.0, 19.0, "LRC"), (23.0, 23.0, "HLRC")],
    },
    Subject {
        program: &WATER,
        name: "Water",
        full: "-n 1331 -s 3",
        tiny: "-n 64 -s 1",
        figure: "figure 10",
        speed_up: [[1.4, 1.4, 1.5, 1.7], [1.9, 2.3, 2.5, 3.1]],
        reduction: [(47.0, 47.0, "HLRC"), (43.0, 43.0, "HLRC")],
    },
];

/// The layouts of FFT: by rows as in the paper, and by patches, which other nodes read whole, as in the other
/// runs.
const LAYOUTS: [(&str, &str); 2] = [("rows", "row by row"), ("patches", "patch by patch")];

/// Read faults per transpose in the paper, on 2 and 4 nodes.
const READ_FAULTS: [f64; 2] = [128.0, 192.0];

/// The classes of a node's time, as the programs print them, with the paper's names if they differ.
const CLASSES: [(&str, &str); 7] = [
    ("seconds computing", "computing"),
    ("seconds in barriers", "barrier"),
    ("seconds in read faults", "read faults"),
    ("seconds in write faults", "write faults"),
    ("seconds serving", "serving"),
    ("seconds in locks", "locks"),
    ("seconds otherwise", "other"),
];

impl Subject {
    fn sequential(&self, scale: Scale) -> Job {
        let arguments = match scale {
            Scale::Full | Scale::Quick => self.full,
            Scale::Tiny => self.tiny,
        };
        Job::sequential(self.program, arguments)
    }

    fn on(&self, scale: Scale, nodes: u16, protocol: &'static str) -> Job {
        self.over(FABRIC, scale, nodes, protocol)
    }

    fn over(&self, fabric: &'static str, scale: Scale, nodes: u16, protocol: &'static str) -> Job {
        let form = Form::Nodes { nodes, protocol, fabric, page_size: PAGE_SIZE, prefetch: true };
        self.sequential(scale).in_form(form)
    }
}

/// Returns FFT with a fault for every page. The last layout among its arguments counts.
fn faulting(scale: Scale, nodes: u16, layout: &str) -> Job {
    let form = Form::Nodes { nodes, protocol: "hlrc", fabric: FABRIC, page_size: PAGE_SIZE, prefetch: false };
    let mut job = SUBJECTS[0].sequential(scale).in_form(form);
    job.arguments.extend(["-l".to_owned(), layout.to_owned()]);
    job
}

/// Returns the jobs that are measured, by program.
pub fn jobs(scale: Scale) -> Vec<Vec<Job>> {
    SUBJECTS
        .iter()
        .map(|subject| {
            let on = |nodes| PROTOCOLS.iter().map(move |(protocol, _)| subject.on(scale, nodes, protocol));
            let mapped =
                |nodes| ["hlrc", "aurc"].map(|protocol| subject.over(MAPPING_FABRIC, scale, nodes, protocol));
            let over_both = NODES.into_iter().flat_map(on).chain(NODES.into_iter().flat_map(mapped));
            [subject.sequential(scale)].into_iter().chain(over_both).collect()
        })
        .collect()
}

/// Returns the jobs whose events are counted, once each.
pub fn counted(scale: Scale) -> Vec<Vec<Job>> {
    vec![LAYOUTS.iter().flat_map(|(layout, _)| NODES.map(|nodes| faulting(scale, nodes, layout))).collect()]
}

/// Makes the tables from the results.
pub fn tables(results: &Results, counts: &Results, latencies: &Latencies, setting: Setting) -> Vec<Table> {
    let mut tables = vec![speed_ups(results, setting)];
    tables.extend(SUBJECTS.iter().map(|subject| breakdown(results, subject, setting)));
    tables.push(latency(latencies));
    tables.push(reductions(results, setting));
    tables.push(read_faults(counts, setting));
    tables
}

fn on_nodes(nodes: u16) -> String {
    format!("{nodes} nodes")
}

fn speed_ups(results: &Results, setting: Setting) -> Table {
    let mut rows = Vec::new();
    for (index, nodes) in NODES.into_iter().enumerate() {
        for subject in &SUBJECTS {
            let sequential = subject.sequential(setting.scale);
            for (column, (protocol, name)) in PROTOCOLS.into_iter().enumerate() {
                let job = subject.on(setting.scale, nodes, protocol);
                let measured = results.speed_up(&sequential, &job, setting.cores);
                let paper = Paper::Number(subject.speed_up[index][column]);
                rows.push(Row::at(&on_nodes(nodes), subject.name, name, Some(paper), measured));
            }
        }
    }
    Table {
        id: "table 5".to_owned(),
        title: "speed-up over the sequential program".to_owned(),
        unit: "times",
        rows,
        notes: vec![
            "The paper's AURC is an estimate, HLRC less the cost of twins and diffs; ours is a protocol that runs.".to_owned(),
            "The paper's cluster had machines of four speeds, and its figures are those of the slowest.".to_owned(),
            "FFT has rows of its input and result here, as the paper's program does, so that all three transposes communicate. Without -l patches it has \
             columns, and one does."
                .to_owned(),
        ],
        plot: Plot::Paired,
        axis: "",
    }
}

fn breakdown(results: &Results, subject: &Subject, setting: Setting) -> Table {
    let sequential = subject.sequential(setting.scale);
    let seconds = results.median(&sequential, SECONDS).unwrap_or(f64::NAN);
    let alone = Measured::wall(MS * seconds).with_share(results.core_share(&[&sequential], SECONDS));
    let mut rows = vec![Row::at("1 node", "sequential", "computing", None, alone)];
    for nodes in NODES {
        let shares = nodes > setting.cores;
        let as_run = if shares {
            format!("{nodes} nodes, as they shared {}", setting.cores_in_words())
        } else {
            on_nodes(nodes)
        };
        if shares {
            estimated_breakdown(&mut rows, results, subject, nodes, setting);
        }
        for (protocol, name) in PROTOCOLS {
            let run = results.middle(&subject.on(setting.scale, nodes, protocol), SECONDS);
            for (field, class) in CLASSES {
                let value = run.and_then(|run| run.get(field));
                // Time for serving may have been counted that was corrected later.
                let share = run.and_then(|run| run.get(CORE_SHARE)).copied();
                let by_clock = |value: &f64| Measured::wall(MS * value.max(0.0)).with_share(share);
                let measured = value.map_or(Measured::none(), by_clock);
                rows.push(Row::at(&as_run, name, class, None, measured));
            }
        }
    }
    Table {
        id: subject.figure.to_owned(),
        title: format!("{} {}: where the time of node 0 went", subject.name, sequential.arguments.join(" ")),
        unit: "ms",
        rows,
        notes: vec![
            "The paper draws this without numbers. Its readsegv and writesegv are read and write faults, its sigio is serving, its \
             (un)lock/sigalrm is locks."
                .to_owned(),
        ],
        plot: Plot::Stacked,
        axis: "",
    }
}

/// Adds what can be estimated for nodes without a core of their own: a share of the sequential program's
/// work, and the processor seconds beyond it.
fn estimated_breakdown(
    rows: &mut Vec<Row>,
    results: &Results,
    subject: &Subject,
    nodes: u16,
    setting: Setting,
) {
    let block = format!("{nodes} nodes, processor time");
    for (protocol, name) in PROTOCOLS {
        let job = subject.on(setting.scale, nodes, protocol);
        let (share, beyond) = processor_seconds(results, &subject.sequential(setting.scale), &job);
        rows.push(Row::at(&block, name, "computing", None, Measured::cpu(MS * share)));
        rows.push(Row::at(&block, name, "beyond computing", None, Measured::cpu(MS * beyond)));
    }
}

/// Returns a node's share of the sequential program's processor seconds, and what the node that used most
/// used beyond it.
fn processor_seconds(results: &Results, sequential: &Job, job: &Job) -> (f64, f64) {
    let median = |job: &Job| results.median(job, PROCESSOR_SECONDS).unwrap_or(f64::NAN);
    let most = median(job);
    let share = (median(sequential) / f64::from(job.nodes())).min(most);
    (share, most - share)
}

fn latency(latencies: &Latencies) -> Table {
    let mut rows = Vec::new();
    let measured = |value| Measured::wall(value).with_share(latencies.core_share);
    for (bytes, split) in &latencies.by_size {
        let line = format!("{bytes} B");
        for (column, value) in
            [("send", split.send_us), ("network", split.network_us), ("receive", split.receive_us)]
        {
            rows.push(Row::at("", &line, column, None, measured(value)));
        }
        rows.push(Row::at("", &line, "single trip", None, measured(split.single_trip_us)).whole());
    }
    Table {
        id: "figure 5".to_owned(),
        title: "UDP latency by message size, on plain sockets over loopback".to_owned(),
        unit: "µs",
        rows,
        notes: vec![
            "Send and receive are the time inside sendmsg and recvmsg, network the remainder of half a round trip (the single trip); medians. Over \
             loopback the sender's call delivers the datagram itself, so the receiver may have it before that call returns: then the remainder is zero. The paper draws this without numbers, between two SparcStations 20 over 100Base-TX."
                .to_owned(),
        ],
        plot: Plot::Stacked,
        axis: "",
    }
}

/// Returns how much smaller our overhead is than another, in percent.
fn reduction(other: f64, ours: f64) -> f64 {
    if other > 0.0 { 100.0 * (1.0 - ours / other) } else { f64::NAN }
}

/// Returns the seconds that shared memory costs: the time in which node 0 did not compute, in the run in
/// which that was least, since in the others it waited longer for a node with a slower processor. If nodes
/// shared cores, returns the processor seconds beyond computing.
fn overhead(results: &Results, sequential: &Job, job: &Job, cores: u16) -> f64 {
    if job.nodes() > cores {
        return processor_seconds(results, sequential, job).1;
    }
    let not_computing = |run: &Fields| -> f64 {
        CLASSES[1..].iter().filter_map(|(field, _)| Some(run.get(*field)?.max(0.0))).sum()
    };
    results.all(job).iter().map(not_computing).min_by(f64::total_cmp).unwrap_or(f64::NAN)
}

/// Returns the least share of a core in all runs of some jobs.
fn least_share(results: &Results, jobs: &[Job]) -> Option<f64> {
    let runs = jobs.iter().flat_map(|job| results.all(job));
    runs.filter_map(|run| run.get(CORE_SHARE).copied()).min_by(f64::total_cmp)
}

/// The part of table 8 that the paper does not have.
const MAPPED: &str = "against HLRC, over shm";

fn reductions(results: &Results, setting: Setting) -> Table {
    let mut rows = Vec::new();
    for subject in &SUBJECTS {
        let sequential = subject.sequential(setting.scale);
        for (index, nodes) in NODES.into_iter().enumerate() {
            let measured = |fabric: &'static str, other: &'static str| {
                let of = |protocol| {
                    let job = subject.over(fabric, setting.scale, nodes, protocol);
                    overhead(results, &sequential, &job, setting.cores)
                };
                let percent = reduction(of(other), of("aurc"));
                if nodes > setting.cores {
                    return Measured::cpu(percent);
                }
                let jobs =
                    [other, "aurc"].map(|protocol| subject.over(fabric, setting.scale, nodes, protocol));
                Measured::wall(percent).with_share(least_share(results, &jobs))
            };
            let speed_up = |protocol: &'static str| {
                let job = subject.on(setting.scale, nodes, protocol);
                results.speed_up(&sequential, &job, setting.cores).value.unwrap_or(0.0)
            };
            let candidates = PROTOCOLS[..BEST_OF].iter();
            let best = candidates.max_by(|one, other| speed_up(one.0).total_cmp(&speed_up(other.0)));
            let best = best.expect("there are protocols to choose from");
            let (to_hlrc, to_best, best_was) = subject.reduction[index];
            let number = |value: f64| value.is_finite().then_some(Paper::Number(value));
            let column = on_nodes(nodes);
            let row = |block, paper, measured| Row::at(block, subject.name, &column, paper, measured);
            rows.push(row("against HLRC", number(to_hlrc), measured(FABRIC, "hlrc")));
            let against_best = row("against the best other", number(to_best), measured(FABRIC, best.0));
            let was = Some(best_was).filter(|was| !was.is_empty());
            rows.push(against_best.noting(was, Some(best.1)));
            rows.push(row(MAPPED, None, measured(MAPPING_FABRIC, "hlrc")));
        }
    }
    rows.sort_by_key(|row| (row.block == MAPPED, row.block.contains("best")));
    Table {
        id: "table 8".to_owned(),
        title: "how much less the overhead of shared memory is with AURC".to_owned(),
        unit: "%",
        rows,
        notes: vec![
            "Overhead is what node 0 did not compute, in the run in which it waited least for others; where nodes shared cores, the processor seconds beyond a node's share of the sequential \
             program's, of the node that used most. Below zero AURC costs more. A small overhead, such as Water's, makes large percentages: figures 7 to 10 tell how many milliseconds they are of. Of FFT on 4 nodes the copy at hand of the paper's table lacks the best protocol."
                .to_owned(),
            "The paper's AURC has hardware that carries each write to the page's home. Over UDP there is none: what was written is found by comparison \
             with twins, and leaves in the background while the program computes. Over shm, where nodes share memory, runs of 2 MiB or more of one home are \
             mapped onto it, so that stores are there at once; loads then go there, too. At the paper's sizes Water's runs, and FFT's on 4 nodes, are shorter: \
             what they show is how much single runs vary."
                .to_owned(),
        ],
        plot: Plot::None,
        axis: "",
    }
}

fn read_faults(counts: &Results, setting: Setting) -> Table {
    let mut rows = Vec::new();
    for (layout, words) in LAYOUTS {
        for (nodes, paper) in NODES.into_iter().zip(READ_FAULTS) {
            let fetched = counts.median(&faulting(setting.scale, nodes, layout), "pages fetched");
            let measured = fetched.map_or(Measured::none(), |pages| Measured::wall(pages / TRANSPOSES));
            // At the paper's size, the paper's count is shown.
            let paper = (setting.scale != Scale::Tiny).then_some(Paper::Number(paper));
            rows.push(Row::at("", &on_nodes(nodes), words, paper, measured));
        }
    }
    Table {
        id: "read faults a transpose".to_owned(),
        title: "FFT, pages of 8 KiB, nothing fetched ahead: pages that a node's reads fetch from others".to_owned(),
        unit: "faults",
        rows,
        notes: vec![
            "Counted under HLRC. Our points have 16 bytes, so that a row of 512 points is a page: read row by row, 256 rows of another \
             node are 256 faults, and 384 on 4 nodes, twice the paper's. Laid out patch by patch, a node's part of them is 128 pages, and 96; the \
             program keeps them coherent in halves of a patch, of which a node reads 2, and 6."
                .to_owned(),
        ],
        plot: Plot::None,
        axis: "",
    }
}

/// Returns the notes that apply to all tables.
pub fn notes() -> Vec<String> {
    vec![
        "All runs, except those over shm: UDP on this machine, pages of 8 KiB as in the paper (but where a program chooses its own), pages fetched ahead as always.".to_owned(),
        "Tables 6 and 7 and figures 12 to 15, which cost the same runs for other networks, come with the analysis of other networks.".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting { scale: Scale::Full, cores: 2 };

    fn results() -> Results {
        let mut results = Results::default();
        for subject in &SUBJECTS {
            results.note(&subject.sequential(Scale::Full), &[(SECONDS, 8.0), (PROCESSOR_SECONDS, 8.0)]);
            for nodes in NODES {
                for (index, (protocol, _)) in PROTOCOLS.into_iter().enumerate() {
                    let waited = 4.0 - index as f64;
                    let fields = [
                        (SECONDS, 4.0 + waited),
                        (PROCESSOR_SECONDS, 3.0 + waited / 2.0),
                        ("seconds computing", 4.0),
                        ("seconds in barriers", waited),
                    ];
                    results.note(&subject.on(Scale::Full, nodes, protocol), &fields);
                }
                for (protocol, waited) in [("hlrc", 2.0), ("aurc", 0.5)] {
                    let fields = [
                        (SECONDS, 4.0 + waited),
                        (PROCESSOR_SECONDS, 2.0 + waited),
                        ("seconds in barriers", waited),
                    ];
                    results.note(&subject.over("shm", Scale::Full, nodes, protocol), &fields);
                }
            }
        }
        results
    }

    fn row<'a>(table: &'a Table, label: &str) -> &'a Row {
        table
            .rows
            .iter()
            .find(|row| row.label == label)
            .unwrap_or_else(|| panic!("{label}: {:#?}", table.rows))
    }

    #[test]
    fn speed_ups_stand_beside_the_papers() {
        let table = speed_ups(&results(), SETTING);
        assert_eq!(table.rows.len(), 32);
        let lu = row(&table, "LU, 2 nodes, HLRC");
        assert_eq!((lu.paper.clone(), lu.measured), (Some(Paper::Number(0.86)), Some(8.0 / 6.0)));
        let water = row(&table, "Water, 4 nodes, AURC");
        assert_eq!((water.paper.clone(), water.measured), (Some(Paper::Number(3.1)), Some(8.0 / 3.5)));
        assert_eq!(water.how, super::super::report::How::Cpu, "4 nodes on 2 cores");
    }

    #[test]
    fn a_crowded_machine_is_never_taken_for_one_with_cores_enough() {
        let table = breakdown(&results(), &SUBJECTS[1], SETTING);
        assert_eq!(row(&table, "HLRC, 2 nodes, barrier").measured, Some(2000.0));
        assert!(table.rows.iter().all(|row| row.block != "4 nodes"), "{:#?}", table.rows);
        // A quarter of eight seconds, and the remainder of four.
        assert_eq!(row(&table, "HLRC, 4 nodes, processor time, beyond computing").measured, Some(2000.0));
        assert!(row(&table, "HLRC, 4 nodes, as they shared 2 cores, barrier").measured.is_some());
        let roomy = breakdown(&results(), &SUBJECTS[1], Setting { cores: 4, ..SETTING });
        assert!(roomy.rows.iter().any(|row| row.block == "4 nodes"));
    }

    #[test]
    fn overheads_are_compared_in_percent() {
        assert_eq!(reduction(2.0, 1.0), 50.0);
        assert_eq!(reduction(1.0, 1.5), -50.0);
        assert!(reduction(0.0, 1.0).is_nan(), "there was none to reduce");
        let mut results = results();
        // A run in which node 0 waited longer for others, and computed no more.
        let waited = [(SECONDS, 9.0), ("seconds computing", 4.0), ("seconds in barriers", 5.0)];
        results.note(&SUBJECTS[0].on(Scale::Full, 2, "hlrc"), &waited);
        let table = reductions(&results, SETTING);
        assert_eq!(row(&table, "FFT, against HLRC, 2 nodes").measured, Some(50.0));
        let lu = row(&table, "LU, against HLRC, 2 nodes");
        assert_eq!((lu.paper.clone(), lu.measured), (Some(Paper::Number(42.0)), Some(50.0)));
        let best = row(&table, "LU, against the best other, 2 nodes");
        assert_eq!((best.paper_note.as_deref(), best.measured_note.as_deref()), (Some("SC"), Some("HLRC")));
        assert_eq!(row(&table, "FFT, against the best other, 4 nodes").paper, None);
        let mapped = |nodes: &str| row(&table, &format!("LU, against HLRC, over shm, {nodes}")).measured;
        assert_eq!((mapped("2 nodes"), mapped("4 nodes")), (Some(75.0), Some(75.0)));
    }
}
