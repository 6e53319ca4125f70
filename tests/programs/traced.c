/* Traced loads and stores of every length, under a lock and across barriers, and every other call that a
 * trace records. Arguments: threads for each node; "die" to kill node 1 once its trace is long. */
#include <signal.h>

#include "check.h"

enum { ROUNDS = 20, WORDS = 1024 };

static uint64_t *words;
static uint64_t *counter;
static uint8_t *bytes;

static void work(void *unused)
{
    (void)unused;
    int me = hiroba_thread(), all = hiroba_threads();
    for (int round = 0; round < ROUNDS; round++) {
        hiroba_lock(3);
        uint64_t before = hiroba_traced_load(&words[0], 8);
        hiroba_traced_store(&words[0], 8, before + 1);
        hiroba_unlock(3);
        hiroba_fetch_add(counter, 1);
        /* One word for each thread, on pages that all of them share. */
        hiroba_traced_store(&words[64 + me], 4, (uint64_t)(round * all + me + 1));
        hiroba_traced_store(&bytes[me], 1, (uint64_t)((round + me) & 0xff) | 0xff00);
        hiroba_barrier();
        for (int thread = 0; thread < all; thread++) {
            uint64_t word = hiroba_traced_load(&words[64 + thread], 4);
            uint64_t byte = hiroba_traced_load(&bytes[thread], 1);
            CHECK(word == (uint64_t)(round * all + thread + 1), "round %d: word %d", round, thread);
            CHECK(byte == (uint64_t)((round + thread) & 0xff), "round %d: byte %d", round, thread);
        }
        hiroba_barrier();
    }
    if (hiroba_trylock(7) == 0)
        hiroba_unlock(7);
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    uint64_t threads_per_node = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    words = hiroba_alloc(WORDS * sizeof *words);
    bytes = hiroba_alloc(4096);
    counter = hiroba_alloc(sizeof *counter);
    uint16_t *half = hiroba_alloc(4096);
    CHECK(words && bytes && counter && half, "no memory");
    hiroba_run(work, NULL);
    uint64_t expected = ROUNDS * (uint64_t)hiroba_nodes() * threads_per_node;
    CHECK(hiroba_traced_load(&words[0], 8) == expected, "holds of the lock were lost");
    CHECK(hiroba_load(counter) == expected, "additions were lost");
    if (argc > 2 && hiroba_node() == 1) {
        for (int load = 0; load < 50000; load++)
            hiroba_traced_load(&half[7], 2);
        raise(SIGKILL);
    }
    hiroba_barrier();
    if (hiroba_node() == 0)
        hiroba_traced_store(&half[5], 2, 0xbeef);
    hiroba_barrier();
    CHECK(hiroba_traced_load(&half[5], 2) == 0xbeef, "the last store is not seen");
    hiroba_finalize();
    return 0;
}
