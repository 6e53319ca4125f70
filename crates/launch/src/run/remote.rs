//! Another host: the command that reaches it (ssh, or the one that the user named), and the agent behind it.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use hiroba_wire::agent::{FROM_AGENT_BYTES_MAX, FromAgent, Greeting, ToAgent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, waitpid};

use super::channel::{Channel, Closed};
use super::hosts::PlacedHost;
use super::lacks::no_descriptor;
use super::signals::{self, Inherited};
use super::status::End;
use crate::failure::{Failure, system_words};

/// The path of the `hiroba` command on the other hosts, if it differs from this one's.
pub const AGENT_VARIABLE: &str = "HIROBA_AGENT";
/// The hidden command that runs an agent.
pub const AGENT_COMMAND: &str = "agent";

/// Options with which ssh never asks, and notices when a host cannot be reached.
const SSH: [&str; 8] = [
    "ssh",
    "-x",
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oLogLevel=ERROR",
];
/// What a login shell may print before the agent's greeting, in bytes.
const CHATTER_BYTES_MAX: usize = 64 << 10;
/// The last output of a command that is kept for messages, in bytes.
const WORDS_BYTES_MAX: usize = 4 << 10;
/// How long a command may take to end once its channel is closed, before the loss is reported without its
/// exit status.
const EXIT_LIMIT: Duration = Duration::from_millis(500);

/// The command that starts programs on other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    words: Vec<OsString>,
    /// Whether a shell on the other side parses the command again, so that it must be quoted.
    is_ssh: bool,
}

impl Launcher {
    /// Parses the command that the user named; the default is ssh.
    pub fn parse(given: Option<&str>) -> Result<Launcher, Failure> {
        let Some(given) = given else {
            return Ok(Launcher { words: SSH.map(OsString::from).to_vec(), is_ssh: true });
        };
        let words = shlex::split(given).filter(|words| !words.is_empty()).ok_or_else(|| {
            Failure::new(format!(
                "expected a command after --launcher, such as 'ip netns exec', got '{given}'; are its quotes closed?"
            ))
        })?;
        Ok(Launcher { words: words.into_iter().map(OsString::from).collect(), is_ssh: false })
    }

    /// Formats the command for messages: "ssh", "'ip netns exec'".
    fn name(&self) -> String {
        if self.is_ssh {
            return "ssh".to_owned();
        }
        format!("'{}'", self.words.join(OsStr::new(" ")).to_string_lossy())
    }

    fn command(&self, host: &str) -> Result<Command, Failure> {
        let agent = match std::env::var_os(AGENT_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => path,
            None => std::env::current_exe().map(OsString::from).map_err(|error| {
                Failure::new(format!(
                    "cannot tell where hiroba is installed: {}; name its path on the other hosts in ${AGENT_VARIABLE}",
                    system_words(&error)
                ))
            })?,
        };
        let agent = if self.is_ssh { quoted(&agent)? } else { agent };
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(host).arg(agent).arg(AGENT_COMMAND);
        Ok(command)
    }
}

/// Quotes a word for the shell on the other side.
fn quoted(word: &OsStr) -> Result<OsString, Failure> {
    let text = word.to_str().and_then(|text| shlex::try_quote(text).ok());
    text.map(|text| OsString::from(text.into_owned())).ok_or_else(|| {
        Failure::new(format!(
            "expected a path in UTF-8 for hiroba on the other hosts, got '{}'; name another one in ${AGENT_VARIABLE}",
            word.to_string_lossy()
        ))
    })
}

/// The agent's answers before the job begins.
#[derive(Debug, Default)]
pub struct Answers {
    /// Its greeting, of our own version and build.
    pub greeting: Option<Greeting>,
    /// The addresses of its nodes' sockets.
    pub addresses: Option<Vec<SocketAddr>>,
    /// Its nodes' processes, which wait at the gate.
    pub pids: Option<Vec<i32>>,
}

/// A host with an agent.
#[derive(Debug)]
pub struct RemoteHost {
    /// Its name in the list of hosts.
    pub name: String,
    /// The number of its first node.
    pub first: usize,
    /// How many nodes it has.
    pub nodes: usize,
    /// `None` once the connection is gone.
    pub channel: Option<Channel>,
    /// Its answers so far.
    pub answers: Answers,
    /// The number of successive pings without an answer.
    pub silent_looks: u32,
    /// How much of its nodes' output has been taken since the agent was last told.
    pub taken_bytes: u32,
    /// What was known of waiting nodes ([`WaitWatch::round`](super::waiting::WaitWatch::round)) when the
    /// latest ping was sent.
    pub asked_in_round: (u64, u64),
    command: String,
    pid: Pid,
    exit: Option<WaitStatus>,
    errors: Option<OwnedFd>,
    words: Vec<u8>,
    /// Bytes of lines before the agent's greeting.
    chatter_bytes: usize,
}

