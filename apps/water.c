/*
 * water: molecules of water in a periodic box, all pairs.
 *
 *     hiroba cc -O3 -march=native -o water water.c -lm
 *     hiroba run -n 4 ./water -n 1728
 *
 * Read `move` first: it is the whole parallel program. Each thread has a block of molecules. For each of them
 * it computes the forces between it and the n / 2 molecules that follow, so each pair is computed once. It
 * collects the forces on other threads' molecules in private memory, and at the end of the phase gives each
 * other thread its forces in one piece. Sums are whole numbers of a tiny unit, so they are exact in any
 * order. The data that a thread writes and others read lie together on its node: a step has two barriers, and
 * fetches two pieces from each other thread.
 *
 * Fitted to pages: positions, motions, forces and forces given to others have pages of their own for each
 * thread (`shared_parts`). Forces are collected in private memory and given to each other thread in one
 * piece, instead of being added under a lock for each molecule. So a step needs two barriers and no lock.
 *
 * A molecule has three sites, which are bound by springs: the flexible model SPC/Fw (Y. Wu, H. L. Tepper, G.
 * A. Voth, J. Chem. Phys. 124, 024503, 2006). Pairs further apart than half of the box do not act; over the
 * last tenth of that distance their energy is switched off smoothly. The equations of motion are solved by
 * the predictor and corrector of C. W. Gear, with six derivatives. Lengths are in angstrom, times in
 * femtoseconds, masses in dalton, energies in kcal/mol.
 */

#include "common.h"

/* Square roots of negative numbers do not occur, so errno need not report them. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#endif

static long n = 1331, steps = 3;

static const struct option OPTIONS[] = {
    {"-n", "a number of molecules", 2, 100000, &n, NULL},
    {"-s", "a number of steps", 0, 100000, &steps, NULL},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: water [-n MOLECULES] [-s STEPS] [--sequential]\n"
           "\n"
           "Moves molecules of water in a periodic box, and checks energy, momentum and forces.\n"
           "\n"
           "  -n MOLECULES  so many [%ld]\n"
           "  -s STEPS      move them so many times [%ld]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the molecules passed their checks, 1 they did not, 2 bad arguments.\n",
           n, steps);
}

/* ---- Water ----------------------------------------------------------------------------------- */

enum { SITES = 3, AXES = 3, COORDINATES = SITES * AXES }; /* oxygen, hydrogen, hydrogen */
enum { DERIVATIVES = 7 };                                 /* of order 0 to 6 */
enum { BLOCK = 16 }; /* molecules whose partial sums do not depend on their owner */

static const double STEP = 0.25, ACCELERATION = 4.184e-4; /* of 1 kcal/mol per dalton and angstrom */
static const double MASS[SITES] = {15.9994, 1.008, 1.008};
static const double CHARGE[SITES] = {-0.82, 0.41, 0.41}, COULOMB = 332.06371;
static const double EPSILON = 0.1554253, SIGMA = 3.165492;
static const double BOND = 1059.162, BOND_LENGTH = 1.012;
static const double BEND = 75.90, BEND_ANGLE = 113.24 * 3.14159265358979323846 / 180.0;
static const double VOLUME = 29.9, TEMPERATURE = 298.15, BOLTZMANN = 0.0019872041; /* for one molecule */

static double box, cutoff, switched; /* where the switch starts */

static size_t molecules_of_block(size_t block)
{
    return block * BLOCK < (size_t)n ? block * BLOCK : (size_t)n;
}

/* A number from -1 to 1. */
static double random_of(uint64_t index)
{
    return (double)(scattered(index) >> 11) * 0x1p-52 - 1.0;
}

/* Sets `vector` to three numbers of an approximately normal distribution. */
static void random_vector(uint64_t index, double vector[AXES])
{
    for (size_t axis = 0; axis < AXES; axis++) {
        vector[axis] = 0.0;
        for (uint64_t term = 0; term < 12; term++)
            vector[axis] += 0.5 * random_of((index * AXES + axis) * 12 + term);
    }
}

