//! `hiroba_account_now`: a node's account for the program itself.

use hiroba_node::Runtime;

/// `hiroba_account` of `hiroba.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Account {
    compute_s: f64,
    read_fault_s: f64,
    write_fault_s: f64,
    barrier_s: f64,
    lock_s: f64,
    serve_s: f64,
    other_s: f64,
    read_faults: u64,
    write_faults: u64,
    pages_fetched: u64,
    messages_sent: u64,
    bytes_sent: u64,
}

/// See `hiroba.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_account_now() -> Account {
    let Some(runtime) = Runtime::known() else { return Account::default() };
    let statistics = runtime.statistics();
    let (time_s, counters) = (statistics.time_s, statistics.counters);
    Account {
        compute_s: time_s.compute,
        read_fault_s: time_s.read_fault,
        write_fault_s: time_s.write_fault,
        barrier_s: time_s.barrier,
        lock_s: time_s.lock,
        serve_s: time_s.serve,
        other_s: time_s.other,
        read_faults: counters.read_faults,
        write_faults: counters.write_faults,
        pages_fetched: counters.pages_fetched,
        messages_sent: counters.messages_sent,
        bytes_sent: counters.bytes_sent,
    }
}
