//! The plots of a table, as SVG.
//!
//! Text is drawn in black and lines in grey. The page that contains them gives text its own colour, so that
//! plots are readable on a light and on a dark background.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{How, Paper, Plot, Row, Table, distinct};

/// Colours that most people can distinguish, on a light and on a dark background (M. Okabe, K. Ito: Color
/// Universal Design).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xb8, 0xa9, 0x1c),
    RGBColor(0x88, 0x88, 0x88),
];
const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);
/// The opacity of estimates.
const PALE: f64 = 0.45;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 340;
/// The height below a plot for the names of bars and of their groups.
const NAMES_HEIGHT: u32 = 48;
const FONT: f64 = 15.0;

/// An entry of the legend.
pub struct Key {
    /// The colour in CSS.
    pub colour: String,
    /// The shape of the sign.
    pub sign: Sign,
    /// The meaning.
    pub meaning: String,
}

/// The shape of a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A filled square.
    Filled,
    /// A pale square.
    Pale,
    /// An outline.
    Outline,
    /// A cross.
    Cross,
}

/// A table's plots and their legend.
pub struct Drawn {
    /// SVG elements.
    pub plots: Vec<String>,
    /// The meaning of colours and signs.
    pub keys: Vec<Key>,
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Returns the title of an axis: the unit in words, and what it counts.
pub fn axis_title(unit: &str) -> String {
    match unit {
        "ms" => "time in milliseconds".to_owned(),
        "s" => "time in seconds".to_owned(),
        "µs" => "time in microseconds".to_owned(),
        "%" => "per cent".to_owned(),
        "times" => "ratio (times)".to_owned(),
        "faults" => "number of faults".to_owned(),
        "nodes" => "number of nodes".to_owned(),
        "processors" => "number of processors".to_owned(),
        other => other.to_owned(),
    }
}

/// Draws a table in the form that it selects.
pub fn draw(table: &Table) -> std::result::Result<Drawn, String> {
    let rows: Vec<&Row> = table.rows.iter().collect();
    let drawn = match table.plot {
        Plot::None => Ok(Drawn { plots: Vec::new(), keys: Vec::new() }),
        Plot::Stacked => stacked(table, &rows),
        Plot::Paired => paired(table, &rows),
        Plot::Curves => curves(table, &rows),
    };
    drawn.map_err(|error| error.to_string())
}

fn css(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

fn key(colour: RGBColor, sign: Sign, meaning: &str) -> Key {
    Key { colour: css(colour), sign, meaning: meaning.to_owned() }
}

fn paper_value(row: &Row) -> Option<f64> {
    match row.paper {
        Some(Paper::Number(value)) => Some(value),
        _ => None,
    }
}

/// Returns the highest value, with room above it.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    let highest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    if highest > 0.0 { 1.08 * highest } else { 1.0 }
}

/// Returns the lowest value, or zero if none is negative.
fn bottom(values: impl Iterator<Item = f64>) -> f64 {
    1.08 * values.filter(|value| value.is_finite()).fold(0.0, f64::min)
}

fn words(anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", FONT).into_font().color(&BLACK).pos(Pos::new(anchor, VPos::Top))
}

/// Draws the axes with the unit beside them. The x axis has a title and numbers only if it has a name.
fn axes<'a, 'b>(
    area: &'a Area<'b>,
    x: (f64, f64),
    y: (f64, f64),
    x_name: &str,
    y_name: &str,
) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(8)
        .margin_right(16)
        .x_label_area_size(if x_name.is_empty() { 2 } else { NAMES_HEIGHT })
        .y_label_area_size(64)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY.mix(0.25))
        .axis_style(GREY)
        .label_style(words(HPos::Center))
        .axis_desc_style(words(HPos::Center))
        .y_desc(y_name)
        .y_labels(6)
        .y_label_formatter(&short);
    if x_name.is_empty() {
        mesh.x_labels(0);
    } else {
        mesh.x_desc(x_name).x_labels(9).x_label_formatter(&short);
    }
    mesh.draw()?;
    Ok(chart)
}

/// Formats a number on an axis without redundant zeros.
#[allow(clippy::trivially_copy_pass_by_ref)] // the shape that the axis wants
fn short(value: &f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes names below bars: one for each, and one for each group of neighbours that share it.
fn name_bars(area: &Area<'_>, chart: &Chart<'_, '_>, floor: f64, names: &[(&str, &str)]) -> Result<()> {
    let mut begin = 0;
    for (index, (group, name)) in names.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(index as f64 + 0.5, floor));
        area.draw(&Text::new((*name).to_owned(), (x, y + 6), words(HPos::Center)))?;
        let is_last = names.get(index + 1).is_none_or(|next| next.0 != *group);
        if is_last {
            let (from, _) = chart.backend_coord(&(begin as f64 + 0.1, floor));
            let (to, _) = chart.backend_coord(&(index as f64 + 0.9, floor));
            if !group.is_empty() {
                area.draw(&PathElement::new([(from, y + 25), (to, y + 25)], GREY))?;
            }
            area.draw(&Text::new((*group).to_owned(), ((from + to) / 2, y + 29), words(HPos::Center)))?;
            begin = index + 1;
        }
    }
    Ok(())
}