/* Puts a molecule on a cubic lattice, turned at random, and gives it a velocity for the temperature. */
static void place(size_t molecule, double position[COORDINATES], double velocity[COORDINATES])
{
    size_t side = 1;
    while (side * side * side < (size_t)n)
        side++;
    const size_t cell[AXES] = {molecule / (side * side), molecule / side % side, molecule % side};
    double along[AXES], across[AXES], drift[AXES];
    random_vector(3 * (uint64_t)molecule, along);
    random_vector(3 * (uint64_t)molecule + 1, across);
    random_vector(3 * (uint64_t)molecule + 2, drift);
    double norm = sqrt(along[0] * along[0] + along[1] * along[1] + along[2] * along[2]), dot = 0.0;
    for (size_t axis = 0; axis < AXES; axis++) {
        along[axis] /= norm;
        dot += along[axis] * across[axis];
    }
    for (size_t axis = 0; axis < AXES; axis++)
        across[axis] -= dot * along[axis];
    norm = sqrt(across[0] * across[0] + across[1] * across[1] + across[2] * across[2]);
    double half = 0.5 * BEND_ANGLE, mass = MASS[0] + MASS[1] + MASS[2];
    for (size_t axis = 0; axis < AXES; axis++) {
        double centre = ((double)cell[axis] + 0.5) * box / (double)side;
        double a = BOND_LENGTH * cos(half) * along[axis];
        double b = BOND_LENGTH * sin(half) * across[axis] / norm;
        position[axis] = centre;
        position[AXES + axis] = centre + a + b;
        position[2 * AXES + axis] = centre + a - b;
        for (size_t site = 0; site < SITES; site++)
            velocity[site * AXES + axis] =
                drift[axis] * sqrt(BOLTZMANN * TEMPERATURE / mass * ACCELERATION);
    }
}

/* ---- Inside a molecule ----------------------------------------------------------------------- */

/* The energy of a molecule's springs. */
static double bound_energy(const double p[COORDINATES])
{
    double a[AXES], b[AXES], aa = 0.0, bb = 0.0, ab = 0.0;
    for (size_t axis = 0; axis < AXES; axis++) {
        a[axis] = p[AXES + axis] - p[axis];
        b[axis] = p[2 * AXES + axis] - p[axis];
        aa += a[axis] * a[axis], bb += b[axis] * b[axis], ab += a[axis] * b[axis];
    }
    double longer_a = sqrt(aa) - BOND_LENGTH, longer_b = sqrt(bb) - BOND_LENGTH;
    double wider = acos(ab / sqrt(aa * bb)) - BEND_ANGLE;
    return 0.5 * BOND * (longer_a * longer_a + longer_b * longer_b) + 0.5 * BEND * wider * wider;
}

/* Adds the forces of a molecule's springs. */
static void add_bound_forces(const double p[COORDINATES], double force[COORDINATES])
{
    double a[AXES], b[AXES], aa = 0.0, bb = 0.0, ab = 0.0;
    for (size_t axis = 0; axis < AXES; axis++) {
        a[axis] = p[AXES + axis] - p[axis];
        b[axis] = p[2 * AXES + axis] - p[axis];
        aa += a[axis] * a[axis], bb += b[axis] * b[axis], ab += a[axis] * b[axis];
    }
    double long_a = sqrt(aa), long_b = sqrt(bb), cosine = ab / (long_a * long_b);
    double angle = acos(cosine);
    double pull_a = BOND * (long_a - BOND_LENGTH) / long_a;
    double pull_b = BOND * (long_b - BOND_LENGTH) / long_b;
    double bend = BEND * (angle - BEND_ANGLE) / sqrt(1.0 - cosine * cosine);
    for (size_t axis = 0; axis < AXES; axis++) {
        double on_a = -pull_a * a[axis] +
                      bend * (b[axis] / (long_a * long_b) - cosine * a[axis] / aa);
        double on_b = -pull_b * b[axis] +
                      bend * (a[axis] / (long_a * long_b) - cosine * b[axis] / bb);
        force[AXES + axis] += on_a;
        force[2 * AXES + axis] += on_b;
        force[axis] -= on_a + on_b;
    }
}

/* ---- Between molecules ----------------------------------------------------------------------- */

/* Forces in whole numbers of this unit can be added in any order. */
static const double UNIT = 0x1p-40;

/* The private state of a thread. Molecule i stands at i and again at n + i, so that the molecules that
 * follow another one are contiguous. Coordinates of one kind are contiguous. */
