//! Options of other launchers, and help on a narrow terminal.

use crate::support::{call, finish, hiroba, start};

#[test]
fn words_of_mpirun_run_the_job() {
    let line = "run -np 2 --oversubscribe --bind-to none --tag-output sh -c";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push("echo here");
    let called = call(&words);
    assert_eq!((called.status, called.stdout.matches("here").count()), (0, 2), "{called:?}");
    assert!(called.stdout.contains("0: here") || called.stdout.contains("0] here"), "{called:?}");
    call(&["run", "-N", "2", "true"]).says(125, "write -n NODES");
    call(&["run", "--hosts", "a", "-H", "b", "true"]).says(125, "exclude each other");
    call(&["run", "-H", "a,,b", "true"]).says(125, "HOST[:SLOTS],HOST[:SLOTS] after -H");
}

#[test]
fn colons_and_allocations_are_pointed_at() {
    let called = call(&["run", "-n", "2", "true", ":", "-n", "2", "true"]);
    assert!(called.status == 0 && called.stderr.contains("the ':' is passed to true"), "{called:?}");
    let called = finish(start(hiroba(&["run", "-n", "2", "true"]).env("SLURM_JOB_NUM_NODES", "4")));
    assert!(called.status == 0 && called.stderr.contains("this machine only"), "{called:?}");
}

#[test]
fn help_fits_80_columns_and_breaks_no_word() {
    for command in ["", "run", "cc", "cxx", "fc", "bench", "demo", "trace", "check", "reproduce", "doctor"] {
        let words: &[&str] = if command.is_empty() { &["help"] } else { &["help", command] };
        let at = |columns: &str| finish(start(hiroba(words).env("COLUMNS", columns)));
        let (narrow, wide) = (at("80"), at("100"));
        assert_eq!(narrow.status, 0, "{narrow:?}");
        for line in narrow.stdout.lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
        let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(split(&narrow.stdout), split(&wide.stdout), "{command}");
    }
    call(&["help", "tea"]).says(125, "there is no command 'tea'");
}
