//! `hiroba reproduce`: the shape of its output, what it refuses, and that it leaves nothing behind.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::terminal::{in_terminal, screen};
use crate::support::{call, eventually, finish, hiroba, mark, processes_marked, send, shell, start};

/// Returns the command with all temporary files in a directory of the test.
fn reproduce(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = hiroba(&[&["reproduce"], arguments].concat());
    command.env("TMPDIR", directory).env("TERM", "dumb");
    command
}

/// Returns a text without its line breaks.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_empty(directory: &Path) -> bool {
    directory.read_dir().expect("a directory").next().is_none()
}

/// Runs the least of a paper, and returns the tables.
fn tables(paper: &str) -> Vec<Value> {
    let (temporary, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (json, html) = (results.path().join("a.json"), results.path().join("a.html"));
    let files = ["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let called = finish(start(&mut reproduce(temporary.path(), &[&[paper, "--tiny"], &files[..]].concat())));
    assert_eq!(called.status, 0, "{called:?}");
    assert!(is_empty(temporary.path()));
    let is_run = paper != "002";
    assert_eq!(
        called.stderr.contains("hiroba: run 1 of "),
        is_run,
        "it tells how far it is: {}",
        called.stderr
    );
    let (first, plots) = match paper {
        "000" => ("hiroba: datagrams there and back\n", 4),
        "001" => ("hiroba: compiling functions\n", 4),
        "002" => ("hiroba: the model: normal and shared\n", 2),
        _ => ("hiroba: compiling messages\n", 2),
    };
    assert!(called.stderr.starts_with(first), "and what it does, at once: {}", called.stderr);
    let wide = called.stdout.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "{}", called.stdout);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["paper"], paper);
    let tables = report["tables"].as_array().expect("tables").clone();
    let page = std::fs::read_to_string(html).unwrap();
    for table in &tables {
        let id = table["id"].as_str().expect("an id").to_lowercase();
        let id = id.as_str();
        let title = table["title"].as_str().expect("a title");
        assert!(called.stdout.to_lowercase().contains(&format!("\n{id}: ")), "{id}\n{}", called.stdout);
        assert!(page.to_lowercase().contains(&format!("<h2>{id}: ")), "{id}");
        assert!(in_one_line(&called.stdout).contains(title) && page.contains(title), "{title}");
        check_rows(id, table["rows"].as_array().expect("rows"));
    }
    assert!(page.matches("<svg ").count() >= plots, "it has plots");
    for fetched in ["src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(fetched), "the page needs something else: {fetched}");
    }
    tables
}

fn check_rows(id: &str, rows: &[Value]) {
    assert!(!rows.is_empty(), "{id}");
    for row in rows {
        let how = row["how"].as_str().unwrap_or_default();
        assert!(["wall", "cpu", "predicted", "not measurable"].contains(&how), "{id}: {row}");
        let share = row["core_share"].as_f64();
        assert!(share.is_none_or(|share| share > 0.0 && share <= 1.0), "{id}: {row}");
        assert_eq!(row["measured"].is_null(), how == "not measurable", "{id}: {row}");
        assert!(row["measured"].is_null() || row["measured"].is_number(), "{id}: {row}");
        assert!(row["label"].as_str().is_some_and(|label| !label.is_empty()), "{id}: {row}");
        assert!(row.as_object().is_some_and(|row| row.contains_key("paper")), "{id}: {row}");
    }
    let labels: std::collections::HashSet<&str> =
        rows.iter().filter_map(|row| row["label"].as_str()).collect();
    assert_eq!(labels.len(), rows.len(), "{id}: each figure has a name of its own");
}

fn rows_of<'a>(tables: &'a [Value], id: &str) -> &'a [Value] {
    let table = tables.iter().find(|table| table["id"] == id).unwrap_or_else(|| panic!("no {id}"));
    table["rows"].as_array().expect("rows")
}

#[test]
fn four_protocols_stand_beside_the_paper() {
    let tables = tables("000");
    for id in ["table 5", "figure 5", "figure 7", "figure 8", "figure 9", "figure 10", "table 8"] {
        rows_of(&tables, id);
    }
    let speed_ups = rows_of(&tables, "table 5");
    assert_eq!(speed_ups.len(), 4 * 4 * 2);
    let fft = speed_ups.iter().find(|row| row["label"] == "FFT, 2 nodes, LRC").expect("a row");
    assert_eq!(fft["paper"], 0.14);
    assert!(
        speed_ups.iter().all(|row| row["measured"].as_f64().is_some_and(|times| times > 0.0)),
        "{speed_ups:?}"
    );
    // 4096 points are 64 rows of 1 KiB: 32 rows of another node are 4 pages of 8 KiB, and 48 rows of three
    // others are 6.
    let faults: Vec<_> =
        rows_of(&tables, "read faults a transpose").iter().map(|row| row["measured"].as_f64()).collect();
    assert_eq!(faults[..2], [Some(4.0), Some(6.0)], "row by row, on 2 and 4 nodes");
}

#[test]
fn two_fabrics_stand_beside_the_paper() {
    let tables = tables("001");
    for id in ["table 2", "figure 1", "figure 2", "figure 3", "figure 5", "figure 6"] {
        rows_of(&tables, id);
    }
    let beside: Vec<&Value> =
        rows_of(&tables, "table 2").iter().filter(|row| row["paper"].is_number()).collect();
    assert_eq!(beside.len(), 8, "four functions, two fabrics");
    assert!(beside.iter().all(|row| row["measured"].as_f64().is_some_and(|ms| ms > 0.0)), "{beside:?}");
}

