/*
 * Grids whose rows many threads have: what `multigrid.h` computes on.
 *
 * Every thread has a block of rows of each grid, and reads some of those beside it. Read `lay_out`
 * first: it puts the rows that others read next to each other in memory, of all grids that are
 * written at the same time. So a neighbour fetches one run of memory behind a barrier, and not a
 * piece of each grid, and what nobody else reads never travels.
 */
#ifndef HIROBA_APPS_GRIDS_H
#define HIROBA_APPS_GRIDS_H

#include "common.h"

/* ---- Threads --------------------------------------------------------------------------------- */

/* Who computes: one of the threads, or alone once more for the checks. */
struct team {
    size_t index, count;
    bool is_real;
};

static void meet(const struct team *team)
{
    if (team->is_real)
        barrier();
}

/* The largest grid that each thread relaxes whole has so many rows and columns of cells. There are
 * no more threads than that. */
static size_t gathered_cells;
enum { MOST_GATHERED = 64 };

/* A thread's rows, from 1, of a grid no smaller than that: whole ones of that, so that the rows of
 * which it makes a coarser grid's are its own. */
static struct span rows_of(size_t rows, const struct team *team, size_t index)
{
    struct span span = share_of(gathered_cells, index, team->count);
    size_t scale = rows / gathered_cells;
    return (struct span){span.first * scale + 1, span.end * scale + 1};
}

/* ---- Private memory -------------------------------------------------------------------------- */

/* A thread's own memory, which lives until the program ends. */
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
 * The rows of a grid, 0 to rows + 1. In `all` are those of all threads, as they were at the last
 * barrier; in `own` this thread's and private ones beside them. In `known` are those of `own` that
 * this thread has computed as well as their owners have, as far as `know` was told, and else those
 * of `all`.
 */
struct grid {
    double **all, **own, **known;
};

/* What of a grid other threads read: rows so far from their own. */
struct reach {
    size_t nearest, farthest;
};

static const struct reach NOWHERE = {1, 0}, EVERYWHERE = {1, SIZE_MAX};

/*
 * The memory of all grids. Each thread has a part of it. At the front of that is what others read,
 * in the order in which they do, so that it is a few runs of memory and not a piece of each grid:
 * these travel, while what is behind them does not. Without memory only sizes are found.
 */
struct arena {
    double *memory;
    size_t part, front;          /* doubles of each part, and of its front */
    size_t read[MOST_GATHERED];  /* that are taken, by thread: in the front, */
    size_t unread[MOST_GATHERED]; /* and behind it */
};

enum { UNIT = 65536 }; /* of what travels at once, in bytes */

static size_t in_units(size_t doubles)
{
    const size_t unit = UNIT / sizeof(double);
    return (doubles + unit - 1) / unit * unit;
}

/* What is taken next is written at another time than what was before: it shares no unit with it. */
static void begin_unit(struct arena *arena)
{
    for (size_t thread = 0; thread < MOST_GATHERED; thread++)
        arena->read[thread] = in_units(arena->read[thread]);
}

/* Finds what the parts must hold, after all grids were laid out. */
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

/* Whether another thread than its own reads a row. */
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

/* The rows of a grid, and so many private ones beside this thread's own; those at the walls are a
 * row of zeros. */
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
