//! Reads a traced run from its directory, and writes a simulated one to a directory.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use hiroba_base::{NodeId, PageSize};
use hiroba_trace::{Ending, Header, Job, Trace, TraceError, TraceWriter, node_file};

use crate::execution::{NodeRecords, Run};
use crate::program::GRANULE_BYTES;

/// A run that was read.
#[derive(Debug)]
pub struct TracedRun {
    /// How it was started, and how it ended.
    pub job: Job,
    /// Its records, as far as they can be read.
    pub run: Run,
    /// The names of message kinds.
    pub message_kinds: Vec<String>,
    /// Bytes of a granule.
    pub granule_bytes: u32,
    /// For nodes whose trace breaks off: where, or why.
    pub breaks: Vec<(NodeId, String)>,
}

/// The number of records that are read between two calls of `progress`.
const PROGRESS_RECORDS: usize = 1 << 16;

/// Reads a run. All its records are kept in memory, some 70 bytes each. `progress` is called at intervals
/// with the number of records read.
///
/// # Errors
/// Fails if the directory contains no run that this version can read. A node's trace that breaks off is no
/// error; see [`TracedRun::breaks`].
pub fn read(directory: &Path, mut progress: impl FnMut(usize)) -> Result<TracedRun, TraceError> {
    let trace = Trace::open(directory)?;
    let job = trace.job().clone();
    let mut read = TracedRun {
        run: Run::default(),
        message_kinds: Vec::new(),
        granule_bytes: 0,
        breaks: Vec::new(),
        job,
    };
    let mut count = 0;
    for node in NodeId::all(read.job.nodes) {
        let mut reader = trace.node(node)?;
        read.message_kinds.clone_from(&reader.header().message_kinds);
        read.granule_bytes = reader.header().granule_bytes;
        let mut records = Vec::new();
        let mut damage = None;
        for record in reader.by_ref() {
            match record {
                Ok(record) => records.push(record),
                Err(error) => damage = Some(error.to_string()),
            }
            count += 1;
            if count % PROGRESS_RECORDS == 0 {
                progress(count);
            }
        }
        let damage = damage.or(match reader.ending() {
            Some(Ending::Complete) => None,
            Some(Ending::CutOff { at_byte }) => Some(format!("it breaks off at byte {at_byte}")),
            None => Some("it has no end".to_owned()),
        });
        read.run.nodes.push(NodeRecords { records, cut_off: damage.is_some() });
        read.breaks.extend(damage.map(|damage| (node, damage)));
    }
    Ok(read)
}

/// Writes a run as its nodes would have. A node whose records are cut off gets no end mark.
///
/// # Errors
/// Those of the system.
pub fn write(directory: &Path, job: &Job, run: &Run) -> Result<(), TraceError> {
    let opened = File::open(directory);
    let unusable = |source| TraceError::System { action: format!("open '{}'", directory.display()), source };
    job.write(opened.map_err(unusable)?)?;
    for (node, records) in run.ids().zip(&run.nodes) {
        let path = node_file(directory, node);
        let system = |source| TraceError::System { action: format!("write '{}'", path.display()), source };
        let header = Header {
            node,
            nodes: job.nodes,
            granule_bytes: GRANULE_BYTES,
            page_size: PageSize::KIB_4,
            host: 0,
            monotonic_ns: 0,
            realtime_ns: 0,
            message_kinds: Vec::new(),
        };
        let file = BufWriter::new(File::create(&path).map_err(system)?);
        let mut writer = TraceWriter::new(file, &header).map_err(system)?;
        for record in &records.records {
            writer.record(record.thread, record.at_ns, &record.event).map_err(system)?;
        }
        if records.cut_off {
            writer.flush().map_err(system)?;
        } else {
            writer.finish().map_err(system)?;
        }
    }
    Ok(())
}
