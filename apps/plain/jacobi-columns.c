/*
 * jacobi-columns: Laplace's equation on a square by Jacobi's iteration, partitioned by columns.
 *
 * There are two copies of n x n points with a fixed boundary. A step replaces each point by the
 * mean of its four neighbours in the other copy. Each thread owns a block of columns, so it writes
 * a part of every row. One barrier ends a step.
 */
#include "plain.h"

static const struct program PROGRAM = {
    "jacobi-columns", "points an edge", 1, 16384, 1024, 2048, 100, 0,
};

static double *plates[2]; /* (n + 2) x (n + 2) each, shared */

static double initial(long place)
{
    return uniform((uint64_t)place);
}

static void relax(double *to, const double *from, long first, long end)
{
    const long width = n + 2;
    for (long i = 1; i <= n; i++)
        for (long j = first; j < end; j++) {
            const double *p = from + i * width + j;
            to[i * width + j] = 0.25 * (p[-width] + p[-1] + p[1] + p[width]);
        }
}

static void initialise(void)
{
    const long first = init_first(n + 2), end = init_end(n + 2);
    for (long i = 0; i < n + 2; i++)
        for (long place = i * (n + 2) + first; place < i * (n + 2) + end; place++)
            plates[0][place] = plates[1][place] = initial(place);
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++) {
        relax(plates[1 - step % 2], plates[step % 2], 1 + own_first(n), 1 + own_end(n));
        hiroba_barrier();
    }
    keep_times(start, ready);
}

/* Computes everything again with one thread; all bits must be equal. */
static bool check(const double *result)
{
    const long places = (n + 2) * (n + 2);
    double *again[2] = {private((size_t)places * sizeof(double)), private((size_t)places * sizeof(double))};
    bool right = true;
    for (long place = 0; place < places; place++)
        again[0][place] = again[1][place] = initial(place);
    for (long step = 0; step < steps; step++)
        relax(again[1 - step % 2], again[step % 2], 1, n + 1);
    for (long place = 0; place < places && right; place++)
        if (result[place] != again[steps % 2][place])
            right = wrong("point (%ld, %ld) is %.17g and should be %.17g", place / (n + 2), place % (n + 2),
                          result[place], again[steps % 2][place]);
    free(again[0]);
    free(again[1]);
    return right;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    const long places = (n + 2) * (n + 2);
    for (int i = 0; i < 2; i++)
        plates[i] = shared((size_t)places * sizeof(double));
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check(plates[steps % 2]);
        for (long place = 0; place < places; place++)
            checksum = with_bits(checksum, plates[steps % 2][place]);
    }
    return finish(right, checksum);
}
