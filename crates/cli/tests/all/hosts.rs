//! Several hosts: agents behind a launcher command, on this machine or in network namespaces of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hiroba_base::NodeId;
use hiroba_trace::{Ending, Trace};

use crate::support::{
    Called, compiled, eventually, finish, first_line, hiroba, mark, marked, processes_marked, script, send,
    send_to, start,
};

/// Three hosts that are this machine under other addresses, and a command that "reaches" them.
struct Hosts {
    directory: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Hosts {
        let hosts = Hosts { directory: tempfile::tempdir().expect("a temporary directory") };
        let lines = "# three of a kind\nh1 slots=1 address=127.0.0.2\nh2 slots=2 address=127.0.0.3\nh3 address=127.0.0.4\n";
        fs::write(hosts.file(), lines).expect("a writable directory");
        hosts.script("reach", "shift; exec \"$@\"");
        hosts
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("hosts")
    }

    fn script(&self, name: &str, text: &str) -> String {
        script(self.directory.path(), name, text)
    }

    fn run(&self, flags: &[&str]) -> Command {
        let reach = self.directory.path().join("reach");
        let mut command = hiroba(&["run", "--hosts"]);
        command.arg(self.file()).arg("--launcher").arg(reach).args(flags);
        command
    }

    fn call(&self, flags: &[&str]) -> Called {
        finish(start(&mut self.run(flags)))
    }
}

#[test]
fn a_program_runs_on_three_hosts_over_every_network() {
    let (_directory, program) = compiled("meet.c");
    let hosts = Hosts::new();
    for fabric in ["udp", "tcp"] {
        let called =
            finish(start(hosts.run(&["-n", "4", "--fabric", fabric, "--"]).arg(&program).arg("0.2")));
        assert_eq!(
            (called.status, called.stdout.as_str(), called.stderr.as_str()),
            (0, "met\n", ""),
            "{fabric}"
        );
    }
}

#[test]
fn the_traces_of_all_hosts_come_home() {
    let (directory, program) = compiled("traced.c");
    let hosts = Hosts::new();
    let path = directory.path().join("trace");
    let mut command = hosts.run(&["-n", "4", "--trace"]);
    let called = finish(start(command.arg(&path).arg("--").arg(&program)));
    assert_eq!((called.status, called.stderr.as_str()), (0, ""));
    let trace = Trace::open(&path).expect("a trace");
    let mut of_hosts = BTreeSet::new();
    for node in NodeId::all(4) {
        let mut reader = trace.node(node).expect("the node's trace");
        let records: Vec<_> = reader.by_ref().map(|record| record.expect("a whole record")).collect();
        assert!(records.len() > 1000, "node {node}");
        assert_eq!(reader.ending(), Some(Ending::Complete), "node {node}");
        of_hosts.insert(reader.header().host);
    }
    assert_eq!(of_hosts.len(), 3);
}

#[test]
fn nodes_are_numbered_host_by_host_and_their_output_comes_whole() {
    let hosts = Hosts::new();
    let script = "echo $HIROBA_NODE of $HIROBA_NODES; echo $PASSED $HIROBA_OWN $OMP_OWN in $(pwd) >&2; exit $((HIROBA_NODE * 2))";
    let mut command = hosts.run(&["-n", "5", "--label", "-x", "PASSED=1", "--", "sh", "-c", script]);
    command.current_dir("/").env("HIROBA_OWN", "2").env("OMP_OWN", "3");
    let called = finish(start(&mut command));
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("hiroba: ")).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    assert_eq!(
        sorted(&called.stdout),
        "[0] 0 of 5\n[1] 1 of 5\n[2] 2 of 5\n[3] 3 of 5\n[4] 4 of 5",
        "{called:?}"
    );
    let places: Vec<String> = (0..5).map(|node| format!("[{node}] 1 2 3 in /")).collect();
    assert_eq!((sorted(&called.stderr), called.status), (places.join("\n"), 2), "{called:?}");
    // Much output, and without labels byte by byte.
    let called = hosts.call(&["-n", "4", "--", "sh", "-c", "head -c 700000 /dev/zero; printf end"]);
    assert_eq!((called.status, called.stdout.len()), (0, 4 * 700_003));
}

