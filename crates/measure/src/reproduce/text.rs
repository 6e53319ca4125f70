//! The report as aligned text.

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};

use super::report::{Report, Row, Table, distinct, measured_text, paper_text};
use hiroba_launch::columns::broken;

/// The columns that a cell of figures may need, its margins included.
const CELL_WIDTH_MIN: usize = 9;

/// Formats the report for a width of `columns`.
pub fn render(report: &Report, columns: usize) -> String {
    let mut text = format!("hiroba reproduce {}\n", report.paper);
    paragraph(&mut text, report.source, columns);
    for note in &report.notes {
        text.push('\n');
        paragraph(&mut text, note, columns);
    }
    for table in &report.tables {
        text.push_str("\n\n");
        paragraph(
            &mut text,
            &format!("{}: {} ({})", capitalised(&table.id), table.title, table.unit),
            columns,
        );
        if table.rows.iter().any(|row| row.paper.is_some()) {
            text.push_str("ours, and the paper's in brackets\n");
        }
        let rows: Vec<&Row> = table.rows.iter().collect();
        for block in distinct(&rows, |row| &row.block) {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.block == block).copied().collect();
            text.push('\n');
            text.push_str(&grid(table, block, &rows, columns));
        }
        for note in &table.notes {
            text.push('\n');
            paragraph(&mut text, note, columns);
        }
    }
    text
}

/// Returns the text with its first letter in upper case.
pub fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Formats our figure and the paper's as one cell.
pub fn cell(table: &Table, row: &Row) -> String {
    if table.rows.iter().any(|row| row.paper.is_some()) && row.paper.is_some() {
        format!("{} [{}]", measured_text(row), paper_text(row))
    } else {
        measured_text(row)
    }
}

/// Formats the lines of a block with a column for each figure, in several parts if they are wider than the
/// terminal.
fn grid(table: &Table, block: &str, rows: &[&Row], columns: usize) -> String {
    let (lines, heads) = (distinct(rows, |row| &row.line), distinct(rows, |row| &row.column));
    let find = |line: &str, head: &str| rows.iter().find(|row| row.line == line && row.column == head);
    let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0) + 2;
    let name_width = widest(&mut lines.iter().chain([&block]).map(|line| line.chars().count()));
    let width =
        widest(&mut rows.iter().map(|row| cell(table, row).chars().count().max(row.column.chars().count())));
    let fitting = (columns.saturating_sub(name_width) / width.max(CELL_WIDTH_MIN)).max(1);
    let mut text = String::new();
    for heads in heads.chunks(fitting) {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        grid.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        grid.set_header([block].iter().chain(heads));
        for line in &lines {
            let cells =
                heads.iter().map(|head| find(line, head).map_or(String::new(), |row| cell(table, row)));
            grid.add_row([(*line).to_owned()].into_iter().chain(cells));
        }
        for column in grid.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in grid.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

fn paragraph(text: &mut String, words: &str, columns: usize) {
    text.push_str(&broken(words, columns).join("\n"));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::report::{Measured, Paper, Plot};
    use super::*;

    fn report() -> Report {
        let mut rows = Vec::new();
        for block in ["2 nodes", "4 nodes"] {
            for (line, paper) in [("FFT", Some(Paper::Number(0.21))), ("Water-Nsquared", None)] {
                for column in ["SC", "LRC", "HLRC", "AURC"] {
                    let measured = if block == "2 nodes" { Measured::wall(1.25) } else { Measured::cpu(2.5) };
                    rows.push(Row::at(block, line, column, paper.clone(), measured));
                }
            }
        }
        let table = Table {
            id: "table 5".to_owned(),
            title: "speed-up".to_owned(),
            unit: "times",
            rows,
            notes: vec!["A note that is longer than a narrow terminal is wide.".to_owned()],
            plot: Plot::None,
            axis: "",
        };
        Report { paper: "000", source: "Somebody", quick: false, notes: vec![], tables: vec![table] }
    }

    #[test]
    fn lines_fit_and_columns_are_aligned() {
        for columns in [40, 60, 100, 200] {
            let text = render(&report(), columns);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}\n{text}");
            assert_eq!(text.matches("1.25 [0.21]").count(), 4, "{text}");
            assert_eq!(text.matches("~2.50").count(), 8, "{text}");
        }
        let text = render(&report(), 100);
        let end = |word: &str| text.lines().find_map(|line| line.find(word).map(|at| at + word.len()));
        assert_eq!(end("  SC"), end("1.25 [0.21]"), "{text}");
    }
}
