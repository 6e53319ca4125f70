//! The report as one self-contained page.

use std::fmt::Write;

use super::plots::{self, Key, Sign};
use super::report::{Report, Row, Table, distinct};
use super::text::{capitalised, cell};
use hiroba_launch::failure::Failure;

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fdfdfc; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 3rem; } .unit { font-weight: normal; opacity: 0.75; }
p.note { font-size: 0.9rem; opacity: 0.85; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.15rem 0.9rem 0.15rem 0; text-align: right; white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1px solid #8888; } .paper { color: #b34700; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-family: inherit; }
ul.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; font-size: 0.9rem; }
ul.key span { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; box-sizing: border-box; line-height: 0.8em; text-align: center; }
@media (prefers-color-scheme: dark) { body { color: #e6e6e3; background: #161616; } .paper { color: #ff9d5c; } }
";

/// Renders the page.
pub fn render(report: &Report) -> Result<String, Failure> {
    let title = format!("hiroba reproduce {}", report.paper);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escaped(report.source)
    );
    for note in &report.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(note));
    }
    for table in &report.tables {
        section(&mut page, table)?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn section(page: &mut String, table: &Table) -> Result<(), Failure> {
    let heading = format!("{}: {}", capitalised(&table.id), table.title);
    let _ = writeln!(
        page,
        "<h2>{} <span class=\"unit\">({})</span></h2>",
        escaped(&heading),
        escaped(table.unit)
    );
    let drawn = plots::draw(table)
        .map_err(|error| Failure::new(format!("cannot draw {}: {error}; leave --html out", table.id)))?;
    for plot in &drawn.plots {
        page.push_str(&plots::titled(plot, &escaped(&heading)));
    }
    key(page, &drawn.keys);
    let rows: Vec<&Row> = table.rows.iter().collect();
    if rows.iter().any(|row| row.paper.is_some()) {
        page.push_str("<p class=\"note\">Ours, and <span class=\"paper\">[the paper's]</span>.</p>\n");
    }
    for block in distinct(&rows, |row| &row.block) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.block == block).copied().collect();
        grid(page, table, block, &rows);
    }
    for note in &table.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(note));
    }
    Ok(())
}

fn key(page: &mut String, keys: &[Key]) {
    if keys.is_empty() {
        return;
    }
    page.push_str("<ul class=\"key\">\n");
    for Key { colour, sign, meaning } in keys {
        let (style, text) = match sign {
            Sign::Filled => (format!("background:{colour}"), ""),
            Sign::Pale => (format!("background:{colour};opacity:0.45"), ""),
            Sign::Outline => (format!("border:2px solid {colour}"), ""),
            Sign::Cross => (format!("color:{colour};font-weight:bold"), "\u{d7}"),
        };
        let _ = writeln!(page, "<li><span style=\"{style}\">{text}</span>{}</li>", escaped(meaning));
    }
    page.push_str("</ul>\n");
}

fn grid(page: &mut String, table: &Table, block: &str, rows: &[&Row]) {
    let (lines, heads) = (distinct(rows, |row| &row.line), distinct(rows, |row| &row.column));
    let _ = write!(page, "<table>\n<thead><tr><th>{}</th>", escaped(block));
    for head in &heads {
        let _ = write!(page, "<th>{}</th>", escaped(head));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for line in lines {
        let _ = write!(page, "<tr><td>{}</td>", escaped(line));
        for head in &heads {
            let row = rows.iter().find(|row| row.line == line && row.column == *head);
            let text = row.map_or(String::new(), |row| escaped(&cell(table, row)));
            let (ours, paper) = text.split_once(" [").unwrap_or((&text, ""));
            let _ = match paper {
                "" => write!(page, "<td>{ours}</td>"),
                paper => write!(page, "<td>{ours} <span class=\"paper\">[{paper}</span></td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::report::{Measured, Paper, Plot};
    use super::*;

    #[test]
    fn the_page_is_whole_and_names_stay_text() {
        let rows = vec![Row::at("", "A & B", "<1>", Some(Paper::Number(0.5)), Measured::wall(1.0))];
        let table = Table {
            id: "table 1".to_owned(),
            title: "so \"many\"".to_owned(),
            unit: "times",
            rows,
            notes: vec!["a < b".to_owned()],
            plot: Plot::Paired,
            axis: "",
        };
        let report =
            Report { paper: "000", source: "X & Y", quick: true, notes: vec![], tables: vec![table] };
        let page = render(&report).unwrap();
        for part in [
            "X &amp; Y",
            "<td>A &amp; B</td>",
            "<th>&lt;1&gt;</th>",
            "a &lt; b",
            "[0.5]</span></td>",
            "<svg role=\"img\"",
        ] {
            assert!(page.contains(part), "expected {part}\n{page}");
        }
        assert!(page.ends_with("</html>\n"));
        assert!(!page.contains("src=") && !page.contains("href="), "nothing is fetched");
    }
}
