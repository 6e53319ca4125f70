//! Files that `include` lines of Fortran name. One that has such a clause, or includes one that has, stands
//! in place of its line, between markers as a preprocessor writes them. The compiler itself reads all others.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Markers;
use crate::compiler::schedules::{has_clause, headers};

/// How deep files may include each other. The compiler reports files that include themselves.
const DEPTH_MAX: usize = 20;

/// Returns a source with these files in it. They are searched for in the directory of the source and then in
/// these.
pub(in crate::compiler::schedules) fn expanded(
    text: &[u8],
    source: &OsStr,
    directories: &[PathBuf],
) -> Vec<u8> {
    let beside = Path::new(source).parent().unwrap_or(Path::new("")).to_owned();
    let places: Vec<PathBuf> = [beside].into_iter().chain(directories.iter().cloned()).collect();
    in_place(text, source, &places, 0)
}

fn in_place(text: &[u8], name: &OsStr, places: &[PathBuf], depth: usize) -> Vec<u8> {
    let mut markers = Markers::of(name);
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        markers.pass(&String::from_utf8_lossy(line));
        let named = headers::included_by_fortran(line).filter(|_| depth < DEPTH_MAX);
        let path = named.and_then(|name| places.iter().map(|place| place.join(name)).find(|at| at.is_file()));
        let inner = path.and_then(|path| Some((std::fs::read(&path).ok()?, path)));
        let inner = inner.map(|(text, path)| (in_place(&text, path.as_os_str(), places, depth + 1), path));
        match inner.filter(|(text, _)| has_clause(text)) {
            Some((text, path)) => {
                lines.push(format!("# 1 \"{}\" 1", path.display()).into_bytes());
                lines.push(text.strip_suffix(b"\n").unwrap_or(&text).to_vec());
                lines.push(format!("{} 2", markers.marker()).into_bytes());
            }
            None => lines.push(line.to_vec()),
        }
    }
    lines.join(&b'\n')
}
