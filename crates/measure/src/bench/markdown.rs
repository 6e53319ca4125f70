//! The rows as Markdown tables, one for each kind of figure, line by line as they are measured: for documents
//! that are renewed by the command that measures. A cell contains one figure.

use std::fmt::Write;

use super::table::{number, state_without};
use super::{Figures, Kind, Row};

const TIMES: [&str; 7] = ["what", "state", "p50 µs", "raw p50 µs", "ratio", "p99 µs", "raw p99 µs"];
const MEANS: [&str; 3] = ["what", "state", "mean µs"];
const BANDWIDTHS: [&str; 5] = ["what", "state", "GB/s", "raw GB/s", "ratio"];
/// The number of columns of words, which precede those of figures.
const WORDS: usize = 2;

/// Tables that are written row by row.
#[derive(Debug)]
pub struct Markdown {
    /// What the heading says of all rows; it is left out of their states.
    setting: String,
    /// The kind of figures in the current table.
    begun: Option<Kind>,
}

impl Markdown {
    /// Starts without a table.
    pub fn new(setting: &str) -> Markdown {
        Markdown { setting: setting.to_owned(), begun: None }
    }

    /// Returns the lines of a row, after the head of a table if its kind of figures needs a new one.
    pub fn lines(&mut self, row: &Row) -> String {
        let kind = row.figures.kind();
        let mut text = String::new();
        if self.begun != Some(kind) {
            if self.begun.is_some() {
                text.push('\n');
            }
            text += &head(match kind {
                Kind::Time => &TIMES,
                Kind::Mean => &MEANS,
                Kind::Bandwidth => &BANDWIDTHS,
            });
            self.begun = Some(kind);
        }
        let state = state_without(&self.setting, row);
        let cells = [row.name.as_str(), state].map(escaped).into_iter().chain(figures(row));
        text + &line(cells)
    }

    /// Returns a sentence as a paragraph. It ends the table before it.
    pub fn remark(&mut self, sentence: &str) -> String {
        let separator = if self.begun.take().is_some() { "\n" } else { "" };
        format!("{separator}({sentence})\n\n")
    }
}

fn figures(row: &Row) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or(String::new(), number);
    match row.figures {
        Figures::Time { p50_us, p99_us, raw_us, raw_p99_us, .. } => {
            vec![number(p50_us), optional(raw_us), optional(row.ratio), number(p99_us), optional(raw_p99_us)]
        }
        Figures::Mean { mean_us } => vec![number(mean_us)],
        Figures::Bandwidth { gb_per_s, raw_gb_per_s } => {
            vec![number(gb_per_s), optional(raw_gb_per_s), optional(row.ratio)]
        }
    }
}

/// Returns the head of a table whose first two columns are words and whose others are figures.
fn head(names: &[&str]) -> String {
    let rule = (0..names.len()).map(|column| if column < WORDS { "---" } else { "---:" }.to_owned());
    line(names.iter().map(|name| name.to_string())) + &line(rule)
}

/// Returns a line of a table.
pub fn line(cells: impl IntoIterator<Item = String>) -> String {
    let mut text = String::from("|");
    for cell in cells {
        let _ = write!(text, " {cell} |");
    }
    text + "\n"
}

/// Escapes bars, which would end the cell.
fn escaped(words: &str) -> String {
    words.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::samples::Taken;

    #[test]
    fn each_kind_of_figure_has_a_table_with_one_figure_a_cell() {
        let taken = |us: f64| Taken::new(vec![us * 1000.0], 0);
        let time = |name, raw: Option<f64>| {
            crate::bench::row(name, "udp", "event, fault, home idle", taken(12.0), raw.map(taken).as_ref())
        };
        let figures = Figures::Bandwidth { gb_per_s: 1.5, raw_gb_per_s: Some(6.0) };
        let stream = Row { figures, ratio: Some(0.25), ..time("stream", None) };
        let mut tables = Markdown::new("event, fault");
        let text =
            [time("fault", Some(6.0)), time("a|b", None), stream].map(|row| tables.lines(&row)).concat();
        assert_eq!(
            text,
            "\
| what | state | p50 µs | raw p50 µs | ratio | p99 µs | raw p99 µs |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
| fault | home idle | 12.0 | 6.00 | 2.00 | 12.0 | 6.00 |
| a\\|b | home idle | 12.0 |  |  | 12.0 |  |

| what | state | GB/s | raw GB/s | ratio |
| --- | --- | ---: | ---: | ---: |
| stream | home idle | 1.50 | 6.00 | 0.250 |
"
        );
        assert_eq!(tables.remark("it was busy"), "\n(it was busy)\n\n");
        assert!(tables.lines(&time("fault", None)).starts_with("| what "), "the remark has ended the table");
    }
}
