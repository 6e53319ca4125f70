//! The classes of time that a node's account tells apart.

use hiroba_base::Access;
use hiroba_memory::fault::FaultKind;

/// A class of time that is measured; what is left over is computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeClass {
    ReadFault,
    WriteFault,
    Barrier,
    Lock,
    Serve,
    Other,
}

/// What a fault of this kind is counted as, and what it wants.
pub(crate) fn classify(kind: FaultKind) -> (TimeClass, Access) {
    match kind {
        FaultKind::Read => (TimeClass::ReadFault, Access::Read),
        FaultKind::Write => (TimeClass::WriteFault, Access::Write),
        FaultKind::Unknown => (TimeClass::ReadFault, Access::None),
    }
}
