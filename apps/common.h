/*
 * What the example programs have in common: the machine that they run on, their command line and their
 * verdict.
 *
 * Each program is one source that compiles in three forms:
 *
 *     hiroba cc -O3 -o jacobi jacobi.c -lm               threads of all nodes (with --sequential: none)
 *     cc -O3 -DSEQUENTIAL -o jacobi jacobi.c -lm         one thread, without Hiroba
 *     cc -O3 -DOPENMP -fopenmp -o jacobi jacobi.c -lm    threads of one process
 *
 * All forms do the same arithmetic in the same order wherever the order affects a result, so their checksums
 * are equal. Everything in which the three forms differ is in this file.
 */
#ifndef HIROBA_APPS_COMMON_H
#define HIROBA_APPS_COMMON_H

#define _POSIX_C_SOURCE 200809L /* in addition to C11: clock_gettime, posix_memalign, pread */

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(OPENMP)
#include <omp.h>
#elif !defined(SEQUENTIAL)
#include <hiroba.h>
#endif

/* ---- The machine ----------------------------------------------------------------------------- */

static const char *program; /* the name that starts each message */
static bool alone = false;  /* --sequential: nothing below calls Hiroba or OpenMP */
static int node = 0, nodes = 1;

/* Allocates zeroed memory that all threads share. Collective. Returns NULL and sets errno if there is
 * none. */
static inline void *shared_zeroed(size_t bytes)
{
#if !defined(SEQUENTIAL) && !defined(OPENMP)
    if (!alone)
        return hiroba_alloc(bytes);
#endif
    void *memory = NULL; /* aligned like Hiroba's memory, so that loops run at the same speed */
    errno = posix_memalign(&memory, 4096, bytes);
    return errno == 0 ? memset(memory, 0, bytes) : NULL;
}

/*
 * Like `shared_zeroed`, but kept coherent in units of a power of two of bytes: about as many as one thread
 * reads of another thread's memory at once. Collective. Units below 4 KiB become 4 KiB; units above 2 MiB
 * become 2 MiB.
 */
static inline void *shared_in_units(size_t bytes, size_t unit_bytes)
{
#if !defined(SEQUENTIAL) && !defined(OPENMP)
    const size_t least = 4096, most = 2 << 20;
    hiroba_options options = {0};
    options.page_bytes = unit_bytes < least ? least : unit_bytes > most ? most : unit_bytes;
    if (!alone)
        return hiroba_alloc_with(bytes, &options);
#endif
    (void)unit_bytes;
    return shared_zeroed(bytes);
}

/* Returns the greatest power of two that is not greater than `bytes`, or 1. */
static inline size_t power_below(size_t bytes)
{
    size_t power = 1;
    while (power <= bytes / 2)
        power *= 2;
    return power;
}

/* A part of memory for each thread, on the thread's node and in units of its own. The thread writes it;
 * others read all of it. */
struct parts {
    char *start;
    size_t bytes; /* from the start of one part to the start of the next */
};

/* Allocates parts of at least `bytes` bytes for `count` threads. Collective. `start` is NULL if there is
 * no memory. */
static inline struct parts shared_parts(size_t count, size_t bytes)
{
    size_t unit = 4096;
    while (unit < bytes && unit < 2 << 20)
        unit *= 2;
    bytes = (bytes + unit - 1) / unit * unit;
    return (struct parts){shared_in_units(count * bytes, unit), bytes};
}

static inline void *part_of(struct parts parts, size_t thread)
{
    return parts.start + thread * parts.bytes;
}

/* Waits for all threads when called inside `on_all_threads`, and for all nodes outside. */
static inline void barrier(void)
{
#if defined(OPENMP)
    if (!alone) {
#pragma omp barrier
    }
#elif !defined(SEQUENTIAL)
    if (!alone)
        hiroba_barrier();
#endif
}

enum { LOCKS = 1024 };
#if defined(OPENMP)
static omp_lock_t locks[LOCKS];
#endif

/* Acquires a lock. Locks have numbers below LOCKS. */
static inline void lock(unsigned id)
{
#if defined(OPENMP)
    if (!alone)
        omp_set_lock(&locks[id]);
#elif !defined(SEQUENTIAL)
    if (!alone)
        hiroba_lock(id);
#endif
    (void)id;
}

