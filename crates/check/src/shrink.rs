//! Shrinking: from a failing case to a litmus program that a person can read.
//!
//! Read first: Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*, IEEE TSE 28, 2002
//! (delta debugging).
//!
//! Each removal keeps the program well-formed: it removes an access, a hold of a lock with or without what it
//! guards, a meeting in all threads at once, a publication with its receipt. A smaller program is taken if it
//! fails as the larger one did and has no data race. Without some instruction another schedule may be needed
//! to show the bug, so several are tried.

use core::fmt::{self, Write as _};

use hiroba_base::NodeId;
use hiroba_protocol::WriteTracking;
use hiroba_wire::AtomicOperation;

use crate::cluster::NetworkChoice;
use crate::mutant::Mutant;
use crate::program::{Address, Instruction, Program, Width};
use crate::swarm::{Case, Conditions, Reach, Wrong, examine};

/// The number of schedules that are tried for a smaller program.
const SCHEDULES: u64 = 40;

/// The maximum number of runs for shrinking.
const RUNS_MAX: u64 = 60_000;

/// Returns true if both runs fail in the same way.
fn is_alike(one: &Wrong, other: &Wrong) -> bool {
    match (one, other) {
        (Wrong::Failed(one), Wrong::Failed(other)) => {
            core::mem::discriminant(one) == core::mem::discriminant(other)
        }
        (Wrong::Inconsistent(_), Wrong::Inconsistent(_)) => true,
        _ => false,
    }
}

struct Shrinker {
    case: Case,
    wrong: Wrong,
    mutant: Option<Mutant>,
    runs: u64,
}

/// Returns the smallest case found that fails like this one, and how it fails; `None` if this one does not
/// fail.
pub fn shrink(case: &Case, mutant: Option<Mutant>) -> Option<(Case, Wrong)> {
    let wrong = examine(case, mutant).err()?;
    let mut shrinker = Shrinker { case: case.clone(), wrong, mutant, runs: 0 };
    shrinker.simplify_conditions();
    loop {
        let before = shrinker.case.program.clone();
        shrinker.empty_threads();
        shrinker.take_out_meetings();
        shrinker.take_out_publications();
        shrinker.take_out_stretches();
        shrinker.take_out_locks();
        shrinker.drop_nodes();
        if shrinker.case.program == before || shrinker.runs > RUNS_MAX {
            return Some((shrinker.case, shrinker.wrong));
        }
    }
}

impl Shrinker {
    /// Takes the smaller case if it fails alike under some schedule, and returns true if so.
    fn takes(&mut self, program: Program, conditions: Conditions) -> bool {
        let own = conditions.schedule;
        for schedule in core::iter::once(own).chain(0..SCHEDULES) {
            if self.runs > RUNS_MAX {
                return false;
            }
            self.runs += 1;
            let case = Case { program: program.clone(), conditions: Conditions { schedule, ..conditions } };
            match examine(&case, self.mutant) {
                Err(wrong) if is_alike(&wrong, &self.wrong) => {
                    (self.case, self.wrong) = (case, wrong);
                    return true;
                }
                Err(Wrong::Racy(_)) => return false,
                _ => {}
            }
        }
        false
    }

    fn takes_program(&mut self, program: Program) -> bool {
        program != self.case.program && self.takes(program, self.case.conditions)
    }

    fn simplify_conditions(&mut self) {
        let plain = Conditions::plain(0);
        let simpler: [fn(&mut Conditions, &Conditions); 5] = [
            |conditions, _| conditions.network = NetworkChoice::Shuffled,
            |conditions, _| conditions.reach = Reach::Nobody,
            |conditions, plain| conditions.rest_after = plain.rest_after,
            |conditions, plain| conditions.below_max = plain.below_max,
            |conditions, _| conditions.tracking = WriteTracking::Fault,
        ];
        for simplify in simpler {
            let mut conditions = self.case.conditions;
            simplify(&mut conditions, &plain);
            if conditions != self.case.conditions {
                self.takes(self.case.program.clone(), conditions);
            }
        }
    }

    fn threads(&self) -> core::ops::Range<usize> {
        0..self.case.program.threads.len()
    }

    /// Empties threads, except for meetings with others.
    fn empty_threads(&mut self) {
        for thread in self.threads() {
            let mut program = self.case.program.clone();
            let instructions = &mut program.threads[thread].instructions;
            instructions.retain(|instruction| matches!(instruction, Instruction::Collective(_)));
            self.takes_program(program);
        }
    }

