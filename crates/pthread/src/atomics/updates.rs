//! Updates of shared variables that other nodes execute (`hiroba_patch::Update`).
//!
//! The library above decides which thread puts off which update, and when another one executes it: a barrier
//! follows, so the updates of all nodes may travel to node 0 with their arrivals there. Here a thread's
//! registers are read and loaded. An update is passed on as words: its address in the program, which is the
//! same on all nodes, and what it reads.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, OnceLock, PoisonError};

use hiroba_patch::{Following, Image, SKIPPED_BYTES, STACK_WORDS, State, Update};

use super::{LONG, is_long, objects};
use crate::saying;
use crate::stacks::{in_program, privately};

/// Decides whether the calling thread leaves an update out, which these words describe: then it returns 1.
/// What the thread does next is to call `called`, or to return from the code that begins at `from`; the other
/// one is 0.
type Take = unsafe extern "C-unwind" fn(*const u64, usize, called: usize, from: usize) -> c_int;

/// The function of this type, 0 if there is none, and the one that ends code with updates.
static TAKE: AtomicUsize = AtomicUsize::new(0);
static SECTION_END: AtomicUsize = AtomicUsize::new(0);

/// Those at atomic instructions, by their numbers, with their addresses.
static OF_INSTRUCTIONS: OnceLock<Vec<(u64, Update)>> = OnceLock::new();
/// Those behind calls, and what threads execute, both by their addresses.
static OF_SECTIONS: Mutex<Option<HashMap<u64, Option<&'static Update>>>> = Mutex::new(None);
static CODE: Mutex<Option<HashMap<u64, &'static Code>>> = Mutex::new(None);

/// The code of an update, as a thread executes it.
struct Code {
    update: &'static Update,
    entry: usize,
}

/// Below this distance from the stack pointer a variable may be part of the thread's own frame.
const FRAME_BYTES: u64 = 4096;

/// See `hiroba_take_updates` in `above.rs`.
pub(crate) fn take_with(take: Take, section_end: usize) {
    SECTION_END.store(section_end, Relaxed);
    TAKE.store(take as *const () as usize, Release);
}

/// Notes the updates at atomic instructions, in the order of their numbers. Called once.
pub(super) fn note(updates: Vec<(u64, Update)>) {
    let _ = OF_INSTRUCTIONS.set(updates);
}

/// Has the library above take the update of the calling thread, whose state is given. Returns true if the
/// thread is to leave it out.
fn put_off(address: u64, update: &Update, state: &State) -> bool {
    let take = TAKE.load(Acquire);
    if take == 0 {
        return false;
    }
    // SAFETY: `take_with` has stored a function of this type.
    let take = unsafe { std::mem::transmute::<usize, Take>(take) };
    let load = |address: u64| {
        let word = ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: the update loads this word itself.
        unsafe { word.read_unaligned() }
    };
    // Other nodes must see at once what is stored there, and must not need this thread's frame.
    let frame = state.general[4].wrapping_sub(FRAME_BYTES)..state.general[4].saturating_add(FRAME_BYTES);
    let may_travel = |(at, bytes): &(u64, u64)| {
        let may_be_long = LONG[(*at >> 32) as usize & 0xffff].load(Relaxed) != 0;
        let is_short = !may_be_long || !is_long(*at as usize) && !is_long((*at + *bytes - 1) as usize);
        is_short && !frame.contains(at)
    };
    if !update.operands(state, load).iter().all(may_travel) {
        return false;
    }
    let (called, from) = match update.following {
        Following::Call(called) => (called as usize, 0),
        Following::CallThrough(slot) => (load(slot) as usize, 0),
        Following::Return => (0, update.function as usize),
        Following::Unknown => return false,
    };
    let mut words = vec![address];
    update.pack(state, &mut words);
    // SAFETY: the words are readable.
    unsafe { take(words.as_ptr(), words.len(), called, from) != 0 }
}

/// Executes an update that a thread of some node has put off. Ends the job if this node has none there.
pub(crate) fn execute(words: &[u64]) {
    let code = words.first().and_then(|address| code_at(*address));
    let state = code.and_then(|code| code.update.unpack(&words[1..]));
    let Some((code, state)) = code.zip(state) else {
        saying::fatal("a fault of Hiroba's: an update came that this node's program does not have");
    };
    // SAFETY: the code is that of the program, made to end here, and the state is what it reads.
    unsafe { run(code.entry, &raw const state) };
}

