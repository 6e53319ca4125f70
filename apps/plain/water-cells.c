/*
 * water-cells: molecular dynamics of liquid water with cells, as in SPLASH-2's Water-Spatial.
 *
 * The molecules are those of water.c, but interact only within 6e-10 m. The box is divided into
 * cells at least that long, each with a linked list of its molecules; each thread owns a block of
 * the cells. In a step it moves the molecules of its cells, inserts those that have left into the
 * lists of their new cells under the cell's lock, and computes the forces on its own molecules from
 * all in their cells and in the 26 cells around. A barrier follows each phase. Read `step_on`
 * first.
 *
 * The order of a list, and so the order of sums, depends on the order of the threads: the checksum,
 * the potential energy, agrees to about ten digits only. Units: 1e-10 m, 1e-12 s, atomic mass units,
 * kJ/mol.
 */
#include "plain.h"

enum { ATOMS = 3, AXES = 3, MOST_CELLS = 8000, SUM_LOCK = MOST_CELLS };

static const struct program PROGRAM = {"water-cells", "molecules", 216, 50000, 4096, 16384, 10, 0};

static const double MASS[ATOMS] = {15.999, 1.008, 1.008}, CHARGE[ATOMS] = {-0.82, 0.41, 0.41};
static const double CUTOFF = 6.0, STEP = 2e-4, COULOMB = 1389.35, EPSILON = 0.650, SIGMA = 3.166;
static const double SPRING[3] = {4637.0, 4637.0, 840.0}, LENGTH[3] = {1.0, 1.0, 1.633};
static const double ACCELERATION = 100.0; /* of a mass of 1 by a force of 1 */

typedef double vector[AXES];

struct molecule {
    vector position[ATOMS], velocity[ATOMS], force[ATOMS];
    struct molecule *next;
};

struct cell { /* `first` changes under the lock of the cell's number */
    struct molecule *first;
};

struct sums { /* under SUM_LOCK */
    double potential[2], kinetic[2]; /* before the first step and after the last */
};

static struct cell *cells; /* edge x edge x edge, shared */
static struct sums *sums;
static double box;
static long edge; /* of the box, in cells */

static long cell_of(const struct molecule *m)
{
    long at[AXES];
    for (int axis = 0; axis < AXES; axis++) {
        at[axis] = (long)(m->position[0][axis] / box * (double)edge);
        at[axis] = at[axis] < 0 ? 0 : at[axis] >= edge ? edge - 1 : at[axis];
    }
    return (at[2] * edge + at[1]) * edge + at[0];
}

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

/* The smooth factor that ends the interaction between 9/10 of CUTOFF and CUTOFF. */
static double share_at(double distance, double *slope)
{
    const double width = 0.1 * CUTOFF, t = (distance - 0.9 * CUTOFF) / width;
    *slope = t <= 0.0 ? 0.0 : -30.0 * t * t * (1.0 - t) * (1.0 - t) / width;
    return t <= 0.0 ? 1.0 : 1.0 - t * t * t * (10.0 - 15.0 * t + 6.0 * t * t);
}

/* Adds the forces on p of another molecule q, and returns the energy of both. */
static double meet(vector p[ATOMS], vector q[ATOMS], vector force[ATOMS])
{
    vector shift, apart;
    double square = 0.0, energy = 0.0, slope;
    for (int axis = 0; axis < AXES; axis++) {
        shift[axis] = box * floor((p[0][axis] - q[0][axis]) / box + 0.5); /* q's nearest image */
        apart[axis] = p[0][axis] - q[0][axis] - shift[axis];
        square += apart[axis] * apart[axis];
    }
    if (square >= CUTOFF * CUTOFF)
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
            for (int axis = 0; axis < AXES; axis++)
                force[a][axis] += share * push * d[axis];
        }
    for (int axis = 0; axis < AXES; axis++)
        force[0][axis] -= slope * energy * apart[axis] / distance;
    return share * energy;
}

/* Adds the forces on all molecules of a cell. Returns half of their energy with other molecules. */
static double find_forces_in(long cell)
{
    double energy = 0.0;
    for (struct molecule *m = cells[cell].first; m != NULL; m = m->next) {
        energy += bend(m->position, m->force);
        for (long k = 0; k < 27; k++) {
            const long x = (cell % edge + k % 3 + edge - 1) % edge;
            const long y = (cell / edge % edge + k / 3 % 3 + edge - 1) % edge;
            const long z = (cell / edge / edge + k / 9 + edge - 1) % edge;
            struct molecule *other = cells[(z * edge + y) * edge + x].first;
            for (; other != NULL; other = other->next)
                if (other != m)
                    energy += 0.5 * meet(m->position, other->position, m->force);
        }
    }
    return energy;
}

static double find_forces(long first, long end)
{
    double energy = 0.0;
    for (long cell = first; cell < end; cell++)
        energy += find_forces_in(cell);
    hiroba_barrier();
    return energy;
}

/* Advances each velocity of a molecule by half a step. */
static void push(struct molecule *m)
{
    for (int a = 0; a < ATOMS; a++)
        for (int axis = 0; axis < AXES; axis++)
            m->velocity[a][axis] += 0.5 * STEP * ACCELERATION / MASS[a] * m->force[a][axis];
}

/* Advances a molecule's position by a step; it re-enters the box on the other side. */
static void drift(struct molecule *m)
{
    for (int axis = 0; axis < AXES; axis++) {
        const double oxygen = m->position[0][axis] + STEP * m->velocity[0][axis];
        const double shift = oxygen < 0.0 ? box : oxygen >= box ? -box : 0.0;
        for (int a = 0; a < ATOMS; a++) {
            m->position[a][axis] += STEP * m->velocity[a][axis] + shift;
            m->force[a][axis] = 0.0;
        }
    }
}

