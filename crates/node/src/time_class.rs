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

/// Returns the class and the wanted access of a fault of this kind.
pub(crate) fn classify(kind: FaultKind) -> (TimeClass, Access) {
    match kind {
        FaultKind::Read => (TimeClass::ReadFault, Access::Read),
        FaultKind::Write => (TimeClass::WriteFault, Access::Write),
        FaultKind::Unknown => (TimeClass::ReadFault, Access::None),
    }
}
