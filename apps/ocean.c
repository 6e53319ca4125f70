/*
 * ocean: the currents of a wind-driven ocean of two layers.
 *
 *     hiroba cc -O3 -march=native -o ocean ocean.c -lm
 *     hiroba run -n 4 ./ocean -n 514 -s 12
 *
 * Read `move` first: it is the whole parallel program. In each step the stream functions of both layers give
 * the change of potential vorticity, by Laplacians and A. Arakawa's Jacobians. Two elliptic equations, one
 * for the difference of the layers and one for their mean, turn that into the change of the stream functions
 * (W. R. Holland, J. Phys. Oceanogr. 8, 1978). They are solved by multigrid with red-black Gauss-Seidel
 * relaxation.
 *
 * Fitted to pages: all that a thread writes lies in one part of 64 KiB units, and the rows that neighbours
 * read lie together (`grids.h`), so that they arrive in one message. Threads compute their neighbours'
 * nearest rows again, because that is cheaper than a barrier for each relaxation.
 *
 * Each thread has a block of rows of each field. A relaxation reads some more rows on both sides from the
 * neighbours, and computes privately what these compute there at the same time. So a whole cycle needs one
 * barrier, or a few on large grids, and both equations share it. Each thread relaxes the small grids whole
 * and privately. Between two solutions a thread computes as many rows beside its own as the next solution
 * needs, so that no barrier is needed there. Every number comes from the same operations on any thread, so no
 * result depends on the number of threads.
 *
 * A field has (n - 2)^2 cells with walls around them. The value outside a wall is such that its mean with the
 * value inside is the value at the wall: 0 for the unknowns of the equations, and for vorticity.
 */

#include "multigrid.h"

static long n = 258, steps = 6;

static const struct option OPTIONS[] = {
    {"-n", "a number of points an edge", 10, 16386, &n, NULL},
    {"-s", "a number of steps", 1, 100000, &steps, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: ocean [-n POINTS] [-s STEPS] [--sequential]\n"
           "\n"
           "Moves an ocean, and checks its currents.\n"
           "\n"
           "  -n POINTS     so many an edge, a power of two and two [%ld]\n"
           "  -s STEPS      of eight hours each [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the ocean passed its checks, 1 it did not, 2 bad arguments.\n",
           n, steps);
}

/* ---- The ocean ------------------------------------------------------------------------------- */

static const double CELL = 20e3, STEP = 28800.0;                /* metres, seconds */
static const double CORIOLIS = 8.3e-5, BETA = 2e-11;            /* 1 / s, 1 / (m s) */
static const double UPPER = 1000.0, LOWER = 4000.0;             /* the layers, metres */
static const double GRAVITY = 0.02, DRAG = 1e-7, FRICTION = 400.0; /* reduced; 1 / s; m^2 / s */
static const double WIND = 1e-4 / 1000.0;                       /* stress by density and depth */

enum { DIFFERENCE, MEAN, EQUATIONS = MOST_EQUATIONS };

/* The factors of the equations' solutions in the two layers' stream functions. */
static const double OF_UPPER = 4000.0 / 5000.0, OF_LOWER = -1000.0 / 5000.0;

/* How much the layers' difference stretches the upper and the lower layer, in 1 / m^2. */
static double stretch(double depth)
{
    return CORIOLIS * CORIOLIS / (GRAVITY * depth);
}

/* A stream function at the start: some eddies, none across a wall. Rows and columns from 1. */
static double initial(size_t layer, size_t row, size_t column)
{
    double y = ((double)row - 0.5) / (double)(n - 2), x = ((double)column - 0.5) / (double)(n - 2);
    double sum = 0.0;
    for (size_t eddy = 0; eddy < 6; eddy++) {
        uint64_t bits = scattered(16 * layer + eddy);
        double waves_y = (double)(1 + bits % 5), waves_x = (double)(1 + bits / 8 % 5);
        double turn = (double)(bits >> 11) * 0x1p-52 - 1.0;
        sum += turn * sin(3.14159265358979323846 * waves_y * y) *
               sin(3.14159265358979323846 * waves_x * x);
    }
    return (layer == 0 ? 3e4 : 1e4) * sum;
}

/* The vorticity that the wind adds to a row of the upper layer. */
static double wind_at(size_t row)
{
    double y = ((double)row - 0.5) / (double)(n - 2), wide = (double)(n - 2) * CELL;
    return -WIND * 2.0 * 3.14159265358979323846 / wide * sin(2.0 * 3.14159265358979323846 * y);
}