static double kinetic_energy(long first, long end)
{
    double energy = 0.0;
    for (long cell = first; cell < end; cell++)
        for (const struct molecule *m = cells[cell].first; m != NULL; m = m->next)
            for (int a = 0; a < ATOMS; a++)
                for (int axis = 0; axis < AXES; axis++)
                    energy += 0.5 * MASS[a] / ACCELERATION * m->velocity[a][axis] * m->velocity[a][axis];
    return energy;
}

/* Makes one step of the velocity form of Verlet's method. Returns the thread's part of the potential
 * energy. */
static double step_on(long first, long end)
{
    struct molecule *leaving = NULL;
    for (long cell = first; cell < end; cell++)
        for (struct molecule **link = &cells[cell].first; *link != NULL;) {
            struct molecule *m = *link;
            push(m);
            drift(m);
            if (cell_of(m) == cell) {
                link = &m->next;
                continue;
            }
            *link = m->next;
            m->next = leaving;
            leaving = m;
        }
    hiroba_barrier();
    while (leaving != NULL) {
        struct molecule *m = leaving;
        const long cell = cell_of(m);
        leaving = m->next;
        hiroba_lock((unsigned)cell);
        m->next = cells[cell].first;
        cells[cell].first = m;
        hiroba_unlock((unsigned)cell);
    }
    hiroba_barrier();
    const double energy = find_forces(first, end);
    for (long cell = first; cell < end; cell++)
        for (struct molecule *m = cells[cell].first; m != NULL; m = m->next)
            push(m);
    return energy;
}

/* Places a molecule on a lattice, rotated, with a random velocity. Pairs of molecules have opposite ones. */
static void place(struct molecule *m, long i)
{
    const long row = (long)ceil(cbrt((double)n) - 1e-9), pair = i / 2 * 2;
    const double apart = box / (double)row, turn = 2.0 * M_PI * uniform((uint64_t)(100 * i));
    const vector at = {(double)(i % row), (double)(i / row % row), (double)(i / row / row)};
    for (int a = 0; a < ATOMS; a++) {
        const double angle = a == 1 ? turn + 0.9553 : turn - 0.9553, bond = a == 0 ? 0.0 : 1.0;
        const vector from_oxygen = {bond * cos(angle), bond * sin(angle), 0.0};
        for (int axis = 0; axis < AXES; axis++) {
            const double speed = pair + 1 == n ? 0.0 : 8.0 * uniform((uint64_t)(100 * pair + axis + 1)) - 4.0;
            m->position[a][axis] = (at[axis] + 0.5) * apart + from_oxygen[axis];
            m->velocity[a][axis] = i % 2 == 0 ? speed : -speed;
            m->force[a][axis] = 0.0;
        }
    }
}

/* Makes the molecules that start in some cells. */
static void initialise(long first, long end)
{
    for (long i = 0; i < n; i++) {
        struct molecule begins;
        place(&begins, i);
        const long cell = cell_of(&begins);
        if (cell < first || cell >= end)
            continue;
        struct molecule *m = hiroba_malloc(sizeof *m);
        if (m == NULL) {
            wrong("no shared memory for molecule %ld: %s", i, strerror(errno));
            exit(1);
        }
        *m = begins;
        m->next = cells[cell].first;
        cells[cell].first = m;
    }
}

static void work(void *nothing)
{
    (void)nothing;
    const long count = edge * edge * edge;
    const long first = own_first(count), end = own_end(count);
    double start = hiroba_wtime();
    if (init_all)
        initialise(first, end);
    else if (hiroba_thread() == 0)
        initialise(0, count);
    hiroba_barrier();
    double ready = hiroba_wtime();
    double potential[2], kinetic[2];
    kinetic[0] = kinetic_energy(first, end);
    potential[0] = potential[1] = find_forces(first, end);
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

/* Checks that energy and momentum are conserved, and that each molecule is in the right cell. */
static bool check(void)
{
    const double before = sums->potential[0] + sums->kinetic[0];
    const double after = sums->potential[1] + sums->kinetic[1];
    vector momentum = {0.0, 0.0, 0.0};
    long count = 0;
    for (long cell = 0; cell < edge * edge * edge; cell++)
        for (const struct molecule *m = cells[cell].first; m != NULL && count <= n; m = m->next, count++) {
            if (cell_of(m) != cell)
                return wrong("a molecule of cell %ld is in the list of cell %ld", cell_of(m), cell);
            for (int a = 0; a < ATOMS; a++)
                for (int axis = 0; axis < AXES; axis++)
                    momentum[axis] += MASS[a] * m->velocity[a][axis];
        }
    if (count != n)
        return wrong("there should be %ld molecules, and are %s%ld", n, count > n ? "more than " : "",
                     count > n ? n : count);
    if (!(fabs(after - before) <= 0.01 * sums->kinetic[1]))
        return wrong("the energy was %.9g and is %.9g", before, after);
    for (int axis = 0; axis < AXES; axis++)
        if (!(fabs(momentum[axis]) <= 1e-9 * (double)n))
            return wrong("all molecules together move by %g along axis %d", momentum[axis], axis);
    return true;
}

int main(int argc, char **argv)
{
    begin(&PROGRAM, argc, argv);
    box = cbrt(29.9 * (double)n);
    edge = (long)(box / CUTOFF);
    cells = shared((size_t)(edge * edge * edge) * sizeof *cells);
    sums = shared(sizeof *sums);
    hiroba_run(work, NULL);
    bool right = true;
    if (hiroba_node() == 0)
        right = check();
    return finish_near(right, hiroba_node() == 0 ? sums->potential[1] : 0.0);
}
