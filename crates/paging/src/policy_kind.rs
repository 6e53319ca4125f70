//! The policies by name.

use core::fmt;
use core::str::FromStr;

use crate::{Clock, Fifo, Lirs, LruScan, Policy, S3Fifo, Sieve};

/// A policy that needs no knowledge of the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// A second chance for used pages.
    Clock,
    /// Least recently used, approximated by scans.
    LruScan,
    /// Low inter-reference recency.
    Lirs,
    /// Three queues: new pages first enter a small one.
    S3Fifo,
    /// A hand that leaves used pages in their places.
    Sieve,
}

/// The name is not a policy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// The name given.
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
    /// All of them, by year.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Fifo,
        PolicyKind::Clock,
        PolicyKind::LruScan,
        PolicyKind::Lirs,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
    ];

    /// Returns the name for the command line.
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

    /// Makes a policy of this kind, without pages.
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
