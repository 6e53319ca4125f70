/*
 * futex(2) through the C library's syscall, in a program that was not built for Hiroba: waiting, waking
 * without a change of the word, by bits and by count, requeueing, deadlines, private and shared.
 *
 *     cc -O2 -pthread -o futex executable_futex.c && hiroba run --pthread -n 2 ./futex
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, TURNS = 30 };

static uint32_t in_data, other_word, turn;
static int waiting;

static long futex(uint32_t *word, int operation, uint32_t value, const void *time, uint32_t *second,
                  uint32_t third)
{
    return syscall(SYS_futex, word, operation, value, time, second, third);
}

static const char *of_wait(long result)
{
    if (result == 0)
        return "woken";
    return errno == ETIMEDOUT ? "timed out" : errno == EAGAIN ? "another value" : "WRONG";
}

typedef struct {
    uint32_t *word;
    int operation;
    uint32_t bits;
} wait_at;

static void *wait_once(void *argument)
{
    const wait_at *at = argument;
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    const long result = futex(at->word, at->operation, 0, NULL, NULL, at->bits);
    return (void *)result;
}

/* Starts threads that wait for the bits 1, 2, 4, …; returns when they are about to wait. */
static void start(pthread_t threads[THREADS], wait_at at[THREADS], uint32_t *word, int operation)
{
    __atomic_store_n(&waiting, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++) {
        at[i] = (wait_at){word, operation, 1u << i};
        pthread_create(&threads[i], NULL, wait_once, &at[i]);
    }
    while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) < THREADS)
        usleep(1000);
}

static void join(pthread_t thread, const char *what)
{
    void *result;
    pthread_join(thread, &result);
    printf("%s: %s\n", what, result ? "WRONG" : "woken");
}

/* Wakes until `wanted` threads have been woken, `each` at once at most; returns the greatest result. */
static long wake_all(uint32_t *word, int operation, uint32_t each, uint32_t bits, long wanted)
{
    long greatest = 0;
    for (long woken = 0; woken < wanted; usleep(200)) {
        const long now = futex(word, operation, each, NULL, NULL, bits);
        woken += now;
        greatest = now > greatest ? now : greatest;
    }
    return greatest;
}

static void check(const char *where, uint32_t *word, int private)
{
    pthread_t threads[THREADS];
    wait_at at[THREADS];
    printf("%s, %s\n", where, private ? "private" : "shared");
    start(threads, at, word, FUTEX_WAIT | private);
    printf("one by one: %ld\n", wake_all(word, FUTEX_WAKE | private, 1, 0, THREADS));
    for (int i = 0; i < THREADS; i++)
        join(threads[i], "waited");

    start(threads, at, word, FUTEX_WAIT_BITSET | private);
    for (int i = THREADS - 1; i >= 0; i--) {
        printf("by bit %d: %ld\n", i, wake_all(word, FUTEX_WAKE_BITSET | private, 100, 1u << i, 1));
        join(threads[i], "waited");
    }

    start(threads, at, word, FUTEX_WAIT | private);
    usleep(20000);
    printf("requeue with another value: %s\n",
           of_wait(futex(word, FUTEX_CMP_REQUEUE | private, 1, (void *)100L, &other_word, 7)));
    /* Threads that are requeued may be woken at once, or wait at the other word. */
    for (int left = THREADS; left > 0; usleep(200)) {
        futex(word, FUTEX_CMP_REQUEUE | private, 1, (void *)100L, &other_word, 0);
        futex(&other_word, FUTEX_WAKE | private, 100, NULL, NULL, 0);
        for (; left > 0 && pthread_tryjoin_np(threads[left - 1], NULL) == 0; left--)
            ;
    }

    struct timespec time = {.tv_nsec = 15000000};
    printf("for a time: %s\n", of_wait(futex(word, FUTEX_WAIT | private, 0, &time, NULL, 0)));
    printf("for another value: %s\n", of_wait(futex(word, FUTEX_WAIT | private, 1, &time, NULL, 0)));
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec--;
    const uint32_t any = FUTEX_BITSET_MATCH_ANY;
    printf("monotonic: %s\n", of_wait(futex(word, FUTEX_WAIT_BITSET | private, 0, &time, NULL, any)));
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec = (time.tv_nsec + 15000000) % 1000000000;
    time.tv_sec += time.tv_nsec < 15000000;
    const int realtime = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME | private;
    printf("real time: %s\n", of_wait(futex(word, realtime, 0, &time, NULL, any)));
    const long no_bits = futex(word, FUTEX_WAIT_BITSET | private, 0, NULL, NULL, 0);
    printf("no bits: %s\n", no_bits < 0 && errno == EINVAL ? "invalid" : "WRONG");
    printf("nobody: %ld\n", futex(word, FUTEX_WAKE | private, 1, NULL, NULL, 0));
}

/* Passes a turn round, as an atomic variable that waits does. */
static void *take_turns(void *me)
{
    for (uint32_t i = 0; i < TURNS;) {
        const uint32_t seen = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
        if (seen % THREADS != (uint32_t)(long)me) {
            futex(&turn, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            continue;
        }
        __atomic_store_n(&turn, seen + 1, __ATOMIC_RELEASE);
        futex(&turn, FUTEX_WAKE_PRIVATE, 1000, NULL, NULL, 0);
        i++;
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    uint32_t *in_block = calloc(1 << 20, 1);
    check("data", &in_data, FUTEX_PRIVATE_FLAG);
    check("data", &in_data, 0);
    check("a long block", in_block + 5000, FUTEX_PRIVATE_FLAG);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, take_turns, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%u turns\n", turn);
    free(in_block);
    return 0;
}
