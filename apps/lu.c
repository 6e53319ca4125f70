/*
 * lu: a square matrix as the product of a lower and an upper triangular one, block by block.
 *
 *     hiroba cc -O3 -march=native -o lu lu.c -lm
 *     hiroba run -n 4 ./lu -n 2048
 *
 * Read `factor` first: it is the whole parallel program. Step k factors the block on the diagonal,
 * divides by it the blocks below and to the right, and subtracts their products from all blocks
 * behind those. The blocks are scattered over a grid of threads, so that all have work until the
 * end, and each is written by one thread alone. What a step needs first is made while the step
 * before still subtracts, so that nobody waits for it: the block on the diagonal, and, where the
 * grid has one row, the column below it. Then a step has one barrier, else a second one, after which
 * others read the divided blocks.
 *
 * A block's elements lie together, and so do the blocks of a thread, those of a column of blocks
 * one after the other: what a thread reads of another's column is one piece. There is no pivoting;
 * the diagonal is large enough to do without.
 */

#include "common.h"

static long n = 1024, edge = 16;

static const struct option OPTIONS[] = {
    {"-n", "a number of rows", 1, 32768, &n, NULL},
    {"-b", "a block's number of rows", 1, 256, &edge, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: lu [-n ROWS] [-b BLOCK] [--sequential]\n"
           "\n"
           "Factors a square matrix of doubles into triangular ones, and checks the factors.\n"
           "\n"
           "  -n ROWS       so many rows and columns [%ld]\n"
           "  -b BLOCK      in blocks of so many, a divisor of ROWS [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the factors passed their checks, 1 they did not, 2 bad arguments.\n",
           n, edge);
}

/* ---- The matrix ------------------------------------------------------------------------------ */

/* The threads stand in a grid; block (i, j) belongs to the one in row i modulo `grid_rows`, column
 * j modulo `grid_columns`. */
static size_t threads, blocks, grid_rows, grid_columns; /* blocks along an edge */
static size_t most_rows, section; /* blocks in a thread's column; doubles of a thread */
static size_t unit_bytes;         /* what travels at once: not more than a thread's column */

static size_t owner_of(size_t i, size_t j)
{
    return i % grid_rows * grid_columns + j % grid_columns;
}

/* Where a block begins; its elements stand row by row. */
static double *block_at(double *matrix, size_t i, size_t j)
{
    size_t place = j / grid_columns * most_rows + i / grid_rows;
    return matrix + owner_of(i, j) * section + place * (size_t)(edge * edge);
}

