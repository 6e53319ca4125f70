//! The kinds of fault sources.

use core::fmt;

/// The kinds of fault sources, best first.
///
/// Faults as SIGBUS cost half of what events cost, since nobody else has to be woken, and barriers and locks
/// less, since no clock has to tell what a thread lost to faults that it does not see. What events are better
/// at is left to those who need it: system calls that a program makes past the C library, on shared memory.
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
