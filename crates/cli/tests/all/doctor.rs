//! `hiroba doctor` on this machine.

use crate::support::{call, finish, hiroba, start};

#[test]
fn every_topic_is_looked_at_and_every_loss_has_its_remedy() {
    let doctor = call(&["doctor"]);
    assert_eq!((doctor.status, doctor.stderr.as_str()), (0, ""), "{doctor:?}");
    for what in [
        "fault source event",
        "fault source sigbus",
        "fault source sigsegv",
        "write tracking async",
        "address space",
        "open files",
        "/dev/shm",
        "receive buffer",
        "usable processors",
        "idle states",
        "low latency",
    ] {
        assert!(doctor.stdout.contains(what), "{what}: {doctor:?}");
    }
    let count = |word: &str| doctor.stdout.lines().filter(|line| line.trim_start().starts_with(word)).count();
    assert_eq!(count("lacks  ") + count("fails  "), count("lost:"), "{doctor:?}");
    assert_eq!(count("lost:"), count("to do:"), "{doctor:?}");
}

#[test]
fn a_machine_that_cannot_run_jobs_is_told_so() {
    let mut limited = std::process::Command::new("sh");
    let hiroba = hiroba(&[]).get_program().to_owned();
    limited.args(["-c", "ulimit -v 4000000; exec \"$0\" doctor"]).arg(hiroba);
    let doctor = finish(start(&mut limited));
    assert_eq!(doctor.status, 125, "{doctor:?}");
    assert!(doctor.stdout.contains("fails  address space"), "{doctor:?}");
    assert!(doctor.stdout.contains("'ulimit -v unlimited'"), "{doctor:?}");
}
