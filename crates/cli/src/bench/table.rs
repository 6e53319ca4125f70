//! The rows as a table for people.

use std::fmt::Write;

use super::{Figures, Row};

const COLUMNS: usize = 10;
const HEADS: [&str; COLUMNS] =
    ["what", "state", "p50 µs", "raw µs", "ratio", "p99 µs", "raw p99", "ratio p99", "times", "warm-up"];
/// These columns hold words; the others hold numbers.
const WORDS: usize = 2;

/// The table, with a newline behind each line.
///
/// What the heading says of all rows, `setting`, is left out of their states.
pub fn render(heading: &str, setting: &str, rows: &[Row]) -> String {
    let mut text = format!("{heading}, {setting}\n");
    let (times, bandwidths): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| matches!(row.figures, Figures::Time { .. }));
    if !times.is_empty() {
        table(&mut text, HEADS.map(str::to_owned), setting, &times);
    }
    if !bandwidths.is_empty() {
        let mut heads = HEADS.map(str::to_owned);
        (heads[2], heads[3]) = ("GB/s".to_owned(), "raw GB/s".to_owned());
        heads[5..8].iter_mut().for_each(String::clear);
        table(&mut text, heads, setting, &bandwidths);
    }
    text
}

fn table(text: &mut String, heads: [String; COLUMNS], setting: &str, rows: &[&Row]) {
    let mut lines = vec![heads];
    let mut previous = "";
    for row in rows {
        let mut cells = cells(row);
        // What belongs together stands together: its name once.
        if row.name == previous {
            cells[0].clear();
        }
        previous = &row.name;
        if let Some(rest) = cells[1].strip_prefix(setting) {
            cells[1] = rest.trim_start_matches(", ").to_owned();
        }
        lines.push(cells);
    }
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    text.push('\n');
    for cells in &lines {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let _ = if column < WORDS {
                write!(line, "{cell:<width$}  ")
            } else if *width > 0 {
                write!(line, "{cell:>width$}  ")
            } else {
                Ok(())
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn cells(row: &Row) -> [String; COLUMNS] {
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let ratio = optional(row.ratio);
    let ([ours, raw], p99) = match row.figures {
        Figures::Time { p50_us, p99_us, raw_us, raw_p99_us, ratio_p99 } => {
            ([number(p50_us), optional(raw_us)], [number(p99_us), optional(raw_p99_us), optional(ratio_p99)])
        }
        Figures::Bandwidth { gb_per_s, raw_gb_per_s } => {
            ([number(gb_per_s), optional(raw_gb_per_s)], Default::default())
        }
    };
    let [p99, raw_p99, ratio_p99] = p99;
    let (times, warm_up) = (row.repetitions.to_string(), row.warm_up.to_string());
    [row.name.clone(), row.state.clone(), ours, raw, ratio, p99, raw_p99, ratio_p99, times, warm_up]
}

/// Three significant digits, as far as a column of them stays readable.
fn number(value: f64) -> String {
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

    #[test]
    fn columns_stand_below_their_heads() {
        let time = |name: &str, p50_us: f64, raw_us| Row {
            name: name.to_owned(),
            fabric: "udp".to_owned(),
            state: "event, fault, home idle".to_owned(),
            figures: Figures::Time { p50_us, p99_us: 1234.5, raw_us, raw_p99_us: raw_us, ratio_p99: None },
            ratio: None,
            repetitions: 100,
            warm_up: 2,
        };
        let figures = Figures::Bandwidth { gb_per_s: 1.5, raw_gb_per_s: Some(6.0) };
        let stream = Row { figures, ratio: Some(0.25), ..time("stream", 0.0, None) };
        let rows = [time("fault", 0.0571, None), time("fault", 17.25, Some(8.0)), stream];
        let text = render("heading", "event, fault", &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 8, "{text}");
        assert!(lines[2].starts_with("what") && lines[2].ends_with("warm-up"), "{text}");
        let end = |line: &str, word: &str| {
            line.find(word).map(|at| line[..at].chars().count() + word.chars().count())
        };
        assert_eq!(end(lines[2], "p50 µs"), end(lines[3], "0.057"), "{text}");
        assert_eq!(end(lines[2], "raw µs"), end(lines[4], "8.00"), "{text}");
        assert!(lines[0] == "heading, event, fault" && lines[3].starts_with("fault  home idle  "), "{text}");
        assert!(lines[4].starts_with("       "), "the same name is not repeated\n{text}");
        assert!(lines[6].contains("GB/s") && lines[7].contains("0.250"), "{text}");
    }
}
