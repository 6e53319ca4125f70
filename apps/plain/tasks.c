/*
 * tasks: adaptive quadrature of a sum of Gaussian peaks over a square, by task queues with
 * stealing.
 *
 * A task is a square. If Gauss's formula for it and for its four quarters differ too much, the
 * quarters become tasks. Each thread has a list of tasks under a lock; it appends new tasks and
 * takes the last one. A thread without tasks steals the first task, the largest, of another
 * thread's list. The number of unfinished tasks has a lock of its own. Tasks are
 * allocated by `hiroba_malloc`, and freed by the thread that did them. Read `work` first.
 *
 * The result for a square depends on the square alone, and the integral is added up in integers:
 * the checksum is the same for any number of threads and any order.
 */
#include "plain.h"

enum { ORDER = 5, START = 8, DEEPEST = 40, COUNT_LOCK = MOST_THREADS };

static const struct program PROGRAM = {"tasks", "peaks", 1, 4096, 128, 512, 0, 0};

static const double TOLERANCE = 1e-7, UNIT = 1.0 / (double)(1LL << 50);
static const double NODES[ORDER] = {-0.9061798459386640, -0.5384693101056831, 0.0, 0.5384693101056831,
                                    0.9061798459386640};
static const double WEIGHTS[ORDER] = {0.2369268850561891, 0.4786286704993665, 0.5688888888888889,
                                      0.4786286704993665, 0.2369268850561891};

struct peak {
    double x, y, sharpness, height; /* height exp(-sharpness r^2) */
};

struct task {
    double x, y, edge; /* the square from (x, y) */
    int depth;
    struct task *before, *after;
};

struct list { /* under the lock of its thread's number */
    struct task *first, *last;
};

struct totals { /* under COUNT_LOCK */
    long waiting; /* tasks that are not done */
    int64_t integral; /* in UNITs */
    long done;
};

static struct peak *peaks; /* n, shared */
static struct list *lists; /* one a thread, shared */
static struct totals *totals;

static double height_at(double x, double y)
{
    double sum = 0.0;
    for (long i = 0; i < n; i++) {
        const struct peak *m = &peaks[i];
        const double r2 = (x - m->x) * (x - m->x) + (y - m->y) * (y - m->y);
        if (m->sharpness * r2 < 40.0)
            sum += m->height * exp(-m->sharpness * r2);
    }
    return sum;
}

static double gauss(double x, double y, double edge)
{
    double sum = 0.0;
    for (int i = 0; i < ORDER; i++)
        for (int j = 0; j < ORDER; j++)
            sum += WEIGHTS[i] * WEIGHTS[j] *
                   height_at(x + 0.5 * edge * (1.0 + NODES[i]), y + 0.5 * edge * (1.0 + NODES[j]));
    return 0.25 * edge * edge * sum;
}

/* Puts a task at the end of a list. */
static void put(int list, double x, double y, double edge, int depth)
{
    struct task *task = hiroba_malloc(sizeof *task);
    if (task == NULL) {
        wrong("no shared memory for another task: %s", strerror(errno));
        exit(1);
    }
    hiroba_lock((unsigned)list);
    *task = (struct task){x, y, edge, depth, lists[list].last, NULL};
    if (lists[list].last != NULL)
        lists[list].last->after = task;
    else
        lists[list].first = task;
    lists[list].last = task;
    hiroba_unlock((unsigned)list);
}

/* Takes the last task of a list, or the first. NULL if there is none. */
static struct task *take(int list, bool last)
{
    hiroba_lock((unsigned)list);
    struct list *l = &lists[list];
    struct task *task = last ? l->last : l->first;
    if (task != NULL) {
        *(task->before != NULL ? &task->before->after : &l->first) = task->after;
        *(task->after != NULL ? &task->after->before : &l->last) = task->before;
    }
    hiroba_unlock((unsigned)list);
    return task;
}

