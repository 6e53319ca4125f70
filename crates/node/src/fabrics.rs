//! Opens the fabric that the launcher chose.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use hiroba_fabric::{Fabric, FabricConfig, ShmFabric, ShmFiles, TcpFabric, UdpFabric};
use hiroba_memory::{MemoryConfig, SharedMemory};
use hiroba_wire::control::{JobDescription, SharedFiles};

use crate::NodeError;
use crate::tracing::Recorder;

/// The fabric of a job of several nodes.
pub(crate) fn open(job: &JobDescription) -> Result<Arc<dyn Fabric>, NodeError> {
    let config = FabricConfig {
        local: job.node,
        addresses: job.addresses.clone(),
        job: job.job,
        key: job.key.clone(),
        inject: job.inject,
    };
    match job.fabric.as_str() {
        "udp" if job.without_seal => {
            Ok(Arc::new(UdpFabric::without_seal(inherited(job.socket_fd)?, config)?))
        }
        "tcp" if job.without_seal => {
            Ok(Arc::new(TcpFabric::without_seal(inherited(job.socket_fd)?, config)?))
        }
        "udp" => Ok(Arc::new(UdpFabric::open(inherited(job.socket_fd)?, config)?)),
        "tcp" => Ok(Arc::new(TcpFabric::open(inherited(job.socket_fd)?, config)?)),
        "shm" => Ok(Arc::new(ShmFabric::open(shared_files(job)?, &config)?)),
        got => Err(NodeError::Unknown {
            what: "fabric",
            known: "udp, tcp or shm".to_owned(),
            got: got.to_owned(),
        }),
    }
}

/// The node's part of the shared region: in the file that its peers read, where the fabric has one, else in one of its own.
pub(crate) fn reserve_memory(job: &JobDescription) -> Result<SharedMemory, NodeError> {
    let config = MemoryConfig::default();
    let frames = job.shared_files.as_ref().and_then(|files| files.frames_fds.get(job.node.index()));
    let Some(&frames) = frames.filter(|_| job.addresses.len() > 1) else {
        return Ok(SharedMemory::reserve(config)?);
    };
    // SAFETY: the launcher opened it for this process, which takes it over only when it opens the fabric.
    let frames = unsafe { BorrowedFd::borrow_raw(frames) };
    let frames =
        rustix::io::fcntl_dupfd_cloexec(frames, 0).map_err(NodeError::system("an inherited descriptor"))?;
    Ok(SharedMemory::reserve_in(config, frames)?)
}

/// What the nodes of one machine share; the fabric checks that there is one of each kind for each node.
fn shared_files(job: &JobDescription) -> Result<ShmFiles, NodeError> {
    let none = SharedFiles { frames_fds: Vec::new(), board_fds: Vec::new(), doorbell_fds: Vec::new() };
    let files = job.shared_files.as_ref().unwrap_or(&none);
    let all = |numbers: &[i32]| numbers.iter().map(|number| inherited(*number)).collect::<Result<_, _>>();
    Ok(ShmFiles {
        frames: all(&files.frames_fds)?,
        boards: all(&files.board_fds)?,
        doorbells: all(&files.doorbell_fds)?,
    })
}

/// The record of a traced run, in the file that the launcher opened.
pub(crate) fn open_trace(job: &JobDescription, granule_bytes: u32) -> Result<Option<Recorder>, NodeError> {
    let Some(descriptor) = job.trace_fd else { return Ok(None) };
    let file = inherited(descriptor)?;
    let recorder = Recorder::of_job(job, file, granule_bytes);
    recorder.map(Some).map_err(|source| NodeError::System { what: "beginning the trace", source })
}

/// A descriptor that the launcher passed to this process for this use alone, kept out of what the program executes.
fn inherited(descriptor: i32) -> Result<OwnedFd, NodeError> {
    // SAFETY: the launcher opened it for this process, which takes it over here, once.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    crate::control::close_on_exec(descriptor.as_fd())
        .map_err(NodeError::system("an inherited descriptor"))?;
    Ok(descriptor)
}
