/*
 * fft3d: the discrete Fourier transform of a cube of complex numbers, forward and back.
 *
 *     hiroba cc -O3 -march=native -o fft3d fft3d.c -lm
 *     hiroba run -n 4 ./fft3d -n 128
 *
 * Read `forward` first: with `inverse`, its mirror, it is the whole parallel program. The cube consists of
 * planes z of rows y. Each thread has some neighbouring planes, and transforms their rows and columns. The
 * third axis needs a point of every plane, so all data move between the two halves: each thread fetches its
 * rows y from all planes into a second cube, whose planes are y and whose rows are z, and transforms the
 * columns there. The program is about that transpose; one barrier before it is the only synchronisation. The
 * authors of SMS measured 64^3 points.
 *
 * Fitted to pages: pages are as long as what one thread reads of another's plane, so that the transpose needs
 * few messages. Rows are announced before they are read, so that they travel while others are transformed.
 * Only the node that reads the second cube writes it, so no page has two writers.
 *
 * The clock starts after a first round, which touches all memory for the first time. The cost of that (`-w
 * 0`) is part of the set-up, as in the NAS benchmarks.
 *
 * The contents of a plane do not depend on the thread that computes it, so the checksum is the same on any
 * number of nodes and threads.
 */

#include "common.h"

static long n = 64, rounds = 4, warm_up = 1;

static const struct option OPTIONS[] = {
    {"-n", "a number of points an edge", 8, 1024, &n, NULL},
    {"-r", "a number of rounds", 1, 10000, &rounds, NULL},
    {"-w", "a number of rounds", 0, 10000, &warm_up, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: fft3d [-n POINTS] [-r ROUNDS] [-w ROUNDS] [--sequential]\n"
           "\n"
           "Transforms a cube of complex numbers forward and back, and checks both.\n"
           "\n"
           "  -n POINTS     so many points an edge, a power of two from 8 to 1024 [%ld]\n"
           "  -r ROUNDS     forward and back so many times [%ld]\n"
           "  -w ROUNDS     and so many times before the clock starts, so that all has been touched [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the transforms passed their checks, 1 they did not, 2 bad arguments.\n",
           n, rounds, warm_up);
}

struct complex {
    double re, im;
};

/* ---- One axis -------------------------------------------------------------------------------- */

/* Number of lines that are transformed side by side, so that every loop vectorises without shuffles; the
 * longest line. */
enum { LANES = 8, POINTS_MAX = 1024 };

struct lines {
    double re[POINTS_MAX][LANES], im[POINTS_MAX][LANES];
};

enum direction { FORWARD, INVERSE };

static struct complex roots[POINTS_MAX]; /* exp(-2 pi i k / n) */
static size_t place_of[POINTS_MAX];      /* where the transform leaves point k of the spectrum */

/* Finds where `transform` leaves the points of the spectrum of the `length` points from `first` on. */
static void find_places(size_t first, size_t length, size_t point, size_t stride)
{
    if (length == 1) {
        place_of[point] = first;
        return;
    }
    size_t radix = length % 4 == 0 ? 4 : 2, part = length / radix;
    for (size_t r = 0; r < radix; r++)
        find_places(first + r * part, part, point + r * stride, stride * radix);
}

/* Fills the tables. Each node calls this. */
static void prepare(void)
{
    const double turn = 2.0 * 3.14159265358979323846 / (double)n;
    for (size_t k = 0; k < (size_t)n; k++)
        roots[k] = (struct complex){cos(turn * (double)k), -sin(turn * (double)k)};
    find_places(0, (size_t)n, 0, 1);
}

