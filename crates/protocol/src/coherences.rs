//! Makes each protocol for one node.

use hiroba_base::NodeId;

use crate::adaptive::adaptive;
use crate::aurc::Aurc;
use crate::coherence::Coherence;
use crate::erc::{Erc, Mode};
use crate::hlrc::Hlrc;
use crate::lrc::Lrc;
use crate::protocols::Protocol;
use crate::sc::Sc;

impl Protocol {
    /// Returns true if it maps pages onto their homes' frames where nodes share memory
    /// ([`Coherence::maps_homes`]).
    pub fn maps_homes(self) -> bool {
        self.coherence([]).maps_homes()
    }

    /// Returns the protocol for one node. `reached` are the other nodes whose frames this one can read
    /// itself.
    pub fn coherence(self, reached: impl IntoIterator<Item = NodeId>) -> Box<dyn Coherence> {
        match self {
            Protocol::Sc => Box::new(Sc::new()),
            Protocol::ErcInvalidate => Box::new(Erc::new(Mode::Invalidate)),
            Protocol::ErcUpdate => Box::new(Erc::new(Mode::Update)),
            Protocol::Lrc => Box::new(Lrc::new()),
            Protocol::Hlrc => Box::new(Hlrc::new().reading_from(reached)),
            Protocol::Aurc => Box::new(Aurc::new(Hlrc::new().reading_from(reached))),
            Protocol::Adaptive => Box::new(adaptive(reached)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::Homes;

    #[test]
    fn protocols_say_the_same_of_their_abilities_by_name_and_as_engines() {
        for protocol in Protocol::ALL {
            let moves = protocol.homes() != Homes::Stay;
            assert_eq!(protocol.coherence([]).can_move_homes(), moves, "{}", protocol.name());
            let converts = protocol.coherence([]).as_giver().is_some();
            assert_eq!(protocol.converts_pages(), converts, "{}", protocol.name());
        }
    }
}
