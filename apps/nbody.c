/*
 * nbody: bodies that attract each other, by direct summation.
 *
 *     hiroba cc -O3 -march=native -fno-math-errno -o nbody nbody.c -lm
 *     hiroba run -n 4 ./nbody -i data/solar-system.txt
 *
 * Read `simulate` first: it is the whole parallel program. Each thread owns one block of bodies, which only
 * it moves, and for that it needs the positions of all bodies. So it leaves its positions for the others, and
 * one barrier in each step is the only synchronisation. Positions are left in two places in turn: while a
 * fast thread writes those of the next step, a slow one may still read the last ones.
 *
 * Fitted to pages: each thread leaves its positions in pages of its own, as long as its block
 * (`shared_parts`), so each other thread gets them in one piece. Only its own thread uses everything else
 * that it writes. The two places remove one of two barriers in each step.
 *
 * No result depends on the number of threads: the forces on a body are summed over all bodies in their order,
 * and so are the energies. The same input gives the same bits on 1, 2 or 100 nodes, with --sequential, and in
 * the forms without Hiroba (see common.h).
 *
 * -march=native lets the inner loop use the machine's full vector width; all nodes of a job must run the same
 * executable. -fno-math-errno lets a compiler put sqrt() into a vector loop.
 */

#include "common.h"

/* ---- What is simulated ----------------------------------------------------------------------- */

/* The initial state as this node read or generated it: private memory with the same contents on every
 * node. */
struct input {
    const char *name;
    size_t bodies, capacity;
    double *mass, *position[3], *velocity[3];
    double gravity;     /* Newton's constant in the input's units */
    double softening;   /* length that keeps close encounters finite (Plummer's softening) */
    double time_step;
    double drift_bound; /* largest relative change of the total energy that is accepted */
    long steps;
};

/* The state that all threads share. */
struct shared {
    const struct input *in;
    struct parts left[2]; /* positions that a thread leaves for the others: [axis][own body] */
    double *energy;       /* of each body: kinetic, plus half of the energy of each of its pairs */
    double *position[3], *velocity[3], *acceleration[3]; /* of all bodies, at the end */
};

/* The private state of a thread, with one array for each quantity so that loops over bodies vectorise. */
struct own {
    size_t first, count; /* of its bodies */
    double *position[3]; /* of all bodies */
    double *velocity[3], *acceleration[3]; /* of its own */
};

enum { BODIES_MAX = 10 * 1000 * 1000, PLUMMER_BODIES = 2000 };

/* ---- Gravity --------------------------------------------------------------------------------- */

/* 1/r of two bodies. Returns 0 for a body and itself, so that a body does not attract itself. */
static inline double inverse_distance(double dx, double dy, double dz, double softening2)
{
    double r2 = dx * dx + dy * dy + dz * dz;
    return r2 > 0.0 ? 1.0 / sqrt(r2 + softening2) : 0.0;
}

/* As many bodies as the widest vector registers hold doubles. */
enum { LANES = 8 };

/*
 * Finds the accelerations of a thread's bodies, from all positions. Eight bodies are computed side by side,
 * and each lane sums over all j in their order, so that the loop vectorises without reordering any sum. A
 * block whose size is not a multiple of eight repeats its last body to fill the lanes, because a compiler
 * might round a second loop for the remainder differently.
 */
static void accelerate(const struct input *in, const struct own *o)
{
    const double *restrict x = o->position[0];
    const double *restrict y = o->position[1];
    const double *restrict z = o->position[2];
    const double *restrict mass = in->mass;
    const double softening2 = in->softening * in->softening;

    for (size_t i = 0; i < o->count; i += LANES) {
        double xi[LANES], yi[LANES], zi[LANES];
        double ax[LANES] = {0}, ay[LANES] = {0}, az[LANES] = {0};
        for (size_t lane = 0; lane < LANES; lane++) {
            size_t body = o->first + (i + lane < o->count ? i + lane : o->count - 1);
            xi[lane] = x[body];
            yi[lane] = y[body];
            zi[lane] = z[body];
        }
        for (size_t j = 0; j < in->bodies; j++) {
            for (size_t lane = 0; lane < LANES; lane++) {
                double dx = x[j] - xi[lane], dy = y[j] - yi[lane], dz = z[j] - zi[lane];
                double inverse = inverse_distance(dx, dy, dz, softening2);
                double pull = mass[j] * (inverse * inverse * inverse);
                ax[lane] += pull * dx;
                ay[lane] += pull * dy;
                az[lane] += pull * dz;
            }
        }
        for (size_t lane = 0; lane < LANES && i + lane < o->count; lane++) {
            o->acceleration[0][i + lane] = in->gravity * ax[lane];
            o->acceleration[1][i + lane] = in->gravity * ay[lane];
            o->acceleration[2][i + lane] = in->gravity * az[lane];
        }
    }
}