enum { UPPER_LAYER, LOWER_LAYER, LAYERS };

/* The state that all threads share. */
struct shared {
    double *grids;
    struct sums {
        uint64_t checksum;
        double walls[LAYERS]; /* the stream functions at the walls, at the end */
        uint64_t cycles;
        bool has_failed;
    } *sums;
};

/* A thread's view of the ocean. */
struct ocean {
    struct bench bench;
    struct span mine, changed, moved; /* rows: own, and those whose right sides it makes, and moves */
    struct solver solvers[EQUATIONS];
    struct grid stream[LAYERS], before[EQUATIONS]; /* the last changes */
    struct grid answer; /* to a wall of height 1, with right side 0 */
    double walls[LAYERS], wall_before, answer_sum;
    double **wide[LAYERS], **vorticity[LAYERS], **potential[LAYERS]; /* private */
};

static void make_solver(struct ocean *o, size_t equation)
{
    const struct team *team = &o->bench.team;
    struct solver *solver = &o->solvers[equation];
    double squared = equation == DIFFERENCE ? stretch(UPPER) + stretch(LOWER) : 0.0;
    double extra = squared * CELL * CELL;
    for (size_t cells = (size_t)n - 2; cells >= 2; cells /= 2, extra *= 4.0) {
        struct level *l = &solver->level[solver->levels++];
        l->cells = cells;
        l->is_gathered = cells == gathered_cells;
        l->mine = cells < gathered_cells ? (struct span){1, cells + 1}
                                         : rows_of(cells, team, team->index);
        if (cells > gathered_cells)
            solver->gathered = solver->levels;
        set_coefficients(l, extra);
    }
    set_reach(solver);
    solver->is_summed = equation == DIFFERENCE;
    for (size_t level = solver->gathered; level < solver->levels; level++) {
        struct level *l = &solver->level[level];
        l->unknowns[0] = private_grid(l->cells);
        if (!l->is_gathered)
            l->right[0] = l->right[1] = private_grid(l->cells);
    }
}

/* Lays out all grids. */
static void lay_out_all(struct ocean *o, struct arena *arena)
{
    const struct team *team = &o->bench.team;
    const size_t cells = (size_t)n - 2, width = (size_t)n;
    for (size_t equation = 0; equation < EQUATIONS; equation++)
        lay_out_levels(&o->solvers[equation], arena, team);
    struct grid *unread[] = {&o->stream[UPPER_LAYER], &o->stream[LOWER_LAYER],
                             &o->before[DIFFERENCE], &o->before[MEAN], &o->answer};
    for (size_t grid = 0; grid < sizeof unread / sizeof *unread; grid++)
        *unread[grid] = lay_out(arena, team, cells, width, solved_beside(o->solvers), NOWHERE);
}

/* Makes a thread's view, without memory for shared grids. */
static struct ocean *make_view(const struct team *team)
{
    const size_t cells = (size_t)n - 2;
    struct ocean *o = private_zeroed(sizeof *o);
    o->bench.team = *team;
    o->mine = rows_of(cells, team, team->index);
    for (size_t equation = 0; equation < EQUATIONS; equation++)
        make_solver(o, equation);
    const struct level *finest = o->solvers->level;
    o->changed = clipped(finest, o->mine.first, o->mine.end, right_beside(o->solvers));
    o->moved = clipped(finest, o->mine.first, o->mine.end, solved_beside(o->solvers));
    return o;
}

/* Finds the sizes of the memory of all grids, for `count` threads. */
static struct arena find_sizes(size_t count)
{
    struct arena arena = {0};
    lay_out_all(make_view(&(struct team){0, count, false}), &arena);
    measure(&arena);
    return (struct arena){.part = arena.part, .front = arena.front};
}

/* Makes a thread's view of the grids in this memory. */
static struct ocean *view_of(double *grids, const struct team *team)
{
    struct arena arena = find_sizes(team->count);
    struct ocean *o = make_view(team);
    arena.memory = grids;
    lay_out_all(o, &arena);
    return o;
}

/* ---- Stencils -------------------------------------------------------------------------------- */

static double **layer_rows(void)
{
    return private_rows((size_t)n - 2, (size_t)n);
}

