//! The headers that a source of C or C++ includes by quotes, and those that they include: any of them may
//! have a clause that is to be rewritten.

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
pub(super) fn texts(source: &OsStr, directories: &[PathBuf]) -> impl Iterator<Item = Vec<u8>> {
    let mut seen = HashSet::new();
    let mut waiting = vec![PathBuf::from(source)];
    std::iter::from_fn(move || {
        loop {
            let path = waiting.pop()?;
            if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                continue;
            }
            let Ok(text) = std::fs::read(&path) else { continue };
            for name in included(&text) {
                let beside = path.parent().unwrap_or(Path::new("")).join(name);
                let places = directories.iter().map(|directory| directory.join(name));
                waiting.extend([beside].into_iter().chain(places).find(|path| path.is_file()));
            }
            return Some(text);
        }
    })
}

/// The names that a text includes by quotes.
fn included(text: &[u8]) -> impl Iterator<Item = &OsStr> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let directive = line.trim_ascii_start().strip_prefix(b"#")?.trim_ascii_start();
        let quoted = directive.strip_prefix(b"include")?.trim_ascii_start().strip_prefix(b"\"")?;
        let length = quoted.iter().position(|byte| *byte == b'"')?;
        Some(OsStr::from_bytes(&quoted[..length]))
    })
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
        let texts: Vec<Vec<u8>> = texts(source.as_os_str(), &directories).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert_eq!(texts[3], b"d\n");
    }
}
