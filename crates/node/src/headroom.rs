//! How much memory this process may use: the machine's, and the limits of its control groups.
//!
//! A control group's limit holds for all groups below it, so every group from this process's own up to the
//! root counts. Version 2 of the hierarchy is read as well as version 1, since the memory controller may be
//! in either (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A limit of version 1 from which on it means none: the kernel shows the highest page count in bytes.
const NO_LIMIT_FROM: u64 = 1 << 62;

/// The part of the memory that shared pages may take by default: three quarters. The rest is for the
/// program's private memory and the runtime's own.
const SHARE: (u64, u64) = (3, 4);

/// Memory is short when less than this part of it is left, within these bounds.
const RESERVE_PART: u64 = 16;
const RESERVE_BYTES_MIN: u64 = 8 << 20;
const RESERVE_BYTES_MAX: u64 = 256 << 20;

/// Memory is all but gone when less than half the reserve is left, and less than this.
const LAST_BYTES_MAX: u64 = 16 << 20;

/// No process takes memory faster than this, so that is how long the next look may wait.
const GROWTH_BYTES_PER_MS: u64 = 2 << 20;
const NEXT_LOOK_MS_MIN: u64 = 5;
const NEXT_LOOK_MS_MAX: u64 = 500;

/// Of the memory that is left, a node's shared pages may take this part before it looks again, and at least
/// so much.
const GROWTH_PART: u64 = 4;
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// Where shared pages take less than this part of their share by default, they are not what memory lacks.
const WATCHED_FROM_PART: u64 = 8;

/// The version of a control group's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    directory: PathBuf,
    version: Version,
    limit_bytes: u64,
}

/// What limits the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The machine has no more.
    Machine,
    /// A control group may have no more.
    Group,
}

/// The memory that this process may use, together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) bytes: u64,
    pub(crate) whose: Whose,
}

/// The memory that is left at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// What may still be used, including file caches that the kernel drops on demand.
    pub(crate) bytes: u64,
    /// What the kernel may swap out beyond that.
    pub(crate) swap_bytes: u64,
    pub(crate) bound: Bound,
}

/// The limits of this process's memory, as they were at its start.
#[derive(Debug)]
pub(crate) struct Headroom {
    /// `None` if the machine does not say.
    ram_bytes: Option<u64>,
    groups: Vec<Group>,
    /// The number of the job's nodes on this machine.
    nodes_here: u64,
    /// The size of this node's shared pages above which it looks again.
    look_from_bytes: AtomicU64,
    /// True while pages must leave before their budget is used, because memory is short.
    is_short: AtomicBool,
}

