/*
 * fft: the discrete Fourier transform of n complex numbers, in six steps.
 *
 *     hiroba cc -O3 -march=native -o fft fft.c -lm
 *     hiroba run -n 4 ./fft -n 4194304
 *
 * Read `transform` first: it is the whole parallel program. The n = m * m points form a matrix of m rows (D.
 * H. Bailey, FFTs in external or hierarchical memory, 1990): transpose; transform each row; multiply by roots
 * of unity; transpose; transform each row; transpose. Each thread transforms a block of rows. In a transpose
 * it reads a patch of the rows of every other thread and writes rows of its own.
 *
 * Fitted to pages: the matrices are stored patch by patch, in pages of half a patch or less, so that a patch
 * travels in a few messages. Input and result lie in columns, so two of the three transposes are local. Each
 * thread starts with its own patch while the next one travels, so that homes are not all asked at once.
 *
 * A thread has columns of the input and of the result, which are the rows of their transposes. Only that
 * thread writes and reads them, so only the transpose in the middle communicates. With `-l patches` a thread
 * has rows of them, and all three transposes communicate. A thread's rows are stored patch by patch, so that
 * another thread reads contiguous memory. With `-l rows` they are stored row by row, as in SPLASH-2's
 * program.
 *
 * The clock starts after two transforms, from one matrix to the other and back, which touch all memory for
 * the first time. The cost of that (`-w 0`) is part of the set-up, as in the NAS benchmarks.
 *
 * The transform divides each point by m, which is exact. So the transform is unitary, and four transforms are
 * the identity: the checks use that.
 */

#include "common.h"

static long points = 262144, rounds = 1, warm_up = 2;
static const char *layout = "columns";

static const struct option OPTIONS[] = {
    {"-n", "a number of points", 16, 1L << 30, &points, NULL},
    {"-r", "a number of transforms", 1, 1000, &rounds, NULL},
    {"-w", "a number of transforms", 0, 1000, &warm_up, NULL},
    {"-l", "'columns', 'patches' or 'rows'", 0, 0, NULL, &layout},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: fft [-n POINTS] [-r ROUNDS] [-w ROUNDS] [-l LAYOUT] [--sequential]\n"
           "\n"
           "Transforms complex numbers, and checks the transform.\n"
           "\n"
           "  -n POINTS     so many, a power of four [%ld]\n"
           "  -r ROUNDS     transform so many times, the result again each time [%ld]\n"
           "  -w ROUNDS     and so many times before the clock starts, so that all has been touched [%ld]\n"
           "  -l LAYOUT     a thread has 'columns' of the input and of the result, or rows in\n"
           "                'patches', one for each thread, or simply 'rows' [%s]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the transform passed its checks, 1 it did not, 2 bad arguments.\n",
           points, rounds, warm_up, layout);
}

/* ---- Numbers --------------------------------------------------------------------------------- */

struct complex {
    double re, im;
};

static size_t m, log_m; /* rows and columns, and their logarithm to base 2 */

/* exp(-2 pi i index / order) */
static struct complex root(size_t index, size_t order)
{
    double angle = -2.0 * 3.14159265358979323846 * ((double)index / (double)order);
    return (struct complex){cos(angle), sin(angle)};
}