static struct task *take_any(void)
{
    struct task *task = take(hiroba_thread(), true);
    for (int k = 1; k < threads && task == NULL; k++)
        task = take((hiroba_thread() + k) % threads, false);
    return task;
}

/* Adds `more` to the number of waiting tasks, and returns it. */
static long count(long more)
{
    hiroba_lock(COUNT_LOCK);
    const long waiting = totals->waiting += more;
    hiroba_unlock(COUNT_LOCK);
    return waiting;
}

/* Does a task. Returns its contribution to the integral, in UNITs: 0 if it was split into other tasks. */
static int64_t do_task(const struct task *task)
{
    const double half = 0.5 * task->edge;
    double quarters = 0.0;
    for (int i = 0; i < 4; i++)
        quarters += gauss(task->x + i % 2 * half, task->y + i / 2 * half, half);
    const double difference = fabs(quarters - gauss(task->x, task->y, task->edge));
    if (difference <= TOLERANCE * task->edge * task->edge || task->depth == DEEPEST) {
        count(-1);
        return llround(quarters / UNIT);
    }
    count(3);
    for (int i = 0; i < 4; i++)
        put(hiroba_thread(), task->x + i % 2 * half, task->y + i / 2 * half, half, task->depth + 1);
    return 0;
}

static void initialise(int part, int parts)
{
    for (long i = first_of(n, part, parts); i < first_of(n, part + 1, parts); i++) {
        const uint64_t seed = (uint64_t)(4 * i);
        const double sharpness = pow(10.0, 2.0 + 3.0 * uniform(seed + 2));
        const double volume = (0.5 + uniform(seed + 3)) / (double)n;
        peaks[i].x = uniform(seed);
        peaks[i].y = uniform(seed + 1);
        peaks[i].sharpness = sharpness;
        peaks[i].height = volume * sharpness / M_PI;
    }
    const long first = first_of(START * START, part, parts), end = first_of(START * START, part + 1, parts);
    for (long i = first; i < end; i++)
        put(part, (double)(i % START) / START, (double)(i / START) / START, 1.0 / START, 0);
    count(end - first);
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    if (init_all)
        initialise(hiroba_thread(), threads);
    else if (hiroba_thread() == 0)
        initialise(0, 1);
    hiroba_barrier();
    double ready = hiroba_wtime();
    int64_t integral = 0;
    long done = 0;
    for (;;) {
        struct task *task = take_any();
        if (task != NULL) {
            integral += do_task(task);
            hiroba_free(task);
            done++;
        } else if (count(0) == 0)
            break;
        else
            sched_yield();
    }
    hiroba_lock(COUNT_LOCK);
    totals->integral += integral;
    totals->done += done;
    hiroba_unlock(COUNT_LOCK);
    hiroba_barrier();
    keep_times(start, ready);
}

/* The integral of exp(-sharpness (x - centre)^2) from 0 to 1. */
static double across(double sharpness, double centre)
{
    const double root = sqrt(sharpness);
    return 0.5 * sqrt(M_PI) / root * (erf(root * (1.0 - centre)) + erf(root * centre));
}

static bool check(void)
{
    const double is = (double)totals->integral * UNIT;
    double should = 0.0;
    for (long i = 0; i < n; i++) {
        const struct peak *m = &peaks[i];
        should += m->height * across(m->sharpness, m->x) * across(m->sharpness, m->y);
    }
    if (!(fabs(is - should) <= TOLERANCE))
        return wrong("the integral is %.12g and should be %.12g", is, should);
    return totals->waiting == 0 || wrong("%ld tasks were not done", totals->waiting);
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    peaks = shared((size_t)n * sizeof *peaks);
    lists = shared((size_t)threads * sizeof *lists);
    totals = shared(sizeof *totals);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        checksum = mixed(mixed((uint64_t)totals->integral) ^ (uint64_t)totals->done);
    }
    return finish(right, checksum);
}
