/* hiroba.h - shared memory over many machines, for C99 and C++.
 *
 * Build with `hiroba cc program.c`, run with `hiroba run -n 4 ./a.out`. Every node runs main(). Between
 * hiroba_init and hiroba_finalize the nodes share the memory that hiroba_alloc and the malloc family return.
 * It has the same address on every node, so pointers may be shared too. A program started without `hiroba
 * run` is a job of one node.
 *
 * What is shared: memory from hiroba_alloc, hiroba_alloc_at, hiroba_alloc_with and the hiroba_malloc family,
 * and nothing else. Nodes are processes: globals, static variables, stacks and memory from plain malloc or
 * new are private to a node. A pointer to them means something else, or nothing, on another node.
 * docs/PORTING.md explains how to port a program of threads.
 *
 * Memory model: data-race-free programs behave as on one machine. A thread sees what another one has written
 * once they have synchronised: unlock -> lock of the same lock, or a barrier. Different nodes and threads may
 * write different bytes at once, even in the same page.
 *
 * Threads: hiroba_run starts T threads per node (`hiroba run -t T`). Threads that the program starts itself
 * (pthreads, std::thread, OpenMP) may also use shared memory, locks, condition variables, atomics and the
 * malloc family. Collective calls are made by one thread per node outside hiroba_run and by all T inside it.
 * A node may have up to 1024 threads at a time.
 *
 * System calls and the C library's streams work on shared memory as on any other. If page faults come as
 * signals (without root), the kernel would find pages missing, so this library replaces the C library's
 * functions and keeps their buffers out of shared memory. It cannot replace raw syscall(2), io_uring, aio and
 * functions of wide characters; programs that use these on shared memory need `--fault-source event` (root).
 * In the same jobs, setvbuf ignores a buffer in shared memory, vmsplice gives the pipe copies, and
 * process_vm_readv and process_vm_writev reach this process's own shared memory, but not another node's.
 *
 * Calls that change how memory is mapped: Hiroba maps shared memory on every node, from page fault to page
 * fault. On allocated shared memory
 *   mlock, mlock2, munlock   work, in whole pages: missing pages are fetched, and this node's memory for them
 *                            is not swapped out. Pages that other nodes write are still voided and fetched
 *                            again. With MLOCK_ONFAULT, pages that are present are locked. RLIMIT_MEMLOCK
 *                            applies.
 *   mprotect, pkey_mprotect  (key -1) with PROT_EXEC let this node execute code there, on every fault source;
 *                            each node that executes it must call it. Loads and stores remain allowed, also
 *                            with PROT_READ | PROT_EXEC; PROT_READ | PROT_WRITE ends the permission to
 *                            execute. A node sees code that another one wrote as it sees data, after
 *                            synchronising (and __builtin___clear_cache if the processor needs it). Any other
 *                            protection is refused: ENOTSUP.
 *   madvise                  with WILLNEED fetches ahead, with POPULATE_READ and POPULATE_WRITE waits for the
 *                            pages; NORMAL, RANDOM, SEQUENTIAL, HUGEPAGE, NOHUGEPAGE, MERGEABLE, UNMERGEABLE,
 *                            COLD, PAGEOUT, DONTFORK and DODUMP succeed and change nothing. All other advice
 *                            (DONTNEED, REMOVE, FREE, DOFORK, DONTDUMP ...) is refused: EINVAL. posix_madvise
 *                            accepts all of its advice.
 *   msync, mincore           work; there is no file to write to, and mincore describes this node's memory.
 *   munmap, mremap, mmap with MAP_FIXED, shmat with SHM_REMAP, remap_file_pages
 *                            are refused: EINVAL. The same applies to shared addresses that are not
 *                            allocated. mmap with MAP_FIXED_NOREPLACE finds the addresses in use: EEXIST.
 * The other calls are refused with ENOMEM if some of the shared addresses are not allocated, and with EINVAL
 * if a range begins or ends in private memory. The first refusal of each call is reported on stderr;
 * hiroba_error_string() explains each one. mlockall locks private memory only; lock the shared memory that
 * matters by mlock. With MCL_FUTURE memory is locked when it is first touched, as with MCL_ONFAULT, and a
 * limited RLIMIT_MEMLOCK is refused (ENOMEM), since the runtime would exceed it. The library cannot see the
 * same calls made by raw syscall(2), process_madvise and io_uring: do not make them on shared memory.
 *
 * Standard output: in a job, stdout is line-buffered, from the start of a program that is linked with this
 * library and from hiroba_init in others, unless the program calls setvbuf for it. So lines that were printed
 * before a node died are not lost. An unfinished line in the buffer is written when a bad access to memory
 * kills the node, and lost when another signal does. C++ streams after std::ios::sync_with_stdio(false) have
 * buffers of their own: use std::endl or std::unitbuf there.
 *
 * Signals: the program's handlers for SIGSEGV and SIGBUS get every fault that does not belong to shared
 * memory, whenever they are installed. Handlers of any signal may load and store shared memory, but must not
 * call this interface.
 *
 * A child made by fork() has no shared memory: touching it is a segmentation fault with a message that says
 * so, and calls of this interface fail or end the child. The child may exec another program, or do anything
 * that does not involve shared memory; posix_spawn, system and popen are unaffected.
 *
 * Functions that cannot fail in a correct program end the job with a message on stderr and exit status 125
 * when they are misused (unlocking a lock that is not held, leaving the job with a lock held, freeing an
 * address that is not a block, collective calls that differ between nodes). A job in which every thread waits
 * for another ends likewise, with a list of what each thread waits for. Touching shared addresses that are
 * not allocated is a segmentation fault, with a message that names the nearest allocation. Overrunning a
 * malloc block within its node's arena is not detected, as with any malloc. `hiroba run --races` reports
 * bytes that two nodes wrote without synchronisation; `--debug NODE` starts a debugger.
 *
 * -fsanitize=address works. -fsanitize=thread is refused, since its runtime reserves the shared region's
 * addresses.
 */
