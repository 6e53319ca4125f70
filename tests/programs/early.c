/*
 * Proves: a node's stores reach the home before the node releases anything. A writer waits, without any
 * release, until the home has seen its stores; then the interval ends as usual. The program races on purpose
 * and is for automatic update (--protocol aurc): under another protocol it waits for ever.
 */
#include "check.h"

enum { PAGE_WORDS = 512, PAGES = 100 };

/* The home of the words publishes the number of rounds that it has seen, in a word on a page without plain
 * writes. */
static void watch(const volatile uint64_t *words, uint64_t *seen, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        for (int page = 0; page < PAGES; page++) {
            while (words[page * PAGE_WORDS] != round) {
            }
        }
        hiroba_store(seen, round);
    }
}

static void write_on(volatile uint64_t *words, const uint64_t *seen, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        for (int page = 0; page < PAGES; page++)
            words[page * PAGE_WORDS] = round;
        while (hiroba_load(seen) != round) {
        }
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc == 2, "expected the number of rounds as argument");
    uint64_t rounds = strtoull(argv[1], NULL, 10);
    CHECK(hiroba_nodes() >= 2, "expected two nodes or more");
    uint64_t *words = hiroba_alloc_at(PAGES * PAGE_WORDS * sizeof *words, 0);
    uint64_t *seen = hiroba_alloc_at(sizeof *seen, 0);
    CHECK(words && seen, "no shared memory");
    hiroba_barrier();
    if (hiroba_node() == 0)
        watch(words, seen, rounds);
    if (hiroba_node() == 1)
        write_on(words, seen, rounds);
    hiroba_barrier();
    for (int page = 0; page < PAGES; page++)
        CHECK(words[page * PAGE_WORDS] == rounds, "page %d holds %lu", page, (unsigned long)words[page * PAGE_WORDS]);
    hiroba_finalize();
    return 0;
}
