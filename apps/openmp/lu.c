/* Symmetric successive over-relaxation (SSOR), pipelined: each value depends on its neighbours before, so a
 * thread may sweep a plane of its rows when the thread with the rows before has swept that plane. Usage:
 * lu [S|W|A]. The order of operations is that of one thread, so the output does not depend on how many
 * there are. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* A line of the cache between the threads' words. */
enum { APART = 64, THREADS_MAX = 1024 };

static int size, steps;
static double omega;
static double *u, *f;
/* How many planes each thread has swept. */
static long swept[THREADS_MAX][APART / sizeof(long)];

/* Points 1 to `size` in each direction; 0 and `size` + 1 are the boundary. */
static size_t at(int x, int y, int z) {
    size_t line = (size_t)size + 2;
    return ((size_t)z * line + (size_t)y) * line + (size_t)x;
}

static double around(int x, int y, int z) {
    return u[at(x - 1, y, z)] + u[at(x + 1, y, z)] + u[at(x, y - 1, z)] + u[at(x, y + 1, z)] + u[at(x, y, z - 1)] +
           u[at(x, y, z + 1)];
}

static double exact(int x, int y, int z) {
    double h = 1.0 / (size + 1), a = x * h, b = y * h, c = z * h;
    return a * (1 - a) * b * (1 - b) * c * (1 - c);
}

/* Differences of second order are exact for this solution. */
static double right_side(int x, int y, int z) {
    double h = 1.0 / (size + 1), a = x * h, b = y * h, c = z * h;
    double p = a * (1 - a), q = b * (1 - b), r = c * (1 - c);
    return 2 * h * h * (q * r + p * r + p * q);
}

static void relax(int x, int y, int z) {
    size_t here = at(x, y, z);
    u[here] += omega * ((around(x, y, z) + f[here]) / 6 - u[here]);
}

static void wait_for(int thread, long planes) {
    long done;
    do {
#pragma omp atomic read seq_cst
        done = swept[thread][0];
    } while (done < planes);
}

static void say_one_more(int thread) {
#pragma omp atomic update seq_cst
    swept[thread][0]++;
}

/* A sweep upwards and one downwards, in all threads of a team. `before` planes were swept earlier. */
static void sweep(int first, int end, long before) {
    int me = omp_get_thread_num(), threads = omp_get_num_threads();
    for (int z = 1; z <= size; z++) {
        if (me > 0)
            wait_for(me - 1, before + z);
        for (int y = first; y < end; y++)
            for (int x = 1; x <= size; x++)
                relax(x, y, z);
        say_one_more(me);
    }
    before += size;
#pragma omp barrier
    for (int z = size; z >= 1; z--) {
        if (me < threads - 1)
            wait_for(me + 1, before + size + 1 - z);
        for (int y = end - 1; y >= first; y--)
            for (int x = size; x >= 1; x--)
                relax(x, y, z);
        say_one_more(me);
    }
#pragma omp barrier
}

int main(int argc, char **argv) {
    char class = argc > 1 ? argv[1][0] : 'S';
    size = class == 'S' ? 12 : class == 'W' ? 33 : class == 'A' ? 64 : 0;
    steps = class == 'S' ? 25 : class == 'W' ? 60 : 100;
    if (!size || omp_get_max_threads() > THREADS_MAX) {
        fprintf(stderr, "usage: lu [S|W|A] with at most %d threads, got '%s'\n", THREADS_MAX, argc > 1 ? argv[1] : "S");
        return 2;
    }
    omega = 2 / (1 + 3.14159265358979323846 / (size + 1));
    size_t points = ((size_t)size + 2) * ((size_t)size + 2) * ((size_t)size + 2);
    u = malloc(points * sizeof *u);
    f = malloc(points * sizeof *f);
    if (!u || !f)
        return 3;
    double first_error = 0, error = 0;
#pragma omp parallel
    {
        /* The thread's rows: of every plane the same. */
        int me = omp_get_thread_num(), threads = omp_get_num_threads();
        int first = 1 + size * me / threads, end = 1 + size * (me + 1) / threads;
#pragma omp for schedule(static)
        for (int z = 0; z < size + 2; z++)
            for (int y = 0; y < size + 2; y++)
                for (int x = 0; x < size + 2; x++) {
                    u[at(x, y, z)] = 0;
                    f[at(x, y, z)] = right_side(x, y, z);
                }
        for (int step = 0; step < steps; step++)
            sweep(first, end, 2L * size * step);
#pragma omp for schedule(static) reduction(max : error, first_error)
        for (int z = 1; z <= size; z++)
            for (int y = 1; y <= size; y++)
                for (int x = 1; x <= size; x++) {
                    error = fmax(error, fabs(u[at(x, y, z)] - exact(x, y, z)));
                    first_error = fmax(first_error, exact(x, y, z));
                }
    }
    double sum = 0;
    for (size_t point = 0; point < points; point++)
        sum += u[point];
    int is_right = error < first_error * 1e-3;
    printf("steps %d error %.6e sum %.12e\n%d^3: %s\n", steps, error, sum, size, is_right ? "verified" : "wrong");
    return !is_right;
}