    fn take_out_meetings(&mut self) {
        let meetings = |program: &Program| {
            let team = program.threads.iter().find(|script| script.in_team);
            team.map_or(0, |script| {
                script.instructions.iter().filter(|instruction| is_meeting(instruction)).count()
            })
        };
        let mut ordinal = 0;
        while ordinal < meetings(&self.case.program) {
            let mut program = self.case.program.clone();
            for script in program.threads.iter_mut().filter(|script| script.in_team) {
                let all = script.instructions.iter().enumerate();
                let found = all
                    .filter(|(_, instruction)| is_meeting(instruction))
                    .map(|(index, _)| index)
                    .nth(ordinal);
                found.into_iter().for_each(|index| take_out(&mut script.instructions, &[index]));
            }
            if !self.takes_program(program) {
                ordinal += 1;
            }
        }
    }

    fn take_out_publications(&mut self) {
        let tags: std::collections::BTreeSet<u16> = self
            .case
            .program
            .threads
            .iter()
            .flat_map(|script| &script.instructions)
            .filter_map(tag_of)
            .collect();
        for tag in tags {
            let mut program = self.case.program.clone();
            for script in &mut program.threads {
                let of_tag = indices(&script.instructions, |instruction| tag_of(instruction) == Some(tag));
                take_out(&mut script.instructions, &of_tag);
            }
            self.takes_program(program);
        }
    }

    /// Removes whole stretches of a thread first, then shorter ones, down to single accesses. Instructions
    /// that wait for others stay.
    fn take_out_stretches(&mut self) {
        for thread in self.threads() {
            let mut length = self.case.program.threads[thread].instructions.len().max(1);
            loop {
                let mut first = 0;
                while first < self.case.program.threads[thread].instructions.len() {
                    let mut program = self.case.program.clone();
                    let instructions = &mut program.threads[thread].instructions;
                    let end = (first + length).min(instructions.len());
                    let plain = indices(&instructions[first..end], is_plain);
                    let plain: Vec<usize> = plain.into_iter().map(|index| first + index).collect();
                    take_out(instructions, &plain);
                    if plain.is_empty() || !self.takes_program(program) {
                        first += length;
                    }
                }
                if length == 1 {
                    break;
                }
                length = length.div_ceil(2);
            }
        }
    }

    /// Removes a lock and the unlock that ends its hold; for a `TryLock` also what depends on it.
    fn take_out_locks(&mut self) {
        for thread in self.threads() {
            let mut index = 0;
            while index < self.case.program.threads[thread].instructions.len() {
                let mut program = self.case.program.clone();
                let instructions = &mut program.threads[thread].instructions;
                let hold = hold_at(instructions, index);
                take_out(instructions, &hold);
                if hold.is_empty() || !self.takes_program(program) {
                    index += 1;
                }
            }
        }
    }

    /// Removes the last node if its threads only meet.
    fn drop_nodes(&mut self) {
        while self.case.program.nodes > 2 {
            let mut program = self.case.program.clone();
            program.nodes -= 1;
            let last = NodeId(program.nodes);
            program.threads.retain(|script| script.node != last);
            let names_last = |instruction: &Instruction| match instruction {
                Instruction::Publish { to, .. } => *to == last,
                Instruction::AwaitPublished { from, .. } => *from == last,
                Instruction::Post { port, .. }
                | Instruction::Take { port, .. }
                | Instruction::Pass { port, .. } => program.ports.get(usize::from(*port)) == Some(&last),
                _ => false,
            };
            let homed_there =
                |region: &crate::program::Region| region.placement == hiroba_wire::Placement::On(last);
            let is_named = program.threads.iter().flat_map(|script| &script.instructions).any(names_last)
                || program.regions.iter().any(homed_there);
            if is_named || !self.takes_program(program) {
                return;
            }
        }
        let mut program = self.case.program.clone();
        let meets = program.threads.iter().any(|script| script.instructions.iter().any(is_meeting));
        program.threads.retain(|script| meets && script.in_team || !script.instructions.is_empty());
        self.takes_program(program);
    }
}

fn is_meeting(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Collective(_))
}

/// Returns true for an instruction that waits for no thread, and that no thread waits for.
fn is_plain(instruction: &Instruction) -> bool {
    matches!(
        instruction,
        Instruction::Load { .. }
            | Instruction::Store { .. }
            | Instruction::StoreFrom { .. }
            | Instruction::Atomic { .. }
            | Instruction::Prefetch(_)
            | Instruction::Add(..)
            | Instruction::AddRegister(..)
    )
}

fn tag_of(instruction: &Instruction) -> Option<u16> {
    match instruction {
        Instruction::Publish { tag, .. } | Instruction::AwaitPublished { tag, .. } => Some(*tag),
        _ => None,
    }
}

