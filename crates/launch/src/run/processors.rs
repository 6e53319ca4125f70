//! The machine's processors: which nodes get which, and whether they may sleep deeply.

use std::fs::{File, OpenOptions};
use std::io::Write;

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::failure::{say, system_words};

/// Gives each node processors of its own, as MPI launchers do: a thread that is woken finds its caches warm,
/// and never moves to a processor that must itself be woken first. Returns `None` if there are too few for
/// all threads, or only one node.
pub fn partition(nodes: u16, threads_per_node: u16) -> Option<Vec<CpuSet>> {
    let allowed = sched_getaffinity(None).ok()?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
    let shares = share(by_closeness(usable), usize::from(nodes), usize::from(threads_per_node))?;
    Some(shares.iter().map(|share| set_of(share)).collect())
}

fn set_of(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    set
}

/// Divides the processors equally among the nodes; the remainder stays free.
fn share(processors: Vec<usize>, nodes: usize, threads_per_node: usize) -> Option<Vec<Vec<usize>>> {
    let each = processors.len() / nodes.max(1);
    if nodes < 2 || each < threads_per_node {
        return None;
    }
    Some(processors.chunks(each).take(nodes).map(<[usize]>::to_vec).collect())
}

/// Sorts processors so that neighbours share a package, a cache and a core, which keeps a node's threads
/// close.
fn by_closeness(mut processors: Vec<usize>) -> Vec<usize> {
    let number = |processor: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/{what}");
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok())
    };
    processors.sort_by_key(|processor| {
        (number(*processor, "physical_package_id"), number(*processor, "core_id"), *processor)
    });
    processors
}

/// Keeps processors out of deep sleep, from which waking takes long, while it lives.
#[derive(Debug)]
pub struct Wakefulness {
    /// The kernel cancels the request when the file is closed.
    _file: File,
}

/// The kernel's file for such requests; see "PM Quality of Service Interface" in the kernel's documentation.
pub const LATENCY_FILE: &str = "/dev/cpu_dma_latency";

impl Wakefulness {
    /// Requests it if the user wants it, or, by default, if it is allowed.
    pub fn ask_for(wish: Option<bool>) -> Option<Wakefulness> {
        const LATENCY_US: i32 = 0;
        if wish == Some(false) {
            return None;
        }
        let opened = OpenOptions::new().write(true).open(LATENCY_FILE);
        let asked = opened.and_then(|mut file| file.write_all(&LATENCY_US.to_ne_bytes()).map(|()| file));
        match asked {
            Ok(file) => Some(Wakefulness { _file: file }),
            Err(error) if wish == Some(true) => {
                say(&format!(
                    "cannot keep the processors out of deep sleep ({LATENCY_FILE}: {}); continuing without; \
                     be root, or let this user write that file, or leave --low-latency out",
                    system_words(&error)
                ));
                None
            }
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_gets_as_many_or_nobody_gets_any() {
        assert_eq!(share(vec![0, 1], 2, 1), Some(vec![vec![0], vec![1]]));
        assert_eq!(share((0..7).collect(), 3, 2), Some(vec![vec![0, 1], vec![2, 3], vec![4, 5]]));
        assert_eq!(share(vec![0, 1], 2, 2), None);
        assert_eq!(share(vec![0, 1], 3, 1), None);
        assert_eq!(share(vec![0, 1], 1, 1), None, "one node has the machine");
    }

    #[test]
    fn shares_are_of_what_is_allowed() {
        let allowed = sched_getaffinity(None).unwrap();
        for set in partition(2, 1).unwrap_or_default() {
            assert!(set.count() > 0);
            assert!(
                (0..CpuSet::MAX_CPU).all(|processor| !set.is_set(processor) || allowed.is_set(processor))
            );
        }
    }
}
