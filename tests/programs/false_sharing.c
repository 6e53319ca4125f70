/*
 * Proves: all nodes may write different bytes of one page at once, in any pattern, and after the barrier
 * every node reads every byte right. The argument is the number of rounds.
 */
#include "check.h"

enum { BYTES = 4096 };

static unsigned char value(int writer, unsigned round, unsigned i)
{
    return (unsigned char)(writer * 53 + (int)(round * 7 + i * 3));
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2000;
    unsigned char *page = shared(BYTES);

    for (unsigned round = 0; round < rounds; round++) {
        /* The writer of byte i changes every round: single bytes in turn, then longer runs. */
        unsigned run = 1u << round % 8, skip = round / 8;
        for (unsigned i = 0; i < BYTES; i++)
            if ((int)((i / run + skip) % (unsigned)nodes) == node)
                page[i] = value(node, round, i);
        hiroba_barrier();
        for (unsigned i = 0; i < BYTES; i++) {
            int writer = (int)((i / run + skip) % (unsigned)nodes);
            CHECK(page[i] == value(writer, round, i),
                  "round %u: byte %u, written by node %d, is %d, not %d", round, i, writer, page[i],
                  value(writer, round, i));
        }
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
