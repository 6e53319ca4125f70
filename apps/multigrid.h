/*
 * Multigrid with many threads; `ocean` solves its elliptic equations with it.
 *
 * Read `solve` first. The unknowns are the cells of a square with walls around it; each grid has twice as
 * many cells in each direction as the next coarser grid. Each thread has a block of rows of each grid. A
 * relaxation reads some more rows on both sides from the neighbours, and computes privately what these
 * compute there at the same time. The more rows it reads, the more steps can follow without a barrier:
 * several sweeps, the way up on the finest grid and the next way down on it, and grids whose rows are short.
 * Each thread relaxes the small grids whole and privately. Equations that do not depend on one another are
 * solved at once, so that they share barriers, and the data of one travel while another is computed.
 *
 * Because barriers are so rare, one thread may be a cycle ahead of its neighbours. So the data that they read
 * from each other exist twice, and cycles use the two copies in turn.
 */
#ifndef HIROBA_APPS_MULTIGRID_H
#define HIROBA_APPS_MULTIGRID_H

#include "grids.h"

/* ---- Levels ---------------------------------------------------------------------------------- */

/* Up to this many cells along an edge there is no barrier between a grid and the next coarser one. */
enum { MOST_UNMET = 512 };

enum { SWEEPS = 2 }; /* before and after the coarser grid; each is a red and a black one */
enum { REACH = 2 * SWEEPS }; /* more rows on each side that the sweeps read than they make right */

/*
 * One level of a multigrid: unknowns and right sides, rows and columns 0 to cells + 1. Shared ones exist
 * twice, and a cycle uses those of its turn: it relaxes unknowns[turn] on its way down, and makes the
 * unknowns of the other turn from them on its way up.
 */
struct level {
    size_t cells;
    bool is_gathered; /* the right sides are shared, and each thread has private unknowns */
    bool meets;       /* there is a barrier between this level and the next, down and up */
    bool makes_right; /* each thread computes the right sides beside its own rows that it needs */
    size_t down, up;  /* rows beside its own that a thread makes right on its way down and up */
    struct span mine;
    struct grid unknowns[2], right[2];
    double *diagonal[2];  /* for inner rows, and for rows at a wall; by column */
    double *weight[2][2]; /* 1 / diagonal, or 0 in columns of the other colour */
};

enum { MOST_LEVELS = 15, MOST_EQUATIONS = 2 };

/* Columns outside of the walls that travel with the right sides of the gathered grid: RESIDUAL, and RIGHT and
 * SUM counted from the last cell. */
enum { RESIDUAL = 0, RIGHT = 1, SUM = 2, GATHERED_WIDTH = 3 };

/* Doubles from one row of right sides to the next. */
static size_t right_width(const struct level *l)
{
    return l->cells + (l->is_gathered ? GATHERED_WIDTH : 2);
}

/* A multigrid for one of the equations. The solution is in the finest level's unknowns[turn]. */
struct solver {
    size_t levels, gathered; /* level number `gathered` and all coarser ones are private */
    size_t turn;
    bool is_summed; /* the sum of the solution is needed */
    struct level level[MOST_LEVELS];
};

/* The private state of a thread, independent of the equations. */
struct bench {
    struct team team;
    double **zeros;  /* rows of zeros */
    double *buffer;  /* for four rows */
    uint64_t cycles; /* how many cycles were made */
    bool has_failed; /* an equation was not solved in MOST_CYCLES */
};

/* ---- Relaxation ------------------------------------------------------------------------------ */

/*
 * The equation of a cell: the sum of its four neighbours - diagonal * the cell = the right side. The value
 * beyond a wall is minus the cell's, so it counts as one more in the diagonal and is stored as 0.
 */

/* Relaxes the cells of a row whose weight is not 0. The result goes to `to`, which may be `row`. */
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

/* Relaxes one colour of a row. */
static void relax_colour(const struct level *l, double **right, double *buffer, double **from,
                         double **to, size_t i, size_t colour)
{
    relax_row(buffer, to[i], from[i - 1], from[i], from[i + 1], right[i], l->diagonal[at_wall(l, i)],
              l->weight[at_wall(l, i)][(i + colour) % 2], l->cells);
}

