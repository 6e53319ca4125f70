/* hiroba.h - shared memory over many machines, for C99 and C++.
 *
 * Build with `hiroba cc program.c`, run with `hiroba run -n 4 ./a.out`. Every node runs main(); between
 * hiroba_init and hiroba_finalize they share what hiroba_alloc and the malloc family give out, at the same
 * address on every node, so pointers may be shared too. A program started without `hiroba run` is a job
 * of one node.
 *
 * Memory model: data-race-free programs behave as on one machine. What a thread writes is seen by another
 * one after they have synchronised: unlock -> lock of the same lock, or a barrier. Different bytes may be
 * written by different nodes at once, even when they share a page.
 *
 * Functions that cannot fail by a correct program end the job with one sentence on stderr and exit
 * status 125 when they are misused (unlocking a lock that is not held, freeing what is no block, collective
 * calls that differ between nodes).
 *
 * Calls of this interface are not async-signal-safe. A child made by fork() has no shared memory and
 * must not call anything here.
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
 * Returns 0, or a negative errno value: -EALREADY (called twice), -EPROTO (launcher of another version),
 * -ENOTSUP (an option this library does not have), -ENOMEM, -EMFILE and others from the system;
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

/* Runs f(arg) on every thread of every node (collective) and returns when all are done; memory is consistent
 * at both ends, as by a barrier. f must be the same function and arg a value that is good on every node.
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
 * zeroed bytes, aligned to a page. It also works as a barrier. Memory that is not touched costs nothing.
 * NULL and errno: EINVAL (0 bytes, no such home, an option that does not exist), ENOMEM (address space used
 * up), EPERM (outside the job), ENOTSUP (an option this library does not have yet). No node gets anything then.
 * There is no collective free. */
void *hiroba_alloc(size_t bytes);

/* The same with all pages homed on one node: where they are written most is a good choice. */
void *hiroba_alloc_at(size_t bytes, int home);

/* How the pages of a region are spread over homes. */
typedef enum hiroba_placement {
    HIROBA_PLACEMENT_BLOCK = 0, /* consecutive blocks, one a node: what hiroba_alloc does */
    HIROBA_PLACEMENT_CYCLIC = 1, /* page by page in turn */
    HIROBA_PLACEMENT_HOME = 2 /* all on the node named in `home` */
} hiroba_placement;

/* Set all of it to zero first ({0}): zero always means the default. */
typedef struct hiroba_options {
    const char *protocol; /* NULL, or the job's protocol ("hlrc") */
    hiroba_placement placement;
    int home; /* for HIROBA_PLACEMENT_HOME */
    size_t page_bytes; /* 0, or the job's page size */
} hiroba_options;

/* The same with options; NULL options are the defaults. */
void *hiroba_alloc_with(size_t bytes, const hiroba_options *options);

/* This node's own zeroed data: not collective, not shared with other nodes. Freed at the end of the process.
 * NULL and errno: EINVAL (0 bytes), ENOMEM. */
void *hiroba_alloc_local(size_t bytes);

/* --- Allocating alone: the malloc family ---------------------------------------------------------- */

/* As malloc, calloc, realloc, aligned_alloc and free, in shared memory: any node may use and free what any node
 * allocated, once they have synchronised. Aligned to 16 bytes; NULL and errno (ENOMEM; EINVAL for an alignment
 * that is not a power of two; EPERM outside the job) when there is none. Blocks of different nodes never share
 * a page. hiroba_free(NULL) does nothing; realloc of NULL allocates; realloc to 0 bytes keeps a minimal block. */
void *hiroba_malloc(size_t bytes);
void *hiroba_calloc(size_t count, size_t bytes);
void *hiroba_realloc(void *block, size_t bytes);
void *hiroba_aligned_alloc(size_t align, size_t bytes);
void hiroba_free(void *block);

/* Hints that these bytes will be read soon: missing pages begin to travel and the call returns at once.
 * Returns 0, or -EFAULT when the bytes are not in the shared address space, -EPERM outside the job. */
int hiroba_prefetch(const void *start, size_t bytes);

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

#ifdef __cplusplus
}
#endif

#endif /* HIROBA_H */
