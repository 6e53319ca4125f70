//! The program's signal handlers may interrupt its threads anywhere, and touch shared memory: a thread that a
//! handler stops must hold no lock of the runtime (`tests/programs/interrupted.c`).

use crate::support::{compiled, finish, hiroba, start};

#[test]
fn handlers_may_interrupt_the_runtime_anywhere() {
    let (_directory, program) = compiled("interrupted.c");
    let program = program.to_str().expect("a UTF-8 path");
    for (source, protocol) in
        [("event", "sc"), ("event", "hlrc"), ("sigbus", "sc"), ("sigbus", "hlrc"), ("sigsegv", "sc")]
    {
        let flags = ["run", "-n", "3", "-t", "2", "--fault-source", source, "--write-tracking", "fault"];
        let rest = ["--protocol", protocol, "--dead-after", "20", "--", program, "40", "250"];
        let called = finish(start(&mut hiroba(&[&flags[..], &rest].concat())));
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{source}, {protocol}");
    }
}
