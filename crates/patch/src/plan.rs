//! The code that replaces atomic instructions.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Encoder, IcedError, Instruction, InstructionBlock,
    MemoryOperand, Register,
};

use crate::frames::Image;
use crate::survey::{JUMP_BYTES, Kind, Site, Survey};

/// The addresses that stubs use.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// A byte for each 4 GiB of the address space, 65,536 of them: not 0 where operations are not atomic
    /// between nodes by themselves.
    pub table: u64,
    /// A table of places in these 4 GiB where they are ([`PlaceTable`]).
    pub ready: u64,
    /// True if operations elsewhere are exclusive, false if their places are made ready.
    pub is_exclusive: bool,
    /// A byte that is not 0 while fences must order the accesses of several nodes.
    pub fence: u64,
    /// A function that begins an exclusive operation on the address in `rcx`, or is a fence if that is 0. If
    /// operations are not exclusive, it notes the place in the table instead, where they are atomic from then
    /// on. It preserves all registers and flags.
    pub begin: u64,
    /// A function that ends it, and preserves them, too.
    pub end: u64,
    /// A function that is called at each update of the survey, with its number below the return address, and
    /// preserves all. If another node will execute the update, it returns [`SKIPPED_BYTES`] behind that
    /// address. 0 if there is none.
    pub put_off: u64,
    /// The number of the survey's first update.
    pub first_update: u32,
}

/// How far behind its return address a function returns where an update is to be left out.
pub const SKIPPED_BYTES: usize = JUMP_BYTES;

/// The number of entries of a [`PlaceTable`].
const ENTRIES: usize = 1 << 16;
/// The length of a place, which has one entry.
const PLACE_BITS: u32 = 8;

/// A table of places in memory: aligned parts of 256 bytes. Bits 8 to 23 of an address choose an entry, which
/// contains the complement of its bits 24 to 55. A place that takes the entry of another one displaces it. An
/// entry of zeros contains no address of a program.
#[derive(Debug)]
#[repr(transparent)]
pub struct PlaceTable([AtomicU32; ENTRIES]);

