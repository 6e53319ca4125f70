//! `hiroba litmus`: a node of a job that runs a program of the checker's language, so that real runs can be
//! checked access by access:
//!
//! `hiroba run -n 3 --trace DIR hiroba litmus --seed 7 && hiroba check DIR`

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use clap::Args;
use hiroba_base::{NodeId, PageRange, PageSize};
use hiroba_judge::litmus::{Litmus, catalogue, posts, sequential};
use hiroba_judge::program::{Address, GRANULE_BYTES, Instruction, Program, REGISTERS, Register, Width};
use hiroba_judge::random_program::{Shape, generate};
use hiroba_node::ports::{
    Call, DataType, Disposition, Message, Name, Outcome, Patience, PortError, RightToSend, service,
};
use hiroba_node::{Protocol, Runtime};
use hiroba_wire::Collective;

use hiroba_launch::failure::Failure;

/// A thread that takes more steps is in an endless loop.
const STEPS_MAX: u64 = 10_000_000;

/// The program to run.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct LitmusArguments {
    /// A program of the catalogue
    #[arg(value_name = "NAME", conflicts_with = "seed")]
    name: Option<String>,
    /// Run the random program of this seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads of each node's team, for a random program
    #[arg(long, value_name = "THREADS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    team: u16,
    /// Start up to this many further threads on each node, for a random program
    #[arg(long, value_name = "THREADS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=8))]
    foreign: u16,
    /// The protocols that keep the program's regions coherent, in turn, instead of the job's
    #[arg(long, value_name = "PROTOCOL", value_delimiter = ',')]
    under: Vec<String>,
    /// Give each page of the program 2 MiB, so that protocols that map large runs of pages do so
    #[arg(long)]
    large_pages: bool,
    /// Print the -n and -t that the program needs, or list the catalogue's programs that real nodes can run,
    /// with theirs
    #[arg(long)]
    list: bool,
}

/// Lists programs, or takes part in running one.
///
/// # Errors
/// Fails if the program is unknown, or needs a different job than this one.
pub fn litmus(arguments: &LitmusArguments) -> Result<u8, Failure> {
    if arguments.list && arguments.name.is_none() && arguments.seed.is_none() {
        crate::show(&list());
        return Ok(0);
    }
    let program = program_of(arguments)?;
    let team = can_run(&program).map_err(Failure::new)?;
    if arguments.list {
        crate::show(&format!("-n {} -t {team}\n", program.nodes));
        return Ok(0);
    }
    let under: Option<Vec<Protocol>> = arguments.under.iter().map(|name| Protocol::named(name)).collect();
    let under = under.ok_or_else(|| Failure::new(format!("expected {} after --under", Protocol::names())))?;
    let failed = |what: String| Failure::new(format!("cannot run the litmus program: {what}"));
    let runtime = Runtime::join().map_err(|error| failed(error.to_string()))?;
    runtime.prepare_thread().map_err(|error| failed(error.to_string()))?;
    if (runtime.nodes(), runtime.threads_per_node()) != (program.nodes, team) {
        runtime.leave();
        let (nodes, got) = (program.nodes, (runtime.nodes(), runtime.threads_per_node()));
        let expected = format!("expected a job of {nodes} nodes with {team} threads each for this program");
        return Err(Failure::new(format!(
            "{expected}, got {} with {}; use -n {nodes} -t {team}",
            got.0, got.1
        )));
    }
    let memory = Memory::allocate(runtime, &program, &under, arguments.large_pages);
    let ports = open_ports(runtime, &program.ports);
    take_part(runtime, &program, &memory, &ports);
    runtime.leave();
    Ok(0)
}

/// Returns the catalogue, the programs that distinguish sequential consistency from weaker models, and those
/// that pass messages to ports.
fn programs() -> impl Iterator<Item = Litmus> {
    catalogue().into_iter().chain(sequential()).chain(posts())
}

