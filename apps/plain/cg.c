/*
 * cg: a sparse system of linear equations by conjugate gradients.
 *
 * The matrix is symmetric and positive definite, with up to 17 elements a row, scattered over all
 * columns, in compressed rows. Each thread owns a block of rows and of all vectors. For its part of
 * the product it gathers elements of the search direction from everywhere. Scalar products are
 * added up under a lock. Read `solve` first.
 *
 * The sums depend on the order in which threads add to them, so the checksum, the norm of the
 * solution, agrees to about ten digits only.
 */
#include "plain.h"

enum { OFFSETS = 8, SUM_LOCK = 0 };

static const struct program PROGRAM = {"cg", "rows", 32, 1L << 24, 131072, 524288, 50, 0};

struct scalars {
    double sums[2]; /* scalar products, used in turn, under SUM_LOCK */
};

static long *starts;    /* n + 1: where the elements of each row begin, shared like all of these */
static int *columns;    /* of each element */
static double *values;  /* of each element */
static double *b, *x, *r, *p, *q; /* n each: right side, solution, residual, direction, product */
static struct scalars *scalars;

/* The kth distance d: row i has elements in columns i - d and i + d, if these columns exist. */
static long offset(int k)
{
    static const double PARTS[OFFSETS] = {0.0, 0.0, 0.0003, 0.004, 0.021, 0.113, 0.29, 0.618};
    return k < 2 ? k + 1 : 3 + (long)(PARTS[k] * (double)(n - 8)) + k;
}

/* The element in row i and column j != i: the same as in row j and column i. */
static double element(long i, long j)
{
    const uint64_t low = (uint64_t)(i < j ? i : j), high = (uint64_t)(i < j ? j : i);
    return -0.5 - 0.5 * uniform(low << 32 | high);
}

/* Finds the columns of row i, in ascending order. Returns their number. */
static int columns_of(long i, int found[2 * OFFSETS + 1])
{
    int count = 0;
    for (int k = OFFSETS - 1; k >= 0; k--)
        if (i - offset(k) >= 0)
            found[count++] = (int)(i - offset(k));
    found[count++] = (int)i;
    for (int k = 0; k < OFFSETS; k++)
        if (i + offset(k) < n)
            found[count++] = (int)(i + offset(k));
    return count;
}

static double solution(long i)
{
    return 2.0 * uniform((uint64_t)i) - 1.0;
}

/* Makes rows first <= i < end, whose elements begin at `start`. */
static void initialise(long first, long end, long start)
{
    int found[2 * OFFSETS + 1];
    for (long i = first; i < end; i++) {
        const int count = columns_of(i, found);
        double diagonal = 0.01;
        for (int k = 0; k < count; k++)
            if (found[k] != i)
                diagonal -= element(i, found[k]);
        b[i] = 0.0;
        for (int k = 0; k < count; k++) {
            columns[start + k] = found[k];
            values[start + k] = found[k] == i ? diagonal : element(i, found[k]);
            b[i] += values[start + k] * solution(found[k]);
        }
        start += count;
        starts[i + 1] = start;
        x[i] = 0.0;
    }
}

/* Returns the sum of all threads' parts of a scalar product. Sets the other sum to zero meanwhile. */
static double sum_of_all(int turn, double mine)
{
    hiroba_lock(SUM_LOCK);
    scalars->sums[turn] += mine;
    hiroba_unlock(SUM_LOCK);
    hiroba_barrier();
    const double sum = scalars->sums[turn];
    if (hiroba_thread() == 0)
        scalars->sums[1 - turn] = 0.0;
    hiroba_barrier();
    return sum;
}

static void solve(long first, long end)
{
    double mine = 0.0;
    for (long i = first; i < end; i++) {
        r[i] = p[i] = b[i];
        mine += r[i] * r[i];
    }
    double square = sum_of_all(0, mine);
    for (long step = 0; step < steps && square > 0.0; step++) {
        mine = 0.0;
        for (long i = first; i < end; i++) {
            double sum = 0.0;
            for (long k = starts[i]; k < starts[i + 1]; k++)
                sum += values[k] * p[columns[k]];
            q[i] = sum;
            mine += p[i] * sum;
        }
        const double alpha = square / sum_of_all(1, mine);
        mine = 0.0;
        for (long i = first; i < end; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            mine += r[i] * r[i];
        }
        const double before = square;
        square = sum_of_all(0, mine);
        for (long i = first; i < end; i++)
            p[i] = r[i] + square / before * p[i];
        hiroba_barrier();
    }
}

static void work(void *nothing)
{
    (void)nothing;
    const long first = own_first(n), end = own_end(n);
    int found[2 * OFFSETS + 1];
    double start = hiroba_wtime();
    if (init_all) {
        long elements = 0; /* of the rows above */
        for (long i = 0; i < first; i++)
            elements += columns_of(i, found);
        initialise(first, end, elements);
    } else if (hiroba_thread() == 0)
        initialise(0, n, 0);
    hiroba_barrier();
    double ready = hiroba_wtime();
    solve(first, end);
    hiroba_barrier();
    keep_times(start, ready);
}

/* Returns true if the residual is that of the solution, and the solution is more exact than zero. */
static bool check(double *norm)
{
    double error = 0.0, size = 0.0, square = 0.0;
    for (long i = 0; i < n; i++) {
        double is = b[i];
        for (long k = starts[i]; k < starts[i + 1]; k++)
            is -= values[k] * x[columns[k]];
        if (!(fabs(is - r[i]) <= 1e-9))
            return wrong("the residual of row %ld is %.12g and should be %.12g", i, r[i], is);
        error += (x[i] - solution(i)) * (x[i] - solution(i));
        size += solution(i) * solution(i);
        square += x[i] * x[i];
    }
    *norm = sqrt(square);
    return sqrt(error) <= 0.5 * sqrt(size) ||
           wrong("the solution is wrong by %g of itself", sqrt(error / size));
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    const size_t rows = (size_t)n, elements = rows * (2 * OFFSETS + 1);
    starts = shared((rows + 1) * sizeof *starts);
    columns = shared(elements * sizeof *columns);
    values = shared(elements * sizeof *values);
    double **vectors[] = {&b, &x, &r, &p, &q};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        *vectors[i] = shared(rows * sizeof(double));
    scalars = shared(sizeof *scalars);
    hiroba_run(work, NULL);
    double norm = 0.0;
    bool right = true;
    if (hiroba_node() == 0)
        right = check(&norm);
    return finish_near(right, norm);
}
