//! Which compiler the wrapper calls: the one that the user names, but never the wrapper itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::Language;
use crate::failure::Failure;

/// Set for the compiler that the wrapper calls. A wrapper that sees it was called by that compiler.
pub const CALLED_VARIABLE: &str = "HIROBA_COMPILING";

/// A compiler, and what chose it.
#[derive(Debug, PartialEq, Eq)]
pub struct Compiler {
    /// Its name and the arguments that belong to it.
    pub words: Vec<OsString>,
    /// The variable that names it; `None` for the default.
    pub variable: Option<&'static str>,
    /// Whether `$CC` (or `$CXX`, `$FC`) was ignored, because it leads back to the wrapper.
    pub passed_over: bool,
}

impl Compiler {
    /// Returns a remark about a variable that was ignored.
    ///
    /// Configuration scripts search a compiler's output for "warning", "unknown" and the like; the remark
    /// avoids these words.
    pub fn remark(&self, language: Language) -> Option<String> {
        let (variable, own) = (language.variable(), language.own_variable());
        let name = self.words[0].to_string_lossy();
        self.passed_over.then(|| {
            format!("${variable} is hiroba itself, so {name} compiles; to choose the compiler set ${own}")
        })
    }
}

/// Chooses the compiler: `$HIROBA_CC`, else `$CC` unless it is this wrapper, else the default.
pub fn choose(language: Language) -> Result<Compiler, Failure> {
    let called_by_itself = std::env::var_os(CALLED_VARIABLE).is_some();
    choose_from(language, called_by_itself, &|variable| std::env::var_os(variable))
}

fn choose_from(
    language: Language,
    called_by_itself: bool,
    value: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Compiler, Failure> {
    let leads_back = |words: &[OsString]| called_by_itself || words.iter().any(|word| is_hiroba(word));
    let own = language.own_variable();
    let words = split(value(own));
    if !words.is_empty() {
        let compiler = Compiler { words, variable: Some(own), passed_over: false };
        return if leads_back(&compiler.words) {
            Err(calls_itself(language, &compiler))
        } else {
            Ok(compiler)
        };
    }
    let words = split(value(language.variable()));
    let passed_over = !words.is_empty() && leads_back(&words);
    if !words.is_empty() && !passed_over {
        return Ok(Compiler { words, variable: Some(language.variable()), passed_over });
    }
    let compiler = Compiler { words: vec![language.default_compiler().into()], variable: None, passed_over };
    // The default compiler called the wrapper, so there is no other one to try.
    if called_by_itself && !passed_over {
        return Err(calls_itself(language, &compiler));
    }
    Ok(compiler)
}

fn calls_itself(language: Language, compiler: &Compiler) -> Failure {
    let (own, package) = (language.own_variable(), language.package());
    let name = compiler.words.join(OsStr::new(" "));
    let name = name.to_string_lossy();
    Failure::new(match compiler.variable {
        Some(variable) => format!(
            "expected a compiler in ${variable}, got '{name}', which is or calls hiroba itself; name another one there, such as {package}"
        ),
        None => format!(
            "the compiler '{name}' calls hiroba itself; name another one in ${own}, such as {package}"
        ),
    })
}

/// Splits a value as make and shells do.
fn split(value: Option<OsString>) -> Vec<OsString> {
    let value = value.unwrap_or_default();
    let words = value.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Returns true if a word of a command is this command, under any name, or another build of it.
fn is_hiroba(word: &OsStr) -> bool {
    let path = Path::new(word);
    if path.file_name() == Some(OsStr::new("hiroba")) {
        return true;
    }
    let same = |path: PathBuf| {
        let this = std::env::current_exe().and_then(|file| file.canonicalize());
        matches!((path.canonicalize(), this), (Ok(path), Ok(this)) if path == this)
    };
    if word.as_bytes().contains(&b'/') {
        return same(path.to_owned());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .map(|directory| directory.join(path))
        .find(|file| file.is_file())
        .is_some_and(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(called_by_itself: bool, variables: &[(&str, &str)]) -> Result<(String, bool), String> {
        let value = |name: &str| {
            variables.iter().find(|variable| variable.0 == name).map(|variable| OsString::from(variable.1))
        };
        let compiler = choose_from(Language::C, called_by_itself, &value);
        compiler
            .map(|compiler| {
                (compiler.words.join(OsStr::new(" ")).into_string().unwrap(), compiler.passed_over)
            })
            .map_err(|failure| failure.sentence)
    }

    #[test]
    fn the_wrapper_never_chooses_itself() {
        let of = |word: &str, passed_over| Ok((word.to_owned(), passed_over));
        assert_eq!(chosen(false, &[]), of("cc", false));
        assert_eq!(chosen(false, &[("CC", "  ")]), of("cc", false));
        assert_eq!(chosen(false, &[("CC", "gcc  -m64")]), of("gcc -m64", false));
        assert_eq!(chosen(false, &[("CC", "gcc"), ("HIROBA_CC", "tcc")]), of("tcc", false));
        assert_eq!(chosen(false, &[("CC", "hiroba cc"), ("HIROBA_CC", "gcc")]), of("gcc", false));
        let this = std::env::current_exe().unwrap();
        let (this, ours) =
            (this.display().to_string(), ["hiroba cc", "/opt/bin/hiroba cc", "ccache hiroba cc"]);
        for value in ours.into_iter().map(str::to_owned).chain([this.clone(), format!("ccache {this} cc")]) {
            assert_eq!(chosen(false, &[("CC", &value)]), of("cc", true), "{value}");
            let refused = chosen(false, &[("HIROBA_CC", &value)]).expect_err(&value);
            assert!(refused.contains("$HIROBA_CC") && refused.contains(&value), "{refused}");
        }
    }

    #[test]
    fn a_compiler_that_calls_the_wrapper_is_not_called_again() {
        assert_eq!(chosen(true, &[("CC", "./script")]), Ok(("cc".to_owned(), true)));
        let refused = chosen(true, &[("HIROBA_CC", "mpicc")]).expect_err("mpicc has called it");
        assert!(refused.contains("$HIROBA_CC, got 'mpicc'"), "{refused}");
        let refused = chosen(true, &[]).expect_err("cc has called it");
        assert!(refused.contains("'cc' calls hiroba itself; name another one in $HIROBA_CC"), "{refused}");
    }
}
