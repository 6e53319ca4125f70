//! Places in a program's code.

use serde::{Deserialize, Serialize};

/// A place in the program's code, in terms that the node itself knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CodeSite {
    /// The path of the executable or library.
    pub module: String,
    /// The address in terms of the module's own symbols and debug information: the address in memory minus
    /// the load bias.
    pub offset: u64,
}
