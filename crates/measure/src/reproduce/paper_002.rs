//! Hattori, Yamamoto, Amano: local memory paged into shared memory, on a machine that is modelled.
//!
//! The available text of the paper has no numbers for its figures 1 and 2; what it says of them is shown
//! beside ours. The machine is `hiroba_paging::attempt0`, which also lists the assumptions.

use hiroba_paging::PolicyKind;
use hiroba_paging::attempt0::{Chooser, Machine, Multiplication, Outcome, Placement, run};

use super::Scale;
use super::report::{Measured, Paper, Plot, Row, Table};

/// The source.
pub const SOURCE: &str = "D. Hattori, J. Yamamoto, H. Amano: an implementation and evaluation of a virtual memory system on a shared memory multiprocessor with local memory (Keio University)";

/// The number of processors in figure 1.
const PROCESSORS: u64 = 4;
/// The numbers of processors in figure 2. The paper's are lost; the machine has up to 20.
const NUMBERS: [u64; 4] = [1, 2, 4, 8];
const PAGES_KIB: [u64; 4] = [1, 2, 4, 8];
/// The policies that the paper compares.
const PAPERS_POLICIES: [(PolicyKind, &str); 2] = [(PolicyKind::Fifo, "FIFO"), (PolicyKind::Clock, "CLOCK")];

/// The page size of the paged runs that are shown alone.
const SHOWN_KIB: u64 = 1;

/// Runs of the model, all of one machine and program.
struct Model {
    machine: Machine,
    program: Multiplication,
}

impl Model {
    fn of(scale: Scale) -> Model {
        let (order, tile, local_bytes) = match scale {
            Scale::Full | Scale::Quick => (160, 32, 128 << 10),
            Scale::Tiny => (32, 8, 16 << 10),
        };
        let machine = Machine { local_bytes, ..Machine::default() };
        Model { machine, program: Multiplication { order, tile, element_bytes: 8 } }
    }

    fn run(&self, processors: u64, placement: Placement) -> Outcome {
        run(&self.machine, self.program, processors, placement)
    }

    fn paged(&self, processors: u64, kib: u64, chooser: Chooser) -> Outcome {
        self.run(processors, Placement::Paged { page_bytes: kib << 10, chooser })
    }
}

/// Returns the assumptions, and their consequences for the reader.
pub fn notes(scale: Scale) -> Vec<String> {
    let Model { machine, program } = Model::of(scale);
    let kib = |bytes: u64| bytes >> 10;
    let mut notes = vec![
        format!(
            "Predicted by a model, word by word; nothing here is measured on this machine. From the paper: {} ns a word of local memory; shared \
             memory {} ns for a load that hits, {} ns for one that misses, {} ns for a store; a write-through cache of {} KiB in {} ways; {} KiB of \
             local memory for data.",
            machine.local_ns,
            machine.hit_ns,
            machine.miss_ns,
            machine.store_ns,
            kib(machine.cache_bytes),
            machine.cache_ways,
            kib(machine.local_bytes)
        ),
        format!(
            "Assumed, since the paper does not say: matrices of {0} x {0} elements of {1} bytes, multiplied in tiles of {2} x {2}, rows divided \
             among processors in blocks, so that with {PROCESSORS} processors each has {3} KiB of data; lines of {4} bytes; {5} us a fault and {6} us \
             a term without its data. Of some hundred such sizes this is the one of which the text's remarks on figure 1 hold best, so their \
             agreement confirms the model's shape and no number of it. With plain loops in place of tiles, times are 1.1 to 200 times those of \
             normal, as the order of the loops and the size have it.",
            program.order,
            program.element_bytes,
            program.tile,
            kib(program.data_bytes(PROCESSORS)),
            machine.line_bytes,
            machine.fault_ns / 1000,
            machine.compute_ns / 1000
        ),
    ];
    if scale == Scale::Tiny {
        notes.push("Far below the paper's sizes: these figures only show that everything works.".to_owned());
    }
    notes
}

/// Makes all tables, and passes what comes next to `tell`.
pub fn tables(scale: Scale, tell: &mut dyn FnMut(&str)) -> Vec<Table> {
    let model = Model::of(scale);
    tell("the model: normal and shared");
    let normal = model.run(PROCESSORS, Placement::Normal);
    let shared = model.run(PROCESSORS, Placement::Shared);
    let mut by_policy = Vec::new();
    for (name, chooser) in choosers() {
        tell(&format!("the model: {name}"));
        let outcomes = PAGES_KIB.map(|kib| model.paged(PROCESSORS, kib, chooser));
        by_policy.push((name, outcomes));
    }
    tell("the model: numbers of processors");
    let papers: Vec<_> = by_policy[..PAPERS_POLICIES.len()].to_vec();
    vec![
        times(normal, shared, &papers),
        remarks(normal, shared, &papers),
        speed_ups(&model),
        policies(normal, &by_policy),
        page_ins(&by_policy),
    ]
}