impl Headroom {
    /// Finds the limits of this process, which shares them with other nodes: `nodes_here` in all.
    pub(crate) fn find(nodes_here: u64) -> Headroom {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let ram_bytes = field_in_kib(&text("/proc/meminfo"), "MemTotal");
        let places = places(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        let groups = places.iter().flat_map(|(version, mount, own)| limited(*version, mount, own)).collect();
        Headroom::of(ram_bytes, groups, nodes_here.max(1))
    }

    fn of(ram_bytes: Option<u64>, groups: Vec<Group>, nodes_here: u64) -> Headroom {
        let (look_from_bytes, is_short) = (AtomicU64::new(0), AtomicBool::new(false));
        Headroom { ram_bytes, groups, nodes_here, look_from_bytes, is_short }
    }

    /// Returns the memory that this process may use together with others; `None` if nothing is known.
    pub(crate) fn bound(&self) -> Option<Bound> {
        let ram = self.ram_bytes.map(|bytes| Bound { bytes, whose: Whose::Machine });
        let groups = self.groups.iter().map(|group| Bound { bytes: group.limit_bytes, whose: Whose::Group });
        ram.into_iter().chain(groups).min_by_key(|bound| bound.bytes)
    }

    /// Returns the number of the job's nodes on this machine, which share its memory.
    pub(crate) fn nodes_here(&self) -> u64 {
        self.nodes_here
    }

    /// Returns the memory that shared pages of this node may take by default.
    pub(crate) fn default_share_bytes(&self) -> Option<u64> {
        self.bound().map(|bound| bound.bytes / SHARE.1 * SHARE.0 / self.nodes_here)
    }

    /// Returns true if this node's shared pages have grown much since the last look.
    pub(crate) fn is_look_due(&self, shared_bytes: u64) -> bool {
        shared_bytes > self.look_from_bytes.load(Relaxed)
    }

    /// Returns true if this node's shared pages are so many that their leaving would help when memory runs
    /// out.
    pub(crate) fn is_watched(&self, shared_bytes: u64) -> bool {
        self.default_share_bytes().is_some_and(|share| shared_bytes > share / WATCHED_FROM_PART)
    }

    /// Returns true if memory was short at the last look.
    pub(crate) fn was_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    /// Records a look, at which shared pages took this many bytes.
    pub(crate) fn note_look(&self, shared_bytes: u64, left: Option<&Left>) {
        let growth = left.map_or(u64::MAX, |left| {
            (left.spare_bytes() / GROWTH_PART / self.nodes_here).max(GROWTH_BYTES_MIN)
        });
        self.look_from_bytes.store(shared_bytes.saturating_add(growth), Relaxed);
        self.is_short.store(left.is_some_and(|left| left.lacking_bytes() > 0), Relaxed);
    }

    /// Returns the memory that is left now, by the limit that leaves least; `None` if nothing is known.
    pub(crate) fn left(&self) -> Option<Left> {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let swap_bytes = field_in_kib(&meminfo, "SwapFree").unwrap_or(0);
        let machine = self.ram_bytes.zip(field_in_kib(&meminfo, "MemAvailable")).map(|(ram_bytes, bytes)| {
            Left { bytes, swap_bytes, bound: Bound { bytes: ram_bytes, whose: Whose::Machine } }
        });
        let groups = self.groups.iter().filter_map(|group| group.left(swap_bytes));
        machine.into_iter().chain(groups).min_by_key(|left| left.bytes)
    }
}

impl Left {
    /// Returns how many bytes more should be free.
    pub(crate) fn lacking_bytes(&self) -> u64 {
        self.bound.reserve_bytes().saturating_sub(self.bytes)
    }

    /// Returns how many bytes may still be used before memory is short.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.bound.reserve_bytes())
    }

    /// Returns how long the next look may wait.
    pub(crate) fn next_look_in(&self) -> Duration {
        let ms = self.spare_bytes() / GROWTH_BYTES_PER_MS;
        Duration::from_millis(ms.clamp(NEXT_LOOK_MS_MIN, NEXT_LOOK_MS_MAX))
    }

    /// Returns true if so little is left that the kernel is about to kill.
    pub(crate) fn is_all_but_gone(&self) -> bool {
        let last_bytes = (self.bound.reserve_bytes() / 2).min(LAST_BYTES_MAX);
        self.bytes.saturating_add(self.swap_bytes) < last_bytes
    }
}

impl Bound {
    fn reserve_bytes(self) -> u64 {
        (self.bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
    }
}

impl Group {
    fn left(&self, swap_free_bytes: u64) -> Option<Left> {
        let number = |file: &str| number_in(&self.directory.join(file));
        let bound = Bound { bytes: self.limit_bytes, whose: Whose::Group };
        let [usage, ..] = self.version.names();
        let bytes = self.limit_bytes.saturating_sub(number(usage)?);
        if bytes >= 2 * bound.reserve_bytes() {
            // Enough: what the kernel could drop need not be asked for.
            return Some(Left { bytes, swap_bytes: 0, bound });
        }
        let [_, caches @ ..] = self.version.names();
        let statistics = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let cached_bytes: u64 = caches.iter().filter_map(|name| field(&statistics, name)).sum();
        let may_swap_bytes = match self.version {
            Version::One => {
                let limit = number("memory.memsw.limit_in_bytes").unwrap_or(u64::MAX);
                limit.saturating_sub(number("memory.memsw.usage_in_bytes").unwrap_or(0))
            }
            // A file that contains "max" has no number.
            Version::Two => number("memory.swap.max")
                .map_or(u64::MAX, |limit| limit.saturating_sub(number("memory.swap.current").unwrap_or(0))),
        };
        let swap_bytes = swap_free_bytes.min(may_swap_bytes);
        Some(Left { bytes: bytes + cached_bytes, swap_bytes, bound })
    }
}

impl Version {
    /// Returns the name of the file with a group's usage, and the names in its statistics of what the kernel
    /// drops on demand: file caches. Shared pages are not among them, since they count as anonymous memory.
    fn names(self) -> [&'static str; 3] {
        match self {
            Version::One => ["memory.usage_in_bytes", "total_inactive_file", "total_active_file"],
            Version::Two => ["memory.current", "inactive_file", "active_file"],
        }
    }

