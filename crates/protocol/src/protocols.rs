//! The protocols by name.

use hiroba_wire::ProtocolNumber;

/// A coherence protocol that a user can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Sequential consistency ([`crate::sc`]).
    Sc,
    /// Eager release consistency by invalidation ([`crate::erc`]).
    ErcInvalidate,
    /// Eager release consistency by update ([`crate::erc`]).
    ErcUpdate,
    /// Lazy release consistency without homes ([`crate::lrc`]).
    Lrc,
    /// Home-based lazy release consistency ([`crate::hlrc`]).
    Hlrc,
    /// Automatic update release consistency ([`crate::aurc`]).
    Aurc,
    /// The same, with what may be chosen following from what the program does ([`crate::adaptive`]).
    Adaptive,
}

/// Whether pages get other homes in the course of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Homes {
    /// No: pages stay where their regions place them.
    Stay,
    /// By the policy that the user has chosen ([`Coherence::move_homes`](crate::coherence::Coherence::move_homes)).
    AsToldTo,
    /// By what the protocol learns: it takes no policy.
    AsItLearns,
}

impl Protocol {
    /// All of them, the default first.
    pub const ALL: [Protocol; 7] = [
        Protocol::Hlrc,
        Protocol::Aurc,
        Protocol::Adaptive,
        Protocol::Lrc,
        Protocol::ErcInvalidate,
        Protocol::ErcUpdate,
        Protocol::Sc,
    ];

    /// The protocol of this name.
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// The protocol of this number.
    pub fn numbered(number: ProtocolNumber) -> Option<Protocol> {
        Protocol::ALL.get(usize::from(number.0)).copied()
    }

    /// Its number in messages.
    pub fn number(self) -> ProtocolNumber {
        let place = Protocol::ALL.into_iter().position(|other| other == self);
        ProtocolNumber(place.expect("all protocols are among all") as u8)
    }

    /// All names, for a sentence.
    pub fn names() -> String {
        Protocol::ALL.map(Protocol::name).join(" or ")
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Sc => "sc",
            Protocol::ErcInvalidate => "erc-invalidate",
            Protocol::ErcUpdate => "erc-update",
            Protocol::Lrc => "lrc",
            Protocol::Hlrc => "hlrc",
            Protocol::Aurc => "aurc",
            Protocol::Adaptive => "adaptive",
        }
    }

    /// Whether the first store to a page must fault: notes of what was written, asked for at releases, would come too late, or do not suffice.
    pub fn needs_write_faults(self) -> bool {
        match self {
            // A store to a copy must fault before it is done.
            Protocol::Sc => true,
            // Twins are made at the first store.
            Protocol::ErcInvalidate | Protocol::ErcUpdate => true,
            // The twin is made by the first store, so that pages that are read only have none.
            Protocol::Lrc => true,
            Protocol::Hlrc | Protocol::Aurc | Protocol::Adaptive => false,
        }
    }

    /// Whether pages get other homes in the course of a run, and who decides that.
    pub fn homes(self) -> Homes {
        match self {
            Protocol::ErcInvalidate | Protocol::ErcUpdate | Protocol::Hlrc | Protocol::Aurc => {
                Homes::AsToldTo
            }
            // Nothing collects at homes.
            Protocol::Sc | Protocol::Lrc => Homes::Stay,
            Protocol::Adaptive => Homes::AsItLearns,
        }
    }
}
