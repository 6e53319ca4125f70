/*
 * lu: a square matrix as the product of a lower and an upper triangular one, block by block.
 *
 *     hiroba cc -O3 -march=native -o lu lu.c -lm
 *     hiroba run -n 4 ./lu -n 2048
 *
 * Read `factor` first: it is the whole parallel program. Step k makes column k of blocks: it factors the
 * block on the diagonal and divides the blocks below by it. The products of these with the blocks of row k
 * are subtracted from all later columns. Threads own columns in turn, so that all have work until the end,
 * and each column is written by one thread only. There are no barriers: the thread that makes a column holds
 * its lock until the column is made, and a thread that needs it acquires the lock. Threads subtract one step
 * late, except for the column that they make next. So a column is made early, and travels to others while
 * they still subtract the one before.
 *
 * Fitted to pages: the blocks of a column are contiguous, in pages of 4 to 64 KiB by the column's height, so
 * that few messages fetch a column. Each column has one writer. A lock for each column replaces barriers: a
 * thread waits only for the column that it needs, and announces the column before it reads.
 *
 * The elements of a block are contiguous, and so are the blocks of a column, from top to bottom: a thread
 * reads one contiguous piece of another thread's memory. There is no pivoting, because the diagonal is large
 * enough.
 */

#include "common.h"

static long n = 1024, edge = 64;

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

static size_t threads, blocks;  /* blocks along an edge */
static size_t height, section;  /* doubles in a column of blocks, and in all columns of a thread */
static size_t unit_bytes;       /* what travels at once: at most a column */

/* Column j of blocks belongs to the thread j modulo `threads`. */
static size_t owner_of(size_t j)
{
    return j % threads;
}

/* The address of a block, whose elements are stored row by row. */
static double *block_at(double *matrix, size_t i, size_t j)
{
    return matrix + owner_of(j) * section + j / threads * height + i * (size_t)(edge * edge);
}

/* An element of the matrix to be factored. The diagonal element of each row outweighs the rest of the row. */
static double element(size_t row, size_t column)
{
    uint64_t bits = scattered((uint64_t)row * (uint64_t)n + column);
    double small = (double)(bits >> 11) * 0x1p-52 - 1.0;
    return row == column ? small + (double)n : small;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Doubles that are computed at once, as a vector type of GCC and Clang. */
enum { LANES = 8 };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));

/* The kernels below work on tiles of TILE columns: ROWS rows of a tile stay in registers. */
enum { TILE = 2 * LANES, ROWS = 4 };

/* c = c - a b for four rows and TILE columns of c. Rows of all three matrices start `stride` apart; rows
 * of a have `inner` elements. */
static inline void subtract_tile(double *restrict c, const double *restrict left,
                                 const double *restrict right, size_t inner, size_t stride)
{
    lanes rows[ROWS][2];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < 2; h++)
            memcpy(&rows[r][h], c + r * stride + h * LANES, sizeof(lanes)); /* blocks may be unaligned */
    for (size_t k = 0; k < inner; k++) {
        lanes first, second;
        memcpy(&first, right + k * stride, sizeof first);
        memcpy(&second, right + k * stride + LANES, sizeof second);
        for (size_t r = 0; r < ROWS; r++) {
            rows[r][0] -= left[r * stride + k] * first;
            rows[r][1] -= left[r * stride + k] * second;
        }
    }
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < 2; h++)
            memcpy(c + r * stride + h * LANES, &rows[r][h], sizeof(lanes));
}

/* c = c - a b, where c has `rows` rows and `columns` columns. */
static inline void subtract_product(double *restrict c, const double *restrict left,
                                    const double *restrict right, size_t rows, size_t inner,
                                    size_t columns, size_t stride)
{
    size_t tiled_rows = rows - rows % ROWS, tiled_columns = columns - columns % TILE;
    for (size_t j = 0; j < tiled_columns; j += TILE)
        for (size_t i = 0; i < tiled_rows; i += ROWS)
            subtract_tile(c + i * stride + j, left + i * stride, right + j, inner, stride);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < inner; k++)
            for (size_t j = i < tiled_rows ? tiled_columns : 0; j < columns; j++)
                c[i * stride + j] -= left[i * stride + k] * right[k * stride + j];
}

static inline size_t at_most(size_t most, size_t value)
{
    return value < most ? value : most;
}

/* a = l u in place, l with ones on its diagonal, for a strip of `rows` rows and `width` columns. */
static void factor_strip(double *a, size_t rows, size_t width, size_t stride)
{
    for (size_t k = 0; k < width; k++)
        for (size_t i = k + 1; i < rows; i++) {
            double by = a[i * stride + k] /= a[k * stride + k];
            for (size_t j = k + 1; j < width; j++)
                a[i * stride + j] -= by * a[k * stride + j];
        }
}

/* c = l \ c, where l is the lower part of the first `rows` rows of the diagonal block. */
static void divide_left(double *restrict c, const double *restrict diagonal, size_t rows,
                        size_t columns, size_t stride)
{
    for (size_t first = 0; first < rows; first += TILE) {
        size_t end = at_most(rows, first + TILE);
        subtract_product(c + first * stride, diagonal + first * stride, c, end - first, first,
                         columns, stride);
        for (size_t i = first + 1; i < end; i++)
            for (size_t k = first; k < i; k++)
                for (size_t j = 0; j < columns; j++)
                    c[i * stride + j] -= diagonal[i * stride + k] * c[k * stride + j];
    }
}