fn program_of(arguments: &LitmusArguments) -> Result<Program, Failure> {
    match (&arguments.name, arguments.seed) {
        (Some(name), _) => {
            let found = programs().find(|litmus| litmus.name == name);
            let unknown = || {
                Failure::new(format!("expected a program that 'hiroba litmus --list' names, got '{name}'"))
            };
            found.map(|litmus| litmus.program).ok_or_else(unknown)
        }
        (None, Some(seed)) => {
            let shape =
                Shape { team: arguments.team, foreign: arguments.foreign, publications: false, waits: false };
            Ok(generate(seed, shape))
        }
        (None, None) => {
            Err(Failure::new("expected a program's name or --seed N; see 'hiroba litmus --list'"))
        }
    }
}

fn list() -> String {
    let mut text = String::new();
    for litmus in programs() {
        if let Ok(team) = can_run(&litmus.program) {
            let _ = writeln!(text, "-n {} -t {team}  {}", litmus.program.nodes, litmus.name);
        }
    }
    text
}

/// Returns how many threads a node's team needs, or why real nodes cannot run the program.
fn can_run(program: &Program) -> Result<u32, String> {
    let mut teams = (0..program.nodes).map(|node| program.team_of(hiroba_base::NodeId(node)));
    let team = teams.next().unwrap_or(0);
    if team == 0 || !teams.all(|other| other == team) {
        return Err(
            "expected a program with as many threads on every node, got one whose teams differ".to_owned()
        );
    }
    let cannot = |instruction: &&Instruction| {
        matches!(instruction, Instruction::Publish { .. } | Instruction::AwaitPublished { .. })
            || matches!(
                instruction,
                Instruction::Convert(_)
                    | Instruction::Swap { .. }
                    | Instruction::AwaitOthers
                    | Instruction::Contribute(_)
                    | Instruction::Combine(_)
            )
            || matches!(instruction, Instruction::Collective(collective) if *collective != Collective::Barrier)
    };
    match program.threads.iter().flat_map(|script| &script.instructions).find(cannot) {
        Some(instruction) => {
            Err(format!("expected instructions that a program can have, got {instruction:?}"))
        }
        None => Ok(team),
    }
}

/// The addresses of the program's regions.
struct Memory {
    regions: Vec<Place>,
}

/// The place of a region.
struct Place {
    granules: PageRange,
    /// Bytes of a page in the program's model.
    page_bytes: usize,
    /// The distance from one page to the next.
    stride: usize,
    address: usize,
}

impl Memory {
    fn allocate(runtime: &Runtime, program: &Program, under: &[Protocol], large_pages: bool) -> Memory {
        let regions = program.regions.iter().enumerate().map(|(number, region)| {
            let protocol = under.get(number % under.len().max(1)).copied();
            let page_size = if large_pages { PageSize::MIB_2 } else { region.page_size };
            let (page_bytes, stride) = (region.page_size.bytes(), page_size.bytes());
            let pages = region.granules.count * u64::from(GRANULE_BYTES) / page_bytes as u64;
            let bytes = pages * stride as u64;
            let granules = region.granules;
            match runtime.allocate(bytes, region.placement, Some(page_size), protocol) {
                Ok(address) => Place { granules, page_bytes, stride, address },
                Err(error) => runtime.fatal(&format!("cannot allocate the litmus program's memory: {error}")),
            }
        });
        Memory { regions: regions.collect() }
    }

    /// Returns the address of a byte of the program; `None` outside its regions.
    fn address(&self, at: Address) -> Option<usize> {
        let Place { granules, page_bytes, stride, address } =
            self.regions.iter().find(|place| place.granules.contains(at.granule))?;
        let offset = (at.granule.0 - granules.first.0) as usize * GRANULE_BYTES as usize + at.offset as usize;
        Some(address + offset / page_bytes * stride + offset % page_bytes)
    }
}