impl RemoteHost {
    /// Starts the command that reaches the host.
    pub fn reach(
        launcher: &Launcher,
        host: &PlacedHost,
        inherited: &Inherited,
    ) -> Result<RemoteHost, Failure> {
        let name = host.host.name.clone();
        let lacking = |errno: rustix::io::Errno| no_descriptor(&errno.into());
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(lacking)?;
        let mut command = launcher.command(&name)?;
        command
            .stdin(theirs.try_clone().map_err(|error| no_descriptor(&error))?)
            .stdout(theirs)
            .stderr(Stdio::piped());
        let inherited = *inherited;
        let prepare = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // Detached from the terminal: the command must neither ask there nor die of the Ctrl-C that the
            // job handles.
            rustix::process::setsid()?;
            signals::restore(&inherited);
            Ok(())
        };
        // SAFETY: system calls only, which are allowed between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(|error| {
            Failure::new(format!(
                "cannot reach host {name}: {} cannot be executed: {}",
                launcher.name(),
                system_words(&error)
            ))
        })?;
        drop(command);
        let pid = Pid::from_raw(child.id() as i32).expect("a process has a positive pid");
        let errors = child.stderr.take().map(OwnedFd::from);
        if let Some(errors) = &errors {
            rustix::io::ioctl_fionbio(errors, true).map_err(lacking)?;
        }
        let second = ours.try_clone().map_err(|error| no_descriptor(&error))?;
        Ok(RemoteHost {
            name,
            first: 0,
            nodes: 0,
            channel: Some(Channel::new(ours, second, FROM_AGENT_BYTES_MAX).map_err(lacking)?),
            answers: Answers::default(),
            silent_looks: 0,
            taken_bytes: 0,
            asked_in_round: (0, 0),
            command: launcher.name(),
            pid,
            exit: None,
            errors,
            words: Vec::new(),
            chatter_bytes: 0,
        })
    }

    /// Returns the command's process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Records that the command has ended.
    pub fn exited(&mut self, status: WaitStatus) {
        self.exit = Some(status);
    }

    /// Returns the command's standard error while it is open.
    pub fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(AsFd::as_fd)
    }

    /// Reads the command's standard error and keeps the end of it.
    pub fn read_errors(&mut self) {
        let Some(errors) = &self.errors else { return };
        let mut bytes = [0u8; WORDS_BYTES_MAX];
        match rustix::io::read(errors, &mut bytes) {
            Ok(got) if got > 0 => {
                self.words.extend_from_slice(&bytes[..got]);
                let surplus = self.words.len().saturating_sub(WORDS_BYTES_MAX);
                self.words.drain(..surplus);
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.errors = None,
        }
    }

    /// Sends a message with the job's key, as [`send`](Self::send) does.
    pub fn send_secret(&mut self, message: &ToAgent) {
        let _ = self.channel.as_mut().map(|channel| channel.send_secret(message));
    }

    /// Sends a message if the connection is open. A lost connection is noticed when it is read.
    pub fn send(&mut self, message: &ToAgent) {
        if let Some(channel) = &mut self.channel {
            let _ = channel.send(message);
        }
    }

    /// Ends the command if it still runs.
    pub fn kill(&mut self) {
        self.channel = None;
        if self.exit.is_none() {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        }
    }

    /// Describes how the command ended and what it printed last: "ssh exited with status 255 ('no route to
    /// host')".
    ///
    /// Waits a moment for the command, whose channel is closed.
    pub fn last_words(&mut self) -> String {
        if self.exit.is_none() {
            if let Ok(end) = pidfd_open(self.pid, PidfdFlags::empty()) {
                let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(EXIT_LIMIT.subsec_nanos()) };
                // The status is read next in any case.
                let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&limit));
            }
            if let Ok(Some((_, status))) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
                self.exit = Some(status);
            }
        }
        let before = self.words.len();
        self.read_errors();
        while self.errors.is_some() && self.words.len() > before && self.words.len() < WORDS_BYTES_MAX {
            let before = self.words.len();
            self.read_errors();
            if self.words.len() == before {
                break;
            }
        }
        let end =
            self.exit.and_then(End::from_wait).map_or("closed the connection".to_owned(), End::describe);
        let words = String::from_utf8_lossy(&self.words);
        let last = words.lines().map(str::trim).rfind(|line| !line.is_empty());
        let quoted = last.map(|line| format!(" ('{}')", line.strip_prefix("hiroba: ").unwrap_or(line)));
        format!("{} {end}{}", self.command, quoted.unwrap_or_default())
    }

    /// Takes the agent's answers before the job begins.
    pub fn hear_answers(&mut self) -> Result<(), Failure> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        let received = channel.receive();
        while self.answers.greeting.is_none() {
            let Some(line) = channel.next_line() else { break };
            self.chatter_bytes += line.len() + 1;
            if let Some(greeting) = Greeting::parse(&line) {
                check_greeting(&self.name, &greeting)?;
                self.answers.greeting = Some(greeting);
            }
        }
        // Lines that have been read count too, since short ones may never end.
        if self.answers.greeting.is_none()
            && self.chatter_bytes + channel.incoming_bytes() > CHATTER_BYTES_MAX
        {
            return Err(Failure::new(format!(
                "host {}: expected the greeting of Hiroba's agent within the first {CHATTER_BYTES_MAX} bytes through {}, got \
                 something else; does its login shell print endlessly?",
                self.name, self.command
            )));
        }
        let mut messages = Vec::new();
        while self.answers.greeting.is_some() {
            match channel.next::<FromAgent>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return Err(Failure::new(format!("host {}: {error}", self.name))),
            }
        }
        for message in messages {
            self.take_answer(message)?;
        }
        if received == Err(Closed) {
            return Err(self.unreachable());
        }
        Ok(())
    }

    fn take_answer(&mut self, message: FromAgent) -> Result<(), Failure> {
        let (name, nodes) = (&self.name, self.nodes);
        match message {
            FromAgent::Bound { addresses } if addresses.len() == nodes => {
                self.answers.addresses = Some(addresses);
            }
            FromAgent::Ready { pids } if pids.len() == nodes => self.answers.pids = Some(pids),
            FromAgent::Refused { status, sentence } => {
                return Err(Failure { status, sentence: format!("host {name}: {sentence}") });
            }
            FromAgent::Pong { .. } => {}
            other => {
                return Err(Failure::new(format!(
                    "host {name}: expected an answer about {nodes} nodes before the job begins, got {other:?}"
                )));
            }
        }
        Ok(())
    }

    fn unreachable(&mut self) -> Failure {
        let (name, greeted) = (self.name.clone(), self.answers.greeting.is_some());
        let last_words = self.last_words();
        Failure::new(if greeted {
            format!("host {name} was lost before the job began: {last_words}")
        } else {
            format!(
                "host {name} cannot be reached, or has no hiroba there (its path: ${AGENT_VARIABLE}): {last_words}"
            )
        })
    }

    /// Returns the error for an agent that takes too long before the job begins.
    pub fn too_slow(&mut self, limit: Duration) -> Failure {
        self.read_errors();
        let words = String::from_utf8_lossy(&self.words);
        let last = words.lines().map(str::trim).rfind(|line| !line.is_empty());
        let quoted = last.map(|line| format!(" ('{line}')")).unwrap_or_default();
        Failure::new(format!(
            "host {} has not answered within {} s through {}{quoted}; is it up, and can you log in there without a password?",
            self.name,
            limit.as_secs(),
            self.command
        ))
    }
}

