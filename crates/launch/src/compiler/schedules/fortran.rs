//! Clauses in Fortran, in free and fixed form. The length of chunks is a call of a C function, whose
//! interface is added to the scoping unit of the directive. Markers as a preprocessor writes them keep the
//! numbers of all other lines. The function itself is assembled into the object, since Fortran has no weak
//! symbols.

pub(super) mod includes;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::rewrite_clause;

/// Calls the library's function, or returns the length of chunks for a `dynamic` loop where there is none.
/// Each object has it, and the linker keeps one. At link-time optimisation assemblers get it twice.
pub(super) const FUNCTION: &str = "\t.ifndef ompx_hiroba_schedule_of
\t.section .text.ompx_hiroba_schedule_of,\"axG\",@progbits,ompx_hiroba_schedule_of,comdat
\t.weak ompx_hiroba_schedule_of
\t.hidden ompx_hiroba_schedule_of
\t.type ompx_hiroba_schedule_of,@function
\t.weak ompx_hiroba_schedule
ompx_hiroba_schedule_of:
\t.cfi_startproc
\tendbr64
\tmovq ompx_hiroba_schedule@GOTPCREL(%rip), %rax
\ttestq %rax, %rax
\tje 1f
\tjmp *%rax
1:\tmovl $1, %eax
\ttestl %esi, %esi
\tcmovg %esi, %eax
\tret
\t.cfi_endproc
\t.size ompx_hiroba_schedule_of, .-ompx_hiroba_schedule_of
\t.text
\t.endif
";

/// Its interface, in lines that both forms take.
const INTERFACE: [&str; 6] = [
    "      interface",
    "      integer(c_int) function ompx_hiroba_schedule_of(k,c,e,s)bind(c)",
    "      use, intrinsic :: iso_c_binding, only: c_int",
    "      integer(c_int), value :: k, c, e, s",
    "      end function",
    "      end interface",
];

/// How a source is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    is_fixed: bool,
    /// The compiler preprocesses it.
    has_preprocessor: bool,
}

impl Form {
    /// By the end of a file's name; `None` for other languages.
    pub(super) fn of(extension: &str) -> Option<Form> {
        let is_fixed = match extension.to_ascii_lowercase().as_str() {
            "f90" | "f95" | "f03" | "f08" => false,
            "f" | "for" | "ftn" | "fpp" => true,
            _ => return None,
        };
        let has_preprocessor =
            extension.starts_with(char::is_uppercase) || extension.eq_ignore_ascii_case("fpp");
        Some(Form { is_fixed, has_preprocessor })
    }

    /// Returns true for fixed form.
    pub(super) fn is_fixed(self) -> bool {
        self.is_fixed
    }