static inline void unlock(unsigned id)
{
#if defined(OPENMP)
    if (!alone)
        omp_unset_lock(&locks[id]);
#elif !defined(SEQUENTIAL)
    if (!alone)
        hiroba_unlock(id);
#endif
    (void)id;
}

/* This thread's number among all threads, and the number of threads. Valid inside `on_all_threads`. */
static inline size_t thread_number(void)
{
#if defined(OPENMP)
    return (size_t)omp_get_thread_num();
#elif !defined(SEQUENTIAL)
    if (!alone)
        return (size_t)hiroba_thread();
#endif
    return 0;
}

static inline size_t thread_count(void)
{
#if defined(OPENMP)
    return (size_t)omp_get_num_threads();
#elif !defined(SEQUENTIAL)
    if (!alone)
        return (size_t)hiroba_threads();
#endif
    return 1;
}

/* Calls `work(argument)` on every thread of every node, and returns when all calls have returned. */
static inline void on_all_threads(void (*work)(void *), void *argument)
{
#if defined(OPENMP)
    if (!alone) {
#pragma omp parallel
        work(argument);
        return;
    }
#elif !defined(SEQUENTIAL)
    if (!alone) {
        int error = hiroba_run(work, argument);
        if (error != 0) {
            fprintf(stderr, "%s: cannot start the threads: %s\n", program, strerror(-error));
            exit(1);
        }
        return;
    }
#endif
    work(argument);
}

static inline void note_thread_count(void *count)
{
    if (thread_number() % (thread_count() / (size_t)nodes) == 0) /* the first thread of its node */
        *(size_t *)count = thread_count();
}

/* The number of threads on which `on_all_threads` calls its function. Collective, outside
 * `on_all_threads`. */
static inline size_t threads_in_all(void)
{
    size_t count = 1;
    on_all_threads(note_thread_count, &count);
    return count;
}

/* Announces that the bytes will be read soon, so that their pages travel together and not one by one. */
static inline void read_soon(const void *start, size_t bytes)
{
#if !defined(SEQUENTIAL) && !defined(OPENMP)
    if (!alone && bytes != 0)
        (void)hiroba_prefetch(start, bytes); /* only a hint: pages can still be fetched when they are read */
#endif
    (void)start, (void)bytes;
}

/* Ranges that will be read soon, collected so that few messages request them. */
enum { MOST_SOON = 64 };
struct soon {
    size_t count;
    struct {
        const void *start;
        size_t bytes;
    } ranges[MOST_SOON];
};

static inline void read_all_soon(struct soon *soon)
{
#if !defined(SEQUENTIAL) && !defined(OPENMP)
    hiroba_range ranges[MOST_SOON];
    for (size_t i = 0; i < soon->count; i++)
        ranges[i] = (hiroba_range){soon->ranges[i].start, soon->ranges[i].bytes};
    if (!alone)
        (void)hiroba_prefetch_ranges(ranges, soon->count); /* a hint */
#endif
    soon->count = 0;
}

static inline void add_to_soon(struct soon *soon, const void *start, size_t bytes)
{
    if (soon->count == MOST_SOON)
        read_all_soon(soon);
    soon->ranges[soon->count].start = start;
    soon->ranges[soon->count++].bytes = bytes;
}

/* Seconds since a fixed moment, from a steady clock. */
static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The things first <= i < end that one thread has. */
struct span {
    size_t first, end;
};

static inline size_t length_of(struct span span)
{
    return span.end - span.first;
}

/* Returns the part of `total` things that thread `index` of `count` has. The part is empty if there are
 * too few things. */
static inline struct span share_of(size_t total, size_t index, size_t count)
{
    /* Not total * index / count, which could overflow. */
    size_t each = total / count, rest = total % count;
    size_t first = index * each + (index < rest ? index : rest);
    return (struct span){first, first + each + (index < rest)};
}

static inline struct span own_share(size_t total)
{
    return share_of(total, thread_number(), thread_count());
}

/* ---- What went wrong ------------------------------------------------------------------------- */

/* The first error found, as a message for the user; empty if there is none. One thread of each node writes
 * it. */
