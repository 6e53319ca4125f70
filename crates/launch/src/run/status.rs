//! How nodes end, and what the job's exit status is.

use rustix::process::WaitStatus;

use super::signals;

/// How a node's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Killed(i32),
}

impl End {
    /// Converts the result of `waitpid`; `None` if the process has not ended.
    pub fn from_wait(status: WaitStatus) -> Option<End> {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Some(End::Exited(status as u8)),
            (None, Some(signal)) => Some(End::Killed(signal)),
            (None, None) => None,
        }
    }

    /// Returns the exit status that represents this end.
    pub fn status(self) -> u8 {
        match self {
            End::Exited(status) => status,
            End::Killed(signal) => killed_status(signal),
        }
    }

    /// Returns true if the program's own actions killed it, which a debugger shows.
    pub fn is_of_the_programs_making(self) -> bool {
        let signals = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGABRT,
            libc::SIGTRAP,
            libc::SIGSYS,
        ];
        matches!(self, End::Killed(signal) if signals.contains(&signal))
    }

    /// Describes the end for a sentence that begins with the node: "exited with status 3".
    pub fn describe(self) -> String {
        match self {
            End::Exited(status) => format!("exited with status {status}"),
            End::Killed(signal) => format!("was killed by {}", signals::describe(signal)),
        }
    }
}

/// Returns 128 + the signal.
pub fn killed_status(signal: i32) -> u8 {
    128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
}

/// Returns node 0's status if it is not zero, else the first nonzero one of another node. `None` stands for a
/// node that the launcher ended, which does not count.
pub fn job_status(ends: impl Iterator<Item = Option<End>>) -> u8 {
    ends.flatten().map(End::status).find(|status| *status != 0).unwrap_or(0)
}

/// Names nodes in a sentence: "node 3", "nodes 1, 2 and 5", "nodes 0, 1, 2 and 61 more", "all 64 nodes".
pub fn name_nodes(which: &[usize], nodes: usize) -> String {
    const NAMED_MAX: usize = 4;
    match which {
        [one] => format!("node {one}"),
        all if all.len() == nodes => all_nodes(nodes),
        some => {
            let (named, last) = if some.len() <= NAMED_MAX {
                (&some[..some.len() - 1], some[some.len() - 1].to_string())
            } else {
                (&some[..NAMED_MAX - 1], format!("{} more", some.len() - NAMED_MAX + 1))
            };
            let named: Vec<String> = named.iter().map(usize::to_string).collect();
            format!("nodes {} and {last}", named.join(", "))
        }
    }
}

/// Names all nodes: "the node", "both nodes", "all 4 nodes".
pub fn all_nodes(nodes: usize) -> String {
    match nodes {
        1 => "the node".to_owned(),
        2 => "both nodes".to_owned(),
        more => format!("all {more} nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_zero_speaks_first_and_zero_says_nothing() {
        let status = |ends: &[Option<End>]| job_status(ends.iter().copied());
        assert_eq!(status(&[Some(End::Exited(0)), Some(End::Exited(0))]), 0);
        assert_eq!(status(&[Some(End::Exited(3)), Some(End::Exited(4))]), 3);
        assert_eq!(status(&[Some(End::Exited(0)), Some(End::Exited(0)), Some(End::Killed(11))]), 139);
        assert_eq!(status(&[None, Some(End::Exited(7))]), 7);
    }

    #[test]
    fn nodes_are_named_briefly() {
        assert_eq!(name_nodes(&[3], 4), "node 3");
        assert_eq!(name_nodes(&[0, 1], 2), "both nodes");
        assert_eq!(name_nodes(&[1, 2, 5], 8), "nodes 1, 2 and 5");
        assert_eq!(name_nodes(&[0, 1, 2, 3, 4, 5], 64), "nodes 0, 1, 2 and 3 more");
    }
}
