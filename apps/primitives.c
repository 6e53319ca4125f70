/*
 * primitives - measures what Hiroba's primitives cost, as a program sees them.
 *
 * hiroba cc -O2 -o primitives apps/primitives.c hiroba run -n 2 [--fault-source event|sigbus|sigsegv]
 * ./primitives
 *
 * Node 1 measures against node 0, the home of all pages. Each line is the median and the 99th percentile of
 * single operations, in microseconds. Each operation is measured alone, so it includes two readings of the
 * clock (about 0.05 us).
 *
 * The last lines are totals, to be compared with those of `hiroba run --stats`.
 */
#include <hiroba.h>

#include <stdio.h>
#include <stdlib.h>

enum { PAGE_BYTES = 4096, PAGES = 2048, ROUNDS = 2000, COMPUTING_FAULTS = 200 };

static double samples[PAGES > ROUNDS ? PAGES : ROUNDS];

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, int count)
{
    qsort(samples, (size_t)count, sizeof samples[0], ascending);
    printf("%-44s p50 %8.2f us   p99 %8.2f us\n", what, 1e6 * samples[count / 2],
           1e6 * samples[count - 1 - count / 100]);
}

/* Touches the first byte of `count` pages from `first`. Returns the total time in seconds. */
static double touch(volatile char *memory, int first, int count, int store)
{
    double total = 0;
    for (int i = 0; i < count; i++) {
        volatile char *byte = memory + (size_t)(first + i) * PAGE_BYTES;
        double began = hiroba_wtime();
        if (store)
            *byte = 2;
        else
            (void)*byte;
        samples[i] = hiroba_wtime() - began;
        total += samples[i];
    }
    return total;
}

static void compute(double seconds)
{
    volatile double x = 0;
    for (double end = hiroba_wtime() + seconds; hiroba_wtime() < end;)
        x = x + 1;
}

int main(int argc, char **argv)
{
    if (hiroba_init(&argc, &argv) != 0) {
        fprintf(stderr, "primitives: %s\n", hiroba_error_string());
        return 1;
    }
    if (hiroba_nodes() < 2) {
        fprintf(stderr, "primitives: expected 2 nodes or more, got 1; use hiroba run -n 2\n");
        return 2;
    }
    const int me = hiroba_node();
    volatile char *memory = hiroba_alloc_at((size_t)(PAGES + COMPUTING_FAULTS) * PAGE_BYTES, 0);
    if (memory == NULL) {
        fprintf(stderr, "primitives: %s\n", hiroba_error_string());
        return 1;
    }
    if (me == 0)
        for (int i = 0; i < PAGES + COMPUTING_FAULTS; i++)
            memory[(size_t)i * PAGE_BYTES] = 1;

    for (int i = 0; i < ROUNDS; i++) {
        double began = hiroba_wtime();
        hiroba_barrier();
        samples[i] = hiroba_wtime() - began;
    }
    if (me == 1)
        report("barrier, nothing written", ROUNDS);

    double reading = 0, writing = 0;
    if (me == 1) {
        reading = touch(memory, 0, PAGES, 0);
        report("read fault, page fetched, home in a barrier", PAGES);
        writing = touch(memory, 0, PAGES, 1);
        report("write fault on a page already here", PAGES);
    }
    hiroba_barrier();

    for (int i = 0; i < ROUNDS; i++) { /* the holders alternate strictly */
        double began = hiroba_wtime();
        hiroba_lock(0);
        samples[i] = hiroba_wtime() - began;
        hiroba_unlock(0);
        hiroba_barrier();
    }
    if (me == 1)
        report("lock and unlock, holders alternate", ROUNDS);

    for (int i = 0; i < ROUNDS; i++) {
        double began = hiroba_wtime();
        hiroba_lock(1 + (unsigned)me);
        hiroba_unlock(1 + (unsigned)me);
        samples[i] = hiroba_wtime() - began;
    }
    if (me == 1)
        report("lock and unlock, nobody else wants it", ROUNDS);
    hiroba_barrier();

    if (me == 0)
        compute(0.5);
    if (me == 1) {
        reading += touch(memory, PAGES, COMPUTING_FAULTS, 0);
        report("read fault, page fetched, home computing", COMPUTING_FAULTS);
        compute(0.5);
        printf("by the program's clock, node 1: %.3f s in read faults, %.3f s in write faults\n", reading,
               writing);
    }
    hiroba_finalize();
    return 0;
}
