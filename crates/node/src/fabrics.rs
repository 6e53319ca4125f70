//! Opens the fabric that the launcher chose.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use hiroba_fabric::{Fabric, FabricConfig, TcpFabric, UdpFabric};
use hiroba_wire::control::JobDescription;

use crate::NodeError;

/// The fabric of a job of several nodes.
pub(crate) fn open(job: &JobDescription) -> Result<Arc<dyn Fabric>, NodeError> {
    let config = FabricConfig {
        local: job.node,
        addresses: job.addresses.clone(),
        job: job.job,
        key: job.key.clone(),
        encrypt: job.encrypt,
        inject: job.inject,
    };
    match job.fabric.as_str() {
        "udp" => Ok(Arc::new(UdpFabric::open(inherited(job.socket_fd)?, config)?)),
        "tcp" => Ok(Arc::new(TcpFabric::open(inherited(job.socket_fd)?, config)?)),
        got => Err(NodeError::Unknown { what: "fabric", known: "udp or tcp", got: got.to_owned() }),
    }
}

/// A descriptor that the launcher passed to this process for this use alone, kept out of what the program executes.
fn inherited(descriptor: i32) -> Result<OwnedFd, NodeError> {
    // SAFETY: the launcher opened it for this process, which takes it over here, once.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    crate::control::close_on_exec(descriptor.as_fd())
        .map_err(NodeError::system("an inherited descriptor"))?;
    Ok(descriptor)
}