/* A butterfly of four points in place, followed by multiplication by w, w^2 and w^3 (Gentleman and Sande). */
static inline void butterfly(struct lines *x, size_t first, size_t part, const struct complex w[4])
{
    double *restrict re0 = x->re[first], *restrict im0 = x->im[first];
    double *restrict re1 = x->re[first + part], *restrict im1 = x->im[first + part];
    double *restrict re2 = x->re[first + 2 * part], *restrict im2 = x->im[first + 2 * part];
    double *restrict re3 = x->re[first + 3 * part], *restrict im3 = x->im[first + 3 * part];
    for (size_t l = 0; l < LANES; l++) {
        double even_re = re0[l] + re2[l], even_im = im0[l] + im2[l];
        double odd_re = re0[l] - re2[l], odd_im = im0[l] - im2[l];
        double sum_re = re1[l] + re3[l], sum_im = im1[l] + im3[l];
        double difference_re = im1[l] - im3[l], difference_im = re3[l] - re1[l]; /* times -i */
        double one_re = odd_re + difference_re, one_im = odd_im + difference_im;
        double two_re = even_re - sum_re, two_im = even_im - sum_im;
        double three_re = odd_re - difference_re, three_im = odd_im - difference_im;
        re0[l] = even_re + sum_re;
        im0[l] = even_im + sum_im;
        re1[l] = one_re * w[1].re - one_im * w[1].im;
        im1[l] = one_re * w[1].im + one_im * w[1].re;
        re2[l] = two_re * w[2].re - two_im * w[2].im;
        im2[l] = two_re * w[2].im + two_im * w[2].re;
        re3[l] = three_re * w[3].re - three_im * w[3].im;
        im3[l] = three_re * w[3].im + three_im * w[3].re;
    }
}

/* Transforms all lanes forward, in place. Afterwards the points of the spectrum lie at `place_of`. */
static void transform(struct lines *x)
{
    const size_t points = (size_t)n;
    size_t length = points;
    for (; length >= 4; length /= 4) {
        const size_t part = length / 4, step = points / length;
        for (size_t j = 0; j < part; j++) {
            const struct complex w[4] = {roots[0], roots[j * step], roots[2 * j * step],
                                         roots[3 * j * step]};
            for (size_t first = j; first < points; first += length)
                butterfly(x, first, part, w);
        }
    }
    if (length == 1)
        return;
    for (size_t i = 0; i < points; i += 2) {
        for (size_t l = 0; l < LANES; l++) {
            double re = x->re[i][l] - x->re[i + 1][l], im = x->im[i][l] - x->im[i + 1][l];
            x->re[i][l] += x->re[i + 1][l];
            x->im[i][l] += x->im[i + 1][l];
            x->re[i + 1][l] = re;
            x->im[i + 1][l] = im;
        }
    }
}

/* ---- A plane --------------------------------------------------------------------------------- */

/*
 * Transforms some columns of a plane. The inverse transform is the forward one with the real and the
 * imaginary parts exchanged before and after it. Multiplies the values by `scale`.
 */
static void transform_columns(struct complex *plane, size_t column, enum direction direction,
                              double scale, struct lines *x)
{
    const size_t points = (size_t)n;
    double (*re)[LANES] = direction == FORWARD ? x->re : x->im;
    double (*im)[LANES] = direction == FORWARD ? x->im : x->re;
    for (size_t i = 0; i < points; i++) {
        const struct complex *from = plane + i * points + column;
        for (size_t l = 0; l < LANES; l++) {
            re[i][l] = from[l].re;
            im[i][l] = from[l].im;
        }
    }
    transform(x);
    for (size_t i = 0; i < points; i++) {
        struct complex *to = plane + i * points + column;
        for (size_t l = 0; l < LANES; l++)
            to[l] = (struct complex){scale * re[place_of[i]][l], scale * im[place_of[i]][l]};
    }
}

/* Transforms some rows of a plane in the same way. */
static void transform_rows(struct complex *plane, size_t row, enum direction direction,
                           double scale, struct lines *x)
{
    const size_t points = (size_t)n;
    struct complex *rows = plane + row * points;
    double (*re)[LANES] = direction == FORWARD ? x->re : x->im;
    double (*im)[LANES] = direction == FORWARD ? x->im : x->re;
    for (size_t i = 0; i < points; i++) {
        for (size_t l = 0; l < LANES; l++) {
            re[i][l] = rows[l * points + i].re;
            im[i][l] = rows[l * points + i].im;
        }
    }
    transform(x);
    for (size_t i = 0; i < points; i++) {
        for (size_t l = 0; l < LANES; l++) {
            rows[l * points + i].re = scale * re[place_of[i]][l];
            rows[l * points + i].im = scale * im[place_of[i]][l];
        }
    }
}

