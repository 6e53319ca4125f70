//! The program's atomic instructions on long memory.
//!
//! Long blocks and large static variables (`statics.rs`) are long memory, which is under release consistency
//! in jobs with `--protocol hlrc` or `adaptive`. Everything else is under sequential consistency, where an
//! atomic instruction works as it is. At the start, before any code of the program runs, each node replaces
//! the atomic instructions of the executable and of the program's libraries (`hiroba-patch`). From then on
//! the page of long memory on which an instruction operates is put under sequential consistency, on all nodes
//! and permanently, before the instruction runs (`protocol/src/consistency/converting.rs`). There it is
//! atomic as it is, and plain loads and stores of the page work as on one machine.
//!
//! A fence orders plain loads and stores of other pages. The thread takes a lock of the job
//! ([`ATOMICS`](crate::control::ATOMICS)) and gives it back. So all fences are in one order, and each of them
//! sees all that threads did before earlier ones: acquiring the lock is an acquire, and the node that gets it
//! next learns all that this node has written. A lock that no other node wants stays where it is and costs no
//! message. Where pages cannot be put under sequential consistency (`adaptive`, whose homes move), an
//! instruction on long memory runs while the thread holds that lock.
//!
//! Plain loads and stores of other pages are as late as the next fence, or other synchronisation, of both
//! nodes; `spins.rs` bounds that for threads that wait for them.

mod exclusive;
pub(crate) mod objects;
mod order;
mod spins;
mod states;
mod ticks;
mod traps;
mod updates;

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};

use hiroba_patch::{Following, Image, Patch, PlaceTable, Places, Plan, Survey};

use crate::control::{control, note_long_block};
use crate::face;
use crate::library_above::has_library_above;
use crate::saying;
use crate::shared::is_shared;
use crate::statics;

use objects::Object;
pub(crate) use order::order_here;
pub(crate) use spins::{exchange_while_waiting, take_tick, watch_caller};
pub(crate) use traps::{keep_unblocked, takes_over};
pub(crate) use updates::{execute as execute_update, leave_section, take_with as take_updates_with};

/// For each 4 GiB of the address space: not 0 if long memory may lie there.
static LONG: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

/// Places in these 4 GiB whose pages are known to be under sequential consistency.
static READY: PlaceTable = PlaceTable::new();

/// Returns the part of the shared memory where long blocks of a node lie, if they have a protocol of their
/// own.
fn long_memory(node: i32) -> Option<Range<usize>> {
    let mut bytes = 0;
    let start = face::hiroba_long_memory(node, &raw mut bytes);
    (start != 0).then(|| start..start + bytes)
}

/// Returns true if long blocks have a protocol of their own in this job.
pub(crate) fn has_long_memory() -> bool {
    long_memory(0).is_some()
}

/// Returns true if the address, whose 4 GiB have long memory, may be in it. Large static variables share
/// theirs with other data and with code.
fn is_long(address: usize) -> bool {
    is_shared(address) || statics::is_long(address)
}

/// An executable or library, and its atomic instructions.
pub(crate) struct Surveyed {
    pub(crate) object: Object,
    survey: Survey,
}

impl Surveyed {
    /// Returns the places that atomic instructions name by fixed addresses.
    pub(crate) fn places_named(&self) -> impl Iterator<Item = Range<usize>> {
        self.survey.fixed.iter().map(|place| place.start as usize..place.end as usize)
    }
}

/// Finds the atomic instructions of the program and of its libraries. Returns nothing if the job leaves them
/// alone: it has one node, or long blocks have no protocol of their own. Then only those count that begin
/// updates, in a program of OpenMP.
pub(crate) fn survey() -> Vec<Surveyed> {
    let (has_long, with_updates) = (has_long_memory(), has_library_above());
    if face::hiroba_nodes() < 2 || !has_long && !with_updates {
        return Vec::new();
    }
    let survey = |object: Object| {
        let image = Image::new(object.readable());
        let functions = hiroba_patch::functions(&image, object.frames as u64);
        let code: Vec<Range<u64>> = object.code().map(|code| code.start as u64..code.end as u64).collect();
        let mut survey = Survey::of(&image, &functions, &code, with_updates);
        if !has_long {
            survey.sites.retain(|site| site.update.is_some());
            (survey.outside, survey.entered) = (0, 0);
        }
        Surveyed { object, survey }
    };
    objects::of_program().into_iter().map(survey).collect()
}