/// Returns the code of the update at an address.
fn code_at(address: u64) -> Option<&'static Code> {
    let mut known = CODE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(code) = known.get(&address) {
        return Some(code);
    }
    let mut of_instructions = OF_INSTRUCTIONS.get().map_or(&[][..], Vec::as_slice).iter();
    let update = match of_instructions.find(|(at, _)| *at == address) {
        Some((_, update)) => update,
        None => section_at(address)?,
    };
    let code: &'static Code = Box::leak(Box::new(Code { update, entry: map(address, update)? }));
    known.insert(address, code);
    Some(code)
}

/// `jmp [rip + 2]`, and the distance to the address behind it.
const FINISH: [u8; 8] = [0xff, 0x25, 0x02, 0, 0, 0, 0x90, 0x90];

/// Puts the code of an update where it reaches what the program's code reaches. Returns its address.
fn map(address: u64, update: &Update) -> Option<usize> {
    let all = objects::of_program();
    let object = all.iter().find(|object| object.code().any(|code| code.contains(&(address as usize))))?;
    let area = object.map_near(objects::PAGE_BYTES)?;
    let mut bytes = FINISH.to_vec();
    bytes.extend((finish as *const () as u64).to_le_bytes());
    let entry = area.start + bytes.len();
    bytes.extend(update.encode(entry as u64, area.start as u64)?);
    area.fill(&bytes);
    Some(entry)
}

/// Returns the update that begins at an address behind a call.
fn section_at(at: u64) -> Option<&'static Update> {
    let mut known = OF_SECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    *known.get_or_insert_default().entry(at).or_insert_with(|| {
        let all = objects::of_program();
        let object = all.iter().find(|object| object.code().any(|code| code.contains(&(at as usize))))?;
        let image = Image::new(object.readable());
        let functions = hiroba_patch::functions(&image, object.frames as u64);
        let around = functions.iter().find(|function| function.code.contains(&at))?;
        let end = SECTION_END.load(Relaxed);
        let is_end = |following| match following {
            Following::Call(called) => called as usize == end,
            Following::CallThrough(slot) => {
                let slot = ptr::with_exposed_provenance::<usize>(slot as usize);
                // SAFETY: the program's code loads the address of a function from there.
                (unsafe { slot.read() }) == end
            }
            Following::Return | Following::Unknown => false,
        };
        let update = Update::behind_call(&image, around, at, &is_end)?;
        Some(Box::leak(Box::new(update)))
    })
}

/// See `hiroba_leave_section` in `above.rs`.
///
/// # Safety
/// As many words are readable at the stack pointer as updates may load.
pub(crate) unsafe fn leave_section(at: usize, general: &[u64; 16]) -> usize {
    if !in_program() || TAKE.load(Acquire) == 0 {
        return 0;
    }
    privately(|| {
        let Some(update) = section_at(at as u64) else { return 0 };
        let mut state = State { general: *general, ..State::NONE };
        let top = ptr::with_exposed_provenance::<u64>(general[4] as usize);
        for (number, word) in state.stack.iter_mut().enumerate().take(update.stack_words()) {
            // SAFETY: the update loads it itself.
            *word = unsafe { top.wrapping_add(number).read() };
        }
        if put_off(at as u64, update, &state) { update.resume as usize } else { 0 }
    })
}

/// What `put_off_here` finds below a return address: the general registers, the flags and that address, and
/// above it the update's number.
#[repr(C)]
struct Saved {
    general: [u64; 16],
    flags: u64,
    back: u64,
    number: u64,
}

/// The red zone of the program, which a stub has skipped.
const RED_ZONE_BYTES: usize = 128;

