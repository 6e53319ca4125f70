//! Why nodes died, as far as that is known: from their last messages, and from the kernel's counts of
//! processes killed for lack of memory.

use std::path::{Path, PathBuf};

use hiroba_wire::control::BadAccess;

use crate::symbols::Symboliser;

/// Accesses through a null pointer to a member of a structure lie in this range.
const NEAR_NULL_BYTES: u64 = 64 << 10;

/// Describes a memory access that killed a node.
pub fn bad_access(node: usize, access: &BadAccess, symbols: &Symboliser) -> String {
    let name = if access.is_bus_error { "bus error" } else { "segmentation fault" };
    let address = match (access.address, &access.shared) {
        (Some(address), Some(_)) => format!("at shared address 0x{address:x}"),
        (Some(0), None) => "at address 0x0 (a null pointer)".to_owned(),
        (Some(address), None) if address < NEAR_NULL_BYTES => {
            format!("at address 0x{address:x} ({address} bytes above a null pointer)")
        }
        (Some(address), None) => format!("at address 0x{address:x}"),
        (None, _) => "at an address that no memory can have".to_owned(),
    };
    let place = match (&access.site, access.is_jump) {
        (_, true) => ", which the program tried to execute".to_owned(),
        (Some(site), false) => format!(" by {}", symbols.name(site)),
        (None, false) => String::new(),
    };
    let caller = access.caller.as_ref();
    let caller = caller.map_or_else(String::new, |site| format!(", called from {}", symbols.name(site)));
    let why = access.shared.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("node {node}: {name} {address}{place}{caller}{why}; {}", look_closer(node))
}

/// Tells how to learn more about a node's death.
pub fn look_closer(node: usize) -> String {
    format!("look closer with 'hiroba run --debug {node}'")
}

/// Counts how many processes the kernel has killed for lack of memory.
#[derive(Debug, Default)]
pub struct MemoryKills {
    counters: Vec<Counter>,
}

#[derive(Debug)]
struct Counter {
    file: PathBuf,
    /// The key of the line with the count.
    key: &'static str,
    /// What ran out of memory when the count grows.
    who: String,
    before: u64,
}

impl MemoryKills {
    /// Begins to watch the counters of this process's cgroup, which include those below it, and the
    /// machine's.
    pub fn watch() -> MemoryKills {
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        MemoryKills::of(Path::new("/sys/fs/cgroup"), &cgroups, Path::new("/proc/vmstat"))
    }

    fn of(mount: &Path, cgroups: &str, machine: &Path) -> MemoryKills {
        let mut counters = Vec::new();
        let mut add = |file: PathBuf, key, who: String| {
            if let Some(before) = read(&file, key) {
                counters.push(Counter { file, key, who, before });
            }
        };
        for line in cgroups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let below = path.trim_start_matches('/');
            let who = format!("the cgroup '{path}' has reached its limit");
            if controllers.is_empty() {
                add(mount.join(below).join("memory.events"), "oom_kill ", who);
            } else if controllers.split(',').any(|controller| controller == "memory") {
                let mount = mount.join("memory");
                add(mount.join(below).join("memory.oom_control"), "oom_kill ", who.clone());
                // In a container the mount begins at its own cgroup, whatever the path says.
                add(mount.join("memory.oom_control"), "oom_kill ", who);
            }
        }
        add(
            machine.to_owned(),
            "oom_kill ",
            "the machine, or a container's limit on it, has run out".to_owned(),
        );
        MemoryKills { counters }
    }

    /// Returns the probable reason why SIGKILL has ended a node, when the launcher did not send it: a counter
    /// that has grown since the last look.
    pub fn explain(&mut self) -> Option<String> {
        let mut found = None;
        for counter in &mut self.counters {
            let now = read(&counter.file, counter.key).unwrap_or(counter.before);
            if now > counter.before {
                found = found.or_else(|| Some(counter.who.clone()));
                counter.before = now;
            }
        }
        let who = found?;
        Some(format!(
            "probably by the kernel for lack of memory, since its count of such kills has grown ({who}); reduce the program's memory, \
             use fewer nodes per machine, or raise the limit"
        ))
    }
}