#ifndef HIROBA_H
#define HIROBA_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- Joining and leaving -------------------------------------------------------------------------- */

/* Joins the job; returns when every node has joined. Call it once, first. argc and argv are reserved for
 * future use and not changed; both may be NULL. A node is one process: under a wrapper (a shell script, say)
 * the first process that calls joins, and others are refused. Nodes have equal address layouts; programs that
 * a node executes afterwards have random ones again.
 * Returns 0, or a negative errno value: -EALREADY (called twice, or by a second process of the node), -EPROTO
 * (launcher of another version), -EPERM (a forked child, or a program with more privileges than its user:
 * set-user-ID, set-group-ID, file capabilities), -ENOTSUP (an option that this library does not support),
 * -ENOMEM, -EMFILE and others from the system; hiroba_error_string() then says why. */
int hiroba_init(int *argc, char ***argv);

/* Returns the reason of this thread's last failed call as one sentence; "" if none failed. Valid until the
 * thread's next failing call. */
const char *hiroba_error_string(void);

/* Leaves the job, with all nodes (collective). Shared memory does not exist afterwards. A program that
 * returns from main, or calls exit(0), without it leaves implicitly. Calling it again does nothing. */
void hiroba_finalize(void);

/* The number of this node, 0 .. hiroba_nodes() - 1, and the number of nodes; 0 and 1 before hiroba_init. */
int hiroba_node(void);
int hiroba_nodes(void);

/* Runs f(arg) on every thread of every node and returns when all are done (collective, called by one thread
 * per node). Memory is consistent at both ends, as after a barrier. The calling thread is the first one of
 * its node; the others are started for the call, with 8 MiB of stack. f must be the same function on every
 * node, and arg a value that is valid on every node.
 * Returns 0, or -EINVAL if f is NULL, -EPERM if called inside itself or outside the job. */