/// Returns the policies, the paper's first and the optimal one last.
fn choosers() -> Vec<(String, Chooser)> {
    let name = |kind: PolicyKind| {
        let known = PAPERS_POLICIES.iter().find(|(known, _)| *known == kind);
        known.map_or_else(|| kind.name().to_owned(), |(_, name)| (*name).to_owned())
    };
    let is_papers = |kind: &PolicyKind| PAPERS_POLICIES.iter().any(|(known, _)| known == kind);
    let papers = PAPERS_POLICIES.iter().map(|(kind, _)| *kind);
    let others = PolicyKind::ALL.into_iter().filter(|kind| !is_papers(kind));
    let policies = papers.chain(others).map(|kind| (name(kind), Chooser::Policy(kind)));
    policies.chain([("opt".to_owned(), Chooser::Opt)]).collect()
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn ratio(outcome: Outcome, to: Outcome) -> f64 {
    outcome.time_ns as f64 / to.time_ns as f64
}

fn size(kib: u64) -> String {
    format!("{kib}K")
}

fn table(id: &str, title: &str, unit: &'static str, rows: Vec<Row>, plot: Plot) -> Table {
    Table { id: id.to_owned(), title: title.to_owned(), unit, rows, notes: Vec::new(), plot, axis: "" }
}

type ByPolicy = [(String, [Outcome; PAGES_KIB.len()])];

fn times(normal: Outcome, shared: Outcome, papers: &ByPolicy) -> Table {
    let mut rows = Vec::new();
    let mut bar = |block: &str, line: &str, outcome: Outcome| {
        let parts = [
            ("computing and accesses", outcome.time_ns - outcome.paging_ns),
            ("moving pages", outcome.paging_ns),
        ];
        for (column, ns) in parts {
            rows.push(Row::at(block, line, column, None, Measured::predicted(seconds(ns))));
        }
        let all = Measured::predicted(seconds(outcome.time_ns));
        rows.push(Row::at(block, line, "all", None, all).whole());
    };
    bar("not paged", "normal", normal);
    bar("not paged", "shared", shared);
    for (name, outcomes) in papers {
        for (kib, outcome) in PAGES_KIB.into_iter().zip(outcomes) {
            bar(name, &size(kib), *outcome);
        }
    }
    let title = format!("time of the multiplication on {PROCESSORS} processors, by policy and page size");
    let mut table = table("figure 1", &title, "s", rows, Plot::Stacked);
    table.notes = vec![
        "normal: all data in local memory, as much as they need. shared: all in shared memory. FIFO and CLOCK: paged, \
         by pages of 1, 2, 4 and 8 KiB. The paper's diagram has no numbers here; what its text says of it follows."
            .to_owned(),
    ];
    table
}

/// Makes the table of what the text says of figure 1.
fn remarks(normal: Outcome, shared: Outcome, papers: &ByPolicy) -> Table {
    let ratios: Vec<[f64; PAGES_KIB.len()]> =
        papers.iter().map(|(_, outcomes)| outcomes.map(|outcome| ratio(outcome, normal))).collect();
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let best = least(&mut ratios.iter().flatten().copied());
    let (largest, smaller) = (PAGES_KIB.len() - 1, ..PAGES_KIB.len() - 1);
    let best_of_largest = least(&mut ratios.iter().map(|ratios| ratios[largest]));
    let worst_of_smaller = ratios.iter().flat_map(|ratios| &ratios[smaller]).fold(0.0, |a: f64, b| a.max(*b));
    let between = (0..PAGES_KIB.len()).map(|at| ratios[0][at] / ratios[1][at]);
    let between = between.fold(0.0, f64::max);
    let row = |line: &str, paper, value| Row::at("", line, "times", Some(paper), Measured::predicted(value));
    let rows = vec![
        row("best paged run to normal", Paper::Number(1.37), best),
        row("shared to the best paged run", Paper::Words("faster"), ratio(shared, normal) / best),
        row("8K at best to normal", Paper::Words("much worse"), best_of_largest),
        row("1K, 2K and 4K at worst to normal", Paper::Words("alike"), worst_of_smaller),
        row("FIFO to CLOCK, furthest apart", Paper::Words("nearly the same"), between),
    ];
    table("text, figure 1", "ratios of times that section 3.2 speaks of", "times", rows, Plot::None)
}

fn speed_ups(model: &Model) -> Table {
    let clock = Chooser::Policy(PolicyKind::Clock);
    let page_bytes = SHOWN_KIB << 10;
    let lines = [
        ("normal", Placement::Normal),
        ("shared", Placement::Shared),
        ("CLOCK 1K", Placement::Paged { page_bytes, chooser: clock }),
    ];
    let mut rows = Vec::new();
    for (name, placement) in lines {
        let outcomes = NUMBERS.map(|processors| model.run(processors, placement));
        let alone = outcomes[0].time_ns as f64;
        // The paper does not say how long an access occupies the bus.
        let ways: &[(&str, bool)] = match placement {
            Placement::Paged { .. } => &[("", false), (", bus held", true)],
            Placement::Normal | Placement::Shared => &[("", false)],
        };
        for (way, is_held) in ways {
            for (processors, outcome) in NUMBERS.into_iter().zip(outcomes) {
                let time = if *is_held { outcome.with_bus_held_ns(processors) } else { outcome.time_ns };
                let measured = Measured::predicted(alone / time as f64);
                rows.push(Row::at("", &format!("{name}{way}"), &processors.to_string(), None, measured));
            }
        }
    }
    let mut table = table("figure 2", "speed-up with processors", "times", rows, Plot::Curves);
    table.axis = "processors";
    table.notes = vec![
        "To the same data placement on one processor. The text: the speed-up is as users expect, the program's parallel \
         performance is hardly harmed. Without more words: no processor waits for the bus. bus held: the bus serves one \
         access at a time, all of its time, which is the least favourable that it can be (to shared it makes no difference up to 8 processors)."
            .to_owned(),
    ];
    table
}

/// Makes the table of all policies, which goes beyond the paper.
fn policies(normal: Outcome, by_policy: &ByPolicy) -> Table {
    let mut rows = Vec::new();
    for (name, outcomes) in by_policy {
        for (kib, outcome) in PAGES_KIB.into_iter().zip(outcomes) {
            let measured = Measured::predicted(ratio(*outcome, normal));
            rows.push(Row::at("", name, &size(kib), None, measured));
        }
    }
    let mut table =
        table("other policies", "time to normal, by policy and page size", "times", rows, Plot::None);
    table.notes = vec!["opt knows the future: no policy brings in fewer pages.".to_owned()];
    table
}

fn page_ins(by_policy: &ByPolicy) -> Table {
    let mut rows = Vec::new();
    for (name, outcomes) in by_policy {
        for (kib, outcome) in PAGES_KIB.into_iter().zip(outcomes) {
            let measured = Measured::predicted(outcome.page_ins as f64);
            rows.push(Row::at("", name, &size(kib), None, measured));
        }
    }
    let title = format!("pages that come in, on each of {PROCESSORS} processors");
    table("page-ins", &title, "pages", rows, Plot::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tables: &[Table], id: &str, label: &str) -> f64 {
        let table = tables.iter().find(|table| table.id == id).unwrap_or_else(|| panic!("no {id}"));
        let row = table.rows.iter().find(|row| row.label == label);
        row.and_then(|row| row.measured).unwrap_or_else(|| panic!("{id}: no {label}"))
    }

    /// The model is deterministic, so the text's statements about the paper's sizes can be checked.
    #[test]
    fn the_remarks_of_the_text_hold() {
        let tables = tables(Scale::Full, &mut |_| {});
        let remark = |line: &str| value(&tables, "text, figure 1", &format!("{line}, times"));
        let best = remark("best paged run to normal");
        assert!((1.3..1.45).contains(&best), "{best}");
        assert!(remark("shared to the best paged run") < 1.0);
        assert!(remark("8K at best to normal") > 1.1 * remark("1K, 2K and 4K at worst to normal"));
        assert!((0.95..1.1).contains(&remark("FIFO to CLOCK, furthest apart")));
        for line in ["normal", "shared", "CLOCK 1K"] {
            let four = value(&tables, "figure 2", &format!("{line}, 4"));
            assert!(four > 3.6, "{line}: {four}");
        }
        for (policy, _) in choosers() {
            for kib in PAGES_KIB {
                let ins = |policy: &str| value(&tables, "page-ins", &format!("{policy}, {}", size(kib)));
                assert!(ins(&policy) >= ins("opt"), "{policy} {kib}");
            }
        }
    }

    #[test]
    fn progress_is_told() {
        let mut told = Vec::new();
        let tables = tables(Scale::Tiny, &mut |what| told.push(what.to_owned()));
        assert_eq!((tables.len(), told.len()), (5, 2 + choosers().len()));
        assert_eq!(told[1], "the model: FIFO");
    }
}
