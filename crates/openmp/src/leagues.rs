//! `teams`: the teams of a league run one after the other, each on the threads of the job.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

use crate::context;
use crate::work::Function;

/// How many teams a league has: at least the number that the program asks for.
fn teams_of(asked: c_uint) -> u32 {
    let set = context::current().settings.get().teams_max;
    if asked > 0 { asked } else { set.max(1) }
}

/// Limits the threads of regions to come, if the program asks for that.
pub(crate) fn limit_threads(limit: c_uint) {
    if limit > 0 {
        context::current().change(|settings| settings.thread_limit = settings.thread_limit.min(limit));
    }
}

/// Runs `teams` outside of `target`.
///
/// # Safety
/// `function` may be called with `data`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn GOMP_teams_reg(
    function: Function,
    data: *mut c_void,
    teams: c_uint,
    thread_limit: c_uint,
    _flags: c_uint,
) {
    // SAFETY: the caller's.
    unsafe { run(function, data, teams, thread_limit) };
}

/// Runs the teams of a league: at least as many as are asked for, and 0 asks for as many as are set.
///
/// # Safety
/// `function` may be called with `data`.
pub(crate) unsafe fn run(function: Function, data: *mut c_void, teams: u32, thread_limit: u32) {
    let context = context::current();
    let (number, all) = (context.team_number.get(), context.teams.get());
    let settings = context.settings.get();
    let teams = teams_of(teams);
    context.teams.set(teams);
    for team in 0..teams {
        context.team_number.set(team);
        limit_threads(thread_limit);
        // SAFETY: the caller's.
        unsafe { function(data) };
        context.settings.set(settings);
    }
    context.team_number.set(number);
    context.teams.set(all);
}

/// Begins `teams` inside `target`, with one team.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_teams(_teams: c_uint, thread_limit: c_uint) {
    limit_threads(thread_limit);
}

thread_local! {
    /// How many teams of the league are left after this one.
    static TEAMS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Begins the first or the next team inside `target`. Returns true if there is one.
#[unsafe(no_mangle)]
extern "C-unwind" fn GOMP_teams4(least: c_uint, _most: c_uint, thread_limit: c_uint, is_first: bool) -> bool {
    let context = context::current();
    if is_first {
        let teams = least.max(1);
        limit_threads(thread_limit);
        context.teams.set(teams);
        context.team_number.set(0);
        TEAMS_LEFT.set(teams - 1);
        return true;
    }
    if TEAMS_LEFT.get() == 0 {
        context.teams.set(1);
        context.team_number.set(0);
        return false;
    }
    TEAMS_LEFT.set(TEAMS_LEFT.get() - 1);
    context.team_number.set(context.team_number.get() + 1);
    true
}
