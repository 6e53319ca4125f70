//! `hiroba reproduce`: a paper's tables, with our figures beside the paper's.
//!
//! The papers' programs are compiled with the user's compiler, with and without Hiroba, and run by `hiroba
//! run`. A run whose checks fail is an error, not a figure, and every figure says how it was obtained. Paper
//! 002 is about a machine that is modelled: nothing is compiled or run for it.

mod children;
mod html;
mod jobs;
mod paper_000;
mod paper_001;
mod paper_002;
mod paper_004;
mod plots;
mod programs;
mod report;
mod sockets;
mod stopped;
mod text;
mod watch;

use std::io::Write;
use std::path::PathBuf;

use children::Children;
use jobs::Workshop;
use programs::{COMPILER_FLAGS, TEST_COMPILER_FLAGS};
use report::{Report, Table};
use stopped::Stopped;
use watch::Watch;

use hiroba_launch::columns;
use hiroba_launch::core_share::{ENOUGH, in_words};
use hiroba_launch::failure::{Failure, STATUS_BAD_INPUT, system_words};
use hiroba_launch::output_file::{OutputFile, Purpose};

/// The papers whose tables are available.
pub const PAPERS: [&str; 4] = ["000", "001", "002", "004"];
/// The papers whose tables are planned.
pub const LATER_PAPERS: [&str; 1] = ["003"];

/// The options of `hiroba reproduce`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReproduceOptions {
    /// One of [`PAPERS`].
    pub paper: &'static str,
    /// How much is run.
    pub scale: Scale,
    /// Where to write the figures as JSON.
    pub json: Option<PathBuf>,
    /// Where to write a page with plots.
    pub html: Option<PathBuf>,
}

/// The size of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The paper's sizes, several times.
    Full,
    /// Fewer runs, some of them shorter: two minutes at most on two cores.
    Quick,
    /// The least that shows that everything works.
    Tiny,
}

impl Scale {
    /// Returns how many times each job is run.
    fn rounds(self) -> usize {
        match self {
            Scale::Full => 5,
            Scale::Quick => 2,
            Scale::Tiny => 1,
        }
    }

    fn compiler_flags(self) -> &'static [&'static str] {
        if self == Scale::Tiny { &TEST_COMPILER_FLAGS } else { &COMPILER_FLAGS }
    }

    /// Returns how many times a datagram is sent there and back.
    fn exchanges(self) -> usize {
        match self {
            Scale::Full => 5000,
            Scale::Quick => 1000,
            Scale::Tiny => 10,
        }
    }
}

/// What the tables must know about how their figures were obtained.
#[derive(Clone, Copy, Debug)]
struct Setting {
    scale: Scale,
    cores: u16,
}

impl Setting {
    fn cores_in_words(self) -> String {
        if self.cores == 1 { "1 core".to_owned() } else { format!("{} cores", self.cores) }
    }

    /// Returns the notes that apply to every paper.
    fn notes(self) -> Vec<String> {
        let cores = self.cores_in_words();
        let rounds = self.scale.rounds();
        let mut notes = vec![format!(
            "{}, {cores}, Linux {}; compiled with {}; each figure is the median of {rounds} run{}, taken in turn with the sequential program's.",
            processor_name(),
            rustix::system::uname().release().to_string_lossy(),
            self.scale.compiler_flags().join(" "),
            if rounds == 1 { "" } else { "s" }
        )];
        notes.push(format!(
            "How: 'wall' is by the clock, with a core for every node. With more nodes than these {cores} a speed-up is '~', or 'cpu': the sequential \
             program's processor seconds divided by those of the node that used most. That excludes waiting for the network and for other nodes, so it is \
             an upper bound of what machines with a core per node would show. Figures by the clock of nodes that shared cores say so. 'n/m': not measurable."
        ));
        match self.scale {
            Scale::Full => {}
            Scale::Quick => notes.push(
                "Quick: fewer runs, and shorter ones where the arguments shown differ from the paper's."
                    .to_owned(),
            ),
            Scale::Tiny => notes.push(
                "Far below the paper's sizes: these figures only show that everything works.".to_owned(),
            ),
        }
        notes
    }
}

fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or(std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Produces a paper's tables, prints them and writes the files that were requested.
pub fn reproduce(options: &ReproduceOptions) -> Result<u8, Failure> {
    let open = |path: &Option<PathBuf>, flag| {
        let purpose = Purpose { what: "the figures", flag, status: STATUS_BAD_INPUT };
        path.as_deref().map(|path| OutputFile::open(path, purpose)).transpose()
    };
    let (json, html) = (open(&options.json, "--json")?, open(&options.html, "--html")?);
    if json.as_ref().zip(html.as_ref()).is_some_and(|(json, html)| json.is_same_as(html)) {
        return Err(Failure {
            status: STATUS_BAD_INPUT,
            sentence: "expected two files, got the same file for --json and --html; name another one"
                .to_owned(),
        });
    }
    let report = if options.paper == "002" { Ok(predict(options)) } else { measure(options) };
    let report = match report {
        Ok(report) => report,
        Err(Stopped::Interrupted(signal)) => return Ok(128 + signal as u8),
        Err(Stopped::Failed(failure)) => return Err(failure),
        Err(Stopped::NotStarted(error)) => {
            return Err(Failure::new(format!("cannot run a program: {}", system_words(&error))));
        }
    };
    // A closed standard output (`| head`) is no error.
    let _ = std::io::stdout().write_all(text::render(&report, columns::of_standard_output()).as_bytes());
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::new(error.to_string()))?;
        json.write(format!("{text}\n").as_bytes())?;
    }
    if let Some(html) = html {
        html.write(html::render(&report)?.as_bytes())?;
    }
    Ok(0)
}

/// Returns the report of a paper whose machine is modelled.
fn predict(options: &ReproduceOptions) -> Report {
    let mut watch = Watch::begin();
    let tables = paper_002::tables(options.scale, &mut |what| watch.say(what));
    let notes = paper_002::notes(options.scale);
    // The model is as fast at the paper's sizes, so they are not reduced.
    Report {
        paper: options.paper,
        source: paper_002::SOURCE,
        quick: options.scale == Scale::Tiny,
        notes,
        tables,
    }
}

fn measure(options: &ReproduceOptions) -> Result<Report, Stopped> {
    let directory = tempfile::Builder::new().prefix("hiroba-reproduce-").tempdir()?;
    let children = Children::prepare()?;
    let workshop = Workshop::open(&children, directory.path().to_owned(), options.scale.compiler_flags())?;
    let cores = std::thread::available_parallelism()
        .map_or(1, |cores| u16::try_from(cores.get()).unwrap_or(u16::MAX));
    let setting = Setting { scale: options.scale, cores };
    let mut watch = Watch::begin();
    let (source, notes, tables) = match options.paper {
        "000" => (paper_000::SOURCE, paper_000::notes(), tables_of_000(&workshop, setting, &mut watch)?),
        "004" => (paper_004::SOURCE, paper_004::notes(), tables_of_004(&workshop, setting, &mut watch)?),
        _ => (paper_001::SOURCE, paper_001::notes(), tables_of_001(&workshop, setting, &mut watch)?),
    };
    let notes = setting.notes().into_iter().chain(notes).chain(of_a_busy_machine(&tables)).collect();
    Ok(Report { paper: options.paper, source, quick: setting.scale != Scale::Full, notes, tables })
}

/// Returns a remark if nodes did not get the cores that they could have had.
fn of_a_busy_machine(tables: &[Table]) -> Option<String> {
    let shares = tables.iter().flat_map(|table| &table.rows).filter_map(|row| row.core_share);
    let least = shares.min_by(f64::total_cmp).filter(|share| *share < ENOUGH)?;
    Some(format!(
        "This machine was busy: in some runs with a core for every node, ready threads got less than {ENOUGH} of a core, {} at the least. \
         Times by the clock of such runs are marked '!' and are too long; their speed-ups are '~', by processor seconds.",
        in_words(least)
    ))
}

