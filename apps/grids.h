/*
 * Grids whose rows are divided among many threads; `multigrid.h` computes on them.
 *
 * Each thread has a block of rows of each grid, and reads some rows of its neighbours. Read `lay_out` first:
 * it stores the rows that other threads read contiguously, for all grids that are written at the same time.
 * So after a barrier a neighbour fetches one run of memory instead of a piece of each grid, and rows that no
 * other thread reads never travel.
 */
#ifndef HIROBA_APPS_GRIDS_H
#define HIROBA_APPS_GRIDS_H

#include "common.h"

/* ---- Threads --------------------------------------------------------------------------------- */

/* A thread of the team that computes. The checks use a team of one. */
struct team {
    size_t index, count;
    bool is_real;
};

static void meet(const struct team *team)
{
    if (team->is_real)
        barrier();
}

/* Rows and columns of cells of the largest grid that each thread relaxes whole; also the limit for the
 * number of threads. */
static size_t gathered_cells;
enum { MOST_GATHERED = 64 };

/* The rows of a thread, counted from 1, in a grid of at least `gathered_cells` rows. They are whole rows
 * of that grid, so a thread makes its rows of a coarser grid from its own rows only. */
static struct span rows_of(size_t rows, const struct team *team, size_t index)
{
    struct span span = share_of(gathered_cells, index, team->count);
    size_t scale = rows / gathered_cells;
    return (struct span){span.first * scale + 1, span.end * scale + 1};
}

/* ---- Private memory -------------------------------------------------------------------------- */

/* Allocates private memory of a thread, which lives until the program ends. */
static void *private_zeroed(size_t bytes)
{
    const size_t line = 64;
    size_t whole = (bytes + line - 1) / line * line;
    void *memory = aligned_alloc(line, whole);
    if (memory == NULL) {
        fprintf(stderr, "%s: no memory for a thread's own rows\n", program);
        exit(1);
    }
    return memset(memory, 0, whole);
}

static double **private_rows(size_t rows, size_t width)
{
    double **table = private_zeroed((rows + 2) * sizeof *table);
    double *memory = private_zeroed((rows + 2) * width * sizeof *memory);
    for (size_t i = 0; i < rows + 2; i++)
        table[i] = memory + i * width;
    return table;
}

/* ---- Layout ---------------------------------------------------------------------------------- */

/*
 * Pointers to the rows of a grid, 0 to rows + 1. `all` has the rows of all threads as of the last barrier.
 * `own` has this thread's rows and private rows beside them. `known` has the rows of `own` that this thread
 * has computed exactly as their owners have (see `know`), and otherwise the rows of `all`.
 */
struct grid {
    double **all, **own, **known;
};

/* The rows of a grid that other threads read, by their distance from the reader's own rows. */
struct reach {
    size_t nearest, farthest;
};

static const struct reach NOWHERE = {1, 0}, EVERYWHERE = {1, SIZE_MAX};

/*
 * The memory of all grids. Each thread has a part of it. The front of a part has the rows that other threads
 * read, in the order in which they read them, as a few runs of memory instead of a piece of each grid. Only
 * the front travels. While `memory` is NULL only sizes are found.
 */
struct arena {
    double *memory;
    size_t part, front;          /* doubles in each part, and in its front */
    size_t read[MOST_GATHERED];  /* doubles taken by each thread in the front */
    size_t unread[MOST_GATHERED]; /* doubles taken by each thread after the front */
};

enum { UNIT = 65536 }; /* of coherence, in bytes */

static size_t in_units(size_t doubles)
{
    const size_t unit = UNIT / sizeof(double);
    return (doubles + unit - 1) / unit * unit;
}

/* Starts a new unit: the rows laid out next are written at another time than the ones before. */
static void begin_unit(struct arena *arena)
{
    for (size_t thread = 0; thread < MOST_GATHERED; thread++)
        arena->read[thread] = in_units(arena->read[thread]);
}

/* Finds the sizes of the parts, after all grids are laid out. */
static void measure(struct arena *arena)
{
    size_t behind = 0;
    begin_unit(arena);
    for (size_t thread = 0; thread < MOST_GATHERED; thread++) {
        arena->front = arena->read[thread] > arena->front ? arena->read[thread] : arena->front;
        behind = arena->unread[thread] > behind ? arena->unread[thread] : behind;
    }
    arena->part = arena->front + in_units(behind);
}

/* Returns true if another thread reads the row. */
static bool is_read(size_t row, size_t rows, const struct team *team, struct reach reach)
{
    for (size_t thread = 0; thread < team->count; thread++) {
        struct span span = rows_of(rows, team, thread);
        size_t distance = row < span.first  ? span.first - row
                          : row >= span.end ? row + 1 - span.end
                                            : 0;
        if (distance > 0 && distance >= reach.nearest && distance <= reach.farthest)
            return true;
    }
    return false;
}

/* Lays out the rows of a grid, with `beside` private rows on each side of this thread's own. The rows at
 * the walls are zeros. */
static struct grid lay_out(struct arena *arena, const struct team *team, size_t rows, size_t width,
                           size_t beside, struct reach reach)
{
    struct grid grid = {NULL, NULL, NULL};
    if (arena->memory != NULL) {
        double ***tables[] = {&grid.all, &grid.own, &grid.known};
        for (size_t table = 0; table < 3; table++)
            *tables[table] = private_zeroed((rows + 2) * sizeof(double *));
        grid.all[0] = grid.all[rows + 1] = private_zeroed(width * sizeof(double));
        grid.own[0] = grid.own[rows + 1] = grid.all[0];
    }
    for (size_t thread = 0; thread < team->count; thread++) {
        struct span span = rows_of(rows, team, thread);
        for (size_t i = span.first; i < span.end; i++) {
            bool is_front = is_read(i, rows, team, reach);
            size_t *taken = is_front ? &arena->read[thread] : &arena->unread[thread];
            size_t start = thread * arena->part + (is_front ? 0 : arena->front) + *taken;
            *taken += width;
            if (arena->memory == NULL)
                continue;
            grid.all[i] = arena->memory + start;
            if (thread == team->index)
                grid.own[i] = grid.all[i];
        }
    }
    if (arena->memory == NULL)
        return grid;
    struct span own = rows_of(rows, team, team->index);
    for (size_t i = own.first > beside ? own.first - beside : 1; i < own.end + beside && i <= rows; i++)
        if (grid.own[i] == NULL)
            grid.own[i] = private_zeroed(width * sizeof(double));
    memcpy(grid.known, grid.all, (rows + 2) * sizeof(double *));
    return grid;
}

static void know(struct grid *grid, struct span rows)
{
    for (size_t i = rows.first; i < rows.end; i++)
        grid->known[i] = grid->own[i];
}

static struct grid private_grid(size_t cells)
{
    double **rows = private_rows(cells, cells + 2);
    return (struct grid){rows, rows, rows};
}

#endif