/* Kick: advances velocities by half a step, with the accelerations. */
static void kick(const struct own *o, double half_step)
{
    for (int axis = 0; axis < 3; axis++)
        for (size_t i = 0; i < o->count; i++)
            o->velocity[axis][i] += half_step * o->acceleration[axis][i];
}

/* Drift: advances positions by a step, with the velocities. */
static void drift(const struct own *o, double time_step)
{
    for (int axis = 0; axis < 3; axis++)
        for (size_t i = 0; i < o->count; i++)
            o->position[axis][o->first + i] += time_step * o->velocity[axis][i];
}

/* Leaves the positions of this thread's bodies for the others. */
static void leave_positions(const struct shared *s, const struct own *o, int copy)
{
    double *left = part_of(s->left[copy], thread_number());
    for (size_t axis = 0; axis < 3; axis++)
        memcpy(left + axis * o->count, o->position[axis] + o->first, o->count * sizeof *left);
}

/* Fetches the positions that the other threads have left. */
static void fetch_positions(const struct shared *s, const struct own *o, int copy)
{
    const size_t count = thread_count(), thread = thread_number();
    for (size_t i = 1; i < count; i++) /* each starts with the next: not all ask one node */
        read_soon(part_of(s->left[copy], (thread + i) % count), s->left[copy].bytes);
    for (size_t i = 1; i < count; i++) {
        const size_t other = (thread + i) % count;
        const struct span bodies = share_of(s->in->bodies, other, count);
        const size_t length = length_of(bodies);
        const double *left = part_of(s->left[copy], other);
        for (size_t axis = 0; axis < 3; axis++)
            memcpy(o->position[axis] + bodies.first, left + axis * length, length * sizeof *left);
    }
}

/* Leapfrog, kick-drift-kick: symplectic, so the energy error stays bounded instead of growing. */
static void simulate(const struct shared *s, const struct own *o)
{
    const double time_step = s->in->time_step;
    for (long step = 0; step < s->in->steps; step++) {
        kick(o, 0.5 * time_step);
        drift(o, time_step);
        leave_positions(s, o, (int)(step % 2));
        barrier(); /* all positions of the new step are left */
        fetch_positions(s, o, (int)(step % 2));
        accelerate(s->in, o);
        kick(o, 0.5 * time_step);
    }
}

/* ---- What is measured and checked ------------------------------------------------------------ */

/* The total energy, summed in the order of the bodies. Collective. Every node gets the same bits. */
static double total_energy(const struct shared *s, const struct own *o)
{
    const struct input *in = s->in;
    double *const *p = o->position;
    double *const *v = o->velocity;
    const double softening2 = in->softening * in->softening;
    for (size_t k = 0; k < o->count; k++) {
        const size_t i = o->first + k;
        double potential = 0.0;
        for (size_t j = 0; j < in->bodies; j++) {
            double dx = p[0][j] - p[0][i], dy = p[1][j] - p[1][i], dz = p[2][j] - p[2][i];
            potential += in->mass[j] * inverse_distance(dx, dy, dz, softening2);
        }
        double speed2 = v[0][k] * v[0][k] + v[1][k] * v[1][k] + v[2][k] * v[2][k];
        s->energy[i] = 0.5 * in->mass[i] * (speed2 - in->gravity * potential);
    }
    barrier();
    double sum = 0.0;
    for (size_t i = 0; i < in->bodies; i++)
        sum += s->energy[i];
    barrier(); /* no thread overwrites energies that another one still reads */
    return sum;
}

/* Finds the total momentum along each axis. Returns the sum of the absolute values of the bodies' momenta,
 * as a scale. */
static double total_momentum(const struct input *in, double *const velocity[3], double momentum[3])
{
    double scale = 0.0;
    for (int axis = 0; axis < 3; axis++) {
        momentum[axis] = 0.0;
        for (size_t i = 0; i < in->bodies; i++) {
            momentum[axis] += in->mass[i] * velocity[axis][i];
            scale += fabs(in->mass[i] * velocity[axis][i]);
        }
    }
    return scale;
}

/*
 * The difference between the acceleration that a body's owner has found and a plain sequential sum, relative
 * to the sum of all forces on the body. It is large if the owner missed the last move of a body.
 */
