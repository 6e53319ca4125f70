/*
 * Proves: the loads and stores of all nodes have one order without any synchronisation. A node that waits for
 * a flag sees the stores before it, Peterson's lock excludes, and no node sees a word go back. The program
 * races on purpose, and is for protocols with sequential consistency (--protocol sc).
 */
#include "check.h"

enum { PAGE_WORDS = 512 };

/* A word goes round the nodes. Each node waits for its own number, and finds the data on another page. */
static void pass_round(volatile long *baton, volatile long *data, long rounds)
{
    int node = hiroba_node(), nodes = hiroba_nodes();
    for (long round = 0; round < rounds; round++) {
        long turn = round * nodes + node;
        while (*baton != turn) {
        }
        CHECK(*data == turn * 3, "expected %ld with turn %ld, got %ld", turn * 3, turn, *data);
        *data = (turn + 1) * 3;
        *baton = turn + 1;
    }
}

/* Peterson's lock between nodes 0 and 1. The fences order the processor's accesses; the protocol orders
 * the nodes'. */
static void exclude(volatile long *wants, volatile long *victim, volatile long *count, long rounds)
{
    int node = hiroba_node();
    if (node > 1 || hiroba_nodes() == 1)
        return;
    for (long round = 0; round < rounds; round++) {
        wants[node * PAGE_WORDS] = 1;
        *victim = node;
        __sync_synchronize();
        while (wants[(1 - node) * PAGE_WORDS] && *victim == node) {
        }
        *count = *count + 1;
        __sync_synchronize();
        wants[node * PAGE_WORDS] = 0;
    }
}

static void watch(volatile long *word, long last)
{
    if (hiroba_node() == 0) {
        for (long value = 1; value <= last; value++)
            *word = value;
        return;
    }
    for (long before = 0; before < last;) {
        long seen = *word;
        CHECK(seen >= before, "saw %ld after %ld", seen, before);
        before = seen;
    }
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(argc == 2, "expected the number of rounds as argument");
    long rounds = strtol(argv[1], NULL, 10);
    volatile long *words = shared(7 * PAGE_WORDS * sizeof(long));
    hiroba_barrier();
    pass_round(&words[0], &words[PAGE_WORDS], rounds);
    hiroba_barrier();
    volatile long *count = &words[5 * PAGE_WORDS];
    exclude(&words[2 * PAGE_WORDS], &words[4 * PAGE_WORDS], count, rounds);
    hiroba_barrier();
    long expected = hiroba_nodes() > 1 ? 2 * rounds : 0;
    CHECK(*count == expected, "expected a count of %ld, got %ld", expected, *count);
    watch(&words[6 * PAGE_WORDS], rounds * 10);
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
