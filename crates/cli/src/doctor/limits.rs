//! Examines memory and the limits on this process, which the nodes inherit.

use rustix::process::{Resource, getrlimit};

use super::{Finding, bytes, kernel_file};

/// The two views of the shared region.
const ADDRESSES_NEEDED: u64 = 2 << 44;

/// The usual limit of distributions; a job of a few dozen nodes needs no more.
const DESCRIPTORS_WISHED: u64 = 1024;

/// The kernel's default.
const MAPPINGS_WISHED: u64 = 65_530;

pub(super) fn examine() -> Vec<Finding> {
    vec![
        memory(),
        addresses(getrlimit(Resource::As).current),
        overcommit(kernel_file("/proc/sys/vm/overcommit_memory").as_deref()),
        descriptors(getrlimit(Resource::Nofile).maximum),
        mappings(kernel_file("/proc/sys/vm/max_map_count").and_then(|text| text.parse().ok())),
        shared_memory_directory(),
        files(),
    ]
}

/// Examines the memory for frames and twins: the machine's, or the control group's if that is less.
fn memory() -> Finding {
    let machine = kernel_file("/proc/meminfo").as_deref().and_then(available_bytes).unwrap_or(0);
    let group = kernel_file("/sys/fs/cgroup/memory.max").and_then(|text| text.parse::<u64>().ok());
    match group.filter(|limit| *limit < machine) {
        Some(limit) => Finding::good(
            "memory",
            format!("{} available, of which this control group may use {}", bytes(machine), bytes(limit)),
        ),
        None => Finding::good("memory", format!("{} available", bytes(machine))),
    }
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn addresses(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < ADDRESSES_NEEDED => Finding::lacking(
            "address space",
            format!("limited to {}", bytes(limit)),
            format!("no job starts: the shared region reserves {} of addresses", bytes(ADDRESSES_NEEDED)),
            "'ulimit -v unlimited'",
        )
        .fatal(),
        _ => Finding::good("address space", "unlimited"),
    }
}

fn overcommit(mode: Option<&str>) -> Finding {
    match mode {
        Some("2") => Finding::lacking(
            "overcommit",
            "forbidden (vm.overcommit_memory=2)",
            "reserving addresses counts as using memory, so that no job may start",
            "'sysctl vm.overcommit_memory=0'",
        ),
        _ => Finding::good("overcommit", "allowed: untouched memory costs nothing"),
    }
}

fn descriptors(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < DESCRIPTORS_WISHED => Finding::lacking(
            "open files",
            format!("at most {limit}"),
            "jobs of many nodes or threads do not start",
            format!("'ulimit -Hn {DESCRIPTORS_WISHED}' as root, or in /etc/security/limits.conf"),
        ),
        Some(limit) => Finding::good("open files", format!("at most {limit}")),
        None => Finding::good("open files", "unlimited"),
    }
}

fn mappings(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < MAPPINGS_WISHED => Finding::lacking(
            "mappings per process",
            format!("at most {limit}"),
            "with --fault-source sigsegv, neighbouring pages with different access soon share one setting, which costs faults",
            format!("'sysctl vm.max_map_count={MAPPINGS_WISHED}'"),
        ),
        Some(limit) => Finding::good("mappings per process", format!("at most {limit}")),
        None => Finding::good("mappings per process", "not reported by this kernel"),
    }
}

fn shared_memory_directory() -> Finding {
    let found = rustix::fs::statvfs("/dev/shm").map_or_else(
        |_| "not there".to_owned(),
        |status| format!("{} in all", bytes(status.f_blocks * status.f_frsize)),
    );
    Finding::good("/dev/shm", format!("{found}; not used, memory files do not count there"))
}

fn files() -> Finding {
    match hiroba_launch::run::limits::check_memory_files() {
        Ok(()) => Finding::good("memory files", "memfd_create works"),
        Err(failure) => Finding::lacking(
            "memory files",
            failure.sentence,
            "no job starts",
            "use a kernel and a container that allow memfd_create(2)",
        )
        .fatal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn limits_are_judged_by_what_jobs_need() {
        assert_eq!(addresses(None).verdict, Verdict::Good);
        assert_eq!(addresses(Some(1 << 40)).verdict, Verdict::Fatal);
        assert_eq!(overcommit(Some("0")).verdict, Verdict::Good);
        assert_eq!(overcommit(Some("2")).verdict, Verdict::Lacking);
        assert_eq!(descriptors(Some(256)).verdict, Verdict::Lacking);
        assert_eq!(descriptors(Some(4096)).verdict, Verdict::Good);
        assert_eq!(mappings(Some(1000)).verdict, Verdict::Lacking);
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available_bytes("MemTotal: 9 kB\n"), None);
    }
}
