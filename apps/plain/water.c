/*
 * water: molecular dynamics of liquid water, all pairs, as in SPLASH-2's Water-Nsquared.
 *
 * A molecule is three atoms joined by springs. Molecules interact by Coulomb forces between all
 * atoms and a Lennard-Jones potential between oxygens, within half a periodic box. Each thread owns
 * a block of molecules. In a step it moves them, computes the forces between each of them and the
 * half of the others that follow it in private memory, and adds these to the shared forces, one
 * molecule at a time under the molecule's lock. Read `step_on` first.
 *
 * The order in which threads add forces varies, so the checksum, the potential energy, agrees to
 * about ten digits only. Units: 1e-10 m, 1e-12 s, atomic mass units, kJ/mol.
 */
#include "plain.h"

enum { ATOMS = 3, AXES = 3, MOST = 8192, SUM_LOCK = MOST };

static const struct program PROGRAM = {"water", "molecules", 27, MOST, 512, 2048, 20, 0};

static const double MASS[ATOMS] = {15.999, 1.008, 1.008}, CHARGE[ATOMS] = {-0.82, 0.41, 0.41};
static const double STEP = 2e-4, COULOMB = 1389.35, EPSILON = 0.650, SIGMA = 3.166;
static const double SPRING[3] = {4637.0, 4637.0, 840.0}, LENGTH[3] = {1.0, 1.0, 1.633};
static const double ACCELERATION = 100.0; /* of a mass of 1 by a force of 1 */

typedef double vector[AXES];

struct molecule {
    vector position[ATOMS], velocity[ATOMS], force[ATOMS];
};

struct sums { /* under SUM_LOCK */
    double potential[2], kinetic[2]; /* before the first step and after the last */
};

static struct molecule *molecules; /* n, shared */
static struct sums *sums;
static double box, cutoff;

/* Adds the forces of a molecule's springs, and returns their energy. */
static double bend(vector position[ATOMS], vector force[ATOMS])
{
    double energy = 0.0;
    for (int spring = 0; spring < 3; spring++) {
        const int a = spring == 2 ? 1 : 0, b = spring == 0 ? 1 : 2;
        vector d;
        double square = 0.0;
        for (int axis = 0; axis < AXES; axis++) {
            d[axis] = position[b][axis] - position[a][axis];
            square += d[axis] * d[axis];
        }
        const double length = sqrt(square), stretch = length - LENGTH[spring];
        energy += 0.5 * SPRING[spring] * stretch * stretch;
        for (int axis = 0; axis < AXES; axis++) {
            force[a][axis] += SPRING[spring] * stretch / length * d[axis];
            force[b][axis] -= SPRING[spring] * stretch / length * d[axis];
        }
    }
    return energy;
}

/* The smooth factor that ends the interaction between 9/10 of the cutoff and the cutoff. */
static double share_at(double distance, double *slope)
{
    const double width = 0.1 * cutoff, t = (distance - 0.9 * cutoff) / width;
    *slope = t <= 0.0 ? 0.0 : -30.0 * t * t * (1.0 - t) * (1.0 - t) / width;
    return t <= 0.0 ? 1.0 : 1.0 - t * t * t * (10.0 - 15.0 * t + 6.0 * t * t);
}

/* Adds the forces of two molecules on each other, and returns their energy. */
static double meet(vector p[ATOMS], vector q[ATOMS], vector force_p[ATOMS], vector force_q[ATOMS])
{
    vector shift, apart;
    double square = 0.0, energy = 0.0, slope;
    for (int axis = 0; axis < AXES; axis++) {
        shift[axis] = box * floor((p[0][axis] - q[0][axis]) / box + 0.5); /* q's nearest image */
        apart[axis] = p[0][axis] - q[0][axis] - shift[axis];
        square += apart[axis] * apart[axis];
    }
    if (square >= cutoff * cutoff)
        return 0.0;
    const double distance = sqrt(square), share = share_at(distance, &slope);
    for (int a = 0; a < ATOMS; a++)
        for (int b = 0; b < ATOMS; b++) {
            vector d;
            double r2 = 0.0;
            for (int axis = 0; axis < AXES; axis++) {
                d[axis] = p[a][axis] - q[b][axis] - shift[axis];
                r2 += d[axis] * d[axis];
            }
            double pull = COULOMB * CHARGE[a] * CHARGE[b] / sqrt(r2), push = pull / r2;
            if (a == 0 && b == 0) {
                const double s2 = SIGMA * SIGMA / r2, s6 = s2 * s2 * s2;
                pull += 4.0 * EPSILON * (s6 * s6 - s6);
                push += 24.0 * EPSILON * (2.0 * s6 * s6 - s6) / r2;
            }
            energy += pull;
            for (int axis = 0; axis < AXES; axis++) {
                force_p[a][axis] += share * push * d[axis];
                force_q[b][axis] -= share * push * d[axis];
            }
        }
    for (int axis = 0; axis < AXES; axis++) {
        force_p[0][axis] -= slope * energy * apart[axis] / distance;
        force_q[0][axis] += slope * energy * apart[axis] / distance;
    }
    return share * energy;
}

/* Adds all forces to those of the molecules, which are zero. Returns the potential energy of the thread's
 * part. */
