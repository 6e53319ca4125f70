/*
 * cg: the smallest eigenvalue of a sparse matrix by conjugate gradients, a kernel of the NAS
 * Parallel Benchmarks.
 *
 *     hiroba cc -O3 -march=native -o cg cg.c -lm
 *     hiroba run -n 4 ./cg -c A
 *
 * Read `solve` first: it is the parallel program (RNR-94-007, section 2.2.3). Every thread owns some
 * blocks of rows of the matrix, and the elements of the vectors there. A product with the matrix
 * needs a whole vector, so each thread keeps the direction p whole for itself, and all that is
 * shared is what changes it: each leaves its part of the residual r, and its sums for the dot
 * products, and reads those of the others behind a barrier. That makes two barriers a step.
 *
 * A dot product is the sum over the blocks, in their order, of the sums of each: it does not depend
 * on who owns which, so the checksum is the same on any number of nodes and threads.
 */

#include "common.h"
#include "kernels.h"

static const char *class_word = "S";

static const struct option OPTIONS[] = {
    {"-c", "a class", 0, 0, NULL, &class_word},
    {NULL, NULL, 0, 0, NULL, NULL},
};

static void print_help(void)
{
    printf("usage: cg [-c CLASS] [--sequential]\n"
           "\n"
           "Finds an eigenvalue of a random sparse matrix, and checks it.\n"
           "\n"
           "  -c CLASS      S for 1400 rows, W for 7000, A for 14000 [%s]\n"
           "  --sequential  one thread, without Hiroba\n"
           "  -h, --help    print this help\n"
           "\n"
           "Exit status: 0 the eigenvalue is the official one, 1 it is not, 2 bad arguments.\n",
           class_word);
}

/* The classes, with the official results. */
struct problem {
    size_t rows;
    size_t nonzeros; /* of each of the random vectors that the matrix is made of */
    double shift, zeta;
};

static const struct problem PROBLEMS[] = {
    {1400, 7, 10.0, 8.5971775078648},
    {7000, 8, 12.0, 10.362595087124},
    {14000, 11, 20.0, 17.130235054029},
};

static const double BOUND = 1e-10; /* of zeta, relative to itself */
static const double CONDITION = 0.1;

/* Power iterations, and steps of conjugate gradients in each; rows of a block; the most nonzeros. */
enum { ITERATIONS = 15, STEPS = 25, BLOCK = 40, LANES = 8, NONZEROS_MAX = 12 };

static const struct problem *problem;

static size_t block_count(void)
{
    return problem->rows / BLOCK; /* all classes are multiples */
}

/* ---- The matrix ------------------------------------------------------------------------------ */

/*
 * The matrix is the sum over i of w^i x x^T for random sparse vectors x of their own, with
 * w = CONDITION^(1 / rows), and CONDITION - shift on the diagonal.
 */
struct vector {
    size_t nonzeros;
    uint32_t place[NONZEROS_MAX];
    double value[NONZEROS_MAX];
};

/* Draws a vector, and makes its element `own` 1/2. */
static struct vector draw(size_t own, uint64_t *random)
{
    struct vector x = {.nonzeros = 0};
    double range = 1.0;
    size_t at = 0;
    while (range < (double)problem->rows)
        range *= 2.0;
    while (x.nonzeros < problem->nonzeros) {
        double value = next_number(random);
        uint32_t place = (uint32_t)(range * next_number(random));
        for (at = 0; at < x.nonzeros && x.place[at] != place; at++)
            ;
        if (place >= problem->rows || at < x.nonzeros)
            continue; /* no such row, or one that is drawn already */
        x.place[x.nonzeros] = place;
        x.value[x.nonzeros++] = value;
    }
    for (at = 0; at < x.nonzeros && x.place[at] != own; at++)
        ;
    x.place[at] = (uint32_t)own;
    x.value[at] = 0.5;
    x.nonzeros += at == x.nonzeros;
    return x;
}

/* All vectors, and for each row which of them reach it. */
struct generators {
    struct vector *vectors;
    size_t *first; /* of the vectors that reach a row, in `reaching`; and one more */
    uint32_t *reaching;
};

static void forget(struct generators *g)
{
    free(g->vectors);
    free(g->first);
    free(g->reaching);
}

/* Draws all of them: each thread for itself, since every number follows from the last. */
static bool generate(struct generators *g)
{
    const size_t rows = problem->rows;
    uint64_t random = 314159265;
    g->vectors = malloc(rows * sizeof *g->vectors);
    g->first = calloc(rows + 2, sizeof *g->first);
    g->reaching = malloc(rows * NONZEROS_MAX * sizeof *g->reaching);
    if (g->vectors == NULL || g->first == NULL || g->reaching == NULL)
        return false;
    (void)next_number(&random); /* the definition draws one before */
    for (size_t i = 0; i < rows; i++) {
        g->vectors[i] = draw(i, &random);
        for (size_t k = 0; k < g->vectors[i].nonzeros; k++)
            g->first[g->vectors[i].place[k] + 2]++;
    }
    for (size_t row = 2; row < rows + 2; row++)
        g->first[row] += g->first[row - 1];
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < g->vectors[i].nonzeros; k++)
            g->reaching[g->first[g->vectors[i].place[k] + 1]++] = (uint32_t)i;
    return true;
}

