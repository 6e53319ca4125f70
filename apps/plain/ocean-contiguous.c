/*
 * ocean-contiguous: wind-driven eddies in a square basin by multigrid, in a contiguous array for
 * each thread.
 *
 * It makes the same computation as ocean-rows, in the same order. Threads form an R x C grid; each owns a
 * rectangle of every grid. A rectangle is contiguous, with a ring of points around it for
 * copies of the neighbours' points, or zeros beyond a wall. A thread copies its neighbours' edges
 * into its own ring before it needs them. Read `solve` first.
 *
 * A step solves for the stream function psi whose Laplacian is the vorticity. It then advances the
 * vorticity by advection, the beta effect, wind, friction and diffusion. The solver runs V-cycles:
 * red-black Gauss-Seidel relaxation on each grid, restriction of the residual by the mean of four
 * points, linear interpolation back, with a barrier after each. The greatest residual is found
 * under a lock. psi is zero on the wall halfway between the ring and the first points, so its value
 * beyond the wall is minus the point's own.
 */
#include "plain.h"

enum { LEVELS = 16, COARSEST = 4, COARSE_SWEEPS = 8, MOST_CYCLES = 50, ERROR_LOCK = 0, BOTH = -1 };

static const struct program PROGRAM = {
    "ocean-contiguous", "points an edge, a power of two and two", 10, 8194, 258, 514, 10, COARSEST * COARSEST,
};

struct scalars {
    double error; /* the greatest residual, under ERROR_LOCK */
};

static const double TOLERANCE = 1e-3; /* of the first vorticity */
static int levels;
static double *u[LEVELS], *f[LEVELS]; /* solutions and right sides, shared; u[0] is psi, f[0] the vorticity */
static double *next_vorticity;        /* as f[0] */
static struct scalars *scalars;
static int thread_rows, thread_columns;

static long points(int level)
{
    return (n - 2) >> level;
}

/* The rows and columns of a thread's rectangle, without the ring. */
static long height(int level)
{
    return points(level) / thread_rows;
}

static long width(int level)
{
    return points(level) / thread_columns;
}

/* The start of a thread's rectangle of a field: the ring's corner. */
static double *part(double *field, int level, int thread)
{
    return field + thread * (height(level) + 2) * (width(level) + 2);
}

/* The number of points above and left of a thread's rectangle. */
static long above(int level, int thread)
{
    return thread / thread_columns * height(level);
}

static long left_of(int level, int thread)
{
    return thread % thread_columns * width(level);
}

/* Fills this thread's ring of a field from the neighbours, with points of one colour or of BOTH. */
static void read_neighbours(double *field, int level, int colour)
{
    const int me = hiroba_thread(), row = me / thread_columns, column = me % thread_columns;
    const long h = height(level), w = width(level), pitch = w + 2, apart = colour == BOTH ? 1 : 2;
    const long corner = above(level, me) + left_of(level, me) + colour;
    double *own = part(field, level, me);
    for (int side = 0; side < 2; side++) { /* above and below; left and right */
        const long i = side == 0 ? 0 : h + 1, their_i = side == 0 ? h : 1;
        const long j = side == 0 ? 0 : w + 1, their_j = side == 0 ? w : 1;
        if (side == 0 ? row > 0 : row < thread_rows - 1) {
            const double *theirs = part(field, level, side == 0 ? me - thread_columns : me + thread_columns);
            for (long k = colour == BOTH ? 1 : 1 + (corner + i + 1) % 2; k <= w; k += apart)
                own[i * pitch + k] = theirs[their_i * pitch + k];
        }
        if (side == 0 ? column > 0 : column < thread_columns - 1) {
            const double *theirs = part(field, level, side == 0 ? me - 1 : me + 1);
            for (long k = colour == BOTH ? 1 : 1 + (corner + j + 1) % 2; k <= h; k += apart)
                own[k * pitch + j] = theirs[k * pitch + their_j];
        }
    }
}

/* Four, plus one for each wall next to the point; i and j count in the whole grid. */
static double weight(long i, long j, long m)
{
    return 4.0 + (i == 1) + (i == m) + (j == 1) + (j == m);
}

static double strength(void)
{
    return 4.0 / (double)(n - 2); /* of eddies at the start: currents of about .2 points a step */
}

static void relax(int level, int sweeps)
{
    const int me = hiroba_thread();
    const long h = height(level), w = width(level), pitch = w + 2, m = points(level);
    const long up = above(level, me), left = left_of(level, me);
    const double area = ldexp(1.0, 2 * level);
    double *own = part(u[level], level, me);
    const double *right_side = part(f[level], level, me);
    for (int colour = 0; colour < 2 * sweeps; colour++) {
        read_neighbours(u[level], level, 1 - colour % 2);
        for (long i = 1; i <= h; i++)
            for (long j = 1 + (up + i + left + 1 + colour) % 2; j <= w; j += 2) {
                double *p = own + i * pitch + j;
                *p = (p[-pitch] + p[-1] + p[1] + p[pitch] - area * right_side[i * pitch + j]) /
                     weight(up + i, left + j, m);
            }
        hiroba_barrier();
    }
}

