//! The headers that a source includes by quotes, in Fortran also by its own `include`, and those that they
//! include: any of them may have a clause that is to be rewritten.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directories that the compiler searches for such headers behind the directory of the including file.
pub(super) fn directories(options: &[&OsString]) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let text = option.as_bytes();
        let Some(begun) = ["-I", "-iquote"].iter().find_map(|name| text.strip_prefix(name.as_bytes())) else {
            continue;
        };
        let directory = if begun.is_empty() { options.next().map(|word| word.as_os_str()) } else { None };
        directories.push(PathBuf::from(directory.unwrap_or(OsStr::from_bytes(begun))));
    }
    directories
}

/// The texts of a source and of these headers, each once.
pub(super) fn texts(
    source: &OsStr,
    directories: &[PathBuf],
    is_fortran: bool,
) -> impl Iterator<Item = Vec<u8>> {
    let mut seen = HashSet::new();
    let mut waiting = vec![PathBuf::from(source)];
    std::iter::from_fn(move || {
        loop {
            let path = waiting.pop()?;
            if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                continue;
            }
            let Ok(text) = std::fs::read(&path) else { continue };
            for name in text.split(|byte| *byte == b'\n').filter_map(|line| included(line, is_fortran)) {
                let beside = path.parent().unwrap_or(Path::new("")).join(name);
                let places = directories.iter().map(|directory| directory.join(name));
                waiting.extend([beside].into_iter().chain(places).find(|path| path.is_file()));
            }
            return Some(text);
        }
    })
}

/// The name that a line includes by quotes.
fn included(line: &[u8], is_fortran: bool) -> Option<&OsStr> {
    let by_preprocessor = || {
        let directive = line.trim_ascii_start().strip_prefix(b"#")?.trim_ascii_start();
        let quoted = directive.strip_prefix(b"include")?.trim_ascii_start().strip_prefix(b"\"")?;
        let length = quoted.iter().position(|byte| *byte == b'"')?;
        Some(OsStr::from_bytes(&quoted[..length]))
    };
    by_preprocessor().or_else(|| included_by_fortran(line).filter(|_| is_fortran))
}

/// The name in a line of Fortran that is an `include` line, in either form.
pub(super) fn included_by_fortran(line: &[u8]) -> Option<&OsStr> {
    let (word, rest) = line.trim_ascii_start().split_at_checked("include".len())?;
    let rest = rest.trim_ascii_start();
    let quote = *rest.first().filter(|byte| matches!(byte, b'\'' | b'"'))?;
    let length = rest[1..].iter().position(|byte| *byte == quote)?;
    let behind = rest[length + 2..].trim_ascii_start();
    let is_alone = behind.is_empty() || behind.starts_with(b"!");
    (word.eq_ignore_ascii_case(b"include") && is_alone).then(|| OsStr::from_bytes(&rest[1..=length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_beside_their_includer_and_by_options() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a writable directory");
            std::fs::write(&path, text).expect("a writable directory");
            path
        };
        let source = file("src/a.c", "#include <x.h>\n # include \"b.h\"\n#include \"nowhere.h\"\n");
        file("src/b.h", "#include \"in/c.h\"\n#include \"b.h\"\n");
        file("src/in/c.h", "#include \"d.h\"\n");
        file("more/d.h", "d\n");
        file("more/x.h", "x\n");
        let more = OsString::from(directory.path().join("more"));
        let option = OsString::from("-iquote");
        let directories = directories(&[&option, &more]);
        let texts: Vec<Vec<u8>> = texts(source.as_os_str(), &directories, false).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert_eq!(texts[3], b"d\n");
    }

    #[test]
    fn fortran_has_include_lines_of_its_own() {
        for (line, name) in [
            ("      include 'a.inc'", Some("a.inc")),
            (" INCLUDE \"b c\" ! all\r", Some("b c")),
            ("include'd'", Some("d")),
            ("include = 'd'", None),
            ("include 'd' // 'e'", None),
            ("c     include 'd'", None),
            ("include 'd", None),
        ] {
            assert_eq!(included(line.as_bytes(), true), name.map(OsStr::new), "{line}");
            assert_eq!(included(line.as_bytes(), false), None, "{line}");
        }
        assert_eq!(included(b"#include \"x\"", true), Some(OsStr::new("x")));
    }
}
