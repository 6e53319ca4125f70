/*
 * nbody: bodies that attract each other, by direct summation, over the nodes of a Hiroba job.
 *
 *     hiroba cc -O3 -march=native -fno-math-errno -o nbody nbody.c -lm
 *     hiroba run -n 4 ./nbody -i data/solar-system.txt
 *
 * Read main() first; `simulate` below is the whole parallel program. Every node owns one block of
 * bodies: it alone writes their positions and velocities, and it reads everybody's positions. So
 * one barrier a step is all the synchronisation there is. Positions are kept twice and used in
 * turn: while a fast node writes those of the next step, a slow one may still read the last.
 *
 * Nothing that is computed depends on how many nodes there are: the forces on a body are summed
 * over all bodies in their order, and so are the energies. The same input gives the same bits on
 * 1, 2 or 100 nodes, and with --sequential, which makes no call of Hiroba's. The file compiles
 * without Hiroba, too: cc -DSEQUENTIAL -O3 -march=native -fno-math-errno -o nbody nbody.c -lm
 *
 * -march=native lets the inner loop use all of a machine's vector width; nodes of one job must run
 * the same executable. -fno-math-errno is what lets a compiler put sqrt() into a vector loop.
 */

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef SEQUENTIAL
#include <hiroba.h>
#endif

/* ---- What is simulated ----------------------------------------------------------------------- */

/* The initial state as this node read or generated it: private memory, the same on every node. */
struct input {
    const char *name;
    size_t bodies, capacity;
    double *mass, *position[3], *velocity[3];
    double gravity;     /* Newton's constant in the input's units */
    double softening;   /* length that keeps close encounters finite (Plummer's softening) */
    double time_step;
    double drift_bound; /* largest relative change of the total energy that is taken for right */
    long steps;
};

/* The state that the nodes share, one array for each quantity so that loops over bodies vectorise. */
struct system {
    size_t bodies;
    double gravity, softening;
    const double *mass;
    double *position[2][3]; /* [parity of the step][axis] */
    double *velocity[3];
    double *acceleration[3];
    double *energy; /* of each body: kinetic, plus half of every pair it is in */
};

/* The bodies first <= i < end belong to one node. */
struct block {
    size_t first, end;
};

static const size_t BODIES_MAX = 10 * 1000 * 1000;
static const size_t PLUMMER_BODIES = 2000;

/* ---- The machine: Hiroba, or one process alone ----------------------------------------------- */

#ifndef SEQUENTIAL
static bool alone = false; /* --sequential: nothing below calls Hiroba */
#endif
static int node = 0, nodes = 1;

static void *shared_zeroed(size_t bytes)
{
#ifndef SEQUENTIAL
    if (!alone)
        return hiroba_alloc(bytes);
#endif
    return calloc(1, bytes);
}

static void barrier(void)
{
#ifndef SEQUENTIAL
    if (!alone)
        hiroba_barrier();
#endif
}

/* Says that the bytes will be read soon, so that their pages travel together and not one by one. */
static void read_soon(const void *start, size_t bytes)
{
#ifndef SEQUENTIAL
    if (!alone)
        (void)hiroba_prefetch(start, bytes);
#else
    (void)start, (void)bytes;
#endif
}

static double seconds(void)
{
#ifndef SEQUENTIAL
    if (!alone)
        return hiroba_wtime();
#endif
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int leave(int status)
{
#ifndef SEQUENTIAL
    if (!alone)
        hiroba_finalize();
#endif
    return status;
}

/* The first thing found wrong, for the user; empty while all is well. */
static char complaint[512];

static bool complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (complaint[0] == '\0')
        vsnprintf(complaint, sizeof complaint, format, arguments);
    va_end(arguments);
    return false;
}

/*
 * Whether no node complains. Each node learns what the others found, so that all go on or all
 * stop, and the first of those that complain says why. Every node writes its own byte of a page.
 */
static bool all_agree(void)
{
    unsigned char *unhappy = shared_zeroed((size_t)nodes);
    if (unhappy == NULL) {
        fprintf(stderr, "nbody: no shared memory: %s\n", strerror(errno));
        return false;
    }
    unhappy[node] = complaint[0] != '\0';
    barrier();
    int first = 0;
    while (first < nodes && !unhappy[first])
        first++;
    if (first == node)
        fprintf(stderr, "nbody: %s\n", complaint);
    return first == nodes;
}

/* ---- Gravity --------------------------------------------------------------------------------- */

