//! The rows as a table for people, line by line as they arrive.
//!
//! What a row measures is printed on a line of its own, once for successive rows that share it. Below follow
//! the states, broken between words, with the figures behind their last line.

use std::fmt::Write;

use super::{Figures, Kind, Row};
use hiroba_launch::columns::broken;

/// The heads of the columns of figures, and their widths.
const TIMES: [(&str, usize); 7] =
    [("p50 µs", 8), ("raw", 7), ("ratio", 6), ("p99 µs", 8), ("raw", 7), ("ratio", 6), ("times", 6)];
const MEANS: [(&str, usize); 2] = [("mean µs", 8), ("times", 40)];
const BANDWIDTHS: [(&str, usize); 4] = [("GB/s", 8), ("raw", 7), ("ratio", 6), ("times", 27)];
/// The width of all columns of figures.
const FIGURES_WIDTH: usize = 48;
const INDENT: &str = "  ";
/// The maximum width of a line.
const COLUMNS_MAX: usize = 120;
const COLUMNS_MIN: usize = 80;

/// A table that is written row by row.
#[derive(Debug)]
pub struct Table {
    /// What the heading says of all rows; it is left out of their states.
    setting: String,
    states_width: usize,
    /// What the last row measured, and the kind of its figures.
    last: Option<(String, Kind)>,
}

impl Table {
    /// Makes a table of `columns` columns if that is 80 or more.
    pub fn new(setting: &str, columns: usize) -> Table {
        let columns = columns.clamp(COLUMNS_MIN, COLUMNS_MAX);
        let states_width = columns - FIGURES_WIDTH - INDENT.len();
        Table { setting: setting.to_owned(), states_width, last: None }
    }

    /// Returns the lines to print for a row, each with its newline.
    pub fn lines(&mut self, row: &Row) -> String {
        let kind = row.figures.kind();
        let heads: &[(&str, usize)] = match kind {
            Kind::Time => &TIMES,
            Kind::Mean => &MEANS,
            Kind::Bandwidth => &BANDWIDTHS,
        };
        let mut text = String::new();
        if self.last.as_ref().is_none_or(|(_, last)| *last != kind) {
            text.push('\n');
            self.line(&mut text, "", heads.iter().copied());
        }
        if self.last.as_ref().is_none_or(|last| *last != (row.name.clone(), kind)) {
            let _ = writeln!(text, "{}", row.name);
        }
        self.last = Some((row.name.clone(), kind));
        let states = broken(state_without(&self.setting, row), self.states_width - 1);
        let (last, first) = states.split_last().map_or(("", &[][..]), |(last, first)| (last, first));
        for state in first {
            let _ = writeln!(text, "{INDENT}{state}");
        }
        let cells = cells(row);
        self.line(&mut text, last, cells.iter().map(String::as_str).zip(heads.iter().map(|head| head.1)));
        text
    }

    fn line<'a>(&self, text: &mut String, state: &str, cells: impl Iterator<Item = (&'a str, usize)>) {
        let _ = write!(text, "{INDENT}{state:<0$}", self.states_width);
        for (cell, width) in cells {
            // A figure that is too wide for its column shifts the others, and remains readable.
            let _ = write!(text, " {cell:>0$}", width - 1);
        }
        text.push('\n');
    }
}

/// Returns the state of a row without what the heading says of all rows.
pub fn state_without<'a>(setting: &str, row: &'a Row) -> &'a str {
    row.state.strip_prefix(setting).map_or(&row.state, |rest| rest.trim_start_matches(", "))
}

fn cells(row: &Row) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let (ratio, times) = (optional(row.ratio), row.repetitions.to_string());
    match row.figures {
        Figures::Time { p50_us, p99_us, raw_us, raw_p99_us, ratio_p99 } => vec![
            number(p50_us),
            optional(raw_us),
            ratio,
            number(p99_us),
            optional(raw_p99_us),
            optional(ratio_p99),
            times,
        ],
        Figures::Mean { mean_us } => vec![number(mean_us), times],
        Figures::Bandwidth { gb_per_s, raw_gb_per_s } => {
            vec![number(gb_per_s), optional(raw_gb_per_s), ratio, times]
        }
    }
}

/// Formats three significant digits, as far as a column of them stays readable.
pub fn number(value: f64) -> String {
    let decimals = match value {
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(name: &str, state: &str, p50_us: f64, raw_us: Option<f64>) -> Row {
        Row {
            name: name.to_owned(),
            fabric: "udp".to_owned(),
            state: state.to_owned(),
            figures: Figures::Time {
                p50_us,
                p99_us: 123_456.0,
                raw_us,
                raw_p99_us: raw_us,
                ratio_p99: raw_us,
            },
            ratio: None,
            repetitions: 100,
            warm_up: 2,
            core_share: None,
            shares_cores: false,
        }
    }

    #[test]
    fn columns_stand_below_their_heads() {
        let mut table = Table::new("event, fault", 80);
        let first = table.lines(&time("fault", "event, fault, home idle", 0.0571, None));
        let second = table.lines(&time("fault", "event, fault", 17.25, Some(8.0)));
        let figures = Figures::Bandwidth { gb_per_s: 1.5, raw_gb_per_s: Some(6.0) };
        let stream = Row { figures, ratio: Some(0.25), ..time("stream", "", 0.0, None) };
        let third = table.lines(&stream);
        let text = format!("{first}{second}{third}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 9, "{text}");
        let end = |line: &str, word: &str| {
            line.find(word).map(|at| line[..at].chars().count() + word.chars().count())
        };
        assert!(lines[1].ends_with("times") && lines[2] == "fault", "{text}");
        assert_eq!(end(lines[1], "p50 µs"), end(lines[3], "0.057"), "{text}");
        assert_eq!(end(lines[1], "raw"), end(lines[4], "8.00"), "{text}");
        assert_eq!(end(lines[1], "times"), end(lines[3], "100"), "{text}");
        assert!(lines[3].starts_with("  home idle  "), "what holds for all is said once\n{text}");
        assert!(lines[6].contains("GB/s") && lines[7] == "stream", "{text}");
    }

    #[test]
    fn lines_fit_and_words_stay_whole() {
        let states = [
            "event, fault, 1024 MiB mapped, 1024 pages dirty, 2 threads",
            "aurc as estimated: hlrc, event, fault, 512 pages, each written 8 times, less twins, diffs and their application",
            "",
        ];
        for columns in [0, 80, 100, 300] {
            let mut table = Table::new("event, fault", columns);
            for state in states {
                let row = time(
                    "lock, handed over to one who waits, 64 pages dirty (raw: one way)",
                    state,
                    1.0,
                    Some(123.0),
                );
                let text = table.lines(&row);
                assert!(text.lines().all(|line| line.chars().count() <= columns.clamp(80, 120)), "{text}");
                let words: Vec<&str> = text.split_whitespace().collect();
                let whole =
                    |word: &str| words.contains(&word) || "event, fault".contains(word.trim_end_matches(','));
                assert!(state.split_whitespace().all(whole), "{text}");
            }
        }
    }
}