/// Replaces the atomic instructions that were found. No code of the program runs yet in this process.
pub(crate) fn replace(surveyed: Vec<Surveyed>) {
    if surveyed.is_empty() {
        return;
    }
    let of_heap = (0..face::hiroba_nodes()).map_while(long_memory);
    for part in of_heap.chain(statics::long_parts().iter().cloned()) {
        for block in part.start >> 32..=(part.end - 1) >> 32 {
            LONG[block & 0xffff].store(1, Relaxed);
        }
    }
    if !statics::long_parts().is_empty() {
        note_long_block();
    }
    let converts = face::hiroba_converts_pages() != 0;
    let mut places = Places {
        table: (&raw const LONG).addr() as u64,
        ready: (&raw const READY).addr() as u64,
        is_exclusive: !converts,
        fence: ptr::from_ref(&control().has_long_blocks).addr() as u64,
        begin: if converts { exclusive::prepare as *const () } else { exclusive::begin as *const () } as u64,
        end: exclusive::end as *const () as u64,
        put_off: updates::put_off_here as *const () as u64,
        first_update: 0,
    };
    let (mut sites, mut traps, mut updates) = (0, Vec::new(), Vec::new());
    for Surveyed { object, survey } in &surveyed {
        let plan = replace_in(object, survey, &places);
        sites += plan.patches.len();
        traps.extend(plan.traps);
        let mut of_sites =
            survey.sites.iter().filter_map(|site| Some((site.address(), site.update.as_ref()?)));
        let update = |address: u64| {
            let (_, update) = of_sites.find(|(at, _)| *at == address).expect("updates are of the survey");
            (address, update.clone())
        };
        updates.extend(plan.updates.into_iter().map(update));
        places.first_update = updates.len() as u32;
    }
    updates::note(updates);
    face::hiroba_note_atomic_sites(sites);
    traps::prepare(traps);
    if !has_long_memory() {
        return;
    }
    IS_REPLACED.store(true, Relaxed);
    spins::begin();
    if !has_library_above() || face::hiroba_stores_fault() != 0 {
        order::order_from_start();
    }
}

/// True once this node has replaced what needs it.
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// See `hiroba_follows` in `above.rs`.
pub(crate) fn follows(at: usize, function: usize, region: usize) -> c_int {
    let all = objects::of_program();
    let Some(object) = all.iter().find(|object| object.code().any(|code| code.contains(&at))) else {
        return 0;
    };
    let image = Image::new(object.readable());
    let functions = hiroba_patch::functions(&image, object.frames as u64);
    let Some(around) = functions.iter().find(|function| function.code.contains(&(at as u64))) else {
        return 0;
    };
    match hiroba_patch::following(&image, around, at as u64) {
        Following::Call(called) => c_int::from(called == function as u64),
        Following::CallThrough(slot) => {
            let slot = ptr::with_exposed_provenance::<usize>(slot as usize);
            // SAFETY: the program's code loads the address of a function from there.
            c_int::from(unsafe { slot.read() } == function)
        }
        Following::Return if around.code.start == region as u64 => 2,
        Following::Return | Following::Unknown => 0,
    }
}

/// Does what the program's fence instructions do.
pub(crate) fn fence() {
    std::sync::atomic::fence(SeqCst);
    if IS_REPLACED.load(Relaxed) && control().has_long_blocks.load(Relaxed) != 0 {
        exclusive::fence();
    }
}

/// Replaces the atomic instructions of an object.
fn replace_in(object: &Object, survey: &Survey, places: &Places) -> Plan {
    if survey.sites.is_empty() {
        report_rest(object, survey, 0);
        return Plan::default();
    }
    // A stub and its successors take less than this.
    const STUB_BYTES_MAX: usize = 256;
    let bytes = (16 + survey.sites.len() * STUB_BYTES_MAX).next_multiple_of(objects::PAGE_BYTES);
    let Some(area) = object.map_near(bytes) else {
        saying::fatal(&format!(
            "expected free addresses near {} for its atomic instructions, got none",
            object.name
        ));
    };
    let plan = Plan::of(&Image::new(object.readable()), survey, area.start as u64, places);
    report_rest(object, survey, plan.failed);
    area.fill(&plan.stubs);
    for Patch { address, bytes } in &plan.patches {
        object.write(*address as usize, bytes);
    }
    object.make_executable();
    plan
}

/// Reports atomic instructions that stay as they are although they may operate on long blocks.
fn report_rest(object: &Object, survey: &Survey, failed: usize) {
    let left = failed + survey.entered + survey.outside;
    if left > 0 && has_long_memory() && face::hiroba_node() == 0 {
        saying::say(&format!(
            "{left} atomic instructions of {} cannot be replaced ({} outside known functions); they are atomic \
             on one node only where they operate on long blocks and static variables. If there are such, use \
             --protocol sc",
            object.name, survey.outside
        ));
    }
}
