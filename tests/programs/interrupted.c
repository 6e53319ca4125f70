/*
 * Proves: signal handlers of the program that access shared memory may interrupt its threads anywhere, also
 * in calls of the runtime: whatever lock of the runtime the interrupted thread has, the handler's fault is
 * served. Every thread is interrupted thousands of times a second while it uses everything that takes such
 * locks: memory, hints, accounts, locks, threads, processes, barriers.
 *
 *     interrupted [ROUNDS [INTERVAL_US]]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { PAGE = 4096, PAGES = 16, LOCKS = 4, THREADS_MAX = 64 };

static volatile unsigned char *touched; /* PAGES pages; threads write the first half of each in turn */
static uint64_t *counters;              /* a page for each lock */
static volatile sig_atomic_t handled;
static long interval_us = 200;
static int rounds = 200, team;

static __thread unsigned place;
static __thread volatile unsigned sum;

static void on_timer(int number)
{
    (void)number;
    place = place * 5 + 1;
    sum += touched[(size_t)(place % PAGES) * PAGE + place % 64];
    handled++;
}

static timer_t begin_interrupting(void)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
    struct itimerspec every = {{0, interval_us * 1000}, {0, interval_us * 1000}};
    CHECK(timer_settime(timer, 0, &every, NULL) == 0, "no timer");
    return timer;
}

static void *short_life(void *argument)
{
    return argument;
}

static void begin_and_end_others(int round)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, short_life, NULL) == 0, "no thread");
    CHECK(pthread_join(thread, NULL) == 0, "no end of a thread");
    if (round % 8 != 0)
        return;
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0)
        _exit(7);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "no end of a process");
}

static void work(void *argument)
{
    (void)argument;
    int me = hiroba_thread();
    team = hiroba_threads();
    timer_t timer = begin_interrupting();
    for (int round = 0; round < rounds; round++) {
        for (int page = 0; page < PAGES; page++)
            if ((page + round) % hiroba_threads() == me)
                touched[(size_t)page * PAGE + 64 + (size_t)me]++;
        for (int i = 0; i < 20; i++) {
            hiroba_prefetch((const void *)(touched + (size_t)((i + me) % PAGES) * PAGE), PAGE);
            char *block = hiroba_malloc(40 + (size_t)i * 100);
            CHECK(block != NULL, "no block");
            hiroba_free(block);
            CHECK(hiroba_account_now().messages_sent > 0, "no account");
        }
        begin_and_end_others(round);
        unsigned lock = (unsigned)(round + me) % LOCKS;
        hiroba_lock(lock);
        counters[lock * (PAGE / 8)]++;
        hiroba_unlock(lock);
        if (round % 10 == 0)
            hiroba_barrier();
    }
    timer_delete(timer);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    interval_us = argc > 2 ? atol(argv[2]) : interval_us;
    touched = shared((size_t)PAGE * PAGES);
    counters = shared((size_t)PAGE * LOCKS);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_timer;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction failed");
    CHECK(hiroba_run(work, NULL) == 0, "hiroba_run failed: %s", hiroba_error_string());
    uint64_t total = 0;
    for (int lock = 0; lock < LOCKS; lock++)
        total += counters[lock * (PAGE / 8)];
    CHECK(handled > 0, "no handler ran");
    CHECK(total == (uint64_t)rounds * (uint64_t)team, "the sum is %lu", (unsigned long)total);
    hiroba_finalize();
    return 0;
}
