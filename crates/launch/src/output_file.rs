//! Result files that the user names: checked to be writable before any work, and written in one piece at its
//! end.
//!
//! The directory is opened once, and every operation is relative to its descriptor. The file itself is opened
//! without following links and checked through the same descriptor, so that nothing can be exchanged between
//! the check and the use. A regular file is written to a new draft beside it (`O_EXCL|O_NOFOLLOW`, under a
//! random name), which takes the file's name when it is complete. Until then the name keeps the old content.
//! What cannot be replaced is written directly: pipes, terminals, everything below `/dev` and `/proc`, files
//! with several links or another owner, and files in directories that are not writable.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, renameat, unlinkat};
use rustix::io::Errno;

use crate::failure::{Failure, system_words};

/// The number of the user's own links that are followed from one name, the same as the system's
/// (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// The longest wait for a reader of a named pipe.
const READER_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which a reader is looked for.
const READER_LOOK: Duration = Duration::from_millis(10);
/// The number of names that are tried for a draft before giving up.
const DRAFT_NAMES_MAX: usize = 16;

/// Names the content of a file in error messages.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// What is written: "the statistics".
    pub what: &'static str,
    /// The option that names the file, as the user types it.
    pub flag: &'static str,
    /// The exit status if it cannot be written.
    pub status: u8,
}

/// A file that will be written when the results are known.
#[derive(Debug)]
pub struct OutputFile {
    place: Place,
    path: PathBuf,
    purpose: Purpose,
}

/// How a file is written.
#[derive(Debug)]
enum Place {
    /// A draft takes this name in this directory.
    Name { directory: OwnedFd, name: OsString },
    /// The open file is written directly.
    Open(File),
}

impl OutputFile {
    /// Checks that `path` can be written, without changing it.
    pub fn open(path: &Path, purpose: Purpose) -> Result<OutputFile, Failure> {
        let place = Place::find(path).map_err(|error| cannot_write(path, purpose, &error))?;
        Ok(OutputFile { place, path: path.to_owned(), purpose })
    }

    /// Returns true if both are the same file, so that one would replace what the other wrote.
    pub fn is_same_as(&self, other: &OutputFile) -> bool {
        match (&self.place, &other.place) {
            (Place::Name { directory, name }, Place::Name { directory: of_other, name: its_name }) => {
                name == its_name && is_one_file(directory.as_fd(), of_other.as_fd())
            }
            (Place::Open(one), Place::Open(two)) => {
                one.metadata().is_ok_and(|one| one.is_file()) && is_one_file(one.as_fd(), two.as_fd())
            }
            _ => false,
        }
    }

    /// Replaces the file's content by `bytes`.
    pub fn write(self, bytes: &[u8]) -> Result<(), Failure> {
        self.fill(|file| file.write_all(bytes))
    }

    /// Replaces the file's content by what `write` writes. If it fails, a file that can be replaced keeps its
    /// content.
    pub fn fill(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        self.place.fill(write).map_err(|error| cannot_write(&self.path, self.purpose, &error))
    }
}