/* Makes all sweeps of a visit, so that the rows first <= i < end are right. The first colour goes from
 * `from` to `to`; all others work in `to`. Each colour follows one row after the one before it, so that
 * rows are still in the cache. */
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

/* The residuals of a row. */
static void residual_row(const struct level *l, const double *right, double **rows, size_t i,
                         double *restrict residual)
{
    const double *above = rows[i - 1], *row = rows[i], *below = rows[i + 1];
    const double *diagonal = l->diagonal[at_wall(l, i)];
    for (size_t j = 1; j <= l->cells; j++)
        residual[j] = right[j] + diagonal[j] * row[j] -
                      ((above[j] + below[j]) + (row[j - 1] + row[j + 1]));
}

/* The largest absolute value of a row, or `most` if that is larger. */
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

/* Makes some of the coarser grid's right sides. Sets `most` to the largest residual and right side there. */
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

/* to = row + a coarser grid's solution, interpolated: three quarters of it from the nearest cells. */
static void correct_row(double *restrict to, const double *restrict row, const double *near,
                        const double *far, bool is_far_wall, double *restrict mixed, size_t cells)
{
    double sign = is_far_wall ? -1.0 : 1.0; /* the value beyond a wall is minus the nearest one */
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

/* Goes from the level down and up again, for private grids. The first guess is 0. */
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

/* Announces the rows of `from` within `reach` of this thread's own rows that other threads own. Runs are
 * split where another thread's rows begin. */
static void announce(struct soon *soon, const struct level *l, const struct grid *grid, double **from,
                     size_t reach)
{
    struct span wide = clipped(l, l->mine.first, l->mine.end, reach);
    const size_t width = right_width(l); /* unknowns of a gathered level are not read */
    for (size_t i = wide.first, next; i < wide.end; i = next) {
        next = i + 1;
        if (from[i] == grid->own[i])
            continue;
        while (next < wide.end && from[next] == from[next - 1] + width && from[next] != grid->own[next])
            next++;
        add_to_soon(soon, from[i], (next - i) * width * sizeof(double));
    }
}

/* The rows beside a thread's own that the way up needs of the next level, to make `up` rows right. */
static size_t coarser_beside(const struct level *l)
{
    return (l->up + REACH) / 2 + 1;
}

/* Finds the number of rows beside its own that a thread must make right at each level, so that everything
 * up to the next barrier is right as well. */
static void set_reach(struct solver *s)
{
    for (size_t level = s->gathered; level-- > 0;) {
        struct level *l = &s->level[level];
        l->meets = level + 1 == s->gathered || l->cells > MOST_UNMET;
        l->down = l->meets ? 1 : 2 * (l[1].down + REACH - 1) + 1;
    }
    s->level[0].up = s->level[0].down + REACH;
    s->level[0].makes_right = true;
    for (size_t level = 1; level < s->gathered; level++) {
        struct level *l = &s->level[level];
        l->up = l[-1].meets ? 0 : coarser_beside(l - 1);
        l->makes_right = !l[-1].meets;
    }
}

/* The rows beside a thread's own whose right sides it must make before `solve`. */
static size_t right_beside(const struct solver *s)
{
    return s->level[0].up + REACH - 1;
}

/* The rows beside a thread's own for which it has the solution. They suffice for the next right sides,
 * which depend on cells up to two further. */
static size_t solved_beside(const struct solver *s)
{
    return right_beside(s) + 2;
}

/* The rows beside a thread's own that it writes privately. */
static size_t rows_beside(const struct level *l)
{
    return (l->down > l->up ? l->down : l->up) + REACH;
}

/* The unknowns of a level that other threads read: those of `announce_turn`, and of `announce_up` for the
 * level above. */
static struct reach unknowns_read(const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level];
    struct reach reach = {l->down + 1, level == 0 ? solved_beside(s) : l->up + REACH};
    if (level > 0 && l[-1].meets) {
        size_t farthest = coarser_beside(l - 1);
        reach.nearest = 1;
        reach.farthest = farthest > reach.farthest ? farthest : reach.farthest;
    }
    return reach;
}