/* Copies the rows of a layer's stream function that this thread has, and sets the values beyond the walls. */
static void widen(const struct ocean *o, size_t layer)
{
    const size_t cells = (size_t)n - 2;
    struct span rows = o->moved;
    double **to = o->wide[layer], wall = 2.0 * o->walls[layer];
    for (size_t i = rows.first; i < rows.end; i++) {
        memcpy(to[i] + 1, o->stream[layer].own[i] + 1, cells * sizeof(double));
        to[i][0] = wall - to[i][1];
        to[i][cells + 1] = wall - to[i][cells];
    }
    for (size_t j = 0; j < cells + 2; j++) {
        if (rows.first == 1)
            to[0][j] = wall - to[1][j];
        if (rows.end == cells + 1)
            to[cells + 1][j] = wall - to[cells][j];
    }
}

/* The sum of the four neighbours minus four times the cell, times `scale`. */
static void laplacian_row(double **from, size_t i, double *restrict to, double scale)
{
    const double *above = from[i - 1], *row = from[i], *below = from[i + 1];
    for (size_t j = 1; j + 1 < (size_t)n; j++)
        to[j] = scale *
                (((above[j] + below[j]) + (row[j - 1] + row[j + 1])) - 4.0 * row[j]);
}

/* Finds the vorticity of a layer, for one more row on each side than `changed`. The value beyond a wall is
 * minus the one inside. */
static void find_vorticity(const struct ocean *o, size_t layer)
{
    const size_t cells = (size_t)n - 2;
    struct span rows = clipped(o->solvers->level, o->changed.first, o->changed.end, 1);
    double **to = o->vorticity[layer];
    for (size_t i = rows.first; i < rows.end; i++) {
        laplacian_row(o->wide[layer], i, to[i], 1.0 / (CELL * CELL));
        to[i][0] = -to[i][1];
        to[i][cells + 1] = -to[i][cells];
    }
    for (size_t j = 0; j < cells + 2; j++) {
        if (rows.first == 1)
            to[0][j] = -to[1][j];
        if (rows.end == cells + 1)
            to[cells + 1][j] = -to[cells][j];
    }
}

/* Finds the potential vorticity, which the layers conserve: vorticity, the earth's rotation, and the
 * stretching of columns. */
static void find_potential(const struct ocean *o)
{
    const double upper = stretch(UPPER), lower = stretch(LOWER);
    for (size_t i = o->changed.first - 1; i < o->changed.end + 1; i++) {
        double earth = BETA * CELL * ((double)i - 0.5);
        const double *p = o->wide[UPPER_LAYER][i], *q = o->wide[LOWER_LAYER][i];
        for (size_t j = 0; j < (size_t)n; j++) {
            double difference = p[j] - q[j];
            o->potential[UPPER_LAYER][i][j] =
                o->vorticity[UPPER_LAYER][i][j] + earth - upper * difference;
            o->potential[LOWER_LAYER][i][j] =
                o->vorticity[LOWER_LAYER][i][j] + earth + lower * difference;
        }
    }
}

/* Arakawa's Jacobian of two fields (J. Comput. Phys. 1, 1966), which conserves their squares. */
static void jacobian_row(double **p, double **q, size_t i, double *restrict to)
{
    const double *pn = p[i + 1], *p0 = p[i], *ps = p[i - 1];
    const double *qn = q[i + 1], *q0 = q[i], *qs = q[i - 1], scale = 1.0 / (12.0 * CELL * CELL);
    for (size_t j = 1; j + 1 < (size_t)n; j++) {
        double first = (p0[j + 1] - p0[j - 1]) * (qn[j] - qs[j]) -
                       (pn[j] - ps[j]) * (q0[j + 1] - q0[j - 1]);
        double second = p0[j + 1] * (qn[j + 1] - qs[j + 1]) - p0[j - 1] * (qn[j - 1] - qs[j - 1]) -
                        pn[j] * (qn[j + 1] - qn[j - 1]) + ps[j] * (qs[j + 1] - qs[j - 1]);
        double third = qn[j] * (pn[j + 1] - pn[j - 1]) - qs[j] * (ps[j + 1] - ps[j - 1]) -
                       q0[j + 1] * (pn[j + 1] - ps[j + 1]) + q0[j - 1] * (pn[j - 1] - ps[j - 1]);
        to[j] = scale * ((first + second) + third);
    }
}

