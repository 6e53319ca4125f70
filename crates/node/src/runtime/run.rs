//! `hiroba_run`: runs a function on every thread of every node.

use std::thread;

use hiroba_protocol::Synchronisation;
use hiroba_wire::Collective;

use crate::runtime::Runtime;
use crate::time_class::TimeClass;

/// Stack of `hiroba_run`'s threads, as large as a main thread usually has.
const STACK_BYTES: usize = 8 << 20;

impl Runtime {
    /// Runs `function(t)` on threads 0 to T - 1 of every node; the calling thread is thread 0 of its node.
    /// Collective. Memory is consistent at both ends.
    pub fn run(&'static self, function: impl Fn(u32) + Sync) {
        self.meet(Collective::BeginRun);
        let threads = self.threads_per_node();
        self.set_team(threads);
        self.account.team_works(true);
        thread::scope(|scope| {
            for number in 1..threads {
                let function = &function;
                let builder = thread::Builder::new().name(format!("hiroba-{number}")).stack_size(STACK_BYTES);
                let started = builder.spawn_scoped(scope, move || {
                    if let Err(error) = self.prepare_thread() {
                        self.fatal(&error.to_string());
                    }
                    function(number);
                    self.meet(Collective::EndRun);
                    self.finish_thread();
                });
                if let Err(error) = started {
                    let ordinal = number + 1;
                    self.fatal(&format!(
                        "hiroba_run: expected to start thread {ordinal} of {threads} on node {}, got: {error}; use fewer threads (-t)",
                        self.node()
                    ));
                }
            }
            function(0);
            self.meet(Collective::EndRun);
        });
        self.account.team_works(false);
        self.set_team(1);
    }

    fn meet(&self, collective: Collective) {
        self.synchronise("hiroba_run", TimeClass::Other, Synchronisation::Collective(collective));
    }
}
