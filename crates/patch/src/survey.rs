//! Finds the sites of atomic instructions.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::frames::{Function, Image};
use crate::updates::Update;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Operates atomically on a word in memory.
    Operation,
    /// Orders the accesses before and after it.
    Fence,
}

/// An atomic instruction that is replaced.
#[derive(Clone, Debug)]
pub struct Site {
    /// What it does.
    pub kind: Kind,
    /// The instruction, and successors that are replaced together with it.
    pub(crate) instructions: Vec<Instruction>,
    /// The update that it begins, which another node may execute.
    pub update: Option<Update>,
}

impl Site {
    /// Returns its address.
    pub fn address(&self) -> u64 {
        self.instructions[0].ip()
    }

    /// Returns true if it operates on the object's own static variables or on thread-local ones.
    pub(crate) fn is_on_statics(&self) -> bool {
        self.kind == Kind::Operation && is_on_statics(&self.instructions[0])
    }

    /// Returns the length of the code that is replaced.
    pub(crate) fn bytes(&self) -> usize {
        self.instructions.iter().map(Instruction::len).sum()
    }
}

/// The length of a jump to anywhere in reach.
pub(crate) const JUMP_BYTES: usize = 5;

/// The atomic instructions of an object.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Those to be replaced, by ascending address.
    pub sites: Vec<Site>,
    /// The number of those that operate on the object's own static variables or on thread-local ones, which
    /// all nodes see at once. They stay as they are, but for those that begin updates.
    pub on_statics: usize,
    /// The places of the static variables among them, and of those that such instructions outside all known
    /// functions name, as far as that code can be read.
    pub fixed: Vec<Range<u64>>,
    /// The number of functions that are not understood to their end. What follows stays as it is.
    pub unread: usize,
    /// The number of instructions that jumps enter in the middle. They stay as they are.
    pub entered: usize,
    /// The number of instructions with a `lock` prefix outside all known functions, as far as that code can
    /// be read. They stay as they are.
    pub outside: usize,
}

impl Survey {
    /// Decodes the functions of an object, which are ordered by address. `code` are all parts of its code.
    /// Sites that begin updates are looked for if `with_updates`.
    pub fn of(image: &Image<'_>, functions: &[Function], code: &[Range<u64>], with_updates: bool) -> Survey {
        let mut survey = Survey::default();
        let mut found: Vec<Site> = Vec::new();
        let mut targets = BTreeSet::new();
        let mut whole = Vec::new();
        for function in functions {
            let bytes = (function.code.end - function.code.start) as usize;
            let Some(code) = image.bytes(function.code.start, bytes) else { continue };
            let read = Read::of(code, function, &mut whole, &mut targets);
            if let Some(unread) = read.unread {
                survey.unread += 1;
                survey.count_outside(image, unread, false);
            }
            let update = |at| with_updates.then(|| Update::by_instruction(image, function, at)).flatten();
            found.extend(survey.take_sites(&whole, read.may_join, update));
        }
        for mut site in found {
            let first = site.instructions[0];
            let is_inside = |range: Range<u64>| targets.range(range).next().is_some();
            if is_inside(first.ip() + 1..first.next_ip()) {
                survey.entered += usize::from(!site.is_on_statics());
                continue;
            }
            let last = site.instructions[site.instructions.len() - 1];
            if site.instructions.len() > 1 && is_inside(first.next_ip()..last.next_ip()) {
                site.instructions.truncate(1);
            }
            survey.sites.push(site);
        }
        for code in code {
            let mut from = code.start;
            for function in functions.iter().filter(|function| code.contains(&function.code.start)) {
                survey.count_outside(image, from..function.code.start, true);
                from = from.max(function.code.end);
            }
            survey.count_outside(image, from..code.end, true);
        }
        survey
    }

    /// Returns the sites among the instructions of a function, each with the successors that a jump needs.
    fn take_sites(
        &mut self,
        all: &[Instruction],
        may_join: bool,
        update: impl Fn(u64) -> Option<Update>,
    ) -> Vec<Site> {
        let mut found = Vec::new();
        let mut next = 0;
        while next < all.len() {
            let (first, place) = (&all[next], next);
            next += 1;
            let Some(kind) = kind_of(first) else { continue };
            let update = update(first.ip());
            if kind == Kind::Operation && is_on_statics(first) {
                self.on_statics += 1;
                self.fixed.extend(fixed_place(first));
                // It stays as it is otherwise, and is longer than a jump.
                if update.is_none() || first.len() < JUMP_BYTES {
                    continue;
                }
            }
            let mut site = vec![*first];
            if may_join {
                let mut bytes = first.len();
                let mut successors = all[place + 1..].iter();
                while bytes < JUMP_BYTES
                    && let Some(successor) = successors.next()
                    && may_follow(&site[site.len() - 1], successor)
                {
                    bytes += successor.len();
                    site.push(*successor);
                }
                if bytes < JUMP_BYTES {
                    site.truncate(1);
                }
            }
            next = place + site.len();
            found.push(Site { kind, instructions: site, update });
        }
        found
    }

