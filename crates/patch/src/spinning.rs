//! Recognises loops that only wait for memory to change.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory,
};

use crate::frames::Image;

/// What the code around an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// A loop that begins at this address, loads the same words again and again, and stores nothing.
    Waits(u64),
    /// A loop that does something else.
    Works,
    /// No short loop, or one that calls functions.
    Unknown,
}

/// The length of a loop that is recognised, at most.
const LOOP_BYTES_MAX: u64 = 192;

/// Returns what the code around the instruction at `at` does.
pub fn loop_around(image: &Image<'_>, at: u64) -> Loop {
    let Some((start, end)) = bounds(image, at) else { return Loop::Unknown };
    let Some(body) = decode(image, start, end) else { return Loop::Unknown };
    if !body.iter().any(|instruction| instruction.ip() == at) {
        return Loop::Unknown;
    }
    if waits(&body) { Loop::Waits(start) } else { Loop::Works }
}

/// Returns the bounds of the innermost loop around an instruction: the target and the end of the next branch
/// that leads back to it or before it.
fn bounds(image: &Image<'_>, at: u64) -> Option<(u64, u64)> {
    let bytes = (1..=LOOP_BYTES_MAX).rev().find_map(|count| image.bytes(at, count as usize))?;
    for instruction in Decoder::with_ip(64, bytes, at, DecoderOptions::NONE) {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                if target <= at && at - target <= LOOP_BYTES_MAX {
                    return Some((target, instruction.next_ip()));
                }
            }
            _ => return None,
        }
    }
    None
}

fn decode(image: &Image<'_>, start: u64, end: u64) -> Option<Vec<Instruction>> {
    let bytes = image.bytes(start, usize::try_from(end.checked_sub(start)?).ok()?)?;
    let body: Vec<Instruction> =
        Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter().collect();
    let is_straight = |instruction: &Instruction| {
        matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        ) && !instruction.is_invalid()
    };
    body.iter().all(is_straight).then_some(body)
}

fn is_on_stack(memory: &UsedMemory) -> bool {
    memory.base() == Register::RSP || memory.base() == Register::RBP
}

/// Returns true if the loop loads words at addresses that it does not count up or down, and stores at most to
/// its frame.
fn waits(body: &[Instruction]) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut addressing: Vec<Register> = Vec::new();
    let mut counted: Vec<Register> = Vec::new();
    let mut loads = 0;
    for instruction in body {
        let info = factory.info(instruction);
        for memory in info.used_memory() {
            let is_read = matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
            if !is_read && !is_on_stack(memory) && memory.access() != OpAccess::NoMemAccess {
                return false;
            }
            if is_read && !is_on_stack(memory) {
                loads += 1;
                addressing.extend([memory.base().full_register(), memory.index().full_register()]);
            }
        }
        for register in info.used_registers() {
            if matches!(register.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
                counted.push(register.register().full_register());
            }
        }
    }
    loads > 0 && !counted.iter().any(|register| *register != Register::None && addressing.contains(register))
}
