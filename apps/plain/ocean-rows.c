/*
 * ocean-rows: wind-driven eddies in a square basin by multigrid, in plain two-dimensional arrays.
 *
 * A step solves for the stream function psi whose Laplacian is the vorticity. It then advances the
 * vorticity by advection, the beta effect, wind, friction and diffusion. The solver runs V-cycles:
 * red-black Gauss-Seidel relaxation on each grid, restriction of the residual by the mean of four
 * points, linear interpolation back. Threads form an R x C grid; each owns a rectangle of every
 * grid. A barrier follows each colour, restriction and interpolation. The greatest residual is
 * found under a lock. Read `solve` first.
 *
 * Grids are (m + 2) x (m + 2) with a frame of zeros. psi is zero on the wall halfway between the
 * frame and the first points, so its value beyond the wall is minus the point's own. Lengths are in
 * points of the finest grid.
 */
#include "plain.h"

enum { LEVELS = 16, COARSEST = 4, COARSE_SWEEPS = 8, MOST_CYCLES = 50, ERROR_LOCK = 0 };

static const struct program PROGRAM = {
    "ocean-rows", "points an edge, a power of two and two", 10, 8194, 258, 514, 10, COARSEST * COARSEST,
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

struct part {
    long top, bottom, left, right; /* rows top <= i < bottom, columns left <= j < right */
};

static long points(int level)
{
    return (n - 2) >> level;
}

static struct part part_of(int level, int thread)
{
    const int row = thread / thread_columns, column = thread % thread_columns;
    const long m = points(level);
    return (struct part){
        .top = 1 + first_of(m, row, thread_rows),
        .bottom = 1 + first_of(m, row + 1, thread_rows),
        .left = 1 + first_of(m, column, thread_columns),
        .right = 1 + first_of(m, column + 1, thread_columns),
    };
}

static struct part own(int level)
{
    return part_of(level, hiroba_thread());
}

/* Four, plus one for each wall next to the point. */
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
    const long m = points(level), width = m + 2;
    const double area = ldexp(1.0, 2 * level);
    const struct part part = own(level);
    for (int colour = 0; colour < 2 * sweeps; colour++) {
        for (long i = part.top; i < part.bottom; i++)
            for (long j = part.left + (part.left + i + colour) % 2; j < part.right; j += 2) {
                double *p = u[level] + i * width + j;
                *p = (p[-width] + p[-1] + p[1] + p[width] - area * f[level][i * width + j]) / weight(i, j, m);
            }
        hiroba_barrier();
    }
}

static double residual(int level, long i, long j)
{
    const long m = points(level), width = m + 2;
    const double *p = u[level] + i * width + j;
    const double laplacian = p[-width] + p[-1] + p[1] + p[width] - weight(i, j, m) * *p;
    return f[level][i * width + j] - laplacian / ldexp(1.0, 2 * level);
}

/* Makes the right side of the next coarser grid, on which the solution starts as zero. */
static void restrict_residual(int level)
{
    const long width = points(level + 1) + 2;
    const struct part part = own(level + 1);
    for (long i = part.top; i < part.bottom; i++)
        for (long j = part.left; j < part.right; j++) {
            f[level + 1][i * width + j] = 0.25 * (residual(level, 2 * i - 1, 2 * j - 1) +
                                                  residual(level, 2 * i - 1, 2 * j) +
                                                  residual(level, 2 * i, 2 * j - 1) +
                                                  residual(level, 2 * i, 2 * j));
            u[level + 1][i * width + j] = 0.0;
        }
    hiroba_barrier();
}

/* Adds the solution of the next coarser grid. */
static void interpolate(int level)
{
    const long m = points(level + 1), width = m + 2, fine_width = points(level) + 2;
    const struct part part = own(level + 1);
    for (long i = part.top; i < part.bottom; i++)
        for (long j = part.left; j < part.right; j++) {
            const double *p = u[level + 1] + i * width + j;
            const double up = i == 1 ? -*p : p[-width], down = i == m ? -*p : p[width];
            const double left = j == 1 ? -*p : p[-1], right = j == m ? -*p : p[1];
            double *q = u[level] + (2 * i - 1) * fine_width + 2 * j - 1;
            q[0] += 0.25 * (2.0 * *p + up + left);
            q[1] += 0.25 * (2.0 * *p + up + right);
            q[fine_width] += 0.25 * (2.0 * *p + down + left);
            q[fine_width + 1] += 0.25 * (2.0 * *p + down + right);
        }
    hiroba_barrier();
}

