//! The classes of time that a node's account distinguishes.

use hiroba_base::Access;
use hiroba_memory::fault::FaultKind;

/// A class of time that is measured; the remaining time is computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeClass {
    ReadFault,
    WriteFault,
    Barrier,
    Lock,
    Serve,
    Other,
}

impl TimeClass {
    pub(crate) const ALL: [TimeClass; 6] = [
        TimeClass::ReadFault,
        TimeClass::WriteFault,
        TimeClass::Barrier,
        TimeClass::Lock,
        TimeClass::Serve,
        TimeClass::Other,
    ];
}

/// How a thread of an executable waits outside the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideWait {
    /// It has nothing to do: the next parallel region has not begun.
    Idle,
    /// For other threads of its team.
    Team,
}

impl OutsideWait {
    pub(crate) fn class(self) -> TimeClass {
        match self {
            OutsideWait::Idle => TimeClass::Other,
            OutsideWait::Team => TimeClass::Barrier,
        }
    }
}

/// Returns the class and the wanted access of a fault of this kind.
pub(crate) fn classify(kind: FaultKind) -> (TimeClass, Access) {
    match kind {
        FaultKind::Read => (TimeClass::ReadFault, Access::Read),
        FaultKind::Write => (TimeClass::WriteFault, Access::Write),
        FaultKind::Unknown => (TimeClass::ReadFault, Access::None),
    }
}
