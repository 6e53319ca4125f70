/*
 * Multigrid on many threads: what `ocean` solves its elliptic equations with.
 *
 * Read `solve` first. The unknowns are the cells of a square with walls around, twice in each
 * direction of what they are on the next coarser grid. Every thread has a block of rows of each
 * grid; a relaxation reads some rows more on both sides from its neighbours, and computes again
 * privately what these compute there at the same time. The more rows, the more can follow without
 * a barrier: several sweeps, the way up on the finest grid and the next way down on it, and
 * grids whose rows are short. Grids that are small enough each thread relaxes whole, for itself.
 * Equations that do not depend on one another are solved at once, so that they share barriers,
 * and what one of them reads travels while another is computed.
 *
 * Where threads meet so seldom, one may be a cycle ahead of what its neighbours read. So all that
 * they read of each other is there twice, and cycles use the two in turn.
 */
#ifndef HIROBA_APPS_MULTIGRID_H
#define HIROBA_APPS_MULTIGRID_H

#include "common.h"

/* ---- Fields ---------------------------------------------------------------------------------- */

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

/* The largest grid that each thread relaxes whole has so many rows and columns of cells. */
static size_t gathered_cells;
enum { MOST_GATHERED = 64 };

/* Up to so many cells an edge threads do not meet between a grid and the next coarser one. */
enum { MOST_UNMET = 256 };

/* A thread's rows, from 1, of a grid no smaller than that: whole ones of that, so that the rows of
 * which it makes a coarser grid's are its own. */
static struct span rows_of(size_t rows, const struct team *team, size_t index)
{
    struct span span = share_of(gathered_cells, index, team->count);
    size_t scale = rows / gathered_cells;
    return (struct span){span.first * scale + 1, span.end * scale + 1};
}

enum { SWEEPS = 2 }; /* before and after the coarser grid, red and black each */
enum { REACH = 2 * SWEEPS }; /* rows more on either side that these need than they make right */

/* The most rows of a grid that one thread has. */
static size_t most_rows(size_t rows, const struct team *team)
{
    return (gathered_cells + team->count - 1) / team->count * (rows / gathered_cells);
}

enum { LEAST_UNIT = 4096, MOST_UNIT = 8192 };

/* What of a grid travels at once, in bytes: no more than about what others read, and not much at
 * that, or they get rows they do not need, or what is behind a thread's last row. */
static size_t unit_of(size_t rows, size_t width, const struct team *team)
{
    size_t read = rows == gathered_cells ? most_rows(rows, team) : 2 * REACH + 1, unit = LEAST_UNIT;
    while (unit < MOST_UNIT && unit < read * width * sizeof(double))
        unit *= 2;
    return unit;
}

/* Doubles that a thread's rows take, up to the end of a unit. */
static size_t section(size_t rows, size_t width, const struct team *team)
{
    size_t unit = unit_of(rows, width, team) / sizeof(double);
    return (most_rows(rows, team) * width + unit - 1) / unit * unit;
}

/*
 * The rows of a grid, 0 to rows + 1. In `all` are those of all threads, as they were at the last
 * barrier; in `own` this thread's and private ones beside them. Without `own` they are read only.
 * In `known` are those of `own` that this thread has computed as well as their owners have, as far
 * as `know` was told, and else those of `all`.
 */
struct grid {
    double **all, **own, **known;
};

/*
 * One level of a multigrid: unknowns and right sides, rows and columns 0 to cells + 1. Where they
 * are shared they are there twice, and a cycle takes those of its turn: it relaxes unknowns[turn]
 * on its way down, and makes unknowns[1 - turn] of them on its way up.
 */
struct level {
    size_t cells;
    bool is_gathered; /* the right sides are shared, and each thread has unknowns of its own */
    bool meets;       /* threads meet between this level and the next, down and up */
    size_t down, up;  /* rows beside its own that a thread makes right, on its way down and up */
    struct span mine;
    struct grid unknowns[2], right[2];
    double *diagonal[2];  /* of rows inside, at a wall; by column */
    double *weight[2][2]; /* 1 / diagonal, or 0 in columns of the other colour */
};

enum { MOST_LEVELS = 15, MOST_EQUATIONS = 2 };

/* A multigrid for one of the equations; the solution are the finest level's unknowns[turn]. */
struct solver {
    size_t levels, gathered; /* the level that is gathered, and those behind it, are private */
    size_t turn;
    struct level level[MOST_LEVELS];
};

