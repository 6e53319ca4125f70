/* hiroba.h - shared memory over many machines, for C99 and C++.
 *
 * Build with `hiroba cc program.c`, run with `hiroba run -n 4 ./a.out`. Every node runs main(); between
 * hiroba_init and hiroba_finalize they share what hiroba_alloc and the malloc family give out, at the same
 * address on every node, so pointers may be shared too. A program started without `hiroba run` is a job
 * of one node.
 *
 * What is shared: memory from hiroba_alloc, hiroba_alloc_at, hiroba_alloc_with and the hiroba_malloc family, and
 * nothing else. Nodes are processes: globals, static variables, stacks and what plain malloc or new returns are
 * private to a node, and a pointer to them means something else, or nothing, on another node. docs/PORTING.md
 * tells how a program of threads is carried over.
 *
 * Memory model: data-race-free programs behave as on one machine. What a thread writes is seen by another
 * one after they have synchronised: unlock -> lock of the same lock, or a barrier. Different bytes may be
 * written by different nodes and threads at once, even when they share a page.
 *
 * Threads: hiroba_run starts T threads a node (`hiroba run -t T`). Threads that the program starts itself (pthreads, std::thread,
 * OpenMP) may use shared memory, locks, condition variables, atomics and the malloc family as well; collective calls are made by one
 * thread a node outside hiroba_run and by all T inside it. Up to 1024 threads a node at a time.
 *
 * System calls and the C library's streams work on shared memory as on any other. Where page faults come as signals (without root)
 * the kernel would find pages missing: there this library stands before the C library's functions and keeps their buffers out of
 * shared memory. It cannot stand before raw syscall(2), io_uring, aio and functions of wide characters; for programs that use these
 * on shared memory, `--fault-source event` (root) is the answer. setvbuf then ignores a buffer in shared memory. vmsplice gives the
 * pipe copies there, and process_vm_readv and process_vm_writev reach this process's own shared memory, but not another node's.
 *
 * Calls that change how memory is mapped: shared memory is mapped by Hiroba, from page fault to page fault, on every
 * node. Of shared memory that is allocated
 *   mlock, mlock2, munlock   work, in whole pages: what is missing is fetched, and this node's memory for it is not
 *                            swapped out. Pages that other nodes write leave and come back all the same. With
 *                            MLOCK_ONFAULT what is here already is locked. RLIMIT_MEMLOCK holds as ever.
 *   mprotect, pkey_mprotect  (key -1) with PROT_EXEC let this node execute code there, on every fault source;
 *                            each node that executes it calls it. Loads and stores are allowed as before, also with
 *                            PROT_READ | PROT_EXEC; PROT_READ | PROT_WRITE ends the executing. Code that was written
 *                            elsewhere is seen as data is, after synchronising (and __builtin___clear_cache where the
 *                            processor wants it). Any other protection is refused: ENOTSUP.
 *   madvise                  with WILLNEED fetches ahead, with POPULATE_READ and POPULATE_WRITE waits for the pages;
 *                            NORMAL, RANDOM, SEQUENTIAL, HUGEPAGE, NOHUGEPAGE, MERGEABLE, UNMERGEABLE, COLD, PAGEOUT,
 *                            DONTFORK and DODUMP succeed and change nothing. All other advice (DONTNEED, REMOVE, FREE,
 *                            DOFORK, DONTDUMP ...) is refused: EINVAL. posix_madvise accepts all of its advice.
 *   msync, mincore           work; there is no file to write to, and mincore tells of this node's memory.
 *   munmap, mremap, mmap with MAP_FIXED, shmat with SHM_REMAP, remap_file_pages
 *                            are refused: EINVAL. So they are of shared addresses that are not allocated. mmap with
 *                            MAP_FIXED_NOREPLACE finds the addresses taken: EEXIST.
 * The others are refused with ENOMEM where shared addresses are not (all) allocated, and with EINVAL where a range
 * begins or ends in private memory. What is refused is told once on stderr; hiroba_error_string() says it each time.
 * mlockall locks private memory alone; lock the shared memory that matters by mlock. With MCL_FUTURE memory is locked when
 * it is first touched, as with MCL_ONFAULT, and a limited RLIMIT_MEMLOCK is refused (ENOMEM): the runtime would run into it.
 * The same calls made by raw syscall(2), process_madvise and io_uring are not seen: do not make them on shared memory.
 *
 * Standard output: in a job, stdout is line-buffered from the start of a program that is linked with this
 * library, from hiroba_init in others, unless the program calls setvbuf for it: lines that were printed
 * before a node died are not lost. Half a line in the buffer is written when a bad access to memory kills the
 * node, and lost when another signal does. C++ streams after std::ios::sync_with_stdio(false) have buffers of
 * their own: use std::endl or std::unitbuf there.
 *
 * Signals: handlers of the program's for SIGSEGV and SIGBUS see every fault that is not shared memory's, whenever they are
 * installed; handlers of any signal may load and store shared memory, but must not call this interface.
 *
 * A child made by fork() has no shared memory: touching it is a segmentation fault with a sentence that says so, calls of this
 * interface fail or end the child. It may exec another program, or do anything that has nothing to do with shared memory;
 * posix_spawn, system and popen are unaffected.
 *
 * Functions that cannot fail by a correct program end the job with one sentence on stderr and exit
 * status 125 when they are misused (unlocking a lock that is not held, leaving with one held, freeing what is no block, collective
 * calls that differ between nodes). A job in which every thread waits for another ends likewise, with a list of who waits
 * for what. Touching shared addresses that are not allocated is a segmentation fault, with a sentence that names the nearest
 * allocation; running over the end of a malloc block, but not out of its node's arena, goes unnoticed as with any malloc. `hiroba run --races` reports bytes that two nodes wrote without synchronisation; `--debug NODE` starts a
 * debugger.
 *
 * -fsanitize=address works; -fsanitize=thread does not (its runtime keeps the shared region's addresses for itself) and is refused.
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

/* Joins the job; returns when every node has joined. Call it once, first. argc and argv are passed for
 * future use and left as they are; both may be NULL.
 * A node is one process: under a wrapper (a shell script, say) the first that calls joins, and others are refused. What
 * the program executes afterwards has random addresses again; nodes themselves have equal ones.
 * Returns 0, or a negative errno value: -EALREADY (called twice, or by a second process of the node), -EPROTO (launcher of
 * another version), -EPERM (a forked child, or a program with more rights than its user's: set-user-ID, set-group-ID, file
 * capabilities), -ENOTSUP (an option this library does not have), -ENOMEM, -EMFILE and others from the system;
 * hiroba_error_string() then says why. */
