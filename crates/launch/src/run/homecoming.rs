//! The traces of nodes on another host: written there to files without a name, and sent to the launcher when
//! the job is over.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use hiroba_base::NodeId;
use hiroba_wire::agent::{FromAgent, TRACE_PIECE_BYTES_MAX};

use super::channel::{Channel, Closed};
use crate::failure::{Failure, system_words};

/// The traces that have not been sent completely.
#[derive(Debug, Default)]
pub struct Homecoming {
    files: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    node: NodeId,
    file: File,
    /// How many bytes of the file have been sent.
    bytes: u64,
}

impl Homecoming {
    /// Creates trace files for `nodes` nodes, from `first` on. Nothing remains of them when they are closed.
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

    /// Returns true if everything has been sent.
    pub fn is_done(&self) -> bool {
        self.files.is_empty()
    }

    /// Sends as much as the channel takes now.
    pub fn send(&mut self, channel: &mut Channel) -> Result<(), Closed> {
        while let Some(sent) = self.files.front_mut().filter(|_| !channel.is_full()) {
            let mut bytes = vec![0; TRACE_PIECE_BYTES_MAX];
            // Nodes have written through the same open file, so its own position is useless.
            match sent.file.read_at(&mut bytes, sent.bytes) {
                Ok(got) if got > 0 => {
                    bytes.truncate(got);
                    sent.bytes += got as u64;
                    channel.send(&FromAgent::Trace { node: sent.node, bytes })?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Unreadable data are missing at the end, which a trace reader detects.
                Ok(_) | Err(_) => drop(self.files.pop_front()),
            }
        }
        Ok(())
    }
}
