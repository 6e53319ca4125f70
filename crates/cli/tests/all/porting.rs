//! The example of `docs/guide/src/porting.md` compiles as it stands there, and finds the same before and
//! after.

use std::fs;
use std::path::Path;

use crate::support::{Called, call, finish, start};

/// What both forms print: the sum of the first million terms of the harmonic series.
const SUM: &str = "14.392727\n";

/// Returns the blocks of C in the document.
fn examples() -> Vec<String> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/porting.md");
    let text = fs::read_to_string(document).expect("the document");
    let blocks = text.split("\n```c\n").skip(1);
    blocks.map(|rest| rest.split("\n```\n").next().expect("a block has an end").to_owned() + "\n").collect()
}

/// Compiles a block, and returns the program's path.
fn compile(directory: &Path, name: &str, text: &str) -> String {
    let path = |name: &str| directory.join(name).to_str().expect("a UTF-8 path").to_owned();
    let (source, program) = (path(&format!("{name}.c")), path(name));
    fs::write(&source, text).expect("a writable directory");
    let flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"];
    let compiled = call(&[&["cc"], &flags[..], &["-o", &program, &source]].concat());
    assert_eq!(compiled.status, 0, "{compiled:?}");
    program
}

#[track_caller]
fn prints_the_sum(called: &Called) {
    let got = (called.status, called.stdout.as_str(), called.stderr.as_str());
    assert_eq!(got, (0, SUM, ""), "{called:?}");
}

#[test]
fn the_example_finds_the_same_before_and_after() {
    let examples = examples();
    let [before, after] = &examples[..] else { panic!("expected two blocks of C, got {}", examples.len()) };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let before = compile(directory.path(), "before", before);
    let after = compile(directory.path(), "after", after);
    prints_the_sum(&finish(start(&mut std::process::Command::new(before))));
    for (nodes, threads) in [("1", "1"), ("2", "1"), ("2", "2")] {
        prints_the_sum(&call(&["run", "-n", nodes, "-t", threads, &after]));
    }
}
