/*
 * barnes: gravitation of many bodies by an octree (J. Barnes and P. Hut, 1986).
 *
 * Each thread owns a block of the bodies. In a step the threads find the extent of all bodies under
 * a lock; insert their bodies into the tree, one at a time under the lock of one of 64 subtrees,
 * with cells from a pool of each thread; sum up the masses of the subtrees; and traverse the tree
 * for the force on each of their bodies. A barrier follows each phase. Read `step_on` first.
 *
 * The tree depends on the positions alone, not on the order of insertion, and all sums follow the
 * tree: the checksum is the same for any number of threads.
 */
#include "plain.h"

enum { AXES = 3, DEPTH = 40, TOP = 2 }; /* levels of the tree, and those above the subtrees */
enum { SUBTREES = 64, FIRST_SUBTREE = 9, TOP_CELLS = FIRST_SUBTREE + SUBTREES, EXTENT_LOCK = SUBTREES };

static const struct program PROGRAM = {"barnes", "bodies", 2, 1L << 22, 8192, 32768, 4, 0};

static const double STEP = 0.025, SOFTENING = 0.05, OPENING = 0.6;

typedef double vector[AXES];

struct body {
    vector position, velocity, acceleration;
    double mass;
};

/* A cube. A child is 0 if there is none, the number of a cell, or ~ the number of a body. */
struct cell {
    vector centre; /* of mass */
    double mass;
    int children[8];
};

struct scalars {
    double extent[2]; /* of this step and the next, under EXTENT_LOCK */
};

static struct body *bodies;
static struct cell *cells; /* the root and its 8 children, the subtrees, then a pool for each thread */
static struct scalars *scalars;

static long pool_size(void)
{
    return 2 * n + DEPTH;
}

/* The number of the cube, of eight, that a body is in on a level: the axes' digits of that level. */
static int octant(const struct body *body, int level, double extent)
{
    int found = 0;
    for (int axis = 0; axis < AXES; axis++) {
        const double at = (body->position[axis] / extent + 1.0) * 0.5; /* 0 < at < 1 */
        const int64_t digits = (int64_t)(at * (double)(1LL << DEPTH));
        found |= (int)(digits >> (DEPTH - 1 - level) & 1) << axis;
    }
    return found;
}

/* Inserts a body into a subtree, whose lock the caller has. `used` counts cells taken from the thread's
 * pool. */
static void insert(int number, int subtree, double extent, long *used)
{
    long cell = FIRST_SUBTREE + subtree;
    for (int level = TOP; level < DEPTH - 1;) {
        int *child = &cells[cell].children[octant(&bodies[number], level, extent)];
        if (*child == 0) {
            *child = ~number;
            return;
        }
        level++;
        if (*child < 0) { /* a body: both go into a new cell */
            const int other = ~*child;
            if (*used == pool_size())
                break;
            cell = TOP_CELLS + hiroba_thread() * pool_size() + (*used)++;
            memset(&cells[cell], 0, sizeof cells[cell]);
            cells[cell].children[octant(&bodies[other], level, extent)] = ~other;
            *child = (int)cell;
        }
        cell = *child;
    }
    wrong("body %d lies too near to another", number);
    exit(1);
}

/* Finds the centre and mass of all bodies in a cell. */
static void sum_up(struct cell *cell, bool below)
{
    vector moment = {0.0, 0.0, 0.0};
    cell->mass = 0.0;
    for (int i = 0; i < 8; i++) {
        const int child = cell->children[i];
        if (child == 0)
            continue;
        if (child > 0 && below)
            sum_up(&cells[child], true);
        const double mass = child > 0 ? cells[child].mass : bodies[~child].mass;
        const double *centre = child > 0 ? cells[child].centre : bodies[~child].position;
        cell->mass += mass;
        for (int axis = 0; axis < AXES; axis++)
            moment[axis] += mass * centre[axis];
    }
    for (int axis = 0; axis < AXES; axis++)
        cell->centre[axis] = cell->mass > 0.0 ? moment[axis] / cell->mass : 0.0;
}

/* Adds the acceleration of a body at `at` by a mass at `from`. */
static void pull(vector acceleration, const vector at, const vector from, double mass)
{
    vector apart;
    double square = SOFTENING * SOFTENING;
    for (int axis = 0; axis < AXES; axis++) {
        apart[axis] = from[axis] - at[axis];
        square += apart[axis] * apart[axis];
    }
    const double factor = mass / (square * sqrt(square));
    for (int axis = 0; axis < AXES; axis++)
        acceleration[axis] += factor * apart[axis];
}

/* Adds the acceleration of a body by all bodies in a cell with edge `edge`. */
static void walk(struct body *body, const struct cell *cell, double edge)
{
    double square = 0.0;
    for (int axis = 0; axis < AXES; axis++)
        square += pow(cell->centre[axis] - body->position[axis], 2.0);
    if (edge * edge < OPENING * OPENING * square) {
        pull(body->acceleration, body->position, cell->centre, cell->mass);
        return;
    }
    for (int i = 0; i < 8; i++) {
        const int child = cell->children[i];
        if (child > 0)
            walk(body, &cells[child], 0.5 * edge);
        else if (child < 0 && &bodies[~child] != body)
            pull(body->acceleration, body->position, bodies[~child].position, bodies[~child].mass);
    }
}

