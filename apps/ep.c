/*
 * ep: pairs of Gaussian deviates, the "embarrassingly parallel" kernel of the NAS Parallel Benchmarks.
 *
 *     hiroba cc -O3 -march=native -o ep ep.c -lm
 *     hiroba run -n 4 ./ep -c A
 *
 * Read `tabulate` first; `work` is the whole parallel program. The kernel draws pairs of uniform numbers,
 * turns those in the unit circle into Gaussian ones (Marsaglia's polar method), and counts how many fall into
 * each square ring around the origin (RNR-94-007, section 2.2.1). The sequence of numbers can be entered at
 * any place, so it is cut into batches. Each thread draws its own batches, and takes some from a thread that
 * falls behind. Node 0 adds the sums of the batches in their order, so the result has the same bits on any
 * number of nodes and threads.
 *
 * Fitted to pages: only the sums of the batches and the queues are shared, and each queue has pages of its
 * own (`queues.h`). A thread takes many batches at once, because the lock of a queue can cost a message. A
 * queue stays with its thread until another thread runs out of work, unlike a common counter.
 */

#include "common.h"
#include "kernels.h"
#include "queues.h"

static const char *class_word = "S";

static const struct option OPTIONS[] = {
    {"-c", "a class", 0, 0, NULL, &class_word},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: ep [-c CLASS] [--sequential]\n"
           "\n"
           "Draws pairs of Gaussian deviates, and checks their sums and counts.\n"
           "\n"
           "  -c CLASS      S for 2^24 pairs, W for 2^25, A for 2^28 [%s]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the result is the official one, 1 it is not, 2 bad arguments.\n",
           class_word);
}

enum { RINGS = 10 };

/* The classes, with the official results: the sums, accurate to a relative 1e-8, and the counts. */
struct problem {
    unsigned log2_pairs;
    double sum_x, sum_y;
    uint64_t counts[RINGS];
};

static const struct problem PROBLEMS[] = {
    {24, -3.247834652034740e3, -6.958407078382297e3,
     {6140517, 5865300, 1100361, 68546, 1648, 17}},
    {25, -2.863319731645753e3, -6.320053679109499e3,
     {12281576, 11729692, 2202726, 137368, 3371, 36}},
    {28, -4.295875165629892e3, -1.580732573678431e4,
     {98257395, 93827014, 17611549, 1110028, 26536, 245}},
};

static const double BOUND = 1e-8; /* RNR-94-007, section 2.2.1 */

static const struct problem *problem;

/* ---- The kernel ------------------------------------------------------------------------------ */

static const uint64_t SEED = 271828183;

/* Pairs in a batch, and in the part of it that is computed at once and fits into the first-level cache. */
enum { BATCH = 1 << 16, PART = 1 << 10, LANES = 8 };

enum { LINE = 64 }; /* bytes of a line of a cache, and of the widest vectors */

/* The sums of a batch of pairs. */
struct batch {
    double sum_x, sum_y;
    uint64_t counts[RINGS];
};

/* Draws the next numbers of LANES sequences side by side. */
static void draw(uint64_t states[LANES], double numbers[2 * PART])
{
    const uint64_t far = jump(MULTIPLIER, LANES);
    for (size_t i = 0; i < 2 * PART; i += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            numbers[i + lane] = 2.0 * ((double)(int64_t)states[lane] * 0x1p-46) - 1.0;
            states[lane] = states[lane] * far & MODULUS_MASK;
        }
    }
}

/* Keeps the pairs in the unit circle and the squares of their distances. Returns the number of pairs kept. */
static size_t keep(const double numbers[2 * PART], double x[PART], double y[PART],
                   double squares[PART])
{
    size_t kept = 0;
    for (size_t i = 0; i < PART; i++) {
        double pair_x = numbers[2 * i], pair_y = numbers[2 * i + 1];
        double square = pair_x * pair_x + pair_y * pair_y;
        x[kept] = pair_x; /* the next pair overwrites one outside: no unpredictable branch */
        y[kept] = pair_y;
        squares[kept] = square;
        kept += square <= 1.0;
    }
    return kept;
}

