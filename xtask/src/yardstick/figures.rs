//! The output and counts of runs, and the figures derived from several runs.

use std::fmt;

use serde_json::Value;

/// The relative tolerance for checksums of sums whose order varies.
const NEAR: f64 = 1e-6;

/// A way to run a program on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The value of `hiroba run --fabric`.
    pub fabric: String,
    /// The value of `hiroba run --protocol`, or `default`.
    pub protocol: String,
}

impl fmt::Display for Form {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.fabric, self.protocol)
    }
}

/// One run of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Seconds of the computation.
    pub seconds: f64,
    /// Seconds of the initialisation.
    pub init_seconds: f64,
    /// As printed by the program: hexadecimal digits, or a decimal number where the order of sums varies.
    pub checksum: String,
    /// Messages of all nodes, in the whole run.
    pub messages: u64,
    /// Bytes that all nodes sent, in the whole run.
    pub bytes: u64,
    /// Page faults of all nodes, in the whole run.
    pub faults: u64,
    /// The lowest share of processor time that a node's threads got out of what they could have used.
    pub core_share: Option<f64>,
}

impl Run {
    /// Parses the output of a plain program whose result has passed its checks.
    pub fn from_output(text: &str) -> Result<Run, String> {
        if !text.lines().any(|line| line == "checks passed") {
            return Err("expected the line 'checks passed' in its output".into());
        }
        let line = text.lines().last().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let time =
            |word: &str| word.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
        match words.as_slice() {
            ["seconds", seconds, "init", init, "checksum", checksum] => {
                let (Some(seconds), Some(init_seconds)) = (time(seconds), time(init)) else {
                    return Err(format!("expected seconds, got '{line}'"));
                };
                // The programs print microseconds; a ratio needs more than zero.
                let seconds = seconds.max(1e-6);
                Ok(Run { seconds, init_seconds, checksum: (*checksum).to_owned(), ..Run::default() })
            }
            _ => Err(format!("expected 'seconds S init I checksum C', got '{line}'")),
        }
    }

    /// Takes the counts from the account of a job.
    pub fn take_account(&mut self, account: &Value) {
        let total = |name: &str| account["total"][name].as_u64().unwrap_or(0);
        self.messages = total("messages_sent");
        self.bytes = total("bytes_sent");
        self.faults = total("read_faults") + total("write_faults");
        let nodes = account["per_node"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.core_share = nodes.iter().filter_map(|node| node["core_share"].as_f64()).reduce(f64::min);
    }
}

/// All runs of a program in one form.
#[derive(Clone, Debug)]
pub struct FormRuns {
    /// The form.
    pub form: Form,
    /// One for each round, unless the form is skipped.
    pub runs: Vec<Run>,
    /// True if a run took too long; the form is not run again.
    pub is_skipped: bool,
}

/// All runs of a program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// One run for each round, on the threads of one process.
    pub threads: Vec<Run>,
    /// The runs on nodes.
    pub forms: Vec<FormRuns>,
}

impl Program {
    /// A program that has not run yet.
    pub fn new(name: &str, forms: Vec<Form>) -> Program {
        let none = |form| FormRuns { form, runs: Vec::new(), is_skipped: false };
        Program { name: name.to_owned(), threads: Vec::new(), forms: forms.into_iter().map(none).collect() }
    }

    /// Compares a run's checksum with that of the first run.
    pub fn accept(&self, run: &Run, form: &str) -> Result<(), String> {
        match self.threads.first() {
            Some(first) if !agree(&first.checksum, &run.checksum) => Err(format!(
                "{} on {form} has the checksum {}, expected {} as on threads",
                self.name, run.checksum, first.checksum
            )),
            _ => Ok(()),
        }
    }

    /// Returns true if threads share every row of the program's matrix. Such programs are listed separately.
    pub fn is_by_columns(&self) -> bool {
        self.name.ends_with("-columns")
    }

    /// Returns seconds on threads over seconds on nodes, over the rounds in which both ran.
    pub fn ratios(&self, form: &FormRuns) -> Option<Spread> {
        let pairs = self.threads.iter().zip(&form.runs);
        Spread::of(pairs.map(|(threads, nodes)| threads.seconds / nodes.seconds))
    }
}

