//! Reports of a process that a bad memory access is about to kill.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use hiroba_memory::fault::{self, Reminder};
use hiroba_wire::control::{BadAccess, ToLauncher};

use crate::call_site;
use crate::runtime::Runtime;

/// Maximum number of shared-memory ranges in a core dump.
const DUMPED_RUNS_MAX: usize = 4096;

/// How long a thread that makes a bad access waits while another thread of its process reports one.
const LAST_WORDS_TAKE: Duration = Duration::from_secs(1);

/// How long looking for callers may take. After that time the report is sent without them.
const UNWINDING_TAKES: Duration = Duration::from_secs(1);

/// The thread that reports: the first one, because the process ends after the report.
static SPEAKER: AtomicI32 = AtomicI32::new(0);

/// Its report.
static WORDS: OnceLock<BadAccess> = OnceLock::new();

/// A function to call before the report.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Installs the report: from now on, a fatal signal without a handler is explained first.
pub(crate) fn prepare() {
    fault::set_last_words(say);
}

/// Registers `act` to be called before this node reports a bad access. It runs in signal context, in a
/// process that is about to die, and may only do what a signal handler may. Only the first registration
/// counts.
pub fn before_last_words(act: fn()) {
    BEFORE.get_or_init(|| act);
}

/// Returns true once a thread of this process reports its end.
pub fn is_dying() -> bool {
    SPEAKER.load(Ordering::Relaxed) != 0
}

/// Reports a bad access, in signal context, in a process that is about to die. It takes no lock that could be
/// held, and sends the report by one call. The launcher can name places in the program. Without a launcher,
/// only facts about shared memory are reported.
fn say(signal: i32, address: Option<usize>, program_counter: Option<usize>) {
    let Some(runtime) = Runtime::known() else { return };
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    match SPEAKER.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => runtime.say_why(signal, address, program_counter),
        // Unwinding has led this thread to unmapped memory, or has taken too long. That is not what killed
        // the process.
        Err(speaker) if speaker == me => runtime.say_words(WORDS.get()),
        Err(_) => std::thread::sleep(LAST_WORDS_TAKE),
    }
}

/// Returns why an address of shared memory may not be accessed.
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

/// Returns why an access to allocated shared memory can kill.
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
    fn say_why(&self, signal: i32, address: Option<usize>, program_counter: Option<usize>) {
        let may_ask = self.has_launcher() && !self.is_forked();
        if let Some(before) = BEFORE.get().filter(|_| may_ask) {
            before();
        }
        let shared = address.filter(|address| self.is_shared(*address, 1));
        let shared =
            shared.map(|address| why_not(self, signal, address, fault::is_fetch(address, program_counter)));
        if shared.is_none() && !may_ask {
            return self.say_words(None);
        }
        let words = WORDS.get_or_init(|| BadAccess {
            is_bus_error: signal == libc::SIGBUS,
            address: address.map(|address| address as u64),
            site: program_counter.and_then(call_site::of_instruction),
            caller: None,
            is_jump: address.is_some() && address == program_counter,
            shared,
        });
        // In jobs of executables the unwinder's own data are shared, and no thread may serve them any more.
        let reminder = Reminder::after(signal, UNWINDING_TAKES);
        let caller = program_counter.filter(|_| may_ask).and_then(call_site::of_caller_in_program);
        drop(reminder);
        self.say_words(Some(&BadAccess { caller, ..words.clone() }));
    }

    fn say_words(&self, words: Option<&BadAccess>) {
        if let Some(words) = words {
            self.say_last(words);
        }
        self.prepare_dump(DUMPED_RUNS_MAX);
    }

    /// Sends the report. A forked child has no launcher: its report must not be taken for the node's.
    fn say_last(&self, access: &BadAccess) {
        if !self.is_forked() && self.tell_launcher(&ToLauncher::BadAccess(access.clone())) {
            return;
        }
        let name = if access.is_bus_error { "bus error" } else { "segmentation fault" };
        let node = self.node();
        let site = access.site.as_ref();
        let at = site.map_or_else(String::new, |site| format!(" by {}+0x{:x}", site.module, site.offset));
        let (address, why) =
            (access.address.unwrap_or_default(), access.shared.as_deref().unwrap_or_default());
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
