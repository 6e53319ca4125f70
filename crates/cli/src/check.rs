//! `hiroba check`: checks a traced run by everything that its records allow.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use hiroba_base::{NodeId, printable};
use hiroba_judge::axioms;
use hiroba_judge::execution::Execution;
use hiroba_judge::page_axioms::{self, Rules, axioms_of};
use hiroba_judge::promise::{Promise, by_name, promise_of};
use hiroba_judge::reading::{TracedRun, read};
use hiroba_judge::sequential::{self, Sequential};
use hiroba_node::Protocol;
use hiroba_wire::FabricKind;
use serde::Serialize;

use hiroba_launch::columns;
use hiroba_launch::failure::Failure;
use hiroba_launch::quantities::counted;
use hiroba_launch::silence::Meanwhile;

/// The exit status of a run that breaks a promise.
const STATUS_BROKEN: u8 = 1;
/// A trace does not contain a program's own loads and stores, unless it makes them through
/// `hiroba_traced_load` and `hiroba_traced_store`.
const PROGRAM_NOT_LOOKED_AT: &str = "whether the program synchronises correctly, since its loads and stores were not traced; \
    hiroba run --races looks for data races between nodes";
/// The number of explanations that are printed; the others are counted.
const PRINTED_MAX: usize = 3;

/// The result of checking a run.
#[derive(Default, Serialize)]
struct Verdict {
    program: String,
    nodes: u16,
    protocol: String,
    fabric: String,
    records: usize,
    threads: usize,
    accesses: usize,
    loads_judged: usize,
    /// Violations in what its nodes did to pages.
    #[serde(flatten)]
    counts: page_axioms::Counts,
    axioms: Vec<String>,
    wall_s: f64,
    /// The reasons why nodes' traces break off.
    cut_off: Vec<String>,
    violations: usize,
    explanations: Vec<String>,
    races: Vec<String>,
    /// What the verdict does not cover.
    not_looked_at: Option<String>,
    /// A contradiction because of which accesses cannot be judged.
    not_judged: Option<String>,
}

