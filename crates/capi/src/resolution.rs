//! Actions when the library is loaded.

use crate::{signals, stdio, system_calls, threads};

/// Looks up every function that the library replaces when it is loaded, since a signal handler must not look
/// up symbols.
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