impl Place {
    fn find(path: &Path) -> io::Result<Place> {
        let (mut beneath, mut path) = (None::<OwnedFd>, path.to_owned());
        for followed in 0..=LINKS_MAX {
            if is_special(&path) {
                return Ok(Place::Open(OpenOptions::new().write(true).open(&path)?));
            }
            let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let start = beneath.as_ref().map_or(CWD, AsFd::as_fd);
            let directory = openat(start, parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
            match open_what_is_there(&directory, name, READER_LIMIT) {
                Ok(file) => return Place::of_file(directory, name, file),
                Err(Errno::NOENT) if followed == 0 => {
                    // Made now and removed at once, so that a typing error is found before an hour of work.
                    Draft::make(&directory, None)?;
                    return Ok(Place::Name { directory, name: name.to_owned() });
                }
                // A link of the user's own stays, and the file that it leads to is replaced.
                Err(Errno::LOOP) => {
                    path = read_own_link(&directory, name)?;
                    beneath = Some(directory);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn of_file(directory: OwnedFd, name: &OsStr, file: File) -> io::Result<Place> {
        let found = file.metadata()?;
        check_owner_in_shared_directory(&directory, &found)?;
        if is_replaceable(&found) && Draft::make(&directory, None).is_ok() {
            return Ok(Place::Name { directory, name: name.to_owned() });
        }
        Ok(Place::Open(file))
    }

    fn fill(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        match self {
            Place::Name { directory, name } => {
                let before = look(&directory, &name).ok().filter(is_replaceable);
                let mut draft = Draft::make(&directory, before.as_ref())?;
                filled(&mut draft.file, write)?;
                draft.take_name(&name)
            }
            Place::Open(mut file) => {
                // Pipes and terminals have no length to cut.
                let _ = file.set_len(0);
                filled(&mut file, write)
            }
        }
    }
}

/// A file that is being written. It is removed when it is dropped.
struct Draft<'a> {
    directory: &'a OwnedFd,
    name: OsString,
    file: File,
}

impl<'a> Draft<'a> {
    /// Creates a file, with the permissions of the one that it will replace, else the usual ones.
    fn make(directory: &'a OwnedFd, replaced: Option<&Metadata>) -> io::Result<Draft<'a>> {
        let mode = if replaced.is_some() { 0o600 } else { 0o666 }; // less the umask
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut made = Err(Errno::EXIST);
        let mut name = OsString::new();
        for _ in 0..DRAFT_NAMES_MAX {
            name = random_name()?;
            made = openat(directory, &name, flags, Mode::from_raw_mode(mode));
            if !matches!(made, Err(Errno::EXIST)) {
                break;
            }
        }
        let draft = Draft { directory, name, file: File::from(made?) };
        if let Some(replaced) = replaced {
            let of_group = fchown(&draft.file, None, Some(replaced.gid())).is_ok();
            // If the group cannot be kept, another group must not get its permissions.
            let mode = replaced.mode() & if of_group { 0o777 } else { 0o707 };
            draft.file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(draft)
    }

    /// Gives the file its name.
    fn take_name(mut self, name: &OsStr) -> io::Result<()> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.name = OsString::new();
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

fn random_name() -> io::Result<OsString> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".hiroba-{:016x}.new", u64::from_ne_bytes(bytes)).into())
}

/// Opens the file under a name for writing, except a link (`ELOOP`). Waits for a reader if it is a pipe
/// without one.
fn open_what_is_there(directory: &OwnedFd, name: &OsStr, limit: Duration) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let give_up = Instant::now() + limit;
    let file = loop {
        match openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NXIO) if Instant::now() < give_up => std::thread::sleep(READER_LOOK),
            other => break other?,
        }
    };
    rustix::io::ioctl_fionbio(&file, false)?;
    Ok(file.into())
}

/// Returns the metadata of the file under a name, without following links.
fn look(directory: &OwnedFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(openat(directory, name, flags, Mode::empty())?).metadata()
}

/// Reads where a link leads. In a directory that all users share, another user's link must not choose which
/// of this user's files is written.
fn read_own_link(directory: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = File::from(openat(directory, name, flags, Mode::empty())?);
    let owner = link.metadata()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is a symbolic link that another user owns",
        ));
    }
    Ok(OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes()).into())
}