/* 1/r of two bodies; 0 for a body and itself, so that it does not pull on itself. */
static inline double inverse_distance(double dx, double dy, double dz, double softening2)
{
    double r2 = dx * dx + dy * dy + dz * dz;
    return r2 > 0.0 ? 1.0 / sqrt(r2 + softening2) : 0.0;
}

/* As many bodies as the widest vector registers in use hold doubles. */
enum { LANES = 8 };

/*
 * The accelerations of the bodies of a block, from all positions. Eight bodies are worked on side
 * by side, each lane summing over all j in their order: that vectorises without reordering any
 * sum. A block whose size is no multiple of eight repeats its last body to fill the lanes, since
 * a second loop for the rest might be compiled to round otherwise.
 */
static void accelerate(const struct system *s, struct block own, int now)
{
    const double *restrict x = s->position[now][0];
    const double *restrict y = s->position[now][1];
    const double *restrict z = s->position[now][2];
    const double *restrict mass = s->mass;
    const double softening2 = s->softening * s->softening;

    for (size_t i = own.first; i < own.end; i += LANES) {
        double xi[LANES], yi[LANES], zi[LANES];
        double ax[LANES] = {0}, ay[LANES] = {0}, az[LANES] = {0};
        for (size_t lane = 0; lane < LANES; lane++) {
            size_t body = i + lane < own.end ? i + lane : own.end - 1;
            xi[lane] = x[body];
            yi[lane] = y[body];
            zi[lane] = z[body];
        }
        for (size_t j = 0; j < s->bodies; j++) {
            for (size_t lane = 0; lane < LANES; lane++) {
                double dx = x[j] - xi[lane], dy = y[j] - yi[lane], dz = z[j] - zi[lane];
                double inverse = inverse_distance(dx, dy, dz, softening2);
                double pull = mass[j] * (inverse * inverse * inverse);
                ax[lane] += pull * dx;
                ay[lane] += pull * dy;
                az[lane] += pull * dz;
            }
        }
        for (size_t lane = 0; lane < LANES && i + lane < own.end; lane++) {
            s->acceleration[0][i + lane] = s->gravity * ax[lane];
            s->acceleration[1][i + lane] = s->gravity * ay[lane];
            s->acceleration[2][i + lane] = s->gravity * az[lane];
        }
    }
}

/* Kick: half a step of velocity from the accelerations. */
static void kick(const struct system *s, struct block own, double half_step)
{
    for (int axis = 0; axis < 3; axis++)
        for (size_t i = own.first; i < own.end; i++)
            s->velocity[axis][i] += half_step * s->acceleration[axis][i];
}

/* Drift: a step of position from the velocities, into the other copy of the positions. */
static void drift(const struct system *s, struct block own, double time_step, int now)
{
    for (int axis = 0; axis < 3; axis++)
        for (size_t i = own.first; i < own.end; i++)
            s->position[1 - now][axis][i] =
                s->position[now][axis][i] + time_step * s->velocity[axis][i];
}

/*
 * Leapfrog, kick-drift-kick: symplectic, so the energy error stays bounded instead of growing.
 * Returns which copy of the positions is the last one.
 */
static int simulate(const struct system *s, struct block own, double time_step, long steps)
{
    int now = 0;
    for (long step = 0; step < steps; step++) {
        kick(s, own, 0.5 * time_step);
        drift(s, own, time_step, now);
        barrier(); /* all positions of the new step are there */
        now = 1 - now;
        for (int axis = 0; axis < 3; axis++)
            read_soon(s->position[now][axis], s->bodies * sizeof(double));
        accelerate(s, own, now);
        kick(s, own, 0.5 * time_step);
    }
    return now;
}

/* ---- What is measured and checked ------------------------------------------------------------ */

/* The total energy, summed in the order of the bodies. Collective; every node gets the same bits. */
static double total_energy(const struct system *s, struct block own, int now)
{
    double *const *p = s->position[now];
    double *const *v = s->velocity;
    const double softening2 = s->softening * s->softening;
    for (size_t i = own.first; i < own.end; i++) {
        double potential = 0.0;
        for (size_t j = 0; j < s->bodies; j++) {
            double dx = p[0][j] - p[0][i], dy = p[1][j] - p[1][i], dz = p[2][j] - p[2][i];
            potential += s->mass[j] * inverse_distance(dx, dy, dz, softening2);
        }
        double speed2 = v[0][i] * v[0][i] + v[1][i] * v[1][i] + v[2][i] * v[2][i];
        s->energy[i] = 0.5 * s->mass[i] * (speed2 - s->gravity * potential);
    }
    barrier();
    double sum = 0.0;
    for (size_t i = 0; i < s->bodies; i++)
        sum += s->energy[i];
    barrier(); /* nobody overwrites energies that another still reads */
    return sum;
}

