//! The kinds of fault sources.

use core::fmt;

/// The kinds of fault sources, best first.
///
/// Faults as SIGBUS cost half as much as events, because no other thread has to be woken. Barriers and locks
/// cost less, too, because no clock has to measure the time that a thread loses to faults that it does not
/// see. Events are better only for programs that make system calls on shared memory without the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultSourceKind {
    /// userfaultfd, faults raised as SIGBUS in the faulting thread.
    Sigbus,
    /// userfaultfd, faults read from its descriptor.
    Event,
    /// mprotect, faults raised as SIGSEGV in the faulting thread.
    Sigsegv,
}

impl FaultSourceKind {
    /// Every kind, in the order in which [`open_best`](crate::open_best) tries them.
    pub const ALL: [FaultSourceKind; 3] =
        [FaultSourceKind::Sigbus, FaultSourceKind::Event, FaultSourceKind::Sigsegv];
}

impl fmt::Display for FaultSourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultSourceKind::Event => "event",
            FaultSourceKind::Sigbus => "sigbus",
            FaultSourceKind::Sigsegv => "sigsegv",
        })
    }
}
