//! What a process says before a bad access to memory kills it.

use hiroba_memory::fault;
use hiroba_wire::control::{BadAccess, ToLauncher};

use crate::call_site;
use crate::runtime::Runtime;

/// A core dump holds so many stretches of shared memory at most.
const DUMPED_RUNS_MAX: usize = 4096;

/// From now on, a signal that nobody handles is explained first.
pub(crate) fn prepare() {
    fault::set_last_words(say);
}

/// In signal context, in a process that is about to die: what is locked is left alone, and the words go out by one call. The launcher
/// knows how to name places in the program; without one, only what concerns shared memory is said.
fn say(signal: i32, address: Option<usize>, program_counter: Option<usize>) {
    let Some(runtime) = Runtime::known() else { return };
    let shared = address.filter(|address| runtime.is_shared(*address, 1));
    let shared =
        shared.map(|address| why_not(runtime, signal, address, fault::is_fetch(address, program_counter)));
    if shared.is_some() || (runtime.has_launcher() && !runtime.is_forked()) {
        let site = program_counter.and_then(call_site::of_instruction);
        let is_jump = address.is_some() && address == program_counter;
        let address = address.map(|address| address as u64);
        let is_bus_error = signal == libc::SIGBUS;
        runtime.say_last(BadAccess { is_bus_error, address, site, is_jump, shared });
    }
    runtime.prepare_dump(DUMPED_RUNS_MAX);
}

/// Why an address of shared memory may not be touched.
fn why_not(runtime: &Runtime, signal: i32, address: usize, is_fetch: bool) -> String {
    if runtime.is_forked() {
        return "a child made by fork has no shared memory; let it exec another program, or use threads"
            .to_owned();
    }
    if runtime.has_left() {
        return "shared memory is gone after hiroba_finalize".to_owned();
    }
    let what = if runtime.is_allocated(address, 1) {
        why_allocated(signal, is_fetch)
    } else {
        "the address is not allocated"
    };
    match runtime.describe_address(address) {
        Some(place) => format!("{what}: {place}"),
        None => what.to_owned(),
    }
}

/// Why a touch of allocated shared memory can kill.
fn why_allocated(signal: i32, is_fetch: bool) -> &'static str {
    if is_fetch {
        "it holds no code that may be executed: call mprotect with PROT_READ | PROT_EXEC on this node first"
    } else if signal == libc::SIGBUS {
        "the machine, or the job's control group, has no memory left for it"
    } else {
        "it is allocated, but a system call that libhiroba.so does not see has changed how it is mapped \
         (hiroba.h lists what may be done)"
    }
}

impl Runtime {
    /// A forked child has no launcher: its words must not be taken for the node's.
    fn say_last(&self, access: BadAccess) {
        if !self.is_forked() && self.tell_launcher(&ToLauncher::BadAccess(access.clone())) {
            return;
        }
        let name = if access.is_bus_error { "bus error" } else { "segmentation fault" };
        let node = self.node();
        let at =
            access.site.map_or_else(String::new, |site| format!(" by {}+0x{:x}", site.module, site.offset));
        let (address, why) = (access.address.unwrap_or_default(), access.shared.unwrap_or_default());
        let sentence = format!(
            "hiroba: node {node}: {name} at shared address 0x{address:x}{at}: {why}; \
             look closer with `hiroba run --debug {node}`"
        );
        let line = format!("{}\n", hiroba_base::printable(&sentence));
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }

    fn prepare_dump(&self, runs_max: usize) {
        if !self.is_forked() && !self.has_left() {
            self.memory.prepare_dump(runs_max);
        }
    }
}
