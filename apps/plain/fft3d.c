/*
 * fft3d: a diffusion equation in a box by three-dimensional Fourier transforms, as in the NAS
 * benchmark FT.
 *
 * The n x n x 32 points are stored plane by plane. A thread transforms along x and y in its block
 * of planes, and along z in its block of the rows of all planes, so between the two it reads the
 * points that other threads have written. One transform gives the spectrum; each step damps the spectrum and
 * transforms it back. A barrier follows each half of a transform. Read `work` first.
 */
#include "plain.h"

typedef struct {
    double re, im;
} complex_number;

enum { DEPTH = 32, LONGEST = 2048 };

static const struct program PROGRAM = {
    "fft3d", "points along x and y, a power of two", 2, LONGEST, 128, 256, 4, 0,
};

static complex_number *u, *v;         /* [z][y][x], shared: the spectrum, and a step's state */
static complex_number roots[LONGEST]; /* exp(-2 pi i k / LONGEST), on each node */

static complex_number times(complex_number a, complex_number b)
{
    return (complex_number){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static complex_number input(long place)
{
    return (complex_number){uniform((uint64_t)(2 * place)), uniform((uint64_t)(2 * place + 1))};
}

/* exp(-2 pi i k / length), or its conjugate. */
static complex_number root(long k, long length, bool back)
{
    const complex_number w = roots[k % length * (LONGEST / length)];
    return (complex_number){w.re, back ? -w.im : w.im};
}

/* The factor by which wave number k of `length` decays in a step: exp(-alpha k^2), k from -length / 2. */
static double decay(long k, long length)
{
    const double wave = (double)(k < length / 2 ? k : k - length);
    return exp(-1e-4 * wave * wave);
}

/* Transforms numbers that are `stride` apart. The transform back also divides by their number. */
static void transform(complex_number *line, long length, long stride, bool back)
{
    complex_number buffer[LONGEST];
    for (long i = 0, j = 0; i < length; i++) { /* j is i with its bits reversed */
        buffer[j] = line[i * stride];
        long bit = length / 2;
        for (; bit > 0 && (j & bit) != 0; bit /= 2)
            j -= bit;
        j += bit;
    }
    for (long half = 1; half < length; half *= 2)
        for (long start = 0; start < length; start += 2 * half)
            for (long k = 0; k < half; k++) {
                complex_number *a = &buffer[start + k], *b = a + half;
                const complex_number t = times(*b, root(k, 2 * half, back));
                *b = (complex_number){a->re - t.re, a->im - t.im};
                *a = (complex_number){a->re + t.re, a->im + t.im};
            }
    const double scale = back ? 1.0 / (double)length : 1.0;
    for (long i = 0; i < length; i++)
        line[i * stride] = (complex_number){buffer[i].re * scale, buffer[i].im * scale};
}

/* Transforms along x and y in the thread's planes. */
static void transform_planes(complex_number *a, bool back)
{
    const long first = own_first(DEPTH), end = own_end(DEPTH);
    for (long z = first; z < end; z++) {
        for (long y = 0; y < n; y++)
            transform(a + (z * n + y) * n, n, 1, back);
        for (long x = 0; x < n; x++)
            transform(a + z * n * n + x, n, n, back);
    }
    hiroba_barrier();
}

/* Transforms along z in the thread's rows of every plane. */
static void transform_depth(complex_number *a, bool back)
{
    const long first = own_first(n), end = own_end(n);
    for (long y = first; y < end; y++)
        for (long x = 0; x < n; x++)
            transform(a + y * n + x, DEPTH, n * n, back);
    hiroba_barrier();
}

/* Lets the spectrum decay, and copies it, in the thread's rows of every plane. */
static void evolve(void)
{
    const long first = own_first(n), end = own_end(n);
    double along_x[LONGEST];
    for (long x = 0; x < n; x++)
        along_x[x] = decay(x, n);
    for (long z = 0; z < DEPTH; z++)
        for (long y = first; y < end; y++) {
            const double along_yz = decay(y, n) * decay(z, DEPTH);
            complex_number *from = u + (z * n + y) * n, *to = v + (z * n + y) * n;
            for (long x = 0; x < n; x++) {
                const double factor = along_yz * along_x[x];
                to[x] = from[x] = (complex_number){from[x].re * factor, from[x].im * factor};
            }
        }
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    const long first = init_first(DEPTH), end = init_end(DEPTH);
    for (long place = first * n * n; place < end * n * n; place++)
        u[place] = input(place);
    hiroba_barrier();
    double ready = hiroba_wtime();
    transform_planes(u, false);
    transform_depth(u, false);
    for (long step = 0; step < steps; step++) {
        evolve();
        transform_depth(v, true);
        transform_planes(v, true);
    }
    keep_times(start, ready);
}

/* The sum that defines element (x, y, z) of the spectrum, or of the last state. */
static complex_number should_be(long x, long y, long z, bool state)
{
    complex_number sum = {0.0, 0.0};
    for (long k = 0; k < DEPTH; k++)
        for (long j = 0; j < n; j++) {
            const complex_number w = times(root(j * y, n, state), root(k * z, DEPTH, state));
            for (long i = 0; i < n; i++) {
                const long place = (k * n + j) * n + i;
                const complex_number term =
                    times(state ? u[place] : input(place), times(w, root(i * x, n, state)));
                sum.re += term.re, sum.im += term.im;
            }
        }
    const double factor =
        state ? 1.0 / (double)(DEPTH * n * n)
              : pow(decay(x, n) * decay(y, n) * decay(z, DEPTH), (double)steps);
    return (complex_number){sum.re * factor, sum.im * factor};
}

static bool check(void)
{
    const long samples = 4;
    const double size = sqrt((double)(DEPTH * n * n));
    for (long s = 0; s < 2 * samples; s++) {
        const bool state = s % 2 == 1;
        const long place = (long)(mixed((uint64_t)(n + s)) % (uint64_t)(DEPTH * n * n));
        const complex_number should = should_be(place % n, place / n % n, place / n / n, state);
        const complex_number is = state ? v[place] : u[place];
        if (!(hypot(is.re - should.re, is.im - should.im) <= 1e-10 * (state ? 1.0 : size)))
            return wrong("element %ld of the %s is (%.12g, %.12g) and should be (%.12g, %.12g)", place,
                         state ? "state" : "spectrum", is.re, is.im, should.re, should.im);
    }
    return true;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    require((n & (n - 1)) == 0, PROGRAM.counts);
    for (long k = 0; k < LONGEST; k++) {
        const double angle = -2.0 * M_PI * (double)k / LONGEST;
        roots[k] = (complex_number){cos(angle), sin(angle)};
    }
    u = shared((size_t)(DEPTH * n * n) * sizeof *u);
    v = shared((size_t)(DEPTH * n * n) * sizeof *v);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long place = 0; place < DEPTH * n * n; place++)
            checksum = with_bits(with_bits(checksum, v[place].re), v[place].im);
    }
    return finish(right, checksum);
}