/* The total momentum along each axis; returns the sum of its bodies' absolute values, as a scale. */
static double total_momentum(const struct system *s, double momentum[3])
{
    double scale = 0.0;
    for (int axis = 0; axis < 3; axis++) {
        momentum[axis] = 0.0;
        for (size_t i = 0; i < s->bodies; i++) {
            momentum[axis] += s->mass[i] * s->velocity[axis][i];
            scale += fabs(s->mass[i] * s->velocity[axis][i]);
        }
    }
    return scale;
}

/*
 * How far the acceleration that a body's owner has found is from a plain sequential sum, relative
 * to the sum of all pulls on it: what an owner that had missed somebody's last move would show.
 */
static double acceleration_error(const struct system *s, size_t i, int now)
{
    double *const *p = s->position[now];
    double sum[3] = {0.0, 0.0, 0.0}, scale = 0.0, worst = 0.0;
    for (size_t j = 0; j < s->bodies; j++) {
        double d[3] = {p[0][j] - p[0][i], p[1][j] - p[1][i], p[2][j] - p[2][i]};
        double inverse = inverse_distance(d[0], d[1], d[2], s->softening * s->softening);
        double pull = s->gravity * s->mass[j] * (inverse * inverse * inverse);
        for (int axis = 0; axis < 3; axis++)
            sum[axis] += pull * d[axis];
        scale += fabs(pull) * sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
    }
    for (int axis = 0; axis < 3; axis++)
        worst = fmax(worst, fabs(sum[axis] - s->acceleration[axis][i]));
    return worst > 0.0 ? worst / scale : 0.0;
}

static const double MOMENTUM_BOUND = 1e-11;
static const double ACCELERATION_BOUND = 1e-12;
enum { SAMPLES = 64 };

/* Says what is wrong with the result, if anything; NaN is always wrong. */
static bool check(const struct system *s, double energy_drift, double drift_bound,
                  const double before[3], double scale_before, int now)
{
    if (!(energy_drift <= drift_bound))
        return complain("the energy changed by %.3g of itself, more than %.3g: wrong, or the time "
                        "step is too long for this input", energy_drift, drift_bound);
    double after[3];
    double scale = fmax(total_momentum(s, after), scale_before);
    for (int axis = 0; axis < 3; axis++) {
        double change = fabs(after[axis] - before[axis]);
        if (!(change <= MOMENTUM_BOUND * scale))
            return complain("the momentum along axis %d changed by %.3g of the bodies' own, more "
                            "than %.3g", axis, change / scale, MOMENTUM_BOUND);
    }
    size_t samples = s->bodies < SAMPLES ? s->bodies : SAMPLES;
    for (size_t sample = 0; sample < samples; sample++) {
        size_t i = sample * (s->bodies - 1) / (samples > 1 ? samples - 1 : 1);
        double error = acceleration_error(s, i, now);
        if (!(error <= ACCELERATION_BOUND))
            return complain("the acceleration of body %zu is off by %.3g, more than %.3g: its node "
                            "did not see every position", i, error, ACCELERATION_BOUND);
    }
    return true;
}

/* ---- Input ----------------------------------------------------------------------------------- */

static bool grow(struct input *in, size_t capacity)
{
    double **arrays[7] = {&in->mass, &in->position[0], &in->position[1], &in->position[2],
                          &in->velocity[0], &in->velocity[1], &in->velocity[2]};
    for (int a = 0; a < 7; a++) {
        double *larger = realloc(*arrays[a], capacity * sizeof(double));
        if (larger == NULL)
            return complain("no memory for %zu bodies", capacity);
        *arrays[a] = larger;
    }
    in->capacity = capacity;
    return true;
}

