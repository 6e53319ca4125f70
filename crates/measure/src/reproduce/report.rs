//! The report: tables whose rows contain the paper's figure and ours, and how ours was obtained.

use serde::Serialize;

use hiroba_launch::core_share::ENOUGH;

/// How a figure was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum How {
    /// By the wall clock (or by counting), in a run whose nodes had a core each, or which is marked as one
    /// whose nodes had not.
    #[serde(rename = "wall")]
    Wall,
    /// From the processor seconds of the node that used most: an estimate for machines with a core per node,
    /// which excludes waiting for the network.
    #[serde(rename = "cpu")]
    Cpu,
    /// By a model of the paper's machine.
    #[serde(rename = "predicted")]
    Predicted,
    /// Not measurable on this machine.
    #[serde(rename = "not measurable")]
    NotMeasurable,
}

/// One of our figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The value in the table's unit; `None` if it could not be measured.
    pub value: Option<f64>,
    /// How it was obtained.
    pub how: How,
    /// The least share that the processes of its runs got of the processor time that they could have used;
    /// `None` if it is unknown, and if more nodes than cores were run on purpose.
    pub core_share: Option<f64>,
}

impl Measured {
    /// Makes a figure by the clock or by counting.
    pub fn wall(value: f64) -> Measured {
        Measured::or_not(value, How::Wall)
    }

    /// Makes a figure from processor seconds.
    pub fn cpu(value: f64) -> Measured {
        Measured::or_not(value, How::Cpu)
    }

    /// Makes a figure of a model.
    pub fn predicted(value: f64) -> Measured {
        Measured::or_not(value, How::Predicted)
    }

    /// Makes a figure that could not be measured.
    pub fn none() -> Measured {
        Measured { value: None, how: How::NotMeasurable, core_share: None }
    }

    /// Returns the same figure, of runs with this share.
    pub fn with_share(self, core_share: Option<f64>) -> Measured {
        Measured { core_share, ..self }
    }

    /// Makes a figure; a value that is not a number was not measured, since JSON cannot express it.
    fn or_not(value: f64, how: How) -> Measured {
        if value.is_finite() {
            Measured { value: Some(value), how, core_share: None }
        } else {
            Measured::none()
        }
    }
}

/// The paper's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Paper {
    /// A number, in the table's unit.
    Number(f64),
    /// The paper's words, if it gives no number.
    Words(&'static str),
}

/// One figure and its place: tables are shown as blocks of lines and columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Block, line and column joined.
    pub label: String,
    /// What the lines of a block have in common; may be empty.
    pub block: String,
    /// The line.
    pub line: String,
    /// The column.
    pub column: String,
    /// The paper's figure; `None` if the paper, or the available text of it, has none.
    pub paper: Option<Paper>,
    /// Our figure; `None` if it could not be measured.
    pub measured: Option<f64>,
    /// How ours was obtained.
    pub how: How,
    /// The least share of a core that ready threads got in its runs, if each could have had one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_share: Option<f64>,
    /// A note beside the paper's figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_note: Option<String>,
    /// A note beside ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_note: Option<String>,
    /// Whether it is the whole of a stacked bar, not a part.
    #[serde(skip)]
    pub is_whole: bool,
}

impl Row {
    /// Makes a row at its place.
    pub fn at(block: &str, line: &str, column: &str, paper: Option<Paper>, measured: Measured) -> Row {
        let parts = [line, block, column].into_iter().filter(|part| !part.is_empty());
        Row {
            label: parts.collect::<Vec<_>>().join(", "),
            block: block.to_owned(),
            line: line.to_owned(),
            column: column.to_owned(),
            paper,
            measured: measured.value,
            how: measured.how,
            core_share: measured.core_share,
            paper_note: None,
            measured_note: None,
            is_whole: false,
        }
    }

    /// Returns the same row, as the whole of which the others of its line are parts.
    pub fn whole(self) -> Row {
        Row { is_whole: true, ..self }
    }

    /// Returns true if it is by the clock of a machine that was busy with other work.
    pub fn is_disturbed(&self) -> bool {
        self.how == How::Wall && self.core_share.is_some_and(|share| share < ENOUGH)
    }

