/*
 * Proves: HIROBA_PLACEMENT_FIRST_TOUCH does not change the contents of memory while homes move to the nodes
 * that access pages first. Each node fills the block of the node after it, so that the node that first
 * accesses a page is never its initial home, and writes the block again in as many rounds as the argument
 * says. At the end all nodes read all blocks. `hiroba run --stats` counts the cost.
 */
#include "check.h"

enum { PAGE_BYTES = 4096, BLOCK_PAGES = 40, BLOCK = BLOCK_PAGES * PAGE_BYTES / sizeof(long) };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    long rounds = argc > 1 ? atol(argv[1]) : 4, nodes = hiroba_nodes(), mine = (hiroba_node() + 1) % nodes;
    CHECK(rounds >= 1, "expected the number of rounds as argument");
    hiroba_options options = {.placement = HIROBA_PLACEMENT_FIRST_TOUCH};
    long *region = hiroba_alloc_with((size_t)nodes * BLOCK * sizeof *region, &options);
    CHECK(region != NULL, "hiroba_alloc_with: %s", hiroba_error_string());
    long *block = region + mine * BLOCK;
    for (long round = 1; round <= rounds; round++) {
        for (long at = 0; at < BLOCK; at++) {
            CHECK(block[at] == (round == 1 ? 0 : mine * at + round - 1), "round %ld: word %ld is %ld", round, at, block[at]);
            block[at] = mine * at + round;
        }
        hiroba_barrier();
    }
    for (long other = 0; other < nodes; other++)
        for (long at = 0; at < BLOCK; at += 7)
            CHECK(region[other * BLOCK + at] == other * at + rounds, "word %ld of block %ld is %ld", at, other,
                  region[other * BLOCK + at]);
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
