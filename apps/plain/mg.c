/*
 * mg: Poisson's equation in a periodic cube by multigrid, as in the NAS benchmark MG.
 *
 * The solution u and the residual r have a grid on each level, each with half as many points an
 * edge as the one before. A step, a V-cycle, restricts the residual down to the coarsest grid, and
 * interpolates corrections back up. The Laplacian, the smoother and the restriction are stencils of
 * 27 points. Each thread owns a block of planes of every grid, and reads the planes next to them. A
 * barrier follows each stencil. Read `cycle` first.
 */
#include "plain.h"

enum { LEVELS = 16, LONGEST = 1024, CHARGES = 10 };

static const struct program PROGRAM = {
    "mg", "points an edge, a power of two or three times one", 8, LONGEST, 128, 192, 4, 0,
};

/* Weights of a point, and of its six, twelve and eight neighbours in one, two and three directions. */
static const double LAPLACIAN[4] = {-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0};
static const double SMOOTHER[4] = {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0};
static const double RESTRICTION[4] = {1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0};

static int levels;
static double *u[LEVELS], *r[LEVELS], *right_side; /* [z][y][x], shared; the finest is level 0 */

static long points(int level)
{
    return n >> level;
}

/* A row of a grid of m^3 points with periodic boundaries. */
static double *row_of(double *grid, long m, long z, long y)
{
    return grid + ((z + m) % m * m + (y + m) % m) * m;
}

/* Finds the stencil's sums around a row of points. */
static void apply(const double weights[4], double *grid, long m, long z, long y, double *sums)
{
    double beside[LONGEST], across[LONGEST]; /* of the rows in one and in two directions */
    const double *row = row_of(grid, m, z, y);
    const double *up = row_of(grid, m, z - 1, y), *down = row_of(grid, m, z + 1, y);
    const double *front = row_of(grid, m, z, y - 1), *back = row_of(grid, m, z, y + 1);
    const double *up_front = row_of(grid, m, z - 1, y - 1), *up_back = row_of(grid, m, z - 1, y + 1);
    const double *down_front = row_of(grid, m, z + 1, y - 1), *down_back = row_of(grid, m, z + 1, y + 1);
    for (long x = 0; x < m; x++) {
        beside[x] = up[x] + down[x] + front[x] + back[x];
        across[x] = up_front[x] + up_back[x] + down_front[x] + down_back[x];
    }
    for (long x = 0; x < m; x++) {
        const long west = x == 0 ? m - 1 : x - 1, east = x == m - 1 ? 0 : x + 1;
        sums[x] = weights[0] * row[x] + weights[1] * (row[west] + row[east] + beside[x]) +
                  weights[2] * (beside[west] + beside[east] + across[x]) +
                  weights[3] * (across[west] + across[east]);
    }
}

/* The thread's planes of a grid. */
static long first_plane(int level)
{
    return own_first(points(level));
}

static long end_plane(int level)
{
    return own_end(points(level));
}

/* r := right - A u */
static void find_residual(int level, const double *right)
{
    const long m = points(level);
    double sums[LONGEST];
    for (long z = first_plane(level); z < end_plane(level); z++)
        for (long y = 0; y < m; y++) {
            apply(LAPLACIAN, u[level], m, z, y, sums);
            for (long x = 0, at = (z * m + y) * m; x < m; x++, at++)
                r[level][at] = right[at] - sums[x];
        }
    hiroba_barrier();
}

/* u := u + S r */
static void smooth(int level)
{
    const long m = points(level);
    double sums[LONGEST];
    for (long z = first_plane(level); z < end_plane(level); z++)
        for (long y = 0; y < m; y++) {
            apply(SMOOTHER, r[level], m, z, y, sums);
            for (long x = 0; x < m; x++)
                u[level][(z * m + y) * m + x] += sums[x];
        }
    hiroba_barrier();
}

/* Restricts the residual to the next coarser grid, whose solution starts as zero. */
static void go_down(int level)
{
    const long m = points(level + 1);
    double sums[LONGEST];
    for (long z = first_plane(level + 1); z < end_plane(level + 1); z++)
        for (long y = 0; y < m; y++) {
            apply(RESTRICTION, r[level], 2 * m, 2 * z, 2 * y, sums);
            for (long x = 0, at = (z * m + y) * m; x < m; x++, at++) {
                r[level + 1][at] = sums[2 * x];
                u[level + 1][at] = 0.0;
            }
        }
    hiroba_barrier();
}

