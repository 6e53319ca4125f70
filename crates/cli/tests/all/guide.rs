//! The guide (`docs/guide`): its programs compile, its commands run, and they print what it shows.
//!
//! A block of `c` that begins with a comment with a file's name is written to that file. In a block of
//! `console`, a shell runs each line that begins with `$ ` in the chapter's own directory, with `hiroba` on
//! the path and `apps` beside it; the lines below are the command's output. A line `...` stands for any
//! number of lines, and `…` for any part of a line. Blocks of `sh` need several machines or minutes, and are
//! not run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use crate::executables::may_run;
use crate::support::{Called, finish, shell, start};

/// `--pthread` is for x86-64.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn may_run() -> bool {
    false
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

fn chapter(name: &str) -> String {
    let path = root().join("docs/guide/src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A fenced block: its language and its lines.
struct Block<'a> {
    language: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some(Block { language, lines: Vec::new() }),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "every block ends");
    found
}

/// Returns the name in the comment `/* name.c */`.
fn file_name(line: &str) -> Option<&str> {
    line.strip_prefix("/* ")?.strip_suffix(" */").filter(|name| name.ends_with(".c") && !name.contains('/'))
}

/// Returns true if `line` matches `pattern`; `…` stands for any characters.
fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut ended = true;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        ended = part.is_empty();
    }
    rest.is_empty() || ended && pattern.ends_with('…')
}

/// Returns true if `lines` match `patterns`; a pattern `...` stands for any number of lines.
fn output_matches(patterns: &[&str], lines: &[&str]) -> bool {
    match (patterns.split_first(), lines.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((&"...", after)), _) => {
            (0..=lines.len()).any(|skipped| output_matches(after, &lines[skipped..]))
        }
        (Some(_), None) => false,
        (Some((pattern, patterns)), Some((line, lines))) => {
            line_matches(pattern, line) && output_matches(patterns, lines)
        }
    }
}

fn run(directory: &Path, command: &str) -> Called {
    let bin = Path::new(env!("CARGO_BIN_EXE_hiroba")).parent().expect("a directory");
    let mut paths = vec![bin.to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let path = std::env::join_paths(paths).expect("a path");
    finish(start(shell(command).current_dir(directory).env("PATH", path)))
}

/// Runs the commands of a chapter. Returns how many there are.
#[track_caller]
fn holds(name: &str) -> usize {
    let text = chapter(name);
    let directory = tempfile::tempdir().expect("a temporary directory");
    symlink(root().join("apps"), directory.path().join("apps")).expect("a writable directory");
    let mut commands = 0;
    for block in blocks(&text) {
        if block.language == "c" {
            let file = block.lines.first().and_then(|line| file_name(line));
            let file =
                file.unwrap_or_else(|| panic!("{name}: a block of C names its file: {:?}", block.lines));
            fs::write(directory.path().join(file), block.lines.join("\n") + "\n")
                .expect("a writable directory");
        }
        if block.language != "console" {
            continue;
        }
        let mut lines = block.lines.iter().copied().peekable();
        while let Some(line) = lines.next() {
            let command =
                line.strip_prefix("$ ").unwrap_or_else(|| panic!("{name}: expected a command: {line}"));
            let mut shown = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                shown.push(line);
            }
            let called = run(directory.path(), command);
            let printed: Vec<&str> = called.stdout.lines().collect();
            assert!(
                called.status == 0 && output_matches(&shown, &printed),
                "{name}: `{command}` printed\n{}\n(status {}, standard error {:?})\ninstead of\n{}",
                called.stdout,
                called.status,
                called.stderr,
                shown.join("\n")
            );
            commands += 1;
        }
    }
    commands
}

/// A test for each chapter that shows commands.
macro_rules! chapters {
    ($($test:ident: $file:literal,)*) => {
        const RUN: &[&str] = &[$($file),*];
        $(
            #[test]
            fn $test() {
                if matches!($file, "executables.md" | "openmp.md") && !may_run() {
                    return;
                }
                assert!(holds($file) > 0, "a chapter that runs commands shows some");
            }
        )*
    };
}

chapters! {
    tutorial: "tutorial.md",
    shared: "shared.md",
    executables: "executables.md",
    openmp: "openmp.md",
    choosing: "choosing.md",
    fast: "fast.md",
    machines: "machines.md",
    ports: "ports.md",
    memory: "memory.md",
    errors: "errors.md",
    paper_001: "paper-001.md",
    paper_002: "paper-002.md",
    paper_003: "paper-003.md",
}

/// Checks that the summary contains all chapters, and that each is run here or shows no commands with output.
#[test]
fn every_chapter_is_in_the_summary_and_is_run() {
    let summary = chapter("SUMMARY.md");
    let mut chapters = 0;
    for entry in fs::read_dir(root().join("docs/guide/src")).expect("the guide") {
        let name = entry.expect("an entry").file_name().into_string().expect("a UTF-8 name");
        if name == "SUMMARY.md" || !name.ends_with(".md") {
            continue;
        }
        chapters += 1;
        assert_eq!(summary.matches(&format!("]({name})")).count(), 1, "{name} is in SUMMARY.md once");
        let text = chapter(&name);
        let shows = blocks(&text).iter().any(|block| block.language == "console");
        assert_eq!(shows, RUN.contains(&name.as_str()), "{name} is in the list of chapters that are run");
    }
    assert_eq!(summary.matches(".md)").count(), chapters, "every line of SUMMARY.md has its file");
}

#[test]
fn output_is_compared_as_the_guide_says() {
    for (pattern, line, expected) in [
        ("sum 3", "sum 3", true),
        ("sum 3", "sum 31", false),
        ("sum …", "sum 31", true),
        ("… of 2", "1 of 2", true),
        ("… of 2", "1 of 20", false),
        ("a…b…", "axbyz", true),
    ] {
        assert_eq!(line_matches(pattern, line), expected, "{pattern:?} {line:?}");
    }
    assert!(output_matches(&["...", "last"], &["first", "second", "last"]));
    assert!(output_matches(&["...", "last"], &["last"]));
    assert!(!output_matches(&["first"], &["first", "second"]));
    assert!(!output_matches(&["first", "..."], &[]));
}
