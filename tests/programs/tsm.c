/*
 * Proves: tsm.h. Node 0 runs main and prepares; the others wait in tsm_startup until tsm_create_procs. All
 * nodes run the worker, which can use node 0's global pointers. Node 0 continues after it and finds what all
 * have written.
 */
#include <stdint.h>

#include "check.h"
#include <tsm.h>

enum { WORDS = 5000 };

static uint32_t *array;            /* set by node 0 only, before tsm_create_procs */
static uint32_t *ran;              /* by each node */
static uint64_t *counter;
static int prepared = 0;

static void worker(void)
{
    int pid = TSM_PID, procs = TSM_NUMNODES;
    CHECK(pid >= 0 && pid < procs, "TSM_PID %d of %d", pid, procs);
    CHECK(array != NULL && ran != NULL && counter != NULL, "node 0's pointers are not known here");
    CHECK(prepared == 1, "node 0's global variable is %d here", prepared);
    ran[pid]++;
    for (int i = pid; i < WORDS; i += procs) {
        CHECK(array[i] == (uint32_t)i, "word %d is %u, not what node 0 wrote", i,
              (unsigned)array[i]);
        array[i] += 1000000;
    }
    tsm_barrier();
    for (int i = 0; i < WORDS; i++)
        CHECK(array[i] == (uint32_t)i + 1000000, "word %d is %u after the barrier", i,
              (unsigned)array[i]);
    for (int i = 0; i < 100; i++) {
        tsm_lock(2);
        ++*counter;
        tsm_unlock(2);
    }
}

int main(int argc, char **argv)
{
    tsm_startup(&argc, &argv);
    /* Only node 0 gets here. */
    CHECK(TSM_PID == 0, "node %d left tsm_startup", TSM_PID);
    array = tsm_alloc(WORDS * sizeof *array);
    ran = tsm_alloc((size_t)TSM_NUMNODES * sizeof *ran);
    counter = tsm_alloc(sizeof *counter);
    CHECK(array != NULL && ran != NULL && counter != NULL, "tsm_alloc failed");
    for (int i = 0; i < WORDS; i++)
        array[i] = (uint32_t)i;
    prepared = 1;

    tsm_create_procs(worker);

    for (int i = 0; i < TSM_NUMNODES; i++)
        CHECK(ran[i] == 1, "node %d ran the worker %u times", i, (unsigned)ran[i]);
    CHECK(*counter == (uint64_t)TSM_NUMNODES * 100, "the counter is %lu", (unsigned long)*counter);
    tsm_finish();
    return 0;
}
