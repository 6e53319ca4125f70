// Large static arrays, which follow the job's protocol, and what threads do with words in them.
//
// Prints one line for each part, the same on any number of nodes. Built with LIBRARY, arrays of
// executable_statics_library.c are used, too.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SHARED_WORDS
#define SHARED_WORDS (1 << 15)
#endif

enum { THREADS = 4, LONG = 1 << 16, SHARED = SHARED_WORDS, ROUNDS = 40, COUNTS = 200 };

// Below 128 KiB: stays under sequential consistency.
static int short_array[1 << 14];
static long initialised[1 << 15] = {[0] = 7, [1 << 14] = 8, [(1 << 15) - 1] = 9};
static int falsely_shared[SHARED];
static unsigned keys[1 << 17], ranks[1 << 17];
static long fixed_words[LONG], indexed[LONG], pointed[LONG], passed[LONG];
static long short_words[64];
static volatile int flags[LONG];
static int message[LONG];
static char text[1 << 18];
static pthread_mutex_t locks[1 << 13];
static long guarded[1 << 15];
static pthread_barrier_t meeting;

static void wait_for_all(void) { pthread_barrier_wait(&meeting); }

static void on_threads(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&meeting, NULL, THREADS);
    for (long me = 0; me < THREADS; me++)
        if (pthread_create(&threads[me], NULL, work, (void *)me) != 0) exit(3);
    for (int me = 0; me < THREADS; me++) pthread_join(threads[me], NULL);
    pthread_barrier_destroy(&meeting);
}

static void say(const char *what, int right) { printf("%s %s\n", what, right ? "right" : "WRONG"); }

// Neighbouring words belong to different threads.
static void *share_falsely(void *given) {
    int me = (int)(long)given;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = me; i < SHARED; i += THREADS) falsely_shared[i] += i + round;
        wait_for_all();
    }
    return NULL;
}

static int sum_is_right(void) {
    for (int i = 0; i < SHARED; i++)
        if (falsely_shared[i] != ROUNDS * i + ROUNDS * (ROUNDS - 1) / 2) return 0;
    return 1;
}

// Each thread ranks the keys of its own range of values, wherever they lie.
static void *scatter(void *given) {
    unsigned me = (unsigned)(long)given, all = sizeof keys / sizeof *keys;
    for (unsigned i = me; i < all; i += THREADS) keys[i] = (i * 2654435761u) % all;
    wait_for_all();
    for (unsigned i = me * (all / THREADS); i < (me + 1) * (all / THREADS); i++) ranks[keys[i]] = i;
    wait_for_all();
    return NULL;
}

static int ranks_are_right(void) {
    unsigned all = sizeof keys / sizeof *keys;
    for (unsigned i = 0; i < all; i++)
        if (keys[ranks[i]] != i || keys[i] != (i * 2654435761u) % all) return 0;
    return 1;
}

// The linker knows the address of one word, and the program computes those of others.
static void *count(void *given) {
    long me = (long)given;
    long *place = &pointed[LONG / 2], *short_place = &short_words[3];
    __asm__ volatile("" : "+r"(place), "+r"(short_place));
    for (int i = 0; i < COUNTS; i++) {
        __atomic_fetch_add(&fixed_words[LONG / 2], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&indexed[(LONG / 4) * (i & 3)], me, __ATOMIC_SEQ_CST);
        __atomic_fetch_add(place, i, __ATOMIC_ACQ_REL);
        __atomic_fetch_add(short_place, 1, __ATOMIC_ACQ_REL);
        fixed_words[LONG / 2 + 1 + me] += 1;
        pointed[LONG / 2 + 1 + me] += 1;
    }
    return NULL;
}

static int counts_are_right(void) {
    int right = fixed_words[LONG / 2] == THREADS * COUNTS && short_words[3] == THREADS * COUNTS;
    for (int k = 0; k < 4; k++)
        right &= indexed[LONG / 4 * k] == COUNTS / 4 * (THREADS * (THREADS - 1) / 2);
    for (int me = 0; me < THREADS; me++)
        right &= fixed_words[LONG / 2 + 1 + me] == COUNTS && pointed[LONG / 2 + 1 + me] == COUNTS;
    return right && pointed[LONG / 2] == THREADS * (COUNTS * (COUNTS - 1L) / 2);
}

