//! The tables of bounds and deadlines in `docs/SECURITY.md` agree with the code: each entry names its
//! constant and its test.

use std::fs;
use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A line of one of the tables.
#[derive(Debug)]
struct Row {
    what: String,
    bound: String,
    /// The constant and its file, or the function if the bound is not a constant.
    name: String,
    path: String,
    /// A test and its file.
    test: Option<(String, String)>,
}

fn rows() -> Vec<Row> {
    let document = fs::read_to_string(crates().join("../docs/SECURITY.md")).expect("the document is there");
    let begin = document.find("## Every input has a bound").expect("the tables are there");
    let tables = &document[begin..];
    let end = tables[3..].find("\n## ").expect("something follows them");
    tables[..end].lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let [what, bound, constant, test] = cells[..] else { panic!("expected four cells, got {line}") };
    if what.starts_with("---") || constant == "constant" {
        return None;
    }
    let (name, path) = named(constant).unwrap_or_else(|| panic!("expected `NAME`, `FILE`, got {constant}"));
    let test = (test != "—").then(|| named(test).unwrap_or_else(|| panic!("expected a test, got {test}")));
    Some(Row { what: what.to_owned(), bound: bound.to_owned(), name, path, test })
}

/// Parses "`name`, `file`".
fn named(cell: &str) -> Option<(String, String)> {
    let (name, path) = cell.strip_prefix('`')?.strip_suffix('`')?.split_once("`, `")?;
    Some((name.to_owned(), path.to_owned()))
}

/// Returns the code without its tests.
fn source(path: &str) -> String {
    let text = fs::read_to_string(crates().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

/// Returns the expression of a constant of the code.
fn expression<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let from = source.find(&format!("const {name}: "))?;
    source[from..].split_once(" = ")?.1.split_once(';').map(|(expression, _)| expression)
}

/// Returns its value: a number, or a time in nanoseconds.
fn value(expression: &str) -> u128 {
    let inner = |prefix: &str| expression.strip_prefix(prefix)?.strip_suffix(')');
    for (prefix, ns) in [
        ("Duration::from_secs(", 1_000_000_000),
        ("Duration::from_millis(", 1_000_000),
        ("Duration::from_micros(", 1_000),
    ] {
        if let Some(number) = inner(prefix) {
            return value(number) * ns;
        }
    }
    if let Some(seconds) = expression.strip_prefix("Timespec { tv_sec: ") {
        return value(seconds.strip_suffix(", tv_nsec: 0 }").expect("whole seconds")) * 1_000_000_000;
    }
    if let Some((one, other)) = expression.split_once(" << ") {
        return value(one) << value(other);
    }
    if let Some((one, other)) = expression.split_once(" * ") {
        return value(one) * value(other);
    }
    expression.replace('_', "").parse().unwrap_or_else(|_| panic!("expected a number, got '{expression}'"))
}

/// Parses what the table says: "64 KiB", "500 ms", "65,536".
fn stated(bound: &str) -> u128 {
    let (number, unit) = bound.split_once(' ').unwrap_or((bound, ""));
    let number: u128 = number.replace(',', "").parse().unwrap_or_else(|_| panic!("no number in '{bound}'"));
    let scale: u128 = match unit {
        "" | "bytes" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        other => panic!("'{other}' is no unit, in '{bound}'"),
    };
    number * scale
}

#[test]
fn the_tables_say_what_the_code_does() {
    let rows = rows();
    assert!(rows.len() > 50, "both tables are read: {} rows", rows.len());
    for row in &rows {
        let source = source(&row.path);
        match expression(&source, &row.name) {
            Some(expression) => {
                let in_code = value(expression);
                assert_eq!(stated(&row.bound), in_code, "{row:?}: the code has {expression}");
            }
            // A bound that depends on the program is computed.
            None => {
                assert!(source.contains(&format!("fn {}(", row.name)), "{row:?}: there is no such constant");
                assert!(!row.bound.starts_with(|first: char| first.is_ascii_digit()), "{row:?}");
            }
        }
        if let Some((test, path)) = &row.test {
            let text =
                fs::read_to_string(crates().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(
                text.contains(&format!("#[test]\nfn {test}("))
                    || text.contains(&format!("#[test]\n    fn {test}(")),
                "{}: there is no test {test} in {path}",
                row.what
            );
        }
    }
}

/// Code that measures, and whose constants bound no input.
const NO_INPUTS: [&str; 1] = ["measure/src/bench/"];

#[test]
fn no_bound_and_no_deadline_is_missing_in_the_tables() {
    let rows = rows();
    let mut found = 0;
    for room in ["cli/src", "launch/src", "measure/src", "wire/src", "trace/src"] {
        each_file(&crates().join(room), &mut |path| {
            let path = path.strip_prefix(crates()).expect("it lies there").to_str().expect("a plain name");
            if NO_INPUTS.iter().any(|prefix| path.starts_with(prefix)) {
                return;
            }
            for name in bounds(&source(path)) {
                found += 1;
                assert!(
                    rows.iter().any(|row| (row.name.as_str(), row.path.as_str()) == (&name, path)),
                    "{name} of {path} is a bound or a deadline: give it a line in docs/SECURITY.md, with its test"
                );
            }
        });
    }
    assert!(found > 30, "constants are found: {found}");
}

/// Returns the constants whose names say that they bound bytes or time.
fn bounds(source: &str) -> Vec<String> {
    let constants = source.lines().filter_map(|line| line.trim_start().split_once("const "));
    let names = constants.filter_map(|(before, rest)| {
        let is_item = before.is_empty() || before.starts_with("pub");
        rest.split_once(": ").map(|(name, _)| name).filter(|_| is_item)
    });
    let is_bound = |name: &&str| ["_BYTES_MAX", "_LIMIT", "_GRACE"].iter().any(|end| name.ends_with(end));
    names.filter(is_bound).map(str::to_owned).collect()
}

fn each_file(directory: &Path, look: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(directory).expect("a directory of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            each_file(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&path);
        }
    }
}

#[test]
fn numbers_are_read_as_they_stand() {
    let code = "const A: usize = 64 << 10;\npub(crate) const B: Duration = Duration::from_millis(500);\n";
    assert_eq!(expression(code, "A").map(value), Some(stated("64 KiB")));
    assert_eq!(expression(code, "B").map(value), Some(stated("500 ms")));
    assert_eq!((expression(code, "C"), stated("65,536")), (None, 65_536));
    assert_eq!(
        bounds("const X_LIMIT: u8 = 1;\n    const Y_BYTES_MAX: u8 = 2;\nlet a: *const T;\n"),
        ["X_LIMIT", "Y_BYTES_MAX"]
    );
}
