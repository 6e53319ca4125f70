/* allocate.c - measures how many pairs of malloc and free hiroba_malloc and the C library complete in a
 * second, with one thread and with two.
 *
 *     hiroba cc -O2 -o allocate apps/allocate.c -lpthread && ./allocate
 *
 * Each thread keeps 64 blocks of random sizes and replaces one at a time. Each figure is the best of three
 * rounds, in millions. Nothing is fitted to pages: the program measures the allocator alone. */
#include <hiroba.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIVE = 64, PAIRS = 200000, ROUNDS = 3, THREADS_MAX = 2 };

struct allocator {
    const char *name;
    void *(*allocate)(size_t);
    void (*release)(void *);
};

struct task {
    const struct allocator *allocator;
    size_t least_bytes, most_bytes;
    uint32_t seed;
};

static void *replace_blocks(void *argument)
{
    const struct task *task = argument;
    void *live[LIVE] = {NULL};
    uint32_t random = task->seed;
    for (int pair = 0; pair < PAIRS; pair++) {
        random = random * 1664525u + 1013904223u;
        void **place = &live[random >> 26];
        size_t bytes = task->least_bytes + (random >> 4) % (task->most_bytes - task->least_bytes + 1);
        task->allocator->release(*place);
        *place = task->allocator->allocate(bytes);
        if (*place == NULL) {
            fprintf(stderr, "%s: no memory for %zu bytes\n", task->allocator->name, bytes);
            exit(1);
        }
    }
    for (int index = 0; index < LIVE; index++)
        task->allocator->release(live[index]);
    return NULL;
}

static double millions_a_second(const struct allocator *allocator, size_t least, size_t most, int threads)
{
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct task tasks[THREADS_MAX];
        pthread_t running[THREADS_MAX];
        double began = hiroba_wtime();
        for (int index = 0; index < threads; index++) {
            tasks[index] = (struct task){allocator, least, most, (uint32_t)(index + 1) * 7919u};
            if (pthread_create(&running[index], NULL, replace_blocks, &tasks[index]) != 0) {
                fprintf(stderr, "cannot start a thread\n");
                exit(1);
            }
        }
        for (int index = 0; index < threads; index++)
            pthread_join(running[index], NULL);
        double rate = (double)PAIRS * threads / (hiroba_wtime() - began) / 1e6;
        if (rate > best)
            best = rate;
    }
    return best;
}

int main(int argc, char **argv)
{
    static const size_t sizes[][2] = {{16, 512}, {1024, 8192}, {16384, 65536}, {65536, 262144}};
    static const struct allocator allocators[] = {{"hiroba_malloc", hiroba_malloc, hiroba_free}, {"malloc", malloc, free}};
    if (hiroba_init(&argc, &argv) != 0) {
        fprintf(stderr, "%s\n", hiroba_error_string());
        return 1;
    }
    if (hiroba_node() == 0) {
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
            for (int threads = 1; threads <= THREADS_MAX; threads++) {
                printf("%6zu to %6zu bytes, %d thread%s", sizes[size][0], sizes[size][1], threads, threads > 1 ? "s:" : ": ");
                for (int which = 0; which < 2; which++)
                    printf("  %s %.2f", allocators[which].name,
                           millions_a_second(&allocators[which], sizes[size][0], sizes[size][1], threads));
                printf("\n");
            }
        }
    }
    hiroba_finalize();
    return 0;
}
