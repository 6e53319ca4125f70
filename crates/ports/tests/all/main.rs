//! The ports room's tests: semantics call by call, the protocol between nodes, random programs against a
//! model, planted bugs, and scale.

mod corpus;
mod directory;
mod found;
mod model;
mod mutants;
mod protocol;
mod random;
mod scale;
mod semantics;
mod simulator;
