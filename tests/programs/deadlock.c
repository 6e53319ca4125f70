/*
 * Proves: a job in which every thread waits for another is ended with a report of the waiting threads and
 * what they wait for. A job in which one thread merely takes long is not ended. The first argument chooses;
 * the lines that the report must name are marked.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "check.h"

static void sleep_seconds(int seconds)
{
    struct timespec left = { .tv_sec = seconds };
    while (nanosleep(&left, &left) != 0)
        ;
}

/* Each of the first two nodes wants the lock that the other has. */
static void crossed(void)
{
    unsigned mine = (unsigned)hiroba_node() + 1;
    if (mine <= 2)
        hiroba_lock(mine);
    hiroba_barrier();
    if (mine <= 2)
        hiroba_lock(3 - mine); /* HERE: crossed */
    hiroba_barrier();
}

/* The holder of a lock waits in a barrier for the nodes that want the lock. */
static void lock_across_barrier(void)
{
    if (hiroba_node() == 0)
        hiroba_lock(5);
    hiroba_barrier();
    if (hiroba_node() != 0)
        hiroba_lock(5); /* HERE: wanted */
    hiroba_barrier();   /* HERE: barrier */
}

/* There is no node left that could signal. */
static void unsignalled(void)
{
    hiroba_lock(1);
    hiroba_cond_wait(2, 1); /* HERE: unsignalled */
    hiroba_unlock(1);
}

/* One node leaves; the others wait for it in a barrier, which it will never call. */
static void one_short(void)
{
    if (hiroba_node() != 0)
        hiroba_barrier(); /* HERE: one short */
}

/* All wait legitimately: for a thread that computes, and for a thread that Hiroba does not know. */
static void *signal_late(void *unused)
{
    (void)unused;
    sleep_seconds(4);
    hiroba_lock(1);
    hiroba_cond_broadcast(2);
    hiroba_unlock(1);
    return NULL;
}

static void slow(void)
{
    if (hiroba_node() == 0)
        sleep_seconds(4);
    hiroba_barrier();
    pthread_t thread;
    hiroba_lock(1);
    if (hiroba_node() == hiroba_nodes() - 1)
        CHECK(pthread_create(&thread, NULL, signal_late, NULL) == 0, "no thread");
    hiroba_cond_wait(2, 1);
    hiroba_unlock(1);
    if (hiroba_node() == hiroba_nodes() - 1)
        CHECK(pthread_join(thread, NULL) == 0, "the thread does not end");
    hiroba_barrier();
}

/* Threads of hiroba_run: one keeps a lock and waits for its siblings. */
static void in_run(void *unused)
{
    (void)unused;
    if (hiroba_thread() == 0)
        hiroba_lock(9);
    hiroba_barrier();
    if (hiroba_thread() != 0)
        hiroba_lock(9); /* HERE: threads */
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "crossed") == 0)
        crossed();
    else if (strcmp(how, "lock-across-barrier") == 0)
        lock_across_barrier();
    else if (strcmp(how, "unsignalled") == 0)
        unsignalled();
    else if (strcmp(how, "one-short") == 0)
        one_short();
    else if (strcmp(how, "slow") == 0)
        slow();
    else if (strcmp(how, "threads") == 0)
        CHECK(hiroba_run(in_run, NULL) == 0, "%s", hiroba_error_string());
    else
        CHECK(0, "expected crossed, lock-across-barrier, unsignalled, one-short, slow or threads");
    hiroba_finalize();
    return 0;
}