/// Makes the program's ports that begin on this node, and gets rights to send to all of them.
fn open_ports(runtime: &Runtime, homes: &[NodeId]) -> Vec<Name> {
    let ask = |id, number: usize, rights| {
        let name = format!("litmus {number}");
        must(runtime, runtime.ask_port_names("litmus", id, name.as_bytes(), rights, Patience::Endless))
    };
    let open = |(number, home): (usize, &NodeId)| {
        if *home == runtime.node() {
            let name = match must(runtime, runtime.port_call("litmus", Call::AllocatePort)) {
                Outcome::Name(name) => name,
                other => runtime.fatal(&format!("expected a port's name, got {other:?}")),
            };
            ask(service::REGISTER, number, vec![RightToSend { name, disposition: Disposition::MakeSend }]);
        }
        let rights = ask(service::LOOK_UP_WAITING, number, Vec::new()).rights;
        let Some(right) = rights.first() else { runtime.fatal("the name service gave no right") };
        right.name
    };
    homes.iter().enumerate().map(open).collect()
}

fn must<T>(runtime: &Runtime, result: Result<T, PortError>) -> T {
    result.unwrap_or_else(|error| runtime.fatal(&format!("cannot run the litmus program: {error}")))
}

/// Runs this node's threads: its team as `hiroba_run` does, the others as threads that a program creates
/// itself.
fn take_part(runtime: &'static Runtime, program: &Program, memory: &Memory, ports: &[Name]) {
    let mine = program.threads.iter().filter(|script| script.node == runtime.node());
    let (team, foreign): (Vec<_>, Vec<_>) = mine.partition(|script| script.in_team);
    std::thread::scope(|scope| {
        for script in foreign {
            scope.spawn(move || {
                if let Err(error) = runtime.prepare_thread() {
                    runtime.fatal(&error.to_string());
                }
                Thread::new(runtime, memory, ports).run(&script.instructions);
                runtime.finish_thread();
            });
        }
        runtime.run(|number| Thread::new(runtime, memory, ports).run(&team[number as usize].instructions));
    });
}

/// A thread that interprets a script.
struct Thread<'a> {
    runtime: &'static Runtime,
    memory: &'a Memory,
    ports: &'a [Name],
    registers: [u64; REGISTERS],
}

