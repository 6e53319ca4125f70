//! What the library does when it is loaded.

use crate::{signals, stdio, system_calls, threads};

/// Every function that the library stands before is looked up when it is loaded: looking up is nothing for a
/// signal handler.
#[used]
#[unsafe(link_section = ".init_array")]
static RESOLVE: extern "C" fn() = resolve_all;

extern "C" fn resolve_all() {
    system_calls::resolve_all();
    for call in [stdio::ALL, signals::ALL, threads::ALL].into_iter().flatten() {
        call.resolve();
    }
    stdio::hand_on_lines_of_node();
}