/* Numbers in [0, 1) that are the same on every machine: splitmix64. */
static double next_uniform(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* A vector of this length in a random direction. */
static void random_vector(uint64_t *random, double length, double out[3])
{
    double cosine = 1.0 - 2.0 * next_uniform(random);
    double angle = 2.0 * 3.14159265358979323846 * next_uniform(random);
    double sine = sqrt(1.0 - cosine * cosine);
    out[0] = length * sine * cos(angle);
    out[1] = length * sine * sin(angle);
    out[2] = length * cosine;
}

/*
 * A Plummer sphere after Aarseth, Henon & Wielen, Astronomy and Astrophysics 37 (1974) 183, in
 * N-body units (gravity 1, mass 1, energy -1/4), without its outermost thousandth.
 */
static bool make_plummer(struct input *in, size_t bodies)
{
    const double length_unit = 3.0 * 3.14159265358979323846 / 16.0;
    const double speed_unit = 1.0 / sqrt(length_unit);
    uint64_t random = 1974;
    in->name = "Plummer sphere";
    in->gravity = 1.0;
    in->softening = 0.05;
    in->time_step = 0.01;
    in->steps = 100;
    in->drift_bound = bodies < 128 ? 1e-2 : 1e-4; /* few bodies: a close pair holds much of it */
    if (!grow(in, bodies))
        return false;
    for (size_t i = 0; i < bodies; i++) {
        double inside, share, height, position[3], velocity[3];
        do /* the mass inside the body's radius */
            inside = next_uniform(&random);
        while (inside == 0.0 || inside > 0.999);
        double radius = 1.0 / sqrt(pow(inside, -2.0 / 3.0) - 1.0);
        do { /* its share of the escape speed, by rejection from q^2 (1 - q^2)^(7/2) */
            share = next_uniform(&random);
            height = 0.1 * next_uniform(&random);
        } while (height > share * share * pow(1.0 - share * share, 3.5));
        double speed = share * sqrt(2.0) * pow(1.0 + radius * radius, -0.25);
        random_vector(&random, radius * length_unit, position);
        random_vector(&random, speed * speed_unit, velocity);
        in->mass[i] = 1.0 / (double)bodies;
        for (int axis = 0; axis < 3; axis++) {
            in->position[axis][i] = position[axis];
            in->velocity[axis][i] = velocity[axis];
        }
    }
    in->bodies = bodies;
    for (int axis = 0; axis < 3; axis++) { /* put the centre of mass to rest at the origin */
        double position = 0.0, velocity = 0.0;
        for (size_t i = 0; i < bodies; i++) {
            position += in->position[axis][i] / (double)bodies;
            velocity += in->velocity[axis][i] / (double)bodies;
        }
        for (size_t i = 0; i < bodies; i++) {
            in->position[axis][i] -= position;
            in->velocity[axis][i] -= velocity;
        }
    }
    return true;
}

static bool parse_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static bool parse_count(const char *text, double least, double most, long *value)
{
    double number;
    if (!parse_number(text, &number) || number != floor(number) || number < least || number > most)
        return false;
    *value = (long)number;
    return true;
}

/* A line "keyword value" that describes the whole input; false if the keyword is not one. */
static bool parse_setting(struct input *in, const char *keyword, double value, bool *valid)
{
    if (strcmp(keyword, "gravity") == 0)
        *valid = (in->gravity = value) > 0.0;
    else if (strcmp(keyword, "softening") == 0)
        *valid = (in->softening = value) >= 0.0;
    else if (strcmp(keyword, "time-step") == 0)
        *valid = (in->time_step = value) > 0.0;
    else if (strcmp(keyword, "drift-bound") == 0)
        *valid = (in->drift_bound = value) > 0.0;
    else if (strcmp(keyword, "steps") == 0) {
        *valid = value >= 0.0 && value <= 1e9 && value == floor(value);
        in->steps = *valid ? (long)value : 0;
    } else
        return false;
    return true;
}

static bool parse_line(struct input *in, char *line, long number)
{
    char *words[9];
    int count = 0;
    double values[7];
    for (char *word = strtok(line, " \t\r\n"); word != NULL; word = strtok(NULL, " \t\r\n")) {
        if (word[0] == '#')
            break;
        if (count == 9)
            return complain("%s:%ld: more than a name and 7 numbers", in->name, number);
        words[count++] = word;
    }
    if (count == 0)
        return true;
    for (int i = 1; i < count && i < 8; i++)
        if (!parse_number(words[i], &values[i - 1]))
            return complain("%s:%ld: expected a finite number, found '%.40s'", in->name, number,
                            words[i]);
    if (count == 2) {
        bool valid;
        if (!parse_setting(in, words[0], values[0], &valid))
            return complain("%s:%ld: unknown setting '%.40s'; known are gravity, softening, "
                            "time-step, steps and drift-bound", in->name, number, words[0]);
        return valid || complain("%s:%ld: %s cannot be %s", in->name, number, words[0], words[1]);
    }
    if (count != 8)
        return complain("%s:%ld: expected a setting and its value, or a name, a mass, 3 coordinates "
                        "and 3 velocities; found %d words", in->name, number, count);
    if (values[0] < 0.0)
        return complain("%s:%ld: the mass of '%.40s' is negative", in->name, number, words[0]);
    if (in->bodies == BODIES_MAX)
        return complain("%s:%ld: more than %zu bodies", in->name, number, BODIES_MAX);
    if (in->bodies == in->capacity && !grow(in, in->capacity ? 2 * in->capacity : 256))
        return false;
    in->mass[in->bodies] = values[0];
    for (int axis = 0; axis < 3; axis++) {
        in->position[axis][in->bodies] = values[1 + axis];
        in->velocity[axis][in->bodies] = values[4 + axis];
    }
    in->bodies++;
    return true;
}

static bool read_file(struct input *in, const char *path)
{
    char line[1024];
    long number = 0;
    bool good = true;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return complain("%s: %s", path, strerror(errno));
    in->name = path;
    in->gravity = 1.0;
    in->time_step = 0.01;
    in->steps = 100;
    in->drift_bound = 1e-4;
    while (good && fgets(line, sizeof line, file) != NULL) {
        number++;
        if (strchr(line, '\n') == NULL && strlen(line) == sizeof line - 1)
            good = complain("%s:%ld: the line is longer than %zu characters", path, number,
                            sizeof line - 2);
        else
            good = parse_line(in, line, number);
    }
    if (good && ferror(file))
        good = complain("%s: %s", path, strerror(errno));
    fclose(file);
    if (good && in->bodies < 2)
        good = complain("%s: expected 2 bodies or more, found %zu", path, in->bodies);
    return good;
}

struct options {
    bool help;
    const char *file;
    long bodies, steps;
    double time_step;
};

static void print_help(void)
{
    printf("usage: nbody [-i FILE | -n BODIES] [-s STEPS] [-d TIME_STEP] [--sequential]\n"
           "\n"
           "Moves bodies under their gravity by direct summation and checks the result.\n"
           "\n"
           "  -i FILE        read the bodies: lines of name mass x y z vx vy vz (every node reads it)\n"
           "  -n BODIES      generate a Plummer sphere of so many bodies [%zu]\n"
           "  -s STEPS       number of steps [as the file says; 100]\n"
           "  -d TIME_STEP   length of a step [as the file says; 0.01]\n"
           "  --sequential   one process, without Hiroba\n"
           "  -h             print this help\n"
           "\n"
           "Exit status: 0 the result passed its checks, 1 it did not, 2 bad arguments or input.\n",
           PLUMMER_BODIES);
}

static bool parse_options(struct options *o, int argc, char **argv)
{
    *o = (struct options){.help = false, .file = NULL, .bodies = -1, .steps = -1, .time_step = 0.0};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--sequential") == 0)
            continue;
        if (strcmp(option, "-h") == 0 || strcmp(option, "--help") == 0) {
            o->help = true;
            continue;
        }
        if (strlen(option) != 2 || option[0] != '-' || strchr("insd", option[1]) == NULL)
            return complain("unknown argument '%.40s'; -h lists those there are", option);
        if (++i == argc)
            return complain("%s needs a value; -h says which", option);
        if (option[1] == 'i')
            o->file = argv[i];
        else if (option[1] == 'n' && !parse_count(argv[i], 2, (double)BODIES_MAX, &o->bodies))
            return complain("-n takes a number of bodies from 2 to %zu, not '%.40s'", BODIES_MAX,
                            argv[i]);
        else if (option[1] == 's' && !parse_count(argv[i], 0, 1e9, &o->steps))
            return complain("-s takes a number of steps from 0 to 1000000000, not '%.40s'", argv[i]);
        else if (option[1] == 'd' && (!parse_number(argv[i], &o->time_step) || o->time_step <= 0.0))
            return complain("-d takes a time step above 0, not '%.40s'", argv[i]);
    }
    if (o->file != NULL && o->bodies >= 0)
        return complain("-i and -n exclude each other: give a file or a number of bodies");
    return true;
}

