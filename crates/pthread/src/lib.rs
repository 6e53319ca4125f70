//! Runs executables that were not built for Hiroba: `hiroba run --pthread` has the loader put this library
//! before the C library and before `libhiroba.so`.
//!
//! - **Start** (`start.rs`): before the program's constructors run, the process joins the job, and the
//!   writable data of the executable and of its libraries are shared at their addresses. `main` runs only on
//!   node 0, on a stack in shared memory; the other nodes wait for threads to start.
//! - **Memory** (`heap.rs`): the `malloc` family gives shared memory to the program, and the C library's own
//!   to the runtime.
//! - **Threads** (`threads.rs`, `record.rs`, `queues.rs`): a thread is a record in shared memory; it runs on
//!   one node from its beginning to its end. They end and are signalled from any node (`cancel.rs`,
//!   `signals.rs`, `sigwait.rs`, `masks.rs`).
//! - **Stacks** (`slots.rs`, `stacks.rs`): each thread has one in shared memory and a private one.
//! - **Thread-local variables** (`tls.rs`): those of the program are shared, those of the C library private.
//! - **The locale** (`locale.rs`, `locale/objects.rs`) is set on all nodes, and its objects are made there.
//! - **Files, streams, processes** (`carry.rs`): node 0 makes such calls for the threads of all nodes.
//! - **Waiting** (`locks.rs`, `waits.rs`, `keys.rs`): the objects of pthreads keep their state in the
//!   program's own variables, which are shared; a number in each identifies a lock and a condition variable
//!   of Hiroba. Futexes have lists of waiting threads (`futexes.rs`); deadlines are kept by alarms
//!   (`alarms.rs`).
//!
//! - **Atomic instructions** (`atomics.rs`): those of the program are replaced where they may operate on long
//!   blocks, which are under release consistency in some jobs.
//!
//! - **Libraries above** (`above.rs`): the OpenMP library builds on this one.
//!
//! Two rules prevent a node from waiting for itself. The runtime's code runs on the thread's *private* stack,
//! never on the shared one, whose pages may be absent (`stacks.rs`): no thread could serve a fault inside the
//! runtime. And the thread-local storage of the runtime and of the C library is private, because they use it
//! while they serve faults.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod above;
mod alarms;
mod alone;
mod atomics;
mod c11;
mod cancel;
mod carry;
mod control;
mod ending;
mod face;
mod futexes;
mod heap;
mod interrupts;
mod keys;
mod libraries;
mod library_above;
mod linkage;
mod locale;
mod locks;
mod masks;
mod next;
mod processors;
mod queues;
mod random;
mod record;
mod refusals;
mod saying;
mod shared;
mod signals;
mod sigwait;
mod slots;
mod stacks;
mod start;
mod statics;
mod threads;
mod tls;
mod waits;

#[global_allocator]
static ALLOCATOR: heap::Private = heap::Private;
