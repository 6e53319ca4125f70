//! Schedules that OpenMP does not have, written in a program's `schedule` clauses: `profiled`, `factoring`
//! and `awf`. A source file with such a clause, in C also one that a header has, is preprocessed, and the
//! clauses become `dynamic` with a call as the length of chunks, whose result tells the library the schedule.
//! All other lines, and their numbers, stay. The compiler reads the result from memory, so that no file is
//! left behind. `schedules/fortran.rs` does the same for Fortran.

mod fortran;
mod headers;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use super::{Language, WITH_VALUE, cannot_call, choice};
use crate::failure::{Failure, system_words};

/// The schedules, by the numbers that the library knows them by.
const KINDS: [(&str, u32); 3] = [("factoring", 1001), ("awf", 1002), ("profiled", 1003)];
/// The library's function, and the one that stands in for it with other OpenMP libraries: they get `dynamic`.
const FUNCTION: &str = "ompx_hiroba_schedule_of";
const DECLARATION: &str = "int ompx_hiroba_schedule(int, int, int, int) __attribute__((weak)); \
    static inline __attribute__((always_inline, unused)) \
    int ompx_hiroba_schedule_of(int kind, int chunk, int evaluated, int skipped) { \
    return ompx_hiroba_schedule ? ompx_hiroba_schedule(kind, chunk, evaluated, skipped) : chunk > 0 ? chunk : 1; }";

/// How names of C++ sources end.
const CXX: [&str; 7] = ["cc", "cpp", "cxx", "c++", "C", "cp", "CPP"];

/// The language of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    C,
    Cxx,
    Fortran(fortran::Form),
}

impl Source {
    fn of(language: Language, name: &OsStr) -> Option<Source> {
        let extension = Path::new(name).extension().and_then(OsStr::to_str).unwrap_or_default();
        if extension == "c" {
            return Some(if language == Language::Cxx { Source::Cxx } else { Source::C });
        }
        if CXX.contains(&extension) {
            return Some(Source::Cxx);
        }
        fortran::Form::of(extension).map(Source::Fortran)
    }

    /// What compilers call its preprocessed form.
    fn option(self) -> &'static str {
        match self {
            Source::C => "cpp-output",
            Source::Cxx => "c++-cpp-output",
            Source::Fortran(form) => form.option(),
        }
    }
}

/// A compiler's command, by its parts.
struct Words<'a> {
    /// The compiler and its options that concern neither input files, nor the output, nor linking.
    common: Vec<&'a OsString>,
    /// Where source files stand in the command, and their languages.
    sources: Vec<(usize, Source)>,
    /// The argument of `-o`.
    output: Option<&'a OsString>,
    /// `-c` or `-S`.
    stops: Option<&'a OsString>,
    makes_dependencies: bool,
    names_dependencies: bool,
    names_target: bool,
    /// The command does something else than to compile sources whose language their names tell.
    is_other: bool,
}

