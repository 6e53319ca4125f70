/*
 * radix: sorts unsigned integers of 32 bits by their digits, eight bits a pass.
 *
 * Each thread owns a block of the keys. In a pass it counts the digits of its block in its
 * histogram, waits at a barrier, computes from all histograms where its keys of each digit go, and
 * moves them to the other array. A second barrier ends the pass. Keys with the same digit of all
 * threads are adjacent, in the order of the threads, so a thread writes to 256 places all over the
 * array. Read `sort` first.
 */
#include "plain.h"

enum { BITS = 8, DIGITS = 1 << BITS, PASSES = 32 / BITS };

static const struct program PROGRAM = {"radix", "keys", 1, 1L << 30, 4L << 20, 16L << 20, 0, 0};

static uint32_t *keys[2];          /* n each, shared */
static uint32_t (*counts)[DIGITS]; /* one row a thread, shared */

static uint32_t key(long i)
{
    return (uint32_t)mixed((uint64_t)i);
}

static void sort(void)
{
    const int me = hiroba_thread();
    const long first = own_first(n), end = own_end(n);
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t *from = keys[pass % 2];
        uint32_t *to = keys[1 - pass % 2];
        const int shift = pass * BITS;

        memset(counts[me], 0, sizeof counts[me]);
        for (long i = first; i < end; i++)
            counts[me][from[i] >> shift & (DIGITS - 1)]++;
        hiroba_barrier();

        uint32_t next[DIGITS], sum = 0; /* where the thread's next key of each digit goes */
        for (int digit = 0; digit < DIGITS; digit++)
            for (int thread = 0; thread < threads; thread++) {
                if (thread == me)
                    next[digit] = sum;
                sum += counts[thread][digit];
            }
        for (long i = first; i < end; i++)
            to[next[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        hiroba_barrier();
    }
}

static void initialise(void)
{
    const long first = init_first(n), end = init_end(n);
    for (long i = first; i < end; i++)
        keys[0][i] = key(i);
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    sort();
    keep_times(start, ready);
}

/* Checks the order, and that the keys are the same ones, by their sum and a sum of random functions of
 * them. */
static bool check(const uint32_t *sorted)
{
    uint64_t is = 0, should = 0, is_mixed = 0, should_mixed = 0;
    for (long i = 0; i < n; i++) {
        if (i > 0 && sorted[i - 1] > sorted[i])
            return wrong("key %ld, %u, is greater than the next, %u", i - 1, sorted[i - 1], sorted[i]);
        is += sorted[i], is_mixed += mixed(sorted[i]);
        should += key(i), should_mixed += mixed(key(i));
    }
    return (is == should && is_mixed == should_mixed) || wrong("the keys are not those that were given");
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    keys[0] = shared((size_t)n * sizeof *keys[0]);
    keys[1] = shared((size_t)n * sizeof *keys[1]);
    counts = shared((size_t)threads * sizeof *counts);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check(keys[PASSES % 2]);
        for (long i = 0; i < n; i++)
            checksum = mixed(checksum ^ keys[PASSES % 2][i]);
    }
    return finish(right, checksum);
}
