//! `hiroba trace`: summarises and exports what `hiroba run --trace DIR` has recorded.

mod chrome;
mod summary;

use std::io::Write;
use std::path::{Path, PathBuf};

use hiroba_base::NodeId;
use hiroba_trace::{Ending, Record, Trace, TraceError};

use hiroba_launch::columns;
use hiroba_launch::failure::{Failure, STATUS_HIROBA, say};
use hiroba_launch::output_file::{OutputFile, Purpose};
use hiroba_launch::silence::Meanwhile;

/// The subcommands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceCommand {
    /// Count its events.
    Summary {
        /// The directory of the run.
        directory: PathBuf,
    },
    /// Write it for trace viewers.
    Export {
        /// The directory of the run.
        directory: PathBuf,
        /// The file to write.
        output: PathBuf,
    },
}

/// Carries the command out and returns the exit status.
pub fn look(command: &TraceCommand) -> Result<u8, Failure> {
    match command {
        TraceCommand::Summary { directory } => {
            let meanwhile = Meanwhile::doing("reading the trace");
            let text = summary::of(&open(directory)?, columns::of_standard_output())?;
            drop(meanwhile);
            // A standard output that was closed early is no error.
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
        TraceCommand::Export { directory, output } => {
            let _meanwhile = Meanwhile::doing("writing the trace for viewers");
            export(&open(directory)?, output)?;
        }
    }
    Ok(0)
}

fn open(directory: &Path) -> Result<Trace, Failure> {
    Trace::open(directory).map_err(|error| unreadable(&error))
}

fn unreadable(error: &TraceError) -> Failure {
    Failure::new(format!("cannot read the trace: {error}"))
}

fn export(trace: &Trace, output: &Path) -> Result<(), Failure> {
    let purpose = Purpose { what: "the trace", flag: "-o", status: STATUS_HIROBA };
    let mut damaged = None;
    let written = OutputFile::open(output, purpose)?.fill(|mut file| {
        chrome::write(trace, &mut file).unwrap_or_else(|failure| {
            damaged = Some(failure);
            Err(std::io::ErrorKind::InvalidData.into())
        })
    });
    damaged.map_or(written, Err)
}

/// Passes all records of a node to `take`, in order, and prints a message if the trace is cut off.
fn each_record(trace: &Trace, node: NodeId, mut take: impl FnMut(Record)) -> Result<Ending, Failure> {
    let in_context = |error: TraceError| {
        let failure = unreadable(&error);
        Failure { sentence: format!("node {node}: {}", failure.sentence), ..failure }
    };
    let mut reader = match trace.node(node) {
        Err(TraceError::Empty) => return Ok(Ending::CutOff { at_byte: 0 }),
        reader => reader.map_err(in_context)?,
    };
    for record in &mut reader {
        take(record.map_err(in_context)?);
    }
    Ok(reader.ending().unwrap_or(Ending::Complete))
}

fn warn_of_ending(node: NodeId, ending: Ending) {
    if let Ending::CutOff { .. } = ending {
        say(&format!(
            "the trace of node {node} is cut off: the node did not leave its job properly, or the trace could not be written"
        ));
    }
}
