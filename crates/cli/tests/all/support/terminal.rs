//! Terminals, commands on them, and what they show. Processes that other tests start meanwhile do not inherit
//! their descriptors.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Opens a new terminal of 80 columns: the user's side and the program's.
pub fn terminal() -> (File, OwnedFd) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&user).expect("it is ours");
    unlockpt(&user).expect("it is ours");
    let name = ptsname(&user, Vec::new()).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let program = open(name, flags, Mode::empty()).expect("its other side");
    let size = Winsize { ws_row: 25, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&user, size).expect("it is ours");
    (File::from(user), program)
}

/// Returns the user's side of a new terminal, and `command` started as its foreground process group; only its
/// input is the terminal.
pub fn in_terminal(command: &mut Command) -> (File, Child) {
    let (user, program) = terminal();
    command.stdin(program).stdout(Stdio::piped()).stderr(Stdio::piped());
    let lead = || {
        // SAFETY: a system call without memory.
        unsafe { libc::setsid() };
        // SAFETY: makes standard input the new session's terminal; the argument is a plain number.
        unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
        Ok(())
    };
    // SAFETY: system calls only, which are allowed between fork and exec.
    unsafe { command.pre_exec(lead) };
    (user, command.spawn().expect("the command starts"))
}

/// Returns the lines that a terminal shows after these bytes, as far as the progress line needs.
pub fn screen(bytes: &[u8]) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0, 0);
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut rest = text.as_str();
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                lines.resize(lines.len().max(row + 1), Vec::new());
            }
            '\x1b' => {
                let end = rest.find(|c: char| c.is_ascii_alphabetic()).expect("a whole sequence");
                let number: usize = rest[1..end].parse().unwrap_or(0);
                match &rest[end..=end] {
                    "A" => row -= number.max(1),
                    "B" => row += number.max(1),
                    "K" if number == 2 => lines[row].clear(),
                    "K" => lines[row].truncate(column),
                    other => panic!("unknown sequence {other:?} in {text:?}"),
                }
                rest = &rest[end + 1..];
            }
            shown => {
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = shown;
                column += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}
