//! Options of mpirun and srun: translates those that Hiroba has too, and answers the others with what to
//! write instead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::CommandFactory;

use super::CommandLine;
use hiroba_launch::failure::Failure;

/// What an option of another launcher becomes.
#[derive(Clone, Copy)]
enum Meaning {
    /// One of our flags; the value that follows it stays.
    Flag(&'static str),
    /// Nothing: Hiroba always does this.
    Always,
    /// `--bind`, depending on the value.
    BindTo,
    /// There is no such flag; the sentence says what to do instead.
    Answer(&'static str),
}

use Meaning::{Always, Answer, BindTo, Flag};

const NODES_OF_HOSTS: &str = "the number of nodes on a host is set by slots=N in the file after --hosts, or by HOST:N after -H; \
     that of the job by -n NODES";
const VARIABLES: &str = "a variable is set for the nodes by -x VAR=VALUE, or passed to other hosts by -x VAR";
const DIRECTORY: &str = "nodes run in the directory that hiroba is called in; change it before, as in (cd DIR && hiroba run PROGRAM)";

/// Options without their dashes, since mpirun's users write one or two.
const LONG_WORDS: &[(&str, Meaning)] = &[
    ("np", Flag("-n")),
    ("ntasks", Flag("-n")),
    ("host", Flag("-H")),
    ("hostfile", Flag("--hosts")),
    ("machinefile", Flag("--hosts")),
    ("tag-output", Flag("--label")),
    ("prepend-rank", Flag("--label")),
    ("bind-to", BindTo),
    ("oversubscribe", Always),
    ("allow-run-as-root", Always),
    ("map-by", Answer(NODES_OF_HOSTS)),
    ("rank-by", Answer(NODES_OF_HOSTS)),
    ("npernode", Answer(NODES_OF_HOSTS)),
    ("ppn", Answer(NODES_OF_HOSTS)),
    ("ntasks-per-node", Answer(NODES_OF_HOSTS)),
    ("nodelist", Answer("hosts are named by -H HOST,HOST, or in the file after --hosts")),
    ("cpus-per-task", Answer("the number of threads per node is set by -t THREADS")),
    ("wdir", Answer(DIRECTORY)),
    ("chdir", Answer(DIRECTORY)),
    ("env", Answer(VARIABLES)),
    ("genv", Answer(VARIABLES)),
    ("envlist", Answer(VARIABLES)),
    ("genvlist", Answer(VARIABLES)),
    ("mca", Answer("Hiroba has no MCA parameters; the fabric is chosen by --fabric udp, tcp or shm")),
];

const SHORT_WORDS: &[(&str, Meaning)] = &[
    (
        "-N",
        Answer(
            "-N counts hosts for srun and processes a host for mpirun; write -n NODES for the nodes of the whole job",
        ),
    ),
    ("-c", Answer("the number of threads per node is set by -t THREADS")),
    ("-f", Answer("a file of hosts is named by --hosts FILE")),
    ("-w", Answer("hosts are named by -H HOST,HOST, or in the file after --hosts")),
];

/// Translates the arguments of `run` before its program, and `-np` of other commands that take `-n`.
pub(super) fn translate(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    match arguments.get(1).map(|word| word.as_bytes()) {
        Some(b"run") => translate_run(arguments),
        Some(b"bench" | b"demo") => {
            let ours = |word: OsString| match word.as_bytes() {
                b"-np" | b"--np" => "-n".into(),
                _ => word,
            };
            Ok(arguments.into_iter().map(ours).collect())
        }
        _ => Ok(arguments),
    }
}

fn translate_run(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let flags = FlagsOfRun::new();
    let mut words = arguments.into_iter();
    let mut translated: Vec<OsString> = words.by_ref().take(2).collect();
    while let Some(word) = words.next() {
        if !word.as_bytes().starts_with(b"-") || word.as_bytes() == b"--" || word.as_bytes() == b"-" {
            // The program, or a word that certainly precedes it.
            translated.push(word);
            break;
        }
        let (name, value) = halves(&word);
        let given = Given { word: &word, name, value };
        match meaning(name, &flags) {
            None => {
                let takes_next = flags.take_the_next_word(&word);
                translated.push(word);
                translated.extend(takes_next.then(|| words.next()).flatten());
            }
            Some(Flag(ours)) => {
                let takes_next = value.is_none() && flags.take_the_next_word(OsStr::new(ours));
                translated.push(given.under(ours));
                translated.extend(takes_next.then(|| words.next()).flatten());
            }
            Some(Always) => {}
            Some(BindTo) => {
                let value = value.map(OsStr::to_owned).or_else(|| words.next()).unwrap_or_default();
                translated.push("--bind".into());
                translated.push(bound(&value)?.into());
            }
            Some(Answer(answer)) => {
                let name = name.to_string_lossy();
                return Err(Failure::new(format!("there is no flag '{name}'; {answer}")));
            }
        }
    }
    translated.extend(words);
    Ok(translated)
}

/// An option with its value after `=`, if it has one.
struct Given<'a> {
    word: &'a OsStr,
    name: &'a OsStr,
    value: Option<&'a OsStr>,
}

impl Given<'_> {
    /// Returns the same option under another name.
    fn under(&self, name: &str) -> OsString {
        let mut word = OsString::from(name);
        if self.value.is_some() {
            word.push(OsStr::from_bytes(&self.word.as_bytes()[self.name.len()..]));
        }
        word
    }
}

