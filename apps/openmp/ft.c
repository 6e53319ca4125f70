/* Heat in a periodic box, by Fourier transforms in three dimensions: one forward, then for each step the
 * transformed field decays and is transformed back. Usage: ft [T|S|W|A]. Every value is computed by the same
 * operations whichever thread does it, so the output does not depend on the number of threads. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double re, im;
} Complex;

/* Columns that are transformed together, so that whole cache lines are used. */
enum { COLUMNS = 8, SAMPLES = 1024 };

static const double PI = 3.14159265358979323846;

static int nx, ny, nz, steps;
static Complex *field, *spectrum;
static Complex *roots;
static int longest;

static size_t at(int x, int y, int z) {
    return ((size_t)z * (size_t)ny + (size_t)y) * (size_t)nx + (size_t)x;
}

static double random_number(uint64_t word) {
    word = (word ^ word >> 31) * 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 29) * 0xbf58476d1ce4e5b9u;
    return (double)((word ^ word >> 32) >> 11) * 0x1p-53;
}

/* Makes `COLUMNS` transforms of `length` points, in `from` and `to` by turns. Returns where the result is. */
static Complex *transform(int length, int sign, Complex *from, Complex *to) {
    for (int half = length / 2, done = 1; half >= 1; half /= 2, done *= 2) {
        for (int group = 0; group < half; group++) {
            Complex root = roots[(size_t)group * (size_t)(longest / (2 * half))];
            root.im *= sign;
            for (int place = 0; place < done; place++) {
                const Complex *low = from + (size_t)(group * done + place) * COLUMNS;
                const Complex *high = low + (size_t)(half * done) * COLUMNS;
                Complex *even = to + (size_t)(2 * group * done + place) * COLUMNS;
                Complex *odd = even + (size_t)done * COLUMNS;
                for (int column = 0; column < COLUMNS; column++) {
                    Complex a = low[column], b = high[column];
                    Complex difference = {a.re - b.re, a.im - b.im};
                    even[column] = (Complex){a.re + b.re, a.im + b.im};
                    odd[column] = (Complex){difference.re * root.re - difference.im * root.im,
                                            difference.re * root.im + difference.im * root.re};
                }
            }
        }
        Complex *other = from;
        from = to;
        to = other;
    }
    return from;
}

/* Transforms lines of `length` points, `stride` apart, of which `COLUMNS` begin `next` apart. */
static void lines(Complex *first, int length, size_t stride, size_t next, int sign, Complex *buffers) {
    for (int point = 0; point < length; point++)
        for (int column = 0; column < COLUMNS; column++)
            buffers[point * COLUMNS + column] = first[(size_t)point * stride + (size_t)column * next];
    Complex *result = transform(length, sign, buffers, buffers + (size_t)longest * COLUMNS);
    for (int point = 0; point < length; point++)
        for (int column = 0; column < COLUMNS; column++)
            first[(size_t)point * stride + (size_t)column * next] = result[point * COLUMNS + column];
}

/* In all threads of a team. */
static void transform_box(Complex *box, int sign, Complex *buffers) {
#pragma omp for schedule(static)
    for (int z = 0; z < nz; z++) {
        for (int y = 0; y < ny; y += COLUMNS)
            lines(box + at(0, y, z), nx, 1, (size_t)nx, sign, buffers);
        for (int x = 0; x < nx; x += COLUMNS)
            lines(box + at(x, 0, z), ny, (size_t)nx, 1, sign, buffers);
    }
#pragma omp for schedule(static)
    for (int y = 0; y < ny; y++)
        for (int x = 0; x < nx; x += COLUMNS)
            lines(box + at(x, y, 0), nz, (size_t)nx * (size_t)ny, 1, sign, buffers);
}

static double square_of_frequency(int place, int length) {
    int frequency = place < length / 2 ? place : place - length;
    return (double)frequency * frequency;
}

