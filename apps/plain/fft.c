/*
 * fft: one-dimensional complex Fourier transform in six steps (D. H. Bailey, 1990).
 *
 * The n points form a matrix of m = sqrt(n) rows. Each thread owns a block of rows of both matrices
 * and writes nothing else. A transform is: transpose, transform the rows, multiply by the twiddle
 * factors, transpose, transform the rows, transpose. A transpose reads a patch of every other
 * thread's rows, after a barrier. Read `transform` first. By default three transforms follow one
 * another, each of the result of the one before.
 */
#include "plain.h"

typedef struct {
    double re, im;
} complex_number;

enum { TILE = 8 };

static const struct program PROGRAM = {
    "fft", "points, a power of four", 16, 1L << 28, 1L << 20, 1L << 22, 3, 0,
};

static long m;                   /* rows, and columns */
static complex_number *x, *y;    /* m x m, shared */
static complex_number *twiddles; /* m x m, shared: w^(row column), w = exp(-2 pi i / n) */
static complex_number *roots;    /* m / 2, on each node: exp(-2 pi i k / m) */

static complex_number times(complex_number a, complex_number b)
{
    return (complex_number){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static complex_number root(long k, long of)
{
    const double angle = -2.0 * M_PI * (double)k / (double)of;
    return (complex_number){cos(angle), sin(angle)};
}

static complex_number input(long j)
{
    return (complex_number){uniform((uint64_t)(2 * j)) - 0.5, uniform((uint64_t)(2 * j + 1)) - 0.5};
}

/* Writes this thread's rows of `to` from the columns of `from`. */
static void transpose(complex_number *to, const complex_number *from)
{
    const long first = own_first(m), end = own_end(m);
    for (long rows = first; rows < end; rows += TILE)
        for (long columns = 0; columns < m; columns += TILE)
            for (long i = rows; i < rows + TILE && i < end; i++)
                for (long j = columns; j < columns + TILE && j < m; j++)
                    to[i * m + j] = from[j * m + i];
}

/* Transforms one row in place, scaled by 1 / sqrt(m). */
static void transform_row(complex_number *row)
{
    const double scale = 1.0 / sqrt((double)m);
    for (long i = 0, j = 0; i < m; i++) { /* j is i with its bits reversed */
        if (i < j) {
            complex_number other = row[i];
            row[i] = row[j], row[j] = other;
        }
        long bit = m / 2;
        for (; bit > 0 && (j & bit) != 0; bit /= 2)
            j -= bit;
        j += bit;
    }
    for (long half = 1; half < m; half *= 2)
        for (long start = 0; start < m; start += 2 * half)
            for (long k = 0; k < half; k++) {
                complex_number *a = &row[start + k], *b = a + half;
                const complex_number t = times(*b, roots[k * (m / 2 / half)]);
                *b = (complex_number){a->re - t.re, a->im - t.im};
                *a = (complex_number){a->re + t.re, a->im + t.im};
            }
    for (long i = 0; i < m; i++)
        row[i].re *= scale, row[i].im *= scale;
}

/* Transforms `from` into `to` and overwrites `from`. */
static void transform(complex_number *to, complex_number *from)
{
    const long first = own_first(m), end = own_end(m);
    transpose(to, from);
    for (long i = first; i < end; i++) {
        transform_row(to + i * m);
        for (long j = 0; j < m; j++)
            to[i * m + j] = times(to[i * m + j], twiddles[i * m + j]);
    }
    hiroba_barrier();
    transpose(from, to);
    for (long i = first; i < end; i++)
        transform_row(from + i * m);
    hiroba_barrier();
    transpose(to, from);
    hiroba_barrier();
}

static void initialise(void)
{
    const long first = init_first(m), end = init_end(m);
    for (long i = first; i < end; i++)
        for (long j = 0; j < m; j++) {
            x[i * m + j] = input(i * m + j);
            twiddles[i * m + j] = root(i * j, n);
        }
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++)
        transform(step % 2 == 0 ? y : x, step % 2 == 0 ? x : y);
    keep_times(start, ready);
}

/* The correct value of element k. Two transforms reverse the row; one more is a sum over the whole row. */
static complex_number should_be(long k)
{
    const long half_turns = steps / 2;
    if (steps % 2 == 0)
        return input(half_turns % 2 == 0 ? k : (n - k) % n);
    complex_number sum = {0.0, 0.0};
    for (long j = 0; j < n; j++) {
        const complex_number term = times(input(half_turns % 2 == 0 ? j : (n - j) % n), root(j * k % n, n));
        sum.re += term.re, sum.im += term.im;
    }
    return (complex_number){sum.re / sqrt((double)n), sum.im / sqrt((double)n)};
}

/* Checks some elements, and the sum of squares, which must equal that of the input. */
static bool check(const complex_number *result)
{
    const long samples = 8;
    double is = 0.0, should = 0.0;
    for (long s = 0; s < samples; s++) {
        const long k = (long)(mixed((uint64_t)(n + s)) % (uint64_t)n);
        const complex_number expected = should_be(k);
        if (!(hypot(result[k].re - expected.re, result[k].im - expected.im) <= 1e-9))
            return wrong("element %ld is (%.12g, %.12g) and should be (%.12g, %.12g)", k, result[k].re,
                         result[k].im, expected.re, expected.im);
    }
    for (long j = 0; j < n; j++) {
        const complex_number z = input(j);
        is += result[j].re * result[j].re + result[j].im * result[j].im;
        should += z.re * z.re + z.im * z.im;
    }
    return fabs(is - should) <= 1e-9 * should ||
           wrong("the sum of squares is %.17g and should be %.17g", is, should);
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    for (m = 1; m * m < n;)
        m *= 2;
    require(m * m == n, PROGRAM.counts);
    x = shared((size_t)n * sizeof *x);
    y = shared((size_t)n * sizeof *y);
    twiddles = shared((size_t)n * sizeof *twiddles);
    roots = private((size_t)m / 2 * sizeof *roots);
    for (long k = 0; k < m / 2; k++)
        roots[k] = root(k, m);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        const complex_number *result = steps % 2 == 0 ? x : y;
        right = check(result);
        for (long j = 0; j < n; j++)
            checksum = with_bits(with_bits(checksum, result[j].re), result[j].im);
    }
    return finish(right, checksum);
}