    /// Reads code of no known function, or the part of a function behind bytes that are no instruction. What
    /// seems to be an instruction may be data.
    fn count_outside(&mut self, image: &Image<'_>, gap: Range<u64>, is_counted: bool) {
        let bytes = gap.end.saturating_sub(gap.start) as usize;
        let Some(bytes) = image.bytes(gap.start, bytes) else { return };
        let mut decoder = Decoder::with_ip(64, bytes, gap.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                // The decoder may have read on into an instruction.
                decoder.set_position(start + 1).expect("a place before the decoder's");
                decoder.set_ip(instruction.ip() + 1);
            } else if kind_of(&instruction) != Some(Kind::Operation) {
                // Concerns no word.
            } else if is_on_statics(&instruction) {
                self.fixed.extend(fixed_place(&instruction));
            } else if is_counted && instruction.has_lock_prefix() {
                self.outside += 1;
            }
        }
    }
}

/// What was learned of a function.
struct Read {
    /// What follows bytes that are no instruction.
    unread: Option<Range<u64>>,
    /// True if instructions may be replaced together: all jumps into the middle are known.
    may_join: bool,
}

impl Read {
    /// Decodes a function into `all`, and adds the targets of its jumps to `targets`.
    fn of(code: &[u8], function: &Function, all: &mut Vec<Instruction>, targets: &mut BTreeSet<u64>) -> Read {
        all.clear();
        let mut read = Read { unread: None, may_join: !function.has_landing_pads };
        let decoder = Decoder::with_ip(64, code, function.code.start, DecoderOptions::NONE);
        for instruction in decoder {
            if instruction.is_invalid() {
                read.unread = Some(instruction.ip() + 1..function.code.end);
                break;
            }
            match instruction.flow_control() {
                FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                | FlowControl::Call
                | FlowControl::XbeginXabortXend => {
                    targets.insert(instruction.near_branch_target());
                }
                // A table of addresses inside the function.
                FlowControl::IndirectBranch => read.may_join = false,
                _ => {}
            }
            all.push(instruction);
        }
        read
    }
}

/// Returns true if the successor may be moved together with `before`.
fn may_follow(before: &Instruction, successor: &Instruction) -> bool {
    let goes_on = matches!(before.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
    let may_move = matches!(
        successor.flow_control(),
        FlowControl::Next
            | FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Return
    );
    goes_on && may_move && kind_of(successor).is_none() && !is_bound_to_place(successor)
}

/// Returns true if an instruction has no form that reaches any place.
fn is_bound_to_place(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Jrcxz | Mnemonic::Jecxz | Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne
    )
}

/// Returns what an instruction does, if it is atomic.
pub(crate) fn kind_of(instruction: &Instruction) -> Option<Kind> {
    let memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    match instruction.mnemonic() {
        Mnemonic::Mfence => Some(Kind::Fence),
        Mnemonic::Xchg if memory => Some(Kind::Operation),
        _ if !instruction.has_lock_prefix() || !memory => None,
        _ if leaves_word_alone(instruction) => Some(Kind::Fence),
        _ => Some(Kind::Operation),
    }
}

/// Returns true for the cheaper fence of compilers: an operation on the stack's top that changes nothing.
fn leaves_word_alone(instruction: &Instruction) -> bool {
    let is_neutral = matches!(instruction.mnemonic(), Mnemonic::Or | Mnemonic::Add | Mnemonic::Sub)
        && instruction.op_count() == 2
        && instruction.code() != Code::INVALID
        && matches!(
            instruction.op1_kind(),
            OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
        && instruction.immediate(1) == 0;
    is_neutral && instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None
}

/// Returns true if the operand is at a fixed address, or in the thread's own block.
fn is_on_statics(instruction: &Instruction) -> bool {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let is_fixed = base == Register::RIP || (base == Register::None && index == Register::None);
    let is_threads = matches!(instruction.segment_prefix(), Register::FS | Register::GS);
    is_fixed || is_threads
}

/// Returns the place of an operand at a fixed address.
fn fixed_place(instruction: &Instruction) -> Option<Range<u64>> {
    if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
        return None;
    }
    // For an operand relative to the instruction the decoder has added the two.
    let start = instruction.memory_displacement64();
    start.checked_add(instruction.memory_size().size().max(1) as u64).map(|end| start..end)
}
