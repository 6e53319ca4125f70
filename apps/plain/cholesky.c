/*
 * cholesky: Cholesky factorisation of a dense matrix by tasks on tiles.
 *
 * The lower triangle is stored in tiles of 64 x 64. Task (i, j, k) subtracts the product of tiles (i, k) and
 * (j, k) from tile (i, j); the last task of each tile, k = j, factors it or divides it by the diagonal tile.
 * A shared counter for each task has the number of tasks that it waits for. A thread that ends a task
 * decrements the counters of the tasks that wait for it, and appends tasks whose counter is zero to one
 * queue. Counters and queue are under one lock; a thread that finds the queue empty waits for a condition.
 * Read `work` first.
 *
 * The tasks of a tile follow one another, so the checksum is the same for any number of threads.
 */
#include "plain.h"

enum { B = 64, QUEUE_LOCK = 0, QUEUE_CHANGED = 0 };

static const struct program PROGRAM = {
    "cholesky", "rows, a multiple of 64", 64, 8192, 1024, 2048, 0, 0,
};

struct task {
    int i, j, k;
};

struct queue { /* under QUEUE_LOCK */
    long first, end; /* of the tasks that wait for nothing */
    long left;       /* tasks that are not done */
};

static int tiles;            /* rows of tiles */
static double *a;            /* tile after tile, shared */
static unsigned char *waits; /* of each task, under QUEUE_LOCK */
static struct task *tasks;   /* of the queue, under QUEUE_LOCK */
static struct queue *queue;

/* An element of the matrix, which is diagonally dominant and so positive definite. */
static double element(long i, long j)
{
    const uint64_t low = (uint64_t)(i < j ? i : j), high = (uint64_t)(i < j ? j : i);
    return uniform(low << 32 | high) - 0.5 + (i == j ? (double)n : 0.0);
}

static long tile_count(void)
{
    return (long)tiles * (tiles + 1) / 2;
}

static long tile_number(int i, int j)
{
    return (long)i * (i + 1) / 2 + j;
}

static double *tile(int i, int j)
{
    return a + tile_number(i, j) * B * B;
}

/* c := c - x y^T; only the lower triangle if c is on the diagonal, where x is y. */
static void subtract_product(double *c, const double *x, const double *y)
{
    for (int i = 0; i < B; i++)
        for (int j = 0; j < (x == y ? i + 1 : B); j++) {
            double sum = 0.0;
            for (int k = 0; k < B; k++)
                sum += x[i * B + k] * y[j * B + k];
            c[i * B + j] -= sum;
        }
}

/* d := L, where L L^T = d. */
static void factor(double *d)
{
    for (int j = 0; j < B; j++)
        for (int i = j; i < B; i++) {
            double rest = d[i * B + j];
            for (int k = 0; k < j; k++)
                rest -= d[i * B + k] * d[j * B + k];
            d[i * B + j] = i == j ? sqrt(rest) : rest / d[j * B + j];
        }
}

/* x := x L^-T */
static void divide(double *x, const double *l)
{
    for (int i = 0; i < B; i++)
        for (int j = 0; j < B; j++) {
            double rest = x[i * B + j];
            for (int k = 0; k < j; k++)
                rest -= x[i * B + k] * l[j * B + k];
            x[i * B + j] = rest / l[j * B + j];
        }
}

static void do_task(struct task t)
{
    if (t.k < t.j)
        subtract_product(tile(t.i, t.j), tile(t.i, t.k), tile(t.j, t.k));
    else if (t.i == t.j)
        factor(tile(t.i, t.j));
    else
        divide(tile(t.i, t.j), tile(t.j, t.j));
}

/* A task's counter. */
static unsigned char *waits_of(int i, int j, int k)
{
    return &waits[tile_number(i, j) * tiles + k];
}

/* Decrements a task's counter, and queues the task if it reaches zero. Under QUEUE_LOCK. */
static void count_down(int i, int j, int k)
{
    if (--*waits_of(i, j, k) == 0)
        tasks[queue->end++] = (struct task){i, j, k};
}

