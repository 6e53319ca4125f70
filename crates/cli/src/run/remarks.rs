//! Remarks on a run that is valid, but perhaps not what the user meant.

use std::process::Command;

use crate::failure::say;
use crate::run::options::RunOptions;

/// Slurm's variables for the number of hosts of an allocation, the newer one first.
const ALLOCATED_HOSTS: [&str; 2] = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];

/// Prints remarks about a command line and its environment on standard error.
pub fn make(options: &RunOptions) {
    let value = |variable: &str| std::env::var(variable).ok();
    let remarks = [of_colons(options), of_allocation(options, &value)];
    remarks.iter().flatten().for_each(|remark| say(remark));
}

/// Suppresses such remarks in the jobs of a command that measures this machine.
pub fn omit_those_of_allocations(command: &mut Command) {
    for variable in ALLOCATED_HOSTS {
        command.env_remove(variable);
    }
}

/// Remarks on colons: `mpirun` separates several programs by them.
fn of_colons(options: &RunOptions) -> Option<String> {
    options.arguments.iter().any(|argument| argument == ":").then(|| {
        format!(
            "the ':' is passed to {} as an argument, since a job runs one program on all its nodes; to make them do \
             different things, let the program test hiroba_node()",
            options.program.to_string_lossy()
        )
    })
}

fn of_allocation(options: &RunOptions, value: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if options.hosts.is_some() {
        return None;
    }
    let hosts =
        ALLOCATED_HOSTS.into_iter().find_map(value)?.parse::<u32>().ok().filter(|hosts| *hosts > 1)?;
    Some(format!(
        "this job runs on this machine only, though Slurm has allocated {hosts} hosts; to use all, write: \
         hiroba run -H \"$(scontrol show hostnames | paste -sd,)\" PROGRAM"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{self, Command};

    fn options(line: &str) -> RunOptions {
        match arguments::parse(std::iter::once("hiroba").chain(line.split(' ')).map(Into::into)) {
            Ok(Command::Run(options)) => *options,
            other => panic!("expected a run, got {other:?}"),
        }
    }

    #[test]
    fn an_allocation_of_several_hosts_is_noticed() {
        let of = |line: &str, variable: &str, number: &str| {
            of_allocation(&options(line), &|asked| (asked == variable).then(|| number.to_owned()))
        };
        for variable in ALLOCATED_HOSTS {
            let remark = of("run ./a", variable, "4").expect("four hosts");
            assert!(remark.contains("this machine only") && remark.contains("4 hosts"), "{remark}");
            assert_eq!(of("run -H a,b ./a", variable, "4"), None, "hosts were named");
            assert_eq!(of("run ./a", variable, "1"), None);
            assert_eq!(of("run ./a", variable, "many"), None);
        }
        assert_eq!(of("run ./a", "SLURM_JOB_ID", "4"), None);
    }

    #[test]
    fn a_colon_between_programs_is_noticed() {
        let remark = of_colons(&options("run -n 2 ./a : -n 2 ./b")).expect("a colon");
        assert!(remark.contains("passed to ./a") && remark.contains("hiroba_node()"), "{remark}");
        assert_eq!(of_colons(&options("run ./a a:b :: x")), None);
    }
}