int hiroba_init(int *argc, char ***argv);

/* What went wrong in this thread's last call that failed, as one sentence; "" when nothing did. Valid until the
 * thread's next failing call. */
const char *hiroba_error_string(void);

/* Leaves the job, with all nodes (collective). Shared memory is gone afterwards. A program that returns
 * from main, or calls exit(0), without it leaves implicitly. Calling it again does nothing. */
void hiroba_finalize(void);

/* This node, 0 .. hiroba_nodes() - 1. 0 and 1 before hiroba_init. */
int hiroba_node(void);
int hiroba_nodes(void);

/* Runs f(arg) on every thread of every node (collective, called by one thread a node) and returns when all are done; memory is
 * consistent at both ends, as by a barrier. The calling thread is the first of its node's; the others are started for the
 * call, with 8 MiB of stack. f must be the same function and arg a value that is good on every node.
 * Returns 0, or -EINVAL when f is NULL, -EPERM when called inside itself or outside the job. */
int hiroba_run(void (*f)(void *), void *arg);

/* Inside hiroba_run: this thread's number 0 .. hiroba_threads() - 1 in the whole job, and how many there are;
 * outside: hiroba_node() and hiroba_nodes(). */
int hiroba_thread(void);
int hiroba_threads(void);

/* Seconds since some fixed moment in the past; steady, of this node's own clock. */
double hiroba_wtime(void);

/* --- Allocating together -------------------------------------------------------------------------- */

/* Collective: every node calls with the same arguments, in the same order, and gets the same address of `bytes`
 * zeroed bytes, aligned to a page. It also works as a barrier. Memory that is not touched costs nothing. Inside hiroba_run all
 * threads call and get the same region.
 * NULL and errno: EINVAL (0 bytes, no such home, an option that does not exist), ENOMEM (address space used
 * up), EPERM (outside the job), ENOTSUP (no such protocol, or another than the job's under --races). No node gets anything then.
 * There is no collective free. */
void *hiroba_alloc(size_t bytes);

/* The same with all pages homed on one node: where they are written most is a good choice. */
void *hiroba_alloc_at(size_t bytes, int home);

/* How the pages of a region are spread over homes. */
typedef enum hiroba_placement {
    HIROBA_PLACEMENT_BLOCK = 0, /* consecutive blocks, one a node: what hiroba_alloc does */
    HIROBA_PLACEMENT_CYCLIC = 1, /* page by page in turn */
    HIROBA_PLACEMENT_HOME = 2, /* all on the node named in `home` */
    /* Each page where it is touched first: in blocks until then, it goes there at the next barrier (or other call that all nodes make
     * together), up to 4096 pages a node and barrier, once. Who touches it is who loads or stores first after the
     * allocation, as far as its home of that time hears; pages with atomic words stay. "sc" and "lrc" accept it, but have
     * no homes whose place matters, nor have the long runs of pages that "aurc" maps where nodes share memory; --races,
     * whose homes do not move, leaves the blocks and says so once. */
    HIROBA_PLACEMENT_FIRST_TOUCH = 3
} hiroba_placement;

