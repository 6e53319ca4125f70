/*
 * Loops that wait for plain stores in a long block and that are hard to recognise: they call functions, or
 * look at several flags. Two threads take turns in each of them.
 *
 *     cc -O2 -pthread -o opaque executable_opaque.c && hiroba run --pthread -n 2 --protocol hlrc ./opaque
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 25, FLAGS = 4, APART = 16384, KINDS = 2 };

static volatile int *flags; /* one on each of several pages */

static int is_set(const volatile int *flag, int round)
{
    return *flag >= round;
}

static int (*volatile check)(const volatile int *, int) = is_set;

/* Calls a function that the compiler does not know. */
static void by_call(int first, int round)
{
    while (!check(&flags[first * APART], round))
        ;
}

/* Looks at all flags again and again. */
static void by_scan(int first, int round)
{
    for (int all = 0; !all;) {
        all = 1;
        for (int i = first; i < FLAGS; i += 2)
            all &= flags[i * APART] >= round;
    }
}

static void (*const kinds[KINDS])(int, int) = {by_call, by_scan};

static void *take_turns(void *me)
{
    const int own = (int)(long)me;
    for (int round = 1; round <= ROUNDS * KINDS; round++) {
        if (own == 0)
            kinds[round % KINDS](1, round - 1);
        else
            kinds[round % KINDS](0, round);
        for (int i = own; i < FLAGS; i += 2)
            flags[i * APART] = round;
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    flags = calloc(FLAGS * APART, sizeof *flags);
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, take_turns, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d rounds\n", flags[0]);
    return 0;
}
