//! Finds the jumps to functions of other objects.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use crate::frames::Image;

/// A jump to wherever a word of memory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableJump {
    /// The place of the four bytes that are the distance to the word.
    pub distance_at: u64,
    /// The address from which the distance counts.
    pub next: u64,
    /// The address of the word.
    pub word: u64,
}

/// Returns the jumps in a procedure linkage table through words of `table` (System V ABI, 5.2): each leads to
/// a function of another object.
pub fn table_jumps(image: &Image<'_>, section: Range<u64>, table: &Range<u64>) -> Vec<TableJump> {
    let bytes = usize::try_from(section.end.saturating_sub(section.start)).ok();
    let Some(code) = bytes.and_then(|bytes| image.bytes(section.start, bytes)) else { return Vec::new() };
    let mut decoder = Decoder::with_ip(64, code, section.start, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.can_decode() {
        let jump = decoder.decode();
        let is_jump = jump.flow_control() == FlowControl::IndirectBranch && jump.is_ip_rel_memory_operand();
        if is_jump && table.contains(&jump.ip_rel_memory_address()) {
            let offset = decoder.get_constant_offsets(&jump).displacement_offset();
            let (distance_at, next) = (jump.ip() + offset as u64, jump.next_ip());
            found.push(TableJump { distance_at, next, word: jump.ip_rel_memory_address() });
        }
    }
    found
}
