/*
 * Proves: addresses of the thread-local variables of an executable that was not built for Hiroba can be given
 * to other threads, which read and write through them.
 *
 *     cc -O2 -pthread -o tls executable_tls.c && hiroba run --pthread -n 2 ./tls [ROUNDS]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 6, ROUNDS = 3, LONG = 9000, EACH = 20 };

static __thread int number = 40;                     /* from the image */
static __thread char longer[LONG] = "as initialised"; /* more than a page */
static __thread long sums[4];                        /* zeros */
static __thread _Alignas(64) char aligned[64];
static __thread pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread long counted; /* under the mutex */

static int *numbers[THREADS + 1];
static char *texts[THREADS + 1];
static pthread_mutex_t *mutexes[THREADS + 1];
static long *counts[THREADS + 1];
static pthread_barrier_t all;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

static void *work(void *argument)
{
    const long me = (long)argument;
    expect(number == 40 && strcmp(longer, "as initialised") == 0, "what a thread begins with");
    expect(sums[0] == 0 && sums[3] == 0, "zeros");
    expect((unsigned long)aligned % 64 == 0, "alignment");
    number += (int)me;
    snprintf(longer, sizeof longer, "thread %ld", me);
    longer[LONG - 1] = (char)me;
    numbers[me] = &number;
    texts[me] = longer;
    mutexes[me] = &mutex;
    counts[me] = &counted;
    pthread_barrier_wait(&all);
    for (int other = 0; other <= THREADS; other++) {
        char text[32];
        snprintf(text, sizeof text, "thread %d", other);
        expect(*numbers[other] == 40 + other, "the number of another thread");
        expect(strcmp(texts[other], text) == 0 && texts[other][LONG - 1] == other, "the text of another thread");
    }
    pthread_barrier_wait(&all);
    numbers[(me + 1) % (THREADS + 1)][0] += 100; /* the next thread's */
    pthread_barrier_wait(&all);
    expect(number == 140 + me, "what another thread has written");
    for (int i = 0; i < (THREADS + 1) * EACH; i++) {
        const int other = i % (THREADS + 1);
        pthread_mutex_lock(mutexes[other]);
        ++*counts[other];
        pthread_mutex_unlock(mutexes[other]);
    }
    pthread_barrier_wait(&all);
    expect(counted == (THREADS + 1) * EACH, "what other threads have counted under a mutex");
    pthread_barrier_wait(&all);
    counted = 0;
    number = 40;
    return NULL;
}

int main(int count, char **arguments)
{
    const int rounds = count > 1 ? atoi(arguments[1]) : ROUNDS;
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[THREADS];
        pthread_barrier_init(&all, NULL, THREADS + 1);
        for (long i = 0; i < THREADS; i++)
            expect(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0, "pthread_create");
        work((void *)0);
        for (int i = 0; i < THREADS; i++)
            expect(pthread_join(threads[i], NULL) == 0, "pthread_join");
        memset(longer, 0, sizeof longer);
        strcpy(longer, "as initialised");
        pthread_barrier_destroy(&all);
    }
    puts("thread-local variables are shared");
    return 0;
}