/* The right sides of a level that other threads read. */
static struct reach right_read(const struct level *l)
{
    if (l->is_gathered)
        return EVERYWHERE;
    return (struct reach){l->makes_right ? l->down + REACH : 1, l->up + REACH - 1};
}

/* Lays out the grids of a solver, for both turns, in the order in which they are read after a barrier. */
static void lay_out_levels(struct solver *s, struct arena *arena, const struct team *team)
{
    struct level *finest = s->level;
    finest->right[0] = finest->right[1] =
        lay_out(arena, team, finest->cells, finest->cells + 2, rows_beside(finest), NOWHERE);
    for (size_t turn = 0; turn < 2; turn++)
        for (size_t level = s->gathered; level-- > 0;) {
            struct level *l = s->level + level, *coarser = l + 1;
            if (l->meets)
                begin_unit(arena);
            coarser->right[turn] = lay_out(arena, team, coarser->cells, right_width(coarser),
                                           rows_beside(coarser), right_read(coarser));
            l->unknowns[turn] = lay_out(arena, team, l->cells, l->cells + 2, rows_beside(l),
                                        unknowns_read(s, level));
        }
    if (arena->memory == NULL)
        return;
    for (struct level *l = s->level; l < s->level + s->gathered; l++)
        for (size_t turn = 0; turn < 2; turn++) {
            know(&l->unknowns[turn], clipped(l, l->mine.first, l->mine.end, l->down));
            if (l == finest)
                know(&l->right[turn], clipped(l, l->mine.first, l->mine.end, right_beside(s)));
            else if (l->makes_right)
                know(&l->right[turn], clipped(l, l->mine.first, l->mine.end, l->down + REACH - 1));
        }
}

/* Relaxes a shared level's unknowns of this turn, and makes the right sides of the next level. Sets `most`
 * to the largest residual and right side. */
static void go_down(const struct bench *b, const struct solver *s, size_t level, double **from,
                    double most[2])
{
    const struct level *l = &s->level[level], *coarser = l + 1;
    double **to = l->unknowns[s->turn].own;
    double **right = l->makes_right ? l->right[s->turn].own : l->right[s->turn].all;
    struct span rows = clipped(l, l->mine.first, l->mine.end, l->down);
    relax(l, right, b->buffer, from, to, rows.first, rows.end, SWEEPS);
    struct span coarse = clipped(coarser, coarser->mine.first, coarser->mine.end,
                                 l->meets ? 0 : coarser->down + REACH - 1);
    most[0] = most[1] = 0.0;
    restrict_residuals(l, right, to, coarser->right[s->turn].own, coarse, b->buffer, most);
}

/* The sum of a row, in an order that vectorises. */
static double row_sum(const double *row, size_t cells)
{
    enum { WIDTH = 8 };
    double sums[WIDTH] = {0.0}, sum = 0.0;
    size_t j = 1;
    for (; j + WIDTH <= cells + 1; j += WIDTH)
        for (size_t k = 0; k < WIDTH; k++)
            sums[k] += row[j + k];
    for (; j <= cells; j++)
        sum += row[j];
    for (size_t k = 0; k < WIDTH; k++)
        sum += sums[k];
    return sum;
}

/* Goes down on the finest grid, whose residuals show whether the equations hold. The largest residual and
 * right side travel with the right sides of the gathered grid, in columns outside of the walls; so do the
 * sums of the solution if they are needed. */
static void go_down_first(const struct bench *b, const struct solver *s, double **from)
{
    const struct level *l = s->level, *gathered = l + s->gathered;
    const size_t scale = l->cells / gathered->cells;
    double most[2], **rows = gathered->right[s->turn].own;
    go_down(b, s, 0, from, most);
    rows[gathered->mine.first][RESIDUAL] = most[0];
    rows[gathered->mine.first][gathered->cells + RIGHT] = most[1];
    for (size_t i = gathered->mine.first; s->is_summed && i < gathered->mine.end; i++) {
        double sum = 0.0;
        for (size_t fine = (i - 1) * scale + 1; fine <= i * scale; fine++)
            sum += row_sum(l->unknowns[s->turn].own[fine], l->cells);
        rows[i][gathered->cells + SUM] = sum;
    }
}

