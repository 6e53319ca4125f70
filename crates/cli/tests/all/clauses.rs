//! `hiroba cc`, `hiroba cxx` and `hiroba fc` with `schedule` clauses that OpenMP does not have.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::executables::may_run;
use crate::support::forms::PASSIVE;
use crate::support::{Called, finish, hiroba, start};

const SOURCE: &str = "#include <stdio.h>\n\
    #include \"span.h\"\n\
    int main(void) {\n\
    \x20   int sum = 0, line = 0;\n\
    #pragma omp parallel for schedule(profiled, CHUNK, span() / 4) \\\n\
    \x20       reduction(+ : sum) reduction(max : line)\n\
    \x20   for (int i = 0; i < span(); i++) {\n\
    \x20       sum += i;\n\
    \x20       line = __LINE__;\n\
    \x20   }\n\
    \x20   printf(\"%d %d %s\\n\", sum, line, __FILE__);\n\
    \x20   return 0;\n\
    }\n";
const HEADER: &str = "#define CHUNK 3\nstatic inline int span(void) { return 100; }\n";
const PRINTED: &str = "4950 9 sum.c\n";

fn wrapper(directory: &Path, language: &str, compiler: &str, arguments: &[&str]) -> Called {
    let mut command = hiroba(&[language]);
    let (_, variable) = [("cc", "HIROBA_CC"), ("cxx", "HIROBA_CXX"), ("fc", "HIROBA_FC")]
        .into_iter()
        .find(|(known, _)| *known == language)
        .expect("a language");
    command.args(arguments).env(variable, compiler).current_dir(directory);
    finish(start(&mut command))
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join("sum.c"), SOURCE).expect("a writable directory");
    fs::write(directory.path().join("span.h"), HEADER).expect("a writable directory");
    directory
}