    /// Returns the same row with notes beside the figures.
    pub fn noting(mut self, paper: Option<&str>, measured: Option<&str>) -> Row {
        (self.paper_note, self.measured_note) = (paper.map(str::to_owned), measured.map(str::to_owned));
        self
    }
}

/// How a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// Only as figures.
    None,
    /// A bar for each line, made of its columns.
    Stacked,
    /// A bar for each row, and the paper's figure beside it.
    Paired,
    /// A curve for each line; the columns are numbers.
    Curves,
}

/// A table or figure of the paper.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its number in the paper.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The unit of its figures.
    pub unit: &'static str,
    /// Its figures.
    pub rows: Vec<Row>,
    /// Notes on the figures.
    pub notes: Vec<String>,
    /// How it is drawn.
    #[serde(skip)]
    pub plot: Plot,
    /// What its columns count, if it is drawn as curves.
    #[serde(skip)]
    pub axis: &'static str,
}

/// The result of a run of the command.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The paper's number.
    pub paper: &'static str,
    /// Its title, authors and place.
    pub source: &'static str,
    /// Whether sizes and repetitions were reduced.
    pub quick: bool,
    /// What was run and on which machine, and what applies to all tables.
    pub notes: Vec<String>,
    /// The tables and figures.
    pub tables: Vec<Table>,
}

/// Returns the different values of a part of the rows' places, in their order.
pub fn distinct<'a>(rows: &[&'a Row], part: fn(&Row) -> &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for row in rows {
        let value = part(row);
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Formats a number with its significant digits.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        tiny if tiny < 0.01 => 4,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats the paper's figure.
pub fn paper_text(row: &Row) -> String {
    let figure = match &row.paper {
        // As the paper prints it.
        Some(Paper::Number(value)) => value.to_string(),
        Some(Paper::Words(words)) => (*words).to_owned(),
        None => "-".to_owned(),
    };
    row.paper_note.as_ref().map_or(figure.clone(), |note| format!("{figure} ({note})"))
}

/// Formats our figure, with marks on estimates and on times by the clock of a busy machine.
pub fn measured_text(row: &Row) -> String {
    let figure = match (row.measured, row.how) {
        (Some(value), How::Wall) if row.is_disturbed() => format!("{}!", number(value)),
        (Some(value), How::Wall | How::Predicted) => number(value),
        (Some(value), _) => format!("~{}", number(value)),
        (None, _) => "n/m".to_owned(),
    };
    row.measured_note.as_ref().map_or(figure.clone(), |note| format!("{figure} ({note})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_show_how_they_were_obtained() {
        let text = |measured| measured_text(&Row::at("", "a", "b", None, measured));
        assert_eq!(text(Measured::wall(1.234)), "1.23");
        assert_eq!(text(Measured::cpu(12.34)), "~12.3");
        assert_eq!(text(Measured::predicted(12.34)), "12.3");
        assert_eq!(text(Measured::none()), "n/m");
        assert_eq!(text(Measured::wall(f64::NAN)), "n/m", "what is no number was not measured");
        assert_eq!(text(Measured::wall(0.0)), "0");
        assert_eq!(text(Measured::wall(1.5).with_share(Some(0.89))), "1.50!", "the machine was busy");
        assert_eq!(text(Measured::wall(1.5).with_share(Some(0.9))), "1.50");
        assert_eq!(text(Measured::cpu(1.5).with_share(Some(0.5))), "~1.50");
    }

    #[test]
    fn rows_have_the_contracts_names() {
        let row = Row::at("2 nodes", "FFT", "SC", Some(Paper::Number(0.21)), Measured::cpu(1.5));
        let json = serde_json::to_value(row.noting(Some("HLRC"), None)).unwrap();
        assert_eq!((&json["label"], &json["paper"]), (&"FFT, 2 nodes, SC".into(), &0.21.into()));
        assert_eq!((&json["measured"], &json["how"]), (&1.5.into(), &"cpu".into()));
        assert_eq!(json["paper_note"], "HLRC");
        assert!(json.get("measured_note").is_none());
        let none = serde_json::to_value(Row::at("", "a", "b", None, Measured::none())).unwrap();
        assert!(none["paper"].is_null() && none["measured"].is_null());
        assert_eq!(none["how"], "not measurable");
    }
}
