/* tsm.h - the interface of the DSM of Barli, Watanabe, Sakai and Tanaka on Hiroba's runtime.
 *
 * Node 0 runs main. The other nodes wait inside tsm_startup. Whenever node 0 calls tsm_create_procs(worker),
 * all nodes, including node 0, run worker(), and node 0 continues when all are done. tsm_finish on node 0
 * ends the other nodes (with status 0, from inside tsm_startup).
 *
 * Workers see node 0's global variables: tsm_create_procs copies the executable's private data to the other
 * nodes (but not the private heap and stack). Writes to global variables inside a worker stay on their node;
 * results go through memory from tsm_alloc.
 *
 *   int   tsm_startup(&argc, &argv);       also without arguments; 0, or a negative errno value and a message
 *                                          on stderr
 *   void *tsm_alloc(size_t bytes);         on node 0 outside workers, or on all nodes inside one;
 *                                          NULL with errno on failure
 *   void  tsm_create_procs(void (*worker)(void));
 *   void  tsm_finish(void);
 *   void  tsm_barrier(void);               also with a number, which is ignored: there is one barrier
 *   void  tsm_lock(unsigned id);           void tsm_unlock(unsigned id);
 *   TSM_PID, TSM_NUMNODES                  the number of this node, and the number of nodes
 */
#ifndef TSM_H
#define TSM_H

#include "hiroba.h"

#ifdef __cplusplus
extern "C" {
#endif
int hiroba_tsm_startup(void);
void tsm_create_procs(void (*worker)(void));
void tsm_finish(void);
#ifdef __cplusplus
}

static inline int tsm_startup(int * = 0, char *** = 0) { return hiroba_tsm_startup(); }
static inline void tsm_barrier(int = 0) { hiroba_barrier(); }
#else
static inline int tsm_startup_with_(void **arguments)
{
    (void)arguments; /* passed for future use */
    return hiroba_tsm_startup();
}
#define tsm_startup(...) tsm_startup_with_((void *[]){NULL, __VA_ARGS__})
static inline void tsm_barrier_with_(const int *number)
{
    (void)number;
    hiroba_barrier();
}
#define tsm_barrier(...) tsm_barrier_with_((const int[]){0, __VA_ARGS__})
#endif

static inline void *tsm_alloc(size_t bytes) { return hiroba_alloc(bytes); }
static inline void tsm_lock(unsigned id) { hiroba_lock(id); }
static inline void tsm_unlock(unsigned id) { hiroba_unlock(id); }
#define TSM_PID (hiroba_node())
#define TSM_NUMNODES (hiroba_nodes())

#endif /* TSM_H */
