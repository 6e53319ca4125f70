/*
 * Proves: threads that a program creates itself use shared memory, also at their end, whether they end by
 * return, pthread_exit or cancellation. A thread that waits in a system call on shared memory can be
 * cancelled.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 4, PAGES = 16, ROUNDS = 5 };

static volatile unsigned char *memory; /* PAGES for each node */
static pthread_key_t key;
static int fds[2];
static volatile int cleaned, destroyed;

static volatile unsigned char *page_of(int node, int page)
{
    return memory + (size_t)PAGE * (size_t)(node * PAGES + page);
}

/* Collective: the next node writes all pages of this node. */
static void make_absent(void)
{
    hiroba_barrier();
    for (int page = 0; page < PAGES; page++)
        *page_of((hiroba_node() + 1) % hiroba_nodes(), page) += 1;
    hiroba_barrier();
}

static void destroy(void *argument)
{
    destroyed += *page_of(hiroba_node(), (int)(size_t)argument) > 0;
}

static void clean(void *argument)
{
    cleaned += *page_of(hiroba_node(), 15) > 0;
    (void)argument;
}

static void *work(void *argument)
{
    size_t number = (size_t)argument;
    sigset_t all, told;
    /* A thread starts with its creator's mask. */
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &told) == 0, "pthread_sigmask failed");
    CHECK(sigismember(&told, SIGBUS) == 1 && sigismember(&told, SIGSEGV) == 1, "the creator's mask is lost");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (size_t page = number; page < PAGES; page += THREADS)
        page_of(hiroba_node(), (int)page)[8 + number] += 1;
    if (number == 1) {
        pthread_setspecific(key, (void *)3);
        pthread_exit((void *)number);
    }
    return (void *)number;
}

static void *wait_for_ever(void *argument)
{
    volatile unsigned char *buffer = page_of(hiroba_node(), 2);
    pthread_cleanup_push(clean, NULL);
    if (read(fds[0], (void *)buffer, 2 * PAGE) >= 0)
        CHECK(0, "a read of nothing returned");
    pthread_cleanup_pop(0);
    return argument;
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    memory = shared((size_t)PAGE * PAGES * (size_t)hiroba_nodes());
    CHECK(pthread_key_create(&key, destroy) == 0 && pipe(fds) == 0, "no key or pipe");
    for (int round = 0; round < ROUNDS; round++) {
        make_absent();
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_t threads[THREADS];
        for (size_t t = 0; t < THREADS; t++)
            CHECK(pthread_create(&threads[t], NULL, work, (void *)t) == 0, "pthread_create failed");
        for (size_t t = 0; t < THREADS; t++) {
            void *returned;
            CHECK(pthread_join(threads[t], &returned) == 0 && returned == (void *)t, "pthread_join failed");
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        for (int page = 0; page < PAGES; page++)
            CHECK(page_of(hiroba_node(), page)[8 + page % THREADS] == round + 1, "a thread's store is lost");

        make_absent();
        pthread_t waiter;
        void *returned;
        CHECK(pthread_create(&waiter, NULL, wait_for_ever, NULL) == 0, "pthread_create failed");
        CHECK(pthread_cancel(waiter) == 0 && pthread_join(waiter, &returned) == 0, "pthread_cancel failed");
        CHECK(returned == PTHREAD_CANCELED, "the thread was not cancelled");
    }
    CHECK(destroyed == ROUNDS, "the destructor ran %d times", destroyed);
    hiroba_finalize();
    return 0;
}
