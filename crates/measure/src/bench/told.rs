//! The output of a measurement: rows on standard output as they are measured, and on standard error what is
//! being measured, on a terminal in a line that is removed again.

use std::io::{IsTerminal, Write};

use hiroba_trace::NodeStatistics;

use super::Row;
#[cfg(feature = "legs")]
use super::legs;
use super::markdown::Markdown;
use super::table::Table;
use hiroba_launch::columns;
use hiroba_launch::core_share;
use hiroba_launch::failure::say;

/// The format of the rows.
enum Form {
    /// For people at a terminal.
    Plain(Table),
    /// For documents.
    Markdown(Markdown),
}

/// The output so far.
pub struct Told {
    pub rows: Vec<Row>,
    /// Rows of the jobs that have ended.
    concluded: usize,
    form: Form,
    progress_shown: bool,
    #[cfg(feature = "legs")]
    legs: legs::Legs,
}

impl Told {
    /// Prints the heading. `setting` is left out of the states of rows, since the heading contains it.
    pub fn new(heading: &str, setting: &str, markdown: bool) -> Told {
        print(&format!("{heading}\n"));
        let form = match markdown {
            true => Form::Markdown(Markdown::new(setting)),
            false => Form::Plain(Table::new(setting, columns::of_standard_output())),
        };
        Told {
            rows: Vec::new(),
            concluded: 0,
            form,
            progress_shown: false,
            #[cfg(feature = "legs")]
            legs: legs::Legs::default(),
        }
    }

    /// Prints a row.
    pub fn row(&mut self, row: Row) {
        self.clear_progress();
        print(&match &mut self.form {
            Form::Plain(table) => table.lines(&row),
            Form::Markdown(tables) => tables.lines(&row),
        });
        self.rows.push(row);
    }

    /// Takes the legs of an operation on a node. They are printed at the end of the job.
    #[cfg(feature = "legs")]
    pub fn legs(&mut self, legs: legs::OfNode) {
        self.legs.add(legs);
    }

    /// Prints a sentence below the rows.
    pub fn remark(&mut self, sentence: &str) {
        self.clear_progress();
        print(&match &mut self.form {
            Form::Plain(_) => format!("  ({sentence})\n"),
            Form::Markdown(tables) => tables.remark(sentence),
        });
    }

    /// Ends a job: its nodes measured all rows since the end of the last job or process together.
    pub fn end_of_job(&mut self, nodes: &[NodeStatistics]) {
        #[cfg(feature = "legs")]
        if let Some(table) = self.legs.take_table() {
            print(&table);
        }
        let least = nodes.iter().filter_map(|node| node.core_share).min_by(f64::total_cmp);
        self.conclude(least, nodes.iter().any(core_share::share_cores), core_share::remark(nodes));
    }

    /// Does the same for this process, which is not a node.
    pub fn end_of_process(&mut self, core_share: Option<f64>) {
        self.conclude(core_share, false, core_share.and_then(core_share::remark_of_process));
    }

    fn conclude(&mut self, core_share: Option<f64>, shares_cores: bool, remark: Option<String>) {
        for row in &mut self.rows[self.concluded..] {
            (row.core_share, row.shares_cores) = (core_share, shares_cores);
        }
        self.concluded = self.rows.len();
        if let Some(remark) = remark {
            self.remark(&remark);
        }
    }

    /// Shows what is being measured.
    pub fn progress(&mut self, what: &str) {
        let mut stderr = std::io::stderr();
        if stderr.is_terminal() {
            self.progress_shown = true;
            let _ = write!(stderr, "\r\x1b[Kmeasuring: {what} ");
            let _ = stderr.flush();
        } else {
            say(&format!("measuring: {what}"));
        }
    }

    /// Removes the line about what is being measured from the terminal.
    pub fn clear_progress(&mut self) {
        if std::mem::take(&mut self.progress_shown) {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

fn print(text: &str) {
    let mut stdout = std::io::stdout();
    // A closed standard output (`| head`) is no error.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
