/*
 * Computes, and does nothing else that takes time. Each thread that computes does so for 500 ms, however
 * little of a processor it gets.
 *
 *     executable_account THREADS    with -pthread: main creates and joins as many threads
 *     executable_account            with -fopenmp: the threads of a region compute
 *     executable_account alone      with -fopenmp: main computes, between two regions
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifndef _OPENMP
#include <pthread.h>
#endif

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *compute(void *unused)
{
    volatile unsigned long long steps = 0;
    for (long long begun = now_ns(); now_ns() - begun < 500000000LL;)
        for (int at = 0; at < 100000; at++)
            steps++;
    return unused;
}

#ifdef _OPENMP

int main(int count, char **arguments)
{
    (void)arguments;
#pragma omp parallel
    if (count < 2)
        compute(NULL);
    if (count > 1)
        compute(NULL);
#pragma omp parallel
    if (count > 2)
        compute(NULL);
    return 0;
}

#else

enum { MOST = 16 };

int main(int count, char **arguments)
{
    pthread_t threads[MOST];
    int wanted = count > 1 ? atoi(arguments[1]) : 2;
    for (int at = 0; at < wanted && at < MOST; at++)
        if (pthread_create(&threads[at], NULL, compute, NULL) != 0)
            return 1;
    for (int at = 0; at < wanted && at < MOST; at++)
        if (pthread_join(threads[at], NULL) != 0)
            return 1;
    return 0;
}

#endif
