//! What a node is given when it joins, and that no other process gets it: wrappers, later programs, programs
//! with more privileges than their user. Also covers what the program executes afterwards.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::support::{Called, compiled, finish, hiroba, processes_marked, shell, start};

/// The user and group called `nobody`.
const NOBODY: u32 = 65534;

/// Returns `hiroba run` of a shell script that names the programs `$P` and `$Q`.
#[track_caller]
fn wrapped(options: &[&str], script: &str, programs: [&Path; 2]) -> Called {
    let mut command = hiroba(&["run"]);
    command.args(options).args(["--", "sh", "-c", script]).env("P", programs[0]).env("Q", programs[1]);
    finish(start(&mut command))
}

#[test]
fn a_wrappers_other_children_see_neither_the_key_nor_the_memory() {
    let (_init, init) = compiled("init.c");
    let (_peek, peek) = compiled("peek.c");
    let traces = tempfile::tempdir().expect("a temporary directory");
    for fabric in ["shm", "udp", "tcp"] {
        let trace = traces.path().join(fabric);
        let options = ["-n", "2", "--fabric", fabric, "--trace", trace.to_str().expect("a UTF-8 path")];
        // One reads before the program joins, one during its whole run, one afterwards.
        let called = wrapped(&options, "$Q & sleep 0.1; $P && $Q && wait", [&init, &peek]);
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{fabric}: {called:?}");
        let line = "saw 0 bytes, 0 other descriptors, closed 1\n";
        assert_eq!(called.stdout, line.repeat(4), "{fabric}: {called:?}");
    }
}

#[test]
fn a_node_is_let_in_once() {
    let (_init, init) = compiled("init.c");
    let phrase = "expected one program per node that calls hiroba_init, got a second one";
    // The same program again, when the first has left, and two at once.
    for script in ["$P && $P", "$P & $P; a=$?; wait $!; b=$?; exit $((a + b))"] {
        for nodes in ["1", "2"] {
            let called = wrapped(&["-n", nodes], script, [&init, &init]);
            let refused = called.stderr.lines().filter(|line| line.contains(phrase)).count();
            assert_eq!((called.status, refused.to_string().as_str()), (1, nodes), "{script}: {called:?}");
        }
    }
}

#[test]
fn what_a_node_executes_has_random_addresses_again() {
    let here = fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap_or_default();
    let (_later, later) = compiled("later.c");
    let ran = |script: &str| finish(start(shell(script).env("P", &later)));
    if here.trim() == "2" {
        let called = ran("exec $H run -n 3 -- $P random");
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{called:?}");
    } else {
        eprintln!("random addresses are not tested: this machine has none (kernel.randomize_va_space)");
    }
    if finish(start(&mut shell("setarch -R true"))).status != 0 {
        return eprintln!("a user's own 'setarch -R' is not tested: there is no setarch, or it is forbidden");
    }
    let called = ran("exec setarch -R $H run -n 2 -- $P fixed");
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "what the user has set stays: {called:?}");
}

#[test]
fn a_program_with_more_rights_than_its_user_does_not_join() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root can make a program set-user-ID root");
    }
    let (kept, program) = compiled("init.c");
    fs::set_permissions(kept.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    // The loader of such a program looks for libraries in standard places and where the program itself says.
    let house = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(house.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let built = Path::new(env!("CARGO_BIN_EXE_hiroba"));
    // The same choice as `hiroba cc`: cargo updates the one beside the command only when asked for the
    // library itself.
    let places = ["libhiroba.so", "deps/libhiroba.so"].map(|place| built.with_file_name(place));
    let built_at = |file: &std::path::PathBuf| file.metadata().and_then(|file| file.modified()).ok();
    let library = places.into_iter().max_by_key(built_at).expect("there are two places");
    for (from, name) in [(built, "hiroba"), (&library, "libhiroba.so")] {
        let to = house.path().join(name);
        fs::copy(from, &to).expect("a copy");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/init.c");
    let mut compiler = hiroba(&["cc", "-O2", "-Wl,--disable-new-dtags"]);
    compiler.arg(format!("-Wl,-rpath,{}", house.path().display())).arg("-o").arg(&program).arg(source);
    let called = finish(start(&mut compiler));
    assert_eq!(called.status, 0, "{called:?}");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    let run = |with_launcher: bool| {
        let mut command = std::process::Command::new(house.path().join("hiroba"));
        command.args(["run", "-n", "2", "--"]);
        if !with_launcher {
            command = std::process::Command::new("env");
        }
        command.arg(&program).uid(NOBODY).gid(NOBODY).current_dir("/");
        finish(start(command.stdin(std::process::Stdio::null())))
    };
    let phrase = "got one that is set-user-ID, set-group-ID or has file capabilities";
    for with_launcher in [true, false] {
        let called = run(with_launcher);
        assert!(called.status != 0 && called.stderr.contains(phrase), "{called:?}");
        assert!(called.stderr.contains("(-1)"), "EPERM: {called:?}");
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    assert_eq!(run(false).status, 0, "without the bit it runs");
    assert_eq!(processes_marked(program.to_str().expect("a UTF-8 path")), 0);
}
