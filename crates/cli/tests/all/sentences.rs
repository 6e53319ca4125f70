//! Bad input gives the contract's exit status and one helpful sentence, before the program starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{call, finish, hiroba, shell, start};

#[test]
fn arguments_that_make_no_sense() {
    for (line, phrase) in [
        ("", "expected a command"),
        ("run", "expected a program"),
        ("run -n 0 true", "from 1 to 4096 after -n, got '0'"),
        ("run -n 100000 true", "from 1 to 4096 after -n, got '100000'"),
        ("run -n 4097 true", "from 1 to 4096"),
        ("run -n -1 true", "got '-1'"),
        ("run -n four true", "got 'four'"),
        ("run -n", "expected a value after -n"),
        ("run -n 2 -n 3 true", "only once"),
        ("run -t 0 true", "from 1 to 256 after -t, got '0'"),
        ("run -t 257 true", "from 1 to 256 after -t, got '257'"),
        ("run --write-tracking magic true", "--write-tracking async or fault"),
        ("run -n 2 --debug 2 true", "from 0 to 1 after --debug, got '2'"),
        ("run -n 2 --debug -1 true", "after --debug, got '-1'"),
        ("run --debug 0 --label true", "leave --label out"),
        ("run --races=yes true", "'yes'"),
        ("run --no-such true", "there is no flag '--no-such'"),
        ("run --fabrik udp true", "did you mean '--fabric'?"),
        ("run -q true", "there is no flag '-q'"),
        ("trace export DIR", "expected -o <FILE>, as in 'hiroba trace export -o <FILE> <DIR>'"),
        ("trace summary --no-such DIR", "see 'hiroba trace summary --help'"),
        ("run --protocol sc --write-tracking async true", "leave --write-tracking out"),
        ("run --protocol sc --races true", "use --protocol hlrc"),
        ("run --protocol aurc --races true", "use --protocol hlrc"),
        ("run --protocol msi true", "there is no protocol 'msi'; use --protocol adaptive"),
        ("run --fabric ether true", "there is no fabric 'ether'; use --fabric udp"),
        ("run --fault-source magic true", "--fault-source event, sigbus or sigsegv"),
        ("run --page-size 5000 true", "power of two from 4K to 2M, got 5000 bytes"),
        ("run --page-size big true", "got 'big'"),
        ("run --stats=table true", "--stats=json:FILE"),
        ("run --stats=json: true", "--stats=json:FILE"),
        ("run -x =1 true", "VAR=VALUE after -x"),
        ("run --inject loss=1.5 true", "got 'loss=1.5'"),
        ("run --inject drop=0.1 true", "got 'drop=0.1'"),
        ("run --fabric tcp --inject loss=0.1 true", "--fabric tcp sends none; use --fabric udp"),
        ("run --label=yes true", "'yes'"),
        ("run -n 1 --memory-limit 1G true", "this job has one node; use -n 2"),
        ("run --memory-limit 1Q true", "such as 512M or 4G, or none, after --memory-limit, got '1Q'"),
        ("run --memory-limit -1 true", "after --memory-limit, got '-1'"),
        ("run --memory-limit 64K true", "expected 256 pages (1024K) or more after --memory-limit, got '64K'"),
        ("run --memory-limit 1M --page-size 64K true", "(16384K) or more"),
        ("run --memory-limit 1G --protocol sc true", "under --protocol hlrc"),
        ("run --memory-limit 1G --races true", "leave out --memory-limit, --swap and --lend, or --races"),
        ("run --swap /tmp --memory-limit none true", "leave out one of them"),
        ("run --swap /tmp --protocol sc true", "under --protocol hlrc"),
        (
            "run --memory-limit 1G --swap /tmp:1Q true",
            "DIR or DIR:SIZE, with a size such as 512M or 8G, after --swap",
        ),
        (
            "run --memory-limit 1G --swap :1G true",
            "a directory, as /var/tmp or /var/tmp:8G, after --swap, got ':1G'",
        ),
        ("run --memory-limit 1G --swap /tmp:1K true", "a size of one page (4K) or more after --swap"),
        ("run --memory-limit 1G --swap /tmp --protocol sc true", "under --protocol hlrc"),
        ("run -n 1 --memory-limit 1G --swap /tmp true", "this job has one node; use -n 2"),
        ("run --replacement lfu true", "lirs, s3-fifo, sieve), got 'lfu', after --replacement"),
        ("runn true", "did you mean 'run'?"),
        ("./program", "write 'hiroba run ./program'"),
        ("demo -n 0", "got '0'"),
        ("bench -n 1", "2 nodes or more after -n"),
        ("bench tea", "no group 'tea' to measure; use one of fault, barrier"),
        ("bench --fabric ether", "there is no fabric 'ether'"),
        ("bench --fault-source magic", "there is no fault source 'magic'"),
        ("bench --write-tracking magic", "there is no write tracking 'magic'"),
        ("bench --json /no/such/directory/a.json", "no such file or directory"),
    ] {
        call(&line.split_whitespace().collect::<Vec<_>>()).says(125, phrase);
    }
}

