//! Midorikawa, Ito, Iizuka: SMS over UDP instead of TCP, function by function and in four programs.
//!
//! The paper's figures are those of its table 2 and of the text of its section 3.3. Its diagrams contain no
//! numbers.

use super::jobs::{Form, Job, PROCESSOR_SECONDS, Results, SECONDS};
use super::programs::{FFT3D, FUNCTIONS, MANDELBROT, NBODY, Program};
use super::report::{Measured, Paper, Plot, Row, Table};
use super::{Scale, Setting};

/// The source.
pub const SOURCE: &str = "H. Midorikawa, T. Ito, H. Iizuka: SMS 0.4.1, a software distributed shared memory over UDP (Seikei University)";

const FABRICS: [(&str, &str); 2] = [("udp", "UDP"), ("tcp", "TCP")];
const NODES: [u16; 4] = [1, 2, 4, 8];
/// The number of nodes for which the paper gives figures: its 8 PCs.
const MOST_NODES: u16 = NODES[NODES.len() - 1];

/// Table 2, in milliseconds: UDP, TCP.
const FUNCTION_TIMES: [(&str, [f64; 2]); 4] = [
    ("startup", [143.0, 1537.0]),
    ("alloc", [0.812, 3.564]),
    ("barrier", [1.794, 11.718]),
    ("lock/unlock", [8.733, 24.318]),
];

/// The text's statement of the speed-up on 8 nodes, with its derivation if it is not explicit.
type Said = Option<(Paper, Option<&'static str>)>;

struct Subject {
    id: &'static str,
    name: &'static str,
    program: &'static Program,
    full: &'static str,
    quick: &'static str,
    tiny: &'static str,
    /// Over UDP, over TCP.
    speed_up: [Said; 2],
    /// The time over UDP as a part of that over TCP, in percent.
    time_ratio: Option<f64>,
}

static SUBJECTS: [Subject; 5] = [
    Subject {
        id: "figure 2",
        name: "N-body 100",
        program: &NBODY,
        full: "-n 100 -s 5000",
        quick: "-n 100 -s 1000",
        tiny: "-n 100 -s 20",
        speed_up: [Some((Paper::Number(1.8), None)), Some((Paper::Number(0.56), Some("1.8 x 31 %")))],
        time_ratio: Some(31.0),
    },
    Subject {
        id: "figure 3",
        name: "N-body 1000",
        program: &NBODY,
        full: "-n 1000 -s 300",
        quick: "-n 1000 -s 100",
        tiny: "-n 200 -s 5",
        speed_up: [Some((Paper::Number(6.7), None)), Some((Paper::Number(5.4), Some("6.7 x 81 %")))],
        time_ratio: Some(81.0),
    },
    Subject {
        id: "text, 2000 stars",
        name: "N-body 2000",
        program: &NBODY,
        full: "-n 2000 -s 150",
        quick: "-n 2000 -s 50",
        tiny: "-n 300 -s 5",
        speed_up: [Some((Paper::Number(8.0), None)), None],
        time_ratio: None,
    },
    Subject {
        id: "figure 5",
        name: "Mandelbrot",
        program: &MANDELBROT,
        full: "-n 4096 -p 512",
        quick: "-n 2048 -p 512",
        tiny: "-n 64 -p 16",
        speed_up: [Some((Paper::Number(6.7), None)), Some((Paper::Number(4.9), None))],
        time_ratio: Some(72.0),
    },
    Subject {
        id: "figure 6",
        name: "3-D FFT",
        program: &FFT3D,
        full: "-n 64",
        quick: "-n 64",
        tiny: "-n 16",
        speed_up: [Some((Paper::Words("slightly above 1"), None)), Some((Paper::Words("no gain"), None))],
        time_ratio: None,
    },
];

impl Subject {
    fn sequential(&self, scale: Scale) -> Job {
        let arguments = match scale {
            Scale::Full => self.full,
            Scale::Quick => self.quick,
            Scale::Tiny => self.tiny,
        };
        Job::sequential(self.program, arguments)
    }

    fn on(&self, scale: Scale, nodes: u16, fabric: &'static str) -> Job {
        self.sequential(scale).in_form(form(nodes, fabric))
    }
}

fn form(nodes: u16, fabric: &'static str) -> Form {
    Form::Nodes { nodes, protocol: "hlrc", fabric, page_size: "4K", prefetch: true }
}

fn functions(scale: Scale, fabric: &'static str) -> Job {
    let calls = match scale {
        Scale::Full => "300",
        Scale::Quick => "100",
        Scale::Tiny => "3",
    };
    Job::sequential(&FUNCTIONS, calls).in_form(form(MOST_NODES, fabric))
}

fn nodes(scale: Scale) -> &'static [u16] {
    if scale == Scale::Tiny { &[1, MOST_NODES] } else { &NODES }
}

