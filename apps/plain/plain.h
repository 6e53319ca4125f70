/*
 * What the plain programs have in common: threads, the command line, the clock, the verdict.
 *
 *     hiroba cc -O2 -o sor sor.c -lm                     threads of all nodes of a job
 *     cc -O2 -DTHREADS -pthread -o sor-threads sor.c -lm threads of one process
 *
 * Both forms are the same source. Under THREADS the functions of hiroba.h that the programs call are
 * implemented on POSIX threads below, so the two forms differ only in the cost of sharing.
 *
 * A program calls `begin`, allocates with `shared`, computes inside `hiroba_run`, and returns `finish`.
 */
#ifndef PLAIN_H
#define PLAIN_H

#define _DEFAULT_SOURCE /* in addition to C99: MAP_ANONYMOUS, clock_gettime, M_PI */

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 64, LOCKS = 1 << 14, TIMES_LOCK = LOCKS - 1 };

/* ---- Threads ----------------------------------------------------------------------------------- */

#if !defined(THREADS)

#include <hiroba.h>

#else

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

enum { CONDITIONS = 16, SPINS = 1 << 14 };

static int asked_threads = 1; /* --threads */
static int team = 1;          /* the threads that run now */
static __thread int own_number = 0;
static pthread_mutex_t mutexes[LOCKS];
static pthread_cond_t conditions[CONDITIONS];
static int arrived = 0, passed = 0; /* of the barrier: waiting threads, and completed barriers */

static inline int hiroba_init(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&mutexes[i], NULL);
    for (int i = 0; i < CONDITIONS; i++)
        pthread_cond_init(&conditions[i], NULL);
    return 0;
}

static inline const char *hiroba_error_string(void)
{
    return strerror(errno);
}

static inline void hiroba_finalize(void)
{
}

static inline int hiroba_node(void)
{
    return 0;
}

static inline int hiroba_nodes(void)
{
    return 1;
}

static inline int hiroba_thread(void)
{
    return own_number;
}

static inline int hiroba_threads(void)
{
    return team;
}

static inline double hiroba_wtime(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Zeroed, page-aligned and untouched memory, as Hiroba returns it. */
static inline void *hiroba_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static inline void *hiroba_malloc(size_t bytes)
{
    return malloc(bytes);
}

static inline void hiroba_free(void *block)
{
    free(block);
}

/* The mutex of a lock: `id` must be below LOCKS. */
static inline pthread_mutex_t *mutex_of(unsigned id)
{
    if (id >= LOCKS)
        abort();
    return &mutexes[id];
}

static inline void hiroba_lock(unsigned id)
{
    pthread_mutex_lock(mutex_of(id));
}

static inline void hiroba_unlock(unsigned id)
{
    pthread_mutex_unlock(mutex_of(id));
}

static inline void hiroba_cond_wait(unsigned condition, unsigned id)
{
    pthread_cond_wait(&conditions[condition % CONDITIONS], mutex_of(id));
}

static inline void hiroba_cond_broadcast(unsigned condition)
{
    pthread_cond_broadcast(&conditions[condition % CONDITIONS]);
}

/* The last thread to arrive releases the others, which spin for a moment and then yield. */
static inline void hiroba_barrier(void)
{
    const int before = __atomic_load_n(&passed, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL) == team) {
        __atomic_store_n(&arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&passed, before + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int looks = 0; __atomic_load_n(&passed, __ATOMIC_ACQUIRE) == before; looks++)
        if (looks >= SPINS)
            sched_yield();
}

struct start {
    void (*function)(void *);
    void *argument;
    int number;
};

static inline void *run_thread(void *given)
{
    const struct start *start = given;
    own_number = start->number;
    start->function(start->argument);
    return NULL;
}

static inline int hiroba_run(void (*function)(void *), void *argument)
{
    pthread_t others[MOST_THREADS];
    struct start starts[MOST_THREADS];
    team = asked_threads;
    for (int i = 1; i < team; i++) {
        starts[i] = (struct start){function, argument, i};
        const int error = pthread_create(&others[i], NULL, run_thread, &starts[i]);
        if (error != 0) {
            fprintf(stderr, "cannot start %d threads: %s\n", team, strerror(error));
            exit(1);
        }
    }
    function(argument);
    for (int i = 1; i < team; i++)
        pthread_join(others[i], NULL);
    team = 1;
    return 0;
}

#endif

/* ---- The command line -------------------------------------------------------------------------- */

/* A program, and the sizes that it accepts. */
struct program {
    const char *name, *counts; /* what -n counts */
    long least, most;          /* bounds of -n */
    long n, large;             /* -n by default, and under --large */
    long steps;                /* -s by default; 0: the program has no steps */
    int most_threads;          /* 0: MOST_THREADS */
};

static const struct program *the_program;
static long n, steps;
static bool init_all = false; /* every thread initialises its own part, instead of thread 0 all */
static int threads;           /* of all nodes */

static struct { /* shared, under TIMES_LOCK */
    double init, compute;
} *times_taken;

/* Exits with a message, which node 0 prints. Called by every node, outside `hiroba_run`. */
__attribute__((format(printf, 2, 3), noreturn))
static inline void leave(int status, const char *format, ...)
{
    if (hiroba_node() == 0) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(stderr, "%s: ", the_program->name);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
    }
    hiroba_finalize();
    exit(status);
}