/* Draws a batch and adds it up. */
static void tabulate(size_t number, struct batch *batch)
{
    uint64_t states[LANES];
    _Alignas(LINE) double numbers[2 * PART], x[PART], y[PART], scale[PART];
    struct batch sums = {0.0, 0.0, {0}};
    states[0] = SEED * jump(MULTIPLIER, 2 * BATCH * (uint64_t)number + 1) & MODULUS_MASK;
    for (size_t lane = 1; lane < LANES; lane++)
        states[lane] = states[lane - 1] * MULTIPLIER & MODULUS_MASK;
    for (size_t part = 0; part < BATCH; part += PART) {
        draw(states, numbers);
        size_t kept = keep(numbers, x, y, scale);
        for (size_t i = 0; i < kept; i++)
            scale[i] = -2.0 * log(scale[i]) / scale[i];
        for (size_t i = 0; i < kept; i++) {
            double factor = sqrt(scale[i]);
            x[i] *= factor;
            y[i] *= factor;
        }
        for (size_t i = 0; i < kept; i++) {
            size_t ring = (size_t)fmax(fabs(x[i]), fabs(y[i]));
            sums.counts[ring < RINGS ? ring : RINGS - 1]++;
            sums.sum_x += x[i];
            sums.sum_y += y[i];
        }
    }
    *batch = sums;
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* The state that all threads share. */
struct shared {
    struct batch *batches;
    struct queues queues; /* of batches */
};

enum { QUEUE_LOCK };

static struct clocks elapsed;
static size_t threads;

static size_t batch_count(void)
{
    return ((size_t)1 << problem->log2_pairs) / BATCH;
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct span own = own_share(batch_count());
    for (size_t number = own.first; number < own.end; number++)
        s->batches[number] = (struct batch){0.0, 0.0, {0}};
    fill_queue(s->queues, own);
    barrier();
    struct clocks begin = clocks();
    for (struct span taken; take(s->queues, &taken);)
        for (size_t number = taken.first; number < taken.end; number++)
            tabulate(number, &s->batches[number]);
    barrier();
    if (keeps_time()) {
        elapsed = since(begin);
        threads = thread_count();
    }
}

static struct batch total(const struct shared *s)
{
    struct batch sums = {0.0, 0.0, {0}};
    for (size_t number = 0; number < batch_count(); number++) {
        sums.sum_x += s->batches[number].sum_x;
        sums.sum_y += s->batches[number].sum_y;
        for (size_t ring = 0; ring < RINGS; ring++)
            sums.counts[ring] += s->batches[number].counts[ring];
    }
    return sums;
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static uint64_t checksum(const struct batch *sums)
{
    uint64_t sum = fingerprint(0, bits_of(sums->sum_x)) + fingerprint(1, bits_of(sums->sum_y));
    for (size_t ring = 0; ring < RINGS; ring++)
        sum += fingerprint(2 + ring, sums->counts[ring]);
    return sum;
}

static bool check_sum(const char *name, double is, double should)
{
    return fabs((is - should) / should) <= BOUND ||
           complain("the sum of %s is %.15e and should be %.15e", name, is, should);
}

static bool check(const struct batch *sums)
{
    for (size_t ring = 0; ring < RINGS; ring++)
        if (sums->counts[ring] != problem->counts[ring])
            return complain("%llu pairs are in ring %zu, and %llu should be",
                            (unsigned long long)sums->counts[ring], ring,
                            (unsigned long long)problem->counts[ring]);
    return check_sum("x", sums->sum_x, problem->sum_x) &&
           check_sum("y", sums->sum_y, problem->sum_y);
}

/* ---- The program ----------------------------------------------------------------------------- */

static void report(const struct batch *sums)
{
    double pairs = (double)batch_count() * BATCH;
    uint64_t inside = 0;
    for (size_t ring = 0; ring < RINGS; ring++)
        inside += sums->counts[ring];
    printf("class                    %s\n", class_word);
    printf("pairs                    2^%u\n", problem->log2_pairs);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("Gaussian pairs           %llu\n", (unsigned long long)inside);
    printf("sums                     %.15e %.15e\n", sums->sum_x, sums->sum_y);
    printf("checksum                 %016llx\n", (unsigned long long)checksum(sums));
    print_clocks(elapsed);
    printf("pairs per second         %.4g\n", elapsed.wall > 0.0 ? pairs / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s = {shared_zeroed(batch_count() * sizeof *s.batches),
                       shared_queues(threads_in_all(), QUEUE_LOCK)};
    if (s.batches == NULL || s.queues.all.start == NULL)
        complain("no shared memory for %zu batches: %s", batch_count(), strerror(errno));
    if (!all_agree())
        return 1;
    on_all_threads(work, &s);
    elapsed = most_of(elapsed);
    if (node == 0) {
        struct batch sums = total(&s);
        report(&sums);
        if (check(&sums))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

static void choose(void)
{
    int class = class_of(class_word);
    if (class < 0)
        return;
    problem = &PROBLEMS[class];
    if ((size_t)nodes > batch_count())
        complain("%d nodes are more than the %zu batches of class %s; use fewer nodes "
                 "(hiroba run -n)", nodes, batch_count(), class_word);
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("ep", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        choose();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
