/*
 * mixed: memory that is used in four ways at once.
 *
 *     hiroba cc -O3 -march=native -o mixed mixed.c
 *     hiroba run -n 4 --protocol adaptive ./mixed
 *
 * Read `work` first: it is the whole parallel program. Each step has two phases. The shared memory is of four
 * kinds, and no single protocol suits all of them:
 *
 * field     each thread writes its own part again and again, and no other thread touches it. But the parts
 * are assigned one thread further than the nodes on which the memory is placed. counters  each thread writes
 * its own, which are next to those of other threads on the same pages. table     one thread writes it in one
 * phase; all others read it in the next. records   move from thread to thread with their locks; one thread
 * after another reads and writes them.
 *
 * Fitted to pages: nothing is fitted: each fixed protocol is wrong for some of the memory, on purpose. The
 * field lies on the wrong nodes, the counters share pages, and the records travel with their locks.
 * `--protocol adaptive` has to find out what each of the four kinds needs.
 *
 * All arithmetic is on integers, and sums are modulo 2^64. So no result depends on the number of threads, or
 * on the order in which they take a lock.
 */

#include "common.h"

static long cells = 1 << 19, steps = 60, table_length = 1 << 14, counter_count = 1 << 12;

static const struct option OPTIONS[] = {
    {"-n", "a number of cells of the field", 1, 1000000000, &cells, NULL},
    {"-s", "a number of steps", 0, 1000000, &steps, NULL},
    {"-e", "a number of entries of the table", 1, 100000000, &table_length, NULL},
    {"-c", "a number of counters", 1, 100000000, &counter_count, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: mixed [-n CELLS] [-s STEPS] [-e ENTRIES] [-c COUNTERS] [--sequential]\n"
           "\n"
           "Uses shared memory in four ways at once, and checks the result.\n"
           "\n"
           "  -n CELLS      so many cells, each written by one thread [%ld]\n"
           "  -s STEPS      so many steps [%ld]\n"
           "  -e ENTRIES    so many entries that one thread writes and all read [%ld]\n"
           "  -c COUNTERS   so many counters, written by all threads side by side [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the result passed its checks, 1 it did not, 2 bad arguments.\n",
           cells, steps, table_length, counter_count);
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* Words of a record: three pages of the smallest size. In each step VISITORS visitors visit every record;
 * the threads are the visitors in turn. */
enum { RECORDS = 4, RECORD_WORDS = 1536, VISITORS = 8 };

/* The state that all threads share. */
struct shared {
    uint64_t *field, *table, *counters, *records;
    uint64_t *checksum;
};

static struct clocks elapsed;
static size_t threads;

static uint64_t entry_of(long step, size_t index)
{
    return scattered((uint64_t)step * UINT64_C(0x100000001) + index);
}

static uint64_t next_cell(uint64_t cell, uint64_t entry) { return scattered(cell + entry); }

static uint64_t counted(long step, size_t counter) { return scattered((uint64_t)step ^ ~counter); }

/* The number that a visitor adds to a word of a record. */
static uint64_t brought(long step, size_t record, size_t visitor, size_t word)
{
    return scattered(scattered((uint64_t)step * RECORDS + record) ^ (visitor * RECORD_WORDS + word));
}

static void visit(uint64_t *record, long step, size_t number, size_t visitor)
{
    lock((unsigned)number);
    for (size_t word = 0; word < RECORD_WORDS; word++)
        record[word] += brought(step, number, visitor, word);
    unlock((unsigned)number);
}

static void step_on(const struct shared *s, long step, struct span own)
{
    const size_t me = thread_number(), count = thread_count();
    if (me == 0)
        for (size_t i = 0; i < (size_t)table_length; i++)
            s->table[i] = entry_of(step, i);
    for (size_t i = me; i < (size_t)counter_count; i += count)
        s->counters[i] += counted(step, i);
    for (size_t visitor = me; visitor < VISITORS; visitor += count)
        for (size_t number = 0; number < RECORDS; number++)
            visit(s->records + number * RECORD_WORDS, step, number, visitor);
    barrier();
    for (size_t i = own.first; i < own.end; i++)
        s->field[i] = next_cell(s->field[i], s->table[i % (size_t)table_length]);
    barrier();
}

/* The contribution of some words to the checksum. `first` counts the words of all kinds before them. */
static uint64_t sum_of(const uint64_t *words, struct span part, size_t first)
{
    uint64_t sum = 0;
    for (size_t i = part.first; i < part.end; i++)
        sum += fingerprint(first + i, words[i]);
    return sum;
}

static void work(void *argument)
{
    const struct shared *s = argument;
    const size_t me = thread_number(), count = thread_count();
    const struct span own = share_of((size_t)cells, (me + 1) % count, count);
    barrier();
    struct clocks start = clocks();
    for (long step = 0; step < steps; step++)
        step_on(s, step, own);
    if (keeps_time()) {
        elapsed = since(start);
        threads = count;
    }
    const size_t counters = (size_t)cells, records = counters + (size_t)counter_count;
    uint64_t sum = sum_of(s->field, own, 0) +
                   sum_of(s->counters, own_share((size_t)counter_count), counters) +
                   sum_of(s->records, own_share(RECORDS * RECORD_WORDS), records);
    lock(0);
    *s->checksum += sum;
    unlock(0);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static bool check_words(const char *what, size_t i, uint64_t is, uint64_t should)
{
    return is == should || complain("%s %zu is %016llx and should be %016llx", what, i,
                                    (unsigned long long)is, (unsigned long long)should);
}

/* Computes everything again with one thread, kind by kind, and compares. */
static bool check(const struct shared *s)
{
    for (size_t i = 0; i < (size_t)cells; i++) {
        uint64_t cell = 0;
        for (long step = 0; step < steps; step++)
            cell = next_cell(cell, entry_of(step, i % (size_t)table_length));
        if (!check_words("cell", i, s->field[i], cell))
            return false;
    }
    for (size_t i = 0; i < (size_t)counter_count; i++) {
        uint64_t counter = 0;
        for (long step = 0; step < steps; step++)
            counter += counted(step, i);
        if (!check_words("counter", i, s->counters[i], counter))
            return false;
    }
    for (size_t i = 0; i < RECORDS * RECORD_WORDS; i++) {
        uint64_t word = 0;
        for (long step = 0; step < steps; step++)
            for (size_t visitor = 0; visitor < VISITORS; visitor++)
                word += brought(step, i / RECORD_WORDS, visitor, i % RECORD_WORDS);
        if (!check_words("word of the records", i, s->records[i], word))
            return false;
    }
    for (size_t i = 0; i < (size_t)table_length && steps > 0; i++)
        if (!check_words("entry", i, s->table[i], entry_of(steps - 1, i)))
            return false;
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    s->field = shared_zeroed((size_t)cells * sizeof(uint64_t));
    s->table = shared_zeroed((size_t)table_length * sizeof(uint64_t));
    s->counters = shared_zeroed((size_t)counter_count * sizeof(uint64_t));
    s->records = shared_zeroed(RECORDS * RECORD_WORDS * sizeof(uint64_t));
    s->checksum = shared_zeroed(sizeof(uint64_t));
    if (s->field == NULL || s->table == NULL || s->counters == NULL || s->records == NULL ||
        s->checksum == NULL)
        return complain("no shared memory for %ld cells, %ld entries and %ld counters: %s", cells,
                        table_length, counter_count, strerror(errno));
    return true;
}

static void report(const struct shared *s)
{
    double updates = (double)cells * (double)steps;
    printf("cells                    %ld\n", cells);
    printf("entries                  %ld\n", table_length);
    printf("counters                 %ld\n", counter_count);
    printf("steps                    %ld\n", steps);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("checksum                 %016llx\n", (unsigned long long)*s->checksum);
    print_clocks(elapsed);
    printf("cells per second         %.4g\n", elapsed.wall > 0.0 ? updates / elapsed.wall : 0.0);
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
    int status = join("mixed", &argc, &argv);
    if (status != 0)
        return status;
    bool good = parse_options(OPTIONS, argc, argv, &help) && !help;
    if (!all_agree())
        return leave(2);
    if (good)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
