//! The jobs that are measured: this command, or a program, on the nodes of a job.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use hiroba_trace::NodeStatistics;
use rustix::process::Signal;

use super::told::Told;
use super::{BenchOptions, BenchPlan, Report, Setting, UnsealedJob};
use hiroba_launch::failure::{Failure, STATUS_HIROBA, system_words};
use hiroba_launch::lines::read_lines;
use hiroba_launch::run::remarks;

/// What the jobs of a measurement have in common, and what differs.
pub struct Job<'a> {
    pub options: &'a BenchOptions,
    pub setting: &'a Setting,
    pub protocol: &'static str,
    pub nodes: u16,
}

impl Job<'_> {
    /// Runs this command on the nodes and prints its rows as they arrive. Returns the exit status if the job
    /// failed.
    pub fn measure(&self, plan: &BenchPlan, told: &mut Told) -> Result<Result<(), u8>, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot run the job that is measured: {}", system_words(&error)))
        };
        let mut child =
            self.command_of_nodes(plan).and_then(|mut command| command.spawn()).map_err(failed)?;
        let mut accounts = Vec::new();
        read_lines(child.stdout.take().expect("piped"), failed, |line| {
            match serde_json::from_slice(line) {
                Ok(Report::Progress(what)) => told.progress(&what),
                Ok(Report::Row(mut row)) => {
                    if self.options.without_seal && !row.fabric.is_empty() {
                        row.state += ", without seal";
                    }
                    told.row(row);
                }
                #[cfg(feature = "legs")]
                Ok(Report::Legs(legs)) => told.legs(legs),
                Ok(Report::Account(account)) => accounts.push(*account),
                Err(error) => {
                    return Err(Failure::new(format!("a measuring node sent an invalid row: {error}")));
                }
            }
            Ok(())
        })?;
        let ended = wait_for(child).map_err(failed)?;
        told.clear_progress();
        if ended.is_ok() {
            accounts.sort_by_key(|account: &NodeStatistics| account.node);
            told.end_of_job(&accounts);
        }
        Ok(ended)
    }

    fn command_of_nodes(&self, plan: &BenchPlan) -> std::io::Result<Command> {
        let plan_in_words = serde_json::to_string(plan)?;
        if self.options.without_seal {
            let job = UnsealedJob { arguments: self.arguments(), plan: plan.clone() };
            let mut command = command()?;
            command.arg("bench-job").arg(serde_json::to_string(&job)?);
            return Ok(command);
        }
        let hiroba = std::env::current_exe()?;
        self.command_of(&[], [hiroba.as_os_str(), "bench-node".as_ref(), plan_in_words.as_ref()])
    }

    /// Returns `hiroba run` with further options, and a program with its arguments.
    pub fn command_of<'a>(
        &self,
        options: &[String],
        program: impl IntoIterator<Item = &'a OsStr>,
    ) -> std::io::Result<Command> {
        let mut command = command()?;
        command.arg("run").args(self.arguments()).args(options).arg("--").args(program);
        Ok(command)
    }

    /// Returns the options of `hiroba run`.
    fn arguments(&self) -> Vec<String> {
        let (count, setting) = (self.nodes.to_string(), self.setting);
        let shape = ["-n", &count, "--fabric", self.options.fabric.name(), "--protocol", self.protocol];
        let choices = ["--fault-source", setting.fault_source, "--write-tracking", setting.write_tracking];
        shape.into_iter().chain(choices).map(str::to_owned).collect()
    }
}

/// Returns this command for running a job: its standard output is read, and it ends with the measurement.
fn command() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    remarks::omit_those_of_allocations(&mut command);
    // If the measurement is killed, its job ends too.
    let prepare = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: a system call only, which is allowed between fork and exec.
    unsafe { command.pre_exec(prepare) };
    Ok(command)
}

/// Waits for a job whose output has ended. Returns its exit status if it failed, in which case it has printed
/// the reason.
pub fn wait_for(mut child: Child) -> std::io::Result<Result<(), u8>> {
    let status = child.wait()?;
    Ok(match status.success() {
        true => Ok(()),
        false => Err(status.code().map_or(STATUS_HIROBA, |code| code as u8)),
    })
}