/// Returns the jobs that are measured, by program.
pub fn jobs(scale: Scale) -> Vec<Vec<Job>> {
    let on = |subject: &Subject| {
        let forms =
            FABRICS.iter().flat_map(|(fabric, _)| nodes(scale).iter().map(move |nodes| (*nodes, *fabric)));
        let together = forms.map(|(nodes, fabric)| subject.on(scale, nodes, fabric));
        [subject.sequential(scale)].into_iter().chain(together).collect()
    };
    let functions = FABRICS.map(|(fabric, _)| functions(scale, fabric)).to_vec();
    [functions].into_iter().chain(SUBJECTS.iter().map(on)).collect()
}

/// Makes the tables from the results.
pub fn tables(results: &Results, setting: Setting) -> Vec<Table> {
    let mut tables = vec![function_table(results, setting), function_ratios(results, setting)];
    tables.extend(SUBJECTS.iter().map(|subject| curves(results, subject, setting)));
    tables.push(time_ratios(results, setting));
    tables
}

/// Returns the least share of a core in the runs from which a function's time by the clock comes.
fn share(results: &Results, function: &str, fabrics: &[&'static str], setting: Setting) -> Option<f64> {
    let jobs: Vec<Job> = fabrics.iter().map(|fabric| functions(setting.scale, fabric)).collect();
    results.core_share(&jobs.iter().collect::<Vec<_>>(), function)
}

/// Returns milliseconds per call: by the clock, or of the processor of the node that used most.
fn function_time(
    results: &Results,
    function: &str,
    fabric: &'static str,
    by_clock: bool,
    scale: Scale,
) -> Option<f64> {
    let field = if by_clock { function.to_owned() } else { format!("{function} processor") };
    // The blanks in the names align a column.
    let job = functions(scale, fabric);
    results.median(&job, &field)
}

fn function_table(results: &Results, setting: Setting) -> Table {
    let shares = MOST_NODES > setting.cores;
    let mut rows = Vec::new();
    let mut block = |name: &str, by_clock: bool, beside_paper: bool| {
        for (function, paper) in FUNCTION_TIMES {
            for (index, (fabric, column)) in FABRICS.into_iter().enumerate() {
                let time = function_time(results, function, fabric, by_clock, setting.scale);
                let measured = match time {
                    Some(time) if by_clock => {
                        Measured::wall(time).with_share(share(results, function, &[fabric], setting))
                    }
                    Some(time) => Measured::cpu(time),
                    None => Measured::none(),
                };
                let paper = beside_paper.then_some(Paper::Number(paper[index]));
                rows.push(Row::at(name, function, column, paper, measured));
            }
        }
    };
    if shares {
        block(&format!("{MOST_NODES} nodes, processor time"), false, true);
        let as_run = format!("{MOST_NODES} nodes, as they shared {}", setting.cores_in_words());
        block(&as_run, true, false);
    } else {
        block(&format!("{MOST_NODES} nodes"), true, true);
    }
    Table {
        id: "table 2".to_owned(),
        title: "what the functions of SMS take".to_owned(),
        unit: "ms",
        rows,
        notes: vec![
            "alloc is of a page; lock/unlock while all nodes want the same lock. Of the nodes the one that took longest. Processor time of a call has no \
             waiting in it, so it is less than the call takes on machines with a core a node."
                .to_owned(),
        ],
        plot: Plot::None,
        axis: "",
    }
}

fn function_ratios(results: &Results, setting: Setting) -> Table {
    let by_clock = MOST_NODES <= setting.cores;
    let rows = FUNCTION_TIMES.into_iter().map(|(function, [udp, tcp])| {
        let time =
            |fabric| function_time(results, function, fabric, by_clock, setting.scale).unwrap_or(f64::NAN);
        let ratio = time("tcp") / time("udp");
        let share = || share(results, function, &FABRICS.map(|(fabric, _)| fabric), setting);
        let measured =
            if by_clock { Measured::wall(ratio).with_share(share()) } else { Measured::cpu(ratio) };
        let paper = Paper::Number((tcp / udp * 10.0).round() / 10.0);
        Row::at("", function, "TCP / UDP", Some(paper), measured)
    });
    Table {
        id: "figure 1".to_owned(),
        title: "how much faster the functions are over UDP than over TCP".to_owned(),
        unit: "times",
        rows: rows.collect(),
        notes: vec![
            "The paper's are quotients of its table 2. Over TCP each pair of processes connects, in SMS as here; our UDP has a reliable link, and both \
             seal what they send."
                .to_owned(),
        ],
        plot: Plot::Paired,
        axis: "",
    }
}

fn curves(results: &Results, subject: &Subject, setting: Setting) -> Table {
    let sequential = subject.sequential(setting.scale);
    let mut rows = Vec::new();
    for (index, (fabric, name)) in FABRICS.into_iter().enumerate() {
        for count in nodes(setting.scale) {
            let job = subject.on(setting.scale, *count, fabric);
            let measured = results.speed_up(&sequential, &job, setting.cores);
            let said = subject.speed_up[index].clone().filter(|_| *count == MOST_NODES);
            let (paper, note) = said.unzip();
            rows.push(Row::at("", name, &count.to_string(), paper, measured).noting(note.flatten(), None));
        }
    }
    Table {
        id: subject.id.to_owned(),
        title: format!("{}: speed-up over the sequential program, by nodes", subject.name),
        unit: "times",
        rows,
        notes: vec![format!("Run as {}.", arguments_in_words(&sequential))],
        plot: Plot::Curves,
        axis: "nodes",
    }
}

fn arguments_in_words(job: &Job) -> String {
    format!("'{} {}'", job.program.name, job.arguments.join(" "))
}

fn time_ratios(results: &Results, setting: Setting) -> Table {
    let by_clock = MOST_NODES <= setting.cores;
    let field = if by_clock { SECONDS } else { PROCESSOR_SECONDS };
    let rows = SUBJECTS.iter().map(|subject| {
        let time = |fabric| {
            results.median(&subject.on(setting.scale, MOST_NODES, fabric), field).unwrap_or(f64::NAN)
        };
        let percent = 100.0 * time("udp") / time("tcp");
        let share = || {
            let jobs = FABRICS.map(|(fabric, _)| subject.on(setting.scale, MOST_NODES, fabric));
            results.core_share(&[&jobs[0], &jobs[1]], field)
        };
        let measured =
            if by_clock { Measured::wall(percent).with_share(share()) } else { Measured::cpu(percent) };
        Row::at("", subject.name, "UDP / TCP", subject.time_ratio.map(Paper::Number), measured)
    });
    Table {
        id: "text, UDP against TCP".to_owned(),
        title: format!("time over UDP as a part of that over TCP, {MOST_NODES} nodes"),
        unit: "%",
        rows: rows.collect(),
        notes: Vec::new(),
        plot: Plot::Paired,
        axis: "",
    }
}

/// Returns the notes that apply to all tables.
pub fn notes() -> Vec<String> {
    vec!["All runs: hlrc, pages of 4 KiB (but where a program chooses its own), on this machine.".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting { scale: Scale::Full, cores: 2 };

    #[test]
    fn the_papers_figures_stand_at_eight_nodes() {
        let subject = &SUBJECTS[3];
        let mut results = Results::default();
        results.note(&subject.sequential(Scale::Full), &[(SECONDS, 8.0), (PROCESSOR_SECONDS, 7.0)]);
        for nodes in NODES {
            let seconds = 8.0 / f64::from(nodes);
            let fields = [(SECONDS, 2.0 * seconds), (PROCESSOR_SECONDS, seconds)];
            results.note(&subject.on(Scale::Full, nodes, "udp"), &fields);
        }
        let table = curves(&results, subject, SETTING);
        let row = |label: &str| table.rows.iter().find(|row| row.label == label).unwrap();
        let most = row("UDP, 8");
        assert_eq!((most.paper.clone(), most.measured), (Some(Paper::Number(6.7)), Some(7.0)));
        assert_eq!((row("UDP, 2").paper.clone(), row("UDP, 2").measured), (None, Some(1.0)));
        assert_eq!(row("TCP, 8").paper, Some(Paper::Number(4.9)));
        assert_eq!(row("TCP, 8").measured, None, "it was not run");
    }

    #[test]
    fn functions_are_told_by_processor_time_where_nodes_share_cores() {
        let mut results = Results::default();
        for (fabric, ms) in [("udp", 1.0), ("tcp", 3.0)] {
            let fields = [("barrier", 10.0 * ms), ("barrier processor", ms)];
            results.note(&functions(Scale::Full, fabric), &fields);
        }
        let table = function_table(&results, SETTING);
        let row = |label: &str| table.rows.iter().find(|row| row.label == label).unwrap();
        let barrier = row("barrier, 8 nodes, processor time, UDP");
        assert_eq!((barrier.paper.clone(), barrier.measured), (Some(Paper::Number(1.794)), Some(1.0)));
        let as_run = row("barrier, 8 nodes, as they shared 2 cores, TCP");
        assert_eq!((as_run.paper.clone(), as_run.measured), (None, Some(30.0)));
        let ratios = function_ratios(&results, SETTING);
        assert_eq!(
            (ratios.rows[2].paper.clone(), ratios.rows[2].measured),
            (Some(Paper::Number(6.5)), Some(3.0))
        );
        let roomy = function_table(&results, Setting { cores: 8, ..SETTING });
        assert!(
            roomy.rows.iter().any(|row| row.label == "barrier, 8 nodes, UDP" && row.measured == Some(10.0))
        );
    }
}
