/*
 * Proves: hiroba_trylock returns 0 and takes the lock if it is free, and otherwise returns at once with
 * another value. Locks taken either way exclude each other and carry data.
 */
#include <stdint.h>

#include "check.h"

enum { TIMES = 200 };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    uint64_t *counter = shared(2 * sizeof *counter);

    for (int holder = 0; holder < nodes; holder++) {
        if (node == holder)
            hiroba_lock(3);
        hiroba_barrier();
        if (node != holder)
            CHECK(hiroba_trylock(3) != 0, "took a lock that node %d holds", holder);
        hiroba_barrier();
        if (node == holder)
            hiroba_unlock(3);
        hiroba_barrier();
        if (node == (holder + 1) % nodes) {
            CHECK(hiroba_trylock(3) == 0, "could not take the free lock that node %d let go",
                  holder);
            hiroba_unlock(3);
        }
        hiroba_barrier();
    }

    /* Half of the increments through hiroba_trylock, half through hiroba_lock. */
    for (int done = 0; done < TIMES;) {
        if (done % 2 == 0 && hiroba_trylock(4) != 0)
            continue;
        if (done % 2 == 1)
            hiroba_lock(4);
        counter[0]++;
        counter[1] += counter[0];
        hiroba_unlock(4);
        done++;
    }
    hiroba_barrier();
    uint64_t total = (uint64_t)nodes * TIMES;
    CHECK(counter[0] == total, "counter is %lu, not %lu", (unsigned long)counter[0],
          (unsigned long)total);
    CHECK(counter[1] == total * (total + 1) / 2, "the sum of counters is %lu",
          (unsigned long)counter[1]);
    hiroba_finalize();
    return 0;
}