static char complaint[512];

__attribute__((format(printf, 1, 2)))
static inline bool complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (complaint[0] == '\0')
        vsnprintf(complaint, sizeof complaint, format, arguments);
    va_end(arguments);
    return false;
}

/*
 * Returns true if no node has a complaint. Each node learns the results of the others, so either all nodes go
 * on or all stop; the first node that has a complaint prints it. Collective, outside `on_all_threads`.
 */
static inline bool all_agree(void)
{
    unsigned char *unhappy = shared_zeroed((size_t)nodes);
    if (unhappy == NULL) {
        fprintf(stderr, "%s: no shared memory: %s\n", program, strerror(errno));
        return false;
    }
    unhappy[node] = complaint[0] != '\0';
    barrier();
    int first = 0;
    while (first < nodes && !unhappy[first])
        first++;
    if (first == node)
        fprintf(stderr, "%s: %s\n", program, complaint);
    barrier(); /* no node frees what another one still reads */
    return first == nodes;
}

/* ---- Times ----------------------------------------------------------------------------------- */

#if !defined(SEQUENTIAL) && !defined(OPENMP)
#define HAS_ACCOUNT
#endif

/* Seconds on two clocks: wall time, and processor time of all threads of this process. With Hiroba also
 * the account of this node up to that moment. */
struct clocks {
    double wall, processor;
#if defined(HAS_ACCOUNT)
    hiroba_account account;
#endif
};

