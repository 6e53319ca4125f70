//! Updates of shared variables whose results their thread does not need before the next barrier.
//!
//! Compilers end a reduction so: an atomic instruction; or a loop around `cmpxchg`, for operations that no
//! instruction has; or, for several variables, some code between two calls that keep other threads out. Then
//! a barrier follows. So another node may execute the update instead, if it does that before the barrier
//! ends, and with this thread's registers ([`State`]).
//!
//! Such code is recognised only in simple forms. It uses no more than the general registers, the first 16
//! vector registers and, between the calls, what lies near the stack's top. It changes nothing but its
//! variables and registers that are not read afterwards.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, FlowControl, Instruction, InstructionBlock, InstructionInfo,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::following::{Following, Walk, decode};
use crate::frames::{Function, Image};

/// The number of instructions of an update at most.
const INSTRUCTIONS_MAX: usize = 48;
/// Instructions between `cmpxchg` and the branch of its loop, at most.
const COMPARING_MAX: usize = 4;

/// How many words on the stack's top an update may load.
pub const STACK_WORDS: usize = 32;
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// What a thread has in registers and on its stack's top where an update begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct State {
    /// The general registers, by their numbers in machine code: `rax`, `rcx`, `rdx`, `rbx`, `rsp`, `rbp`,
    /// `rsi`, `rdi`, `r8` to `r15`.
    pub general: [u64; 16],
    /// The lower 16 bytes of the vector registers.
    pub vector: [[u64; 2]; 16],
    /// The words from the stack pointer upwards.
    pub stack: [u64; STACK_WORDS],
}

impl State {
    /// Zeros.
    pub const NONE: State = State { general: [0; 16], vector: [[0; 2]; 16], stack: [0; STACK_WORDS] };
}

/// An update of the program's variables.
#[derive(Clone, Debug)]
pub struct Update {
    /// Where its thread goes on if another one executes it.
    pub resume: u64,
    /// Where the function begins that it is in.
    pub function: u64,
    /// What follows it.
    pub following: Following,
    /// What is executed; the last instruction jumps to [`FINISH`].
    code: Vec<Instruction>,
    /// Which registers it reads, a bit for each.
    general: u16,
    vector: u16,
    /// How many words of the stack's top it reads.
    stack_words: usize,
    /// Its operands in memory but for those on the stack.
    operands: Vec<Operand>,
}

/// An operand in memory: the sum of a base, a register that is scaled, and an offset.
#[derive(Clone, Debug)]
struct Operand {
    base: Base,
    index: Option<(usize, u64)>,
    offset: u64,
    bytes: u64,
}

/// Where an address comes from.
#[derive(Clone, Debug)]
enum Base {
    Zero,
    /// A register, by its number.
    General(usize),
    /// A word on the stack's top.
    Stack(usize),
    /// A word in memory.
    Loaded(Box<Operand>),
}

impl Operand {
    fn address(&self, state: &State, load: &mut impl FnMut(u64) -> u64) -> u64 {
        let base = match &self.base {
            Base::Zero => 0,
            Base::General(number) => state.general[*number],
            Base::Stack(word) => state.stack[*word],
            Base::Loaded(from) => {
                let from = from.address(state, load);
                load(from)
            }
        };
        let index = self.index.map_or(0, |(index, scale)| state.general[index].wrapping_mul(scale));
        base.wrapping_add(index).wrapping_add(self.offset)
    }
}

/// Stands for the place where an update ends, until that is known.
const FINISH: u64 = 1;
/// The address of the jump to it, which is none of the program's.
const LAST: u64 = 2;
/// The address of the jump back to `cmpxchg`.
const BACK: u64 = 3;

impl Update {
    /// Returns the update that begins with the atomic instruction at `at`. If that is in a loop, it begins in
    /// the midst of it: the instruction finds out whether another thread was faster.
    pub fn by_instruction(image: &Image<'_>, function: &Function, at: u64) -> Option<Update> {
        let first = decode(image, at)?;
        if !first.has_lock_prefix() || first.op0_kind() != OpKind::Memory {
            return None;
        }
        let mut reading = Reading::new(Extent::Operation);
        let operand = reading.operand(&first)?;
        let is_on_stack = [first.memory_base(), first.memory_index()].contains(&Register::RSP);
        if is_on_stack {
            return None;
        }
        let resume = match first.mnemonic() {
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Inc
            | Mnemonic::Dec => {
                reading.take(&first, Some(operand))?;
                first.next_ip()
            }
            Mnemonic::Cmpxchg => reading.take_loop(image, function, &first, &operand)?,
            _ => return None,
        };
        reading.finish(image, function, resume, None)
    }

