/*
 * Proves: a node that goes through more shared memory than it may hold, in order, finds what it wrote. Each
 * node fills a region that is homed on it, and reads all of it twice. The argument is the MiB of each region.
 * With "down" as a second one, it reads the pages from the last to the first. With "hops", it reads pairs of
 * pages that follow each other, in an order without a pattern: what would come ahead of them is not needed.
 */
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

enum { WORDS_PER_PAGE = 4096 / sizeof(uint64_t) };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc >= 2, "expected: MIB [down|hops]");
    size_t pages = (size_t)atol(argv[1]) << 8, words = pages * WORDS_PER_PAGE;
    int node = (int)hiroba_node(), hops = argc > 2 && argv[2][0] == 'h', down = argc > 2 && !hops;
    uint64_t *mine = NULL;
    for (int home = 0; home < (int)hiroba_nodes(); home++) {
        uint64_t *region = hiroba_alloc_at(words * sizeof *region, home);
        CHECK(region != NULL, "hiroba_alloc_at failed");
        if (home == node)
            mine = region;
    }
    for (size_t at = 0; at < words; at++)
        mine[at] = at * 0x9e3779b97f4a7c15u + (uint64_t)node;
    hiroba_barrier();
    for (int round = 0; round < 2; round++) {
        for (size_t step = 0; step < pages; step++) {
            size_t page = hops ? (step / 2 * 2 * 551 + step % 2) % pages : down ? pages - 1 - step : step;
            for (size_t at = page * WORDS_PER_PAGE; at < (page + 1) * WORDS_PER_PAGE; at++)
                CHECK(mine[at] == at * 0x9e3779b97f4a7c15u + (uint64_t)node, "round %d: word %lu is wrong", round,
                      (unsigned long)at);
        }
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
