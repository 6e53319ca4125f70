//! What the machine must offer before a job starts: descriptors, memory files, a working directory.

use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::output::Piped;
use crate::failure::{Failure, system_words};
use hiroba_wire::FabricKind;

/// Descriptors that a node opens beside those of the program, and one a thread to wake it: memory files, userfaultfd,
/// sockets, epoll.
const NODE_DESCRIPTORS: u64 = 16;
/// Connections of strangers that a node on `tcp` has open at most, before they are refused.
const STRANGERS_DESCRIPTORS: u64 = 64;
/// Three standard streams, and what the launcher gives a node: its socket, and the channel that the node makes to it.
const INHERITED_DESCRIPTORS: u64 = 5;
/// What the launcher opens once: epoll, signals, gate, exec reports, its front, `/dev/null`, the statistics file.
const LAUNCHER_DESCRIPTORS: u64 = 16;
/// What the launcher opens for each node: its socket, both ends of its door; later its channel and a pidfd.
const LAUNCHER_DESCRIPTORS_PER_NODE: u64 = 3;
/// Files of each node that the launcher opens and all nodes get where the fabric is `shm`: frames, board, doorbell.
const SHARED_FILES_PER_NODE: u64 = 3;
/// The limits on open descriptors that the nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimit {
    /// `None` leaves the limit as it is.
    pub soft: Option<u64>,
    /// The hard limit, never changed.
    pub hard: Option<u64>,
}

/// Raises this process's soft limit as far as the job needs, `nodes` of which run here, and tells what the nodes shall have.
///
/// The raised limit is the launcher's alone: programs that close every possible descriptor at start, or
/// use `select`, do not expect a million.
pub fn prepare_descriptors(
    nodes: u16,
    nodes_of_job: u16,
    threads_per_node: u16,
    piped: Piped,
    fabric: FabricKind,
) -> Result<NodeLimit, Failure> {
    let given = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, |entries| entries.count() as u64);
    let mut need = needed(nodes, threads_per_node, piped, fabric, open);
    // What a node opens for its peers it opens for all of them, wherever they run.
    need.node = needed(nodes_of_job, threads_per_node, piped, fabric, open).node;
    let hard = given.maximum.unwrap_or(u64::MAX);
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
    let nodes = u64::from(nodes);
    // Besides a node's one socket: what all nodes share, and what each node has for itself.
    let (shared, own) = match fabric {
        FabricKind::SharedMemory => (SHARED_FILES_PER_NODE * nodes, 0),
        FabricKind::Tcp => (0, nodes + STRANGERS_DESCRIPTORS),
        FabricKind::Udp => (0, 0),
    };
    Need {
        launcher: open + LAUNCHER_DESCRIPTORS + per_node * nodes + shared,
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

/// Checks that memory files can be made. Nodes use them, not `/dev/shm`, so a full one does no harm.
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

/// The sentence for a working directory that is not there.
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
        assert_eq!(shared.launcher - few.launcher, 4 * SHARED_FILES_PER_NODE);
        assert_eq!(shared.node - few.node, 4 * SHARED_FILES_PER_NODE);
    }

    #[test]
    fn the_sentence_names_the_numbers() {
        let failure = too_few(100, &needed(100, 1, Piped::NONE, FabricKind::Udp, 3), 64);
        assert_eq!(failure.status, 125);
        assert!(failure.sentence.contains("limit is 64") && failure.sentence.contains("ulimit -n"));
    }
}
