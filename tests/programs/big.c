/*
 * Proves: arrays far larger than a page or a message are transferred whole, when every node writes a block
 * and reads other nodes' blocks. The argument is the array's size in MiB.
 */
#include <stdint.h>

#include "check.h"

static int node, nodes;

static size_t block_start(size_t words, int block)
{
    return words / (size_t)nodes * (size_t)block + (size_t)block % 3; /* not at page boundaries */
}

static size_t block_end(size_t words, int block)
{
    return block == nodes - 1 ? words : block_start(words, block + 1);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    node = hiroba_node();
    nodes = hiroba_nodes();
    size_t words = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) * (1 << 20) / sizeof(uint64_t);
    uint64_t *array = shared(words * sizeof *array);

    for (uint64_t phase = 1; phase <= 2; phase++) {
        /* The writer of a block changes from phase to phase. */
        int mine = (node + (int)phase) % nodes;
        for (size_t i = block_start(words, mine); i < block_end(words, mine); i++)
            array[i] = i * phase ^ (uint64_t)mine << 56;
        hiroba_barrier();
        for (int shift = 1; shift <= 2; shift++) {
            int other = (mine + shift) % nodes;
            for (size_t i = block_start(words, other); i < block_end(words, other); i++)
                CHECK(array[i] == (i * phase ^ (uint64_t)other << 56),
                      "phase %d: word %lu of block %d is %#lx", (int)phase, (unsigned long)i, other,
                      (unsigned long)array[i]);
        }
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