impl PlaceTable {
    /// Returns the empty table.
    #[expect(clippy::new_without_default, reason = "a static needs a constant, and a default is none")]
    pub const fn new() -> PlaceTable {
        PlaceTable([const { AtomicU32::new(0) }; ENTRIES])
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[AtomicU32; ENTRIES] {
        &self.0
    }

    /// Notes the places of a range, except those at the same entry as later ones.
    pub fn note(&self, range: Range<u64>) {
        for place in range.start >> PLACE_BITS..range.end.div_ceil(1 << PLACE_BITS) {
            let high = (place >> ENTRIES.trailing_zeros()) as u32;
            self.0[place as usize % ENTRIES].store(!high, Relaxed);
        }
    }
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
    /// The addresses of the updates, by their numbers.
    pub updates: Vec<u64>,
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
/// `movzx ecx, word ptr [rsp + 1]`: bits 8 to 23 of the word on the stack.
const MIDDLE_PART_OF_TOP: [u8; 5] = [0x0f, 0xb7, 0x4c, 0x24, 0x01];
/// `mov edx, [rdx + 4 * rcx]`.
const LOAD_ENTRY: [u8; 3] = [0x8b, 0x14, 0x8a];
/// `mov ecx, [rsp + 3]`: bits 24 to 55 of the word on the stack.
const REST_OF_TOP: [u8; 4] = [0x8b, 0x4c, 0x24, 0x03];
/// `lea ecx, [rcx + rdx + 1]`: 0 if `edx` is the complement of `ecx`. It leaves the flags alone.
const COMPARE: [u8; 4] = [0x8d, 0x4c, 0x11, 0x01];
/// `movzx ecx, byte ptr [rcx]`.
const LOAD_BYTE: [u8; 3] = [0x0f, 0xb6, 0x09];
/// `mov ecx, 0`, which leaves the flags alone.
const NO_ADDRESS: [u8; 5] = [0xb9, 0, 0, 0, 0];
const JRCXZ: u8 = 0xe3;
const JUMP: u8 = 0xe9;
const SHORT_JUMP: u8 = 0xeb;
/// `call [rip + offset]`.
const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
const TRAP: [u8; 2] = [0x0f, 0x0b];
const NOP: u8 = 0x90;
/// The pointers to the three functions, at the beginning of the stubs.
const HEAD_BYTES: usize = 24;
const PUT_OFF: u64 = 16;
const PUSH: u8 = 0x68;
/// `lea rsp, [rsp + 136]`: over a pushed number and the red zone.
const UNSKIP_NUMBER: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x88, 0, 0, 0];

impl Plan {
    /// Returns the code for the sites of a survey, with stubs that begin at `stubs_at`. That is within 2 GiB
    /// of all sites.
    pub fn of(image: &Image<'_>, survey: &Survey, stubs_at: u64, places: &Places) -> Plan {
        let mut plan = Plan::default();
        plan.stubs.extend(places.begin.to_le_bytes());
        plan.stubs.extend(places.end.to_le_bytes());
        plan.stubs.extend(places.put_off.to_le_bytes());
        debug_assert_eq!(plan.stubs.len(), HEAD_BYTES);
        for site in &survey.sites {
            let stub_at = stubs_at + plan.stubs.len() as u64;
            let writer = Writer { head: stubs_at, at: stub_at, places, code: Vec::new() };
            let number = places.first_update + plan.updates.len() as u32;
            let resume = resume_of(site).filter(|_| places.put_off != 0);
            let written = writer.stub(image, site, resume.as_ref().map(|resume| (number, resume)));
            let Some(stub) = written else {
                plan.failed += usize::from(!site.is_on_statics());
                continue;
            };
            plan.updates.extend(resume.map(|_| site.address()));
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

/// Where a thread goes on that leaves the site's update out.
enum Resume {
    /// At the successors that the stub has taken along.
    Successors,
    /// At this address behind the site.
    At(u64),
}

fn resume_of(site: &Site) -> Option<Resume> {
    let resume = site.update.as_ref()?.resume;
    let end = site.address() + site.bytes() as u64;
    match resume == site.instructions[0].next_ip() {
        true => Some(Resume::Successors),
        false => (resume >= end || resume < site.address()).then_some(Resume::At(resume)),
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

    /// Returns the code, or `None` if an instruction cannot be moved. `update` is the number of the update
    /// that the site begins, if it is one, and where a thread goes on that leaves it out.
    fn stub(mut self, image: &Image<'_>, site: &Site, update: Option<(u32, &Resume)>) -> Option<Vec<u8>> {
        let first = &site.instructions[0];
        let instruction = image.bytes(first.ip(), first.len())?;
        let left_out = update.and_then(|(number, resume)| self.put_off(number, resume));
        if site.is_on_statics() {
            let block = InstructionBlock::new(&site.instructions[..1], self.here());
            self.code.extend(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?.code_buffer);
        } else {
            self.code.extend(SKIP_RED_ZONE);
            self.code.push(PUSH_RCX);
            self.code.push(PUSH_RDX);
            match site.kind {
                Kind::Operation => self.operate(first, instruction)?,
                Kind::Fence => self.order(instruction)?,
            }
        }
        if let Some(left_out) = left_out {
            self.land_far(left_out)?;
        }
        let successors = &site.instructions[1..];
        if !successors.is_empty() {
            let block = InstructionBlock::new(successors, self.here());
            self.code.extend(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).ok()?.code_buffer);
        }
        let next = site.address() + site.bytes() as u64;
        self.code.extend(jump(self.here(), next));
        Some(self.code)
    }

    /// Leaves an update out if another node will execute it. Returns the place of a jump that leads behind
    /// the operation if the thread goes on there.
    fn put_off(&mut self, number: u32, resume: &Resume) -> Option<usize> {
        self.code.extend(SKIP_RED_ZONE);
        self.code.push(PUSH);
        self.code.extend(number.to_le_bytes());
        self.call(PUT_OFF);
        let mut left_out = UNSKIP_NUMBER.to_vec();
        let begin = self.here() + JUMP_BYTES as u64;
        let end = begin + (UNSKIP_NUMBER.len() + JUMP_BYTES) as u64;
        let jump_at = begin + UNSKIP_NUMBER.len() as u64;
        left_out.extend(jump(jump_at, if let Resume::At(resume) = resume { *resume } else { end }));
        self.code.extend(jump(self.here(), end));
        self.code.extend(left_out);
        let place = self.code.len() - 4;
        self.code.extend(UNSKIP_NUMBER);
        matches!(resume, Resume::Successors).then_some(place)
    }

    /// Executes an operation as it is where it is atomic, and otherwise exclusively, or after its place has
    /// been made ready.
    fn operate(&mut self, first: &Instruction, instruction: &[u8]) -> Option<()> {
        let check = self.code.len();
        self.code.extend(load_address(first, self.here()).ok()?);
        self.code.push(PUSH_RCX);
        self.code.extend(HIGH_PART_OF_TOP);
        self.load_rdx(self.places.table);
        self.code.extend(LOAD_FROM_TABLE);
        let elsewhere = self.branch();
        self.code.extend(MIDDLE_PART_OF_TOP);
        self.load_rdx(self.places.ready);
        self.code.extend(LOAD_ENTRY);
        self.code.extend(REST_OF_TOP);
        self.code.extend(COMPARE);
        let known = self.branch();
        self.code.push(POP_RCX);
        let leave = if self.places.is_exclusive {
            Some(self.execute_exclusively(instruction))
        } else {
            self.call(0);
            self.reload();
            self.code.push(SHORT_JUMP);
            let end = self.code.len() + 1;
            self.code.push(i8::try_from(check as isize - end as isize).ok()?.cast_unsigned());
            None
        };
        self.land(elsewhere)?;
        self.land(known)?;
        self.code.extend(DROP_TOP);
        self.restore();
        self.code.extend(instruction);
        leave.map_or(Some(()), |leave| self.land_far(leave))
    }

    /// Executes a fence exclusively while fences must be.
    fn order(&mut self, instruction: &[u8]) -> Option<()> {
        self.code.extend(MOV_RCX);
        self.code.extend(self.places.fence.to_le_bytes());
        self.code.extend(LOAD_BYTE);
        let alone = self.branch();
        self.code.extend(NO_ADDRESS);
        let leave = self.execute_exclusively(instruction);
        self.land(alone)?;
        self.restore();
        self.code.extend(instruction);
        self.land_far(leave)
    }

    /// Executes an instruction between calls of both functions, and returns the place of a jump behind it.
    /// `rcx` contains the address of the operand.
    fn execute_exclusively(&mut self, instruction: &[u8]) -> usize {
        self.call(0);
        self.restore();
        self.code.extend(instruction);
        self.code.extend(SKIP_RED_ZONE);
        self.call(8);
        self.code.extend(UNSKIP_RED_ZONE);
        self.code.push(JUMP);
        self.code.extend([0; 4]);
        self.code.len() - 4
    }

    /// Lets a jump lead to here.
    fn land_far(&mut self, jump: usize) -> Option<()> {
        let rest = i32::try_from(self.code.len() - jump - 4).ok()?;
        self.code[jump..jump + 4].copy_from_slice(&rest.to_le_bytes());
        Some(())
    }

    fn load_rdx(&mut self, value: u64) {
        self.code.extend(MOV_RDX);
        self.code.extend(value.to_le_bytes());
    }

    /// Writes a branch that is taken if `rcx` is 0, and returns its place.
    fn branch(&mut self) -> usize {
        self.code.push(JRCXZ);
        self.code.push(0);
        self.code.len() - 1
    }

    /// Lets a branch lead to here.
    fn land(&mut self, branch: usize) -> Option<()> {
        self.code[branch] = i8::try_from(self.code.len() - branch - 1).ok()?.cast_unsigned();
        Some(())
    }

    /// Loads the registers again that the program had when it came: the operand may need them.
    fn reload(&mut self) {
        self.code.extend([POP_RDX, POP_RCX, PUSH_RCX, PUSH_RDX]);
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