/* A thread's rows of the matrix, which nobody else reads. */
struct matrix {
    double *values;
    uint32_t *columns;
    size_t room;   /* elements */
    size_t *first; /* element of a row, counted from the thread's first row; and one more */
};

/* Adds to a dense row what all vectors that reach it contribute. */
static void add_row(const struct generators *g, size_t row, double ratio, double *dense)
{
    for (size_t r = g->first[row]; r < g->first[row + 1]; r++) {
        const struct vector *x = &g->vectors[g->reaching[r]];
        size_t at = 0;
        while (x->place[at] != row)
            at++;
        double scale = pow(ratio, (double)g->reaching[r]) * x->value[at];
        for (size_t k = 0; k < x->nonzeros; k++)
            dense[x->place[k]] += scale * x->value[k];
    }
    dense[row] += CONDITION - problem->shift;
}

/* Room for a whole row behind these elements. */
static bool make_room(struct matrix *m, size_t elements)
{
    if (m->room - elements >= problem->rows)
        return true;
    m->room = 2 * m->room + problem->rows;
    double *values = realloc(m->values, m->room * sizeof *values);
    m->values = values != NULL ? values : m->values;
    uint32_t *columns = realloc(m->columns, m->room * sizeof *columns);
    m->columns = columns != NULL ? columns : m->columns;
    return values != NULL && columns != NULL;
}

/* Builds the rows of one thread; false if there is no memory for it. */
static bool build(struct matrix *m, struct span own)
{
    const size_t rows = problem->rows;
    const double ratio = pow(CONDITION, 1.0 / (double)rows);
    struct generators g = {NULL, NULL, NULL};
    double *dense = calloc(rows, sizeof *dense);
    size_t elements = 0;
    *m = (struct matrix){NULL, NULL, 0, calloc(own.end - own.first + 1, sizeof *m->first)};
    bool good = generate(&g) && dense != NULL && m->first != NULL;
    for (size_t row = own.first; good && row < own.end; row++) {
        good = make_room(m, elements);
        add_row(&g, row, ratio, dense);
        m->first[row - own.first] = elements;
        for (size_t column = 0; good && column < rows; column++) {
            if (dense[column] == 0.0)
                continue;
            m->values[elements] = dense[column];
            m->columns[elements++] = (uint32_t)column;
            dense[column] = 0.0;
        }
    }
    if (good)
        m->first[own.end - own.first] = elements;
    forget(&g);
    free(dense);
    return good;
}

