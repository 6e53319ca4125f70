//! The code that replaces atomic instructions.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Encoder, IcedError, Instruction, InstructionBlock,
    MemoryOperand, Register,
};

use crate::frames::Image;
use crate::survey::{JUMP_BYTES, Kind, Site, Survey};

/// The addresses that stubs use.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// A byte for each 4 GiB of the address space, 65,536 of them: not 0 where operations must be exclusive.
    pub table: u64,
    /// A byte that is not 0 while fences must order the accesses of several nodes.
    pub fence: u64,
    /// A function that begins an exclusive operation on the address in `rcx`, or is a fence if that is 0. It
    /// preserves all registers and flags.
    pub begin: u64,
    /// A function that ends it, and preserves them, too.
    pub end: u64,
}

/// Bytes that replace a part of the program's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Their address.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The code that replaces the sites of an object.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The stubs, one after the other.
    pub stubs: Vec<u8>,
    /// What is written over the sites.
    pub patches: Vec<Patch>,
    /// Sites with a trap (`ud2`) and the addresses of their stubs, by ascending address.
    pub traps: Vec<(u64, u64)>,
    /// The number of sites that could not be replaced.
    pub failed: usize,
}

/// Bytes at the stack pointer that a function may use without moving it (System V ABI 3.2.2).
const RED_ZONE_BYTES: i64 = 128;
const SKIP_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const UNSKIP_RED_ZONE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
const PUSH_RCX: u8 = 0x51;
const PUSH_RDX: u8 = 0x52;
const POP_RDX: u8 = 0x5a;
const POP_RCX: u8 = 0x59;
/// `movzx ecx, word ptr [rsp + 4]`: bits 32 to 47 of the word on the stack.
const HIGH_PART_OF_TOP: [u8; 5] = [0x0f, 0xb7, 0x4c, 0x24, 0x04];
/// `lea rsp, [rsp + 8]`, which leaves the flags alone.
const DROP_TOP: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x08];
const MOV_RDX: [u8; 2] = [0x48, 0xba];
const MOV_RCX: [u8; 2] = [0x48, 0xb9];
/// `movzx ecx, byte ptr [rdx + rcx]`.
const LOAD_FROM_TABLE: [u8; 4] = [0x0f, 0xb6, 0x0c, 0x0a];
/// `movzx ecx, byte ptr [rcx]`.
const LOAD_BYTE: [u8; 3] = [0x0f, 0xb6, 0x09];
/// `mov ecx, 0`, which leaves the flags alone.
const NO_ADDRESS: [u8; 5] = [0xb9, 0, 0, 0, 0];
const JRCXZ: u8 = 0xe3;
const JUMP: u8 = 0xe9;
/// `call [rip + offset]`.
const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
const TRAP: [u8; 2] = [0x0f, 0x0b];
const NOP: u8 = 0x90;
/// The pointers to the two functions, at the beginning of the stubs.
const HEAD_BYTES: usize = 16;

impl Plan {
    /// Returns the code for the sites of a survey, with stubs that begin at `stubs_at`. That is within 2 GiB
    /// of all sites.
    pub fn of(image: &Image<'_>, survey: &Survey, stubs_at: u64, places: &Places) -> Plan {
        let mut plan = Plan::default();
        plan.stubs.extend(places.begin.to_le_bytes());
        plan.stubs.extend(places.end.to_le_bytes());
        debug_assert_eq!(plan.stubs.len(), HEAD_BYTES);
        for site in &survey.sites {
            let stub_at = stubs_at + plan.stubs.len() as u64;
            let writer = Writer { head: stubs_at, at: stub_at, places, code: Vec::new() };
            let written = writer.stub(image, site);
            let Some(stub) = written else {
                plan.failed += 1;
                continue;
            };
            plan.stubs.extend(stub);
            let bytes = if site.bytes() >= JUMP_BYTES {
                let mut bytes = jump(site.address(), stub_at);
                bytes.resize(site.bytes(), NOP);
                bytes
            } else {
                plan.traps.push((site.address(), stub_at));
                TRAP.to_vec()
            };
            plan.patches.push(Patch { address: site.address(), bytes });
        }
        plan
    }
}

fn jump(from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![JUMP];
    bytes.extend(distance(from + JUMP_BYTES as u64, to).to_le_bytes());
    bytes
}

fn distance(from: u64, to: u64) -> i32 {
    let distance = to.wrapping_sub(from).cast_signed();
    i32::try_from(distance).expect("stubs are within 2 GiB of the code")
}