impl<'a> Words<'a> {
    fn of(language: Language, command: &'a [OsString], compiler: usize) -> Words<'a> {
        let mut words = Words {
            common: command[..compiler].iter().collect(),
            sources: Vec::new(),
            output: None,
            stops: None,
            makes_dependencies: false,
            names_dependencies: false,
            names_target: false,
            is_other: false,
        };
        let mut place = compiler;
        while place < command.len() {
            let word = &command[place];
            let text = word.as_bytes();
            let value = WITH_VALUE
                .contains(&word.to_str().unwrap_or_default())
                .then(|| command.get(place + 1))
                .flatten();
            match text {
                b"-o" => words.output = value,
                b"-c" | b"-S" => words.stops = Some(word),
                b"-E" | b"-M" | b"-MM" | b"-fsyntax-only" | b"-x" => words.is_other = true,
                _ if text.starts_with(b"@") => words.is_other = true,
                _ if text.starts_with(b"-l") || text.starts_with(b"-L") || text.starts_with(b"-Wl,") => {}
                b"-Xlinker" | b"-T" | b"-u" | b"-z" => {}
                _ if text.starts_with(b"-") => {
                    words.makes_dependencies |= matches!(text, b"-MD" | b"-MMD");
                    words.names_dependencies |= text.starts_with(b"-MF");
                    words.names_target |= text.starts_with(b"-MT") || text.starts_with(b"-MQ");
                    words.common.push(word);
                    words.common.extend(value);
                }
                _ => words.sources.extend(Source::of(language, word).map(|source| (place, source))),
            }
            place += 1 + usize::from(value.is_some());
        }
        words
    }

    /// What the compiler makes of a source file.
    fn object(&self, source: &OsStr) -> OsString {
        let suffix = if self.stops.is_some_and(|stops| stops == "-S") { "s" } else { "o" };
        let of_source =
            || Path::new(source).with_extension(suffix).file_name().unwrap_or_default().to_owned();
        self.output.filter(|_| self.stops.is_some()).cloned().unwrap_or_else(of_source)
    }
}

/// Returns true if a text may have such a clause.
fn has_clause(text: &[u8]) -> bool {
    let text = text.to_ascii_lowercase();
    let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
    has(b"schedule") && KINDS.iter().any(|(kind, _)| has(kind.as_bytes()))
}

/// A source whose clauses were rewritten.
struct Input {
    /// Where it stands in the command.
    place: usize,
    source: Source,
    /// Where the compiler reads it.
    path: OsString,
}

impl Input {
    /// Rewrites a source. `None` if it has no such clause, or cannot be preprocessed.
    fn make(
        language: Language,
        words: &Words,
        (place, source): (usize, Source),
        name: &OsStr,
    ) -> Result<Option<Input>, Failure> {
        let text = match source {
            Source::Fortran(form) => {
                let directories = headers::directories(&words.common);
                if !headers::texts(name, &directories, true).any(|text| has_clause(&text)) {
                    return Ok(None);
                }
                let is_preprocessed = form.is_preprocessed(&words.common);
                let text = if is_preprocessed {
                    preprocess(language, words, name)?
                } else {
                    std::fs::read(name).ok()
                };
                let text = text.map(|text| fortran::includes::expanded(&text, name, &directories));
                text.and_then(|text| form.with(&words.common).rewrite(&text, name))
            }
            Source::C | Source::Cxx => {
                let directories = headers::directories(&words.common);
                if !headers::texts(name, &directories, false).any(|text| has_clause(&text)) {
                    return Ok(None);
                }
                let text = preprocess(language, words, name)?;
                text.and_then(|text| rewrite(&text, source == Source::Cxx))
            }
        };
        let Some(text) = text else { return Ok(None) };
        if matches!(source, Source::Fortran(_)) && words.stops.is_some_and(|stops| stops == "-S") {
            return Err(Failure::new(format!(
                "{}: expected -c or no option in place of -S, since a schedule that OpenMP does not have needs a \
                 function of Hiroba's beside the Fortran code",
                Path::new(name).display()
            )));
        }
        Ok(Some(Input { place, source, path: in_memory(&text)? }))
    }

