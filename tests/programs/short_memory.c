/*
 * Proves: a program whose shared memory exceeds a node's limit runs as usual. Each node reads and writes all
 * of a region in turn, so that copies leave and come back, some with stores of the open interval. With a
 * third argument the nodes write in turn and use no lock, so that the counts do not depend on time.
 */
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

enum { WORDS_PER_PAGE = 4096 / sizeof(uint64_t) };

static uint64_t value(uint64_t word, uint64_t round)
{
    return word * 0x9e3779b97f4a7c15u + round;
}

/* Every node writes words of every page, so that all pages have several writers. It visits each page four
 * times in an order without a pattern, so that pages leave with stores of the open interval. */
static void write_words(uint64_t *region, size_t pages, uint64_t round)
{
    uint64_t node = (uint64_t)hiroba_node(), nodes = (uint64_t)hiroba_nodes();
    for (uint64_t part = 0; part < 4; part++) {
        for (size_t step = 0; step < pages; step++) {
            size_t page = (step * 1103 + part * 17) % pages;
            for (size_t word = node + part * nodes; word < WORDS_PER_PAGE; word += 4 * nodes) {
                size_t at = page * WORDS_PER_PAGE + word;
                uint64_t before = round == 1 ? 0 : value(at, round - 1);
                CHECK(region[at] == before, "round %lu: word %lu was lost before it was written again",
                      (unsigned long)round, (unsigned long)at);
                region[at] = value(at, round);
            }
        }
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    size_t pages = argc > 1 ? (size_t)atol(argv[1]) : 2048;
    uint64_t rounds = argc > 2 ? (uint64_t)atol(argv[2]) : 3;
    int in_turns = argc > 3;
    size_t words = pages * WORDS_PER_PAGE;
    uint64_t *region = hiroba_alloc(words * sizeof *region);
    CHECK(region != NULL, "hiroba_alloc failed");

    for (uint64_t round = 1; round <= rounds; round++) {
        if (in_turns) {
            for (int node = 0; node < hiroba_nodes(); node++) {
                if (node == hiroba_node())
                    write_words(region, pages, round);
                hiroba_barrier();
            }
        } else {
            write_words(region, pages, round);
            hiroba_lock(7);
            hiroba_unlock(7);
            hiroba_barrier();
        }
        for (size_t at = 0; at < words; at++)
            CHECK(region[at] == value(at, round), "round %lu: word %lu is wrong on node %d", (unsigned long)round,
                  (unsigned long)at, (int)hiroba_node());
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
