//! How messages travel between nodes.
//!
//! ```text
//!   node, ports, check
//!   ------------------------------ Fabric: send, poll, wake, drain      (traits.rs)
//!   reliable link, sans-IO                                              (link/)
//!   ------------------------------ hooks: sealing, injected faults      (hooks/)
//!   UDP sockets (udp/)   |   simulated network under virtual time (sim.rs)   |   without link: TCP (tcp/), shared memory (shm/)
//! ```
//!
//! Over TCP connections (tcp/) neither link nor injector is needed.
//!
//! A message is any run of bytes up to [`MESSAGE_BYTES_MAX`]. Between two nodes messages arrive exactly
//! once and in the order in which they were sent, whatever the network does to datagrams; messages of
//! different peers are not ordered among each other.
//!
//! To add a fabric, implement [`Fabric`] and run the conformance suite (`tests/all/conformance.rs`) over it.
//! What a fabric can do beyond messages it says in its [`Capabilities`]; nobody asks for its name.

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

pub use hooks::Hook;
pub use hooks::inject::FaultInjector;
pub use link::{LinkConfig, LinkSet, LinkStatistics, Rejected};
pub use shm::{ShmFabric, ShmFiles};
pub use sim::{Delivered, SimCluster, SimConditions, SimNetwork};
pub use tcp::TcpFabric;
pub use traits::{Capabilities, Fabric, FabricConfig, FabricError, OneSided};
pub use udp::UdpFabric;
pub use unsent::{Content, MESSAGE_BYTES_MAX, Unsent};