static struct complex times(struct complex a, struct complex b)
{
    return (struct complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* The input: noise, so that all points of the output have about the same size. */
static struct complex input(size_t index)
{
    uint64_t re = scattered(2 * (uint64_t)index), im = scattered(2 * (uint64_t)index + 1);
    return (struct complex){(double)(re >> 11) * 0x1p-52 - 1.0, (double)(im >> 11) * 0x1p-52 - 1.0};
}

/* ---- The matrix ------------------------------------------------------------------------------ */

/*
 * m * m points: first those of thread 0, then those of thread 1, and so on. While rows are transformed, a
 * thread's points are its rows, cut into panels of columns; the rows of a panel follow each other. Before and
 * after that they may be its columns, row by row.
 */
static size_t threads, panels;
static bool by_columns;

/* Points of some rows and columns. The points of a row are contiguous; the next row starts `stride` points
 * later. */
struct patch {
    struct span rows, columns;
    struct complex *start;
    size_t stride;
};

/* A panel of a thread's rows. */
static struct patch panel_of(struct complex *matrix, size_t owner, size_t panel)
{
    struct span rows = share_of(m, owner, threads), columns = share_of(m, panel, panels);
    return (struct patch){rows, columns, matrix + rows.first * m + length_of(rows) * columns.first,
                          length_of(columns)};
}

/* The part of the rows of thread `owner` that thread `reader` transposes. */
static struct patch patch_of(struct complex *matrix, size_t owner, size_t reader)
{
    struct patch p = panel_of(matrix, owner, panels == 1 ? 0 : reader);
    struct span columns = share_of(m, reader, threads);
    p.start += columns.first - p.columns.first;
    p.columns = columns;
    return p;
}

/* The rows of a thread's columns that are the columns of its patch number `other`. */
static struct patch columns_of(struct complex *matrix, size_t owner, size_t other)
{
    struct span rows = share_of(m, other, threads), columns = share_of(m, owner, threads);
    return (struct patch){rows, columns, matrix + (columns.first * m + rows.first * length_of(columns)),
                          length_of(columns)};
}

/* ---- The transform of a row ------------------------------------------------------------------ */

/* The private state of a thread: two rows with separate real and imaginary parts, and the roots of unity
 * of each stage. Stage s has three tables of m / 4^(s + 1) roots. */
enum { MOST_STAGES = 8, FINE = 32 };

struct bench {
    double *re[2], *im[2];
    double *root_re[MOST_STAGES][3], *root_im[MOST_STAGES][3];
    struct complex *coarse; /* the m-th roots of unity, and the first m of the n-th */
    struct complex *fine;
    double *memory;
};

static void make_roots(struct bench *b, double *memory)
{
    size_t stage = 0;
    for (size_t length = m; length >= 4; length /= 4, stage++)
        for (size_t power = 0; power < 3; power++) {
            b->root_re[stage][power] = memory;
            b->root_im[stage][power] = memory + length / 4;
            memory += length / 2;
            for (size_t i = 0; i < length / 4; i++) {
                struct complex r = root((power + 1) * i, length);
                b->root_re[stage][power][i] = r.re;
                b->root_im[stage][power][i] = r.im;
            }
        }
    for (size_t i = 0; i < m; i++) {
        b->coarse[i] = root(i, m);
        b->fine[i] = root(i, m * m);
    }
}

static bool make_bench(struct bench *b)
{
    size_t doubles = 4 * m + 2 * m + 4 * m; /* rows; stages, at most 3/2 (1 + 1/4 + ...); roots */
    void *memory = NULL;
    if (posix_memalign(&memory, 64, doubles * sizeof(double)) != 0)
        return false;
    b->memory = memory;
    for (size_t i = 0; i < 2; i++) {
        b->re[i] = b->memory + 2 * i * m;
        b->im[i] = b->re[i] + m;
    }
    b->coarse = (struct complex *)(b->memory + 4 * m);
    b->fine = b->coarse + m;
    make_roots(b, b->memory + 8 * m);
    return true;
}

/* One stage of radix 4: takes the points p, p + quarter, ... of each of `step` interleaved sequences to
 * the points 4 p, 4 p + 1, ... */
static inline void butterflies(const double *restrict re, const double *restrict im,
                               double *restrict to_re, double *restrict to_im, size_t quarter,
                               size_t step, double *const roots_re[3], double *const roots_im[3])
{
    const size_t far = quarter * step;
    for (size_t p = 0; p < quarter; p++) {
        const double r1 = roots_re[0][p], i1 = roots_im[0][p], r2 = roots_re[1][p],
                     i2 = roots_im[1][p], r3 = roots_re[2][p], i3 = roots_im[2][p];
        const double *a_re = re + p * step, *a_im = im + p * step;
        double *b_re = to_re + 4 * p * step, *b_im = to_im + 4 * p * step;
        for (size_t q = 0; q < step; q++) {
            double even_re = a_re[q] + a_re[q + 2 * far], even_im = a_im[q] + a_im[q + 2 * far];
            double less_re = a_re[q] - a_re[q + 2 * far], less_im = a_im[q] - a_im[q + 2 * far];
            double odd_re = a_re[q + far] + a_re[q + 3 * far];
            double odd_im = a_im[q + far] + a_im[q + 3 * far];
            double turn_re = a_im[q + far] - a_im[q + 3 * far]; /* times -i */
            double turn_im = a_re[q + 3 * far] - a_re[q + far];
            double x1 = less_re + turn_re, y1 = less_im + turn_im;
            double x2 = even_re - odd_re, y2 = even_im - odd_im;
            double x3 = less_re - turn_re, y3 = less_im - turn_im;
            b_re[q] = even_re + odd_re;
            b_im[q] = even_im + odd_im;
            b_re[q + step] = x1 * r1 - y1 * i1;
            b_im[q + step] = x1 * i1 + y1 * r1;
            b_re[q + 2 * step] = x2 * r2 - y2 * i2;
            b_im[q + 2 * step] = x2 * i2 + y2 * r2;
            b_re[q + 3 * step] = x3 * r3 - y3 * i3;
            b_im[q + 3 * step] = x3 * i3 + y3 * r3;
        }
    }
}

/* The first stage, of one sequence. Here the loop runs over neighbours in p, so that it vectorises. */
static void first_butterflies(const double *restrict re, const double *restrict im,
                              double *restrict to_re, double *restrict to_im, size_t quarter,
                              double *const roots_re[3], double *const roots_im[3])
{
    const double *restrict r1 = roots_re[0], *restrict i1 = roots_im[0];
    const double *restrict r2 = roots_re[1], *restrict i2 = roots_im[1];
    const double *restrict r3 = roots_re[2], *restrict i3 = roots_im[2];
    for (size_t p = 0; p < quarter; p++) {
        double even_re = re[p] + re[p + 2 * quarter], even_im = im[p] + im[p + 2 * quarter];
        double less_re = re[p] - re[p + 2 * quarter], less_im = im[p] - im[p + 2 * quarter];
        double odd_re = re[p + quarter] + re[p + 3 * quarter];
        double odd_im = im[p + quarter] + im[p + 3 * quarter];
        double turn_re = im[p + quarter] - im[p + 3 * quarter];
        double turn_im = re[p + 3 * quarter] - re[p + quarter];
        double x1 = less_re + turn_re, y1 = less_im + turn_im;
        double x2 = even_re - odd_re, y2 = even_im - odd_im;
        double x3 = less_re - turn_re, y3 = less_im - turn_im;
        to_re[4 * p] = even_re + odd_re;
        to_im[4 * p] = even_im + odd_im;
        to_re[4 * p + 1] = x1 * r1[p] - y1 * i1[p];
        to_im[4 * p + 1] = x1 * i1[p] + y1 * r1[p];
        to_re[4 * p + 2] = x2 * r2[p] - y2 * i2[p];
        to_im[4 * p + 2] = x2 * i2[p] + y2 * r2[p];
        to_re[4 * p + 3] = x3 * r3[p] - y3 * i3[p];
        to_im[4 * p + 3] = x3 * i3[p] + y3 * r3[p];
    }
}

/* Transforms the row in re[0], im[0] by T. G. Stockham's method, which leaves the result in order. Returns
 * which of the two rows holds the result. */
static size_t transform_row(const struct bench *b)
{
    size_t at = 0, step = 1, stage = 0, length = m;
    for (; length >= 4; length /= 4, step *= 4, stage++, at = 1 - at) {
        double *const *re = b->root_re[stage], *const *im = b->root_im[stage];
        if (step == 1)
            first_butterflies(b->re[0], b->im[0], b->re[1], b->im[1], length / 4, re, im);
        else if (step == 4)
            butterflies(b->re[1], b->im[1], b->re[0], b->im[0], length / 4, 4, re, im);
        else
            butterflies(b->re[at], b->im[at], b->re[1 - at], b->im[1 - at], length / 4, step, re,
                        im);
    }
    if (length == 2) {
        const double *restrict re = b->re[at], *restrict im = b->im[at];
        double *restrict to_re = b->re[1 - at], *restrict to_im = b->im[1 - at];
        for (size_t q = 0; q < step; q++) {
            to_re[q] = re[q] + re[q + step];
            to_im[q] = im[q] + im[q + step];
            to_re[q + step] = re[q] - re[q + step];
            to_im[q + step] = im[q] - im[q + step];
        }
        at = 1 - at;
    }
    return at;
}

/* Multiplies the point of each column by exp(-2 pi i row column / n) / m. */
static void turn(const struct bench *b, size_t at, size_t row)
{
    double *restrict re = b->re[at], *restrict im = b->im[at];
    size_t block = m < FINE ? m : FINE;
    double fine_re[FINE], fine_im[FINE];
    for (size_t i = 0; i < block; i++) {
        size_t power = row * i; /* at most n */
        struct complex r = times(b->coarse[power / m], b->fine[power % m]);
        fine_re[i] = r.re;
        fine_im[i] = r.im;
    }
    for (size_t column = 0; column < m; column += block) {
        size_t power = row * column;
        struct complex c = times(b->coarse[power / m], b->fine[power % m]);
        c.re /= (double)m;
        c.im /= (double)m;
        for (size_t i = 0; i < block; i++) {
            double r_re = c.re * fine_re[i] - c.im * fine_im[i];
            double r_im = c.re * fine_im[i] + c.im * fine_re[i];
            double x = re[column + i], y = im[column + i];
            re[column + i] = x * r_re - y * r_im;
            im[column + i] = x * r_im + y * r_re;
        }
    }
}

static void take_row(const struct bench *b, struct complex *matrix, size_t row)
{
    for (size_t panel = 0; panel < panels; panel++) {
        struct patch p = panel_of(matrix, thread_number(), panel);
        const struct complex *restrict from = p.start + (row - p.rows.first) * p.stride;
        double *restrict re = b->re[0] + p.columns.first, *restrict im = b->im[0] + p.columns.first;
        for (size_t i = 0; i < length_of(p.columns); i++) {
            re[i] = from[i].re;
            im[i] = from[i].im;
        }
    }
}

static void put_row(const struct bench *b, size_t at, struct complex *matrix, size_t row)
{
    for (size_t panel = 0; panel < panels; panel++) {
        struct patch p = panel_of(matrix, thread_number(), panel);
        struct complex *restrict to = p.start + (row - p.rows.first) * p.stride;
        const double *restrict re = b->re[at] + p.columns.first;
        const double *restrict im = b->im[at] + p.columns.first;
        for (size_t i = 0; i < length_of(p.columns); i++)
            to[i] = (struct complex){re[i], im[i]};
    }
}

static void transform_rows(const struct bench *b, struct complex *matrix, bool turned)
{
    struct span rows = own_share(m);
    for (size_t row = rows.first; row < rows.end; row++) {
        take_row(b, matrix, row);
        size_t at = transform_row(b);
        if (turned)
            turn(b, at, row);
        put_row(b, at, matrix, row);
    }
}

/* ---- The transposes -------------------------------------------------------------------------- */

enum { TILE = 8, BLOCK = 64 }; /* in points: two cache lines, a quarter of a page */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Transposes some rows and columns: to[j][i] = from[i][j]. */
static void transpose_tile(const struct complex *from, size_t from_stride, struct complex *to,
                           size_t to_stride, size_t rows, size_t columns)
{
    if (rows == TILE && columns == TILE) {
        for (size_t j = 0; j < TILE; j++)
            for (size_t i = 0; i < TILE; i++)
                to[j * to_stride + i] = from[i * from_stride + j];
        return;
    }
    for (size_t j = 0; j < columns; j++)
        for (size_t i = 0; i < rows; i++)
            to[j * to_stride + i] = from[i * from_stride + j];
}

/* Announces that `count` rows of a contiguous patch, starting with row `first`, will be read soon. */
static void rows_soon(const struct patch *p, size_t first, size_t count)
{
    size_t rows = length_of(p->rows);
    if (panels != 1 && first < rows)
        read_soon(p->start + first * p->stride,
                  least(count, rows - first) * p->stride * sizeof(struct complex));
}

/* The number of rows of a patch to announce in advance: as many as travel while they are transposed. */
static size_t rows_ahead(const struct patch *p)
{
    size_t rows = ((size_t)2 << 20) / (p->stride * sizeof(struct complex));
    return rows / BLOCK * BLOCK + BLOCK;
}

/* Transposes a patch, to[j][i] = from[i][j], in blocks. Two blocks fit into the first-level cache. */
static void transpose_patch(struct patch from, struct patch to, bool travels)
{
    const size_t rows = length_of(from.rows), columns = length_of(from.columns);
    for (size_t i = 0; i < rows; i += BLOCK) {
        if (travels)
            rows_soon(&from, i + rows_ahead(&from), BLOCK);
        for (size_t j = 0; j < columns; j += BLOCK)
            for (size_t k = i; k < least(i + BLOCK, rows); k += TILE)
                for (size_t l = j; l < least(j + BLOCK, columns); l += TILE)
                    transpose_tile(from.start + k * from.stride + l, from.stride,
                                   to.start + l * to.stride + k, to.stride, least(TILE, rows - k),
                                   least(TILE, columns - l));
    }
}

/* Writes this thread's rows of `to` from the rows of all threads in `from`: its own patch first, while the
 * beginning of the next patch travels. */
static void transpose(struct complex *from, struct complex *to)
{
    size_t own = thread_number();
    for (size_t turn = 0; turn < threads; turn++) {
        size_t owner = (own + turn) % threads;
        if (turn + 1 < threads) {
            struct patch next = patch_of(from, (owner + 1) % threads, own);
            rows_soon(&next, 0, rows_ahead(&next));
        }
        transpose_patch(patch_of(from, owner, own), patch_of(to, own, owner), turn > 0);
    }
}

/* Writes this thread's rows of `to` from the input: from its own columns if threads have columns. */
static void transpose_input(struct complex *from, struct complex *to)
{
    if (!by_columns) {
        transpose(from, to);
        return;
    }
    size_t own = thread_number();
    for (size_t other = 0; other < threads; other++)
        transpose_patch(columns_of(from, own, other), patch_of(to, own, other), false);
}

/* Writes the result from all rows, or this thread's columns of it from its own rows. */
static void transpose_result(struct complex *from, struct complex *to)
{
    if (!by_columns) {
        transpose(from, to);
        return;
    }
    size_t own = thread_number();
    for (size_t other = 0; other < threads; other++)
        transpose_patch(patch_of(from, own, other), columns_of(to, own, other), false);
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

enum { SAMPLES = 8 };

/* The state that all threads share. */
struct shared {
    struct complex *matrices[2];
    struct sums {
        uint64_t checksum;
        double energy_before, energy_after; /* sums of squares */
        double error;                       /* the largest after an even number of transforms */
        struct complex samples[SAMPLES];    /* points of one transform, from the definition */
        struct complex found[SAMPLES];      /* the same points as computed */

    } *sums;
};

static double set_up;
static struct clocks elapsed;

/* Transforms from one matrix to the other; overwrites both. Only the transposes read points that other
 * threads have written, or overwrite points that others have read, so there is a barrier before each. */
static void transform(const struct bench *b, struct complex *from, struct complex *to)
{
    transpose_input(from, to);
    transform_rows(b, to, true);
    barrier();
    transpose(to, from);
    transform_rows(b, from, false);
    barrier();
    transpose_result(from, to);
    barrier(); /* before the next transform, or before the result is read */
}

/* Sets `p` to a patch of the points of the input or the result that a thread has. Returns false after the
 * last one. */
static bool nth_own_patch(struct complex *matrix, size_t index, struct patch *p)
{
    if (index >= (by_columns ? threads : panels))
        return false;
    size_t own = thread_number();
    *p = by_columns ? columns_of(matrix, own, index) : panel_of(matrix, own, index);
    return true;
}

/* Calls `visit` for each point that this thread has. */
static void visit_points(struct complex *matrix,
                         void (*visit)(size_t index, struct complex *point, struct sums *sums),
                         struct sums *sums)
{
    struct patch p;
    for (size_t index = 0; nth_own_patch(matrix, index, &p); index++)
        for (size_t row = p.rows.first; row < p.rows.end; row++) {
            struct complex *start = p.start + (row - p.rows.first) * p.stride;
            for (size_t column = p.columns.first; column < p.columns.end; column++)
                visit(row * m + column, start + (column - p.columns.first), sums);
        }
}

static void fill(size_t index, struct complex *point, struct sums *sums)
{
    *point = input(index);
    sums->energy_before += point->re * point->re + point->im * point->im;
}

static void clear(size_t index, struct complex *point, struct sums *sums)
{
    (void)index, (void)sums;
    *point = (struct complex){0.0, 0.0};
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* The index of the input point that is at `index` after an even number of transforms. Two transforms
 * reverse the order. */
static size_t returned(size_t index, long count)
{
    return count % 4 == 0 ? index : (m * m - index) % (m * m);
}

/* The number of transforms made before the result is checked. */
static long transforms(void)
{
    return warm_up + rounds;
}

/* That number if it is even, or the next one. */
static long even_transforms(void)
{
    return transforms() + transforms() % 2;
}

static void hold_against_input(size_t index, struct complex *point, struct sums *sums)
{
    struct complex should = input(returned(index, even_transforms()));
    double error = hypot(point->re - should.re, point->im - should.im);
    sums->error = error <= sums->error ? sums->error : error; /* a NaN replaces it too */
}

static void add_up(size_t index, struct complex *point, struct sums *sums)
{
    sums->checksum += fingerprint(2 * index, bits_of(point->re));
    sums->checksum += fingerprint(2 * index + 1, bits_of(point->im));
    sums->energy_after += point->re * point->re + point->im * point->im;
}

/* The indices of the points that are compared with the definition. */
static size_t sample_of(size_t sample)
{
    const size_t n = m * m, corners[] = {0, 1, m, m * m - 1};
    return sample < 4 ? corners[sample] : scattered(sample) % n;
}

/* Adds the contribution of this thread's share of the input to the samples, by the definition. */
static void add_samples(struct sums *sums)
{
    const size_t n = m * m;
    struct span own = own_share(n);
    for (size_t index = own.first; index < own.end; index++) {
        struct complex x = input(index);
        for (size_t sample = 0; sample < SAMPLES; sample++) {
            struct complex term = times(x, root(index * sample_of(sample) % n, n));
            sums->samples[sample].re += term.re / (double)m;
            sums->samples[sample].im += term.im / (double)m;
        }
    }
}

static void give_sums(const struct shared *s, const struct sums *own)
{
    lock(SUM_LOCK);
    s->sums->checksum += own->checksum;
    s->sums->energy_before += own->energy_before;
    s->sums->energy_after += own->energy_after;
    s->sums->error = own->error <= s->sums->error ? s->sums->error : own->error;
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        s->sums->samples[sample].re += own->samples[sample].re;
        s->sums->samples[sample].im += own->samples[sample].im;
    }
    unlock(SUM_LOCK);
}

/* Finds the sampled points after an odd number of transforms. */
static void find_samples(const struct shared *s, struct complex *matrix, long count)
{
    struct patch p;
    for (size_t index = 0; nth_own_patch(matrix, index, &p); index++)
        for (size_t sample = 0; sample < SAMPLES; sample++) {
            size_t point = returned(sample_of(sample), count - 1);
            size_t row = point / m - p.rows.first, column = point % m - p.columns.first;
            if (row < length_of(p.rows) && column < length_of(p.columns)) /* else: another patch */
                s->sums->found[sample] = p.start[row * p.stride + column];
        }
}

/* Checks the result and that of one more transform. One of the two comes from an even number of transforms
 * and must be the input again; the other must agree with the definition. Collective. */
static void verify(const struct shared *s, const struct bench *b, struct sums *own)
{
    long made = transforms();
    struct complex *last = s->matrices[made % 2], *next = s->matrices[1 - made % 2];
    visit_points(last, add_up, own);
    if (made % 2 == 0)
        visit_points(last, hold_against_input, own);
    else
        find_samples(s, last, made);
    barrier();
    transform(b, last, next);
    if (made % 2 == 0)
        find_samples(s, next, made + 1);
    else
        visit_points(next, hold_against_input, own);
    add_samples(own);
    give_sums(s, own);
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct sums own = {0};
    struct bench b;
    if (!make_bench(&b)) {
        fprintf(stderr, "%s: no memory for the roots of unity\n", program);
        exit(1);
    }
    double start = seconds();
    visit_points(s->matrices[0], fill, &own);
    visit_points(s->matrices[1], clear, &own);
    barrier();
    struct clocks begin = clocks();
    for (long made = 0; made < transforms(); made++) {
        if (made == warm_up)
            begin = clocks();
        transform(&b, s->matrices[made % 2], s->matrices[1 - made % 2]);
    }
    if (keeps_time()) {
        elapsed = since(begin);
        set_up = begin.wall - start;
    }
    verify(s, &b, &own);
    free(b.memory);
}

/* The allowed error of a point: rounding grows with the logarithm of n and with each transform. */
static double tolerance(void)
{
    return 1e-15 * (double)log_m * (double)even_transforms();
}

static bool check(const struct shared *s)
{
    const struct sums *sums = s->sums;
    if (!(sums->error <= tolerance()))
        return complain("after %ld transforms a point is off by %.3g", even_transforms(),
                        sums->error);
    if (!(fabs(sums->energy_after - sums->energy_before) <= 1e-11 * sums->energy_before))
        return complain("the sum of squares was %.17g and is %.17g", sums->energy_before,
                        sums->energy_after);
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        struct complex is = sums->found[sample], should = sums->samples[sample];
        double off = hypot(is.re - should.re, is.im - should.im);
        if (!(off <= 1e-15 * (double)m)) /* the rounding of a sum of n terms of about 1 / m */
            return complain("point %zu of the transform is %.17g %+.17g i and should be %.17g "
                            "%+.17g i",
                            sample_of(sample), is.re, is.im, should.re, should.im);
    }
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

/* Allocates a matrix. If patches are contiguous, the matrix is kept coherent in half patches, so that few
 * messages fetch a patch and one half is transposed while the other travels, but in units that fit into a
 * cache. Otherwise, or if a thread's rows do not end at a unit, the matrix has the job's page size. */
static struct complex *shared_matrix(void)
{
    const size_t bytes = m * m * sizeof(struct complex), half = bytes / threads / threads / 2;
    const size_t most = 512 << 10;
    bool is_even = (threads & (threads - 1)) == 0;
    return panels > 1 && is_even ? shared_in_units(bytes, half < most ? half : most)
                                 : shared_zeroed(bytes);
}

static bool share(struct shared *s)
{
    s->matrices[0] = shared_matrix();
    s->matrices[1] = shared_matrix();
    s->sums = shared_zeroed(sizeof *s->sums);
    return (s->matrices[0] != NULL && s->matrices[1] != NULL && s->sums != NULL) ||
           complain("no shared memory for two times %ld points: %s", points, strerror(errno));
}

static void report(const struct shared *s)
{
    double operations = 5.0 * (double)points * 2.0 * (double)log_m * (double)rounds;
    printf("points                   %ld\n", points);
    printf("transforms               %ld\n", rounds);
    printf("transforms before that   %ld\n", warm_up);
    printf("layout                   %s\n", layout);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("largest error            %.3g\n", s->sums->error);
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
    for (log_m = 2; log_m < 15 && 1L << (2 * log_m) < points; log_m++)
        ;
    m = (size_t)1 << log_m;
    threads = threads_in_all();
    bool in_rows = strcmp(layout, "rows") == 0;
    by_columns = strcmp(layout, "columns") == 0;
    panels = in_rows ? 1 : threads;
    if (1L << (2 * log_m) != points)
        return complain("-n takes a power of four, such as %ld, not %ld", 1L << (2 * log_m), points);
    if (!in_rows && !by_columns && strcmp(layout, "patches") != 0)
        return complain("-l takes 'columns', 'patches' or 'rows', not '%.40s'", layout);
    if (threads > m)
        return complain("%ld points are %zu rows, too few for %zu threads", points, m, threads);
    return true;
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("fft", &argc, &argv);
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