/* The residual of a point of a thread's rectangle, whose ring is filled. */
static double residual(int level, int thread, long i, long j)
{
    const long pitch = width(level) + 2;
    const double *p = part(u[level], level, thread) + i * pitch + j;
    const double sum = p[-pitch] + p[-1] + p[1] + p[pitch];
    const double its_weight = weight(above(level, thread) + i, left_of(level, thread) + j, points(level));
    return part(f[level], level, thread)[i * pitch + j] - (sum - its_weight * *p) / ldexp(1.0, 2 * level);
}

/* Makes the right side of the next coarser grid, on which the solution starts as zero. */
static void restrict_residual(int level)
{
    const int me = hiroba_thread();
    const long h = height(level + 1), w = width(level + 1), pitch = w + 2;
    read_neighbours(u[level], level, BOTH);
    for (long i = 1; i <= h; i++)
        for (long j = 1; j <= w; j++) {
            part(f[level + 1], level + 1, me)[i * pitch + j] =
                0.25 * (residual(level, me, 2 * i - 1, 2 * j - 1) + residual(level, me, 2 * i - 1, 2 * j) +
                        residual(level, me, 2 * i, 2 * j - 1) + residual(level, me, 2 * i, 2 * j));
            part(u[level + 1], level + 1, me)[i * pitch + j] = 0.0;
        }
    hiroba_barrier();
}

/* Adds the solution of the next coarser grid. */
static void interpolate(int level)
{
    const int me = hiroba_thread();
    const long h = height(level + 1), w = width(level + 1), pitch = w + 2, fine_pitch = width(level) + 2;
    const long first_row = above(level + 1, me), first_column = left_of(level + 1, me), m = points(level + 1);
    read_neighbours(u[level + 1], level + 1, BOTH);
    for (long i = 1; i <= h; i++)
        for (long j = 1; j <= w; j++) {
            const double *p = part(u[level + 1], level + 1, me) + i * pitch + j;
            const double up = first_row + i == 1 ? -*p : p[-pitch];
            const double down = first_row + i == m ? -*p : p[pitch];
            const double left = first_column + j == 1 ? -*p : p[-1];
            const double right = first_column + j == m ? -*p : p[1];
            double *q = part(u[level], level, me) + (2 * i - 1) * fine_pitch + 2 * j - 1;
            q[0] += 0.25 * (2.0 * *p + up + left);
            q[1] += 0.25 * (2.0 * *p + up + right);
            q[fine_pitch] += 0.25 * (2.0 * *p + down + left);
            q[fine_pitch + 1] += 0.25 * (2.0 * *p + down + right);
        }
    hiroba_barrier();
}

/* The greatest residual of a thread's rectangle of the finest grid, whose ring is filled. */
static double error_of(int thread)
{
    double most = 0.0;
    for (long i = 1; i <= height(0); i++)
        for (long j = 1; j <= width(0); j++)
            most = fmax(most, fabs(residual(0, thread, i, j)));
    return most;
}

/* Returns the greatest number that any thread passes. Collective. */
static double greatest(double mine)
{
    hiroba_lock(ERROR_LOCK);
    if (mine > scalars->error)
        scalars->error = mine;
    hiroba_unlock(ERROR_LOCK);
    hiroba_barrier();
    const double all = scalars->error;
    hiroba_barrier();
    if (hiroba_thread() == 0)
        scalars->error = 0.0;
    return all;
}

static void solve(void)
{
    double error;
    int cycle = 0;
    do {
        for (int level = 0; level < levels - 1; level++) {
            relax(level, 1);
            restrict_residual(level);
        }
        relax(levels - 1, COARSE_SWEEPS);
        for (int level = levels - 2; level >= 0; level--) {
            interpolate(level);
            relax(level, 1);
        }
        read_neighbours(u[0], 0, BOTH);
        error = greatest(error_of(hiroba_thread()));
    } while (error > TOLERANCE * strength() && ++cycle < MOST_CYCLES);
}

/* The vorticity that the wind adds to a row of the whole grid. */
static double wind(long i)
{
    return -0.02 * strength() * sin(M_PI * ((double)i - 0.5) / (double)(n - 2));
}