/* The greatest residual of the finest grid in a part of it. */
static double error_in(struct part part)
{
    double most = 0.0;
    for (long i = part.top; i < part.bottom; i++)
        for (long j = part.left; j < part.right; j++)
            most = fmax(most, fabs(residual(0, i, j)));
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
        error = greatest(error_in(own(0)));
    } while (error > TOLERANCE * strength() && ++cycle < MOST_CYCLES);
}

/* The vorticity that the wind adds to a row. */
static double wind(long i)
{
    return -0.02 * strength() * sin(M_PI * ((double)i - 0.5) / (double)(n - 2));
}

/* The next step's vorticity of a point. */
static double advanced(long i, long j, double wind)
{
    const long width = n;
    const double *psi = u[0] + i * width + j, *z = f[0] + i * width + j;
    const double east = psi[1] - psi[-1], south = psi[width] - psi[-width];
    const double carried = 0.25 * (south * (z[1] - z[-1]) - east * (z[width] - z[-width]));
    const double turned = 0.5 * strength() / (double)(n - 2) * east;
    const double spread = z[-width] + z[-1] + z[1] + z[width] - 4.0 * *z;
    return *z + carried - turned + wind - 0.001 * *z + 0.05 * spread;
}

static void advance(void)
{
    const struct part part = own(0);
    for (long i = part.top; i < part.bottom; i++) {
        const double row_wind = wind(i);
        for (long j = part.left; j < part.right; j++)
            next_vorticity[i * n + j] = advanced(i, j, row_wind);
    }
    hiroba_barrier();
}

static double initial(long i, long j)
{
    const double y = M_PI * ((double)i - 0.5) / (double)(n - 2);
    const double x = M_PI * ((double)j - 0.5) / (double)(n - 2);
    return strength() * (sin(3.0 * x) * sin(4.0 * y) + 0.5 * sin(5.0 * x) * sin(2.0 * y) + sin(x) * sin(y));
}

static void initialise(void)
{
    const struct part whole = {1, n - 1, 1, n - 1};
    const struct part part = init_all ? own(0) : whole;
    if (init_all || hiroba_thread() == 0)
        for (long i = part.top; i < part.bottom; i++)
            for (long j = part.left; j < part.right; j++) {
                next_vorticity[i * n + j] = initial(i, j);
                u[0][i * n + j] = f[0][i * n + j] = 0.0;
            }
}

static void work(void *nothing)
{
    (void)nothing;
    const struct part part = own(0);
    double start = hiroba_wtime();
    initialise();
    hiroba_barrier();
    double ready = hiroba_wtime();
    for (long step = 0; step < steps; step++) {
        for (long i = part.top; i < part.bottom; i++)
            for (long j = part.left; j < part.right; j++)
                f[0][i * n + j] = next_vorticity[i * n + j];
        solve();
        advance();
    }
    keep_times(start, ready);
}

/* Returns true if the last step's equation is solved, and its vorticity has the bits that follow from it. */
static bool check(void)
{
    const struct part whole = {1, n - 1, 1, n - 1};
    const double error = error_in(whole);
    if (!(error <= TOLERANCE * strength()))
        return wrong("the greatest residual is %g, expected %g or less", error, TOLERANCE * strength());
    for (long i = 1; i < n - 1; i++)
        for (long j = 1; j < n - 1; j++)
            if (!(next_vorticity[i * n + j] == advanced(i, j, wind(i))))
                return wrong("the vorticity of (%ld, %ld) is %.17g and should be %.17g", i, j,
                             next_vorticity[i * n + j], advanced(i, j, wind(i)));
    return true;
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
        const size_t width = (size_t)points(levels) + 2;
        u[levels] = shared(width * width * sizeof(double));
        f[levels] = shared(width * width * sizeof(double));
    }
    next_vorticity = shared((size_t)(n * n) * sizeof(double));
    scalars = shared(sizeof *scalars);
    hiroba_run(work, NULL);
    uint64_t checksum = 0;
    bool right = true;
    if (hiroba_node() == 0) {
        right = check();
        for (long i = 1; i < n - 1; i++)
            for (long j = 1; j < n - 1; j++)
                checksum = with_bits(with_bits(checksum, u[0][i * n + j]), next_vorticity[i * n + j]);
    }
    return finish(right, checksum);
}
