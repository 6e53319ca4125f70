/*
 * sor: Laplace's equation on a square by red-black successive over-relaxation, by rows.
 *
 * n x n points with a fixed boundary are coloured like a chessboard. A step relaxes all red points,
 * whose neighbours are black, and then all black points. Each thread owns a block of rows. A
 * barrier follows each colour.
 */
#include "plain.h"

static const struct program PROGRAM = {"sor", "points an edge", 1, 16384, 1024, 2048, 100, 0};

static const double OMEGA = 1.5;
static double *plate; /* (n + 2) x (n + 2), shared */

static double initial(long place)
{
    return uniform((uint64_t)place);
}

/* Relaxes the points of one colour in some rows. */
static void relax(double *points, int colour, long first, long end)
{
    const long width = n + 2;
    for (long i = first; i < end; i++)
        for (long j = 1 + (i + colour) % 2; j <= n; j += 2) {
            double *p = points + i * width + j;
            *p += OMEGA * (0.25 * (p[-width] + p[-1] + p[1] + p[width]) - *p);
        }
}

static void initialise(void)
{
    const long first = init_first(n + 2), end = init_end(n + 2);
    for (long place = first * (n + 2); place < end * (n + 2); place++)
        plate[place] = initial(place);
}

static void work(void *nothing)
{
    (void)nothing;
    const long first = 1 + own_first(n);
    const long end = 1 + own_end(n);
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++)
        for (int colour = 0; colour < 2; colour++) {
            relax(plate, colour, first, end);
            hiroba_barrier();
        }
    keep_times(start, ready);
}

/* Computes everything again with one thread; all bits must be equal. */
static bool check(void)
{
    const long places = (n + 2) * (n + 2);
    double *again = private((size_t)places * sizeof *again);
    bool right = true;
    for (long place = 0; place < places; place++)
        again[place] = initial(place);
    for (long step = 0; step < 2 * steps; step++)
        relax(again, (int)(step % 2), 1, n + 1);
    for (long place = 0; place < places && right; place++)
        if (plate[place] != again[place])
            right = wrong("point (%ld, %ld) is %.17g and should be %.17g", place / (n + 2), place % (n + 2),
                          plate[place], again[place]);
    free(again);
    return right;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    const long places = (n + 2) * (n + 2);
    plate = shared((size_t)places * sizeof *plate);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long place = 0; place < places; place++)
            checksum = with_bits(checksum, plate[place]);
    }
    return finish(right, checksum);
}
