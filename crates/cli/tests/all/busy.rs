//! A machine with other work is reported: what nodes got of its cores is shown beside the figures. That a
//! quiet machine is not called busy cannot be tested here, since other processes may use this one.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

use crate::support::{Called, compiled, finish, hiroba, shell, start};

/// A process that computes on one core while this lives; the tested job has to share that core with it.
struct BusyCore {
    core: CpuSet,
    spinner: Option<Child>,
}

impl BusyCore {
    /// Returns `None` if the kernel does not count what threads wait for.
    fn new() -> Option<BusyCore> {
        let counted = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        if counted.split_whitespace().next().is_none_or(|ran| ran == "0") {
            return None;
        }
        let allowed = sched_getaffinity(None).expect("it is ours");
        let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("we run on one");
        let mut busy = BusyCore { core: CpuSet::new(), spinner: None };
        busy.core.set(first);
        let mut command = shell("while :; do :; done");
        busy.confine(&mut command);
        busy.spinner = Some(command.spawn().expect("the shell starts"));
        Some(busy)
    }

    /// Makes `command` run on that core only, and end with this process.
    fn confine(&self, command: &mut Command) {
        let core = self.core;
        let confine = move || {
            sched_setaffinity(None, &core)?;
            Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
        };
        // SAFETY: system calls only, which are allowed between fork and exec.
        unsafe { command.pre_exec(confine) };
    }

    fn call(&self, arguments: &[&str]) -> Called {
        let mut command = hiroba(arguments);
        self.confine(&mut command);
        finish(start(&mut command))
    }
}

impl Drop for BusyCore {
    fn drop(&mut self) {
        if let Some(spinner) = &mut self.spinner {
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

fn json(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("it was written")).expect("JSON")
}

fn is_too_little(share: &Value) -> bool {
    share.as_f64().is_some_and(|share| share > 0.0 && share < 0.9)
}

#[test]
fn a_run_says_what_its_nodes_got() {
    let Some(busy) = BusyCore::new() else { return };
    let (directory, program) = compiled("computing.c");
    let (program, file) = (program.to_str().unwrap(), directory.path().join("stats.json"));
    let statistics = format!("--stats=json:{}", file.display());
    // One node could have the core; two must take turns in any case.
    for (nodes, why, shares) in [("1", "the machine is busy", false), ("2", "they share cores", true)] {
        let called = busy.call(&["run", "-n", nodes, "--stats", &statistics, program]);
        assert_eq!(called.status, 0, "{called:?}");
        let told = called.stderr.lines().find(|line| line.contains(" of a core for each ready thread"));
        assert!(told.is_some_and(|line| line.ends_with(why) && line.starts_with("node ")), "{called:?}");
        let account = json(&file);
        for node in account["per_node"].as_array().expect("nodes") {
            assert!(is_too_little(&node["core_share"]), "{node}");
            assert_eq!(node["shares_cores"], shares, "{node}");
        }
    }
}

#[test]
fn a_benchmark_says_it_below_its_rows() {
    let Some(busy) = BusyCore::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.json");
    let called = busy.call(&["bench", "--quick", "compute", "--json", file.to_str().unwrap()]);
    assert_eq!(called.status, 0, "{called:?}");
    let told = called.stdout.lines().last().expect("rows");
    assert!(told.starts_with("  (node 0 got 0.") && told.ends_with("the machine is busy)"), "{called:?}");
    for row in json(&file).as_array().expect("rows") {
        assert!(is_too_little(&row["core_share"]), "{row}");
    }
}

#[test]
fn a_reproduction_marks_its_figures() {
    let Some(busy) = BusyCore::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("figures.json");
    let called = busy.call(&["reproduce", "001", "--tiny", "--json", file.to_str().unwrap()]);
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stdout.contains("This machine was busy: "), "{called:?}");
    let report = json(&file);
    let tables = report["tables"].as_array().expect("tables").iter();
    let rows: Vec<&Value> = tables.flat_map(|table| table["rows"].as_array().expect("rows")).collect();
    let disturbed = rows.iter().filter(|row| is_too_little(&row["core_share"])).count();
    assert!(disturbed > 0, "{rows:?}");
    let claims = |row: &&&Value| {
        row["how"] == "wall" && is_too_little(&row["core_share"]) && row["label"].as_str() == Some("UDP, 1")
    };
    assert_eq!(rows.iter().filter(claims).count(), 0, "no speed-up is by the clock of a busy machine");
}