fn indices(instructions: &[Instruction], chosen: impl Fn(&Instruction) -> bool) -> Vec<usize> {
    let all = instructions.iter().enumerate();
    all.filter(|(_, instruction)| chosen(instruction)).map(|(index, _)| index).collect()
}

/// Returns the instructions of the hold that begins here.
fn hold_at(instructions: &[Instruction], index: usize) -> Vec<usize> {
    let is_end = |lock| move |instruction: &Instruction| *instruction == Instruction::Unlock(lock);
    match &instructions[index] {
        Instruction::Lock(lock) => {
            let end = instructions[index..].iter().position(is_end(*lock));
            end.map_or_else(Vec::new, |end| vec![index, index + end])
        }
        Instruction::TryLock(..) => match instructions.get(index + 1) {
            Some(Instruction::JumpUnless { to, .. }) if *to > index => (index..*to).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Removes instructions and adjusts jumps.
fn take_out(instructions: &mut Vec<Instruction>, taken: &[usize]) {
    let moved = |to: usize| to - taken.iter().filter(|index| **index < to).count();
    let kept = instructions.drain(..).enumerate().filter(|(index, _)| !taken.contains(index));
    let kept = kept.map(|(_, instruction)| match instruction {
        Instruction::JumpUnless { register, is, to } => {
            Instruction::JumpUnless { register, is, to: moved(to) }
        }
        other => other,
    });
    *instructions = kept.collect();
}

/// Returns the number of instructions of a program.
pub fn instructions(program: &Program) -> usize {
    program.threads.iter().map(|script| script.instructions.len()).sum()
}

/// Formats a case in the language of [`crate::program::script`], ready for the catalogue.
pub struct Listing<'a>(pub &'a Case);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { program, conditions } = self.0;
        writeln!(f, "// {conditions:?}")?;
        writeln!(f, "Program::on({}, 1, vec![", program.nodes)?;
        for script in &program.threads {
            let make = if script.in_team { "team" } else { "foreign" };
            let code: Vec<String> = script.instructions.iter().map(code).collect();
            writeln!(f, "    Script::{make}({}, vec![{}]),", script.node, code.join(", "))?;
        }
        f.write_str("])\n.with_regions(vec![")?;
        for region in &program.regions {
            let granules_per_page =
                (region.page_size.bytes() / crate::program::GRANULE_BYTES as usize) as u64;
            let (first, pages) = (region.granules.first.0, region.granules.count / granules_per_page.max(1));
            write!(
                f,
                "Region::new({first}, {pages}, {granules_per_page}, Placement::{:?}), ",
                region.placement
            )?;
        }
        f.write_char(']')?;
        f.write_char(')')
    }
}

fn place(at: Address, width: Width) -> String {
    match width {
        Width::Byte => format!("Address::byte({}, {})", at.granule.0, at.offset),
        Width::Word => format!("Address::word({}, {})", at.granule.0, at.offset / 8),
    }
}

fn code(instruction: &Instruction) -> String {
    match instruction {
        Instruction::Store { at, width: Width::Byte, value } => {
            format!("store_byte({}, {value})", place(*at, Width::Byte))
        }
        Instruction::Store { at, width, value } => format!("store({}, {value})", place(*at, *width)),
        Instruction::Load { at, width: Width::Byte, into } => {
            format!("load_byte({}, {})", place(*at, Width::Byte), into.0)
        }
        Instruction::Load { at, width, into } => format!("load({}, {})", place(*at, *width), into.0),
        Instruction::StoreFrom { at, from } => format!("store_from({}, {})", place(*at, Width::Word), from.0),
        Instruction::Lock(lock) => format!("lock({})", lock.0),
        Instruction::TryLock(lock, into) => format!("try_lock({}, {})", lock.0, into.0),
        Instruction::Unlock(lock) => format!("unlock({})", lock.0),
        Instruction::Wait(cond, lock) => format!("wait({}, {})", cond.0, lock.0),
        Instruction::Signal(cond) => format!("signal({})", cond.0),
        Instruction::Broadcast(cond) => format!("broadcast({})", cond.0),
        Instruction::Collective(hiroba_wire::Collective::Barrier) => "barrier()".to_owned(),
        Instruction::Collective(hiroba_wire::Collective::Leave) => "leave()".to_owned(),
        Instruction::Add(register, value) => format!("add({}, {value})", register.0),
        Instruction::AddRegister(register, other) => format!("add_register({}, {})", register.0, other.0),
        Instruction::JumpUnless { register, is, to } => format!("jump_unless({}, {is}, {to})", register.0),
        Instruction::Atomic { at, operation: AtomicOperation::FetchAdd(delta), into } => {
            format!("fetch_add({}, {delta}, {})", place(*at, Width::Word), into.0)
        }
        other => format!("Instruction::{other:?}"),
    }
}