/* The rate of change of the potential vorticity of both layers in a row. */
static void tendency_row(const struct ocean *o, size_t i, double *restrict upper,
                         double *restrict lower)
{
    double *friction = o->bench.buffer, wind = wind_at(i);
    jacobian_row(o->wide[UPPER_LAYER], o->potential[UPPER_LAYER], i, upper);
    laplacian_row(o->vorticity[UPPER_LAYER], i, friction, FRICTION / (CELL * CELL));
    for (size_t j = 1; j + 1 < (size_t)n; j++)
        upper[j] = wind + friction[j] - upper[j];
    jacobian_row(o->wide[LOWER_LAYER], o->potential[LOWER_LAYER], i, lower);
    laplacian_row(o->vorticity[LOWER_LAYER], i, friction, FRICTION / (CELL * CELL));
    for (size_t j = 1; j + 1 < (size_t)n; j++)
        lower[j] = friction[j] - DRAG * o->vorticity[LOWER_LAYER][i][j] - lower[j];
}

/* Finds the right sides of both equations for the rows that this thread needs. */
static void find_right_sides(const struct ocean *o)
{
    for (size_t layer = 0; layer < LAYERS; layer++) {
        widen(o, layer);
        find_vorticity(o, layer);
    }
    find_potential(o);
    double *upper = o->bench.buffer + n, *lower = o->bench.buffer + 2 * n;
    for (size_t i = o->changed.first; i < o->changed.end; i++) {
        double *difference = o->solvers[DIFFERENCE].level[0].right[0].own[i];
        double *mean = o->solvers[MEAN].level[0].right[0].own[i];
        tendency_row(o, i, upper, lower);
        for (size_t j = 1; j + 1 < (size_t)n; j++) {
            difference[j] = CELL * CELL * (upper[j] - lower[j]);
            mean[j] = CELL * CELL * (OF_UPPER * lower[j] - OF_LOWER * upper[j]);
        }
    }
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* Advances the stream functions by their change, plus half the difference between that and the last change
 * (J. C. Adams). Raises the layers' difference along the walls until the sum of its change is 0, so that
 * the amount of water stays the same. */
static void change(struct ocean *o, bool is_first)
{
    double raised = -solution_sum(&o->solvers[DIFFERENCE]) / o->answer_sum;
    double by = is_first ? STEP : 1.5 * STEP, less = is_first ? 0.0 : 0.5 * STEP;
    double **differences = solution(&o->solvers[DIFFERENCE]);
    double **means = solution(&o->solvers[MEAN]);
    for (size_t i = o->moved.first; i < o->moved.end; i++) {
        double *difference_before = o->before[DIFFERENCE].own[i];
        double *mean_before = o->before[MEAN].own[i];
        double *upper = o->stream[UPPER_LAYER].own[i], *lower = o->stream[LOWER_LAYER].own[i];
        const double *answer = o->answer.own[i];
        for (size_t j = 1; j + 1 < (size_t)n; j++) {
            double difference = differences[i][j] + raised * answer[j], mean = means[i][j];
            double moved = by * difference - less * difference_before[j];
            double both = by * mean - less * mean_before[j];
            upper[j] += both + OF_UPPER * moved;
            lower[j] += both + OF_LOWER * moved;
            difference_before[j] = difference;
            mean_before[j] = mean;
        }
    }
    double moved = by * raised - less * o->wall_before;
    o->walls[UPPER_LAYER] += OF_UPPER * moved;
    o->walls[LOWER_LAYER] += OF_LOWER * moved;
    o->wall_before = raised;
}

/* Makes all steps. Collective. */
static void move(struct ocean *o)
{
    for (long step = 0; step < steps; step++) {
        find_right_sides(o);
        solve(&o->bench, o->solvers, EQUATIONS);
        change(o, step == 0);
    }
}

/* Finds the difference of the layers that follows from walls of height 1 alone. Collective. */
static void find_answer(struct ocean *o)
{
    struct solver *s = &o->solvers[DIFFERENCE];
    double extra = s->level[0].diagonal[0][2] - 4.0;
    for (size_t i = o->changed.first; i < o->changed.end; i++)
        for (size_t j = 1; j + 1 < (size_t)n; j++)
            s->level[0].right[0].own[i][j] = extra;
    solve(&o->bench, s, 1);
    for (size_t i = o->moved.first; i < o->moved.end; i++)
        for (size_t j = 1; j + 1 < (size_t)n; j++)
            o->answer.own[i][j] = 1.0 + solution(s)[i][j];
    o->answer_sum = (double)(n - 2) * (double)(n - 2) + solution_sum(s);
    meet(&o->bench.team); /* all have read it, and the next solution starts with 0 */
    const struct level *l = s->level;
    struct span rows = clipped(l, o->mine.first, o->mine.end, l->down);
    for (size_t i = rows.first; i < rows.end; i++)
        for (size_t turn = 0; turn < 2; turn++)
            memset(l->unknowns[turn].own[i], 0, (size_t)n * sizeof(double));
    meet(&o->bench.team);
    o->bench.cycles = 0;
}

/* Makes a thread's view, and its part of the initial state. Collective. */
static struct ocean *make_ocean(const struct shared *s, const struct team *team)
{
    const size_t cells = (size_t)n - 2, width = (size_t)n;
    struct ocean *o = view_of(s->grids, team);
    o->bench.buffer = private_zeroed(4 * width * sizeof(double));
    o->bench.zeros = private_zeroed((cells + 2) * sizeof(double *));
    for (size_t i = 0; i < cells + 2; i++)
        o->bench.zeros[i] = i == 0 ? private_zeroed(width * sizeof(double)) : o->bench.zeros[0];
    for (size_t layer = 0; layer < LAYERS; layer++) {
        o->wide[layer] = layer_rows();
        o->vorticity[layer] = layer_rows();
        o->potential[layer] = layer_rows();
        for (size_t i = o->moved.first; i < o->moved.end; i++)
            for (size_t j = 1; j <= cells; j++) {
                o->stream[layer].own[i][j] = initial(layer, i, j);
                o->before[layer].own[i][j] = 0.0; /* there are as many equations as layers */
            }
    }
    find_answer(o);
    return o;
}

enum { SUM_LOCK };

static double set_up;
static struct clocks elapsed;
static size_t threads;

static void work(void *argument)
{
    const struct shared *s = argument;
    double start = seconds();
    struct ocean *o = make_ocean(s, &(struct team){thread_number(), thread_count(), true});
    barrier();
    struct clocks begun = clocks();
    move(o);
    if (keeps_time()) {
        elapsed = since(begun);
        set_up = begun.wall - start;
    }

    uint64_t checksum = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = o->mine.first; i < o->mine.end; i++)
            for (size_t j = 1; j + 1 < (size_t)n; j++)
                checksum += fingerprint((layer * (size_t)n + i) * (size_t)n + j,
                                        bits_of(o->stream[layer].own[i][j]));
    lock(SUM_LOCK);
    s->sums->checksum += checksum;
    s->sums->has_failed |= o->bench.has_failed;
    unlock(SUM_LOCK);
    if (thread_number() == 0) {
        memcpy(s->sums->walls, o->walls, sizeof o->walls);
        s->sums->cycles = o->bench.cycles;
    }
    find_right_sides(o); /* for the checks: the right sides of a next step, and their solutions */
    solve(&o->bench, o->solvers, EQUATIONS);
    for (size_t equation = 0; equation < EQUATIONS; equation++) {
        if (o->solvers[equation].turn != 0) /* where the checks read them */
            for (size_t i = o->mine.first; i < o->mine.end; i++)
                memcpy(o->solvers[equation].level[0].unknowns[0].own[i],
                       solution(&o->solvers[equation])[i], (size_t)n * sizeof(double));
    }
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* The whole state, as a single thread sees it. */
struct view {
    struct grid stream[LAYERS], right[EQUATIONS], unknowns[EQUATIONS];
    double walls[LAYERS];
};

/* A stream function at any cell, also beyond a wall; rows and columns of cells from 1. */
static double stream_at(const struct view *v, size_t layer, size_t row, size_t column)
{
    const size_t cells = (size_t)n - 2;
    bool is_out = (row < 1 || row > cells) != (column < 1 || column > cells);
    size_t i = row < 1 ? 1 : row > cells ? cells : row;
    size_t j = column < 1 ? 1 : column > cells ? cells : column;
    double inside = v->stream[layer].all[i][j];
    return is_out ? 2.0 * v->walls[layer] - inside : inside;
}

static double vorticity_at(const struct view *v, size_t layer, size_t row, size_t column)
{
    const size_t cells = (size_t)n - 2;
    size_t i = row < 1 ? 1 : row > cells ? cells : row;
    size_t j = column < 1 ? 1 : column > cells ? cells : column;
    double sum = stream_at(v, layer, i - 1, j) + stream_at(v, layer, i + 1, j) +
                 stream_at(v, layer, i, j - 1) + stream_at(v, layer, i, j + 1) -
                 4.0 * stream_at(v, layer, i, j);
    return ((i != row) != (j != column) ? -sum : sum) / (CELL * CELL);
}

static double potential_at(const struct view *v, size_t layer, size_t row, size_t column)
{
    double difference =
        stream_at(v, UPPER_LAYER, row, column) - stream_at(v, LOWER_LAYER, row, column);
    return vorticity_at(v, layer, row, column) + BETA * CELL * ((double)row - 0.5) +
           (layer == UPPER_LAYER ? -stretch(UPPER) : stretch(LOWER)) * difference;
}

/* Arakawa's Jacobian from its definition: the mean of three forms with differences over two cells. Sets
 * `size` to the size of the terms. */
static double jacobian_at(const struct view *v, size_t layer, size_t row, size_t column, double *size)
{
    double p[3][3], q[3][3];
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++) {
            p[i][j] = stream_at(v, layer, row + i - 1, column + j - 1);
            q[i][j] = potential_at(v, layer, row + i - 1, column + j - 1);
        }
    double px = p[1][2] - p[1][0], py = p[2][1] - p[0][1];
    double qx = q[1][2] - q[1][0], qy = q[2][1] - q[0][1];
    double plain = px * qy - py * qx;
    double of_p = p[1][2] * (q[2][2] - q[0][2]) - p[1][0] * (q[2][0] - q[0][0]) -
                  (p[2][1] * (q[2][2] - q[2][0]) - p[0][1] * (q[0][2] - q[0][0]));
    double of_q = q[2][1] * (p[2][2] - p[2][0]) - q[0][1] * (p[0][2] - p[0][0]) -
                  (q[1][2] * (p[2][2] - p[0][2]) - q[1][0] * (p[2][0] - p[0][0]));
    *size = fabs(px * qy) + fabs(py * qx) + fabs(p[1][1] * qx) + fabs(p[1][1] * qy) +
            fabs(q[1][1] * px) + fabs(q[1][1] * py);
    return (plain + of_p + of_q) / (12.0 * CELL * CELL);
}

