/*
 * Proves: a program started without `hiroba run` is a job of one node, in which every call works and no call
 * waits.
 */
#include <stdint.h>

#include "check.h"

static void visit(void *argument)
{
    CHECK(hiroba_thread() == 0 && hiroba_threads() == 1, "thread %d of %d", hiroba_thread(),
          hiroba_threads());
    hiroba_barrier();
    ++*(uint64_t *)argument;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    CHECK(hiroba_node() == 0 && hiroba_nodes() == 1, "node %d of %d", hiroba_node(),
          hiroba_nodes());
    uint64_t *word = shared(sizeof *word);
    CHECK(*word == 0, "fresh memory is not zeroed");
    CHECK(hiroba_alloc_at(100, 0) != NULL, "hiroba_alloc_at(100, 0) failed");
    for (int i = 0; i < 1000; i++) {
        hiroba_barrier();
        hiroba_lock(1);
        ++*word;
        hiroba_cond_signal(2);
        hiroba_cond_broadcast(2);
        hiroba_unlock(1);
    }
    CHECK(hiroba_trylock(1) == 0, "a free lock could not be taken");
    hiroba_unlock(1);
    CHECK(hiroba_run(visit, word) == 0 && *word == 1001, "the word is %lu", (unsigned long)*word);
    CHECK(hiroba_fetch_add(word, 9) == 1001 && hiroba_load(word) == 1010, "fetch_add is wrong");
    uint64_t expected = 1010;
    CHECK(hiroba_compare_exchange(word, &expected, 5) && hiroba_load(word) == 5,
          "compare_exchange is wrong");
    hiroba_store(word, 6);
    CHECK(*word == 6, "the stored word is %lu", (unsigned long)*word);
    char *text = hiroba_malloc(20000);
    CHECK(text != NULL, "hiroba_malloc failed");
    memset(text, 'x', 20000);
    text = hiroba_realloc(text, 40000);
    CHECK(text != NULL && text[0] == 'x' && text[19999] == 'x', "hiroba_realloc lost bytes");
    hiroba_free(text);
    hiroba_finalize();
    return 0;
}
