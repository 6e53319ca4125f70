//! The traces of nodes on another host: kept there in files without a name, and sent to the launcher when the job is over.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use hiroba_base::NodeId;
use hiroba_wire::agent::{FromAgent, TRACE_PIECE_BYTES_MAX};

use super::channel::{Channel, Closed};
use crate::failure::{Failure, system_words};

/// What has not been sent yet.
#[derive(Debug, Default)]
pub struct Homecoming {
    files: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    node: NodeId,
    file: File,
    /// So many bytes of it.
    bytes: u64,
}

impl Homecoming {
    /// Files for `nodes` nodes, from `first` on: those that the nodes write to. Nothing of them is left when they are closed.
    pub fn open(&mut self, first: usize, nodes: u16) -> Result<Vec<OwnedFd>, Failure> {
        let failed = |error: io::Error| {
            Failure::new(format!(
                "cannot keep traces in '{}' ({}); set TMPDIR there to a directory with room, or leave --trace out",
                std::env::temp_dir().display(),
                system_words(&error)
            ))
        };
        let mut written = Vec::new();
        for place in 0..nodes {
            let file = tempfile::tempfile().map_err(failed)?;
            written.push(OwnedFd::from(file.try_clone().map_err(failed)?));
            self.files.push_back(Sent { node: NodeId(first as u16 + place), file, bytes: 0 });
        }
        Ok(written)
    }

    /// Whether all is sent.
    pub fn is_done(&self) -> bool {
        self.files.is_empty()
    }

    /// Sends as much as the channel takes now.
    pub fn send(&mut self, channel: &mut Channel) -> Result<(), Closed> {
        while let Some(sent) = self.files.front_mut().filter(|_| !channel.is_full()) {
            let mut bytes = vec![0; TRACE_PIECE_BYTES_MAX];
            // Nodes have written by way of the same open file, so its own position is of no use.
            match sent.file.read_at(&mut bytes, sent.bytes) {
                Ok(got) if got > 0 => {
                    bytes.truncate(got);
                    sent.bytes += got as u64;
                    channel.send(&FromAgent::Trace { node: sent.node, bytes })?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What cannot be read is missing at the end, and the trace says so itself.
                Ok(_) | Err(_) => drop(self.files.pop_front()),
            }
        }
        Ok(())
    }
}
