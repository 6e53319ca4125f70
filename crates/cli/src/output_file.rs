//! Files that the user names for results: known to be writable before any work, and written in one piece at its end.
//!
//! A regular file gets a draft beside it, made anew (`O_EXCL`, so nothing that lies there is followed or
//! overwritten), which takes the file's name when it is whole. Until then the name keeps what it had. What cannot
//! be replaced is written directly: pipes, terminals, everything below `/dev` and `/proc`, files that have other
//! names or another owner, and files in directories in which nothing can be made.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::failure::{Failure, system_words};

/// What goes into a file, in the words of its errors.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// What is written: "the statistics".
    pub what: &'static str,
    /// The option that names the file, as it is typed.
    pub flag: &'static str,
    /// The exit status when it cannot be written.
    pub status: u8,
}

/// A file to be written when there is something to write.
#[derive(Debug)]
pub struct OutputFile {
    place: Place,
    path: PathBuf,
    purpose: Purpose,
}

/// How a file is written.
#[derive(Debug)]
enum Place {
    /// A draft takes this name: its directory without symbolic links, and its name there.
    Name { directory: PathBuf, name: OsString },
    /// What is open is written itself.
    Open(File),
}

impl OutputFile {
    /// Looks whether `path` can be written; what is there stays as it is.
    pub fn open(path: &Path, purpose: Purpose) -> Result<OutputFile, Failure> {
        let place = Place::find(path).map_err(|error| cannot_write(path, purpose, &error))?;
        Ok(OutputFile { place, path: path.to_owned(), purpose })
    }

    /// Whether both are one file, so that one would replace what the other wrote.
    pub fn is_same_as(&self, other: &OutputFile) -> bool {
        match (&self.place, &other.place) {
            (Place::Name { directory, name }, Place::Name { directory: of_other, name: its_name }) => {
                (directory, name) == (of_other, its_name)
            }
            (Place::Open(one), Place::Open(two)) => match (one.metadata(), two.metadata()) {
                (Ok(one), Ok(two)) => one.is_file() && (one.dev(), one.ino()) == (two.dev(), two.ino()),
                _ => false,
            },
            _ => false,
        }
    }

    /// Makes `bytes` what the file holds.
    pub fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        self.fill(|file| file.write_all(bytes))
    }

    /// Makes what `write` writes what the file holds. When it fails, a file that can be replaced stays as it was.
    pub fn fill(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        self.place.fill(write).map_err(|error| cannot_write(&self.path, self.purpose, &error))
    }
}

impl Place {
    fn find(path: &Path) -> io::Result<Place> {
        let found = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        let is_link = found.as_ref().is_some_and(Metadata::is_symlink);
        if let Some(link) = found.as_ref().filter(|_| is_link) {
            check_owner_of_link(link)?;
        }
        // A link of the user's own is followed: it stays, and the file that it leads to is replaced.
        let path = if is_link && !is_special(path) { path.canonicalize()? } else { path.to_owned() };
        if found.is_some() {
            let file = OpenOptions::new().write(true).open(&path)?;
            if is_special(&path) || !is_replaceable(&file.metadata()?) {
                return Ok(Place::Open(file));
            }
        }
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new(".")).canonicalize()?;
        // Tried now, so that a typing error costs no hour; the draft is gone again at once.
        match draft(&directory, None) {
            Err(_) if found.is_some() => Ok(Place::Open(OpenOptions::new().write(true).open(&path)?)),
            tried => tried.map(|_| Place::Name { directory, name }),
        }
    }

    fn fill(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        match self {
            Place::Name { directory, name } => {
                let path = directory.join(name);
                let before = std::fs::symlink_metadata(&path).ok().filter(is_replaceable);
                let mut draft = draft(&directory, before.as_ref())?;
                filled(draft.as_file_mut(), write)?;
                draft.persist(&path).map_err(|error| error.error)?;
                Ok(())
            }
            Place::Open(mut file) => {
                // Pipes and terminals have no length to cut.
                let _ = file.set_len(0);
                filled(&mut file, write)
            }
        }
    }
}

fn filled(file: &mut File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    write(&mut buffered)?;
    buffered.flush()
}

/// Names that stand for something else than a file: standard output may be one that others write to as well.
fn is_special(path: &Path) -> bool {
    path.starts_with("/dev") || path.starts_with("/proc")
}

