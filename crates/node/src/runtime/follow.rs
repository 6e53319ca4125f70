//! Programs in which node 0 leads: it alone runs `main`, and the other nodes wait inside `tsm_startup` for
//! its next command (the interface of Barli, Watanabe, Sakai and Tanaka, see `tsm.h`).
//!
//! A worker uses pointers that `main` stored in global variables. So before each start node 0 sends the
//! executable's private writable data to the other nodes. That needs the same program at the same addresses
//! everywhere, which is checked. Data that the dynamic linker copied into the executable on behalf of
//! libraries (copy relocations such as `stdout`) are left out: they belong to each process.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::runtime::space::RegionOptions;
use hiroba_base::NodeId;
use hiroba_protocol::Protocol;
use hiroba_protocol::{Outcome, Synchronisation};
use hiroba_wire::{Collective, Message, PROGRAM_DATA_BYTES_MAX};
use object::elf::{PF_W, PT_GNU_RELRO, PT_LOAD, PT_PHDR};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget};

use crate::runtime::Runtime;
use crate::signals::SignalsDeferred;
use crate::time_class::TimeClass;

/// The next command for a following node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Run the worker at this address, then join the others in a barrier.
    RunWorker(usize),
    /// The job is over; the node has left it.
    Leave,
}

/// Program data that came from node 0 and wait for the program's own thread to copy them into place. They are
/// never longer than the program's writable data: one start of a worker sends each byte once, and all nodes
/// have copied it before the next start.
#[derive(Debug, Default)]
pub(crate) struct ProgramImage {
    pieces: Mutex<Vec<Piece>>,
}