    /// The words that name it in place of its source.
    fn words(&self) -> [OsString; 5] {
        ["-x".into(), self.source.option().into(), self.path.clone(), "-x".into(), "none".into()]
    }
}

/// Returns the commands that compile instead of this one, whose first `compiler` words are the compiler's;
/// only this one where no clause is to be rewritten. All but the last one are to be run before it.
pub fn rewritten(
    language: Language,
    command: Vec<OsString>,
    compiler: usize,
) -> Result<Vec<Vec<OsString>>, Failure> {
    let words = Words::of(language, &command, compiler);
    if words.is_other {
        return Ok(vec![command]);
    }
    let mut inputs = Vec::new();
    for source in &words.sources {
        inputs.extend(Input::make(language, &words, *source, &command[source.0])?);
    }
    if inputs.is_empty() {
        return Ok(vec![command]);
    }
    let more = fortran_options(&inputs, &words, &command)?;
    if words.stops.is_some() && words.output.is_none() {
        // Objects have their sources' names, so that each rewritten one is compiled by itself.
        let mut commands = Vec::new();
        for input in &inputs {
            let mut own = of_preprocessed(&words, input.source);
            own.extend(more.iter().filter(|_| matches!(input.source, Source::Fortran(_))).cloned());
            own.extend(words.stops.cloned());
            own.extend(["-o".into(), words.object(&command[input.place])]);
            own.extend(input.words());
            commands.push(own);
        }
        let others = words.sources.len() > inputs.len();
        if others {
            let is_rewritten = |place: usize| inputs.iter().any(|input| input.place == place);
            let rest = command.iter().enumerate().filter(|(place, _)| !is_rewritten(*place));
            commands.push(rest.map(|(_, word)| word.clone()).collect());
        }
        return Ok(commands);
    }
    let is_only = words.sources.len() == inputs.len();
    let mut last = Vec::new();
    let mut place = 0;
    while place < command.len() {
        let word = &command[place];
        let value = usize::from(WITH_VALUE.contains(&word.to_str().unwrap_or_default()));
        match inputs.iter().find(|input| input.place == place) {
            Some(input) => last.extend(input.words()),
            // With no other source nothing is preprocessed any more, and clang warns of unused options.
            None if is_only && place >= compiler && concerns_preprocessing(word, inputs[0].source) => {}
            None => last.extend(command[place..].iter().take(1 + value).cloned()),
        }
        place += 1 + value;
    }
    last.extend(more);
    Ok(vec![last])
}

/// Options for rewritten sources of Fortran: where they include files from, and the function that stands in
/// for the library's with other OpenMP libraries, which the assembler adds to each object.
fn fortran_options(inputs: &[Input], words: &Words, command: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let mut options = Vec::new();
    for input in inputs.iter().filter(|input| matches!(input.source, Source::Fortran(_))) {
        let directory = Path::new(&command[input.place]).parent().filter(|path| !path.as_os_str().is_empty());
        let mut include = OsString::from("-I");
        include.push(directory.unwrap_or(Path::new(".")));
        options.push(include);
    }
    if options.is_empty() {
        return Ok(options);
    }
    // The compiler warns of free form in a file whose name does not tell it.
    let is_fixed = |source: &(usize, Source)| matches!(source.1, Source::Fortran(form) if form.is_fixed());
    let is_given = words.common.iter().any(|word| word.as_bytes().ends_with(b"-form"));
    if !is_given && !words.sources.iter().any(is_fixed) {
        options.push("-ffree-form".into());
    }
    let mut assembled = OsString::from("-Wa,");
    assembled.push(in_memory(fortran::FUNCTION.as_bytes())?);
    options.push(assembled);
    Ok(options)
}

/// Options for the preprocessor. Fortran's compiler itself reads modules and included files.
fn concerns_preprocessing(word: &OsStr, source: Source) -> bool {
    let text = word.as_bytes();
    if matches!(source, Source::Fortran(_)) {
        return text == b"-cpp" || text.starts_with(b"-M");
    }
    let beginnings: [&[u8]; 9] =
        [b"-D", b"-U", b"-I", b"-M", b"-include", b"-imacros", b"-isystem", b"-iquote", b"-idirafter"];
    beginnings.iter().any(|beginning| text.starts_with(beginning))
}

/// The common words without those that only the preprocessor reads.
fn of_preprocessed(words: &Words, source: Source) -> Vec<OsString> {
    let mut own = Vec::new();
    let mut common = words.common.iter();
    while let Some(word) = common.next() {
        let has_value = WITH_VALUE.contains(&word.to_str().unwrap_or_default());
        let value = if has_value { common.next() } else { None };
        if !concerns_preprocessing(word, source) {
            own.push((*word).clone());
            own.extend(value.map(|value| (*value).clone()));
        }
    }
    own
}

/// Runs the preprocessor. It also writes which files the object depends on, if that is wanted. `None` if it
/// fails: then the compiler says why, when it compiles the source as it is.
fn preprocess(language: Language, words: &Words, source: &OsStr) -> Result<Option<Vec<u8>>, Failure> {
    let (compiler, options) = words.common.split_first().expect("a compiler");
    let mut process = Command::new(compiler);
    process.args(options).env(choice::CALLED_VARIABLE, "1").arg("-E").arg(source);
    let object = words.object(source);
    if words.makes_dependencies && !words.names_dependencies {
        process.arg("-MF").arg(Path::new(&object).with_extension("d"));
    }
    if words.makes_dependencies && !words.names_target {
        process.arg("-MQ").arg(&object);
    }
    let output = process.output().map_err(|error| cannot_call(language, compiler, &error))?;
    if !output.status.success() {
        return Ok(None);
    }
    let _ = std::io::stderr().write_all(&output.stderr);
    Ok(Some(output.stdout))
}

/// Puts a text into memory that the compiler inherits as an open file. Returns its path there.
fn in_memory(text: &[u8]) -> Result<OsString, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot keep a preprocessed source in memory: {}", system_words(&error)))
    };
    let file = rustix::fs::memfd_create("source", rustix::fs::MemfdFlags::empty());
    let mut file = File::from(file.map_err(|error| failed(error.into()))?);
    file.write_all(text).map_err(failed)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // The compiler is this process soon.
    let _ = file.into_raw_fd();
    Ok(OsString::from_vec(path.into_bytes()))
}

