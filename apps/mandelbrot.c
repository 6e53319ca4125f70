/*
 * mandelbrot: a square of the Mandelbrot set, whose parts are handed out under locks.
 *
 *     hiroba cc -O3 -march=native -o mandelbrot mandelbrot.c -lm
 *     hiroba run -n 4 ./mandelbrot -o mandelbrot.png
 *
 * Read `compute` first: it is the whole parallel program. The square is cut into parts of some rows. Some
 * parts take a hundred times as long as others, so they cannot be assigned in advance. Each thread has a
 * queue of parts whose points are in its node's memory (see queues.h); when the queue is empty, the thread
 * takes the last parts of other queues. The size, the place and the number of parts are those of the second
 * program that the authors of SMS measured: 4096 x 4096 points of 0.3 < x < 0.4, 0.5 < y < 0.6 in 512 parts.
 * Their program had one queue and iterated z^2 - c, which -c minus selects.
 *
 * Fitted to pages: pages are about as long as a part of the picture, and a thread first takes the parts that
 * lie on its own node, so most stores stay local. A queue for each thread replaces one common queue, whose
 * lock and page would travel for each part.
 *
 * The value of a point does not depend on the thread that computes it, so the checksum is the same on any
 * number of nodes, with --sequential, and in the form without Hiroba (see common.h).
 */

#include "common.h"
#include "picture.h"
#include "queues.h"

static const double X_FIRST = 0.3, Y_FIRST = 0.5, EDGE = 0.1;

/* The values of the command line's options. */
static long n = 4096, parts = 512, limit = 1000;
static const char *picture_path = NULL, *sign_word = "plus";
static double sign = 1.0; /* of c */

static const struct option OPTIONS[] = {
    {"-n", "a number of points an edge", 1, 32768, &n, NULL},
    {"-p", "a number of parts", 1, 1000000, &parts, NULL},
    {"-i", "a number of iterations", 1, 100000000, &limit, NULL},
    {"-c", "plus or minus", 0, 0, NULL, &sign_word},
    {"-o", "the name of a picture", 0, 0, NULL, &picture_path},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: mandelbrot [-n POINTS] [-p PARTS] [-i ITERATIONS] [-c SIGN] [-o FILE.png] "
           "[--sequential]\n"
           "\n"
           "Computes how fast the points 0.3 < x < 0.4, 0.5 < y < 0.6 escape, and checks the result.\n"
           "\n"
           "  -n POINTS      so many points an edge [%ld]\n"
           "  -p PARTS       in so many parts, which are handed out one by one [%ld]\n"
           "  -i ITERATIONS  points that have not escaped after so many belong to the set [%ld]\n"
           "  -c SIGN        plus for z^2 + c, minus for z^2 - c, which seldom escapes here [%s]\n"
           "  -o FILE.png    write a picture (by node 0)\n"
           "  --sequential   one thread, without Hiroba\n"
           "  -h, --help     print this help\n"
           "\n"
           "Exit status: 0 the result passed its checks, 1 it did not, 2 bad arguments.\n",
           n, parts, limit, sign_word);
}

/* ---- The set --------------------------------------------------------------------------------- */

/* The value of a point that belongs to the set. Other points have a value above 0; 0 means not computed. */
static const float INSIDE = -1.0f;

/* Points that are computed side by side, so that the loop vectorises. */
enum { LANES = 8 };

/* Iterations between two checks whether a point has escaped. */
enum { STRIDE = 16 };

/* The square of the escape radius: far enough out that the fraction of an iteration looks smooth. */
static const double ESCAPED2 = 65536.0;

static double x_of(size_t column)
{
    return sign * (X_FIRST + EDGE * ((double)column + 0.5) / (double)n);
}

static double y_of(size_t row)
{
    return sign * (Y_FIRST + EDGE * ((double)row + 0.5) / (double)n);
}

/* The number of iterations that z -> z^2 + c takes to escape, with a fraction that varies smoothly with c. */
static float smooth(double count, double norm2)
{
    return count >= (double)limit ? INSIDE : (float)(count + 2.0 - log2(0.5 * log2(norm2)));
}

/* Computes the values of LANES points of a row. */
static void iterate(const double x[LANES], double y, float value[LANES])
{
    double zx[LANES] = {0}, zy[LANES] = {0}, count[LANES] = {0};
    bool some_stay = true;
    for (long done = 0; done < limit && some_stay; done += STRIDE) {
        long end = done + STRIDE < limit ? done + STRIDE : limit;
        for (long i = done; i < end; i++) {
            for (size_t lane = 0; lane < LANES; lane++) {
                double x2 = zx[lane] * zx[lane], y2 = zy[lane] * zy[lane];
                double next_x = x2 - y2 + x[lane], next_y = 2.0 * zx[lane] * zy[lane] + y;
                bool stays = x2 + y2 <= ESCAPED2;
                zx[lane] = stays ? next_x : zx[lane];
                zy[lane] = stays ? next_y : zy[lane];
                count[lane] = stays ? count[lane] + 1.0 : count[lane];
            }
        }
        some_stay = false;
        for (size_t lane = 0; lane < LANES; lane++)
            some_stay |= zx[lane] * zx[lane] + zy[lane] * zy[lane] <= ESCAPED2;
    }
    for (size_t lane = 0; lane < LANES; lane++)
        value[lane] = smooth(count[lane], zx[lane] * zx[lane] + zy[lane] * zy[lane]);
}

