//! Remarks on a run that is valid, but perhaps not what the user meant.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use crate::failure::say;
use crate::run::options::RunOptions;

/// Slurm's variables for the number of hosts of an allocation, the newer one first.
const ALLOCATED_HOSTS: [&str; 2] = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];

/// Prints remarks about a command line and its environment on standard error.
pub fn make(options: &RunOptions) {
    let value = |variable: &str| std::env::var(variable).ok();
    let remarks =
        [of_colons(&options.program, &options.arguments), of_allocation(options.hosts.is_some(), &value)];
    remarks.iter().flatten().for_each(|remark| say(remark));
}

/// Suppresses such remarks in the jobs of a command that measures this machine.
pub fn omit_those_of_allocations(command: &mut Command) {
    for variable in ALLOCATED_HOSTS {
        command.env_remove(variable);
    }
}

/// Remarks on colons: `mpirun` separates several programs by them.
fn of_colons(program: &OsStr, arguments: &[OsString]) -> Option<String> {
    arguments.iter().any(|argument| argument == ":").then(|| {
        format!(
            "the ':' is passed to {} as an argument, since a job runs one program on all its nodes; to make them do \
             different things, let the program test hiroba_node()",
            program.to_string_lossy()
        )
    })
}

fn of_allocation(hosts_are_named: bool, value: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if hosts_are_named {
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

    #[test]
    fn an_allocation_of_several_hosts_is_noticed() {
        let of = |hosts_are_named: bool, variable: &str, number: &str| {
            of_allocation(hosts_are_named, &|asked| (asked == variable).then(|| number.to_owned()))
        };
        for variable in ALLOCATED_HOSTS {
            let remark = of(false, variable, "4").expect("four hosts");
            assert!(remark.contains("this machine only") && remark.contains("4 hosts"), "{remark}");
            assert_eq!(of(true, variable, "4"), None);
            assert_eq!(of(false, variable, "1"), None);
            assert_eq!(of(false, variable, "many"), None);
        }
        assert_eq!(of(false, "SLURM_JOB_ID", "4"), None);
    }

    #[test]
    fn a_colon_between_programs_is_noticed() {
        let of = |arguments: &str| {
            let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
            of_colons(OsStr::new("./a"), &arguments)
        };
        let remark = of(": -n 2 ./b").expect("a colon");
        assert!(remark.contains("passed to ./a") && remark.contains("hiroba_node()"), "{remark}");
        assert_eq!(of("a:b :: x"), None);
    }
}
