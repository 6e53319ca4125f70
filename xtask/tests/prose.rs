//! Lines of prose, in documents and in comments of Rust and C, have at most 110 columns. Links of documents
//! have existing targets.
//!
//! `long_lines.txt` lists the number of longer lines that each file still has. A file may have fewer, never
//! more, and a file that is not listed may have none. `HIROBA_RENEW_LONG_LINES=1 cargo test -p xtask --test
//! prose` rewrites the list after lines were wrapped; it refuses to raise a number.
//!
//! Rows of tables, blocks of code, comments of HTML and lines with a URL may be longer, because they cannot
//! be broken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 110;
const LIST: &str = "xtask/tests/long_lines.txt";
/// Directories that are not this project's, or not in the repository.
const LEFT_OUT: &[&str] = &["target", ".git", "third_party", "corpus", "artifacts"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the source tree")
}

/// The language of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Markdown,
    Code,
}

fn kind(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()? {
        "md" => Some(Kind::Markdown),
        "rs" | "c" | "h" | "cpp" | "hpp" => Some(Kind::Code),
        _ => None,
    }
}

/// Adds the files below `directory` that contain prose.
fn collect(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let file_type = entry.file_type().expect("a file type");
        if file_type.is_dir() {
            if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                collect(&path, into);
            }
        } else if file_type.is_file() && kind(&path).is_some() {
            into.push(path);
        }
    }
}

fn is_breakable(text: &str) -> bool {
    !text.trim_start().starts_with(['|', '<']) && !text.contains("://")
}

/// Returns the numbers of the lines of Markdown prose that are too long.
fn long_in_markdown(text: &str) -> Vec<usize> {
    let (mut in_code, mut long) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && is_breakable(line) && line.chars().count() > COLUMNS_MAX {
            long.push(number);
        }
    }
    long
}

/// Returns the numbers of the comment lines that are too long. Comments after code are left to the formatter.
fn long_in_code(text: &str) -> Vec<usize> {
    let (mut in_block, mut in_code, mut long) = (false, false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let opens = trimmed.starts_with("/*");
        let comment = in_block || opens || trimmed.starts_with("//");
        let body = trimmed.trim_start_matches(['/', '!', '*']);
        if body.trim_start().starts_with("```") {
            in_code = comment && !in_code;
        } else if !comment {
            in_code = false;
        }
        if comment && !in_code && is_breakable(body) && line.chars().count() > COLUMNS_MAX {
            long.push(number);
        }
        if in_block || opens {
            in_block = !trimmed.contains("*/");
        }
    }
    long
}

/// Returns the numbers of the lines that are too long, by file.
fn long_lines() -> BTreeMap<String, Vec<usize>> {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 100, "the source tree has files of prose, but {} were found", files.len());
    let mut found = BTreeMap::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a readable file");
        let long = match kind(&path) {
            Some(Kind::Markdown) => long_in_markdown(&text),
            _ => long_in_code(&text),
        };
        if !long.is_empty() {
            let name = path.strip_prefix(&root).expect("a path below the source tree");
            found.insert(name.to_str().expect("a UTF-8 path").to_owned(), long);
        }
    }
    found
}

/// Returns the number of long lines that each file may have.
fn allowed() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(root().join(LIST)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (count, file) =
            line.split_once(' ').unwrap_or_else(|| panic!("{LIST}: expected COUNT FILE: {line}"));
        let count = count.parse().unwrap_or_else(|_| panic!("{LIST}: expected a number: {line}"));
        (file.to_owned(), count)
    };
    lines.map(entry).collect()
}

#[test]
fn no_file_has_more_long_lines_than_before() {
    let (found, allowed) = (long_lines(), allowed());
    let of = |file: &String| allowed.get(file).copied().unwrap_or(0);
    let grown: Vec<String> = found
        .iter()
        .filter(|(file, long)| long.len() > of(file))
        .map(|(file, long)| format!("{file}: {} lines, allowed {}: {long:?}", long.len(), of(file)))
        .collect();
    assert!(grown.is_empty(), "wrap these lines at {COLUMNS_MAX} columns:\n{}", grown.join("\n"));
    if std::env::var_os("HIROBA_RENEW_LONG_LINES").is_some() {
        let mut text = String::from(
            "# The number of lines of prose in a file with more than 110 columns; see prose.rs.\n",
        );
        for (file, long) in &found {
            text += &format!("{} {file}\n", long.len());
        }
        fs::write(root().join(LIST), text).expect("a writable source tree");
    }
}

/// Returns the targets of links in Markdown, without those in code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let after = prose.flat_map(|prose| prose.split("](").skip(1));
    after.filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut files = Vec::new();
    collect(&root(), &mut files);
    let mut lost = Vec::new();
    for path in files.iter().filter(|path| kind(path) == Some(Kind::Markdown)) {
        let text = fs::read_to_string(path).expect("a readable file");
        for link in links(&text).into_iter().filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let target = link.split('#').next().unwrap_or_default();
            if !path.parent().expect("a directory").join(target).exists() {
                lost.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(lost.is_empty(), "these links have no target:\n{}", lost.join("\n"));
    assert_eq!(links("[a](b.md#c) ```\n[d](e)\n``` [f](g \"h\")"), ["b.md#c", "g"]);
}

#[test]
fn long_lines_are_found() {
    let word = "word ".repeat(30);
    assert_eq!(
        long_in_markdown(&format!("{word}\n| {word}|\n```\n{word}\n```\nhttps://x {word}\n{word}")),
        [1, 7]
    );
    assert_eq!(long_in_code(&format!("    /// {word}\nlet x = 1; // {word}\n//! | {word}\n")), [1]);
    assert_eq!(long_in_code(&format!("/* short\n * {word}\n{word} */\n{word}\n")), [2, 3]);
    assert_eq!(long_in_code(&format!("//! ```text\n//! {word}\n//! ```\n//! {word}\n")), [4]);
    assert_eq!(long_in_code(&format!("/* short */\n{word}\n")), [] as [usize; 0]);
}