static double acceleration_error(const struct shared *s, size_t i)
{
    const struct input *in = s->in;
    double *const *p = s->position;
    double sum[3] = {0.0, 0.0, 0.0}, scale = 0.0, worst = 0.0;
    for (size_t j = 0; j < in->bodies; j++) {
        double d[3] = {p[0][j] - p[0][i], p[1][j] - p[1][i], p[2][j] - p[2][i]};
        double inverse = inverse_distance(d[0], d[1], d[2], in->softening * in->softening);
        double pull = in->gravity * in->mass[j] * (inverse * inverse * inverse);
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

/* Sets a complaint if the result is wrong. A NaN is always wrong. */
static bool check(const struct shared *s, double energy_drift)
{
    const struct input *in = s->in;
    if (!(energy_drift <= in->drift_bound))
        return complain("the energy changed by %.3g of itself, more than %.3g: wrong, or the time "
                        "step is too long for this input", energy_drift, in->drift_bound);
    double before[3], after[3];
    double scale = fmax(total_momentum(in, in->velocity, before),
                        total_momentum(in, s->velocity, after));
    for (int axis = 0; axis < 3; axis++) {
        double change = fabs(after[axis] - before[axis]);
        if (!(change <= MOMENTUM_BOUND * scale))
            return complain("the momentum along axis %d changed by %.3g of the bodies' own, more "
                            "than %.3g", axis, change / scale, MOMENTUM_BOUND);
    }
    size_t samples = in->bodies < SAMPLES ? in->bodies : SAMPLES;
    for (size_t sample = 0; sample < samples; sample++) {
        size_t i = sample * (in->bodies - 1) / (samples > 1 ? samples - 1 : 1);
        double error = acceleration_error(s, i);
        if (!(error <= ACCELERATION_BOUND))
            return complain("the acceleration of body %zu is off by %.3g, more than %.3g: its "
                            "thread did not see every position", i, error, ACCELERATION_BOUND);
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

/* The next number in [0, 1), the same on every machine. */
static double next_uniform(uint64_t *state)
{
    double number = (double)(scattered(*state) >> 11) * 0x1p-53;
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return number;
}

/* Sets `out` to a vector of this length in a random direction. */
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
    in->drift_bound = bodies < 128 ? 1e-2 : 1e-4; /* few bodies: a close pair has much of the energy */
    if (!grow(in, bodies))
        return false;
    for (size_t i = 0; i < bodies; i++) {
        double inside, share, height, position[3], velocity[3];
        do /* the mass inside the radius of the body */
            inside = next_uniform(&random);
        while (inside == 0.0 || inside > 0.999);
        double radius = 1.0 / sqrt(pow(inside, -2.0 / 3.0) - 1.0);
        do { /* the body's share of the escape speed, by rejection from q^2 (1 - q^2)^(7/2) */
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
    for (int axis = 0; axis < 3; axis++) { /* move the centre of mass to the origin, at rest */
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

/* Parses a line "keyword value" that describes the whole input. Returns false if the keyword is unknown. */
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
        return complain("%s:%ld: more than %d bodies", in->name, number, BODIES_MAX);
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

/* The values of the command line's options. A value below the option's minimum means that it was not
 * given. */
static long bodies = 1, steps = -1;
static const char *file = NULL, *time_step_word = NULL;

static const struct option OPTIONS[] = {
    {"-i", "the name of a file", 0, 0, NULL, &file},
    {"-n", "a number of bodies", 2, BODIES_MAX, &bodies, NULL},
    {"-s", "a number of steps", 0, 1000000000, &steps, NULL},
    {"-d", "a time step", 0, 0, NULL, &time_step_word},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: nbody [-i FILE | -n BODIES] [-s STEPS] [-d TIME_STEP] [--sequential]\n"
           "\n"
           "Moves bodies under their gravity by direct summation and checks the result.\n"
           "\n"
           "  -i FILE        read the bodies: lines of name mass x y z vx vy vz (every node reads it)\n"
           "  -n BODIES      generate a Plummer sphere of so many bodies [%d]\n"
           "  -s STEPS       number of steps [as the file says; 100]\n"
           "  -d TIME_STEP   length of a step [as the file says; 0.01]\n"
           "  --sequential   one thread, without Hiroba\n"
           "  -h, --help     print this help\n"
           "\n"
           "Exit status: 0 the result passed its checks, 1 it did not, 2 bad arguments or input.\n",
           PLUMMER_BODIES);
}

static bool load(struct input *in)
{
    double time_step = 0.0;
    if (file != NULL && bodies >= 2)
        return complain("-i and -n exclude each other: give a file or a number of bodies");
    if (time_step_word != NULL && !(parse_number(time_step_word, &time_step) && time_step > 0.0))
        return complain("-d takes a time step above 0, not '%.40s'", time_step_word);
    if (!(file != NULL ? read_file(in, file)
                       : make_plummer(in, bodies >= 2 ? (size_t)bodies : PLUMMER_BODIES)))
        return false;
    if (steps >= 0)
        in->steps = steps;
    if (time_step > 0.0)
        in->time_step = time_step;
    return (size_t)nodes <= in->bodies ||
           complain("%d nodes are more than the %zu bodies; use fewer nodes (hiroba run -n)", nodes,
                    in->bodies);
}

/* ---- The program ----------------------------------------------------------------------------- */

static struct clocks elapsed;
static size_t threads;
static double energy_before, energy_after;

static double *room(size_t elements)
{
    double *room = malloc((elements + 1) * sizeof *room);
    if (room == NULL)
        abort(); /* threads cannot leave a barrier that others wait at */
    return room;
}

/* Sets the initial state of a thread's bodies, and the initial positions of all bodies. */
static void begin(const struct input *in, struct own *o)
{
    const struct span own = own_share(in->bodies);
    o->first = own.first;
    o->count = length_of(own);
    for (int axis = 0; axis < 3; axis++) {
        o->position[axis] = room(in->bodies);
        o->velocity[axis] = room(o->count);
        o->acceleration[axis] = room(o->count);
        memcpy(o->position[axis], in->position[axis], in->bodies * sizeof(double));
        memcpy(o->velocity[axis], in->velocity[axis] + o->first, o->count * sizeof(double));
    }
}

/* Copies the final state of a thread's bodies to shared memory. */
static void end(const struct shared *s, struct own *o)
{
    const size_t bytes = o->count * sizeof(double);
    for (int axis = 0; axis < 3; axis++) {
        memcpy(s->position[axis] + o->first, o->position[axis] + o->first, bytes);
        memcpy(s->velocity[axis] + o->first, o->velocity[axis], bytes);
        memcpy(s->acceleration[axis] + o->first, o->acceleration[axis], bytes);
        free(o->position[axis]);
        free(o->velocity[axis]);
        free(o->acceleration[axis]);
    }
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct own own;
    begin(s->in, &own);
    double before = total_energy(s, &own);
    accelerate(s->in, &own);
    barrier();
    struct clocks started = clocks();
    simulate(s, &own);
    barrier();
    if (keeps_time()) {
        elapsed = since(started);
        threads = thread_count();
    }
    double after = total_energy(s, &own);
    if (keeps_time()) {
        energy_before = before;
        energy_after = after;
    }
    end(s, &own);
}

static bool share(struct shared *s, size_t count)
{
    const size_t bytes = s->in->bodies * sizeof(double);
    const size_t most = (s->in->bodies + count - 1) / count * sizeof(double);
    bool good = (s->energy = shared_zeroed(bytes)) != NULL;
    for (int copy = 0; copy < 2; copy++) {
        s->left[copy] = shared_parts(count, 3 * most);
        good &= s->left[copy].start != NULL;
    }
    for (int axis = 0; axis < 3; axis++) {
        good &= (s->position[axis] = shared_zeroed(bytes)) != NULL;
        good &= (s->velocity[axis] = shared_zeroed(bytes)) != NULL;
        good &= (s->acceleration[axis] = shared_zeroed(bytes)) != NULL;
    }
    return good || complain("no shared memory for %zu bodies: %s", s->in->bodies, strerror(errno));
}

static uint64_t checksum(const struct shared *s)
{
    uint64_t sum = 0;
    for (size_t axis = 0; axis < 3; axis++) {
        for (size_t i = 0; i < s->in->bodies; i++) {
            sum += fingerprint(6 * i + axis, bits_of(s->position[axis][i]));
            sum += fingerprint(6 * i + axis + 3, bits_of(s->velocity[axis][i]));
        }
    }
    return sum;
}

static void report(const struct shared *s, double energy_drift)
{
    const struct input *in = s->in;
    double interactions = (double)in->steps * (double)in->bodies * (double)(in->bodies - 1);
    printf("input                    %s\n", in->name);
    printf("bodies                   %zu\n", in->bodies);
    printf("steps                    %ld\n", in->steps);
    printf("time step                %g\n", in->time_step);
    printf("threads                  %zu on %d node%s\n", threads, nodes, nodes == 1 ? "" : "s");
    printf("initial energy           %.17g\n", energy_before);
    printf("final energy             %.17g\n", energy_after);
    printf("relative energy drift    %.3g\n", energy_drift);
    printf("checksum                 %016llx\n", (unsigned long long)checksum(s));
    print_clocks(elapsed);
    printf("interactions per second  %.4g\n",
           elapsed.wall > 0.0 ? interactions / elapsed.wall : 0.0);
}

static int run(const struct input *in)
{
    struct shared s = {.in = in};
    share(&s, threads_in_all());
    if (!all_agree())
        return 1;
    on_all_threads(work, &s);
    elapsed = most_of(elapsed);
    double drift = fabs((energy_after - energy_before) / energy_before);
    if (node == 0) {
        report(&s, drift);
        if (check(&s, drift))
            printf("checks                   passed\n");
    }
    return all_agree() ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool help;
    struct input in = {.bodies = 0};
    int status = join("nbody", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        load(&in);
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run(&in));
    if (node == 0)
        print_help();
    return leave(0);
}