#[test]
fn mistakes_are_said_before_any_program_starts() {
    let hosts = Hosts::new();
    let says = |flags: &[&str], status, phrase: &str| hosts.call(flags).says(status, phrase);
    says(&["-n", "4", "--", "./no-such-program"], 127, ": program './no-such-program' was not found");
    says(&["-n", "4", "--", "/etc/passwd"], 126, "cannot be executed");
    says(&["-n", "3", "--", "true"], 125, "need at least 4 nodes, but -n asks for 3");
    says(&["-n", "4", "--fabric", "shm", "--", "true"], 125, "use --fabric udp or tcp with --hosts");
    says(
        &["-n", "4", "--debug", "0", "--", "true"],
        125,
        "expected a node of this machine after --debug (none), got 0",
    );
    fs::write(hosts.file(), "h1\nh2 slots=x\n").expect("it is ours");
    says(&["--", "true"], 125, "line 2: expected a number of nodes from 1 to 4096 after slots=, got 'x'");
    fs::write(hosts.file(), "h1 address=203.0.113.77\n").expect("it is ours");
    says(&["-n", "1", "--", "true"], 125, "host h1: cannot use UDP on 203.0.113.77");
    fs::remove_file(hosts.file()).expect("it is ours");
    says(&["--", "true"], 125, "name another file after --hosts");
    hiroba_says(&["run", "--launcher", "ssh", "true"], "say which with --hosts FILE");
}

fn hiroba_says(arguments: &[&str], phrase: &str) {
    finish(start(&mut hiroba(arguments))).says(125, phrase);
}

#[test]
fn hosts_that_refuse_or_are_another_version_are_named() {
    let hosts = Hosts::new();
    let file = hosts.file();
    let with = |launcher: &str| {
        let mut command = hiroba(&["run", "-n", "4", "--launcher", launcher, "--hosts"]);
        command.arg(&file).args(["--", "true"]);
        finish(start(&mut command))
    };
    with("/no/such/command").says(125, "cannot reach host h1: '/no/such/command' cannot be executed");
    let refuses = hosts.script("refuses", "echo \"connect to $1: no route to host\" >&2; exit 255");
    with(&refuses).says(125, "exited with status 255 ('connect to h");
    let silent = hosts.script("silent", "exit 0");
    with(&silent).says(125, "cannot be reached, or has no hiroba there");
    let version =
        hosts.script("version", "echo Welcome; echo hiroba-agent 0.0.1 0123456789abcdef 4; cat >/dev/null");
    with(&version).says(125, "runs Hiroba 0.0.1, this is");
    let line = format!("echo hiroba-agent {} 0123456789abcdef 4; cat >/dev/null", env!("CARGO_PKG_VERSION"));
    let build = hosts.script("build", &line);
    with(&build).says(125, "runs another build of Hiroba");
    let build = format!("{} {}", env!("CARGO_PKG_VERSION"), hiroba_node::BUILD);
    let nonsense =
        hosts.script("nonsense", &format!("echo hiroba-agent {build} 4; echo nonsense; cat >/dev/null"));
    with(&nonsense).says(125, "expected length of a frame");
}

/// Starts a job on the three hosts. Returns it, its marks, and the program's directory.
fn running(hosts: &Hosts, test: &str) -> (std::process::Child, String, tempfile::TempDir) {
    let (directory, program) = compiled("meet.c");
    let mark = mark(test);
    let mut command = hosts.run(&["-n", "4", "--dead-after", "2", "--"]);
    let mut child = start(command.arg(program).arg("600").env("HIROBA_TEST_MARK", &mark));
    assert_eq!(first_line(&mut child), "met");
    (child, mark, directory)
}

fn processes(mark: &str, what: &str) -> Vec<i32> {
    marked(mark).into_iter().filter(|(_, line)| line.contains(what)).map(|(pid, _)| pid).collect()
}

#[test]
fn whichever_process_dies_or_stops_nothing_is_left() {
    let hosts = Hosts::new();
    for (what, signal) in [
        ("agent's front", libc::SIGKILL),
        ("agent's front", libc::SIGTERM),
        ("agent's guardian", libc::SIGKILL),
        ("agent's supervisor", libc::SIGKILL),
        ("agent's supervisor", libc::SIGSTOP),
        ("program", libc::SIGKILL),
        ("program", libc::SIGSTOP),
    ] {
        let (child, mark, _directory) = running(&hosts, &format!("hosts-{signal}-{}", what.len()));
        let agents = processes(&mark, "hiroba agent");
        let is_agent = |pid: &i32| agents.contains(pid);
        let victim = match what {
            "agent's front" => agents.iter().copied().find(|pid| !is_agent(&parent_of(*pid))),
            "agent's guardian" => agents
                .iter()
                .copied()
                .find(|pid| is_agent(&parent_of(*pid)) && !is_agent(&parent_of(parent_of(*pid)))),
            "agent's supervisor" => agents.iter().copied().find(|pid| is_agent(&parent_of(parent_of(*pid)))),
            _ => processes(&mark, "program 600").into_iter().find(|pid| is_agent(&parent_of(*pid))),
        };
        send_to(victim.expect("the job runs"), signal);
        let called = finish(child);
        let named = called.stderr.contains("host h") && called.stderr.contains("ending the job");
        let status = if what.starts_with("program") && signal == libc::SIGKILL { 137 } else { 125 };
        assert!(called.status == status && named, "{what} {signal}: {called:?}");
        eventually("all processes are gone", || processes_marked(&mark) == 0);
    }
    for which in [0, 1, 2] {
        let (child, mark, _directory) = running(&hosts, &format!("hosts-launcher-{which}"));
        send_to(processes(&mark, "hiroba run")[which], libc::SIGKILL);
        finish(child);
        eventually("all processes are gone", || processes_marked(&mark) == 0);
    }
    let (child, mark, _directory) = running(&hosts, "hosts-interrupted");
    send(&child, libc::SIGTERM);
    assert_eq!(finish(child).status, 128 + libc::SIGTERM);
    assert_eq!(processes_marked(&mark), 0);
}

