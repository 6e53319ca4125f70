/* What a C program sees of Hiroba's primitives: plain loops of barriers, fetches and locks, by the interface
 * of hiroba.h.
 *
 * Compiled and run by `hiroba bench program`. Node 1 measures, node 0 is the home of what it touches. The
 * first argument is the number of repetitions. Each line of the output is a name, a tab, and a time in
 * nanoseconds. */
#include <hiroba.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_UP = 32, PAGE_BYTES = 4096, STRIDE = 8 * PAGE_BYTES };

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Prints what was measured after the warm-up, on the node that measures. */
static void report(const char *name, const int64_t *ns, int count)
{
    if (hiroba_node() == 1)
        for (int i = WARM_UP; i < count; i++)
            printf("%s\t%lld\n", name, (long long)ns[i]);
}

/* Puts pages in an order without a pattern, so that each is fetched by its own fault. */
static void scatter(int *order, int count)
{
    uint64_t random = 1;
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((random >> 33) % (uint64_t)(i + 1));
        int page = order[i];
        order[i] = order[other];
        order[other] = page;
    }
}

int main(int argc, char **argv)
{
    if (hiroba_init(&argc, &argv) != 0) {
        fprintf(stderr, "%s\n", hiroba_error_string());
        return 1;
    }
    const int count = (argc > 1 ? atoi(argv[1]) : 1000) + WARM_UP;
    int64_t *ns = malloc((size_t)count * sizeof *ns);
    int *order = malloc((size_t)count * sizeof *order);
    volatile char *memory = hiroba_alloc_at((size_t)count * STRIDE, 0);
    if (ns == NULL || order == NULL || memory == NULL) {
        fprintf(stderr, "not enough memory for the measurement\n");
        return 1;
    }
    scatter(order, count);

    for (int i = 0; i < count; i++) {
        const int64_t began = now_ns();
        hiroba_barrier();
        ns[i] = now_ns() - began;
    }
    report("barrier", ns, count);

    /* Measured before anything is mapped, since releases scan what is. */
    for (int i = 0; i < 2 * count; i++) {
        if (i % 2 == hiroba_node()) {
            const int64_t began = now_ns();
            hiroba_lock(0);
            ns[i / 2] = now_ns() - began;
            hiroba_unlock(0);
        }
        hiroba_barrier();
    }
    report("lock", ns, count);

    if (hiroba_node() == 0)
        for (size_t at = 0; at < (size_t)count * STRIDE; at += PAGE_BYTES)
            memory[at] = 1;
    hiroba_barrier();
    if (hiroba_node() == 1)
        for (int i = 0; i < count; i++) {
            const int64_t began = now_ns();
            (void)memory[(size_t)order[i] * STRIDE];
            ns[i] = now_ns() - began;
        }
    hiroba_barrier();
    report("fetch", ns, count);
    hiroba_finalize();
    return 0;
}