/// Writes one stub.
struct Writer<'a> {
    /// The address of the pointers to the functions.
    head: u64,
    at: u64,
    places: &'a Places,
    code: Vec<u8>,
}

impl Writer<'_> {
    fn here(&self) -> u64 {
        self.at + self.code.len() as u64
    }

    fn call(&mut self, pointer: u64) {
        self.code.extend(CALL_THROUGH);
        let offset = distance(self.here() + 4, self.head + pointer);
        self.code.extend(offset.to_le_bytes());
    }

    /// Returns the code, or `None` if an instruction cannot be moved.
    fn stub(mut self, image: &Image<'_>, site: &Site) -> Option<Vec<u8>> {
        let first = &site.instructions[0];
        let instruction = image.bytes(first.ip(), first.len())?;
        self.code.extend(SKIP_RED_ZONE);
        self.code.push(PUSH_RCX);
        self.code.push(PUSH_RDX);
        match site.kind {
            Kind::Operation => {
                self.code.extend(load_address(first, self.here()).ok()?);
                self.code.push(PUSH_RCX);
                self.code.extend(HIGH_PART_OF_TOP);
                self.code.extend(DROP_TOP);
                self.code.extend(MOV_RDX);
                self.code.extend(self.places.table.to_le_bytes());
                self.code.extend(LOAD_FROM_TABLE);
            }
            Kind::Fence => {
                self.code.extend(MOV_RCX);
                self.code.extend(self.places.fence.to_le_bytes());
                self.code.extend(LOAD_BYTE);
            }
        }
        self.code.push(JRCXZ);
        let branch = self.code.len();
        self.code.push(0);
        if site.kind == Kind::Operation {
            // The operand may need the registers that the table took.
            self.code.push(POP_RDX);
            self.code.push(POP_RCX);
            self.code.push(PUSH_RCX);
            self.code.push(PUSH_RDX);
            self.code.extend(load_address(first, self.here()).ok()?);
        } else {
            self.code.extend(NO_ADDRESS);
        }
        self.call(0);
        self.restore();
        self.code.extend(instruction);
        self.code.extend(SKIP_RED_ZONE);
        self.call(8);
        self.code.extend(UNSKIP_RED_ZONE);
        self.code.push(JUMP);
        let leave = self.code.len();
        self.code.extend([0; 4]);
        self.code[branch] = u8::try_from(self.code.len() - branch - 1).ok()?;
        self.restore();
        self.code.extend(instruction);
        let rest = i32::try_from(self.code.len() - leave - 4).ok()?;
        self.code[leave..leave + 4].copy_from_slice(&rest.to_le_bytes());
        let successors = &site.instructions[1..];
        if !successors.is_empty() {
            let block = InstructionBlock::new(successors, self.here());
            self.code.extend(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?.code_buffer);
        }
        let next = site.address() + site.bytes() as u64;
        self.code.extend(jump(self.here(), next));
        Some(self.code)
    }

    fn restore(&mut self) {
        self.code.push(POP_RDX);
        self.code.push(POP_RCX);
        self.code.extend(UNSKIP_RED_ZONE);
    }
}

/// Returns an instruction at `at` that loads the address of the operand into `rcx`, while the stack pointer
/// is below that of the program by the red zone and two words.
fn load_address(instruction: &Instruction, at: u64) -> Result<Vec<u8>, IcedError> {
    const BELOW: i64 = RED_ZONE_BYTES + 16;
    let base = instruction.memory_base();
    let below = if base == Register::RSP { BELOW } else { 0 };
    let offset = instruction.memory_displacement64().cast_signed() + below;
    let operand = MemoryOperand::new(
        base,
        instruction.memory_index(),
        instruction.memory_index_scale(),
        offset,
        // The encoder chooses a shorter form where the offset allows it.
        if offset == 0 && base != Register::None { 0 } else { offset_bytes(base) },
        false,
        Register::None,
    );
    let load = Instruction::with2(Code::Lea_r64_m, Register::RCX, operand)?;
    let mut encoder = Encoder::new(64);
    encoder.encode(&load, at)?;
    Ok(encoder.take_buffer())
}

/// Returns the length of an offset as the encoder counts it, which depends on the width of addresses.
fn offset_bytes(base: Register) -> u32 {
    if base.is_gpr32() { 4 } else { 8 }
}