/// Rewrites the clauses of a preprocessed source. `None` if it has none.
fn rewrite(text: &[u8], is_cxx: bool) -> Option<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let mut count = 0;
    for line in &mut lines {
        let Some(new) = std::str::from_utf8(line).ok().and_then(rewrite_line) else { continue };
        *line = new.into_bytes();
        count += 1;
    }
    if count == 0 {
        return None;
    }
    // The first line tells the compiler the source's name, and is repeated so that numbers stay.
    let first = lines[0].clone();
    let declaration =
        if is_cxx { format!("extern \"C\" {{ {DECLARATION} }}") } else { DECLARATION.to_owned() };
    lines.splice(1..1, [declaration.into_bytes(), first]);
    Some(lines.join(&b'\n'))
}

/// Rewrites the clause of a pragma. `None` if it has none of the schedules.
fn rewrite_line(line: &str) -> Option<String> {
    let pragma = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("pragma")?;
    pragma.trim_start().strip_prefix("omp")?.starts_with(char::is_whitespace).then_some(())?;
    rewrite_clause(line, line, |kind, [chunk, evaluated, skipped]| {
        format!("{FUNCTION}({kind}, {chunk}, {evaluated}, {skipped})")
    })
}

/// Rewrites the clause of a directive, which is found in `searched`, the same text perhaps in small letters.
/// `call` makes the length of chunks of the schedule's number and the user's numbers.
fn rewrite_clause(text: &str, searched: &str, call: impl Fn(u32, [&str; 3]) -> String) -> Option<String> {
    let mut from = 0;
    loop {
        let found = from + searched[from..].find("schedule")?;
        from = found + "schedule".len();
        let is_word = !text[..found].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        let Some(inner) = text[from..].trim_start().strip_prefix('(').filter(|_| is_word) else { continue };
        let begin = text.len() - inner.len();
        let end = begin + closing(inner)?;
        let clause = &text[begin..end];
        let (modifier, plain) = match clause.split_once(':') {
            Some((modifier, plain)) if !modifier.contains([',', '(', '?']) => (format!("{modifier}:"), plain),
            _ => (String::new(), clause),
        };
        let plain_begin = end - plain.len();
        let mut numbers = arguments(plain);
        let name = searched[plain_begin..][..numbers.remove(0).len()].trim();
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else { continue };
        let most = if name == "profiled" { 3 } else { 1 };
        if numbers.len() > most || numbers.iter().any(|number| number.trim().is_empty()) {
            // The compiler refuses it, as it stands there.
            return None;
        }
        numbers.resize(3, "0");
        let call = call(*kind, [0, 1, 2].map(|index| numbers[index].trim()));
        return Some(format!("{}{modifier} dynamic, {call}{}", &text[..begin], &text[end..]));
    }
}

/// Where the parenthesis closes that is open at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(place, letter)| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        (depth == 0).then_some(place)
    })
}

/// The parts between commas that are in no parentheses.
fn arguments(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0 && letter == ','
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_such_clauses_are_rewritten() {
        let cases = [
            (
                "#pragma omp for schedule(profiled) nowait",
                "#pragma omp for schedule( dynamic, ompx_hiroba_schedule_of(1003, 0, 0, 0)) nowait",
            ),
            (
                "  # pragma omp parallel for num_threads(f(1, 2)) schedule (monotonic: profiled, n/2, (a, b), g(1,2))",
                "  # pragma omp parallel for num_threads(f(1, 2)) schedule (monotonic: dynamic, \
                 ompx_hiroba_schedule_of(1003, n/2, (a, b), g(1,2)))",
            ),
            (
                "#pragma omp for schedule(awf, x ? y : z)",
                "#pragma omp for schedule( dynamic, ompx_hiroba_schedule_of(1002, x ? y : z, 0, 0))",
            ),
            (
                "#pragma omp for schedule(factoring)",
                "#pragma omp for schedule( dynamic, ompx_hiroba_schedule_of(1001, 0, 0, 0))",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(rewrite_line(line).as_deref(), Some(expected));
        }
        for line in [
            "#pragma omp for schedule(dynamic, profiled)",
            "#pragma omp for schedule(runtime)",
            "#pragma omp for schedule(profiled",
            "#pragma omp for schedule(profiled, 1, 2, 3, 4)",
            "#pragma omp for schedule(profiled, )",
            "#pragma omp for schedule(awf, 1, 2)",
            "#pragma omp for dist_schedule(profiled)",
            "#pragma ompx for schedule(profiled)",
            "#pragma GCC schedule(profiled)",
            "schedule(profiled);",
        ] {
            assert_eq!(rewrite_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_source_without_such_clauses_stays() {
        assert_eq!(rewrite(b"# 0 \"a.c\"\n#pragma omp for\nfor (;;);\n", false), None);
    }
}