/* Set all of it to zero first ({0}): zero always means the default. */
typedef struct hiroba_options {
    const char *protocol; /* NULL (the job's), or what --protocol takes: keeps this region alone coherent */
    hiroba_placement placement;
    int home; /* for HIROBA_PLACEMENT_HOME */
    size_t page_bytes; /* the coherence unit: a power of two from 4096 to 2 MiB; 0 is the job's (--page-size) */
} hiroba_options;

/* The same with options; NULL options are the defaults. A region begins with a page and ends with one, so regions under
 * different protocols never meet on a page. Locks and barriers are for all of them; a flag that is waited for in a region under
 * "sc" orders loads and stores of that region, and of no other. */
void *hiroba_alloc_with(size_t bytes, const hiroba_options *options);

/* This node's own zeroed data: not collective, not shared with other nodes. Freed at the end of the process.
 * NULL and errno: EINVAL (0 bytes), ENOMEM. */
void *hiroba_alloc_local(size_t bytes);

/* --- Allocating alone: the malloc family ---------------------------------------------------------- */

/* As malloc, calloc, realloc, aligned_alloc and free, in shared memory: any node may use and free what any node
 * allocated, once they have synchronised. Aligned to 16 bytes; NULL and errno (ENOMEM; EINVAL for an alignment
 * that is not a power of two; EPERM outside the job) when there is none. Each node gives out memory of its own, so blocks of
 * different nodes never share a page; each thread serves itself from a cache. hiroba_free(NULL) does nothing; realloc of NULL allocates; realloc to 0 bytes keeps a minimal block. */
void *hiroba_malloc(size_t bytes);
void *hiroba_calloc(size_t count, size_t bytes);
void *hiroba_realloc(void *block, size_t bytes);
void *hiroba_aligned_alloc(size_t align, size_t bytes);
void hiroba_free(void *block);

/* Hints that these bytes will be read soon: missing pages begin to travel and the call returns at once.
 * Returns 0, or -EFAULT when the bytes are not in the shared address space, -EPERM outside the job. */
int hiroba_prefetch(const void *start, size_t bytes);

/* Some bytes of memory. */
typedef struct hiroba_range {
    const void *start;
    size_t bytes;
} hiroba_range;

/* The same for all of an array of ranges: what this node lacks of them is asked for in one message to each node that has
 * some. If one of them is not in the shared address space, or there is no array, nothing begins to travel. */
int hiroba_prefetch_ranges(const hiroba_range *ranges, size_t count);

/* --- Synchronising -------------------------------------------------------------------------------- */

/* Waits for all nodes (inside hiroba_run: all threads). */
void hiroba_barrier(void);

/* Locks exist by being named, any unsigned number will do. They are owned by threads, not recursive, and granted
 * in order of request. hiroba_trylock returns 0 when it took the lock, EBUSY when it is taken. */
void hiroba_lock(unsigned id);
void hiroba_unlock(unsigned id);
int hiroba_trylock(unsigned id);

/* Condition variables, named like locks (a number of their own). hiroba_cond_wait gives the lock up, waits for a
 * signal and takes the lock again; test the condition in a loop, it may have changed meanwhile. */
void hiroba_cond_wait(unsigned cond, unsigned lock);
void hiroba_cond_signal(unsigned cond);
void hiroba_cond_broadcast(unsigned cond);

/* Operations on 8-byte-aligned words of shared memory, atomic over all nodes and ordered acquire-release among
 * themselves. Plain loads see their effect after the next acquire (lock, barrier). */
uint64_t hiroba_fetch_add(uint64_t *shared, uint64_t delta); /* returns the value before */
bool hiroba_compare_exchange(uint64_t *shared, uint64_t *expected, uint64_t desired); /* false: *expected is updated */
uint64_t hiroba_load(const uint64_t *shared);
void hiroba_store(uint64_t *shared, uint64_t value);

/* --- Looking at a run ------------------------------------------------------------------------------- */

/* This node's account since it joined the job, as `hiroba run --stats` tells it at the end: seconds of its program threads by what
 * they were doing (their sum is threads x time), and how often. The difference of two is the account of what lies between them. All
 * of it is zero outside the job. */
typedef struct hiroba_account {
    double compute_s, read_fault_s, write_fault_s, barrier_s, lock_s, serve_s, other_s;
    uint64_t read_faults, write_faults, pages_fetched, messages_sent, bytes_sent;
} hiroba_account;
hiroba_account hiroba_account_now(void);

/* A plain load or store of 1, 2, 4 or 8 naturally aligned bytes of shared memory (values are zero-extended, or cut off), which
 * the trace of the run records (hiroba run --trace DIR). For litmus programs, whose every access is then held against the
 * protocol's promises; without a trace they only load and store. A wrong address or length ends the job with a sentence. */
uint64_t hiroba_traced_load(const void *shared, size_t bytes);
void hiroba_traced_store(void *shared, size_t bytes, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif /* HIROBA_H */