/// Refuses another user's file in a directory that all users share: it may have been put there to be taken
/// for this user's, as a link may.
fn check_owner_in_shared_directory(directory: &OwnedFd, file: &Metadata) -> io::Result<()> {
    const STICKY_AND_OF_ALL: u32 = 0o1002;
    let around = rustix::fs::fstat(directory)?;
    let is_shared = around.st_mode & STICKY_AND_OF_ALL == STICKY_AND_OF_ALL;
    let known = [rustix::process::geteuid().as_raw(), around.st_uid];
    if is_shared && !known.contains(&file.uid()) {
        let words = "another user owns it, in a directory that all users share";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    Ok(())
}

fn is_one_file(one: impl AsFd, two: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(two)) {
        (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
        _ => false,
    }
}

fn filled(file: &mut File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    write(&mut buffered)?;
    buffered.flush()
}

/// Returns true for names that mean something else than a file: others may write to the same standard output.
fn is_special(path: &Path) -> bool {
    path.starts_with("/dev") || path.starts_with("/proc")
}

/// Returns true if another file may take this one's name without a visible difference.
fn is_replaceable(file: &Metadata) -> bool {
    file.is_file() && file.nlink() == 1 && file.uid() == rustix::process::geteuid().as_raw()
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

    fn directory_of(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn what_is_put_there_meanwhile_is_neither_followed_nor_written() {
        let place = tempfile::tempdir().unwrap();
        let (victim, file) = (place.path().join("victim"), place.path().join("file"));
        fs::write(&victim, "precious").unwrap();
        fs::write(&file, "before").unwrap();
        let (opened, fresh) = (open(&file), open(&place.path().join("fresh")));
        // Links under both names, after they were looked at.
        fs::remove_file(&file).unwrap();
        symlink(&victim, &file).unwrap();
        symlink(&victim, place.path().join("fresh")).unwrap();
        opened.write(b"now").unwrap();
        fresh.write(b"now").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        for name in ["file", "fresh"] {
            let path = place.path().join(name);
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::read_to_string(&path).unwrap(), "now");
        }
        symlink(&victim, place.path().join("link")).unwrap();
        let refused = open_what_is_there(&directory_of(place.path()), OsStr::new("link"), READER_LIMIT);
        assert_eq!(refused.unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn a_directory_is_the_one_that_was_looked_at() {
        let place = tempfile::tempdir().unwrap();
        let (directory, moved) = (place.path().join("directory"), place.path().join("moved"));
        let trap = place.path().join("trap");
        fs::create_dir(&directory).unwrap();
        fs::create_dir(&trap).unwrap();
        let opened = open(&directory.join("file"));
        fs::rename(&directory, &moved).unwrap();
        symlink(&trap, &directory).unwrap();
        opened.write(b"now").unwrap();
        assert_eq!((names(&moved), names(&trap)), (vec![OsString::from("file")], vec![]));
    }

    #[test]
    fn links_of_others_and_circles_of_links_are_refused() {
        let place = tempfile::tempdir().unwrap();
        symlink("two", place.path().join("one")).unwrap();
        symlink("one", place.path().join("two")).unwrap();
        OutputFile::open(&place.path().join("one"), PURPOSE).unwrap_err();
        if !rustix::process::geteuid().is_root() {
            return eprintln!("links of others are not tested: only root can make them");
        }
        let (file, mine, foreign) =
            (place.path().join("file"), place.path().join("mine"), place.path().join("foreign"));
        fs::write(&file, "before").unwrap();
        symlink("file", &foreign).unwrap();
        std::os::unix::fs::lchown(&foreign, Some(1), None).unwrap();
        symlink("foreign", &mine).unwrap();
        for path in [&foreign, &mine] {
            let failure = OutputFile::open(path, PURPOSE).unwrap_err();
            assert!(failure.sentence.contains("symbolic link that another user owns"), "{failure:?}");
        }
        fs::set_permissions(place.path(), Permissions::from_mode(0o1777)).unwrap();
        std::os::unix::fs::chown(&file, Some(1), None).unwrap();
        let failure = OutputFile::open(&file, PURPOSE).unwrap_err();
        assert!(
            failure.sentence.contains("another user owns it, in a directory that all users share"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_pipe_without_a_reader_is_not_awaited_for_ever() {
        let place = tempfile::tempdir().unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, place.path().join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let opened =
            open_what_is_there(&directory_of(place.path()), OsStr::new("fifo"), Duration::from_millis(30));
        assert_eq!(opened.unwrap_err(), Errno::NXIO);
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