static bool load(struct input *in, const struct options *o)
{
    bool good = o->file != NULL
        ? read_file(in, o->file)
        : make_plummer(in, o->bodies >= 0 ? (size_t)o->bodies : PLUMMER_BODIES);
    if (!good)
        return false;
    if (o->steps >= 0)
        in->steps = o->steps;
    if (o->time_step > 0.0)
        in->time_step = o->time_step;
    if ((size_t)nodes > in->bodies)
        return complain("%d nodes are more than the %zu bodies; use fewer nodes (hiroba run -n)",
                        nodes, in->bodies);
    return true;
}

/* ---- The program ----------------------------------------------------------------------------- */

/* Allocates what the nodes share, each node writing its own block first, so that it lives there. */
static bool share(struct system *s, const struct input *in, struct block own)
{
    size_t bytes = in->bodies * sizeof(double), own_bytes = (own.end - own.first) * sizeof(double);
    double *mass = shared_zeroed(bytes);
    bool good = mass != NULL;
    s->bodies = in->bodies;
    s->gravity = in->gravity;
    s->softening = in->softening;
    s->mass = mass;
    good &= (s->energy = shared_zeroed(bytes)) != NULL;
    for (int axis = 0; axis < 3; axis++) {
        good &= (s->position[0][axis] = shared_zeroed(bytes)) != NULL;
        good &= (s->position[1][axis] = shared_zeroed(bytes)) != NULL;
        good &= (s->velocity[axis] = shared_zeroed(bytes)) != NULL;
        good &= (s->acceleration[axis] = shared_zeroed(bytes)) != NULL;
    }
    if (!good)
        return complain("no shared memory for %zu bodies: %s", in->bodies, strerror(errno));
    memcpy(mass + own.first, in->mass + own.first, own_bytes);
    for (int axis = 0; axis < 3; axis++) {
        memcpy(s->position[0][axis] + own.first, in->position[axis] + own.first, own_bytes);
        memcpy(s->velocity[axis] + own.first, in->velocity[axis] + own.first, own_bytes);
    }
    return true;
}