/* What a thread needs for itself, whatever it solves. */
struct bench {
    struct team team;
    double **zeros;  /* rows of them */
    double *buffer;  /* for four rows */
    uint64_t cycles; /* so many were made */
    bool has_failed; /* an equation was not solved in MOST_CYCLES */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

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

/* The rows of a grid in memory for so many threads, and so many private ones beside this thread's
 * own; those at the walls are a row of zeros. */
static struct grid grid_over(double *memory, const struct team *team, size_t rows, size_t width,
                             size_t beside)
{
    struct grid grid = {private_zeroed((rows + 2) * sizeof(double *)),
                        private_zeroed((rows + 2) * sizeof(double *)),
                        private_zeroed((rows + 2) * sizeof(double *))};
    grid.all[0] = grid.all[rows + 1] = private_zeroed(width * sizeof(double));
    grid.own[0] = grid.own[rows + 1] = grid.all[0];
    for (size_t thread = 0; thread < team->count; thread++) {
        struct span span = rows_of(rows, team, thread);
        size_t room = section(rows, width, team), used = (span.end - span.first) * width;
        /* Who has a neighbour behind it ends with a unit, so that this reads as few as may be. */
        double *start = memory + thread * room + (thread + 1 < team->count ? room - used : 0);
        for (size_t i = span.first; i < span.end; i++) {
            grid.all[i] = start + (i - span.first) * width;
            if (thread == team->index)
                grid.own[i] = grid.all[i];
        }
    }
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

/* ---- Relaxation ------------------------------------------------------------------------------ */

/*
 * An equation is: the sum of a cell's four neighbours - diagonal * the cell = the right side. A
 * neighbour beyond a wall is minus the cell, so that it counts as one more in the diagonal and is
 * stored as 0.
 */

/* A row relaxed: only the cells whose weight is not 0. Returns through `to`, which may be `row`. */
static void relax_row(double *restrict buffer, double *to, const double *above, const double *row,
                      const double *below, const double *right, const double *diagonal,
                      const double *weight, size_t cells)
{
    for (size_t j = 1; j <= cells; j++)
        buffer[j] = row[j] + weight[j] * (((above[j] + below[j]) + (row[j - 1] + row[j + 1])) -
                                          right[j] - diagonal[j] * row[j]);
    memcpy(to + 1, buffer + 1, cells * sizeof *to);
}

static bool at_wall(const struct level *l, size_t i)
{
    return i == 1 || i == l->cells;
}

static struct span clipped(const struct level *l, size_t first, size_t end, size_t more)
{
    return (struct span){first > more ? first - more : 1,
                         end + more < l->cells + 1 ? end + more : l->cells + 1};
}

/* One colour of a row. */
static void relax_colour(const struct level *l, double **right, double *buffer, double **from,
                         double **to, size_t i, size_t colour)
{
    relax_row(buffer, to[i], from[i - 1], from[i], from[i + 1], right[i], l->diagonal[at_wall(l, i)],
              l->weight[at_wall(l, i)][(i + colour) % 2], l->cells);
}

/* All sweeps of a visit, so that the rows first <= i < end are right. The first colour goes from
 * `from` to `to`, in which the rest happens. Each colour follows a row behind the one before it, so
 * that rows are still near when they are needed again. */
static void relax(const struct level *l, double **right, double *buffer, double **from, double **to,
                  size_t first, size_t end, size_t sweeps)
{
    const size_t colours = 2 * sweeps;
    struct span all = clipped(l, first, end, colours - 1);
    for (size_t front = all.first; front < all.end + colours - 1; front++)
        for (size_t k = 0; k < colours && k + 1 <= front; k++) {
            struct span rows = clipped(l, first, end, colours - 1 - k);
            if (front - k >= rows.first && front - k < rows.end)
                relax_colour(l, right, buffer, k == 0 ? from : to, to, front - k, k % 2);
        }
}

/* What is missing in a row's equations. */
static void residual_row(const struct level *l, const double *right, double **rows, size_t i,
                         double *restrict residual)
{
    const double *above = rows[i - 1], *row = rows[i], *below = rows[i + 1];
    const double *diagonal = l->diagonal[at_wall(l, i)];
    for (size_t j = 1; j <= l->cells; j++)
        residual[j] = right[j] + diagonal[j] * row[j] -
                      ((above[j] + below[j]) + (row[j - 1] + row[j + 1]));
}

/* The largest size of a row's numbers, and of what was found before. */
static double largest(const double *row, size_t cells, double most)
{
    enum { WIDTH = 8 };
    double lanes[WIDTH] = {0.0};
    size_t j = 1;
    for (; j + WIDTH <= cells + 1; j += WIDTH)
        for (size_t k = 0; k < WIDTH; k++)
            lanes[k] = fabs(row[j + k]) > lanes[k] ? fabs(row[j + k]) : lanes[k];
    for (; j <= cells; j++)
        most = fabs(row[j]) > most ? fabs(row[j]) : most;
    for (size_t k = 0; k < WIDTH; k++)
        most = lanes[k] > most ? lanes[k] : most;
    return most;
}

/* Makes some of the coarser grid's right sides; the largest residual and right side there. */
static void restrict_residuals(const struct level *l, double **right, double **rows,
                               double **coarse_right, struct span coarse, double *buffer,
                               double most[2])
{
    double *upper = buffer, *lower = buffer + l->cells + 2;
    for (size_t i = coarse.first; i < coarse.end; i++) {
        residual_row(l, right[2 * i - 1], rows, 2 * i - 1, upper);
        residual_row(l, right[2 * i], rows, 2 * i, lower);
        double *to = coarse_right[i];
        for (size_t j = 1; j <= l->cells / 2; j++)
            to[j] = (upper[2 * j - 1] + upper[2 * j]) + (lower[2 * j - 1] + lower[2 * j]);
        most[0] = largest(lower, l->cells, largest(upper, l->cells, most[0]));
        most[1] = largest(right[2 * i], l->cells, most[1]);
        most[1] = largest(right[2 * i - 1], l->cells, most[1]);
    }
}

/* to = row + what a coarser grid's solution says, three quarters of it by the nearest cells. */
static void correct_row(double *restrict to, const double *restrict row, const double *near,
                        const double *far, bool is_far_wall, double *restrict mixed, size_t cells)
{
    double sign = is_far_wall ? -1.0 : 1.0; /* beyond a wall is minus the nearest */
    const double *other = is_far_wall ? near : far;
    for (size_t j = 1; j <= cells / 2; j++)
        mixed[j] = 0.75 * near[j] + 0.25 * sign * other[j];
    mixed[0] = -mixed[1];
    mixed[cells / 2 + 1] = -mixed[cells / 2];
    for (size_t j = 1; j <= cells / 2; j++) {
        to[2 * j - 1] = row[2 * j - 1] + (0.75 * mixed[j] + 0.25 * mixed[j - 1]);
        to[2 * j] = row[2 * j] + (0.75 * mixed[j] + 0.25 * mixed[j + 1]);
    }
}

static void correct_rows(const struct level *l, const struct level *coarser, double **coarse,
                         double **from, double **to, struct span rows, double *buffer)
{
    for (size_t i = rows.first; i < rows.end; i++) {
        size_t near = (i + 1) / 2, far = i % 2 == 1 ? near - 1 : near + 1;
        correct_row(to[i], from[i], coarse[near], coarse[far], far < 1 || far > coarser->cells,
                    buffer, l->cells);
    }
}

/* ---- Multigrid ------------------------------------------------------------------------------- */

enum { COARSEST_SWEEPS = 12 };

/* From the level down and up again, for grids that a thread has for itself: `from` 0. */
static void cycle_privately(struct solver *s, size_t level, double *buffer)
{
    struct level *l = &s->level[level], *coarser = l + 1;
    double **rows = l->unknowns[0].own, **right = l->right[s->turn].all, most[2] = {0.0, 0.0};
    const size_t end = l->cells + 1;
    for (size_t i = 1; i < end; i++)
        memset(rows[i], 0, (l->cells + 2) * sizeof **rows);
    if (level + 1 == s->levels) {
        relax(l, right, buffer, rows, rows, 1, end, COARSEST_SWEEPS);
        return;
    }
    relax(l, right, buffer, rows, rows, 1, end, SWEEPS);
    restrict_residuals(l, right, rows, coarser->right[s->turn].own, coarser->mine, buffer, most);
    cycle_privately(s, level + 1, buffer);
    correct_rows(l, coarser, coarser->unknowns[0].own, rows, rows, (struct span){1, end}, buffer);
    relax(l, right, buffer, rows, rows, 1, end, SWEEPS);
}

/* Which of the rows in `from` will be read soon and are other threads': so many beside this
 * thread's. They lie apart where another thread's begin. */
static void announce(struct soon *soon, const struct level *l, const struct grid *grid, double **from,
                     size_t reach)
{
    struct span wide = clipped(l, l->mine.first, l->mine.end, reach);
    const size_t width = l->cells + 2;
    for (size_t i = wide.first, next; i < wide.end; i = next) {
        next = i + 1;
        if (from[i] == grid->own[i])
            continue;
        while (next < wide.end && from[next] == from[next - 1] + width && from[next] != grid->own[next])
            next++;
        add_to_soon(soon, from[i], (next - i) * width * sizeof(double));
    }
}

/* How many rows beside a thread's own it must make right at each level, so that all that follows
 * until threads meet is right as well, and so many rows of the solution. */
static void set_reach(struct solver *s, size_t beside)
{
    for (size_t level = s->gathered; level-- > 0;) {
        struct level *l = &s->level[level];
        l->meets = level + 1 == s->gathered || l->cells > MOST_UNMET;
        l->down = l->meets ? 1 : 2 * (l[1].down + REACH - 1) + 1;
    }
    s->level[0].down = s->level[0].down > beside ? s->level[0].down : beside;
    s->level[0].up = s->level[0].down + REACH;
    for (size_t level = 1; level < s->gathered; level++) {
        struct level *l = &s->level[level];
        l->up = l[-1].meets ? 0 : (l[-1].up + REACH) / 2 + 1;
    }
}

/* Rows beside a thread's own that it writes privately. */
static size_t rows_beside(const struct level *l)
{
    return (l->down > l->up ? l->down : l->up) + REACH;
}

/* Relaxes a shared level's unknowns of this turn, and makes the right sides of the next level.
 * `most` becomes the largest residual and right side. */
static void go_down(const struct bench *b, const struct solver *s, size_t level, double **from,
                    double most[2])
{
    const struct level *l = &s->level[level], *coarser = l + 1;
    double **to = l->unknowns[s->turn].own, **right = l->right[s->turn].all;
    if (level > 0 && !l[-1].meets)
        right = l->right[s->turn].own; /* what the level above made of them, the private ones too */
    struct span rows = clipped(l, l->mine.first, l->mine.end, l->down);
    relax(l, right, b->buffer, from, to, rows.first, rows.end, SWEEPS);
    struct span coarse = clipped(coarser, coarser->mine.first, coarser->mine.end,
                                 l->meets ? 0 : coarser->down + REACH - 1);
    most[0] = most[1] = 0.0;
    restrict_residuals(l, right, to, coarser->right[s->turn].own, coarse, b->buffer, most);
}

/* The way down on the finest grid, whose residuals tell whether the equations hold. They travel
 * with the right sides of the grid that all read, in the columns outside of the walls. */
static void go_down_first(const struct bench *b, const struct solver *s, double **from)
{
    const struct level *gathered = &s->level[s->gathered];
    double most[2], *row = gathered->right[s->turn].own[gathered->mine.first];
    go_down(b, s, 0, from, most);
    row[0] = most[0];
    row[gathered->cells + 1] = most[1];
}

/* Corrects a shared level by what the next one says, and relaxes it, all into the other unknowns. */
static void go_up(const struct bench *b, const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level], *coarser = l + 1;
    double **from = l->unknowns[s->turn].known, **to = l->unknowns[1 - s->turn].own, **coarse;
    coarse = coarser->is_gathered ? coarser->unknowns[0].own
             : l->meets           ? coarser->unknowns[1 - s->turn].all
                                  : coarser->unknowns[1 - s->turn].own;
    struct span rows = clipped(l, l->mine.first, l->mine.end, l->up);
    correct_rows(l, coarser, coarse, from, to, clipped(l, rows.first, rows.end, REACH), b->buffer);
    relax(l, l->right[s->turn].known, b->buffer, to, to, rows.first, rows.end, SWEEPS);
}

/* Meets the others where a level and the next one need it. */
static void meet_between(const struct bench *b, const struct solver *s, size_t level)
{
    if (s->level[level].meets)
        meet(&b->team);
}

static const double TOLERANCE = 1e-7; /* of the largest right side */
enum { MOST_CYCLES = 60 };

/* What all threads found to be the largest residual and right side. */
static bool holds(const struct bench *b, const struct solver *s)
{
    const struct level *gathered = &s->level[s->gathered];
    double residual = 0.0, right = 0.0;
    for (size_t thread = 0; thread < b->team.count; thread++) {
        const double *row =
            gathered->right[s->turn].all[rows_of(gathered->cells, &b->team, thread).first];
        residual = row[0] > residual ? row[0] : residual;
        right = row[gathered->cells + 1] > right ? row[gathered->cells + 1] : right;
    }
    return residual <= TOLERANCE * right;
}

/* What `go_down` reads of other threads'. */
static void announce_down(struct soon *soon, const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level];
    if (level == 0)
        announce(soon, l, &l->unknowns[1 - s->turn], l->unknowns[1 - s->turn].all, l->down + REACH);
    if (level == 0 || l[-1].meets)
        announce(soon, l, &l->right[s->turn], l->right[s->turn].all, l->down + REACH - 1);
}

