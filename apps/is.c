/*
 * is: the ranks of many small integers, the integer sort of the NAS Parallel Benchmarks.
 *
 *     hiroba cc -O3 -march=native -o is is.c -lm
 *     hiroba run -n 4 ./is -c A
 *
 * Read `rank` first: it is the whole parallel program. The rank of a key is the number of smaller or equal
 * keys (RNR-94-007, section 2.2.5 and 2.3.4). Each thread counts its share of the keys, and then ranks its
 * range of their values, for which it needs the counts of all other threads in that range. So each thread
 * leaves one piece of its counts for each other thread; after a barrier each adds up the pieces left for it.
 * Only the counts that another thread needs are shared, as bytes while they are small.
 *
 * Fitted to pages: each thread leaves what one other thread needs in one piece, in pages as long as that
 * piece, so that a piece travels in one message. Counts are stored in bytes while they fit, which makes
 * pieces short. One barrier separates leaving the pieces from reading them.
 *
 * The program ranks the keys ten times and changes two keys each time. Then it sorts the keys by their ranks
 * and checks the order. All numbers are integers, so the checksum is the same on any number of nodes.
 */

#include "common.h"
#include "kernels.h"

static const char *class_word = "S";

static const struct option OPTIONS[] = {
    {"-c", "a class", 0, 0, NULL, &class_word},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: is [-c CLASS] [--sequential]\n"
           "\n"
           "Ranks integers ten times, and checks their ranks and their order.\n"
           "\n"
           "  -c CLASS      S for 2^16 keys below 2^11, W for 2^20 below 2^16, A for 2^23 below 2^19 [%s]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the ranks are the official ones, 1 they are not, 2 bad arguments.\n",
           class_word);
}

enum { ITERATIONS = 10, TESTS = 5 };

/* The classes, with the official partial verification: the indices of the tested keys, and their ranks. */
struct problem {
    unsigned log2_keys, log2_values;
    size_t places[TESTS];
    int64_t ranks[TESTS];
    int rising, late; /* how many ranks grow as keys change, and from which iteration */
    int late_falling; /* from which iteration the others shrink */
};

static const struct problem PROBLEMS[] = {
    {16, 11, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, 3, 0, 0},
    {20, 16, {357773, 934767, 875723, 898999, 404505},
     {1249, 11698, 1039987, 1043896, 1048018}, 2, 2, 0},
    {23, 19, {2112377, 662041, 5336171, 3642833, 4250760},
     {104, 17523, 123928, 8288932, 8388264}, 3, 1, 1},
};

static const struct problem *problem;

static size_t key_count(void)
{
    return (size_t)1 << problem->log2_keys;
}

static size_t value_count(void)
{
    return (size_t)1 << problem->log2_values;
}

/* The official rank of a tested key in an iteration. */
static int64_t official_rank(int test, int iteration)
{
    if (test < problem->rising)
        return problem->ranks[test] + iteration - problem->late;
    return problem->ranks[test] - iteration + problem->late_falling;
}

/* ---- The parallel program -------------------------------------------------------------------- */

enum { SUM_LOCK };

/* The state that all threads share. */
struct shared {
    uint32_t *keys;
    uint32_t *pieces; /* [thread that counted][value]: room for the number of its keys with that value */
    struct piece *heads; /* [thread that counted][range]: the head of the piece at that range */
    uint32_t *ranks;  /* [value]: the number of smaller keys */
    uint32_t *sorted;
    struct sums {
        uint64_t checksum;
        uint64_t right;         /* tested keys with the official rank */
        uint64_t unsorted;      /* neighbours in the wrong order */
        uint64_t keys, sorted;  /* sums of fingerprints, independent of the order */
    } *sums;
};

/* The head of the counts that a thread leaves for one range of values. */
struct piece {
    uint32_t below;     /* the number of the thread's keys below the range */
    uint32_t is_narrow; /* true if the counts are bytes */
};

/* With this many heads, a thread's row of `heads` has pages of its own. */
enum { RANGES_MAX = 1024 };

/* The values of the tested keys. */
static uint32_t tested[TESTS];

static double set_up;
static struct clocks elapsed;
static size_t threads;

/* Returns true if all counts fit into bytes. */
static bool are_narrow(const uint32_t *counts, size_t length)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < length; i++)
        bits |= counts[i];
    return bits <= UINT8_MAX;
}