unsafe extern "C" fn put_off_update(saved: &mut Saved, vector: &[[u64; 2]; 16]) {
    let updates = OF_INSTRUCTIONS.get().map_or(&[][..], Vec::as_slice);
    let Some((address, update)) = updates.get(saved.number as usize).filter(|_| in_program()) else { return };
    let errno = crate::heap::errno();
    let above = ptr::from_mut(saved).addr() + size_of::<Saved>() + RED_ZONE_BYTES;
    let mut general = saved.general;
    general[4] = above as u64;
    let state = State { general, vector: *vector, stack: [0; STACK_WORDS] };
    if privately(|| put_off(*address, update, &state)) {
        saved.back += SKIPPED_BYTES as u64;
    }
    crate::heap::set_errno(errno);
}

/// Called by the stub of an update, with its number below the return address. All registers and flags are
/// kept, as in `exclusive.rs`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn put_off_here() {
    core::arch::naked_asm!(
        "pushfq",
        "push r15",
        "push r14",
        "push r13",
        "push r12",
        "push r11",
        "push r10",
        "push r9",
        "push r8",
        "push rdi",
        "push rsi",
        "push rbp",
        "push rsp",
        "push rbx",
        "push rdx",
        "push rcx",
        "push rax",
        "mov rbp, rsp",
        "cld",
        "sub rsp, 2816",
        "and rsp, -64",
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "xor edx, edx",
        "mov eax, 0xe7",
        "xsave64 [rsp]",
        "mov rdi, rbp",
        // The vector registers' lower parts.
        "lea rsi, [rsp + 160]",
        "call {called}",
        "xor edx, edx",
        "mov eax, 0xe7",
        "xrstor64 [rsp]",
        "mov rsp, rbp",
        "pop rax",
        "pop rcx",
        "pop rdx",
        "pop rbx",
        "lea rsp, [rsp + 8]",
        "pop rbp",
        "pop rsi",
        "pop rdi",
        "pop r8",
        "pop r9",
        "pop r10",
        "pop r11",
        "pop r12",
        "pop r13",
        "pop r14",
        "pop r15",
        "popfq",
        "ret",
        called = sym put_off_update,
    );
}

/// Executes the code at `entry` with this state.
#[unsafe(naked)]
unsafe extern "C" fn run(entry: usize, state: *const State) {
    core::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // The words of the stack's top, as aligned as they were.
        "sub rsp, {room}",
        "mov [rsp - 8], rdi",
        "mov rdx, rsi",
        "lea rsi, [rdx + {stack}]",
        "mov rdi, rsp",
        "mov ecx, {words}",
        "cld",
        "rep movsq",
        "movups xmm0, [rdx + 128]",
        "movups xmm1, [rdx + 144]",
        "movups xmm2, [rdx + 160]",
        "movups xmm3, [rdx + 176]",
        "movups xmm4, [rdx + 192]",
        "movups xmm5, [rdx + 208]",
        "movups xmm6, [rdx + 224]",
        "movups xmm7, [rdx + 240]",
        "movups xmm8, [rdx + 256]",
        "movups xmm9, [rdx + 272]",
        "movups xmm10, [rdx + 288]",
        "movups xmm11, [rdx + 304]",
        "movups xmm12, [rdx + 320]",
        "movups xmm13, [rdx + 336]",
        "movups xmm14, [rdx + 352]",
        "movups xmm15, [rdx + 368]",
        "mov rax, [rdx]",
        "mov rcx, [rdx + 8]",
        "mov rbx, [rdx + 24]",
        "mov rbp, [rdx + 40]",
        "mov rsi, [rdx + 48]",
        "mov rdi, [rdx + 56]",
        "mov r8, [rdx + 64]",
        "mov r9, [rdx + 72]",
        "mov r10, [rdx + 80]",
        "mov r11, [rdx + 88]",
        "mov r12, [rdx + 96]",
        "mov r13, [rdx + 104]",
        "mov r14, [rdx + 112]",
        "mov r15, [rdx + 120]",
        "mov rdx, [rdx + 16]",
        "jmp qword ptr [rsp - 8]",
        room = const STACK_WORDS * 8 + 8,
        stack = const std::mem::offset_of!(State, stack),
        words = const STACK_WORDS,
    );
}

/// Where the code of updates ends: goes on behind the call of [`run`].
#[unsafe(naked)]
unsafe extern "C" fn finish() {
    core::arch::naked_asm!(
        "add rsp, {room}",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        room = const STACK_WORDS * 8 + 8,
    );
}
