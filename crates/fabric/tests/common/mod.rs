//! The files of jobs over shared memory, as the launcher makes them.

use std::os::fd::OwnedFd;

use hiroba_fabric::ShmFiles;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

/// The same files for each of `nodes` nodes, by node.
pub fn shm_files(nodes: u16) -> Vec<ShmFiles> {
    let memory = |name: &str| {
        let file = |_| memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        (0..nodes).map(file).collect::<Vec<_>>()
    };
    let bell = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let (frames, boards) = (memory("frames"), memory("board"));
    let doorbells: Vec<OwnedFd> = (0..nodes).map(bell).collect();
    let copies = |files: &[OwnedFd]| files.iter().map(|file| file.try_clone().unwrap()).collect();
    let each =
        |_| ShmFiles { frames: copies(&frames), boards: copies(&boards), doorbells: copies(&doorbells) };
    (0..nodes).map(each).collect()
}