    /// What the compiler calls it.
    pub(super) fn option(self) -> &'static str {
        if self.is_fixed { "f77" } else { "f95" }
    }

    /// The same with what the compiler's options say.
    pub(super) fn with(self, options: &[&OsString]) -> Form {
        options.iter().fold(self, |form, option| match option.to_str() {
            Some("-ffixed-form") => Form { is_fixed: true, ..form },
            Some("-ffree-form") => Form { is_fixed: false, ..form },
            _ => form,
        })
    }

    /// Returns true if the compiler preprocesses the source.
    pub(super) fn is_preprocessed(self, options: &[&OsString]) -> bool {
        options.iter().fold(self.has_preprocessor, |is, option| match option.to_str() {
            Some("-cpp") => true,
            Some("-nocpp") => false,
            _ => is,
        })
    }

    /// Rewrites the clauses of a source. `None` if it has none.
    pub(super) fn rewrite(self, text: &[u8], name: &OsStr) -> Option<Vec<u8>> {
        let text = String::from_utf8_lossy(text);
        let lines: Vec<&str> = text.split('\n').map(|line| line.trim_end_matches('\r')).collect();
        let mut scopes = Scopes::new(self);
        // New lines in place of some, and behind which line each needs the interface.
        let mut directives = Vec::new();
        let mut index = 0;
        while index < lines.len() {
            let Some((end, content)) = self.directive(&lines, index) else {
                scopes.see(&lines, index);
                index += 1;
                continue;
            };
            let call = |kind: u32, numbers: [&str; 3]| {
                let [chunk, evaluated, skipped] = numbers.map(|number| format!("int({number}, 4)"));
                format!("ompx_hiroba_schedule_of({kind}_4, {chunk}, {evaluated}, {skipped})")
            };
            if let Some(new) = rewrite_clause(&content, &content.to_ascii_lowercase(), call) {
                directives.push((index..end, self.broken(&new), scopes.place));
            }
            index = end;
        }
        if directives.is_empty() {
            return None;
        }
        let mut places = Markers::of(name);
        let mut result = Vec::from([places.marker()]);
        let has_interface = |line: usize| directives.iter().any(|(_, _, place)| *place == line);
        let mut index = 0;
        if has_interface(0) {
            result.extend(INTERFACE.map(str::to_owned));
            result.push(places.marker());
        }
        while index < lines.len() {
            let directive = directives.iter().find(|(range, ..)| range.start == index);
            let end = directive.map_or(index + 1, |(range, ..)| range.end);
            lines[index..end].iter().for_each(|line| places.pass(line));
            match directive {
                Some((_, new, _)) => result.extend(new.iter().cloned().chain([places.marker()])),
                None => result.push(lines[index].to_owned()),
            }
            if has_interface(end) {
                result.extend(INTERFACE.map(str::to_owned));
                result.push(places.marker());
            }
            index = end;
        }
        Some(result.join("\n").into_bytes())
    }

    /// The directive that begins in a line: the line behind it, and what it says without its marks.
    fn directive(self, lines: &[&str], begin: usize) -> Option<(usize, String)> {
        let first = self.of_directive(lines[begin]).filter(|(_, continues)| !continues)?.0;
        let mut content = String::from(first);
        let mut end = begin + 1;
        if self.is_fixed {
            while let Some((more, true)) = lines.get(end).and_then(|line| self.of_directive(line)) {
                content.push_str(more);
                end += 1;
            }
            return Some((end, content));
        }
        loop {
            let Some(open) = content.trim_end().strip_suffix('&').map(str::len) else {
                return Some((end, content));
            };
            content.truncate(open);
            let (more, _) = lines.get(end).and_then(|line| self.of_directive(line))?;
            content.push_str(more.trim_start().strip_prefix('&').unwrap_or(more));
            end += 1;
        }
    }

    /// What a line says behind the sentinel of OpenMP, without a comment, and whether its mark says that it
    /// continues another one.
    fn of_directive(self, line: &str) -> Option<(&str, bool)> {
        let text = if self.is_fixed { line } else { line.trim_start() };
        let sentinel = text.get(..5)?.to_ascii_lowercase();
        let sentinels: &[&str] = if self.is_fixed { &["!$omp", "c$omp", "*$omp"] } else { &["!$omp"] };
        if !sentinels.contains(&sentinel.as_str()) {
            return None;
        }
        let rest = &text[5..];
        let plain = rest.split('!').next().unwrap_or_default();
        match plain.chars().next() {
            Some(' ' | '0') if self.is_fixed => Some((&plain[1..], false)),
            Some(mark) if self.is_fixed && mark.is_ascii() => Some((&plain[1..], true)),
            Some(' ' | '\t' | '&') if !self.is_fixed => Some((plain, false)),
            _ => None,
        }
    }

    /// A directive in lines that are short enough.
    fn broken(self, content: &str) -> Vec<String> {
        const FREE: usize = 100;
        const FIXED: usize = 66;
        let letters: Vec<char> = content.trim().chars().collect();
        let pieces: Vec<String> = letters
            .chunks(if self.is_fixed { FIXED } else { FREE })
            .map(|piece| piece.iter().collect())
            .collect();
        let last = pieces.len() - 1;
        let line = |(number, piece): (usize, &String)| match (self.is_fixed, number) {
            (true, 0) => format!("!$omp {piece}"),
            (true, _) => format!("!$omp&{piece}"),
            (false, _) => {
                let (begin, end) = (if number > 0 { "&" } else { "" }, if number < last { "&" } else { "" });
                format!("!$omp {begin}{piece}{end}")
            }
        };
        pieces.iter().enumerate().map(line).collect()
    }
}

/// Which file and line the next line is, as the preprocessor's markers say.
struct Markers {
    file: String,
    next: usize,
}

impl Markers {
    fn of(name: &OsStr) -> Markers {
        Markers { file: Path::new(name).display().to_string(), next: 1 }
    }

    fn marker(&self) -> String {
        format!("# {} \"{}\"", self.next, self.file)
    }

