//! `--progress` as a user at a terminal sees it, and as a script does.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::terminal::{screen, terminal};
use crate::support::{call, finish, hiroba, shell, start};

/// The line appears within seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Node 0 waits for a byte, the other for node 0.
const PROGRAM: &str = r#"
#include <hiroba.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    if (hiroba_init(&argc, &argv) != 0)
        return 1;
    if (hiroba_node() == 0)
        (void)getchar();
    hiroba_barrier();
    if (hiroba_node() == 0)
        puts("done");
    hiroba_finalize();
    return 0;
}
"#;

fn compiled(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (source, program) = (directory.path().join("program.c"), directory.path().join("program"));
    std::fs::write(&source, text).expect("it is ours");
    let mut command = hiroba(&["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o"]);
    let called = finish(start(command.arg(&program).arg(&source)));
    assert_eq!(called.status, 0, "{called:?}");
    (directory, program)
}

#[test]
fn a_terminal_shows_a_line_that_is_gone_at_the_end() {
    let (_directory, program) = compiled(PROGRAM);
    let (mut user, terminal) = terminal();
    let mut command = hiroba(&["run", "-n", "2", "--progress", "--"]);
    command.arg(&program).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(terminal);
    let mut child = command.spawn().expect("the command starts");
    drop(command); // the terminal's other side is the job's alone
    // The program ends when the line has shown its rates, so that nothing depends on how long that takes.
    let mut seen = Vec::new();
    let mut let_go = child.stdin.take();
    let limit = Instant::now() + LIMIT;
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&user, PollFlags::IN)], Some(&timeout)) == Ok(0) {
            let _ = child.kill();
            panic!("waited in vain for the line: {:?}", String::from_utf8_lossy(&seen));
        }
        let mut bytes = [0; 4096];
        match user.read(&mut bytes) {
            Ok(got) if got > 0 => seen.extend_from_slice(&bytes[..got]),
            _ => break, // every process has closed it
        }
        if String::from_utf8_lossy(&seen).contains("computing")
            && let Some(mut stdin) = let_go.take()
        {
            stdin.write_all(b"\n").expect("node 0 reads it");
        }
    }
    let mut stdout = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
    assert!(child.wait().expect("it is ours").success());
    assert_eq!(stdout, "done\n", "standard output is the program's");
    let text = String::from_utf8_lossy(&seen);
    assert!(text.contains(" s, 2 nodes, "), "{text:?}");
    assert!(text.contains("% computing, "), "{text:?}");
    assert!(text.contains(" faults/s, "), "{text:?}");
    let left = screen(&seen);
    assert!(left.iter().all(String::is_empty), "the line is gone: {left:?} of {text:?}");
}

#[test]
fn where_there_is_no_terminal_there_is_no_line() {
    let (_directory, program) = compiled(PROGRAM);
    let script = format!("sleep 2 | $H run -n 2 --progress -- {}", program.display());
    let called = finish(start(&mut shell(&script)));
    assert_eq!((called.status, called.stdout.as_str(), called.stderr.as_str()), (0, "done\n", ""));
}

/// Node 0 reads a byte before it joins; the others' standard input has ended.
const LATE_PROGRAM: &str = r#"
#include <hiroba.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    (void)getchar();
    if (hiroba_init(&argc, &argv) != 0)
        return 1;
    hiroba_finalize();
    return 0;
}
"#;

#[test]
fn how_many_nodes_have_joined_is_said_where_that_takes_long() {
    let (_directory, program) = compiled(LATE_PROGRAM);
    let mut command = hiroba(&["run", "-n", "9", "--"]);
    command.arg(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut words = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut next = || words.next().map(|line| line.expect("text"));
    // Only then may node 0 join.
    let told = std::iter::from_fn(&mut next).find(|line| line.contains("8 of 9 nodes have joined"));
    assert_eq!(told.as_deref(), Some("hiroba: starting: 8 of 9 nodes have joined"));
    child.stdin.take().expect("piped").write_all(b"\n").expect("node 0 reads it");
    let left: Vec<String> = std::iter::from_fn(next).collect();
    assert!(left.iter().all(|line| line.starts_with("hiroba: starting: ")), "{left:?}");
    assert!(child.wait().expect("it is ours").success());
}

#[test]
fn a_debugger_has_the_terminal_to_itself() {
    call(&["run", "-n", "2", "--progress", "--debug", "1", "true"])
        .says(125, "--progress and --debug exclude each other");
}

#[test]
fn the_screen_is_read_right() {
    assert_eq!(screen(b"abc\rx\r\nnext\x1b[1A\r\x1b[2Ky"), ["y", "next"]);
}