/* Exits with status 2 if the program does not accept the size. */
static inline void require(bool holds, const char *takes)
{
    if (!holds)
        leave(2, "-n takes %s, not %ld", takes, n);
}

static inline void print_help(void)
{
    const struct program *p = the_program;
    printf("usage: %s [-n SIZE]%s [--large] [--init-all]", p->name, p->steps != 0 ? " [-s STEPS]" : "");
#if defined(THREADS)
    printf(" [--threads N]");
#endif
    printf("\n\n  -n SIZE      %s, %ld to %ld [%ld]\n", p->counts, p->least, p->most, p->n);
    if (p->steps != 0)
        printf("  -s STEPS     steps, 1 to 1000000 [%ld]\n", p->steps);
    printf("  --large      the size %ld, about four times the data\n", p->large);
    printf("  --init-all   every thread initialises its own part, instead of thread 0 all\n");
#if defined(THREADS)
    printf("  --threads N  threads, 1 to %d [1]\n", MOST_THREADS);
#endif
    printf("\nExit status: 0 the result passed its checks, 1 it did not, 2 bad arguments.\n");
}

/* The number after an option. */
static inline long number_of(const char *option, const char *text, long least, long most)
{
    char *end = NULL;
    errno = 0;
    long value = text == NULL ? 0 : strtol(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || errno != 0 || value < least || value > most)
        leave(2, "%s takes a number from %ld to %ld, not '%s'", option, least, most,
              text == NULL ? "" : text);
    return value;
}

static inline void parse(int argc, char **argv)
{
    bool large = false;
    const struct program *p = the_program;
    steps = p->steps;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0)
            n = number_of("-n", argv[++i], p->least, p->most);
        else if (strcmp(argv[i], "-s") == 0 && p->steps != 0)
            steps = number_of("-s", argv[++i], 1, 1000000);
        else if (strcmp(argv[i], "--large") == 0)
            large = true;
        else if (strcmp(argv[i], "--init-all") == 0)
            init_all = true;
#if defined(THREADS)
        else if (strcmp(argv[i], "--threads") == 0)
            asked_threads = (int)number_of("--threads", argv[++i], 1, MOST_THREADS);
#endif
        else if (strcmp(argv[i], "--help") == 0) {
            if (hiroba_node() == 0)
                print_help();
            hiroba_finalize();
            exit(0);
        } else
            leave(2, "unknown argument '%s'; --help lists what there is", argv[i]);
    }
    if (n == 0)
        n = large ? p->large : p->n;
}