fn read(file: &Path, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use hiroba_base::CodeSite;

    use super::*;

    #[test]
    fn kills_for_memory_are_told_by_the_nearest_counter() {
        let directory = tempfile::tempdir().unwrap();
        let (mount, machine) = (directory.path().join("cgroup"), directory.path().join("vmstat"));
        let group = mount.join("jobs/7");
        std::fs::create_dir_all(&group).unwrap();
        let write = |kills: u64, all: u64| {
            std::fs::write(group.join("memory.events"), format!("max 12\noom 1\noom_kill {kills}\n"))
                .unwrap();
            std::fs::write(&machine, format!("pgfault 100\noom_kill {all}\ndrop_slab 0\n")).unwrap();
        };
        write(3, 40);
        let mut kills = MemoryKills::of(&mount, "1:name=systemd:/x\n0::/jobs/7\n", &machine);
        assert_eq!(kills.counters.len(), 2);
        assert_eq!(kills.explain(), None, "nothing has grown");
        write(4, 41);
        let told = kills.explain().expect("both have grown");
        assert!(told.contains("lack of memory") && told.contains("cgroup '/jobs/7'"), "{told}");
        assert_eq!(kills.explain(), None, "told once");
        write(4, 42);
        assert!(kills.explain().expect("the machine's has grown").contains("the machine"));
    }

    #[test]
    fn counters_of_the_first_version_of_cgroups() {
        let directory = tempfile::tempdir().unwrap();
        let (mount, machine) = (directory.path().to_owned(), directory.path().join("none"));
        std::fs::create_dir_all(mount.join("memory/a")).unwrap();
        let control = mount.join("memory/a/memory.oom_control");
        std::fs::write(&control, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n").unwrap();
        let mut kills = MemoryKills::of(&mount, "4:cpu,memory:/a\n0::/\n", &machine);
        std::fs::write(&control, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n").unwrap();
        assert!(kills.explain().is_some_and(|told| told.contains("cgroup '/a'")));
        assert!(MemoryKills::of(&machine, "", &machine).explain().is_none(), "no counters, no words");
    }

    #[test]
    fn addresses_are_told_for_what_they_are() {
        let access = BadAccess {
            is_bus_error: false,
            address: Some(0),
            site: None,
            caller: None,
            is_jump: false,
            shared: None,
        };
        let told = |access: &BadAccess| bad_access(1, access, &Symboliser::default());
        assert_eq!(
            told(&access),
            "node 1: segmentation fault at address 0x0 (a null pointer); look closer with 'hiroba run --debug 1'"
        );
        let member = told(&BadAccess { address: Some(24), ..access.clone() });
        assert!(member.contains("0x18 (24 bytes above a null pointer)"), "{member}");
        let jump = told(&BadAccess { is_jump: true, ..access.clone() });
        assert!(jump.contains("(a null pointer), which the program tried to execute"), "{jump}");
        let odd = told(&BadAccess { address: None, is_bus_error: true, ..access.clone() });
        assert!(odd.contains("bus error at an address that no memory can have"), "{odd}");
        let shared = BadAccess { address: Some(0x4000), shared: Some("gone".to_owned()), ..access.clone() };
        let told_shared = told(&shared);
        assert!(told_shared.contains("at shared address 0x4000: gone;"), "{told_shared}");
        let site = |module: &str| Some(CodeSite { module: module.to_owned(), offset: 0x40 });
        let called = told(&BadAccess { site: site("/no/libc.so"), caller: site("/no/program"), ..access });
        assert!(called.contains(" by /no/libc.so+0x40, called from /no/program+0x40; look"), "{called}");
    }
}