fn is_there(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[track_caller]
fn runs(directory: &Path, program: &str) {
    let mut natively = Command::new(directory.join(program));
    let called = finish(start(natively.env("OMP_NUM_THREADS", "2").envs(PASSIVE)));
    assert_eq!(called.stdout, PRINTED, "natively: {called:?}");
    if may_run() {
        let called = finish(start(hiroba(&["run", "-n", "2", program]).current_dir(directory)));
        assert_eq!((called.status, called.stdout.as_str()), (0, PRINTED), "{called:?}");
    }
}

/// Lines keep their numbers, and objects and lists of dependences their names, with every compiler.
#[test]
fn clauses_are_rewritten_and_all_else_stays() {
    for (language, compiler) in [("cc", "cc"), ("cc", "clang"), ("cxx", "c++"), ("cxx", "clang++")] {
        if !is_there(compiler) {
            continue;
        }
        let directory = directory();
        let directory = directory.path();
        // clang++ calls a C++ source by the name of a C source deprecated.
        let options = ["-O0", "-g", "-fopenmp", "-Wall", "-Wextra", "-DUNUSED=1", "-I."];
        let compile = |more: &[&str]| wrapper(directory, language, compiler, &[&options, more].concat());
        let called = compile(&["-MD", "-c", "sum.c"]);
        assert_eq!(called.status, 0, "{compiler}: {called:?}");
        let dependences = fs::read_to_string(directory.join("sum.d")).expect("dependences");
        assert!(dependences.starts_with("sum.o:"), "{compiler}: {dependences}");
        for name in ["sum.c", "span.h"] {
            assert!(
                dependences.split_whitespace().any(|word| word.ends_with(name)),
                "{compiler}: {dependences}"
            );
        }
        assert!(!dependences.contains("/proc"), "{compiler}: {dependences}");
        assert_eq!(compile(&["sum.o", "-o", "of-object"]).status, 0, "{compiler}");
        runs(directory, "./of-object");
        let called = compile(&["sum.c", "-o", "at-once", "-lm"]);
        assert_eq!(called.status, 0, "{compiler}: {called:?}");
        runs(directory, "./at-once");
        let wrong = SOURCE.replace("sum += i;", "sum += j;");
        fs::write(directory.join("sum.c"), wrong).expect("a writable directory");
        let called = compile(&["-c", "sum.c"]);
        assert!(called.status != 0 && called.stderr.contains("sum.c:8:"), "{compiler}: {called:?}");
        // What cannot be preprocessed is reported once.
        fs::write(directory.join("span.h"), "#error nothing\n").expect("a writable directory");
        let called = compile(&["-c", "sum.c"]);
        assert_eq!(called.stderr.matches("span.h:1:2: error").count(), 1, "{compiler}: {called:?}");
    }
}

/// Several sources, of which one has such a clause.
#[test]
fn other_sources_are_compiled_as_they_are() {
    let directory = directory();
    let directory = directory.path();
    fs::write(directory.join("other.c"), "int other(void) { return OTHER; }\n")
        .expect("a writable directory");
    let called = wrapper(directory, "cc", "cc", &["-fopenmp", "-DOTHER=1", "-c", "sum.c", "other.c"]);
    assert_eq!(called.status, 0, "{called:?}");
    let called = wrapper(directory, "cc", "cc", &["-fopenmp", "sum.o", "other.o", "-o", "of-objects"]);
    assert_eq!(called.status, 0, "{called:?}");
    runs(directory, "./of-objects");
    let called =
        wrapper(directory, "cc", "cc", &["-fopenmp", "-DOTHER=1", "other.c", "sum.c", "-o", "at-once"]);
    assert_eq!(called.status, 0, "{called:?}");
    runs(directory, "./at-once");
}

/// The compiler gets its arguments as they are where nothing is to be rewritten.
#[test]
fn nothing_is_rewritten_without_such_a_clause() {
    let directory = directory();
    let directory = directory.path();
    let source =
        SOURCE.replace("schedule(profiled, CHUNK, span() / 4)", "schedule(dynamic) /* not profiled */");
    fs::write(directory.join("sum.c"), source).expect("a writable directory");
    let arguments = ["-fopenmp", "-c", "sum.c", "-o", "sum.o"];
    for compiler in ["echo", "echo -E"] {
        let called = wrapper(directory, "cc", compiler, &arguments);
        assert!(called.stdout.trim_end().ends_with("-fopenmp -c sum.c -o sum.o"), "{called:?}");
        assert!(!called.stdout.contains("/proc"), "{called:?}");
    }
}

/// A clause that only a header has, which another header includes.
#[test]
fn clauses_of_headers_are_rewritten() {
    for (language, compiler) in [("cc", "cc"), ("cc", "clang"), ("cxx", "c++"), ("cxx", "clang++")] {
        if !is_there(compiler) {
            continue;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str, text: &str| {
            fs::create_dir_all(directory.path().join("inner")).expect("a writable directory");
            fs::write(directory.path().join(name), text).expect("a writable directory");
        };
        file("sum.c", &SOURCE.replacen("#include \"span.h\"", "#include \"outer.h\"", 1).replace(
            "#pragma omp parallel for schedule(profiled, CHUNK, span() / 4) \\\n        reduction(+ : sum) reduction(max : line)\n\
             \x20   for (int i = 0; i < span(); i++) {\n        sum += i;\n        line = __LINE__;\n    }\n",
            "    sum_up(&sum);\n\n\n\n    line = __LINE__;\n\n",
        ));
        file("outer.h", "#include \"loop.h\"\n");
        file(
            "inner/loop.h",
            "static void sum_up(int *result) {\n    int sum = 0;\n\
             #pragma omp parallel for schedule(profiled, 3) reduction(+ : sum)\n\
             \x20   for (int i = 0; i < 100; i++)\n        sum += i;\n    *result = sum;\n}\n",
        );
        let options = ["-O2", "-fopenmp", "-Wall", "-Wextra", "-Iinner", "sum.c", "-o", "of-header"];
        let called = wrapper(directory.path(), language, compiler, &options);
        assert_eq!(called.status, 0, "{compiler}: {called:?}");
        runs(directory.path(), "./of-header");
    }
}

const FREE: &str = "module measured\n\
    \x20 implicit none\n\
    \x20 interface\n\
    \x20   subroutine unused(a)\n\
    \x20     integer :: a\n\
    \x20   end subroutine\n\
    \x20 end interface\n\
    contains\n\
    \x20 subroutine own(owner, &\n\
    \x20                n)\n\
    \x20   use omp_lib, only: omp_get_thread_num\n\
    \x20   integer, intent(in) :: n\n\
    \x20   integer, intent(out) :: owner(n)\n\
    \x20   integer :: i\n\
    !$omp parallel do &\n\
    !$omp& schedule(Profiled, 0, & ! in blocks\n\
    !$omp& 2*n/n)\n\
    \x20   do i = 1, n\n\
    \x20     owner(i) = omp_get_thread_num()\n\
    \x20   end do\n\
    \x20 end subroutine\n\
    end module\n\
    program blocks\n\
    \x20 use measured\n\
    \x20 integer :: owner(2000), round\n\
    \x20 do round = 1, 2\n\
    \x20   call own(owner, 2000)\n\
    \x20 end do\n\
    \x20 print '(i0)', count(owner(2:) /= owner(:1999))\n\
    end program\n";
const FIXED: &str = "      program blocks\n\
    C     In fixed form.\n\
    \x20     use omp_lib\n\
    \x20     implicit none\n\
    \x20     integer owner(2000), round, i\n\
    \x20     do 20 round = 1, 2\n\
    C$OMP PARALLEL DO SCHEDULE(PROFILED,\n\
    c$omp+ 0, 2)\n\
    \x20       do 10 i = 1, 2000\n\
    \x20         owner(i) = omp_get_thread_num()\n\
    \x2010      continue\n\
    \x2020    continue\n\
    \x20     print '(i0)', count(owner(2:) .ne. owner(:1999))\n\
    \x20     end\n";

/// Fortran in both forms, preprocessed or not: in its second execution each of two threads has one block.
#[test]
fn clauses_of_fortran_are_rewritten() {
    if !is_there("gfortran") {
        return;
    }
    let preprocessed =
        format!("#define SPAN 2000\n{}", FREE.replace("2000", "SPAN").replace("1999", "SPAN - 1"));
    for (name, text, wrong_line) in
        [("free.f90", FREE, 19), ("fixed.f", FIXED, 10), ("free.F90", &preprocessed, 20)]
    {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let directory = directory.path();
        let source = directory.join(name);
        fs::write(&source, text).expect("a writable directory");
        let compile = |language: &str, more: &[&str]| {
            let compiler = if language == "cc" { "cc" } else { "gfortran" };
            wrapper(directory, language, compiler, &[&["-O2", "-g", "-fopenmp", "-Wall"], more].concat())
        };
        let called = compile("fc", &["-c", name]);
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{name}: {called:?}");
        // No library of Hiroba's is needed.
        let object = Path::new(name).with_extension("o");
        let mut link = Command::new("gfortran");
        link.args(["-fopenmp", "-o", "of-object"]).arg(object).current_dir(directory);
        assert_eq!(finish(start(&mut link)).status, 0, "{name}");
        let called = compile("cc", &[name, "-o", "at-once", "-lgfortran"]);
        assert_eq!(called.status, 0, "{name}: {called:?}");
        for program in ["./of-object", "./at-once"] {
            let mut natively = Command::new(directory.join(program));
            let called = finish(start(natively.env("OMP_NUM_THREADS", "2").envs(PASSIVE)));
            assert_eq!(called.status, 0, "natively: {called:?}");
            if may_run() {
                let called = finish(start(hiroba(&["run", "-n", "2", program]).current_dir(directory)));
                assert_eq!((called.status, called.stdout.as_str()), (0, "1\n"), "{name}: {called:?}");
            }
        }
        fs::write(&source, text.replace("= omp_get_thread_num()", "= .true. + 1"))
            .expect("a writable directory");
        let called = compile("fc", &["-c", name]);
        assert!(called.status != 0 && called.stderr.contains(&format!("{name}:{wrong_line}:")), "{called:?}");
        fs::write(&source, text).expect("a writable directory");
        compile("fc", &["-S", name]).says(125, "expected -c");
    }
}

/// A clause in a file that another included file includes, beside the source and in a directory of its own.
#[test]
fn clauses_of_files_that_fortran_includes_are_rewritten() {
    if !is_there("gfortran") {
        return;
    }
    for (name, text) in [("free.f90", FREE), ("fixed.f", FIXED), ("free.F90", FREE)] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let directory = directory.path();
        let file = |name: &str, text: &str| {
            fs::create_dir_all(directory.join("inner")).expect("a writable directory");
            fs::write(directory.join(name), text).expect("a writable directory");
        };
        // The directive and its loop move to the file.
        let lower = text.to_ascii_lowercase();
        let begin = lower.find("$omp parallel do").expect("a directive") - 1;
        let end = lower.find("\n 10 ").or(lower.find("\n    end do")).expect("an end of the loop") + 1;
        let end = end + text[end..].find('\n').expect("a line") + 1;
        file("outer.inc", "      include 'loop.inc'\n");
        file("inner/loop.inc", &text[begin..end]);
        file(name, &format!("{}      Include \"outer.inc\" ! a loop\n{}", &text[..begin], &text[end..]));
        let compile =
            || wrapper(directory, "fc", "gfortran", &["-g", "-fopenmp", "-Iinner", name, "-o", "all"]);
        let called = compile();
        assert_eq!((called.status, called.stderr.as_str()), (0, ""), "{name}: {called:?}");
        let natively = Command::new(directory.join("all")).env("OMP_NUM_THREADS", "2").output();
        assert!(natively.is_ok_and(|output| output.status.success()), "{name}");
        if may_run() {
            let called = finish(start(hiroba(&["run", "-n", "2", "./all"]).current_dir(directory)));
            assert_eq!((called.status, called.stdout.as_str()), (0, "1\n"), "{name}: {called:?}");
        }
        let source = fs::read_to_string(directory.join(name)).expect("the source");
        let wrong = source.lines().position(|line| line.contains("print")).expect("a line") + 1;
        file(name, &source.replace("print '(i0)',", "print = = '(i0)',"));
        let called = compile();
        assert!(called.status != 0 && called.stderr.contains(&format!("{name}:{wrong}:")), "{called:?}");
        file("inner/loop.inc", &text[begin..end].replace("= omp_get_thread_num()", "= .true. + 1"));
        let called = compile();
        assert!(called.status != 0 && called.stderr.contains("loop.inc:"), "{called:?}");
    }
}

/// All loops of a program with each clause: the schedule is what the clause says.
#[test]
fn clauses_are_the_schedules_that_they_name() {
    if !may_run() {
        return;
    }
    let text = include_str!("../../../../tests/programs/openmp_schedules.c");
    for compiler in ["cc", "clang"].into_iter().filter(|compiler| is_there(compiler)) {
        for (clause, given, printed) in [
            ("profiled", "speeds", "parts follow speeds\n"),
            ("profiled, 5 + 5, 0", "speeds", "parts follow speeds\n"),
            ("profiled, 4, 3, 2", "700", "every iteration once\n"),
            ("factoring, 2", "700", "every iteration once\n"),
            ("awf", "700", "every iteration once\n"),
        ] {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let source = text.replace("schedule(runtime)", &format!("schedule({clause})"));
            fs::write(directory.path().join("loops.c"), source).expect("a writable directory");
            // Without optimisation each loop must still have a name of its own.
            let level = if given == "speeds" { "-O0" } else { "-O2" };
            let options = [level, "-Wall", "-Wextra", "-Werror", "-fopenmp", "loops.c", "-o", "loops"];
            let called = wrapper(directory.path(), "cc", compiler, &options);
            assert_eq!(called.status, 0, "{compiler} {clause}: {called:?}");
            for nodes in ["2", "4"] {
                if nodes == "4" && given == "speeds" {
                    continue;
                }
                let line = ["run", "-n", nodes, "./loops", given];
                let called = finish(start(hiroba(&line).current_dir(&directory)));
                let is_right = (called.status, called.stdout.as_str()) == (0, printed);
                assert!(is_right, "{compiler} {clause}, {nodes} nodes: {called:?}");
            }
        }
    }
}