fn parent_of(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()).unwrap_or(0)
}

/// Network namespaces as hosts, joined by a bridge; removed when dropped.
struct Network {
    prefix: String,
    hosts: u8,
}

impl Network {
    /// Returns `None`, with a message on standard error, if this user may not make any.
    fn new(hosts: u8) -> Option<Network> {
        // SAFETY: a system call without memory.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("not root: nothing is tested in network namespaces");
            return None;
        }
        // Names of interfaces have at most 15 bytes.
        let network = Network { prefix: format!("hi{:x}", std::process::id()), hosts };
        let prefix = &network.prefix;
        if !ip(&format!("link add {prefix}b type bridge")) {
            eprintln!("no bridge can be made here: nothing is tested in network namespaces");
            return None;
        }
        let mut lines = vec![format!("link set {prefix}b up")];
        for host in 1..=hosts {
            let (space, device) = (network.space(host), network.device(host));
            lines.extend([
                format!("netns add {space}"),
                format!("link add {device} type veth peer name eth0 netns {space}"),
                format!("link set {device} master {prefix}b up"),
                format!("-n {space} addr add 10.213.77.{host}/24 dev eth0"),
                format!("-n {space} link set eth0 up"),
                format!("-n {space} link set lo up"),
            ]);
        }
        for line in lines {
            assert!(ip(&line), "ip {line}");
        }
        Some(network)
    }

    fn space(&self, host: u8) -> String {
        format!("{}n{host}", self.prefix)
    }

    fn device(&self, host: u8) -> String {
        format!("{}v{host}", self.prefix)
    }

    fn file(&self, directory: &Path) -> PathBuf {
        let line = |host| format!("{} slots=1 address=10.213.77.{host}\n", self.space(host));
        let path = directory.join("hosts");
        fs::write(&path, (1..=self.hosts).map(line).collect::<String>()).expect("a writable directory");
        path
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in 1..=self.hosts {
            ip(&format!("netns del {}", self.space(host)));
        }
        ip(&format!("link del {}b", self.prefix));
    }
}

fn ip(line: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_host_that_is_cut_off_ends_the_job_everywhere() {
    let Some(network) = Network::new(3) else { return };
    let (directory, program) = compiled("meet.c");
    let file = network.file(directory.path());
    let run = |fabric: &str, seconds: &str, mark: &str| {
        let mut command = hiroba(&[
            "run",
            "--fabric",
            fabric,
            "--dead-after",
            "2",
            "--launcher",
            "ip netns exec",
            "--hosts",
        ]);
        command.arg(&file).arg("--").arg(&program).arg(seconds).env("HIROBA_TEST_MARK", mark);
        start(&mut command)
    };
    let started = ["udp", "tcp"].map(|fabric| {
        let called = finish(run(fabric, "0.2", "whole"));
        assert_eq!(
            (called.status, called.stdout.as_str(), called.stderr.as_str()),
            (0, "met\n", ""),
            "{fabric}"
        );
        let mark = mark(&format!("cut-{fabric}"));
        let mut child = run(fabric, "600", &mark);
        assert_eq!(first_line(&mut child), "met");
        (fabric, mark, child)
    });
    assert!(ip(&format!("link set {} down", network.device(2))));
    for (fabric, mark, child) in started {
        let called = finish(child);
        let named =
            called.stderr.contains("on host") && called.stderr.contains("the network between them is cut");
        assert!(called.status == 125 && named, "{fabric}: {called:?}");
        // The node that is no longer heard may hang as well: its host reports what it does.
        let told = called.stderr.contains(" thread ") && called.stderr.contains(" waited ");
        assert!(told, "{fabric}: {called:?}");
        eventually("all processes are gone", || processes_marked(&mark) == 0);
    }
}
