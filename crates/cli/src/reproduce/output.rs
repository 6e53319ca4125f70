//! A file to be written at the end, that is known to be writable before anything is measured.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, STATUS_BAD_INPUT, system_words};

/// The file. One that this command has made is removed again unless it is written.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    flag: &'static str,
    is_new: bool,
}

impl OutputFile {
    /// Opens, and keeps what the file holds.
    pub fn open(flag: &'static str, path: &Path) -> Result<OutputFile, Failure> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let (file, is_new) = match created {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            other => (other, true),
        };
        match file {
            Ok(file) => Ok(OutputFile { file, path: path.to_owned(), flag, is_new }),
            Err(error) => Err(cannot_write(flag, path, &error)),
        }
    }

    /// Whether both are one file.
    pub fn is_same_as(&self, other: &OutputFile) -> bool {
        match (self.file.metadata(), other.file.metadata()) {
            (Ok(one), Ok(two)) => one.is_file() && (one.dev(), one.ino()) == (two.dev(), two.ino()),
            _ => false,
        }
    }

    /// Replaces what the file holds.
    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        // Pipes and terminals have no length to cut.
        let _ = self.file.set_len(0);
        self.file.write_all(text.as_bytes()).map_err(|error| cannot_write(self.flag, &self.path, &error))?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(flag: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure {
        status: STATUS_BAD_INPUT,
        sentence: format!(
            "cannot write to '{}': {}; name another file after {flag}",
            path.display(),
            system_words(error)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        std::fs::write(&old, "before").unwrap();
        let (one, two) =
            (OutputFile::open("--json", &new).unwrap(), OutputFile::open("--html", &old).unwrap());
        assert!(!one.is_same_as(&two) && one.is_same_as(&OutputFile::open("--html", &new).unwrap()));
        drop((one, two));
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "before");
        OutputFile::open("--json", &old).unwrap().write("now").unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "now");
        OutputFile::open("--json", &new).unwrap().write("now").unwrap();
        assert!(new.exists());
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        let failure = OutputFile::open("--html", Path::new("/no/such/directory/a.html")).unwrap_err();
        assert_eq!(failure.status, STATUS_BAD_INPUT);
        assert!(
            failure.sentence.contains("no such file or directory; name another file after --html"),
            "{failure:?}"
        );
    }
}
