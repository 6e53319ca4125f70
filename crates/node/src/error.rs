use std::io;

use hiroba_fabric::FabricError;
use hiroba_memory::MemoryError;
use hiroba_wire::WireError;
use thiserror::Error;

/// Why a process could not join its job.
#[derive(Debug, Error)]
pub enum NodeError {
    /// `hiroba_init` was called twice.
    #[error("expected one hiroba_init per process, got a second one")]
    AlreadyJoined,
    /// The process is a child of a node.
    #[error(
        "expected the process that hiroba run started, got a child that it forked; a child is not part of the job"
    )]
    Forked,
    /// An earlier program of this node has had the job.
    #[error(
        "expected one program per node that calls hiroba_init, got a second one, unless the launcher has just ended; run each \
         under a `hiroba run` of its own"
    )]
    NotFirst,
    /// The program is set-user-ID, set-group-ID or has capabilities.
    #[error(
        "expected a program with no more rights than its user's, got one that is set-user-ID, set-group-ID or has file \
         capabilities; the user who starts a job controls all of its nodes: remove the bits or capabilities ('chmod ug-s', \
         'setcap -r')"
    )]
    Privileged,
    /// Fewer descriptors arrived than the launcher passed.
    #[error(
        "expected {expected} descriptors from the launcher, got {got}; has the program lowered its limit on open files \
         (RLIMIT_NOFILE) before hiroba_init?"
    )]
    Descriptors {
        /// The number announced.
        expected: usize,
        /// The number received.
        got: usize,
    },
    /// The launcher's channel is named but unusable.
    #[error(
        "expected the launcher's channel on descriptor {descriptor}: {source}; was it closed before hiroba_init?"
    )]
    Control {
        /// The descriptor's number from the environment.
        descriptor: String,
        /// The system's error.
        source: io::Error,
    },
    /// The launcher sent something unexpected.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Library and launcher are of different versions.
    #[error(
        "expected a launcher of this program's own version of Hiroba, {ours}, got version {theirs}; build the program again with \
         that `hiroba cc`, or run it with the `hiroba` whose libhiroba.so it loads"
    )]
    Version {
        /// The library's version.
        ours: String,
        /// The launcher's version.
        theirs: String,
    },
    /// Library and launcher have the same version, but were built from different sources.
    #[error(
        "expected a launcher of the build of this program's libhiroba, {ours}, got one of build {theirs}; build hiroba and \
         libhiroba.so from the same sources ('cargo build --release') and the program again with that `hiroba cc`"
    )]
    Build {
        /// The library's build.
        ours: &'static str,
        /// The launcher's build.
        theirs: String,
    },
    /// The job's messages are not sealed.
    #[error("expected a job with sealed messages, got one without seals; only 'hiroba bench' joins those")]
    WithoutSeal,
    /// The job asks for an option that this build does not have.
    #[error("expected {what} {known}, got {got}")]
    Unknown {
        /// The option.
        what: &'static str,
        /// The values that this build knows.
        known: String,
        /// The value that was requested.
        got: String,
    },
    /// The coherence unit is smaller than the kernel's page.
    #[error(
        "expected pages of at least {granule_bytes} bytes, this kernel's own, got {asked_bytes}; ask for --page-size {granule_bytes}"
    )]
    PageSize {
        /// The requested page size.
        asked_bytes: usize,
        /// The kernel's page size.
        granule_bytes: usize,
    },
    /// ThreadSanitizer is in the process.
    #[error(
        "expected a program built without -fsanitize=thread, whose runtime reserves the shared region's addresses, \
         got one with it; build without it and look for races between nodes with `hiroba run --races`"
    )]
    ThreadSanitizer,
    /// The process runs under valgrind.
    #[error(
        "expected a program that runs by itself, got one under valgrind, which would track every byte of the shared \
         region's 16 TiB; build it with -fsanitize=address or -fsanitize=undefined instead"
    )]
    Valgrind,
    /// The shared region cannot be set up.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The fabric cannot be opened.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl NodeError {
    /// Returns the nearest `errno` value.
    pub fn errno(&self) -> i32 {
        match self {
            NodeError::AlreadyJoined | NodeError::NotFirst => libc::EALREADY,
            NodeError::Forked | NodeError::WithoutSeal | NodeError::Privileged => libc::EPERM,
            NodeError::Descriptors { .. } => libc::EMFILE,
            NodeError::Wire(_) | NodeError::Version { .. } | NodeError::Build { .. } => libc::EPROTO,
            NodeError::Unknown { .. } | NodeError::PageSize { .. } => libc::ENOTSUP,
            NodeError::ThreadSanitizer | NodeError::Valgrind => libc::ENOTSUP,
            NodeError::Memory(_) => libc::ENOMEM,
            NodeError::Fabric(FabricError::NotANode { .. }) => libc::EPROTO,
            NodeError::Fabric(FabricError::System { source, .. })
            | NodeError::Control { source, .. }
            | NodeError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Returns the error for a launcher that was not built like this library.
    pub(crate) fn other_build(version: String, build: String) -> NodeError {
        let ours = env!("CARGO_PKG_VERSION");
        if version == ours {
            NodeError::Build { ours: crate::BUILD, theirs: build }
        } else {
            NodeError::Version { ours: ours.to_owned(), theirs: version }
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> NodeError {
        move |errno| NodeError::System { what, source: errno.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_build_is_named_with_this_one() {
        let (version, build) = (env!("CARGO_PKG_VERSION"), crate::BUILD);
        let told = |version: &str, build: &str| {
            NodeError::other_build(version.to_owned(), build.to_owned()).to_string()
        };
        let other_build = told(version, "0123456789abcdef");
        assert!(other_build.contains(build) && other_build.contains("0123456789abcdef"), "{other_build}");
        let other_version = told("0.0.9", build);
        assert!(other_version.contains(version) && other_version.contains("0.0.9"), "{other_version}");
    }
}
