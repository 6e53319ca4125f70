/* The cost of a lock, as a mutex of an executable that was not built for Hiroba (cc -O2 -pthread), and as a
   lock of hiroba.h (hiroba cc -O2 -DHIROBA). Two threads, or nodes, with 64 written pages. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAGES = 64, PAGE_BYTES = 4096, ALONE = 1000000, TOGETHER = 1000 };

struct shared {
    long holds;
    int last;
};

static struct shared *shared;
static volatile unsigned char *pages;

#ifdef HIROBA
#include <hiroba.h>
static void take(void) { hiroba_lock(1); }
static void give(void) { hiroba_unlock(1); }
static void meet(void) { hiroba_barrier(); }
#else
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static void take(void) { pthread_mutex_lock(&mutex); }
static void give(void) { pthread_mutex_unlock(&mutex); }
static void meet(void) { pthread_barrier_wait(&barrier); }
#endif

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void work(int thread) {
    double alone = 0, began;
    shared->last = 1;
    meet();
    if (thread == 0) {
        for (int page = 0; page < PAGES; page++)
            pages[page * PAGE_BYTES] = 1;
        began = now_ns();
        for (int i = 0; i < ALONE; i++) {
            take();
            give();
        }
        alone = (now_ns() - began) / ALONE;
    }
    meet();
    began = now_ns();
    for (int turns = 0; turns < TOGETHER;) {
        take();
        if (shared->last != thread) {
            shared->last = thread;
            shared->holds++;
            turns++;
        }
        give();
    }
    meet();
    if (thread == 0) {
        double together = (now_ns() - began) / (double)shared->holds;
        printf("alone_ns %.1f handed_over_ns %.1f holds %ld\n", alone, together, shared->holds);
    }
    meet();
}

#ifdef HIROBA
static void run(void *argument) {
    (void)argument;
    work(hiroba_thread());
}

int main(int count, char **arguments) {
    if (hiroba_init(&count, &arguments))
        return 1;
    shared = hiroba_alloc(sizeof *shared);
    pages = hiroba_alloc(PAGES * PAGE_BYTES);
    if (!shared || !pages || hiroba_run(run, NULL))
        return 1;
    hiroba_finalize();
    return 0;
}
#else
static void *run(void *argument) {
    work(1);
    return argument;
}

int main(void) {
    pthread_t other;
    shared = calloc(1, sizeof *shared);
    pages = malloc(PAGES * PAGE_BYTES);
    pthread_barrier_init(&barrier, NULL, 2);
    if (!shared || !pages || pthread_create(&other, NULL, run, NULL))
        return 1;
    work(0);
    return pthread_join(other, NULL);
}
#endif
