//! `hiroba doctor`: what this machine offers a job and what it lacks, what that costs, and how to fix it.

mod faults;
mod limits;
mod network;
mod processors;
mod tools;

use std::fmt::Write as _;
use std::io::Write as _;

use hiroba_launch::columns;
use hiroba_launch::failure::STATUS_HIROBA;
use hiroba_launch::silence::Meanwhile;

/// The rating of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Nothing is missing.
    Good,
    /// Jobs run, but something is slower or unavailable.
    Lacking,
    /// No job of several nodes runs.
    Fatal,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Lacking => "lacks",
            Verdict::Fatal => "fails",
        }
    }
}

/// The result of one examination.
#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    what: String,
    found: String,
    /// What is lost and what to do about it, if something is.
    loss: Option<(String, String)>,
}

impl Finding {
    fn good(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Good, what: what.into(), found: found.into(), loss: None }
    }

    fn lacking(
        what: impl Into<String>,
        found: impl Into<String>,
        lost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            verdict: Verdict::Lacking,
            what: what.into(),
            found: found.into(),
            loss: Some((lost.into(), remedy.into())),
        }
    }

    fn fatal(self) -> Finding {
        Finding { verdict: Verdict::Fatal, ..self }
    }
}

/// An examination.
type Examine = fn() -> Vec<Finding>;

/// All examinations, by section.
const EXAMINATIONS: [(&str, Examine); 5] = [
    ("Page faults and write tracking", faults::examine),
    ("Memory and limits", limits::examine),
    ("Network", network::examine),
    ("Processors", processors::examine),
    ("Tools", tools::examine),
];

/// Runs all examinations, prints the findings, and returns the exit status: not zero if no job can run here.
pub fn doctor() -> u8 {
    let meanwhile = Meanwhile::doing("looking at this machine");
    let sections = EXAMINATIONS.map(|(title, examine)| {
        meanwhile.now_doing(&format!("looking at this machine: {}", title.to_lowercase()));
        (title, examine())
    });
    drop(meanwhile);
    let text = columns::fold(&render(&headline(), &sections), columns::of_standard_output());
    let _ = std::io::stdout().write_all(text.as_bytes());
    let worst = sections.iter().flat_map(|(_, findings)| findings).map(|finding| finding.verdict).max();
    if worst == Some(Verdict::Fatal) { STATUS_HIROBA } else { 0 }
}

fn headline() -> String {
    let system = rustix::system::uname();
    format!(
        "hiroba {} on {} {} ({}), as {}",
        env!("CARGO_PKG_VERSION"),
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy(),
        if rustix::process::geteuid().is_root() { "root" } else { "an ordinary user" },
    )
}

/// Formats sections of findings in aligned columns, each loss with its remedy beneath.
fn render(headline: &str, sections: &[(&str, Vec<Finding>)]) -> String {
    let mut text = format!("{headline}\n");
    let findings = || sections.iter().flat_map(|(_, findings)| findings);
    let width = findings().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    let margin = " ".repeat("  lacks  ".len() + width + 2);
    for (title, findings) in sections {
        let _ = writeln!(text, "\n{title}");
        for Finding { verdict, what, found, loss } in findings {
            let gap = " ".repeat(width - what.chars().count());
            let _ = writeln!(text, "  {:5}  {what}{gap}  {found}", verdict.word());
            if let Some((lost, remedy)) = loss {
                let _ = writeln!(text, "{margin}lost:   {lost}\n{margin}to do:  {remedy}");
            }
        }
    }
    let count = |verdict| findings().filter(|finding| finding.verdict == verdict).count();
    let summary = match (count(Verdict::Lacking), count(Verdict::Fatal)) {
        (0, 0) => "Nothing is lacking.".to_owned(),
        (lacking, 0) => format!("Jobs run here; {lacking} of {} things could be better.", findings().count()),
        (_, fatal) => {
            let things = hiroba_launch::quantities::counted(&fatal.to_string(), "thing", "things");
            format!("Jobs of several nodes do not run here: {things} must be fixed first.")
        }
    };
    let _ = writeln!(text, "\n{summary}");
    text
}

/// Formats a number of bytes.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Returns the content of a kernel file without the final newline.
fn kernel_file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_stands_under_its_finding_with_its_remedy() {
        let sections = [
            ("One", vec![Finding::good("short", "is fine")]),
            ("Two", vec![Finding::lacking("much longer", "is not", "speed", "buy more")]),
        ];
        let text = render("head", &sections);
        let expected = "\
head

One
  good   short        is fine

Two
  lacks  much longer  is not
                      lost:   speed
                      to do:  buy more

Jobs run here; 1 of 2 things could be better.
";
        assert_eq!(text, expected);
        let broken = [("One", vec![Finding::lacking("it", "is not", "all", "mend it").fatal()])];
        assert!(render("head", &broken).contains("fails  it"));
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(bytes(100), "100 bytes");
        assert_eq!(bytes(16 << 20), "16 MiB");
        assert_eq!(bytes(1_600_000), "1.5 MiB");
    }
}