/* A row of the matrix times a vector: by LANES sums, added in pairs. */
static double row_times(const struct matrix *m, size_t row, const double *restrict vector)
{
    const size_t end = m->first[row + 1];
    double sums[LANES] = {0.0};
    size_t k = m->first[row];
    for (; k + LANES <= end; k += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += m->values[k + lane] * vector[m->columns[k + lane]];
    for (size_t lane = 0; k < end; k++, lane++)
        sums[lane] += m->values[k] * vector[m->columns[k]];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* ---- The parallel program -------------------------------------------------------------------- */

/* What the threads share. */
struct shared {
    struct parts parts[3];
    double *x; /* the eigenvector, for the verdict */
};

/* The parts: sums for p.Ap; the residual, with sums for r.r; the solution, with its sums. */
enum part { PRODUCT, RESIDUAL, SOLUTION };

/* Sums that lie before the elements in a part; blocks * this of them. */
static const size_t SUMS[3] = {1, 1, 2};

/* A thread's own state. */
struct own {
    struct span blocks;
    size_t first, rows; /* of its rows */
    struct matrix matrix;
    double *p;          /* all elements; of the following, its own alone */
    double *q, *x, *z, *r;
};

static double set_up;
static struct clocks elapsed;
static size_t threads;
static double zeta, residual; /* of the last iteration, as this node has computed them */

/* The sum of a block of a product of two vectors: by LANES sums, added in pairs. */
static double block_sum(const double *restrict a, const double *restrict b)
{
    double sums[LANES] = {0.0};
    for (size_t i = 0; i < BLOCK; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += a[i + lane] * b[i + lane];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static void leave_sums(double *sums, const struct own *o, const double *a, const double *b)
{
    for (size_t block = 0; block < o->blocks.end - o->blocks.first; block++)
        sums[block] = block_sum(a + block * BLOCK, b + block * BLOCK);
}

/* The elements of a part: behind its sums. */
static double *elements_of(const struct shared *s, enum part part, size_t thread)
{
    struct span blocks = share_of(block_count(), thread, thread_count());
    double *sums = part_of(s->parts[part], thread);
    return sums + SUMS[part] * (blocks.end - blocks.first);
}

/* Says that the parts of the others will be read soon, each thread beginning with the next. */
static void parts_soon(const struct shared *s, enum part part)
{
    const size_t count = thread_count(), thread = thread_number();
    for (size_t i = 1; i < count; i++)
        read_soon(part_of(s->parts[part], (thread + i) % count), s->parts[part].bytes);
}

/* A sum that all have left: over all blocks in their order. */
static double total(const struct shared *s, enum part part, size_t which)
{
    double sum = 0.0;
    for (size_t thread = 0; thread < thread_count(); thread++) {
        struct span blocks = share_of(block_count(), thread, thread_count());
        const size_t count = blocks.end - blocks.first;
        const double *sums = part_of(s->parts[part], thread);
        for (size_t block = 0; block < count; block++)
            sum += sums[which * count + block];
    }
    return sum;
}

/* whole = the elements that all have left + factor * whole. */
static void add_whole(const struct shared *s, enum part part, double factor, double *restrict whole)
{
    for (size_t thread = 0; thread < thread_count(); thread++) {
        struct span blocks = share_of(block_count(), thread, thread_count());
        const double *restrict elements = elements_of(s, part, thread);
        for (size_t i = 0; i < (blocks.end - blocks.first) * BLOCK; i++)
            whole[blocks.first * BLOCK + i] = elements[i] + factor * whole[blocks.first * BLOCK + i];
    }
}

/* q = the thread's rows of the matrix times a whole vector. */
static void multiply(const struct own *o, const double *vector)
{
    for (size_t row = 0; row < o->rows; row++)
        o->q[row] = row_times(&o->matrix, row, vector);
}

/* z = about A^-1 x, by conjugate gradients; leaves z whole in p. Collective. */
static void solve(const struct shared *s, struct own *o)
{
    double *product_sums = part_of(s->parts[PRODUCT], thread_number());
    double *residual_sums = part_of(s->parts[RESIDUAL], thread_number());
    memset(o->z, 0, o->rows * sizeof *o->z);
    memcpy(o->r, o->x, o->rows * sizeof *o->r);
    memset(o->p, 0, problem->rows * sizeof *o->p);
    leave_sums(residual_sums, o, o->r, o->r);
    barrier();
    parts_soon(s, RESIDUAL);
    double rho = total(s, RESIDUAL, 0);
    add_whole(s, RESIDUAL, 0.0, o->p); /* p = r */
    for (int step = 0; step < STEPS; step++) {
        multiply(o, o->p);
        leave_sums(product_sums, o, o->p + o->first, o->q);
        barrier(); /* also: all have read what was left of r */
        parts_soon(s, PRODUCT);
        double alpha = rho / total(s, PRODUCT, 0);
        for (size_t i = 0; i < o->rows; i++) {
            o->z[i] += alpha * o->p[o->first + i];
            o->r[i] -= alpha * o->q[i];
        }
        leave_sums(residual_sums, o, o->r, o->r);
        barrier(); /* also: all have read the sums of p.Ap */
        parts_soon(s, RESIDUAL);
        double last = rho;
        rho = total(s, RESIDUAL, 0);
        add_whole(s, RESIDUAL, rho / last, o->p); /* p = r + beta p */
    }
}

/*
 * An iteration of the inverse power method: z = A^-1 x, zeta = shift + 1 / x.z, x = z / |z|; and
 * how well z solves the equation. Collective.
 */
static void iterate(const struct shared *s, struct own *o)
{
    const size_t own_blocks = o->blocks.end - o->blocks.first;
    double *sums = part_of(s->parts[SOLUTION], thread_number());
    solve(s, o);
    leave_sums(sums, o, o->x, o->z);
    leave_sums(sums + own_blocks, o, o->z, o->z);
    memcpy(elements_of(s, SOLUTION, thread_number()), o->z, o->rows * sizeof *o->z);
    barrier();
    parts_soon(s, SOLUTION);
    double scale = 1.0 / sqrt(total(s, SOLUTION, 1));
    double reciprocal = total(s, SOLUTION, 0);
    add_whole(s, SOLUTION, 0.0, o->p); /* p = z */
    multiply(o, o->p);
    for (size_t i = 0; i < o->rows; i++) {
        o->q[i] = o->x[i] - o->q[i];
        o->x[i] = scale * o->z[i];
    }
    leave_sums(part_of(s->parts[PRODUCT], thread_number()), o, o->q, o->q);
    barrier();
    parts_soon(s, PRODUCT);
    double norm = sqrt(total(s, PRODUCT, 0));
    if (keeps_time()) {
        zeta = problem->shift + 1.0 / reciprocal;
        residual = norm;
    }
}

static double *own_vector(size_t elements)
{
    double *vector = calloc(elements + 1, sizeof *vector);
    if (vector == NULL)
        abort(); /* threads cannot leave a barrier that others wait at */
    return vector;
}

static void begin(const struct shared *s, struct own *o)
{
    o->blocks = own_share(block_count());
    o->first = o->blocks.first * BLOCK;
    o->rows = (o->blocks.end - o->blocks.first) * BLOCK;
    o->p = own_vector(problem->rows);
    o->q = own_vector(o->rows);
    o->x = own_vector(o->rows);
    o->z = own_vector(o->rows);
    o->r = elements_of(s, RESIDUAL, thread_number());
    if (!build(&o->matrix, (struct span){o->first, o->first + o->rows}))
        abort();
}

static void start(struct own *o)
{
    for (size_t i = 0; i < o->rows; i++)
        o->x[i] = 1.0;
}

static void work(void *argument)
{
    const struct shared *s = argument;
    struct own own;
    double begun = seconds();
    begin(s, &own);
    start(&own);
    iterate(s, &own); /* once more than is measured: what is touched first is no part of that */
    start(&own);
    barrier();
    struct clocks started = clocks();
    for (int iteration = 0; iteration < ITERATIONS; iteration++)
        iterate(s, &own);
    if (keeps_time()) {
        elapsed = since(started);
        set_up = started.wall - begun;
        threads = thread_count();
    }
    memcpy(s->x + own.first, own.x, own.rows * sizeof *own.x);
    free(own.p);
    free(own.q);
    free(own.x);
    free(own.z);
    free(own.matrix.values);
    free(own.matrix.columns);
    free(own.matrix.first);
}

/* ---- Verdict --------------------------------------------------------------------------------- */

static uint64_t checksum(const struct shared *s)
{
    uint64_t sum = fingerprint(problem->rows, bits_of(zeta));
    for (size_t i = 0; i < problem->rows; i++)
        sum += fingerprint(i, bits_of(s->x[i]));
    return sum;
}

static bool check(const struct shared *s)
{
    double length2 = 0.0;
    for (size_t i = 0; i < problem->rows; i++)
        length2 += s->x[i] * s->x[i];
    if (!(fabs(length2 - 1.0) <= BOUND))
        return complain("the eigenvector's length is %.13g, not 1", sqrt(length2));
    return fabs(zeta - problem->zeta) <= BOUND * problem->zeta ||
           complain("zeta is %.13f and should be %.13f", zeta, problem->zeta);
}

/* ---- The program ----------------------------------------------------------------------------- */

static bool share(struct shared *s, size_t count)
{
    const size_t blocks_most = (block_count() + count - 1) / count;
    bool good = true;
    for (int part = PRODUCT; part <= SOLUTION; part++) {
        size_t elements = blocks_most * (SUMS[part] + (part == PRODUCT ? 0 : BLOCK));
        s->parts[part] = shared_parts(count, elements * sizeof(double));
        good &= s->parts[part].start != NULL;
    }
    s->x = shared_zeroed(problem->rows * sizeof *s->x);
    good &= s->x != NULL;
    return good || complain("no shared memory for vectors of %zu elements: %s", problem->rows,
                            strerror(errno));
}

static void report(const struct shared *s)
{
    printf("class                    %s\n", class_word);
    printf("rows                     %zu\n", problem->rows);
    printf("threads                  %zu on %d nodes\n", threads, nodes);
    printf("zeta                     %.13f\n", zeta);
    printf("residual                 %.3g\n", residual);
    printf("checksum                 %016llx\n", (unsigned long long)checksum(s));
    printf("seconds to set up        %.6f\n", set_up);
    print_clocks(elapsed);
    printf("steps per second         %.4g\n",
           elapsed.wall > 0.0 ? ITERATIONS * STEPS / elapsed.wall : 0.0);
}

static int run(void)
{
    struct shared s;
    share(&s, threads_in_all());
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

static void choose(void)
{
    int class = class_of(class_word);
    if (class < 0)
        return;
    problem = &PROBLEMS[class];
    if ((size_t)nodes > block_count())
        complain("%d nodes are more than the %zu blocks of rows of class %s; use fewer nodes "
                 "(hiroba run -n)", nodes, block_count(), class_word);
}

int main(int argc, char **argv)
{
    bool help;
    int status = join("cg", &argc, &argv);
    if (status != 0)
        return status;
    if (parse_options(OPTIONS, argc, argv, &help) && !help)
        choose();
    if (!all_agree())
        return leave(2);
    if (!help)
        return leave(run());
    if (node == 0)
        print_help();
    return leave(0);
}