/* An element of the matrix that is to be factored; each row's diagonal outweighs the rest. */
static double element(size_t row, size_t column)
{
    uint64_t bits = scattered((uint64_t)row * (uint64_t)n + column);
    double small = (double)(bits >> 11) * 0x1p-52 - 1.0;
    return row == column ? small + (double)n : small;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* a = l u in place, l with ones on its diagonal. */
static void factor_block(double *a, size_t b)
{
    for (size_t k = 0; k < b; k++)
        for (size_t i = k + 1; i < b; i++) {
            double by = a[i * b + k] /= a[k * b + k];
            for (size_t j = k + 1; j < b; j++)
                a[i * b + j] -= by * a[k * b + j];
        }
}

/* c = c / u, u the upper part of the diagonal's block. */
static void divide_right(double *restrict c, const double *restrict diagonal, size_t b)
{
    for (size_t k = 0; k < b; k++) {
        double inverse = 1.0 / diagonal[k * b + k];
        for (size_t i = 0; i < b; i++) {
            double by = c[i * b + k] *= inverse;
            for (size_t j = k + 1; j < b; j++)
                c[i * b + j] -= by * diagonal[k * b + j];
        }
    }
}

/* c = l \ c, l the lower part of the diagonal's block. */
static void divide_left(double *restrict c, const double *restrict diagonal, size_t b)
{
    for (size_t k = 0; k < b; k++)
        for (size_t i = k + 1; i < b; i++)
            for (size_t j = 0; j < b; j++)
                c[i * b + j] -= diagonal[i * b + k] * c[k * b + j];
}

/* c = c - a b, four rows at a time. */
static inline void subtract_product(double *restrict c, const double *restrict left,
                                    const double *restrict right, size_t b)
{
    size_t i = 0;
    for (; i + 4 <= b; i += 4)
        for (size_t k = 0; k < b; k++) {
            const double *row = right + k * b;
            double *c0 = c + i * b, *c1 = c0 + b, *c2 = c1 + b, *c3 = c2 + b;
            double l0 = left[i * b + k], l1 = left[(i + 1) * b + k];
            double l2 = left[(i + 2) * b + k], l3 = left[(i + 3) * b + k];
            for (size_t j = 0; j < b; j++) {
                c0[j] -= l0 * row[j];
                c1[j] -= l1 * row[j];
                c2[j] -= l2 * row[j];
                c3[j] -= l3 * row[j];
            }
        }
    for (; i < b; i++)
        for (size_t k = 0; k < b; k++)
            for (size_t j = 0; j < b; j++)
                c[i * b + j] -= left[i * b + k] * right[k * b + j];
}

enum { USUAL = 16 };

/* The same for the usual size of blocks, whose rows stay in registers. */
static void subtract_usual(double *restrict c, const double *restrict left,
                           const double *restrict right)
{
    for (size_t i = 0; i < USUAL; i += 4) {
        double rows[4][USUAL];
        memcpy(rows, c + i * USUAL, sizeof rows);
        for (size_t k = 0; k < USUAL; k++)
            for (size_t r = 0; r < 4; r++)
                for (size_t j = 0; j < USUAL; j++)
                    rows[r][j] -= left[(i + r) * USUAL + k] * right[k * USUAL + j];
        memcpy(c + i * USUAL, rows, sizeof rows);
    }
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* What the threads share. */
struct shared {
    double *matrix;
    double *image; /* the upper factor times the random vector */
    struct sums {
        uint64_t checksum;
        double error; /* the largest of (l (u x) - a x) of a row, of its bound */
    } *sums;
};

static double set_up;
static struct clocks elapsed;

/* The first of the numbers `mine`, mine + count, ... that is at least `least`. */
static size_t first_from(size_t least, size_t mine, size_t count)
{
    return least + (mine + count - least % count) % count;
}

static size_t own_row(void)
{
    return thread_number() / grid_columns;
}

static size_t own_column(void)
{
    return thread_number() % grid_columns;
}

/* Announces that a column's blocks from the diagonal on will be read, piece by piece. */
static void announce(const struct shared *s, size_t k)
{
    for (size_t row = 0; row < grid_rows; row++) {
        size_t first = first_from(k, row, grid_rows);
        if (first < blocks && owner_of(first, k) != thread_number())
            read_soon(block_at(s->matrix, first, k),
                      ((blocks - 1 - first) / grid_rows + 1) * (size_t)(edge * edge) *
                          sizeof(double));
    }
}

/* Subtracts from a thread's blocks in column j behind the k-th row what step k takes from them. */
static void update_column(const struct shared *s, size_t k, size_t j)
{
    const size_t b = (size_t)edge;
    const double *right = block_at(s->matrix, k, j);
    for (size_t i = first_from(k + 1, own_row(), grid_rows); i < blocks; i += grid_rows) {
        double *to = block_at(s->matrix, i, j);
        const double *left = block_at(s->matrix, i, k);
        if (b == USUAL)
            subtract_usual(to, left, right);
        else
            subtract_product(to, left, right, b);
    }
}

/* Divides a thread's blocks below the k-th on the diagonal by that. */
static void divide_column(const struct shared *s, size_t k)
{
    if (k % grid_columns == own_column())
        for (size_t i = first_from(k + 1, own_row(), grid_rows); i < blocks; i += grid_rows)
            divide_right(block_at(s->matrix, i, k), block_at(s->matrix, k, k), (size_t)edge);
}

/* Makes the k-th block on the diagonal ready for its step, and the column below it, if that is
 * all of one thread. */
static void begin_step(const struct shared *s, size_t k)
{
    if (k < blocks && owner_of(k, k) == thread_number())
        factor_block(block_at(s->matrix, k, k), (size_t)edge);
    if (k < blocks && grid_rows == 1)
        divide_column(s, k);
}

static void factor(const struct shared *s)
{
    begin_step(s, 0);
    barrier();
    for (size_t k = 0; k < blocks; k++) {
        size_t column = first_from(k + 1, own_column(), grid_columns);
        announce(s, k);
        if (grid_rows > 1)
            divide_column(s, k);
        if (k % grid_rows == own_row())
            for (size_t j = column; j < blocks; j += grid_columns)
                divide_left(block_at(s->matrix, k, j), block_at(s->matrix, k, k), (size_t)edge);
        if (grid_rows > 1) { /* else these blocks are only for the thread that has divided them */
            barrier();
            announce(s, k);
        }
        if (column == k + 1 && column < blocks)
            update_column(s, k, column);
        begin_step(s, k + 1);
        for (size_t j = column == k + 1 ? column + grid_columns : column; j < blocks;
             j += grid_columns)
            update_column(s, k, j);
        barrier();
    }
}

/* Calls `visit` for all elements of a thread's blocks. */
static void visit_blocks(double *matrix,
                         void (*visit)(size_t row, size_t column, double *x, struct sums *sums),
                         struct sums *sums)
{
    const size_t b = (size_t)edge;
    for (size_t i = 0; i < blocks; i++)
        for (size_t j = 0; j < blocks; j++)
            for (size_t e = 0; e < b * b && owner_of(i, j) == thread_number(); e++)
                visit(i * b + e / b, j * b + e % b, block_at(matrix, i, j) + e, sums);
}

static void fill(size_t row, size_t column, double *x, struct sums *sums)
{
    (void)sums;
    *x = element(row, column);
}

static void add_up(size_t row, size_t column, double *x, struct sums *sums)
{
    sums->checksum += fingerprint(row * (size_t)n + column, bits_of(*x));
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* An element of the factors, which stand in one matrix. */
static double factored(const struct shared *s, size_t row, size_t column)
{
    const size_t b = (size_t)edge;
    return block_at(s->matrix, row / b, column / b)[row % b * b + column % b];
}

/* An element of the random vector: from 1 to 2. */
static double random_of(size_t column)
{
    return (double)(scattered(UINT64_C(0x1979) ^ scattered((uint64_t)column)) >> 11) * 0x1p-53 + 1.0;
}

/*
 * Holds l (u x) against a x for a random vector x, row by row. An error in one element can hide
 * only if it is about as small as rounding, or the vector is unlucky. Each thread tests rows that
 * its neighbour has, mostly, computed. Collective.
 */
static void test(const struct shared *s, struct sums *own)
{
    const size_t width = (size_t)n;
    struct span rows = share_of(width, (thread_number() + 1) % threads, threads);
    for (size_t i = rows.first; i < rows.end; i++) {
        double sum = 0.0;
        for (size_t j = i; j < width; j++)
            sum += factored(s, i, j) * random_of(j);
        s->image[i] = sum;
    }
    barrier();
    for (size_t i = rows.first; i < rows.end; i++) {
        double is = s->image[i], should = 0.0, size = fabs(is);
        for (size_t j = 0; j < i; j++) {
            double term = factored(s, i, j) * s->image[j];
            is += term;
            size += fabs(term);
        }
        for (size_t j = 0; j < width; j++)
            should += element(i, j) * random_of(j);
        double error = fabs(is - should) / (size * 1e-14 * sqrt((double)n));
        own->error = error <= own->error ? own->error : error; /* or if it is no number */
    }
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct sums own = {0, 0.0};
    double start = seconds();
    visit_blocks(s->matrix, fill, &own);
    barrier();
    struct clocks filled = clocks();
    factor(s);
    if (keeps_time()) {
        elapsed = since(filled);
        set_up = filled.wall - start;
    }
    visit_blocks(s->matrix, add_up, &own);
    test(s, &own);
    lock(SUM_LOCK);
    s->sums->checksum += own.checksum;
    s->sums->error = own.error <= s->sums->error ? s->sums->error : own.error;
    unlock(SUM_LOCK);
}

/* So many rows and columns are factored again: what they become depends on nothing behind them. */
enum { CORNER = 192 };

static bool check(const struct shared *s)
{
    static double corner[CORNER * CORNER];
    const size_t rows = n < CORNER ? (size_t)n : CORNER;
    if (!(s->sums->error <= 1.0))
        return complain("the product of the factors is not the matrix: a row is off by %.3g times "
                        "what rounding may do",
                        s->sums->error);
    for (size_t e = 0; e < rows * rows; e++)
        corner[e] = element(e / rows, e % rows);
    factor_block(corner, rows);
    for (size_t e = 0; e < rows * rows; e++) {
        double is = factored(s, e / rows, e % rows), should = corner[e];
        if (!(fabs(is - should) <= 1e-12 * fmax(1.0, fabs(should))))
            return complain("the element in row %zu, column %zu is %.17g and should be %.17g",
                            e / rows, e % rows, is, should);
    }
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    s->matrix = shared_in_units(threads * section * sizeof(double), unit_bytes);
    s->image = shared_zeroed((size_t)n * sizeof(double));
    s->sums = shared_zeroed(sizeof *s->sums);
    return (s->matrix != NULL && s->image != NULL && s->sums != NULL) ||
           complain("no shared memory for a matrix of %ld x %ld: %s", n, n, strerror(errno));
}

static void report(const struct shared *s)
{
    double operations = 2.0 / 3.0 * (double)n * (double)n * (double)n;
    printf("rows                     %ld\n", n);
    printf("block                    %ld\n", edge);
    printf("threads                  %zu on %d nodes, %zu x %zu\n", threads, nodes, grid_rows,
           grid_columns);
    printf("largest error            %.3g of what rounding may do\n", s->sums->error);
    printf("checksum                 %016llx\n", (unsigned long long)s->sums->checksum);
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("operations per second    %.4g\n", elapsed.wall > 0.0 ? operations / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    share(&s);
    if (!all_agree())
        return 1;
    on_all_threads(work, &s);
    elapsed = most_of(elapsed);
    if (node == 0) {
        report(&s);
        if (check(&s))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

/* Whether the arguments make sense; sets what follows from them. */
static bool prepare(void)
{
    enum { LEAST_UNIT = 4096, MOST_UNIT = 65536 };
    threads = threads_in_all();
    blocks = (size_t)(n / edge);
    if (n % edge != 0)
        return complain("-b takes a divisor of the %ld rows, not %ld", n, edge);
    for (grid_rows = 1; (grid_rows + 1) * (grid_rows + 1) <= threads; grid_rows++)
        ;
    while (threads % grid_rows != 0)
        grid_rows--;
    grid_columns = threads / grid_rows;
    if (grid_columns > blocks)
        return complain("a row of %zu blocks is too short for %zu threads, which stand %zu x %zu",
                        blocks, threads, grid_rows, grid_columns);
    most_rows = (blocks + grid_rows - 1) / grid_rows;
    section = most_rows * ((blocks + grid_columns - 1) / grid_columns) * (size_t)(edge * edge);
    unit_bytes = LEAST_UNIT;
    while (2 * unit_bytes <= MOST_UNIT &&
           2 * unit_bytes <= most_rows * (size_t)(edge * edge) * sizeof(double))
        unit_bytes *= 2;
    size_t unit = unit_bytes / sizeof(double);
    section = (section + unit - 1) / unit * unit;
    return true;
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("lu", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        prepare();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
