//! What a program asks OpenMP, and sets: for C, and for Fortran, which passes addresses.

use std::ffi::{c_double, c_int};

use crate::context;
use crate::job;
use crate::loop_schedule::{AUTO, FACTORING, MONOTONIC, PROFILED, STATIC, Schedule};
use crate::places;
use crate::settings::{LEVELS_MAX, settings};
use crate::start;

/// Defines questions without arguments.
macro_rules! ask {
    ($($name:ident $fortran:ident -> $type:ty => $answer:expr;)*) => { $(
        /// See OpenMP.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name() -> $type {
            $answer
        }

        /// The same for Fortran.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $fortran() -> $type {
            $name()
        }
    )* };
}

ask! {
    omp_get_num_threads omp_get_num_threads_ -> c_int => context::current().threads.get() as c_int;
    omp_get_thread_num omp_get_thread_num_ -> c_int => context::current().number.get() as c_int;
    omp_get_max_threads omp_get_max_threads_ -> c_int => context::current().settings.get().threads as c_int;
    omp_get_num_procs omp_get_num_procs_ -> c_int => job::places() as c_int;
    omp_get_thread_limit omp_get_thread_limit_ -> c_int =>
        context::current().settings.get().thread_limit as c_int;
    omp_in_parallel omp_in_parallel_ -> c_int => c_int::from(context::current().active_level.get() > 0);
    omp_get_dynamic omp_get_dynamic_ -> c_int => c_int::from(context::current().settings.get().is_dynamic);
    omp_get_nested omp_get_nested_ -> c_int =>
        c_int::from(context::current().settings.get().max_active_levels > 1);
    omp_get_max_active_levels omp_get_max_active_levels_ -> c_int =>
        context::current().settings.get().max_active_levels as c_int;
    omp_get_supported_active_levels omp_get_supported_active_levels_ -> c_int => LEVELS_MAX as c_int;
    omp_get_level omp_get_level_ -> c_int => context::current().level.get() as c_int;
    omp_get_active_level omp_get_active_level_ -> c_int => context::current().active_level.get() as c_int;
    omp_get_cancellation omp_get_cancellation_ -> c_int => c_int::from(settings().cancellation);
    omp_get_max_task_priority omp_get_max_task_priority_ -> c_int => settings().max_task_priority as c_int;
    omp_get_proc_bind omp_get_proc_bind_ -> c_int => settings().proc_bind;
    omp_get_num_places omp_get_num_places_ -> c_int => places::processors().len() as c_int;
    omp_get_place_num omp_get_place_num_ -> c_int => places::own();
    omp_get_partition_num_places omp_get_partition_num_places_ -> c_int => places::processors().len() as c_int;
    omp_get_num_teams omp_get_num_teams_ -> c_int => context::current().teams.get() as c_int;
    omp_get_team_num omp_get_team_num_ -> c_int => context::current().team_number.get() as c_int;
    omp_get_max_teams omp_get_max_teams_ -> c_int => context::current().settings.get().teams_max as c_int;
    omp_get_teams_thread_limit omp_get_teams_thread_limit_ -> c_int =>
        context::current().settings.get().teams_thread_limit as c_int;
    omp_get_num_devices omp_get_num_devices_ -> c_int => 0;
    omp_get_default_device omp_get_default_device_ -> c_int =>
        context::current().settings.get().default_device;
    omp_get_initial_device omp_get_initial_device_ -> c_int => 0;
    omp_get_device_num omp_get_device_num_ -> c_int => 0;
    omp_is_initial_device omp_is_initial_device_ -> c_int => 1;
    omp_get_wtime omp_get_wtime_ -> c_double => start::clock_s();
    omp_get_wtick omp_get_wtick_ -> c_double => 1e-9;
}

/// Defines functions that set something by a number.
macro_rules! set {
    ($($name:ident $fortran:ident $fortran_8:ident ($number:ident) => $act:expr;)*) => { $(
        /// See OpenMP.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name($number: c_int) {
            $act
        }

        /// The same for Fortran.
        ///
        /// # Safety
        /// The number can be read.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran(number: *const i32) {
            // SAFETY: the caller's.
            $name(unsafe { number.read() });
        }

        /// The same for numbers of 8 bytes.
        ///
        /// # Safety
        /// The number can be read.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran_8(number: *const i64) {
            // SAFETY: the caller's.
            let number = unsafe { number.read() };
            $name(number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as c_int);
        }
    )* };
}

set! {
    omp_set_num_threads omp_set_num_threads_ omp_set_num_threads_8_(number) =>
        context::current().change(|settings| settings.threads = number.max(1) as u32);
    omp_set_dynamic omp_set_dynamic_ omp_set_dynamic_8_(number) =>
        context::current().change(|settings| settings.is_dynamic = number != 0);
    omp_set_nested omp_set_nested_ omp_set_nested_8_(number) =>
        context::current().change(|settings| {
            settings.max_active_levels = if number != 0 { LEVELS_MAX } else { 1 };
        });
    omp_set_max_active_levels omp_set_max_active_levels_ omp_set_max_active_levels_8_(number) =>
        if number >= 0 {
            context::current().change(|settings| settings.max_active_levels = (number as u32).min(LEVELS_MAX));
        };
    omp_set_default_device omp_set_default_device_ omp_set_default_device_8_(number) =>
        context::current().change(|settings| settings.default_device = number);
    omp_set_num_teams omp_set_num_teams_ omp_set_num_teams_8_(number) =>
        context::current().change(|settings| settings.teams_max = number.max(0) as u32);
    omp_set_teams_thread_limit omp_set_teams_thread_limit_ omp_set_teams_thread_limit_8_(number) =>
        context::current().change(|settings| settings.teams_thread_limit = number.max(0) as u32);
    omp_display_env omp_display_env_ omp_display_env_8_(verbose) => settings().show(verbose != 0, &places::shown());
}