int hiroba_run(void (*f)(void *), void *arg);

/* Inside hiroba_run: this thread's number in the whole job, 0 .. hiroba_threads() - 1, and the number of
 * threads; outside: hiroba_node() and hiroba_nodes(). */
int hiroba_thread(void);
int hiroba_threads(void);

/* Returns seconds since a fixed moment in the past, by a steady clock of this node. */
double hiroba_wtime(void);

/* --- Allocating together -------------------------------------------------------------------------- */

/* Allocates `bytes` zeroed bytes, aligned to a page (collective). Every node calls with the same arguments,
 * in the same order, and gets the same address. The call is also a barrier. Untouched memory costs nothing.
 * Inside hiroba_run all threads call and get the same region.
 * Returns NULL with errno: EINVAL (0 bytes, no such home, an option that does not exist), ENOMEM (address
 * space used up), EPERM (outside the job), ENOTSUP (no such protocol, or another than the job's under
 * --races). Then no node gets memory. There is no collective free. */
void *hiroba_alloc(size_t bytes);

/* Does the same with all pages homed on one node, which should be the one that writes them most. */
void *hiroba_alloc_at(size_t bytes, int home);

/* How the pages of a region are spread over homes. */
typedef enum hiroba_placement {
    HIROBA_PLACEMENT_BLOCK = 0, /* consecutive blocks, one per node, as hiroba_alloc does */
    HIROBA_PLACEMENT_CYCLIC = 1, /* page by page in turn */
    HIROBA_PLACEMENT_HOME = 2, /* all on the node named in `home` */
    /* Each page on the node that touches it first. Pages begin in blocks; each moves once, at the next
     * barrier (or other collective call), up to 4096 pages per node and barrier. The first touch is the first
     * load or store after the allocation that the home learns of. Pages with atomic words do not move. The
     * option has no effect under "sc" and "lrc", which have no homes whose place matters, and on long runs of
     * pages that "aurc" maps if nodes share memory. With --races homes do not move: the pages stay in blocks,
     * and a message says so once. */
    HIROBA_PLACEMENT_FIRST_TOUCH = 3
} hiroba_placement;

/* Initialise it with zeros ({0}): zero always means the default. */
typedef struct hiroba_options {
    const char *protocol; /* NULL (the job's), or a value of --protocol for this region only */
    hiroba_placement placement;
    int home; /* for HIROBA_PLACEMENT_HOME */
    size_t page_bytes; /* the coherence unit: a power of two from 4096 to 2 MiB; 0: --page-size */
} hiroba_options;

/* Does the same with options; NULL stands for the defaults. A region consists of whole pages, so regions
 * under different protocols never share a page. Locks and barriers order memory of all regions. So does a
 * flag or an atomic operation in a region under "sc": a thread that sees it sees what its writer wrote
 * before, in any region. */
void *hiroba_alloc_with(size_t bytes, const hiroba_options *options);

/* Allocates zeroed data of this node, in whole pages of the kernel: not collective, not shared with other
 * nodes. Unlike memory from malloc it is paged like shared memory: it counts against --memory-limit, and with
 * --swap it leaves when memory is short. It costs no messages. Other nodes that touch its addresses get a
 * segmentation fault, with a message that says so. Freed by hiroba_free on this node, at the latest by
 * hiroba_finalize (or, if it was allocated outside the job, when the process ends). In a job of one node
 * nothing leaves. Returns NULL with errno: EINVAL (0 bytes), ENOMEM. */
void *hiroba_alloc_local(size_t bytes);

/* --- The malloc family (not collective) ---------------------------------------------------------- */

