//! Finds what follows a call that has returned 0, as far as the code alone decides it.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::frames::{Function, Image};

/// What comes next, before anything that other threads could notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// A call of the function at this address.
    Call(u64),
    /// A call of the function whose address is at this address.
    CallThrough(u64),
    /// The function returns to its caller.
    Return,
    /// Something else, or it cannot be told.
    Unknown,
}

/// The number of instructions that are followed at most.
const STEPS_MAX: usize = 64;
/// The longest instruction.
const BYTES_MAX: usize = 15;

/// Returns what follows the call before the address `at` in a function, if it has returned 0 in `eax`.
///
/// Threads differ in what they have in memory and in registers, so a branch is followed only if it depends on
/// constants and on the call's result alone. Then all threads go the same way. Other instructions may use
/// registers and the function's frame, and load from elsewhere what the next call discards.
pub fn following(image: &Image<'_>, function: &Function, at: u64) -> Following {
    let mut walk = Walk::new(image, function);
    walk.registers.push((Register::RAX, 0));
    walk.follow(image, function, at, None)
}

pub(crate) fn decode(image: &Image<'_>, at: u64) -> Option<Instruction> {
    let bytes = (1..=BYTES_MAX).rev().find_map(|count| image.bytes(at, count))?;
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Returns true if the function keeps the address of its frame in `rbp`.
fn has_frame_pointer(image: &Image<'_>, function: &Function) -> bool {
    let mut at = function.code.start;
    let mut next = || {
        let instruction = decode(image, at)?;
        at = instruction.next_ip();
        Some(instruction)
    };
    let mut first = next();
    if first.is_some_and(|instruction| instruction.mnemonic() == Mnemonic::Endbr64) {
        first = next();
    }
    let pushes = first.is_some_and(|instruction| {
        instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() == Register::RBP
    });
    let sets = next().is_some_and(|instruction| {
        instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_register() == Register::RBP
            && instruction.op1_register() == Register::RSP
    });
    pushes && sets
}

/// Returns what a call or a last jump calls: a function, or through a stub what the loader has put there.
fn called(image: &Image<'_>, instruction: &Instruction) -> Following {
    if instruction.is_ip_rel_memory_operand() {
        return Following::CallThrough(instruction.ip_rel_memory_address());
    }
    if instruction.op0_kind() != OpKind::NearBranch64 {
        return Following::Unknown;
    }
    let target = instruction.near_branch_target();
    let mut stub = decode(image, target);
    if let Some(first) = stub.filter(|first| first.mnemonic() == Mnemonic::Endbr64) {
        stub = decode(image, first.next_ip());
    }
    let jump = stub
        .filter(|stub| stub.flow_control() == FlowControl::IndirectBranch && stub.is_ip_rel_memory_operand());
    jump.map_or(Following::Call(target), |jump| Following::CallThrough(jump.ip_rel_memory_address()))
}

/// What is known on the way.
pub(crate) struct Walk {
    has_frame_pointer: bool,
    /// Registers and flags that must not be read: others execute what they were for.
    stale: Vec<Register>,
    stale_flags: u32,
    /// The lower halves of registers.
    registers: Vec<(Register, u32)>,
    /// Words of 4 bytes in the frame.
    slots: Vec<(Place, u32)>,
    /// The operands of the last comparison.
    compared: Option<(u32, u32)>,
    factory: InstructionInfoFactory,
}

/// A place in the frame: a register and the distance from what it contains.
type Place = (Register, u64);

/// The registers that a function may change.
const LOST: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

impl Walk {
    fn new(image: &Image<'_>, function: &Function) -> Walk {
        Walk {
            has_frame_pointer: has_frame_pointer(image, function),
            stale: Vec::new(),
            stale_flags: 0,
            registers: Vec::new(),
            slots: Vec::new(),
            compared: None,
            factory: InstructionInfoFactory::new(),
        }
    }

    /// A walk behind an update that another thread executes, which changes these registers and flags.
    pub(crate) fn behind_update(
        image: &Image<'_>,
        function: &Function,
        changed: Vec<Register>,
        flags: u32,
    ) -> Walk {
        Walk { stale: changed, stale_flags: flags, ..Walk::new(image, function) }
    }

    /// Returns true if no register is stale that a function preserves for its caller.
    pub(crate) fn keeps_for_caller(&self) -> bool {
        self.stale.iter().all(|register| !register.is_gpr() || LOST.contains(register))
    }

    /// Returns what follows in a function from `at` on. If there is a `passed`, it first passes a call of
    /// which that returns true.
    pub(crate) fn follow(
        &mut self,
        image: &Image<'_>,
        function: &Function,
        at: u64,
        mut passed: Option<&dyn Fn(Following) -> bool>,
    ) -> Following {
        let mut at = at;
        for _ in 0..STEPS_MAX {
            let Some(instruction) = decode(image, at).filter(|_| function.code.contains(&at)) else {
                break;
            };
            at = instruction.next_ip();
            match instruction.flow_control() {
                FlowControl::Return if passed.is_none() => return Following::Return,
                FlowControl::Call | FlowControl::IndirectCall => {
                    let called = called(image, &instruction);
                    match passed.take() {
                        None => return called,
                        Some(passes) if passes(called) => self.forget_lost(),
                        Some(_) => break,
                    }
                }
                FlowControl::UnconditionalBranch => {
                    at = instruction.near_branch_target();
                    if !function.code.contains(&at) {
                        let called = called(image, &instruction);
                        return match passed {
                            None => called,
                            // It returns to this function's caller.
                            Some(passes) if passes(called) => Following::Return,
                            Some(_) => Following::Unknown,
                        };
                    }
                }
                FlowControl::ConditionalBranch => match self.branches(&instruction) {
                    Some(true) => at = instruction.near_branch_target(),
                    Some(false) => {}
                    None => break,
                },
                FlowControl::Next if self.step(&instruction) => {}
                _ => break,
            }
        }
        Following::Unknown
    }

    /// Forgets what does not survive a call.
    fn forget_lost(&mut self) {
        self.registers.retain(|(known, _)| !LOST.contains(known));
        self.stale.retain(|register| register.is_gpr() && !LOST.contains(register));
        self.stale_flags = 0;
        self.compared = None;
    }

    /// Returns true if the instruction reads what is stale.
    fn reads_stale(&mut self, instruction: &Instruction) -> bool {
        let reads = |access| !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Write);
        let info = self.factory.info(instruction);
        let mut read = info.used_registers().iter().filter(|used| reads(used.access()));
        let is_stale = read.any(|used| self.stale.contains(&used.register().full_register()));
        is_stale || instruction.rflags_read() & self.stale_flags != 0
    }

    /// Follows an instruction. Returns false if it may do what other threads notice.
    fn step(&mut self, instruction: &Instruction) -> bool {
        let info = self.factory.info(instruction).clone();
        if instruction.has_lock_prefix() || !self.is_private(&info) || self.reads_stale(instruction) {
            return false;
        }
        let result = self.result(instruction);
        let compared = self.comparison(instruction);
        self.forget_changed(instruction, &info);
        if let Some(compared) = compared {
            self.compared = Some(compared);
        } else if instruction.rflags_modified() != 0 {
            self.compared = None;
        }
        match (instruction.op0_kind(), result) {
            (OpKind::Register, Some(value)) => {
                self.registers.push((instruction.op0_register().full_register(), value));
            }
            (OpKind::Memory, Some(value)) => {
                self.slots.extend(self.place(instruction).map(|place| (place, value)));
            }
            _ => {}
        }
        true
    }

    /// Returns true if the instruction only stores to the frame, and loads from elsewhere only what does not
    /// survive the next call.
    fn is_private(&self, info: &InstructionInfo) -> bool {
        let is_touched = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess;
        info.used_memory().iter().filter(is_touched).all(|memory| {
            let is_load = matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
            let changes = |access| !matches!(access, OpAccess::Read | OpAccess::CondRead);
            let mut changed = info.used_registers().iter().filter(|used| changes(used.access()));
            let is_lost = changed.all(|used| LOST.contains(&used.register().full_register()));
            self.is_in_frame(memory) || is_load && is_lost
        })
    }

    fn is_in_frame(&self, memory: &UsedMemory) -> bool {
        let is_base =
            memory.base() == Register::RSP || self.has_frame_pointer && memory.base() == Register::RBP;
        let is_of_thread = matches!(memory.segment(), Register::FS | Register::GS);
        is_base && memory.index() == Register::None && !is_of_thread
    }

    /// The place of an operand of 4 bytes in the frame.
    fn place(&self, instruction: &Instruction) -> Option<Place> {
        let base = instruction.memory_base();
        let is_base = base == Register::RSP || self.has_frame_pointer && base == Register::RBP;
        let is_plain = instruction.memory_index() == Register::None && instruction.memory_size().size() == 4;
        (is_base && is_plain).then_some((base, instruction.memory_displacement64()))
    }

    /// The value of an operand of 4 bytes, if it is known.
    fn operand(&self, instruction: &Instruction, number: u32) -> Option<u32> {
        match instruction.op_kind(number) {
            OpKind::Register => {
                let register = instruction.op_register(number);
                let full = register.full_register();
                let found = self.registers.iter().find(|(known, _)| *known == full);
                found.filter(|_| register.size() == 4).map(|(_, value)| *value)
            }
            OpKind::Memory => {
                let place = self.place(instruction)?;
                self.slots.iter().find(|(known, _)| *known == place).map(|(_, value)| *value)
            }
            OpKind::Immediate8to32 => Some(instruction.immediate8to32() as u32),
            OpKind::Immediate32 => Some(instruction.immediate32()),
            _ => None,
        }
    }

    /// What the instruction puts into its first operand, if that is known.
    fn result(&self, instruction: &Instruction) -> Option<u32> {
        let [left, right] = [0, 1].map(|number| {
            (number < instruction.op_count()).then(|| self.operand(instruction, number)).flatten()
        });
        let is_cleared = instruction.op0_register() == instruction.op1_register();
        match instruction.mnemonic() {
            Mnemonic::Mov => right.filter(|_| match instruction.op0_kind() {
                OpKind::Register => instruction.op0_register().size() == 4,
                _ => true,
            }),
            Mnemonic::Add => Some(left?.wrapping_add(right?)),
            Mnemonic::Sub => Some(left?.wrapping_sub(right?)),
            Mnemonic::Inc => Some(left?.wrapping_add(1)),
            Mnemonic::Dec => Some(left?.wrapping_sub(1)),
            Mnemonic::Xor if is_cleared && instruction.op0_register().size() == 4 => Some(0),
            _ => None,
        }
    }

    /// The operands of a comparison, if they are known.
    fn comparison(&self, instruction: &Instruction) -> Option<(u32, u32)> {
        match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Sub => {
                Some((self.operand(instruction, 0)?, self.operand(instruction, 1)?))
            }
            Mnemonic::Test => Some((self.operand(instruction, 0)? & self.operand(instruction, 1)?, 0)),
            _ => None,
        }
    }

    fn forget_changed(&mut self, instruction: &Instruction, info: &InstructionInfo) {
        self.stale_flags &= !instruction.rflags_modified();
        for used in info.used_registers() {
            if matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                continue;
            }
            let full = used.register().full_register();
            // A part of 4 bytes or more takes the rest along.
            let is_whole = used.register().size() >= 4 && used.access() == OpAccess::Write;
            self.stale.retain(|stale| *stale != full || !is_whole);
            self.registers.retain(|(known, _)| *known != full);
            self.slots.retain(|((base, _), _)| *base != full);
        }
        let stores = |memory: &UsedMemory| !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
        if info.used_memory().iter().any(stores) {
            // Stores to one place may overlap another, or reach it by the other register.
            let kept = self.place(instruction).filter(|_| instruction.op0_kind() == OpKind::Memory);
            let (base, at) = kept.unwrap_or((Register::None, 0));
            self.slots.retain(|((known, place), _)| {
                *known == base && place.wrapping_sub(at) >= 4 && at.wrapping_sub(*place) >= 4
            });
        }
    }

    /// Returns whether a conditional jump is taken, if that is known.
    fn branches(&self, instruction: &Instruction) -> Option<bool> {
        let (left, right) = self.compared?;
        let (signed_left, signed_right) = (left.cast_signed(), right.cast_signed());
        match instruction.condition_code() {
            ConditionCode::e => Some(left == right),
            ConditionCode::ne => Some(left != right),
            ConditionCode::b => Some(left < right),
            ConditionCode::ae => Some(left >= right),
            ConditionCode::be => Some(left <= right),
            ConditionCode::a => Some(left > right),
            ConditionCode::l => Some(signed_left < signed_right),
            ConditionCode::ge => Some(signed_left >= signed_right),
            ConditionCode::le => Some(signed_left <= signed_right),
            ConditionCode::g => Some(signed_left > signed_right),
            _ => None,
        }
    }
}