static inline struct clocks clocks(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    struct clocks now = {.processor = (double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec};
#if defined(HAS_ACCOUNT)
    if (!alone)
        now.account = hiroba_account_now();
#endif
    now.wall = seconds();
    return now;
}

#if defined(HAS_ACCOUNT)
/* Adds `sign` times `more`. */
static inline void add_account(hiroba_account *to, const hiroba_account *more, int sign)
{
    uint64_t times = (uint64_t)sign; /* modulo 2^64, so that -1 subtracts */
    to->compute_s += sign * more->compute_s;
    to->read_fault_s += sign * more->read_fault_s;
    to->write_fault_s += sign * more->write_fault_s;
    to->barrier_s += sign * more->barrier_s;
    to->lock_s += sign * more->lock_s;
    to->serve_s += sign * more->serve_s;
    to->other_s += sign * more->other_s;
    to->read_faults += times * more->read_faults;
    to->write_faults += times * more->write_faults;
    to->pages_fetched += times * more->pages_fetched;
    to->messages_sent += times * more->messages_sent;
    to->bytes_sent += times * more->bytes_sent;
}
#endif

/* The sum of the times of two intervals. */
static inline struct clocks together(struct clocks one, struct clocks other)
{
    one.wall += other.wall;
    one.processor += other.processor;
#if defined(HAS_ACCOUNT)
    add_account(&one.account, &other.account, 1);
#endif
    return one;
}

static inline struct clocks since(struct clocks begin)
{
    struct clocks end = clocks();
    end.wall -= begin.wall;
    end.processor -= begin.processor;
#if defined(HAS_ACCOUNT)
    add_account(&end.account, &begin.account, -1);
    if (end.account.compute_s < 0.0)
        end.account.compute_s = 0.0; /* a remainder: estimates of the other times may exceed the total */
#endif
    return end;
}

/* Returns true for the thread that keeps the times of its node. Valid inside `on_all_threads`. */
static inline bool keeps_time(void)
{
    return thread_number() % (thread_count() / (size_t)nodes) == 0;
}

/* Returns this node's wall time and the processor time of the node that used most. Collective, outside
 * `on_all_threads`. Returns zeros if there is no shared memory. */
static inline struct clocks most_of(struct clocks elapsed)
{
    double *spent = shared_zeroed((size_t)nodes * sizeof *spent);
    if (spent == NULL)
        return (struct clocks){.wall = 0, .processor = 0};
    spent[node] = elapsed.processor;
    barrier();
    for (int n = 0; n < nodes; n++)
        elapsed.processor = spent[n] > elapsed.processor ? spent[n] : elapsed.processor;
    barrier(); /* no node frees what another one still reads */
    return elapsed;
}

static inline void print_clocks(struct clocks elapsed)
{
    printf("seconds                  %.6f\n", elapsed.wall);
    printf("processor seconds        %.6f\n", elapsed.processor);
#if defined(HAS_ACCOUNT)
    /* This node's account. The times of its threads add up to threads x seconds. */
    const hiroba_account *account = &elapsed.account;
    if (account->barrier_s <= 0.0)
        return; /* alone, or without an account */
    printf("seconds computing        %.6f\n", account->compute_s);
    printf("seconds in read faults   %.6f\n", account->read_fault_s);
    printf("seconds in write faults  %.6f\n", account->write_fault_s);
    printf("seconds in barriers      %.6f\n", account->barrier_s);
    printf("seconds in locks         %.6f\n", account->lock_s);
    printf("seconds serving          %.6f\n", account->serve_s);
    printf("seconds otherwise        %.6f\n", account->other_s);
    printf("read faults              %llu\n", (unsigned long long)account->read_faults);
    printf("write faults             %llu\n", (unsigned long long)account->write_faults);
    printf("pages fetched            %llu\n", (unsigned long long)account->pages_fetched);
    printf("messages sent            %llu\n", (unsigned long long)account->messages_sent);
    printf("bytes sent               %llu\n", (unsigned long long)account->bytes_sent);
#endif
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

/* Joins the job. Returns 0, or the exit status. */
static inline int join(const char *name, int *argc, char ***argv)
{
    program = name;
    for (int i = 1; i < *argc; i++)
        alone |= strcmp((*argv)[i], "--sequential") == 0;
#if defined(OPENMP)
    for (int i = 0; i < LOCKS; i++)
        omp_init_lock(&locks[i]);
#elif !defined(SEQUENTIAL)
    if (!alone) {
        if (hiroba_init(argc, argv) != 0) {
            fprintf(stderr, "%s: cannot join the job: %s\n", program, hiroba_error_string());
            return 1;
        }
        node = hiroba_node();
        nodes = hiroba_nodes();
    }
#endif
    return 0;
}

static inline int leave(int status)
{
#if !defined(SEQUENTIAL) && !defined(OPENMP)
    if (!alone)
        hiroba_finalize();
#endif
    return status;
}

/* ---- The command line ------------------------------------------------------------------------ */

/* An option with a value: a count from `least` to `most`, or a word if `word` is not NULL. */
struct option {
    const char *name, *what;
    long least, most, *count;
    const char **word;
};

static inline bool parse_count(const char *text, long least, long most, long *value)
{
    char *end;
    errno = 0;
    *value = strtol(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *value >= least && *value <= most;
}

static inline bool parse_option(const struct option *o, const char *value)
{
    if (value == NULL)
        return complain("%s needs %s behind it; --help lists the options", o->name, o->what);
    if (o->word != NULL) {
        *o->word = value;
        return *value != '\0' || complain("%s needs %s, not an empty word", o->name, o->what);
    }
    return parse_count(value, o->least, o->most, o->count) ||
           complain("%s takes %s from %ld to %ld, not '%.40s'", o->name, o->what, o->least, o->most,
                    value);
}

/* Reads the command line. Returns false and sets a complaint if an argument is wrong. A NULL name ends
 * `options`. */
static inline bool parse_options(const struct option *options, int argc, char **argv, bool *help)
{
    *help = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sequential") == 0)
            continue;
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            *help = true;
            continue;
        }
        const struct option *o = options;
        while (o->name != NULL && strcmp(argv[i], o->name) != 0)
            o++;
        if (o->name == NULL)
            return complain("unknown argument '%.40s'; --help lists those there are", argv[i]);
        if (!parse_option(o, argv[i + 1])) /* argv ends with NULL */
            return false;
        i++;
    }
    return true;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* Scatters the bits of a number (the last step of splitmix64). Distinct numbers give distinct results. */
static inline uint64_t scattered(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/*
 * The contribution of the thing at `index` with these bits to a checksum. A checksum is the sum over all
 * things modulo 2^64, in any order: it depends on the bits at each index and not on the thread that adds
 * them.
 */
static inline uint64_t fingerprint(size_t index, uint64_t bits)
{
    return scattered(scattered((uint64_t)index) ^ bits);
}

/* The bits of a double. */
static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
