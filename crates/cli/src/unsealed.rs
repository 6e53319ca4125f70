//! A job whose messages are not encrypted, to measure what encryption costs.
//!
//! Nodes of such a job accept every message, whoever sent it, so it must run nothing that is worth an attack:
//! its nodes are this command itself (`bench-node`), on this machine only, whatever the arguments say. No
//! option of `hiroba run`, no variable and no peer can request such a job, and a program with `libhiroba.so`
//! refuses to join one ([`Runtime::join`](hiroba_node::Runtime::join)).

use std::ffi::OsString;

use crate::arguments::{self, Command};
use hiroba_launch::failure::{Failure, system_words};
use hiroba_launch::run;
use hiroba_measure::bench::UnsealedJob;

/// Launches the nodes of a measurement and returns the job's exit status.
pub fn run_without_seal(job: &UnsealedJob) -> Result<u8, Failure> {
    let failed =
        |error| Failure::new(format!("cannot run the job that is measured: {}", system_words(&error)));
    let hiroba = std::env::current_exe().map_err(failed)?;
    let plan = serde_json::to_string(&job.plan).map_err(|error| failed(error.into()))?;
    let words =
        ["hiroba", "run"].into_iter().chain(job.arguments.iter().map(String::as_str)).map(OsString::from);
    let program = [OsString::from("--"), hiroba.clone().into_os_string()];
    let Command::Run(mut options) = arguments::parse(words.chain(program))? else {
        return Err(Failure::new("expected options of a measured job, got a request for help"));
    };
    if options.hosts.is_some() || options.debug.is_some() || !options.variables.is_empty() {
        return Err(Failure::new(
            "a job without encryption runs on this machine only, and runs only Hiroba's own code",
        ));
    }
    options.program = hiroba.into_os_string();
    options.arguments = vec!["bench-node".into(), plan.into()];
    options.transport.without_seal = true;
    run::run(&options)
}