// Plain stores to flags and plain loads that wait for them, in turn.
static void *pass_on(void *given) {
    int me = (int)(long)given;
    for (int round = 0; round < 5; round++) {
        while (flags[me * 4096] != round + (me == 0 ? 0 : 1)) {}
        message[me * 2048 + 7] = message[(me + THREADS - 1) % THREADS * 2048 + 7] + 1;
        passed[round * 4096]++;
        if (me == THREADS - 1)
            flags[0] = round + 1;
        else
            flags[(me + 1) * 4096] = round + 1;
    }
    return NULL;
}

static int messages_are_right(void) {
    int right = message[(THREADS - 1) * 2048 + 7] == 5 * THREADS;
    for (int round = 0; round < 5; round++) right &= passed[round * 4096] == THREADS;
    return right;
}

// The kernel writes and reads.
static void *through_pipes(void *given) {
    long me = (long)given, part = (long)sizeof text / THREADS;
    int ends[2];
    if (pipe(ends) != 0) exit(4);
    memset(text + me * part, 'a' + (int)me, 20000);
    long sent = write(ends[1], text + me * part, 20000);
    long got = 0;
    while (got < sent) got += read(ends[0], text + me * part + 30000 + got, (size_t)(sent - got));
    close(ends[0]), close(ends[1]);
    return NULL;
}

static int text_is_right(void) {
    for (long me = 0, part = (long)sizeof text / THREADS; me < THREADS; me++)
        for (long i = 0; i < 20000; i++)
            if (text[me * part + i] != 'a' + me || text[me * part + 30000 + i] != 'a' + me) return 0;
    return 1;
}

static void *lock_some(void *given) {
    long me = (long)given;
    for (int i = 0; i < COUNTS; i++) {
        long k = (i * 37 + me) % 8 * 1000;
        pthread_mutex_lock(&locks[k]);
        guarded[k * 4] += 1;
        pthread_mutex_unlock(&locks[k]);
    }
    return NULL;
}

static int guarded_is_right(void) {
    long sum = 0;
    for (int k = 0; k < 8; k++) sum += guarded[k * 4000];
    return sum == THREADS * COUNTS;
}

static void *change(void *given) {
    long me = (long)given, part = (1 << 15) / THREADS;
    for (long i = me * part; i < (me + 1) * part; i++) initialised[i] += 1;
    for (long i = me; i < 1 << 14; i += THREADS) short_array[i] = (int)i;
    return NULL;
}

static int changes_are_right(void) {
    int right = initialised[0] == 8 && initialised[1 << 14] == 9 && initialised[(1 << 15) - 1] == 10;
    for (long i = 1; i < 1 << 14; i++) right &= initialised[i] == 1 && short_array[i] == i;
    return right;
}

#ifdef LIBRARY
extern int table[1 << 16];  // the executable has a copy of it
void count_in_library(int thread);
int library_is_right(int threads);

static void *call_library(void *given) {
    int me = (int)(long)given;
    count_in_library(me);
    for (int i = 100 + me; i < 1 << 16; i += THREADS) table[i] = 3 * i;
    return NULL;
}

static int results_are_right(void) {
    int right = table[1] == 11 && table[99] == 0;
    for (int i = 100; i < 1 << 16; i++) right &= table[i] == 3 * i;
    return right && library_is_right(THREADS);
}
#endif

static const struct part {
    const char *name;
    void *(*work)(void *);
    int (*is_right)(void);
} parts[] = {
    {"initialised", change, changes_are_right}, {"shared", share_falsely, sum_is_right},
    {"scatter", scatter, ranks_are_right},      {"atomics", count, counts_are_right},
    {"flags", pass_on, messages_are_right},     {"system calls", through_pipes, text_is_right},
    {"mutexes", lock_some, guarded_is_right},
#ifdef LIBRARY
    {"library", call_library, results_are_right},
#endif
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name) != 0) continue;
        on_threads(parts[i].work);
        say(parts[i].name, parts[i].is_right());
    }
    return 0;
}
