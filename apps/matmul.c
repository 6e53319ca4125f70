/*
 * matmul: the product of two square matrices, tile by tile.
 *
 *     hiroba cc -O3 -march=native -o matmul matmul.c -lm
 *     hiroba run -n 4 ./matmul
 *
 * Read `multiply` first: it is the whole parallel program. The product is cut into tiles of 64 x 64 elements.
 * Each thread computes some neighbouring tiles; for each tile it reads a row of tiles of one factor and a
 * column of tiles of the other. No thread writes what another reads, so the matrices need no synchronisation
 * between the barriers at the start and the end.
 *
 * Fitted to pages: the right factor and the product are stored in pages as long as what is read or written at
 * once. Tiles that will be read are announced some tiles ahead, so that they travel during the computation.
 * Each thread writes its own tiles, so the matrices need no synchronisation.
 *
 * The elements of the factors are whole numbers from 1 to 1023. Every sum is exact in any order, so the
 * checksum is the same for any number of threads and any tile. No number is negative, so two errors of one
 * element cannot cancel.
 */

#include "common.h"

static long n = 2048, tile = 64;

static const struct option OPTIONS[] = {
    {"-n", "a number of rows", 1, 32768, &n, NULL},
    {"-b", "a tile's number of rows", 1, 4096, &tile, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: matmul [-n ROWS] [-b TILE] [--sequential]\n"
           "\n"
           "Multiplies two square matrices of doubles, and checks the product.\n"
           "\n"
           "  -n ROWS       so many rows and columns [%ld]\n"
           "  -b TILE       in tiles of so many [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the product passed its checks, 1 it did not, 2 bad arguments.\n",
           n, tile);
}

/* ---- The factors ----------------------------------------------------------------------------- */

enum { LEFT, RIGHT };

