//! The progress of the command: a bar on a terminal, else occasional lines, both on standard error.

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use hiroba_base::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use hiroba_launch::failure::say;
use hiroba_launch::quantities::duration;

/// The number of lines of progress if standard error is no terminal. A line is also written before a run
/// after a long silence.
const LINES: usize = 10;
const PAUSE: Duration = Duration::from_secs(10);

/// The number of remarks that are remembered; further ones are always printed.
const REMARKS_MAX: usize = 1000;

/// Reports the progress.
pub struct Watch {
    bar: Option<ProgressBar>,
    /// Lines written so far.
    lines: usize,
    /// When the last of them was written.
    spoken: Instant,
    /// Remarks of runs that have been printed.
    remarks: HashSet<String>,
}

impl Watch {
    /// Examines what standard error is.
    pub fn begin() -> Watch {
        let can_draw = std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        let bar = (can_draw && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_msg} {pos:>3} of {len}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Watch { bar, lines: 0, spoken: Instant::now(), remarks: HashSet::new() }
    }

    /// Says what is being done if its duration is unknown.
    pub fn say(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(what.to_owned());
                bar.tick();
            }
            None => say(what),
        }
    }

    /// Prints a line of a command's standard error, with terminal escape sequences made visible.
    pub fn pass_on(&mut self, line: &str) {
        if self.is_known(line) {
            return;
        }
        // A closed standard error is no error.
        let write = || drop(writeln!(std::io::stderr(), "{}", shown(line)));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Returns true if a remark was printed before: Hiroba repeats it for every similar run, and once is
    /// enough.
    fn is_known(&mut self, line: &str) -> bool {
        if !line.starts_with("hiroba: ") {
            return false;
        }
        self.remarks.contains(line)
            || (self.remarks.len() < REMARKS_MAX && !self.remarks.insert(line.to_owned()))
    }

    /// Shows that `what` comes next, after `done` of `all` runs.
    pub fn show(&mut self, done: usize, all: usize, left: Option<Duration>, what: &str) {
        let left = left
            .map_or(String::new(), |left| format!(", about {} left", duration(left.as_secs_f64().ceil())));
        match &self.bar {
            Some(bar) => {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                bar.set_message(format!("{what}{left}"));
                bar.tick();
            }
            None if done * LINES >= self.lines * all || self.spoken.elapsed() >= PAUSE => {
                self.lines = done * LINES / all.max(1) + 1;
                self.spoken = Instant::now();
                say(&format!("run {} of {all}: {what}{left}", done + 1));
            }
            None => {}
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Escapes the line for the terminal. Compilers align lines of a program's text by tabs.
fn shown(line: &str) -> String {
    line.split('\t').map(printable).collect::<Vec<_>>().join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_commands_are_escaped_and_remarks_are_said_once() {
        assert_eq!(shown("a.c:1:\t\x1b[31mx\u{9b}2J\r"), "a.c:1:\t\\u{1b}[31mx\\u{9b}2J\\r");
        let mut watch = Watch { bar: None, lines: 0, spoken: Instant::now(), remarks: HashSet::new() };
        let known = |watch: &mut Watch, line: &str| watch.is_known(line);
        assert!(!known(&mut watch, "warning") && !known(&mut watch, "warning"));
        assert!(!known(&mut watch, "hiroba: a") && known(&mut watch, "hiroba: a"));
        (0..2 * REMARKS_MAX).for_each(|number| _ = known(&mut watch, &format!("hiroba: {number}")));
        assert_eq!(watch.remarks.len(), REMARKS_MAX);
    }
}
