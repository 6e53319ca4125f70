//! Opens the fabric that the launcher chose.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hiroba_fabric::{Fabric, FabricConfig, ShmFabric, ShmFiles, TcpFabric, UdpFabric};
use hiroba_memory::{MemoryConfig, SharedMemory};
use hiroba_wire::control::JobDescription;

use crate::NodeError;
use crate::control::Passed;
use crate::runtime::tracing::Recorder;
use hiroba_wire::FabricKind;

/// Descriptors that the launcher has passed to this node for its use alone.
pub(crate) struct Ends {
    socket: Option<OwnedFd>,
    trace: Option<OwnedFd>,
    files: ShmFiles,
}

impl Ends {
    /// Sorts the descriptors that came with the job.
    pub(crate) fn of(job: &JobDescription, mut passed: Passed) -> Ends {
        let came = job.descriptors;
        Ends {
            socket: passed.next_if(came.socket),
            trace: passed.next_if(came.trace),
            files: ShmFiles {
                frames: passed.take(came.shared_by),
                boards: passed.take(came.shared_by),
                doorbells: passed.take(came.shared_by),
            },
        }
    }

    /// Reserves the node's part of the shared region: in the file that its peers read, if the fabric has one,
    /// otherwise in a file of its own.
    pub(crate) fn reserve_memory(&self, job: &JobDescription) -> Result<SharedMemory, NodeError> {
        let config = MemoryConfig::default();
        let frames = self.files.frames.get(job.node.index());
        let Some(frames) = frames.filter(|_| job.addresses.len() > 1) else {
            return Ok(SharedMemory::reserve(config)?);
        };
        let frames = rustix::io::fcntl_dupfd_cloexec(frames.as_fd(), 0)
            .map_err(NodeError::system("a descriptor of the launcher's"))?;
        Ok(SharedMemory::reserve_in(config, frames)?)
    }

    /// Opens the recorder of a traced run, with the file that the launcher opened.
    pub(crate) fn open_trace(
        &mut self,
        job: &JobDescription,
        granule_bytes: u32,
    ) -> Result<Option<Recorder>, NodeError> {
        let Some(file) = self.trace.take() else { return Ok(None) };
        let recorder = Recorder::of_job(job, file, granule_bytes);
        recorder.map(Some).map_err(|source| NodeError::System { what: "beginning the trace", source })
    }

    /// Opens the fabric of a job of several nodes.
    pub(crate) fn open_fabric(&mut self, job: &JobDescription) -> Result<Arc<dyn Fabric>, NodeError> {
        let config = FabricConfig {
            local: job.node,
            addresses: job.addresses.clone(),
            job: job.job,
            key: job.key.clone(),
            inject: job.transport.inject,
        };
        let mut socket = || self.socket.take().ok_or(NodeError::Descriptors { expected: 1, got: 0 });
        match job.transport.fabric {
            FabricKind::Udp if job.transport.without_seal => {
                Ok(Arc::new(UdpFabric::without_seal(socket()?, config)?))
            }
            FabricKind::Tcp if job.transport.without_seal => {
                Ok(Arc::new(TcpFabric::without_seal(socket()?, config)?))
            }
            FabricKind::Udp => Ok(Arc::new(UdpFabric::open(socket()?, config)?)),
            FabricKind::Tcp => Ok(Arc::new(TcpFabric::open(socket()?, config)?)),
            // The fabric checks that there is a file of each kind for each node.
            FabricKind::SharedMemory => {
                Ok(Arc::new(ShmFabric::open(std::mem::take(&mut self.files), &config)?))
            }
        }
    }
}