/* The field of a step from the spectrum at the beginning, not yet transformed back. */
static void decay(int step) {
    const double rate = 4e-6 * PI * PI;
    double scale = 1.0 / ((double)nx * ny * nz);
#pragma omp for schedule(static)
    for (int z = 0; z < nz; z++)
        for (int y = 0; y < ny; y++)
            for (int x = 0; x < nx; x++) {
                double square = square_of_frequency(x, nx) + square_of_frequency(y, ny) + square_of_frequency(z, nz);
                double factor = exp(-rate * square * step) * scale;
                Complex old = spectrum[at(x, y, z)];
                field[at(x, y, z)] = (Complex){old.re * factor, old.im * factor};
            }
}

static Complex begin(size_t place) {
    return (Complex){random_number(2 * place + 1), random_number(2 * place + 2)};
}

int main(int argc, char **argv) {
    char class = argc > 1 ? argv[1][0] : 'S';
    const struct {
        char class;
        int nx, ny, nz, steps;
    } sizes[] = {{'T', 16, 16, 16, 3}, {'S', 64, 64, 64, 6}, {'W', 128, 128, 32, 6}, {'A', 256, 256, 128, 6}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].class == class)
            nx = sizes[i].nx, ny = sizes[i].ny, nz = sizes[i].nz, steps = sizes[i].steps;
    if (!nx) {
        fprintf(stderr, "usage: ft [T|S|W|A], got '%s'\n", argv[1]);
        return 2;
    }
    size_t points = (size_t)nx * (size_t)ny * (size_t)nz;
    longest = nx > nz ? nx : nz;
    field = malloc(points * sizeof *field);
    spectrum = malloc(points * sizeof *spectrum);
    roots = malloc((size_t)longest * sizeof *roots);
    if (!field || !spectrum || !roots)
        return 3;
    for (int i = 0; i < longest; i++)
        roots[i] = (Complex){cos(2 * PI * i / longest), sin(2 * PI * i / longest)};
    double worst = 0;
    Complex mean = {0, 0}, first_mean = {0, 0};
#pragma omp parallel
    {
        Complex *buffers = malloc(2 * COLUMNS * (size_t)longest * sizeof *buffers);
#pragma omp for schedule(static)
        for (int z = 0; z < nz; z++)
            for (size_t place = at(0, 0, z); place < at(0, 0, z + 1); place++)
                spectrum[place] = begin(place);
        transform_box(spectrum, -1, buffers);
        for (int step = 0; step <= steps; step++) {
            decay(step);
            transform_box(field, 1, buffers);
#pragma omp single
            {
                Complex sum = {0, 0};
                mean = (Complex){0, 0};
                for (size_t i = 1; i <= SAMPLES; i++) {
                    Complex sample = field[i * 7919 % points];
                    sum.re += sample.re;
                    sum.im += sample.im;
                }
                for (size_t place = 0; place < points; place++) {
                    mean.re += field[place].re / (double)points;
                    mean.im += field[place].im / (double)points;
                }
                if (step == 0)
                    first_mean = mean;
                printf("step %d sum %.10f %.10f\n", step, sum.re, sum.im);
            }
            if (step == 0) {
                /* Nothing has decayed: the field must be what it was before both transforms. */
#pragma omp for schedule(static) reduction(max : worst)
                for (int z = 0; z < nz; z++)
                    for (size_t place = at(0, 0, z); place < at(0, 0, z + 1); place++) {
                        Complex was = begin(place);
                        worst = fmax(worst, fabs(field[place].re - was.re) + fabs(field[place].im - was.im));
                    }
            }
        }
        free(buffers);
    }
    /* Heat spreads, and none is lost. */
    double lost = fabs(mean.re - first_mean.re) + fabs(mean.im - first_mean.im);
    int is_right = worst < 1e-12 && lost < 1e-12;
    printf("%d x %d x %d: %s\n", nx, ny, nz, is_right ? "verified" : "wrong");
    return !is_right;
}