#[test]
fn what_the_contract_names_and_this_version_lacks() {
    for line in [
        "run --fabric ucx true",
        "run --slow 1=2 true",
        "run --virtual a.toml true",
        "analyze dir --html a",
        "calibrate -o a",
        "top",
        "reproduce 003 --quick",
    ] {
        call(&line.split_whitespace().collect::<Vec<_>>()).says(125, "is not available yet");
    }
}

#[test]
fn help_lists_what_works_and_nothing_else() {
    let general = call(&["--help"]);
    let run = call(&["run", "--help"]);
    assert_eq!((general.status, run.status), (0, 0));
    for word in ["run", "cc", "cxx", "fc", "demo", "bench", "check", "trace", "reproduce", "doctor"] {
        assert!(general.stdout.contains(&format!("\n  {word} ")), "{word}");
    }
    for word in ["bench-node", "litmus", "analyze"] {
        assert!(!general.stdout.contains(word), "{word}");
    }
    for flag in [
        "-n ",
        "-t ",
        "--stats",
        "--label",
        "--inject",
        "--fault-source",
        "--write-tracking",
        "--page-size",
        "--prefetch",
        "--races",
        "--debug",
        "--encrypt",
        "--low-latency",
        "--bind",
        "--dead-after",
        "--hosts",
        "--launcher",
        "--trace",
        "--memory-limit",
        "--swap",
    ] {
        assert!(run.stdout.contains(flag), "{flag}");
    }
    for flag in ["--slow", "--virtual"] {
        assert!(!run.stdout.contains(flag), "{flag}");
    }
    assert!(call(&["--version"]).stdout.starts_with("hiroba "));
}

#[test]
fn programs_that_are_not_there() {
    call(&["run", "no-such-program-anywhere"]).says(127, "not found in PATH");
    call(&["run", "./no-such-program"]).says(127, "was not found");
    call(&["run", "/bin/sh/program"]).says(127, "was not found");
    call(&["run", ""]).says(127, "empty name");
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("here"), "").unwrap();
    finish(start(hiroba(&["run", "here"]).current_dir(&directory))).says(127, "did you mean './here'?");
}

#[test]
fn programs_that_cannot_be_executed() {
    let directory = tempfile::tempdir().unwrap();
    let elf = |kind: u8, machine: u8| {
        let mut head = vec![0u8; 64];
        head[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        (head[16], head[18], head[20]) = (kind, machine, 1);
        head
    };
    for (name, mode, content, phrase) in [
        ("plain", 0o644, b"#!/bin/sh\n".to_vec(), "permission denied"),
        ("headless", 0o755, b"echo hello\n".to_vec(), "neither a binary"),
        ("orphan", 0o755, b"#!/no/such/interpreter\n".to_vec(), "interpreter '/no/such/interpreter'"),
        ("object.o", 0o755, elf(1, 62), "object file"),
        ("foreign", 0o755, elf(2, 2), "cannot be executed"),
        ("empty", 0o755, Vec::new(), "neither a binary"),
    ] {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let json = directory.path().join("statistics.json");
        let statistics = format!("--stats=json:{}", json.display());
        call(&["run", &statistics, path.to_str().unwrap()]).says(126, phrase);
        assert!(!json.exists(), "a job that never started leaves no file");
    }
    call(&["run", directory.path().to_str().unwrap()]).says(126, "is a directory");
}

#[test]
fn too_few_descriptors() {
    let few = |script: &str| finish(start(&mut shell(script)));
    few("ulimit -n 16; exec $H run -n 4 true").says(125, "the limit is 16");
    few("ulimit -n 64; exec $H run -n 100 true").says(125, "ulimit -n");
    // If only the soft limit is low, the launcher raises its own, and the nodes see the original one.
    let helped = few("ulimit -Sn 64; exec $H run -n 100 sh -c 'ulimit -Sn'");
    assert_eq!((helped.status, helped.stdout.as_str()), (0, "64\n".repeat(100).as_str()));
}

#[test]
fn a_working_directory_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("cd {0} && rmdir {0} && exec $H run true", directory.path().display());
    finish(start(&mut shell(&script))).says(125, "working directory");
}

#[test]
fn a_statistics_file_that_cannot_be_written() {
    call(&["run", "--stats=json:/no/such/directory/a.json", "true"]).says(125, "no such file or directory");
    call(&["run", "--stats=json:/tmp", "true"]).says(125, "is a directory");
}

#[test]
fn what_the_machine_lacks_is_said_before_the_program_starts() {
    for (limit, phrase) in [("-v 8000000", "ulimit -v"), ("-f 1000", "ulimit -f")] {
        let script =
            format!("ulimit {limit}; exec {} run -n 2 -- sh -c 'echo started'", env!("CARGO_BIN_EXE_hiroba"));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{stderr}");
        assert!(stderr.contains(phrase) && stderr.lines().count() == 1, "{stderr}");
        assert!(output.stdout.is_empty(), "the program must not have started");
    }
}