/* c = c / u, where u is the upper part of the diagonal block. */
static void divide_right(double *restrict c, const double *restrict diagonal, size_t b)
{
    for (size_t first = 0; first < b; first += TILE) {
        size_t end = at_most(b, first + TILE);
        subtract_product(c + first, c, diagonal + first, b, first, end - first, b);
        for (size_t k = first; k < end; k++) {
            double inverse = 1.0 / diagonal[k * b + k];
            for (size_t i = 0; i < b; i++) {
                double by = c[i * b + k] *= inverse;
                for (size_t j = k + 1; j < end; j++)
                    c[i * b + j] -= by * diagonal[k * b + j];
            }
        }
    }
}

/* a = l u in place for a square block, strip by strip. */
static void factor_block(double *a, size_t b)
{
    for (size_t first = 0; first < b; first += TILE) {
        size_t end = at_most(b, first + TILE), rest = b - end;
        double *diagonal = a + first * b + first, *below = a + end * b + first;
        factor_strip(diagonal, b - first, end - first, b);
        divide_left(a + first * b + end, diagonal, end - first, rest, b);
        subtract_product(a + end * b + end, below, a + first * b + end, rest, end - first, rest, b);
    }
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* The numbers of locks: one of the sums, then one for each column of blocks. */
enum { SUM_LOCK, COLUMN_LOCK };

/* The state that all threads share. */
struct shared {
    double *matrix;
    double *image; /* the upper factor times the random vector */
    struct sums {
        uint64_t checksum;
        double error; /* largest error of a row of l (u x) - a x, relative to its bound */
    } *sums;
};

static double set_up;
static struct clocks elapsed;

static bool owns(size_t j)
{
    return j < blocks && owner_of(j) == thread_number();
}

/* Acquires the locks of this thread's columns. It holds each until the column is made. */
static void keep_columns(void)
{
    for (size_t j = thread_number(); j < blocks; j += threads)
        lock(COLUMN_LOCK + (unsigned)j);
}

/* Waits until another thread has made column k, and announces that it will be read. */
static void await_column(const struct shared *s, size_t k)
{
    lock(COLUMN_LOCK + (unsigned)k);
    unlock(COLUMN_LOCK + (unsigned)k);
    read_soon(block_at(s->matrix, k, k), (blocks - k) * (size_t)(edge * edge) * sizeof(double));
}

/* Subtracts step k from column j. The block of column j in row k becomes a block of the upper factor. */
static void update_column(const struct shared *s, size_t k, size_t j)
{
    const size_t b = (size_t)edge;
    double *above = block_at(s->matrix, k, j);
    divide_left(above, block_at(s->matrix, k, k), b, b, b);
    for (size_t i = k + 1; i < blocks; i++)
        subtract_product(block_at(s->matrix, i, j), block_at(s->matrix, i, k), above, b, b, b, b);
}

/* Turns the rest of column k into blocks of the lower factor. */
static void make_column(const struct shared *s, size_t k)
{
    factor_block(block_at(s->matrix, k, k), (size_t)edge);
    for (size_t i = k + 1; i < blocks; i++)
        divide_right(block_at(s->matrix, i, k), block_at(s->matrix, k, k), (size_t)edge);
    unlock(COLUMN_LOCK + (unsigned)k);
}

static void factor(const struct shared *s)
{
    if (owns(0))
        make_column(s, 0);
    for (size_t k = 0; k + 1 < blocks; k++) {
        if (!owns(k))
            await_column(s, k);
        for (size_t j = k + 1; j < blocks; j++) {
            if (owns(j) && k > 0) /* while column k travels */
                update_column(s, k - 1, j);
            if (owns(j) && j == k + 1) {
                update_column(s, k, j);
                make_column(s, j);
            }
        }
    }
    barrier();
}

/* Calls `visit` for all elements of a thread's blocks. */
static void visit_blocks(double *matrix,
                         void (*visit)(size_t row, size_t column, double *x, struct sums *sums),
                         struct sums *sums)
{
    const size_t b = (size_t)edge;
    for (size_t i = 0; i < blocks; i++)
        for (size_t j = 0; j < blocks; j++)
            for (size_t e = 0; e < b * b && owns(j); e++)
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

/* An element of the factors, which are stored in one matrix. */
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
 * Compares l (u x) with a x for a random vector x, row by row. An error in one element is missed only if it
 * is about as small as rounding, or the random vector hides it. Each thread tests rows that, for the most
 * part, its neighbour has computed. Collective.
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
        own->error = error <= own->error ? own->error : error; /* a NaN replaces it too */
    }
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct sums own = {0, 0.0};
    double start = seconds();
    visit_blocks(s->matrix, fill, &own);
    keep_columns();
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

/* Rows and columns that are factored again: their values depend on nothing after them. */
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
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
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

/* Checks the arguments and sets what follows from them. Returns false if they are wrong. */
static bool prepare(void)
{
    enum { LEAST_UNIT = 4096, MOST_UNIT = 65536 };
    threads = threads_in_all();
    blocks = (size_t)(n / edge);
    if (n % edge != 0)
        return complain("-b takes a divisor of the %ld rows, not %ld", n, edge);
    if (threads > blocks)
        return complain("%zu columns of blocks are too few for %zu threads", blocks, threads);
    if (COLUMN_LOCK + blocks > LOCKS)
        return complain("-b takes %ld or more for %ld rows: there are locks for %d columns of blocks",
                        (n + LOCKS - COLUMN_LOCK - 1) / (LOCKS - COLUMN_LOCK), n,
                        LOCKS - COLUMN_LOCK);
    height = blocks * (size_t)(edge * edge);
    unit_bytes = LEAST_UNIT;
    while (2 * unit_bytes <= MOST_UNIT && 2 * unit_bytes <= height * sizeof(double))
        unit_bytes *= 2;
    size_t unit = unit_bytes / sizeof(double);
    height = (height + unit - 1) / unit * unit; /* no unit belongs to two columns */
    section = (blocks + threads - 1) / threads * height;
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
