//! Types that every room of Hiroba shares.
//!
//! This crate does not depend on networks, threads, clocks or operating systems. The protocol engines are
//! built from these types only, so that one engine runs in a real node, in the litmus simulator and in a
//! virtual cluster.
//!
//! # The rooms
//!
//! The workspace is a house, and each crate a *room*. A room may use only the rooms that its row names.
//! `docs/ARCHITECTURE.md` describes them, and follows a page fault through them.
//!
//! | room | content | may use |
//! |---|---|---|
//! | [base](self) | ids, pages, vector timestamps, virtual time, seeded randomness | |
//! | [wire](../hiroba_wire/index.html) | messages between nodes, and with the launcher | base |
//! | [protocol](../hiroba_protocol/index.html) | the coherence protocols, as sans-IO engines | base, wire |
//! | [fabric](../hiroba_fabric/index.html) | how messages travel: UDP, TCP, shared memory, simulated | base, wire |
//! | [memory](../hiroba_memory/index.html) | frames, twins, fault sources, write tracking | base |
//! | [ports](../hiroba_ports/index.html) | ports in the manner of Mach | base, wire, fabric |
//! | [trace](../hiroba_trace/index.html) | the account of a run, and its trace | base |
//! | [paging](../hiroba_paging/index.html) | replacement policies | base |
//! | [node](../hiroba_node/index.html) | one running node: joins the rooms above | base, wire, protocol, fabric, memory, ports, trace, paging |
//! | [judge](../hiroba_judge/index.html) | litmus programs, judges of runs | base, wire, protocol, trace |
//! | [check](../hiroba_check/index.html) | simulated cluster, random runs, mutants | base, wire, protocol, fabric, trace, ports, judge |
//! | capi | `libhiroba.so`, behind `hiroba.h` | base, wire, node, trace, ports |
//! | [patch](../hiroba_patch/index.html) | atomic instructions of executables, and the code that replaces them | |
//! | [pthread](../hiroba_pthread/index.html) | `libhiroba_pthread.so`, for executables as they are | patch |
//! | [single](../hiroba_single/index.html) | `libhiroba_single.so`, for executables as they are on one node | |
//! | [schedule](../hiroba_schedule/index.html) | how a loop's iterations are given out to threads, and where threads run | |
//! | [openmp](../hiroba_gomp/index.html) | `libhiroba_gomp.so`, for executables of OpenMP | schedule |
//! | [launch](../hiroba_launch/index.html) | starts jobs and watches them | base, wire, trace, node |
//! | [measure](../hiroba_measure/index.html) | costs of primitives, tables of papers | base, wire, trace, node, launch, memory, protocol, paging |
//! | [cli](../hiroba/index.html) | the `hiroba` command | base, wire, trace, memory, paging, node, capi, pthread, single, openmp, judge, launch, measure, check, protocol |

#![forbid(unsafe_code)]

mod changes;
mod code_site;
mod id;
pub mod legs;
mod page;
mod printable;
mod random;
mod time;
mod timestamp;

pub use changes::{BLOCK_BYTES, BLOCK_LINES, BlockChanges, ChangedBytes, LINE_BYTES};
pub use code_site::CodeSite;
pub use id::{CondId, IntervalSeq, LockId, MAX_NODES, NodeId};
pub use page::{Access, PageId, PageRange, PageSet, PageSize, PageSizeError};
pub use printable::printable;
pub use random::{Prng, RngExt, seeded};
pub use time::Instant;
pub use timestamp::{VectorTimestamp, VersionVector};