    /// Returns the update that begins at `at`, behind a call, and ends before a call of which `is_end`
    /// returns true.
    pub fn behind_call(
        image: &Image<'_>,
        function: &Function,
        at: u64,
        is_end: &dyn Fn(Following) -> bool,
    ) -> Option<Update> {
        let mut reading = Reading::new(Extent::Section);
        let mut next = at;
        loop {
            let instruction = decode(image, next).filter(|_| function.code.contains(&next))?;
            let is_over = instruction.flow_control() != FlowControl::Next
                || instruction.is_stack_instruction()
                || reading.changes_stack_pointer(&instruction);
            if is_over {
                break;
            }
            reading.take(&instruction, None)?;
            next = instruction.next_ip();
        }
        if reading.operands.is_empty() {
            return None;
        }
        reading.finish(image, function, next, Some(is_end))
    }

    /// Returns the addresses of its operands, each with its length in bytes. `load` returns the word at an
    /// address.
    pub fn operands(&self, state: &State, mut load: impl FnMut(u64) -> u64) -> Vec<(u64, u64)> {
        let place = |operand: &Operand| (operand.address(state, &mut load), operand.bytes);
        self.operands.iter().map(place).collect()
    }

    /// Returns how many words of the stack's top it reads.
    pub fn stack_words(&self) -> usize {
        self.stack_words
    }

    /// Appends what it reads of the state.
    pub fn pack(&self, state: &State, words: &mut Vec<u64>) {
        let chosen = |mask: u16| (0..16).filter(move |number| mask >> number & 1 != 0);
        words.extend(chosen(self.general).map(|number| state.general[number]));
        words.extend(chosen(self.vector).flat_map(|number| state.vector[number]));
        words.extend(&state.stack[..self.stack_words]);
    }

    /// Returns the state that [`pack`](Self::pack) has appended, and `None` if these are not as many words.
    pub fn unpack(&self, words: &[u64]) -> Option<State> {
        let chosen = |mask: u16| (0..16).filter(move |number| mask >> number & 1 != 0);
        let mut state = State::NONE;
        let mut words = words.iter().copied();
        for number in chosen(self.general) {
            state.general[number] = words.next()?;
        }
        for number in chosen(self.vector) {
            state.vector[number] = [words.next()?, words.next()?];
        }
        for word in &mut state.stack[..self.stack_words] {
            *word = words.next()?;
        }
        words.next().is_none().then_some(state)
    }

    /// Returns its code for the address `at`, which ends with a jump to `finish`. Both are within 2 GiB of
    /// the program's code.
    pub fn encode(&self, at: u64, finish: u64) -> Option<Vec<u8>> {
        let mut code = self.code.clone();
        for instruction in code.iter_mut().filter(|instruction| instruction.is_jmp_short_or_near()) {
            if instruction.near_branch_target() == FINISH {
                instruction.set_near_branch64(finish);
            }
        }
        let block = InstructionBlock::new(&code, at);
        Some(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?.code_buffer)
    }
}

/// What code an update may consist of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// An operation on one place, which leaves the stack alone.
    Operation,
    /// Straight code with variables at places that are known where it begins.
    Section,
}

/// An update that is being read.
struct Reading {
    extent: Extent,
    code: Vec<Instruction>,
    general: u16,
    vector: u16,
    stack_words: usize,
    operands: Vec<Operand>,
    /// The registers that it changes, and the flags.
    changed: Vec<Register>,
    /// What registers contain that were loaded.
    loaded: Vec<(usize, Base)>,
    flags: u32,
    factory: InstructionInfoFactory,
}

impl Reading {
    fn new(extent: Extent) -> Reading {
        Reading {
            extent,
            code: Vec::new(),
            general: 0,
            vector: 0,
            stack_words: 0,
            operands: Vec::new(),
            changed: Vec::new(),
            loaded: Vec::new(),
            flags: 0,
            factory: InstructionInfoFactory::new(),
        }
    }

