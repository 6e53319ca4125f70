//! The ports room's tests: semantics call by call, the protocol between nodes, random programs against a
//! model, planted bugs, and scale.

mod corpus;
mod directory;
mod found;
mod landing;
mod model;
mod mutants;
mod pools;
mod protocol;
mod random;
mod scale;
mod semantics;
mod simulator;
