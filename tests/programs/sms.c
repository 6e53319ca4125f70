/* Proves: all nine functions of sms.h do what their counterparts of hiroba.h do. */
#include <stdint.h>

#include "check.h"
#include <sms.h>

enum { LOCK = 3, FULL = 4, EMPTY = 5, HANDOVERS = 100 };

struct shelf {
    uint32_t counter;
    uint32_t full, value, received, sum;
};

int main(int argc, char **argv)
{
    sms_startup(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    struct shelf *shelf = sms_alloc(sizeof *shelf);
    uint32_t *cells = sms_alloc((size_t)nodes * sizeof *cells);
    CHECK(shelf != NULL && cells != NULL, "sms_alloc failed");

    for (uint32_t round = 1; round <= 100; round++) {
        cells[node] = round;
        sms_barrier();
        for (int i = 0; i < nodes; i++)
            CHECK(cells[i] == round, "round %u: node %d's cell is %u", (unsigned)round, i,
                  (unsigned)cells[i]);
        sms_barrier();
        sms_lock(LOCK);
        shelf->counter++;
        sms_unlock(LOCK);
    }

    /* Node 0 puts one thing at a time on the shelf; the first other node takes it. */
    if (nodes > 1 && node == 0) {
        for (uint32_t i = 1; i <= HANDOVERS; i++) {
            sms_lock(LOCK);
            while (shelf->full)
                sms_cond_wait(EMPTY, LOCK);
            shelf->value = i;
            shelf->full = 1;
            sms_cond_signal(FULL);
            sms_unlock(LOCK);
        }
    } else if (nodes > 1) {
        sms_lock(LOCK);
        for (;;) {
            while (!shelf->full && shelf->received < HANDOVERS)
                sms_cond_wait(FULL, LOCK);
            if (!shelf->full)
                break;
            shelf->full = 0;
            shelf->sum += shelf->value;
            if (++shelf->received == HANDOVERS)
                sms_cond_broadcast(FULL);
            sms_cond_signal(EMPTY);
        }
        sms_unlock(LOCK);
    }
    sms_barrier();
    CHECK(shelf->counter == (uint32_t)nodes * 100, "the counter is %u", (unsigned)shelf->counter);
    if (nodes > 1)
        CHECK(shelf->sum == HANDOVERS * (HANDOVERS + 1) / 2, "what was handed over sums to %u",
              (unsigned)shelf->sum);
    sms_shutdown();
    return 0;
}