fn tables_of_000(
    workshop: &Workshop<'_>,
    setting: Setting,
    watch: &mut Watch,
) -> Result<Vec<Table>, Stopped> {
    watch.say("datagrams there and back");
    let latencies = sockets::measure(setting.scale.exchanges())?;
    workshop.check_interruption()?;
    let results = workshop.measure(&paper_000::jobs(setting.scale), setting.scale.rounds(), watch)?;
    // Counts are the same in each run.
    let counts = workshop.measure(&paper_000::counted(setting.scale), 1, watch)?;
    Ok(paper_000::tables(&results, &counts, &latencies, setting))
}

fn tables_of_001(
    workshop: &Workshop<'_>,
    setting: Setting,
    watch: &mut Watch,
) -> Result<Vec<Table>, Stopped> {
    let results = workshop.measure(&paper_001::jobs(setting.scale), setting.scale.rounds(), watch)?;
    Ok(paper_001::tables(&results, setting))
}

fn tables_of_004(
    workshop: &Workshop<'_>,
    setting: Setting,
    watch: &mut Watch,
) -> Result<Vec<Table>, Stopped> {
    let results = workshop.measure(&paper_004::jobs(setting.scale), setting.scale.rounds(), watch)?;
    let mut runs = paper_004::StageRuns::default();
    for _ in 0..setting.scale.rounds() {
        for fabric in paper_004::FABRICS {
            watch.say(&format!("the stages of a message over {fabric}"));
            runs.add(fabric, workshop.bench("stages", fabric, setting.scale, watch)?);
        }
    }
    Ok(paper_004::tables(&results, &runs, setting))
}

#[cfg(test)]
mod tests {
    use super::report::{Measured, Plot, Row};
    use super::*;
    use crate::reproduce::jobs::Results;
    use crate::reproduce::plots::axis_title;
    use crate::reproduce::sockets::Latencies;

    const SETTING: Setting = Setting { scale: Scale::Full, cores: 2 };

    /// Returns all tables, without measured figures.
    fn all_tables() -> Vec<Table> {
        let results = Results::default();
        let latencies = Latencies { by_size: Vec::new(), core_share: None };
        let mut tables = paper_000::tables(&results, &results, &latencies, SETTING);
        tables.extend(paper_001::tables(&results, SETTING));
        tables.extend(paper_002::tables(Scale::Tiny, &mut |_| {}));
        tables.extend(paper_004::tables(&results, &paper_004::StageRuns::default(), SETTING));
        tables
    }

    fn report(tables: Vec<Table>) -> Report {
        let notes = SETTING.notes().into_iter().chain(paper_000::notes()).chain(paper_001::notes());
        let notes = notes.chain(of_a_busy_machine(&tables)).collect();
        Report { paper: "000", source: paper_000::SOURCE, quick: false, notes, tables }
    }

    #[test]
    fn every_table_fits_into_eighty_columns() {
        let text = text::render(&report(all_tables()), columns::COLUMNS);
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > columns::COLUMNS).collect();
        assert_eq!(wide, [""; 0]);
        assert!(text.contains("Table 8: ") && text.contains("Text, UDP against TCP: "), "{text}");
    }

    #[test]
    fn axes_are_titled_in_words() {
        let drawn: Vec<Table> = all_tables().into_iter().filter(|table| table.plot != Plot::None).collect();
        assert!(drawn.len() >= 10, "{}", drawn.len());
        for table in drawn {
            for unit in [table.unit, table.axis].into_iter().filter(|unit| !unit.is_empty()) {
                let title = axis_title(unit);
                assert!(title.contains(' ') && !title.contains(['%', 'µ']), "{}: '{title}'", table.id);
            }
        }
    }

    #[test]
    fn a_busy_machine_is_told_once_and_beside_each_figure() {
        let mut tables = all_tables();
        assert_eq!(of_a_busy_machine(&tables), None);
        let measured = Measured::wall(1.5).with_share(Some(0.62));
        tables[0].rows.push(Row::at("9 nodes", "FFT", "SC", None, measured));
        let note = of_a_busy_machine(&tables).expect("one row is of a busy machine");
        assert!(
            note.contains("less than 0.9 of a core, 0.62 at the least") && note.contains("'!'"),
            "{note}"
        );
        let text = text::render(&report(tables), columns::COLUMNS);
        assert_eq!(text.matches("1.50!").count(), 1, "{text}");
        assert_eq!(text.matches("This machine was busy").count(), 1, "{text}");
    }
}
