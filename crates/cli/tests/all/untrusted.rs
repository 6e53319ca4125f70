//! What other users may have put where the command reads and writes: links, directories of their own, endless
//! files, terminal escape sequences.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use hiroba_trace::Job;

use crate::support::{call, compiled, finish, hiroba, script, start};

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary directory has a plain name")
}

fn directory(at: &Path, name: &str, mode: u32) -> PathBuf {
    let path = at.join(name);
    fs::create_dir(&path).expect("a new directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    path
}

#[test]
fn a_trace_is_written_for_its_owner_alone() {
    let (_kept, program) = compiled("traced.c");
    let place = tempfile::tempdir().expect("a temporary directory");
    let made = place.path().join("made");
    let given = directory(place.path(), "given", 0o755);
    for trace in [&made, &given] {
        let called = call(&["run", "-n", "2", "--trace", text(trace), text(&program)]);
        assert_eq!(called.status, 0, "{called:?}");
        let names = ["job.json", "node-0.trace", "node-1.trace"];
        assert_eq!(fs::read_dir(trace).expect("it is there").count(), names.len());
        for name in names {
            let file = fs::symlink_metadata(trace.join(name)).expect("it is there");
            assert!(file.is_file() && file.mode() & 0o7777 == 0o600, "{name}: {file:?}");
        }
    }
    assert_eq!(fs::metadata(&made).expect("it is there").mode() & 0o7777, 0o700);
}

#[test]
fn a_directory_that_others_may_change_takes_no_trace() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let run = |path: &Path| call(&["run", "--trace", text(path), "true"]);
    for (name, mode) in [("of-group", 0o775), ("of-all", 0o1777)] {
        run(&directory(place.path(), name, mode)).says(125, "use 'chmod go-w' on it");
    }
    let link = place.path().join("link");
    symlink(directory(place.path(), "target", 0o755), &link).expect("a link");
    run(&link).says(125, "it is a symbolic link");
    assert_eq!(fs::read_dir(place.path().join("target")).expect("it is there").count(), 0);
    let foreign = directory(place.path(), "foreign", 0o755);
    match chown(&foreign, Some(1), None) {
        Ok(()) => run(&foreign).says(125, "expected a directory of your own (user 0) after --trace"),
        // Only root can give a directory away; any other user takes one of root's.
        Err(_) => run(Path::new("/sys")).says(125, "expected a directory of your own"),
    }
}

#[test]
fn links_at_the_names_of_a_trace_are_not_followed() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let victim = place.path().join("victim");
    fs::write(&victim, "precious").expect("a file");
    let trace = directory(place.path(), "trace", 0o755);
    symlink(&victim, trace.join("job.json.new")).expect("a link");
    let json = r#"{"format":2,"program":"p","arguments":[],"nodes":1,"threads_per_node":1,"protocol":"hlrc",
        "fabric":"shm","page_bytes":4096,"exit_status":null}"#;
    let job: Job = serde_json::from_str(json).expect("a job");
    let opened = fs::File::open(&trace).expect("a directory");
    job.write(&opened).expect_err("somebody else's link is in the way");
    hiroba_trace::create(&opened, "job.json.new").expect_err("it is there already");
    assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious");
    assert!(fs::symlink_metadata(trace.join("job.json.new")).is_ok_and(|link| link.is_symlink()));
}

#[test]
fn inputs_without_an_end_are_refused() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let hosts = place.path().join("hosts");
    fs::write(&hosts, vec![b'#'; (1 << 20) + 1]).expect("a long file");
    for path in ["/dev/zero", text(&hosts)] {
        call(&["run", "--hosts", path, "true"]).says(125, "expected at most 1048576 bytes, got more");
    }
    let trace = place.path().join("trace");
    fs::create_dir(&trace).expect("a directory");
    symlink("/dev/zero", trace.join("job.json")).expect("a link");
    call(&["check", text(&trace)]).says(125, "expected a regular file");
    fs::remove_file(trace.join("job.json")).expect("it is there");
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, trace.join("job.json"), fifo, mode, 0).expect("a pipe");
    call(&["check", text(&trace)]).says(125, "expected a regular file");
    fs::remove_file(trace.join("job.json")).expect("it is there");
    fs::write(trace.join("job.json"), vec![b' '; (4 << 20) + 1]).expect("a long file");
    call(&["check", text(&trace)]).says(125, "one of more than 4194304 bytes");
}

#[test]
fn a_command_that_prints_without_end_is_given_up() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let hosts = place.path().join("hosts");
    fs::write(&hosts, "h address=192.0.2.1\n").expect("a file");
    for (name, prints) in [("lines", "yes"), ("one-line", "yes | tr -d '\\n'")] {
        let launcher = script(place.path(), name, prints);
        let called =
            finish(start(&mut hiroba(&["run", "--hosts", text(&hosts), "--launcher", &launcher, "true"])));
        called.says(125, "expected the greeting of Hiroba's agent within the first 65536 bytes through");
    }
}

#[test]
fn garbage_in_an_authentic_connection_is_told_as_what_it_is() {
    let (_kept, program) = compiled("garbage.c");
    let called = call(&["run", "-n", "2", "--fabric", "tcp", text(&program)]);
    called.says(125, "hiroba: node 0: node 1 sent an invalid message over tcp: expected a record");
    assert!(!called.stderr.contains("heard nothing"), "{called:?}");
}

#[test]
fn what_others_say_reaches_the_terminal_escaped() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let hosts = place.path().join("hosts");
    fs::write(&hosts, "h\x1b]0;owned\x07 address=192.0.2.1\n").expect("a file");
    let launcher =
        script(place.path(), "launcher", "#!/bin/sh\nprintf '\\033[2J\\233no route\\n' >&2\nexit 3\n");
    let run = ["run", "--hosts", text(&hosts), "--launcher", &launcher, "true"];
    let called = finish(start(&mut hiroba(&run)));
    let program = call(&["run", "./no\x1b[31m\nsuch"]);
    for (called, phrase) in
        [(&called, "\\u{1b}]0;owned\\u{7}"), (&called, "\\u{1b}[2J"), (&program, "no\\u{1b}[31m\\nsuch")]
    {
        assert!(called.stderr.contains(phrase), "'{phrase}' is missing in {called:?}");
        let obeyed = |character: char| character.is_control() && character != '\n';
        assert!(!called.stderr.contains(obeyed), "{called:?}");
    }
}
