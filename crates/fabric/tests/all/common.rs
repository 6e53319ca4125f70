//! Makes the files of jobs over shared memory as the launcher does.

use std::os::fd::OwnedFd;

use hiroba_fabric::ShmFiles;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

/// Makes the files of a job of `nodes` nodes.
pub fn shm_files(nodes: u16) -> ShmFiles {
    let memory = |name: &str| {
        let file = |_| memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        (0..nodes).map(file).collect()
    };
    let bell = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    ShmFiles { frames: memory("frames"), boards: memory("board"), doorbells: (0..nodes).map(bell).collect() }
}

/// Duplicates the files, as another node inherits them.
pub fn inherit(files: &ShmFiles) -> ShmFiles {
    let copies = |files: &[OwnedFd]| files.iter().map(|file| file.try_clone().unwrap()).collect();
    ShmFiles {
        frames: copies(&files.frames),
        boards: copies(&files.boards),
        doorbells: copies(&files.doorbells),
    }
}