/* Leaves this thread's counts for the threads that need them. */
static void leave_pieces(const struct shared *s, const uint32_t *counts)
{
    const size_t count = thread_count(), thread = thread_number();
    uint32_t below = 0;
    for (size_t to = 0; to < count; to++) {
        struct span range = share_of(value_count(), to, count);
        const size_t length = length_of(range);
        const uint32_t *from = counts + range.first;
        uint32_t *piece = s->pieces + thread * value_count() + range.first;
        struct piece *head = &s->heads[thread * RANGES_MAX + to];
        const bool is_narrow = are_narrow(from, length);
        *head = (struct piece){below, is_narrow};
        for (size_t i = 0; i < length; i++)
            below += from[i];
        if (to == thread)
            continue;
        for (size_t i = 0; is_narrow && i < length; i++)
            ((uint8_t *)piece)[i] = (uint8_t)from[i];
        if (!is_narrow)
            memcpy(piece, from, length * sizeof *piece);
    }
}

/* Adds the counts that another thread has left for this thread's range to its own. */
static void add_piece(const struct shared *s, size_t from, struct span range, uint32_t *counts)
{
    const size_t length = length_of(range);
    const uint32_t *piece = s->pieces + from * value_count() + range.first;
    bool is_narrow = s->heads[from * RANGES_MAX + thread_number()].is_narrow;
    read_soon(piece, length * (is_narrow ? sizeof(uint8_t) : sizeof *piece));
    for (size_t i = 0; is_narrow && i < length; i++)
        counts[range.first + i] += ((const uint8_t *)piece)[i];
    for (size_t i = 0; !is_narrow && i < length; i++)
        counts[range.first + i] += piece[i];
}

/* Ranks all keys. `counts` is this thread's memory for one count for each value. Collective. */
static void rank(const struct shared *s, uint32_t *restrict counts)
{
    const size_t count = thread_count(), thread = thread_number();
    const struct span own = own_share(key_count()), range = own_share(value_count());
    memset(counts, 0, value_count() * sizeof *counts);
    for (size_t i = own.first; i < own.end; i++)
        counts[s->keys[i]]++;
    leave_pieces(s, counts);
    barrier();
    uint32_t smaller = 0;
    for (size_t i = 0; i < count; i++) {
        size_t from = (thread + i) % count; /* each starts with itself: not all ask one node */
        if (from != thread)
            add_piece(s, from, range, counts);
        smaller += s->heads[from * RANGES_MAX + thread].below;
    }
    for (size_t value = range.first; value < range.end; value++) {
        s->ranks[value] = smaller;
        smaller += counts[value];
    }
    barrier(); /* no thread counts again while another one still adds up */
}

/* Changes two keys, as each iteration does. Done by the threads that own the keys. */
static void change(const struct shared *s, int iteration)
{
    const struct span own = own_share(key_count());
    const size_t places[2] = {(size_t)iteration, (size_t)(iteration + ITERATIONS)};
    const uint32_t values[2] = {(uint32_t)iteration, (uint32_t)value_count() - (uint32_t)iteration};
    for (int i = 0; i < 2; i++)
        if (places[i] >= own.first && places[i] < own.end)
            s->keys[places[i]] = values[i];
}

/* Returns the number of tested keys that this thread has ranked and that have their official rank. */
static uint64_t test_ranks(const struct shared *s, int iteration)
{
    const struct span range = own_share(value_count());
    uint64_t right = 0;
    for (int test = 0; test < TESTS; test++)
        if (tested[test] >= range.first && tested[test] < range.end)
            right += s->ranks[tested[test]] == official_rank(test, iteration);
    return right;
}

/* Fills this thread's share of the keys: each is the mean of four numbers (section 2.3.4). */
static void fill(const struct shared *s)
{
    const struct span own = own_share(key_count());
    uint64_t state = 314159265 * jump(MULTIPLIER, 4 * (uint64_t)own.first) & MODULUS_MASK;
    for (size_t i = own.first; i < own.end; i++) {
        double sum = next_number(&state);
        for (int more = 0; more < 3; more++)
            sum += next_number(&state);
        s->keys[i] = (uint32_t)((double)(value_count() / 4) * sum);
    }
}

/* Sorts the keys whose values this thread has ranked. They go to places that no other thread writes. */
static void sort(const struct shared *s, uint32_t *next)
{
    const struct span range = own_share(value_count());
    memcpy(next + range.first, s->ranks + range.first, length_of(range) * sizeof *next);
    for (size_t i = 0; i < key_count(); i++) {
        uint32_t key = s->keys[i];
        if (i % 1024 == 0)
            read_soon(s->keys + i, 1024 * sizeof *s->keys);
        if (key >= range.first && key < range.end && next[key] < key_count())
            s->sorted[next[key]++] = key;
    }
}

