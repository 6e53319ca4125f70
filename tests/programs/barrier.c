/*
 * Proves: every node reads after a barrier what any node wrote before it, a thousand times: one node writes
 * for all, each node writes for its neighbour, or no node writes.
 */
#include <stdint.h>

#include "check.h"

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    enum { WORDS = 1500 }; /* more than one page */
    uint32_t *message = shared(WORDS * sizeof *message);
    uint32_t *cell = shared((size_t)nodes * sizeof *cell);

    for (uint32_t round = 1; round <= rounds; round++) {
        uint32_t from = round * 17 % WORDS;
        if (node == (int)(round % (uint32_t)nodes))
            for (uint32_t i = 0; i < 50; i++)
                message[(from + i * 29) % WORDS] = round + i;
        hiroba_barrier();
        for (uint32_t i = 0; i < 50; i++)
            CHECK(message[(from + i * 29) % WORDS] == round + i, "round %u: word %u is %u",
                  (unsigned)round, (unsigned)((from + i * 29) % WORDS),
                  (unsigned)message[(from + i * 29) % WORDS]);
        hiroba_barrier();
    }

    /* All nodes exchange at once; all cells are on one page. */
    for (uint32_t round = 1; round <= rounds; round++) {
        cell[node] = round;
        hiroba_barrier();
        for (int i = 0; i < nodes; i++)
            CHECK(cell[i] == round, "round %u: node %d's cell is %u", (unsigned)round, i,
                  (unsigned)cell[i]);
        hiroba_barrier();
    }

    for (uint32_t round = 0; round < rounds; round++)
        hiroba_barrier();
    hiroba_finalize();
    return 0;
}