/* Returns half the edge of a cube around all bodies. Thread 0 clears the top of the tree. */
static double find_extent(long step, long first, long end)
{
    double extent = 0.0;
    for (long i = first; i < end; i++)
        for (int axis = 0; axis < AXES; axis++)
            extent = fmax(extent, fabs(bodies[i].position[axis]));
    hiroba_lock(EXTENT_LOCK);
    if (extent > scalars->extent[step % 2])
        scalars->extent[step % 2] = extent;
    hiroba_unlock(EXTENT_LOCK);
    if (hiroba_thread() == 0) {
        memset(cells, 0, TOP_CELLS * sizeof *cells);
        for (int i = 0; i < 8; i++)
            cells[0].children[i] = 1 + i;
        for (int i = 0; i < SUBTREES; i++)
            cells[1 + i / 8].children[i % 8] = FIRST_SUBTREE + i;
    }
    hiroba_barrier();
    if (hiroba_thread() == 0)
        scalars->extent[1 - step % 2] = 0.0;
    return scalars->extent[step % 2] * 1.0001;
}

static void step_on(long step)
{
    const long first = own_first(n), end = own_end(n);
    const double extent = find_extent(step, first, end);
    long used = 0;
    for (long i = first; i < end; i++) {
        const int subtree = 8 * octant(&bodies[i], 0, extent) + octant(&bodies[i], 1, extent);
        hiroba_lock((unsigned)subtree);
        insert((int)i, subtree, extent, &used);
        hiroba_unlock((unsigned)subtree);
    }
    hiroba_barrier();
    for (int subtree = hiroba_thread(); subtree < SUBTREES; subtree += threads)
        sum_up(&cells[FIRST_SUBTREE + subtree], true);
    hiroba_barrier();
    if (hiroba_thread() == 0)
        for (int i = FIRST_SUBTREE - 1; i >= 0; i--)
            sum_up(&cells[i], false);
    hiroba_barrier();
    for (long i = first; i < end; i++) {
        memset(bodies[i].acceleration, 0, sizeof bodies[i].acceleration);
        walk(&bodies[i], &cells[0], 2.0 * extent);
    }
    hiroba_barrier();
    for (long i = first; i < end; i++)
        for (int axis = 0; axis < AXES; axis++) {
            bodies[i].velocity[axis] += STEP * bodies[i].acceleration[axis];
            bodies[i].position[axis] += STEP * bodies[i].velocity[axis];
        }
}

/* Sets `v` to a random vector of length `length`. */
static void point(vector v, double length, uint64_t seed)
{
    const double z = 2.0 * uniform(seed) - 1.0, turn = 2.0 * M_PI * uniform(seed + 1);
    v[0] = length * sqrt(1.0 - z * z) * cos(turn);
    v[1] = length * sqrt(1.0 - z * z) * sin(turn);
    v[2] = length * z;
}

/* Places a body in H. C. Plummer's cluster, where density falls with the fifth power of the distance. */
static void place(long i)
{
    const uint64_t seed = (uint64_t)(8 * i);
    const double inside = 0.01 + 0.98 * uniform(seed), distance = 1.0 / sqrt(pow(inside, -2.0 / 3.0) - 1.0);
    point(bodies[i].position, distance, seed + 1);
    const double escape = sqrt(2.0) * pow(1.0 + distance * distance, -0.25); /* escape speed */
    point(bodies[i].velocity, 0.7 * uniform(seed + 3) * escape, seed + 4);
    memset(bodies[i].acceleration, 0, sizeof bodies[i].acceleration);
    bodies[i].mass = 1.0 / (double)n;
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    const long first = init_first(n), end = init_end(n);
    for (long i = first; i < end; i++)
        place(i);
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++)
        step_on(step);
    hiroba_barrier();
    keep_times(start, ready);
}

/* Compares the last accelerations of some bodies with direct sums over the positions of that time. */
static bool check(void)
{
    const long samples = n < 32 ? n : 32;
    double error = 0.0, size = 0.0;
    vector *before = private((size_t)n * sizeof *before);
    for (long i = 0; i < n; i++)
        for (int axis = 0; axis < AXES; axis++)
            before[i][axis] = bodies[i].position[axis] - STEP * bodies[i].velocity[axis];
    for (long s = 0; s < samples; s++) {
        const long i = s * n / samples;
        vector should = {0.0, 0.0, 0.0};
        for (long j = 0; j < n; j++)
            if (j != i)
                pull(should, before[i], before[j], bodies[j].mass);
        for (int axis = 0; axis < AXES; axis++) {
            error += pow(bodies[i].acceleration[axis] - should[axis], 2.0);
            size += pow(should[axis], 2.0);
        }
    }
    free(before);
    return sqrt(error) <= 0.02 * sqrt(size) ||
           wrong("the relative error of the accelerations is %g, expected .02 or less", sqrt(error / size));
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    bodies = shared((size_t)n * sizeof *bodies);
    cells = shared((size_t)(TOP_CELLS + threads * pool_size()) * sizeof *cells);
    scalars = shared(sizeof *scalars);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long i = 0; i < n; i++)
            for (int axis = 0; axis < AXES; axis++)
                checksum = with_bits(checksum, bodies[i].position[axis]);
    }
    return finish(right, checksum);
}