    /// Returns the names of the files with limits. Above the second one of version 2 the kernel does not kill
    /// but slows the process down until it all but stands still.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }
}

/// Returns the groups with a limit from `own` up to `mount`.
fn limited(version: Version, mount: &Path, own: &Path) -> Vec<Group> {
    let limit_of = |directory: &Path| {
        let limits = version.limits().iter().filter_map(|file| number_in(&directory.join(file)));
        limits.filter(|bytes| *bytes < NO_LIMIT_FROM).min()
    };
    let path = own.ancestors().take_while(|directory| directory.starts_with(mount));
    path.filter_map(|directory| {
        let limit_bytes = limit_of(directory)?;
        Some(Group { directory: directory.to_owned(), version, limit_bytes })
    })
    .collect()
}

/// Returns for each hierarchy with a memory controller where it is mounted, and the directory of this
/// process's group. `groups` and `mounts` are the texts of `/proc/self/cgroup` (cgroups(7)) and
/// `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn places(groups: &str, mounts: &str) -> Vec<(Version, PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, behind)) = line.split_once(" - ") else { continue };
        let (mut before, mut behind) = (before.split(' ').skip(3), behind.split(' '));
        let (Some(root), Some(mount)) = (before.next(), before.next()) else { continue };
        let (kind, options) = (behind.next().unwrap_or_default(), behind.nth(1).unwrap_or_default());
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            _ => continue,
        };
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = match version {
                Version::One => controllers.split(',').any(|controller| controller == "memory"),
                Version::Two => controllers.is_empty(),
            };
            is_it.then_some(path)
        });
        let mount = PathBuf::from(unescaped(mount));
        // A container may see only its own part of the hierarchy, which is mounted as the root.
        let below = own.and_then(|own| Path::new(own).strip_prefix(unescaped(root)).ok());
        let own = below.map_or_else(|| mount.clone(), |below| mount.join(below));
        found.push((version, mount, own));
    }
    found
}

