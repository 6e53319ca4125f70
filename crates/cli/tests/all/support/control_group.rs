//! Control groups whose memory is limited.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Called, eventually, finish, shell, start};

/// The status of a process that may not enter a group.
const NOT_ENTERED: i32 = 77;

/// A control group of a test, whose memory is limited, and which has no swap.
pub struct Group {
    directory: PathBuf,
    is_first_version: bool,
}

impl Group {
    /// Makes a group below this process's own, or says what this machine or user lacks for it.
    pub fn new(limit_bytes: u64) -> Result<Group, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mount = Path::new("/sys/fs/cgroup");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hiroba-test-{}-{number}", std::process::id());
        let is_first_version = !mount.join("cgroup.controllers").exists();
        let limit_bytes = limit_bytes.to_string();
        let (parent, limit, others) = if is_first_version {
            let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
            let own = groups.lines().find_map(|line| line.split_once(":memory:"));
            let own = own.ok_or("no control groups of memory")?.1.trim_start_matches('/');
            let others = ["memory.memsw.limit_in_bytes", &limit_bytes];
            (mount.join("memory").join(own), "memory.limit_in_bytes", others)
        } else {
            (mount.to_owned(), "memory.max", ["memory.swap.max", "0"])
        };
        let directory = parent.join(name);
        let failed = |error: std::io::Error| format!("no control group in {}: {error}", parent.display());
        fs::create_dir(&directory).map_err(failed)?;
        let group = Group { directory, is_first_version };
        let file = group.directory.join(limit);
        if !file.exists() {
            return Err(format!("the memory controller is not enabled for groups in {}", parent.display()));
        }
        fs::write(&file, &limit_bytes).map_err(failed)?;
        // Without swap these files may be missing, too.
        let _ = fs::write(group.directory.join(others[0]), others[1]);
        Ok(group)
    }

    /// Runs `hiroba` with arguments in the group. Fails if this process may not enter it.
    pub fn call(&self, arguments: &[&str]) -> Result<Called, String> {
        let called = finish(start(&mut self.command(arguments)));
        if called.status == NOT_ENTERED {
            let why = called.stderr;
            return Err(format!("this process may not enter its own control group: {why}"));
        }
        Ok(called)
    }

    /// Returns a command that runs `hiroba` with arguments in the group.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command =
            shell(&format!("echo $$ >\"$1/cgroup.procs\" || exit {NOT_ENTERED}; shift; exec \"$H\" \"$@\""));
        command.arg("sh").arg(&self.directory).args(arguments).stdin(Stdio::null());
        command
    }

    /// Returns how many bytes of anonymous memory and of memory files the processes in the group have now.
    pub fn memory_bytes(&self) -> u64 {
        let names = if self.is_first_version { ["total_rss", "total_shmem"] } else { ["anon", "shmem"] };
        let statistics = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let number_of = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            names.contains(&name).then(|| number.parse().unwrap_or(0))
        };
        statistics.lines().filter_map(number_of).sum::<u64>()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The last process may still be in it for a moment.
            eventually("the control group is empty", || fs::remove_dir(&self.directory).is_ok());
        }
    }
}