/// Checks the run in a directory and prints the verdict.
///
/// # Errors
/// Fails if the directory contains no readable trace.
pub fn check(directory: &Path, json: bool) -> Result<u8, Failure> {
    let began = Instant::now();
    let meanwhile = Meanwhile::doing("reading the trace");
    let has_read = |records: usize| {
        let records = counted(&grouped(records), "record", "records");
        meanwhile.is_still_doing(&format!("reading the trace: {records}"));
    };
    let traced = read(directory, has_read).map_err(|error| Failure::new(error.to_string()))?;
    let protocol = by_name(&traced.job.protocol)
        .map_err(|sentence| Failure::new(format!("the trace is of another version: {sentence}")))?;
    meanwhile.now_doing(&format!("judging {}", counted(&grouped(traced.run.len()), "record", "records")));
    let mut verdict = judge(&traced, protocol);
    drop(meanwhile);
    verdict.wall_s = began.elapsed().as_secs_f64();
    let text = if json {
        serde_json::to_string_pretty(&verdict).unwrap_or_default() + "\n"
    } else {
        columns::fold(&escaped(&describe(&verdict)), columns::of_standard_output())
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(match (verdict.violations, verdict.cut_off.is_empty() && verdict.not_judged.is_none()) {
        (0, true) => 0,
        (0, false) => hiroba_launch::failure::STATUS_HIROBA,
        _ => STATUS_BROKEN,
    })
}

fn judge(traced: &TracedRun, protocol: Protocol) -> Verdict {
    let job = &traced.job;
    let broken = |(node, why): &(NodeId, String)| format!("the trace of node {node} is cut off: {why}");
    let mut verdict = Verdict {
        program: std::iter::once(&job.program).chain(&job.arguments).cloned().collect::<Vec<_>>().join(" "),
        nodes: job.nodes,
        protocol: job.protocol.clone(),
        fabric: job.fabric.clone(),
        records: traced.run.len(),
        cut_off: traced.breaks.iter().map(broken).collect(),
        ..Verdict::default()
    };
    judge_pages(traced, protocol, &mut verdict);
    let execution = Execution::of(&traced.run);
    verdict.threads = execution.threads.len();
    verdict.accesses = execution.accesses();
    if verdict.accesses > 0 {
        judge_accesses(&execution, protocol, &mut verdict);
    } else {
        verdict.not_looked_at = Some(PROGRAM_NOT_LOOKED_AT.to_owned());
    }
    verdict
}

fn judge_pages(traced: &TracedRun, protocol: Protocol, verdict: &mut Verdict) {
    let axioms = axioms_of(protocol);
    let rules = Rules {
        axioms,
        // Over such a fabric nodes may read each other's frames, and no message tells when.
        one_sided: FabricKind::named(&traced.job.fabric).is_some_and(FabricKind::shares_memory),
        granule_bytes: traced.granule_bytes,
        message_kinds: &traced.message_kinds,
    };
    let findings = page_axioms::judge(&traced.run, &rules);
    verdict.axioms = axioms.iter().map(ToString::to_string).collect();
    verdict.counts = findings.counts;
    verdict.violations += findings.breaches_found;
    let explained = findings.breaches.iter().take(PRINTED_MAX);
    verdict
        .explanations
        .extend(explained.map(|breach| format!("{}\n  {}", breach.axiom, breach.explanation)));
}

fn judge_accesses(execution: &Execution, protocol: Protocol, verdict: &mut Verdict) {
    let judged = match axioms::judge(execution) {
        Ok(judged) => judged,
        Err(incomplete) => {
            verdict.not_judged = Some(incomplete.to_string());
            return;
        }
    };
    verdict.loads_judged = judged.loads_judged;
    verdict.violations += judged.violations_found;
    let explained = judged.violations.iter().take(PRINTED_MAX);
    verdict.explanations.extend(explained.map(|violation| violation.explanation.clone()));
    verdict.races = judged.races.iter().map(|race| race.describe(execution)).collect();
    // Without races every protocol must behave like one machine; with races only sequential consistency must.
    let sequential = match promise_of(protocol) {
        Promise::Sequential => Some(sequential::judge(execution)),
        Promise::Release if judged.races.is_empty() => Some(sequential::judge_race_free(execution)),
        Promise::Release => None,
    };
    if let Some(Sequential::No { explanation }) = sequential {
        verdict.violations += 1;
        verdict.explanations.push(explanation);
    }
}

fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats the number of races, which are counted up to a limit.
fn count_races(verdict: &Verdict) -> String {
    let more = if verdict.races.len() < axioms::RACES_MAX { "" } else { " or more" };
    format!("{}{more}", verdict.races.len())
}

fn describe(verdict: &Verdict) -> String {
    let count = |number: usize, one: &str, many: &str| counted(&grouped(number), one, many);
    let mut lines = vec![format!(
        "{}: {} over {}, {}; {} judged in {:.1} s",
        printable(&verdict.program),
        printable(&verdict.protocol),
        printable(&verdict.fabric),
        counted(&verdict.nodes.to_string(), "node", "nodes"),
        count(verdict.records, "record", "records"),
        verdict.wall_s
    )];
    lines.push(format!(
        "  order     {}, {}, {}",
        count(verdict.counts.messages, "message", "messages"),
        count(verdict.counts.holds, "hold of a lock", "holds of locks"),
        count(verdict.counts.meetings, "meeting", "meetings")
    ));
    let grants = match verdict.counts.grants {
        0 => String::new(),
        grants => format!("{}, ", count(grants, "grant of access", "grants of access")),
    };
    lines.push(format!(
        "  pages     {grants}{}, {}, {}, {}, by {}",
        count(verdict.counts.intervals, "interval", "intervals"),
        count(verdict.counts.notices, "write notice", "write notices"),
        count(verdict.counts.versions, "copy", "copies"),
        count(verdict.counts.diffs, "diff", "diffs"),
        count(verdict.axioms.len(), "axiom", "axioms")
    ));
    lines.push(match verdict.accesses {
        0 => "  accesses  none recorded, so data races were not looked for".to_owned(),
        accesses => format!(
            "  accesses  {} of {}, {} judged byte by byte",
            grouped(accesses),
            count(verdict.threads, "thread", "threads"),
            count(verdict.loads_judged, "load", "loads")
        ),
    });
    let indented = |text: &str| text.replace('\n', "\n    ");
    if let Some(race) = verdict.races.first() {
        let count = count_races(verdict);
        lines.push(format!(
            "\ndata races: {count}, errors of the program; values of such bytes are not judged. The first:"
        ));
        lines.push(format!("    {}", indented(race)));
    }
    if verdict.violations > 0 {
        lines.push(format!(
            "\nviolations: {}, an error in Hiroba; please report it with the trace",
            verdict.violations
        ));
        lines.extend(verdict.explanations.iter().map(|text| format!("  - {}", indented(text))));
    }
    if let Some(why) = &verdict.not_judged {
        lines.push(format!("\nthe accesses could not be judged: {why}"));
    }
    if !verdict.cut_off.is_empty() {
        lines.push("\nthe trace is incomplete; the recorded part was judged:".to_owned());
        lines.extend(verdict.cut_off.iter().map(|why| format!("  {why}")));
    }
    if verdict.violations == 0 {
        lines.push(match (verdict.accesses, verdict.races.len()) {
            (0, _) => "\nno violation found: pages were as recent as synchronisation requires".to_owned(),
            (_, 0) => "\nno violation found, and no data race among the accesses that were traced".to_owned(),
            (_, 1) => "\nno violation found; the data race is an error of the program".to_owned(),
            (_, _) => {
                let races = count_races(verdict);
                format!("\nno violation found; the {races} data races are errors of the program")
            }
        });
    }
    if let Some(what) = &verdict.not_looked_at {
        lines.push(format!("not judged: {what}"));
    }
    lines.join("\n") + "\n"
}

/// Escapes each line for the terminal: races and violations quote the trace, which may come from another
/// user.
fn escaped(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trace_says_reaches_the_terminal_escaped() {
        let verdict = Verdict {
            program: "p\x1b[2J".to_owned(),
            races: vec!["thread 1 at\n\x1b]0;owned\x07".to_owned()],
            violations: 1,
            explanations: vec!["axiom\u{9b}31m\n  why".to_owned()],
            cut_off: vec!["end\r".to_owned()],
            not_judged: Some("\u{202e}".to_owned()),
            ..Verdict::default()
        };
        let text = escaped(&describe(&verdict));
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text}");
        for shown in [
            "p\\u{1b}[2J",
            "    \\u{1b}]0;owned\\u{7}\n",
            "axiom\\u{9b}31m\n      why",
            "end\\r",
            "\\u{202e}",
        ] {
            assert!(text.contains(shown), "'{shown}' is missing in {text}");
        }
    }
}