struct bench {
    double *position[COORDINATES];
    double *partial[COORDINATES]; /* forces of a block of molecules on others */
    int64_t *force;               /* molecule by molecule, in units */
    double *memory;
};

enum { LANES = 128 };

/* Up to LANES molecules near another one, in arrays of their own, so that loops over them run fast. */
struct near {
    size_t count, index[LANES];
    double position[COORDINATES][LANES], shift[AXES][LANES]; /* to the nearest image */
    double energy[LANES], share[LANES];                      /* the value of the switch, 1 to 0 */
    double force[COORDINATES][LANES], back[COORDINATES][LANES];
};

static double nearest_shift(double difference)
{
    return difference > 0.5 * box ? -box : difference < -0.5 * box ? box : 0.0;
}

/* Finds the molecules first <= j < end that are near enough to molecule i. */
static void find_near(const struct bench *b, size_t i, size_t first, size_t end, struct near *near)
{
    unsigned char is_near[LANES];
    double at[AXES];
    for (size_t axis = 0; axis < AXES; axis++)
        at[axis] = b->position[axis][i];
    for (size_t l = 0; l < end - first; l++) {
        double x = b->position[0][first + l] - at[0], y = b->position[1][first + l] - at[1],
               z = b->position[2][first + l] - at[2];
        x += nearest_shift(x), y += nearest_shift(y), z += nearest_shift(z);
        is_near[l] = x * x + y * y + z * z < cutoff * cutoff;
    }
    size_t count = 0;
    for (size_t l = 0; l < end - first; l++) {
        near->index[count] = first + l;
        count += is_near[l];
    }
    near->count = count;
    for (size_t c = 0; c < COORDINATES; c++)
        for (size_t l = 0; l < count; l++) {
            near->position[c][l] = b->position[c][near->index[l]];
            near->force[c][l] = near->back[c][l] = 0.0;
        }
    for (size_t axis = 0; axis < AXES; axis++)
        for (size_t l = 0; l < count; l++)
            near->shift[axis][l] = nearest_shift(near->position[axis][l] - at[axis]);
}

/* The value of the switch at a distance, and its slope. */
static inline double share_at(double distance, double *slope)
{
    double width = cutoff - switched, t = (distance - switched) / width;
    t = t > 0.0 ? t : 0.0;
    t = t < 1.0 ? t : 1.0;
    *slope = -30.0 * t * t * (1.0 - t) * (1.0 - t) / width;
    return 1.0 - t * t * t * (10.0 + t * (6.0 * t - 15.0));
}

/* Adds the energy of the charges of two sites, and its forces. Not inlined, so that its loop vectorises
 * independently of the code around the call. */
__attribute__((noinline))
static void add_charges(struct near *near, const double at[COORDINATES], size_t i, size_t j)
{
    const double strength = COULOMB * CHARGE[i] * CHARGE[j];
    const double *restrict px = near->position[j * AXES], *restrict sx = near->shift[0];
    const double *restrict py = near->position[j * AXES + 1], *restrict sy = near->shift[1];
    const double *restrict pz = near->position[j * AXES + 2], *restrict sz = near->shift[2];
    double *restrict fx = near->force[j * AXES], *restrict bx = near->back[i * AXES];
    double *restrict fy = near->force[j * AXES + 1], *restrict by = near->back[i * AXES + 1];
    double *restrict fz = near->force[j * AXES + 2], *restrict bz = near->back[i * AXES + 2];
    double *restrict energy = near->energy;
    const double *restrict share = near->share;
    const double ax = at[i * AXES], ay = at[i * AXES + 1], az = at[i * AXES + 2];
    for (size_t l = 0; l < near->count; l++) {
        double x = px[l] + sx[l] - ax, y = py[l] + sy[l] - ay, z = pz[l] + sz[l] - az;
        double square = 1.0 / (x * x + y * y + z * z);
        double own = strength * sqrt(square), pull = share[l] * own * square;
        energy[l] += own;
        fx[l] += pull * x, fy[l] += pull * y, fz[l] += pull * z;
        bx[l] -= pull * x, by[l] -= pull * y, bz[l] -= pull * z;
    }
}

/* Adds the oxygens' attraction and repulsion, and the forces of the switch, which need the energy of all
 * the rest. Multiplies the energies by the switch. */