fn agree(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok().filter(|_| text.contains('.'));
    match (number(one), number(other)) {
        (Some(a), Some(b)) => (a - b).abs() <= NEAR * a.abs().max(b.abs()),
        _ => one == other,
    }
}

/// The median and the extremes of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median. Of an even number of numbers, it is the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Finds the spread of some numbers. Returns `None` if there are none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let below = sorted[(sorted.len() - 1) / 2];
        Some(Spread { median: (below + sorted[middle]) / 2.0, min, max })
    }
}

/// Returns the geometric mean, or `None` if there are no numbers.
pub fn geometric_mean(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = numbers.into_iter().map(f64::ln).collect();
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_from_its_last_line() {
        let run = Run::from_output("checks passed\nseconds 0.500000 init 0.125000 checksum 00ff\n").unwrap();
        assert_eq!((run.seconds, run.init_seconds, run.checksum.as_str()), (0.5, 0.125, "00ff"));
    }

    #[test]
    fn what_is_no_result_is_refused() {
        let cases = [
            ("", "checks passed"),
            ("seconds 1 init 1 checksum 0\n", "checks passed"),
            ("checks passed\n", "expected 'seconds S"),
            ("checks passed\nseconds x init 1 checksum 0\n", "expected seconds"),
            ("checks passed\nseconds -1 init 1 checksum 0\n", "expected seconds"),
            ("checks passed\nseconds NaN init 1 checksum 0\n", "expected seconds"),
        ];
        for (text, phrase) in cases {
            let sentence = Run::from_output(text).unwrap_err();
            assert!(sentence.contains(phrase), "{text:?}: {sentence}");
        }
    }

    #[test]
    fn digits_agree_exactly_and_numbers_nearly() {
        assert!(agree("00ff", "00ff") && !agree("00ff", "00fe"));
        assert!(agree("1.000000000e+03", "1.000000001e+03") && !agree("1.0001e+03", "1.0000e+03"));
        assert!(!agree("1234567812345678", "1234567812345679"), "digits that look like a number");
    }

    #[test]
    fn a_wrong_checksum_is_told() {
        let mut program = Program::new("fft", Vec::new());
        let run = |checksum: &str| Run { checksum: checksum.into(), ..Run::default() };
        assert_eq!(program.accept(&run("a"), "threads"), Ok(()));
        program.threads.push(run("a"));
        assert_eq!(program.accept(&run("a"), "udp sc"), Ok(()));
        let sentence = program.accept(&run("b"), "udp sc").unwrap_err();
        assert_eq!(sentence, "fft on udp sc has the checksum b, expected a as on threads");
    }

    #[test]
    fn medians_and_means() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
        assert!((geometric_mean([0.5, 2.0, 8.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let form = Form { fabric: "udp".into(), protocol: "default".into() };
        let mut program = Program::new("fft", vec![form]);
        let run = |seconds| Run { seconds, ..Run::default() };
        program.threads = vec![run(1.0), run(4.0), run(1.0)];
        program.forms[0].runs = vec![run(2.0), run(8.0), run(4.0)];
        let spread = program.ratios(&program.forms[0]).unwrap();
        assert_eq!(spread, Spread { median: 0.5, min: 0.25, max: 0.5 });
    }

    #[test]
    fn an_account_gives_its_totals_and_the_least_share_of_a_core() {
        let account = serde_json::json!({
            "total": {"messages_sent": 7, "bytes_sent": 8, "read_faults": 2, "write_faults": 3},
            "per_node": [{"core_share": 0.99}, {"core_share": 0.5}, {"core_share": null}],
        });
        let mut run = Run::default();
        run.take_account(&account);
        assert_eq!((run.messages, run.bytes, run.faults, run.core_share), (7, 8, 5, Some(0.5)));
        run.take_account(&serde_json::json!({}));
        assert_eq!((run.messages, run.core_share), (0, None));
    }
}
