//! Examines which ways of catching faults and tracking writes this kernel allows this user, by trying each as
//! a job would.

use hiroba_node::preflight;
use hiroba_wire::control::{FaultSourceChoice, WriteTrackingChoice};

use super::{Finding, kernel_file};

/// A job of two nodes needs everything that any job needs.
const NODES: u16 = 2;

pub(super) fn examine() -> Vec<Finding> {
    let attempt = |source, tracking| preflight(NODES, source, tracking).map_err(|error| error.to_string());
    let any = WriteTrackingChoice::Automatic;
    let event = attempt(FaultSourceChoice::Event, any);
    let sigbus = attempt(FaultSourceChoice::Sigbus, any);
    let sigsegv = attempt(FaultSourceChoice::Sigsegv, any);
    let tracking = attempt(FaultSourceChoice::Automatic, WriteTrackingChoice::Async);
    vec![
        judge(
            "fault source event",
            "userfaultfd events: for raw syscall(2) and io_uring on shared memory; twice as slow",
            event,
            "raw syscall(2) and io_uring on shared memory fail under every source that is allowed here",
            &event_remedy(),
        ),
        judge(
            "fault source sigbus",
            "userfaultfd in the faulting thread: the fastest, and the default",
            sigbus,
            "every fault costs two to four times as much",
            "use Linux 6.4 or later with CONFIG_USERFAULTFD; in a container, allow the system call userfaultfd \
             (Docker: --security-opt seccomp=unconfined, or a profile that lists it)",
        ),
        judge(
            "fault source sigsegv",
            "SIGSEGV and mprotect: any kernel, any user",
            sigsegv,
            "there is no fallback where userfaultfd is missing",
            "see the reason; limits are listed below",
        ),
        judge(
            "write tracking async",
            "first stores to pages cost no fault",
            tracking,
            "the first store to each page after a release faults (5 instead of 0.9 us)",
            "use Linux 6.7 or later (UFFD_FEATURE_WP_ASYNC, PAGEMAP_SCAN)",
        ),
        chosen().map_or_else(none_works, |choice| Finding::good("default", choice)),
    ]
}

fn judge(what: &str, good: &str, outcome: Result<(), String>, lost: &str, remedy: &str) -> Finding {
    match outcome {
        Ok(()) => Finding::good(what, good),
        Err(reason) => Finding::lacking(what, reason, lost, remedy),
    }
}

/// Returns what a job without flags gets.
fn chosen() -> Option<String> {
    let works = |source, tracking| preflight(NODES, source, tracking).is_ok();
    let sources = [
        (FaultSourceChoice::Sigbus, "sigbus"),
        (FaultSourceChoice::Event, "event"),
        (FaultSourceChoice::Sigsegv, "sigsegv"),
    ];
    let trackings = [(WriteTrackingChoice::Async, "async"), (WriteTrackingChoice::Fault, "fault")];
    for (source, source_name) in sources {
        for (tracking, tracking_name) in trackings {
            if works(source, tracking) {
                let choice = format!("--fault-source {source_name} --write-tracking {tracking_name}");
                return Some(format!("a job without flags gets {choice}"));
            }
        }
    }
    None
}

fn none_works() -> Finding {
    Finding::lacking("default", "no fault source works", "jobs of several nodes", "fix one of the above")
        .fatal()
}

fn event_remedy() -> String {
    let unprivileged = kernel_file("/proc/sys/vm/unprivileged_userfaultfd");
    let device = std::path::Path::new("/dev/userfaultfd").exists();
    let mut ways = vec!["run as root".to_owned()];
    if device {
        ways.push("let this user open it ('setfacl -m u:USER:rw /dev/userfaultfd')".to_owned());
    }
    if unprivileged.as_deref() == Some("0") {
        ways.push("set 'sysctl vm.unprivileged_userfaultfd=1'".to_owned());
    }
    ways.join(", or ")
}