/* Corrects a shared level by the solution of the next one, and relaxes it, into the unknowns of the other
 * turn. */
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

/* Waits at a barrier if a level and the next one need it. */
static void meet_between(const struct bench *b, const struct solver *s, size_t level)
{
    if (s->level[level].meets)
        meet(&b->team);
}

static const double TOLERANCE = 1e-7; /* of the largest right side */
enum { MOST_CYCLES = 60 };

/* Returns true if the largest residual of all threads is small against the largest right side. */
static bool holds(const struct bench *b, const struct solver *s)
{
    const struct level *gathered = &s->level[s->gathered];
    double residual = 0.0, right = 0.0;
    for (size_t thread = 0; thread < b->team.count; thread++) {
        const double *row =
            gathered->right[s->turn].all[rows_of(gathered->cells, &b->team, thread).first];
        residual = row[RESIDUAL] > residual ? row[RESIDUAL] : residual;
        right = row[gathered->cells + RIGHT] > right ? row[gathered->cells + RIGHT] : right;
    }
    return residual <= TOLERANCE * right;
}

/* Announces what `go_down` reads from other threads. */
static void announce_down(struct soon *soon, const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level];
    if (!l->makes_right)
        announce(soon, l, &l->right[s->turn], l->right[s->turn].all, l->down + REACH - 1);
}

/* Announces what a cycle reads from other threads between its ways down and up. */
static void announce_turn(struct soon *soon, const struct solver *s)
{
    const struct level *gathered = &s->level[s->gathered];
    announce(soon, gathered, &gathered->right[s->turn], gathered->right[s->turn].all, gathered->cells);
    for (const struct level *l = gathered; l-- > s->level;) {
        announce(soon, l, &l->unknowns[s->turn], l->unknowns[s->turn].known,
                 l == s->level ? solved_beside(s) : l->up + REACH);
        announce(soon, l, &l->right[s->turn], l->right[s->turn].known, l->up + REACH - 1);
    }
}

/* Announces what `go_up` reads of the next level in addition. */
static void announce_up(struct soon *soon, const struct solver *s, size_t level)
{
    const struct level *l = &s->level[level], *coarser = l + 1;
    if (!coarser->is_gathered && l->meets)
        announce(soon, coarser, &coarser->unknowns[1 - s->turn], coarser->unknowns[1 - s->turn].all,
                 coarser_beside(l));
}

/* Cycles through all levels until all equations hold. The right sides must be set, also for `right_beside`
 * rows beside each thread's own, and the unknowns to a guess. All equations have the same number of
 * levels. Collective. */
static void solve(struct bench *b, struct solver *solvers, size_t equations)
{
    struct solver *left[MOST_EQUATIONS]; /* not solved yet */
    const size_t gathered = solvers->gathered;
    struct soon soon = {0};
    double unused[2];
    for (size_t e = 0; e < equations; e++) {
        left[e] = solvers + e;
        left[e]->turn = 1 - left[e]->turn;
        go_down_first(b, left[e], left[e]->level[0].unknowns[1 - left[e]->turn].known);
    }
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

/* The rows of the solution: this thread's own, and those `solved_beside` them. */
static double **solution(const struct solver *s)
{
    return s->level[0].unknowns[s->turn].known;
}

/* The sum of the whole solution, if `is_summed`. */
static double solution_sum(const struct solver *s)
{
    const struct level *gathered = &s->level[s->gathered];
    double sum = 0.0;
    for (size_t i = 1; i <= gathered->cells; i++)
        sum += gathered->right[s->turn].all[i][gathered->cells + SUM];
    return sum;
}

/* Sets the coefficients of a level: the diagonal has `extra` in addition to the four neighbours. */
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
