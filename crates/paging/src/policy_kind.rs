//! The policies by name.

use core::fmt;
use core::str::FromStr;

use crate::{Clock, Fifo, Lirs, LruScan, Policy, S3Fifo, Sieve};

/// A policy that needs no knowledge of the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// A second chance for pages that were used.
    Clock,
    /// Least recently used, as far as scans tell.
    LruScan,
    /// Low inter-reference recency.
    Lirs,
    /// Three queues: new pages prove themselves in a small one.
    S3Fifo,
    /// A hand that leaves used pages where they are.
    Sieve,
}

/// The name is no policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// What was asked for.
    pub got: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a replacement policy (")?;
        for (index, kind) in PolicyKind::ALL.into_iter().enumerate() {
            write!(f, "{}{kind}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, "), got '{}'", self.got)
    }
}

impl core::error::Error for UnknownPolicy {}

impl PolicyKind {
    /// All of them, in the order of their years.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Fifo,
        PolicyKind::Clock,
        PolicyKind::LruScan,
        PolicyKind::Lirs,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
    ];

    /// The name that the command line takes.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Clock => "clock",
            PolicyKind::LruScan => "lru-scan",
            PolicyKind::Lirs => "lirs",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Sieve => "sieve",
        }
    }

    /// A policy of this kind, with no page in memory.
    pub fn make(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fifo => Box::new(Fifo::default()),
            PolicyKind::Clock => Box::new(Clock::default()),
            PolicyKind::LruScan => Box::new(LruScan::default()),
            PolicyKind::Lirs => Box::new(Lirs::default()),
            PolicyKind::S3Fifo => Box::new(S3Fifo::default()),
            PolicyKind::Sieve => Box::new(Sieve::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyKind, UnknownPolicy> {
        let found = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy { got: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.make().name(), kind.name());
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_there_is() {
        let error = "lfu".parse::<PolicyKind>().unwrap_err().to_string();
        assert_eq!(
            error,
            "expected a replacement policy (fifo, clock, lru-scan, lirs, s3-fifo, sieve), got 'lfu'"
        );
    }
}