static void compute_row(size_t row, float *values)
{
    for (size_t column = 0; column < (size_t)n; column += LANES) {
        double x[LANES];
        float value[LANES];
        for (size_t lane = 0; lane < LANES; lane++) /* the last ones may lie outside */
            x[lane] = x_of(column + lane);
        iterate(x, y_of(row), value);
        for (size_t lane = 0; lane < LANES && column + lane < (size_t)n; lane++)
            values[column + lane] = value[lane];
    }
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* The numbers of locks: one of the sums, then those of the queues. */
enum { SUM_LOCK, QUEUE_LOCK };

/* The state that all threads share. */
struct shared {
    float *values;            /* of the points, row by row */
    struct queues queues;     /* of parts */
    struct parts taken;       /* for each thread: how often it took each part, one byte a part */
    struct sums {
        uint64_t checksum;
        uint64_t inside, without; /* points of the set; points without a value */
        uint64_t parts_most;    /* the most parts that one thread computed */
    } *sums;
};

static struct clocks elapsed;
static size_t threads;

static void compute_part(const struct shared *s, size_t part)
{
    struct span rows = share_of((size_t)n, part, (size_t)parts);
    for (size_t row = rows.first; row < rows.end; row++)
        compute_row(row, s->values + row * (size_t)n);
}

static uint64_t compute(const struct shared *s)
{
    uint64_t mine = 0;
    unsigned char *times = part_of(s->taken, thread_number());
    for (struct span taken; take(s->queues, &taken);) {
        for (size_t part = taken.first; part < taken.end; part++) {
            times[part]++;
            compute_part(s, part);
        }
        mine += length_of(taken);
    }
    return mine;
}

/* Adds up this thread's share of the points, which are not those that it has computed. */
static void add_up(const struct shared *s, uint64_t parts_computed)
{
    struct span rows = own_share((size_t)n);
    struct sums own = {0, 0, 0, parts_computed};
    for (size_t row = rows.first; row < rows.end; row++) {
        for (size_t column = 0; column < (size_t)n; column++) {
            size_t point = row * (size_t)n + column;
            float value = s->values[point];
            own.checksum += fingerprint(point, bits_of((double)value));
            own.inside += value == INSIDE;
            own.without += !(value > 0.0f || value == INSIDE);
        }
    }
    lock(SUM_LOCK);
    s->sums->checksum += own.checksum;
    s->sums->inside += own.inside;
    s->sums->without += own.without;
    s->sums->parts_most = own.parts_most > s->sums->parts_most ? own.parts_most : s->sums->parts_most;
    unlock(SUM_LOCK);
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct span own = own_share((size_t)parts);
    fill_queue(s->queues, own);
    for (size_t part = own.first; part < own.end; part++) { /* no point has a value yet */
        struct span rows = share_of((size_t)n, part, (size_t)parts);
        memset(s->values + rows.first * (size_t)n, 0,
               length_of(rows) * (size_t)n * sizeof *s->values);
    }
    barrier();
    struct clocks start = clocks();
    uint64_t mine = compute(s);
    barrier();
    if (keeps_time())
        elapsed = since(start);
    add_up(s, mine);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

enum { ROWS = 16, POINTS = 4096 };

/* Compares rows with this thread's own computation, in a buffer of one row. */
static bool check_rows(const struct shared *s, float *own)
{
    size_t samples = (size_t)n < ROWS ? (size_t)n : ROWS;
    for (size_t sample = 0; sample < samples; sample++) {
        size_t row = sample * (size_t)(n - 1) / (samples > 1 ? samples - 1 : 1);
        compute_row(row, own);
        for (size_t column = 0; column < (size_t)n; column++)
            if (own[column] != s->values[row * (size_t)n + column])
                return complain("the point in row %zu, column %zu is %.9g and should be %.9g", row,
                                column, (double)s->values[row * (size_t)n + column],
                                (double)own[column]);
    }
    return true;
}

/* A point's value by the textbook's method, with more digits. */
static float plainly(double x, double y)
{
    long double zx = 0.0L, zy = 0.0L;
    long count = 0;
    for (; count < limit && zx * zx + zy * zy <= (long double)ESCAPED2; count++) {
        long double next = zx * zx - zy * zy + (long double)x;
        zy = 2.0L * zx * zy + (long double)y;
        zx = next;
    }
    return smooth((double)count, (double)(zx * zx + zy * zy));
}

/*
 * Compares points spread over the square with the textbook's method. Rounding grows from step to step: for
 * points that stay longer than this many steps, only the fact that they stay is compared.
 */
static bool check_points(const struct shared *s)
{
    const float long_stay = 100.0f;
    for (uint64_t sample = 0; sample < POINTS; sample++) {
        size_t row = scattered(2 * sample) % (uint64_t)n;
        size_t column = scattered(2 * sample + 1) % (uint64_t)n;
        float is = s->values[row * (size_t)n + column], should = plainly(x_of(column), y_of(row));
        bool stays = is == INSIDE || is > long_stay;
        bool should_stay = should == INSIDE || should > long_stay;
        if (!(stays && should_stay) && !(fabsf(is - should) < 0.01f))
            return complain("the point in row %zu, column %zu is %.9g and should be %.9g", row,
                            column, (double)is, (double)should);
    }
    return true;
}

static bool check(const struct shared *s)
{
    for (size_t part = 0; part < (size_t)parts; part++) {
        unsigned times = 0;
        for (size_t thread = 0; thread < threads; thread++)
            times += ((unsigned char *)part_of(s->taken, thread))[part];
        if (times != 1)
            return complain("part %zu was handed out %u times, not once", part, times);
    }
    if (s->sums->without != 0)
        return complain("%llu points were not computed", (unsigned long long)s->sums->without);
    float *own = malloc((size_t)n * sizeof *own);
    bool good = own != NULL ? check_rows(s, own) : complain("no memory for a row of %ld points", n);
    free(own);
    return good && check_points(s);
}

/* ---- Colours --------------------------------------------------------------------------------- */

/* Colours from far outside to close to the set, in sRGB; the set itself is nearly black. */
static const double PALETTE[][3] = {
    {0.02, 0.04, 0.13}, {0.07, 0.16, 0.42}, {0.15, 0.45, 0.72}, {0.66, 0.88, 0.94},
    {1.00, 0.97, 0.82}, {0.98, 0.72, 0.23}, {0.73, 0.28, 0.10}, {0.22, 0.05, 0.12},
};
enum { COLOURS = sizeof PALETTE / sizeof PALETTE[0] };

static struct light palette(size_t colour)
{
    const double *rgb = PALETTE[colour % COLOURS];
    return (struct light){as_light(rgb[0]), as_light(rgb[1]), as_light(rgb[2])};
}

static struct light colour(const void *data, size_t row, size_t column)
{
    const struct shared *s = data;
    /* The rows of a picture go down; the y axis goes up. */
    float value = s->values[((size_t)n - 1 - row) * (size_t)n + column];
    if (value == INSIDE)
        return (struct light){0.0005, 0.0008, 0.0025};
    /* Escape times grow without bound towards the set; their logarithm spreads the colours. */
    double place = 2.6 * log2(fmax((double)value, 1.0)) - 7.0;
    place = place < 0.0 ? 0.0 : place;
    double below = floor(place);
    return mixed(palette((size_t)below), palette((size_t)below + 1), place - below);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    /* One thread writes a part at once, and others read it much later, so it travels as a whole. */
    size_t part_bytes = (size_t)n / (size_t)parts * (size_t)n * sizeof *s->values;
    s->values = shared_in_units((size_t)n * (size_t)n * sizeof *s->values, power_below(part_bytes));
    s->queues = shared_queues(threads, QUEUE_LOCK);
    s->taken = shared_parts(threads, (size_t)parts);
    s->sums = shared_zeroed(sizeof *s->sums);
    if (s->values == NULL || s->queues.all.start == NULL || s->taken.start == NULL || s->sums == NULL)
        return complain("no shared memory for %ld x %ld points: %s", n, n, strerror(errno));
    return true;
}

static void report(const struct shared *s)
{
    double points = (double)n * (double)n;
    printf("points                   %ld x %ld\n", n, n);
    printf("parts                    %ld\n", parts);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("in the set               %.4f %%\n", 100.0 * (double)s->sums->inside / points);
    printf("most parts of a thread   %llu\n", (unsigned long long)s->sums->parts_most);
    printf("checksum                 %016llx\n", (unsigned long long)s->sums->checksum);
    print_clocks(elapsed);
    printf("points per second        %.4g\n", elapsed.wall > 0.0 ? points / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    threads = threads_in_all();
    share(&s);
    if (!all_agree())
        return 1;
    on_all_threads(work, &s);
    elapsed = most_of(elapsed);
    if (node == 0) {
        report(&s);
        if (check(&s))
            printf("checks                   passed\n");
        if (picture_path != NULL)
            write_picture(picture_path, (size_t)n, colour, &s);
    }
    return all_agree() ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("mandelbrot", &argc, &argv);
    if (status != 0)
        return status;
    bool good = parse_options(OPTIONS, argc, argv, &help) && !help;
    if (good && strcmp(sign_word, "plus") != 0 && strcmp(sign_word, "minus") != 0)
        good = complain("-c takes plus or minus, not '%.40s'", sign_word);
    sign = strcmp(sign_word, "minus") == 0 ? -1.0 : 1.0;
    if (good && picture_path != NULL && node == 0)
        can_write(picture_path);
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