/// Defines questions about a level of regions.
macro_rules! of_level {
    ($($name:ident $fortran:ident $fortran_8:ident => $answer:expr;)*) => { $(
        /// See OpenMP. -1 for levels that the calling thread is not in.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name(level: c_int) -> c_int {
            let (of_context, outermost): (fn(&context::Context) -> u32, c_int) = $answer;
            let Ok(level) = u32::try_from(level) else { return -1 };
            let current = context::current();
            match current.at_level(level) {
                Some(context) => of_context(context) as c_int,
                // A thread that joined the team for the region has no context outside.
                None if level < current.level.get() => outermost,
                None => -1,
            }
        }

        /// The same for Fortran.
        ///
        /// # Safety
        /// The number can be read.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran(level: *const i32) -> c_int {
            // SAFETY: the caller's.
            $name(unsafe { level.read() })
        }

        /// The same for numbers of 8 bytes.
        ///
        /// # Safety
        /// The number can be read.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fortran_8(level: *const i64) -> c_int {
            // SAFETY: the caller's.
            $name(i32::try_from(unsafe { level.read() }).unwrap_or(-1))
        }
    )* };
}

of_level! {
    omp_get_ancestor_thread_num omp_get_ancestor_thread_num_ omp_get_ancestor_thread_num_8_ =>
        (|context| context.number.get(), 0);
    omp_get_team_size omp_get_team_size_ omp_get_team_size_8_ =>
        (|context| context.threads.get(), 1);
}

/// Sets the schedule of loops that leave it open.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_set_schedule(kind: c_int, chunk: c_int) {
    let (kind, plain) = (kind as u32, kind as u32 & !MONOTONIC);
    if !(STATIC..=AUTO).contains(&plain) && !(FACTORING..=PROFILED).contains(&plain) {
        return;
    }
    let chunk = match plain {
        AUTO => 0,
        STATIC | PROFILED => chunk.max(0),
        _ => chunk.max(1),
    };
    context::current().change(|settings| settings.schedule = Schedule::new(kind, chunk as u32));
}

/// Returns the schedule of loops that leave it open.
///
/// # Safety
/// Both are places of the caller's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_schedule(kind: *mut c_int, chunk: *mut c_int) {
    let schedule = context::current().settings.get().schedule;
    // SAFETY: the caller's.
    unsafe { kind.write(schedule.kind as c_int) };
    // SAFETY: the caller's.
    unsafe { chunk.write(schedule.chunk as c_int) };
}

/// The same for Fortran.
///
/// # Safety
/// Both can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_set_schedule_(kind: *const i32, chunk: *const i32) {
    // SAFETY: the caller's.
    let kind = unsafe { kind.read() };
    // SAFETY: the caller's.
    omp_set_schedule(kind, unsafe { chunk.read() });
}

/// The same with a chunk of 8 bytes.
///
/// # Safety
/// Both can be read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_set_schedule_8_(kind: *const i32, chunk: *const i64) {
    // SAFETY: the caller's.
    let kind = unsafe { kind.read() };
    // SAFETY: the caller's.
    let chunk = unsafe { chunk.read() };
    omp_set_schedule(kind, chunk.clamp(0, i64::from(i32::MAX)) as c_int);
}

/// The same for Fortran.
///
/// # Safety
/// Both are places of the caller's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_schedule_(kind: *mut i32, chunk: *mut i32) {
    // SAFETY: the caller's.
    unsafe { omp_get_schedule(kind, chunk) };
}

/// The same with a chunk of 8 bytes.
///
/// # Safety
/// Both are places of the caller's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn omp_get_schedule_8_(kind: *mut i32, chunk: *mut i64) {
    let mut small = 0;
    // SAFETY: the caller's, and a local.
    unsafe { omp_get_schedule(kind, &raw mut small) };
    // SAFETY: the caller's.
    unsafe { chunk.write(i64::from(small)) };
}

/// See OpenMP: nothing can be given back meanwhile, which is no mistake.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_pause_resource(_kind: c_int, _device: c_int) -> c_int {
    -1
}

/// See OpenMP: nothing can be given back meanwhile, which is no mistake.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_pause_resource_all(_kind: c_int) -> c_int {
    -1
}

/// The same for Fortran.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_pause_resource_(_kind: *const i32, _device: *const i32) -> c_int {
    -1
}

/// The same for Fortran.
#[unsafe(no_mangle)]
extern "C-unwind" fn omp_pause_resource_all_(_kind: *const i32) -> c_int {
    -1
}