#[derive(Debug)]
struct Piece {
    identity: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl ProgramImage {
    /// Keeps a piece that came from a node.
    ///
    /// # Errors
    /// Returns an error message if that node may not send data, or has sent more than `bytes_max` in all.
    pub(crate) fn keep(
        &self,
        (from, bytes_max): (NodeId, usize),
        identity: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        if from != NodeId(0) {
            return Err("expected program data of node 0 alone".to_owned());
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let got = pieces.iter().map(|piece| piece.bytes.len()).sum::<usize>() + bytes.len();
        if got > bytes_max {
            return Err(format!(
                "expected at most {bytes_max} bytes of program data, which is what this program has, got {got} or more; \
                 is it the same executable on every node?"
            ));
        }
        pieces.push(Piece { identity, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn take(&self) -> Vec<Piece> {
        // The service thread takes the lock, too.
        let _signals = SignalsDeferred::defer();
        std::mem::take(&mut *self.pieces.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Runtime {
    /// On node 0: makes every other node run the worker at `address`. The caller runs it itself on node 0.
    pub fn lead_worker(&self, address: usize) {
        let program = Program::of_this_process().unwrap_or_else(|reason| self.refuse_worker(&reason));
        if self.has_fabric() {
            for range in &program.private_data {
                for start in (range.start..range.end).step_by(PROGRAM_DATA_BYTES_MAX) {
                    let end = range.end.min(start + PROGRAM_DATA_BYTES_MAX);
                    let bytes = copy_out(start..end);
                    let offset = (start - program.base) as u64;
                    let identity = program.identity;
                    let message = Message::ProgramData { identity, offset, bytes: &bytes }.encode();
                    NodeId::all(self.nodes()).skip(1).for_each(|node| self.send_to(node, &[&message]));
                }
            }
        }
        let offset = address.wrapping_sub(program.base) as u64;
        self.synchronise(
            "tsm_create_procs",
            TimeClass::Other,
            Synchronisation::Collective(Collective::RunWorker { offset }),
        );
    }

    /// On the other nodes: takes part in node 0's collective calls until it starts a worker or leaves.
    pub fn follow(&self) -> Command {
        loop {
            let outcome = self.synchronise(
                "tsm_startup",
                TimeClass::Other,
                Synchronisation::Collective(Collective::Follow),
            );
            let Outcome::Collective(collective) = outcome else { continue };
            match collective {
                Collective::Allocate { bytes, placement, page_size, protocol } => {
                    let protocol = protocol.and_then(Protocol::numbered);
                    self.add_region(bytes, RegionOptions { placement, page_size, protocol });
                }
                Collective::RunWorker { offset } => {
                    let program =
                        Program::of_this_process().unwrap_or_else(|reason| self.refuse_worker(&reason));
                    self.put_in_place(&program);
                    return Command::RunWorker(program.base.wrapping_add(offset as usize));
                }
                Collective::Leave | Collective::LeaveByExit | Collective::LeaveHalted => {
                    self.closed_out();
                    return Command::Leave;
                }
                Collective::Barrier | Collective::BeginRun | Collective::EndRun | Collective::Follow => {}
            }
        }
    }

    fn put_in_place(&self, program: &Program) {
        let pieces = self.image.take();
        for Piece { identity, offset, bytes } in pieces {
            if identity != program.identity {
                self.refuse_worker(
                    "expected the program and its libraries at the same addresses on every node, got different ones; \
                     is address-space randomisation forced on, or a library missing on one node?",
                );
            }
            let start = program.base.wrapping_add(offset as usize);
            let target = start..start.wrapping_add(bytes.len());
            if !program
                .private_data
                .iter()
                .any(|range| range.start <= target.start && target.end <= range.end)
            {
                self.refuse_worker(
                    "expected the same executable on every node, got one with other data segments",
                );
            }
            // SAFETY: the target lies in this program's own writable data (checked above), whose only other
            // user, the program's main thread, is the caller.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.start as *mut u8, bytes.len()) };
        }
    }

    fn refuse_worker(&self, reason: &str) -> ! {
        self.fatal(&format!("tsm_create_procs: {reason}"))
    }
}

/// Returns the size in memory of the executable's writable segments, from its program headers.
pub(crate) fn writable_bytes() -> usize {
    // SAFETY: getauxval has no memory operands.
    let told = |what| unsafe { libc::getauxval(what) };
    let (first, count) = (told(libc::AT_PHDR) as *const libc::Elf64_Phdr, told(libc::AT_PHNUM));
    if first.is_null() {
        return 0;
    }
    // SAFETY: the kernel has put the executable's program headers there, and they do not change
    // (getauxval(3), AT_PHDR).
    let headers = unsafe { std::slice::from_raw_parts(first, count as usize) };
    let is_writable =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0;
    headers.iter().filter(is_writable).map(|header| header.p_memsz as usize).sum()
}

fn copy_out(range: Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    // SAFETY: the range lies in the executable's own writable segments, mapped for the life of the process.
    // Other threads of the program may be writing there, as they may during any copy of C data; no reference
    // is formed.
    unsafe { std::ptr::copy_nonoverlapping(range.start as *const u8, bytes.as_mut_ptr(), range.len()) };
    bytes
}

/// The program in this process.
struct Program {
    base: usize,
    /// Equal on all nodes that have program and libraries at the same addresses.
    identity: u64,
    /// The executable's own writable data, in ascending order.
    private_data: Vec<Range<usize>>,
}

impl Program {
    fn of_this_process() -> Result<Program, String> {
        let file = std::fs::read("/proc/self/exe")
            .map_err(|error| format!("cannot read the executable: {error}"))?;
        let elf = ElfFile64::<Endianness>::parse(&*file)
            .map_err(|error| format!("expected a 64-bit ELF executable: {error}"))?;
        let endian = elf.endian();
        let headers = elf.elf_program_headers();
        let span = |header: &object::elf::ProgramHeader64<Endianness>| {
            let start = header.p_vaddr(endian) as usize;
            start..start + header.p_memsz(endian) as usize
        };
        let linked_at =
            headers.iter().find(|header| header.p_type(endian) == PT_PHDR).map(|header| span(header).start);
        // SAFETY: getauxval has no memory operands.
        let loaded_at = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
        let base = linked_at.map_or(0, |linked_at| loaded_at.wrapping_sub(linked_at));

        let mut excluded: Vec<Range<usize>> =
            headers.iter().filter(|header| header.p_type(endian) == PT_GNU_RELRO).map(span).collect();
        excluded.extend(copied_from_libraries(&elf));
        let writable = headers
            .iter()
            .filter(|header| header.p_type(endian) == PT_LOAD && header.p_flags(endian).contains(PF_W))
            .map(span);
        let private_data = writable
            .flat_map(|range| subtract(range, &excluded))
            .map(|range| base.wrapping_add(range.start)..base.wrapping_add(range.end))
            .collect();
        let landmarks = [base, libc::printf as *const () as usize, copy_out as *const () as usize];
        let identity = landmarks.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, landmark| {
            (hash ^ *landmark as u64).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Ok(Program { base, identity, private_data })
    }
}

/// Iterates over objects of libraries for which the linker reserved room in the executable (`R_*_COPY`).
fn copied_from_libraries<'a>(elf: &'a ElfFile64<'a, Endianness>) -> impl Iterator<Item = Range<usize>> + 'a {
    let copy =
        if cfg!(target_arch = "aarch64") { object::elf::R_AARCH64_COPY } else { object::elf::R_X86_64_COPY };
    let symbols = elf.dynamic_symbol_table();
    elf.dynamic_relocations().into_iter().flatten().filter_map(move |(offset, relocation)| {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
        let RelocationTarget::Symbol(index) = relocation.target() else { return None };
        if r_type != copy {
            return None;
        }
        let size = symbols.as_ref()?.symbol_by_index(index).ok()?.size();
        Some(offset as usize..(offset + size) as usize)
    })
}

/// Returns `range` without `holes`.
fn subtract(range: Range<usize>, holes: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut rest = vec![range];
    for hole in holes {
        rest = rest
            .into_iter()
            .flat_map(|piece| {
                let left = piece.start..piece.end.min(hole.start);
                let right = piece.start.max(hole.end)..piece.end;
                [left, right]
            })
            .filter(|piece| !piece.is_empty())
            .collect();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_program_data_is_kept_than_the_program_has() {
        let image = ProgramImage::default();
        let keep = |from: u16, bytes: &[u8]| image.keep((NodeId(from), 100), 7, 0, bytes);
        assert!(keep(1, &[1]).is_err_and(|why| why.contains("of node 0 alone")));
        assert_eq!((keep(0, &[1; 60]), keep(0, &[2; 40])), (Ok(()), Ok(())));
        assert!(keep(0, &[3]).is_err_and(|why| why.contains("at most 100 bytes of program data")));
        assert_eq!(image.take().iter().map(|piece| piece.bytes.len()).sum::<usize>(), 100);
        assert_eq!(keep(0, &[4; 100]), Ok(()), "what has been put in place makes room");
    }

    #[test]
    fn the_bound_is_what_the_program_has() {
        let program = Program::of_this_process().unwrap();
        let sent: usize = program.private_data.iter().map(ExactSizeIterator::len).sum();
        assert!((sent..1 << 30).contains(&writable_bytes()), "{sent}, {}", writable_bytes());
    }

    #[test]
    fn holes_are_cut_out() {
        assert_eq!(subtract(0..10, &[3..5, 9..12]), [0..3, 5..9]);
        assert_eq!(subtract(0..10, &[0..2, 2..10]), []);
        assert_eq!(subtract(4..10, &[0..2, 6..7]), [4..6, 7..10]);
    }

    #[test]
    fn the_program_knows_its_own_data() {
        static WRITABLE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(7);
        let program = Program::of_this_process().unwrap();
        let address = &raw const WRITABLE as usize;
        assert!(program.private_data.iter().any(|range| range.contains(&address)));
        assert!(!program.private_data.iter().any(|range| range.contains(&(copy_out as *const () as usize))));
        assert_eq!(Program::of_this_process().unwrap().identity, program.identity);
    }
}
