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
    /// Home-based lazy release consistency whose choices follow from what the program does
    /// ([`crate::adaptive`]).
    Adaptive,
}

/// Whether, and by what, pages get other homes during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Homes {
    /// Pages stay where their regions place them.
    Stay,
    /// Homes move by the policy that the user has chosen
    /// ([`Coherence::move_homes`](crate::coherence::Coherence::move_homes)).
    AsToldTo,
    /// Homes move by what the protocol learns; it takes no policy.
    AsItLearns,
}

impl Protocol {
    /// All protocols, the default first.
    pub const ALL: [Protocol; 7] = [
        Protocol::Adaptive,
        Protocol::Hlrc,
        Protocol::Aurc,
        Protocol::Lrc,
        Protocol::ErcInvalidate,
        Protocol::ErcUpdate,
        Protocol::Sc,
    ];

    /// Returns the protocol of this name.
    pub fn named(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Returns the protocol of this number.
    pub fn numbered(number: ProtocolNumber) -> Option<Protocol> {
        Protocol::ALL.get(usize::from(number.0)).copied()
    }

    /// Returns its number in messages.
    pub fn number(self) -> ProtocolNumber {
        let place = Protocol::ALL.into_iter().position(|other| other == self);
        ProtocolNumber(place.expect("all protocols are among all") as u8)
    }

    /// Returns all names, for a sentence.
    pub fn names() -> String {
        Protocol::ALL.map(Protocol::name).join(" or ")
    }

    /// Returns its name on the command line.
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

    /// Returns true if the first store to a page must fault, because reports of written pages at releases
    /// would come too late, or do not suffice.
    pub fn needs_write_faults(self) -> bool {
        match self {
            // A store to a copy must fault before it is done.
            Protocol::Sc => true,
            // Twins are made at the first store.
            Protocol::ErcInvalidate | Protocol::ErcUpdate => true,
            // The first store makes the twin, so that pages that are only read have none.
            Protocol::Lrc => true,
            Protocol::Hlrc | Protocol::Aurc | Protocol::Adaptive => false,
        }
    }

    /// Returns true if data races can be found under it ([`crate::races`]).
    pub fn finds_races(self) -> bool {
        match self {
            Protocol::Hlrc => true,
            Protocol::Sc
            | Protocol::ErcInvalidate
            | Protocol::ErcUpdate
            | Protocol::Lrc
            | Protocol::Aurc
            | Protocol::Adaptive => false,
        }
    }

    /// Returns true if pages leave a node that is short of memory
    /// ([`Coherence::give_up`](crate::coherence::Coherence::give_up)).
    pub fn gives_up_pages(self) -> bool {
        match self {
            Protocol::Hlrc | Protocol::Adaptive => true,
            Protocol::Sc | Protocol::ErcInvalidate | Protocol::ErcUpdate | Protocol::Lrc | Protocol::Aurc => {
                false
            }
        }
    }

    /// Returns true if it can give pages up to sequential consistency
    /// ([`Synchronisation::Convert`](crate::Synchronisation::Convert)).
    pub fn converts_pages(self) -> bool {
        match self {
            Protocol::Hlrc | Protocol::Adaptive => true,
            Protocol::Sc | Protocol::ErcInvalidate | Protocol::ErcUpdate | Protocol::Lrc | Protocol::Aurc => {
                false
            }
        }
    }

    /// Returns true if executables that were not built for Hiroba run under it. Their small blocks are always
    /// under sequential consistency.
    pub fn runs_executables(self) -> bool {
        match self {
            Protocol::Sc | Protocol::Hlrc | Protocol::Adaptive => true,
            Protocol::ErcInvalidate | Protocol::ErcUpdate | Protocol::Lrc | Protocol::Aurc => false,
        }
    }

    /// Returns whether, and by what, pages get other homes during a run.
    pub fn homes(self) -> Homes {
        match self {
            Protocol::ErcInvalidate | Protocol::ErcUpdate | Protocol::Hlrc | Protocol::Aurc => {
                Homes::AsToldTo
            }
            // No changes are collected at homes.
            Protocol::Sc | Protocol::Lrc => Homes::Stay,
            Protocol::Adaptive => Homes::AsItLearns,
        }
    }
}
