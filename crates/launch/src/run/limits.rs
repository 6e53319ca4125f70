//! What the machine must provide before a job starts: descriptors, memory files, a working directory.

use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::output::Piped;
use crate::failure::{Failure, system_words};
use hiroba_wire::{Descriptors, FabricKind};

/// Descriptors that a node opens beside those of the program and one per thread to wake it: memory files,
/// userfaultfd, sockets, epoll.
const NODE_DESCRIPTORS: u64 = 16;
/// Three standard streams, and what the launcher gives a node: its socket, and the channel that the node
/// makes to it.
const INHERITED_DESCRIPTORS: u64 = 5;
/// Descriptors that the launcher opens once: epoll, signals, gate, exec reports, its front, `/dev/null`, the
/// statistics file.
const LAUNCHER_DESCRIPTORS: u64 = 16;
/// Descriptors that the launcher opens for each node: its socket, both ends of its door; later its channel
/// and a pidfd.
const LAUNCHER_DESCRIPTORS_PER_NODE: u64 = 3;

/// The limits on open descriptors that the nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimit {
    /// `None` leaves the limit unchanged.
    pub soft: Option<u64>,
    /// The hard limit, which is never changed.
    pub hard: Option<u64>,
}

/// Raises this process's soft limit as far as the job needs, `nodes` of which run here, and returns the
/// limits of the nodes. `lends` says that nodes lend each other memory; a node that gets too few descriptors
/// for that lends and borrows nothing.
///
/// Only the launcher gets the raised limit: programs that close every possible descriptor at start, or use
/// `select`, do not expect a million.
pub fn prepare_descriptors(
    nodes: u16,
    nodes_of_job: u16,
    threads_per_node: u16,
    piped: Piped,
    fabric: FabricKind,
    lends: bool,
) -> Result<NodeLimit, Failure> {
    let given = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, |entries| entries.count() as u64);
    let mut need = needed(nodes, threads_per_node, piped, fabric, open);
    // A node opens descriptors for all its peers, wherever they run.
    need.node = needed(nodes_of_job, threads_per_node, piped, fabric, open).node;
    let hard = given.maximum.unwrap_or(u64::MAX);
    if lends {
        // A listening socket, and a connection to each other node.
        let wanted = need.node + 1 + FabricKind::Tcp.descriptors(nodes_of_job).own;
        need.node = need.node.max(wanted.min(hard));
    }
    let soft = given.current.unwrap_or(u64::MAX);
    if need.launcher.max(need.node) > hard {
        return Err(too_few(nodes, &need, hard));
    }
    if soft < need.launcher {
        let raised = Rlimit { current: Some(need.launcher), maximum: given.maximum };
        setrlimit(Resource::Nofile, raised).map_err(|_| too_few(nodes, &need, soft))?;
    }
    let node_soft = given.current.map(|soft| soft.max(need.node));
    Ok(NodeLimit { soft: node_soft, hard: given.maximum })
}

struct Need {
    launcher: u64,
    node: u64,
}

fn needed(nodes: u16, threads_per_node: u16, piped: Piped, fabric: FabricKind, open: u64) -> Need {
    let per_node = LAUNCHER_DESCRIPTORS_PER_NODE + piped.count();
    let Descriptors { shared, own } = fabric.descriptors(nodes);
    Need {
        launcher: open + LAUNCHER_DESCRIPTORS + per_node * u64::from(nodes) + shared,
        node: INHERITED_DESCRIPTORS + NODE_DESCRIPTORS + u64::from(threads_per_node) + shared + own,
    }
}

fn too_few(nodes: u16, need: &Need, limit: u64) -> Failure {
    let most = need.launcher.max(need.node);
    Failure::new(format!(
        "a job of {nodes} nodes needs {most} open files (launcher {}, each node {}), but the limit is {limit}; \
         raise it ('ulimit -n {most}', as root 'ulimit -Hn {most}' first) or use fewer nodes (-n)",
        need.launcher, need.node
    ))
}

/// Checks that memory files can be made. Nodes use these instead of `/dev/shm`, so a full one does no harm.
pub fn check_memory_files() -> Result<(), Failure> {
    match rustix::fs::memfd_create("hiroba-check", MemfdFlags::CLOEXEC) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(format!(
            "cannot create a memory file (memfd_create: {}); nodes keep the shared memory in one: allow the call in \
             this sandbox or container",
            system_words(&error.into())
        ))),
    }
}

/// Checks that the nodes will have a working directory.
pub fn check_working_directory() -> Result<(), Failure> {
    match std::env::current_dir() {
        Ok(_) => Ok(()),
        Err(error) => Err(no_working_directory(&error)),
    }
}

/// Returns the error for a working directory that does not exist.
pub fn no_working_directory(error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "the working directory cannot be used ({}); change to one that exists",
        system_words(error)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_grows_with_nodes_and_pipes() {
        let few = needed(4, 1, Piped::NONE, FabricKind::Udp, 5);
        let many = needed(4096, 1, Piped::NONE, FabricKind::Udp, 5);
        let piped = needed(4096, 1, Piped::EACH, FabricKind::Udp, 5);
        let shared = needed(4, 1, Piped::NONE, FabricKind::SharedMemory, 5);
        assert_eq!(few.node, many.node);
        assert_eq!(needed(4, 64, Piped::NONE, FabricKind::Udp, 5).node, few.node + 63);
        assert_eq!(many.launcher - few.launcher, 4092 * LAUNCHER_DESCRIPTORS_PER_NODE);
        let connected = |nodes| needed(nodes, 1, Piped::NONE, FabricKind::Tcp, 5).node;
        assert_eq!(connected(128) - connected(4), 124);
        assert_eq!(piped.launcher - many.launcher, 4096 * 2);
        assert_eq!(shared.launcher - few.launcher, 4 * 3, "three files a node");
        assert_eq!(shared.node - few.node, 4 * 3, "three files a node");
    }

    #[test]
    fn the_sentence_names_the_numbers() {
        let failure = too_few(100, &needed(100, 1, Piped::NONE, FabricKind::Udp, 3), 64);
        assert_eq!(failure.status, 125);
        assert!(failure.sentence.contains("limit is 64") && failure.sentence.contains("ulimit -n"));
    }
}
