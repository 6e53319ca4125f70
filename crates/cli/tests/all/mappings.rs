//! System calls that change how memory is mapped, made on shared memory in real jobs
//! (`tests/programs/mappings.c`): under every fault source and write tracking, as root and as an ordinary
//! user, in jobs of one and two nodes.

use crate::programs::{compile, finish, in_every_way, in_some_ways, run, ways};

const PROGRAM: &str = "tests/programs/mappings.c";

#[test]
fn shared_memory_is_locked_executed_and_refused_in_every_way() {
    let program = compile(PROGRAM);
    in_some_ways(0, 1, &[], &program, &[]);
    in_every_way(2, &[], &program, &[]);
    run(4, &[], &program, &[]);
}

#[test]
fn shared_memory_is_locked_executed_and_refused_under_other_protocols() {
    let program = compile(PROGRAM);
    for options in [
        ["--protocol", "sc", "--fabric", "udp"],
        ["--protocol", "lrc", "--fabric", "tcp"],
        // Pages are mapped onto their homes, on all nodes.
        ["--protocol", "aurc", "--fabric", "shm"],
        ["--protocol", "erc-update", "--fabric", "shm"],
    ] {
        run(2, &options, &program, &[]);
    }
    run(2, &["--protocol", "aurc", "--fabric", "shm", "--fault-source", "sigsegv"], &program, &[]);
}

#[test]
fn parts_of_long_pages_are_executed() {
    let program = compile(PROGRAM);
    for (number, page) in ["64K", "2M"].into_iter().enumerate() {
        in_some_ways(number, 2, &["--page-size", page], &program, &["long"]);
    }
}

#[test]
fn calls_that_the_library_does_not_see_lock_and_split_without_harm() {
    in_every_way(2, &[], &compile(PROGRAM), &["raw"]);
}

#[test]
fn a_program_may_lock_all_its_future_before_it_joins() {
    let program = compile(PROGRAM);
    for way in ways() {
        let output = finish(&mut way.job(2, &[], &program, &["before"]));
        let said = String::from_utf8_lossy(&output.stderr);
        // An ordinary user may not lock as much as the library and its memory take, and gets a message.
        assert!(
            output.status.success()
                || way.as_nobody && (said.contains("mlockall") || said.contains("ulimit -l")),
            "{way:?}: {said}"
        );
    }
}

/// Each call that refuses prints one message on each node, however often it refuses.
#[test]
fn what_is_refused_is_told_once() {
    let output = run(2, &[], &compile(PROGRAM), &[]);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let calls =
        ["mprotect", "pkey_mprotect", "madvise", "mlock", "munlock", "mmap", "munmap", "mremap", "shmat"];
    for node in 0..2 {
        for call in calls {
            let start = format!("hiroba: node {node}: {call} of ");
            let told = said.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(told, 1, "{call} on node {node}: {said}");
        }
    }
    let refused = |line: &&str| line.contains(": mprotect of 4096 bytes at 0x4000");
    let line = said.lines().find(refused).expect("a sentence about mprotect");
    assert!(
        line.contains("expected PROT_READ | PROT_WRITE, or PROT_EXEC")
            && line.ends_with("got 0x0; see hiroba.h")
    );
}

/// A bad access to allocated memory is not reported as one to unallocated memory.
#[test]
fn a_touch_of_allocated_memory_that_kills_is_explained() {
    let program = compile(PROGRAM);
    for way in ways() {
        let killed = |argument: &str| {
            let output = finish(&mut way.job(1, &[], &program, &[argument]));
            assert_eq!(output.status.code(), Some(128 + 11), "{way:?}: {output:?}");
            let said = String::from_utf8(output.stderr).expect("UTF-8");
            assert!(
                said.contains(": byte 0 of the region of ") && !said.contains("not allocated"),
                "{way:?}: {said}"
            );
            said
        };
        assert!(killed("data").contains("it holds no code that may be executed: call mprotect"), "{way:?}");
        assert!(killed("taken").contains("a system call that libhiroba.so does not see"), "{way:?}");
    }
    // Executing data must not fault endlessly where only faults protect it.
    for way in ways() {
        let output = finish(&mut way.job(2, &[], &program, &["data"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + 11), "{way:?}: {said}");
        assert!(said.contains("it holds no code that may be executed"), "{way:?}: {said}");
    }
}