static double tendency_at(const struct view *v, size_t layer, size_t row, size_t column, double *size)
{
    double friction = vorticity_at(v, layer, row - 1, column) +
                      vorticity_at(v, layer, row + 1, column) +
                      vorticity_at(v, layer, row, column - 1) +
                      vorticity_at(v, layer, row, column + 1) -
                      4.0 * vorticity_at(v, layer, row, column);
    double sum = FRICTION / (CELL * CELL) * friction - jacobian_at(v, layer, row, column, size);
    *size = *size / (CELL * CELL) + fabs(sum);
    return sum + (layer == UPPER_LAYER ? wind_at(row)
                                       : -DRAG * vorticity_at(v, layer, row, column));
}

/* Compares the right sides and the solutions in a cell with their definitions. */
static bool check_cell(const struct view *v, size_t row, size_t column,
                       const double largest_right[EQUATIONS])
{
    double sizes[LAYERS];
    double upper = tendency_at(v, UPPER_LAYER, row, column, &sizes[0]);
    double lower = tendency_at(v, LOWER_LAYER, row, column, &sizes[1]);
    double should[EQUATIONS] = {upper - lower, (UPPER * upper + LOWER * lower) / (UPPER + LOWER)};
    for (size_t equation = 0; equation < EQUATIONS; equation++) {
        double is = v->right[equation].all[row][column] / (CELL * CELL);
        if (!(fabs(is - should[equation]) <= 1e-9 * (sizes[0] + sizes[1])))
            return complain("the right side %zu in row %zu, column %zu is %.12g and should be %.12g",
                            equation, row, column, is, should[equation]);
        double **u = v->unknowns[equation].all, at = u[row][column];
        double squared = equation == DIFFERENCE ? stretch(UPPER) + stretch(LOWER) : 0.0;
        double sum = -(4.0 + squared * CELL * CELL) * at;
        sum += row == 1 ? -at : u[row - 1][column];
        sum += row + 2 == (size_t)n ? -at : u[row + 1][column];
        sum += column == 1 ? -at : u[row][column - 1];
        sum += column + 2 == (size_t)n ? -at : u[row][column + 1];
        double missing = fabs(sum - v->right[equation].all[row][column]);
        if (!(missing <= 2.0 * TOLERANCE * largest_right[equation]))
            return complain("the solution %zu in row %zu, column %zu misses its right side by %.3g",
                            equation, row, column, missing);
    }
    return true;
}