#[test]
fn a_modelled_machine_stands_beside_the_paper() {
    let tables = tables("002");
    let times = rows_of(&tables, "figure 1");
    // Normal, shared, and two policies with four page sizes; two parts of each and their sum.
    assert_eq!(times.len(), (2 + 2 * 4) * 3);
    assert_eq!(rows_of(&tables, "figure 2").len(), 4 * 4);
    let best = &rows_of(&tables, "text, figure 1")[0];
    assert_eq!(best["paper"], 1.37);
    let all = tables.iter().flat_map(|table| table["rows"].as_array().expect("rows"));
    assert!(all.clone().count() > 50 && all.into_iter().all(|row| row["how"] == "predicted"));
}

#[test]
fn messages_by_size_and_by_pages_stand_beside_the_paper() {
    let tables = tables("004");
    for (id, rows) in [("figure 5", 9 * 4), ("figure 7", 32 * 3)] {
        let figures = rows_of(&tables, id);
        assert_eq!(figures.len(), rows, "{id}");
        assert!(
            figures.iter().all(|row| row["measured"].as_f64().is_some_and(|figure| figure > 0.0)),
            "{figures:?}"
        );
    }
    let stages = rows_of(&tables, "figure 6");
    assert_eq!(stages.len(), 3 * (8 + 3));
    for fabric in ["shm", "udp", "tcp"] {
        let of = |column: &str| {
            let row = stages.iter().find(|row| row["line"] == fabric && row["column"] == column);
            row.and_then(|row| row["measured"].as_f64()).unwrap_or_else(|| panic!("{fabric}: {column}"))
        };
        let line = stages.iter().filter(|row| row["line"] == fabric);
        let parts: f64 = line.take(8 + 1).filter_map(|row| row["measured"].as_f64()).sum();
        assert!((parts - of("whole")).abs() < 1e-6 * of("whole"), "with time stamps: {stages:?}");
        assert!(of("sender's engine") > 0.0 && of("unstamped") > 0.0, "{stages:?}");
        assert_eq!(of("seal, open") > 0.0, fabric != "shm", "{stages:?}");
    }
    let shares = rows_of(&tables, "figure 6, shares");
    let notices = shares.iter().filter(|row| row["line"] == "Message Accepted");
    assert!(notices.clone().count() == 3 && notices.clone().all(|row| row["measured"].is_null()));
    let percents: f64 = shares.iter().filter_map(|row| row["measured"].as_f64()).sum();
    assert!((percents - 300.0).abs() < 1e-6, "{shares:?}");
}

#[test]
fn a_terminal_shows_remarks_once_and_of_the_bar_nothing_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = shell("exec $H reproduce 000 --tiny 2>/dev/tty");
    command.env("TMPDIR", directory.path()).env("TERM", "xterm");
    let (mut user, child) = in_terminal(&mut command);
    drop(command); // the terminal's other side is the command's alone
    let looking = std::thread::spawn(move || {
        let mut seen = Vec::new();
        // The end is an error, since the other side is gone.
        let _ = user.read_to_end(&mut seen);
        seen
    });
    let called = finish(child);
    assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{called:?}");
    let seen = looking.join().expect("it reads");
    assert!(String::from_utf8_lossy(&seen).contains("fft -n "), "there was a bar");
    let left: Vec<String> = screen(&seen).into_iter().filter(|line| !line.is_empty()).collect();
    let remark =
        "hiroba: node 0: aurc cannot map pages onto their homes over udp: updates leave in the background";
    assert_eq!(left.iter().filter(|line| *line == remark).count(), 1, "{left:?}");
    assert!(left.iter().all(|line| line.starts_with("hiroba: ")), "traces of the bar: {left:?}");
}

#[test]
fn what_makes_no_sense_is_refused_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, phrase) in [
        (&["005"][..], "there is no paper '005'; use 000, 001, 002 or 004"),
        (&[], "expected a paper"),
        (&["000", "--json", "/no/such/directory/a.json"], "name another file after --json"),
        (&["001", "--html", "/no/such/directory/a.html"], "name another file after --html"),
        (&["001", "--html", "/"], "is a directory"),
    ] {
        // Work would begin by looking for the compiler.
        let called = finish(start(reproduce(directory.path(), arguments).env("CC", "no-such-compiler")));
        called.says(2, phrase);
    }
    let file = directory.path().join("both");
    let both = file.to_str().unwrap();
    call(&["reproduce", "000", "--json", both, "--html", both]).says(2, "expected two files");
    assert!(!file.exists());
    call(&["reproduce", "003"]).says(125, "paper 003 is not available yet; use 000, 001, 002 or 004");
}

#[test]
fn without_a_compiler_nothing_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("a.json");
    let mut command = reproduce(directory.path(), &["001", "--tiny", "--json", json.to_str().unwrap()]);
    let called = finish(start(command.env("CC", "no-such-compiler")));
    assert_eq!(called.status, 127, "{called:?}");
    assert!(called.stderr.contains("'no-such-compiler' was not found; install"), "{called:?}");
    assert!(is_empty(directory.path()));
}

#[test]
fn an_interruption_ends_everything() {
    let (directory, mark) = (tempfile::tempdir().unwrap(), mark("reproduce"));
    let json = directory.path().join("a.json");
    // The paper's sizes: it does not end by itself before it is told to.
    let mut command = reproduce(directory.path(), &["000", "--json", json.to_str().unwrap()]);
    let child = start(command.env("HIROBA_TEST_MARK", &mark));
    // The command, and at least one compiler.
    eventually("it works", || processes_marked(&mark) >= 2);
    send(&child, libc::SIGTERM);
    let called = finish(child);
    assert_eq!(called.status, 128 + libc::SIGTERM, "{called:?}");
    assert_eq!(processes_marked(&mark), 0);
    assert!(is_empty(directory.path()), "{called:?}");
}