/* What a cycle reads of other threads' between its ways down and up. */
static void announce_turn(struct soon *soon, const struct solver *s)
{
    const struct level *gathered = &s->level[s->gathered];
    announce(soon, gathered, &gathered->right[s->turn], gathered->right[s->turn].all, gathered->cells);
    for (const struct level *l = gathered; l-- > s->level;) {
        announce(soon, l, &l->unknowns[s->turn], l->unknowns[s->turn].known, l->up + REACH);
        announce(soon, l, &l->right[s->turn], l->right[s->turn].known, l->up + REACH - 1);
    }
}

/* What `go_up` reads of the next level, beside that. */
static void announce_up(struct soon *soon, const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level], *coarser = l + 1;
    if (!coarser->is_gathered && l->meets)
        announce(soon, coarser, &coarser->unknowns[1 - s->turn], coarser->unknowns[1 - s->turn].all,
                 (l->up + REACH) / 2 + 1);
}

/* Cycles through all levels until all equations hold. The right sides are there, and the unknowns
 * some guess. The equations have as many levels. Collective. */
static void solve(struct bench *b, struct solver *solvers, size_t equations)
{
    struct solver *left[MOST_EQUATIONS]; /* that are not solved yet */
    const size_t gathered = solvers->gathered;
    struct soon soon = {0};
    double unused[2];
    for (size_t e = 0; e < equations; e++) {
        left[e] = solvers + e;
        left[e]->turn = 1 - left[e]->turn;
        announce_down(&soon, left[e], 0);
    }
    read_all_soon(&soon);
    for (size_t e = 0; e < equations; e++)
        go_down_first(b, left[e], left[e]->level[0].unknowns[1 - left[e]->turn].all);
    for (size_t cycle = 0; cycle < MOST_CYCLES; cycle++) {
        for (size_t level = 1; level < gathered; level++) {
            meet_between(b, solvers, level - 1);
            for (size_t e = 0; e < equations; e++)
                announce_down(&soon, left[e], level);
            read_all_soon(&soon);
            for (size_t e = 0; e < equations; e++)
                go_down(b, left[e], level, b->zeros, unused);
        }
        meet_between(b, solvers, gathered - 1);
        for (size_t e = 0; e < equations; e++)
            announce_turn(&soon, left[e]);
        read_all_soon(&soon);
        size_t unsolved = 0;
        for (size_t e = 0; e < equations; e++)
            if (!holds(b, left[e])) {
                left[unsolved++] = left[e];
                cycle_privately(left[e], gathered, b->buffer);
            }
        equations = unsolved;
        if (equations == 0)
            return;
        b->cycles += equations;
        for (size_t level = gathered - 1; level > 0; level--) {
            for (size_t e = 0; e < equations; e++)
                go_up(b, left[e], level);
            meet_between(b, solvers, level - 1);
            for (size_t e = 0; e < equations; e++)
                announce_up(&soon, left[e], level - 1);
            read_all_soon(&soon);
        }
        for (size_t e = 0; e < equations; e++) {
            go_up(b, left[e], 0);
            left[e]->turn = 1 - left[e]->turn;
            go_down_first(b, left[e], left[e]->level[0].unknowns[left[e]->turn].own);
        }
    }
    b->has_failed = true;
}

static double **solution(const struct solver *s)
{
    return s->level[0].unknowns[s->turn].own;
}

/* The coefficients of a level: `extra` in the diagonal beside the four neighbours. */
static void set_coefficients(struct level *l, double extra)
{
    size_t width = l->cells + 2;
    for (size_t wall = 0; wall < 2; wall++) {
        l->diagonal[wall] = private_zeroed(width * sizeof(double));
        l->weight[wall][0] = private_zeroed(width * sizeof(double));
        l->weight[wall][1] = private_zeroed(width * sizeof(double));
        for (size_t j = 1; j <= l->cells; j++) {
            double d = 4.0 + extra + (double)wall + (j == 1 || j == l->cells ? 1.0 : 0.0);
            l->diagonal[wall][j] = d;
            l->weight[wall][j % 2][j] = 1.0 / d;
        }
    }
}

#endif
