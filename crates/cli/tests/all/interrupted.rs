//! Signal handlers of the program's may interrupt its threads wherever they are, and touch shared memory: none of the
//! runtime's locks may be held by a thread that a handler stops (`tests/programs/interrupted.c`).

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
