//! Places in a program's code.

use serde::{Deserialize, Serialize};

/// A place in the program's code, as far as the node itself knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeSite {
    /// The path of the executable or library.
    pub module: String,
    /// The address as the module's own symbols and debug information count: the address in memory minus the load bias.
    pub offset: u64,
}