/// Draws in an area of the usual size, with room for names below the plot.
fn svg(draw: impl FnOnce(&Area<'_>, &Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let (plot, _names) = root.split_vertically(HEIGHT - NAMES_HEIGHT);
        draw(&root, &plot)?;
        root.present()?;
    }
    Ok(text)
}

fn stacked(table: &Table, rows: &[&Row]) -> Result<Drawn> {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.is_whole).copied().collect();
    let rows = &rows[..];
    let mut bars: Vec<((&str, &str), Vec<&Row>)> = Vec::new();
    for row in rows {
        let place = (row.block.as_str(), row.line.as_str());
        match bars.last_mut() {
            Some((last, parts)) if *last == place => parts.push(row),
            _ => bars.push((place, vec![row])),
        }
    }
    let parts = distinct(rows, |row| &row.column);
    let sum = |parts: &[&Row]| parts.iter().filter_map(|row| row.measured).sum::<f64>();
    let highest = top(bars.iter().map(|(_, parts)| sum(parts)));
    let plot = svg(|root, area| {
        let mut chart = axes(area, (0.0, bars.len() as f64), (0.0, highest), "", &axis_title(table.unit))?;
        for (index, (_, rows)) in bars.iter().enumerate() {
            let mut from = 0.0;
            for row in rows {
                let colour =
                    COLOURS[parts.iter().position(|part| *part == row.column).unwrap_or(0) % COLOURS.len()];
                let to = from + row.measured.unwrap_or(0.0).max(0.0);
                let corners = [(index as f64 + 0.18, from), (index as f64 + 0.82, to)];
                let opacity = if row.how == How::Cpu { PALE } else { 1.0 };
                chart.draw_series([Rectangle::new(corners, colour.mix(opacity).filled())])?;
                from = to;
            }
        }
        let names: Vec<(&str, &str)> = bars.iter().map(|(place, _)| *place).collect();
        name_bars(root, &chart, 0.0, &names)
    })?;
    let colour_of = |(index, part): (usize, &&str)| key(COLOURS[index % COLOURS.len()], Sign::Filled, part);
    let mut keys: Vec<Key> = parts.iter().enumerate().map(colour_of).collect();
    if rows.iter().any(|row| row.how == How::Cpu) {
        keys.push(key(GREY, Sign::Pale, "estimated from processor seconds"));
    }
    Ok(Drawn { plots: vec![plot], keys })
}

fn paired(table: &Table, rows: &[&Row]) -> Result<Drawn> {
    let values = || rows.iter().flat_map(|row| [row.measured, paper_value(row)]).flatten();
    let (lowest, highest) = (bottom(values()), top(values()));
    let mut plots = Vec::new();
    for block in distinct(rows, |row| &row.block) {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.block == block).copied().collect();
        plots.push(svg(|root, area| {
            let title = axis_title(table.unit);
            let unit = if block.is_empty() { title } else { format!("{title}, {block}") };
            let mut chart = axes(area, (0.0, rows.len() as f64), (lowest, highest), "", &unit)?;
            for (index, row) in rows.iter().enumerate() {
                let corners =
                    |from: f64, value: f64| [(index as f64 + from, 0.0), (index as f64 + from + 0.36, value)];
                if let Some(value) = row.measured {
                    let opacity = if row.how == How::Cpu { PALE } else { 1.0 };
                    let style = COLOURS[0].mix(opacity).filled();
                    chart.draw_series([Rectangle::new(corners(0.12, value), style)])?;
                }
                if let Some(value) = paper_value(row) {
                    let style = COLOURS[3].stroke_width(2);
                    chart.draw_series([Rectangle::new(corners(0.52, value), style)])?;
                }
            }
            // If each line has one figure, its own name suffices.
            let one_each = distinct(&rows, |row| &row.column).len() == 1;
            let name = |row: &&'_ Row| -> (String, String) {
                if one_each {
                    (row.column.clone(), row.line.clone())
                } else {
                    (row.line.clone(), row.column.clone())
                }
            };
            let names: Vec<(String, String)> = rows.iter().map(name).collect();
            let names: Vec<(&str, &str)> =
                names.iter().map(|(group, name)| (group.as_str(), name.as_str())).collect();
            name_bars(root, &chart, lowest, &names)
        })?);
    }
    let has = |how| rows.iter().any(|row| row.how == how && row.measured.is_some());
    let mut keys = Vec::new();
    if has(How::Wall) {
        keys.push(key(COLOURS[0], Sign::Filled, "ours, by the clock"));
    }
    if has(How::Cpu) {
        keys.push(key(COLOURS[0], Sign::Pale, "ours, estimated from processor seconds"));
    }
    keys.push(key(COLOURS[3], Sign::Outline, "the paper's"));
    Ok(Drawn { plots, keys })
}