/* Adds the next coarser grid's solution. Points between coarse ones get the mean of these. */
static void go_up(int level)
{
    const long m = points(level + 1);
    for (long z = first_plane(level); z < end_plane(level); z++)
        for (long y = 0; y < 2 * m; y++) {
            const double *near = row_of(u[level + 1], m, z / 2, y / 2);
            const double *right = row_of(u[level + 1], m, z / 2, (y + 1) / 2);
            const double *below = row_of(u[level + 1], m, (z + 1) / 2, y / 2);
            const double *far = row_of(u[level + 1], m, (z + 1) / 2, (y + 1) / 2);
            double means[LONGEST], *to = row_of(u[level], 2 * m, z, y);
            for (long x = 0; x < m; x++)
                means[x] = 0.25 * (near[x] + right[x] + below[x] + far[x]);
            for (long x = 0; x < m; x++) {
                to[2 * x] += means[x];
                to[2 * x + 1] += 0.5 * (means[x] + means[x == m - 1 ? 0 : x + 1]);
            }
        }
    hiroba_barrier();
}

static void cycle(void)
{
    for (int level = 0; level < levels - 1; level++)
        go_down(level);
    smooth(levels - 1);
    for (int level = levels - 2; level >= 0; level--) {
        go_up(level);
        find_residual(level, level == 0 ? right_side : r[level]);
        smooth(level);
    }
    find_residual(0, right_side);
}

/* The place of a charge. The first half of the charges are positive, the others negative. */
static long charge(int i)
{
    return (long)(mixed((uint64_t)i) % (uint64_t)(n * n * n));
}

static void initialise(long first, long end)
{
    for (long place = first; place < end; place++)
        u[0][place] = r[0][place] = right_side[place] = 0.0;
    for (int i = 0; i < 2 * CHARGES; i++)
        if (charge(i) >= first && charge(i) < end)
            right_side[charge(i)] += i < CHARGES ? 1.0 : -1.0;
}

static void work(void *nothing)
{
    (void)nothing;
    double start = hiroba_wtime();
    if (init_all)
        initialise(first_plane(0) * n * n, end_plane(0) * n * n);
    else if (hiroba_thread() == 0)
        initialise(0, n * n * n);
    hiroba_barrier();
    double ready = hiroba_wtime();
    find_residual(0, right_side);
    for (long step = 0; step < steps; step++)
        cycle();
    keep_times(start, ready);
}

/* Returns true if the residual has the same bits as the solution's, and each step makes it smaller. */
static bool check(void)
{
    double sums[LONGEST], before = 0.0, after = 0.0;
    for (long z = 0; z < n; z++)
        for (long y = 0; y < n; y++) {
            apply(LAPLACIAN, u[0], n, z, y, sums);
            for (long x = 0, at = (z * n + y) * n; x < n; x++, at++) {
                if (!(r[0][at] == right_side[at] - sums[x]))
                    return wrong("the residual of (%ld, %ld, %ld) is %.17g and should be %.17g", z, y, x,
                                 r[0][at], right_side[at] - sums[x]);
                before += right_side[at] * right_side[at];
                after += r[0][at] * r[0][at];
            }
        }
    const double bound = fmax(pow(0.4, (double)steps), 1e-12);
    return sqrt(after) <= bound * sqrt(before) ||
           wrong("the relative residual is %g, expected %g or less", sqrt(after / before), bound);
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    const long third = n % 3 == 0 ? n / 3 : n;
    require((third & (third - 1)) == 0, PROGRAM.counts);
    for (; levels == 0 || (points(levels - 1) % 2 == 0 && points(levels - 1) > 2); levels++) {
        const size_t bytes = (size_t)(points(levels) * points(levels) * points(levels)) * sizeof(double);
        u[levels] = shared(bytes);
        r[levels] = shared(bytes);
    }
    right_side = shared((size_t)(n * n * n) * sizeof *right_side);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long place = 0; place < n * n * n; place++)
            checksum = with_bits(checksum, u[0][place]);
    }
    return finish(right, checksum);
}