/// Whether another file may take this one's name without anybody noticing.
fn is_replaceable(file: &Metadata) -> bool {
    file.is_file() && file.nlink() == 1 && file.uid() == rustix::process::geteuid().as_raw()
}

/// Who may put links into a directory of all users must not choose which file of this user's is overwritten.
fn check_owner_of_link(link: &Metadata) -> io::Result<()> {
    if link.uid() == 0 || link.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is a symbolic link of another user's"))
}

/// A new file in `directory`, with the permissions of the one that it shall replace, else the usual ones.
fn draft(directory: &Path, replaced: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let mode = if replaced.is_some() { 0o600 } else { 0o666 };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hiroba-").suffix(".new").permissions(Permissions::from_mode(mode)); // less the umask
    let draft = builder.tempfile_in(directory)?;
    if let Some(replaced) = replaced {
        let of_group = fchown(draft.as_file(), None, Some(replaced.gid())).is_ok();
        // A group that cannot be kept is not another one that may read it.
        let mode = replaced.mode() & if of_group { 0o777 } else { 0o707 };
        draft.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(draft)
}

fn cannot_write(path: &Path, purpose: Purpose, error: &io::Error) -> Failure {
    let Purpose { what, flag, status } = purpose;
    let (path, why) = (path.display(), system_words(error));
    let sentence = format!("cannot write {what} to '{path}': {why}; name another file after {flag}");
    Failure { status, sentence }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::failure::STATUS_BAD_INPUT;

    const PURPOSE: Purpose = Purpose { what: "the figures", flag: "--json", status: STATUS_BAD_INPUT };

    fn open(path: &Path) -> OutputFile {
        OutputFile::open(path, PURPOSE).unwrap()
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_name_keeps_what_it_had_until_the_new_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        fs::write(&old, "before").unwrap();
        drop((open(&new), open(&old)));
        assert_eq!(names(directory.path()), ["old"], "nothing is left of what was only opened");
        let failed = open(&old).fill(|file| {
            file.write_all(b"half")?;
            assert_eq!(fs::read_to_string(&old)?, "before");
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().status, STATUS_BAD_INPUT);
        assert_eq!(fs::read_to_string(&old).unwrap(), "before");
        open(&old).write(b"now").unwrap();
        open(&new).write(b"now").unwrap();
        assert_eq!(names(directory.path()), ["new", "old"], "no draft is left");
        for path in [&old, &new] {
            assert_eq!(fs::read_to_string(path).unwrap(), "now");
        }
    }

    #[test]
    fn a_file_keeps_its_permissions_and_its_other_names() {
        let directory = tempfile::tempdir().unwrap();
        let (file, other) = (directory.path().join("file"), directory.path().join("other"));
        fs::write(&file, "before").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        open(&file).write(b"now").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
        fs::hard_link(&file, &other).unwrap();
        open(&file).write(b"then").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "then");
    }

    #[test]
    fn a_link_stays_and_leads_to_the_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "before").unwrap();
        symlink("file", &link).unwrap();
        assert!(open(&file).is_same_as(&open(&link)), "both names are one file");
        assert!(!open(&file).is_same_as(&open(&directory.path().join("new"))));
        open(&link).write(b"now").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "now");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        symlink("nowhere", directory.path().join("loose")).unwrap();
        OutputFile::open(&directory.path().join("loose"), PURPOSE).unwrap_err();
    }

    #[test]
    fn what_cannot_be_replaced_is_written_itself() {
        open(Path::new("/dev/null")).write(b"words").unwrap();
        open(Path::new("/dev/full")).write(b"words").unwrap_err();
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (reading, from) = (fifo.clone(), std::sync::mpsc::channel());
        let reader = std::thread::spawn(move || from.0.send(fs::read_to_string(reading)));
        open(&fifo).write(b"words").unwrap();
        assert_eq!(from.1.recv().unwrap().unwrap(), "words");
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        for (path, why) in [("/no/such/a.html", "no such file or directory"), ("/", "is a directory")] {
            let failure = OutputFile::open(Path::new(path), PURPOSE).unwrap_err();
            assert_eq!(failure.status, STATUS_BAD_INPUT);
            let end = format!("'{path}': {why}; name another file after --json");
            assert!(failure.sentence.ends_with(&end), "{failure:?}");
        }
    }
}
