/*
 * lu-contiguous: LU factorisation of a dense matrix by blocks, without pivoting, stored block by
 * block.
 *
 * Blocks of 16 x 16 are scattered over the threads in two dimensions, as in SPLASH-2: block (I, J)
 * belongs to the thread in row I mod R and column J mod C of R x C threads. The elements of a block
 * are contiguous, and so are the blocks of a thread. A step factors the diagonal block, then
 * updates the blocks below and to the right of it, then subtracts their products from the rest of
 * the matrix. A barrier follows each of the first two phases. Read `factor` first.
 */
#include "plain.h"

enum { B = 16 };

static const struct program PROGRAM = {
    "lu-contiguous", "rows, a multiple of 16", 16, 16384, 1024, 2048, 0, 0,
};

static double *a;      /* n x n, block by block, shared */
static double **where; /* blocks x blocks: where each block begins; the same on every node */
static long blocks;
static int thread_rows, thread_columns;

/* An element of the matrix, which is diagonally dominant, so that pivoting is not needed. */
static double element(long i, long j)
{
    return uniform((uint64_t)(i * n + j)) - 0.5 + (i == j ? (double)n : 0.0);
}

static double *block(long bi, long bj)
{
    return where[bi * blocks + bj];
}

static int owner_of(long bi, long bj)
{
    return (int)(bi % thread_rows * thread_columns + bj % thread_columns);
}

static bool is_mine(long bi, long bj)
{
    return owner_of(bi, bj) == hiroba_thread();
}

static void lay_out(void)
{
    double *next = a;
    where = private((size_t)(blocks * blocks) * sizeof *where);
    for (int thread = 0; thread < threads; thread++)
        for (long bi = 0; bi < blocks; bi++)
            for (long bj = 0; bj < blocks; bj++)
                if (owner_of(bi, bj) == thread) {
                    where[bi * blocks + bj] = next;
                    next += B * B;
                }
}

/* Element (i, j) of the whole matrix. */
static double at(long i, long j)
{
    return block(i / B, j / B)[i % B * B + j % B];
}

/* y := y - s x, both rows of a block. */
static void subtract(double *y, double s, const double *x, long length)
{
    for (long j = 0; j < length; j++)
        y[j] -= s * x[j];
}

/* d := L \ U, without the ones on L's diagonal. */
static void factor_diagonal(double *d)
{
    for (long k = 0; k < B; k++)
        for (long i = k + 1; i < B; i++) {
            d[i * B + k] /= d[k * B + k];
            subtract(d + i * B + k + 1, d[i * B + k], d + k * B + k + 1, B - k - 1);
        }
}

/* x := x U^-1, for a block below the diagonal. */
static void divide_below(double *x, const double *d)
{
    for (long i = 0; i < B; i++)
        for (long k = 0; k < B; k++) {
            x[i * B + k] /= d[k * B + k];
            subtract(x + i * B + k + 1, x[i * B + k], d + k * B + k + 1, B - k - 1);
        }
}

/* x := L^-1 x, for a block to the right of the diagonal. */
static void divide_right(double *x, const double *d)
{
    for (long k = 0; k < B; k++)
        for (long i = k + 1; i < B; i++)
            subtract(x + i * B, d[i * B + k], x + k * B, B);
}

/* x := x - l u */
static void subtract_product(double *x, const double *l, const double *u)
{
    for (long i = 0; i < B; i++)
        for (long k = 0; k < B; k++)
            subtract(x + i * B, l[i * B + k], u + k * B, B);
}

static void factor(void)
{
    for (long k = 0; k < blocks; k++) {
        if (is_mine(k, k))
            factor_diagonal(block(k, k));
        hiroba_barrier();
        for (long i = k + 1; i < blocks; i++)
            if (is_mine(i, k))
                divide_below(block(i, k), block(k, k));
        for (long j = k + 1; j < blocks; j++)
            if (is_mine(k, j))
                divide_right(block(k, j), block(k, k));
        hiroba_barrier();
        for (long i = k + 1; i < blocks; i++)
            for (long j = k + 1; j < blocks; j++)
                if (is_mine(i, j))
                    subtract_product(block(i, j), block(i, k), block(k, j));
    }
}

static void initialise(void)
{
    for (long bi = 0; bi < blocks; bi++)
        for (long bj = 0; bj < blocks; bj++)
            if (init_all ? is_mine(bi, bj) : hiroba_thread() == 0)
                for (long i = 0; i < B; i++)
                    for (long j = 0; j < B; j++)
                        block(bi, bj)[i * B + j] = element(bi * B + i, bj * B + j);
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    factor();
    hiroba_barrier();
    keep_times(start, ready);
}

/* Returns true if L (U x) is the matrix times x. */
static bool check(void)
{
    double *ux = private((size_t)n * sizeof *ux);
    bool right = true;
    for (long i = 0; i < n; i++) {
        ux[i] = 0.0;
        for (long j = i; j < n; j++)
            ux[i] += at(i, j) * uniform((uint64_t)j);
    }
    for (long i = 0; i < n && right; i++) {
        double is = ux[i], should = 0.0;
        for (long j = 0; j < i; j++)
            is += at(i, j) * ux[j];
        for (long j = 0; j < n; j++)
            should += element(i, j) * uniform((uint64_t)j);
        if (!(fabs(is - should) <= 1e-10 * (double)n))
            right = wrong("row %ld of L U x is %.17g and should be %.17g", i, is, should);
    }
    free(ux);
    return right;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    require(n % B == 0, PROGRAM.counts);
    blocks = n / B;
    thread_rows = (int)sqrt((double)threads);
    while (threads % thread_rows != 0)
        thread_rows--;
    thread_columns = threads / thread_rows;
    a = shared((size_t)n * (size_t)n * sizeof *a);
    lay_out();
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++)
                checksum = with_bits(checksum, at(i, j));
    }
    return finish(right, checksum);
}