/* Up to this many cells times steps, one thread computes everything again. */
static const double CELLS_REPEATED = 2e7;

/* Repeats the whole computation with one thread and compares the bits. */
static bool check_again(const struct view *v)
{
    struct team team = {0, 1, false};
    struct shared s = {.grids = private_zeroed(find_sizes(1).part * sizeof(double))};
    struct ocean *o = make_ocean(&s, &team);
    move(o);
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = 1; i + 1 < (size_t)n; i++)
            for (size_t j = 1; j + 1 < (size_t)n; j++)
                if (!(v->stream[layer].all[i][j] == o->stream[layer].all[i][j]))
                    return complain("layer %zu in row %zu, column %zu is %.17g and should be %.17g",
                                    layer, i, j, v->stream[layer].all[i][j],
                                    o->stream[layer].all[i][j]);
    return true;
}

static void look(struct view *v, const struct shared *s)
{
    const struct ocean *o = view_of(s->grids, &(struct team){0, threads, false});
    for (size_t layer = 0; layer < LAYERS; layer++) {
        v->stream[layer] = o->stream[layer];
        v->walls[layer] = s->sums->walls[layer];
        v->right[layer] = o->solvers[layer].level[0].right[0];
        v->unknowns[layer] = o->solvers[layer].level[0].unknowns[0];
    }
}