static void report(const struct input *in, double energy_before, double energy_after,
                   double energy_drift, double elapsed)
{
    double interactions = (double)in->steps * (double)in->bodies * (double)(in->bodies - 1);
    printf("input                    %s\n", in->name);
    printf("bodies                   %zu\n", in->bodies);
    printf("steps                    %ld\n", in->steps);
    printf("time step                %g\n", in->time_step);
    printf("nodes                    %d\n", nodes);
    printf("initial energy           %.17g\n", energy_before);
    printf("final energy             %.17g\n", energy_after);
    printf("relative energy drift    %.3g\n", energy_drift);
    printf("seconds                  %.6f\n", elapsed);
    printf("interactions per second  %.4g\n", elapsed > 0.0 ? interactions / elapsed : 0.0);
}

static int run(const struct input *in)
{
    struct system s;
    struct block own = {in->bodies * (size_t)node / (size_t)nodes,
                        in->bodies * ((size_t)node + 1) / (size_t)nodes};
    double momentum_before[3];
    share(&s, in, own);
    if (!all_agree()) /* also the barrier after which every initial position is there */
        return 1;
    double energy_before = total_energy(&s, own, 0);
    double scale_before = total_momentum(&s, momentum_before);
    accelerate(&s, own, 0);

    barrier();
    double start = seconds();
    int last = simulate(&s, own, in->time_step, in->steps);
    barrier();
    double elapsed = seconds() - start;

    double energy_after = total_energy(&s, own, last);
    double energy_drift = fabs((energy_after - energy_before) / energy_before);
    if (node == 0) {
        report(in, energy_before, energy_after, energy_drift, elapsed);
        if (check(&s, energy_drift, in->drift_bound, momentum_before, scale_before, last))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct options options;
    struct input in = {.bodies = 0};
#ifndef SEQUENTIAL
    for (int i = 1; i < argc; i++)
        alone |= strcmp(argv[i], "--sequential") == 0;
    if (!alone) {
        if (hiroba_init(&argc, &argv) != 0) {
            fprintf(stderr, "nbody: cannot join the job: %s\n", hiroba_error_string());
            return 1;
        }
        node = hiroba_node();
        nodes = hiroba_nodes();
    }
#endif
    bool ready = parse_options(&options, argc, argv);
    if (ready && options.help) {
        if (node == 0)
            print_help();
        return leave(0);
    }
    if (ready)
        load(&in, &options);
    if (!all_agree())
        return leave(2);
    return leave(run(&in));
}