    fn changes_stack_pointer(&mut self, instruction: &Instruction) -> bool {
        let info = self.factory.info(instruction);
        info.used_registers()
            .iter()
            .any(|used| used.register().full_register() == Register::RSP && changes(used.access()))
    }

    /// Returns the operand of an instruction that has one in memory.
    fn operand(&mut self, instruction: &Instruction) -> Option<Operand> {
        let info = self.factory.info(instruction).clone();
        let mut touched = info.used_memory().iter().filter(|memory| is_touched(memory));
        let operand = touched.next().and_then(|memory| self.operand_at(memory));
        operand.filter(|_| touched.next().is_none())
    }

    /// Takes the loop around a `cmpxchg` whose operand is given. Returns where it ends.
    fn take_loop(
        &mut self,
        image: &Image<'_>,
        function: &Function,
        first: &Instruction,
        operand: &Operand,
    ) -> Option<u64> {
        self.take(first, Some(operand.clone()))?;
        let next_at = |at: u64| decode(image, at).filter(|_| function.code.contains(&at));
        let mut next = next_at(first.next_ip())?;
        for _ in 0..COMPARING_MAX {
            if next.flow_control() != FlowControl::Next {
                break;
            }
            self.take(&next, None)?;
            next = next_at(next.next_ip())?;
        }
        if next.flow_control() != FlowControl::ConditionalBranch || !next.is_jcc_short_or_near() {
            return None;
        }
        let resume = next.next_ip();
        let branch_at = self.code.len();
        self.code.push(next);
        self.code.push(jump(LAST, FINISH)?);
        let mut at = next.near_branch_target();
        let begin = self.code.len();
        for _ in 0..INSTRUCTIONS_MAX {
            if at == first.ip() {
                let again = self.code.get(begin).map_or(first.ip(), Instruction::ip);
                self.code[branch_at].set_near_branch64(again);
                self.code.push(jump(BACK, first.ip())?);
                // The place must not change from round to round.
                let base = if let Base::General(number) = operand.base { Some(number) } else { None };
                let mut numbers = [base, operand.index.map(|(index, _)| index)].into_iter().flatten();
                return numbers.all(|number| !self.is_changed(number)).then_some(resume);
            }
            let instruction = next_at(at)?;
            at = match instruction.flow_control() {
                FlowControl::Next => {
                    self.take(&instruction, None)?;
                    instruction.next_ip()
                }
                FlowControl::UnconditionalBranch => instruction.near_branch_target(),
                _ => return None,
            };
        }
        None
    }

    /// Takes an instruction, whose operand in memory is `operand` if it has been looked at.
    fn take(&mut self, instruction: &Instruction, operand: Option<Operand>) -> Option<()> {
        let info = self.factory.info(instruction).clone();
        let is_plain = instruction.flow_control() == FlowControl::Next
            && !instruction.is_privileged()
            && !instruction.is_stack_instruction()
            && !instruction.has_rep_prefix()
            && !instruction.has_repne_prefix();
        if !is_plain || self.code.len() >= INSTRUCTIONS_MAX {
            return None;
        }
        let loaded = match operand {
            Some(operand) => {
                self.operands.push(operand);
                None
            }
            None => self.take_memory(instruction, &info)?,
        };
        for used in info.used_registers() {
            let (register, access) = (used.register(), used.access());
            let full = register.full_register();
            if register.is_segment_register() || full == Register::RIP {
                continue;
            }
            let is_float = register.is_st();
            if is_float && self.extent == Extent::Section {
                // No call leaves anything in these.
                continue;
            }
            if full == Register::RSP {
                if self.extent == Extent::Operation || changes(access) {
                    return None;
                }
                continue;
            }
            if access == OpAccess::NoMemAccess || access == OpAccess::None {
                continue;
            }
            match (general_number(full), vector_number(register, access)) {
                (Some(number), _) => self.general |= 1 << number,
                (None, Some(number)) => self.vector |= 1 << number,
                (None, None) => return None,
            }
            if changes(access) {
                self.loaded.retain(|(number, _)| Some(*number) != general_number(full));
                if !self.changed.contains(&full) {
                    self.changed.push(full);
                }
            }
        }
        self.loaded.extend(loaded);
        self.flags |= instruction.rflags_modified();
        self.code.push(*instruction);
        Some(())
    }

