//! Places: the processors of this node to which its threads are bound, where the user wants that
//! (`OMP_PLACES`, `OMP_PROC_BIND`). A thread is bound once, for as long as it lives.

use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;

use hiroba_schedule::{Binding, Processor};

use crate::job;
use crate::loop_schedule::refuse;
use crate::runtime;
use crate::settings::settings;

/// The places of this node, and how threads are spread over them; `None` where threads are not bound.
#[derive(Debug, Default)]
struct Places {
    processors: Vec<Vec<u32>>,
    binding: Option<Binding>,
}

static PLACES: OnceLock<Places> = OnceLock::new();

thread_local! {
    /// The number of the calling thread's place, -1 where it is not bound.
    static PLACE: Cell<i32> = const { Cell::new(-1) };
}

/// Finds the places of this node, before any thread is bound.
pub(crate) fn find() {
    PLACES.get_or_init(|| {
        let settings = settings();
        let binding = match settings.proc_bind {
            0 => None,
            2 => Some(Binding::Primary),
            4 => Some(Binding::Spread),
            _ => Some(Binding::Close),
        };
        let text = match (&settings.places, binding) {
            (Some(text), _) => text.as_str(),
            (None, Some(_)) => "cores",
            (None, None) => return Places::default(),
        };
        let processors = runtime::privately(|| hiroba_schedule::places(text, &allowed()));
        let processors = processors.unwrap_or_else(|why| refuse("OMP_PLACES", text, why));
        Places { processors, binding }
    });
}

/// Binds the calling thread, thread `local` of this node, to its place.
pub(crate) fn bind(local: u32) {
    let Some(Places { processors, binding: Some(binding) }) = PLACES.get() else { return };
    let place = binding.place(local as usize, job::threads_per_node() as usize, processors.len());
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for number in &processors[place] {
        // SAFETY: the set is a local; numbers beyond it are ignored.
        unsafe { libc::CPU_SET(*number as usize, &mut set) };
    }
    // SAFETY: the set is a local and as long.
    let bound =
        runtime::privately(|| unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) });
    // Where binding is forbidden, the scheduler places the thread: slower, not wrong.
    if bound == 0 {
        PLACE.set(place as i32);
    }
}

/// The processors of each place of this node.
pub(crate) fn processors() -> &'static [Vec<u32>] {
    PLACES.get().map_or(&[], |places| &places.processors)
}

/// The processors of a place; none where there is no such place.
pub(crate) fn processors_of(place: i32) -> &'static [u32] {
    usize::try_from(place).ok().and_then(|place| processors().get(place)).map_or(&[], Vec::as_slice)
}

/// The number of the calling thread's place, -1 where it is not bound.
pub(crate) fn own() -> i32 {
    PLACE.get()
}

/// The places as a user would list them.
pub(crate) fn shown() -> String {
    let place = |place: &Vec<u32>| {
        let numbers: Vec<String> = place.iter().map(u32::to_string).collect();
        format!("{{{}}}", numbers.join(","))
    };
    processors().iter().map(place).collect::<Vec<_>>().join(",")
}

/// The processors that this process may use, with what the system says they are parts of.
fn allowed() -> Vec<Processor> {
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes a local that is as long.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: the set is a local, and the numbers are within it.
    let is_in = |number: &u32| unsafe { libc::CPU_ISSET(*number as usize, &set) };
    (0..libc::CPU_SETSIZE as u32).filter(is_in).map(processor).collect()
}

fn processor(number: u32) -> Processor {
    let directory = format!("/sys/devices/system/cpu/cpu{number}");
    let directory = Path::new(&directory);
    // A list of processors, or the number of something: its first number.
    let first = |file: &str| {
        let text = std::fs::read_to_string(directory.join(file)).ok()?;
        text.split([',', '-']).next()?.trim().parse::<u64>().ok()
    };
    let socket = first("topology/physical_package_id").unwrap_or(0);
    let cache = (2..=4).rev().find_map(|index| first(&format!("cache/index{index}/shared_cpu_list")));
    let numa = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<u64>().ok());
    Processor {
        number,
        core: first("topology/thread_siblings_list").unwrap_or(u64::from(number)),
        cache: cache.unwrap_or(socket),
        numa: numa.unwrap_or(0),
        socket,
    }
}
