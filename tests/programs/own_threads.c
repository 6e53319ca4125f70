/*
 * Twelve threads of the program's own on each of two nodes: eleven wait for a condition all the time, while
 * the twelfth sends requests to the other node. None of the messages that arrive meanwhile concerns the
 * eleven. Prints how often threads of each node have gone to sleep in that time.
 *
 * Proves: all threads wait, each request is answered once, and all wake when the condition is signalled.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>

enum { WAITING = 11, ROUNDS = 400, LOCK = 1, COND = 1 };

static struct { int waiting, over, awake; } *state;

static void *wait_for_the_end(void *argument)
{
    hiroba_lock(LOCK);
    state->waiting++;
    while (!state->over)
        hiroba_cond_wait(COND, LOCK);
    state->awake++;
    hiroba_unlock(LOCK);
    return argument;
}

static int all_wait(void)
{
    hiroba_lock(LOCK);
    int all = state->waiting == WAITING * hiroba_nodes();
    hiroba_unlock(LOCK);
    return all;
}

static long sleeps(void)
{
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage failed");
    return usage.ru_nvcsw;
}

int main(int argc, char **argv)
{
    pthread_t threads[WAITING];
    uint64_t *words[2];
    join(&argc, &argv);
    CHECK(hiroba_nodes() == 2, "two nodes are needed");
    state = shared(sizeof *state);
    for (int node = 0; node < 2; node++)
        words[node] = hiroba_alloc_at(sizeof **words, node);
    for (int number = 0; number < WAITING; number++)
        CHECK(pthread_create(&threads[number], NULL, wait_for_the_end, NULL) == 0, "no thread");
    while (!all_wait())
        ;
    hiroba_barrier();
    uint64_t *word = words[1 - hiroba_node()];
    long before = sleeps();
    for (int round = 0; round < ROUNDS; round++)
        CHECK(hiroba_fetch_add(word, 1) == (uint64_t)round, "round %d was answered twice, or never", round);
    printf("node %d: %d rounds, %ld sleeps\n", hiroba_node(), ROUNDS, sleeps() - before);
    hiroba_barrier();
    if (hiroba_node() == 0) {
        hiroba_lock(LOCK);
        state->over = 1;
        hiroba_cond_broadcast(COND);
        hiroba_unlock(LOCK);
    }
    for (int number = 0; number < WAITING; number++)
        CHECK(pthread_join(threads[number], NULL) == 0, "no end of a thread");
    hiroba_barrier();
    hiroba_lock(LOCK);
    CHECK(state->awake == WAITING * 2, "%d woke", state->awake);
    hiroba_unlock(LOCK);
    hiroba_finalize();
    return 0;
}
