//! Transport of messages between nodes.
//!
//! ```text
//!   node, ports, check
//!   ------------------------------ Fabric: send, poll, wake, drain      (traits.rs)
//!   reliable link, sans-IO                                              (link/)
//!   ------------------------------ hooks: sealing, injected faults      (hooks/)
//!   UDP sockets (udp/)   |   simulated network under virtual time (sim.rs)   |   without link: TCP (tcp/), shared memory (shm/)
//! ```
//!
//! TCP connections (tcp/) need neither link nor injector.
//!
//! A message is a sequence of up to [`MESSAGE_BYTES_MAX`] bytes. Between two nodes messages arrive exactly
//! once and in the order in which they were sent, whatever the network does to datagrams. Messages of
//! different peers are not ordered relative to each other.
//!
//! To add a fabric, implement [`Fabric`] and run the conformance suite (`tests/all/conformance.rs`) over it.
//! A fabric reports what it can do beyond messages in its [`Capabilities`]. No code tests a fabric's name.

mod fresh;
pub mod hooks;
pub mod link;
mod receiving;
mod role;
pub mod seal;
pub mod shm;
pub mod sim;
pub mod tcp;
mod traits;
pub mod udp;
mod unsent;
mod wake;

pub use fresh::populate;
pub use hooks::Hook;
pub use hooks::inject::FaultInjector;
pub use link::{LinkConfig, LinkSet, LinkStatistics, Rejected};
pub use shm::{ShmFabric, ShmFiles};
pub use sim::{Delivered, SimCluster, SimConditions, SimNetwork};
pub use tcp::TcpFabric;
pub use traits::{Capabilities, Fabric, FabricConfig, FabricError, LandingPool, OneSided, Receiver};
pub use udp::UdpFabric;
pub use unsent::{Content, MESSAGE_BYTES_MAX, Unsent};