fn check_greeting(name: &str, greeting: &Greeting) -> Result<(), Failure> {
    const OURS: &str = env!("CARGO_PKG_VERSION");
    if greeting.version != OURS {
        return Err(Failure::new(format!(
            "host {name} runs Hiroba {}, this is {OURS}; install the same version on all hosts, or name its path in ${AGENT_VARIABLE}",
            greeting.version
        )));
    }
    if greeting.build != hiroba_node::BUILD {
        return Err(Failure::new(format!(
            "host {name} runs another build of Hiroba {OURS} ({}, this is {}); install the same build on all hosts, or name its \
             path in ${AGENT_VARIABLE}",
            greeting.build,
            hiroba_node::BUILD
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(launcher: &Launcher) -> Vec<String> {
        let command = launcher.command("h1").expect("this test has an executable");
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn launchers_are_split_as_a_shell_would() {
        let launcher = Launcher::parse(Some("docker exec -i --env 'A=b c'")).expect("simple words");
        let words = line(&launcher);
        assert_eq!(words[..6], ["docker", "exec", "-i", "--env", "A=b c", "h1"]);
        assert_eq!(words.last().map(String::as_str), Some(AGENT_COMMAND));
        let ssh = line(&Launcher::parse(None).expect("ssh"));
        assert!(ssh[0] == "ssh" && ssh.contains(&"-oBatchMode=yes".to_owned()), "{ssh:?}");
        for wrong in ["", " ", "ssh 'x"] {
            assert!(Launcher::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_versions_and_builds_are_named() {
        let greeting =
            |version: &str, build: &str| Greeting { version: version.into(), build: build.into(), cores: 1 };
        let sentence =
            |greeting: &Greeting| check_greeting("h1", greeting).map_err(|failure| failure.sentence);
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(sentence(&greeting(ours, hiroba_node::BUILD)), Ok(()));
        assert!(
            sentence(&greeting("0.0.1", hiroba_node::BUILD))
                .is_err_and(|it| it.contains("runs Hiroba 0.0.1"))
        );
        assert!(sentence(&greeting(ours, "ff")).is_err_and(|it| it.contains("another build")));
    }
}