static bool check(const struct shared *s)
{
    const size_t cells = (size_t)n - 2;
    struct view v;
    double before = 0.0, after = 0.0, size = 0.0, largest_right[EQUATIONS] = {0.0, 0.0};
    if (s->sums->has_failed)
        return complain("an equation was not solved in %d cycles", MOST_CYCLES);
    look(&v, s);
    for (size_t i = 1; i <= cells; i++)
        for (size_t j = 1; j <= cells; j++) {
            before += initial(UPPER_LAYER, i, j) - initial(LOWER_LAYER, i, j);
            after += v.stream[UPPER_LAYER].all[i][j] - v.stream[LOWER_LAYER].all[i][j];
            size += fabs(v.stream[UPPER_LAYER].all[i][j]) + fabs(v.stream[LOWER_LAYER].all[i][j]);
        }
    for (size_t equation = 0; equation < EQUATIONS; equation++)
        for (size_t i = 1; i <= cells; i++)
            largest_right[equation] =
                largest(v.right[equation].all[i], cells, largest_right[equation]);
    if (!(fabs(after - before) <= 1e-11 * size))
        return complain("between the layers was %.17g of water, and is %.17g", before, after);
    for (size_t i = 1; i <= cells; i++)
        for (size_t j = 1; j <= cells; j++)
            if (!check_cell(&v, i, j, largest_right))
                return false;
    return (double)cells * (double)cells * (double)steps > CELLS_REPEATED || check_again(&v);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool allocate(struct shared *s)
{
    s->grids = shared_in_units(threads * find_sizes(threads).part * sizeof(double), UNIT);
    s->sums = shared_zeroed(sizeof *s->sums);
    return (s->grids != NULL && s->sums != NULL) ||
           complain("no shared memory for fields of %ld x %ld: %s", n, n, strerror(errno));
}

static void report(const struct shared *s)
{
    double updates = (double)(n - 2) * (double)(n - 2) * (double)steps;
    printf("points                   %ld x %ld\n", n, n);
    printf("steps                    %ld\n", steps);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("multigrid cycles         %llu\n", (unsigned long long)s->sums->cycles);
    printf("checksum                 %016llx\n", (unsigned long long)s->sums->checksum);
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("points per second        %.4g\n", elapsed.wall > 0.0 ? updates / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    allocate(&s);
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

/* Checks the arguments and sets what follows from them. Returns false if they are wrong. */
static bool prepare(void)
{
    size_t cells = (size_t)n - 2, power = 8;
    while (power < cells)
        power *= 2;
    threads = threads_in_all();
    if (power != cells)
        return complain("-n takes a power of two and two, such as %zu, not %ld", power + 2, n);
    gathered_cells = cells / 2 < MOST_GATHERED ? cells / 2 : MOST_GATHERED;
    if (threads > gathered_cells)
        return complain("%ld points an edge are too few for %zu threads, at most %zu", n, threads,
                        gathered_cells);
    return true;
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("ocean", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        prepare();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