/* Decrements the counters of the tasks that wait for a finished task. Under QUEUE_LOCK. */
static void release(struct task t)
{
    if (t.k < t.j)
        count_down(t.i, t.j, t.k + 1);
    else if (t.i == t.j)
        for (int i = t.i + 1; i < tiles; i++)
            count_down(i, t.j, t.j);
    else {
        for (int j = t.j + 1; j <= t.i; j++)
            count_down(t.i, j, t.j);
        for (int i = t.i + 1; i < tiles; i++)
            count_down(i, t.i, t.j);
    }
    queue->left--;
}

static void initialise(long first, long end)
{
    for (int i = 0; i < tiles; i++)
        for (int j = 0; j <= i; j++) {
            if (tile_number(i, j) < first || tile_number(i, j) >= end)
                continue;
            for (int row = 0; row < B; row++)
                for (int column = 0; column < B; column++)
                    tile(i, j)[row * B + column] = element((long)i * B + row, (long)j * B + column);
            for (int k = 0; k <= j; k++)
                *waits_of(i, j, k) = (unsigned char)((k > 0) + (k < j && i > j ? 2 : k < j || i > j ? 1 : 0));
        }
}

static void work(void *nothing)
{
    (void)nothing;
    const int me = hiroba_thread();
    double start = hiroba_wtime();
    if (init_all)
        initialise(first_of(tile_count(), me, threads), first_of(tile_count(), me + 1, threads));
    else if (me == 0)
        initialise(0, tile_count());
    if (me == 0) {
        tasks[0] = (struct task){0, 0, 0};
        queue->end = 1;
        for (int j = 0; j < tiles; j++)
            queue->left += (long)(tiles - j) * (j + 1);
    }
    hiroba_barrier();
    double ready = hiroba_wtime();
    hiroba_lock(QUEUE_LOCK);
    while (queue->left > 0) {
        if (queue->first == queue->end) {
            hiroba_cond_wait(QUEUE_CHANGED, QUEUE_LOCK);
            continue;
        }
        const struct task t = tasks[queue->first++];
        hiroba_unlock(QUEUE_LOCK);
        do_task(t);
        hiroba_lock(QUEUE_LOCK);
        release(t);
        hiroba_cond_broadcast(QUEUE_CHANGED);
    }
    hiroba_unlock(QUEUE_LOCK);
    hiroba_barrier();
    keep_times(start, ready);
}

/* An element of the triangular matrix. */
static double at(long i, long j)
{
    return tile((int)(i / B), (int)(j / B))[i % B * B + j % B];
}

/* Returns true if L (L^T x) is the matrix times x. */
static bool check(void)
{
    double *ltx = private((size_t)n * sizeof *ltx);
    bool right = true;
    for (long j = 0; j < n; j++) {
        ltx[j] = 0.0;
        for (long i = j; i < n; i++)
            ltx[j] += at(i, j) * uniform((uint64_t)i);
    }
    for (long i = 0; i < n && right; i++) {
        double is = 0.0, should = 0.0;
        for (long j = 0; j <= i; j++)
            is += at(i, j) * ltx[j];
        for (long j = 0; j < n; j++)
            should += element(i, j) * uniform((uint64_t)j);
        if (!(fabs(is - should) <= 1e-10 * (double)n))
            right = wrong("row %ld of L L^T x is %.17g and should be %.17g", i, is, should);
    }
    free(ltx);
    return right;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    require(n % B == 0, PROGRAM.counts);
    tiles = (int)(n / B);
    a = shared((size_t)tile_count() * B * B * sizeof *a);
    waits = shared((size_t)(tile_count() * tiles) * sizeof *waits);
    tasks = shared((size_t)(tile_count() * tiles) * sizeof *tasks);
    queue = shared(sizeof *queue);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long i = 0; i < n; i++)
            for (long j = 0; j <= i; j++)
                checksum = with_bits(checksum, at(i, j));
    }
    return finish(right, checksum);
}
