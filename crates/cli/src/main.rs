//! The `hiroba` command: runs programs over several nodes, wraps compilers, measures, shows a first run.

mod arguments;
mod check;
mod demo;
mod doctor;
mod generate;
mod litmus;
mod trace;
mod unsealed;

use std::process::ExitCode;

use arguments::Command;
use hiroba_launch::{compiler, failure, run};
use hiroba_measure::{bench, reproduce};

fn main() -> ExitCode {
    let command = match arguments::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(failure) => return report(&failure),
    };
    let result = match command {
        Command::Show { text } => {
            show(&text);
            Ok(0)
        }
        Command::Run(options) => run::run(&options),
        Command::Agent => run::serve_as_agent(),
        Command::Compile { language, arguments } => compiler::compile(language, &arguments),
        Command::Bench(options) => bench::bench(&options),
        Command::BenchNode(plan) => bench::serve_as_node(&plan),
        Command::BenchJob(job) => unsealed::run_without_seal(&job),
        Command::Demo { nodes } => demo::demo(nodes),
        Command::Trace(command) => trace::look(&command),
        Command::Check { directory, json } => check::check(&directory, json),
        Command::Litmus(arguments) => litmus::litmus(&arguments),
        Command::Reproduce(options) => reproduce::reproduce(&options),
        Command::Generate { share } => generate::generate(arguments::described(), &share),
        Command::Doctor => Ok(doctor::doctor()),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => report(&failure),
    }
}

fn report(failure: &failure::Failure) -> ExitCode {
    failure::say(&failure.sentence);
    ExitCode::from(failure.status)
}

/// Prints help or the version to standard output. A reader that closed it early (`| head`) is no error.
fn show(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