impl<'a> Thread<'a> {
    fn new(runtime: &'static Runtime, memory: &'a Memory, ports: &'a [Name]) -> Thread<'a> {
        Thread { runtime, memory, ports, registers: [0; REGISTERS] }
    }

    fn run(mut self, instructions: &[Instruction]) {
        let (mut next, mut steps) = (0, 0);
        while let Some(instruction) = instructions.get(next) {
            next = self.step(instruction, next);
            steps += 1;
            if steps > STEPS_MAX {
                self.runtime.fatal("the litmus program is in an endless loop");
            }
        }
    }

    /// Carries out an instruction and returns the index of the next one.
    fn step(&mut self, instruction: &Instruction, at_index: usize) -> usize {
        let runtime = self.runtime;
        match instruction {
            Instruction::Store { at, width, value } => self.store(*at, *width, *value),
            Instruction::StoreFrom { at, from } => self.store(*at, Width::Word, self.get(*from)),
            Instruction::Load { at, width, into } => {
                let value = self.load(*at, *width);
                self.set(*into, value);
            }
            Instruction::Lock(lock) => runtime.lock(*lock),
            Instruction::TryLock(lock, into) => {
                let taken = u64::from(runtime.try_lock(*lock));
                self.set(*into, taken);
            }
            Instruction::Unlock(lock) => runtime.unlock(*lock),
            Instruction::Wait(cond, lock) => runtime.cond_wait(*cond, *lock),
            Instruction::Signal(cond) => runtime.cond_signal(*cond),
            Instruction::Broadcast(cond) => runtime.cond_broadcast(*cond),
            Instruction::Collective(_) => runtime.barrier(),
            Instruction::Atomic { at, operation, into } => {
                let outcome = runtime.atomic("litmus", self.address(*at), *operation);
                self.set(*into, outcome.previous);
            }
            Instruction::Prefetch(pages) => {
                let first = Address { granule: pages.first, offset: 0 };
                // A hint outside the regions concerns only the simulator's engines.
                if let Some(address) = self.memory.address(first) {
                    _ = runtime.prefetch(&[(address, GRANULE_BYTES as usize)]);
                }
            }
            Instruction::Add(into, value) => self.set(*into, self.get(*into).wrapping_add(*value)),
            Instruction::AddRegister(into, other) => {
                self.set(*into, self.get(*into).wrapping_add(self.get(*other)));
            }
            Instruction::JumpUnless { register, is, to } if self.get(*register) != *is => return *to,
            Instruction::JumpUnless { .. } => {}
            Instruction::Post { port, value, long } => self.post(*port, *value, *long, None),
            Instruction::Pass { port, through } => {
                self.post(*through, (*port).into(), false, Some(*port));
            }
            Instruction::Take { port, into } => {
                let value = self.take(*port);
                self.set(*into, value);
            }
            Instruction::Publish { .. }
            | Instruction::AwaitPublished { .. }
            | Instruction::Convert(_)
            | Instruction::Swap { .. }
            | Instruction::AwaitOthers
            | Instruction::Contribute(_)
            | Instruction::Combine(_) => {
                unreachable!("such programs are refused")
            }
        }
        at_index + 1
    }

    /// Sends a message that says a value and contains the receive right of the port that is passed.
    fn post(&self, port: u8, value: u64, long: bool, passed: Option<u8>) {
        const LONG_BYTES: usize = 9 << 10;
        let right = |port: u8, disposition| RightToSend { name: self.ports[usize::from(port)], disposition };
        let mut inline = value.to_le_bytes().to_vec();
        inline.resize(if long { LONG_BYTES } else { inline.len() }, 0);
        let types = vec![DataType { name: 0, element_bytes: 1, count: inline.len() as u32 }];
        let rights = passed.into_iter().map(|port| right(port, Disposition::MoveReceive)).collect();
        let message = Message { types, inline, rights, ..Message::default() };
        let to = right(port, Disposition::CopySend);
        let call = Call::Send { to, message, patience: Patience::Endless, notify: None };
        must(self.runtime, self.runtime.port_call("litmus", call));
    }

    /// Receives a message and returns what it says.
    fn take(&self, port: u8) -> u64 {
        let from = self.ports[usize::from(port)];
        let call = Call::Receive { from, bytes_max: None, patience: Patience::Endless };
        let value = match must(self.runtime, self.runtime.port_call("litmus", call)) {
            Outcome::Received(received) => received.inline.first_chunk().copied().map(u64::from_le_bytes),
            _ => None,
        };
        value.unwrap_or_else(|| self.runtime.fatal("expected a message that says a value"))
    }

    fn get(&self, register: Register) -> u64 {
        self.registers[usize::from(register.0)]
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[usize::from(register.0)] = value;
    }

    fn address(&self, at: Address) -> usize {
        match self.memory.address(at) {
            Some(address) => address,
            None => {
                self.runtime.fatal(&format!("the litmus program touches {at}, which it has not allocated"))
            }
        }
    }

    fn load(&self, at: Address, width: Width) -> u64 {
        let address = self.address(at);
        let value = match width {
            // SAFETY: `Memory` keeps the byte allocated until the process ends, and every thread touches it
            // as an atomic.
            Width::Byte => u64::from(unsafe { &*(address as *const AtomicU8) }.load(Ordering::Relaxed)),
            // SAFETY: likewise; words of the checker's language are aligned.
            Width::Word => unsafe { &*(address as *const AtomicU64) }.load(Ordering::Relaxed),
        };
        self.runtime.record_load(address, width.bytes() as u8, value);
        value
    }

    fn store(&self, at: Address, width: Width, value: u64) {
        let address = self.address(at);
        let value = match width {
            Width::Byte => {
                // SAFETY: as in `load`.
                unsafe { &*(address as *const AtomicU8) }.store(value as u8, Ordering::Relaxed);
                value & 0xff
            }
            Width::Word => {
                // SAFETY: as in `load`.
                unsafe { &*(address as *const AtomicU64) }.store(value, Ordering::Relaxed);
                value
            }
        };
        self.runtime.record_store(address, width.bytes() as u8, value);
    }
}