static void transform_all_columns(struct complex *plane, enum direction direction, double scale,
                                  struct lines *x)
{
    for (size_t column = 0; column < (size_t)n; column += LANES)
        transform_columns(plane, column, direction, scale, x);
}

static void transform_all_rows(struct complex *plane, enum direction direction, double scale,
                               struct lines *x)
{
    for (size_t row = 0; row < (size_t)n; row += LANES)
        transform_rows(plane, row, direction, scale, x);
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* The state that all threads share: two cubes, [z][y][x] and [y][z][x]. */
struct shared {
    struct complex *by_z, *by_y;
    struct sums {
        uint64_t checksum;
        double energy;        /* of the spectrum */
        double error;         /* the largest error of a point that came back */
        uint64_t not_numbers; /* points that came back as NaN or infinite */
    } *sums;
};

static double set_up;
static struct clocks elapsed;
static size_t threads;

/*
 * Announces that this thread's rows of `count` planes of other threads will be read soon. Planes are counted
 * from the one after the thread's own, so that not all threads ask one node first.
 */
static void planes_soon(const struct complex *from, struct span own, size_t first, size_t count)
{
    const size_t points = (size_t)n, others = points - length_of(own);
    struct soon soon = {0};
    for (size_t i = first; i < first + count && i < others; i++)
        add_to_soon(&soon, from + ((own.end + i) % points * points + own.first) * points,
                    length_of(own) * points * sizeof *from);
    read_all_soon(&soon);
}

/* The number of planes to announce in advance: as many as may travel at once. */
static size_t planes_ahead(struct span own)
{
    size_t planes = ((size_t)4 << 20) / (length_of(own) * (size_t)n * sizeof(struct complex));
    return planes > 0 ? planes : 1;
}

/*
 * Copies row `plane` of all planes of one cube to plane `plane` of the other, own planes first. The first
 * plane fetches all rows of other threads that this thread needs, and announces them as it reads.
 */
static void gather(struct complex *to, const struct complex *from, struct span own, size_t plane)
{
    const size_t points = (size_t)n, ahead = planes_ahead(own);
    if (plane == own.first)
        planes_soon(from, own, 0, ahead);
    for (size_t i = 0; i < points; i++) {
        size_t row = (own.first + i) % points;
        if (plane == own.first && i >= length_of(own))
            planes_soon(from, own, i - length_of(own) + ahead, 1);
        memcpy(to + (plane * points + row) * points, from + (row * points + plane) * points,
               points * sizeof *to);
    }
}

static void forward(const struct shared *s, struct lines *x)
{
    const size_t points = (size_t)n;
    const struct span own = own_share(points);
    for (size_t z = own.first; z < own.end; z++) {
        transform_all_rows(s->by_z + z * points * points, FORWARD, 1.0, x);
        transform_all_columns(s->by_z + z * points * points, FORWARD, 1.0, x);
    }
    barrier();
    for (size_t y = own.first; y < own.end; y++) {
        gather(s->by_y, s->by_z, own, y);
        transform_all_columns(s->by_y + y * points * points, FORWARD, 1.0, x);
    }
}

static void inverse(const struct shared *s, struct lines *x)
{
    const size_t points = (size_t)n;
    const struct span own = own_share(points);
    const double scale = 1.0 / ((double)n * (double)n * (double)n);
    for (size_t y = own.first; y < own.end; y++) {
        transform_all_columns(s->by_y + y * points * points, INVERSE, 1.0, x);
        transform_all_rows(s->by_y + y * points * points, INVERSE, 1.0, x);
    }
    barrier();
    for (size_t z = own.first; z < own.end; z++) {
        gather(s->by_z, s->by_y, own, z);
        transform_all_columns(s->by_z + z * points * points, INVERSE, scale, x);
    }
}

/* The value of a point at the start, from its place in the cube: random, from -1/2 to 1/2. */
static struct complex original(size_t place)
{
    double re = (double)(scattered(2 * place) >> 11) * 0x1p-53;
    double im = (double)(scattered(2 * place + 1) >> 11) * 0x1p-53;
    return (struct complex){re - 0.5, im - 0.5};
}

/* Fills this thread's planes of the first cube, and touches its part of the second. */
static void fill(const struct shared *s)
{
    const size_t plane = (size_t)n * (size_t)n;
    const struct span own = own_share((size_t)n);
    for (size_t i = own.first * plane; i < own.end * plane; i++) {
        s->by_z[i] = original(i);
        s->by_y[i] = (struct complex){0.0, 0.0};
    }
}

static double square(struct complex value)
{
    return value.re * value.re + value.im * value.im;
}

/* Adds up this thread's part of the spectrum. */
static struct sums sum_of_spectrum(const struct shared *s)
{
    const size_t plane = (size_t)n * (size_t)n;
    const struct span own = own_share((size_t)n);
    struct sums sums = {0, 0.0, 0.0, 0};
    for (size_t i = own.first * plane; i < own.end * plane; i++) {
        sums.checksum += fingerprint(2 * i, bits_of(s->by_y[i].re));
        sums.checksum += fingerprint(2 * i + 1, bits_of(s->by_y[i].im));
        sums.energy += square(s->by_y[i]);
    }
    return sums;
}

/* Compares all points that the next thread has computed with the original. */
static void test(const struct shared *s, struct sums sums)
{
    const size_t plane = (size_t)n * (size_t)n, count = thread_count();
    const struct span other = share_of((size_t)n, (thread_number() + 1) % count, count);
    for (size_t i = other.first * plane; i < other.end * plane; i++) {
        struct complex is = s->by_z[i], should = original(i);
        double error = sqrt(square((struct complex){is.re - should.re, is.im - should.im}));
        sums.error = error > sums.error ? error : sums.error;
        sums.not_numbers += !(error < INFINITY);
    }
    lock(SUM_LOCK);
    s->sums->checksum += sums.checksum;
    s->sums->energy += sums.energy;
    s->sums->error = sums.error > s->sums->error ? sums.error : s->sums->error;
    s->sums->not_numbers += sums.not_numbers;
    unlock(SUM_LOCK);
}

/* Adds the time since `begin`, on the thread that keeps the time of its node. */
static void keep_time(struct clocks begin)
{
    if (!keeps_time())
        return;
    elapsed = together(elapsed, since(begin));
}

static void check_samples(const struct shared *s);

static void work(void *argument)
{
    const struct shared *s = argument;
    struct sums sums = {0, 0.0, 0.0, 0};
    struct lines *x = malloc(sizeof *x);
    double start = seconds();
    if (x == NULL)
        abort(); /* threads cannot leave a barrier that others wait at */
    fill(s);
    barrier();
    for (long round = 0; round < warm_up; round++) {
        forward(s, x);
        barrier();
        inverse(s, x);
        barrier();
    }
    if (keeps_time()) {
        set_up = seconds() - start;
        threads = thread_count();
    }
    for (long round = 0; round < rounds; round++) {
        struct clocks begin = clocks();
        forward(s, x);
        barrier();
        keep_time(begin);
        if (round == rounds - 1) {
            sums = sum_of_spectrum(s);
            if (thread_number() == 0)
                check_samples(s);
            barrier();
        }
        begin = clocks();
        inverse(s, x);
        barrier();
        keep_time(begin);
    }
    test(s, sums);
    free(x);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

enum { SAMPLES = 16 };

/* The sampled points of the spectrum: corners, and points spread over the cube. */
static void sample_at(size_t sample, size_t k[3])
{
    for (size_t axis = 0; axis < 3; axis++) {
        k[axis] = scattered(3 * sample + axis) % (uint64_t)n;
        if (sample < 8)
            k[axis] = (sample >> axis & 1) * (size_t)(n - 1);
    }
}

static struct complex plus_product(struct complex sum, struct complex a, struct complex b)
{
    sum.re += a.re * b.re - a.im * b.im;
    sum.im += a.re * b.im + a.im * b.re;
    return sum;
}

/* Compares some points of the spectrum with the sums that define them, over the original. */
static void check_samples(const struct shared *s)
{
    const size_t points = (size_t)n;
    /* Rounding grows with the square root of the number of terms; this leaves room for the logarithm. */
    const double bound = 1e-14 * (double)n * sqrt((double)n) * 10.0;
    struct complex sums[SAMPLES] = {{0.0, 0.0}};
    static struct complex row[POINTS_MAX];
    size_t k[3];
    for (size_t line = 0; line < points * points; line++) {
        size_t z = line / points, y = line % points;
        for (size_t i = 0; i < points; i++)
            row[i] = original(line * points + i);
        for (size_t sample = 0; sample < SAMPLES; sample++) {
            struct complex along = {0.0, 0.0};
            sample_at(sample, k);
            for (size_t i = 0; i < points; i++)
                along = plus_product(along, row[i], roots[k[0] * i % points]);
            sums[sample] = plus_product(sums[sample], along, roots[(k[1] * y + k[2] * z) % points]);
        }
    }
    for (size_t sample = 0; sample < SAMPLES; sample++) {
        sample_at(sample, k);
        struct complex is = s->by_y[(k[1] * points + k[2]) * points + k[0]], should = sums[sample];
        double error = sqrt(square((struct complex){is.re - should.re, is.im - should.im}));
        if (!(error <= bound))
            complain("the spectrum at %zu, %zu, %zu is %.17g%+.17gi and should be %.17g%+.17gi",
                     k[0], k[1], k[2], is.re, is.im, should.re, should.im);
    }
}

static bool check(const struct shared *s)
{
    const size_t points = (size_t)n * (size_t)n * (size_t)n;
    double energy = 0.0;
    if (complaint[0] != '\0')
        return false; /* a sampled point of the spectrum is wrong */
    if (s->sums->not_numbers != 0)
        return complain("%llu points came back as no number",
                        (unsigned long long)s->sums->not_numbers);
    const double bound = 1e-14 * (double)(warm_up + rounds);
    if (!(s->sums->error <= bound))
        return complain("a point came back that is off by %.3g, more than %.3g", s->sums->error, bound);
    for (size_t i = 0; i < points; i++)
        energy += square(original(i));
    double change = fabs(s->sums->energy / (double)points / energy - 1.0);
    return change <= 1e-11 || complain("the spectrum has an energy that is off by %.3g of itself "
                                       "(Parseval), more than 1e-11", change);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    size_t bytes = (size_t)n * (size_t)n * (size_t)n * sizeof(struct complex);
    /* What a node reads of another node's plane: its rows, which are contiguous. */
    size_t unit_bytes =
        power_below((size_t)n / (size_t)nodes * (size_t)n * sizeof(struct complex));
    s->by_z = shared_in_units(bytes, unit_bytes);
    s->by_y = shared_in_units(bytes, unit_bytes);
    s->sums = shared_zeroed(sizeof *s->sums);
    if (s->by_z == NULL || s->by_y == NULL || s->sums == NULL)
        return complain("no shared memory for two cubes of %ld^3 points: %s", n, strerror(errno));
    return true;
}

static void report(const struct shared *s)
{
    double points = (double)n * (double)n * (double)n;
    double operations = 2.0 * (double)rounds * 5.0 * points * log2(points);
    printf("points                   %ld x %ld x %ld\n", n, n, n);
    printf("rounds                   %ld\n", rounds);
    printf("rounds before that       %ld\n", warm_up);
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
    prepare();
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

static bool sensible(void)
{
    if ((n & (n - 1)) != 0)
        return complain("-n takes a power of two, not %ld", n);
    return nodes <= n || complain("%d nodes are more than the %ld planes of the cube; use fewer "
                                  "nodes (hiroba run -n)", nodes, n);
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("fft3d", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        sensible();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
