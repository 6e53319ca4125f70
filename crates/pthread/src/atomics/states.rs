//! The state of an interrupted thread, to find out whether it does the same again and again.

use std::ptr;

/// The number of states that are remembered: a loop that waits is interrupted at different places.
const REMEMBERED: usize = 64;
/// How much of the stack belongs to the state, at most: code that was not optimised has its variables there.
const STACK_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
const RED_ZONE_BYTES: usize = 128;

/// The last states of a thread, each as a hash.
#[derive(Clone, Copy)]
pub(super) struct States {
    hashes: [u64; REMEMBERED],
    next: usize,
}

impl States {
    pub(super) const NONE: States = States { hashes: [0; REMEMBERED], next: 0 };

    /// Notes a state. Returns true if it is one of the last ones.
    pub(super) fn note(&mut self, hash: u64) -> bool {
        let is_known = self.hashes.contains(&hash);
        if !is_known {
            self.hashes[self.next] = hash;
            self.next = (self.next + 1) % REMEMBERED;
        }
        is_known
    }
}

/// Returns the state of the thread of a context, which runs code of the program: its registers, and its stack
/// near the stack pointer.
///
/// The state of a loop that waits, at one of its instructions, is always the same: what it loads does not
/// change. A loop that computes counts something.
pub(super) fn of(context: &libc::mcontext_t) -> u64 {
    let mut hash = 0u64;
    let mut add = |word: u64| hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let general = &context.gregs[..=libc::REG_RIP as usize];
    general.iter().for_each(|word| add(word.cast_unsigned()));
    // SAFETY: the kernel passes the address of the registers, or NULL.
    if let Some(floating) = unsafe { context.fpregs.as_ref() } {
        floating._xmm.iter().flat_map(|register| register.element).for_each(|part| add(u64::from(part)));
    }
    let pointer = context.gregs[libc::REG_RSP as usize] as usize & !7;
    // A function that calls none may use this part below the pointer. It must not lead to another page.
    let start = if pointer % PAGE_BYTES < RED_ZONE_BYTES { pointer } else { pointer - RED_ZONE_BYTES };
    let words = (PAGE_BYTES - start % PAGE_BYTES).min(STACK_BYTES) / size_of::<u64>();
    for place in 0..words {
        let word = ptr::with_exposed_provenance::<u64>(start + place * size_of::<u64>());
        // SAFETY: the word is on the page of the thread's stack pointer, which the thread uses.
        add(unsafe { word.read_volatile() });
    }
    hash.max(1)
}