/* Checks a share of the sorted keys and adds up the results. */
static void test(const struct shared *s, uint64_t right)
{
    const struct span own = own_share(key_count()), range = own_share(value_count());
    struct sums sums = {0, right, 0, 0, 0};
    for (size_t i = own.first; i < own.end; i++) {
        sums.unsorted += i > 0 && s->sorted[i - 1] > s->sorted[i];
        sums.keys += scattered(s->keys[i]);
        sums.sorted += scattered(s->sorted[i]);
    }
    for (size_t value = range.first; value < range.end; value++)
        sums.checksum += fingerprint(value, s->ranks[value]);
    lock(SUM_LOCK);
    s->sums->checksum += sums.checksum;
    s->sums->right += sums.right;
    s->sums->unsorted += sums.unsorted;
    s->sums->keys += sums.keys;
    s->sums->sorted += sums.sorted;
    unlock(SUM_LOCK);
}

static void work(void *argument)
{
    const struct shared *s = argument;
    uint32_t *counts = malloc(value_count() * sizeof *counts);
    uint64_t right = 0;
    double start = seconds();
    if (counts == NULL)
        abort(); /* threads cannot leave a barrier that others wait at */
    fill(s);
    barrier();
    if (keeps_time())
        for (int i = 0; i < TESTS; i++)
            tested[i] = s->keys[problem->places[i]];
    change(s, 1);
    rank(s, counts); /* not measured: the first touch of each page belongs to the set-up */
    struct clocks begin = clocks();
    for (int iteration = 1; iteration <= ITERATIONS; iteration++) {
        change(s, iteration);
        rank(s, counts);
        right += test_ranks(s, iteration);
    }
    if (keeps_time()) {
        elapsed = since(begin);
        set_up = begin.wall - start;
        threads = thread_count();
    }
    sort(s, counts);
    barrier();
    test(s, right);
    free(counts);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static bool check(const struct shared *s)
{
    if (s->sums->right != ITERATIONS * TESTS)
        return complain("%llu of %d tested keys have their official ranks",
                        (unsigned long long)s->sums->right, ITERATIONS * TESTS);
    if (s->sums->unsorted != 0)
        return complain("%llu keys are greater than the next when sorted",
                        (unsigned long long)s->sums->unsorted);
    return s->sums->keys == s->sums->sorted || complain("the sorted keys are not the keys");
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s, size_t ranges)
{
    const size_t unit_bytes = power_below(value_count() / (size_t)nodes); /* of a piece of bytes */
    s->keys = shared_zeroed(key_count() * sizeof *s->keys);
    s->pieces = shared_in_units(ranges * value_count() * sizeof *s->pieces, unit_bytes);
    s->heads = shared_zeroed(ranges * RANGES_MAX * sizeof *s->heads);
    s->ranks = shared_zeroed(value_count() * sizeof *s->ranks);
    s->sorted = shared_zeroed(key_count() * sizeof *s->sorted);
    s->sums = shared_zeroed(sizeof *s->sums);
    if (s->keys == NULL || s->pieces == NULL || s->heads == NULL || s->ranks == NULL ||
        s->sorted == NULL || s->sums == NULL)
        return complain("no shared memory for %zu keys: %s", key_count(), strerror(errno));
    return true;
}

static void report(const struct shared *s)
{
    double keys = (double)ITERATIONS * (double)key_count();
    printf("class                    %s\n", class_word);
    printf("keys                     2^%u below 2^%u\n", problem->log2_keys, problem->log2_values);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("official ranks           %llu of %d\n", (unsigned long long)s->sums->right,
           ITERATIONS * TESTS);
    printf("checksum                 %016llx\n", (unsigned long long)s->sums->checksum);
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("keys per second          %.4g\n", elapsed.wall > 0.0 ? keys / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    size_t ranges = threads_in_all();
    if (ranges > RANGES_MAX)
        complain("%zu threads are more than the %d that have a range of values each; use fewer "
                 "(hiroba run -n, -t)", ranges, RANGES_MAX);
    if (!all_agree())
        return 2;
    share(&s, ranges);
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
    int status = join("is", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help) {
        int class = class_of(class_word);
        problem = class < 0 ? NULL : &PROBLEMS[class];
    }
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