    /// Takes what an instruction touches in memory. Returns the register that it loads, if that is a whole
    /// one, and from where.
    fn take_memory(
        &mut self,
        instruction: &Instruction,
        info: &InstructionInfo,
    ) -> Option<Option<(usize, Base)>> {
        let mut loaded = None;
        for memory in info.used_memory().iter().filter(|memory| is_touched(memory)) {
            let is_load = matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
            if self.extent == Extent::Operation {
                // A constant. What is loaded from elsewhere may be the variable itself.
                if !is_load || !instruction.is_ip_rel_memory_operand() {
                    return None;
                }
                continue;
            }
            let source = if memory.base() == Register::RSP {
                let end = memory.displacement().checked_add(memory.memory_size().size() as u64)?;
                let words = usize::try_from(end.div_ceil(WORD_BYTES)).ok()?;
                if !is_load || memory.index() != Register::None || words > STACK_WORDS {
                    return None;
                }
                self.stack_words = self.stack_words.max(words);
                let word = (memory.displacement() / WORD_BYTES) as usize;
                memory.displacement().is_multiple_of(WORD_BYTES).then_some(Base::Stack(word))
            } else {
                let operand = self.operand_at(memory)?;
                self.operands.push(operand.clone());
                Some(Base::Loaded(Box::new(operand)))
            };
            let is_address = instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register().is_gpr64();
            loaded = general_number(instruction.op0_register()).filter(|_| is_address && is_load).zip(source);
        }
        Some(loaded)
    }

    fn is_changed(&self, number: usize) -> bool {
        self.changed.iter().any(|changed| general_number(*changed) == Some(number))
    }

    /// Returns an operand, if its address is known where the update begins.
    fn operand_at(&self, memory: &UsedMemory) -> Option<Operand> {
        if matches!(memory.segment(), Register::FS | Register::GS) {
            return None;
        }
        let number = |register: Register| {
            let number =
                general_number(register).filter(|_| register.is_gpr64() && register != Register::RSP)?;
            let is_known = self.extent == Extent::Operation || KEPT.contains(&number);
            (is_known && !self.is_changed(number)).then_some(number)
        };
        let base = match memory.base() {
            Register::None | Register::RIP => Base::Zero,
            register => {
                let loaded = self.loaded.iter().find(|(loaded, _)| Some(*loaded) == general_number(register));
                match loaded.filter(|_| register.is_gpr64()) {
                    Some((_, source)) => source.clone(),
                    None => Base::General(number(register)?),
                }
            }
        };
        let index = match memory.index() {
            Register::None => None,
            register => Some((number(register)?, memory.scale() as u64)),
        };
        let bytes = memory.memory_size().size() as u64;
        Some(Operand { base, index, offset: memory.displacement(), bytes })
    }

    /// Returns the update if nothing that it changes is read from `resume` on. `passed` is as of
    /// [`Walk::follow`].
    fn finish(
        mut self,
        image: &Image<'_>,
        function: &Function,
        resume: u64,
        passed: Option<&dyn Fn(Following) -> bool>,
    ) -> Option<Update> {
        if self.extent == Extent::Section || self.code.len() == 1 {
            self.code.push(jump(LAST, FINISH)?);
        }
        let mut walk = Walk::behind_update(image, function, self.changed, self.flags);
        let following = walk.follow(image, function, resume, passed);
        if following == Following::Unknown || !walk.keeps_for_caller() {
            return None;
        }
        Some(Update {
            resume,
            function: function.code.start,
            following,
            code: self.code,
            general: self.general,
            vector: self.vector,
            stack_words: self.stack_words,
            operands: self.operands,
        })
    }
}

/// The registers that calls preserve, by their numbers.
const KEPT: [usize; 6] = [3, 5, 12, 13, 14, 15];

fn jump(from: u64, to: u64) -> Option<Instruction> {
    let mut jump = Instruction::with_branch(Code::Jmp_rel32_64, to).ok()?;
    jump.set_ip(from);
    Some(jump)
}

fn changes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn is_touched(memory: &UsedMemory) -> bool {
    memory.access() != OpAccess::NoMemAccess
}

fn general_number(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

/// Instructions of AVX clear the upper parts of registers that they write.
fn vector_number(register: Register, access: OpAccess) -> Option<usize> {
    let is_lower = register.is_xmm() || register.is_vector_register() && access == OpAccess::Write;
    (is_lower && register.number() < 16).then(|| register.number())
}