/* The next step's vorticity of a point of a thread's rectangle, whose rings are filled. */
static double advanced(int thread, long i, long j, double wind)
{
    const long pitch = width(0) + 2;
    const double *psi = part(u[0], 0, thread) + i * pitch + j, *z = part(f[0], 0, thread) + i * pitch + j;
    const double east = psi[1] - psi[-1], south = psi[pitch] - psi[-pitch];
    const double carried = 0.25 * (south * (z[1] - z[-1]) - east * (z[pitch] - z[-pitch]));
    const double turned = 0.5 * strength() / (double)(n - 2) * east;
    const double spread = z[-pitch] + z[-1] + z[1] + z[pitch] - 4.0 * *z;
    return *z + carried - turned + wind - 0.001 * *z + 0.05 * spread;
}

static void advance(void)
{
    const int me = hiroba_thread();
    const long pitch = width(0) + 2;
    double *next = part(next_vorticity, 0, me);
    read_neighbours(f[0], 0, BOTH);
    for (long i = 1; i <= height(0); i++) {
        const double row_wind = wind(above(0, me) + i);
        for (long j = 1; j <= width(0); j++)
            next[i * pitch + j] = advanced(me, i, j, row_wind);
    }
    hiroba_barrier();
}

static double initial(long i, long j)
{
    const double y = M_PI * ((double)i - 0.5) / (double)(n - 2);
    const double x = M_PI * ((double)j - 0.5) / (double)(n - 2);
    return strength() * (sin(3.0 * x) * sin(4.0 * y) + 0.5 * sin(5.0 * x) * sin(2.0 * y) + sin(x) * sin(y));
}

static void initialise(int thread)
{
    const long pitch = width(0) + 2;
    for (long i = 1; i <= height(0); i++)
        for (long j = 1; j <= width(0); j++) {
            const long at = i * pitch + j;
            part(next_vorticity, 0, thread)[at] = initial(above(0, thread) + i, left_of(0, thread) + j);
            part(u[0], 0, thread)[at] = part(f[0], 0, thread)[at] = 0.0;
        }
}

static void work(void *nothing)
{
    (void)nothing;
    const int me = hiroba_thread();
    const long pitch = width(0) + 2;
    double start = hiroba_wtime();
    for (int thread = 0; thread < threads; thread++)
        if (init_all ? thread == me : me == 0)
            initialise(thread);
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++) {
        for (long i = 1; i <= height(0); i++)
            for (long j = 1; j <= width(0); j++)
                part(f[0], 0, me)[i * pitch + j] = part(next_vorticity, 0, me)[i * pitch + j];
        solve();
        advance();
    }
    keep_times(start, ready);
}

/* Returns true if the last step's equation is solved, and its vorticity has the bits that follow from it. */
static bool check(void)
{
    const long pitch = width(0) + 2;
    for (int thread = 0; thread < threads; thread++) {
        const double error = error_of(thread), *next = part(next_vorticity, 0, thread);
        if (!(error <= TOLERANCE * strength()))
            return wrong("the greatest residual is %g, expected %g or less", error, TOLERANCE * strength());
        for (long i = 1; i <= height(0); i++)
            for (long j = 1; j <= width(0); j++) {
                const double should = advanced(thread, i, j, wind(above(0, thread) + i));
                if (!(next[i * pitch + j] == should))
                    return wrong("the vorticity of (%ld, %ld) is %.17g and should be %.17g",
                                 above(0, thread) + i, left_of(0, thread) + j, next[i * pitch + j], should);
            }
    }
    return true;
}

/* A point of the whole finest grid. */
static double value(double *field, long i, long j)
{
    const long row = (i - 1) / height(0), column = (j - 1) / width(0);
    const double *its = part(field, 0, (int)(row * thread_columns + column));
    return its[(i - row * height(0)) * (width(0) + 2) + j - column * width(0)];
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    require(((n - 2) & (n - 3)) == 0, PROGRAM.counts);
    if ((threads & (threads - 1)) != 0)
        leave(2, "the number of threads must be a power of two, not %d", threads);
    for (thread_rows = 1; thread_rows * thread_rows < threads;)
        thread_rows *= 2;
    thread_columns = threads / thread_rows;
    for (; points(levels) >= COARSEST; levels++) {
        const size_t size = (size_t)((height(levels) + 2) * (width(levels) + 2) * threads);
        u[levels] = shared(size * sizeof(double));
        f[levels] = shared(size * sizeof(double));
    }
    next_vorticity = shared((size_t)((height(0) + 2) * (width(0) + 2) * threads) * sizeof(double));
    scalars = shared(sizeof *scalars);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long i = 1; i < n - 1; i++)
            for (long j = 1; j < n - 1; j++)
                checksum = with_bits(with_bits(checksum, value(u[0], i, j)), value(next_vorticity, i, j));
    }
    return finish(right, checksum);
}