static double find_forces(void)
{
    const long first = own_first(n), end = own_end(n);
    vector(*mine)[ATOMS] = private((size_t)n * sizeof *mine);
    double energy = 0.0;
    memset(mine, 0, (size_t)n * sizeof *mine);
    for (long i = first; i < end; i++) {
        energy += bend(molecules[i].position, mine[i]);
        const long followers = n % 2 == 0 && i >= n / 2 ? n / 2 - 1 : n / 2;
        for (long k = 1; k <= followers; k++) {
            const long j = (i + k) % n;
            energy += meet(molecules[i].position, molecules[j].position, mine[i], mine[j]);
        }
    }
    for (long k = 0; k < n && k < end - first + n / 2; k++) {
        const long i = (first + k) % n;
        hiroba_lock((unsigned)i);
        for (int a = 0; a < ATOMS; a++)
            for (int axis = 0; axis < AXES; axis++)
                molecules[i].force[a][axis] += mine[i][a][axis];
        hiroba_unlock((unsigned)i);
    }
    free(mine);
    hiroba_barrier();
    return energy;
}

/* Advances each velocity of the thread's molecules by half a step. */
static void push(long first, long end)
{
    for (long i = first; i < end; i++)
        for (int a = 0; a < ATOMS; a++)
            for (int axis = 0; axis < AXES; axis++)
                molecules[i].velocity[a][axis] +=
                    0.5 * STEP * ACCELERATION / MASS[a] * molecules[i].force[a][axis];
}

static double kinetic_energy(long first, long end)
{
    double energy = 0.0;
    for (long i = first; i < end; i++)
        for (int a = 0; a < ATOMS; a++)
            for (int axis = 0; axis < AXES; axis++)
                energy += 0.5 * MASS[a] / ACCELERATION * pow(molecules[i].velocity[a][axis], 2.0);
    return energy;
}

/* Makes one step of the velocity form of Verlet's method. Returns the thread's part of the potential
 * energy. */
static double step_on(long first, long end)
{
    push(first, end);
    for (long i = first; i < end; i++)
        for (int a = 0; a < ATOMS; a++)
            for (int axis = 0; axis < AXES; axis++) {
                molecules[i].position[a][axis] += STEP * molecules[i].velocity[a][axis];
                molecules[i].force[a][axis] = 0.0;
            }
    hiroba_barrier();
    const double energy = find_forces();
    push(first, end);
    return energy;
}

/* Places a molecule on a lattice, rotated, with a random velocity. Pairs of molecules have opposite ones. */
static void place(long i)
{
    const long edge = (long)ceil(cbrt((double)n) - 1e-9), pair = i / 2 * 2;
    const double apart = box / (double)edge, turn = 2.0 * M_PI * uniform((uint64_t)(100 * i));
    const vector at = {(double)(i % edge), (double)(i / edge % edge), (double)(i / edge / edge)};
    for (int a = 0; a < ATOMS; a++) {
        const double angle = a == 1 ? turn + 0.9553 : turn - 0.9553, bond = a == 0 ? 0.0 : 1.0;
        const vector from_oxygen = {bond * cos(angle), bond * sin(angle), 0.0};
        for (int axis = 0; axis < AXES; axis++) {
            const double speed = pair + 1 == n ? 0.0 : 8.0 * uniform((uint64_t)(100 * pair + axis + 1)) - 4.0;
            molecules[i].position[a][axis] = (at[axis] + 0.5) * apart + from_oxygen[axis];
            molecules[i].velocity[a][axis] = i % 2 == 0 ? speed : -speed;
            molecules[i].force[a][axis] = 0.0;
        }
    }
}

static void work(void *nothing)
{
    (void)nothing;
    const long first = own_first(n), end = own_end(n);
    double start = hiroba_wtime();
    for (long i = init_first(n); i < init_end(n); i++)
        place(i);
    hiroba_barrier();
    double ready = hiroba_wtime();
    double potential[2], kinetic[2];
    kinetic[0] = kinetic_energy(first, end);
    potential[0] = potential[1] = find_forces();
    for (long step = 0; step < steps; step++)
        potential[1] = step_on(first, end);
    kinetic[1] = kinetic_energy(first, end);
    hiroba_lock(SUM_LOCK);
    for (int i = 0; i < 2; i++) {
        sums->potential[i] += potential[i];
        sums->kinetic[i] += kinetic[i];
    }
    hiroba_unlock(SUM_LOCK);
    hiroba_barrier();
    keep_times(start, ready);
}

/* Checks that energy and momentum are conserved. */
static bool check(void)
{
    const double before = sums->potential[0] + sums->kinetic[0];
    const double after = sums->potential[1] + sums->kinetic[1];
    if (!(fabs(after - before) <= 0.01 * sums->kinetic[1]))
        return wrong("the energy was %.9g and is %.9g", before, after);
    for (int axis = 0; axis < AXES; axis++) {
        double momentum = 0.0;
        for (long i = 0; i < n; i++)
            for (int a = 0; a < ATOMS; a++)
                momentum += MASS[a] * molecules[i].velocity[a][axis];
        if (!(fabs(momentum) <= 1e-9 * (double)n))
            return wrong("all molecules together move by %g along axis %d", momentum, axis);
    }
    return true;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    box = cbrt(29.9 * (double)n);
    cutoff = 0.5 * box;
    molecules = shared((size_t)n * sizeof *molecules);
    sums = shared(sizeof *sums);
    hiroba_run(work, NULL);
    bool right = true;
    if (hiroba_node() == 0)
        right = check();
    return finish_near(right, hiroba_node() == 0 ? sums->potential[1] : 0.0);
}