static void add_oxygens(struct near *near, const double at[COORDINATES])
{
    for (size_t l = 0; l < near->count; l++) {
        double x = near->position[0][l] + near->shift[0][l] - at[0];
        double y = near->position[1][l] + near->shift[1][l] - at[1];
        double z = near->position[2][l] + near->shift[2][l] - at[2];
        double square = x * x + y * y + z * z, inverse = 1.0 / square, slope;
        double six = SIGMA * SIGMA * inverse * (SIGMA * SIGMA * inverse) * (SIGMA * SIGMA * inverse);
        double energy = near->energy[l] + 4.0 * EPSILON * (six * six - six);
        double distance = sqrt(square), share = share_at(distance, &slope);
        double pull = share * 24.0 * EPSILON * (2.0 * six * six - six) * inverse -
                      slope * energy / distance;
        near->energy[l] = share * energy;
        near->force[0][l] += pull * x, near->back[0][l] -= pull * x;
        near->force[1][l] += pull * y, near->back[1][l] -= pull * y;
        near->force[2][l] += pull * z, near->back[2][l] -= pull * z;
    }
}

/* The sum of some numbers, in an order that vectorises. */
static double sum_of(const double *numbers, size_t count)
{
    enum { WIDTH = 8 };
    double sums[WIDTH] = {0.0};
    size_t l = 0;
    for (; l + WIDTH <= count; l += WIDTH)
        for (size_t k = 0; k < WIDTH; k++)
            sums[k] += numbers[l + k];
    for (; l < count; l++)
        sums[0] += numbers[l];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* Computes the pairs of a molecule with those that follow it. Returns their energy. */
static double meet_followers(const struct bench *b, struct near *near, size_t i,
                             double force[COORDINATES])
{
    const size_t count = (size_t)n;
    size_t end = i + 1 + (count - 1) / 2;
    if (count % 2 == 0 && i < count / 2)
        end++; /* only one of two opposite molecules computes their pair */
    double at[COORDINATES], energy = 0.0;
    for (size_t c = 0; c < COORDINATES; c++)
        at[c] = b->position[c][i];
    for (size_t first = i + 1; first < end; first += LANES) {
        find_near(b, i, first, first + LANES < end ? first + LANES : end, near);
        for (size_t l = 0; l < near->count; l++) {
            double x = near->position[0][l] + near->shift[0][l] - at[0], unused;
            double y = near->position[1][l] + near->shift[1][l] - at[1];
            double z = near->position[2][l] + near->shift[2][l] - at[2];
            near->share[l] = share_at(sqrt(x * x + y * y + z * z), &unused);
            near->energy[l] = 0.0;
        }
        for (size_t site = 0; site < SITES; site++)
            for (size_t other = 0; other < SITES; other++)
                add_charges(near, at, site, other);
        add_oxygens(near, at);
        for (size_t c = 0; c < COORDINATES; c++) {
            force[c] += sum_of(near->back[c], near->count);
            for (size_t l = 0; l < near->count; l++)
                b->partial[c][near->index[l]] += near->force[c][l];
        }
        energy += sum_of(near->energy, near->count);
    }
    return energy;
}

/* ---- Shared state ---------------------------------------------------------------------------- */

enum { SUM_LOCK };

struct energies {
    double bound, pairs, kinetic;
};

/* The state that all threads share. Each thread has parts of its own, which only it writes. */
struct shared {
    struct parts positions; /* of a thread's molecules, one after the other */
    struct parts motions;   /* their derivatives times STEP^k / k! */
    struct parts forces;    /* on them, in units */
    struct parts given;     /* the forces on a thread's molecules that another thread has found */
    struct parts energies;  /* after each step, block by block */
    struct sums {
        uint64_t checksum;
    } *sums;
};

static double set_up;
static struct clocks elapsed;
static size_t threads, blocks;

static struct span molecules_of(size_t thread)
{
    struct span share = share_of(blocks, thread, threads);
    return (struct span){molecules_of_block(share.first), molecules_of_block(share.end)};
}

/* The thread that owns a block. */
static size_t owner_of(size_t block)
{
    size_t each = blocks / threads, rest = blocks % threads; /* the first threads have one more */
    size_t longer = rest * (each + 1);
    return block < longer ? block / (each + 1) : rest + (block - longer) / each;
}

/* The address of a molecule in parts that have `bytes` bytes for each molecule. */
static void *of_molecule(struct parts parts, size_t i, size_t bytes)
{
    size_t owner = owner_of(i / BLOCK);
    return (char *)part_of(parts, owner) + (i - molecules_of(owner).first) * bytes;
}

static double *position_of(const struct shared *s, size_t i)
{
    return of_molecule(s->positions, i, COORDINATES * sizeof(double));
}

typedef double motion[DERIVATIVES - 1][COORDINATES];

static motion *motion_of(const struct shared *s, size_t i)
{
    return of_molecule(s->motions, i, sizeof(motion));
}

static int64_t *force_of(const struct shared *s, size_t i)
{
    return of_molecule(s->forces, i, COORDINATES * sizeof(int64_t));
}

static int64_t *given_by(const struct shared *s, size_t from, size_t to)
{
    return part_of(s->given, from * threads + to);
}

static struct energies *energies_of(const struct shared *s, long step, size_t block)
{
    struct energies *part = part_of(s->energies, owner_of(block));
    return part + (size_t)step * blocks + block;
}

/* The molecules of the calling thread. */
static struct span own_molecules(void)
{
    return molecules_of(thread_number());
}

/* Gives each thread the forces on its molecules that this thread has found, and adds the forces that the
 * others give to its own. Collective. */
static void exchange_forces(const struct shared *s, const struct bench *b)
{
    const size_t me = thread_number();
    struct span own = own_molecules();
    const size_t numbers = length_of(own) * COORDINATES;
    for (size_t to = 0; to < threads; to++) {
        struct span theirs = molecules_of(to);
        memcpy(to == me ? force_of(s, own.first) : given_by(s, me, to),
               b->force + theirs.first * COORDINATES,
               length_of(theirs) * COORDINATES * sizeof *b->force);
    }
    barrier();
    for (size_t from = 0; from < threads; from++)
        if (from != me)
            read_soon(given_by(s, from, me), numbers * sizeof(int64_t));
    int64_t *force = force_of(s, own.first);
    for (size_t turn = 1; turn < threads; turn++) {
        const int64_t *given = given_by(s, (me + turn) % threads, me);
        for (size_t k = 0; k < numbers; k++)
            force[k] += given[k];
    }
}

static void add_force(const struct bench *b, size_t molecule, size_t c, double force)
{
    b->force[molecule * COORDINATES + c] += (int64_t)(force / UNIT);
}

/* Finds the forces between all molecules, and the energies. Collective; all positions must be written. */
static void find_forces(const struct shared *s, const struct bench *b, long step)
{
    const size_t count = (size_t)n;
    struct near near;
    for (size_t turn = 1; turn < threads; turn++) {
        struct span theirs = molecules_of((thread_number() + turn) % threads);
        read_soon(position_of(s, theirs.first),
                  length_of(theirs) * COORDINATES * sizeof(double));
    }
    for (size_t turn = 0; turn < threads; turn++) { /* own ones first, while the others travel */
        struct span molecules = molecules_of((thread_number() + turn) % threads);
        const double *position = position_of(s, molecules.first);
        for (size_t i = molecules.first; i < molecules.end; i++)
            for (size_t c = 0; c < COORDINATES; c++)
                b->position[c][i] = b->position[c][count + i] = *position++;
    }
    memset(b->force, 0, count * COORDINATES * sizeof *b->force);
    struct span own = own_share(blocks);
    for (size_t block = own.first; block < own.end; block++) {
        size_t first = molecules_of_block(block), end = molecules_of_block(block + 1);
        struct energies sum = {0.0, 0.0, 0.0};
        for (size_t i = first; i < end; i++) {
            double force[COORDINATES] = {0.0};
            sum.bound += bound_energy(position_of(s, i));
            add_bound_forces(position_of(s, i), force);
            sum.pairs += meet_followers(b, &near, i, force);
            for (size_t c = 0; c < COORDINATES; c++)
                add_force(b, i, c, force[c]);
        }
        for (size_t c = 0; c < COORDINATES; c++)
            for (size_t j = first; j < end + count / 2; j++) {
                add_force(b, j < count ? j : j - count, c, b->partial[c][j]);
                b->partial[c][j] = 0.0;
            }
        energies_of(s, step, block)->bound = sum.bound;
        energies_of(s, step, block)->pairs = sum.pairs;
    }
    exchange_forces(s, b);
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* The acceleration that a force causes, times STEP^2 / 2. */
static double pushed(const struct shared *s, size_t i, size_t c)
{
    return 0.5 * STEP * STEP * ACCELERATION * UNIT * (double)force_of(s, i)[c] / MASS[c / AXES];
}

/* Extrapolates each derivative from the higher ones, by Taylor's formula. */
static void predict(const struct shared *s, size_t i)
{
    double *position = position_of(s, i);
    motion *moving = motion_of(s, i);
    for (size_t c = 0; c < COORDINATES; c++) {
        double d[DERIVATIVES];
        d[0] = position[c];
        for (size_t k = 1; k < DERIVATIVES; k++)
            d[k] = (*moving)[k - 1][c];
        for (size_t k = 0; k + 1 < DERIVATIVES; k++)
            for (size_t l = DERIVATIVES - 1; l > k; l--)
                d[l - 1] += d[l]; /* Pascal's triangle */
        position[c] = d[0];
        for (size_t k = 1; k < DERIVATIVES; k++)
            (*moving)[k - 1][c] = d[k];
    }
}

/* Gear's coefficients for equations of the second order without velocities. */
static const double CORRECTION[DERIVATIVES] = {863.0 / 6048, 665.0 / 1008, 1.0,      25.0 / 36,
                                               35.0 / 144,   1.0 / 24,     1.0 / 360};

/* Corrects the motion by the difference between the acceleration and its prediction, and brings the oxygen
 * back into the box. */
static void correct(const struct shared *s, size_t i)
{
    double *position = position_of(s, i);
    motion *moving = motion_of(s, i);
    for (size_t c = 0; c < COORDINATES; c++) {
        double error = pushed(s, i, c) - (*moving)[1][c];
        position[c] += CORRECTION[0] * error;
        for (size_t k = 1; k < DERIVATIVES; k++)
            (*moving)[k - 1][c] += CORRECTION[k] * error;
    }
    for (size_t axis = 0; axis < AXES; axis++) {
        double oxygen = position[axis];
        double shift = oxygen < 0.0 ? box : oxygen >= box ? -box : 0.0;
        for (size_t site = 0; site < SITES; site++)
            position[site * AXES + axis] += shift;
    }
}

static double kinetic_energy(const struct shared *s, size_t i)
{
    double sum = 0.0;
    for (size_t c = 0; c < COORDINATES; c++) {
        double velocity = (*motion_of(s, i))[0][c] / STEP;
        sum += 0.5 * MASS[c / AXES] * velocity * velocity / ACCELERATION;
    }
    return sum;
}

static void add_kinetic_energies(const struct shared *s, long step)
{
    struct span own = own_share(blocks);
    for (size_t block = own.first; block < own.end; block++) {
        double sum = 0.0;
        for (size_t i = molecules_of_block(block); i < molecules_of_block(block + 1); i++)
            sum += kinetic_energy(s, i);
        energies_of(s, step, block)->kinetic = sum;
    }
}

/* Makes all steps. Collective; the initial state and its forces must be set. */
static void move(const struct shared *s, const struct bench *b)
{
    struct span own = own_molecules();
    for (long step = 1; step <= steps; step++) {
        for (size_t i = own.first; i < own.end; i++)
            predict(s, i);
        barrier();
        find_forces(s, b, step);
        for (size_t i = own.first; i < own.end; i++)
            correct(s, i);
        add_kinetic_energies(s, step);
    }
    barrier();
}

static bool make_bench(struct bench *b)
{
    const size_t count = (size_t)n;
    b->memory = calloc(count * COORDINATES * 5, sizeof(double));
    if (b->memory == NULL)
        return false;
    for (size_t c = 0; c < COORDINATES; c++) {
        b->position[c] = b->memory + 2 * c * count;
        b->partial[c] = b->memory + 2 * (COORDINATES + c) * count;
    }
    b->force = (int64_t *)(b->memory + 4 * COORDINATES * count);
    return true;
}

/* Puts a thread's molecules at their initial places, without a drift of the whole. Collective. */
static void begin(const struct shared *s, const struct bench *b)
{
    struct span own = own_molecules();
    double drift[AXES] = {0.0}, position[COORDINATES], velocity[COORDINATES];
    for (size_t i = 0; i < (size_t)n; i++) {
        place(i, position, velocity);
        for (size_t axis = 0; axis < AXES; axis++)
            drift[axis] += velocity[axis] / (double)n;
    }
    for (size_t i = own.first; i < own.end; i++) {
        place(i, position_of(s, i), velocity);
        for (size_t c = 0; c < COORDINATES; c++)
            (*motion_of(s, i))[0][c] = (velocity[c] - drift[c % AXES]) * STEP;
    }
    barrier();
    find_forces(s, b, 0);
    for (size_t i = own.first; i < own.end; i++)
        for (size_t c = 0; c < COORDINATES; c++)
            (*motion_of(s, i))[1][c] = pushed(s, i, c);
    add_kinetic_energies(s, 0);
    barrier();
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct bench b;
    if (!make_bench(&b)) {
        fprintf(stderr, "%s: no memory for a copy of the molecules\n", program);
        exit(1);
    }
    double start = seconds();
    begin(s, &b);
    struct clocks begun = clocks();
    move(s, &b);
    if (keeps_time()) {
        elapsed = since(begun);
        set_up = begun.wall - start;
    }

    struct span own = own_molecules();
    uint64_t checksum = 0;
    for (size_t i = own.first; i < own.end; i++)
        for (size_t c = 0; c < COORDINATES; c++) {
            size_t index = 2 * (i * COORDINATES + c);
            checksum += fingerprint(index, bits_of(position_of(s, i)[c]));
            checksum += fingerprint(index + 1, bits_of((*motion_of(s, i))[0][c]));
        }
    lock(SUM_LOCK);
    s->sums->checksum += checksum;
    unlock(SUM_LOCK);
    barrier();
    find_forces(s, &b, steps + 1); /* for the checks */
    free(b.memory);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static struct energies energies_after(const struct shared *s, long step)
{
    struct energies sum = {0.0, 0.0, 0.0};
    for (size_t block = 0; block < blocks; block++) {
        const struct energies *e = energies_of(s, step, block);
        sum.bound += e->bound, sum.pairs += e->pairs, sum.kinetic += e->kinetic;
    }
    return sum;
}

/* The energy of a pair of molecules, computed from its definition only. */
static double pair_energy(const double p[COORDINATES], const double q[COORDINATES])
{
    double shift[AXES], square = 0.0, energy = 0.0, slope;
    for (size_t axis = 0; axis < AXES; axis++) {
        shift[axis] = box * floor((p[axis] - q[axis]) / box + 0.5);
        square += pow(q[axis] + shift[axis] - p[axis], 2.0);
    }
    double distance = sqrt(square);
    if (distance >= cutoff)
        return 0.0;
    for (size_t i = 0; i < SITES; i++)
        for (size_t j = 0; j < SITES; j++) {
            double sum = 0.0;
            for (size_t axis = 0; axis < AXES; axis++)
                sum += pow(q[j * AXES + axis] + shift[axis] - p[i * AXES + axis], 2.0);
            energy += COULOMB * CHARGE[i] * CHARGE[j] / sqrt(sum);
        }
    energy += 4.0 * EPSILON * (pow(SIGMA / distance, 12.0) - pow(SIGMA / distance, 6.0));
    return energy * share_at(distance, &slope);
}

/* The part of the energy that depends on the place of a molecule, with the molecule at `p`. */
static double energy_of(const struct shared *s, size_t molecule, const double p[COORDINATES])
{
    double sum = bound_energy(p);
    for (size_t j = 0; j < (size_t)n; j++)
        if (j != molecule)
            sum += pair_energy(p, position_of(s, j));
    return sum;
}

/* Compares the forces on a molecule with the slope of its energy, from both sides. */
static bool check_forces(const struct shared *s, size_t molecule)
{
    const double apart = 1e-4;
    for (size_t c = 0; c < COORDINATES; c++) {
        double p[COORDINATES];
        memcpy(p, position_of(s, molecule), sizeof p);
        p[c] += apart;
        double above = energy_of(s, molecule, p);
        p[c] -= 2.0 * apart;
        double is = UNIT * (double)force_of(s, molecule)[c];
        double should = (energy_of(s, molecule, p) - above) / (2.0 * apart);
        if (!(fabs(is - should) <= 1e-3 + 1e-5 * fabs(should)))
            return complain("the force on coordinate %zu of molecule %zu is %.9g and should be %.9g",
                            c, molecule, is, should);
    }
    return true;
}

/* Up to this many pairs, all energies are computed again, which takes about a second. */
static const double PAIRS_CHECKED = 4e6;
enum { SAMPLES = 24 };

static bool check_energies(const struct shared *s)
{
    struct energies first = energies_after(s, 0), last = energies_after(s, steps);
    struct energies now = energies_after(s, steps + 1);
    double before = first.bound + first.pairs + first.kinetic;
    double after = last.bound + last.pairs + last.kinetic, should = 0.0;
    if (!(fabs(after - before) <= 1e-3 * first.kinetic))
        return complain("the energy was %.9g and is %.9g", before, after);
    if ((double)n * (double)n > 2.0 * PAIRS_CHECKED)
        return true;
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t j = i + 1; j < (size_t)n; j++)
            should += pair_energy(position_of(s, i), position_of(s, j));
    if (!(fabs(now.pairs - should) <= 1e-9 * (fabs(should) + (double)n)))
        return complain("the energy of all pairs is %.12g and should be %.12g", now.pairs, should);
    return true;
}

static bool check(const struct shared *s)
{
    for (size_t axis = 0; axis < AXES; axis++) {
        double momentum = 0.0, force = 0.0, size = 0.0;
        for (size_t i = 0; i < (size_t)n; i++)
            for (size_t site = 0; site < SITES; site++) {
                double own = MASS[site] * (*motion_of(s, i))[0][site * AXES + axis] / STEP;
                momentum += own;
                size += fabs(own);
                force += UNIT * (double)force_of(s, i)[site * AXES + axis];
            }
        if (!(fabs(momentum) <= 1e-9 * size))
            return complain("all molecules together move by %.3g along axis %zu", momentum, axis);
        if (!(fabs(force) <= 1e-9 * (double)n * (double)n))
            return complain("the forces along axis %zu add up to %.3g, not nothing", axis, force);
    }
    for (size_t sample = 0; sample < SAMPLES; sample++)
        if (!check_forces(s, sample * (size_t)(n - 1) / (SAMPLES - 1)))
            return false;
    return check_energies(s);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s)
{
    const size_t most = (blocks + threads - 1) / threads * BLOCK;
    s->positions = shared_parts(threads, most * COORDINATES * sizeof(double));
    s->motions = shared_parts(threads, most * sizeof(motion));
    s->forces = shared_parts(threads, most * COORDINATES * sizeof(int64_t));
    s->given = shared_parts(threads * threads, most * COORDINATES * sizeof(int64_t));
    s->energies = shared_parts(threads, ((size_t)steps + 2) * blocks * sizeof(struct energies));
    s->sums = shared_zeroed(sizeof *s->sums);
    return (s->positions.start != NULL && s->motions.start != NULL && s->forces.start != NULL &&
            s->given.start != NULL && s->energies.start != NULL && s->sums != NULL) ||
           complain("no shared memory for %ld molecules: %s", n, strerror(errno));
}

static void report(const struct shared *s)
{
    double pairs = 0.5 * (double)n * (double)(n - 1) * (double)steps;
    printf("molecules                %ld\n", n);
    printf("steps                    %ld\n", steps);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    long apart = steps > 10 ? steps / 10 : 1; /* one line for each step, or about ten lines */
    for (long step = 0; step <= steps; step += apart) {
        struct energies e = energies_after(s, step);
        printf("energy after step %-6ld %.9g = %.9g bound %+.9g pairs %+.9g kinetic\n", step,
               e.bound + e.pairs + e.kinetic, e.bound, e.pairs, e.kinetic);
    }
    printf("checksum                 %016llx\n", (unsigned long long)s->sums->checksum);
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("pairs per second         %.4g\n", elapsed.wall > 0.0 ? pairs / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    share(&s);
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
    threads = threads_in_all();
    blocks = ((size_t)n + BLOCK - 1) / BLOCK;
    box = cbrt(VOLUME * (double)n);
    cutoff = 0.5 * box;
    switched = 0.9 * cutoff;
    return threads <= blocks || complain("%ld molecules are %zu blocks of %d, too few for %zu threads",
                                         n, blocks, BLOCK, threads);
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("water", &argc, &argv);
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