/// Replaces the octal numbers by which the kernel writes blanks in paths.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the number after `name` in lines of a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the bytes of a line such as `MemTotal:  16303196 kB`.
pub(crate) fn field_in_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn place(version: Version, mount: &str, own: &str) -> (Version, PathBuf, PathBuf) {
        (version, PathBuf::from(mount), PathBuf::from(own))
    }

    #[test]
    fn groups_are_found_in_both_hierarchies() {
        let groups = "4:memory:/jobs/one\n3:cpuset:/else\n0::/slice\n";
        assert_eq!(
            places(groups, MOUNTS),
            [
                place(Version::One, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/jobs/one"),
                place(Version::Two, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/slice"),
            ]
        );
        // In a container that sees its own part of the hierarchy, and in one that sees another's.
        let part = "35 31 0:32 /docker/7 /sys/fs/cgroup\\040x ro master:9 - cgroup2 cgroup ro\n";
        let at = |own| places(own, part);
        assert_eq!(at("0::/docker/7/a"), [place(Version::Two, "/sys/fs/cgroup x", "/sys/fs/cgroup x/a")]);
        assert_eq!(at("0::/docker/8"), [place(Version::Two, "/sys/fs/cgroup x", "/sys/fs/cgroup x")]);
        assert_eq!(places("0::/", "garbage\n1 2 - \n"), []);
    }

    #[test]
    fn the_lowest_limit_up_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let [mount, above, own] = ["", "above", "above/own"].map(|path| root.path().join("mount").join(path));
        fs::create_dir_all(&own).unwrap();
        let write = |directory: &Path, file: &str, text: &str| {
            fs::write(directory.join(file), format!("{text}\n")).unwrap();
        };
        // Outside the hierarchy, and none of its limits.
        write(root.path(), "memory.max", "1");
        write(&own, "memory.max", "max");
        write(&own, "memory.high", "500000000");
        write(&above, "memory.max", "300000000");
        let group = |directory: &Path, limit_bytes| Group {
            directory: directory.to_owned(),
            version: Version::Two,
            limit_bytes,
        };
        let groups = limited(Version::Two, &mount, &own);
        assert_eq!(groups, [group(&own, 500_000_000), group(&above, 300_000_000)]);
        let ram_bytes = Some(400_000_000);
        let headroom = Headroom::of(ram_bytes, groups, 3);
        assert_eq!(headroom.bound(), Some(Bound { bytes: 300_000_000, whose: Whose::Group }));
        assert_eq!(headroom.default_share_bytes(), Some(75_000_000));
        let alone = Headroom::of(ram_bytes, vec![], 1);
        assert_eq!(alone.default_share_bytes(), Some(300_000_000));
        // Without any file of usage, only the machine is known to have memory left.
        assert_eq!(headroom.left().unwrap().bound.whose, Whose::Machine);
        write(&above, "memory.current", "200000000");
        write(&above, "memory.stat", "anon 5\ninactive_file 7\n");
        let left = headroom.left().unwrap();
        assert_eq!((left.bytes, left.lacking_bytes()), (100_000_000, 0));
        write(&above, "memory.current", "299000000");
        let left = headroom.left().unwrap();
        assert_eq!(left.bytes, 1_000_007);
        assert_eq!(left.lacking_bytes(), 300_000_000 / RESERVE_PART - 1_000_007);
        write(&above, "memory.swap.max", "0");
        assert!(headroom.left().unwrap().is_all_but_gone());
        write(&above, "memory.stat", "inactive_file 20000000\nactive_file 1000000\n");
        assert_eq!(headroom.left().unwrap().spare_bytes(), 22_000_000 - 300_000_000 / RESERVE_PART);
    }

    #[test]
    fn the_less_is_left_the_sooner_it_is_looked_at_again() {
        const MIB: u64 = 1 << 20;
        let headroom = Headroom::of(Some(1024 * MIB), vec![], 2);
        let bound = headroom.bound().unwrap();
        let left = |bytes| Left { bytes, swap_bytes: 0, bound };
        assert!(headroom.is_look_due(1), "nobody has looked yet");
        // The reserve is 64 MiB.
        headroom.note_look(10 * MIB, Some(&left(464 * MIB)));
        assert!(
            !headroom.is_look_due(60 * MIB) && headroom.is_look_due(60 * MIB + 1) && !headroom.was_short()
        );
        headroom.note_look(10 * MIB, Some(&left(60 * MIB)));
        assert!(
            !headroom.is_look_due(11 * MIB) && headroom.is_look_due(11 * MIB + 1) && headroom.was_short()
        );
        headroom.note_look(10 * MIB, None);
        assert!(!headroom.is_look_due(u64::MAX - 1) && !headroom.was_short());
        let waits = [4096, 464, 65, 3].map(|mib| left(mib * MIB).next_look_in().as_millis());
        assert_eq!(waits, [500, 200, 5, 5]);
        let last = [17, 16, 15].map(|mib| left(mib * MIB).is_all_but_gone());
        assert_eq!(last, [false, false, true]);
        assert!(!Left { swap_bytes: 2 * MIB, ..left(15 * MIB) }.is_all_but_gone(), "the kernel can swap");
        assert!(!headroom.is_watched(48 * MIB) && headroom.is_watched(48 * MIB + 1));
    }

    #[test]
    fn version_one_shows_no_limit_as_a_number() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(limited(Version::One, root.path(), root.path()), []);
        fs::write(root.path().join("memory.limit_in_bytes"), "1048576\n").unwrap();
        assert_eq!(limited(Version::One, root.path(), root.path()).len(), 1);
    }

    #[test]
    fn this_machine_says_how_much_memory_it_has() {
        let headroom = Headroom::find(2);
        let (bound, left) = (headroom.bound().unwrap(), headroom.left().unwrap());
        assert!(
            left.bytes <= bound.bytes.max(left.bound.bytes) && bound.bytes > 1 << 20,
            "{bound:?} {left:?}"
        );
        assert_eq!(headroom.default_share_bytes(), Some(bound.bytes / 4 * 3 / 2));
    }
}