    /// Passes a line, which may be a marker.
    fn pass(&mut self, line: &str) {
        self.next += 1;
        let mut words = line.strip_prefix("# ").unwrap_or_default().splitn(2, ' ');
        let next = words.next().and_then(|number| number.parse().ok());
        let file = words.next().and_then(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
        if let Some((next, file)) = next.zip(file) {
            *self = Markers { file: file.to_owned(), next };
        }
    }
}

/// Where the interface can be added for what comes next: behind the beginning of the scoping unit with its
/// `use`, `import` and `implicit` statements. Procedures of a unit come after its own directives, so the last
/// unit that has begun is the one.
struct Scopes {
    form: Form,
    /// The number of the line before which it can be added.
    place: usize,
    /// Only such statements have come.
    is_head: bool,
    /// The unit is an interface, which has no directives.
    in_interface: bool,
    /// The statement of the line before goes on.
    continues: bool,
    /// It belongs to the head.
    was_head: bool,
}

impl Scopes {
    fn new(form: Form) -> Scopes {
        Scopes { form, place: 0, is_head: true, in_interface: false, continues: false, was_head: false }
    }

    /// Sees the next line.
    fn see(&mut self, lines: &[&str], index: usize) {
        let Some((statement, is_continued)) = self.statement(lines, index) else { return };
        let continues = std::mem::replace(&mut self.continues, is_continued);
        if !continues {
            self.was_head = self.begins(&statement);
        }
        if self.was_head {
            self.place = index + 1;
        }
    }

    /// A line's statement in small letters, and whether the next line continues it; `None` for lines without
    /// one.
    fn statement(&mut self, lines: &[&str], index: usize) -> Option<(String, bool)> {
        let line = lines[index];
        if self.form.is_fixed {
            let is_comment = line.starts_with(['c', 'C', '*', '!', '#', 'd', 'D']) || line.trim().is_empty();
            if is_comment {
                return None;
            }
            // What continues is told by the line itself.
            self.continues = line.chars().nth(5).is_some_and(|mark| mark != ' ' && mark != '0')
                && line.chars().take(5).all(|letter| letter == ' ');
            let text = line.split('!').next().unwrap_or_default().trim().to_ascii_lowercase();
            return Some((text, false));
        }
        let text = without_comment(line).trim();
        if text.is_empty() || line.starts_with('#') {
            return None;
        }
        Some((text.to_ascii_lowercase(), text.ends_with('&')))
    }

    /// A statement begins. Returns true if the interface can be added only behind it.
    fn begins(&mut self, statement: &str) -> bool {
        let statement = statement.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ');
        let plain = without_parentheses(statement);
        let words: Vec<&str> = plain.split([' ', ',', ';', ':']).filter(|word| !word.is_empty()).collect();
        let is_end = |of: &str| {
            words.first() == Some(&"end") && words.get(1) == Some(&of)
                || plain.starts_with(&format!("end{of}"))
        };
        if self.in_interface {
            self.in_interface = !is_end("interface");
            return false;
        }
        if words.first() == Some(&"interface") || words[..] == ["abstract", "interface"] {
            (self.in_interface, self.is_head) = (true, false);
            return false;
        }
        let ends_unit = words[..] == ["end"]
            || ["program", "module", "submodule", "subroutine", "function", "procedure"]
                .into_iter()
                .any(is_end);
        if ends_unit || begins_unit(&words) {
            self.is_head = true;
            return true;
        }
        let is_of_head = ["use", "import", "implicit"].iter().any(|word| words.first() == Some(word));
        // A variable may have such a name, too.
        let is_assigned = plain.contains('=') && !plain.starts_with("use ");
        self.is_head &= is_of_head && !is_assigned;
        self.is_head
    }
}

/// Returns true for the first statement of a scoping unit.
fn begins_unit(words: &[&str]) -> bool {
    const BEFORE: [&str; 15] = [
        "recursive",
        "non_recursive",
        "pure",
        "impure",
        "elemental",
        "module",
        "integer",
        "real",
        "complex",
        "logical",
        "character",
        "double",
        "precision",
        "type",
        "class",
    ];
    if let [first @ ("program" | "module" | "submodule"), _, ..] = words {
        let is_short = words.len() == 2 || *first == "submodule" || words.get(1) == Some(&"procedure");
        if is_short {
            return true;
        }
    }
    let is_before = |word: &&str| BEFORE.contains(&word.split('*').next().unwrap_or_default());
    let kind = words.iter().find(|word| !is_before(word));
    let is_followed = words.last().is_some_and(|last| Some(last) != kind);
    matches!(kind, Some(&"subroutine" | &"function")) && is_followed
}

/// A line of free form without the comment at its end.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let end = line.char_indices().find(|(_, letter)| {
        match quote {
            Some(open) if *letter == open => quote = None,
            None if matches!(letter, '\'' | '"') => quote = Some(*letter),
            None if *letter == '!' => return true,
            _ => {}
        }
        false
    });
    &line[..end.map_or(line.len(), |(place, _)| place)]
}

