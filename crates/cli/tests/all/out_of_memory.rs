//! A node that the kernel kills for lack of memory, in a control group with little of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::deaths::compile;
use crate::support::{eventually, finish, shell, start};

/// The limit, which suffices for the job's own needs.
const LIMIT_BYTES: &str = "134217728";

/// A control group of this test, whose memory is limited.
struct Group {
    directory: PathBuf,
}

impl Group {
    /// The error says what this machine or user lacks for it.
    fn new() -> Result<Group, String> {
        let mount = Path::new("/sys/fs/cgroup");
        let name = format!("hiroba-test-{}", std::process::id());
        let (parent, limit, others) = if mount.join("cgroup.controllers").exists() {
            (mount.to_owned(), "memory.max", ["memory.swap.max", "0"])
        } else {
            let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
            let own = groups.lines().find_map(|line| line.split_once(":memory:"));
            let own = own.ok_or("no control groups of memory")?.1.trim_start_matches('/');
            (
                mount.join("memory").join(own),
                "memory.limit_in_bytes",
                ["memory.memsw.limit_in_bytes", LIMIT_BYTES],
            )
        };
        let directory = parent.join(name);
        let failed = |error: std::io::Error| format!("no control group in {}: {error}", parent.display());
        fs::create_dir(&directory).map_err(failed)?;
        let group = Group { directory };
        let file = group.directory.join(limit);
        if !file.exists() {
            return Err(format!("the memory controller is not enabled for groups in {}", parent.display()));
        }
        fs::write(&file, LIMIT_BYTES).map_err(failed)?;
        // Without swap these files may be missing, too.
        let _ = fs::write(group.directory.join(others[0]), others[1]);
        Ok(group)
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

#[test]
fn a_kill_for_want_of_memory_is_told_as_one() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return println!("not tried: {why}"),
    };
    let (_directory, program) = compile();
    let script = "echo $$ >\"$1/cgroup.procs\" || exit 77; exec \"$H\" run -n 2 -- \"$2\" hoard";
    let mut command = shell(script);
    command.arg("sh").arg(&group.directory).arg(&program).stdin(Stdio::null());
    let called = finish(start(&mut command));
    if called.status == 77 {
        return println!("not tried: this process may not enter its own control group: {}", called.stderr);
    }
    assert_eq!(called.status, 128 + libc::SIGKILL, "{called:?}");
    for part in
        ["node 1 ", "was killed by ", "probably by the kernel for lack of memory", "has reached its limit"]
    {
        assert!(called.stderr.contains(part), "expected {part:?}: {called:?}");
    }
}
