//! The program's calls of other objects' functions.
//!
//! Such a call jumps through a word that the loader has filled. Linkers put these words directly before the
//! program's variables, on one page with the first of them. So each call would read a page that other nodes
//! may be storing to. No word changes any more when the program begins, since the loader fills all of them at
//! the start (`LD_BIND_NOW`). So here the jumps get a private copy of them.

use std::fs::File;
use std::ops::Range;
use std::ptr;

use hiroba_patch::{Image, table_jumps};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSection as _, ReadCache};

use crate::atomics::objects::{self, Object};
use crate::face;

/// The words before those of functions, which only the loader uses.
const LOADERS_BYTES: u64 = 24;

/// Gives each jump a private word. No code of the program runs yet in this process.
pub(crate) fn copy() {
    if face::hiroba_nodes() > 1 {
        objects::of_program().iter().for_each(|object| _ = copy_of(object));
    }
}

/// Does so for an object. Returns `None` if that stays as it is, because it has no such words or is built in
/// another way.
fn copy_of(object: &Object) -> Option<()> {
    let [table, lazy, plain] = sections(object)?;
    let table = table.start + LOADERS_BYTES..table.end;
    let image = Image::new(object.readable());
    let jumps: Vec<_> =
        [lazy, plain].into_iter().flat_map(|section| table_jumps(&image, section, &table)).collect();
    let words = usize::try_from(table.end.checked_sub(table.start)?).ok()? / size_of::<usize>();
    if jumps.is_empty() {
        return None;
    }
    let start = ptr::with_exposed_provenance::<u8>(table.start as usize);
    // SAFETY: the loader has filled these words, which are part of the object's data.
    let bytes = unsafe { std::slice::from_raw_parts(start, words * size_of::<usize>()) };
    let area = object.map_near(bytes.len().next_multiple_of(objects::PAGE_BYTES))?;
    let moved = area.start as u64;
    area.fill(bytes);
    for jump in jumps {
        let distance = (moved + jump.word - table.start).wrapping_sub(jump.next).cast_signed();
        let distance = i32::try_from(distance).expect("what is mapped near is within 2 GiB");
        object.write(jump.distance_at as usize, &distance.to_le_bytes());
    }
    object.make_executable();
    Some(())
}

/// Returns where an object has the words, and the code that jumps through them, of either form.
fn sections(object: &Object) -> Option<[Range<u64>; 3]> {
    let cache = ReadCache::new(File::open(&object.path).ok()?);
    let file = ElfFile64::<LittleEndian, _>::parse(&cache).ok()?;
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let start = section.address() + object.bias as u64;
        Some(start..start + section.size())
    };
    let none = 0..0;
    Some([section(".got.plt")?, section(".plt")?, section(".plt.sec").unwrap_or(none)])
}
