//! What a process says before a bad access to shared memory kills it.

use hiroba_memory::fault;

use crate::call_site;
use crate::runtime::Runtime;

/// A core dump holds so many stretches of shared memory at most.
const DUMPED_RUNS_MAX: usize = 4096;

/// From now on, a signal that nobody handles is explained first.
pub(crate) fn prepare() {
    fault::set_last_words(say);
}

/// In signal context, in a process that is about to die: what is locked is left alone, and the sentence goes out by one write.
fn say(signal: i32, address: usize, program_counter: Option<usize>) {
    let Some(runtime) = Runtime::known() else { return };
    if !runtime.is_shared(address, 1) {
        runtime.prepare_dump(DUMPED_RUNS_MAX);
        return;
    }
    let name = if signal == libc::SIGBUS { "bus error" } else { "segmentation fault" };
    let node = runtime.node();
    let why = if runtime.is_forked() {
        "a child made by fork has no shared memory; let it exec another program, or use threads".to_owned()
    } else if runtime.has_left() {
        "shared memory is gone after hiroba_finalize".to_owned()
    } else {
        match runtime.describe_address(address) {
            Some(place) => format!("the address is not allocated: {place}"),
            None => "the address is not allocated".to_owned(),
        }
    };
    let at = program_counter.and_then(call_site::of_instruction);
    let at = at.map_or_else(String::new, |site| format!(" by {}+0x{:x}", site.module, site.offset));
    let sentence = format!(
        "hiroba: node {node}: {name} at shared address 0x{address:x}{at}: {why}; \
         look closer with `hiroba run --debug {node}`"
    );
    let line = format!("{}\n", hiroba_base::printable(&sentence));
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    runtime.prepare_dump(DUMPED_RUNS_MAX);
}

impl Runtime {
    fn prepare_dump(&self, runs_max: usize) {
        if !self.is_forked() && !self.has_left() {
            self.memory.prepare_dump(runs_max);
        }
    }
}