static inline void count_threads(void *nothing)
{
    (void)nothing;
    if (hiroba_thread() % (hiroba_threads() / hiroba_nodes()) == 0) /* the first thread of its node */
        threads = hiroba_threads();
}

/* ---- Memory and shares ------------------------------------------------------------------------- */

/* Zeroed memory that all threads share, at the same address on every node. Outside `hiroba_run`. */
static inline void *shared(size_t bytes)
{
    void *memory = hiroba_alloc(bytes);
    if (memory == NULL)
        leave(1, "no %zu bytes of shared memory: %s", bytes, strerror(errno));
    return memory;
}

/* Memory of this thread, not zeroed. */
static inline void *private(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "%s: no %zu bytes of memory\n", the_program->name, bytes);
        exit(1);
    }
    return memory;
}

/* The first thing of part `part` of `parts`. The part ends before the first thing of the next one. */
static inline long first_of(long things, int part, int parts)
{
    return things * part / parts;
}

/* The part of some things that belongs to this thread: own_first <= i < own_end. */
static inline long own_first(long things)
{
    return first_of(things, hiroba_thread(), threads);
}

static inline long own_end(long things)
{
    return first_of(things, hiroba_thread() + 1, threads);
}

/* The part that this thread initialises: its own, everything, or nothing. */
static inline long init_first(long things)
{
    return init_all ? own_first(things) : 0;
}

static inline long init_end(long things)
{
    return init_all ? own_end(things) : hiroba_thread() == 0 ? things : 0;
}

/* Joins the job and parses the command line. Exits with status 2 if the command line is not valid. */
static inline void begin(const struct program *program, int argc, char **argv)
{
    the_program = program;
    if (hiroba_init(&argc, &argv) != 0) {
        fprintf(stderr, "%s: %s\n", program->name, hiroba_error_string());
        exit(1);
    }
    parse(argc, argv);
    hiroba_run(count_threads, NULL);
    times_taken = shared(sizeof *times_taken);
    const int most = program->most_threads != 0 ? program->most_threads : MOST_THREADS;
    if (threads > most)
        leave(2, "at most %d threads, not %d", most, threads);
}

/* ---- Numbers ----------------------------------------------------------------------------------- */

/* A random number for x (S. Vigna's SplitMix64), the same on every thread. */
static inline uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* From 0 to less than 1. */
static inline double uniform(uint64_t x)
{
    return (double)(mixed(x) >> 11) / 9007199254740992.0;
}

/* Adds a number to a checksum and returns it. */
static inline uint64_t with_bits(uint64_t checksum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mixed(checksum ^ bits);
}

/* ---- The verdict ------------------------------------------------------------------------------- */

/*
 * Records the time of the initialisation, from `start` to `ready`, and of the computation since then, after a
 * barrier. The longest time of all threads counts, because a thread that reads the clock late measures less.
 */
static inline void keep_times(double start, double ready)
{
    const double now = hiroba_wtime();
    hiroba_lock(TIMES_LOCK);
    times_taken->init = fmax(times_taken->init, ready - start);
    times_taken->compute = fmax(times_taken->compute, now - ready);
    hiroba_unlock(TIMES_LOCK);
}

/* Prints an error to standard error, and returns false. */
__attribute__((format(printf, 1, 2)))
static inline bool wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", the_program->name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

static inline int finish_with(bool right, const char *checksum)
{
    if (hiroba_node() == 0) {
        printf("checks %s\n", right ? "passed" : "failed");
        printf("seconds %.6f init %.6f checksum %s\n", times_taken->compute, times_taken->init, checksum);
    }
    hiroba_finalize();
    return right ? 0 : 1;
}

/* Ends a program whose result has the same bits for any number of threads. */
static inline int finish(bool right, uint64_t checksum)
{
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)checksum);
    return finish_with(right, text);
}

/* Ends a program whose sums depend on their order. The checksum is a number with about nine valid digits. */
static inline int finish_near(bool right, double checksum)
{
    char text[48];
    snprintf(text, sizeof text, "%.9e", checksum);
    return finish_with(right, text);
}

#endif