fn curves(table: &Table, rows: &[&Row]) -> Result<Drawn> {
    let at = |row: &Row| row.column.parse::<f64>().unwrap_or(0.0);
    let furthest = rows.iter().map(|row| at(row)).fold(1.0, f64::max);
    let highest = top(rows.iter().flat_map(|row| [row.measured, paper_value(row)]).flatten().chain([1.0]));
    let lines = distinct(rows, |row| &row.line);
    let mut keys = Vec::new();
    let plot = svg(|root, _| {
        let mut chart = axes(
            root,
            (0.0, furthest + 0.4),
            (0.0, highest),
            &axis_title(table.axis),
            &axis_title(table.unit),
        )?;
        let reach = furthest.min(highest);
        chart.draw_series([PathElement::new([(0.0, 0.0), (reach, reach)], GREY.mix(0.6))])?;
        for (index, line) in lines.iter().enumerate() {
            let colour = COLOURS[[0, 3, 2, 4, 1][index % 5]];
            let rows: Vec<&&Row> = rows.iter().filter(|row| row.line == *line).collect();
            let points = rows.iter().filter_map(|row| Some((at(row), row.measured?)));
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            for row in &rows {
                if let Some(value) = row.measured {
                    let style = if row.how == How::Cpu { colour.stroke_width(2) } else { colour.filled() };
                    chart.draw_series([Circle::new((at(row), value), 4, style)])?;
                }
                if let Some(value) = paper_value(row) {
                    chart.draw_series([Cross::new((at(row), value), 6, colour.stroke_width(3))])?;
                }
            }
            keys.extend(keys_of_curve(colour, line, &rows));
        }
        Ok(())
    })?;
    keys.push(key(GREY, Sign::Filled, &format!("as many times as {}", table.axis)));
    Ok(Drawn { plots: vec![plot], keys })
}

fn keys_of_curve(colour: RGBColor, line: &str, rows: &[&&Row]) -> Vec<Key> {
    if rows.iter().all(|row| row.how == How::Predicted) {
        return vec![key(colour, Sign::Filled, &format!("{line}, by the model"))];
    }
    vec![
        key(colour, Sign::Filled, &format!("{line}, by the clock")),
        key(colour, Sign::Outline, &format!("{line}, estimated from processor seconds")),
        key(colour, Sign::Cross, &format!("{line}, the paper's")),
    ]
}

/// Adds a title to an SVG element for readers who cannot see it.
pub fn titled(svg: &str, title: &dyn Display) -> String {
    let viewed = format!("<svg role=\"img\" aria-label=\"{title}\" ");
    svg.replacen("<svg ", &viewed, 1)
}

#[cfg(test)]
mod tests {
    use super::super::report::Measured;
    use super::*;

    fn table(plot: Plot) -> Table {
        let mut rows = Vec::new();
        for (block, measured) in [("2 nodes", Measured::wall(1.5)), ("4 nodes", Measured::cpu(-2.5))] {
            for (line, paper) in [("UDP", Some(Paper::Number(0.25))), ("TCP", Some(Paper::Words("no gain")))]
            {
                for column in ["1", "2", "8"] {
                    rows.push(Row::at(block, line, column, paper.clone(), measured));
                }
                rows.push(Row::at(block, line, "4", None, Measured::none()));
            }
        }
        let (id, title) = ("figure 1".to_owned(), "speed-up".to_owned());
        Table { id, title, unit: "times", rows, notes: vec![], plot, axis: "nodes" }
    }

    #[test]
    fn plots_hold_what_the_rows_hold() {
        for (plot, plots, crosses) in
            [(Plot::None, 0, 0), (Plot::Stacked, 1, 0), (Plot::Paired, 2, 0), (Plot::Curves, 1, 6)]
        {
            let drawn = draw(&table(plot)).unwrap();
            assert_eq!(drawn.plots.len(), plots, "{plot:?}");
            for svg in &drawn.plots {
                assert!(svg.contains("ratio (times)"), "an axis says what it counts: {svg}");
                assert_eq!(svg.contains("number of nodes"), plot == Plot::Curves, "{svg}");
                assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
                assert!(svg.contains("UDP") || plot == Plot::Curves, "{svg}");
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
            let signs = drawn.keys.iter().filter(|key| key.sign == Sign::Cross).count();
            assert_eq!(signs * 3, crosses, "{plot:?}");
        }
    }

    #[test]
    fn nothing_measured_makes_an_empty_plot() {
        for plot in [Plot::Stacked, Plot::Paired, Plot::Curves] {
            let mut table = table(plot);
            table.rows.retain(|row| row.measured.is_none());
            assert!(draw(&table).is_ok());
            table.rows.clear();
            assert!(draw(&table).is_ok(), "{plot:?}");
        }
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!(
            (short(&0.5), short(&10.0), short(&0.0)),
            ("0.5".to_owned(), "10".to_owned(), "0".to_owned())
        );
    }
}
