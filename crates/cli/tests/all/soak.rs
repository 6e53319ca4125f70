//! A mixture of all features for some seconds, in a few very different jobs: `tests/programs/soak.c`.
//!
//! By hand: `hiroba run -n 4 -t 2 ./soak 600 SEED`. A failure names its seed and phase.

use std::path::Path;

use crate::support::{call, finish, hiroba, side_by_side, start};

/// The time of each job. As many jobs as there are processors run at once, so that they also disturb each
/// other.
const SECONDS: &str = "4";

#[test]
fn a_mixture_of_everything_stays_right() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/soak.c");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("soak");
    let (source, program) = (source.to_str().expect("a UTF-8 path"), program.to_str().expect("a UTF-8 path"));
    let compiled = call(&[
        "cc", "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, source,
    ]);
    assert_eq!(compiled.status, 0, "{compiled:?}");
    let jobs = [
        ("1", "-n 1 -t 2"),
        ("2", "-n 2 -t 2"),
        ("3", "-n 2 -t 2 --fault-source sigsegv"),
        ("4", "-n 3 --write-tracking fault --page-size 64K"),
        ("5", "-n 2 -t 3 --inject loss=0.03,reorder=0.05,dup=0.02,seed=5"),
        ("6", "-n 4 -t 2 --fault-source sigsegv --inject loss=0.01,seed=6"),
        ("7", "-n 2 --page-size 2M"),
    ];
    side_by_side(jobs, |(seed, flags)| {
        let mut line = vec!["run"];
        line.extend(flags.split_whitespace());
        line.extend(["--", program, SECONDS, seed]);
        let called = finish(start(&mut hiroba(&line)));
        assert!(called.status == 0 && called.stderr.is_empty(), "{flags}: {called:?}");
        let phases = called.stdout.split_once("each: ").and_then(|(_, rest)| rest.split_once(' '));
        let phases = phases.and_then(|(count, _)| count.parse::<u64>().ok());
        assert!(phases.is_some_and(|count| count > 0), "{flags}: it did nothing: {called:?}");
    });
}
