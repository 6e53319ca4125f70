//! What each protocol promises its programs.

use hiroba_protocol::Protocol;

use crate::axioms;
use crate::execution::Execution;
use crate::sequential::{self, Sequential};

/// The promise of a protocol to its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every program behaves as on one machine, and a node that may write a page is the only one that may
    /// read it.
    Sequential,
    /// Programs without data races behave as on one machine.
    Release,
}

/// Returns the promise of the protocol.
pub fn promise_of(protocol: Protocol) -> Promise {
    match protocol {
        Protocol::Sc => Promise::Sequential,
        Protocol::ErcInvalidate
        | Protocol::ErcUpdate
        | Protocol::Lrc
        | Protocol::Hlrc
        | Protocol::Aurc
        | Protocol::Adaptive => Promise::Release,
    }
}

/// Returns the protocol of that name.
///
/// # Errors
/// A sentence with the valid names.
pub fn by_name(name: &str) -> Result<Protocol, String> {
    let names = Protocol::names();
    Protocol::named(name).ok_or_else(|| format!("expected the name of a protocol, {names}, got '{name}'"))
}

impl Promise {
    /// Returns what is wrong with what threads saw, if anything. Racy programs are checked only for what they
    /// are promised.
    pub fn convicts(self, execution: &Execution) -> Option<String> {
        if self == Promise::Sequential
            && let Sequential::No { explanation } = sequential::judge(execution)
        {
            return Some(explanation);
        }
        match axioms::judge(execution) {
            Err(incomplete) => Some(incomplete.to_string()),
            Ok(verdict) => verdict.violations.first().map(|violation| violation.explanation.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_found_by_name_and_others_are_refused_with_a_sentence() {
        for protocol in Protocol::ALL {
            assert_eq!(by_name(protocol.name()), Ok(protocol));
        }
        let refused = by_name("munin").unwrap_err();
        assert!(refused.contains("'munin'") && refused.contains(&Protocol::names()), "{refused}");
    }
}
