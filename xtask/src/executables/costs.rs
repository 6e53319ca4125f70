//! What executables lose on two nodes, in one table: coarse programs beside native runs, the plain programs'
//! builds for POSIX threads beside their builds for Hiroba, and a mutex beside a lock of `hiroba.h`. All of
//! them run in each round.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Arguments, Bench, Job, Program, chosen, succeeded};
use crate::yardstick::figures::Spread;
use crate::yardstick::report::{short, table};

/// Programs that rarely synchronise.
const COARSE: [&str; 2] = ["matmul", "ep"];
const PLAIN: [&str; 6] = ["sor", "lu-rows", "barnes", "water-cells", "fft", "tasks"];

/// The two forms of a source.
struct Forms {
    threads: PathBuf,
    hiroba: PathBuf,
}

/// A line of the table, with a measurement of each round.
struct Line {
    name: String,
    unit: &'static str,
    wanted: &'static str,
    rounds: Vec<f64>,
}

/// Measures everything, and prints the table.
pub(super) fn run(bench: &Bench, source: &Path, arguments: &Arguments) -> Result<(), String> {
    let job = Job { nodes: 2, threads_per_node: 1, protocol: "default".into() };
    let coarse = chosen(&COARSE.map(String::from))?;
    let executables: Vec<PathBuf> = coarse
        .iter()
        .map(|program| bench.compile(source, program, &arguments.compiler))
        .collect::<Result<_, _>>()?;
    let plain =
        |name: &&str| forms(bench, name, &source.join(format!("apps/plain/{name}.c")), "-DTHREADS", "-lm");
    let plain: Vec<Forms> = PLAIN.iter().map(plain).collect::<Result<_, _>>()?;
    let mutex = forms(bench, "mutex", &source.join("xtask/src/executables/mutex.c"), "-DPOSIX", "-DHIROBA")?;
    let mut lines = Vec::new();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (program, executable) in coarse.iter().zip(&executables) {
            let ratio = coarse_ratio(bench, program, executable, &job, arguments)?;
            note(&mut lines, (program.name, "native / nodes", "0.95"), ratio);
        }
        for (name, forms) in PLAIN.iter().zip(&plain) {
            note(
                &mut lines,
                (name, "Hiroba's form / executable", "0.9"),
                plain_ratio(bench, forms, arguments)?,
            );
        }
        let [alone, handed_over] = mutex_costs(bench, &mutex.threads, true, arguments)?;
        let [of_hiroba, handed_over_of_hiroba] = mutex_costs(bench, &mutex.hiroba, false, arguments)?;
        note(&mut lines, ("mutex that nobody else wants", "ns", "60 or less"), alone);
        note(&mut lines, ("hiroba_lock that nobody else wants", "ns", ""), of_hiroba);
        note(&mut lines, ("hiroba_lock handed over", "ns", ""), handed_over_of_hiroba);
        let ratio = handed_over / handed_over_of_hiroba;
        note(&mut lines, ("mutex handed over", "times hiroba_lock", "1.5 or less"), ratio);
    }
    let mut rows = vec![["what", "unit", "median", "wanted"].map(String::from).to_vec()];
    rows.extend(lines.into_iter().map(|Line { name, unit, wanted, rounds }| {
        let median = Spread::of(rounds).map_or("-".into(), |spread| short(spread.median));
        vec![name, unit.into(), median, wanted.into()]
    }));
    print!("{}", table(&rows, 2, arguments.markdown));
    println!("\non two nodes of one thread each; ratios are of seconds, and more than 1 is faster");
    Ok(())
}

fn note(lines: &mut Vec<Line>, (name, unit, wanted): (&str, &'static str, &'static str), value: f64) {
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.rounds.push(value),
        None => lines.push(Line { name: name.to_owned(), unit, wanted, rounds: vec![value] }),
    }
}

/// Compiles both forms of a source: for threads with one more option, for Hiroba with another.
fn forms(bench: &Bench, name: &str, source: &Path, threads: &str, hiroba: &str) -> Result<Forms, String> {
    let place = |form: &str| bench.directory.join(format!("{name}-{form}"));
    let forms = Forms { threads: place("threads"), hiroba: place("hiroba") };
    let mut for_threads = Command::new("cc");
    for_threads.args(["-O2", "-pthread", threads, "-o"]).arg(&forms.threads).arg(source).arg("-lm");
    let mut for_hiroba = Command::new(&bench.hiroba);
    for_hiroba
        .env("HIROBA_CC", "cc")
        .args(["cc", "-O2", "-o"])
        .arg(&forms.hiroba)
        .arg(source)
        .args([hiroba, "-lm"]);
    crate::succeed(&mut for_threads)?;
    crate::succeed(&mut for_hiroba)?;
    Ok(forms)
}

fn coarse_ratio(
    bench: &Bench,
    program: &Program,
    executable: &Path,
    job: &Job,
    arguments: &Arguments,
) -> Result<f64, String> {
    let words = program.arguments(&arguments.class, job.threads());
    let (native, expected) = bench.run_natively(executable, &words, job.threads())?;
    let seconds = bench.run_job(program, executable, &words, job, arguments, &expected)?;
    Ok(seconds.map_or(f64::NAN, |seconds| native / seconds))
}

/// Runs an executable on two nodes. Returns the words that it prints.
fn on_nodes(
    bench: &Bench,
    executable: &Path,
    is_for_threads: bool,
    words: &[&str],
    arguments: &Arguments,
) -> Result<Vec<String>, String> {
    let mut command = Command::new(&bench.hiroba);
    command.args(["run", "-n", "2", "--fabric", &arguments.fabric]);
    if is_for_threads {
        command.arg("--pthread");
    }
    let output = succeeded(command.arg("--").arg(executable).args(words))?;
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect())
}

/// Returns the number behind a word.
fn number_behind(words: &[String], name: &str) -> Result<f64, String> {
    let place = words.iter().position(|word| word == name);
    let number = place.and_then(|place| words.get(place + 1)?.parse().ok());
    number.ok_or_else(|| format!("expected a number behind '{name}', got: {}", words.join(" ")))
}

fn plain_ratio(bench: &Bench, forms: &Forms, arguments: &Arguments) -> Result<f64, String> {
    let executable = on_nodes(bench, &forms.threads, true, &["--threads", "2"], arguments)?;
    let hiroba = on_nodes(bench, &forms.hiroba, false, &[], arguments)?;
    Ok(number_behind(&hiroba, "seconds")? / number_behind(&executable, "seconds")?)
}

/// Returns the nanoseconds of a lock that nobody else wants, and of one that is handed over.
fn mutex_costs(
    bench: &Bench,
    executable: &Path,
    is_for_threads: bool,
    arguments: &Arguments,
) -> Result<[f64; 2], String> {
    let words = on_nodes(bench, executable, is_for_threads, &[], arguments)?;
    Ok([number_behind(&words, "alone_ns")?, number_behind(&words, "handed_over_ns")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_names() {
        let words: Vec<String> = "alone_ns 12.5 holds 40000".split(' ').map(String::from).collect();
        assert_eq!(number_behind(&words, "alone_ns"), Ok(12.5));
        assert!(number_behind(&words, "seconds").unwrap_err().contains("behind 'seconds', got: alone_ns"));
    }

    #[test]
    fn all_sources_exist() {
        let source = crate::source();
        for name in PLAIN {
            assert!(source.join(format!("apps/plain/{name}.c")).is_file(), "{name}");
        }
        assert_eq!(chosen(&COARSE.map(String::from)).unwrap().len(), COARSE.len());
    }
}