fn halves(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(end) => (OsStr::from_bytes(&bytes[..end]), Some(OsStr::from_bytes(&bytes[end + 1..]))),
        None => (word, None),
    }
}

/// Returns what an option means that is not one of ours.
fn meaning(name: &OsStr, flags: &FlagsOfRun) -> Option<Meaning> {
    let name = name.to_str()?;
    if flags.knows(name) {
        return None;
    }
    let long = name.strip_prefix("--").or_else(|| name.strip_prefix('-'));
    let of_long = LONG_WORDS.iter().find(|(word, _)| Some(*word) == long);
    let of_short = || SHORT_WORDS.iter().find(|(word, _)| *word == name);
    of_long.or_else(of_short).map(|(_, meaning)| *meaning)
}

/// Translates the value of `--bind-to`. Open MPI binds to cores, caches and so on; Hiroba gives every node
/// processors of its own, or does not.
fn bound(to: &OsStr) -> Result<&'static str, Failure> {
    match to.as_bytes() {
        b"none" => Ok("off"),
        b"core" | b"hwthread" | b"socket" | b"package" | b"numa" | b"board" | b"l1cache" | b"l2cache"
        | b"l3cache" | b"user" => Ok("on"),
        _ => Err(Failure::new(format!(
            "expected none or core after --bind-to, got '{}'; Hiroba's own options are --bind on and --bind off",
            to.to_string_lossy()
        ))),
    }
}

/// Which flags `run` has, and which of them take a value in the next word.
struct FlagsOfRun(clap::Command);

impl FlagsOfRun {
    fn new() -> FlagsOfRun {
        let mut all = CommandLine::command();
        all.build();
        FlagsOfRun(all.find_subcommand("run").expect("there is a command run").clone())
    }

    fn knows(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&clap::Arg> {
        let is_long =
            |arg: &&clap::Arg| name.strip_prefix("--").is_some_and(|long| arg.get_long() == Some(long));
        let is_short = |arg: &&clap::Arg| {
            let mut letters = name.strip_prefix('-').unwrap_or("").chars();
            arg.get_short().is_some() && arg.get_short() == letters.next() && letters.next().is_none()
        };
        self.0.get_arguments().find(|arg| is_long(arg) || is_short(arg))
    }

    fn take_the_next_word(&self, word: &OsStr) -> bool {
        let has_value = |arg: &clap::Arg| {
            arg.get_num_args().is_some_and(|values| values.takes_values()) && !arg.is_require_equals_set()
        };
        word.to_str().and_then(|name| self.find(name)).is_some_and(has_value)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let words = std::iter::once("hiroba").chain(line.split(' ')).map(OsString::from).collect();
        let join =
            |words: Vec<OsString>| words[1..].join(OsStr::new(" ")).into_string().expect("it was UTF-8");
        translate(words).map(join).map_err(|failure| failure.sentence)
    }

    #[test]
    fn words_of_mpirun_become_ours() {
        for (theirs, ours) in [
            ("run -np 4 ./a -np 5", "run -n 4 ./a -np 5"),
            ("run --np=4 ./a", "run -n=4 ./a"),
            ("run --stats -t 2 -np 4 ./a", "run --stats -t 2 -n 4 ./a"),
            ("run -t2 -host a,b:2 ./a", "run -t2 -H a,b:2 ./a"),
            ("run --hostfile f -machinefile=g x", "run --hosts f --hosts=g x"),
            ("run --tag-output --oversubscribe -n 2 ./a --tag-output", "run --label -n 2 ./a --tag-output"),
            ("run --bind-to none -bind-to=core ./a", "run --bind off --bind on ./a"),
            ("run -- -np 4", "run -- -np 4"),
            ("run -x -np ./a", "run -x -np ./a"),
            ("run --launcher -np -np 2 ./a", "run --launcher -np -n 2 ./a"),
            ("bench fault -np 3", "bench fault -n 3"),
            ("cc -np 3", "cc -np 3"),
            ("run", "run"),
            ("run -np", "run -n"),
        ] {
            assert_eq!(translated(theirs).as_deref(), Ok(ours), "{theirs}");
        }
    }

    #[test]
    fn the_rest_is_answered() {
        for (theirs, answer) in [
            ("run -N 2 ./a", "there is no flag '-N'; -N counts hosts for srun"),
            ("run --map-by ppr:2:node ./a", "slots=N"),
            ("run -mca btl tcp ./a", "--fabric"),
            ("run --wdir=/tmp ./a", "there is no flag '--wdir'; nodes run in the directory"),
            ("run --bind-to moon ./a", "got 'moon'"),
            ("run -f hosts ./a", "--hosts FILE"),
        ] {
            let sentence = translated(theirs).expect_err(theirs);
            assert!(sentence.contains(answer), "{theirs}: {sentence}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let odd = OsString::from_vec(b"-\xff=\xfe".to_vec());
        let words = vec!["hiroba".into(), "run".into(), odd, "-np".into(), "2".into()];
        assert_eq!(translate(words.clone()).map(|words| words[2].clone()), Ok(words[2].clone()));
    }
}