/// A statement without what lies in parentheses.
fn without_parentheses(text: &str) -> String {
    let mut depth = 0;
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                plain.push(' ');
            }
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(extension: &str, text: &str) -> Option<String> {
        let form = Form::of(extension).expect("Fortran");
        form.rewrite(text.as_bytes(), OsStr::new("a.f")).map(|text| String::from_utf8(text).expect("letters"))
    }

    #[test]
    fn free_form_keeps_its_lines() {
        let text = "module m\nuse n\nimplicit none\ncontains\nsubroutine s(a, &\n  b)\n ! no\n use x, only: y => z\n\
            integer :: i\n  !$OMP parallel do &\n  !$omp & Schedule(Profiled, n, & ! why\n  !$omp 2)\ndo i = 1, 2\n";
        let new = rewritten("f90", text).expect("a clause");
        let expected = "# 1 \"a.f\"\nmodule m\nuse n\nimplicit none\ncontains\nsubroutine s(a, &\n  b)\n ! no\n \
            use x, only: y => z\n      interface\n      integer(c_int) function ompx_hiroba_schedule_of(k,c,e,s)bind(c)\n      use, intrinsic :: iso_c_binding, only: c_int\n\
            \x20     integer(c_int), value :: k, c, e, s\n      end function\n      end interface\n# 9 \"a.f\"\n\
            integer :: i\n\
            !$omp parallel do  Schedule( dynamic, ompx_hiroba_schedule_of(1003_4, int(n, 4), int(2, 4), int(0, 4)))\n# 13 \"a.f\"\ndo i = 1, 2\n";
        assert_eq!(new, expected);
    }

    #[test]
    fn fixed_form_stays_within_its_columns() {
        let text = "      program p\n      implicit none\nc     no\n      integer i\nC$OMP DO SCHEDULE(AWF,\nc$omp+ 4)\n\
            \x20     do i = 1, 2\n";
        let new = rewritten("f", text).expect("a clause");
        assert!(new.lines().all(|line| line.len() <= 72), "{new}");
        assert!(new.contains("implicit none\n      interface\n"), "{new}");
        assert!(new.contains("# 7 \"a.f\"\n      do i = 1, 2\n"), "{new}");
        assert!(
            new.contains("!$omp DO SCHEDULE( dynamic, ompx_hiroba_schedule_of(1002_4, int(4, 4), i\n!$omp&nt(0, 4), int(0, 4)))\n"),
            "{new}"
        );
    }

    #[test]
    fn other_directives_and_comments_stay() {
        for text in [
            "!$omp do schedule(dynamic)\n",
            "! !$omp do schedule(profiled)\n",
            "print *, '!$omp do schedule(profiled)'\n",
            "!$omp do schedule(profiled, )\n",
            "!$ompx do schedule(profiled)\n",
        ] {
            assert_eq!(rewritten("f90", text), None, "{text}");
        }
    }

    #[test]
    fn scoping_units_begin_where_they_do() {
        for (text, place) in [
            ("program p\n", 1),
            ("module m\n", 1),
            ("integer :: i\n", 0),
            ("subroutine s\n", 1),
            ("pure real(kind=8) function f(x)\n", 1),
            ("character*8 function f(x)\n", 1),
            ("recursive subroutine s(a, b)\n", 1),
            ("submodule (a) b\nmodule procedure c\n", 2),
            ("subroutine s\ninterface\nsubroutine t(a)\nend subroutine\nend interface\n", 1),
            ("subroutine s\nimplicit none; integer i\ni = 1\n", 2),
            ("subroutine s\nuse_it = 2\n", 1),
            ("subroutine s\nfunctions = 2\n", 1),
            ("subroutine s\nend\n", 2),
            ("subroutine s\nend if\n", 1),
            ("program p\ncall subroutine_of\n", 1),
        ] {
            let lines: Vec<&str> = text.lines().collect();
            let mut scopes = Scopes::new(Form::of("f90").expect("free form"));
            (0..lines.len()).for_each(|index| scopes.see(&lines, index));
            assert_eq!(scopes.place, place, "{text}");
        }
    }

    #[test]
    fn markers_of_a_preprocessor_count() {
        let text = "# 1 \"b.F90\"\n# 1 \"<built-in>\"\n# 1 \"b.F90\"\n\n# 4 \"b.F90\"\nprogram p\n\
            !$omp do schedule(factoring)\nend\n";
        let new = rewritten("F90", text).expect("a clause");
        assert!(new.ends_with("# 6 \"b.F90\"\nend\n"), "{new}");
    }
}