/* An element of a factor: 1 to 1023, so that sums of 2^15 products stay far below 2^53. */
static double element(int factor, size_t row, size_t column)
{
    uint64_t place = (uint64_t)row * (uint64_t)n + column;
    return (double)(1 + scattered(2 * place + (uint64_t)factor) % 1023);
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* The state that all threads share: matrices row by row. */
struct shared {
    double *factors[2], *product;
    uint64_t *image; /* the right factor times the random vector */
    struct sums {
        uint64_t checksum;
        uint64_t wrong_factors, wrong_rows; /* elements that differ from what was stored; rows */
    } *sums;
};

static double set_up;
static struct clocks elapsed;
static size_t threads;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* c += a * b for columns of a row of the product, four rows of the right factor at a time. */
static void add_rows(double *restrict c, const double *restrict a, const double *restrict b,
                     size_t rows, size_t columns)
{
    const size_t width = (size_t)n;
    size_t k = 0;
    for (; k + 4 <= rows; k += 4) {
        const double *b0 = b + k * width, *b1 = b0 + width, *b2 = b1 + width, *b3 = b2 + width;
        for (size_t j = 0; j < columns; j++)
            c[j] += a[k] * b0[j] + a[k + 1] * b1[j] + a[k + 2] * b2[j] + a[k + 3] * b3[j];
    }
    for (; k < rows; k++)
        for (size_t j = 0; j < columns; j++)
            c[j] += a[k] * b[k * width + j];
}

/* Rows of tiles that travel while one is multiplied. */
enum { AHEAD = 3 };

/* Announces the rows of the right factor that the tiles from row k on need. */
static void announce(const struct shared *s, size_t k)
{
    const size_t width = (size_t)n;
    if (k < width)
        read_soon(s->factors[RIGHT] + k * width, least((size_t)tile, width - k) * width * sizeof(double));
}

/* Multiplies one tile. A thread's first tile announces and fetches the whole right factor; later tiles
 * find it present. */
static void multiply_tile(const struct shared *s, size_t tile_row, size_t tile_column, bool is_first)
{
    const size_t width = (size_t)n, edge = (size_t)tile;
    size_t first = tile_row * edge, end = least(first + edge, width);
    size_t left = tile_column * edge, columns = least(edge, width - left);
    for (size_t k = 0; is_first && k < AHEAD * edge; k += edge)
        announce(s, k);
    for (size_t k = 0; k < width; k += edge) {
        if (is_first)
            announce(s, k + AHEAD * edge);
        for (size_t i = first; i < end; i++)
            add_rows(s->product + i * width + left, s->factors[LEFT] + i * width + k,
                     s->factors[RIGHT] + k * width + left, least(edge, width - k), columns);
    }
}

static void multiply(const struct shared *s)
{
    size_t edge = ((size_t)n + (size_t)tile - 1) / (size_t)tile; /* in tiles */
    struct span own = own_share(edge * edge);
    for (size_t t = own.first; t < own.end; t++)
        multiply_tile(s, t / edge, t % edge, t == own.first);
}

static void fill(const struct shared *s, struct span rows)
{
    for (size_t i = rows.first; i < rows.end; i++)
        for (size_t j = 0; j < (size_t)n; j++) {
            s->factors[LEFT][i * (size_t)n + j] = element(LEFT, i, j);
            s->factors[RIGHT][i * (size_t)n + j] = element(RIGHT, i, j);
            s->product[i * (size_t)n + j] = 0.0;
        }
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* Arithmetic modulo the prime 2^61 - 1. */
__extension__ typedef unsigned __int128 wide;
static const uint64_t PRIME = (UINT64_C(1) << 61) - 1;

static uint64_t plus_product(uint64_t sum, uint64_t a, uint64_t b)
{
    return (uint64_t)((sum + (wide)a * b) % PRIME);
}

/* An element of the random vector. */
static uint64_t random_of(size_t column)
{
    return scattered(UINT64_C(0x1979) ^ scattered((uint64_t)column)) % PRIME;
}

/* Multiplies a row of a matrix by a vector. Returns false if an element is not a value that a product can
 * have. */
static bool row_times(const double *row, const uint64_t *vector, uint64_t *result)
{
    uint64_t sum = 0;
    for (size_t j = 0; j < (size_t)n; j++) {
        if (!(row[j] >= 1.0 && row[j] < 0x1p53 && row[j] == floor(row[j])))
            return false;
        sum = plus_product(sum, (uint64_t)row[j], vector == NULL ? random_of(j) : vector[j]);
    }
    *result = sum;
    return true;
}

/*
 * Freivalds' test: checks that product x = left (right x) for a random vector x, modulo a prime. A wrong
 * product passes with probability 2^-61, and the test takes n^2 steps instead of n^3. Each thread tests rows
 * that its neighbour has computed. Collective.
 */
static void test(const struct shared *s)
{
    const size_t width = (size_t)n;
    struct span rows = share_of(width, (thread_number() + 1) % thread_count(), thread_count());
    struct sums own = {0, 0, 0};
    for (size_t i = rows.first; i < rows.end; i++) {
        own.wrong_factors += !row_times(s->factors[RIGHT] + i * width, NULL, &s->image[i]);
        for (size_t j = 0; j < width; j++) {
            own.wrong_factors += s->factors[LEFT][i * width + j] != element(LEFT, i, j);
            own.wrong_factors += s->factors[RIGHT][i * width + j] != element(RIGHT, i, j);
            own.checksum += fingerprint(i * width + j, bits_of(s->product[i * width + j]));
        }
    }
    barrier();
    for (size_t i = rows.first; i < rows.end; i++) {
        uint64_t is = 0, should = 1;
        bool good = row_times(s->product + i * width, NULL, &is) &&
                    row_times(s->factors[LEFT] + i * width, s->image, &should) && is == should;
        own.wrong_rows += !good;
    }
    lock(SUM_LOCK);
    s->sums->checksum += own.checksum;
    s->sums->wrong_factors += own.wrong_factors;
    s->sums->wrong_rows += own.wrong_rows;
    unlock(SUM_LOCK);
}

static void work(void *argument)
{
    const struct shared *s = argument;
    double start = seconds();
    fill(s, own_share((size_t)n));
    barrier();
    struct clocks filled = clocks();
    multiply(s);
    barrier();
    if (keeps_time()) {
        elapsed = since(filled);
        set_up = filled.wall - start;
        threads = thread_count();
    }
    test(s);
}

enum { SAMPLES = 64 };

/* Compares some elements with sums of the correct factors, without reading the stored factors. */
static bool check(const struct shared *s)
{
    if (s->sums->wrong_factors != 0)
        return complain("%llu elements of the factors are not what was stored",
                        (unsigned long long)s->sums->wrong_factors);
    if (s->sums->wrong_rows != 0)
        return complain("%llu rows of the product are wrong",
                        (unsigned long long)s->sums->wrong_rows);
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        size_t row = sample * (size_t)(n - 1) / (SAMPLES - 1);
        size_t column = scattered(sample) % (uint64_t)n;
        double is = s->product[row * (size_t)n + column], should = 0.0;
        for (size_t k = 0; k < (size_t)n; k++)
            should += element(LEFT, row, k) * element(RIGHT, k, column);
        if (!(is == should))
            return complain("the element in row %zu, column %zu is %.17g and should be %.17g", row,
                            column, is, should);
    }
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    size_t elements = (size_t)n * (size_t)n;
    s->factors[LEFT] = shared_zeroed(elements * sizeof(double));
    /* A tile consists of rows of many pages; some of these rows travel, or are first touched, at once. */
    size_t unit_bytes = power_below((size_t)tile * (size_t)n * sizeof(double) / 8);
    s->factors[RIGHT] = shared_in_units(elements * sizeof(double), unit_bytes);
    s->product = shared_in_units(elements * sizeof(double), unit_bytes);
    s->image = shared_zeroed((size_t)n * sizeof *s->image);
    s->sums = shared_zeroed(sizeof *s->sums);
    if (s->factors[LEFT] == NULL || s->factors[RIGHT] == NULL || s->product == NULL ||
        s->image == NULL || s->sums == NULL)
        return complain("no shared memory for three matrices of %ld x %ld: %s", n, n,
                        strerror(errno));
    return true;
}

static void report(const struct shared *s)
{
    double operations = 2.0 * (double)n * (double)n * (double)n;
    printf("rows                     %ld\n", n);
    printf("tile                     %ld\n", tile);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
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

int main(int argc, char **argv)
{
    bool help;
    int status = join("matmul", &argc, &argv);
    if (status != 0)
        return status;
    parse_options(OPTIONS, argc, argv, &help);
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