/* Work like malloc, calloc, realloc, aligned_alloc and free, in shared memory: any node may use and free
 * blocks of any node, once they have synchronised. Blocks are aligned to 16 bytes. Return NULL with errno:
 * ENOMEM, EINVAL (an alignment that is not a power of two), EPERM (outside the job). Each node allocates from
 * an arena of its own, so blocks of different nodes never share a page; each thread has a cache.
 * hiroba_free(NULL) does nothing; realloc of NULL allocates; realloc to 0 bytes keeps a minimal block.
 * hiroba_free frees memory of hiroba_alloc_local, too; hiroba_realloc does not take it. */
void *hiroba_malloc(size_t bytes);
void *hiroba_calloc(size_t count, size_t bytes);
void *hiroba_realloc(void *block, size_t bytes);
void *hiroba_aligned_alloc(size_t align, size_t bytes);
void hiroba_free(void *block);

/* Hints that these bytes will be read soon: requests missing pages and returns without waiting for them.
 * Returns 0, or -EFAULT if the bytes are not in the shared address space, -EPERM outside the job. */
int hiroba_prefetch(const void *start, size_t bytes);

/* A range of memory. */
typedef struct hiroba_range {
    const void *start;
    size_t bytes;
} hiroba_range;

/* Does the same for an array of ranges: requests what this node lacks of them in one message to each node
 * that has some. If one of them is not in the shared address space, or there is no array, nothing is
 * requested. */
int hiroba_prefetch_ranges(const hiroba_range *ranges, size_t count);

/* --- Synchronising -------------------------------------------------------------------------------- */

/* Waits for all nodes (inside hiroba_run: all threads). */
void hiroba_barrier(void);

/* A lock is named by any unsigned number and needs no creation. Locks belong to threads, are not recursive,
 * and are granted in order of request. hiroba_trylock returns 0 if it took the lock, EBUSY if the lock is
 * taken. */
void hiroba_lock(unsigned id);
void hiroba_unlock(unsigned id);
int hiroba_trylock(unsigned id);

/* Condition variables are named like locks, with numbers of their own. hiroba_cond_wait releases the lock,
 * waits for a signal and takes the lock again. Test the condition in a loop, since it may have changed
 * meanwhile. */
void hiroba_cond_wait(unsigned cond, unsigned lock);
void hiroba_cond_signal(unsigned cond);
void hiroba_cond_broadcast(unsigned cond);

/* Operations on 8-byte-aligned words of shared memory, atomic over all nodes and ordered acquire-release
 * among themselves. Plain loads see their effect after the next acquire (lock, barrier). */
uint64_t hiroba_fetch_add(uint64_t *shared, uint64_t delta); /* returns the value before */
/* Returns false and updates *expected if the word differs from it. */
bool hiroba_compare_exchange(uint64_t *shared, uint64_t *expected, uint64_t desired);
uint64_t hiroba_load(const uint64_t *shared);
void hiroba_store(uint64_t *shared, uint64_t value);

/* --- Examining a run -------------------------------------------------------------------------------- */

/* The account of this node since it joined the job, as `hiroba run --stats` prints it at the end: seconds of
 * its program threads by activity (their sum is threads x time), and counts. The difference of two accounts
 * is the account of the time between them. Everything is zero outside the job. */
typedef struct hiroba_account {
    double compute_s, read_fault_s, write_fault_s, barrier_s, lock_s, serve_s, other_s;
    uint64_t read_faults, write_faults, pages_fetched, messages_sent, bytes_sent;
} hiroba_account;
hiroba_account hiroba_account_now(void);

/* Load or store 1, 2, 4 or 8 naturally aligned bytes of shared memory (values are zero-extended, or
 * truncated), and record the access in the trace of the run, if there is one (hiroba run --trace DIR). They
 * are for litmus programs, whose every access is then checked against the protocol's promises. A wrong
 * address or length ends the job with a message. */
uint64_t hiroba_traced_load(const void *shared, size_t bytes);
void hiroba_traced_store(void *shared, size_t bytes, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif /* HIROBA_H */
